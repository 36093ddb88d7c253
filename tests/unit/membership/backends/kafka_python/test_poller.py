"""The thread that polls kafka-python, and the callbacks: scripted polls, a clock that tests advance."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as client_errors
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.coordinator.heartbeat import Heartbeat
from kafka.future import Future
from kafka.structs import ConsumerGroupMetadata, MemberState
from kafka.structs import TopicPartition as ClientPartition

from spark_groupsource.membership.backends.kafka_python.poller import (
    Callbacks,
    Happened,
    Kind,
    Poller,
)
from spark_groupsource.membership.backends.kafka_python.private import Internals
from tests.unit.fakes import WAIT_S, ManualClock, tp

SESSION_S = 45.0
# As long as a drain may take.
DRAIN_S = 300.0


def first_step(coroutine: Coroutine[Any, Any, object]) -> Future | None:
    """Run a callback until it waits; return what for, None when it ends at once."""
    try:
        return coroutine.send(None)
    except StopIteration:
        return None


def finish(coroutine: Coroutine[Any, Any, object]) -> None:
    """Go on with a callback that was answered; it must end."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


class FakeCoordinator:
    """The client's coordinator: each poll runs the next step of a script, on the thread that polls."""

    def __init__(self, protocol: ClientProtocol) -> None:
        self._rebalance_protocol = protocol
        self.coordinator_id: str | None = None
        self.heartbeat = Heartbeat(group_id="shop", session_timeout_ms=round(SESSION_S * 1000))
        self.config = {"max_poll_interval_ms": round(DRAIN_S * 1000)}
        self.rejoining = False
        self.rejoins = 0
        self.rejoin_needed = True
        self.group_instance_id: str | None = None
        self._heartbeat_enabled = True
        self._offset_fetch_futures = self._send_offset_commit_request = self.fetch_committed_offsets = None
        self.state, self.generation_id = MemberState.UNJOINED, -1
        self.resets = 0
        self.timeouts_ms: list[int] = []
        self.script: list[Callable[[], object]] = []

    def poll(self, timeout_ms: int) -> bool:
        self.timeouts_ms.append(timeout_ms)
        self.script.pop(0)()
        return True

    def reset_generation(self) -> None:
        self.resets += 1
        self.state, self.generation_id, self.rejoin_needed = MemberState.UNJOINED, -1, True

    async def _do_join_and_sync_async(self) -> bytes:
        return b""

    def request_rejoin(self) -> None:
        self.rejoins += not self.rejoin_needed
        self.rejoin_needed = True

    def need_rejoin(self) -> bool:
        return self.rejoin_needed

    def join(self, generation: int) -> None:
        self.state, self.generation_id, self.rejoin_needed = MemberState.STABLE, generation, False


class FakeConsumer:
    """The client, with the group's side scripted."""

    def __init__(self, protocol: ClientProtocol = ClientProtocol.COOPERATIVE) -> None:
        self._coordinator = FakeCoordinator(protocol)
        self._manager = SimpleNamespace(
            call_soon=None, cluster=SimpleNamespace(config={"allow_auto_create_topics": True})
        )
        self.partitions: set[tuple[str, int]] = set()
        self.closed: list[tuple[bool, int]] = []
        self.has_closed = threading.Event()
        self.close_error: BaseException | None = None

    def group_metadata(self) -> SimpleNamespace:
        mine = self._coordinator
        return ConsumerGroupMetadata("shop", mine.generation_id, "m-1", mine.group_instance_id, mine.state)

    def assignment(self) -> set[tuple[str, int]]:
        return self.partitions

    def close(self, autocommit: bool, timeout_ms: int) -> None:
        self.closed.append((autocommit, timeout_ms))
        self.has_closed.set()
        if self.close_error is not None:
            raise self.close_error


