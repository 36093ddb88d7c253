"""Settings in kafka-python's words: what is translated, left out, refused, and what the client really takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.cluster import ClusterMetadata
from kafka.consumer.fetcher import Fetcher
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.net.manager import KafkaConnectionManager

from spark_groupsource.client.kafka_python_settings import admin_settings, member_consumer_settings
from spark_groupsource.errors import OptionError
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.redaction import MASK
from tests.unit.fakes import make_options

CANARY = "canary-7f3a"
ALWAYS = {
    "bootstrap_servers": "broker:9092",
    "client_id": "groupkafka-member",
    "group_id": "shop",
    "enable_auto_commit": False,
    "allow_auto_create_topics": False,
    "metrics_enabled": False,
    "bootstrap_timeout_ms": 20_000,
    "request_timeout_ms": 45_000,
    "metadata_max_age_ms": 5_000,
    "heartbeat_interval_ms": 3_000,
    "connections_max_idle_ms": 540_000,
}
BOTH = [
    ("client.id", "mine", "client_id", "mine-{role}"),
    ("security.protocol", "sasl_ssl", "security_protocol", "SASL_SSL"),
    ("sasl.mechanism", "scram-sha-512", "sasl_mechanism", "SCRAM-SHA-512"),
    ("sasl.mechanisms", "plain", "sasl_mechanism", "PLAIN"),
    ("sasl.username", "u", "sasl_plain_username", "u"),
    ("sasl.password", CANARY, "sasl_plain_password", CANARY),
    ("sasl.kerberos.service.name", "k", "sasl_kerberos_service_name", "k"),
    ("ssl.ca.location", "/etc/kafka/ca.pem", "ssl_cafile", "/etc/kafka/ca.pem"),
    ("ssl.certificate.location", "/etc/kafka/me.pem", "ssl_certfile", "/etc/kafka/me.pem"),
    ("ssl.key.location", "/etc/kafka/me.key", "ssl_keyfile", "/etc/kafka/me.key"),
    ("ssl.key.password", CANARY, "ssl_password", CANARY),
    ("ssl.crl.location", "/etc/kafka/crl.pem", "ssl_crlfile", "/etc/kafka/crl.pem"),
    ("ssl.endpoint.identification.algorithm", "https", "ssl_check_hostname", True),
    ("ssl.endpoint.identification.algorithm", "None", "ssl_check_hostname", False),
    ("client.dns.lookup", "use_all_dns_ips", "client_dns_lookup", "use_all_dns_ips"),
    ("connections.max.idle.ms", "600000", "connections_max_idle_ms", 600_000),
    ("reconnect.backoff.ms", "11", "reconnect_backoff_ms", 11),
    ("reconnect.backoff.max.ms", "12", "reconnect_backoff_max_ms", 12),
    ("retry.backoff.ms", "13", "retry_backoff_ms", 13),
    ("socket.timeout.ms", "14000", "request_timeout_ms", 14_000),
]
MEMBER_ONLY = [
    ("client.rack", "a", "client_rack", "a"),
    ("group.instance.id", "one", "group_instance_id", "one"),
    ("session.timeout.ms", "6000", "session_timeout_ms", 6_000),
    ("heartbeat.interval.ms", "500", "heartbeat_interval_ms", 500),
    ("max.poll.interval.ms", "60000", "max_poll_interval_ms", 60_000),
    ("topic.metadata.refresh.interval.ms", "9000", "metadata_max_age_ms", 9_000),
]
READERS_ONLY = {
    "isolation.level": "read_committed",
    "enable.metrics.push": "false",
    "fetch.min.bytes": "1",
    "fetch.wait.max.ms": "7",
    "queued.min.messages": "5",
    "max.partition.fetch.bytes": "1000",
    "receive.message.max.bytes": "100000000",
    "message.max.bytes": "1000000",
    "socket.receive.buffer.bytes": "1000",
    "socket.send.buffer.bytes": "1000",
    "topic.metadata.refresh.fast.interval.ms": "100",
    "topic.metadata.propagation.max.ms": "100",
    "statistics.interval.ms": "1000",
    "debug": "cgrp",
    "log_level": "7",
    "log.connection.close": "false",
    "broker.version.fallback": "0.10.0",
    "api.version.request": "true",
}


def options(settings: dict[str, str] | None = None) -> SourceOptions:
    given = {f"kafka.{name}": value for name, value in (settings or {}).items()}
    return make_options(assignors="weighted", **given)


def refused(
    settings: dict[str, str], make: Callable[[SourceOptions], dict[str, Any]] = member_consumer_settings
) -> OptionError:
    with pytest.raises(OptionError) as raised:
        make(options(settings))
    return raised.value


def test_a_member_without_settings_of_its_own() -> None:
    assert member_consumer_settings(options()) == ALWAYS


@pytest.mark.parametrize(("name", "value", "key", "read"), [*BOTH, *MEMBER_ONLY])
def test_each_setting_of_a_member(name: str, value: str, key: str, read: object) -> None:
    settings = member_consumer_settings(options({name: value}))
    assert settings[key] == (read.format(role="member") if isinstance(read, str) else read)


@pytest.mark.parametrize(("name", "value", "key", "read"), BOTH)
def test_each_setting_of_the_admin_client(name: str, value: str, key: str, read: object) -> None:
    settings = admin_settings(options({name: value}))
    assert settings[key] == (read.format(role="admin") if isinstance(read, str) else read)


@pytest.mark.parametrize(("name", "value", "key", "_"), MEMBER_ONLY)
def test_a_members_settings_mean_nothing_to_the_admin_client(name: str, value: str, key: str, _: object) -> None:
    assert key not in admin_settings(options({name: value}))


@pytest.mark.parametrize("make", [member_consumer_settings, admin_settings])
def test_what_concerns_reading_is_left_to_the_readers(make: Callable[[SourceOptions], dict[str, Any]]) -> None:
    assert make(options(READERS_ONLY)) == make(options())


@pytest.mark.parametrize("kind", ["file", "env"])
def test_a_secret_from_elsewhere_arrives_as_itself(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text(CANARY + "\n")
    monkeypatch.setenv("GROUPKAFKA_UNIT_PASSWORD", CANARY)
    place = {"file": str(tmp_path / "password"), "env": "GROUPKAFKA_UNIT_PASSWORD"}[kind]
    for make in (member_consumer_settings, admin_settings):
        assert make(options({f"sasl.password.{kind}": place}))["sasl_plain_password"] == CANARY


# --- what decides each other


@pytest.mark.parametrize(("age_ms", "read"), [("7000", 7_000), ("1", 100)])
def test_how_soon_a_member_notices_what_is_new(age_ms: str, read: int) -> None:
    assert member_consumer_settings(options({"metadata.max.age.ms": age_ms}))["metadata_max_age_ms"] == read


@pytest.mark.parametrize(("session_ms", "request_ms"), [("6000", 6_000), ("600", 1_000)])
def test_a_request_waits_no_longer_than_the_session_lasts(session_ms: str, request_ms: int) -> None:
    settings = member_consumer_settings(options({"session.timeout.ms": session_ms, "heartbeat.interval.ms": "100"}))
    assert settings["request_timeout_ms"] == request_ms


def test_connections_outlive_requests() -> None:
    """The client insists on it."""
    settings = member_consumer_settings(options({"session.timeout.ms": "3600000", "max.poll.interval.ms": "3600000"}))
    assert (settings["request_timeout_ms"], settings["connections_max_idle_ms"]) == (3_600_000, 7_200_000)
    short = member_consumer_settings(options({"connections.max.idle.ms": "1000"}))
    assert short["connections_max_idle_ms"] == 2 * short["request_timeout_ms"]


# --- refusals


@pytest.mark.parametrize("make", [member_consumer_settings, admin_settings])
@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("enable.ssl.certificate.verification", "false", "false"),
        ("ssl.cipher.suites", "ECDHE", MASK),
        ("ssl.keystore.password", CANARY, MASK),
    ],
)
def test_a_setting_that_the_client_does_not_have_is_refused_by_name(
    name: str, value: str, shown: str, make: Callable[[SourceOptions], dict[str, Any]]
) -> None:
    error = refused({name: value}, make)
    assert error.condition.id == "GROUPKAFKA.OPTION_REFUSED"
    assert f"'kafka.{name}'" in str(error)
    assert error.parameters["value"] == shown
    assert f"leave it out (executor.kafka.{name} sets it for executors only), or leave assignors out" in str(error)
    assert CANARY not in str(error) + repr(error.parameters)


@pytest.mark.parametrize("name", ["ssl.key.pem", "ssl.ca.pem", "sasl.oauthbearer.config"])
def test_a_secret_that_is_refused_is_named_as_it_was_given(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(CANARY)
    error = refused({f"{name}.file": str(tmp_path / "secret")})
    assert error.condition.id == "GROUPKAFKA.OPTION_REFUSED"
    assert f"'kafka.{name}.file'" in str(error)
    assert "with option assignors" in str(error)
    assert CANARY not in str(error) + repr(error.parameters)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("retry.backoff.ms", "1s", "invalid literal"),
        ("connections.max.idle.ms", "", "invalid literal"),
        ("ssl.endpoint.identification.algorithm", "off", "https or none"),
        ("security.protocol", "tls", "plaintext, ssl, sasl_plaintext or sasl_ssl"),
    ],
)
def test_a_value_that_the_client_would_not_understand(name: str, value: str, reason: str) -> None:
    error = refused({name: value})
    assert error.condition.id == "GROUPKAFKA.CLIENT_REFUSED_OPTION"
    assert f"'kafka.{name}' with the value '{value}'" in str(error)
    assert reason in str(error)


# --- the client itself


def everything() -> tuple[dict[str, Any], dict[str, Any]]:
    given = {name: value for name, value, *_ in [*BOTH, *MEMBER_ONLY]}
    return member_consumer_settings(options(given)), admin_settings(options(given))


def test_the_client_takes_all_of_them() -> None:
    """It refuses what it does not know, before it connects."""
    member, admin = everything()
    assert member.keys() <= KafkaConsumer.DEFAULT_CONFIG.keys()
    assert admin.keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()


def test_the_client_follows_what_it_takes() -> None:
    """Some of what the consumer accepts reaches no part of it, and would be ignored without a word."""
    parts = (KafkaConnectionManager, ConsumerCoordinator, Fetcher, ClusterMetadata)
    read = {key for part in parts for key in part.DEFAULT_CONFIG} | {"bootstrap_timeout_ms", "metrics_enabled"}
    member, admin = everything()
    assert member.keys() <= read
    assert admin.keys() <= read
