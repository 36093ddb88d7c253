"""Secrets: where they may stand, what is masked, what travels to executors, and what must be allowed by name."""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions

from spark_groupsource.client.errors import TransportState, map_error
from spark_groupsource.client.log import quiet_logger
from spark_groupsource.client.settings import base_settings, creating_client
from spark_groupsource.errors import OptionError
from spark_groupsource.executor.clients.error_events import reading_client_settings, trouble
from spark_groupsource.executor.clients.port import Trouble
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.client_settings import CODE_SETTINGS, SHOWN_SECRETS, UNSAFE_SETTINGS, is_sensitive
from spark_groupsource.options.librdkafka_names import settings_table
from spark_groupsource.options.model import Reads, SourceOptions
from spark_groupsource.options.parse import parse_options
from spark_groupsource.options.permissions import EVERYTHING, Permissions
from spark_groupsource.options.secrets import CLIENT_FILES, SECRET_SETTINGS, reference
from spark_groupsource.redaction import MASK, masked, remember
from spark_groupsource.spark.source import GroupKafkaBatchReader, GroupKafkaDataSource, GroupKafkaPartition
from tests.unit.fakes import tp

REQUIRED = {"kafka.bootstrap.servers": "broker:9092", "kafka.group.id": "shop", "subscribe": "orders"}
CANARY = "canary-51c0ffee"
# As Spark's own: spark.redaction.regex, and spark.sql.redaction.options.regex.
SPARK_REDACTS = re.compile(r"(?i)secret|password|token|access[.]?key|url")


def parse(options: dict[str, str]) -> SourceOptions:
    return parse_options(REQUIRED | options)


def refused(options: dict[str, str], condition: str = "OPTION_REFUSED") -> str:
    with pytest.raises(OptionError) as raised:
        parse(options)
    assert raised.value.condition.id == f"GROUPKAFKA.{condition}"
    return str(raised.value)


def unreadable(options: dict[str, str], role: str = "member", condition: str = "SECRET_UNREADABLE") -> str:
    with pytest.raises(OptionError) as raised:
        base_settings(parse(options), role)
    assert raised.value.condition.id == f"GROUPKAFKA.{condition}"
    return str(raised.value)


@pytest.fixture(scope="module")
def client_settings() -> frozenset[str]:
    """Return the names of all settings of this librdkafka."""
    table = settings_table()
    return frozenset(re.findall(r"^([a-z][a-z._]+?) +\|", table, re.MULTILINE))


# --- the tables, against the client's own list


def test_a_setting_of_the_client_is_not_taken_for_a_reference(client_settings: frozenset[str]) -> None:
    own = {name for name in client_settings if name.endswith((".file", ".env"))}
    assert own
    assert own <= CLIENT_FILES
    for name in own:
        assert reference(name) is None
        assert parse({f"kafka.{name}": "/a/path"}).client_settings[name] == "/a/path"


def test_every_secret_of_the_client_is_known(client_settings: frozenset[str]) -> None:
    assert client_settings > SECRET_SETTINGS
    secrets = {n for n in client_settings if re.search(r"password|passphrase|secret|\.pem$|oauthbearer\.config", n)}
    assert secrets <= SECRET_SETTINGS
    assert all(map(is_sensitive, secrets))


def test_what_spark_would_show_is_refused(client_settings: frozenset[str]) -> None:
    """Certificates and client ids are no secrets, though nobody wants to read the former."""
    shown = {n for n in client_settings if is_sensitive(n) and not SPARK_REDACTS.search(f"kafka.{n}")}
    certificates = {"ssl.certificate.pem", "ssl.ca.pem", "https.ca.pem"}
    others = {"sasl.oauthbearer.assertion.private.key.file", "sasl.oauthbearer.client.credentials.client.id"}
    assert shown - certificates - others <= SHOWN_SECRETS.keys() | CODE_SETTINGS.keys()


# --- files and variables


