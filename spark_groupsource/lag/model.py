"""How far a group is behind: in records, in seconds, and until when unread records are safe. Pure.

A group's lag in seconds is the age of the next unread record. It is safe until its age reaches the topic's
retention.ms: Kafka removes whole segments, and none before its newest record is as old, so the time told is the least.
A bound on bytes (retention.bytes) can remove records sooner and is only named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_groupsource.model.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Retention:
    """What a topic's configuration says about removing records; None: nothing is removed for that reason.

    It is not `known` when the cluster did not tell it.
    """

    after_ms: int | None = None
    above_bytes: int | None = None
    known: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a partition: the group's offset (None: it has none), the log's ends, the next record's time.

    `none_left`: it is known that no record is left to read, only offsets without one (transaction markers, compaction).
    """

    partition: TopicPartition
    committed: int | None
    beginning: int
    end: int
    next_ms: int | None = None
    retention: Retention = Retention()
    none_left: bool = False


@dataclass(frozen=True, slots=True)
class Lag:
    """One partition's lag. `lost` counts unread offsets that are gone already.

    `behind_s` and `safe_s` are None when there is no unread record, or when its time is not known; `safe_s` also when
    nothing removes it by time. `age_known` is false only where there may be an unread record of any age.
    """

    partition: TopicPartition
    committed: int | None
    end: int
    records: int
    lost: int
    behind_s: float | None
    safe_s: float | None
    retention: Retention = Retention()
    age_known: bool = True


def lag_of(standing: Standing, now_ms: int) -> Lag:
    """Return the lag of one partition; without an offset of the group all records are unread."""
    start = standing.beginning if standing.committed is None else standing.committed
    lost = max(0, standing.beginning - start)
    records = max(0, standing.end - max(start, standing.beginning))
    behind_s = safe_s = None
    if records and standing.next_ms is not None and standing.next_ms >= 0:
        age_ms = max(0, now_ms - standing.next_ms)
        behind_s = age_ms / 1000
        if standing.retention.after_ms is not None:
            safe_s = max(0, standing.retention.after_ms - age_ms) / 1000
    age_known = not records or behind_s is not None or standing.none_left
    return Lag(
        standing.partition, standing.committed, standing.end, records, lost, behind_s, safe_s, standing.retention,
        age_known,
    )  # fmt: skip


def total(lags: Iterable[Lag]) -> tuple[int, int, float | None, float | None]:
    """Return the records and the lost ones of all partitions together, the largest age, and the shortest safety."""
    every = list(lags)
    ages = [lag.behind_s for lag in every if lag.behind_s is not None]
    safeties = [lag.safe_s for lag in every if lag.safe_s is not None]
    return (
        sum(lag.records for lag in every),
        sum(lag.lost for lag in every),
        max(ages, default=None),
        min(safeties, default=None),
    )


def shown_duration(seconds: float | None) -> str:
    """Return a duration as a person reads it: 850ms, 12.3s, 4m10s, 3h05m, 6d23h; '-' for none."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for larger, smaller, names in ((86_400, 3_600, "dh"), (3_600, 60, "hm"), (60, 1, "ms")):
        if whole >= larger:
            return f"{whole // larger}{names[0]}{whole % larger // smaller:02d}{names[1]}"
    return f"{whole}s"


def shown_note(lag: Lag) -> str:
    """Return what a person needs to know besides the numbers; empty when there is nothing."""
    if lag.lost:
        return f"{lag.lost} lost: gone before they were read"
    if lag.committed is None:
        return "no offset: all counts as unread"
    if lag.committed > lag.end:
        return "beyond the log's end: the topic was made anew, or its log cut"
    if lag.records and lag.retention.above_bytes is not None:
        return f"safe up to {lag.retention.above_bytes} bytes only"
    return ""
