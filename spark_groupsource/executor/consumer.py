"""A consumer that reads assigned ranges and stays where it is between batches.

It never takes part in a group: partitions are assigned by hand, nothing is committed. What it has fetched beyond
a range is kept for the next one, because the next batch most often starts there; what another worker has read
meanwhile is dropped as it comes, which is cheaper than a new assignment.

Invariant: for every assigned partition, `kept` followed by what the client still delivers is the log from
`position` on, once offsets below `position` are left out; `fed` is where the client goes on. `eof` is the furthest
end-of-partition event, which stands behind all that was delivered before. A partition in `lost` delivers nothing more
until `skip` moves it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from spark_groupsource import errors
from spark_groupsource.errors import AccessError, ReadError
from spark_groupsource.executor.port import (
    Chunk,
    Damaged,
    EndOfPartition,
    FetchClient,
    ImpossibleTimestamp,
    Item,
    PositionLost,
    RequestFailed,
    TopicForbidden,
    Trouble,
)
from spark_groupsource.executor.rows import OFFSET_COLUMN
from spark_groupsource.offsets import OffsetRange, TopicPartition
from spark_groupsource.options import SourceOptions

# Bounds of one `receive` call: enough records to pay for the call, few enough bytes to stay small. 5,000 to 20,000
# records take the same time each; at 2,000 and at 30,000 they take a tenth more.
_MAX_RECORDS = 10_000
_MAX_BYTES = 32 * 1024 * 1024
_FIRST_RECORDS = 1_000
# Of one record batch: Spark copies it whole, and Arrow's offsets have 32 bits.
_MAX_CHUNK_BYTES = 64 * 1024 * 1024
# How far a consumer may stand behind a start and still go there by dropping records. They are most often fetched
# already; a new assignment throws them away, and waits for the fetch under way (up to fetch.wait.max.ms).
_MAX_DROPPED_RECORDS = 50_000
_MAX_DROPPED_BYTES = 8 * 1024 * 1024
# How long a moved consumer may wait for what the cluster says about a new topic; by itself it waits up to 1 s.
_METADATA_TIMEOUT_S = 1.0


class OutOfRange(Exception):
    """The log no longer has (or does not have yet) the offset that a partition is positioned at."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(str(partition))
        self.partition = partition


