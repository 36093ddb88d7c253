"""Log in with tokens at a broker that checks their signatures: providers, refreshes, failures, no token anywhere."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_groupsource.cli.main import main
from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.options.parse import parse_options
from tests import checkout
from tests.realkafka.oidc import CLIENT_ID, OAuth, TokenServer
from tests.realkafka.realkafka import RealKafka

from .application import Application, AppQuery
from .conftest import ReadAll
from .harness import CLIENTS, Independent, Query, wait_for
from .spark_home import spark_home
from .test_errors import Fail, fail, names

__all__ = ["fail", "spark_home"]  # fixtures of other modules

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

CANARY = "canary-3b9e"
# Brokers end the connection of a client that does not log in again.
REAUTH_MS = 4_000
PROVIDERS = "tests.kafka.token_functions"
# From the first call of a provider to the end of its query.
SOON_S = 15.0
# How long tokens are refreshed under running queries.
REFRESHING_S = float(os.environ.get("GROUPKAFKA_REFRESHING_S", "20"))


@pytest.fixture(scope="module")
def server() -> Iterator[TokenServer]:
    """The token server of all tests here."""
    with TokenServer(secret=CANARY) as running:
        yield running


@pytest.fixture(scope="module")
def oauth_kafka(server: TokenServer) -> Iterator[RealKafka]:
    """A broker that takes its tokens."""
    with RealKafka(security=OAuth(server, REAUTH_MS)) as running:
        yield running


@pytest.fixture
def kafka(oauth_kafka: RealKafka, server: TokenServer) -> RealKafka:
    """The broker of all tests here; the server answers as it should when a test begins."""
    server.status, server.lifetime_s, server.forges = 200, 300.0, False
    server.issued.clear()
    return oauth_kafka


Login = Callable[[str], dict[str, str]]


@pytest.fixture
def login(kafka: RealKafka, server: TokenServer, tmp_path: Path) -> Login:
    """Return the options that log in in a way."""
    secret = tmp_path / "secret" / "config"
    secret.parent.mkdir()

    def chosen(way: str) -> dict[str, str]:
        common = {
            "kafka.bootstrap.servers": kafka.secure_servers("SASL_PLAINTEXT"),
            "kafka.security.protocol": "SASL_PLAINTEXT",
        }
        calls = tmp_path / f"calls-{way}"
        secret.write_text(f"url={server.token_url} calls={calls} secret={server.secret}")
        if way == "oidc":
            secret.write_text(server.secret)
            return common | {
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.method": "oidc",
                "kafka.sasl.oauthbearer.client.id": CLIENT_ID,
                "kafka.sasl.oauthbearer.client.secret.file": str(secret),
                "kafka.sasl.oauthbearer.token.endpoint.url": server.token_url,
            }
        if way == "azure_imds":
            return common | {
                "kafka.sasl.mechanism": "OAUTHBEARER",
                "kafka.sasl.oauthbearer.method": "oidc",
                "kafka.sasl.oauthbearer.metadata.authentication.type": "azure_imds",
                "kafka.sasl.oauthbearer.token.endpoint.url": f"{server.url}/imds",
            }
        return common | {"tokenProvider": f"{PROVIDERS}:{way}", "kafka.sasl.oauthbearer.config.file": str(secret)}

    return chosen


# --- every client logs in


@pytest.mark.parametrize(
    ("way", "lane"),
    [("fetched", "driver"), ("fetched", "executors"), ("oidc", "executors"), ("azure_imds", "executors")],
)
def test_a_query_logs_in(
    way: str, lane: str, client: Independent, options: dict[str, str], stored: object, login: Login, topic: str,
    group: str, read_all: ReadAll,
) -> None:  # fmt: skip
    """As a member, for its admin client, and where the records are read."""
    chosen = options | login(way) | {"fastLaneMaxOffsets": "0" if lane == "executors" else "10000"}
    assert read_all(**chosen).count() == 100
    assert client.lag(group, topic) == 0


def test_a_member_on_kafka_python_logs_in(
    client: Independent, options: dict[str, str], stored: object, login: Login, topic: str, group: str,
    read_all: ReadAll,
) -> None:  # fmt: skip
    """With the same options."""
    assert read_all(**options | login("fetched") | CLIENTS["kafka-python"]).count() == 100
    assert client.lag(group, topic) == 0


def test_a_batch_read_logs_in(spark: SparkSession, stored: object, options: dict[str, str], login: Login) -> None:
    assert spark.read.format("groupkafka").options(**options | login("fetched")).load().count() == 100


def test_the_command_line_logs_in(
    stored: object, login: Login, tmp_path: Path, topic: str, client: Independent, group: str, server: TokenServer,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With the options of the query in a file."""
    client.commit(group, {(topic, 0): 1})
    given = login("fetched")
    servers = given.pop("kafka.bootstrap.servers")
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    arguments = ["lag", "--bootstrap-servers", servers, "--group", group, "--config", str(file)]
    assert main(arguments) == 0
    assert topic in (shown := "".join(capsys.readouterr()))
    assert not _held(shown, server)
    file.write_text(file.read_text().replace(":fetched", ":raising"))
    assert main(arguments) != 0
    text = "".join(capsys.readouterr())
    assert "[GROUPKAFKA.TOKEN_PROVIDER_FAILED]" in text
    assert "PermissionError: invalid_client" in text
    assert CANARY not in text


