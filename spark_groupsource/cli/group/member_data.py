"""Show what members of a classic group and their leader exchange, and the coordinator stores. Pure.

User data of this package's strategies is decoded; of other user data only the size is shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_groupsource.assignors.notes import LeaderNote, MemberNote, by_topic
from spark_groupsource.model.offsets import TopicPartition

# Longest text of a strategy's own metadata that is shown.
_LONGEST_TEXT = 80


@dataclass(frozen=True, slots=True)
class MemberData:
    """The decoded bytes of one member. `size` is the length of its subscription."""

    size: int
    # Whether the rest was decoded: the protocol type is "consumer" and the bytes have its format.
    readable: bool = False
    topics: tuple[str, ...] = ()
    # Partitions that the member reported as owned when it joined, and their generation (-1: not reported).
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None
    # Data of this package's strategies; None if the user data is another program's.
    note: MemberNote | None = None
    # Length of another program's user data.
    foreign_size: int = 0
    # Data that a leader of this package adds to the assignment.
    leader: LeaderNote = field(default_factory=LeaderNote)


def meaning(data: bytes) -> dict[str, object] | str | None:
    """Decode a strategy's own metadata: an object's fields, or a short text; None if it is neither.

    Numbers without a JSON form (NaN, and too large ones) become texts, so that the result can be written as JSON.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    try:
        value = json.loads(text, parse_constant=str, parse_float=_finite)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    return text if text and text.isprintable() and len(text) <= _LONGEST_TEXT else None


def _finite(text: str) -> float | str:
    value = float(text)
    return text if value in (float("inf"), float("-inf")) else value


def shown_data(data: MemberData) -> str:
    """Return a member's data as text for users."""
    if not data.readable:
        return f"{data.size} bytes of metadata"
    parts = []
    if data.note is not None:
        parts.append(_shown_own(data.note.data))
    elif data.foreign_size:
        parts.append(f"{data.foreign_size} bytes of user data")
    if data.rack:
        parts.append(f"rack {data.rack}")
    if data.owned:
        # Under the eager protocol a member of this package reports partitions that it has already given up.
        verb = "had" if data.note is not None and not data.note.held else "held"
        since = f" of generation {data.generation}" if data.generation >= 0 else ""
        parts.append(f"joined, {verb} {shown_partitions(data.owned)}{since}")
    if data.leader.error:
        parts.append(f"the leader could not assign partitions: {data.leader.error}")
    return ", ".join(part for part in parts if part)


def _shown_own(data: bytes) -> str:
    value = meaning(data)
    if isinstance(value, dict):
        return ", ".join(f"{name}={_plain(item)}" for name, item in value.items())
    return value if value is not None else f"{len(data)} bytes of the strategy" if data else ""


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def shown_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as text for users: `orders 0-2,5; refunds 0`."""
    return "; ".join(f"{topic} {number_ranges(numbers)}" for topic, numbers in by_topic(partitions).items())


def number_ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers as text for users: `0-2,5`; empty without any."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
