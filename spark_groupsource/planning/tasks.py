"""Turn a batch's ranges into Spark tasks: pack small ranges together, split large ones. Pure functions.

The task size follows from the duration of the last batches; callers pass the time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions

Task = tuple[OffsetRange, ...]

# Below this many records the cost of a task exceeds its reading time, whatever their size: a Spark Python task takes
# ~60 ms on its own (~20 ms with spark.python.unix.domain.socket.enabled), in which a reader delivers tens of thousands
# of records.
PACK_RECORDS = 10_000
# About twice the cost of an empty Spark Python task: ranges are packed together up to this much reading time.
_PACK_S = 0.1
# Limits before the first measurement: this many records in a task, 100 MB at the usual 1 KB (Spark's file sources pack
# up to 128 MB), and at least this many tasks.
_PACK_UNMEASURED_RECORDS = 100_000
_UNMEASURED_TASKS = 16
# A longer task is split: idle cores can help, and less is read again if it fails.
_SPLIT_S = 5.0
_SPLIT_RECORDS = 100_000
# Factor on the rate after a batch that measured a lower one, so that it follows larger records within some batches.
_FADING = 0.8


def split_range(item: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut a range of at least `parts` offsets into that many ranges of nearly equal size.

    Each has the leader epoch of the whole range: the epoch in which the log reached the end also holds for every offset
    before it.
    """
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
    2. If that gives fewer than `min_partitions`, the largest pieces are split further (as in Spark's own
       KafkaOffsetRangeCalculator: in proportion to their size).
    3. Otherwise small pieces share a task of up to `pack_records`, as long as `min_partitions` tasks remain.
    """
    full = sorted(item for item in ranges if len(item) > 0)
    counts = [-(-len(item) // max_records_per_partition) if max_records_per_partition else 1 for item in full]
    wanted = min_partitions or 1
    _split_further(full, counts, wanted)
    pieces = [piece for item, parts in zip(full, counts, strict=True) for piece in split_range(item, parts)]
    return _pack(pieces, wanted, min(pack_records, max_records_per_partition or pack_records))


def _split_further(ranges: list[OffsetRange], counts: list[int], wanted: int) -> None:
    """Raise the `counts` of the largest pieces until there are `wanted` pieces, or all are single records."""
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


def _pack(pieces: list[OffsetRange], min_tasks: int, limit: int) -> tuple[Task, ...]:
    """Let pieces share tasks.

    Two pieces of one range never do: they exceed the limit, or all pieces are no more than `min_tasks`.
    """
    tasks: list[list[OffsetRange]] = []
    open_records = limit
    for index, piece in enumerate(pieces):
        # The remaining pieces must suffice for the minimum number of tasks.
        may_share = len(tasks) + len(pieces) - index > min_tasks
        if may_share and open_records + len(piece) <= limit:
            tasks[-1].append(piece)
            open_records += len(piece)
        else:
            tasks.append([piece])
            open_records = len(piece)
    return tuple(tuple(task) for task in tasks)


class TaskSizing:
    """Pack and split ranges by measured speed. Main thread only.

    A batch takes at least as long as its largest task, so that task read at least `records / batch duration` records
    per second, sink included. The largest rate of the last batches is used: a batch with more tasks than cores, or one
    whose end is detected only at the next trigger, measures a lower rate. Options minPartitions and
    maxRecordsPerPartition take precedence.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._rate: float | None = None
        self._largest = 0
        self._began_s = 0.0

    def tasks(self, ranges: Iterable[OffsetRange], now_s: float) -> tuple[Task, ...]:
        """Return the tasks of a batch that begins at `now_s`."""
        ranges = tuple(ranges)
        rate = self._rate
        most = self._options.max_records_per_partition
        if most is None and rate is not None:
            most = max(_SPLIT_RECORDS, round(rate * _SPLIT_S))
        pack = unmeasured_pack(ranges) if rate is None else max(PACK_RECORDS, round(rate * _PACK_S))
        tasks = pack_tasks(ranges, self._options.min_partitions, most, pack)
        self._largest = max((sum(map(len, task)) for task in tasks), default=0)
        self._began_s = now_s
        return tasks

    def completed(self, now_s: float) -> None:
        """Record that the batch of the last `tasks` call is complete, and measure its rate."""
        took_s = now_s - self._began_s
        # A small task measures the cost of a task, not the reading speed.
        if self._largest >= PACK_RECORDS and took_s > 0:
            self._rate = max(self._largest / took_s, _FADING * (self._rate or 0.0))
        self._largest = 0


def unmeasured_pack(ranges: Iterable[OffsetRange]) -> int:
    """Return how many records of several ranges a task may have before the first measurement."""
    return max(PACK_RECORDS, min(_PACK_UNMEASURED_RECORDS, sum(map(len, ranges)) // _UNMEASURED_TASKS))
