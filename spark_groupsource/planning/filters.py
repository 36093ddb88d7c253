"""What a batch read may leave out, from the filters that Spark pushes down. Pure.

Only what the log is ordered or cut by helps: topic, partition and offset exactly, and the time from below, because
the broker tells the first record at or after a time, before which all are older. Timestamps need not rise, so nothing
can be said from above.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from spark_groupsource.offsets import OFFSET_MAX, OffsetRange, TopicPartition

NOT_NULL = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})


@dataclass(frozen=True, slots=True)
class Restriction:
    """Rows that matter: of these topics and partition numbers (None: all), offsets [low, high), not before a time."""

    topics: frozenset[str] | None = None
    numbers: frozenset[int] | None = None
    low: int = 0
    high: int = OFFSET_MAX
    since_ms: int | None = None

    def admits(self, partition: TopicPartition) -> bool:
        """Whether rows of the partition may matter."""
        in_topics = self.topics is None or partition.topic in self.topics
        return in_topics and (self.numbers is None or partition.partition in self.numbers)

    def clip(self, item: OffsetRange) -> OffsetRange:
        """Return the part of a range that may matter; empty when none does."""
        start = min(max(item.start, self.low), item.end)
        return OffsetRange(item.partition, start, max(start, min(item.end, self.high)), None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One filter of Spark's: `kind` is the name of PySpark's class, such as GreaterThan."""

    kind: str
    column: str
    value: object = None


def restrict(known: Restriction, comparison: Comparison) -> tuple[Restriction, bool] | None:
    """Return the restriction with one more filter, and whether Spark need not apply it; None when it is of no use."""
    kind, column, value = comparison.kind, comparison.column, comparison.value
    if kind == "IsNotNull" and column in NOT_NULL:
        return known, True
    if column in ("topic", "partition") and kind in ("EqualTo", "EqualNullSafe", "In"):
        return _of_values(known, column, value if isinstance(value, list | tuple) else (value,))
    if column == "offset" and type(value) is int:
        return _of_offsets(known, kind, value)
    if column == "timestamp" and isinstance(value, datetime) and kind in _FROM_BELOW:
        # The filter itself stays: later records may be older.
        since_ms = int(value.timestamp() * 1000) - 1
        return replace(known, since_ms=max(since_ms, known.since_ms or 0, 0)), False
    return None


_FROM_BELOW = frozenset({"EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual"})


def _of_values(known: Restriction, column: str, values: Iterable[object]) -> tuple[Restriction, bool]:
    if column == "topic":
        topics = frozenset(value for value in values if isinstance(value, str))
        return replace(known, topics=topics if known.topics is None else known.topics & topics), True
    numbers = frozenset(value for value in values if isinstance(value, int))
    return replace(known, numbers=numbers if known.numbers is None else known.numbers & numbers), True


def _of_offsets(known: Restriction, kind: str, value: int) -> tuple[Restriction, bool] | None:
    bounds = {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThan": (value + 1, OFFSET_MAX),
        "GreaterThanOrEqual": (value, OFFSET_MAX),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }.get(kind)
    if bounds is None:
        return None
    low, high = bounds
    return replace(known, low=max(known.low, low), high=max(0, min(known.high, high))), True
