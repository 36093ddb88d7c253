"""Strategy `rack-aware`: assign partitions to members in the racks of their data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource.assignors.fair_shares import Item, by_member, owners, quotas, share_out, subscribers
from spark_groupsource.assignors.interface import Assignor, ClusterInfo, GroupAssignment, GroupMember, PartitionInfo


class RackAwareAssignor(Assignor):
    """Balanced within one partition. Among balanced assignments, the one with most reads from the member's own rack.

    The order of criteria: the leader's rack, because without a replica selector on the brokers members read from the
    leader; a replica's rack; no move. A member or broker without a rack is in no rack. No metadata: the rack is in the
    consumer protocol (setting kafka.client.rack).
    """

    name = "rack-aware"

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Assign evenly, with the least cost of distance and moves."""
        takers = subscribers(cluster, members)
        racks = {member.member_id: member.rack for member in members}
        before = owners(members)
        partitions = [partition for topic in takers for partition in cluster.partitions(topic)]
        # One step on a higher level outweighs the steps of all partitions on the level below.
        above = len(partitions) + 1
        items = []
        for partition in partitions:
            info = cluster.topics[partition.topic][partition.partition]
            costs = {}
            for name in takers[partition.topic]:
                off_leader, off_replicas = _distance(racks[name], info)
                moved = before.get(partition) != name
                costs[name] = (off_leader * above + off_replicas) * above + moved
            items.append(Item(costs))
        places = share_out(items, quotas(cluster, takers, dict.fromkeys(racks, 1)))
        return GroupAssignment(by_member(zip(partitions, places, strict=True), racks))


def _distance(rack: str | None, info: PartitionInfo) -> tuple[bool, bool]:
    """Return whether the leader is in another rack, and whether every replica is."""
    if rack is None:
        return True, True
    at_leader = rack == info.leader_rack
    return not at_leader, not at_leader and rack not in info.replica_racks
