"""Data loss: records that are gone before this group has read them are never skipped silently (promise P8)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from spark_groupsource import errors
from spark_groupsource.cluster import LogEnd
from spark_groupsource.errors import DataLossError
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.offsets import OffsetRange, TopicPartition
from spark_groupsource.option_types import SourceOptions
from spark_groupsource.planning.batch import Backlog

LOG = logging.getLogger("spark_groupsource.losses")


class LossReporter:
    """Fails, or reports and counts, as option failOnDataLoss says. `records_lost` counts offsets skipped."""

    def __init__(self, options: SourceOptions, metrics: MetricsLog) -> None:
        self._options = options
        self._metrics = metrics
        self.records_lost = 0

    def skip_lost(
        self, backlogs: Mapping[TopicPartition, Backlog], beginnings: Mapping[TopicPartition, LogEnd | None]
    ) -> dict[TopicPartition, Backlog]:
        """Return the backlogs without what retention or delete_records has removed.

        Raises `DataLossError` when failOnDataLoss is true and anything was removed.
        """
        kept, lost = dict(backlogs), []
        for partition, backlog in backlogs.items():
            beginning = beginnings.get(partition)
            if beginning is not None and beginning.offset > backlog.position:
                lost.append(OffsetRange(partition, backlog.position, beginning.offset))
                end = max(backlog.end, beginning.offset)
                kept[partition] = Backlog(beginning.offset, end, backlog.leader_epoch)
        self._count(lost)
        return kept

    def trim_lost(
        self, ranges: Iterable[OffsetRange], beginnings: Mapping[TopicPartition, LogEnd | None]
    ) -> tuple[OffsetRange, ...]:
        """Return the ranges of a batch that runs again, without what was removed since it was planned.

        Raises `DataLossError` when failOnDataLoss is true and anything was removed.
        """
        kept, lost = [], []
        for item in ranges:
            beginning = beginnings.get(item.partition)
            start = item.start if beginning is None else min(max(item.start, beginning.offset), item.end)
            if start > item.start:
                lost.append(OffsetRange(item.partition, item.start, start))
            kept.append(OffsetRange(item.partition, start, item.end, item.leader_epoch))
        self._count(lost)
        return tuple(kept)

    def _count(self, lost: list[OffsetRange]) -> None:
        if lost:
            self._report(", ".join(map(str, lost)))
            self.records_lost += sum(map(len, lost))
            ranges = [[*item.partition, item.start, item.end] for item in lost]
            self._metrics.write("data_lost", (item.partition for item in lost), ranges=ranges)

    def report_recreated(self, partitions: Iterable[TopicPartition]) -> None:
        """Report partitions whose topic was deleted and made again; how much was lost cannot be told."""
        names = sorted(set(partitions))
        if names:
            self._report(f"{', '.join(map(str, names))}: the topic was deleted and made again")
            self._metrics.write("data_lost", names, reason="the topic was deleted and made again")

    def _report(self, ranges: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(errors.DATA_LOST, ranges=ranges)
        LOG.warning("data lost and skipped, failOnDataLoss=false: group=%s %s", self._options.group_id, ranges)
