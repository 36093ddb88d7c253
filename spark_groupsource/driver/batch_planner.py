"""Plan one batch: from the positions of the owned partitions to its ranges.

Each step returns what comes next. It queries the logs and reports lost records. It changes no position and fixes no
plan: the session does that. Main thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.clock import Pace
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.data_loss import TruncationWatch, known_backlogs
from spark_groupsource.driver.log_ends import LogWatch
from spark_groupsource.driver.readiness import CommitWait
from spark_groupsource.driver.recreated_topics import RecreatedTopics
from spark_groupsource.failpoints import reach
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import ReadBounds
from spark_groupsource.planning.batch import average_bytes, last_read, plan_ranges, within_bytes

# Seconds until a log that ends before its position is checked again, where no later trigger would check it.
_DOUBT_PAUSE_S = 0.5
# Seconds between two checks of the group's offsets while batches run; an idle query checks them as often.
_RESTORE_S = 5.0
# Bytes of a record, before any was seen.
_USUAL_BYTES = 1_000.0


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that can be fixed: the ranges of the batch, and the topics as the survey found them."""

    ranges: tuple[OffsetRange, ...]
    topics: Mapping[str, TopicInfo]


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Positions or log ends are out of date: settle and take another step after `pause_s` seconds."""

    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NothingToRead:
    """This trigger has no batch."""


Step = Plan | TryAgain | NothingToRead


class BatchPlanner:
    """Plan batches from settled positions."""

    def __init__(
        self,
        query: QueryContext,
        *,
        logs: LogWatch,
        recreated: RecreatedTopics,
        truncation: TruncationWatch,
        commits: CommitWait,
    ) -> None:
        self._cluster, self._state, self._losses = query.cluster, query.state, query.losses
        self._logs = logs
        self._recreated = recreated
        self._truncation = truncation
        self._commits = commits
        self._restores = Pace(query.clock, _RESTORE_S)
        # The name of the query in failpoints.
        self._name = query.options.client_id
        self._usual_bytes = _USUAL_BYTES
        # Where partitions that take turns go on.
        self._last: TopicPartition | None = None

    def step(
        self,
        positions: Mapping[TopicPartition, int],
        before: Iterable[OffsetRange],
        bounds: ReadBounds,
        *,
        may_be_last: bool = False,
    ) -> Step:
        """Return the plan from these positions on, or why there is none. `before` are the ranges of the batch before.

        If the trigger `may_be_last` (AvailableNow, Once), no later one would see what this one leaves.

        1. Query the backlogs.
        2. Check whether they are enough.
        3. Check that the topics are the same, that no log was truncated, and that the group has the completed offsets.
        4. Skip records that the logs have lost.
        5. Choose the ranges.

        Raises `DataLossError` if failOnDataLoss is true and a log has lost records.

        Guards against (rule R45, a recreated topic):
        1. A topic is read to 20, deleted and recreated. The new log ends at 30, with a higher leader epoch.
        2. The leader reports that the former epoch ended at 0.
        3. [0, 20) would be reported, new records as lost.
        """
        reach("before-backlogs", self._name)
        backlogs = self._logs.backlogs(positions, bounds.max_rows)
        truncated = self._truncation.truncated(known_backlogs(positions, self._logs.ends))
        enough = self._logs.enough(backlogs, bounds.min_rows)
        if not enough and not truncated and not self._logs.suspicious(backlogs) and not self._logs.ids_due:
            self._state.saw_ends(self._logs.newest, same_ids=False)
            return self._nothing(positions, may_be_last)
        reach("before-survey", self._name)
        survey = self._logs.survey(backlogs)
        # R45: a recreated topic is not a truncated one. Records that are there now are skipped.
        ids = {topic: info.topic_id for topic, info in survey.topics.items()}
        recreated = self._state.read_under_other_ids(truncated, ids)
        self._losses.report_truncated({p: (at, positions[p]) for p, at in truncated.items() if p not in recreated})
        if self._recreated.leave({p: positions[p] for p in backlogs}, survey.topics):
            return TryAgain()
        self._state.saw_ends(self._logs.newest)
        if not self._commits.accepted():
            return TryAgain()
        if not enough:
            self._recreated.restore(positions)
            return self._nothing(positions, may_be_last)
        if self._restores.due():
            # The batch commits the others at its end.
            self._recreated.restore(p for p, backlog in backlogs.items() if not backlog.size)
        left = self._losses.skip_lost(backlogs, survey.beginnings)
        if bounds.max_bytes is not None:
            found = self._cluster.next_records({p: backlog.position for p, backlog in left.items() if backlog.size})
            # After an outage the client may find no record in time, and the backlog is at its largest.
            self._usual_bytes = average_bytes(found.values(), self._usual_bytes)
            left = within_bytes(left, found, bounds.max_bytes, self._usual_bytes)
        # By what was logged: Spark may not log a plan.
        self._last = last_read(before, self._last)
        return Plan(plan_ranges(left, bounds.max_rows, self._last), survey.topics)

    def replayed(self, ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
        """Return the ranges of a logged batch without records that the logs have lost since.

        Nothing waits: Spark needs the batch, whoever owns its partitions now. Raises `DataLossError` if failOnDataLoss
        is true and a log has lost records.
        """
        every = tuple(ranges)
        unread = [item for item in every if len(item)]
        survey = self._cluster.survey(item.partition for item in unread)
        self._truncation.learn(unread)
        truncated = self._truncation.truncated(known_backlogs({r.partition: r.end for r in unread}, survey.ends))
        return self._losses.trim_lost(every, truncated, survey.beginnings)

    def _nothing(self, positions: Mapping[TopicPartition, int], may_be_last: bool) -> Step:
        """Return that there is nothing to read; in a last trigger, only if no log may have been truncated.

        No later trigger would report that: the query would end, and no run of it would read the partition.
        """
        doubt = may_be_last and self._truncation.in_doubt(positions)
        return TryAgain(_DOUBT_PAUSE_S) if doubt else NothingToRead()
