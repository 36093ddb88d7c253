"""Errors: each names the option, the value and what to do, within a bounded time; on a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AclOperation, AclPermissionType, ResourceType
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_groupsource import run_when_owner
from spark_groupsource.errors import AccessError
from spark_groupsource.executor.clients.native import NativeClient
from spark_groupsource.executor.clients.pure_python import PythonClient
from tests.realkafka.cluster import free_ports
from tests.realkafka.quotas import set_quota
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.security import allow

from .batchloop import BatchLoop, Row
from .harness import Independent, wait_for
from .test_takeover import with_protocol

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Fail = Callable[[dict[str, str]], str]

# Far above what any of these errors takes, far below what a user would call a hang.
BOUND_S = 60


@pytest.fixture
def fail(spark: SparkSession, tmp_path: Path) -> Fail:
    """Run a query that must fail in bounded time and return the error's text."""

    def run(options: dict[str, str]) -> str:
        started = time.monotonic()
        with pytest.raises(PySparkException) as caught:  # noqa: PT012
            frame = spark.readStream.format("groupkafka").options(**options).load()
            query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            try:
                if not query.awaitTermination(BOUND_S):
                    pytest.fail(f"no error within {BOUND_S} s")
            finally:
                query.stop()
        assert time.monotonic() - started < BOUND_S
        return str(caught.value)

    return run


def names(text: str, condition: str, *parts: str) -> None:
    """Assert that an error has a condition and names all that a reader needs."""
    for part in (f"[GROUPKAFKA.{condition}]", *parts, "What to do:"):
        assert part in text, text


def test_a_bad_option_fails_at_load(fail: Fail, options: dict[str, str]) -> None:
    """Before any query starts."""
    names(fail(options | {"startingOffsets": "newest"}), "OPTION_INVALID", "'startingOffsets'", "'newest'", "earliest")
    names(fail(options | {"kafka.enable.auto.commit": "true"}), "OPTION_REFUSED", "'kafka.enable.auto.commit'")
    names(fail(options | {"subscribePatern": "a"}), "OPTION_UNKNOWN", "'subscribePattern'")


def test_an_unknown_topic(fail: Fail, options: dict[str, str], topic: str) -> None:
    """The topic was never made."""
    names(fail(options), "TOPIC_UNKNOWN", "'subscribe'", f"'{topic}'")


def test_an_unreachable_broker(fail: Fail, options: dict[str, str]) -> None:
    """Nothing listens there."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    names(
        fail(options | {"kafka.bootstrap.servers": address}),
        "BROKER_UNREACHABLE",
        "'kafka.bootstrap.servers'",
        address,
    )


def test_m04_a_refused_session_timeout(client: Independent, fail: Fail, options: dict[str, str], topic: str) -> None:
    """Below the broker's group.min.session.timeout.ms."""
    client.create_topic(topic, 1)
    refused = {"kafka.session.timeout.ms": "500", "kafka.heartbeat.interval.ms": "100"}
    names(fail(options | refused), "SESSION_TIMEOUT_REFUSED", "'kafka.session.timeout.ms'", "'500'")


def test_m12_a_group_with_another_strategy(
    client: Independent, fail: Fail, options: dict[str, str], topic: str, group: str
) -> None:
    """A member with another assignor is there already; an unknown assignor is refused at load."""
    client.create_topic(topic, 1)
    other = Consumer(
        {
            "bootstrap.servers": client.bootstrap_servers,
            "group.id": group,
            "partition.assignment.strategy": "roundrobin",
        }
    )
    other.subscribe([topic])
    wait_for("the other member", lambda: (other.poll(0.2), other.assignment())[1], 30)
    try:
        text = fail(options | {"kafka.partition.assignment.strategy": "range"})
    finally:
        other.close()
    names(text, "GROUP_PROTOCOL_CONFLICT", group, "kafka.partition.assignment.strategy='range'", "runs 'roundrobin'")
    text = fail(options | {"kafka.partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"})
    names(text, "OPTION_INVALID", "'kafka.partition.assignment.strategy'", "cooperative-sticky")


