"""TLS, SASL and ACLs on a real broker: what works, the least rights, clear errors, and no secret anywhere."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AclOperation, ResourceType
from pyspark.sql import SparkSession

from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.client.errors import TransportState
from spark_groupsource.client.settings import base_settings
from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster, admin_client
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.executor.pool import ConsumerPool
from spark_groupsource.executor.reader import read_task
from spark_groupsource.membership.backends.choose import group_client
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.client_settings import SHOWN_SECRETS
from spark_groupsource.options.model import SourceOptions, Subscription
from spark_groupsource.options.parse import parse_options
from spark_groupsource.options.permissions import EVERYTHING
from tests.realkafka.realkafka import RealKafka
from tests.realkafka.security import Authority, Identity, Security, allow, scram_settings

from .conftest import ReadAll
from .harness import CLIENTS, Independent, Query, wait_for
from .test_errors import Fail, fail, names

__all__ = ["fail"]  # a fixture of another module

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CANARY = "canary-6fd2"
PASSWORDS = {"driver": f"{CANARY}-driver", "reader": f"{CANARY}-reader", "nobody": f"{CANARY}-nobody"} | {
    f"user-{number}": f"{CANARY}-{number}" for number in range(24)
}
# Topics and groups of the tests are named like this.
TOPICS, GROUPS = "orders-*", "group-*"
READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
# Soon: far below the 120 s that records are waited for.
SOON_S = 45


class Guarded:
    """The broker, and what its clients are told."""

    def __init__(self, kafka: RealKafka, security: Security, folder: Path) -> None:
        self.kafka = kafka
        self.authority = security.authority
        self.driver: Identity = self.authority.identity("driver", password=f"{CANARY}-key")
        self.stranger = Authority(folder, "stranger")

    def sasl_ssl(self, user: str) -> dict[str, str]:
        """Return the source's options for a user with a password."""
        client = scram_settings(user, PASSWORDS[user]) | {"security.protocol": "sasl_ssl"}
        return {f"kafka.{name}": value for name, value in client.items()} | {
            "kafka.bootstrap.servers": self.kafka.secure_servers("SASL_SSL"),
            "kafka.ssl.ca.location": str(self.authority.certificate),
        }

    def mutual_tls(self) -> dict[str, str]:
        """Return the source's options for the driver with its certificate."""
        return {
            "kafka.bootstrap.servers": self.kafka.secure_servers("SSL"),
            "kafka.security.protocol": "ssl",
            "kafka.ssl.ca.location": str(self.authority.certificate),
            "kafka.ssl.certificate.location": str(self.driver.certificate),
            "kafka.ssl.key.location": str(self.driver.key),
            "kafka.ssl.key.password": f"{CANARY}-key",
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that denies what no rule allows; the driver and the reader have the least that they need."""
    security = Security(PASSWORDS)
    with RealKafka(security=security) as kafka:
        allow(kafka.bootstrap_servers, "driver", [(TOPIC, TOPICS, READ), (GROUP, GROUPS, READ)])
        allow(kafka.bootstrap_servers, "reader", [(TOPIC, TOPICS, READ)])
        yield Guarded(kafka, security, tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def kafka(guarded: Guarded) -> RealKafka:
    """The broker of all tests here; the plain listener, which `client` uses, is the super user's."""
    return guarded.kafka


@pytest.fixture
def plain(options: dict[str, str]) -> dict[str, str]:
    """Return the options without where and who."""
    return {name: value for name, value in options.items() if name != "kafka.bootstrap.servers"}


# --- TLS and SASL


@pytest.mark.parametrize("member", CLIENTS)
def test_a_query_over_sasl_ssl(
    member: str, client: Independent, plain: dict[str, str], stored: object, guarded: Guarded, topic: str, group: str,
    read_all: ReadAll, tmp_path: Path,
) -> None:  # fmt: skip
    """Reads all, commits all and leaves; with the password in a file."""
    (tmp_path / "password").write_text(PASSWORDS["driver"] + "\n")
    login = guarded.sasl_ssl("driver") | {"kafka.sasl.password.file": str(tmp_path / "password")}
    del login["kafka.sasl.password"]
    assert read_all(**plain | login | CLIENTS[member]).count() == 100
    assert client.lag(group, topic) == 0
    wait_for("the member to leave", lambda: not client.members(group), 30)


def test_a_query_with_a_client_certificate(
    client: Independent, plain: dict[str, str], stored: object, guarded: Guarded, topic: str, group: str,
    read_all: ReadAll,
) -> None:  # fmt: skip
    """Under KIP-848, which no other test here uses; the executors' own certificate is the same, in a keystore."""
    keystore = {
        "executor.kafka.ssl.keystore.location": str(guarded.driver.keystore),
        "executor.kafka.ssl.keystore.password": f"{CANARY}-key",
    }
    broker_side = ("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms")
    chosen = plain | guarded.mutual_tls() | keystore | {"kafka.group.protocol": "consumer"}
    assert read_all(drop=broker_side, **{n: v for n, v in chosen.items() if n not in broker_side}).count() == 100
    assert client.lag(group, topic) == 0


def test_a_member_on_kafka_python_with_a_client_certificate(
    client: Independent, plain: dict[str, str], stored: object, guarded: Guarded, topic: str, group: str,
    read_all: ReadAll,
) -> None:  # fmt: skip
    """The same PEM files, and the key's password."""
    assert read_all(**plain | guarded.mutual_tls() | CLIENTS["kafka-python"]).count() == 100
    assert client.lag(group, topic) == 0


@pytest.mark.parametrize("wrong", ["password", "authority", "certificate", "no certificate", "executor"])
def test_a_refused_identity(wrong: str, plain: dict[str, str], stored: object, guarded: Guarded, fail: Fail) -> None:
    """Told soon, as what it is, without the secret; also when it is the executors' alone."""
    sasl = plain | guarded.sasl_ssl("driver") | {"fastLaneMaxOffsets": "0"}
    stranger = guarded.stranger.identity("driver")
    certificate = {
        "kafka.ssl.key.location": str(stranger.key), "kafka.ssl.certificate.location": str(stranger.certificate)
    }  # fmt: skip
    chosen = {
        "password": sasl | {"kafka.sasl.password": f"{CANARY}-wrong"},
        "authority": sasl | {"kafka.ssl.ca.location": str(guarded.stranger.certificate)},
        "certificate": plain | guarded.mutual_tls() | certificate,
        "no certificate": {n: v for n, v in (plain | guarded.mutual_tls()).items() if ".key." not in n},
        "executor": sasl
        | {"executor.kafka.sasl.username": "reader", "executor.kafka.sasl.password": f"{CANARY}-wrong"},
    }[wrong]
    if wrong == "no certificate":
        del chosen["kafka.ssl.certificate.location"]
    started = time.monotonic()
    text = fail(chosen)
    assert time.monotonic() - started < SOON_S
    names(text, "AUTHENTICATION_FAILED", chosen["kafka.bootstrap.servers"], "kafka.sasl.*", "executor.kafka.*")
    assert CANARY not in text


# --- the least rights


def test_executors_without_rights_on_the_group(
    client: Independent, plain: dict[str, str], stored: object, guarded: Guarded, topic: str, group: str,
    read_all: ReadAll, fail: Fail,
) -> None:  # fmt: skip
    """The reader may read the topics and nothing else; a user without that right shows that it is they who read."""
    driver = plain | guarded.sasl_ssl("driver") | {"fastLaneMaxOffsets": "0"}

    def as_user(name: str) -> dict[str, str]:
        return {"executor.kafka.sasl.username": name, "executor.kafka.sasl.password": PASSWORDS[name]}

    names(fail(driver | as_user("nobody")), "TOPIC_ACCESS_DENIED", f"'{topic}'")
    assert read_all(**driver | as_user("reader")).count() == 100
    assert client.lag(group, topic) == 0
    # As a member it would be refused.
    names(fail(plain | guarded.sasl_ssl("reader")), "GROUP_ACCESS_DENIED", f"'{group}'")


Rights = tuple[tuple[ResourceType, str, AclOperation], ...]
PARTITIONS = (TopicPartition("orders-rights", 0), TopicPartition("orders-rights", 1))
READ_TOPIC = (TOPIC, TOPICS, READ)
DESCRIBE_TOPIC = (TOPIC, TOPICS, DESCRIBE)
READ_GROUP = (GROUP, GROUPS, READ)
DESCRIBE_GROUP = (GROUP, GROUPS, DESCRIBE)


def _cluster(options: SourceOptions) -> LibrdkafkaCluster:
    return LibrdkafkaCluster(options, SystemClock(), time.sleep)


def _admin(options: SourceOptions) -> GroupAdmin:
    return GroupAdmin(options, SystemClock(), time.sleep)


def _matching(options: SourceOptions) -> None:
    """The broker leaves out what may not be described."""
    if not _cluster(options).matching_topics(Subscription(pattern="orders-rig.*")):
        raise PermissionError


def _session(options: SourceOptions) -> None:
    """It goes on without the answer, as with a short session."""
    found = _cluster(options).group_session_s(options.group_id)
    if found is None:
        raise PermissionError
    assert found == 6.0, "the broker's own"


def _read(options: SourceOptions) -> None:
    task = (OffsetRange(PARTITIONS[0], 0, 5),)
    assert sum(batch.num_rows for batch in read_task(options, task, ConsumerPool(pause=None))) == 5


def _member(options: SourceOptions) -> None:
    settings = base_settings(options, "member") | {"group.id": options.group_id, "enable.auto.commit": False}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([PARTITIONS[0].topic])
        deadline = time.monotonic() + 30
        while not consumer.assignment():
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                raise KafkaException(message.error())
            assert time.monotonic() < deadline
    finally:
        consumer.close()


FEATURES: dict[str, tuple[Callable[[SourceOptions], object], Rights]] = {
    "plan": (lambda options: (_cluster(options).describe(["orders-rights"]), _cluster(options).survey(PARTITIONS)),
             (DESCRIBE_TOPIC,)),
    "pattern": (_matching, (DESCRIBE_TOPIC,)),
    "start of another group": (lambda options: _cluster(options).group_offsets("group-other", PARTITIONS),
                               (DESCRIBE_TOPIC, DESCRIBE_GROUP)),
    "read": (_read, (READ_TOPIC,)),
    "member": (_member, (READ_TOPIC, READ_GROUP)),
    "commit": (lambda options: _admin(options).commit([CommitItem(PARTITIONS[0], 1, "")]), (READ_TOPIC, READ_GROUP)),
    "savepoint": (lambda options: _admin(options).group_offsets(), (DESCRIBE_GROUP,)),
    "session": (_session, ((GROUP, GROUPS, AclOperation.DESCRIBE_CONFIGS),)),
}  # fmt: skip


@pytest.mark.parametrize("feature", FEATURES)
def test_the_least_rights(feature: str, guarded: Guarded, client: Independent) -> None:
    """docs/security.md has this table: it works with these rights, and with none of them left out."""
    if not client.ends_known("orders-rights"):
        client.create_topic("orders-rights", 2)
        client.produce("orders-rights", map(str, range(10)), 2)
    run, needed = FEATURES[feature]
    first = 3 * list(FEATURES).index(feature)
    missing = [tuple(right for right in needed if right != left_out) for left_out in needed]
    for number, rights in enumerate([needed, *missing]):
        user = f"user-{first + number}"
        if rights:
            allow(guarded.kafka.bootstrap_servers, user, rights)
        options = parse_options(
            guarded.sasl_ssl(user)
            | {"subscribe": "orders-rights", "kafka.group.id": f"group-{uuid.uuid4().hex}"}
            | {"kafkaConsumer.pollTimeoutMs": "20000"}
        )
        if rights == needed:
            run(options)
        else:
            with pytest.raises((GroupKafkaError, KafkaException, PermissionError)) as denied:
                run(options)
            assert re.search("authorization failed|ACCESS_DENIED|PermissionError", repr(denied.value))


# --- no secret anywhere


def canaries(folder: Path) -> list[str]:
    """Return the files below a folder that hold a secret."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]


def test_no_secret_is_shown_anywhere(
    plain: dict[str, str], stored: set[tuple[str, int, int]], guarded: Guarded, start_query: Callable[..., Query],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Not in the log at DEBUG, plans, progress, the checkpoint, the metrics and the event log.

    Every secret that may be given as an option is, once for all and once for the executors.
    """
    secrets = ("ssl.key.password", "ssl.keystore.password", "sasl.oauthbearer.client.secret")
    given = {f"{prefix}{name}": f"{CANARY}-{name}" for name in secrets for prefix in ("kafka.", "executor.kafka.")}
    reader = {"executor.kafka.sasl.username": "reader", "executor.kafka.sasl.password": PASSWORDS["reader"]}
    events = tmp_path / "events"
    events.mkdir()
    query = start_query(
        "query",
        plain | guarded.sasl_ssl("driver") | given | reader
        | {"kafka.debug": "all", "metricsPath": str(tmp_path / "metrics"), "fastLaneMaxOffsets": "0"},
        log_level="DEBUG", tell=True,
        conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:{events}"},
    )  # fmt: skip
    query.wait_for_records(stored)
    query.stop()
    seen = (query.out / "said").read_text()
    assert "Analyzed Logical Plan" in seen
    assert seen.count("redacted") >= len(given)
    assert "numInputRows" in seen
    assert " DEBUG " in (query.out / "log").read_text()
    assert "metrics" in (tmp_path / "metrics").read_text()
    assert any(path.stat().st_size for path in events.rglob("*"))
    assert canaries(tmp_path) == []


def test_what_spark_needs_to_know(spark: SparkSession, plain: dict[str, str], guarded: Guarded) -> None:
    """conf/spark-defaults.conf hides the options that Spark would show; without it they are shown."""
    lines = (Path(__file__).parents[2] / "conf" / "spark-defaults.conf").read_text().splitlines()
    name, value = next(line.split() for line in lines if line.startswith("spark.sql.redaction.options.regex"))
    refused = {f"kafka.{setting}": f"{CANARY}-x" for setting in SHOWN_SECRETS if "sasl" in setting}
    chosen = plain | guarded.sasl_ssl("driver") | refused
    chosen |= {"allowedUnsafeSettings": ",".join(SHOWN_SECRETS), "kafka.ssl.key.pem": f"{CANARY}-key"}
    chosen |= {"checkpointLocation": f"s3a://me:{CANARY}@bucket/checkpoint"}
    before = spark.conf.get(name)
    shown = {}
    try:
        for setting in (before, value):
            spark.conf.set(name, setting)
            frame = spark.readStream.format("groupkafka").options(**chosen).load()
            shown[setting] = frame._jdf.queryExecution().toString()
    finally:
        # Other tests of this process share the session.
        spark.conf.set(name, before)
    assert CANARY in shown[before]
    assert CANARY not in shown[value]


@pytest.mark.parametrize("kind", ["member", "admin", "executor"])
def test_the_clients_own_log_shows_no_secret(kind: str, guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG, with all that librdkafka can say, and every secret it knows."""
    secret = {
        "kafka.ssl.keystore.password", "kafka.sasl.oauthbearer.client.secret", "kafka.sasl.oauthbearer.config",
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase", "kafka.sasl.oauthbearer.token.endpoint.url",
        "kafka.sasl.oauthbearer.assertion.private.key.pem", "kafka.sasl.kerberos.kinit.cmd",
    }  # fmt: skip
    options = parse_options(
        guarded.sasl_ssl("driver")
        | {name: f"{CANARY}-{name}" for name in secret}
        | {"kafka.debug": "all", "allowedUnsafeSettings": ",".join(SHOWN_SECRETS)}
        | {"subscribe": "orders-log", "kafka.group.id": "group-log", "kafkaConsumer.pollTimeoutMs": "500"},
        permissions=EVERYTHING,
    )
    with caplog.at_level(logging.DEBUG):
        if kind == "executor":
            with pytest.raises(GroupKafkaError):
                read_task_of(options)
        elif kind == "admin":
            admin = admin_client(options, TransportState(None))
            admin.list_topics(timeout=10)
            admin.poll(0.5)
        else:
            consumer = Consumer(base_settings(options, "member") | {"group.id": "group-log"})
            consumer.poll(1.0)
            consumer.close()
    assert "CONF" in caplog.text
    assert CANARY not in caplog.text


def test_the_log_of_kafka_python_shows_no_secret(
    plain: dict[str, str], stored: object, guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    """At DEBUG, from joining to leaving, and when the broker refuses the password."""
    seen = Listening()
    good = guarded.sasl_ssl("driver") | CLIENTS["kafka-python"]
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, "kafka"):
        port = group_client(parse_options(plain | good))
        port.open(seen)
        port.subscribe([plain["subscribe"]])
        wait_for("partitions", lambda: port.poll() or seen.assigned, 60)
        port.close()
        with pytest.raises(GroupKafkaError, match="AUTHENTICATION_FAILED"):
            group_client(parse_options(plain | good | {"kafka.sasl.password": f"{CANARY}-wrong"})).open(seen)
    assert "kafka-python: " in caplog.text
    assert CANARY not in caplog.text


class Listening:
    """A member that takes what comes."""

    def __init__(self) -> None:
        self.assigned: list[TopicPartition] = []

    def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.assigned += partitions

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def read_task_of(options: SourceOptions) -> None:
    """Read records that are not there."""
    task = (OffsetRange(TopicPartition("orders-log", 0), 0, 5),)
    list(read_task(options, task, ConsumerPool(pause=None)))
