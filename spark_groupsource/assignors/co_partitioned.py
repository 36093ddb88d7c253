"""Strategy `co-partitioned`: equal partition numbers of all topics go to one member, for joins of topics. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource.assignors.fair_shares import Item, by_member, owners, quotas, share_out, subscribers
from spark_groupsource.assignors.interface import Assignor, AssignorError, ClusterInfo, GroupAssignment, GroupMember
from spark_groupsource.model.offsets import TopicPartition


class CoPartitionedAssignor(Assignor):
    """Assign partition 3 of `orders` and partition 3 of `payments` to the same member, likewise for all numbers.

    Topics that a member subscribes to belong together. Members that subscribe to other topics are assigned separately.
    Refused: subscriptions that overlap without being equal, and topics with different partition counts. Every member
    gets its share of partition numbers, rounded down or up, with as few moves as possible. No metadata.
    """

    name = "co-partitioned"

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Assign partition numbers.

        Raises `AssignorError` with the partition counts or the members that do not match.
        """
        takers = subscribers(cluster, members)
        before = owners(members)
        places: list[tuple[TopicPartition, frozenset[str]]] = []
        for topics in _together(cluster, members):
            names = takers[topics[0]]
            groups = list(zip(*(cluster.partitions(topic) for topic in topics), strict=True))
            items = [
                Item({name: sum(before.get(partition) != name for partition in group) for name in names})
                for group in groups
            ]
            due = quotas(cluster, {topics[0]: names}, dict.fromkeys(names, 1))
            for group, chosen in zip(groups, share_out(items, due), strict=True):
                places += [(partition, chosen) for partition in group]
        return GroupAssignment(by_member(places, [member.member_id for member in members]))


def _together(cluster: ClusterInfo, members: Sequence[GroupMember]) -> list[tuple[str, ...]]:
    """Return the sets of topics that belong together, among those that the leader knows."""
    subscribed: dict[tuple[str, ...], list[str]] = {}
    for member in sorted(members, key=lambda member: member.member_id):
        topics = tuple(sorted({topic for topic in member.topics if topic in cluster.topics}))
        if topics:
            subscribed.setdefault(topics, []).append(member.member_id)
    whose: dict[str, tuple[str, ...]] = {}
    for topics, names in sorted(subscribed.items()):
        for topic in topics:
            if topic in whose:
                raise AssignorError(
                    f"members that share topic {topic} must subscribe to the same topics: {names[0]} subscribes to "
                    f"{', '.join(topics)}, {subscribed[whose[topic]][0]} to {', '.join(whose[topic])}"
                )
            whose[topic] = topics
        counts = {topic: len(cluster.topics[topic]) for topic in topics}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
            raise AssignorError(f"topics that belong together must have the same number of partitions: {shown}")
    return sorted(subscribed)
