"""Wait until a batch may be planned: the assignment has settled, and the group has the completed offsets."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.clock import Deadline
from spark_groupsource.driver.assignment_check import AssignmentCheck
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.driver.unassigned import UnassignedPartitions, Wanted
from spark_groupsource.errors import GroupKafkaError, KafkaUnavailableError, MembershipError
from spark_groupsource.membership.machine import GroupView, MemberState
from spark_groupsource.membership.stopping import member_left
from spark_groupsource.options.model import NextTrigger

LOG = logging.getLogger(__name__)

# Seconds. A new member's first assignment may be empty and followed by another one; a standby's stays empty. If this is
# too short, Spark runs an empty first batch. A standby's first trigger takes this long.
FIRST_ASSIGNMENT_S = 5.0
# Seconds that a trigger waits for a rebalance to settle before it reports no new data.
SETTLE_S = 1.0
# Seconds. AvailableNow must not end because nothing is assigned yet: the session of a killed member must expire first.
AVAILABLE_NOW_MARGIN_S = 30.0
# Seconds from the end of the wait of a query's second source to when its first one gives its partitions up.
_BEFORE_GIVEN_UP_S = 2.0
_SETTLE_PAUSE_S = 0.01
_NO_PARTITIONS = (
    "the query ends without a partition: other members own them (a static member also while stopped): group=%s"
)
_NOT_SETTLED = (
    "no partitions for %.0f s: a query with Trigger.AvailableNow or Once ends without them, because before Spark 4.2"
    " the source does not learn the trigger: group=%s"
)
# Seconds that a plan waits for the commit of the previous batch, once. Then batches go on without commits.
COMMIT_S = 1.0
# Seconds. The answer to a commit takes some milliseconds, and a trigger waits for it.
_PAUSE_S = 0.002


class CommitWait:
    """Delay a plan until the group has accepted all completed offsets. Main thread only."""

    def __init__(self, query: QueryContext) -> None:
        self._options, self._length, self._metrics = query.options, query.member.length, query.metrics
        self._clock, self._member, self._pause = query.clock, query.member, query.pause
        # When the first batch was complete of those that go on without commits; None while there are none.
        self._behind_since_s: float | None = None
        self._reported_cut_off = False

    def accepted(self) -> bool:
        """Wait until the group has accepted all completed offsets (rule R9).

        Return False if the wait timed out or the query is stopping; the caller must then request the log ends again
        before planning. A coordinator that stays unavailable delays one trigger. Batches then go on without commits
        until one is accepted.

        Guards against (rule R71, from when the time counts):
        1. A batch is complete, and its commit gets no answer: the member is cut off. The next trigger is far away.
        2. The session expires, and the group gives the partitions to others.
        3. The trigger comes. If the time of a session began now, another batch would be planned, and repeated.

        Guards against (rule R9, a stall that has passed):
        1. A batch goes on without a commit, which is accepted while it runs.
        2. It is complete, and the next trigger plans at once, as if the stall went on.
        3. The member is cut off. The next owner repeats both.

        Guards against (rule R9):
        1. Batch N is complete. Its commit does not arrive: the member is cut off, or a rebalance stalls.
        2. Batch N+1 is read and completed, and the session expires.
        3. The next owner repeats both; promise P6 allows one.
        """
        if self._behind_since_s not in (None, self._member.status.behind_since_s):
            self._caught_up()
        patience = Deadline(self._clock, COMMIT_S)
        # R9: the group must hold all completed offsets
        while not (accepted := self._member.view().committed) and self._behind_since_s is None:
            if self._member.stopping:
                return False
            if patience.expired():
                text = "batches go on, although no commit was accepted for %.0f s: group=%s"
                LOG.warning(text, COMMIT_S, self._options.group_id)
                # R71: since the first commit without an answer, and not since this trigger
                self._behind_since_s = self._member.status.behind_since_s
                self._metrics.write("commits", behind=True)
                return False
            self._pause(_PAUSE_S)
        if accepted and self._behind_since_s is not None:
            self._caught_up()
        return True

    def _caught_up(self) -> None:
        self._behind_since_s, self._reported_cut_off = None, False
        LOG.info("commits are accepted again: group=%s", self._options.group_id)
        self._metrics.write("commits", behind=False)

    def cut_off(self, view: GroupView) -> bool:
        """Return whether nothing may be planned, because the group may have ended the member's session (rule R71).

        librdkafka has a clock of its own for that only in classic groups, and not while it joins; a cooperative member
        keeps its partitions meanwhile. Returns False for kafka-python: it accepts no commits while it joins, however
        long others drain, and has a clock of its own (rule R74).

        Guards against (rule R71):
        1. A member cannot reach its coordinator, but all other brokers. With KIP-848, and while it joins, its client
           has no clock for that.
        2. The group gives its partitions to others.
        3. The query reads on: all that is repeated.
        """
        if not (self._options.on_librdkafka and self._options.is_member):
            return False
        if view.committed or self._behind_since_s is None:
            return False
        # R71: the group may have ended the session
        if self._clock.monotonic_s() - self._behind_since_s < self._length.shortest_s:
            return False
        if not self._reported_cut_off:
            self._reported_cut_off = True
            LOG.warning(
                "nothing is planned until a commit is accepted, because none was for %.0f s and the group may have"
                " assigned the partitions to others: group=%s",
                self._length.shortest_s, self._options.group_id,
            )  # fmt: skip
        return True


class Readiness:
    """Wait until the member may plan. Main thread only."""

    def __init__(self, query: QueryContext, commits: CommitWait, sibling: Callable[[], bool]) -> None:
        self._options, self._length = query.options, query.member.length
        self._clock, self._member, self._pause = query.clock, query.member, query.pause
        self._commits = commits
        self._check = AssignmentCheck(query)
        self._unassigned = UnassignedPartitions(query, sibling)
        self._first_assignment: Deadline | None = None
        self._joins_again = False

    def started(self) -> None:
        """Record that the member has begun to join, or has joined again."""
        longest_s, knows = FIRST_ASSIGNMENT_S, self._options.checkpoint_location is not None
        if knows and self._held_s < longest_s and self._unassigned.finds_sibling():
            longest_s = self._held_s
        self._first_assignment = Deadline(self._clock, longest_s)

    @property
    def _held_s(self) -> float:
        """How long a query's second source waits: no longer than its first one keeps what it has planned."""
        options = self._options
        batch_s = math.inf if options.max_batch_s is None else options.max_batch_s
        held_s = min(options.drain_timeout_s, batch_s)
        return max(held_s - _BEFORE_GIVEN_UP_S, held_s / 2, SETTLE_S)

    def settled_view(self, later: NextTrigger, wanted: Wanted) -> GroupView | None:
        """Wait until the member may plan. Return None if that takes longer than a trigger should.

        | the member | waits at most | then |
        |---|---|---|
        | may plan, and has partitions | not at all | returns its view |
        | may plan, and has none | `SETTLE_S`, and `FIRST_ASSIGNMENT_S` after a join | returns its view |
        | may not plan, a later trigger comes | the same | returns None |
        | may not plan, there may be no later one | the session and 30 s, or `_handover_s` | warns, returns None |
        | may not plan, there is no later one | the same | raises |

        `_handover_s` is for a member without partitions, `AVAILABLE_NOW_MARGIN_S` are the 30 s.

        Without a later trigger, a member without partitions may plan when others have all that are `wanted`. It raises
        `MembershipError` if the assignment takes too long, or the query is stopping and there is no later trigger;
        `KafkaUnavailableError` if the member has partitions and the coordinator does not answer for that long.
        """
        began_s = self._clock.monotonic_s()
        while True:
            self._member.check()
            if self._member.stopping:
                if later is NextTrigger.NONE:
                    # For Spark, "no new data" would be the query's end.
                    raise member_left(self._options.group_id, clean=False, cause=self._member.stop_cause)
                return None
            view = self._member.view()
            if self._joins_again and view.state is MemberState.JOINED:
                self.started()
            self._joins_again = view.state is MemberState.REJOINING
            # R84: also while the member waits for its first assignment
            self._check.run(view)
            waits_first = self._first_assignment is not None and not self._first_assignment.expired()
            may_plan = view.settled and not self._commits.cut_off(view)
            longest_s = SETTLE_S if later is NextTrigger.COMES else self._length.longest_s + AVAILABLE_NOW_MARGIN_S
            if later is not NextTrigger.COMES and not view.partitions:
                # Before Spark 4.2 most queries go on, and a query's second source must not wait for its first one.
                may_plan = may_plan and later is NextTrigger.UNKNOWN
                may_plan = may_plan or (not waits_first and self._unassigned.run_may_end(view, wanted))
                # A run must not end as if it had read all. The member's error is raised.
                may_plan = may_plan and not self._member.status.assignment_refused
                longest_s = self._handover_s(later)
            is_late = self._clock.monotonic_s() - began_s >= (SETTLE_S if may_plan else longest_s)
            if (may_plan and view.partitions) or (is_late and not waits_first):
                self._first_assignment = None
                return self._at_end_of_wait(view, later, longest_s, may_plan=may_plan)
            self._pause(_SETTLE_PAUSE_S)

    def gets_more(self, view: GroupView, wanted: Wanted) -> bool:
        """Wait, before a run ends, until this member's partitions change, or others have all that is wanted.

        Return whether they have changed, or the query is stopping. After `_handover_s` it raises `MembershipError`, or
        `KafkaUnavailableError` if the coordinator does not answer.
        """
        longest_s = self._handover_s(NextTrigger.NONE)
        ends = Deadline(self._clock, longest_s)
        while not self._unassigned.run_may_end(view, wanted):
            self._member.check()
            now = self._member.view()
            # R84: the others may wait for this member
            self._check.run(now)
            # Each rebalance is a change of the assignment, also one that gives this member nothing.
            if self._member.stopping or now.partitions != view.partitions:
                return True
            if ends.expired():
                raise self._unassigned_error(view, f"{self._unassigned} to no member", longest_s)
            self._pause(_SETTLE_PAUSE_S)
        return False

    def _handover_s(self, later: NextTrigger) -> float:
        """Return the longest time in seconds in which another member gives its partitions up, or its session expires.

        Guards against (two sources of a query):
        1. The first source has planned. The second one joins, and waits for partitions of the first.
        2. The first one's drain ends, or `maxBatchMs` passes. It gives the partitions up without a commit.
        3. The second one plans them, too: they are in the same batch twice.
        """
        drain_s = self._options.drain_timeout_s
        session_s = self._length.longest_s + AVAILABLE_NOW_MARGIN_S
        # Without a checkpoint it is not known whether there is another source.
        if self._unassigned.has_sibling and self._options.checkpoint_location is not None:
            return min(session_s, self._held_s)
        waits = self._unassigned.waits and later is NextTrigger.NONE
        return max(session_s, drain_s + AVAILABLE_NOW_MARGIN_S) if waits else session_s

    def _at_end_of_wait(
        self, view: GroupView, later: NextTrigger, waited_s: float, *, may_plan: bool
    ) -> GroupView | None:
        group = self._options.group_id
        if may_plan:
            if not view.partitions and later is NextTrigger.NONE:
                LOG.warning(_NO_PARTITIONS, group)
            return view
        if later is NextTrigger.NONE:
            raise self._no_assignment(view, waited_s)
        if later is NextTrigger.UNKNOWN:
            LOG.warning(_NOT_SETTLED, waited_s, group)
        return None

    def _no_assignment(self, view: GroupView, timeout_s: float) -> GroupKafkaError:
        if view.partitions:
            fetches = any(owned.group is None for owned in view.partitions)
            reason = f"the group's coordinator has not accepted it for {timeout_s:.0f} s"
            return KafkaUnavailableError(
                errors.CLUSTER_REQUEST_FAILED, request="OffsetFetch" if fetches else "OffsetCommit", reason=reason
            )
        return self._unassigned_error(view, "no partition to this member", timeout_s)

    def _unassigned_error(self, view: GroupView, partitions: str, timeout_s: float) -> GroupKafkaError:
        group, state = self._options.group_id, view.state.name
        return self._unassigned.error or MembershipError(
            errors.NO_ASSIGNMENT, group=group, partitions=partitions, timeout_s=timeout_s, state=state
        )