@pytest.mark.parametrize("name", sorted(SECRET_SETTINGS))
@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
def test_a_secret_in_a_file_or_a_variable(
    name: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_text(f" {CANARY} \r\n")
    monkeypatch.setenv("GROUPKAFKA_TEST", f"{CANARY}\n")
    for options, value in (
        ({f"{prefix}{name}.file": str(path)}, f" {CANARY} "),
        ({f"{prefix}{name.upper()}.ENV": "GROUPKAFKA_TEST"}, CANARY),
    ):
        checked = parse(options)
        assert CANARY.encode() not in pickle.dumps(checked)
        settings = reading_client_settings(checked.for_reading(), 1024)
        assert settings[name] == value
        assert not any(setting.endswith((".file", ".env")) for setting in settings)


def test_a_file_is_read_anew_for_each_client(tmp_path: Path) -> None:
    path = tmp_path / "password"
    options = parse({"kafka.sasl.password.file": str(path)})
    for password in ("first-one", "second-one"):
        path.write_text(password)
        assert base_settings(options, "member")["sasl.password"] == password


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "password"
    option = {"kafka.sasl.password.file": str(path)}
    text = unreadable(option)
    for part in ("'kafka.sasl.password.file'", f"'{path}'", "the driver", "on host", "No such file", "all executors"):
        assert part in text
    assert "an executor" in unreadable(option, "executor")
    assert "'executor.kafka.sasl.password.file'" in str(
        _failed_reading({"executor.kafka.sasl.password.file": "/etc/kafka/none"})
    )
    for content, reason in ((b"\n", "empty"), (b"\xff\xfe", "UTF-8"), (b"x" * 1_048_577, "larger")):
        path.write_bytes(content)
        assert reason in unreadable(option)


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens a named pipe waits for its writer; here there is one, so that a reader would come to an end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"secret",), daemon=True)
    writer.start()
    try:
        monkeypatch.setenv("GROUPKAFKA_SECRET_DIRS", f"{tmp_path}:/dev")
        for path in (pipe, tmp_path, "/dev/null"):
            assert "regular file" in unreadable({"kafka.sasl.password.file": str(path)}, condition="NOT_PERMITTED")
    finally:
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        writer.join(5)
        os.close(reader)


def _failed_reading(options: dict[str, str]) -> OptionError:
    with pytest.raises(OptionError) as raised:
        reading_client_settings(parse(options).for_reading(), 1024)
    return raised.value