class RangeConsumer:
    """See the module's head. One thread at a time."""

    def __init__(self, options: SourceOptions, make_client: Callable[[SourceOptions], FetchClient]) -> None:
        self._options = options
        self._client = make_client(options)
        self._position: dict[TopicPartition, int] = {}
        self._fed: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._kept: dict[TopicPartition, deque[Chunk | ImpossibleTimestamp]] = {}
        self._eof: dict[TopicPartition, int] = {}
        self._lost: set[TopicPartition] = set()
        self._topics: frozenset[str] = frozenset()
        self._average_bytes = _MAX_BYTES // _FIRST_RECORDS
        self.reason = ""

    def __repr__(self) -> str:
        return f"RangeConsumer({', '.join(f'{tp}@{offset}' for tp, offset in sorted(self._position.items()))})"

    @property
    def resting(self) -> bool:
        """Whether nothing is assigned: the client is connected, and fetches nothing."""
        return not self._position

    def behind(self, ranges: Iterable[OffsetRange]) -> int | None:
        """How many offsets to drop to stand at the start of the ranges; None when it takes a new assignment."""
        wanted = {item.partition: item.start for item in ranges}
        if wanted.keys() != self._position.keys() or (self._lost and wanted != self._position):
            return None
        gaps = [start - self._position[partition] for partition, start in wanted.items()]
        gap = sum(gaps)
        near = gap <= _MAX_DROPPED_RECORDS and gap * self._average_bytes <= _MAX_DROPPED_BYTES
        return gap if min(gaps, default=0) >= 0 and (near or gap == 0) else None

    def shares(self, ranges: Iterable[OffsetRange]) -> bool:
        """Whether it stands in one of these ranges' partitions: there, it is of no use to anybody else."""
        return any(item.partition in self._position for item in ranges)

    def position_at(self, ranges: Sequence[OffsetRange]) -> None:
        """Stand at the start of these ranges; keeps connections, and what was fetched if it fits."""
        wanted = {item.partition: item.start for item in ranges}
        self._ends = {item.partition: item.end for item in ranges}
        if self.behind(ranges) is None:
            self._assign(wanted)
            self._learn_topics(frozenset(tp.topic for tp in wanted))
            return
        self._position = wanted
        for partition, kept in self._kept.items():
            items = list(kept)
            kept.clear()
            for item in items:
                self._keep(partition, item)

    def rest(self) -> None:
        """Stop fetching: an assigned client asks its brokers for ever."""
        if not self.resting:
            self._assign({})

    def position(self, partition: TopicPartition) -> int:
        """The next offset to take of a partition."""
        return self._position[partition]

    def close(self) -> None:
        """Free the client."""
        self._client.close()

    def finished(self, item: OffsetRange) -> bool:
        """Whether all records of the range were taken."""
        partition = item.partition
        if self._position[partition] >= item.end:
            return True
        # An end-of-partition event before the range's end ends nothing: it may come from a leader that lags.
        return not self._kept.get(partition) and self._eof.get(partition, -1) >= item.end

    def take(self, item: OffsetRange, timeout_s: float) -> list[pa.RecordBatch]:
        """Return the next rows of one range, in order; empty when none came within the timeout.

        Raises `OutOfRange` when the log does not have the position; `skip` is the way on. Raises `ReadError` for a
        record that no row can hold.
        """
        partition = item.partition
        if not self._kept.get(partition) and partition not in self._lost:
            self._receive(timeout_s)
        kept = self._kept.get(partition)
        if not kept:
            if partition in self._lost:
                raise OutOfRange(partition)
            return []
        taken: list[pa.RecordBatch] = []
        while kept and self._position[partition] < item.end:
            head = kept.popleft()
            if isinstance(head, ImpossibleTimestamp):
                if taken or head.offset >= item.end:
                    kept.appendleft(head)
                    self._position[partition] = min(head.offset, item.end)
                    break
                raise _timestamp_error(head)
            rows, rest = _split(head.batch, item.end)
            if rest.num_rows:
                kept.appendleft(Chunk(partition, rest))
            if rows.num_rows:
                taken.append(rows)
            self._position[partition] = item.end if rest.num_rows else _last_offset(rows) + 1
        return taken

    def settle(self, item: OffsetRange) -> None:
        """Stand at the range's end, past offsets that hold no record."""
        self._position[item.partition] = max(self._position[item.partition], item.end)

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Go on at another offset of a partition.

        By a new assignment: the client refuses to seek in a partition that it has stopped at an offset out of range.
        """
        self._assign(self._position | {partition: offset})

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Return the first offset of the log and its end. Raises `ReadError` when the broker does not tell."""
        try:
            return self._client.log_bounds(partition, timeout_s)
        except RequestFailed as error:
            raise self._read_error(partition, str(error)) from None

    # --- helpers

    def _assign(self, wanted: dict[TopicPartition, int]) -> None:
        """Start anew at these offsets: what was fetched is dropped, what was lost is asked for again."""
        self._kept.clear()
        self._eof.clear()
        self._lost.clear()
        self._position = wanted
        self._fed = dict(wanted)
        self._client.assign(wanted)

    def _learn_topics(self, topics: frozenset[str]) -> None:
        """Make a moved consumer ask for its new topics' leaders at once.

        A client asks for the topics of its first assignment when it connects. For those of a later one it waits
        for its timer of 1 s, in which small batches stand still.
        """
        if self._topics:
            for topic in sorted(topics - self._topics):
                try:
                    self._client.learn(topic, _METADATA_TIMEOUT_S)
                except RequestFailed as error:
                    # The timer asks again, and the task has a deadline.
                    self.reason = str(error)
        self._topics |= topics

    def _receive(self, timeout_s: float) -> None:
        remaining = sum(max(0, end - self._fed[partition]) for partition, end in self._ends.items())
        fitting = max(1, _MAX_BYTES // max(1, self._average_bytes))
        for item in self._client.receive(max(1, min(remaining, fitting, _MAX_RECORDS)), _MAX_CHUNK_BYTES, timeout_s):
            if isinstance(item, Chunk | ImpossibleTimestamp):
                self._on_rows(item)
            else:
                self._on_event(item)

    def _on_rows(self, item: Chunk | ImpossibleTimestamp) -> None:
        if item.partition not in self._position:
            return
        if isinstance(item, Chunk):
            self._fed[item.partition] = _last_offset(item.batch) + 1
            average = item.batch.nbytes // item.batch.num_rows
            self._average_bytes = max(64, (self._average_bytes + average) // 2)
        else:
            self._fed[item.partition] = item.offset + 1
        self._keep(item.partition, item)

    def _keep(self, partition: TopicPartition, item: Chunk | ImpossibleTimestamp) -> None:
        """Keep what lies at or behind the position."""
        position = self._position[partition]
        if isinstance(item, Chunk):
            if _first_offset(item.batch) < position:
                item = Chunk(partition, _split(item.batch, position)[1])
            if not item.batch.num_rows:
                return
        elif item.offset < position:
            return
        self._kept.setdefault(partition, deque()).append(item)

    def _on_event(self, item: Item) -> None:
        if isinstance(item, EndOfPartition):
            self._eof[item.partition] = max(self._eof.get(item.partition, -1), item.offset)
        elif isinstance(item, PositionLost):
            # The client says it once, and it may be about another range of the task: remember it for that one.
            self._lost.add(item.partition)
        elif isinstance(item, TopicForbidden):
            option = self._options.subscription
            raise AccessError(errors.TOPIC_ACCESS_DENIED, option=option.option, value=option.value, topic=item.topic)
        elif isinstance(item, Damaged):
            raise self._read_error(item.partition, item.reason)
        elif isinstance(item, Trouble):
            # All else may heal until the task's deadline.
            self.reason = item.reason

    def _read_error(self, partition: TopicPartition, reason: str) -> ReadError:
        position = self._position.get(partition, 0)
        return ReadError(
            errors.READ_FAILED,
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
            start=position,
            end="?",
            reason=reason,
        )


def _timestamp_error(item: ImpossibleTimestamp) -> ReadError:
    return ReadError(
        errors.TIMESTAMP_IMPOSSIBLE,
        topic=item.partition.topic,
        partition=item.partition.partition,
        offset=item.offset,
        value=item.value_ms,
    )


def _first_offset(batch: pa.RecordBatch) -> int:
    return int(batch.column(OFFSET_COLUMN)[0].as_py())


def _last_offset(batch: pa.RecordBatch) -> int:
    return int(batch.column(OFFSET_COLUMN)[batch.num_rows - 1].as_py())


def _split(batch: pa.RecordBatch, offset: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows before an offset, and those from it on; nothing is copied."""
    offsets = batch.column(OFFSET_COLUMN)
    if _last_offset(batch) < offset:
        return batch, batch.slice(batch.num_rows)
    cut = bisect_left(range(batch.num_rows), offset, key=lambda row: int(offsets[row].as_py()))
    return batch.slice(0, cut), batch.slice(cut)
