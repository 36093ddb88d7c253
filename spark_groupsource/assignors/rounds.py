"""Notices a group that does not agree: rounds that come and go while something stays without an owner. Pure.

Two rounds settle a move (one takes a partition away, the next hands it out), a third one metadata that came late. A
member that claims what it does not have, and so never gives it up, or a topic that only some members can see, keeps the
group from settling for good, and nobody fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_groupsource.assignors.interface import ClusterInfo
from spark_groupsource.assignors.leader import JoinedMember, MemberPart

# Rounds of the same members after which a group should have settled.
LIMIT = 5


@dataclass(frozen=True, slots=True)
class Round:
    """What the leader thinks of a round: what to warn of, and whether to ask for another one by itself."""

    warning: str = ""
    again: bool = False


class Rounds:
    """Counts on the leader; another leader begins anew."""

    def __init__(self) -> None:
        self._who: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
        self._count = 0

    def take(self, cluster: ClusterInfo, joined: Sequence[JoinedMember], parts: Mapping[str, MemberPart]) -> Round:
        """Take what a round brought. It warns once; a topic that comes late makes the client ask again by itself."""
        who = frozenset((item.member.member_id, item.member.topics) for item in joined)
        held, unknown = _held(cluster, joined, parts), _unknown(cluster, joined)
        same = who == self._who
        self._who = who
        self._count = 0 if not (held or unknown) else self._count + 1 if same else 1
        warning = "; ".join(held + unknown) if self._count == LIMIT else ""
        return Round(warning, again=bool(held) and self._count < LIMIT)


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
