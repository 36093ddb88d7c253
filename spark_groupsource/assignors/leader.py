"""The frame around every strategy, on the group's leader: what a strategy need not know of claims and rounds. Pure.

Each rule names the sequence of events that it is there for.

1. Stale claims. X owns a partition in generation 5 and is taken for dead; in generation 6 it goes to Y; X comes back
   before it has noticed and claims it with generation 5. The newest generation owns it: Y. Two claims of the same
   generation contradict each other, so neither counts.
2. Claims without ground. X changes its subscription, or a topic is made anew with fewer partitions: what X may no
   longer have is no claim, or a sticky strategy would leave it there.
3. Late metadata. A new leader joins, and is asked for the first assignment before it knows a topic: its partitions stay
   with those who claim them. Otherwise all members would give up the topic, and get it back one round later. (The
   leader's client joins again when it has got the metadata, and that round hands out the rest.)
4. A strategy's mistake. An answer with a partition active twice would have two members read it: no part of such an
   answer is used.
5. Partitions that are held. X holds a partition, Y joins, and the strategy moves it to Y. In this round X is told to
   give it up, and Y does not get it, because X reads on until it has handled its own answer. X joins again when it has
   given it up, and that round hands it to Y. The claims of rule 1 that do not count as owned do count as held. Who
   owns and holds a partition keeps it though another claims it, too: it gets nothing that it does not read already.
   Whoever is to get a partition stands by for it meanwhile: it can prepare, and it tells the next round's strategy by
   that, where the strategy asks (`redundant` does), for whom it was given up.
6. A strategy's refusal. Topics that must be alike are given partitions one after the other, and the strategy refuses
   what is between: everybody keeps what it owns, nobody gets anything new, and everybody learns why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_groupsource.assignors.interface import Assignor, AssignorError, ClusterInfo, GroupAssignment, GroupMember
from spark_groupsource.assignors.notes import LeaderNote
from spark_groupsource.model.offsets import TopicPartition

Parts = Mapping[str, frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as it joined: `held` tells whether it reads what it names as owned until it is told otherwise."""

    member: GroupMember
    held: bool


@dataclass(frozen=True, slots=True)
class MemberPart:
    """What one member gets."""

    active: frozenset[TopicPartition]
    note: LeaderNote


def lead(assignor: Assignor, cluster: ClusterInfo, joined: Iterable[JoinedMember]) -> dict[str, MemberPart]:
    """Return every member's part by member id.

    Whatever the strategy raises, or a wrong answer of it, is in every note's `error`.
    """
    joined = sorted(joined, key=lambda item: item.member.member_id)
    members = [item.member for item in joined]
    subscribed = {topic for member in members for topic in member.topics}
    known = ClusterInfo({topic: cluster.topics[topic] for topic in sorted(subscribed & cluster.topics.keys())})
    owned = _owned(members)
    existing = {partition for topic in known.topics for partition in known.partitions(topic)}
    claims = {name: found & existing for name, found in owned.items()}
    standby: Parts = {}
    error = ""
    try:
        answer = _asked(assignor, known, [replace(member, owned=claims[member.member_id]) for member in members])
        _check(answer, members, existing)
        active, standby = answer.active, answer.standby
    except AssignorError as refusal:
        error = f"strategy {assignor.wire_name}: {refusal}"
        active = claims
    unknown = {
        # R33: stays with its owner
        name: frozenset(partition for partition in found if partition.topic not in known.topics)
        for name, found in owned.items()
    }
    wanted = {name: active.get(name, frozenset()) | unknown[name] for name in owned}
    waits = _held_elsewhere(wanted, owned, joined)
    return {
        name: MemberPart(
            partitions - waits[name], LeaderNote(standby.get(name, frozenset()) | waits[name], error)
        )
        for name, partitions in wanted.items()
    }  # fmt: skip


def _owned(members: Sequence[GroupMember]) -> dict[str, frozenset[TopicPartition]]:
    """Return what each member owns of the topics that it subscribes to: rule 1, and the first half of rule 2.

    In this order: a newer claim beats an older one also when it is without ground itself.
    """
    newest: dict[TopicPartition, int] = {}
    for member in members:
        for partition in member.owned:
            newest[partition] = max(newest.get(partition, member.generation), member.generation)
    claimed: dict[TopicPartition, list[str]] = {}
    for member in members:
        for partition in member.owned:
            if member.generation == newest[partition]:
                claimed.setdefault(partition, []).append(member.member_id)
    return {
        member.member_id: frozenset(
            partition
            for partition in member.owned
            # R32: older and groundless claims do not count
            if claimed[partition] == [member.member_id] and partition.topic in member.topics
        )
        for member in members
    }


def _asked(assignor: Assignor, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
    """Return the strategy's answer in plain frozen sets."""
    try:
        answer = assignor.assign(cluster, members)
        if isinstance(answer, GroupAssignment):
            return GroupAssignment(_plain(answer.active), _plain(answer.standby))
    except AssignorError:
        raise
    except Exception as error:
        # Foreign code: a mistake in it would end the query of one leader after the other.
        raise AssignorError(f"it failed with {type(error).__name__}: {error} ({_place(error)})") from error
    raise AssignorError(f"assign must return a GroupAssignment, not {type(answer).__name__}")


def _place(error: BaseException) -> str:
    """Return the file and the line that raised: whoever wrote the strategy sees no traceback."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return "?" if frame is None else f"{frame.tb_frame.f_code.co_filename.rpartition('/')[2]}:{frame.tb_lineno}"


def _plain(parts: Mapping[str, Iterable[TopicPartition]]) -> Parts:
    return {
        str(name): frozenset(TopicPartition(topic, number) for topic, number in partitions)
        for name, partitions in parts.items()
    }


def _check(answer: GroupAssignment, members: Sequence[GroupMember], existing: set[TopicPartition]) -> None:
    """Rule 4. Raises `AssignorError` that names member and partition."""
    topics = {member.member_id: frozenset(member.topics) for member in members}
    taken: dict[TopicPartition, str] = {}
    for kind, parts in (("active", answer.active), ("standby", answer.standby)):
        for name, partitions in sorted(parts.items()):
            if name not in topics:
                raise AssignorError(f"its answer names member {name}, which is not in the group")
            for partition in sorted(partitions):
                if partition.topic not in topics[name]:
                    raise AssignorError(f"it gave {partition} to member {name}, which does not subscribe to its topic")
                if partition not in existing:
                    raise AssignorError(f"it gave {partition} to member {name}, but there is no such partition")
                if kind == "standby" and taken.get(partition) == name:
                    raise AssignorError(f"it made {partition} both active and standby at member {name}")
                if kind == "active" and partition in taken:
                    raise AssignorError(f"it made {partition} active at two members, {taken[partition]} and {name}")
                if kind == "active":
                    taken[partition] = name


def _held_elsewhere(wanted: Parts, owned: Parts, joined: Sequence[JoinedMember]) -> Parts:
    """Return what each member must wait for: rule 5."""
    holders: dict[TopicPartition, set[str]] = {}
    for item in joined:
        for partition in item.member.owned if item.held else ():
            holders.setdefault(partition, set()).add(item.member.member_id)
    waits = {}
    for name, partitions in wanted.items():
        keeps = {partition for partition in owned[name] if name in holders.get(partition, ())}
        # R32: not before the holder has given it up
        waits[name] = frozenset(partition for partition in partitions - keeps if holders.get(partition, set()) - {name})
    return waits