@pytest.fixture(scope="module")
def guarded_kafka() -> Iterator[RealKafka]:
    """A broker with an authorizer: what has no rule is allowed, what a rule denies is not."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with RealKafka(properties=properties) as broker:
        yield broker


def deny(broker: RealKafka, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Deny an operation on a resource to everybody."""
    allow(broker.bootstrap_servers, "ANONYMOUS", [(kind, name, operation)], AclPermissionType.DENY)


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_a_right_is_taken_away_from_two_queries(
    protocol: str, guarded_kafka: RealKafka, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """Also the one fails that has no partition of the topic, and whose client learns it before it is given one."""
    client, denied = Independent(guarded_kafka.bootstrap_servers), f"{topic}-denied"
    for name in (topic, denied):
        client.create_topic(name, 1)
    chosen = with_protocol(options, protocol) | {
        "kafka.bootstrap.servers": guarded_kafka.bootstrap_servers,
        "subscribe": f"{topic},{denied}",
    }
    taken = threading.Event()

    def holds(rows: list[Row]) -> None:
        if any(row.topic == denied for row in rows):
            taken.wait(60)
            # Clients refresh their metadata every second here.
            time.sleep(4)

    queries = [BatchLoop(name, chosen, tmp_path / name, before_commit=holds) for name in ("first", "second")]
    wait_for("two members", lambda: client.member_count(group) == 2, 60)
    time.sleep(3)
    client.produce(denied, ["a"], 1)
    deny(guarded_kafka, ResourceType.TOPIC, denied, AclOperation.ALL)
    taken.set()
    for query in queries:
        query.wait_ended(90)
        names(query.failure, "TOPIC_ACCESS_DENIED", denied)


@pytest.mark.parametrize("kind", [NativeClient, PythonClient])
def test_a_quota_that_lets_no_record_through_is_named(
    kind: type[NativeClient | PythonClient], client: Independent, options: dict[str, str], topic: str,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    """The client reports delays only while its own events are read; with both clients."""
    if kind is PythonClient:
        monkeypatch.setattr("spark_groupsource.executor.clients.choose.native_library", lambda: "not here")
    client.create_topic(topic, 1)
    client.produce(topic, ["x" * 100_000] * 10, 1)
    set_quota(client.bootstrap_servers, f"{topic}-executor", "consumer_byte_rate", 1_000.0)
    query = BatchLoop(topic, options | {"kafkaConsumer.pollTimeoutMs": "8000"}, tmp_path)
    query.wait_ended(BOUND_S)
    names(query.failure, "READ_STALLED", f"{topic}-0", "a quota delays this client, by ")


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_missing_rights(
    protocol: str, guarded_kafka: RealKafka, fail: Fail, options: dict[str, str], topic: str, group: str
) -> None:
    """On two of three topics, then on the group."""
    denied = [f"{topic}-denied", f"{topic}-secret"]
    for name in (topic, *denied):
        Independent(guarded_kafka.bootstrap_servers).create_topic(name, 1)
    chosen = options | {
        "kafka.bootstrap.servers": guarded_kafka.bootstrap_servers,
        "kafka.group.protocol": protocol,
    }
    if protocol == "consumer":
        del chosen["kafka.session.timeout.ms"], chosen["kafka.heartbeat.interval.ms"]
    for name in denied:
        deny(guarded_kafka, ResourceType.TOPIC, name, AclOperation.ALL)
    text = fail(chosen | {"subscribe": ",".join((topic, *denied))})
    names(text, "TOPIC_ACCESS_DENIED", "'subscribe'", "--operation Read " + " ".join(f"--topic '{n}'" for n in denied))
    deny(guarded_kafka, ResourceType.GROUP, group, AclOperation.READ)
    names(fail(chosen), "GROUP_ACCESS_DENIED", "'kafka.group.id'", f"'{group}'")
    deny(guarded_kafka, ResourceType.GROUP, f"{group}.lock", AclOperation.READ)
    with pytest.raises(AccessError) as caught:
        run_when_owner(pytest.fail, group=group, topic=topic, options=chosen)  # type: ignore[arg-type]
    names(str(caught.value), "GROUP_ACCESS_DENIED", f"'{group}.lock'")


@pytest.mark.parametrize("member", ["classic", "consumer", "kafka-python"])
@pytest.mark.rule("R19")
def test_p6_a_right_that_is_taken_away_from_a_running_query(
    member: str, guarded_kafka: RealKafka, spark: SparkSession, options: dict[str, str], topic: str, group: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Its next commit is refused for good: it ends with the cause, and does not read on without commits."""
    client = Independent(guarded_kafka.bootstrap_servers)
    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(10)), 2)
    chosen = options | {"kafka.bootstrap.servers": guarded_kafka.bootstrap_servers}
    if member == "consumer":
        del chosen["kafka.session.timeout.ms"], chosen["kafka.heartbeat.interval.ms"]
        chosen |= {"kafka.group.protocol": "consumer"}
    elif member == "kafka-python":
        chosen |= {"assignors": "weighted"}
    frame = spark.readStream.format("groupkafka").options(**chosen).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def ended() -> bool:
        client.produce(topic, ["more"], 2)
        return query.exception() is not None

    try:
        wait_for("the first commits", lambda: client.lag(group, topic) == 0, 60)
        deny(guarded_kafka, ResourceType.GROUP, group, AclOperation.READ)
        wait_for("the error", ended, 30)
        names(str(query.exception()), "GROUP_ACCESS_DENIED", "'kafka.group.id'", f"'{group}'")
    finally:
        query.stop()
