"""Doubt and prove the membership: after a pause, a process must not plan before it knows that it is still a member.

A pause (SIGSTOP, a suspended machine) may be longer than the session, so that others own the partitions by now
(rule R67). While a machine is suspended, neither Python's monotonic clock nor the client's runs: the client would wait
for its next heartbeat, and Spark's next trigger may come first. So pauses are measured by CLOCK_BOOTTIME.

The proof is a commit that the coordinator accepts. It counts only if the answer came within half the session timeout.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource.clock import Pace
from spark_groupsource.failpoints import reach
from spark_groupsource.membership.context import MemberContext
from spark_groupsource.membership.machine import MemberState
from spark_groupsource.membership.port import CommitResult
from spark_groupsource.model.commit_metadata import CommitItem

_RETRY_INTERVAL_S = 0.5
_FETCH_TIMEOUT_S = 5.0


class MembershipProof:
    """Detect pauses of the process, and prove the membership afterwards. Event thread only."""

    def __init__(
        self,
        member: MemberContext,
        commit: Callable[[tuple[CommitItem, ...]], CommitResult],
        handle_answer: Callable[[CommitResult], None],
        join_again: Callable[[], None],
    ) -> None:
        self._options, self._clock, self._length = member.options, member.clock, member.length
        self._machine, self._report = member.machine, member.report
        self._commit = commit
        self._handle_answer = handle_answer
        self._join_again = join_again
        self._port = member.port
        self._last_s = member.clock.boottime_s()
        self._pace = Pace(member.clock, _RETRY_INTERVAL_S)

    def measure_gap_s(self) -> float:
        """Return the seconds since the last call. The thread may not have run in this time."""
        now_s = self._clock.boottime_s()
        gap_s, self._last_s = now_s - self._last_s, now_s
        return gap_s

    def notice_gap(self) -> None:
        """Doubt the membership after a silence longer than the heartbeat interval. Not with option assign.

        Under KIP-848 the broker sets that interval, so a third of the session timeout counts if it is shorter.

        Guards against (rule R67):
        1. A process is stopped (SIGSTOP), or its machine is suspended. Its session expires.
        2. Another member reads its partitions on.
        3. The process goes on, and plans a batch before its client has noticed anything.
        """
        gap_s, longest_s = self.measure_gap_s(), self._options.heartbeat_interval_s
        if self._length.is_the_brokers:
            longest_s = min(longest_s, self._length.shortest_s / 3)
        # R67: the session may have expired meanwhile
        if gap_s > longest_s and self._options.is_member:
            self._machine.proven = False
            self._report.doubted(gap_s)
            self._pace.hurry()

    def prove(self) -> None:
        """Prove a doubted membership by a commit that the coordinator accepts, unless its answer came too late.

        Guards against (rule R67, a slow answer):
        1. With a session of 6 s, a member sends its proof, which is accepted.
        2. The process is stopped for 8 s before it has the answer. Its session expires. Another member reads on.
        3. It goes on with an old answer.
        """
        machine = self._machine
        if machine.proven or machine.state is not MemberState.JOINED or machine.unfetched() or not self._pace.due():
            return
        # R67: nothing is committed below what another member has
        is_newest = not self._options.assigned_by_id or self._is_newest()
        # Also without an answer: the wait for it is no new silence.
        self.measure_gap_s()
        if is_newest and not (proof := machine.proof()):
            machine.proven = True
        elif is_newest:
            result = self._commit(proof)
            reach("before-proof-answer", self._options.client_id)
            # R67: a slower answer proves nothing
            if self.measure_gap_s() < self._length.shortest_s / 2 and result.acknowledged:
                machine.proven = True
                self._report.proven()
            self._handle_answer(result)

    def _is_newest(self) -> bool:
        """Return whether the group has nothing beyond what is known here. If it has, the member joins again.

        Guards against (rule R67, KIP-848):
        1. A process is stopped before its heartbeat reports an assignment. The coordinator gives that to another one.
        2. It goes on. Its proof is of the group's epoch, so it is accepted: the group's offset goes back.
        """
        owned = self._machine.owned_partitions()
        found = self._port.fetch_offsets(owned, _FETCH_TIMEOUT_S) if owned else {}
        is_passed = self._machine.is_passed(found)
        if is_passed:
            self._join_again()
        return not is_passed and found.keys() >= set(owned)
