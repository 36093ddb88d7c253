"""Run one stream query on the driver: join the group, plan batches, complete them and stop.

Passes Spark's calls to the pure planning functions and the membership thread. Runs on the main thread of the reader
process and owns no Kafka consumer. All that it remembers between calls can be derived again from Spark's offset log
and the group.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_groupsource import errors
from spark_groupsource.clock import Clock, StepDeadline
from spark_groupsource.cluster.admin import OUTAGE_TIMEOUT_S
from spark_groupsource.cluster.offset_lookup import partitions_of
from spark_groupsource.cluster.port import ClusterPort, Edge, TopicInfo
from spark_groupsource.driver.batch_planner import BatchPlanner, NothingToRead, Plan, TryAgain
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.data_loss import LossReporter, TruncationWatch
from spark_groupsource.driver.draining import Draining
from spark_groupsource.driver.log_ends import LogWatch
from spark_groupsource.driver.missing_topics import MissingTopics
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.driver.read_check import ReadCheck
from spark_groupsource.driver.readiness import CommitWait, Readiness
from spark_groupsource.driver.recreated_topics import RecreatedTopics
from spark_groupsource.driver.shared_state import SharedState
from spark_groupsource.driver.start_positions import StartPositions
from spark_groupsource.driver.topics import NOTHING, Known, TopicWatch
from spark_groupsource.errors import GroupKafkaError, KafkaUnavailableError, MembershipError, OptionError
from spark_groupsource.failpoints import reach
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.membership.stopping import StopCause, member_left
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import commit_items
from spark_groupsource.model.offsets import Json, OffsetRange, SourceOffset, TopicPartition, new_lineage
from spark_groupsource.options.model import UNBOUNDED, NextTrigger, ReadBounds, SourceOptions
from spark_groupsource.planning.batch import next_offset
from spark_groupsource.planning.start_position import Lineage, marked_item
from spark_groupsource.planning.tasks import Task, TaskSizing
from spark_groupsource.sidecars.lag_reporter import LagThread
from spark_groupsource.sidecars.stop_watch import StopWatch

if TYPE_CHECKING:
    from spark_groupsource.prometheus.server import MetricsServer

LOG = logging.getLogger(__name__)

# Seconds. A plan is computed again if ownership changes meanwhile. A trigger gives up after this time.
PLAN_TIMEOUT_S = 30.0
# Maximum seconds that one step towards a plan counts for with AvailableNow.
_PLAN_STEP_S = 10.0
STOP_TIMEOUT_S = 15.0
# Maximum number of times that one trigger starts again because topics were deleted.
_MAX_DELETED = 10


@dataclass(slots=True)
class _InFlight:
    """The batch in flight, by its end.

    - `read`: whether Spark has requested its tasks.
    - `given_out`: the ranges that executors read; empty if the driver has read it.
    - `reader`: the process that reads it, as the metrics name it.
    - `replayed`: the tasks of a logged batch that runs again; None for a batch that was planned.
    """

    end: SourceOffset
    read: bool = False
    given_out: tuple[OffsetRange, ...] = ()
    reader: str = "executors"
    replayed: tuple[Task, ...] | None = None


class Session:
    """Run one query's share of the group. Main thread only, apart from `request_stop`."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        clock: Clock,
        cluster: ClusterPort,
        member: MembershipThread,
        metrics: MetricsLog,
        pause: Callable[[float], object],
        lag: LagThread | None = None,
        watch: StopWatch | None = None,
        state_exists: Callable[[], bool | None] = lambda: None,
        sibling: Callable[[], bool] = lambda: False,
        metrics_port: MetricsServer | None = None,
        lineages: Callable[[], str] = new_lineage,
    ) -> None:
        self._options = options
        self._clock = clock
        self._cluster = cluster
        self._member = member
        self._lag = lag
        self._metrics_port = metrics_port
        self._watch = watch
        self._metrics = metrics
        self._pause = pause
        self._state = QueryState(clock)
        self._losses = LossReporter(options, metrics, self._state)
        query = QueryContext(options, clock, cluster, member, metrics, pause, self._state, self._losses)
        self._draining = Draining(query, watch)
        self._sizing = TaskSizing(options)
        self._truncation = TruncationWatch(cluster, self._state, read_committed=options.read_committed)
        recreated = RecreatedTopics(query)
        self._shared = SharedState(query, state_exists)
        self._starts = StartPositions(
            query, recreated=recreated, truncation=self._truncation, shared=self._shared, lineages=lineages
        )
        self._lineage: Lineage | None = None
        self._topics = TopicWatch(options, cluster, clock, self._state)
        self._missing = MissingTopics(query, self._topics)
        self._reads = ReadCheck(query, self._missing.describe)
        self._flight: _InFlight | None = None
        self._logs = LogWatch(cluster, clock, options.max_trigger_delay_s)
        commits = CommitWait(query)
        self._readiness = Readiness(query, commits, sibling)
        self._planner = BatchPlanner(
            query, logs=self._logs, recreated=recreated, truncation=self._truncation, commits=commits
        )
        self._started, self._available_now, self._later = False, False, NextTrigger.COMES

    def __repr__(self) -> str:
        lineage = None if self._lineage is None else self._lineage.name
        return f"Session(group={self._options.group_id!r}, lineage={lineage}, {self._member!r})"

    # --- life

    def start(self, known: Known = NOTHING) -> None:
        """Contact the cluster and join the group, once. `known` is what was read before.

        Raises the errors of the cluster and the client: unknown topics, missing rights, wrong settings.
        """
        self._member.check()
        if self._started:
            return
        if self._watch is not None:
            # First, so that a query can be stopped while the brokers do not answer.
            self._watch.start()
        reach("before-join", self._options.client_id)
        self._topics.match()
        self._topics.started_with(self._missing.describe(self._topics.names, known))
        if self._options.checkpoint_location is None:
            LOG.warning(
                "option checkpointLocation is not set: a handover waits for the next trigger, and the last batch"
                " before a stop is not committed (it is repeated by the next owner). If the query has a window, a join"
                " of streams or dropDuplicates, nothing notices when other queries read its partitions (onSharedState)."
                " Give the source the writer's checkpointLocation: group=%s",
                self._options.group_id,
            )
        if self._member.length.is_the_brokers:
            self._member.length.learn(self._cluster.group_session_s(self._options.group_id))
        self._member.start()
        self._member.subscribe(self._topics.names)
        if self._lag is not None:
            self._lag.start()
        self._readiness.started()
        self._started = True

    def request_stop(self, cause: StopCause = StopCause.SIGTERM) -> None:
        """Ask the member to leave when the batch in flight is complete. Safe in a signal handler."""
        self._member.request_stop(cause)

    @property
    def stopping(self) -> bool:
        """Whether the query was asked to stop: nothing is planned any more."""
        return self._member.stopping

    def unless_left(self, call: Callable[[], object]) -> None:
        """Call the member; do nothing if it leaves meanwhile after a request to stop (rule R79)."""
        self._draining.unless_left(call)

    def stop(self) -> None:
        """Commit all completed offsets, leave the group and close all clients. Idempotent; all waits are bounded."""
        self._member.stop_now()
        if self._member.join(STOP_TIMEOUT_S):
            self._check_last()
        else:
            LOG.warning("the member did not leave within %.0f s: %r", STOP_TIMEOUT_S, self._member)
        if self._watch is not None:
            self._watch.finish()
        if self._lag is not None:
            self._lag.join()
        if self._metrics_port is not None:
            self._metrics_port.close()
        self._cluster.close()

    def prepare_available_now(self) -> None:
        """Fix the AvailableNow targets: the current log ends of all partitions of the subscription."""
        self._available_now = True
        if self._member.stopping:
            return
        # The topic may have been read before and deleted since: the first `latest_offset` knows, and raises it if not.
        with suppress(OptionError):
            self._draining.unless_left(lambda: self._begin(NOTHING))

    def _begin(self, known: Known) -> None:
        self.start(known)
        if self._available_now and self._logs.targets is None:
            described = self._missing.describe(self._topics.names, known)
            wanted = partitions_of(self._options.subscription, described)
            self._logs.fix_targets(partition for partition in wanted if partition.topic in described)

    # --- planning

    def latest_offset(
        self, start: SourceOffset, bounds: ReadBounds = UNBOUNDED, later: NextTrigger = NextTrigger.COMES
    ) -> SourceOffset:
        """Complete the batch that ended at `start`, plan the next one and fix it.

        Returns `start` itself if there is nothing to read. `later` is what Spark says of a later trigger. After
        `prepare_available_now` there is none.

        1. Complete the last batch.
        2. Wait until the assignment has settled.
        3. Establish start positions.
        4. Plan.
        5. Fix the plan. If ownership has changed meanwhile, go back to 2.
        """
        self._later = NextTrigger.NONE if self._available_now else later
        # Spark asks for a new batch when no logged one is left to run again.
        self._draining.caught_up()
        if self._member.stopping:
            return self._drained(start)
        try:
            return self._next_offset(start, bounds)
        except (MembershipError, KafkaUnavailableError) as error:
            if not self._draining.explains(error):
                raise
            return self._drained(start)

    def _drained(self, start: SourceOffset) -> SourceOffset:
        """Complete the batch that ended at `start`, and plan nothing more, because a stop was requested (rule R79)."""
        if self._started:
            self._draining.unless_left(lambda: self._complete(start))
        self._draining.check(ends_itself=self._later is NextTrigger.NONE)
        return start

    def _next_offset(self, start: SourceOffset, bounds: ReadBounds) -> SourceOffset:
        known, attempts = Known.of(start), 0
        while True:
            try:
                self._begin(known)
                self._go_by(self._lineage_from(start))
                self._complete(start)
                if self._missing.refresh(known):
                    self._member.subscribe(self._topics.names)
                self._missing.check_start(known)
                return start if self._logs.targets == {} else self._planned(start, known, bounds)
            except OptionError as error:
                attempts += 1
                if attempts == _MAX_DELETED:
                    raise
                self._missing.handle_unknown(error, known)

    def _planned(self, start: SourceOffset, known: Known, bounds: ReadBounds) -> SourceOffset:
        deadline: StepDeadline | None = None
        may_be_last = self._later is not NextTrigger.COMES
        while deadline is None or not deadline.expired():
            # Without a topic nothing is ever assigned.
            later = self._later if self._topics.present else NextTrigger.COMES
            settled = self._readiness.settled_view(later, lambda: self._wanted(known))
            if settled is None:
                self._missing.compare_unassigned()
                return start
            self._shared.notice_share(settled, lambda: len(self._subscribed(known)))
            view = self._missing.leave_out_of(settled, known)
            if not view.partitions:
                if self._has_read_all(settled, known):
                    return start
                continue
            deadline = deadline or self._planning_deadline()
            if any(owned.position is None for owned in view.partitions):
                lineage, present = self._lineage_from(start), self._topics.present
                self._go_by(self._starts.establish(view, start, present, lineage, waits=may_be_last))
                continue
            match self._planner.step(view.positions, start.ranges, bounds, may_be_last=may_be_last):
                case Plan(ranges, described):
                    end = self._fix(view, start, ranges, described)
                    if end is not None:
                        return end
                case TryAgain(pause_s):
                    self._pause(pause_s)
                case NothingToRead():
                    if self._has_read_all(settled, known):
                        return start
        LOG.warning("no plan, the group keeps rebalancing: group=%s", self._options.group_id)
        if self._later is NextTrigger.NONE:
            # The query would end here with records unread.
            reason = f"the group accepted no start positions, or kept rebalancing, for {OUTAGE_TIMEOUT_S:.0f} s"
            raise KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request="latestOffset", reason=reason)
        return start

    def _has_read_all(self, view: GroupView, known: Known) -> bool:
        """Return whether nothing is left for this run that a plan from `view` would not read."""
        unowned = (self._logs.targets or {}).keys() - {owned.partition for owned in view.partitions}
        return not unowned or not self._readiness.gets_more(view, lambda: self._wanted(known))

    def _subscribed(self, known: Known) -> list[TopicPartition]:
        return partitions_of(self._options.subscription, self._missing.describe(self._topics.names, known))

    def _wanted(self, known: Known) -> list[TopicPartition]:
        """Return the partitions that this run is to read, alone or with other members."""
        targets = self._logs.targets
        return [partition for partition in self._subscribed(known) if targets is None or partition in targets]

    def _planning_deadline(self) -> StepDeadline:
        """Return the deadline by which a trigger must have a plan.

        AvailableNow and Once cannot leave it to the next trigger. They wait for an unavailable coordinator as long as
        for unavailable brokers. A wait for the assignment has limits of its own and counts as one step only.
        """
        if self._later is not NextTrigger.COMES:
            return StepDeadline(self._clock, OUTAGE_TIMEOUT_S, _PLAN_STEP_S)
        return StepDeadline(self._clock, PLAN_TIMEOUT_S, PLAN_TIMEOUT_S)

    def newest_offsets(self) -> Json:
        """Return the newest offsets of the owned partitions, as of the last plan: {topic: {partition: offset}}."""
        report: Json = {}
        for partition, offset in sorted(self._logs.newest.items()):
            report.setdefault(partition.topic, {})[str(partition.partition)] = offset
        return report

    def unread_after(self, end: SourceOffset) -> int:
        """Request the number of offsets after a batch's end, in the partitions that it reads."""
        ends = {item.partition: item.end for item in end.ranges}
        logs = self._cluster.log_offsets(dict.fromkeys(ends, Edge.LATEST))
        return sum(max(0, log.offset - ends[partition]) for partition, log in logs.items() if log is not None)

    @property
    def owned(self) -> Collection[TopicPartition]:
        """The partitions that the last plan could read."""
        return self._logs.newest.keys()

    def commit(self, end: SourceOffset) -> None:
        """Handle Spark's own, late report that the batch that ends at `end` is complete."""
        # A query with several sources may have batches of the others when this one is drained, or was never started.
        if self._started:
            self._draining.unless_left(lambda: self._member.complete(end))

    def _complete(self, start: SourceOffset) -> None:
        reach("before-complete", self._options.client_id)
        flight = self._flight
        if flight is None:
            self._reads.resumed(start)
        try:
            self._member.complete(start)
        finally:
            # R92: also if the member has left
            if flight is not None and flight.end == start:
                self._hand_to_check(flight)
        if flight is not None and flight.end != start:
            # Spark continues from an older offset: it never logged the plan.
            self._member.discard()
        elif flight is not None:
            self._sizing.completed(self._member.status.completed_s)
            if flight.read:
                self._metrics.batches_read[flight.reader] += 1
            else:
                self._losses.report_unread(flight.end.ranges)
        self._flight = None
        self._reads.check()

    def _hand_to_check(self, flight: _InFlight) -> None:
        """Let the completed batch be checked for what executors have skipped, once."""
        self._reads.completed(flight.end, flight.given_out, self._member.status.completed_s)
        flight.given_out = ()

    def _check_last(self) -> None:
        """Check what executors have skipped, before the query ends. Logs a warning if the brokers do not answer."""
        # The commit log has shown the member that the batch is complete.
        if self._flight is not None and self._member.flight is None:
            self._hand_to_check(self._flight)
        try:
            self._reads.check(last=True)
        except GroupKafkaError as error:
            LOG.warning("what executors have skipped of the last batch is not known: %s", error)

    def _lineage_from(self, start: SourceOffset) -> Lineage:
        return self._lineage or Lineage(start.lineage, start.reset)

    def _go_by(self, lineage: Lineage) -> None:
        self._lineage, self._metrics.lineage = lineage, lineage.name

    def _fix(
        self,
        view: GroupView,
        start: SourceOffset,
        ranges: tuple[OffsetRange, ...],
        described: Mapping[str, TopicInfo],
    ) -> SourceOffset | None:
        """Put the plan in flight. Return None if ownership has changed since it was made.

        A plan that only passes lost records is a batch, too: it moves the positions beyond the loss.
        """
        reach("before-fix", self._options.client_id)
        ids = {topic: info.topic_id for topic, info in described.items()}
        end = next_offset(start, self._lineage_from(start), ids, ranges, deleted=self._topics.deleted)
        if not self._member.fix(self._batch(end), view.assignment):
            return None
        self._logs.planned()
        self._truncation.learn(ranges)
        self._flight = _InFlight(end)
        return end

    def _batch(self, end: SourceOffset) -> FlightBatch:
        return FlightBatch(end, commit_items(end, self._state.anchors, has_state=self._shared.has_state is True))

    # --- tasks

    def read_on_driver(self, read_bytes: int = 0) -> None:
        """Record that the driver has read the whole batch in flight: no executor can have skipped records of it."""
        if self._flight is not None:
            self._flight.given_out, self._flight.reader = (), "driver"
        self._metrics.driver_read_bytes += read_bytes

    def tasks(self, start: SourceOffset, end: SourceOffset) -> tuple[Task, ...]:
        """Return the Spark tasks of the batch from `start` to `end`: the one in flight, or a replay.

        Returns no tasks if both are the same: Spark's first batch is empty if nothing was assigned in time.
        """
        if start == end:
            return ()
        reach("before-partitions", self._options.client_id)
        flight = self._flight
        replayed = self._replayed(end) if flight is None or flight.end != end else flight.replayed
        tasks = replayed
        if tasks is None:
            if self._shared.begins():
                self._draining.unless_left(lambda: self._mark_owned(end))
            tasks = self._sizing.tasks(end.ranges, self._clock.monotonic_s())
        given_out = tuple(item for task in tasks for item in task)
        self._flight = _InFlight(end, read=True, given_out=given_out, replayed=replayed)
        return tasks

    def _mark_owned(self, end: SourceOffset) -> None:
        """Mark all partitions, and the batch that ends at `end`, as those of a query with state, before it runs.

        Guards against (rule R116, a long first batch):
        1. A query with state runs its first batch for an hour.
        2. A new query joins, sees no mark, and reads orders-1.
        """
        view = self._member.view()
        wanted = (marked_item(owned.partition, owned.group, has_state=True) for owned in view.partitions)
        items = [item for item in wanted if item is not None]
        # R116: not with its end only
        if items and view.committed:
            self._member.establish({}, items, view.assignment, math.inf)
        self._member.mark(self._batch(end))

    def _replayed(self, end: SourceOffset) -> tuple[Task, ...]:
        """Return the tasks of a logged batch. Raises MEMBER_LEFT, whatever fails, after a request to stop."""
        try:
            tasks = self._replay(end)
        except (MembershipError, KafkaUnavailableError) as error:
            if not self._draining.explains(error):
                raise
            # The batch is logged, and complete nowhere.
            cause = self._member.stop_cause
            raise member_left(self._options.group_id, clean=False, cause=cause) from None
        self._draining.caught_up()
        return tasks

    def _replay(self, end: SourceOffset) -> tuple[Task, ...]:
        known = Known.of_replay(end, self._options.subscription)
        self._state.saw_ends(end.ends())
        self.start(known)
        replay = self._starts.replay(end, self._missing.existing(end, known))
        read = self._planner.replayed(replay.ranges)
        self._starts.report_conflicts(replay.conflicts)
        records = sum(map(len, read))
        self._metrics.write("replayed", (item.partition for item in read), records=records)
        LOG.info(
            "replay: group=%s records=%d of=%d reset=%s",
            self._options.group_id, records, sum(map(len, end.ranges)), replay.reset,
        )  # fmt: skip
        self._go_by(Lineage(end.lineage, end.reset))
        # A stop waits for no batch that has nothing to repeat.
        if end.ranges:
            self._member.replay(self._batch(end))
        return self._sizing.tasks(read, self._clock.monotonic_s())
