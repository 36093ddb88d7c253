"""Run a strategy on the group's leader, and handle stale claims and cooperative rounds around it. Pure.

What it handles, each with the sequence of events that it guards against:

- Stale claims. X owns a partition in generation 5 and is considered dead. In generation 6 the partition goes to Y. X
  returns, has not noticed, and claims it with generation 5. The claim of the newest generation counts: Y owns it. Two
  claims of the same generation contradict each other, so neither counts.
- Invalid claims. X changes its subscription, or a topic is recreated with fewer partitions. Partitions that X may no
  longer have are no claims; otherwise a sticky strategy would leave them at X.
- Late metadata (rule R33). A new leader joins, and must assign before it knows a topic: the topic's partitions stay
  with the members that claim them. Otherwise all members would give up the topic, and get it back one round later. (The
  leader's client rejoins when it has the metadata, and that round assigns the rest.)
- A strategy's mistake. An assignment with one partition active at two members would be read twice: no part of such an
  assignment is used.
- Held partitions (rule R32). X holds a partition, Y joins, and the strategy moves it to Y. In this round X must give it
  up, and Y does not get it, because X continues to read until it has processed its own assignment. X rejoins when it
  has given it up, and that round assigns it to Y. Stale claims do count as held. A member that owns and holds a
  partition keeps it even if another member claims it: it gets nothing that it does not already read. The next owner has
  the partition as standby meanwhile. It can prepare, and a strategy that uses standbys (`redundant`) recognizes it in
  the next round.
- A strategy's refusal. Partitions are added one by one to topics that must have equal counts, and the strategy refuses
  the state in between: all members keep what they own, no member gets anything new, and all log the reason.
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
    """A member as it joined. `held`: it continues to read its `owned` partitions until it is assigned others."""

    member: GroupMember
    held: bool


@dataclass(frozen=True, slots=True)
class MemberPart:
    """The assignment of one member."""

    active: frozenset[TopicPartition]
    note: LeaderNote


def lead(assignor: Assignor, cluster: ClusterInfo, joined: Iterable[JoinedMember]) -> dict[str, MemberPart]:
    """Return every member's assignment by member id.

    If the strategy raises or returns an invalid assignment, the reason is in every note's `error`.

    Guards against (rule R33):
    1. A new leader joins and computes its first assignment before the metadata of a topic has arrived.
    2. To its strategy the topic has no partitions: all members would give the topic up, and get it back a round later.
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
    """Return the subscribed partitions that each member owns, without stale claims and partitions that it may not have.

    The order matters: a newer claim overrides an older one even if it is invalid itself.
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
    """Return the strategy's assignment in plain frozen sets. Raises `AssignorError`."""
    try:
        answer = assignor.assign(cluster, members)
        if isinstance(answer, GroupAssignment):
            return GroupAssignment(_plain(answer.active), _plain(answer.standby))
    except AssignorError:
        raise
    except Exception as error:
        # User code: an unhandled error in it would end the query of one leader after the other.
        raise AssignorError(f"it failed with {type(error).__name__}: {error} ({_place(error)})") from error
    raise AssignorError(f"assign must return a GroupAssignment, not {type(answer).__name__}")


def _place(error: BaseException) -> str:
    """Return the file and line that raised, because the author of the strategy sees no traceback."""
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
    """Check an assignment for a strategy's mistake. Raises `AssignorError` with the member and the partition."""
    topics = {member.member_id: frozenset(member.topics) for member in members}
    taken: dict[TopicPartition, str] = {}
    for kind, parts in (("active", answer.active), ("standby", answer.standby)):
        for name, partitions in sorted(parts.items()):
            if name not in topics:
                raise AssignorError(f"its assignment names member {name}, which is not in the group")
            for partition in sorted(partitions):
                if partition.topic not in topics[name]:
                    raise AssignorError(f"it gave {partition} to member {name}, which does not subscribe to its topic")
                if partition not in existing:
                    raise AssignorError(f"it gave {partition} to member {name}, but that partition does not exist")
                if kind == "standby" and taken.get(partition) == name:
                    raise AssignorError(f"it made {partition} both active and standby at member {name}")
                if kind == "active" and partition in taken:
                    raise AssignorError(f"it made {partition} active at two members, {taken[partition]} and {name}")
                if kind == "active":
                    taken[partition] = name


def _held_elsewhere(wanted: Parts, owned: Parts, joined: Sequence[JoinedMember]) -> Parts:
    """Return the partitions that each member must wait for, because others hold them.

    Guards against (rule R32):
    1. The strategy moves a partition from member X to member Y.
    2. X has a batch of it in flight. If Y got it at once, both would read it.
    """
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
