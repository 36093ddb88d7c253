"""Run the member's event loop: pass the client's callbacks and the commands to the state machine.

Carries out what the machine decides: commits, handovers, the wait of a revoke (drain), leaving. It must not know queues
or other threads: `membership/thread.py` runs it and brings it the commands.

A revoke that waits for the batch in flight serves commands meanwhile, because one of them (`complete`) ends the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.client_renewal import ClientRenewal
from spark_groupsource.membership.committer import Committer
from spark_groupsource.membership.completion import LAST_CHECK_S, CompletionWatch
from spark_groupsource.membership.context import MemberContext
from spark_groupsource.membership.events import DrainOutcome, FlightBatch, GroupEvent, HandOver, Partitions
from spark_groupsource.membership.liveness import MembershipProof
from spark_groupsource.membership.machine import FINAL_STATES, MemberMachine, MemberState
from spark_groupsource.membership.port import BatchLog, CommitResult, GroupPort, Refusal
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.membership.runner import Runner
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.membership.stopping import StopRequest
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import SourceOffset, TopicPartition
from spark_groupsource.options.model import OnPartitionsLost, SourceOptions

# Maximum seconds until the thread notices a rebalance or a stop while it has no command. The client's own thread sends
# heartbeats, so this limits only the delay of a handover.
_STEP_S = 0.02
# Seconds, while the answer to a commit may come at any moment: the next batch waits for it.
_ANSWER_STEP_S = 0.001
# Seconds after which an unanswered offset fetch is sent again.
_RETRY_INTERVAL_S = 0.5
OFFSET_FETCH_TIMEOUT_S = 5.0
# Seconds that a member waits for the answer to a commit under way before its client closes. It then commits once more.
_LAST_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """What other threads may read of a member at any time. The event thread replaces it as a whole.

    - `standby`: the standby partitions that the group's leader gave this member.
    - `assignment_refused`: whether the strategy of the group's leader could not assign partitions in the last round.
    - `lost_answers`: how many answers of the coordinator have come too late for the client, and are lost.
    - `coordinator_known`: whether the client knows the group's coordinator.
    - `completed_s`: when the last batch was known to be complete, in seconds of the monotonic clock.
    - `behind_since_s`: when the first batch was complete whose end the group has not accepted; meaningful while there
      is one.
    - `left_clean`: whether nothing was in flight when the member left, and all offsets were committed.
    """

    standby: frozenset[TopicPartition] = frozenset()
    assignment_refused: bool = False
    lost_answers: int = 0
    coordinator_known: bool = False
    completed_s: float = 0.0
    behind_since_s: float = 0.0
    left_clean: bool = True


class Member:
    """Run one member on the event thread. Owns the state machine and the group client.

    Every method runs on the event thread; only `check` is safe elsewhere. `serve_commands(wait_s)` runs the commands
    of other threads, and `post(command)` adds one. `stop` has the request to leave.
    """

    def __init__(
        self,
        options: SourceOptions,
        port: GroupPort,
        clock: Clock,
        log: BatchLog,
        *,
        serve_commands: Callable[[float], None],
        post: Callable[[Callable[[], None]], object],
        stop: StopRequest,
        metrics: MetricsLog,
        length: SessionLength,
        runner: Runner,
    ) -> None:
        self._options = options
        self._port = port
        self._clock = clock
        self._serve_commands = serve_commands
        self._stop = stop
        # Set when a stop begins to wait for the batch in flight: another batch does not prolong the wait.
        self._stop_wait: Deadline | None = None
        self.machine = MemberMachine()
        self._completion = CompletionWatch(
            log, clock,
            flight=lambda: self.machine.flight, post=post, serve_commands=serve_commands,
            on_complete=self._complete_by_log, runner=runner,
        )  # fmt: skip
        self._report = MemberReport(options.group_id, self.machine, metrics)
        context = MemberContext(options, port, clock, self.machine, self._report, length, serve_commands)
        self.error: BaseException | None = None
        self.status = MemberStatus()
        self._topics: tuple[str, ...] = ()
        self._fetch_pace = Pace(clock, _RETRY_INTERVAL_S)
        self._committer = Committer(context)
        self.proof = MembershipProof(context, self._committer.now, self._handle_answer, self._join_after_loss)
        self._renewal = ClientRenewal(context, self._may_leave)
        # When the batch in flight was fixed: option maxBatchMs counts from then on.
        self._fixed_s = 0.0
        # The batch for which the partitions were given up. The member is in no group until this batch has ended.
        self._given_up: FlightBatch | None = None
        # The generation of the newest assignment, and that of a revoke which such an assignment has yet to follow.
        self._assigned_in = self._revoked_in = b""
        # Whether the client takes part in no rebalance any more (rule R117).
        self._misses_rebalances = False

    # --- the loop

    def run(self) -> None:
        """Run the member: 1. open the client, 2. step until stopped, 3. leave."""
        try:
            self._port.open(self)
            self.machine.handle(GroupEvent.STARTED)
            self._report.started()
            self.proof.measure_gap_s()
            while not self._may_leave():
                self._step()
            self._leave()
        except BaseException as error:  # noqa: BLE001 - kept for Spark's next call
            self._keep(error)
        finally:
            try:
                self._port.close()
            except BaseException as error:  # noqa: BLE001 - the member has ended either way
                self._report.failed("the group client did not close", error)
            self._completion.close()

    def _step(self) -> None:
        """Run one round: commands, callbacks, and what is due.

        Guards against (rule R31):
        1. A batch is in flight. Its sink hangs for hours.
        2. The member keeps sending heartbeats. Nobody reads its partitions, however many other members there are.
        """
        self._serve_commands(_ANSWER_STEP_S if self._committer.expects_answer else self._completion.wait_s(_STEP_S))
        self.proof.notice_gap()
        if self._is_out_of_the_group:
            self._completion.check(waits=True)
            return
        self.check()
        if self._renewal.due:
            self._renew_client()
            return
        self._port.poll()
        # R117: a new client takes part again. A client that closes sends no heartbeats while it waits for a batch.
        if self._misses_rebalances and not self._flight_is_awaited():
            self.rejoin()
            return
        # R31: others can read them meanwhile
        if self.machine.state is MemberState.JOINED and self.machine.owned_partitions() and self._takes_too_long():
            self._give_up()
            return
        self.check()
        self._fetch_for_assigned()
        if self._committer.free:
            self.proof.prove()
        self._check_completion()
        self._committer.send_pending()

    def check(self) -> None:
        """Raise the error that ended the member, if one did. Safe on any thread."""
        if self.error is not None:
            raise self.error

    def _fetch_for_assigned(self) -> None:
        """Fetch the group's offsets of newly assigned partitions."""
        wanted = self.machine.unfetched()
        if wanted and self.machine.state is MemberState.JOINED and self._fetch_pace.due():
            self.machine.offsets_fetched(self._port.fetch_offsets(wanted, OFFSET_FETCH_TIMEOUT_S))

    def _fetch_for_release(self, partitions: Partitions) -> None:
        """Fetch the group's offsets without which completed offsets are not committed before a release.

        Guards against (rule R77):
        1. A member loses its partition while the batch [0, 100) is in flight. The batch completes.
        2. The partition comes back. The next plan would commit 100 as its start position.
        3. Before that plan the group revokes the partition, or the query stops or fails.
        4. The next owner starts at the group's offset, 0, and repeats the batch.
        """
        if self.machine.state is not MemberState.JOINED:
            return
        # R77: the group may not have the end of its batch
        if wanted := self.machine.unfetched_of_batches(partitions):
            self.machine.offsets_fetched(self._port.fetch_offsets(wanted, OFFSET_FETCH_TIMEOUT_S))

    def _check_completion(self) -> None:
        """Complete the batch in flight as soon as Spark's commit log has it."""
        waits = self._stop_wait is not None or self._misses_rebalances or self._is_overdue()
        self._completion.check(waits=waits)

    def _complete_by_log(self, end: SourceOffset) -> None:
        """Complete the batch that ends at `end`, because the commit log has it. The answer may be late (rule R25).

        Guards against (rule R25, a late answer of the commit log):
        1. The store of the checkpoint hangs while it is asked about batch N.
        2. Spark's trigger reports that batch N is complete. Batch N+1 is in flight.
        3. The answer arrives: complete. If it counted for N+1, its end would be committed before Spark has written it.
        """
        flight = self.machine.flight
        # R25: the answer may be about an earlier batch
        if self.machine.state not in FINAL_STATES and flight is not None and flight.end == end:
            self._complete(end)

    # --- a batch that takes too long

    @property
    def _is_out_of_the_group(self) -> bool:
        """Whether the batch for which the partitions were given up has not ended yet."""
        return self._given_up is not None and self._given_up is self.machine.flight and self.error is None

    def _is_overdue(self) -> bool:
        """Return whether the batch in flight takes longer than option maxBatchMs allows, as far as is known."""
        longest_s = self._options.max_batch_s
        if longest_s is None or self.machine.flight is None:
            return False
        return self._clock.monotonic_s() - self._fixed_s >= longest_s

    def _takes_too_long(self) -> bool:
        """Return whether the batch in flight is overdue, and Spark's commit log does not have it.

        Guards against (rule R31, a completed batch):
        1. A batch is complete. Its checkpoint is in a remote store, which is not checked while nobody waits.
        2. The next trigger is far away. `maxBatchMs` passes.
        3. The partitions would be given up without a commit.
        """
        flight, longest_s = self.machine.flight, self._options.max_batch_s
        if flight is None or longest_s is None or not self._is_overdue():
            return False
        # R31: a batch that is complete costs nothing
        return self._completion.denies(flight.end, self._fixed_s + longest_s)

    def _give_up(self) -> None:
        """Leave the group without committing the batch in flight, until that batch has ended (rule R31).

        1. Commit what earlier batches completed.
        2. Drop the partitions: from here on they are neither committed nor planned.
        3. Leave. A static member does not leave: its partitions move when its session has expired.
        """
        flight, partitions = self.machine.flight, self.machine.owned_partitions()
        self._end_if_refused(self._committer.before_release(self.machine.pending()))
        if self.machine.state is not MemberState.JOINED or self.machine.flight is not flight:
            return
        self._given_up = flight
        self._renewal.due = True
        self._report.gave_up(partitions, self._clock.monotonic_s() - self._fixed_s)
        self._lose(partitions)
        self._port.close()
        self._committer.forget()

    # --- commands

    def begin(self, batch: FlightBatch) -> None:
        """Put a batch in flight."""
        self._fixed_s = self._clock.monotonic_s()
        self.machine.begin(batch)

    def _complete(self, end: SourceOffset) -> None:
        """Complete the batch in flight if it ends at `end`."""
        flight, behind = self.machine.flight, self.machine.pending()
        if due := self.machine.complete(end):
            self._committer.later(due)
        if flight is not None and self.machine.flight is None:
            now_s = self._clock.monotonic_s()
            since_s = self.status.behind_since_s if behind else now_s
            self.status = replace(self.status, completed_s=now_s, behind_since_s=since_s)
            self._report.completed(sum(map(len, flight.end.ranges)), now_s - self._fixed_s)

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the group's offsets of any partitions; nothing while the client is replaced."""
        if self._renewal.due:
            return {}
        return self._port.fetch_offsets(partitions, timeout_s)

    @property
    def member_id(self) -> str:
        """See `GroupPort`; empty while the client is replaced."""
        return "" if self._renewal.due else self._port.member_id

    def complete(self, end: SourceOffset) -> None:
        """Complete the batch in flight if it ends at `end`. Compare `end`, where Spark goes on, with the commit log."""
        self._complete(end)
        self._completion.check_start(end)

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Join the group for these topics, or change the subscription."""
        if topics and topics != self._topics:
            if not self._renewal.due:
                self._port.subscribe(topics)
            self._topics = topics

    def rejoin(self) -> None:
        """Hand over all partitions, leave the group, and join it again with another client, as after a restart."""
        joins = (MemberState.JOINING, MemberState.JOINED, MemberState.REJOINING)
        if self.machine.state not in joins or self._renewal.due:
            return
        self._fetch_for_release(self.machine.owned_partitions())
        self._await_answer()
        # An answer may have ended the member, or have asked for another client.
        if self.machine.state not in joins or self._renewal.due:
            return
        self._renewal.due = True
        self._port.close()
        self._committer.forget()
        if self.machine.state not in FINAL_STATES:
            # Also with option assign, whose partitions are never revoked.
            self.machine.handle(GroupEvent.ASSIGNMENT_ENDED, self.machine.owned_partitions())

    def _join_after_loss(self) -> None:
        """Drop all partitions, because others read them, and join the group again."""
        self._lose(self.machine.owned_partitions())
        self.rejoin()

    def establish(
        self, positions: dict[TopicPartition, int], items: tuple[CommitItem, ...], assignment: int, until_s: float
    ) -> bool:
        """Commit start positions and allow planning from them. Return False if the group has not accepted them.

        `assignment` is the one under which the positions were looked up (rule R2). Nothing is committed after
        `until_s`, in seconds of the boot time.

        Guards against (rule R1):
        1. With `startingOffsets=latest`, a query looks up offset 100 and plans [100, 150).
        2. Its process dies before any commit.
        3. The restarted query looks up `latest` again, which is now 150: [100, 150) is lost.

        Guards against (rule R2):
        1. The main thread looks up the start position 0 of a partition.
        2. The partition moves to another member, which commits 50. Then it comes back.
        3. 0 is committed over 50: the coordinator checks the generation, not the owner of the partition.
        """
        # R105: the owner of such a partition may have stored its start meanwhile
        if self._clock.boottime_s() > until_s:
            return False
        # R2: ownership has changed since the positions were looked up
        if self.machine.state is not MemberState.JOINED or self.machine.assignment != assignment:
            return False
        if items:
            # R14: it waits for the commit under way
            if not self._committer.free:
                # It may hold an older offset of the same partition, from an earlier assignment.
                return False
            result = self._committer.now(items)
            self._handle_answer(result)
            # R1: the group has not accepted them
            if result.refused:
                return False
        self.machine.positions_established(positions, items)
        return True

    def forget(self, partitions: Partitions) -> None:
        """Forget positions, so that they are fetched and established again."""
        self._committer.released(partitions)
        self.machine.positions_forgotten(partitions)
        self._fetch_pace.hurry()

    def fix(self, batch: FlightBatch, assignment: int) -> bool:
        """Put a plan in flight. Return False if ownership has changed since it was made (rule R2).

        Guards against (rule R2, a plan):
        1. The main thread plans [0, 100) of a partition.
        2. The group revokes the partition. Nothing is in flight, so it is released at once.
        3. The next owner reads [0, 100). If the plan was fixed now, both would read it.

        Guards against (a plan before a member joins again, rule R117):
        1. Topics have changed during a drain. Nothing is in flight, and a commit has no answer.
        2. The member waits for the answer before it closes its client. Meanwhile a plan is made.
        3. A closing client waits for that batch without heartbeats. Its session expires, and the batch is repeated.
        """
        if self._misses_rebalances:
            # R117: not with a client that is about to close
            return False
        view = self.machine.view()
        # R2: ownership has changed since the plan was made
        if self._stop.requested or not view.settled or view.assignment != assignment:
            return False
        self.begin(batch)
        return True

    def mark(self, batch: FlightBatch) -> None:
        """Replace the commits of the batch in flight by those of `batch`, unless its partitions were given up."""
        if self._given_up is None:
            self.machine.marked(batch)

    # --- commit results

    def _handle_answer(self, result: CommitResult) -> None:
        """Handle the answer to a commit."""
        self.machine.offsets_acknowledged(result.acknowledged)
        self.machine.topic_unknown(item.partition for item, why in result.refused if why is Refusal.NO_TOPIC)
        self._report.answered(result)
        self._end_if_refused(result)

    def _end_if_refused(self, result: CommitResult) -> None:
        """End the member if a commit was refused for good. Drop its partitions if the membership is lost."""
        # R19: refused for good, so Spark's next call raises it
        if result.error is not None:
            self._keep(result.error)
        # R19: lost, the only answer for which partitions are dropped
        if result.lost and self.machine.state not in FINAL_STATES:
            self._lose(self.machine.owned_partitions())

    def _lose(self, partitions: Partitions) -> None:
        """Drop lost partitions. A loss may be reported twice: by a refused commit, and later by the client.

        Guards against:
        1. A topic is deleted. A cooperative client reports its partitions as lost, and keeps all others.
        2. It joins again only if it is the leader, and the leader only if it subscribes to the topic.
        3. A member that waited for the next assignment would never read what it has.
        """
        owned = tuple(partition for partition in partitions if partition in self.machine.owned_partitions())
        repeated = self._report.to_repeat(owned)
        if len(owned) < len(self.machine.owned_partitions()):
            self._committer.released(partitions)
            self.machine.handle(GroupEvent.PARTITIONS_RELEASED, partitions)
        else:
            self._committer.membership_ended(partitions)
            self.machine.handle(GroupEvent.ASSIGNMENT_ENDED, partitions)
        if owned:
            self._report.lost(owned, repeated)
        if partitions and self._options.on_partitions_lost is OnPartitionsLost.FAIL:
            self._keep(self._report.loss(partitions))

    def _keep(self, error: BaseException) -> None:
        """Keep the first error: Spark's next call raises it."""
        if self.error is None:
            self.error = error
        if self.machine.state not in FINAL_STATES:
            self.machine.handle(GroupEvent.FATAL_ERROR_RAISED)
            if isinstance(error, GroupKafkaError):
                self._report.ended(error)
            else:
                self._report.failed("membership thread failed", error)

    # --- listener: called from inside poll and close

    def on_assigned(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        # Where other members wait for this one, its client may be in the next generation once it has accepted.
        generation = self._port.generation
        self._port.accept(partitions)
        # R31: a client that closes, because a batch takes too long, reports an assignment that was on its way
        if self.machine.state in FINAL_STATES or self._given_up is not None:
            return
        self._compare_generations(generation)
        if not self._port.incremental:
            self._drop_replaced()
        self.machine.handle(GroupEvent.PARTITIONS_ASSIGNED, partitions)
        self._renewal.joined()
        self._fetch_pace.hurry()
        if self._options.is_member:
            # A member with an assignment has found its coordinator; the client reports that later.
            self.on_coordinator(True)
        self._report.assigned(partitions)

    def _drop_replaced(self) -> None:
        """Drop the partitions of an eager assignment that another one follows: the client has only those of the last.

        Guards against:
        1. An eager member drains a long batch. A topic gets a partition: the client joins at once (rule R85), and
           queues the assignment behind the revoke.
        2. A topic gets a partition once more. The client joins again, revokes nothing, and queues another assignment.
        3. The drain ends, and both are reported. With those of both, the member would read another member's partitions.
        """
        replaced = self.machine.owned_partitions()
        if replaced:
            repeated = self._report.to_repeat(replaced)
            self._committer.released(replaced)
            self.machine.handle(GroupEvent.ASSIGNMENT_ENDED, replaced)
            self._report.released(replaced, HandOver((), DrainOutcome.COMPLETE), 0, repeated, 0.0)

    def _compare_generations(self, generation: bytes) -> None:
        """Find out that the client has dropped a rebalance of which it had begun to revoke partitions.

        The answer to a SyncGroup that takes partitions away makes the client revoke them, and then assign what the
        answer adds, in the same generation. No such assignment follows a revoke after a change of the subscription,
        which comes in the generation of the assignment before it.

        Guards against (rule R117):
        1. A rebalance takes a partition from a cooperative member, which drains.
        2. A topic gets a partition. The client joins at once, and drops the rebalance under way. It keeps the
           assignment that was to follow the revoke (librdkafka 2.16, `rkcg_rebalance_incr_assignment`).
        3. With that it seems to be in a rebalance, and joins no other one. A third member comes.
        4. The group waits for `kafka.max.poll.interval.ms` and removes it, and it never joins again.
        """
        # R117: the revoke's own assignment never came. A closing client has no generation, and takes part no more
        if generation and self._revoked_in not in (b"", generation):
            self._misses_rebalances = True
            self._report.misses_rebalances()
        self._assigned_in, self._revoked_in = generation, b""

    def on_revoked(self, partitions: Partitions) -> None:
        """See `MemberListener`. 1. drain, 2. commit, 3. release: in another order records are read twice.

        Guards against (rule R27):
        1. A session expires while a handover waits. Other members read the partitions on.
        2. The commit of the handover is refused with UNKNOWN_MEMBER_ID. The client reports the loss only later.
        3. Between the two a batch of the kept partitions could be planned: records are repeated.
        """
        if self.machine.state in FINAL_STATES or self._given_up is not None:
            # Nothing is left to hand over. A client that leaves revokes its partitions all the same.
            self._release_revoked(partitions)
            return
        started_s, generation = self._clock.monotonic_s(), self._port.generation
        # R117: the oldest revoke of a rebalance counts, until an assignment comes
        if self._port.incremental and not self._revoked_in and generation != self._assigned_in:
            self._revoked_in = generation
        self._fetch_for_release(partitions)
        hand_over = self._drain(partitions)
        result = self._committer.before_release(hand_over.items, lambda: self._port.generation != generation)
        if result.error is not None:
            self._keep(result.error)
        repeated = self._report.to_repeat(partitions)
        self._release_revoked(partitions)
        self._committer.released(partitions)
        released = GroupEvent.PARTITIONS_RELEASED if self._port.incremental else GroupEvent.ASSIGNMENT_ENDED
        if self.machine.state in (MemberState.DRAINING, MemberState.STOPPING):
            self.machine.handle(released, partitions)
        # R27: the kept partitions are lost, too
        if result.lost and self.machine.state not in FINAL_STATES and self.machine.owned_partitions():
            # Other members read them. Until the client reports the loss, too, a batch of them could be planned.
            self._lose(self.machine.owned_partitions())
        self.proof.notice_gap()
        drain_s = self._clock.monotonic_s() - started_s
        self._report.released(partitions, hand_over, len(result.acknowledged), repeated, drain_s)

    def _release_revoked(self, partitions: Partitions) -> None:
        """Give revoked partitions up. A member that ends with that stays out, unless it is static (rule R111).

        Guards against (rule R111, an eager revoke):
        1. A third member joins. An eager group revokes the partitions of all members; the first one drains for long.
        2. The second was asked to stop. It hands over and releases its partitions, so its client sends a JoinGroup.
        3. Its client closes. The LeaveGroup waits behind the JoinGroup: the stop takes 5 s, until the client gives up.
        4. The first one has drained. The member that is gone gets partitions, until the LeaveGroup is read, too.
        """
        # Without partitions it waits for no batch.
        ends = self.error is not None or self._stop.requested
        # R111: an eager client joins again as soon as the partitions are released
        if ends and not self._port.incremental and not self._options.instance_id:
            self._port.stay_out()
        self._port.release(partitions)

    def on_lost(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        if self.machine.state not in FINAL_STATES:
            self._lose(partitions)
        # R111: otherwise its client joins again as soon as the partitions are released
        if self.error is not None or (self._stop.requested and not self._flight_is_awaited()):
            self._port.stay_out()
        self._port.release(partitions)

    def on_note(self, standby: Partitions, refusal: str) -> None:
        """See `MemberListener`."""
        self.status = replace(self.status, standby=frozenset(standby), assignment_refused=bool(refusal))
        self._report.noted(standby, refusal)

    def on_commit_result(self, result: CommitResult) -> None:
        """See `MemberListener`."""
        counted = self._committer.answered(result)
        if self.machine.state not in FINAL_STATES:
            self._handle_answer(counted)

    def on_coordinator(self, known: bool) -> None:
        """See `MemberListener`."""
        self.status = replace(self.status, coordinator_known=known)
        self._report.coordinator(known)

    def on_answer_lost(self) -> None:
        """See `MemberListener`."""
        self.status = replace(self.status, lost_answers=self.status.lost_answers + 1)

    def on_error(self, error: GroupKafkaError) -> None:
        """See `MemberListener`."""
        self._keep(error)

    def on_instance_id_unreleased(self) -> None:
        """See `MemberListener`."""
        self._renewal.unreleased()

    def on_unusable(self) -> None:
        """See `MemberListener`."""
        self._renewal.due = True
        if self.machine.state not in FINAL_STATES:
            self._lose(self.machine.owned_partitions())

    # --- drain and leave

    def _drain(self, partitions: Partitions) -> HandOver:
        """Wait until the revoked partitions may be released.

        The wait ends when the batch in flight is complete (a command, or Spark's commit log), drainTimeoutMs or
        maxBatchMs has passed and the log does not have the batch, the member stops, or the partitions are lost.
        """
        deadline = Deadline(self._clock, self._options.drain_timeout_s)
        self.machine.handle(GroupEvent.REVOKE_STARTED, partitions)
        self._report.revoking(partitions)
        while (hand_over := self.machine.hand_over()) is None:
            if self._stop_is_due():
                self._completion.check_last()
                if self.machine.hand_over() is None:
                    self.machine.handle(GroupEvent.STOP_REQUESTED)
            elif self._takes_too_long() or self._drain_deadline_passed(deadline):
                self.machine.handle(GroupEvent.DRAIN_EXPIRED)
            else:
                self._serve_commands(_STEP_S)
                # A pause of the process during the drain puts the membership of the kept partitions in doubt, too.
                self.proof.notice_gap()
                self._completion.check(waits=True)
        return hand_over

    def _drain_deadline_passed(self, deadline: Deadline) -> bool:
        """Return whether the drain deadline has passed, and Spark's commit log does not have the batch (rule R103).

        The last check begins after the deadline. It takes `LAST_CHECK_S` at most, and no more than half of the time
        that the group still waits.

        Guards against (rule R103):
        1. The checkpoint is in a store that takes a while to answer. A check begins.
        2. Spark records the batch as complete. The check does not see it.
        3. The deadline passes before the next check has its answer: the batch is handed over without a commit.
        4. The next owner repeats the batch.
        """
        if not deadline.expired():
            return False
        flight = self.machine.flight
        spare_s = self._options.rebalance_timeout_s - self._options.drain_timeout_s
        if flight is None or deadline.passed_s() >= min(LAST_CHECK_S, spare_s / 2):
            return True
        # R103: a batch that is complete is not repeated
        return self._completion.denies(flight.end, deadline.ends_s)

    def _flight_is_awaited(self) -> bool:
        """Return whether there is a batch in flight for which a stop waits: one that this member can still commit."""
        flight = self.machine.flight
        # A replayed batch may be in flight before its partitions have arrived.
        joins = self.machine.state is MemberState.JOINING
        return flight is not None and (joins or self.machine.in_flight(self.machine.owned_partitions()) > 0)

    def _may_leave(self) -> bool:
        """Return whether a stop was requested, and does not wait for a batch in flight (see `stopping`)."""
        if not self._stop.requested:
            return False
        waits = self._flight_is_awaited()
        if waits and not self._stop.at_once and self._stop_wait is None:
            self._stop_wait = Deadline(self._clock, self._options.drain_timeout_s)
            self._report.waits_for_batch(self._stop.cause, self._options.drain_timeout_s)
        return not waits or self._stop_is_due()

    def _stop_is_due(self) -> bool:
        """Return whether a requested stop does not wait, or not any longer, for the batch in flight."""
        return self._stop.at_once or (self._stop_wait is not None and self._stop_wait.expired())

    def _leave(self) -> None:
        """Leave: 1. check Spark's commit log, 2. await the commit under way, 3. commit, 4. leave the group."""
        self.check()
        self._completion.check_last()
        self.check()
        outcome = self._outcome_of_leaving()
        self._fetch_for_release(self.machine.owned_partitions())
        self.machine.handle(GroupEvent.STOP_REQUESTED)
        self._await_answer()
        self.check()
        self._committer.before_release(self.machine.pending())
        clean = outcome is DrainOutcome.COMPLETE and self._group_has_all_ends()
        self.status = replace(self.status, left_clean=clean)
        self._port.close()
        if self.machine.state not in FINAL_STATES:
            self.machine.handle(GroupEvent.LEFT)
        self._report.left(outcome)

    def _await_answer(self) -> None:
        """Wait for the answer to the commit under way: a client that closes delivers none."""
        answer = Deadline(self._clock, _LAST_ANSWER_S)
        while not (self._committer.free or self._renewal.due or answer.expired()):
            self._serve_commands(_STEP_S)
            self._port.poll()

    def _outcome_of_leaving(self) -> DrainOutcome:
        """Return how the wait of a stop for the batch in flight has ended."""
        if self.machine.flight is None:
            return DrainOutcome.COMPLETE
        if self._stop.at_once:
            return DrainOutcome.STOPPED
        return DrainOutcome.DEADLINE if self._flight_is_awaited() else DrainOutcome.LOST

    def _group_has_all_ends(self) -> bool:
        """Return whether the group has the ends of all completed batches, so that nothing of them is repeated.

        Guards against (rule R86, an end that was not committed):
        1. A query dies inside a batch and starts again. Spark runs the batch again, and it completes while the member
           still waits for the dead one's session to end.
        2. The query is asked to stop. The member owns no partition, so nothing is committed.
        3. `groupkafka stop --wait` reports no repeat, but the next owner repeats the batch.
        """
        if self.machine.is_behind:
            return False
        # R86: also those of partitions that the member does not own
        wanted = self.machine.unaccepted()
        return not wanted or self.machine.has_passed(self.fetch_offsets(wanted, _LAST_ANSWER_S))

    def _renew_client(self) -> None:
        """Join again with a new client, unless the member leaves meanwhile."""
        self._given_up, self._revoked_in, self._misses_rebalances = None, b"", False
        self._renewal.run(self)
        self._committer.forget()
        topics, self._topics = self._topics, ()
        self.subscribe(topics)
