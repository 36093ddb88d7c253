"""Notices a group that does not agree: rounds that come and go while something stays without an owner. Pure.

Two rounds settle a move (one takes a partition away, the next hands it out), a third one metadata that came late. A
member that claims what it does not have, and so never gives it up, or a topic that only some members can see, keeps the
group from settling for good, and nobody fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from spark_groupsource.assignors.interface import ClusterInfo
from spark_groupsource.assignors.leader import JoinedMember, MemberPart

# In which round of the same members it is told. What is held has been given up before the next round begins, and
# metadata may need one more.
_HELD_ROUND, _UNKNOWN_ROUND = 2, 3
# For how many rounds of the same members the leader asks by itself.
LIMIT = 5


class Again(Enum):
    """Whether the leader asks for another round by itself."""

    NO = "what stays open is told, or nothing is"
    SOON = "it lacks a topic's metadata, which its client may have got without a word"
    LATE = "a partition is held, and may be for as long as a drain may last"


@dataclass(frozen=True, slots=True)
class Round:
    """What the leader thinks of a round: what to warn of, and whether to ask for another one by itself."""

    warning: str = ""
    again: Again = Again.NO


class Rounds:
    """Counts on the leader; another leader begins anew."""

    def __init__(self) -> None:
        self._who: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
        self._count = 0

    def take(self, cluster: ClusterInfo, joined: Sequence[JoinedMember], parts: Mapping[str, MemberPart]) -> Round:
        """Take what a round brought. It warns once of each kind, and asks a few times."""
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
        f"the leader does not know topic {topic}, to which subscribe: "
        + ", ".join(sorted(item.member.member_id for item in joined if topic in item.member.topics))
        for topic in sorted(missing)
    ]
