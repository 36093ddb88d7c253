"""Decide from the lines of metrics files what to draw: lanes, periods, batches, marks and lag. Pure.

A file is written by one query (option metricsPath), which may have been restarted: then its process is another one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeGuard

from spark_groupsource.model.offsets import TIME_MAX_MS, TopicPartition
from spark_groupsource.timeline.model import (
    Block,
    EventMark,
    LagPoint,
    Lane,
    MarkKind,
    Period,
    PeriodKind,
    Timeline,
    clock_time,
)

# A time from here on, in seconds since 1970, has no date (year 10000). JSON also has NaN and Infinity.
_NO_DATE = (TIME_MAX_MS + 1) / 1000
# Characters of a text of an event that the page shows.
_LONGEST = 200
# Details that the page shows, besides those that a mark names. Everything else in a line stays out of the page.
_NUMBERS = ("records_in_flight", "committed", "uncommitted", "drain_ms", "repeated", "silent_ms", "batch_ms", "records")


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line of a metrics file."""

    at: float
    event: str
    group: str
    process: int
    partitions: tuple[TopicPartition, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """The lines of a metrics file, with a name for its query."""

    name: str
    lines: tuple[EventLine, ...]


@dataclass(slots=True)
class _Stay:
    """A partition with a query. `end` is None while no line of the query ends it."""

    partition: TopicPartition
    query: str
    start: float
    end: float | None = None
    drain_from: float | None = None
    # The last line of the member, when it ended without one for the partition.
    heard: float | None = None
    how: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return self.how == "COMPLETE"


def line_of(value: object) -> EventLine | None:
    """Return a parsed line of JSON as an event; None if it is not one of a metrics file."""
    if not isinstance(value, dict):
        return None
    at, event = value.get("at"), value.get("event")
    if not _is_time(at) or not isinstance(event, str):
        return None
    details, process = value.get("details"), value.get("pid")
    return EventLine(
        float(at), event, str(value.get("group") or ""), process if isinstance(process, int) else 0,
        tuple(_partitions(value.get("partitions"))), details if isinstance(details, dict) else {},
    )  # fmt: skip


def _partitions(values: object) -> Iterator[TopicPartition]:
    for value in values if isinstance(values, list) else ():
        if isinstance(value, list) and len(value) >= 2 and isinstance(value[0], str) and _is_count(value[1]):
            yield TopicPartition(value[0], value[1])


def _is_time(value: object) -> TypeGuard[int | float]:
    """Whether a value is a point in time with a date, in seconds since 1970, or a duration; NaN is neither."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _NO_DATE


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def groups_of(files: Iterable[MetricsFile]) -> list[str]:
    """Return the names of all groups in the files."""
    return sorted({line.group for file in files for line in file.lines})


def timeline_of(files: Sequence[MetricsFile]) -> Timeline:
    """Return what to draw. The files have at least one line, and are of one group."""
    by_query = {file.name: sorted(file.lines, key=lambda line: line.at) for file in files}
    start = min(line.at for lines in by_query.values() for line in lines)
    end = max(line.at for lines in by_query.values() for line in lines)
    stays: list[_Stay] = []
    periods: list[Period] = []
    blocks: list[Block] = []
    marks: list[EventMark] = []
    lag: list[LagPoint] = []
    for name, lines in by_query.items():
        member = _Member(name, lines)
        member.read()
        stays += member.stays
        periods += member.periods(end)
        blocks += member.blocks
        marks += member.marks
        lag += member.lag
    by_partition: dict[TopicPartition, list[_Stay]] = defaultdict(list)
    for stay in stays:
        by_partition[stay.partition].append(stay)
    for found in by_partition.values():
        ordered = sorted(found, key=lambda stay: stay.start)
        periods += _periods(ordered, end)
        marks += _changes(ordered)
    # A partition that was never assigned has marks, too: of a topic that was deleted while the query was stopped.
    partitions = {*by_partition, *(mark.lane for mark in marks if isinstance(mark.lane, TopicPartition))}
    timeline = Timeline(
        title=f"group {', '.join(groups_of(files))}", subtitle="", start=start, end=end, queries=tuple(by_query),
        partitions=tuple(sorted(partitions)), periods=tuple(periods), blocks=tuple(blocks),
        marks=tuple(sorted(marks, key=lambda mark: mark.at)), lag=tuple(lag),
    )  # fmt: skip
    return replace(timeline, subtitle=_summary(timeline))


def _summary(timeline: Timeline) -> str:
    """Return the figures of a timeline as one line."""
    batches = sum(block.batches for block in timeline.blocks)
    records = sum(block.records for block in timeline.blocks)
    # A handover has a mark per partition; other events have one in the lane of their query, and may have more.
    own = {MarkKind.HANDOVER, MarkKind.TAKEOVER}
    kinds = Counter(mark.kind for mark in timeline.marks if mark.kind in own or isinstance(mark.lane, str))
    parts = [
        _counted(len(timeline.queries), "query", "queries"), _counted(len(timeline.partitions), "partition"),
        _counted(batches, "batch", "batches"), _counted(records, "record"),
        _counted(kinds[MarkKind.HANDOVER], "handover"),
    ]  # fmt: skip
    parts += [
        f"{kinds[kind]:,} x {kind.value}"
        for kind in (MarkKind.TAKEOVER, MarkKind.LOST, MarkKind.CONFLICT, MarkKind.DATA_LOSS, MarkKind.ERROR)
        if kinds[kind]
    ]
    return ", ".join(parts)


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class _Member:
    """Follow the lines of one query."""

    def __init__(self, name: str, lines: Sequence[EventLine]) -> None:
        self._name = name
        self._lines = lines
        self._held: dict[TopicPartition, _Stay] = {}
        self._seen: set[TopicPartition] = set()
        self._lives: list[tuple[float, float, bool]] = []  # start, last line, whether it ended with a line
        self._process: int | None = None
        self._since: float | None = None
        self._last = 0.0
        self.stays: list[_Stay] = []
        self.blocks: list[Block] = []
        self.marks: list[EventMark] = []
        self.lag: list[LagPoint] = []

    def read(self) -> None:
        """Read all lines, once."""
        for line in self._lines:
            if line.event == "started" or line.process != self._process:
                self._begin(line)
            self._last = line.at
            self._ownership(line)
            self._happened(line)
            if line.event in {"left", "failed"}:
                self._end(line, str(line.details.get("outcome") or line.event))
        self._silent()

    def periods(self, end: float) -> Iterator[Period]:
        """Yield the times in which the query ran, for its own lane."""
        for number, (start, last, told) in enumerate(self._lives):
            yield Period(PeriodKind.OWNED, self._name, self._name, start, last, f"{self._name} runs")
            if not told:
                following = self._lives[number + 1][0] if number + 1 < len(self._lives) else end
                text = f"{self._name}: no event since {clock_time(last)}"
                yield Period(PeriodKind.SILENT, self._name, self._name, last, following, text)

    # --- its life

    def _begin(self, line: EventLine) -> None:
        self._silent()
        self._process, self._since = line.process, line.at

    def _silent(self) -> None:
        """The lines of a process end without a line that says so: it was killed, or it still runs."""
        if self._since is not None:
            self._lives.append((self._since, self._last, False))
            self._since = None
        for partition in list(self._held):
            self._held.pop(partition).heard = self._last
        self._interrupt_lag(self._last)

    def _end(self, line: EventLine, how: str) -> None:
        if self._since is not None:
            self._lives.append((self._since, line.at, True))
            self._since = None
        self._leave(list(self._held), line, how)
        self._interrupt_lag(line.at)

    # --- partitions

    def _ownership(self, line: EventLine) -> None:
        if line.event == "assigned":
            for partition in line.partitions:
                self._take(partition, line.at)
        elif line.event == "lag" and self._since == self._lines[0].at and self._lines[0].event != "started":
            # The file begins in the middle of the query's life, so an assignment may be older than its first line.
            for partition in line.partitions:
                if partition not in self._seen:
                    self._take(partition, self._lines[0].at)
        elif line.event == "revoking":
            for partition in line.partitions:
                self._take(partition, self._lines[0].at).drain_from = line.at
        elif line.event in {"revoked", "lost"}:
            how = str(line.details.get("outcome") or line.event)
            self._leave(line.partitions, line, how)

    def _take(self, partition: TopicPartition, at: float) -> _Stay:
        self._seen.add(partition)
        if partition not in self._held:
            self._held[partition] = stay = _Stay(partition, self._name, at)
            self.stays.append(stay)
        return self._held[partition]

    def _leave(self, partitions: Iterable[TopicPartition], line: EventLine, how: str) -> None:
        for partition in partitions:
            stay = self._held.pop(partition, None)
            if stay is None and partition not in self._seen:
                stay = self._take(partition, self._lines[0].at)
                del self._held[partition]
            if stay is not None:
                stay.end, stay.how, stay.details = line.at, how, line.details

    # --- marks, batches, lag

    def _happened(self, line: EventLine) -> None:
        if line.event == "completed":
            records, batch_ms = line.details.get("records"), line.details.get("batch_ms")
            took_s = batch_ms / 1000 if _is_time(batch_ms) else 0.0
            count = records if _is_count(records) else 0
            # The lane has the time in which the process ran, and no batch begins before that.
            start = max(line.at - took_s, self._since if self._since is not None else line.at - took_s)
            self.blocks.append(Block(self._name, self._name, start, line.at, count))
        elif line.event == "lag":
            total = line.details.get("total")
            if isinstance(total, dict) and _is_count(total.get("records")):
                behind = total.get("behind_s")
                behind_s = float(behind) if _is_time(behind) else None
                self.lag.append(LagPoint(self._name, line.at, total["records"], behind_s))
        else:
            self.marks += _marks(self._name, line)

    def _interrupt_lag(self, at: float) -> None:
        if self.lag and self.lag[-1].records is not None:
            self.lag.append(LagPoint(self._name, at, None))


# --- marks of single lines

_KINDS: Mapping[str, MarkKind] = {
    "started": MarkKind.LIFE,
    "stopping": MarkKind.LIFE,
    "left": MarkKind.LIFE,
    "unassigned": MarkKind.ERROR,
    "lost": MarkKind.LOST,
    "gave-up": MarkKind.LOST,
    "doubted": MarkKind.DOUBT,
    "proven": MarkKind.DOUBT,
    "replayed": MarkKind.REPLAY,
    "refused": MarkKind.REFUSED,
    "commits": MarkKind.REFUSED,
    "conflict": MarkKind.CONFLICT,
    "reset": MarkKind.CONFLICT,
    "data_lost": MarkKind.DATA_LOSS,
    "unread": MarkKind.DATA_LOSS,
    "failed": MarkKind.ERROR,
}


def _marks(query: str, line: EventLine) -> Iterator[EventMark]:
    kind = _KINDS.get(line.event)
    if kind is None:
        return
    text = f"{query}: {_words(line)}"
    yield EventMark(kind, query, line.at, text)
    # These events say what happened to the partitions, so their lanes show it too.
    if kind in {MarkKind.LOST, MarkKind.DATA_LOSS, MarkKind.REFUSED}:
        ranges = _ranges(line.details.get("ranges"))
        for partition in line.partitions:
            yield EventMark(kind, partition, line.at, f"{query}: {line.event} {partition}{ranges.get(partition, '')}")


def _ranges(values: object) -> dict[TopicPartition, str]:
    """Return the offset ranges of an event as text, by partition."""
    found: dict[TopicPartition, str] = defaultdict(str)
    for value in values if isinstance(values, list) else ():
        if isinstance(value, list) and len(value) == 4 and all(map(_is_count, value[1:])):
            found[TopicPartition(str(value[0]), value[1])] += f" [{value[2]}, {value[3]})"
    return found


def _words(line: EventLine) -> str:
    """Return an event as text: the numbers that it has, its outcome, and its reason."""
    details = line.details
    words = [line.event]
    if line.partitions:
        words.append(_counted(len(line.partitions), "partition"))
    words += [f"{name}={details[name]}" for name in _NUMBERS if _is_count(details.get(name))]
    words += [f"{name}={details[name]}".lower() for name in ("behind", "known") if isinstance(details.get(name), bool)]
    for name in ("outcome", "on_conflict", "reason", "error", "reset", "void", "ranges"):
        text = details.get(name)
        if isinstance(text, str) and text:
            words.append(_shortened(text))
    return " ".join(words)


def _shortened(text: str) -> str:
    """Return a text on one line, shortened."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


# --- a partition's lane


def _periods(stays: Sequence[_Stay], end: float) -> Iterator[Period]:
    """Yield the periods of a partition, whose stays are in the order of their starts."""
    for number, stay in enumerate(stays):
        following = stays[number + 1].start if number + 1 < len(stays) else end
        last = min(stay.end if stay.end is not None else stay.heard if stay.heard is not None else end, end)
        text = f"{stay.partition}: {stay.query}"
        yield Period(PeriodKind.OWNED, stay.partition, stay.query, stay.start, max(stay.start, last), text)
        if stay.end is None and following > last:
            silent = f"{text}: no event since {clock_time(last)}"
            yield Period(PeriodKind.SILENT, stay.partition, stay.query, last, following, silent)
        if stay.drain_from is not None:
            drained = f"{text} drains{_drained(stay)}"
            yield Period(PeriodKind.DRAIN, stay.partition, stay.query, stay.drain_from, last, drained)


def _changes(stays: Sequence[_Stay]) -> Iterator[EventMark]:
    """Yield a mark for every change of the owner."""
    lane: Lane
    for before, after in pairwise(stays):
        if before.query == after.query:
            continue
        lane = after.partition
        left = before.end if before.end is not None else before.heard
        text = f"{lane}: {before.query} -> {after.query}"
        if left is not None:
            text += f", {max(0.0, after.start - left):.1f} s without an owner"
        kind = MarkKind.HANDOVER if before.is_clean else MarkKind.TAKEOVER
        if before.end is None:
            text += f", {before.query} had written no event since {clock_time(before.heard or before.start)}"
        yield EventMark(kind, lane, after.start, text + _drained(before))


def _drained(stay: _Stay) -> str:
    words = [f"{name}={stay.details[name]}" for name in _NUMBERS if _is_count(stay.details.get(name))]
    return ", ".join(["", *([stay.how] if stay.how else []), *words])