@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
def test_each_machine_reads_its_own_rack(prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no secret: a zone's name is not masked in logs."""
    path = tmp_path / "rack"
    path.write_text("zone-of-this-test\n")
    monkeypatch.setenv("KAFKA_RACK", "zone-of-this-test")
    for options in ({f"{prefix}client.rack.file": str(path)}, {f"{prefix}client.rack.env": "KAFKA_RACK"}):
        settings = reading_client_settings(parse(options).for_reading(), 1024)
        assert settings["client.rack"] == "zone-of-this-test"
    assert masked("in zone-of-this-test") == "in zone-of-this-test"
    monkeypatch.delenv("KAFKA_RACK")
    assert "'kafka.client.rack.env'" in unreadable({"kafka.client.rack.env": "KAFKA_RACK"})


def test_a_secret_in_the_place_of_a_variables_name_is_not_shown() -> None:
    assert "hunter2" not in refused({"kafka.sasl.password.env": "hunter2-secret"}, "NOT_PERMITTED")


@pytest.mark.parametrize(("permissions", "condition"), [(None, "NOT_PERMITTED"), (EVERYTHING, "SECRET_UNREADABLE")])
def test_a_secret_in_the_place_of_a_path_is_not_shown(permissions: Permissions | None, condition: str) -> None:
    options = parse_options(REQUIRED | {"kafka.sasl.password.file": "hunter2-secret"}, permissions=permissions)
    with pytest.raises(OptionError, match=rf"{condition}.*'kafka.sasl.password.file'") as raised:
        base_settings(options, "member")
    assert "hunter2" not in str(raised.value)


def test_a_variable_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text = unreadable({"kafka.sasl.password.env": "GROUPKAFKA_TEST_NONE"})
    for part in ("'kafka.sasl.password.env'", "'GROUPKAFKA_TEST_NONE'", "not set", "spark.executorEnv"):
        assert part in text
    monkeypatch.setenv("GROUPKAFKA_TEST_NONE", "")
    assert "empty" in unreadable({"kafka.sasl.password.env": "GROUPKAFKA_TEST_NONE"})


def test_one_secret_one_place() -> None:
    text = refused({"kafka.sasl.password": CANARY, "kafka.sasl.password.env": "KAFKA_A"}, "OPTION_CONFLICT")
    assert "'kafka.sasl.password' and 'kafka.sasl.password.env'" in text
    assert CANARY not in text
    refused({"kafka.sasl.password.file": "a", "kafka.sasl.password.env": "KAFKA_A"}, "OPTION_CONFLICT")
    refused({"kafka.sasl.password.file": " "}, "OPTION_INVALID")
    # The executors' own password takes the place of the common one.
    merged = parse({"kafka.sasl.password": CANARY, "executor.kafka.sasl.password.env": "KAFKA_A"}).for_reading()
    assert "sasl.password" not in merged.client_settings
    merged = parse({"kafka.ssl.ca.pem.file": "/a", "executor.kafka.ssl.ca.pem": "b"}).for_reading()
    assert "ssl.ca.pem.file" not in merged.client_settings


@pytest.mark.parametrize("name", ["group.protocol.file", "session.timeout.ms.env", "enable.auto.commit.file"])
def test_what_is_checked_cannot_be_referred_to(name: str) -> None:
    text = refused({f"kafka.{name}": "/etc/passwd"})
    assert "sasl.password" in text
    assert f"use kafka.{name.rpartition('.')[0]} itself" in text


def test_a_place_is_shown() -> None:
    assert not is_sensitive("kafka.sasl.password.file")
    assert not is_sensitive("executor.kafka.ssl.key.pem.env")
    assert is_sensitive("executor.kafka.sasl.password")


# --- settings that must be allowed by name


@pytest.mark.parametrize("name", sorted(SHOWN_SECRETS))
@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
def test_secrets_that_spark_shows(name: str, prefix: str) -> None:
    text = refused({prefix + name: CANARY})
    assert f"'{prefix}{name}'" in text
    assert f"allowedUnsafeSettings ({name})" in text
    assert CANARY not in text
    others = ",".join(set(UNSAFE_SETTINGS) - {name})
    refused({prefix + name: CANARY, "allowedUnsafeSettings": others})
    allowed = parse({prefix + name: CANARY, "allowedUnsafeSettings": f" kafka.{name.upper()} , {others}"})
    assert allowed.for_reading().client_settings[name] == CANARY


@pytest.mark.parametrize("name", sorted(CODE_SETTINGS))
@pytest.mark.parametrize("prefix", ["kafka.", "executor.kafka."])
def test_settings_that_run_code(name: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No option allows them, the driver's environment does."""
    monkeypatch.delenv("GROUPKAFKA_ALLOW_UNSAFE_SETTINGS", raising=False)
    named = {"allowedUnsafeSettings": ",".join(UNSAFE_SETTINGS)}
    for more in ({}, named):
        text = refused({prefix + name: CANARY} | more, "NOT_PERMITTED")
        assert f"'{prefix}{name}'" in text
        assert "GROUPKAFKA_ALLOW_UNSAFE_SETTINGS" in text
        assert CANARY not in text
    monkeypatch.setenv("GROUPKAFKA_ALLOW_UNSAFE_SETTINGS", ",".join(CODE_SETTINGS.keys() - {name}))
    refused({prefix + name: CANARY}, "NOT_PERMITTED")
    monkeypatch.setenv("GROUPKAFKA_ALLOW_UNSAFE_SETTINGS", f"some.other, {name}")
    assert parse({prefix + name: CANARY}).for_reading().client_settings[name] == CANARY


def test_no_other_setting_can_be_allowed() -> None:
    assert "ssl.key.pem" in refused({"allowedUnsafeSettings": "enable.auto.commit"}, "OPTION_INVALID")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.kerberos.principal", "me; touch /tmp/x"),
        ("sasl.kerberos.principal", "$(id)"),
        ("sasl.kerberos.principal", "-c"),
        ("sasl.kerberos.keytab", '/a" ; touch /tmp/x; "'),
        ("sasl.kerberos.keytab", "/a`id`"),
    ],
)
def test_a_shell_gets_no_commands(name: str, value: str) -> None:
    assert f"'kafka.{name}'" in refused({f"kafka.{name}": value}, "OPTION_INVALID")


