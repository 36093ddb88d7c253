"""Hold the lock of a group: one of several drivers may run the group's queries, the others wait.

The lock is one partition of an existing topic, in the group `<group>.lock`. The member to which this partition is
assigned owns the lock. Nothing is fetched, and the topic's records do not matter.

Which partition it is: the group's committed offset of partition 0 is its number; without one it is partition 0. A
topic may have many partitions, and a member that joins gets some of them. The owner then commits the number of a
partition that it keeps, before it gives the old one up: the lock stays where it is.

A member with the lock proves it before its queries start, after each silence of its process, and from time to time
while they run: the coordinator must accept a commit, soon enough (rule R67 for the source, likewise here).

The client belongs to a thread of its own. It polls while the queries run, so that no batch is too long for it.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping

from spark_groupsource.clock import Clock, Deadline, Pace, StepDeadline, SystemClock
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.backends.choose import group_client
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.lock_states import (
    GIVES_WAY,
    HOLDS,
    PROVES_AGAIN,
    STOPS_AT_ONCE,
    UNDECIDED,
    LockEvent,
    LockState,
    next_state,
)
from spark_groupsource.membership.port import CommitResult, GroupPort, MemberListener
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import CLIENT_PREFIX, GroupProtocol
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.parse import parse_options

LOG = logging.getLogger(__name__)

SUFFIX = ".lock"
# What the lock's client needs of a source's options, besides client settings: its login, and what is permitted.
_SHARED_OPTIONS = frozenset({"tokenprovider", "awsregion", "allowedunsafesettings"})
# Client settings of the query's own group. Another strategy would move the lock to each member that joins; a static
# member would not give it up when it leaves.
_OF_THE_QUERY = frozenset(
    f"{CLIENT_PREFIX}{name}"
    for name in ("group.id", "group.instance.id", "partition.assignment.strategy", "group.remote.assignor")
)
# Milliseconds, at most: one small member per driver, and a clean stop is noticed at the next heartbeat.
_HEARTBEAT_MS = 1000
_STEP_S = 0.05
_RETRY_S = 0.5
_FETCH_S = 5.0
# Seconds in which a revoke tries to move the lock to a partition that stays.
_MOVE_S = 5.0
# Part of max.poll.interval.ms that a revoke may wait for the queries' end.
_WAIT_PART = 0.8
_CLOSE_S = 20.0
# Parts of a session after which a proof is renewed, and after which it no longer counts.
_PROOF_PART, _LAPSES_PART = 1 / 6, 2 / 3


def lock_options(group: str, topic: str, options: Mapping[str, str]) -> SourceOptions:
    """Return the checked options of the lock's member. `options` may be all options of the query's source.

    Client settings (`kafka.*`) and the login are used, except those of the query's own group; the rest is left out.
    Raises `OptionError`.
    """
    given = {name.lower(): value for name, value in options.items()}
    chosen = {
        name: value
        for name, value in given.items()
        if name in _SHARED_OPTIONS or (name.startswith(CLIENT_PREFIX) and name not in _OF_THE_QUERY)
    }
    is_classic = given.get("kafka.group.protocol", "classic").lower() == GroupProtocol.CLASSIC.value
    session = given.get("kafka.session.timeout.ms", "45000")
    if is_classic and session.isdecimal() and "kafka.heartbeat.interval.ms" not in given:
        chosen["kafka.heartbeat.interval.ms"] = str(max(100, min(_HEARTBEAT_MS, int(session) // 3)))
    # Shown to those who wait.
    chosen["kafka.client.id"] = f"{given.get('kafka.client.id', 'groupkafka')}-{socket.gethostname()}"
    # An empty name must stay one, for its error.
    name = f"{group}{SUFFIX}" if group.strip() else ""
    return parse_options(chosen | {"kafka.group.id": name, "subscribe": topic})


class OwnerLock(MemberListener):
    """The lock of a driver, from `__enter__` to `__exit__`. Any thread may read `state`; its own thread changes it.

    `_changed` guards `_state` and `_error`, and is never held during I/O. All else belongs to the lock's thread.
    """

    def __init__(
        self,
        options: SourceOptions,
        port: GroupPort | None = None,
        clock: Clock | None = None,
        length: SessionLength | None = None,
    ) -> None:
        self._options = options
        self._topic = options.subscription.topics[0]
        self._clock = clock or SystemClock()
        self._port = group_client(options) if port is None else port
        self._length = length or SessionLength(options)
        self._longest_silence_s = max(options.heartbeat_interval_s, 1.0)
        self._pace = Pace(self._clock, _RETRY_S)
        # When the coordinator was asked for the proof that it accepted last; whether another one is under way since.
        self._proven_s = self._clock.boottime_s()
        self._asks = False
        self._last_s = self._clock.boottime_s()
        self._held: frozenset[int] = frozenset()
        # The number of the lock's partition; None until the group was asked after an assignment.
        self._number: int | None = None
        self._renews = False
        self._changed = threading.Condition()
        self._state = LockState.WAITING
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupkafka-owner-lock", daemon=True)

    # --- the driver's side

    def __enter__(self) -> OwnerLock:
        """Join the group of the lock. Raises `OptionError` for a setting that the client refuses."""
        self._port.open(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the group: the next member owns the lock at its next heartbeat."""
        self._closing.set()
        self._thread.join(_CLOSE_S)

    @property
    def state(self) -> LockState:
        """The state now. Raises the error that has ended the lock's member."""
        with self._changed:
            if self._error is not None and self._state is LockState.WAITING:
                raise self._error
            return self._state

    @property
    def gives_way(self) -> bool:
        """Whether the driver's queries have to end: drained, or at once if `stops_at_once`."""
        with self._changed:
            return self._state in GIVES_WAY or self._lapsed()

    @property
    def stops_at_once(self) -> bool:
        """Whether another driver may run the queries already."""
        with self._changed:
            return self._state in STOPS_AT_ONCE or self._lapsed()

    def _lapsed(self) -> bool:
        """Return whether the session may have expired: for long, no proof was accepted that was asked for.

        Under KIP-848 a commit does not prolong the session. The last heartbeat may be an interval older than the
        proof, which is a third of a session at most.

        Guards against:
        1. The owner is cut off from the lock's coordinator, and not from that of the queries' group.
        2. Its session expires, and another driver starts the queries. Under KIP-848 the client reports nothing.
        3. Both run the queries of one checkpoint.
        """
        silent = self._asks and self._clock.boottime_s() - self._proven_s > self._length.shortest_s * _LAPSES_PART
        return silent and self._state in PROVES_AGAIN

    def take(self) -> bool:
        """Take the lock to start queries, if it is owned now. End with `ended`."""
        with self._changed:
            if self._state is not LockState.OWNED:
                return False
            self._apply(LockEvent.TAKEN)
            return True

    def ended(self) -> None:
        """Report that no query of this driver runs any more."""
        self._happened(LockEvent.ENDED)

    def settled(self, timeout_s: float) -> LockState:
        """Return the state when the coordinator has decided it: not undecided any more, or after `timeout_s`."""
        deadline = Deadline(self._clock, timeout_s)
        with self._changed:
            while self._state in UNDECIDED and not deadline.expired():
                self._changed.wait(min(deadline.remaining_s(), _STEP_S))
        return self.state

    # --- the thread

    def _run(self) -> None:
        try:
            self._port.subscribe([self._topic])
            while not self._closing.wait(_STEP_S):
                self._step()
        except Exception as error:  # noqa: BLE001 - raised in the driver's thread
            self._fail(error)
        try:
            self._port.close()
        except Exception as error:  # noqa: BLE001 - the session expires instead
            LOG.warning("the lock's member has not left cleanly: group=%s error=%s", self._options.group_id, error)

    def _step(self) -> None:
        if self._measure_gap_s() > self._longest_silence_s:
            self._happened(LockEvent.SILENT)
            self._pace.hurry()
        if self._renews:
            self._renew()
        self._port.poll()
        if self._number is None and self._held and self._pace.due():
            self._find()
        elif self._wants_proof() and self._pace.due():
            self._prove()

    def _wants_proof(self) -> bool:
        old = self._clock.boottime_s() - self._proven_s > self._length.shortest_s * _PROOF_PART
        with self._changed:
            return self._state in UNDECIDED or (old and self._state in PROVES_AGAIN)

    def _measure_gap_s(self) -> float:
        now_s = self._clock.boottime_s()
        silence_s, self._last_s = now_s - self._last_s, now_s
        return silence_s

    def _renew(self) -> None:
        """Replace a client that cannot go on by itself."""
        self._renews = False
        self._lost()
        self._port.close()
        self._port.open(self)
        self._port.subscribe([self._topic])

    def _find(self) -> None:
        """Ask the group for the lock's partition, after an assignment."""
        first = TopicPartition(self._topic, 0)
        found = self._port.fetch_offsets([first], _FETCH_S)
        if first not in found:
            return
        self._number = found[first].offset or 0
        if self._number in self._held:
            self._happened(LockEvent.ASSIGNED)
            self._pace.hurry()

    def _prove(self) -> None:
        """Prove the lock by a commit. A slow answer proves nothing, as in rule R67."""
        if self._number is None:
            return
        self._measure_gap_s()
        asked_s, self._asks = self._clock.boottime_s(), True
        result = self._commit(self._number)
        if result.acknowledged and self._measure_gap_s() < self._length.shortest_s / 2:
            self._proven_s, self._asks = asked_s, False
            self._happened(LockEvent.PROVEN)
        elif result.lost:
            self._lost()

    def _commit(self, number: int) -> CommitResult:
        item = CommitItem(TopicPartition(self._topic, 0), number, f"groupkafka: the lock is partition {number}")
        result = self._port.commit_now([item])
        if result.error is not None:
            raise result.error
        return result

    # --- callbacks, on the lock's thread

    def on_assigned(self, partitions: Partitions) -> None:
        """See `MemberListener`."""
        self._port.accept(partitions)
        if partitions:
            self._held |= {partition.partition for partition in partitions}
            # A lock that is held stays what it is: only its owner changes the number.
            if not self._holds():
                self._number = None
                self._pace.hurry()

    def on_revoked(self, partitions: Partitions) -> None:
        """Give partitions up. If the lock is among them: move it to one that stays, else let the queries end first.

        Guards against:
        1. The lock is partition 0 of a topic with four partitions. A driver owns it and all others.
        2. A second driver joins. Its group gives it two partitions, partition 0 among them.
        3. The lock has moved to the newcomer: the queries are stopped and started again for nothing.

        Guards against an uncertain answer:
        1. The owner commits another number. The answer is lost, and the coordinator may have accepted it.
        2. It goes on as the owner, or it believes that it is none: two owners, or nobody for ever.
        So it gives way, and asks the group for the number when its queries have ended.
        """
        given_up, generation = {partition.partition for partition in partitions}, self._port.generation
        kept = self._held - given_up
        if self._holds() and self._number in given_up and not (kept and self._move(min(kept))):
            self._happened(LockEvent.REVOKED)
            self._await_end(generation)
            self._number = None
        self._held = kept
        self._port.release(partitions)
        # A client that has joined again meanwhile would take part in no later rebalance (rule R117).
        self._renews = self._renews or self._port.generation != generation

    def on_lost(self, partitions: Partitions) -> None:
        """See `MemberListener`. The queries are stopped by the driver; nobody waits for that."""
        self._lost()
        self._port.release(partitions)

    def on_commit_result(self, result: CommitResult) -> None:
        """See `MemberListener`: commits are synchronous here."""

    def on_coordinator(self, known: bool) -> None:
        """See `MemberListener`: a member without a coordinator loses its session, which is reported."""

    def on_note(self, standby: Partitions, refusal: str) -> None:
        """See `MemberListener`: only for strategies of kafka-python."""

    def on_answer_lost(self) -> None:
        """See `MemberListener`. The answer may have had the lock (rule R84): join anew, unless the lock is held."""
        if self._holds():
            self._happened(LockEvent.SILENT)
        else:
            self._renews = True

    def on_error(self, error: GroupKafkaError) -> None:
        """See `MemberListener`."""
        self._fail(error)
        self._closing.set()

    def on_instance_id_unreleased(self) -> None:
        """See `MemberListener`: the lock has no static members."""

    def on_unusable(self) -> None:
        """See `MemberListener`."""
        self._renews = True

    # --- helpers

    def _holds(self) -> bool:
        with self._changed:
            return self._state in HOLDS

    def _move(self, number: int) -> bool:
        """Make another partition the lock. Return whether it is, and this member owns it."""
        deadline = StepDeadline(self._clock, _MOVE_S, 2 * _RETRY_S)
        while True:
            result = self._commit(number)
            if result.acknowledged:
                LOG.info("the lock stays: group=%s partition=%d", self._options.group_id, number)
                self._number = number
                return True
            if result.lost or deadline.expired():
                return False
            self._closing.wait(_RETRY_S)

    def _await_end(self, generation: bytes) -> None:
        """Wait until the driver's queries have ended. Afterwards the partition is given up, come what may.

        Guards against:
        1. The queries are drained, because the group wants the partition back. Their driver's process is stopped.
        2. The session expires, and another driver starts the queries. The process goes on.
        3. Both run the queries of one checkpoint, until the drain ends.

        Guards against (a topic that gets partitions):
        1. The queries are drained. The lock's topic gets a partition, and the client joins the next `generation`.
        2. The group has not waited: another driver owns the lock, and starts the queries.
        """
        deadline = Deadline(self._clock, _WAIT_PART * self._options.rebalance_timeout_s)
        while not deadline.expired():
            with self._changed:
                if self._state not in GIVES_WAY:
                    break
                self._changed.wait(_STEP_S)
            if self._port.generation != generation:
                self._happened(LockEvent.LOST)
            elif self._wants_proof() and self._pace.due():
                self._prove()
        if deadline.expired():
            LOG.warning("the queries have not ended in time, the lock is given up: group=%s", self._options.group_id)
            self._happened(LockEvent.LOST)
        self._measure_gap_s()

    def _lost(self) -> None:
        self._held, self._number = frozenset(), None
        self._happened(LockEvent.LOST)

    def _fail(self, error: Exception) -> None:
        self._lost()
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _happened(self, event: LockEvent) -> None:
        with self._changed:
            self._apply(event)

    def _apply(self, event: LockEvent) -> None:
        """Change the state. With the lock held."""
        before, self._state = self._state, next_state(self._state, event)
        if before is not self._state:
            LOG.debug(
                "lock: group=%s %s -> %s by %s", self._options.group_id, before.name, self._state.name, event.name
            )
            self._changed.notify_all()
