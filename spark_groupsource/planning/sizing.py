"""How large the next batch's Spark tasks should be, from how long the last ones took. Pure: callers have the clock."""

from __future__ import annotations

from collections.abc import Iterable

from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.planning.tasks import PACK_RECORDS, Task, pack_tasks

# Twice what a Spark Python task costs on its own, about: ranges are packed together up to as much reading.
_PACK_S = 0.1
# Before anything is measured: as many records, 100 MB at the usual 1 KB (Spark's file sources pack up to 128 MB), but
# not into fewer tasks than these.
_PACK_UNMEASURED_RECORDS = 100_000
_UNMEASURED_TASKS = 16
# A task that takes longer is split: idle cores help, if there are any, and less is read again when it fails.
_SPLIT_S = 5.0
_SPLIT_RECORDS = 100_000
# What a batch that could not show the rate leaves of it, so that larger records are noticed in some batches.
_FADING = 0.8


class TaskSizing:
    """Packs and splits by measured speed. Main thread only.

    A batch takes at least as long as its largest task, so that task read at least `records / batch duration`, sink
    included. The largest such rate of the last batches counts: a batch that has more tasks than the application has
    cores, or whose end only the next trigger tells, shows a smaller one. Options minPartitions and
    maxRecordsPerPartition have precedence.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._rate: float | None = None
        self._largest = 0
        self._began_s = 0.0

    def tasks(self, ranges: Iterable[OffsetRange], now_s: float) -> tuple[Task, ...]:
        """Return the tasks of a batch that begins now."""
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
        """Note that the batch of the last `tasks` is complete."""
        took_s = now_s - self._began_s
        # A small task shows what a task costs, not how fast it reads.
        if self._largest >= PACK_RECORDS and took_s > 0:
            self._rate = max(self._largest / took_s, _FADING * (self._rate or 0.0))
        self._largest = 0


def unmeasured_pack(ranges: Iterable[OffsetRange]) -> int:
    """Return how many records of several ranges a task may take before anything is measured."""
    return max(PACK_RECORDS, min(_PACK_UNMEASURED_RECORDS, sum(map(len, ranges)) // _UNMEASURED_TASKS))
