"""Data loss: records that are gone before this group has read them are never skipped silently (promise P8).

Nor are batches that Spark takes as complete without having read them.

`TruncationWatch` notices logs that lost what was read already, after an unclean leader election for instance.

Guards against:
1. Offsets up to 20 of a partition are read. Its leader dies with records 10 to 19, which no other broker has.
2. A replica that ends at 10 becomes the leader, and takes new records as 10, 11, ...
3. By offset alone the first ten of them would count as read.
A leader epoch that the log had when it reached 20 shows it: in the new leader's log that epoch ends at 10 (KIP-320).
An epoch costs nothing while the leaders stay, and one request per partition after they have moved.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.port import ClusterPort, LogEnd, TopicInfo
from spark_groupsource.driver.query_state import Mark, QueryState
from spark_groupsource.errors import DataLossError
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.planning.batch import Backlog

LOG = logging.getLogger("spark_groupsource.losses")


# An offset that a log never had looks like one that it has no more.
_TRUNCATED = (
    "the log was truncated, what it has there now is skipped; or another program has set the group's offset beyond the"
    " log's end: then reset the group"
)

_WHILE_READ = "between the plan and the end of the batch (at most; the executors' logs have what was skipped)"
# A new leader may show an end before the true one for a moment. One that does it for longer has lost records, also
# when no epoch is known of them.
SHORT_S = 30.0


class LossReporter:
    """Fails, or reports and counts, as option failOnDataLoss says."""

    def __init__(self, options: SourceOptions, metrics: MetricsLog, state: QueryState) -> None:
        self._options = options
        self._metrics = metrics
        self._state = state
        self._reported_unread = False

    def skip_lost(
        self, backlogs: Mapping[TopicPartition, Backlog], beginnings: Mapping[TopicPartition, LogEnd | None]
    ) -> dict[TopicPartition, Backlog]:
        """Return the backlogs without what retention or delete_records has removed.

        Raises `DataLossError` when failOnDataLoss is true and anything was removed.
        """
        lost = lost_before({p: backlog.position for p, backlog in backlogs.items()}, beginnings)
        self._count(self._unreported(lost))
        kept = dict(backlogs)
        for item in lost:
            backlog = backlogs[item.partition]
            kept[item.partition] = Backlog(item.end, max(backlog.end, item.end), backlog.leader_epoch)
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

    def skip_truncated(
        self, ranges: Iterable[OffsetRange], logs: Mapping[TopicPartition, int]
    ) -> tuple[OffsetRange, ...]:
        """Return the ranges of a batch that runs again, without what a truncated log has no more.

        Raises `DataLossError` when failOnDataLoss is true and anything was cut.
        """
        every = tuple(ranges)
        self.report_truncated({r.partition: (logs[r.partition], r.end) for r in every if r.partition in logs})
        ends = {r.partition: max(r.start, min(r.end, logs.get(r.partition, r.end))) for r in every}
        return tuple(OffsetRange(r.partition, r.start, ends[r.partition], r.leader_epoch) for r in every)

    def report_recreated(self, positions: Mapping[TopicPartition, int | None], topics: Mapping[str, TopicInfo]) -> None:
        """Report partitions whose topic was deleted and made again, and how far they were read before."""
        there = {p: at for p, at in positions.items() if p.partition < topics[p.topic].partition_count}
        self._gone(there, "the topic was deleted and made again, and is read from its beginning")
        self.report_cut({p: at for p, at in positions.items() if p not in there})

    def report_cut(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Report partitions that their topic, deleted and made again, does not have, and how far they were read."""
        self._gone(positions, "the topic was deleted and made again with fewer partitions")

    def report_deleted(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Report partitions whose topic was deleted, and how far they were read."""
        self._gone(positions, "the topic was deleted")

    def report_truncated(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Report logs that were truncated at the first offset and had been read up to the second one."""
        lost = [OffsetRange(partition, at, position) for partition, (at, position) in sorted(logs.items())]
        self._count(lost, _TRUNCATED)

    def report_gone_while_read(self, ranges: Iterable[OffsetRange], gone: Mapping[TopicPartition, int | None]) -> None:
        """Report what was removed of a completed batch between its plan and its end: executors may have skipped it.

        `gone` is where the log began when the batch was complete; None when the topic was deleted, or recreated. An
        executor reports what it skips in its own log only. It has no way to the driver, so this is an upper bound: it
        may have read the records before they were removed.
        """
        cut, replaced = [], []
        for item in ranges:
            beginning = gone.get(item.partition, item.start)
            if beginning is None:
                replaced.append(item)
            elif beginning > item.start:
                cut.append(OffsetRange(item.partition, item.start, min(beginning, item.end)))
        self._count(self._unreported(cut), f"removed {_WHILE_READ}")
        self._count([item for item in replaced if len(item)], f"the topic was deleted or made again {_WHILE_READ}")

    def report_unread(self, ranges: Iterable[OffsetRange]) -> None:
        """Report a batch that is complete and that Spark has not read. It need not be a loss: told once, never raised.

        The sequence it is for (Spark's `FileStreamSink.addBatch`): a query with a checkpoint of its own writes to a
        folder whose log another checkpoint's query has brought to batch 5; Spark drops batches 0 to 5, and they count
        as complete. A query that has no use for its rows looks the same.
        """
        unread = [item for item in ranges if len(item)]
        if not unread:
            return
        self._metrics.write("unread", (item.partition for item in unread), ranges=_listed(unread))
        if not self._reported_unread:
            self._reported_unread = True
            LOG.warning(
                "a batch is complete, but Spark has not read it (told once): group=%s %s: a file sink (parquet, json,"
                " ...) drops a batch without a word when another checkpoint's query has written one of that number to"
                " its folder, and these records are missing there; give each query, and each new checkpoint, a folder"
                " of its own",
                self._options.group_id, ", ".join(map(str, unread)),
            )  # fmt: skip

    def _unreported(self, lost: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return what was not reported yet, and note it: a plan that comes to nothing is made once more."""
        new = []
        for item in lost:
            row = self._state.partition(item.partition)
            start = max(item.start, row.lost_to)
            if start < item.end:
                new.append(OffsetRange(item.partition, start, item.end))
            row.lost_to = item.end
        return new

    def _gone(self, positions: Mapping[TopicPartition, int | None], reason: str) -> None:
        """Report what is known to be lost: from the position to the end that was last seen, which may be more."""
        lost = []
        for partition, position in sorted(positions.items()):
            row = self._state.partition(partition)
            if row.missing_reported:
                continue
            row.lost_to = 0
            start = position or 0
            lost.append(OffsetRange(partition, start, max(start, row.log_end or 0)))
        self._count(lost, reason)
        for partition in positions:
            self._state.partition(partition).missing_reported = True

    def _count(self, lost: list[OffsetRange], reason: str = "") -> None:
        if not lost:
            return
        shown = ", ".join(map(str, lost)) + (f": {reason}" if reason else "")
        if self._options.fail_on_data_loss:
            raise DataLossError(errors.DATA_LOST, ranges=shown)
        LOG.warning("data lost and skipped, failOnDataLoss=false: group=%s %s", self._options.group_id, shown)
        self._metrics.records_lost += sum(map(len, lost))
        why = {"reason": reason} if reason else {}
        self._metrics.write("data_lost", (item.partition for item in lost), ranges=_listed(lost), **why)


def _listed(ranges: Iterable[OffsetRange]) -> list[list[str | int]]:
    return [[*item.partition, item.start, item.end] for item in ranges]


def lost_before(
    positions: Mapping[TopicPartition, int], beginnings: Mapping[TopicPartition, LogEnd | None]
) -> list[OffsetRange]:
    """Return what was to be read from these positions on, and lies before where the logs begin now."""
    lows = {partition: begin.offset for partition, begin in beginnings.items() if begin is not None}
    return [OffsetRange(p, at, lows[p]) for p, at in sorted(positions.items()) if lows.get(p, at) > at]


class TruncationWatch:
    """Learns a mark of each partition, and compares it with the leaders' epochs."""

    def __init__(self, cluster: ClusterPort, clock: Clock, state: QueryState, *, read_committed: bool = False) -> None:
        self._cluster = cluster
        self._clock = clock
        self._state = state
        self._ends_move_back = read_committed

    @property
    def in_doubt(self) -> bool:
        """Whether a log ended before its position when it was last looked at, and it may still be that for a moment."""
        return any(row.short_until is not None and not row.short_reported for row in self._state.partitions.values())

    def learn(self, ranges: Iterable[OffsetRange]) -> None:
        """Take what the ends of ranges say; of two marks the further one counts."""
        for item in ranges:
            row = self._state.partition(item.partition)
            if item.leader_epoch is not None and (row.mark is None or row.mark.offset <= item.end):
                row.mark = Mark(item.end, item.leader_epoch)

    def truncated(self, backlogs: Mapping[TopicPartition, Backlog]) -> dict[TopicPartition, int]:
        """Return where logs were truncated before the positions of these backlogs; each truncation once.

        Raises what the cluster does when the leaders cannot tell.
        """
        asked: dict[TopicPartition, Mark] = {}
        for partition, backlog in backlogs.items():
            row = self._state.partition(partition)
            mark, epoch = row.mark, backlog.leader_epoch
            if epoch is None:
                continue
            if mark is None and backlog.position <= backlog.end:
                row.mark = Mark(backlog.position, epoch)
            # R45: another leader may have another history
            elif mark is not None and mark.leader_epoch < epoch:
                asked[partition] = Mark(min(mark.offset, backlog.position), mark.leader_epoch)
        found = self._cluster.diverged(asked) if asked else {}
        for partition in found:
            mark = Mark(asked[partition].offset, backlogs[partition].leader_epoch or 0)
            self._state.partition(partition).mark = mark
        cut = {partition: at for partition, at in found.items() if at is not None and at < asked[partition].offset}
        return self._short_for_long(backlogs, cut) | cut

    def _short_for_long(
        self, backlogs: Mapping[TopicPartition, Backlog], cut: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if self._ends_move_back:
            # read_committed: the end is before the oldest open transaction, and the position may rightly be behind it.
            return {}
        found = {}
        for partition, row in self._state.partitions.items():
            backlog = backlogs.get(partition)
            if backlog is None or backlog.end >= backlog.position:
                row.short_until, row.short_reported = None, False
                continue
            row.short_until = row.short_until or Deadline(self._clock, SHORT_S)
            row.short_reported = row.short_reported or partition in cut
            if not row.short_reported and row.short_until.expired():
                found[partition] = backlog.end
                row.short_reported = True
        return found


def beyond(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, LogEnd | None]
) -> dict[TopicPartition, Backlog]:
    """Return what logs have beyond these offsets, those whose ends are known."""
    known = ((partition, at, ends.get(partition)) for partition, at in positions.items())
    return {p: Backlog(at, end.offset, end.leader_epoch) for p, at, end in known if end is not None}
