"""Reads the ranges of one Spark task.

A range ends when the position, or an end-of-partition event at or beyond its end, has passed it; never by waiting
for the record at end - 1, because transaction markers and compaction leave offsets without records. The ranges of one
task are fetched side by side, and their rows come in the ranges' order, each in the order of its offsets.

Guards against:
1. A map task gives its rows in the order of the brokers' answers. Spark deals them out to reducers by position.
2. Two reducers finish. The executor with the map output dies.
3. Spark runs the map task again and keeps the results of the finished reducers. In another order, rows that the first
   run had dealt to the lost reducers go to the finished ones: they are lost, and others are doubled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

import pyarrow as pa

from spark_groupsource.clock import Clock, Deadline, SystemClock
from spark_groupsource.executor.clients import log_reading_path
from spark_groupsource.executor.collector import freeze_imported
from spark_groupsource.executor.consumer import RangeConsumer
from spark_groupsource.executor.failures import OutOfRange, stalled, unreadable
from spark_groupsource.executor.lost import LostRecords
from spark_groupsource.executor.pool import POOL, ConsumerPool
from spark_groupsource.executor.rows import SmallBatches
from spark_groupsource.executor.settings import ReadSettings
from spark_groupsource.failpoints import reach
from spark_groupsource.offsets import OffsetRange
from spark_groupsource.option_types import SourceOptions

LOG = logging.getLogger("spark_groupsource.executor")

_POLL_S = 0.1
# How long nothing may come before it is asked whether the client has the right to read at all, and whether the topics
# are there. Brokers that restart, or that refuse an identity for a moment, are back by then.
_DOUBT_AFTER_S = 5.0


def read_task(
    settings: ReadSettings,
    task: tuple[OffsetRange, ...],
    pool: ConsumerPool = POOL,
    clock: Clock | None = None,
    *,
    topic_ids: Mapping[str, str] = {},
    make_lost: Callable[[SourceOptions, Mapping[str, str], Clock], LostRecords] = LostRecords,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's ranges, planned for these topics: range by range, by offset (promise P7).

    Raises `ReadError` when no range makes progress for kafkaConsumer.pollTimeoutMs, `AccessError` when the client may
    not read, and `DataLossError` when records are gone and failOnDataLoss is true.
    """
    log_reading_path()
    freeze_imported()
    clock = clock or SystemClock()
    consumer = pool.take(settings.options, task, topic_ids)
    lost = make_lost(settings.options, topic_ids, clock)
    try:
        yield from read_ranges(settings, consumer, task, clock, settings.stall_timeout_s, lost=lost)
    except BaseException:
        # Failed or cut short: the consumer stands somewhere inside the ranges.
        consumer.close()
        raise
    finally:
        lost.close()
    pool.give_back(settings.options, consumer)


def read_ranges(
    settings: ReadSettings,
    consumer: RangeConsumer,
    ranges: Sequence[OffsetRange],
    clock: Clock,
    stall_timeout_s: float,
    *,
    lost: LostRecords | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges at whose starts the consumer stands.

    Raises `ReadError` when no range makes progress for the time given, and all else as `read_task`. Without `lost`,
    records that are gone are a `ReadError`, too, for somebody else to judge. The consumer then stands somewhere inside
    the ranges.
    """
    reach("while-reading", settings.options.client_id)
    small = SmallBatches()
    deadline, doubt = Deadline(clock, stall_timeout_s), Deadline(clock, _DOUBT_AFTER_S)
    told = asked = False
    unfinished = _unfinished(consumer, ranges)
    most = 0
    while unfinished:
        before = _positions(consumer, unfinished)
        try:
            for batch in consumer.take(unfinished, _POLL_S):
                yield from small.add(batch)
        except OutOfRange as error:
            item = next(item for item in unfinished if item.partition == error.partition)
            if lost is None:
                raise unreadable(item.partition, consumer.position(item.partition), "out of range") from None
            lost.out_of_range(consumer, item)
        arrived = sum(consumer.arrived(item) for item in ranges)
        if _positions(consumer, unfinished) > before or arrived > most:
            most = max(most, arrived)
            deadline, doubt = Deadline(clock, stall_timeout_s), Deadline(clock, _DOUBT_AFTER_S)
            told = asked = False
        elif doubt.expired():
            if not told:
                told = True
                _say_waiting(consumer, unfinished[0], stall_timeout_s)
            asked = asked or consumer.check_access(unfinished)
            consumer.inquiries.check_identity()
        unfinished = _unfinished(consumer, unfinished)
        if unfinished and deadline.expired():
            if lost is None:
                at = consumer.position(unfinished[0].partition)
                raise stalled(unfinished[0], at, stall_timeout_s, consumer.inquiries.reason)
            lost.silent(consumer, unfinished, stall_timeout_s)
            unfinished = _unfinished(consumer, unfinished)
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
    position, reason = consumer.position(item.partition), consumer.inquiries.reason or "none"
    LOG.warning(text, _DOUBT_AFTER_S, stall_timeout_s, item, position, reason)
