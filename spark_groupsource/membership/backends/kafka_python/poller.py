"""Poll a kafka-python member and serve its rebalance callbacks, on threads beside the membership thread.

kafka-python joins, rebalances and sends heartbeats in coroutines on its own I/O thread. A rebalance advances only in
`ConsumerCoordinator.poll`, which returns after the callbacks that it has called. A callback waits for the membership
thread, which may wait for a batch. So polling has a thread of its own, and a callback is a coroutine that passes an
event to the membership thread and awaits the answer, while heartbeats go on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from kafka import AsyncConsumerRebalanceListener
from kafka.errors import FencedInstanceIdError
from kafka.future import Future
from kafka.structs import MemberState

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.membership.backends.kafka_python.private import Internals, JoinRefused
from spark_groupsource.membership.events import Partitions
from spark_groupsource.model.offsets import TopicPartition

# Maximum seconds until a rebalance that a heartbeat reports is noticed.
_STEP_S = 0.02
# The client drops an answer to a join that arrives between two polls. So polls are long; a poll that has nothing to
# wait for returns at once.
_POLL_MS = 500
_RETRY_S = 0.2
# Maximum time for the client to leave the group: one request to the coordinator.
_CLOSE_TIMEOUT_MS = 5_000


class Kind(Enum):
    """The kinds of events that a client reports to the membership thread."""

    ASSIGNED = "partitions were assigned"
    REVOKED = "partitions are to be given up"
    LOST = "partitions were lost with the session"
    FAILED = "the client cannot go on, or a request failed that it repeats"


@dataclass(frozen=True, slots=True)
class Happened:
    """One event. A callback of the client awaits `answer`; None if no callback waits."""

    kind: Kind
    partitions: Partitions = ()
    answer: Future | None = None
    error: BaseException | None = None


class Callbacks(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Pass the client's callbacks to the membership thread, and await their answers. The client's I/O thread only."""

    def __init__(
        self,
        report: Callable[[Happened], None],
        lost: Callable[[], None],
        gave_up: Callable[[Partitions], None] = lambda _: None,
    ) -> None:
        self._report = report
        self._lost = lost
        self._gave_up = gave_up
        # Whether anything was assigned that can be revoked.
        self._joined = False
        # How many assignments the client has reported.
        self.assignments = 0

    async def on_partitions_revoked(self, revoked: Iterable[tuple[str, int]]) -> None:
        """Handle a revoke; heartbeats go on while this waits."""
        # Before its first join the eager client revokes an assignment that it never had.
        if self._joined:
            self._gave_up(await self._handled(Kind.REVOKED, revoked))

    async def on_partitions_assigned(self, assigned: Iterable[tuple[str, int]]) -> None:
        """Handle newly assigned partitions."""
        self._joined = True
        self.assignments += 1
        await self._handled(Kind.ASSIGNED, assigned)

    async def on_partitions_lost(self, lost: Iterable[tuple[str, int]]) -> None:
        """Handle partitions that were lost with the session."""
        # R34: the strategies forget lost partitions before anything else happens
        self._lost()
        await self._handled(Kind.LOST, lost)

    async def _handled(self, kind: Kind, partitions: Iterable[tuple[str, int]]) -> Partitions:
        answer = Future()
        concerned = tuple(sorted(TopicPartition(*each) for each in partitions))
        self._report(Happened(kind, concerned, answer))
        await answer
        return concerned


