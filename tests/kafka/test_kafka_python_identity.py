"""A member on kafka-python whose identity is refused: by a wrong password, for a moment, or for good (SCRAM)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.backends.choose import group_client
from spark_groupsource.membership.backends.kafka_python.client import KafkaPythonGroup
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.parse import parse_options
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.security import Security, allow, scram_settings

from .harness import Independent, wait_for
from .test_security import GROUP, READ, TOPIC

pytestmark = pytest.mark.kafka

PASSWORD = "canary-identity"


@pytest.fixture(scope="module")
def kafka() -> Iterator[RealKafka]:
    """A broker with a user."""
    with RealKafka(security=Security({"member": PASSWORD})) as kafka:
        allow(kafka.bootstrap_servers, "member", [(TOPIC, "orders-*", READ), (GROUP, "group-*", READ)])
        Independent(kafka.bootstrap_servers).create_topic("orders-identity", 1)
        yield kafka


class Events:
    """A member's listener, which keeps what it is told."""

    def __init__(self) -> None:
        self.assigned: list[TopicPartition] = []
        self.lost: list[TopicPartition] = []
        self.errors: list[GroupKafkaError] = []

    def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.assigned += partitions

    def on_lost(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.lost += partitions

    def on_error(self, error: GroupKafkaError) -> None:
        self.errors.append(error)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def member_of(kafka: RealKafka, password: str) -> KafkaPythonGroup:
    """Return a member that is not open yet."""
    login = {f"kafka.{name}": value for name, value in scram_settings("member", password).items()}
    chosen = {
        "kafka.bootstrap.servers": kafka.secure_servers("SASL_PLAINTEXT"),
        "kafka.group.id": f"group-{uuid.uuid4().hex[:8]}", "subscribe": "orders-identity", "assignors": "weighted",
        "kafka.session.timeout.ms": "60000", "kafka.heartbeat.interval.ms": "500",
        "kafka.reconnect.backoff.max.ms": "1000",
    }  # fmt: skip
    port = group_client(parse_options(login | chosen))
    assert isinstance(port, KafkaPythonGroup)
    return port


def set_password(kafka: RealKafka, password: str) -> None:
    """Give the user another password."""
    info: Any = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion("member", info, password.encode())
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.alter_user_scram_credentials([change]).values():
        future.result(30)


def cut(port: KafkaPythonGroup) -> None:
    """End all of the client's connections."""
    manager = port._opened().consumer._manager
    for connection in list(manager._conns.values()):
        manager.call_soon(connection.close)


@pytest.fixture
def joined(kafka: RealKafka) -> Iterator[tuple[KafkaPythonGroup, Events]]:
    """A member that has its partition."""
    port, seen = member_of(kafka, PASSWORD), Events()
    port.open(seen)
    port.subscribe(["orders-identity"])
    wait_for("the partition", lambda: port.poll() or seen.assigned, 60)
    yield port, seen
    set_password(kafka, PASSWORD)
    port.close()


def test_a_wrong_password_is_reported_at_once(kafka: RealKafka) -> None:
    """Guards against: 1. the member's client alone meets the password; 2. the broker refuses it, and the client tries
    again until its time is over; 3. the query ends with an error about a broker that cannot be reached.
    """
    port, began_s = member_of(kafka, "canary-wrong"), time.monotonic()
    with pytest.raises(GroupKafkaError) as refused:
        port.open(Events())
    assert refused.value.condition.id == "GROUPKAFKA.AUTHENTICATION_FAILED"
    assert "canary" not in str(refused.value)
    assert time.monotonic() - began_s < 15, "the client waits 20 s for a broker that cannot be reached"


def test_a_refusal_that_heals_ends_no_member(kafka: RealKafka, joined: tuple[KafkaPythonGroup, Events]) -> None:
    """Guards against: 1. a member has joined; 2. its connections end, and its identity is refused for a moment; 3. the
    query ends, although the next try would have worked.
    """
    port, seen = joined
    set_password(kafka, "another")
    cut(port)
    transport = port._identity.transport
    wait_for("the refusal", lambda: port.poll() or transport.authentication_failed, 30)
    until_s = time.monotonic() + 3
    while time.monotonic() < until_s:
        port.poll()
    assert transport.authentication_failed
    assert seen.errors == []
    set_password(kafka, PASSWORD)
    item = CommitItem(TopicPartition("orders-identity", 0), 0, "")
    wait_for("a commit", lambda: port.poll() or port.commit_now([item]).acknowledged, 60, lambda: transport.text)
    port.poll()
    assert not transport.authentication_failed
    assert (seen.errors, seen.lost) == ([], [])


def test_a_refusal_that_lasts_ends_the_member(kafka: RealKafka, joined: tuple[KafkaPythonGroup, Events]) -> None:
    """The user's password was changed: after 20 s without any answer it is no hiccup."""
    port, seen = joined
    set_password(kafka, "another")
    cut(port)
    began_s = time.monotonic()
    wait_for("the error", lambda: port.poll() or seen.errors, 60)
    assert time.monotonic() - began_s >= 20
    assert seen.errors[0].condition.id == "GROUPKAFKA.AUTHENTICATION_FAILED"
