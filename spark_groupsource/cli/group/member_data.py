"""What a member of a classic group told its leader, and the leader it: the raw bytes that the coordinator keeps.

Of the protocol type "consumer" they are ConsumerProtocolSubscription and ConsumerProtocolAssignment, versions 0 to 3
(big-endian; a newer version is read as the newest known one, as Kafka's own clients do), with user data in both. That
of our strategies is decoded, anybody else's is only measured. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from spark_groupsource.assignors.notes import LeaderNote, MemberNote, WireError
from spark_groupsource.model.offsets import TopicPartition

CONSUMER = "consumer"
# What of a strategy's own metadata is still shown as text.
_LONGEST_TEXT = 80


@dataclass(frozen=True, slots=True)
class MemberData:
    """What the bytes of one member say. `size` is their length, of the subscription alone."""

    size: int
    # Whether the rest could be read: the protocol type is "consumer" and the bytes are of its form.
    readable: bool = False
    topics: tuple[str, ...] = ()
    # What the member had when it joined, by its own word, and the generation that gave it (-1: it does not say).
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None
    # What our strategies add; None when the user data is of another program.
    note: MemberNote | None = None
    # Length of user data that is not ours.
    foreign_size: int = 0
    # What our leader adds to the assignment.
    leader: LeaderNote = field(default_factory=LeaderNote)


def decoded(protocol_type: str, subscription: bytes, assignment: bytes) -> MemberData | None:
    """Return what the bytes say; None when there are none: a group tells them only while it is stable."""
    if not subscription:
        return None
    size = len(subscription)
    if protocol_type != CONSUMER:
        return MemberData(size)
    try:
        topics, user_data, owned, generation, rack = _subscription(_Reader(subscription))
        leader = _leader(_Reader(assignment)) if assignment else LeaderNote()
    except ValueError:
        # A program that says "consumer" and means something else.
        return MemberData(size)
    try:
        note = MemberNote.decode(user_data) if user_data else None
    except WireError:
        note = None
    foreign_size = 0 if note is not None else len(user_data)
    return MemberData(size, True, topics, owned, generation, rack, note, foreign_size, leader)


def meaning(data: bytes) -> dict[str, object] | str | None:
    """Return what a strategy's own metadata says: an object's fields, or a short text; None when it is neither.

    Numbers that are none in JSON (NaN, and what is too large) are texts, so that the answer can be written as JSON.
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
    """Return what a member told as a person reads it."""
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
        # Under the eager protocol a member of ours names what it had, and has given up.
        verb = "had" if data.note is not None and not data.note.held else "held"
        since = f" of generation {data.generation}" if data.generation >= 0 else ""
        parts.append(f"joined, {verb} {shown_partitions(data.owned)}{since}")
    if data.leader.error:
        parts.append(f"the leader could not serve the group: {data.leader.error}")
    return ", ".join(part for part in parts if part)


def _shown_own(data: bytes) -> str:
    value = meaning(data)
    if isinstance(value, dict):
        return ", ".join(f"{name}={_plain(item)}" for name, item in value.items())
    return value if value is not None else f"{len(data)} bytes of the strategy" if data else ""


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def shown_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as a person reads them: `orders 0-2,5; refunds 0`."""
    numbers: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        numbers.setdefault(partition.topic, []).append(partition.partition)
    return "; ".join(f"{topic} {_runs(found)}" for topic, found in numbers.items())


def _runs(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


# --- the consumer protocol


class _Reader:
    """Reads Kafka's primitive types, front to back. Raises `ValueError` where the bytes are not of that form."""

    def __init__(self, raw: bytes) -> None:
        self._left = raw

    def integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def text(self) -> str | None:
        length = self.integer(2)
        return None if length < 0 else self._take(length).decode("utf-8")

    def data(self) -> bytes:
        return self._take(max(0, self.integer(4)))

    def count(self) -> int:
        """Return how many items an array has; each takes two bytes at least."""
        found = max(0, self.integer(4))
        if found * 2 > len(self._left):
            raise ValueError("the array is longer than the message")
        return found

    def partitions(self) -> frozenset[TopicPartition]:
        found = set()
        for _ in range(self.count()):
            topic = self.text() or ""
            found |= {TopicPartition(topic, self.integer(4)) for _ in range(self.count())}
        return frozenset(found)

    def _take(self, size: int) -> bytes:
        taken, self._left = self._left[:size], self._left[size:]
        if len(taken) < size:
            raise ValueError("the message is cut")
        return taken


def _subscription(
    reader: _Reader,
) -> tuple[tuple[str, ...], bytes, frozenset[TopicPartition], int, str | None]:
    version = reader.integer(2)
    topics = tuple(reader.text() or "" for _ in range(reader.count()))
    user_data = reader.data()
    owned = reader.partitions() if version >= 1 else frozenset()
    generation = reader.integer(4) if version >= 2 else -1
    rack = reader.text() if version >= 3 else None
    return topics, user_data, owned, generation, rack


def _leader(reader: _Reader) -> LeaderNote:
    reader.integer(2)
    reader.partitions()
    try:
        return LeaderNote.decode(reader.data())
    except WireError:
        return LeaderNote()
