"""Doubts and proves the membership: a process that was stopped must not plan before it knows that it is still in.

The sequence this protects against (zombie planning): the process is stopped (SIGSTOP, a long pause of the machine),
the session expires, another member gets the partitions and reads on; the process goes on and plans once more before
its client has noticed anything.

A machine that was suspended is the same, except that neither Python's monotonic clock nor the client's has gone on
meanwhile: the client would wait for its next heartbeat, and Spark's next trigger may come first.

A proof counts only when its answer came well within the session. Guards against, with a session of 6 s:

1. The member sends its proof, the coordinator accepts it, and the process is stopped before it has the answer.
2. The process stands still for 8 s. The session expires, and another member reads the partitions on.
3. The process goes on and takes the answer, which is true of 8 s ago.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource.clock import Clock, Pace
from spark_groupsource.failpoints import reach
from spark_groupsource.membership.machine import MemberMachine, MemberState
from spark_groupsource.membership.port import CommitResult
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.options.model import SourceOptions

_RETRY_INTERVAL_S = 0.5


class MembershipProof:
    """Watches the member's own clock for gaps. Event thread only."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Clock,
        *,
        machine: MemberMachine,
        report: MemberReport,
        length: SessionLength,
        commit: Callable[[tuple[CommitItem, ...]], CommitResult],
        take: Callable[[CommitResult], None],
    ) -> None:
        self._options = options
        self._clock = clock
        self._machine = machine
        self._report = report
        self._length = length
        self._commit = commit
        self._take = take
        self._last_s = clock.boottime_s()
        self._pace = Pace(clock, _RETRY_INTERVAL_S)

    def alive(self) -> float:
        """Note that the thread runs now, and return for how long it was silent, in seconds."""
        now_s = self._clock.boottime_s()
        gap_s, self._last_s = now_s - self._last_s, now_s
        return gap_s

    def notice_gap(self) -> None:
        """Doubt the membership after a silence longer than the heartbeat interval. With option assign there is none.

        Under KIP-848 the interval is the broker's, and at most a third of the session where that is set sensibly.
        """
        gap_s, longest_s = self.alive(), self._options.heartbeat_interval_s
        if self._length.is_the_brokers:
            longest_s = min(longest_s, self._length.shortest_s / 3)
        # R67: the session may have expired meanwhile
        if gap_s > longest_s and not self._options.subscription.partitions:
            self._machine.membership_doubted()
            self._report.doubted(gap_s)
            self._pace.hurry()

    def prove(self) -> None:
        """A commit that the coordinator takes proves the generation, unless the answer took so long to arrive
        that the process may have been stopped meanwhile.
        """
        machine = self._machine
        if machine.proven or machine.state is not MemberState.JOINED or machine.unfetched():
            return
        proof = machine.proof()
        if not proof:
            machine.membership_proven()
        elif self._pace.due():
            self.alive()
            result = self._commit(proof)
            reach("before-proof-answer", self._options.client_id)
            # R68: an older answer says nothing of now
            if self.alive() < self._length.shortest_s / 2 and result.acknowledged:
                machine.membership_proven()
                self._report.proven()
            self._take(result)
