"""Strategy `weighted`: assign partitions in proportion to the members' weights, with few moves. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource.assignors import metadata
from spark_groupsource.assignors.fair_shares import by_member, owners, share_partitions, subscribers
from spark_groupsource.assignors.interface import Assignor, ClusterInfo, GroupAssignment, GroupMember, MemberSettings


class WeightedAssignor(Assignor):
    """A member of weight 3 gets three times as many partitions as one of weight 1, within one partition.

    Metadata: `{"weight":3}`; the default is 1. See `fair_shares` for what is promised, and why it is possible.
    """

    name = "weighted"

    def metadata(self, subscription: Sequence[str], member: MemberSettings) -> bytes:
        """Return the member's weight."""
        return metadata.encode({"weight": member.weight})

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Assign by weight: keeping a partition costs 0, a move costs 1."""
        weights = {member.member_id: metadata.count(member.metadata, "weight", 1) for member in members}
        takers = subscribers(cluster, members)
        before = owners(members)
        places = share_partitions(cluster, takers, weights, lambda partition, name: before.get(partition) != name)
        return GroupAssignment(by_member(places.items(), weights))