def test_names_that_a_shell_may_see() -> None:
    parse({"kafka.sasl.kerberos.principal": "spark/host.example.org@EXAMPLE.ORG"})
    parse({"kafka.sasl.kerberos.keytab": "/etc/security/my keytabs/spark.keytab"})


# --- executors


OWN = {
    "kafka.sasl.username": "driver",
    "kafka.sasl.password": CANARY,
    "kafka.security.protocol": "sasl_ssl",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.ssl.ca.location": "/etc/ssl/ca.pem",
    "kafka.ssl.key.password": CANARY,
    "checkpointLocation": f"s3://user:{CANARY}@bucket/a",
    "executor.kafka.sasl.username": "reader",
    "executor.kafka.sasl.password": "readers-own",
    "executor.kafka.bootstrap.servers": "other:9093",
    "executor.kafka.fetch.wait.max.ms": "7",
}


def test_executors_with_an_identity_of_their_own() -> None:
    options = parse(OWN)
    settings = reading_client_settings(options.for_reading(), 1024)
    assert settings["bootstrap.servers"] == "other:9093"
    assert (settings["sasl.username"], settings["sasl.password"]) == ("reader", "readers-own")
    assert (settings["security.protocol"], settings["sasl.mechanism"]) == ("sasl_ssl", "SCRAM-SHA-512")
    assert (settings["ssl.ca.location"], settings["fetch.wait.max.ms"]) == ("/etc/ssl/ca.pem", "7")
    assert "ssl.key.password" not in settings
    assert options.for_reading() == options.for_reading().for_reading()
    member = base_settings(options, "member")
    assert (member["sasl.username"], member["bootstrap.servers"]) == ("driver", "broker:9092")
    assert "fetch.wait.max.ms" not in member


def test_executors_that_only_read_differently_keep_the_common_identity() -> None:
    merged = parse({"kafka.sasl.password": CANARY, "executor.kafka.fetch.wait.max.ms": "7"}).for_reading()
    assert merged.client_settings["sasl.password"] == CANARY


@pytest.mark.parametrize("name", ["group.id", "group.protocol", "isolation.level", "session.timeout.ms"])
def test_what_executors_cannot_have_of_their_own(name: str) -> None:
    assert f"use kafka.{name}" in refused({f"executor.kafka.{name}": "x"})


def test_executors_settings_are_checked_as_the_common_ones() -> None:
    assert "'executor.kafka.enable.auto.commit'" in refused({"executor.kafka.enable.auto.commit": "true"})
    assert "'executor.kafka.max.poll.records'" in refused({"executor.kafka.max.poll.records": "7"})


# --- what travels


def as_executors_get_it(source: GroupKafkaDataSource, reads: Reads) -> bytes:
    """Return what Spark sends to the executors: the function that reads."""
    # As another process got the source.
    again = pickle.loads(pickle.dumps(source))
    schema = again.schema()
    reader = again.streamReader(schema) if reads is Reads.STREAM else again.reader(schema)
    if reads is Reads.BATCH:
        reader = pickle.loads(pickle.dumps(reader))
        reader.partitions = list
    out = io.BytesIO()
    write_read_func_and_partitions(
        out, reader=reader, data_source=again, schema=schema, max_arrow_batch_size=1, binary_as_bytes=True
    )
    return out.getvalue()


