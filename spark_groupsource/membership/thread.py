"""Run the membership thread, which owns the member's state machine and the group client.

Spark does not call the source while a batch runs, so this thread does all polling. Other threads post a command and
wait for its answer with a deadline. A signal handler may call `request_stop` only: it sets a plain attribute and takes
no lock.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from spark_groupsource import errors
from spark_groupsource.clock import Clock, StepDeadline
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.membership.member import OFFSET_FETCH_TIMEOUT_S, Member, MemberStatus
from spark_groupsource.membership.port import BatchLog, GroupPort
from spark_groupsource.membership.runner import SYSTEM, Inbox, Runner, Running
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.membership.stopping import StopCause, StopRequest, member_left
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import SourceOffset, TopicPartition
from spark_groupsource.options.model import SourceOptions

T = TypeVar("T")

# Seconds between two checks, by a caller that waits for an answer, that the thread is still alive.
_CALL_STEP_S = 0.5


class MembershipThread:
    """Run one member. `start` begins; `request_stop` and `join` end it."""

    def __init__(
        self,
        options: SourceOptions,
        port: GroupPort,
        clock: Clock,
        log: BatchLog,
        metrics: MetricsLog,
        *,
        runner: Runner = SYSTEM,
    ) -> None:
        self._options = options
        self._clock = clock
        self._runner = runner
        self._commands: Inbox[Callable[[], None]] = runner.inbox()
        self._stop = StopRequest()
        # The bounds of the session timeout. Learned before the member starts.
        self.length = SessionLength(options)
        self._member = Member(
            options,
            port,
            clock,
            log,
            serve_commands=self._serve_commands,
            post=self._commands.put,
            stop=self._stop,
            metrics=metrics,
            length=self.length,
            runner=runner,
        )
        self._thread: Running | None = None

    def __repr__(self) -> str:
        return f"MembershipThread(group={self._options.group_id!r}, {self._member.machine!r})"

    # --- for other threads

    def start(self) -> None:
        """Start the thread, once: it creates the client and waits for a subscription."""
        if not self.is_started:
            self._thread = self._runner.spawn(self._member.run, "groupkafka-member")

    @property
    def is_started(self) -> bool:
        """Whether the thread was started: the member joins, or is in its group, or has left it."""
        return self._thread is not None

    def request_stop(self, cause: StopCause = StopCause.SIGTERM) -> None:
        """Ask the thread to leave the group when the batch in flight is complete, and to end (see `stopping`).

        Safe in a signal handler.
        """
        self._stop.leave_after_batch(cause)

    def stop_now(self) -> None:
        """Ask the thread to commit all completed offsets, leave the group and end."""
        self._stop.leave_now()

    @property
    def stop_cause(self) -> StopCause:
        """Who asked first for the stop."""
        return self._stop.cause

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.requested

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end. Return False if it takes longer than `timeout_s`."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def left_clean(self) -> bool:
        """Whether the member has left and nothing of it is repeated: no batch in flight, all offsets committed.

        Meaningful after the thread's end. True for a member that was never started.
        """
        return self._member.error is None and self._member.status.left_clean

    @property
    def status(self) -> MemberStatus:
        """What the member shows of itself. Read without waiting for its thread."""
        return self._member.status

    @property
    def flight(self) -> FlightBatch | None:
        """The batch that was in flight when the thread ended. Meaningful after that."""
        return self._member.machine.flight

    @property
    def failed(self) -> bool:
        """Whether an error has ended the member."""
        return self._member.error is not None

    def check(self) -> None:
        """Raise the error that ended the member, if one did."""
        self._member.check()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Set the topics of the subscription. The group rebalances when they change."""
        self._call("subscribe", lambda: self._member.subscribe(tuple(sorted(topics))))

    def view(self) -> GroupView:
        """Return a frozen view of the member."""
        return self._call("view", self._member.machine.view)

    def member_id(self) -> str:
        """Return the id by which the coordinator knows the member; empty while it has none."""
        return self._call("member_id", lambda: self._member.member_id)

    def rejoin(self) -> None:
        """Hand over all partitions and join the group again. Returns before that is done."""
        self._call("rejoin", self._member.rejoin)

    def complete(self, end: SourceOffset) -> None:
        """Record that Spark has completed the batch that ends at `end`. Commits owned partitions, only forward.

        A batch that is not in flight changes nothing: its end is in the checkpoint, from which start positions are
        established. The commit log may have reported it before: see `MemberStatus.completed_s`.
        """
        self._call("complete", lambda: self._member.complete(end))

    def discard(self) -> None:
        """Forget a plan that Spark never logged."""
        self._call("discard", self._member.machine.discard)

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float = OFFSET_FETCH_TIMEOUT_S
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the group's offsets of any partitions. Partitions without an answer in time are left out.

        A wait that is longer than the heartbeat interval puts the membership in doubt (rule R67).
        """
        return self._call("fetch_offsets", lambda: self._member.fetch_offsets(partitions, timeout_s))

    def establish(
        self,
        positions: Mapping[TopicPartition, int],
        items: Sequence[CommitItem],
        assignment: int,
        until_s: float = math.inf,
    ) -> bool:
        """Commit `items`, wait until the group has accepted them, then allow planning from `positions`.

        `items` are the positions that the group does not have yet. Returns False if the group has not accepted them, or
        ownership has changed since the positions were looked up, or it is later than `until_s`, in seconds of the boot
        time.
        """
        given = dict(positions), tuple(items), assignment, until_s
        return self._call("establish", lambda: self._member.establish(*given))

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget what is known of partitions' offsets: another member has stored their starts."""
        self._call("forget", lambda: self._member.forget(tuple(partitions)))

    def fix(self, batch: FlightBatch, assignment: int) -> bool:
        """Put a planned batch in flight. Return False if ownership has changed since the plan was made."""
        return self._call("fix", lambda: self._member.fix(batch, assignment))

    def mark(self, batch: FlightBatch) -> None:
        """Replace the commits of the batch in flight, if it ends where `batch` ends: the query has state since."""
        self._call("mark", lambda: self._member.mark(batch))

    def replay(self, batch: FlightBatch) -> None:
        """Put a logged batch that Spark runs again in flight, whether its partitions are owned or not."""
        self._call("replay", lambda: self._member.begin(batch))

    def _call(self, name: str, command: Callable[[], T]) -> T:
        self.check()
        future: Future[T] = Future()

        def run() -> None:
            try:
                # The member may have failed since the caller checked. That error says more than a later one.
                self.check()
                future.set_result(command())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)

        self._commands.put(run)
        # A commit may wait for an unavailable coordinator. The client gives up after the session timeout.
        timeout_s = self._options.session_timeout_s + 60.0
        deadline = StepDeadline(self._clock, timeout_s, 2 * _CALL_STEP_S)
        while not deadline.expired():
            self._runner.wait(future, _CALL_STEP_S)
            if future.done():
                return future.result()
            if self._thread is None or not self._thread.is_alive():
                self.check()
                raise member_left(self._options.group_id, clean=self.left_clean, cause=self._stop.cause)
        raise MembershipError(
            errors.MEMBER_NOT_ANSWERING, command=name, timeout_s=timeout_s, state=self._member.machine.state.name
        )

    # --- the event thread

    def _serve_commands(self, wait_s: float) -> None:
        """Run the commands of other threads; wait for the first one. Event thread only."""
        try:
            command = self._commands.get(timeout=wait_s)
        except queue.Empty:
            return
        while True:
            self._member.proof.notice_gap()
            command()
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
