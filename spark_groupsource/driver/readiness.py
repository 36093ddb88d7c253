"""When a batch may be planned: the assignment is settled, and the group holds the completed offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.options.client_settings import librdkafka_has
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.session")

# A newcomer's first assignment may be empty and followed by another one; a standby's stays empty. Spark runs an
# empty first batch when this is too short, and a standby's first trigger takes as long.
FIRST_ASSIGNMENT_S = 5.0
# How long a trigger waits for a rebalance to settle before it reports no new data.
SETTLE_S = 1.0
# AvailableNow must not end because nothing is assigned yet: the session of a killed member has to expire first.
AVAILABLE_NOW_MARGIN_S = 30.0
_SETTLE_PAUSE_S = 0.01
_NO_PARTITIONS = "AvailableNow ends without a partition: others have them (a static member also when it was stopped)"
# How long a plan waits for the commit of the batch before it, once: then batches go on without commits.
COMMIT_S = 1.0
# The answer to a commit takes some milliseconds, and a trigger waits for it.
_PAUSE_S = 0.002


class CommitWait:
    """Holds a plan up until the group has what is complete. Main thread only."""

    def __init__(
        self,
        options: SourceOptions,
        length: SessionLength,
        *,
        clock: Clock,
        member: MembershipThread,
        metrics: MetricsLog,
        pause: Callable[[float], object],
    ) -> None:
        self._options = options
        self._length = length
        self._clock = clock
        self._member = member
        self._metrics = metrics
        self._pause = pause
        # Set while batches go on without commits; it ends with the session that the group may have given up by then.
        self._behind: Deadline | None = None
        self._told_cut_off = False

    def taken(self) -> bool:
        """Wait until the group holds what is complete; False when that was in vain, and what was asked is old by now.

        The sequence this protects against: batch N is complete, its commit does not arrive (the member is cut off, a
        rebalance stalls); batch N+1 is read and completed all the same; the session expires, and the next owner
        repeats both, where promise P6 allows one.

        A coordinator that stays away holds up one trigger. Batches then go on without commits, until one is taken.
        """
        patience = Deadline(self._clock, COMMIT_S)
        # R9: the group must hold all completed offsets
        while not (taken := self._member.view().committed) and self._behind is None:
            if self._member.stopping:
                return False
            if patience.expired():
                text = "batches go on, no commit was taken for %.0f s: group=%s"
                LOG.warning(text, COMMIT_S, self._options.group_id)
                self._behind = Deadline(self._clock, self._length.shortest_s)
                self._metrics.write("commits", behind=True)
                return False
            self._pause(_PAUSE_S)
        if taken and self._behind is not None:
            self._behind, self._told_cut_off = None, False
            self._metrics.write("commits", behind=False)
        return True

    def cut_off(self, view: GroupView) -> bool:
        """Whether nothing may be planned, because the group may have ended the member's session.

        The sequence this protects against: one member cannot reach its coordinator, and reads from the other brokers
        as before; the group gives its partitions away, and all that is read from then on would be a repeat. librdkafka
        has a clock of its own for that only in classic groups, and there not while it joins (a cooperative member keeps
        its partitions meanwhile). kafka-python takes no commits while it joins, however long others drain: its clock
        has to do.
        """
        if not librdkafka_has(self._options.assignors) or self._options.subscription.partitions:
            return False
        # R71: the group may have ended the session
        if view.committed or self._behind is None or not self._behind.expired():
            return False
        if not self._told_cut_off:
            self._told_cut_off = True
            LOG.warning(
                "nothing is planned until a commit is taken, the group may have given the partitions to others: none"
                " was taken for %.0f s: group=%s",
                self._length.shortest_s, self._options.group_id,
            )  # fmt: skip
        return True


class Readiness:
    """Waits until the member may plan. Main thread only."""

    def __init__(
        self,
        options: SourceOptions,
        length: SessionLength,
        commits: CommitWait,
        *,
        clock: Clock,
        member: MembershipThread,
        pause: Callable[[float], object],
    ) -> None:
        self._options = options
        self._length = length
        self._commits = commits
        self._clock = clock
        self._member = member
        self._pause = pause
        self._first_assignment: Deadline | None = None

    def started(self) -> None:
        """Note that the member has begun to join."""
        self._first_assignment = Deadline(self._clock, FIRST_ASSIGNMENT_S)

    def settled_view(self, *, available_now: bool) -> GroupView | None:
        """Wait until the member may plan; None when that takes longer than a trigger should.

        Only the first call of a session waits for an assignment that is not empty.
        """
        settle = Deadline(self._clock, SETTLE_S)
        longest_s = self._length.longest_s + AVAILABLE_NOW_MARGIN_S
        patience = Deadline(self._clock, longest_s if available_now else SETTLE_S)
        while True:
            self._member.check()
            if self._member.stopping:
                if available_now:
                    # Spark would take "nothing new" for the end of all there is to read.
                    raise MembershipError(errors.MEMBER_LEFT, group=self._options.group_id)
                return None
            view = self._member.view()
            settled = view.settled and not self._commits.cut_off(view)
            if settled and view.partitions:
                self._first_assignment = None
                return view
            waits_first = self._first_assignment is not None and not self._first_assignment.expired()
            if not waits_first:
                if available_now and not settled and patience.expired():
                    raise self._no_assignment(view)
                if settle.expired() and not (available_now and not settled):
                    self._first_assignment = None
                    if available_now:
                        LOG.warning("%s: group=%s", _NO_PARTITIONS, self._options.group_id)
                    return view if settled else None
            self._pause(_SETTLE_PAUSE_S)

    def _no_assignment(self, view: GroupView) -> MembershipError:
        return MembershipError(
            errors.NO_ASSIGNMENT,
            group=self._options.group_id,
            timeout_s=self._length.longest_s + AVAILABLE_NOW_MARGIN_S,
            state=view.state.name,
        )
