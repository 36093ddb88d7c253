"""Read the ranges of one Spark task.

A range ends when the position, or an end-of-partition event at or beyond its end, has passed it; never by waiting
for the record at end - 1, because transaction markers and compaction leave offsets without records. The ranges of one
task are fetched side by side, and their rows come in the ranges' order (rule R56), each in the order of its
offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from spark_groupsource.clock import Clock, Deadline, SystemClock, WaitingClock
from spark_groupsource.executor.clients.choose import log_reading_path
from spark_groupsource.executor.clients.rows import SmallBatches
from spark_groupsource.executor.data_loss import LostRecords
from spark_groupsource.executor.gc_control import freeze_imported
from spark_groupsource.executor.pool import POOL, ConsumerPool
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.read_errors import OutOfRange, stalled, unreadable
from spark_groupsource.executor.topic_proof import TopicProof
from spark_groupsource.failpoints import reach
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger(__name__)
_POLL_S = 0.1
# How much of a call that waits for `_POLL_S` counts as waiting. If it took longer, the process stood still.
_LONGEST_POLL_S = 5.0
# How long no record may arrive before the task checks that the client may read, and that the topics exist with the
# planned ids. Brokers that restart, or that refuse an identity for a moment, are usually back by then.
_DOUBT_AFTER_S = 5.0


def read_task(
    options: SourceOptions,
    task: tuple[OffsetRange, ...],
    pool: ConsumerPool = POOL,
    clock: Clock | None = None,
    *,
    topic_ids: Mapping[str, str] = {},
    make_lost: Callable[[SourceOptions, Mapping[str, str], Clock], LostRecords] = LostRecords,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task's ranges, range by range and by offset (promise P7).

    `topic_ids` are those that the ranges were planned for. Raises `ReadError` if no range makes progress for
    kafkaConsumer.pollTimeoutMs, `AccessError` if the client may not read, and `DataLossError` if records are missing
    and failOnDataLoss is true.
    """
    log_reading_path()
    freeze_imported()
    clock = clock or SystemClock()
    consumer = pool.borrow(options, task, topic_ids)
    lost = make_lost(options, topic_ids, clock)
    try:
        yield from read_ranges(options, consumer, task, clock, options.poll_timeout_s, topic_ids=topic_ids, lost=lost)
    except BaseException:
        # Failed or stopped early: the consumer's positions are somewhere inside the ranges.
        consumer.close()
        raise
    finally:
        lost.close()
    pool.give_back(consumer)


