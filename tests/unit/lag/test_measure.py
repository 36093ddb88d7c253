"""Measure lag inputs: what one partition or one broker that is away may hide."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_groupsource.client.errors import CONTACT_TIMEOUT_S
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.lag import measure
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.lag.model import Retention
from tests.unit.cluster.test_admin import FakeAdmin, cluster_of
from tests.unit.fakes import ManualClock, make_options, tp

WEEK = {"orders": Retention(604_800_000)}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def made(clock: ManualClock) -> LagRequests:
    return LagRequests(make_options(), clock, clock.advance)


# --- retention


class ConfigAdmin:
    """An admin client that returns a topic's retention, or its error."""

    def __init__(self, code: int | None = None) -> None:
        self.code = code
        self.asked = 0

    def __exit__(self, *_: object) -> None:
        """Have nothing to free."""

    def poll(self, _timeout_s: float) -> None:
        """Have nothing to report."""

    def describe_configs(self, resources: list[Any], **_: object) -> dict[Any, Future[Any]]:
        self.asked += 1
        future: Future[Any] = Future()
        if self.code is None:
            future.set_result({"retention.ms": SimpleNamespace(value="604800000")})
        else:
            future.set_exception(KafkaException(KafkaError(self.code)))
        return dict.fromkeys(resources, future)


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[ConfigAdmin]:
    """Return the clients that are made next."""
    following: list[ConfigAdmin] = []
    with_clients = partial(LibrdkafkaCluster, make_client=lambda *_: following.pop(0))  # type: ignore[arg-type,return-value]
    monkeypatch.setattr(measure, "LibrdkafkaCluster", with_clients)
    return following


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_a_broker_that_is_down_is_not_asked_about_retention_for_ever(
    clients: list[ConfigAdmin], code: int, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """1. The client knows a controller. 2. That broker is gone. 3. The client asks it again and again."""
    stuck, fresh = ConfigAdmin(), ConfigAdmin()
    clients += [stuck, fresh]
    requests = made(clock)
    assert requests._retentions({"orders"}) == WEEK
    stuck.code = code
    clock.advance(CONTACT_TIMEOUT_S)
    assert requests._retentions({"orders"}) == {}
    assert requests._retentions({"orders"}) == WEEK
    assert (stuck.asked, fresh.asked) == (2, 1)
    assert "retention" in caplog.text


def test_a_client_that_has_just_been_made_may_still_be_connecting(
    clients: list[ConfigAdmin], clock: ManualClock
) -> None:
    """A handshake takes longer than one request: a new client would begin it again."""
    slow, other = ConfigAdmin(KafkaError._TIMED_OUT), ConfigAdmin()
    clients += [slow, other]
    requests = made(clock)
    assert requests._retentions({"orders"}) == {}
    clock.advance(CONTACT_TIMEOUT_S - 1)
    slow.code = None
    assert requests._retentions({"orders"}) == WEEK
    assert other.asked == 0


def test_unanswered_questions_about_retention_are_warned_of_once(
    clients: list[ConfigAdmin], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """On the logger of waits, because it is the only one that command lines show."""
    client = ConfigAdmin(KafkaError._TIMED_OUT)
    clients += [client]
    requests = made(clock)
    requests._cluster._admin.transport(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    for _ in range(3):
        requests._retentions({"orders", "refunds"})
    (warned,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert warned.name == "spark_groupsource.waiting"
    assert "last_error=Connection refused" in warned.getMessage()
    client.code = None
    requests._retentions({"orders"})
    client.code = KafkaError._TIMED_OUT
    requests._retentions({"orders"})
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 2


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNSUPPORTED_FEATURE])
def test_an_answer_of_the_broker_is_no_reason_for_another_client(
    clients: list[ConfigAdmin], code: int, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    client = ConfigAdmin(code)
    clients += [client]
    requests = made(clock)
    for _ in range(2):
        clock.advance(CONTACT_TIMEOUT_S)
        assert requests._retentions({"orders"}) == {}
    assert (client.asked, caplog.text) == (2, "")


# --- log bounds


@pytest.mark.parametrize(
    ("leaderless", "found"), [({1}, {tp(0): (7, 7), tp(2): (7, 7)}), ({0, 1, 2}, {})], ids=["one", "all"]
)
def test_a_partition_without_a_leader_is_left_out_at_once(
    leaderless: set[int], found: dict[object, object], clock: ManualClock
) -> None:
    requests = made(clock)
    requests._cluster = cluster_of(FakeAdmin(leaderless=leaderless), clock)
    before_s = clock.monotonic_s()
    assert requests.log_bounds([tp(0), tp(1), tp(2)]) == found
    assert clock.monotonic_s() == before_s


def test_a_leader_that_goes_away_between_two_requests_is_noticed(clock: ManualClock) -> None:
    """1. All leaders are known. 2. One dies, and the client continues to ask it. 3. A new client has no leader."""
    admin = FakeAdmin()
    requests = made(clock)
    requests._cluster = cluster_of(admin, clock)
    assert len(requests.log_bounds([tp(0), tp(1)])) == 2
    admin.errors, admin.leaderless = [KafkaError._TIMED_OUT], {1}
    assert requests.log_bounds([tp(0), tp(1)]) == {tp(0): (7, 7)}