class Bed:
    """A poller on a scripted client, and what it told."""

    def __init__(self, protocol: ClientProtocol = ClientProtocol.COOPERATIVE) -> None:
        self.consumer = FakeConsumer(protocol)
        self.internals = Internals(self.consumer)
        self.coordinator = self.consumer._coordinator
        self.clock = ManualClock()
        self.events: list[Happened] = []
        self.losses = 0
        self.waits = False
        self.callbacks = Callbacks(self.events.append, self._lost)
        self.poller = Poller(
            self.internals, self.callbacks, self.events.append, self.clock, lambda: DRAIN_S if self.waits else None
        )

    def _lost(self) -> None:
        self.losses += 1

    def run(self, *script: Callable[[], object]) -> list[Happened]:
        """Let the poller poll as often as there are steps, then close; return what it told."""
        self.coordinator.script = [*script[:-1], lambda: (script[-1](), self.poller.request_close())]
        self.poller.start()
        assert self.consumer.has_closed.wait(WAIT_S), f"waited {WAIT_S} s for the end: {self.coordinator.script}"
        return self.events

    def assign(self, *partitions: tuple[str, int]) -> None:
        """The client's callback on its I/O thread, with the membership thread's answer."""
        coroutine = self.callbacks.on_partitions_assigned(partitions)
        answer = first_step(coroutine)
        assert answer is not None
        answer.success(None)
        finish(coroutine)

    def said(self) -> list[tuple[Kind, object]]:
        return [(event.kind, event.partitions) for event in self.events]


def nothing() -> None:
    """A poll in which nothing happens."""


# --- callbacks


def test_a_callback_hands_over_and_waits_for_the_answer() -> None:
    bed = Bed()
    coroutine = bed.callbacks.on_partitions_assigned([("orders", 1), ("orders", 0)])
    waits_for = first_step(coroutine)
    (event,) = bed.events
    assert event == Happened(Kind.ASSIGNED, (tp(0), tp(1)), waits_for)
    assert not waits_for.is_done
    waits_for.success(None)
    finish(coroutine)


def test_an_answer_that_is_there_already_is_not_waited_for() -> None:
    callbacks = Callbacks(lambda event: event.answer.success(None), nothing)  # type: ignore[union-attr]
    assert first_step(callbacks.on_partitions_assigned([("orders", 0)])) is None


def test_an_eager_client_gives_up_an_assignment_that_never_was() -> None:
    """Nobody is told, and nobody waited for, before the first join."""
    bed = Bed(ClientProtocol.EAGER)
    assert first_step(bed.callbacks.on_partitions_revoked(set())) is None
    assert bed.events == []
    bed.assign(("orders", 0))
    assert first_step(bed.callbacks.on_partitions_revoked({ClientPartition("orders", 0)})) is not None
    assert bed.said() == [(Kind.ASSIGNED, (tp(0),)), (Kind.REVOKED, (tp(0),))]


@pytest.mark.rule("R34")
def test_a_loss_is_known_to_the_strategies_before_the_member_deals_with_it() -> None:
    bed = Bed()
    assert first_step(bed.callbacks.on_partitions_lost([("orders", 0)])) is not None
    assert (bed.losses, bed.said()) == (1, [(Kind.LOST, (tp(0),))])


# --- joins


def test_a_join_without_partitions_is_reported_once_per_generation() -> None:
    """The cooperative client is silent then, and the query would wait for its first assignment."""
    bed = Bed()
    bed.run(lambda: bed.coordinator.join(1), nothing, nothing, lambda: bed.coordinator.join(2), nothing)
    assert bed.said() == [(Kind.ASSIGNED, ()), (Kind.ASSIGNED, ())]
    assert all(event.answer is None for event in bed.events)


def test_an_assignment_that_a_callback_reported_is_not_reported_again() -> None:
    bed = Bed()

    def join() -> None:
        bed.coordinator.join(1)
        bed.assign(("orders", 0))

    bed.run(join, nothing, nothing)
    assert bed.said() == [(Kind.ASSIGNED, (tp(0),))]


def test_a_join_under_way_is_no_assignment() -> None:
    bed = Bed()

    def rebalance() -> None:
        bed.coordinator.state = MemberState.REBALANCING

    bed.run(nothing, rebalance, nothing)
    assert bed.said() == []


def test_polls_are_long() -> None:
    """An answer to a JoinGroup that comes between two polls is thrown away by the client."""
    bed = Bed()
    bed.run(nothing, lambda: bed.coordinator.join(1), nothing, bed.coordinator.reset_generation, nothing)
    assert bed.coordinator.timeouts_ms == [500] * 5


