"""Define the lag of a group: in records, in seconds, and how long unread records are safe from retention. Pure.

A group's lag in seconds is the age of the next unread record. The record is safe until its age reaches the topic's
retention.ms. Kafka removes whole segments, and only when the newest record of a segment has that age, so the reported
time is a minimum. A limit on bytes (retention.bytes) can remove records earlier; it is only mentioned.

A producer sets the time of its records, and its clock may be wrong. A record that is a little ahead of this machine's
clock has the age 0. Of one that is further ahead (`CLOCK_SKEW_MS`) nothing is known: its time is no time of writing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from spark_groupsource.model.offsets import TopicPartition

# How far two machines' clocks may differ, in ms: the default clockskew of Kerberos. A record that is at most this far
# ahead may be that much older than shown. Of one that is further ahead, the age is not known.
CLOCK_SKEW_MS = 300_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention settings of a topic. None: records are not removed for that reason.

    `known` is False if the cluster did not report them.
    """

    after_ms: int | None = None
    above_bytes: int | None = None
    known: bool = True


@dataclass(frozen=True, slots=True)
class LagInput:
    """Lag inputs of a partition: committed offset (None: none), log bounds, timestamp of the next unread record (ms).

    Without log bounds the partition has no leader: then nothing is known of its log. `none_left`: no record is left to
    read, only offsets without records (transaction markers, compaction).
    """

    partition: TopicPartition
    committed: int | None
    beginning: int = 0
    end: int | None = None
    next_ms: int | None = None
    retention: Retention = Retention()
    none_left: bool = False


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of one partition. `lost` counts unread offsets that are already missing on the broker.

    `end`, `records` and `lost` are None if the partition has no leader.
    `behind_s` and `safe_s` are None if there is no unread record, or its timestamp is not known or more than
    `CLOCK_SKEW_MS` in the future; `safe_s` also if retention has no time limit. `age_known` is False only if there may
    be an unread record of unknown age. Beyond the log's end (`is_ahead`), all records may be unread: the topic was
    recreated, or its log truncated.
    """

    partition: TopicPartition
    committed: int | None
    end: int | None
    records: int | None
    lost: int | None
    behind_s: float | None
    safe_s: float | None
    retention: Retention = Retention()
    age_known: bool = True

    @property
    def is_ahead(self) -> bool:
        """Whether the committed offset is beyond the log's end."""
        return self.end is not None and (self.committed or 0) > self.end


def lag_of(lag_input: LagInput, now_ms: int) -> Lag:
    """Compute the lag of one partition. Without a committed offset, all records are unread."""
    if lag_input.end is None:
        return Lag(lag_input.partition, lag_input.committed, None, None, None, None, None, age_known=False)
    start = lag_input.beginning if lag_input.committed is None else lag_input.committed
    lost = max(0, lag_input.beginning - start)
    records = max(0, lag_input.end - max(start, lag_input.beginning))
    behind_s = safe_s = None
    age_ms = _age_ms(lag_input.next_ms, now_ms) if records else None
    if age_ms is not None:
        behind_s = age_ms / 1000
        if lag_input.retention.after_ms is not None:
            safe_s = max(0, lag_input.retention.after_ms - age_ms) / 1000
    age_known = start <= lag_input.end and (not records or behind_s is not None or lag_input.none_left)
    return Lag(
        lag_input.partition, lag_input.committed, lag_input.end, records, lost, behind_s, safe_s, lag_input.retention,
        age_known,
    )  # fmt: skip


def _age_ms(written_ms: int | None, now_ms: int) -> int | None:
    """Return the age of a record in ms; None if its timestamp does not show it."""
    if written_ms is None or written_ms < 0 or written_ms - now_ms > CLOCK_SKEW_MS:
        return None
    return max(0, now_ms - written_ms)


def total(lags: Iterable[Lag]) -> tuple[int, int, float | None, float | None]:
    """Return what is known over all partitions: sums of records and lost offsets, largest age, shortest safe time."""
    every = list(lags)
    ages = [lag.behind_s for lag in every if lag.behind_s is not None]
    safeties = [lag.safe_s for lag in every if lag.safe_s is not None]
    return (
        sum(lag.records or 0 for lag in every),
        sum(lag.lost or 0 for lag in every),
        max(ages, default=None),
        min(safeties, default=None),
    )


def shown_number(value: int | None) -> str:
    """Return an offset or a number of records as text for people; '-' for None."""
    return "-" if value is None else str(value)


def shown_duration(seconds: float | None) -> str:
    """Return a duration as text for people: 850ms, 12.3s, 4m10s, 3h05m, 6d23h; '-' for None."""
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
    """Return a note for the lag table that the numbers do not show; empty if there is none."""
    if lag.end is None:
        return "not known: the partition has no leader"
    if lag.lost:
        return f"{lag.lost} lost: missing on the broker"
    if lag.committed is None:
        return "no committed offset: all unread"
    if lag.is_ahead:
        return "beyond the log's end: the topic was recreated, or its log truncated"
    if lag.records and lag.retention.above_bytes is not None:
        return f"safe only up to {lag.retention.above_bytes} bytes"
    return ""
