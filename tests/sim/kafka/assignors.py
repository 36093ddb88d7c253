"""Assign partitions as the leader of a classic group does: range, and cooperative-sticky."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.protocol import Assignments, JoinMember

_Assigned = dict[str, set[TopicPartition]]


def assign(members: Sequence[JoinMember], counts: Mapping[str, int], *, cooperative: bool) -> Assignments:
    """Return the partitions of each member id. `counts` are the topics' partitions as the leader knows them."""
    found = _withhold_owned(members, _sticky(members, counts)) if cooperative else _range(members, counts)
    return {member_id: frozenset(partitions) for member_id, partitions in found.items()}


def _range(members: Sequence[JoinMember], counts: Mapping[str, int]) -> _Assigned:
    """rdkafka_range_assignor.c:494, without racks; members sorted as in rdkafka_assignor.c:73."""
    found: _Assigned = {member.member_id: set() for member in members}
    ordered = sorted(members, key=lambda m: (m.instance_id or "", m.member_id))
    for topic, count in sorted(counts.items()):
        takers = [m for m in ordered if topic in m.subscription.topics]
        first = 0
        for index, member in enumerate(takers):
            many = count // len(takers) + (index < count % len(takers))
            found[member.member_id] |= {TopicPartition(topic, number) for number in range(first, first + many)}
            first += many
    return found


def _sticky(members: Sequence[JoinMember], counts: Mapping[str, int]) -> _Assigned:
    """Balance, and move as little as possible. For members with one subscription what rdkafka_sticky_assignor.c gives.

    A partition that several members claim belongs to the one with the newest generation (prepopulateCurrentAssignments,
    rdkafka_sticky_assignor.c).
    """
    ordered = sorted(members, key=lambda m: m.member_id)
    found: _Assigned = {member.member_id: set() for member in ordered}
    every = [
        TopicPartition(topic, number)
        for topic, count in sorted(counts.items())
        if any(topic in m.subscription.topics for m in ordered)
        for number in range(count)
    ]
    claims: dict[TopicPartition, tuple[int, str]] = {}
    for member in ordered:
        for partition in sorted(member.subscription.owned):
            if partition not in claims or claims[partition][0] < member.subscription.generation:
                claims[partition] = (member.subscription.generation, member.member_id)
    least, extra = divmod(len(every), len(ordered))
    rest = []
    for partition in every:
        owner = claims.get(partition, (0, ""))[1]
        held = len(found[owner]) if owner else 0
        if owner and (held < least or (held == least and extra > 0)):
            extra -= held == least
            found[owner].add(partition)
        else:
            rest.append(partition)
    for partition in rest:
        takers = [m.member_id for m in ordered if partition.topic in m.subscription.topics]
        found[min(takers, key=lambda name: (len(found[name]), name))].add(partition)
    return found


def _withhold_owned(members: Sequence[JoinMember], assigned: _Assigned) -> _Assigned:
    """rdkafka_cgrp.c:1757 rd_kafka_cooperative_protocol_adjust_assignment.

    What another member still owns is not given to the new owner in this round. What nobody was assigned stays with the
    member that claims it.
    """
    owners: dict[TopicPartition, set[str]] = {}
    for member in members:
        for partition in member.subscription.owned:
            owners.setdefault(partition, set()).add(member.member_id)
    found: _Assigned = {}
    for member_id, partitions in assigned.items():
        found[member_id] = {p for p in partitions if owners.get(p, {member_id}) == {member_id}}
    given = {partition for partitions in assigned.values() for partition in partitions}
    for partition, names in owners.items():
        if partition not in given:
            found[min(names)].add(partition)
    return found
