"""Strategy `single-active`: one member reads everything, all others are standby. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource.assignors.fair_shares import by_member, owners, subscribers
from spark_groupsource.assignors.interface import Assignor, ClusterInfo, GroupAssignment, GroupMember
from spark_groupsource.model.offsets import TopicPartition


class SingleActiveAssignor(Assignor):
    """All partitions of a topic are active at one member, and all topics at the same one if it subscribes to them.

    1. The member that may have most partitions is chosen; then again for the rest, until every topic has a member. If
       all subscribe to the same topics, that is one member for everything.
    2. Among members that may have equally many, the one that has most now stays, so that a new member does not take
       over. The lowest member id decides last.

    All other subscribers are standby for all partitions of their topics. No metadata.
    """

    name = "single-active"

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Choose the active member, or members."""
        takers = subscribers(cluster, members)
        before = owners(members)
        names = sorted(member.member_id for member in members)
        active: list[tuple[TopicPartition, frozenset[str]]] = []
        standby: list[tuple[TopicPartition, frozenset[str]]] = []
        left = {topic for topic in takers if cluster.topics[topic]}
        while left:
            may_have = {
                name: [partition for topic in left if name in takers[topic] for partition in cluster.partitions(topic)]
                for name in names
            }
            has = {name: sum(before.get(partition) == name for partition in may_have[name]) for name in names}
            chosen = min(names, key=lambda name: (-len(may_have[name]), -has[name], name))
            for topic in [topic for topic in left if chosen in takers[topic]]:
                others = frozenset(takers[topic]) - {chosen}
                active += [(partition, frozenset({chosen})) for partition in cluster.partitions(topic)]
                standby += [(partition, others) for partition in cluster.partitions(topic)]
                left.remove(topic)
        return GroupAssignment(by_member(active, names), by_member(standby, names))