def read_ranges(
    options: SourceOptions,
    consumer: RangeConsumer,
    ranges: Sequence[OffsetRange],
    clock: Clock,
    stall_timeout_s: float,
    *,
    topic_ids: Mapping[str, str] = {},
    lost: LostRecords | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges, all proven to be of the planned topics. The consumer is at the ranges' starts.

    Raises `ReadError` if no range makes progress for `stall_timeout_s`, and the other errors of `read_task`. Without
    `lost`, missing records raise `ReadError` too, and the caller decides. After an error the consumer's positions are
    somewhere inside the ranges.
    """
    reach("while-reading", options.client_id)
    small = SmallBatches()
    proof = TopicProof(consumer, ranges, topic_ids)
    reading = _Reading(consumer, ranges, clock, stall_timeout_s, proof=proof, lost=lost)
    while reading.goes_on:
        for rows, size in reading.step():
            yield from small.add(rows, size)
    yield from small.flush()


class _Reading:
    """Read one task's ranges: take rows, prove their topic, wait, give up missing records."""

    def __init__(
        self,
        consumer: RangeConsumer,
        ranges: Sequence[OffsetRange],
        clock: Clock,
        stall_timeout_s: float,
        *,
        proof: TopicProof,
        lost: LostRecords | None,
    ) -> None:
        self._consumer = consumer
        self._ranges = ranges
        self._clock = WaitingClock(clock)
        self._stall_timeout_s = stall_timeout_s
        self._proof = proof
        self._lost = lost
        self._unfinished = _unfinished(consumer, ranges)
        self._arrived = 0
        self._progress()

    @property
    def goes_on(self) -> bool:
        """Return whether there are records to read or to prove."""
        return bool(self._unfinished) or self._proof.has_unproven

    def step(self) -> list[tuple[pa.RecordBatch, int]]:
        """Read the next rows and advance the proof. Return the rows that are proven, with their sizes.

        Only time within a step counts as silence of the brokers.

        Guards against (rule R24):
        1. A task gives rows to Spark. The sink takes longer for them than `kafkaConsumer.pollTimeoutMs`.
        2. It goes on. Its next range has not been fetched yet, or the leader has closed the idle connection.
        3. 0.1 s later the task fails with `READ_STALLED`. Or it takes the log of a new leader, which lags, for
           truncated, and skips its records.
        """
        # R24: what Spark does with the rows is no silence of the brokers
        self._clock.count(at_most_s=0.0)
        proven = self._step()
        self._clock.count()
        return proven

    def _step(self) -> list[tuple[pa.RecordBatch, int]]:
        takes = bool(self._unfinished) and not self._proof.full
        if takes:
            self._take()
        if self._proof.due or (self._proof.has_unproven and not self._unfinished) or self._suspects():
            self._proof.send_request()
        proven = 0 if takes else sum(map(self._proof.proven, self._ranges))
        with self._waiting():
            replaced = self._proof.read_answer(0.0 if takes and self._unfinished else _POLL_S)
        for topic in replaced:
            self._give_up_replaced(topic)
        if not takes and sum(map(self._proof.proven, self._ranges)) > proven:
            self._progress()
        if self.goes_on and self._deadline.expired():
            self._on_silence()
        return self._proof.release_proven()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Count no more than `_LONGEST_POLL_S` of a call that waits for `_POLL_S`."""
        self._clock.count()
        try:
            yield
        finally:
            self._clock.count(_LONGEST_POLL_S)

    def _progress(self) -> None:
        self._deadline = Deadline(self._clock, self._stall_timeout_s)
        self._doubt = Deadline(self._clock, _DOUBT_AFTER_S)
        self._suspicion = Deadline(self._clock, _DOUBT_AFTER_S)
        self._wait_logged = self._access_checked = False

    def _suspects(self) -> bool:
        """Return whether to check the topic ids, because the brokers answer but no record arrives.

        Repeated every `_DOUBT_AFTER_S`: a broker may not know the new topic yet.

        Guards against:
        1. [0, 100) is planned. The topic is deleted and recreated, without records or with fewer partitions.
        2. The task asks for offset 0 of the new log, or for a partition that is missing. The client reports neither,
           and the brokers know the topic by its name.
        3. The task waits for its whole deadline, and with it every rebalance of the group.
        """
        if not self._access_checked or not self._suspicion.expired():
            return False
        self._suspicion = Deadline(self._clock, _DOUBT_AFTER_S)
        return self._proof.needs_proof

    def _take(self) -> None:
        consumer = self._consumer
        before = _positions(consumer, self._unfinished)
        try:
            with self._waiting():
                for rows in consumer.next_rows(self._unfinished, _POLL_S):
                    self._proof.hold(rows)
        except OutOfRange as error:
            item = next(item for item in self._unfinished if item.partition == error.partition)
            if self._lost is None:
                raise unreadable(item.partition, consumer.position(item.partition), "out of range") from None
            self._lost.on_out_of_range(consumer, item, self._proof)
        if self._has_arrivals():
            self._deadline = Deadline(self._clock, self._stall_timeout_s)
        if _positions(consumer, self._unfinished) > before:
            self._progress()
        elif self._doubt.expired():
            if not self._wait_logged:
                self._wait_logged = True
                _log_waiting(consumer, self._unfinished[0], self._stall_timeout_s)
            consumer.requests.check_resources()
            self._access_checked = self._access_checked or consumer.check_access(self._unfinished)
            # R66: nothing has come for 5 s
            consumer.requests.check_identity()
        self._unfinished = _unfinished(consumer, self._unfinished)

    def _has_arrivals(self) -> bool:
        """Return whether records have arrived of ranges that are not read yet."""
        before, self._arrived = self._arrived, max(self._arrived, self._consumer.arrivals(self._ranges))
        return self._arrived > before

    def _give_up_replaced(self, topic: str) -> None:
        """Give up a topic that is no longer the planned one; ignore the answer of a stale broker."""
        if self._lost is None:
            item = next(item for item in self._ranges if item.partition.topic == topic)
            raise unreadable(item.partition, self._proof.proven(item), "its topic is not the planned one any more")
        if self._lost.give_up_replaced(self._consumer, topic, self._proof):
            # The next range's turn begins now.
            self._progress()
        self._unfinished = _unfinished(self._consumer, self._unfinished)

    def _on_silence(self) -> None:
        item = next(iter(self._unfinished), self._ranges[0])
        if self._lost is None or not self._unfinished:
            at, reason = self._consumer.position(item.partition), self._consumer.requests.reason
            raise stalled(item, at, self._stall_timeout_s, reason)
        self._lost.on_silence(self._consumer, self._unfinished, self._stall_timeout_s, self._proof)
        self._unfinished = _unfinished(self._consumer, self._unfinished)
        self._progress()


def _unfinished(consumer: RangeConsumer, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges that still have records to read; move the consumer to the end of the others."""
    left = []
    for item in ranges:
        if consumer.finished(item):
            consumer.settle(item)
        else:
            left.append(item)
    return left


def _positions(consumer: RangeConsumer, ranges: Sequence[OffsetRange]) -> int:
    return sum(consumer.position(item.partition) for item in ranges)


def _log_waiting(consumer: RangeConsumer, item: OffsetRange, stall_timeout_s: float) -> None:
    text = "no records for %.0f s, waiting up to %.0f s: range=%s position=%d last_error=%s"
    position, reason = consumer.position(item.partition), consumer.requests.reason or "none"
    LOG.warning(text, _DOUBT_AFTER_S, stall_timeout_s, item, position, reason)