def test_a_join_whose_reason_has_ended_is_seen_through() -> None:
    """A poll times out in it, it ends, and the client sees no reason to join any more, and has forgotten the answer."""
    bed = Bed()

    def forgotten() -> None:
        bed.coordinator.state, bed.coordinator.rejoin_needed = MemberState.REBALANCING, False

    asked: list[bool] = []
    bed.run(
        lambda: bed.coordinator.join(1), nothing, forgotten,
        lambda: asked.append(bed.coordinator.rejoin_needed), lambda: bed.coordinator.join(2), nothing,
    )  # fmt: skip
    assert asked == [True]


def test_a_join_that_is_due_is_not_waited_for() -> None:
    """Nor is it looked at as a stable membership: its metadata has changed."""
    bed = Bed()

    def changed() -> None:
        bed.coordinator.rejoin_needed = True
        bed.clock.advance(SESSION_S + 1)

    bed.run(lambda: bed.coordinator.join(1), changed, lambda: bed.coordinator.join(2), nothing)
    assert bed.coordinator.resets == 0


def test_what_a_revoke_gave_up_is_reported_to_the_strategies() -> None:
    bed = Bed()
    gone: list[object] = []
    callbacks = Callbacks(bed.events.append, nothing, gone.append)
    callbacks._joined = True
    coroutine = callbacks.on_partitions_revoked([("orders", 1)])
    answer = first_step(coroutine)
    assert gone == [], "not before the member has dealt with it"
    assert answer is not None
    answer.success(None)
    finish(coroutine)
    assert gone == [(tp(1),)]


def test_a_static_member_whose_session_is_lost_is_not_taken_for_a_fenced_one() -> None:
    """Both stop its heartbeats; the lost one joins again, with the same instance id."""
    bed = Bed()
    bed.coordinator.group_instance_id = "one"
    bed.coordinator.join(1)
    bed.coordinator._heartbeat_enabled = False
    with pytest.raises(client_errors.FencedInstanceIdError):
        bed.poller._notice_fence()
    bed.coordinator.reset_generation()
    bed.poller._notice_fence()


# --- the session


@pytest.mark.rule("R74")
def test_a_session_that_expires_is_reported_once() -> None:
    """Not even while the client waits for its heartbeat: another member has the partitions by then."""
    bed = Bed()
    bed.consumer.partitions = {("orders", 1), ("orders", 0)}
    bed.run(
        lambda: bed.coordinator.join(1),
        lambda: bed.clock.advance(SESSION_S),
        lambda: bed.clock.advance(0.1),
        nothing,
        nothing,
    )
    assert bed.said() == [(Kind.ASSIGNED, ()), (Kind.LOST, (tp(0), tp(1)))]
    assert (bed.coordinator.resets, bed.coordinator.state) == (1, MemberState.UNJOINED)


def test_a_member_without_partitions_loses_none_and_joins_again() -> None:
    bed = Bed()
    bed.run(lambda: bed.coordinator.join(1), lambda: bed.clock.advance(SESSION_S + 1), nothing)
    assert bed.said() == [(Kind.ASSIGNED, ())]
    assert bed.coordinator.resets == 1


def test_an_answered_heartbeat_keeps_the_session() -> None:
    bed = Bed()

    def answered() -> None:
        bed.clock.advance(SESSION_S - 1)
        bed.coordinator.heartbeat.last_receive = bed.clock.now_s

    bed.run(lambda: bed.coordinator.join(1), *[answered] * 5, nothing)
    assert bed.coordinator.resets == 0


def test_a_join_is_an_answer() -> None:
    """No heartbeat is sent while the group waits for its slowest member."""
    bed = Bed()

    def join() -> None:
        bed.clock.advance(10 * SESSION_S)
        bed.coordinator.join(2)

    bed.run(lambda: bed.coordinator.join(1), nothing, bed.coordinator.reset_generation, join, nothing, nothing)
    assert bed.coordinator.resets == 1