def test_a_client_is_not_slower(options: dict[str, str], stored: object, login: Login) -> None:
    """confluent-kafka's own callback makes each client a second slower."""
    took = []
    for _ in range(5):
        started = time.monotonic()
        cluster = LibrdkafkaCluster(parse_options(options | login("fetched")), SystemClock(), time.sleep)
        assert cluster.topics()
        cluster.close()
        took.append(time.monotonic() - started)
    assert sorted(took)[2] < 0.5, took


# --- what is wrong


def test_a_token_that_the_broker_refuses(
    options: dict[str, str], stored: object, login: Login, server: TokenServer, fail: Fail
) -> None:
    server.forges = True
    text = fail(options | login("fetched"))
    assert time.monotonic() - server.asked_s[-1] < SOON_S
    names(text, "AUTHENTICATION_FAILED", "invalid_token")
    assert not _held(text, server)


@pytest.mark.parametrize(
    ("where", "provider"),
    [("driver", "raising"), ("driver", "missing"), ("executors", "wrong"), ("executors", "hanging")],
)
def test_a_provider_that_fails(
    where: str, provider: str, options: dict[str, str], stored: object, login: Login, fail: Fail, tmp_path: Path
) -> None:
    """Reported with its own error, the option, and the side; without the secret in its text."""
    chosen = options | login(provider)
    option = "tokenProvider"
    if where == "executors":
        option = "executor.tokenProvider"
        other = tmp_path / "config"
        other.write_bytes(Path(chosen["kafka.sasl.oauthbearer.config.file"]).read_bytes())
        chosen |= {option: chosen["tokenProvider"], "fastLaneMaxOffsets": "0"} | login("fetched")
        chosen["executor.kafka.sasl.oauthbearer.config.file"] = str(other)
    text = fail(chosen)
    ended_s = time.time()
    condition = "TOKEN_PROVIDER_UNUSABLE" if provider == "missing" else "TOKEN_PROVIDER_FAILED"
    side = "the driver" if where == "driver" else "an executor"
    names(text, condition, f"'{option}'", f"{PROVIDERS}:{provider}", side)
    own = {
        "raising": "PermissionError: invalid_client: no grant for client_secret=", "hanging": "it has not returned for",
        "wrong": "TypeError: its expiry is str, not a number", "missing": "has no attribute 'missing'",
    }  # fmt: skip
    assert own[provider] in text
    assert CANARY not in text
    if provider != "missing":
        first_s = float((tmp_path / f"calls-{provider}").read_text().split()[0])
        assert ended_s - first_s < SOON_S


# --- under running queries


@pytest.fixture
def queries(
    application: Application, client: Independent, options: dict[str, str], login: Login, server: TokenServer,
    topic: str, stored: set[tuple[str, int, int]],
) -> Callable[[float], list[AppQuery]]:  # fmt: skip
    """Start a query per kind of member, each with a group of its own, with tokens that live for some seconds."""

    def start(lifetime_s: float) -> list[AppQuery]:
        server.lifetime_s = lifetime_s
        chosen = options | login("fetched") | {"fastLaneMaxOffsets": "0"}
        started = [
            application.start_query(name, chosen | more | {"kafka.group.id": f"{topic}-{name}"})
            for name, more in CLIENTS.items()
        ]
        for query in started:
            query.wait_for_records(stored)
        return started

    return start


@contextmanager
def producing(client: Independent, topic: str) -> Iterator[None]:
    """Produce some records every second meanwhile: between any two refreshes."""
    end = threading.Event()

    def produce() -> None:
        number = 0
        while not end.wait(1.0):
            client.produce(topic, [f"{number}-{part}" for part in range(4)], 2)
            number += 1

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _check_nothing_lost(queries: list[AppQuery], client: Independent, topic: str) -> None:
    wanted = client.records(topic)
    for query in queries:
        query.wait_for_records(wanted)
        counts = query.records()
        assert counts.keys() == wanted
        assert set(counts.values()) == {1}, "a record was read twice"


