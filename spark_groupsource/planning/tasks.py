"""How a batch's ranges become Spark tasks: small ones are packed together, large ones are split. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from spark_groupsource.model.offsets import OffsetRange, TopicPartition

Task = tuple[OffsetRange, ...]

# Below this many records a task costs more than it reads, whatever their size: a Spark Python task takes ~60 ms on its
# own (~20 ms with spark.python.unix.domain.socket.enabled), in which a reader delivers tens of thousands of records.
PACK_RECORDS = 10_000


def split_range(item: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range into at most `parts` ranges of nearly equal size; none is empty.

    Each of them has the range's leader epoch: what the log held in an epoch up to its end, it held up to every offset
    before, too.
    """
    parts = max(1, min(parts, len(item)))
    size, extra = divmod(len(item), parts)
    pieces, start = [], item.start
    for number in range(parts):
        end = start + size + (1 if number < extra else 0)
        pieces.append(OffsetRange(item.partition, start, end, item.leader_epoch))
        start = end
    return pieces


def pack_tasks(
    ranges: Iterable[OffsetRange],
    min_partitions: int | None,
    max_records_per_partition: int | None,
    pack_records: int = PACK_RECORDS,
) -> tuple[Task, ...]:
    """Return the tasks of a batch; empty ranges get none.

    1. A range above `max_records_per_partition` is split.
    2. When that gives fewer than `min_partitions`, the largest pieces are split further (as in Spark's own
       KafkaOffsetRangeCalculator: in proportion to their size).
    3. Otherwise small pieces share a task of up to `pack_records`, as long as `min_partitions` tasks remain.
    """
    full = sorted(item for item in ranges if len(item) > 0)
    if not full:
        return ()
    counts = [-(-len(item) // max_records_per_partition) if max_records_per_partition else 1 for item in full]
    wanted = min_partitions or 1
    if sum(counts) < wanted:
        counts = _split_further(full, counts, wanted)
    pieces = [piece for item, parts in zip(full, counts, strict=True) for piece in split_range(item, parts)]
    return _pack(pieces, wanted, min(pack_records, max_records_per_partition or pack_records))


def _split_further(ranges: list[OffsetRange], counts: list[int], wanted: int) -> list[int]:
    """Add pieces where they are largest until there are `wanted` pieces or all are single records."""
    counts = list(counts)
    heap = [(-len(item) / count, index) for index, (item, count) in enumerate(zip(ranges, counts, strict=True))]
    heapq.heapify(heap)
    total = sum(counts)
    while total < wanted and heap:
        _, index = heapq.heappop(heap)
        if counts[index] >= len(ranges[index]):
            continue
        counts[index] += 1
        total += 1
        heapq.heappush(heap, (-len(ranges[index]) / counts[index], index))
    return counts


def _pack(pieces: list[OffsetRange], min_tasks: int, limit: int) -> tuple[Task, ...]:
    tasks: list[list[OffsetRange]] = []
    # Of the newest task.
    partitions: set[TopicPartition] = set()
    open_records = limit
    for index, piece in enumerate(pieces):
        # What is left must still be able to make the smallest number of tasks.
        may_share = len(tasks) + len(pieces) - index > min_tasks
        if tasks and may_share and piece.partition not in partitions and open_records + len(piece) <= limit:
            tasks[-1].append(piece)
            partitions.add(piece.partition)
            open_records += len(piece)
        else:
            tasks.append([piece])
            partitions = {piece.partition}
            open_records = len(piece)
    return tuple(tuple(task) for task in tasks)