class Poller:
    """Poll the coordinator until the member is closed, then leave the group."""

    def __init__(
        self,
        internals: Internals,
        callbacks: Callbacks,
        report: Callable[[Happened], None],
        clock: Clock | None = None,
        again_after_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._internals = internals
        self._consumer = internals.consumer
        self._callbacks = callbacks
        self._report = report
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupkafka-member-poller", daemon=True)
        self._clock = clock or SystemClock()
        # Returns the seconds after which another round is requested; None: never.
        self._again_after_s = again_after_s
        # The generation, and since when it is known.
        self._generation, self._since_s = -1, 0.0
        # The generation whose join was reported, and how many assignments there were until then.
        self._reported_generation, self._reported_assignments = -1, 0
        # When another round was requested.
        self._requested_s = 0.0

    def start(self) -> None:
        """Start polling, which joins the group. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def request_close(self) -> None:
        """Ask the thread to leave and end; `ended` is true when the member has left."""
        self._closing.set()
        if self._thread.ident is None:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)

    @property
    def ended(self) -> bool:
        """Whether the client is closed."""
        return self._closing.is_set() and not self._thread.is_alive()

    # --- its own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._step()
            except JoinRefused:
                # The member ends. It may still fetch the group's offsets, and it closes the client then.
                self._closing.wait()
            except BaseException as error:  # noqa: BLE001 - it belongs to the membership thread
                self._report(Happened(Kind.FAILED, error=error))
                self._closing.wait(_RETRY_S)
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except BaseException as error:  # noqa: BLE001 - the member has ended either way
            self._report(Happened(Kind.FAILED, error=error))

    def _step(self) -> None:
        """Check a stable membership, or request the join again while one is under way. Then poll.

        Guards against (a join that is not requested again):
        1. A leader joins again because a topic's metadata has arrived. Its poll times out.
        2. The join ends before the next poll. The leader has used the new metadata for its assignment.
        3. So the client sees no reason to join, and drops the answer. It neither joins nor sends heartbeats any more.
        """
        stable = self._consumer.group_metadata().state == MemberState.STABLE
        if stable and not self._internals.join_is_due:
            self._closing.wait(_STEP_S)
            self._notice_fence()
            self._notice_expiry()
            self._request_round()
        else:
            self._internals.request_rejoin()
        self._internals.poll(_POLL_MS)
        self._notice_assignment()

    def _request_round(self) -> None:
        """Request another round if an assignment stays incomplete for too long.

        Guards against:
        1. A member claims a partition that it does not have.
        2. The leader keeps the partition back until that member gives it up.
        3. The member never gives it up, and never joins again: nobody reads the partition.
        """
        after_s, now_s = self._again_after_s(), self._clock.monotonic_s()
        if after_s is not None and now_s - max(self._since_s, self._requested_s) > after_s:
            self._requested_s = now_s
            self._internals.request_rejoin()

    def _notice_assignment(self) -> None:
        """Report a join that assigned nothing, because the cooperative client does not report it.

        Otherwise a query whose first assignment is empty would wait for partitions.
        """
        joined = self._consumer.group_metadata()
        if joined.state != MemberState.STABLE or joined.generation_id == self._reported_generation:
            return
        if self._callbacks.assignments == self._reported_assignments:
            self._report(Happened(Kind.ASSIGNED))
        self._reported_generation, self._reported_assignments = joined.generation_id, self._callbacks.assignments

    def _notice_fence(self) -> None:
        """Raise `FencedInstanceIdError` if another member has the instance id of this one (rule R75).

        The client reports nothing then: it only stops its heartbeats.

        Guards against (rule R75):
        1. A second query starts with the same `group.instance.id`. The coordinator fences the first member.
        2. The client only stops its heartbeats. The session expires, the member joins again and takes the id back,
           forever.
        """
        # A lost session stops heartbeats, too, and then the state is not stable. The state is read after the
        # heartbeats, because the session may be lost in between.
        stopped = self._internals.heartbeats_stopped
        member = self._consumer.group_metadata()
        # R75: heartbeats have stopped, and the session has not expired
        if member.group_instance_id is not None and stopped and member.state == MemberState.STABLE:
            raise FencedInstanceIdError(member.group_instance_id)

    def _notice_expiry(self) -> None:
        """End the session if no heartbeat was answered for its duration (rule R74).

        librdkafka does the same in classic groups.

        The client's own clock restarts whenever a broker reports the coordinator, even if that is unreachable. Here
        only the answer to a heartbeat or a join counts.

        Guards against (rule R74):
        1. A member is cut off from its coordinator, which gives its partitions to another member.
        2. The client waits for an answer, and the query reads on.
        """
        now_s, generation = self._clock.monotonic_s(), self._consumer.group_metadata().generation_id
        if generation != self._generation:
            self._generation, self._since_s = generation, now_s
        silent_s = now_s - max(self._since_s, self._internals.heartbeat_answered_s)
        # R74: the coordinator has ended the session by now
        if silent_s > self._internals.session_timeout_s:
            partitions = tuple(sorted(TopicPartition(*each) for each in self._consumer.assignment()))
            self._internals.reset_generation()
            if partitions:
                self._report(Happened(Kind.LOST, partitions))
