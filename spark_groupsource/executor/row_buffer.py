"""Hold rows that a consumer has fetched and not yet returned, per partition and in the order of their offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa

from spark_groupsource.executor.clients.port import Chunk, Misfit
from spark_groupsource.executor.clients.rows import first_offset, last_offset, split_at
from spark_groupsource.executor.read_errors import misfit_error
from spark_groupsource.model.offsets import OffsetRange, TopicPartition

# Bytes of a chunk besides its rows: seven arrays with their buffers, as objects of Python and of Arrow. Measured.
_CHUNK_BYTES = 5_000
# Limits of one `receive` call: enough records to be worth the call, few enough bytes for the processor's cache.
# 5,000 to 20,000 records take the same time each; at 2,000 and at 30,000 they take a tenth more.
_MAX_RECORDS = 10_000
_MAX_BYTES = 2 * 1024 * 1024
# Assumed record sizes before the first record: a large one where a low guess does harm, a small one where it does not.
_FIRST_AVERAGE_BYTES = 32 * 1024
UNKNOWN_RECORD_BYTES = 1_000
# How far below a start a consumer may be and still get there by dropping records. Most of them are fetched already; a
# new assignment drops them, too, and waits for the fetch under way (up to fetch.wait.max.ms).
_MAX_DROPPED_RECORDS = 50_000
_MAX_DROPPED_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class _Entry:
    """Hold an item with its offsets and size, measured once: Arrow takes a microsecond for each."""

    item: Chunk | Misfit
    first: int
    last: int
    bytes: int
    within: int = 0

    def part(self, rows: pa.RecordBatch) -> _Entry:
        """Return an entry for a part of this entry's rows."""
        whole = self.item.batch.num_rows if isinstance(self.item, Chunk) else 1
        size = _CHUNK_BYTES + (self.bytes - _CHUNK_BYTES) * rows.num_rows // whole
        return _Entry(Chunk(self.item.partition, rows), first_offset(rows), last_offset(rows), size)

    def before(self, limit: int) -> int:
        """Return about how many bytes lie before an offset."""
        if self.last < limit or self.first >= limit:
            return self.bytes if self.last < limit else 0
        return self.bytes * (limit - self.first) // (self.last + 1 - self.first)


