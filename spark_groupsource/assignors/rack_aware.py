"""Strategy `rack-aware`: assign partitions to members in the racks of their data. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource.assignors.fair_shares import by_member, owners, share_partitions, subscribers
from spark_groupsource.assignors.interface import Assignor, ClusterInfo, GroupAssignment, GroupMember, PartitionInfo
from spark_groupsource.model.offsets import TopicPartition


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
        # One step on a higher level outweighs the steps of all partitions on the level below.
        above = sum(len(cluster.topics[topic]) for topic in takers) + 1

        def cost(partition: TopicPartition, name: str) -> int:
            off_leader, off_replicas = _distance(racks[name], cluster.topics[partition.topic][partition.partition])
            return (off_leader * above + off_replicas) * above + (before.get(partition) != name)

        places = share_partitions(cluster, takers, dict.fromkeys(racks, 1), cost)
        return GroupAssignment(by_member(places.items(), racks))


def _distance(rack: str | None, info: PartitionInfo) -> tuple[bool, bool]:
    """Return whether the leader is in another rack, and whether every replica is."""
    if rack is None:
        return True, True
    at_leader = rack == info.leader_rack
    return not at_leader, not at_leader and rack not in info.replica_racks
