"""What the tests of assignment strategies share: groups in short form, random groups, and their promises."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from spark_groupsource.assignors.interface import (
    Assignor,
    ClusterInfo,
    GroupAssignment,
    GroupMember,
    MemberSettings,
    PartitionInfo,
)
from spark_groupsource.model.offsets import TopicPartition

# The same examples in every run, and nothing written to the checkout. Sizes are drawn one by one, because failures
# shrink by them; the rest from a seed, because drawing it takes longer than what is tested.
_HOME = tempfile.TemporaryDirectory(prefix="groupkafka-hypothesis-")
set_hypothesis_home_dir(_HOME.name)
PROPERTIES = settings(deadline=None, derandomize=True, database=None, max_examples=60)
SEEDS = st.integers(0, 2**32)

Owned = frozenset[TopicPartition]
RACKS = ("r1", "r2", "r3", None)


def owned(**numbers: str) -> Owned:
    """Return partitions: orders="012" is three of topic orders."""
    return frozenset(TopicPartition(topic, int(number)) for topic, digits in numbers.items() for number in digits)


def digits(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in short form: orders-012 payments-1."""
    found: dict[str, str] = {}
    for partition in sorted(partitions):
        found[partition.topic] = found.get(partition.topic, "") + str(partition.partition)
    return " ".join(f"{topic}-{numbers}" for topic, numbers in found.items())


def short(parts: Mapping[str, Iterable[TopicPartition]]) -> dict[str, str]:
    """Return what each member has in short form."""
    return {name: digits(partitions) for name, partitions in sorted(parts.items())}


def cluster(**counts: int) -> ClusterInfo:
    """Return topics without racks."""
    return ClusterInfo({topic: (PartitionInfo(),) * count for topic, count in counts.items()})


def member(name: str, has: Owned = frozenset(), topics: str = "orders", **more: object) -> GroupMember:
    """Return a member; `topics` with spaces between."""
    more.setdefault("generation", 1 if has else -1)
    return GroupMember(name, tuple(topics.split()), owned=has, **more)  # type: ignore[arg-type]


def said(kind: type[Assignor], **values: object) -> bytes:
    """Return what a strategy tells of a member with these settings."""
    return kind().metadata(("orders",), MemberSettings(**values))  # type: ignore[arg-type]


def after(members: Iterable[GroupMember], answer: GroupAssignment) -> list[GroupMember]:
    """Return the members with what they got; a strategy's metadata is left as it is."""
    return [
        GroupMember(m.member_id, m.topics, m.metadata, answer.active[m.member_id], 2, m.instance_id, m.rack)
        for m in members
    ]


def subscribed(group: Sequence[GroupMember], topic: str) -> list[GroupMember]:
    """Return the members that may have a topic's partitions."""
    return [item for item in group if topic in item.topics]


def quota(
    topics: ClusterInfo, group: Sequence[GroupMember], name: str, weight: Callable[[GroupMember], int]
) -> Fraction:
    """Return a member's exact part of the topics that it subscribes to."""
    total = Fraction(0)
    for topic in topics.topics:
        takers = subscribed(group, topic)
        for item in takers:
            if item.member_id == name:
                total += Fraction(len(topics.topics[topic]) * weight(item), sum(map(weight, takers)))
    return total


def moved(group: Sequence[GroupMember], answer: GroupAssignment) -> Owned:
    """Return the partitions that a member had, and another one of the group gets."""
    before = {partition: item.member_id for item in group for partition in item.owned}
    return frozenset(
        partition
        for name, partitions in answer.active.items()
        for partition in partitions
        if before.get(partition, name) != name
    )


def check_active(topics: ClusterInfo, group: Sequence[GroupMember], answer: GroupAssignment) -> None:
    """Every partition of a topic that somebody subscribes to is active once, with a subscriber."""
    given = [(partition, name) for name, partitions in answer.active.items() for partition in partitions]
    assert sorted(partition for partition, _ in given) == sorted(
        partition for topic in topics.topics if subscribed(group, topic) for partition in topics.partitions(topic)
    )
    may = {item.member_id: item.topics for item in group}
    assert set(answer.active) == set(may)
    assert all(partition.topic in may[name] for partition, name in given)


@st.composite
def clusters(draw: st.DrawFn, same_count: bool = False) -> ClusterInfo:
    """Return one to three topics with up to eight partitions each, on brokers in some racks or none."""
    names = ("orders", "payments", "returns")[: draw(st.integers(1, 3))]
    count = draw(st.integers(0, 8))
    source = random.Random(draw(SEEDS))
    return ClusterInfo(
        {
            name: tuple(
                PartitionInfo(source.choice(RACKS), frozenset(source.sample(("r1", "r2", "r3"), source.randint(0, 2))))
                for _ in range(count if same_count else source.randint(0, 8))
            )
            for name in names
        }
    )


@st.composite
def groups(
    draw: st.DrawFn, topics: ClusterInfo, kind: type[Assignor], alike: bool = False, fresh: bool = False
) -> list[GroupMember]:
    """Return one to six members; claims are clean, as the leader's frame passes them on."""
    names = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    source = random.Random(draw(SEEDS))
    every = sorted(topics.topics)
    some = {name: every if alike else source.sample(every, source.randint(1, len(every))) for name in names}
    has: dict[str, set[TopicPartition]] = {name: set() for name in names}
    for partition in () if fresh else [p for topic in every for p in topics.partitions(topic)]:
        owner = source.choice([None, *(name for name in names if partition.topic in some[name])])
        if owner:
            has[owner].add(partition)
    group = []
    for name in names:
        assignor = kind()
        others = [p for topic in some[name] for p in topics.partitions(topic) if p not in has[name]]
        standby = [] if fresh else source.sample(others, source.randint(0, len(others)))
        assignor.on_assignment(frozenset(has[name]), frozenset(standby), 1)
        raw = assignor.metadata(
            some[name], MemberSettings(weight=source.randint(1, 5), redundancy=source.randint(1, 4))
        )
        group.append(GroupMember(name, tuple(some[name]), raw, frozenset(has[name]), 1, rack=source.choice(RACKS)))
    return group