class RowBuffer:
    """Hold rows and cut them by offsets, without a copy.

    `set_range_ends` sets where the ranges of the task end. Rows before the end are within the range; rows after it are
    beyond it, for later tasks. Sizes are measured when rows arrive; parts get a share by rows and offsets.
    """

    def __init__(self) -> None:
        self._entries: dict[TopicPartition, deque[_Entry]] = {}
        self._range_ends: Mapping[TopicPartition, int] = {}
        self._within: dict[TopicPartition, int] = {}
        self._beyond: dict[TopicPartition, int] = {}
        # Sum over all partitions.
        self.within_bytes = 0

    def __contains__(self, partition: TopicPartition) -> bool:
        return bool(self._entries.get(partition))

    def bytes_within(self, partition: TopicPartition) -> int:
        """Return how many bytes are kept of a partition's range."""
        return self._within.get(partition, 0)

    def bytes_beyond(self) -> dict[TopicPartition, int]:
        """Return how many bytes are kept of each partition beyond the task's range."""
        return {partition: size for partition, size in self._beyond.items() if size}

    def set_range_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Set the range ends of the next task; partitions that are not named have no range."""
        touched = [partition for partition in self._entries if self._range_ends.get(partition) != ends.get(partition)]
        self._range_ends = ends
        for partition in touched:
            self._keep(partition, self._entries[partition])

    def add(self, item: Chunk | Misfit, position: int, size: int | None = None) -> None:
        """Keep the item's rows from the position on. `size` is the size of a chunk's rows, if known."""
        if isinstance(item, Misfit):
            entry = _Entry(item, item.offset, item.offset, _CHUNK_BYTES)
        else:
            first, last = first_offset(item.batch), last_offset(item.batch)
            taken = _CHUNK_BYTES + (item.batch.nbytes if size is None else size)
            entry = _Entry(item, first, last, taken)
        self._append(item.partition, entry, position)

    def blocked(self, partition: TopicPartition) -> bool:
        """Return whether the next record of a partition is one that no row can hold."""
        entries = self._entries.get(partition)
        return entries is not None and len(entries) > 0 and isinstance(entries[0].item, Misfit)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Drop the rows before the position."""
        entries = self._entries.get(partition)
        if entries and entries[0].first < position:
            self._keep(partition, entries, position)

    def drop(self, partition: TopicPartition) -> None:
        """Drop all rows of a partition."""
        self._entries.pop(partition, None)
        self._beyond.pop(partition, None)
        self.within_bytes -= self._within.pop(partition, 0)

    def trim(self, partition: TopicPartition) -> None:
        """Drop the rows of a partition beyond its range."""
        limit = self._range_ends.get(partition, 0)
        entries = [entry for entry in self._entries.get(partition, ()) if entry.first < limit]
        if entries and entries[-1].last >= limit:
            item = entries[-1].item
            if isinstance(item, Chunk):
                entries[-1] = entries[-1].part(split_at(item.batch, limit)[0])
        self._keep(partition, entries)

    def pop_rows(self, wanted: OffsetRange, position: int) -> tuple[list[pa.RecordBatch], int]:
        """Remove and return the range's rows from the position on, and the position behind them.

        Raises `ReadError` if the next record is one that no row can hold.
        """
        partition = wanted.partition
        entries = self._entries.get(partition)
        taken: list[pa.RecordBatch] = []
        while entries and position < wanted.end:
            entry = entries[0]
            head = entry.item
            if isinstance(head, Misfit):
                if taken or head.offset >= wanted.end:
                    return taken, min(head.offset, wanted.end)
                raise misfit_error(head)
            entries.popleft()
            self._count(partition, -entry.bytes, -entry.within)
            if entry.last < wanted.end:
                taken.append(head.batch)
                position = entry.last + 1
                continue
            rows, rest = split_at(head.batch, wanted.end)
            left = entry.part(rest)
            left.within = left.before(self._range_ends.get(partition, 0))
            entries.appendleft(left)
            self._count(partition, left.bytes, left.within)
            if rows.num_rows:
                taken.append(rows)
            position = wanted.end
        return taken, position

    def _keep(self, partition: TopicPartition, entries: Iterable[_Entry], position: int = 0) -> None:
        """Keep only these entries of a partition, from the position on."""
        self.drop(partition)
        for entry in entries:
            self._append(partition, entry, position)

    def _append(self, partition: TopicPartition, entry: _Entry, position: int) -> None:
        if entry.last < position:
            return
        if entry.first < position and isinstance(entry.item, Chunk):
            entry = entry.part(split_at(entry.item.batch, position)[1])
        entry.within = entry.before(self._range_ends.get(partition, 0))
        self._entries.setdefault(partition, deque()).append(entry)
        self._count(partition, entry.bytes, entry.within)

    def _count(self, partition: TopicPartition, size: int, within: int) -> None:
        self._within[partition] = self._within.get(partition, 0) + within
        self._beyond[partition] = self._beyond.get(partition, 0) + size - within
        self.within_bytes += within


def partitions_to_drop(sizes: Mapping[TopicPartition, int], most: int) -> list[TopicPartition]:
    """Return the partitions to drop, the largest first, so that the others have at most `most` bytes together."""
    found: list[TopicPartition] = []
    too_much = sum(sizes.values()) - most
    if too_much > 0:
        for partition in sorted(sizes, key=sizes.__getitem__, reverse=True):
            found.append(partition)
            too_much -= sizes[partition]
            if too_much <= 0:
                break
    return found


class RecordSize:
    """Keep a moving average of the row sizes of the last record batches."""

    def __init__(self) -> None:
        self._average = 0

    @property
    def bytes(self) -> int:
        """Return the bytes of one record, with all its columns; a high guess before the first record."""
        return self._average or _FIRST_AVERAGE_BYTES

    @property
    def likely_bytes(self) -> int:
        """Return the bytes of one record; a low guess before the first record, for uses where that does no harm."""
        return self._average or UNKNOWN_RECORD_BYTES

    def add_sample(self, rows: int, size: int) -> None:
        """Add the size in bytes of `rows` rows to the average."""
        average = size // rows
        self._average = max(64, (self._average + average) // 2 if self._average else average)

    def at_once(self) -> int:
        """Return how many records one `receive` call may return."""
        return max(1, min(_MAX_BYTES // self.bytes, _MAX_RECORDS))

    def may_drop(self, records: int) -> bool:
        """Return whether dropping this many records costs less than a new assignment."""
        return records <= _MAX_DROPPED_RECORDS and records * self.bytes <= _MAX_DROPPED_BYTES
