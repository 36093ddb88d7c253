"""What a consumer has fetched beyond what was taken: record batches per partition, in the order of their offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from spark_groupsource import errors
from spark_groupsource.errors import ReadError
from spark_groupsource.executor.port import Chunk, ImpossibleTimestamp
from spark_groupsource.executor.rows import first_offset, last_offset, split_at
from spark_groupsource.offsets import OffsetRange, TopicPartition

# What a chunk takes besides its rows: seven arrays with their buffers, as objects of Python and of Arrow. Measured.
_CHUNK_BYTES = 5_000


@dataclass(slots=True)
class _Entry:
    item: Chunk | ImpossibleTimestamp
    bytes: int
    within: bool


class Kept:
    """Rows that are cut by offsets; nothing is copied.

    `limit` says where the ranges of the task end: what lies before that is kept within it, the rest beyond it, that is
    for later tasks. Sizes are measured on the rows.
    """

    def __init__(self) -> None:
        self._entries: dict[TopicPartition, deque[_Entry]] = {}
        self._limits: Mapping[TopicPartition, int] = {}
        self._within: dict[TopicPartition, int] = {}
        self._beyond: dict[TopicPartition, int] = {}
        # Of all partitions together.
        self.within_bytes = 0

    def __contains__(self, partition: TopicPartition) -> bool:
        return bool(self._entries.get(partition))

    def within(self, partition: TopicPartition) -> int:
        """Return how many bytes are kept of a partition's range."""
        return self._within.get(partition, 0)

    def beyond(self) -> dict[TopicPartition, int]:
        """Return how many bytes are kept of each partition that no range of the task has."""
        return {partition: size for partition, size in self._beyond.items() if size}

    def limit(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take where the ranges of the next task end; partitions that are not named have no range."""
        touched = [partition for partition in self._entries if self._limits.get(partition) != ends.get(partition)]
        self._limits = ends
        for partition in touched:
            self.advance(partition, 0)

    def add(self, item: Chunk | ImpossibleTimestamp, position: int) -> None:
        """Keep what lies at or behind the position."""
        limit = self._limits.get(item.partition, 0)
        if isinstance(item, ImpossibleTimestamp):
            if item.offset >= position:
                self._append(item, _CHUNK_BYTES, within=item.offset < limit)
            return
        batch = item.batch
        if first_offset(batch) < position:
            batch = split_at(batch, position)[1]
        before, behind = split_at(batch, limit) if batch.num_rows else (batch, batch)
        for rows, within in ((before, True), (behind, False)):
            if rows.num_rows:
                self._append(Chunk(item.partition, rows), _CHUNK_BYTES + rows.nbytes, within=within)

    def blocked(self, partition: TopicPartition) -> bool:
        """Whether the next record of a partition is one that no row can hold."""
        entries = self._entries.get(partition)
        return entries is not None and len(entries) > 0 and isinstance(entries[0].item, ImpossibleTimestamp)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Drop what lies before the position."""
        entries = self._entries.get(partition, ())
        self.drop(partition)
        for entry in entries:
            self.add(entry.item, position)

    def drop(self, partition: TopicPartition) -> None:
        """Drop all of a partition."""
        self._entries.pop(partition, None)
        self._beyond.pop(partition, None)
        self.within_bytes -= self._within.pop(partition, 0)

    def trim(self, partition: TopicPartition) -> None:
        """Drop what is kept of a partition beyond its range."""
        left = [entry for entry in self._entries.get(partition, ()) if entry.within]
        self.drop(partition)
        for entry in left:
            self._append(entry.item, entry.bytes, within=True)

    def take(self, wanted: OffsetRange, position: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the rows from the position on that are in the range, and the position behind them.

        Raises `ReadError` for a record that no row can hold, when it is the next one.
        """
        partition = wanted.partition
        entries = self._entries.get(partition)
        taken: list[pa.RecordBatch] = []
        while entries and position < wanted.end:
            head = entries[0].item
            if isinstance(head, ImpossibleTimestamp):
                if taken or head.offset >= wanted.end:
                    return taken, min(head.offset, wanted.end)
                raise _timestamp_error(head)
            entry = entries.popleft()
            self._count(partition, -entry.bytes, within=entry.within)
            rows, rest = split_at(head.batch, wanted.end)
            if rest.num_rows:
                left = _Entry(Chunk(partition, rest), _CHUNK_BYTES + rest.nbytes, entry.within)
                entries.appendleft(left)
                self._count(partition, left.bytes, within=left.within)
            if rows.num_rows:
                taken.append(rows)
            position = wanted.end if rest.num_rows else last_offset(rows) + 1
        return taken, position

    def _append(self, item: Chunk | ImpossibleTimestamp, size: int, *, within: bool) -> None:
        self._entries.setdefault(item.partition, deque()).append(_Entry(item, size, within))
        self._count(item.partition, size, within=within)

    def _count(self, partition: TopicPartition, size: int, *, within: bool) -> None:
        sizes = self._within if within else self._beyond
        sizes[partition] = sizes.get(partition, 0) + size
        if within:
            self.within_bytes += size


def beyond(sizes: Mapping[TopicPartition, int], most: int) -> list[TopicPartition]:
    """Return what to give up, the largest first, so that the sizes of the others are `most` together at most."""
    found: list[TopicPartition] = []
    too_much = sum(sizes.values()) - most
    if too_much > 0:
        for partition in sorted(sizes, key=sizes.__getitem__, reverse=True):
            found.append(partition)
            too_much -= sizes[partition]
            if too_much <= 0:
                break
    return found


def _timestamp_error(item: ImpossibleTimestamp) -> ReadError:
    return ReadError(
        errors.TIMESTAMP_IMPOSSIBLE,
        topic=item.partition.topic,
        partition=item.partition.partition,
        offset=item.offset,
        value=item.value_ms,
    )
