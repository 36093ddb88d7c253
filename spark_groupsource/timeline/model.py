"""A group's life as values to draw: who owned which partition when, batches, marks and lag. Pure.

All times are seconds since the epoch. A lane is a row of the picture: one per query, then one per partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum

from spark_groupsource.model.offsets import TopicPartition

# A query's name, or a partition.
Lane = str | TopicPartition

# More elements make a browser slow: 20,000 take about 2 s to draw.
MAX_ELEMENTS = 20_000
# The first try of `thinned`: 1/8000 of the picture's width is less than a pixel.
_FINEST = 8_000


class PeriodKind(Enum):
    """What a query and a partition had to do with each other."""

    OWNED = "owned"
    SILENT = "no event"
    DRAIN = "drain"


class MarkKind(Enum):
    """An event at one moment. The order is that of the legend."""

    HANDOVER = "handover"
    TAKEOVER = "takeover without a handover"
    LOST = "partitions lost"
    CONFLICT = "conflict or reset"
    DATA_LOSS = "data loss"
    REFUSED = "commit refused"
    DOUBT = "membership in doubt"
    ERROR = "error"
    REPLAY = "batch runs again"
    LIFE = "start or stop"
    # In the picture of a fault run only (tests/faults): queries write no event for it.
    COMMIT = "commit of the group"


@dataclass(frozen=True, slots=True)
class Period:
    """A stretch of time in a lane; `query` gives the colour."""

    kind: PeriodKind
    lane: Lane
    query: str
    start: float
    end: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A completed batch, or several that are too near to each other to be drawn alone."""

    lane: Lane
    query: str
    start: float
    end: float
    records: int
    batches: int = 1


@dataclass(frozen=True, slots=True)
class EventMark:
    """An event at one moment, or `count` of the same kind that are too near to each other."""

    kind: MarkKind
    lane: Lane
    at: float
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class LagPoint:
    """Unread records of a query's partitions; None where it has no partitions, which interrupts the line."""

    query: str
    at: float
    records: int | None
    behind_s: float | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """All that the picture shows. `joined_s` is the width in seconds up to which neighbours were joined; 0 for none."""

    title: str
    subtitle: str
    start: float
    end: float
    queries: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]
    periods: tuple[Period, ...] = ()
    blocks: tuple[Block, ...] = ()
    marks: tuple[EventMark, ...] = ()
    lag: tuple[LagPoint, ...] = ()
    joined_s: float = 0.0

    def lanes(self) -> tuple[Lane, ...]:
        """Return the lanes from top to bottom."""
        return (*self.queries, *self.partitions)

    def elements(self) -> int:
        """Return the number of things to draw."""
        return len(self.periods) + len(self.blocks) + len(self.marks) + len(self.lag)


def axis_time(at: float) -> str:
    """Return a moment in UTC as plotly reads it, to the millisecond."""
    return datetime.fromtimestamp(round(at, 3), tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def clock_time(at: float) -> str:
    """Return the time of day of a moment in UTC."""
    return axis_time(at)[11:]


def thinned(timeline: Timeline, most: int = MAX_ELEMENTS) -> Timeline:
    """Join neighbours of the same lane until at most `most` elements are left, or only a tenth of a percent is joined.

    Batches, marks and lag are joined. Periods of ownership stay: they are what the picture is for.
    """
    if timeline.elements() <= most:
        return timeline
    span = max(timeline.end - timeline.start, 0.001)
    shares = (_FINEST, _FINEST // 2, _FINEST // 4, _FINEST // 8)
    found = timeline
    for share in shares:
        width = span / share
        found = replace(
            timeline, blocks=tuple(_joined_blocks(timeline.blocks, width)),
            marks=tuple(_joined_marks(timeline.marks, width)), lag=tuple(_joined_lag(timeline.lag, width)),
            joined_s=width,
        )  # fmt: skip
        if found.elements() <= most:
            break
    return found


def _joined_blocks(blocks: Iterable[Block], width: float) -> Iterator[Block]:
    open_blocks: dict[tuple[Lane, str], Block] = {}
    for block in sorted(blocks, key=lambda block: block.start):
        key = (block.lane, block.query)
        last = open_blocks.get(key)
        if last is None or max(block.end, last.end) - last.start > width:
            if last is not None:
                yield last
            open_blocks[key] = block
            continue
        open_blocks[key] = replace(
            last, end=max(last.end, block.end), records=last.records + block.records,
            batches=last.batches + block.batches,
        )  # fmt: skip
    yield from open_blocks.values()


def _joined_marks(marks: Iterable[EventMark], width: float) -> Iterator[EventMark]:
    open_marks: dict[tuple[MarkKind, Lane], EventMark] = {}
    for mark in sorted(marks, key=lambda mark: mark.at):
        key = (mark.kind, mark.lane)
        last = open_marks.get(key)
        if last is None or mark.at - last.at > width:
            if last is not None:
                yield last
            open_marks[key] = mark
            continue
        open_marks[key] = replace(last, count=last.count + mark.count)
    yield from open_marks.values()


def _joined_lag(points: Iterable[LagPoint], width: float) -> Iterator[LagPoint]:
    """Yield the highest lag of each stretch, and every interruption of a line."""
    open_points: dict[str, tuple[float, LagPoint]] = {}
    for point in sorted(points, key=lambda point: point.at):
        began, last = open_points.get(point.query, (point.at, None))
        if last is not None and (point.records is None or last.records is None or point.at - began > width):
            yield last
            began, last = point.at, None
        if last is None or (point.records or 0) > (last.records or 0):
            last = point
        open_points[point.query] = (began, last)
    yield from (point for _, point in open_points.values())
