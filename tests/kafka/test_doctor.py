"""The command `doctor` on a real broker: what it reads of it, with rights and without."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from spark_groupsource.cli.main import main
from tests.realkafka.jars import KAFKA_VERSION
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.security import allow

from .harness import Independent
from .test_security import PASSWORDS, Guarded, guarded

__all__ = ["guarded"]  # a fixture of another module

pytestmark = pytest.mark.kafka

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE


@pytest.fixture(scope="module")
def kafka(guarded: Guarded) -> RealKafka:
    """The broker of all tests here; its plain listener is the super user's."""
    return guarded.kafka


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the findings."""
    code = main(["doctor", "--json", *arguments])
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, said["findings"]


def verdict(findings: list[dict[str, Any]], check: str, text: str = "") -> str:
    """Return the verdict of the one finding with this text."""
    found = [row for row in findings if row["check"] == check and text in row["text"]]
    assert len(found) == 1, findings
    return str(found[0]["verdict"])


def login(guarded: Guarded, user: str, folder: Path) -> list[str]:
    """Return the arguments for a user, whose password is in a file of the caller's own."""
    (folder / "password").write_text(PASSWORDS[user])
    settings = guarded.sasl_ssl(user) | {"sasl.password.file": str(folder / "password")}
    servers = settings.pop("kafka.bootstrap.servers")
    del settings["kafka.sasl.password"]
    (folder / "client.properties").write_text("\n".join(f"{name}={value}" for name, value in settings.items()))
    return ["--bootstrap-servers", servers, "--config", str(folder / "client.properties")]


def committed(client: Independent, kafka: RealKafka, topic: str, group: str) -> None:
    """Let a group have offsets of a topic with records."""
    from confluent_kafka import Consumer, TopicPartition

    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(10)), 2)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def test_a_broker_as_it_is(
    kafka: RealKafka, client: Independent, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its release is the one that runs here; the topics are those of the group."""
    committed(client, kafka, topic, group)
    code, findings = examined(capsys, "--bootstrap-servers", kafka.bootstrap_servers, "--group", group)
    assert verdict(findings, "brokers", "1 can be reached: 127.0.0.1:") == "ok"
    release = ".".join(KAFKA_VERSION.split(".")[:2])
    assert verdict(findings, "release", f"Kafka {release} or newer") == "ok"
    assert verdict(findings, "KIP-848", "the brokers support it") == "ok"
    assert verdict(findings, "rights", f"group {group}: READ is granted") == "ok"
    assert verdict(findings, "rights", f"topic {topic}: READ is granted") == "ok"
    assert verdict(findings, "clock", f"topic {topic}") == "ok"
    assert verdict(findings, "compression", f"topic {topic}: the newest batches are uncompressed") == "ok"
    assert code == 0, findings


def test_a_topic_that_a_producer_compresses_with_gzip_is_advice(
    kafka: RealKafka, client: Independent, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three partitions one is empty, and one has an older batch without compression."""
    from confluent_kafka import Producer

    client.create_topic(topic, 3)
    client.produce_to(topic, [("a", 0), ("a", 1)])
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": "gzip"})
    for _ in range(50):
        producer.produce(topic, b"x" * 100, partition=1)
    producer.flush()
    code, findings = examined(capsys, "--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic)
    assert verdict(findings, "compression", f"topic {topic}: the newest batches are gzip, uncompressed") == "advice"
    assert code == 0, findings


def test_a_group_and_a_topic_that_are_not_there(
    kafka: RealKafka, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--bootstrap-servers", kafka.bootstrap_servers, "--group", group, "--topic", "no-such-topic"]
    code, findings = examined(capsys, *given)
    # The first query of the group makes it.
    assert verdict(findings, "rights", f"group {group}: READ is granted") == "ok"
    assert verdict(findings, "rights", "topic no-such-topic does not exist") == "wrong"
    assert code == 1


@pytest.mark.parametrize(
    ("user", "rules", "topic_verdict", "group_verdict"),
    [
        ("driver", [], "ok", "ok"),
        ("user-21", [(TOPIC, "orders-*", DESCRIBE), (GROUP, "group-*", READ)], "wrong", "ok"),
        ("user-22", [(TOPIC, "orders-*", READ), (GROUP, "group-*", DESCRIBE)], "ok", "wrong"),
        ("user-23", [], "wrong", "wrong"),
    ],
)
def test_rights(
    user: str, rules: list[Any], topic_verdict: str, group_verdict: str, guarded: Guarded, client: Independent,
    topic: str, group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    committed(client, guarded.kafka, topic, group)
    if rules:
        allow(guarded.kafka.bootstrap_servers, user, rules)
    code, findings = examined(capsys, *login(guarded, user, tmp_path), "--group", group, "--topic", topic)
    assert verdict(findings, "rights", f"topic {topic}") == topic_verdict
    assert verdict(findings, "rights", f"group {group}") == group_verdict
    assert code == (1 if "wrong" in (topic_verdict, group_verdict) else 0)
    assert PASSWORDS[user] not in json.dumps(findings)


def test_a_wrong_password(guarded: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = login(guarded, "driver", tmp_path)
    (tmp_path / "password").write_text("another-one")
    code, findings = examined(capsys, *given, "--topic", "orders-any")
    assert verdict(findings, "brokers", "AUTHENTICATION_FAILED") == "wrong"
    assert code == 1


def test_a_record_of_the_future(
    kafka: RealKafka, client: Independent, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As when the clock here is behind the brokers' and the producers'."""
    from confluent_kafka import Producer

    client.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"x", timestamp=round((time.time() + 600) * 1000))
    producer.flush(30)
    code, findings = examined(capsys, "--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic)
    assert verdict(findings, "clock", "in the future") == "wrong"
    assert code == 1
