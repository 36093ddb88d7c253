"""Report data loss: records deleted before this group has read them are never skipped silently (promise P8).

Also reports batches that Spark counts as complete without having read them.

`TruncationWatch` detects logs that have lost records which were read already, for instance after an unclean leader
election (rule R45). It remembers the leader epoch in which a log reached an offset. In the log of a later leader that
epoch may end before that offset (KIP-320). This costs no request while leaders stay, and one request per partition
after they have moved.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_groupsource.cluster.port import ClusterPort, LogEnd, TopicInfo
from spark_groupsource.driver.query_state import Mark, QueryState
from spark_groupsource.errors import report_loss
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.offsets import OFFSET_MAX, OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.planning.batch import Backlog

LOG = logging.getLogger("spark_groupsource.losses")

# Reasons of losses, as users see them.
DELETED = "the topic was deleted"
FEWER_PARTITIONS = "the topic was deleted and recreated with fewer partitions"
RECREATED = "the topic was deleted and recreated"
_AT_MOST = "at most, because other members may have read it since"
# An offset that a log never had looks the same as one that it has lost.
_TRUNCATED = (
    "the log was truncated, what it has there now is skipped; or another program has set the group's offset beyond the"
    " log's end: then reset the group"
)
_WHILE_READ = "between the plan and the end of the batch (at most; the executors' logs have what was skipped)"
_SINCE_READ = "since the last batch before the restart was planned (at most; the executors' logs have what was skipped)"


class LossReporter:
    """Raise an error for data loss, or log and count it, as option failOnDataLoss says: see `report_loss`."""

    def __init__(self, options: SourceOptions, metrics: MetricsLog, state: QueryState) -> None:
        self._options = options
        self._metrics = metrics
        self._state = state
        self._reported_unread = False

    def skip_lost(
        self, backlogs: Mapping[TopicPartition, Backlog], beginnings: Mapping[TopicPartition, LogEnd | None]
    ) -> dict[TopicPartition, Backlog]:
        """Return the backlogs without records that retention or delete_records has removed.

        Raises `DataLossError` if failOnDataLoss is true and records were removed.
        """
        unread = (
            OffsetRange(partition, backlog.position, OFFSET_MAX) for partition, backlog in sorted(backlogs.items())
        )
        lost = removed_parts(unread, beginnings)
        self._report_certain(self._unreported(lost))
        kept = dict(backlogs)
        for item in lost:
            kept[item.partition] = replace(backlogs[item.partition], position=item.end)
        return kept

    def trim_lost(
        self,
        ranges: Collection[OffsetRange],
        truncated: Mapping[TopicPartition, int],
        beginnings: Mapping[TopicPartition, LogEnd | None],
    ) -> tuple[OffsetRange, ...]:
        """Return the ranges of a replayed batch without records that the logs have lost since it was planned.

        `truncated` are the offsets of truncations. Raises `DataLossError` if failOnDataLoss is true and records were
        lost.
        """
        self.report_truncated(
            {r.partition: (truncated[r.partition], r.end) for r in ranges if r.partition in truncated}
        )
        ends = {r.partition: max(r.start, truncated.get(r.partition, r.end)) for r in ranges}
        kept = [replace(item, end=ends[item.partition]) for item in ranges]
        removed = removed_parts(kept, beginnings)
        self._report_certain(removed)
        starts = {item.partition: item.end for item in removed}
        return tuple(replace(item, start=starts.get(item.partition, item.start)) for item in kept)

    def report_recreated(
        self,
        positions: Mapping[TopicPartition, int | None],
        topics: Mapping[str, TopicInfo],
        of_group: Collection[TopicPartition] = (),
        *,
        taken: bool = False,
    ) -> None:
        """Report partitions whose topic was deleted and recreated: see `report_missing`.

        `taken`: other members have begun to read the recreated topic.
        """
        present = {p: at for p, at in positions.items() if p.partition < topics[p.topic].partition_count}
        self.report_missing(present, RECREATED, of_group, held=not taken)
        absent = {p: at for p, at in positions.items() if p not in present}
        self.report_missing(absent, FEWER_PARTITIONS, of_group, held=not taken)

    def report_missing(
        self,
        positions: Mapping[TopicPartition, int | None],
        reason: str,
        of_group: Collection[TopicPartition] = (),
        *,
        held: bool = True,
        others: bool = False,
    ) -> None:
        """Report partitions that are missing: from each position to the last known end of its log, once.

        `positions` is how far each was read: the group's offset for those of `of_group`. The log may have had more than
        its last known end. `held`: this member holds the partitions; `others`: the group has other members.

        - What other members may have read since is lost at most. It counts nothing, and fails nothing unless this
          member holds the partition again.
        - What has left this member with its topic is lost at most if the group has other members. It counts nothing,
          and fails nothing unless unread records are known.
        - All else is lost. An empty range stands for what the log may have had beyond its last known end.

        Guards against (rule R82):
        1. A member reads 5 of 20 records and hands the partition over. The next owner reads the other 15.
        2. The topic is deleted, and with it the group's offset.
        3. [5, 20) would count as lost, although the group has read it. With `failOnDataLoss=true` the query fails,
           again and again.
        """
        lost: list[OffsetRange] = []
        # Lost at most, as far as is known.
        likely: list[OffsetRange] = []
        unlikely: list[OffsetRange] = []
        for partition, position in sorted(positions.items()):
            row = self._state.partition(partition)
            if row.missing_reported:
                continue
            row.lost_to = 0
            start = position or 0
            end = max(row.log_end or 0, row.seen_end if reason is DELETED else 0)
            item = OffsetRange(partition, start, max(start, end))
            # R82: others may have read it
            if position is None or (row.shared and partition not in of_group):
                (likely if held else unlikely).append(item)
            elif others:
                (likely if len(item) else unlikely).append(item)
            else:
                lost.append(item)
        self._report_possible(unlikely, f"{reason} ({_AT_MOST})", fail=False)
        self._report_possible(likely, f"{reason} ({_AT_MOST})", fail=self._options.fail_on_data_loss)
        self._report_certain(lost, reason, open_ended=True)
        for partition in positions:
            self._state.partition(partition).missing_reported = True

    def report_truncated(self, logs: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Report truncated logs. `logs` has the offset of the truncation and the offset up to which each was read.

        Guards against:
        1. A query is killed inside a batch that ends at 20. The log is truncated at 10.
        2. The query starts. The logged batch runs again, and [10, 20) is reported.
        3. The start position has the old leader epoch, as the checkpoint has it. [10, 20) would be reported again.
        """
        lost = []
        for partition, (at, position) in sorted(logs.items()):
            row = self._state.partition(partition)
            cut = None if row.mark is None else (at, position, row.mark.leader_epoch)
            # R45: a start position, or one that has come back, has the epoch of its last commit
            if cut is None or cut != row.cut:
                lost.append(OffsetRange(partition, at, position))
            row.cut = cut
        self._report_certain(lost, _TRUNCATED)

    def report_removed_while_read(
        self,
        ranges: Iterable[OffsetRange],
        beginnings: Mapping[TopicPartition, LogEnd | None],
        *,
        earlier: bool = False,
        counts: bool = True,
    ) -> None:
        """Report records of a completed batch that were removed while it ran: executors may have skipped them.

        `beginnings` are those of the logs now. It is an upper bound: the executor may have read the records before they
        were removed. `earlier`: an earlier run of the query has completed the batch. `counts`: whether it counts.
        """
        lost = self._unreported(removed_parts(ranges, beginnings))
        self._report_read(lost, "removed", earlier=earlier, counts=counts)

    def report_replaced_while_read(
        self, ranges: Collection[OffsetRange], *, earlier: bool = False, counts: bool = True
    ) -> None:
        """Report ranges of a completed batch whose topic was deleted or recreated while it ran: as above."""
        self._report_read(ranges, "the topic was deleted or recreated", earlier=earlier, counts=counts)

    def _report_read(self, ranges: Collection[OffsetRange], what: str, *, earlier: bool, counts: bool) -> None:
        reason = f"{what} {_SINCE_READ if earlier else _WHILE_READ}"
        if counts:
            self._report_certain(ranges, reason)
        else:
            self._report_possible(ranges, reason, fail=False)

    def report_unread(self, ranges: Iterable[OffsetRange]) -> None:
        """Report a batch that is complete although Spark has not read it. Logged once per query, never raised.

        Guards against (Spark's `FileStreamSink.addBatch`):
        1. A query has written batches 0 to 5 to a folder.
        2. Another query, with its own checkpoint, writes to the same folder. Spark drops its batches 0 to 5.
        3. These batches count as complete, but nobody has read them.
        It need not be a loss: a query that does not use its rows looks the same.
        """
        unread = [item for item in ranges if len(item)]
        if not unread:
            return
        self._metrics.write("unread", (item.partition for item in unread), ranges=_listed(unread))
        if not self._reported_unread:
            self._reported_unread = True
            LOG.warning(
                "a batch is complete, but Spark has not read it (logged once): group=%s %s: a file sink (parquet, json,"
                " ...) drops a batch without a message when its folder has one of that number, of another checkpoint or"
                " of a later state of a restored one, and these records are missing there; give each query, and each"
                " new or restored checkpoint, a folder of its own",
                self._options.group_id, ", ".join(map(str, unread)),
            )  # fmt: skip

    def _unreported(self, lost: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges that were not reported yet, and record them: a dropped plan is computed again."""
        new = []
        for item in lost:
            row = self._state.partition(item.partition)
            start = max(item.start, row.lost_to)
            if start < item.end:
                new.append(OffsetRange(item.partition, start, item.end))
            row.lost_to = item.end
        return new

    def _report_possible(self, ranges: Collection[OffsetRange], reason: str, *, fail: bool) -> None:
        """Report ranges of which an unknown part is lost, maybe none. Nothing is counted.

        The event has empty ranges, too. Raises `DataLossError` if `fail`.
        """
        if not ranges:
            return
        shown = _open_ended(ranges)
        if fail:
            report_loss(((item, reason) for item in shown), fail=True, group=self._options.group_id)
        LOG.warning("data may be lost: group=%s %s: %s", self._options.group_id, ", ".join(shown), reason)
        known = [OffsetRange(item.partition, item.start, item.start) for item in ranges]
        self._metrics.write(
            "data_lost",
            (item.partition for item in ranges),
            ranges=_listed(known), possible=_listed(ranges), reason=reason,
        )  # fmt: skip

    def _report_certain(self, lost: Collection[OffsetRange], reason: str = "", *, open_ended: bool = False) -> None:
        """Raise `DataLossError` if failOnDataLoss is true. Otherwise log the lost ranges, count and write them.

        `open_ended`: the end of an empty range is not known.
        """
        if not lost:
            return
        shown = _open_ended(lost) if open_ended else lost
        report_loss(
            ((item, reason) for item in shown), fail=self._options.fail_on_data_loss, group=self._options.group_id
        )
        self._metrics.records_lost += sum(map(len, lost))
        why = {"reason": reason} if reason else {}
        self._metrics.write("data_lost", (item.partition for item in lost), ranges=_listed(lost), **why)


def _open_ended(ranges: Iterable[OffsetRange]) -> list[str]:
    """Return the ranges as they are shown; the end of an empty one is not known."""
    return [str(item) if len(item) else f"{item.partition} [{item.start}, ...)" for item in ranges]


def _listed(ranges: Iterable[OffsetRange]) -> list[list[str | int]]:
    return [[*item.partition, item.start, item.end] for item in ranges]


def removed_parts(
    ranges: Iterable[OffsetRange], beginnings: Mapping[TopicPartition, LogEnd | None]
) -> list[OffsetRange]:
    """Return the parts of these ranges that are before the beginnings of their logs: the records do not exist."""
    lows = {partition: begin.offset for partition, begin in beginnings.items() if begin is not None}
    cut = ((item, min(item.end, lows.get(item.partition, 0))) for item in ranges)
    return [OffsetRange(item.partition, item.start, end) for item, end in cut if end > item.start]


class TruncationWatch:
    """Keep one mark (offset and leader epoch) of each partition, and compare it with the leaders' epochs."""

    def __init__(self, cluster: ClusterPort, state: QueryState, *, read_committed: bool = False) -> None:
        self._cluster = cluster
        self._state = state
        self._ends_move_back = read_committed

    def in_doubt(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether one of these logs ended before its position when checked, and that may be temporary."""
        return any(map(self._state.short_in_doubt, partitions))

    def learn(self, ranges: Iterable[OffsetRange]) -> None:
        """Record a mark from the end of each range. Of two marks the one with the larger offset counts."""
        for item in ranges:
            row = self._state.partition(item.partition)
            if item.leader_epoch is not None and (row.mark is None or row.mark.offset <= item.end):
                row.mark = Mark(item.end, item.leader_epoch)

    def truncated(self, backlogs: Mapping[TopicPartition, Backlog]) -> dict[TopicPartition, int]:
        """Return where logs were truncated before the positions of these backlogs; each truncation once.

        Raises the error of `ClusterPort.diverged` if a leader does not answer.

        Guards against (rule R45):
        1. A partition is read up to offset 20. Its leader dies with the records 10 to 19.
        2. A replica that ends at 10 becomes the leader. It takes new records as 10, 11, ...
        3. By offset alone, the first ten would count as read.

        Guards against:
        1. A partition is read up to 20. Its log is truncated at 10, and grows to 12. [10, 20) is reported.
        2. The leader changes. The new one has all records, so the epoch of the truncation ended at 12.
        3. If 20 counted as reached in that epoch, [12, 20) would be reported as a second truncation.
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
        for partition, at in found.items():
            # R45: of a truncated log, this leader has what was read before the truncation only
            reached = asked[partition].offset if at is None else at
            self._state.partition(partition).mark = Mark(reached, backlogs[partition].leader_epoch or 0)
        cut = {partition: at for partition, at in found.items() if at is not None and at < asked[partition].offset}
        return self._short_for_long(backlogs, cut) | cut

    def _short_for_long(
        self, backlogs: Mapping[TopicPartition, Backlog], cut: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if self._ends_move_back:
            # read_committed: the log ends before its oldest open transaction. A valid position may be beyond that.
            return {}
        found = {}
        for partition, backlog in backlogs.items():
            if backlog.end >= backlog.position:
                self._state.clear_short(partition)
                continue
            is_short, row = self._state.saw_short(partition), self._state.partition(partition)
            row.short_reported = row.short_reported or partition in cut
            if is_short and not row.short_reported:
                found[partition] = backlog.end
                row.short_reported = True
        return found


def known_backlogs(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, LogEnd | None]
) -> dict[TopicPartition, Backlog]:
    """Return the backlogs from these offsets on, of logs whose ends are known."""
    known = ((partition, at, ends.get(partition)) for partition, at in positions.items())
    return {p: Backlog(at, end.offset, end.leader_epoch) for p, at, end in known if end is not None}
