"""Detect a group that does not settle: repeated rounds while a partition or topic stays without an owner. Pure.

A move needs two rounds (one revokes a partition, the next assigns it); late metadata needs a third one. Two causes keep
a group from settling for ever, without an error: a member that claims a partition that it does not have, and so never
gives up; and a topic that only some members can see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_groupsource.assignors.interface import ClusterInfo
from spark_groupsource.assignors.leader import JoinedMember, MemberPart

# Round of the same members in which a warning is logged. Held partitions are given up before the next round begins, and
# metadata may need one more round.
_HELD_ROUND, _UNKNOWN_ROUND = 2, 3
# Number of rounds of the same members after which the leader requests no further one.
LIMIT = 5


class Again(Enum):
    """Whether the leader itself requests another round; the values are reasons."""

    NO = "nothing is open, or the limit is reached"
    SOON = "it lacks a topic's metadata, which its client may have received without an event"
    LATE = "a partition is held, for at most the duration of a drain"


@dataclass(frozen=True, slots=True)
class Round:
    """The leader's result of a round: a warning to log, and whether to request another round."""

    warning: str = ""
    again: Again = Again.NO


class Rounds:
    """Count rounds on the leader; a new leader starts at 0."""

    def __init__(self) -> None:
        self._who: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
        self._count = 0

    def take(self, cluster: ClusterInfo, joined: Sequence[JoinedMember], parts: Mapping[str, MemberPart]) -> Round:
        """Evaluate a round. Returns each kind of warning once, and requests further rounds up to `LIMIT`."""
        who = frozenset((item.member.member_id, item.member.topics) for item in joined)
        held, unknown = _held(cluster, joined, parts), _unknown(cluster, joined)
        same = who == self._who
        self._who = who
        self._count = 0 if not (held or unknown) else self._count + 1 if same else 1
        due = held * (self._count == _HELD_ROUND) + unknown * (self._count == _UNKNOWN_ROUND)
        again = Again.NO if self._count >= LIMIT else Again.SOON if unknown else Again.LATE if held else Again.NO
        return Round("; ".join(due), again)


def _held(cluster: ClusterInfo, joined: Sequence[JoinedMember], parts: Mapping[str, MemberPart]) -> list[str]:
    assigned = {partition for part in parts.values() for partition in part.active}
    found = []
    for topic in sorted(cluster.topics):
        for partition in cluster.partitions(topic):
            holders = sorted(item.member.member_id for item in joined if item.held and partition in item.member.owned)
            if partition not in assigned and holders:
                found.append(f"{partition} is still held by {', '.join(holders)}")
    return found


def _unknown(cluster: ClusterInfo, joined: Sequence[JoinedMember]) -> list[str]:
    missing = {topic for item in joined for topic in item.member.topics} - cluster.topics.keys()
    return [
        f"the leader does not know topic {topic}, which these members subscribe to: "
        + ", ".join(sorted(item.member.member_id for item in joined if topic in item.member.topics))
        for topic in sorted(missing)
    ]
