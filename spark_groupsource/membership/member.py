"""The membership's event loop: leads the client's callbacks and the commands through the state machine.

Duty: carry out what the machine decides: commits, handovers, the wait of a revoke (drain), leaving. It must not know
queues or other threads: `membership/thread.py` runs it and brings it the commands.

A revoke that waits for the batch in flight goes on serving commands, because it is one of them (`complete`) that
ends the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.commits import CommitItem, GroupOffset
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.committer import Committer
from spark_groupsource.membership.events import (
    AssignmentReleased,
    BatchCompleted,
    BatchEvent,
    BatchFixed,
    CommitOffsets,
    DrainExpired,
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
from spark_groupsource.membership.lookout import Lookout
from spark_groupsource.membership.machine import FINAL_STATES, MemberMachine, MemberState
from spark_groupsource.membership.port import BatchLog, CommitResult, GroupPort, Refusal
from spark_groupsource.membership.proof import MembershipProof
from spark_groupsource.membership.reopening import Reopening
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.offsets import SourceOffset, TopicPartition
from spark_groupsource.option_types import OnPartitionsLost, SourceOptions

# How soon the thread notices a rebalance or a stop while it has no command. The client's own thread
# heartbeats, so this bounds only the delay of a handover.
_STEP_S = 0.02
# While the answer to a commit is due any moment: the next batch waits for it.
_ANSWER_STEP_S = 0.001
# How often a waiting revoke or a stop looks at Spark's commit log.
_PROBE_INTERVAL_S = 0.1
# An unanswered fetch of offsets is sent again after this long.
_RETRY_INTERVAL_S = 0.5
_OFFSET_FETCH_TIMEOUT_S = 5.0
# How long a stop waits for the answer to the commit on its way; it then commits once more.
_LAST_ANSWER_S = 2.0


class Member:
    """The event thread's side of one member: owns the state machine and the group client.

    Every method runs on the event thread; nothing here is safe elsewhere. `serve_commands(wait_s)` lets the other
    threads' commands run, `stop_requested()` tells whether to leave.
    """

    def __init__(
        self,
        options: SourceOptions,
        port: GroupPort,
        clock: Clock,
        log: BatchLog,
        *,
        serve_commands: Callable[[float], None],
        stop_requested: Callable[[], bool],
        metrics: MetricsLog,
    ) -> None:
        self._options = options
        self._port = port
        self._clock = clock
        self._log = log
        self._lookout = Lookout(clock, looks=log.is_local)
        self._serve_commands = serve_commands
        self._stop_requested = stop_requested
        self.machine = MemberMachine()
        self._report = MemberReport(options.group_id, self.machine, metrics)
        self.error: BaseException | None = None
        # What the group's leader has this member stand by for.
        self.standby: frozenset[TopicPartition] = frozenset()
        # When a batch in flight was last known to be complete.
        self.completed_s = 0.0
        self._topics: tuple[str, ...] = ()
        self._fetch_pace = Pace(clock, _RETRY_INTERVAL_S)
        self._committer = Committer(
            port, clock, machine=self.machine, report=self._report, serve_commands=serve_commands
        )
        self.proof = MembershipProof(
            options, clock, machine=self.machine, report=self._report, commit=self._committer.now, take=self._take
        )
        self._reopening = Reopening(
            options, port, clock, report=self._report, serve_commands=serve_commands, stop_requested=stop_requested
        )
        # The handover that a revoke waits for, once it is due.
        self._hand_over: HandOver | None = None

    # --- the loop

    def run(self) -> None:
        """1. open, 2. step until stopped, 3. leave."""
        try:
            self._port.open(self)
            self._apply(self.machine.handle(Started()))
            self._report.started()
            self.proof.alive()
            while not self._stop_requested():
                self._step()
            self._leave()
        except BaseException as error:  # noqa: BLE001 - kept for Spark's next call
            self._keep(error)
        finally:
            try:
                self._port.close()
            except BaseException as error:  # noqa: BLE001 - the member has ended either way
                self._report.failed("the group client did not close", error)

    def _step(self) -> None:
        """Do one round: commands, callbacks, what is due."""
        self._serve_commands(_ANSWER_STEP_S if self._committer.expects_answer else self._lookout.wait_s(_STEP_S))
        self.proof.notice_gap()
        if self._reopening.due:
            self._reopen()
            return
        self._port.poll()
        if self.error is not None:
            raise self.error
        self._fetch_offsets()
        if self._committer.free:
            self.proof.prove()
        self._look_out()
        self._committer.send_pending()

    def _fetch_offsets(self) -> None:
        """Fetch the group's offsets of newly assigned partitions."""
        wanted = self.machine.unfetched()
        if wanted and self.machine.state is MemberState.JOINED and self._fetch_pace.due():
            self.machine.offsets_fetched(self._port.fetch_offsets(wanted, _OFFSET_FETCH_TIMEOUT_S))

    def _look_out(self) -> None:
        """Complete the batch in flight as soon as a local commit log has it.

        Not while partitions of it are not owned. The sequence that this protects against: a batch runs again before its
        member has joined, and is complete; then its partitions come, at the old offsets; it is forgotten by now, and
        nobody commits it before the next trigger: a stop or a handover would repeat it.
        """
        flight = self.machine.flight
        if not self._lookout.due(flight) or flight is None:
            return
        owned = set(self.machine.partitions())
        if all(item.partition in owned for item in flight.items):
            self._complete_by(self._log.glance)
        self._lookout.looked()

    # --- commands

    def apply(self, event: BatchEvent) -> None:
        """Take an event of the batch."""
        before = self.machine.flight
        self._apply(self.machine.handle(event))
        if isinstance(event, BatchCompleted) and before is not None and self.machine.flight is None:
            self.completed_s = self._clock.monotonic_s()
            self._report.completed(sum(map(len, before.end.ranges)))

    def fetch_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        """Ask for the group's offsets of any partitions; there is no answer while the client is made anew."""
        if self._reopening.due:
            return {}
        return self._port.fetch_offsets(partitions, _OFFSET_FETCH_TIMEOUT_S)

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join the group for these topics, or change the subscription."""
        if topics and topics != self._topics:
            if not self._reopening.due:
                self._port.subscribe(topics)
            self._topics = topics

    def establish(self, positions: dict[TopicPartition, int], items: tuple[CommitItem, ...], assignment: int) -> bool:
        """Commit start positions and allow planning from them; False when the group would not take them now.

        The sequence that `assignment` protects against: the main thread looks positions up, the partition moves
        to another member that reads on (and perhaps back again), and the old position would be committed over it:
        the coordinator checks the generation, not who owns the partition.
        """
        if self.machine.state is not MemberState.JOINED or self.machine.assignment != assignment:
            return False
        if items:
            if not self._committer.free:
                # It may hold an older offset of the same partition, from an earlier assignment.
                return False
            result = self._committer.now(items)
            self._take(result)
            if result.refused:
                return False
        self.machine.positions_established(positions, items)
        return True

    def forget(self, partitions: Partitions) -> None:
        """Forget positions, so that they are fetched and established anew."""
        self._committer.released(partitions)
        self.machine.positions_forgotten(partitions)
        self._fetch_pace.hurry()

    def fix(self, batch: FlightBatch, assignment: int) -> bool:
        """Put a plan in flight, unless ownership changed since it was made."""
        view = self.machine.view()
        if not view.settled or view.assignment != assignment:
            return False
        self._apply(self.machine.handle(BatchFixed(batch)))
        return True

    # --- effects and commit results

    def _apply(self, effects: tuple[Effect, ...]) -> None:
        """Carry effects out; a handover is left to the revoke that waits for it."""
        for effect in effects:
            match effect:
                case CommitOffsets(items):
                    self._committer.later(items)
                case HandOver():
                    self._hand_over = effect

    def _take(self, result: CommitResult) -> None:
        """Take the answer to a commit."""
        self.machine.offsets_acknowledged(result.acknowledged)
        lost = result.refused_as(Refusal.LOST)
        self._report.answered(result, lost)
        if result.error is not None:
            self._keep(result.error)
        if lost and self.machine.state not in FINAL_STATES:
            self._lose(self.machine.partitions())

    def _lose(self, partitions: Partitions) -> None:
        """Drop partitions that the group took; a client tells it once more after a refused commit has told it."""
        self._committer.released(partitions)
        owned = tuple(partition for partition in partitions if partition in self.machine.partitions())
        repeated = self._report.to_repeat(owned)
        self._apply(self.machine.handle(PartitionsLost(partitions)))
        if owned:
            self._report.lost(owned, repeated)
        if partitions and self._options.on_partitions_lost is OnPartitionsLost.FAIL:
            self._keep(self._report.loss(partitions))

    def _keep(self, error: BaseException) -> None:
        """Keep the first error: Spark's next call raises it."""
        if self.error is None:
            self.error = error
        if self.machine.state not in FINAL_STATES:
            self._apply(self.machine.handle(FatalErrorRaised()))
            if isinstance(error, GroupKafkaError):
                self._report.ended(error)
            else:
                self._report.failed("membership thread failed", error)

    # --- listener: called from inside poll and close

    def on_assigned(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        self._port.accept(partitions)
        if self.machine.state in FINAL_STATES:
            return
        self._apply(self.machine.handle(PartitionsAssigned(partitions)))
        self._reopening.joined()
        self._fetch_pace.hurry()
        if not self._options.subscription.partitions:
            # Who was given partitions by the group has its coordinator; a client tells it later.
            self._report.coordinator(True)
        self._report.assigned(partitions)

    def on_revoked(self, partitions: Partitions) -> None:
        """See `MemberListener`. 1. drain, 2. commit, 3. release: in this order, or records are read twice."""
        if self.machine.state in FINAL_STATES:
            self._port.release(partitions)
            return
        started_s = self._clock.monotonic_s()
        hand_over = self._drain(RevokeStarted(partitions, whole_assignment=not self._port.incremental))
        result = self._committer.before_release(hand_over.items)
        if result.error is not None:
            self._keep(result.error)
        repeated = self._report.to_repeat(partitions)
        self._port.release(partitions)
        self._committer.released(partitions)
        released = AssignmentReleased if hand_over.revoke.whole_assignment else PartitionsReleased
        if self.machine.state in (MemberState.DRAINING, MemberState.STOPPING):
            self._apply(self.machine.handle(released(partitions)))
        if result.refused_as(Refusal.LOST) and self.machine.state not in FINAL_STATES and self.machine.partitions():
            # Others read the kept ones on; until the client tells the loss, too, a batch of them could be planned.
            self._lose(self.machine.partitions())
        self.proof.notice_gap()
        drain_s = self._clock.monotonic_s() - started_s
        self._report.released(hand_over, len(result.acknowledged), repeated, drain_s)

    def on_lost(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        self._port.release(partitions)
        if self.machine.state not in FINAL_STATES:
            self._lose(partitions)

    def on_note(self, standby: Partitions, refusal: str) -> None:
        """See `MemberListener`."""
        self.standby = frozenset(standby)
        self._report.noted(standby, refusal)

    def on_commit_result(self, result: CommitResult) -> None:
        """See `MemberListener`."""
        counted = self._committer.answered(result)
        if self.machine.state not in FINAL_STATES:
            self._take(counted)

    def on_coordinator(self, known: bool) -> None:
        """See `MemberListener`."""
        self._report.coordinator(known)

    def on_error(self, error: GroupKafkaError) -> None:
        """See `MemberListener`."""
        self._keep(error)

    def on_instance_id_unreleased(self) -> None:
        """See `MemberListener`."""
        self._reopening.unreleased()

    def on_renewed(self) -> None:
        """See `MemberListener`."""
        self._reopening.due = True
        if self.machine.state not in FINAL_STATES:
            self._lose(self.machine.partitions())

    # --- drain and leave

    def _drain(self, revoke: RevokeStarted) -> HandOver:
        """Wait until the revoked partitions may go.

        Ends with: the batch in flight complete (a command, or Spark's commit log), the drain deadline, a stop, or
        the partitions lost meanwhile.
        """
        deadline = Deadline(self._clock, self._options.drain_timeout_s)
        next_probe_s = 0.0
        self._hand_over = None
        self._apply(self.machine.handle(revoke))
        self._report.revoking(revoke.partitions)
        while self._hand_over is None:
            if self._stop_requested():
                self._complete_by(self._log.is_complete)
                self._apply(self.machine.handle(StopRequested()))
            elif deadline.expired():
                self._apply(self.machine.handle(DrainExpired()))
            else:
                self._serve_commands(_STEP_S)
                # The kept partitions need the membership: a pause of the process counts here as anywhere.
                self.proof.notice_gap()
                now_s = self._clock.monotonic_s()
                if now_s >= next_probe_s:
                    next_probe_s = now_s + _PROBE_INTERVAL_S
                    self._complete_by(self._log.is_complete)
        return self._hand_over

    def _complete_by(self, is_complete: Callable[[SourceOffset], bool]) -> None:
        """Complete the batch in flight if Spark's commit log has it, going by such a look."""
        flight = self.machine.flight
        if flight is not None and is_complete(flight.end):
            self.apply(BatchCompleted(flight.end, flight.items))

    def _leave(self) -> None:
        """1. look at Spark's commit log, 2. await the commit on its way, 3. commit, 4. leave the group."""
        if self.machine.state in FINAL_STATES:
            return
        self._complete_by(self._log.is_complete)
        self._apply(self.machine.handle(StopRequested()))
        answer = Deadline(self._clock, _LAST_ANSWER_S)
        while not self._committer.free and not answer.expired():
            self._serve_commands(_STEP_S)
            self._port.poll()
        if self.machine.state in FINAL_STATES:
            return
        self._committer.before_release(self.machine.pending())
        self._port.close()
        if self.machine.state not in FINAL_STATES:
            self.machine.handle(Left())
        self._report.left()

    def _reopen(self) -> None:
        """Join again with a new client."""
        self._reopening.run(self)
        self._committer.forget()
        topics, self._topics = self._topics, ()
        self.subscribe(topics)