def test_refreshes_under_running_queries(
    queries: Callable[[float], list[AppQuery]], client: Independent, topic: str, tmp_path: Path
) -> None:
    """Tokens of 3 s, and brokers that end a connection whose token has expired: nothing is lost or read twice."""
    running = queries(3.0)
    calls = tmp_path / "calls-fetched"
    before = len(calls.read_text().split())
    # The readers of both queries, each after 80 % of a life.
    enough = 0.8 * 2 * REFRESHING_S / (0.8 * 3.0)
    with producing(client, topic):
        time.sleep(REFRESHING_S)
        wait_for("all refreshes", lambda: len(calls.read_text().split()) - before >= enough, 30)
    _check_nothing_lost(running, client, topic)


def test_a_provider_that_fails_for_a_while_and_then_for_good(
    queries: Callable[[float], list[AppQuery]], client: Independent, topic: str, server: TokenServer
) -> None:
    """Longer than a token lives: the queries wait, and go on. They end after 20 s without any answer."""
    running = queries(5.0)
    with producing(client, topic):
        server.status = 503
        time.sleep(server.lifetime_s + 8)
        server.status = 200
        time.sleep(2)
    _check_nothing_lost(running, client, topic)
    server.status = 503
    started_s = time.monotonic()
    with producing(client, topic):
        wait_for("a query to end", lambda: not all(query.query.isActive for query in running), 90)
        assert time.monotonic() - started_s > 20
        wait_for("all queries to end", lambda: not any(query.query.isActive for query in running), 60)
    for query in running:
        text = str(query.query.exception())
        for part in ("HTTP Error 503", "tokenProvider", f"{PROVIDERS}:fetched"):
            assert part in text
        assert not _held(text, server)


# --- no token anywhere


def _held(text: str, server: TokenServer) -> list[str]:
    """Return the tokens in a text, by their unique parts: the claims and the signature."""
    return [token for token in server.issued if any(part in text for part in token.split(".")[1:])]


def test_no_token_is_shown_anywhere(
    options: dict[str, str], stored: set[tuple[str, int, int]], login: Login, server: TokenServer, topic: str,
    start_query: Callable[..., Query], tmp_path: Path, spark_home: Path,
) -> None:  # fmt: skip
    """Not in the logs of driver and executor, plans, progress, the checkpoint, metrics and the event log.

    One of the queries has an executor of its own, and logs at DEBUG.
    """
    server.lifetime_s = 4.0
    queries = []
    for member, more in CLIENTS.items():
        events = tmp_path / f"events-{member}"
        events.mkdir()
        chosen = options | login("fetched") | {"kafka.debug": "all", "fastLaneMaxOffsets": "0"} | more
        chosen |= {"metricsPath": str(tmp_path / f"metrics-{member}"), "kafka.group.id": f"{topic}-{member}"}
        conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file:{events}"}
        settings: dict[str, object] = {"log_level": "INFO"}
        if member == "librdkafka":
            conf |= {"spark.master": "local-cluster[1,1,600]", "spark.executor.memory": "600m"}
            # The executor imports the provider, from this checkout.
            environment = {"SPARK_HOME": str(spark_home), "PYTHONPATH": str(checkout.ROOT)}
            settings = {"log_level": "DEBUG", "environment": environment}
        queries.append(start_query(member, chosen, tell=True, conf=conf, **settings))
    for query in queries:
        query.wait_for_records(stored)
    # Refreshed meanwhile, and refused once.
    time.sleep(server.lifetime_s)
    server.status = 503
    for query in queries:
        log = query.out / "log"
        wait_for("a failure to be logged", partial(_has, log, "the token provider fails"), 60)
        query.stop()
        assert _has(query.out / "said", "Analyzed Logical Plan")
    assert len(server.issued) >= 6
    assert list(spark_home.glob("work/*/*/stderr"))
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "secret"]
    files = [path for path in files if path.suffix != ".jar"]
    assert len(files) > 10
    for path in files:
        text = _text(path)
        assert _held(text, server) == [], path
        assert CANARY not in text, path


def _has(path: Path, text: str) -> bool:
    return text in _text(path)


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def test_no_token_is_in_a_pickle(options: Mapping[str, str], login: Login) -> None:
    """Executors get the provider's name, and fetch tokens of their own."""
    parsed = parse_options(dict(options) | login("fetched"))
    assert f"{PROVIDERS}:fetched".encode() in pickle.dumps(parsed.for_reading())
    assert CANARY.encode() not in pickle.dumps(parsed.for_reading())
