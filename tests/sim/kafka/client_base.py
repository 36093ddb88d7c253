"""What the clients of all protocols share: `GroupPort`, as `LibrdkafkaGroup` on librdkafka has it.

Beside each rule is the line of librdkafka that it copies, at commit 4c3b017c3de8d9c10de12b9eec0ea688e8d5787d (July
2026, after 2.15.0), in rdkafka_cgrp.c unless another file is named; or the method of the product's `LibrdkafkaGroup`.
The client's main thread is a set of events of the world: `_tick` is its loop. Callbacks run inside `poll` and `close`,
on the product's membership task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from spark_groupsource import errors
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.backends.commit_errors import DENIED, classify_refusal
from spark_groupsource.membership.port import CommitResult, MemberListener
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.connection import Connection
from tests.sim.kafka.coordinator import Coordinator, short, short_items
from tests.sim.kafka.protocol import CommitAnswer, Error, FetchAnswer, OffsetCommit, OffsetFetch
from tests.sim.world import Process, ProcessDied, Ticket, World

if TYPE_CHECKING:
    from tests.sim.watch import Watch

# Interval of the main loop: of the timer of max.poll.interval.ms (4821).
_TICK_S = 0.5
# LibrdkafkaGroup: topic.metadata.refresh.interval.ms and statistics.interval.ms.
_METADATA_S, _STATISTICS_S = 5.0, 2.0
# socket.timeout.ms; rdkafka_proto.h:47 RD_KAFKA_REQUEST_DEFAULT_RETRIES; retry.backoff.ms.
_SOCKET_TIMEOUT_S, _RETRIES, _RETRY_S = 60.0, 2, 0.1

Partitions = set[TopicPartition]
_Done = Callable[[Error | None, CommitAnswer | None], None]


class JoinState(Enum):
    """`rd_kafka_cgrp_join_state` (rdkafka_cgrp.h:89)."""

    INIT = "init"
    WAIT_JOIN = "wait-join"
    WAIT_METADATA = "wait-metadata"
    WAIT_SYNC = "wait-sync"
    WAIT_ASSIGN_CALL = "wait-assign-call"
    WAIT_UNASSIGN_CALL = "wait-unassign-call"
    WAIT_UNASSIGN_TO_COMPLETE = "wait-unassign-to-complete"
    WAIT_INCR_UNASSIGN_TO_COMPLETE = "wait-incr-unassign-to-complete"
    STEADY = "steady"


CALLS = frozenset((JoinState.WAIT_ASSIGN_CALL, JoinState.WAIT_UNASSIGN_CALL))
_REBALANCING = CALLS | {
    JoinState.WAIT_SYNC,
    JoinState.WAIT_UNASSIGN_TO_COMPLETE,
    JoinState.WAIT_INCR_UNASSIGN_TO_COMPLETE,
}


class _Commit:
    """A commit under way."""

    __slots__ = ("deadline", "done", "items", "request", "retries")

    def __init__(
        self, items: tuple[CommitItem, ...], done: Callable[[Error | None, CommitAnswer | None], None]
    ) -> None:
        self.items, self.done = items, done
        self.request: OffsetCommit | None = None
        self.retries = 0
        # When it is given up that waits for the coordinator; None before it has waited.
        self.deadline: float | None = None


class GroupClient:
    """A group client of one process. It may be opened again after `close`."""

    incremental = True

    def __init__(
        self, world: World, coordinator: Coordinator, process: Process, query_name: str, instance_id: str | None
    ) -> None:
        self.world, self._coordinator, self.process = world, coordinator, process
        self.settings = coordinator.settings
        self.query_name, self._instance_id = query_name, instance_id
        self._cluster = coordinator.cluster
        # What watches the calls of the query.
        self.watch: Watch | None = None
        self._listener: MemberListener | None = None
        self._life = 0
        self._cut_until = 0.0
        # What the application has accepted (rd_kafka_assignment_t).
        self.assigned: Partitions = set()
        # How many rebalance callbacks have ended.
        self.callbacks = 0
        self.running = ""
        self._connection: Connection | None = None
        self._is_closing = False
        self._reset()
        process.on_continue.append(self._continued)

    def _reset(self) -> None:
        """Set the state of a new client."""
        self._queue: deque[tuple[str, Any]] = deque()
        # Whether the running callback has called `accept` or `release`.
        self._has_answered = False
        self._waiting: Ticket | None = None
        self._callback_error: BaseException | None = None
        self.member_id = ""
        self.generation_id = -1
        self._state = JoinState.INIT
        self._topics: tuple[str, ...] | None = None
        self._next_topics: tuple[str, ...] | None = None
        self._fatal: Error | None = None
        # rkcg_group_assignment: what is assigned as soon as the queued callbacks are served. None: nothing at all.
        self._group_assignment: Partitions | None = None
        # rkcg_rebalance_incr_assignment: what is assigned after the revoke under way.
        self._to_assign: Partitions | None = None
        self._rejoins_after = False
        self._is_lost = False
        self._leaves_on_unassign = self._waits_for_leave = self._terminates = False
        # rkcg_next_unsubscribe: a classic client unsubscribes when the rebalance is over.
        self._unsubscribes_next = False
        self._heartbeat_in_transit = False
        self._poll_exceeded = self._polls_are_timed = False
        self._last_poll = self._terminated_at = 0.0
        self._beat_at = self._join_at = 0.0
        self._commits = 0
        self._deferred: list[_Commit] = []
        # LibrdkafkaGroup: _joined, _held_as, _is_unusable, _unreleased, _lost_answers.
        self._joined = self._is_unusable = self._is_unreleased = False
        self._held_as = ""
        self._lost_answers = 0

    # --- the protocol's own part

    @property
    def _is_cooperative(self) -> bool:
        """Whether the rebalance protocol in use is COOPERATIVE (175); it is NONE before the first join."""
        raise NotImplementedError

    @property
    def _has_joined(self) -> bool:
        """RD_KAFKA_CGRP_HAS_JOINED (285)."""
        raise NotImplementedError

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort`."""
        raise NotImplementedError

    def stay_out(self) -> None:
        """See `GroupPort`. LibrdkafkaGroup: `consumer.unsubscribe()` in the callback."""
        raise NotImplementedError

    def _unsubscribe(self, *, leave: bool) -> None:
        raise NotImplementedError

    def _serve(self) -> None:
        """Serve the state machine while the coordinator is connected."""
        raise NotImplementedError

    def _rejoin(self, reason: str) -> None:
        raise NotImplementedError

    def _leave(self) -> None:
        raise NotImplementedError

    def _max_poll_exceeded(self) -> None:
        raise NotImplementedError

    def _assignment_done(self) -> None:
        raise NotImplementedError

    def _commit_failed(self, error: Error) -> None:
        """React to the error of a commit, beside reporting it."""
        raise NotImplementedError

    def _metadata_due(self) -> None:
        """React to the timer of the metadata."""

    # --- GroupPort: life

    @property
    def generation(self) -> bytes:
        """See `GroupPort`."""
        return b""

    @property
    def cut_until(self) -> float:
        """The network is cut until that time."""
        return self._cut_until

    @cut_until.setter
    def cut_until(self, until: float) -> None:
        self._cut_until = until
        if self._connection is not None:
            self._connection.cut(until)

    def break_connection(self) -> None:
        """Break the connection to the coordinator."""
        if self._connection is not None:
            self._connection.cut(self.world.now, always=True)

    def open(self, listener: MemberListener) -> None:
        """See `GroupPort`."""
        self._alive()
        self._life += 1
        if self.watch is not None:
            self.watch.opened()
        self._listener = listener
        self.assigned.clear()
        self.running = ""
        self._reset()
        self._connection = connection = Connection(self.world, self._coordinator, self.process, self.query_name)
        connection.cut_until = self._cut_until
        connection.on_up, connection.on_down = self._connected, self._disconnected
        self._last_poll = self.clock()
        self._tick()
        self._repeat(_METADATA_S, self._metadata_due)
        self._repeat(_STATISTICS_S, self._report_statistics)

    def poll(self) -> None:
        """See `GroupPort`. Serves all that is queued (rdkafka.c:5043 rd_kafka_consume0)."""
        self._open()
        if self._unusable():
            return
        while self._queue and self._connection is not None:
            self._run_callback(*self._queue.popleft())
        # rdkafka_int.h:1402 rd_kafka_app_polled
        self._last_poll = self.clock()
        if self._poll_exceeded:
            self._poll_exceeded = False
            self._soon()
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """See `GroupPort`. Serves callbacks until the client has terminated (rdkafka.c:5250)."""
        connection, self._callback_error = self._connection, None
        if connection is None or not self.process.alive:
            return
        self._is_closing = True
        self.world.reached("closing")
        try:
            # rdkafka.c:5183: after a fatal error nothing is revoked, and the group is not left.
            if self._fatal is None:
                self._leave_without_partitions()
                self._terminate()
            while self._fatal is None and not self._is_terminated():
                self._serve_callbacks()
                if not self._is_terminated():
                    self._wait_for_an_event()
            if self._callback_error is not None:
                # LibrdkafkaGroup.close logs it only.
                self.world.saw("a callback failed in close")
                self.world.say(self.query_name, f"callback failed in close: {self._callback_error!r}")
        finally:
            self._is_closing = False
            self._connection = None
            self._life += 1
            connection.close()

    def _serve_callbacks(self) -> None:
        while self._queue:
            self._run_callback(*self._queue.popleft())

    def _wait_for_an_event(self) -> None:
        self._waiting = self.world.ticket()
        self.world.wait(self._waiting, _TICK_S)
        self._waiting = None

    def _leave_without_partitions(self) -> None:
        """LibrdkafkaGroup._leave_without_partitions: only classic cooperative members need it."""

    def _terminate(self) -> None:
        """rd_kafka_cgrp_terminate0 (6331)."""
        self._terminates, self._terminated_at = True, self.clock()
        if self._topics is not None:
            self._unsubscribe(leave=True)
        if self._state not in CALLS:
            self._unassign()
        self._assignment_serve()

    def _is_terminated(self) -> bool:
        """rd_kafka_cgrp_try_terminate (4031)."""
        return self._state not in CALLS and not self._commits and not self._waits_for_leave and not self._queue

    # --- GroupPort: partitions and offsets

    def accept(self, partitions: Iterable[TopicPartition]) -> None:
        """See `GroupPort`."""
        self._open()
        partitions = tuple(partitions)
        self._has_answered = True
        if self._fatal is not None or self._terminates:
            # rd_kafka_cgrp_handle_assign_op (6546): an assign is an unassign now.
            self._unassign_terminating()
        else:
            self.assigned = (self.assigned if self.incremental else set()) | set(partitions)
            self._is_lost = False
            if self._state is JoinState.WAIT_ASSIGN_CALL:
                self._state = JoinState.STEADY
                self._polls_are_timed = True
        if self.watch is not None:
            self.watch.accepted(partitions)
        self._assignment_serve()
        self._joined = True
        if self._instance_id is not None:
            self._held_as = self._held_as or self.member_id

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """See `GroupPort`."""
        self._open()
        self._has_answered = True
        if self._fatal is not None or self._terminates:
            self._unassign_terminating()
        elif not self.incremental:
            self._unassign()
        else:
            # rd_kafka_cgrp_incremental_unassign (4869)
            self.assigned -= set(partitions)
            self._is_lost = False
            if self._state is JoinState.WAIT_UNASSIGN_CALL:
                self._state = JoinState.WAIT_INCR_UNASSIGN_TO_COMPLETE
        if self.watch is not None:
            self.watch.released(self.assigned)
        self._assignment_serve()
        if self._held_as and not self._is_closing and not self.assigned:
            self._held_as = ""

    def _unassign_terminating(self) -> None:
        self._to_assign = None
        if self._state is JoinState.WAIT_ASSIGN_CALL:
            self._state = JoinState.WAIT_UNASSIGN_CALL
        self._unassign()

    def _unassign(self) -> None:
        """rd_kafka_cgrp_unassign (5056)."""
        self.assigned.clear()
        self._is_lost = False
        if self._state is JoinState.WAIT_UNASSIGN_CALL:
            self._state = JoinState.WAIT_UNASSIGN_TO_COMPLETE

    def _assignment_serve(self) -> None:
        """rdkafka_assignment.c:731: an assignment is done when no commit is under way."""
        if self._commits == 0:
            self._assignment_done()
            self._soon()

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """See `GroupPort`."""
        began = self.world.now
        found = self._fetched(partitions, timeout_s)
        if self.watch is not None:
            self.watch.fetched(found)
            self.watch.spent(self.world.now - began)
        return found

    def _fetched(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, GroupOffset]:
        """rdkafka.c:5376 rd_kafka_committed. LibrdkafkaGroup asks no client that closes."""
        connection = self._open()
        if self._is_closing:
            return {}
        deadline = self.world.now + timeout_s
        while self.world.now < deadline:
            if not connection.is_up:
                self.world.sleep(0.05)
                continue
            box: list[FetchAnswer | None] = []
            ticket = self.world.ticket()

            def ended(answer: FetchAnswer | None, box: list[Any] = box, ticket: Ticket = ticket) -> None:
                box.append(answer)
                self.world.wake_soon(ticket)

            request = OffsetFetch(tuple(partitions))
            connection.send(request, _SOCKET_TIMEOUT_S, ended, lambda _, ended=ended: ended(None))  # type: ignore[misc]
            self.world.wait(ticket, deadline - self.world.now)
            if box and box[0] is not None:
                return dict(box[0].offsets)
        return {}

    # --- GroupPort: commits

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """See `GroupPort`."""
        self._open()
        every = tuple(items)
        if self._unusable():
            self._report(_refuse_all(every, Error.UNKNOWN_MEMBER_ID))
            return
        self.world.say(self.query_name, f"commit_later {short_items(items)}")
        self._sends(every, later=True)
        self._commit(every, lambda error, answer: self._deliver("commit", _result(every, error, answer)))

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """See `GroupPort`. LibrdkafkaGroup.commit_now: sent again in halves if it fails for a partition of several."""
        self._open()
        every = tuple(items)
        if self._unusable():
            return _refuse_all(every, Error.UNKNOWN_MEMBER_ID)
        self.world.say(self.query_name, f"commit_now {short_items(items)}")
        self._sends(every, later=False)
        if self.running == "revoked":
            self.world.reached("handover-commit")
        began = self.world.now
        box: list[tuple[Error | None, CommitAnswer | None]] = []
        ticket = self.world.ticket()

        def ended(error: Error | None, answer: CommitAnswer | None) -> None:
            box.append((error, answer))
            self.world.wake_soon(ticket)

        self._commit(every, ended)
        self.world.wait(ticket, None)
        error, answer = box[0]
        if self.watch is not None:
            self.watch.spent(self.world.now - began)
        if error is Error.UNKNOWN_TOPIC_OR_PARTITION and len(every) > 1:
            half = len(every) // 2
            return self.commit_now(every[:half]).and_also(self.commit_now(every[half:]))
        result = _result(every, error, answer)
        if self.watch is not None:
            self.watch.answered(result, later=False)
        return result

    def _sends(self, items: tuple[CommitItem, ...], *, later: bool) -> None:
        if self.watch is not None:
            self.watch.sends(items, later=later, running=self.running, closing=self._is_closing)

    def _commit(self, items: tuple[CommitItem, ...], done: _Done) -> None:
        self._commits += 1
        self._after(0.0002, lambda: self._send_commit(_Commit(items, done)))

    def _send_commit(self, commit: _Commit) -> None:
        """rd_kafka_cgrp_offsets_commit (4599). A deferred commit gets the member and generation of its sending."""
        if self._fatal is not None:
            self._end_commit(commit, Error.FATAL, None)
        elif self._connection is None or not self._connection.is_up:
            if not self._defer(commit):
                self._end_commit(commit, Error.WAIT_COORD, None)
        else:
            commit.retries = 0
            commit.request = OffsetCommit(self.member_id, self._instance_id, self.generation_id, commit.items)
            self._write_commit(commit)

    def _write_commit(self, commit: _Commit) -> None:
        if self._connection is not None:
            self._connection.send(
                commit.request,
                _SOCKET_TIMEOUT_S,
                lambda answer: self._commit_answered(commit, answer),
                lambda error: self._commit_unanswered(commit, error),
            )

    def _defer(self, commit: _Commit) -> bool:
        """rd_kafka_cgrp_defer_offset_commit (4198): once, for a session timeout."""
        too_late = self._terminates and self.clock() > self._terminated_at + self.settings.session_s
        if commit.deadline is not None or too_late:
            return False
        commit.deadline = self.clock() + self.settings.session_s
        self._deferred.append(commit)
        return True

    def _commit_answered(self, commit: _Commit, answer: CommitAnswer) -> None:
        """rdkafka_request.c:1692 rd_kafka_handle_OffsetCommit: the error is that of the last partition with one."""
        failed = [error for error in answer.errors if error is not None]
        error = failed[-1] if failed else None
        all_failed = len(failed) == len(answer.errors)
        # rdkafka_request.c:1644
        if error is Error.UNKNOWN_TOPIC_OR_PARTITION and all_failed and commit.retries < _RETRIES:
            self._retry(commit)
        else:
            self._end_commit(commit, error, answer)

    def _commit_unanswered(self, commit: _Commit, error: Error) -> None:
        """Send the same request again, twice (rdkafka_request.c:1787); then defer it (4522)."""
        self.world.saw("commit without an answer")
        if commit.retries < _RETRIES:
            self._retry(commit)
        elif error is not Error.TRANSPORT or not self._defer(commit):
            self._end_commit(commit, error, None)

    def _retry(self, commit: _Commit) -> None:
        """rdkafka_broker.c:2946 rd_kafka_broker_buf_retry: the same bytes, with the member and generation of before."""
        pause = _RETRY_S * 2**commit.retries * self.world.rng.uniform(0.8, 1.2)
        commit.retries += 1
        self._after(pause, lambda: self._write_commit(commit))

    def _end_commit(self, commit: _Commit, error: Error | None, answer: CommitAnswer | None) -> None:
        """rd_kafka_cgrp_op_handle_OffsetCommit (4426)."""
        if error is not None:
            self._commit_failed(error)
        self._commits -= 1
        if answer is None:
            self.world.saw("commit uncertain")
        commit.done(error, answer)
        if self._commits == 0:
            self._assignment_serve()
        self._wake_close()

    # --- callbacks

    def _deliver(self, kind: str, payload: Any) -> None:
        """Queue something for `poll`."""
        self._queue.append((kind, payload))
        self.process.poke()
        self._wake_close()

    def _wake_close(self) -> None:
        if self._waiting is not None:
            self.world.wake_soon(self._waiting)

    def _run_callback(self, kind: str, payload: Any) -> None:
        """Run a callback; LibrdkafkaGroup._guarded keeps its exception for the end of `poll`."""
        try:
            self._callback(kind, payload)
        except ProcessDied:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by `poll`
            self._callback_error = self._callback_error or error

    def _callback(self, kind: str, payload: Any) -> None:
        listener = self._listener
        assert listener is not None
        if kind == "commit":
            if self.watch is not None:
                self.watch.answered(payload, later=True)
            listener.on_commit_result(payload)
        elif kind == "statistics":
            self._statistics(*payload)
        elif kind == "fatal":
            self._on_fatal(payload)
        else:
            self._rebalance_callback(listener, kind, tuple(sorted(payload)))

    def _rebalance_callback(self, listener: MemberListener, kind: str, partitions: tuple[TopicPartition, ...]) -> None:
        """Run `Consumer_rebalance_cb` of confluent-kafka (Consumer.c)."""
        called = "lost" if kind == "revoked" and self._is_lost else kind
        self.world.say(self.query_name, f"callback {called} {short(partitions)}")
        self.running, self._has_answered = called, False
        watch = self.watch
        lost = watch is not None and watch.all_lost(partitions)
        if watch is not None:
            watch.begins()
        self.world.reached(called)
        try:
            if not self._unusable():
                getattr(listener, f"on_{called}")(partitions)
        finally:
            if watch is not None and self.process.alive:
                watch.ends(called, lost, closing=self._is_closing)
            self.running = ""
            self.callbacks += 1
            # A callback that accepted and released nothing: the client does it.
            if self.process.alive and not self._has_answered and self._connection is not None:
                answer = self.accept if kind == "assigned" else self.release
                answer(partitions)

    def _statistics(self, known: bool, lost_answers: int) -> None:
        """LibrdkafkaGroup._on_statistics."""
        listener = self._listener
        assert listener is not None
        before, self._lost_answers = self._lost_answers, lost_answers
        if lost_answers > before:
            listener.on_answer_lost()
        listener.on_coordinator(known)

    def _report_statistics(self) -> None:
        if self._connection is not None:
            self._deliver("statistics", (self._connection.is_up, self._connection.timeouts))

    def _report(self, result: CommitResult) -> None:
        if self._listener is not None:
            self._listener.on_commit_result(result)

    def _unusable(self) -> bool:
        """LibrdkafkaGroup._unusable (rule R72)."""
        if self._held_as and not self._is_unusable and not self._is_closing and self.member_id != self._held_as:
            self._report_unusable()
        return self._is_unusable

    def _report_unusable(self) -> None:
        self._is_unusable = True
        self.world.saw("another member id (R72)")
        if self._listener is not None:
            self._listener.on_unusable()

    def _raise_fatal(self, error: Error) -> None:
        """rd_kafka_set_fatal_error: the state machine stops."""
        if self._fatal is None:
            self._fatal = error
            self.world.say(self.query_name, f"client: fatal {error.name}")
            self._deliver("fatal", error)

    def _on_fatal(self, error: Error) -> None:
        """LibrdkafkaGroup._on_fatal."""
        listener = self._listener
        if listener is None or self._unusable():
            return
        if error is Error.UNRELEASED_INSTANCE_ID:
            if not self._is_unreleased:
                self._is_unreleased = True
                listener.on_instance_id_unreleased()
        elif error in (Error.GROUP_ID_NOT_FOUND, Error.INVALID_REQUEST) and self._joined:
            self._report_unusable()
        else:
            listener.on_error(MembershipError(errors.MEMBER_FAILED, group="sim", reason=error.name))

    # --- rebalances

    @property
    def _is_rebalancing(self) -> bool:
        """RD_KAFKA_CGRP_REBALANCING (313)."""
        joins = self._has_joined and self._state in (JoinState.WAIT_JOIN, JoinState.WAIT_METADATA)
        return joins or self._state in _REBALANCING or self._to_assign is not None or self._rejoins_after

    def _rebalance_op(self, kind: str, partitions: Partitions) -> None:
        """rd_kafka_rebalance_op (1420): an eager callback."""
        if not self._delegate(kind, partitions):
            return
        self._group_assignment = set(partitions) if kind == "assigned" else None

    def _rebalance_op_incr(self, kind: str, partitions: Partitions, *, rejoin: bool) -> None:
        """rd_kafka_rebalance_op_incr (1297): a callback for some partitions."""
        self._rejoins_after = rejoin
        partitions = set(partitions)
        if not self._delegate(kind, partitions):
            return
        before = self._group_assignment or set()
        self._group_assignment = (before | partitions if kind == "assigned" else before - partitions) or None
        if kind == "assigned" and self._group_assignment is None:
            # 5358: adding nothing to nothing sets an empty assignment.
            self._group_assignment = set()

    def _delegate(self, kind: str, partitions: Partitions) -> bool:
        if self._fatal is not None:
            self._group_assignment = None
            self._unassign()
            self._assignment_serve()
            return False
        self._state = JoinState.WAIT_ASSIGN_CALL if kind == "assigned" else JoinState.WAIT_UNASSIGN_CALL
        self._deliver(kind, set(partitions))
        return True

    def _revoke_all_rejoin_maybe(self, reason: str, *, lost: bool) -> None:
        """rd_kafka_cgrp_revoke_all_rejoin_maybe (5530): does nothing during a rebalance, so also in a callback."""
        if self._is_rebalancing:
            self.world.saw("membership ended in a rebalance" if lost else "rebalance in a rebalance")
        else:
            self._revoke_all_rejoin(reason, lost=lost)

    def _revoke_all_rejoin(self, reason: str, *, lost: bool) -> None:
        """rd_kafka_cgrp_revoke_all_rejoin (5568)."""
        if lost:
            self.world.saw("client lost its membership")
        self.world.say(self.query_name, f"client: {'lost' if lost else 'revokes all'}: {reason}")
        if not self._is_cooperative:
            self._is_lost = self._is_lost or (lost and self._group_assignment is not None)
            if self._group_assignment is not None and self._state not in CALLS:
                self._rebalance_op("revoked", self._group_assignment)
            else:
                # 5615: skips the join backoff.
                self._join_at = 0.0
                self._rejoin(reason)
        elif self._group_assignment:
            self._is_lost = self._is_lost or lost
            self._rebalance_op_incr("revoked", self._group_assignment, rejoin=not self._terminates)
        elif not self._terminates:
            self._rejoin(reason)

    def _handle_assignment_cooperative(self, assignment: Partitions) -> None:
        """rd_kafka_cgrp_handle_assignment_cooperative (5197): compares by the topics' names."""
        before = self._group_assignment or set()
        revoked, added = before - assignment, assignment - before
        if revoked:
            self._to_assign = added
            self._rebalance_op_incr("revoked", revoked, rejoin=False)
        else:
            self._rebalance_op_incr("assigned", added, rejoin=False)

    def _leave_maybe(self) -> bool:
        """rd_kafka_cgrp_leave_maybe (1257)."""
        if not self._leaves_on_unassign:
            return False
        self._leaves_on_unassign = False
        self._leave()
        return True

    def _left(self) -> None:
        """React to the answer to a leave, or to its failure."""
        self._waits_for_leave = False
        self._wake_close()
        self._soon()

    # --- the main thread

    def clock(self) -> float:
        """Return CLOCK_MONOTONIC, as rd_clock (rdtime.h:86) has it."""
        return self.world.now - self.process.suspended_s

    def _tick(self) -> None:
        """Run a round of the main loop, and plan the next one."""
        self._round()
        self._after(_TICK_S * self.world.rng.uniform(0.95, 1.05), self._tick)

    def _soon(self, seconds: float = 0.0) -> None:
        """Run a round at once, or after some seconds."""
        self._after(seconds + self.world.rng.uniform(0.0001, 0.002), self._round)

    def _round(self) -> None:
        connection = self._connection
        if connection is None:
            return
        connection.give_up_late()
        now = self.clock()
        # 5692 rd_kafka_cgrp_max_poll_interval_check_tmr_cb
        if self._polls_are_timed and not self._terminates and now - self._last_poll > self.settings.rebalance_s:
            self.world.saw("max.poll.interval.ms exceeded")
            self._poll_exceeded, self._polls_are_timed = True, False
            self._max_poll_exceeded()
        self._check_session(now)
        if connection.is_up:
            self._serve()
        else:
            self._scan_deferred(now)
        self._wake_close()

    def _check_session(self, now: float) -> None:
        """Check the client's own session timeout, where the protocol has one."""

    def _scan_deferred(self, now: float) -> None:
        """rd_kafka_cgrp_timeout_scan (6513)."""
        late = [commit for commit in self._deferred if commit.deadline is not None and commit.deadline <= now]
        for commit in late:
            self._deferred.remove(commit)
            self._end_commit(commit, Error.WAIT_COORD, None)

    def _connected(self) -> None:
        """rd_kafka_cgrp_serve (7211), state UP: deferred commits first, then the group."""
        deferred, self._deferred = self._deferred, []
        for commit in deferred:
            self._send_commit(commit)
        self._soon()

    def _disconnected(self) -> None:
        """React to a lost connection."""

    def _continued(self) -> None:
        """Go on after a stop. Timers that were due meanwhile fire now."""
        if self._connection is not None:
            self._after(self.world.rng.uniform(0.0005, 0.02), self._round)

    def _after(self, seconds: float, run: Callable[[], None]) -> None:
        """Run something on the main thread; not in a later life of this client, and not while it is stopped."""
        life = self._life
        self.process.after(seconds, run, over=lambda: self._life != life)

    def _repeat(self, seconds: float, run: Callable[[], None]) -> None:
        def fire() -> None:
            run()
            self._after(seconds, fire)

        self._after(seconds * self.world.rng.random(), fire)

    def _request_metadata(self, names: Iterable[str], then: Callable[[dict[str, int]], None]) -> None:
        """Ask a broker for topics: their partition counts, 0 if unknown. Asks again while none answers."""
        wanted = sorted(names)

        def answer() -> None:
            if self._cut_until > self.world.now or self._cluster.down_until > self.world.now:
                self._after(1.0, answer)
                return
            topics = {name: self._cluster.topic(name) for name in wanted}
            then({name: 0 if topic is None else len(topic.logs) for name, topic in topics.items()})

        self._after(self._coordinator.latency() * 2, answer)

    def _alive(self) -> None:
        if not self.process.alive:
            raise ProcessDied

    def _open(self) -> Connection:
        self._alive()
        if self._connection is None:
            raise MembershipError(errors.MEMBER_FAILED, group="sim", reason="its client is closed")
        return self._connection


def _refuse_all(items: tuple[CommitItem, ...], error: Error) -> CommitResult:
    refusal = classify_refusal(KafkaError(error.value))
    return CommitResult(refused=tuple((item, refusal) for item in items), reason=error.name)


def _result(items: tuple[CommitItem, ...], error: Error | None, answer: CommitAnswer | None) -> CommitResult:
    """LibrdkafkaGroup._result and _refuse_all."""
    if answer is None:
        return _refuse_all(items, error or Error.TIMED_OUT)
    pairs = list(zip(items, answer.errors, strict=True))
    refused = [(item, cause) for item, cause in pairs if cause is not None]
    denied = next((cause for _, cause in refused if KafkaError(cause.value).code() in DENIED), None)
    return CommitResult(
        acknowledged=tuple(item for item, cause in pairs if cause is None),
        refused=tuple((item, classify_refusal(KafkaError(cause.value))) for item, cause in refused),
        reason=refused[0][1].name if refused else "",
        error=None if denied is None else MembershipError(errors.MEMBER_FAILED, group="sim", reason=denied.name),
    )
