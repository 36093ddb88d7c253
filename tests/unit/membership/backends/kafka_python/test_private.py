"""What is used of kafka-python beyond its public API: each name is looked up; its own code, with scripted answers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaConsumer, OffsetAndMetadata, __version__
from kafka import TopicPartition as ClientPartition
from kafka import errors as client_errors
from kafka.consumer.subscription_state import SubscriptionState
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.base import Generation
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.coordinator.heartbeat import Heartbeat
from kafka.future import Future
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.structs import MemberState

from spark_groupsource.errors import ASSIGNORS_NOT_INSTALLED
from spark_groupsource.membership.backends.kafka_python import private
from spark_groupsource.membership.backends.kafka_python.errors import classify_refusal
from spark_groupsource.membership.backends.kafka_python.poller import Callbacks, Happened, Kind
from spark_groupsource.membership.backends.kafka_python.private import Internals, WatchedClient
from spark_groupsource.membership.port import Refusal
from tests.unit.fakes import tp
from tests.unit.membership.backends.kafka_python.test_poller import first_step

PYPROJECT = Path(__file__).resolve().parents[5] / "pyproject.toml"
NAMES = [(kind, name) for kind, names in private._OF_CLASSES.items() for name in names]
NAMES += [(KafkaConsumer, name) for name in private._OF_CONSUMER]


def nothing(*_: object) -> None:
    """Do nothing."""


@pytest.fixture
def make_consumer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., KafkaConsumer]]:
    """Give a function that makes a consumer of the installed client, which never connects."""
    made: list[KafkaConsumer] = []
    # Nothing runs the client's event loop.
    for name in ("start", "drain"):
        monkeypatch.setattr(NetworkSelector, name, nothing)
    monkeypatch.setattr(KafkaConsumer, "close", lambda self, **_: self._net.close())

    def make(assignor: type = CooperativeStickyAssignor) -> KafkaConsumer:
        consumer = KafkaConsumer(
            group_id="shop", api_version=(2, 6), enable_auto_commit=False, metrics_enabled=False,
            partition_assignment_strategy=[assignor], kafka_client=partial(WatchedClient, nothing),
        )  # fmt: skip
        made.append(consumer)
        return consumer

    yield make
    for each in made:
        each.close()


def remove(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a name from an object, and from its classes."""
    *way, last = name.split(".")
    for part in way:
        owner = owner[part] if isinstance(owner, dict) else getattr(owner, part)
    if isinstance(owner, dict):
        del owner[last]
        return
    kinds = owner.__mro__ if isinstance(owner, type) else type(owner).__mro__
    for each in kinds if isinstance(owner, type) else (owner, *kinds):
        if last in getattr(each, "__dict__", {}):
            monkeypatch.delattr(each, last)


# --- the check


def test_the_installed_client_has_each_name(make_consumer: Callable[..., KafkaConsumer]) -> None:
    internals = Internals(make_consumer())
    assert internals.is_cooperative
    assert not internals.coordinator_known
    assert internals.heartbeat_answered_s == float("-inf")
    # kafka-python's own default for such a broker.
    assert internals.session_timeout_s == 30.0
    assert internals.consumer._manager.cluster.config["allow_auto_create_topics"] is False
    assert not Internals(make_consumer(RangePartitionAssignor)).is_cooperative


