"""Sends commits, one at a time: a later one must never be overtaken by an earlier one.

The sequence this protects against: the commit of batch N is refused because the coordinator moves, and the client
tries it again by itself, later; meanwhile batch N+1 is complete, its commit is sent and taken; then the commit of
batch N is taken, and the group's offset goes back. A takeover at that moment would repeat batch N+1.

So while a commit is on its way nothing else is sent: newer offsets wait in the state machine. A handover cannot wait
for the answer, because the client brings answers only outside of its callbacks; it commits, and then looks whether
the older commit has landed after it.

The second sequence: the coordinator stands still; the connection with the commit of batch N is given up, and the commit
of batch N+1 goes over a new one; the coordinator goes on, and reads the new connection before the old one.

So a commit without a clear answer is in doubt: the same offsets are sent again until there is an answer, and the newer
ones wait a little longer, in which the coordinator takes what else it has got. They wait after a late answer, too: it
may be to a second try of the client's, which tells nothing of the first.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.machine import MemberMachine, MemberState
from spark_groupsource.membership.port import CommitResult, GroupPort, Refusal
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.model.commit_metadata import CommitItem, requests_of
from spark_groupsource.model.offsets import TopicPartition

# A refused commit is sent again after this long.
_RETRY_INTERVAL_S = 0.2
# The client tries a commit again when its connection is given up, which takes a heartbeat interval at least.
_LATE_ANSWER_S = 0.5
# After a late or second answer: a coordinator that answers has read its old connections soon.
_QUIET_S = 0.5
# The client answers every commit, at the latest when its request times out (a minute); after this long the answer is
# given up, so that one that went astray does not end all commits.
_ANSWER_TIMEOUT_S = 180.0
# How long a handover repeats a commit that was refused, and how often. The others of the group wait meanwhile.
_RELEASE_COMMIT_S = 5.0
_RELEASE_RETRY_S = 0.2
# How late an older commit may still land: the client's own retries of a request take up to two seconds.
_LATE_COMMIT_S = 2.0
_OFFSET_FETCH_TIMEOUT_S = 5.0


class Committer:
    """Event thread only. `serve_commands(wait_s)` lets the other threads' commands run."""

    def __init__(
        self,
        port: GroupPort,
        clock: Clock,
        *,
        machine: MemberMachine,
        report: MemberReport,
        serve_commands: Callable[[float], None],
    ) -> None:
        self._port = port
        self._clock = clock
        self._machine = machine
        self._report = report
        self._serve_commands = serve_commands
        self._pace = Pace(clock, _RETRY_INTERVAL_S)
        self._on_its_way: tuple[CommitItem, ...] = ()
        self._answer_due: Deadline | None = None
        self._doubtful: dict[TopicPartition, CommitItem] = {}
        self._quiet: Deadline | None = None
        self._sent_s = 0.0
        self._refused = False

    @property
    def _answered(self) -> bool:
        return self._answer_due is None or self._answer_due.expired()

    @property
    def _keeps_quiet(self) -> bool:
        return self._quiet is not None and not self._quiet.expired()

    @property
    def free(self) -> bool:
        """Whether no commit is on its way, or may be."""
        return self._answered and not self._doubtful and not self._keeps_quiet

    @property
    def expects_answer(self) -> bool:
        """Whether the answer to a commit may come any moment."""
        return self._answer_due is not None and self._clock.monotonic_s() - self._sent_s < _LATE_ANSWER_S

    def later(self, items: tuple[CommitItem, ...]) -> None:
        """Send a commit without waiting for the answer; while another is on its way, `send_pending` will."""
        # R14: nothing is sent while a commit has no answer
        if items and self.free:
            self._send(items)

    def _send(self, items: tuple[CommitItem, ...]) -> None:
        """Send as much as fits in one request; the rest stays pending in the state machine, or in doubt."""
        self._on_its_way, self._sent_s = requests_of(items)[0], self._clock.monotonic_s()
        self._answer_due = Deadline(self._clock, _ANSWER_TIMEOUT_S)
        self._pace.wait()
        self._port.commit_later(self._on_its_way)

    def answered(self, result: CommitResult) -> CommitResult:
        """Take the answer of the commit that was on its way; return what of it counts.

        The sequence this protects against: the commit of 20 has no answer yet; its partition goes, its next owner
        commits 50, it comes back; then the answer comes, that 20 is in doubt, and 20 would be sent over 50.
        """
        # R16, R17: partitions that left meanwhile are not in it
        mine = {item.partition for item in self._on_its_way}
        self._on_its_way, self._answer_due = (), None
        result = CommitResult(
            acknowledged=tuple(item for item in result.acknowledged if item.partition in mine),
            refused=tuple((item, why) for item, why in result.refused if item.partition in mine or why is Refusal.LOST),
            reason=result.reason,
            error=result.error,
        )
        self._learn(result, self._clock.monotonic_s() - self._sent_s)
        self._refused = bool(result.refused)
        if not self._refused:
            self._pace.hurry()
        return result

    def now(self, items: tuple[CommitItem, ...]) -> CommitResult:
        """Commit and wait for the answer. Only while it is `free`, or in a handover."""
        whole = CommitResult()
        for request in requests_of(items):
            if any(why is not Refusal.NO_TOPIC for _, why in whole.refused):
                # No use in waiting for one answer after the other: not sent, so as clear as a refusal in a rebalance.
                result = CommitResult(refused=tuple((item, Refusal.REBALANCE) for item in request))
            else:
                began_s = self._clock.monotonic_s()
                result = self._port.commit_now(request)
                self._learn(result, self._clock.monotonic_s() - began_s)
            whole = whole.and_also(result)
        return whole

    def _learn(self, result: CommitResult, took_s: float) -> None:
        """Take from a result what may be taken later, and what is clear now."""
        clear = [*result.acknowledged, *(item for item, why in result.refused if why is not Refusal.UNCERTAIN)]
        again = [item for item in clear if self._doubtful.pop(item.partition, None) is not None]
        # R15: the coordinator may still have an older commit to read
        if again or took_s >= _LATE_ANSWER_S:
            self._quiet = Deadline(self._clock, _QUIET_S)
        owned = set(self._machine.partitions())
        self._doubtful |= {
            item.partition: item
            for item, why in result.refused
            # The answer may come when the partition has gone: then the offset is the next owner's.
            # R16: not for partitions of others
            if why is Refusal.UNCERTAIN and item.partition in owned
        }

    def released(self, partitions: Partitions) -> None:
        """Partitions went: their offsets are the next owner's, whatever the answer to a commit on its way will be."""
        for partition in partitions:
            # R17: its offsets are the next owner's
            self._doubtful.pop(partition, None)
        self._on_its_way = tuple(item for item in self._on_its_way if item.partition not in partitions)

    def forget(self) -> None:
        """The client is another one."""
        self._on_its_way, self._answer_due, self._doubtful = (), None, {}

    def send_pending(self) -> None:
        """Send completed offsets that the group may not have: in doubt, refused, or held back by another commit."""
        # R14: nothing is sent while a commit has no answer
        if self._machine.state is MemberState.JOINED and self._answered:
            # R15: offsets with an unknown outcome go first
            items = tuple(self._doubtful.values()) or (self._machine.pending() if self.free else ())
            if items and self._pace.due():
                if self._refused:
                    self._report.retried()
                self._send(items)

    def before_release(self, items: tuple[CommitItem, ...]) -> CommitResult:
        """Commit what a handover commits; return what the group took, and what became of all tries.

        One request, and a few more for what was refused and may yet be taken (a coordinator that moves, a
        connection that was cut). Then the next owner starts at the last committed offset instead: a repeat,
        never a loss, where a revoke that goes on waiting would cost the whole group.
        """
        self._clear_up(items)
        overlap = {item.partition for item in self._on_its_way} & {item.partition for item in items}
        deadline = Deadline(self._clock, _RELEASE_COMMIT_S)
        wanted, whole = items, CommitResult()
        newest = {item.partition: item for item in items}
        while wanted:
            result = self.now(wanted)
            self._machine.offsets_acknowledged(result.acknowledged)
            lost = result.refused_as(Refusal.LOST)
            self._report.answered(result, lost)
            whole = whole.and_also(result)
            wanted = tuple(item for item, why in result.refused if why is not Refusal.NO_TOPIC)
            # R28: bounded
            if lost or result.error or (result.refused and (not wanted or deadline.expired())):
                self._report.uncommitted(result)
                break
            if wanted:
                self._pause()
                self._report.retried()
                # R28: a batch may have completed meanwhile
                wanted = self._newest(wanted)
                newest |= {item.partition: item for item in wanted}
        # R29: an older commit may be accepted after this one
        if overlap and whole.acknowledged:
            self._outlast(tuple(newest.values()))
        return whole

    def _newest(self, items: tuple[CommitItem, ...]) -> tuple[CommitItem, ...]:
        """Return what is complete by now: the batch in flight may end at any time, and older offsets would go back."""
        newer = {item.partition: item for item in self._machine.pending(item.partition for item in items)}
        return tuple(newer.get(item.partition, item) for item in items)

    def _pause(self) -> None:
        """Let commands run until the next try. There is one every few milliseconds: no single one ends the pause."""
        pause = Deadline(self._clock, _RELEASE_RETRY_S)
        while not pause.expired():
            self._serve_commands(_RELEASE_RETRY_S / 10)

    def _clear_up(self, items: tuple[CommitItem, ...]) -> None:
        """Commit once more what is in doubt and older than `items`; then keep quiet for as long as it takes."""
        # R15: offsets with an unknown outcome go first
        older = tuple(
            self._doubtful[item.partition]
            for item in items
            if item.partition in self._doubtful and self._doubtful[item.partition].offset < item.offset
        )
        if older:
            self._report.retried()
            result = self.now(older)
            self._report.answered(result, result.refused_as(Refusal.LOST))
        while items and self._keeps_quiet:
            self._pause()

    def _outlast(self, items: tuple[CommitItem, ...]) -> None:
        """Commit again what an older commit, answered after ours, has moved back."""
        late = Deadline(self._clock, _LATE_COMMIT_S)
        while not late.expired():
            self._pause()
            items = self._newest(items)
            found = self._port.fetch_offsets([item.partition for item in items], _OFFSET_FETCH_TIMEOUT_S)
            held = {partition: group.offset for partition, group in found.items()}
            behind = tuple(i for i in items if (held.get(i.partition, i.offset) or 0) < i.offset)
            if behind:
                self._report.answered(self.now(behind), lost=False)
