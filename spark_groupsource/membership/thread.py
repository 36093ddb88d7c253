"""The membership thread: the one owner of the member's state machine and of the group client.

Spark is silent while a batch runs, so this thread does all polling. Other threads post a command and wait for
its answer with a deadline; a revoke that waits for the batch in flight goes on serving commands, because it is
one of them (`complete`) that ends the wait.

A signal handler may call `request_stop` only: it sets a plain attribute and takes no lock.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.commits import CommitItem, GroupOffset
from spark_groupsource.errors import GroupKafkaError, MembershipError
from spark_groupsource.membership.events import (
    AssignmentReleased,
    BatchCompleted,
    BatchDiscarded,
    BatchFixed,
    CommitOffsets,
    DrainExpired,
    DrainOutcome,
    Effect,
    FatalErrorRaised,
    FlightBatch,
    HandOver,
    Left,
    Partitions,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsReleased,
    RevokeStarted,
    Started,
    StopRequested,
)
from spark_groupsource.membership.machine import FINAL_STATES, GroupView, MemberMachine, MemberState
from spark_groupsource.membership.port import CommitResult, GroupPort, Refusal
from spark_groupsource.offsets import SourceOffset, TopicPartition
from spark_groupsource.options import OnPartitionsLost, SourceOptions

LOG = logging.getLogger("spark_groupsource.membership")

T = TypeVar("T")

# How soon the thread notices a rebalance or a stop while it has no command. The client's own thread
# heartbeats, so this bounds only the delay of a handover.
_STEP_S = 0.02
# How often a waiting revoke or a stop looks at Spark's commit log.
_PROBE_INTERVAL_S = 0.1
# A refused or unanswered commit is sent again after this long.
_RETRY_INTERVAL_S = 0.5
_OFFSET_FETCH_TIMEOUT_S = 5.0
# What a static member may wait for its old session on top of the session timeout (KIP-848).
_UNRELEASED_MARGIN_S = 30.0


class MembershipThread:
    """Runs one member. Start it once; `request_stop` and `join` end it.

    `is_complete(end)` tells whether Spark's commit log records the batch that ends at `end`.
    """

    def __init__(
        self,
        options: SourceOptions,
        port: GroupPort,
        clock: Clock,
        is_complete: Callable[[SourceOffset], bool],
    ) -> None:
        self._options = options
        self._port = port
        self._clock = clock
        self._is_complete = is_complete
        self._machine = MemberMachine()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._error: BaseException | None = None
        # Written by other threads and by a signal handler: a plain attribute, never a lock.
        self._stop_requested = False
        self._topics: tuple[str, ...] = ()
        self._last_step_s = clock.monotonic_s()
        self._next_retry_s = 0.0
        # A static member waits for its old session: by when it must have ended, and whether to try again now.
        self._unreleased: Deadline | None = None
        self._reopen_due = False
        # The handover that a revoke waits for, once it is due.
        self._hand_over: HandOver | None = None
        self._thread = threading.Thread(target=self._run, name="groupkafka-member", daemon=True)

    def __repr__(self) -> str:
        return f"MembershipThread(group={self._options.group_id!r}, {self._machine!r})"

    # --- for other threads

    def start(self) -> None:
        """Start the thread; it makes the client and waits for a subscription."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask the thread to commit what is complete, leave the group and end. Safe in a signal handler."""
        self._stop_requested = True

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested."""
        return self._stop_requested

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False when it takes longer."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise the error that ended the member, if one did."""
        if self._error is not None:
            raise self._error

    def subscribe(self, topics: Sequence[str]) -> None:
        """Set the topics of the subscription; the group rebalances when they change."""
        self._call("subscribe", lambda: self._do_subscribe(tuple(sorted(topics))))

    def view(self) -> GroupView:
        """Return a frozen look at the member."""
        return self._call("view", self._machine.view)

    def complete(self, end: SourceOffset, items: Sequence[CommitItem]) -> None:
        """Record that Spark has completed the batch that ends at `end`; commits what is owned, only forward."""
        self._call("complete", lambda: self._apply(self._machine.handle(BatchCompleted(end, tuple(items)))))

    def discard(self) -> None:
        """Forget a plan that Spark never logged."""
        self._call("discard", lambda: self._apply(self._machine.handle(BatchDiscarded())))

    def fetch_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Ask for the group's offsets of any partitions; those without an answer are left out."""
        return self._call("fetch_offsets", lambda: self._port.fetch_offsets(partitions, _OFFSET_FETCH_TIMEOUT_S))

    def establish(self, positions: Mapping[TopicPartition, int], items: Sequence[CommitItem], assignment: int) -> bool:
        """Commit `items`, wait for the group's acknowledgement, then allow planning from `positions`.

        `items` are the positions that the group does not hold yet. False when the group is rebalancing,
        or when ownership changed since the positions were looked up.
        """
        return self._call("establish", lambda: self._do_establish(dict(positions), tuple(items), assignment))

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget the positions of partitions whose topic was made anew."""
        self._call("forget", lambda: self._do_forget(tuple(partitions)))

    def fix(self, batch: FlightBatch, assignment: int) -> bool:
        """Put a planned batch in flight; False when ownership changed since the plan was made."""
        return self._call("fix", lambda: self._do_fix(batch, assignment))

    def replay(self, batch: FlightBatch) -> None:
        """Put a logged batch that Spark runs again in flight; its partitions may be owned or not."""
        self._call("replay", lambda: self._apply(self._machine.handle(BatchFixed(batch))))

    def _call(self, name: str, command: Callable[[], T]) -> T:
        self.check()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(command())
            except BaseException as error:  # noqa: BLE001 - it belongs to the caller
                future.set_exception(error)

        self._commands.put(run)
        # A commit may wait for a coordinator that is away; the client gives up after the session timeout.
        timeout_s = self._options.session_timeout_s + 60.0
        deadline = Deadline(self._clock, timeout_s)
        while not deadline.expired():
            try:
                return future.result(timeout=0.5)
            except FutureTimeoutError:
                if future.done():
                    # Either the command itself timed out, or it ended just after this wait did.
                    return future.result()
                if not self._thread.is_alive():
                    self.check()
                    break
        raise MembershipError(
            errors.MEMBER_NOT_ANSWERING, command=name, timeout_s=timeout_s, state=self._machine.state.name
        )

    # --- the loop

    def _run(self) -> None:
        """Event thread only. 1. open, 2. step until stopped, 3. leave."""
        try:
            self._port.open(self)
            self._apply(self._machine.handle(Started()))
            self._last_step_s = self._clock.monotonic_s()
            while not self._stop_requested:
                self._step()
            self._leave()
        except BaseException as error:  # noqa: BLE001 - kept for Spark's next call
            self._keep(error)
        finally:
            try:
                self._port.close()
            except BaseException:
                LOG.exception("the group client did not close: group=%s", self._options.group_id)
            self._drop_commands()

    def _step(self) -> None:
        """Event thread only."""
        self._serve_commands(_STEP_S)
        self._notice_gap()
        if self._reopen_due:
            self._reopen()
            return
        self._port.poll()
        if self._error is not None:
            raise self._error
        self._fetch_offsets()
        self._prove_membership()
        self._retry_commits()

    def _serve_commands(self, wait_s: float) -> None:
        """Event thread only."""
        try:
            command = self._commands.get(timeout=wait_s)
        except queue.Empty:
            return
        while True:
            self._notice_gap()
            command()
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return

    def _notice_gap(self) -> None:
        """Event thread only. Doubt the membership after a silence longer than the heartbeat interval.

        The sequence this protects against (zombie planning): the process is stopped (SIGSTOP, a long pause of
        the machine), the session expires, another member gets the partitions and reads on; the process goes on
        and plans once more before its client has noticed anything.
        """
        now_s = self._clock.monotonic_s()
        gap_s, self._last_step_s = now_s - self._last_step_s, now_s
        if gap_s > self._options.heartbeat_interval_s:
            LOG.warning("membership in doubt: group=%s silent_s=%.1f", self._options.group_id, gap_s)
            self._machine.membership_doubted()

    def _prove_membership(self) -> None:
        """Event thread only. A commit that the coordinator takes proves the generation."""
        machine = self._machine
        if machine.proven or machine.state is not MemberState.JOINED or machine.unfetched():
            return
        proof = machine.proof()
        if not proof:
            machine.membership_proven()
            return
        result = self._port.commit_now(proof)
        self._last_step_s = self._clock.monotonic_s()
        if result.acknowledged:
            machine.membership_proven()
        self._take(result)

    def _fetch_offsets(self) -> None:
        """Event thread only."""
        wanted = self._machine.unfetched()
        if wanted and self._machine.state is MemberState.JOINED and self._retry_due():
            fetched = self._port.fetch_offsets(wanted, _OFFSET_FETCH_TIMEOUT_S)
            self._machine.offsets_fetched(fetched)
            if len(fetched) == len(wanted):
                self._next_retry_s = 0.0

    def _retry_commits(self) -> None:
        """Event thread only. Send completed offsets again that the group does not have yet."""
        if self._machine.state is MemberState.JOINED:
            pending = self._machine.pending()
            if pending and self._retry_due():
                self._port.commit_later(pending)

    def _retry_due(self) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_retry_s:
            return False
        self._next_retry_s = now_s + _RETRY_INTERVAL_S
        return True

    # --- commands

    def _do_subscribe(self, topics: tuple[str, ...]) -> None:
        """Event thread only."""
        if topics and topics != self._topics:
            self._port.subscribe(topics)
            self._topics = topics

    def _do_establish(
        self, positions: dict[TopicPartition, int], items: tuple[CommitItem, ...], assignment: int
    ) -> bool:
        """Event thread only.

        The sequence that `assignment` protects against: the main thread looks positions up, the partition moves
        to another member that reads on (and perhaps back again), and the old position would be committed over it:
        the coordinator checks the generation, not who owns the partition.
        """
        if self._machine.state is not MemberState.JOINED or self._machine.assignment != assignment:
            return False
        if items:
            result = self._port.commit_now(items)
            self._take(result)
            if result.refused:
                return False
        self._machine.positions_established(positions)
        return True

    def _do_forget(self, partitions: Partitions) -> None:
        """Event thread only."""
        self._machine.positions_forgotten(partitions)
        self._next_retry_s = 0.0

    def _do_fix(self, batch: FlightBatch, assignment: int) -> bool:
        """Event thread only."""
        view = self._machine.view()
        if not view.settled or view.assignment != assignment:
            return False
        self._apply(self._machine.handle(BatchFixed(batch)))
        return True

    # --- effects and commit results

    def _apply(self, effects: tuple[Effect, ...]) -> None:
        """Event thread only. Carry effects out; a handover is left to the revoke that waits for it."""
        for effect in effects:
            match effect:
                case CommitOffsets(items):
                    self._port.commit_later(items)
                    self._next_retry_s = self._clock.monotonic_s() + _RETRY_INTERVAL_S
                case HandOver():
                    self._hand_over = effect

    def _take(self, result: CommitResult) -> None:
        """Event thread only."""
        self._machine.offsets_acknowledged(result.acknowledged)
        if result.refused_as(Refusal.LOST):
            LOG.warning("commit refused, membership lost: group=%s reason=%s", self._options.group_id, result.reason)
            self._lose(self._machine.partitions())
        elif result.refused:
            LOG.info("commit refused, kept for a retry: group=%s reason=%s", self._options.group_id, result.reason)

    def _lose(self, partitions: Partitions) -> None:
        """Event thread only."""
        self._apply(self._machine.handle(PartitionsLost(partitions)))
        if partitions and self._options.on_partitions_lost is OnPartitionsLost.FAIL:
            names = ", ".join(map(str, partitions[:10]))
            self._keep(
                MembershipError(
                    errors.PARTITIONS_LOST,
                    group=self._options.group_id,
                    count=len(partitions),
                    partitions=names,
                )
            )

    def _keep(self, error: BaseException) -> None:
        """Event thread only. Keep the first error: Spark's next call raises it."""
        if self._error is None:
            self._error = error
            if not isinstance(error, GroupKafkaError):
                LOG.error("membership thread failed", exc_info=error)
        if self._machine.state not in FINAL_STATES:
            self._apply(self._machine.handle(FatalErrorRaised()))

    def _drop_commands(self) -> None:
        """Event thread only. Nobody is left to answer: a waiting caller finds the thread dead."""
        while True:
            try:
                self._commands.get_nowait()
            except queue.Empty:
                return

    # --- listener: called from inside poll and close

    def on_assigned(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        self._port.accept(partitions)
        if self._machine.state in FINAL_STATES:
            return
        self._apply(self._machine.handle(PartitionsAssigned(partitions)))
        self._unreleased = None
        # The group's offsets are fetched at once.
        self._next_retry_s = 0.0
        LOG.info(
            "rebalance: group=%s assigned=%d owned=%d", self._options.group_id, len(partitions),
            len(self._machine.partitions()),
        )  # fmt: skip

    def on_revoked(self, partitions: Partitions) -> None:
        """See `MemberListener`. 1. drain, 2. commit, 3. release: in this order, or records are read twice."""
        if self._machine.state in FINAL_STATES:
            self._port.release(partitions)
            return
        started_s = self._clock.monotonic_s()
        hand_over = self._drain(RevokeStarted(partitions, whole_assignment=not self._port.incremental))
        committed = self._commit_before_release(hand_over.items)
        self._port.release(partitions)
        released = AssignmentReleased if hand_over.revoke.whole_assignment else PartitionsReleased
        if self._machine.state in (MemberState.DRAINING, MemberState.STOPPING):
            self._apply(self._machine.handle(released(partitions)))
        self._notice_gap()
        LOG.info(
            "rebalance: group=%s revoked=%d kept=%d outcome=%s committed=%d drain_ms=%d",
            self._options.group_id, len(partitions), len(self._machine.partitions()),
            hand_over.outcome.name, committed, (self._last_step_s - started_s) * 1000,
        )  # fmt: skip
        if hand_over.outcome is DrainOutcome.DEADLINE:
            LOG.warning(
                "drain deadline passed, the batch in flight is repeated by the next owner: group=%s partitions=%s",
                self._options.group_id, ", ".join(map(str, partitions[:10])),
            )  # fmt: skip

    def on_lost(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        self._port.release(partitions)
        LOG.warning("rebalance: group=%s lost=%d", self._options.group_id, len(partitions))
        if self._machine.state not in FINAL_STATES:
            self._lose(partitions)

    def on_commit_result(self, result: CommitResult) -> None:
        """See `MemberListener`."""
        if self._machine.state not in FINAL_STATES:
            self._take(result)

    def on_error(self, error: GroupKafkaError) -> None:
        """See `MemberListener`."""
        self._keep(error)

    def on_instance_id_unreleased(self) -> None:
        """See `MemberListener`."""
        self._reopen_due = True
        if self._unreleased is None:
            wait_s = self._options.session_timeout_s + _UNRELEASED_MARGIN_S
            LOG.warning(
                "kafka.group.instance.id is held by an old session, waiting up to %.0f s: group=%s instance_id=%s",
                wait_s, self._options.group_id, self._options.instance_id,
            )  # fmt: skip
            self._unreleased = Deadline(self._clock, wait_s)

    # --- drain and leave

    def _drain(self, revoke: RevokeStarted) -> HandOver:
        """Event thread only. Wait until the revoked partitions may go.

        Ends with: the batch in flight complete (a command, or Spark's commit log), the drain deadline, a stop, or
        the partitions lost meanwhile.
        """
        deadline = Deadline(self._clock, self._options.drain_timeout_s)
        next_probe_s = 0.0
        self._hand_over = None
        self._apply(self._machine.handle(revoke))
        while self._hand_over is None:
            if self._stop_requested:
                self._complete_from_log()
                self._apply(self._machine.handle(StopRequested()))
            elif deadline.expired():
                self._apply(self._machine.handle(DrainExpired()))
            else:
                self._serve_commands(_STEP_S)
                # The kept partitions need the membership: a pause of the process counts here as anywhere.
                self._notice_gap()
                now_s = self._clock.monotonic_s()
                if now_s >= next_probe_s:
                    next_probe_s = now_s + _PROBE_INTERVAL_S
                    self._complete_from_log()
        return self._hand_over

    def _complete_from_log(self) -> None:
        """Event thread only. Complete the batch in flight if Spark's commit log has it."""
        flight = self._machine.view().flight
        if flight is not None and self._is_complete(flight.end):
            self._apply(self._machine.handle(BatchCompleted(flight.end, flight.items)))

    def _commit_before_release(self, items: tuple[CommitItem, ...]) -> int:
        """Event thread only. Returns how many offsets the group took.

        A refusal is not repeated here: the next owner starts at the last committed offset instead (a repeat,
        never a loss), and a revoke that goes on waiting would cost the whole group.
        """
        if not items:
            return 0
        result = self._port.commit_now(items)
        self._machine.offsets_acknowledged(result.acknowledged)
        if result.refused:
            LOG.warning(
                "handed over uncommitted: group=%s partitions=%d reason=%s",
                self._options.group_id, len(result.refused), result.reason,
            )  # fmt: skip
        return len(result.acknowledged)

    def _leave(self) -> None:
        """Event thread only. 1. look at Spark's commit log, 2. commit, 3. leave the group."""
        if self._machine.state in FINAL_STATES:
            return
        self._complete_from_log()
        self._apply(self._machine.handle(StopRequested()))
        self._commit_before_release(self._machine.pending())
        self._port.close()
        if self._machine.state not in FINAL_STATES:
            self._machine.handle(Left())
        LOG.info("left: group=%s", self._options.group_id)

    def _reopen(self) -> None:
        """Event thread only. Make the client anew until the old session of this instance id has ended."""
        self._port.close()
        self._serve_commands(1.0)
        if self._unreleased is not None and self._unreleased.expired():
            raise MembershipError(
                errors.INSTANCE_ID_IN_USE,
                value=self._options.instance_id,
                group=self._options.group_id,
                reason="its session did not end in time",
            )
        self._reopen_due = False
        self._port.open(self)
        topics, self._topics = self._topics, ()
        self._do_subscribe(topics)