@pytest.mark.parametrize(("owner", "name"), NAMES, ids=[f"{owner.__name__}.{name}" for owner, name in NAMES])
def test_a_version_without_a_name_is_refused_when_the_member_opens(
    owner: type, name: str, make_consumer: Callable[..., KafkaConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = re.escape(f"version {__version__} has no {owner.__name__}.{name},")
    if owner is KafkaConsumer:
        consumer = make_consumer()
        remove(consumer, name, monkeypatch)
        with pytest.raises(ImportError, match=missing):
            Internals(consumer)
    else:
        remove(owner, name, monkeypatch)
        with pytest.raises(ImportError, match=missing):
            make_consumer()


def test_the_error_names_the_versions_of_the_pin() -> None:
    pin = re.search(r'^assignors = \["(.*)"\]$', PYPROJECT.read_text(), re.MULTILINE)
    assert pin is not None
    assert pin[1] in ASSIGNORS_NOT_INSTALLED.advice


# --- connections


def test_an_answer_is_read_before_the_end_of_its_connection() -> None:
    """Guards against: 1. a broker answers that it refuses the password, and hangs up; 2. the client receives both at
    once, and drops the answer.
    """
    gone = client_errors.KafkaConnectionError("socket disconnected")
    received = iter([(b"refused", gone), (b"", gone), (b"more", None)])
    receive = private._data_first(lambda: next(received))
    assert [receive(), receive(), receive()] == [(b"refused", None), (b"", gone), (b"more", None)]


# --- a loss while it joins, and a fence


@pytest.mark.rule("R27")
@pytest.mark.parametrize(
    ("state", "refusal"), [(MemberState.REBALANCING, Refusal.REBALANCE), (MemberState.UNJOINED, Refusal.LOST)]
)
def test_a_commit_without_a_session_is_lost(state: MemberState, refusal: Refusal) -> None:
    """1. A session ends while a handover waits. 2. The client reports the loss when it joins again, after the handover.
    Its own code says whether it joins, or has no session."""
    coordinator = object.__new__(ConsumerCoordinator)
    coordinator.config = ConsumerCoordinator.DEFAULT_CONFIG | {"api_version": (2, 6)}
    coordinator._lock, coordinator.state, coordinator.coordinator_id = threading.RLock(), state, "group-0"
    coordinator.coordinator = lambda: 0
    coordinator._subscription = SimpleNamespace(partitions_auto_assigned=lambda: True)
    committed = {ClientPartition("orders", 0): OffsetAndMetadata(10, "", -1)}
    with pytest.raises(client_errors.KafkaError) as caught:
        first_step(coordinator._send_offset_commit_request(committed))
    assert classify_refusal(caught.value) is refusal


class JoiningCoordinator(ConsumerCoordinator):
    """The client's own coordinator, whose requests are answered by a script."""

    def __init__(self, callbacks: Callbacks) -> None:  # the base class would connect
        self.config = ConsumerCoordinator.DEFAULT_CONFIG | {"enable_auto_commit": False, "api_version": (2, 6)}
        self._subscription = SubscriptionState()
        self._subscription.subscribe(topics=["orders"], listener=callbacks)
        self._subscription.assign_from_subscribed([ClientPartition("orders", 0)])
        self._assignors = {"cooperative-sticky": CooperativeStickyAssignor()}
        self._rebalance_protocol = ClientProtocol.COOPERATIVE
        self._joined_subscription = {"orders"}
        self._assignment_snapshot = self._metadata_snapshot = None
        self._lock = threading.RLock()
        self._generation = Generation(1, "m-1", "cooperative-sticky")
        self.state, self.rejoining, self.rejoin_needed = MemberState.STABLE, False, True
        self._join_task = None
        self._is_leader = False
        self.auto_commit_interval = 5.0
        self.heartbeat = Heartbeat(group_id="shop")
        self._heartbeat_wakeup = SimpleNamespace(notify=nothing)
        cluster = SimpleNamespace(config={"allow_auto_create_topics": True})
        self._manager = SimpleNamespace(call_soon=lambda method: method, wait_for=self._wait_for, cluster=cluster)
        self.coordinator_id, self._heartbeat_enabled, self._offset_fetch_futures = "group-1", True, {}
        self.tries = 0

    async def _wait_for(self, method: Callable[[], Coroutine[Any, Any, bytes]], timeout_ms: float | None) -> bytes:
        return await method()

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        return True

    async def _do_join_and_sync_async(self) -> bytes:
        """The first JoinGroup finds the session expired; the second one is a new member's, who gets another part."""
        self.state, self.tries = MemberState.REBALANCING, self.tries + 1
        if self.tries == 1:
            self.reset_generation()
            raise client_errors.UnknownMemberIdError
        self._generation = Generation(3, "m-2", "cooperative-sticky")
        return ConsumerProtocolAssignment(1, [("orders", [1])], b"").encode()


@pytest.mark.parametrize(
    ("protected", "expected"),
    [
        # By itself the client gives partition 0 up as if it had been its own all the time, under generation 3.
        (False, [(Kind.REVOKED, (tp(0),), 3), (Kind.ASSIGNED, (tp(1),), 3)]),
        (True, [(Kind.LOST, (tp(0),), -1), (Kind.ASSIGNED, (tp(1),), 3)]),
    ],
)
@pytest.mark.rule("R72")
def test_what_is_lost_while_it_joins_is_reported_as_lost(
    protected: bool, expected: list[tuple[Kind, object, int]]
) -> None:
    events: list[tuple[Kind, object, int]] = []
    pending: list[Future] = []

    def tell(event: Happened) -> None:
        assert event.answer is not None
        events.append((event.kind, event.partitions, coordinator._generation.generation_id))
        pending.append(event.answer)

    callbacks = Callbacks(tell, nothing)
    coordinator = JoiningCoordinator(callbacks)
    callbacks._joined = True
    if protected:
        Internals(SimpleNamespace(_coordinator=coordinator, _manager=coordinator._manager))
    joining = coordinator.join_group_async()
    while (waits_for := first_step(joining)) is not None:
        assert waits_for is pending[-1]
        waits_for.success(None)
    assert events == expected
    assert coordinator.tries == 2
    assert coordinator.state is MemberState.STABLE


@pytest.mark.rule("R111")
def test_a_client_that_refuses_to_join_ends_the_join_under_way() -> None:
    """1. The session has expired. 2. The callback of the loss refuses. 3. No JoinGroup is sent."""
    pending: list[Future] = []
    callbacks = Callbacks(lambda event: pending.append(event.answer or Future()), nothing)
    coordinator = JoiningCoordinator(callbacks)
    coordinator._generation = Generation(-1, "", None)
    internals = Internals(SimpleNamespace(_coordinator=coordinator, _manager=coordinator._manager))
    joining = coordinator.join_group_async()
    assert first_step(joining) is pending[0]
    internals.refuse_to_join()
    pending[0].success(None)
    with pytest.raises(client_errors.KafkaError, match="the member ends"):
        first_step(joining)
    assert coordinator.tries == 0


@pytest.mark.parametrize(("assignor", "patched"), [(RangePartitionAssignor, False), (CooperativeStickyAssignor, True)])
def test_an_eager_client_has_given_up_everything_before_it_joins(
    assignor: type, patched: bool, make_consumer: Callable[..., KafkaConsumer]
) -> None:
    """Nothing is reported twice: what was handed over is not lost."""
    consumer = make_consumer(assignor)
    Internals(consumer)
    assert ("reset_generation" in vars(consumer._coordinator)) is patched


@pytest.mark.rule("R75")
@pytest.mark.parametrize(
    ("answer", "stopped"),
    [
        (None, False),
        (client_errors.RebalanceInProgressError(), False),
        (client_errors.NotCoordinatorError(), False),
        (client_errors.FencedInstanceIdError("one"), True),
    ],
)
def test_the_client_stops_its_heartbeats_when_it_is_fenced(
    answer: BaseException | None, stopped: bool, make_consumer: Callable[..., KafkaConsumer]
) -> None:
    """Nothing else shows a fence: the client only logs it."""
    consumer = make_consumer()
    internals, coordinator = Internals(consumer), consumer._coordinator

    async def send() -> None:
        if answer is not None:
            raise answer

    coordinator._send_heartbeat_request = send
    coordinator._heartbeat_enabled = True
    assert first_step(coordinator._do_heartbeat()) is None
    assert internals.heartbeats_stopped is stopped
    # A join stops them, too, and starts them again before it ends.
    coordinator.rejoining = True
    assert not internals.heartbeats_stopped