@pytest.mark.parametrize("reads", list(Reads))
def test_executors_get_nothing_of_the_drivers_identity(reads: Reads) -> None:
    sent = as_executors_get_it(GroupKafkaDataSource(REQUIRED | OWN), reads)
    assert b"readers-own" in sent
    assert CANARY.encode() not in sent


@pytest.mark.parametrize("reads", list(Reads))
def test_a_secret_in_a_file_does_not_travel(reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text(CANARY)
    monkeypatch.setenv("GROUPKAFKA_TEST", CANARY)
    options = {"kafka.sasl.password.file": str(tmp_path / "password"), "kafka.ssl.key.pem.env": "GROUPKAFKA_TEST"}
    source = GroupKafkaDataSource(REQUIRED | options)
    base_settings(parse(options), "member")
    assert CANARY.encode() not in pickle.dumps(source) + as_executors_get_it(source, reads)


def test_partitions_hold_ranges_and_their_topics_ids_alone() -> None:
    partition = GroupKafkaPartition((OffsetRange(tp(0), 3, 7),), {"orders": "a", "refunds": "b"})
    assert vars(partition) == {"ranges": (OffsetRange(tp(0), 3, 7),), "topic_ids": {"orders": "a"}}


def test_no_repr_shows_a_secret() -> None:
    source = GroupKafkaDataSource(REQUIRED | OWN | {"executor.kafka.sasl.password": CANARY})
    schema = source.schema()
    for shown in (source, source.streamReader(schema), GroupKafkaBatchReader(parse(OWN)), parse(OWN).for_reading()):
        assert CANARY not in repr(shown) + str(shown)


# --- masking


def test_a_secret_and_its_parts_are_masked() -> None:
    remember(["principal=user-4711 secret=alpha-beta-gamma", "-----BEGIN KEY-----\nMIGHAgEAMBMG\n-----END KEY-----"])
    for text in ("beginning at: secret=alpha-beta-gamma", "read MIGHAgEAMBMG"):
        assert MASK in masked(text)
        assert not re.search(r"alpha|MIGH", masked(text))
    assert masked("a BEGIN KEY, and principal") == "a BEGIN KEY, and principal"


def test_a_short_secret_blackens_nothing() -> None:
    remember(["or", ""])
    assert masked("orders") == "orders"


def test_a_clients_words_are_masked_in_errors_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka's own: it shows the rest of a configuration from where it does not understand it."""
    name = "sasl.oauthbearer.config"
    options = parse({f"kafka.{name}": f"principal=me wrong={CANARY}", "allowedUnsafeSettings": name})
    base_settings(options, "member")
    said = f"Unrecognized {name} beginning at: wrong={CANARY}"
    transport = TransportState(None)
    transport(KafkaError(KafkaError._AUTHENTICATION, said))
    error = map_error(options, KafkaError(KafkaError._TIMED_OUT), "Request", transport)
    with pytest.raises(OptionError) as raised, creating_client(options):
        raise ValueError(said)
    again = pickle.loads(pickle.dumps(error))
    with caplog.at_level(logging.DEBUG):
        quiet_logger("masking").debug("%s %s", "CONF", said)
    for shown in (error, again, raised.value):
        assert CANARY not in str(shown) + repr(shown.__reduce__())
    assert f"'kafka.{name}'" in str(raised.value)
    assert MASK in caplog.text
    assert CANARY not in caplog.text


# --- refused identities


@pytest.mark.parametrize("alert", ["bad certificate", "certificate required", "certificate expired", "unknown ca"])
def test_a_refused_certificate_is_a_refused_identity(alert: str) -> None:
    transport = TransportState(None)
    text = f"Receive failed: error:0A000412:SSL routines::ssl/tls alert {alert}: SSL alert number 42"
    transport(KafkaError(KafkaError._TRANSPORT, text))
    assert transport.authentication_failed
    assert trouble(transport) == Trouble(text, refused=True)


def test_other_trouble_may_heal() -> None:
    transport = TransportState(None)
    assert trouble(transport) is None
    transport(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
    assert trouble(transport) == Trouble("Connection refused")
