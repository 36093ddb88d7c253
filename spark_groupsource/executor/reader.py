"""Reads the ranges of one Spark task.

A range ends when the position, or an end-of-partition event at or beyond its end, has passed it; never by waiting
for the record at end - 1, because transaction markers and compaction leave offsets without records. The ranges of one
task are read side by side: offsets rise inside each of them, and nothing is said of their order among each other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline, SystemClock
from spark_groupsource.errors import DataLossError, ReadError
from spark_groupsource.executor.clients import log_reading_path
from spark_groupsource.executor.collector import freeze_imported
from spark_groupsource.executor.consumer import OutOfRange, RangeConsumer
from spark_groupsource.executor.pool import POOL, ConsumerPool
from spark_groupsource.executor.rows import SmallBatches
from spark_groupsource.executor.settings import ReadSettings
from spark_groupsource.failpoints import reach
from spark_groupsource.offsets import OffsetRange

LOG = logging.getLogger("spark_groupsource.executor")

_POLL_S = 0.1
# How long nothing may come before it is asked whether the client has the right to read at all.
_DOUBT_AFTER_S = 5.0
_BOUNDS_TIMEOUT_S = 10.0


def read_task(
    settings: ReadSettings,
    task: tuple[OffsetRange, ...],
    pool: ConsumerPool = POOL,
    clock: Clock | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's ranges; offsets rise inside each range (promise P7).

    Raises `ReadError` when no range makes progress for kafkaConsumer.pollTimeoutMs, `DataLossError` when
    records are gone and failOnDataLoss is true.
    """
    log_reading_path()
    freeze_imported()
    consumer = pool.take(settings.options, task)
    try:
        yield from read_ranges(settings, consumer, task, clock or SystemClock(), settings.stall_timeout_s)
    except BaseException:
        # Failed or cut short: the consumer stands somewhere inside the ranges.
        consumer.close()
        raise
    pool.give_back(settings.options, consumer)


def read_ranges(
    settings: ReadSettings, consumer: RangeConsumer, ranges: Sequence[OffsetRange], clock: Clock, stall_timeout_s: float
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges at whose starts the consumer stands.

    Raises `ReadError` when no range makes progress for the time given, `DataLossError` as `read_task`. The consumer
    then stands somewhere inside the ranges.
    """
    reach("while-reading", settings.options.client_id)
    small = SmallBatches()
    deadline, doubt = Deadline(clock, stall_timeout_s), Deadline(clock, _DOUBT_AFTER_S)
    unfinished = _unfinished(consumer, ranges)
    while unfinished:
        before = _positions(consumer, unfinished)
        try:
            for batch in consumer.take(unfinished, _POLL_S):
                yield from small.add(batch)
        except OutOfRange as error:
            _skip_lost(settings, consumer, next(item for item in unfinished if item.partition == error.partition))
        if _positions(consumer, unfinished) > before:
            deadline, doubt = Deadline(clock, stall_timeout_s), Deadline(clock, _DOUBT_AFTER_S)
        elif doubt.expired():
            _say_waiting(consumer, unfinished[0], stall_timeout_s)
            consumer.check_access(item.partition.topic for item in unfinished)
            doubt = Deadline(clock, stall_timeout_s)
        unfinished = _unfinished(consumer, unfinished)
        if unfinished and deadline.expired():
            raise _stalled(consumer, unfinished[0], stall_timeout_s)
    yield from small.flush()


def _unfinished(consumer: RangeConsumer, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges that still have records to take; the consumer stands at the end of the others."""
    left = []
    for item in ranges:
        if consumer.finished(item):
            consumer.settle(item)
        else:
            left.append(item)
    return left


def _positions(consumer: RangeConsumer, ranges: Sequence[OffsetRange]) -> int:
    return sum(consumer.position(item.partition) for item in ranges)


def _say_waiting(consumer: RangeConsumer, item: OffsetRange, stall_timeout_s: float) -> None:
    text = "no records for %.0f s, waiting up to %.0f s: range=%s position=%d last_error=%s"
    position, reason = consumer.position(item.partition), consumer.reason or "none"
    LOG.warning(text, _DOUBT_AFTER_S, stall_timeout_s, item, position, reason)


def _stalled(consumer: RangeConsumer, item: OffsetRange, stall_timeout_s: float) -> ReadError:
    return ReadError(
        errors.READ_STALLED,
        topic=item.partition.topic,
        partition=item.partition.partition,
        timeout_s=stall_timeout_s,
        offset=consumer.position(item.partition),
        start=item.start,
        end=item.end,
        reason=consumer.reason,
    )


def _skip_lost(settings: ReadSettings, consumer: RangeConsumer, item: OffsetRange) -> None:
    """Report what retention removed between the plan and the read, and go on behind it."""
    position = consumer.position(item.partition)
    low, high = consumer.log_bounds(item.partition, _BOUNDS_TIMEOUT_S)
    if low <= position:
        # Not lost: a new leader may lag behind for a while. Tried again until the task's deadline.
        consumer.reason = f"(its leader's log is [{low}, {high}))"
        consumer.skip(item.partition, position)
        return
    lost = OffsetRange(item.partition, position, max(position, min(low, item.end)))
    if settings.options.fail_on_data_loss:
        raise DataLossError(errors.DATA_LOST, ranges=f"{lost} (the log is [{low}, {high}))")
    LOG.warning("data lost and skipped, failOnDataLoss=false: %s (the log is [%d, %d))", lost, low, high)
    # Also at the range's end: the client has stopped there, and the next range starts where this one ended.
    consumer.skip(item.partition, lost.end)
