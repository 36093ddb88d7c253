"""What a consumer has fetched beyond what was taken: record batches per partition, in the order of their offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import pyarrow as pa

from spark_groupsource import errors
from spark_groupsource.errors import ReadError
from spark_groupsource.executor.port import Chunk, ImpossibleTimestamp
from spark_groupsource.executor.rows import first_offset, last_offset, split_at
from spark_groupsource.offsets import OffsetRange, TopicPartition

# What a chunk takes besides its rows: seven arrays with their buffers, as objects of Python and of Arrow. Measured.
_CHUNK_BYTES = 5_000


class Kept:
    """Rows that are cut by offsets; nothing is copied. `_bytes` is the size of the items, per partition."""

    def __init__(self) -> None:
        self._items: dict[TopicPartition, deque[tuple[Chunk | ImpossibleTimestamp, int]]] = {}
        self._bytes: dict[TopicPartition, int] = {}

    def __contains__(self, partition: TopicPartition) -> bool:
        return bool(self._items.get(partition))

    def sizes(self) -> dict[TopicPartition, int]:
        """Return how many bytes are kept of each partition, as measured on its rows."""
        return {partition: size for partition, size in self._bytes.items() if size}

    def size(self, partition: TopicPartition) -> int:
        """Return how many bytes are kept of a partition."""
        return self._bytes.get(partition, 0)

    def add(self, item: Chunk | ImpossibleTimestamp, position: int) -> None:
        """Keep what lies at or behind the position."""
        size = _CHUNK_BYTES
        if isinstance(item, Chunk):
            if first_offset(item.batch) < position:
                item = Chunk(item.partition, split_at(item.batch, position)[1])
            if not item.batch.num_rows:
                return
            size += item.batch.nbytes
        elif item.offset < position:
            return
        self._items.setdefault(item.partition, deque()).append((item, size))
        self._bytes[item.partition] = self._bytes.get(item.partition, 0) + size

    def blocked(self, partition: TopicPartition) -> bool:
        """Whether the next record of a partition is one that no row can hold."""
        items = self._items.get(partition)
        return items is not None and len(items) > 0 and isinstance(items[0][0], ImpossibleTimestamp)

    def advance(self, partition: TopicPartition, position: int) -> None:
        """Drop what lies before the position."""
        items = self._items.get(partition, ())
        self.drop(partition)
        for item, _ in items:
            self.add(item, position)

    def drop(self, partition: TopicPartition) -> None:
        """Drop all of a partition."""
        self._items.pop(partition, None)
        self._bytes.pop(partition, None)

    def take(self, wanted: OffsetRange, position: int) -> tuple[list[pa.RecordBatch], int]:
        """Return the rows from the position on that are in the range, and the position behind them.

        Raises `ReadError` for a record that no row can hold, when it is the next one.
        """
        partition = wanted.partition
        items = self._items.get(partition)
        taken: list[pa.RecordBatch] = []
        while items and position < wanted.end:
            head, size = items[0]
            if isinstance(head, ImpossibleTimestamp):
                if taken or head.offset >= wanted.end:
                    return taken, min(head.offset, wanted.end)
                raise _timestamp_error(head)
            items.popleft()
            self._bytes[partition] -= size
            rows, rest = split_at(head.batch, wanted.end)
            if rest.num_rows:
                left = _CHUNK_BYTES + rest.nbytes
                items.appendleft((Chunk(partition, rest), left))
                self._bytes[partition] += left
            if rows.num_rows:
                taken.append(rows)
            position = wanted.end if rest.num_rows else last_offset(rows) + 1
        return taken, position


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
