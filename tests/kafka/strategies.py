"""Strategies of the tests' own, as users write them; queries find them as `tests.kafka.strategies:Name`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from spark_groupsource.assignors.interface import Assignor, ClusterInfo, GroupAssignment, GroupMember, MemberSettings
from spark_groupsource.model.offsets import TopicPartition


class InTurn(Assignor):
    """Deals all partitions out in turn, in the order of the member ids."""

    name = "in-turn"

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """See `Assignor`."""
        names = sorted(member.member_id for member in members)
        return dealt(cluster, names)


class InTurnByName(Assignor):
    """The next version: in the order of the client ids, which its metadata brings."""

    name = "in-turn"
    version = 2

    def metadata(self, subscription: Sequence[str], member: MemberSettings) -> bytes:
        """See `Assignor`."""
        return json.dumps({"client": member.client_id}).encode()

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """See `Assignor`."""
        clients = {member.member_id: str(json.loads(member.metadata)["client"]) for member in members}
        return dealt(cluster, sorted(clients, key=lambda name: clients[name]))


def dealt(cluster: ClusterInfo, names: Sequence[str]) -> GroupAssignment:
    """Return all partitions, the first to the first member and so on."""
    partitions = [partition for topic in sorted(cluster.topics) for partition in cluster.partitions(topic)]
    active: dict[str, set[TopicPartition]] = {name: set() for name in names}
    for turn, partition in enumerate(partitions):
        active[names[turn % len(names)]].add(partition)
    return GroupAssignment({name: frozenset(found) for name, found in active.items()})