def test_a_leader_asks_again_when_a_partition_waits_for_longer_than_any_drain() -> None:
    """Somebody claims it, and never gives it up: once per such time, and not while nothing waits."""
    bed = Bed()

    def later() -> None:
        bed.clock.advance(DRAIN_S + 1)
        bed.coordinator.heartbeat.last_receive = bed.clock.now_s

    def waits() -> None:
        bed.waits = True

    bed.run(
        lambda: bed.coordinator.join(1), nothing, later, nothing, waits, lambda: bed.coordinator.join(2), nothing,
        later, lambda: bed.coordinator.join(3), nothing,
    )  # fmt: skip
    assert bed.coordinator.rejoins == 2


@pytest.mark.rule("R74")
def test_a_coordinator_that_is_found_and_not_reached_keeps_no_session() -> None:
    """Any broker tells where the coordinator is, and the client then starts its own clock anew."""
    bed = Bed()
    bed.consumer.partitions = {("orders", 0)}

    def found_again() -> None:
        bed.clock.advance(20.0)
        bed.coordinator.heartbeat.reset_timeouts()

    bed.run(lambda: bed.coordinator.join(1), nothing, *[found_again] * 3, nothing)
    assert bed.said()[-1] == (Kind.LOST, (tp(0),))


@pytest.mark.rule("R75")
def test_a_member_whose_instance_id_was_taken_is_reported() -> None:
    """The client only stops its heartbeats, and would take the id back when the session has expired."""
    bed = Bed()
    bed.coordinator.group_instance_id = "one"

    def tell(event: Happened) -> None:
        bed.events.append(event)
        if event.kind is Kind.FAILED:
            poller.request_close()

    def fence() -> None:
        bed.coordinator._heartbeat_enabled = False

    poller = Poller(bed.internals, bed.callbacks, tell, bed.clock)
    bed.coordinator.script = [lambda: bed.coordinator.join(1), nothing, fence]
    poller.start()
    assert bed.consumer.has_closed.wait(WAIT_S)
    taken = client_errors.FencedInstanceIdError("one")
    assert bed.events == [Happened(Kind.ASSIGNED), Happened(Kind.FAILED, error=taken)]


def test_a_join_stops_the_heartbeats_too() -> None:
    bed = Bed()
    bed.coordinator.group_instance_id = "one"

    def prepare() -> None:
        bed.coordinator._heartbeat_enabled, bed.coordinator.rejoining = False, True

    bed.run(lambda: bed.coordinator.join(1), prepare, nothing)
    assert bed.said() == [(Kind.ASSIGNED, ())]


# --- errors and the end


@pytest.mark.parametrize("error", [client_errors.NodeNotReadyError("gone"), ValueError("odd"), SystemExit()])
def test_an_exception_is_reported_and_polling_goes_on(error: BaseException) -> None:
    bed = Bed()

    def fail() -> None:
        raise error

    bed.run(fail, lambda: bed.coordinator.join(1))
    assert bed.events == [Happened(Kind.FAILED, error=error), Happened(Kind.ASSIGNED)]


def test_the_member_leaves_when_it_is_asked_to() -> None:
    bed = Bed()
    assert not bed.poller.ended
    bed.run(nothing)
    assert bed.consumer.closed == [(False, 5_000)]


def test_a_client_that_was_never_polled_is_closed_at_once() -> None:
    bed = Bed()
    bed.poller.request_close()
    assert bed.poller.ended
    assert bed.consumer.closed == [(False, 5_000)]


def test_starting_again_changes_nothing() -> None:
    bed = Bed()
    started = threading.Event()
    bed.coordinator.script = [started.set, bed.poller.request_close]
    bed.poller.start()
    bed.poller.start()
    assert bed.consumer.has_closed.wait(WAIT_S)
    assert len(bed.coordinator.timeouts_ms) == 2


def test_a_client_that_does_not_close_has_ended_all_the_same() -> None:
    bed = Bed()
    bed.consumer.close_error = RuntimeError("stuck")
    said = threading.Event()
    poller = Poller(bed.internals, bed.callbacks, lambda event: (bed.events.append(event), said.set()), bed.clock)
    bed.coordinator.script = [poller.request_close]
    poller.start()
    assert said.wait(WAIT_S)
    assert bed.events == [Happened(Kind.FAILED, error=bed.consumer.close_error)]
