"""What runs beside the membership thread for a kafka-python member: its polling, and its rebalance callbacks.

kafka-python joins, rebalances and heartbeats in coroutines on an I/O thread of its own. Only a call of
`ConsumerCoordinator.poll` moves a rebalance on, and it returns no sooner than the callbacks that it has called. A
callback waits for the membership thread, which may wait for a batch: so the polling has a thread to itself, and a
callback is a coroutine that hands an event over and awaits the answer, while heartbeats go on.

The coordinator is polled, not the consumer: this member fetches no records, and needs no positions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.errors import FencedInstanceIdError
from kafka.future import Future
from kafka.structs import MemberState

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.membership.events import Partitions
from spark_groupsource.model.offsets import TopicPartition

# How soon a rebalance, which a heartbeat tells of, is noticed.
_STEP_S = 0.02
# An answer to a join that comes between two polls is thrown away by the client, so they are long; one that has nothing
# to wait for returns at once.
_POLL_MS = 500
_RETRY_S = 0.2
# How long the client may take to say goodbye: one request to the coordinator.
_CLOSE_TIMEOUT_MS = 5_000


class Kind(Enum):
    """What a client tells the membership thread."""

    ASSIGNED = "partitions came"
    REVOKED = "partitions are to be given up"
    LOST = "the group took partitions"
    FAILED = "the client cannot go on, or a request failed that it repeats"


@dataclass(frozen=True, slots=True)
class Happened:
    """One event. A callback of the client awaits `answer`; None: nobody waits."""

    kind: Kind
    partitions: Partitions = ()
    answer: Future | None = None
    error: BaseException | None = None


class Callbacks(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Called on the client's I/O thread: hands events over, and awaits that they are dealt with."""

    def __init__(
        self,
        tell: Callable[[Happened], None],
        lost: Callable[[], None],
        gave_up: Callable[[Partitions], None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._lost = lost
        self._gave_up = gave_up
        # Whether anything was assigned that can be revoked.
        self._joined = False
        # How often the client has told of an assignment.
        self.assignments = 0

    async def on_partitions_revoked(self, revoked: Iterable[tuple[str, int]]) -> None:
        """The group wants partitions back; heartbeats go on while this waits."""
        # Before its first join the eager client gives up an assignment that never was.
        if self._joined:
            self._gave_up(await self._dealt_with(Kind.REVOKED, revoked))

    async def on_partitions_assigned(self, assigned: Iterable[tuple[str, int]]) -> None:
        """Partitions came."""
        self._joined = True
        self.assignments += 1
        await self._dealt_with(Kind.ASSIGNED, assigned)

    async def on_partitions_lost(self, lost: Iterable[tuple[str, int]]) -> None:
        """The session has expired."""
        # R34: the strategies forget what was lost before anything else happens
        self._lost()
        await self._dealt_with(Kind.LOST, lost)

    async def _dealt_with(self, kind: Kind, partitions: Iterable[tuple[str, int]]) -> Partitions:
        answer = Future()
        concerned = tuple(sorted(TopicPartition(*each) for each in partitions))
        self._tell(Happened(kind, concerned, answer))
        await answer
        return concerned


def tell_losses(coordinator: Any) -> None:
    """Have a cooperative client tell of the partitions that it loses while it joins.

    The sequence that this protects against: the client begins to join, keeping its partitions, and is cut off; its
    session expires, and another member reads on; its JoinGroup, sent again, is refused with UNKNOWN_MEMBER_ID, and it
    joins as a new member, without a word, with partitions that it still has: what it commits, now under the new
    generation, takes the group's offset back. (Java's client prepares such a join anew, too: KAFKA-12983.)
    """
    reset = coordinator.reset_generation

    def reset_and_prepare(*args: Any, **named: Any) -> None:
        reset(*args, **named)
        coordinator.rejoining = False

    # An eager client has given up everything before it joins, and would tell it twice.
    # R72: a session that ends in a join is a loss
    if coordinator._rebalance_protocol == ClientProtocol.COOPERATIVE:
        coordinator.reset_generation = reset_and_prepare


class Driver:
    """Polls the coordinator until it is closed, then leaves the group."""

    def __init__(
        self,
        consumer: KafkaConsumer,
        callbacks: Callbacks,
        tell: Callable[[Happened], None],
        clock: Clock | None = None,
        again_after_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._consumer = consumer
        self._coordinator = consumer._coordinator
        tell_losses(self._coordinator)
        self._callbacks = callbacks
        self._tell = tell
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupkafka-member-driver", daemon=True)
        self._clock = clock or SystemClock()
        # For how long this member's group may stay as it is before another round is asked for; None: for ever.
        self._again_after_s = again_after_s
        # The generation, and since when it is known.
        self._generation, self._since_s = -1, 0.0
        # The generation whose join was told of, and how many assignments there were until then.
        self._told_generation, self._told_assignments = -1, 0
        # When another round was asked for.
        self._asked_s = 0.0

    def start(self) -> None:
        """Start polling, which joins the group. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def request_close(self) -> None:
        """Ask for the end; `ended` tells when the member has left."""
        self._closing.set()
        if self._thread.ident is None:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)

    @property
    def ended(self) -> bool:
        """Whether the client is closed."""
        return self._closing.is_set() and not self._thread.is_alive()

    @property
    def coordinator_known(self) -> bool:
        """Whether the client knows the group's coordinator."""
        return self._coordinator.coordinator_id is not None

    @property
    def heartbeat_answered_s(self) -> float:
        """When a heartbeat was answered last, on the monotonic clock; -inf if none was."""
        return float(self._coordinator.heartbeat.last_receive)

    # --- its own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._step()
            except BaseException as error:  # noqa: BLE001 - it belongs to the membership thread
                self._tell(Happened(Kind.FAILED, error=error))
                self._closing.wait(_RETRY_S)
        try:
            self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)
        except BaseException as error:  # noqa: BLE001 - the member has ended either way
            self._tell(Happened(Kind.FAILED, error=error))

    def _step(self) -> None:
        """Look after a stable membership, or see a join through; then poll.

        The sequence that asking for a join, while one is under way, protects against: a leader joins again because a
        topic's metadata has come, and its poll times out; the join ends before the next poll, by which time the
        metadata that was news is what the leader has assigned by; so the client sees no reason to join, forgets the
        answer, and neither joins nor heartbeats any more.
        """
        stable = self._consumer.group_metadata().state == MemberState.STABLE
        if stable and not self._coordinator.need_rejoin():
            self._closing.wait(_STEP_S)
            self._notice_fence()
            self._notice_expiry()
            self._ask_again()
        else:
            self._coordinator.request_rejoin()
        self._coordinator.poll(timeout_ms=_POLL_MS)
        self._notice_assignment()

    def _ask_again(self) -> None:
        """Ask for another round when something stays open for too long.

        The sequence that this protects against: a member claims a partition that it does not have, so that it never
        gives it up, and never joins again; nobody reads the partition.
        """
        after_s, now_s = self._again_after_s(), self._clock.monotonic_s()
        if after_s is not None and now_s - max(self._since_s, self._asked_s) > after_s:
            self._asked_s = now_s
            self._coordinator.request_rejoin()

    def _notice_assignment(self) -> None:
        """Tell of a join that brought nothing: the cooperative client is silent then.

        A query whose first assignment is empty must be told that it has joined, or it waits for partitions.
        """
        joined = self._consumer.group_metadata()
        if joined.state != MemberState.STABLE or joined.generation_id == self._told_generation:
            return
        if self._callbacks.assignments == self._told_assignments:
            self._tell(Happened(Kind.ASSIGNED))
        self._told_generation, self._told_assignments = joined.generation_id, self._callbacks.assignments

    def _notice_fence(self) -> None:
        """Raise when another member has taken this one's instance id.

        The sequence that this protects against: a heartbeat is answered so, and the client only stops its heartbeats;
        the session expires, this member joins again, and takes the id back from the other, and so on for ever.
        """
        coordinator = self._coordinator
        # A join stops heartbeats, too, and starts them again before it is over; so does a lost session, which is no
        # member's any more: asked after the heartbeats, or it may be lost in between.
        stopped = not (coordinator._heartbeat_enabled or coordinator.rejoining)
        still_member = self._consumer.group_metadata().state == MemberState.STABLE
        # R75: heartbeats have stopped, and the session has not expired
        if coordinator.group_instance_id is not None and stopped and still_member:
            raise FencedInstanceIdError(coordinator.group_instance_id)

    def _notice_expiry(self) -> None:
        """Take the session for expired when no heartbeat was answered for as long as it lasts.

        The sequence that this protects against: the member is cut off, the coordinator gives its partitions to another
        one, and this client, which waits to be told, reads on. (So does librdkafka in classic groups.)

        The client's own clock starts anew whenever a broker tells who the coordinator is, also while that one cannot be
        reached: only a heartbeat's answer counts here, or a join's.
        """
        now_s, generation = self._clock.monotonic_s(), self._consumer.group_metadata().generation_id
        if generation != self._generation:
            self._generation, self._since_s = generation, now_s
        heartbeat = self._coordinator.heartbeat
        silent_s = now_s - max(self._since_s, heartbeat.last_receive)
        # R74: the coordinator has ended the session by now
        if silent_s > heartbeat.config["session_timeout_ms"] / 1000:
            partitions = tuple(sorted(TopicPartition(*each) for each in self._consumer.assignment()))
            self._coordinator.reset_generation()
            if partitions:
                self._tell(Happened(Kind.LOST, partitions))
