"""What all clients share: collapsed logs, and the client's errors turned into the catalogue's."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from spark_groupsource.client.answers import decoded_offsets
from spark_groupsource.client.errors import (
    Patience,
    TransportState,
    kafka_error,
    likely_reason,
    map_error,
    map_group_error,
    not_authenticated,
    topics_denied,
)
from spark_groupsource.client.log import CollapseRepeats, quiet_logger
from spark_groupsource.client.settings import assigned_consumer_settings, base_settings, creating_client
from spark_groupsource.cluster.probe import Probe
from spark_groupsource.errors import KafkaUnavailableError, OptionError
from spark_groupsource.executor.clients.choose import make_client
from spark_groupsource.membership.backends.commit_errors import classify_refusal, denial
from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.port import Refusal
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.redaction import MASK
from tests.unit.fakes import ManualClock, make_options, tp

CANARY = "canary-7f3a"
SCRAM = {"kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.username": "bob", "kafka.sasl.password": "a-secret"}
OPTIONS = make_options(kafka__sasl__password=CANARY, kafka__sasl__username="u", kafka__group__instance__id="one")


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("rdkafka", logging.ERROR, __file__, 1, message, args, None)


def mapped(code: int, *, topic: str = "orders", transport: TransportState | None = None) -> str:
    return str(map_error(OPTIONS, KafkaError(code, "reason"), "Request", transport or TransportState(None), (topic,)))


# --- logs


def test_a_message_is_shown_once_per_interval_with_a_count() -> None:
    clock = ManualClock()
    collapse = CollapseRepeats(30.0, clock)
    assert collapse.filter(record("FAIL [thrd:broker:%d] refused (after %dms)", 9092, 3))
    for attempt in range(5):
        clock.advance(1.0)
        assert not collapse.filter(record("FAIL [thrd:broker:%d] refused (after %dms)", 9093, attempt))
    clock.advance(25.0)
    shown = record("FAIL [thrd:broker:%d] refused (after %dms)", 9092, 7)
    assert collapse.filter(shown)
    assert shown.getMessage() == "FAIL [thrd:broker:9092] refused (after 7ms) (and 5 more like it)"
    clock.advance(30.0)
    again = record("FAIL [thrd:broker:%d] refused (after %dms)", 9092, 7)
    assert collapse.filter(again)
    assert "more like it" not in again.getMessage()


def test_a_long_wait_is_reported_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    clock, transport = ManualClock(), TransportState(None)
    patience = Patience(make_options(kafka__bootstrap__servers="one:9092"), clock, transport)
    clock.advance(60.0)
    patience.begin()
    clock.advance(4.9)
    patience()
    assert caplog.messages == []
    clock.advance(0.1)
    patience()
    transport(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    clock.advance(4.0)
    patience()
    clock.advance(1.0)
    patience()
    said = "waiting for an answer from Kafka: servers=one:9092 last_error="
    assert caplog.messages == [said + "none", said + "connection refused"]


def test_what_is_remembered_is_bounded() -> None:
    collapse = CollapseRepeats(30.0, ManualClock())
    kinds = [chr(0x4E00 + number) for number in range(2000)]
    assert all(collapse.filter(record(kind)) for kind in kinds)
    assert collapse.filter(record(kinds[0])), "it is forgotten, so it passes again within the interval"
    assert not collapse.filter(record(kinds[-1]))


def test_a_role_has_one_filter() -> None:
    assert quiet_logger("unit") is quiet_logger("unit")
    assert sum(isinstance(known, CollapseRepeats) for known in quiet_logger("unit").filters) == 1


def test_base_settings_name_the_role() -> None:
    settings = base_settings(make_options(kafka__client__id="mine"), "member")
    assert (settings["client.id"], settings["bootstrap.servers"]) == ("mine-member", "broker:9092")


# --- mapping


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        (KafkaError._TRANSPORT, "BROKER_UNREACHABLE"),
        (KafkaError._ALL_BROKERS_DOWN, "BROKER_UNREACHABLE"),
        (KafkaError._RESOLVE, "BROKER_UNREACHABLE"),
        (KafkaError._TIMED_OUT, "BROKER_UNREACHABLE"),
        (KafkaError._WAIT_COORD, "BROKER_UNREACHABLE"),
        (KafkaError._AUTHENTICATION, "AUTHENTICATION_FAILED"),
        (KafkaError._SSL, "AUTHENTICATION_FAILED"),
        (KafkaError.SASL_AUTHENTICATION_FAILED, "AUTHENTICATION_FAILED"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "TOPIC_UNKNOWN"),
        (KafkaError._UNKNOWN_TOPIC, "TOPIC_UNKNOWN"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TOPIC_ACCESS_DENIED"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "GROUP_ACCESS_DENIED"),
        (KafkaError.INVALID_SESSION_TIMEOUT, "SESSION_TIMEOUT_REFUSED"),
        (KafkaError.INCONSISTENT_GROUP_PROTOCOL, "GROUP_PROTOCOL_CONFLICT"),
        (KafkaError.UNSUPPORTED_ASSIGNOR, "REMOTE_ASSIGNOR_UNKNOWN"),
        (KafkaError.FENCED_INSTANCE_ID, "INSTANCE_ID_IN_USE"),
        (KafkaError.UNRELEASED_INSTANCE_ID, "INSTANCE_ID_IN_USE"),
        (KafkaError.UNKNOWN, "CLUSTER_REQUEST_FAILED"),
        (KafkaError._FAIL, "CLUSTER_REQUEST_FAILED"),
    ],
)
def test_mapping(code: int, condition: str) -> None:
    text = mapped(code)
    assert f"[GROUPKAFKA.{condition}]" in text
    assert "What to do: " in text
    assert CANARY not in text


def test_a_mapped_error_names_option_value_and_topic() -> None:
    assert "'subscribe' has the value 'orders', but topic 'refunds'" in mapped(
        KafkaError.UNKNOWN_TOPIC_OR_PART, topic="refunds"
    )


def test_other_errors_are_none_of_the_groups() -> None:
    assert map_group_error(OPTIONS, KafkaError(KafkaError._TRANSPORT)) is None


def test_a_request_that_timed_out_says_why_the_brokers_could_not_be_reached() -> None:
    transport = TransportState(None)
    transport(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    transport(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
    assert "connection refused" in mapped(KafkaError._TIMED_OUT, transport=transport)


def test_a_refused_identity_is_the_reason_whatever_comes_after_it() -> None:
    transport = TransportState(None)
    transport(KafkaError(KafkaError._AUTHENTICATION, "SASL PLAIN refused"))
    transport(KafkaError(KafkaError._TRANSPORT, "disconnected"))
    text = mapped(KafkaError._TIMED_OUT, transport=transport)
    assert "AUTHENTICATION_FAILED" in text
    assert "SASL PLAIN refused" in text


WRONG_PASSWORD = "SASL authentication error: Authentication failed: invalid credentials"
CUT_OFF = "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported mechanisms"
NO_TOKEN = "Failed to acquire SASL OAUTHBEARER token: HTTP error 404"


def refused(text: str) -> KafkaError:
    return KafkaError(KafkaError._AUTHENTICATION, text)


@pytest.mark.parametrize(("text", "at_once"), [(WRONG_PASSWORD, True), (CUT_OFF, False), (NO_TOKEN, False)])
@pytest.mark.rule("R76")
def test_an_identity_that_was_never_taken_is_a_wrong_setting(text: str, at_once: bool) -> None:
    """Unless nobody has refused it; when the first contact takes too long, that is told as the reason all the same."""
    transport = TransportState(None, ManualClock())
    transport(refused(text))
    assert transport.refused_for_good is at_once
    error = mapped(KafkaError._TIMED_OUT, transport=transport)
    assert "AUTHENTICATION_FAILED" in error
    assert text in error


@pytest.mark.parametrize(
    ("code", "condition"),
    [
        (KafkaError._TIMED_OUT, "AUTHENTICATION_FAILED"),
        (KafkaError._TRANSPORT, "AUTHENTICATION_FAILED"),
        (KafkaError._NOENT, "AUTHENTICATION_FAILED"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "TOPIC_UNKNOWN"),
        (KafkaError._UNKNOWN_TOPIC, "TOPIC_UNKNOWN"),
        (KafkaError._UNKNOWN_PARTITION, "TOPIC_UNKNOWN"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TOPIC_ACCESS_DENIED"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "GROUP_ACCESS_DENIED"),
        (KafkaError.UNKNOWN, "CLUSTER_REQUEST_FAILED"),
    ],
)
def test_a_refused_identity_explains_no_answer_of_a_broker(code: int, condition: str) -> None:
    """A provider of tokens is away, and the connections of the token in hand go on: a broker answers."""
    transport = TransportState(None)
    transport.worked()
    transport(refused(NO_TOKEN))
    assert f"[GROUPKAFKA.{condition}]" in mapped(code, transport=transport)


@pytest.mark.parametrize("text", [WRONG_PASSWORD, NO_TOKEN])
@pytest.mark.rule("R76")
def test_an_identity_that_was_taken_before_is_refused_for_good_when_it_lasts(text: str) -> None:
    """A provider of tokens is away while the token in hand is good; or a broker starts, and has no users yet.

    Refusals that are far apart, and a request that is answered in between, are two hiccups.
    """
    clock = ManualClock()
    transport = TransportState(None, clock)
    transport.worked()
    transport(refused(text))
    clock.advance(15)
    transport(refused(text))
    assert not transport.refused_for_good
    transport.worked()
    clock.advance(15)
    transport(refused(text))
    assert not transport.refused_for_good
    clock.advance(25)
    assert not transport.refused_for_good
    transport(refused(text))
    assert transport.refused_for_good


@pytest.mark.rule("R76")
def test_a_handshake_that_is_cut_off_is_an_outage_once_the_identity_was_taken() -> None:
    """A broker closes the connection between the handshake and its answer, in a restart."""
    clock = ManualClock()
    transport = TransportState(None, clock)
    transport.worked()
    for _ in range(3):
        transport(refused(CUT_OFF))
        clock.advance(60)
    assert not transport.refused_for_good
    error = mapped(KafkaError._TIMED_OUT, transport=transport)
    assert "BROKER_UNREACHABLE" in error
    assert CUT_OFF in error


def test_what_was_over_before_the_brokers_answered_is_no_reason() -> None:
    clock = ManualClock()
    transport = TransportState(None, clock)
    transport(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    clock.advance(20)
    transport.worked()
    assert transport.text == "connection refused", "another broker has answered: this one may still be away"
    clock.advance(41)
    assert transport.text == "connection refused", "nothing was answered since"
    transport.worked()
    assert transport.text == ""
    assert "connection refused" not in mapped(KafkaError._TIMED_OUT, transport=transport)


def test_a_quota_is_a_reason_until_it_ends_or_there_is_an_error() -> None:
    clock = ManualClock()
    transport = TransportState(None, clock)
    throttled = transport.callbacks["throttle_cb"]
    for delay_s in (1.0, 32.1):
        throttled(SimpleNamespace(broker_id=3, throttle_time=delay_s))
        assert transport.text == f"a quota delays this client, by {delay_s} s on broker 3"
    throttled(SimpleNamespace(broker_id=3, throttle_time=0.0))
    assert transport.text == ""
    throttled(SimpleNamespace(broker_id=3, throttle_time=1.0))
    transport(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
    for delay_s in (1.0, 0.0):
        throttled(SimpleNamespace(broker_id=3, throttle_time=delay_s))
        assert transport.text == "2/2 brokers are down"


def test_a_quota_of_one_broker_is_a_reason_until_its_delay_is_over() -> None:
    """The client reports a delay of 0 once, for the broker that answers first. The delayed one has not answered yet."""
    clock = ManualClock()
    transport = TransportState(None, clock)
    transport.throttled(3, 20.0)
    for broker, delay_s in ((1, 0.0), (2, 0.5)):
        clock.advance(5)
        transport.throttled(broker, delay_s)
        transport.worked()
        assert transport.text == "a quota delays this client, by 20.0 s on broker 3"
    clock.advance(11)
    transport.worked()
    assert transport.text == ""
    for broker, delay_s in ((3, 1.0), (1, 5.0)):
        transport.throttled(broker, delay_s)
    assert transport.text == "a quota delays this client, by 5.0 s on broker 1"
    clock.advance(6)
    transport.throttled(2, 0.0)
    assert transport.text == ""


def test_only_all_brokers_down_is_better_than_nothing() -> None:
    transport = TransportState(None)
    assert transport.text == ""
    transport(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
    assert transport.text == "2/2 brokers are down"


def test_the_error_inside_an_exception() -> None:
    inside = KafkaError(KafkaError._TIMED_OUT)
    assert kafka_error(KafkaException(inside)) is inside
    for bare in (KafkaException("text"), KafkaException()):
        error = kafka_error(bare)
        assert (error.code(), error.str()) == (KafkaError._FAIL, str(bare))


# --- refused settings


@pytest.mark.parametrize(
    ("error", "option", "value"),
    [
        (
            KafkaException(KafkaError(KafkaError._INVALID_ARG, 'Invalid value "x" for "sasl.username"')),
            "kafka.sasl.username",
            "u",
        ),
        (ValueError("group.instance.id: not allowed"), "kafka.group.instance.id", "one"),
        (
            KafkaException(KafkaError(KafkaError._INVALID_ARG, "no such thing")),
            "kafka.bootstrap.servers",
            "broker:9092",
        ),
        (TypeError("expected str"), "kafka.bootstrap.servers", "broker:9092"),
    ],
)
def test_a_setting_that_the_client_refuses(error: Exception, option: str, value: str) -> None:
    with pytest.raises(OptionError) as raised, creating_client(OPTIONS):
        raise error
    assert f"'{option}' with the value '{value}'" in str(raised.value)


def test_a_file_that_the_client_cannot_use_is_reported_with_the_cause(tmp_path: Path) -> None:
    """OpenSSL's own words are "BIO lib" for a missing file, and "PEM lib" for a wrong password."""
    key = tmp_path / "key.pem"
    key.write_text("a key")

    def refused(**settings: str) -> str:
        options = make_options(kafka__security__protocol="ssl", **settings)
        with pytest.raises(OptionError) as raised, creating_client(options):
            Consumer(assigned_consumer_settings(options, "test"))
        return str(raised.value)

    text = refused(kafka__ssl__ca__location=str(tmp_path / "none.pem"))
    assert "'kafka.ssl.ca.location'" in text
    assert "the file cannot be read on host" in text
    assert "No such file or directory" in text
    assert "is kafka.ssl.key.password right?" in refused(kafka__ssl__key__location=str(key))
    assert "is it PKCS#12" in refused(kafka__ssl__keystore__location=str(key)), "a JKS file, for example"
    assert "cannot be read" not in refused(kafka__ssl__key__location=str(tmp_path))


def test_a_secret_in_the_clients_own_words_is_masked() -> None:
    error = KafkaException(KafkaError(KafkaError._INVALID_ARG, f'Invalid value "{CANARY}" for "sasl.password"'))
    with pytest.raises(OptionError) as raised, creating_client(OPTIONS):
        raise error
    assert "'kafka.sasl.password'" in str(raised.value)
    assert CANARY not in str(raised.value) + repr(raised.value.parameters)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("sasl.pasword", CANARY, MASK),
        ("sasl.pasword", "1234", MASK),
        ("nonsense", CANARY, MASK),
        ("fetch.sise", "1048576", "1048576"),
        ("enable.fetching", "True", "True"),
        ("client.rak", "a", MASK),
        ("fetch.sise", "", MASK),
    ],
)
def test_a_setting_that_the_client_does_not_know_may_be_a_misspelt_secret(name: str, value: str, shown: str) -> None:
    options = replace(OPTIONS, client_settings={name: value})
    with pytest.raises(OptionError) as raised, creating_client(options):
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, f'No such configuration property: "{name}"'))
    assert f"'kafka.{name}' with the value '{shown}'" in str(raised.value)
    assert f'No such configuration property: "{name}"' in str(raised.value)


# --- offsets of a group


class Answers:
    """A group's answer, whose texts are those of one read after the other; None cannot be read."""

    def __init__(self, *texts: str | None, offset: int = 7) -> None:
        self._texts = iter(texts)
        self.offset, self.topic, self.partition = offset, "orders", 0

    @property
    def metadata(self) -> str:
        text = next(self._texts)
        if text is None:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return text


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        (['{"gk":1}'], '{"gk":1}'),
        (['{"gk":1}\x7fgarbage}'], '{"gk":1}'),
        ([None, None, '{"gk":1}'], '{"gk":1}'),
        (["of another program"], "of another program"),
        (["12 of another program"], "12 of another program"),
        (['{"gk":' + "[" * 4000], '{"gk":' + "[" * 4000),
        (["{no JSON"], "{no JSON"),
        ([None] * 10, ""),
    ],
)
def test_the_text_of_an_offset_is_read_without_what_stands_behind_it(texts: list[str | None], text: str) -> None:
    answers: Any = [Answers(*texts)]
    assert decoded_offsets(lambda: answers) == {TopicPartition("orders", 0): GroupOffset(7, text)}


def test_an_offset_that_was_never_committed_is_none() -> None:
    answers: Any = [Answers("", offset=-1001)]
    assert decoded_offsets(lambda: answers) == {TopicPartition("orders", 0): GroupOffset(None)}


# --- commits


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (KafkaError.UNKNOWN_MEMBER_ID, Refusal.LOST),
        (KafkaError.FENCED_INSTANCE_ID, Refusal.LOST),
        (KafkaError.FENCED_MEMBER_EPOCH, Refusal.LOST),
        (KafkaError._ASSIGNMENT_LOST, Refusal.LOST),
        (KafkaError.REBALANCE_IN_PROGRESS, Refusal.REBALANCE),
        (KafkaError.ILLEGAL_GENERATION, Refusal.REBALANCE),
        (KafkaError.STALE_MEMBER_EPOCH, Refusal.REBALANCE),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Refusal.NO_TOPIC),
        (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, Refusal.UNCERTAIN),
        (KafkaError._TIMED_OUT, Refusal.UNCERTAIN),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, Refusal.DENIED),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Refusal.DENIED),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, Refusal.DENIED),
        (KafkaError.INVALID_COMMIT_OFFSET_SIZE, Refusal.DENIED),
    ],
)
@pytest.mark.rule("R19")
def test_refused_commits_are_not_all_alike(code: int, refusal: Refusal) -> None:
    assert classify_refusal(KafkaError(code)) is refusal


@pytest.mark.parametrize(
    ("code", "condition", "parts"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "GROUP_ACCESS_DENIED", ["'shop'"]),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "TOPIC_ACCESS_DENIED", ["'orders, refunds'"]),
        (KafkaError.OFFSET_METADATA_TOO_LARGE, "COMMIT_TOO_LARGE", ["refunds-1", "31 bytes", "offset.metadata.max.b"]),
        (KafkaError.INVALID_COMMIT_OFFSET_SIZE, "COMMIT_TOO_LARGE", ["2 partitions", "42 bytes", "max.message.bytes"]),
    ],
)
@pytest.mark.rule("R19")
def test_a_commit_that_is_refused_for_good_is_reported_with_what_to_do(
    code: int, condition: str, parts: list[str]
) -> None:
    items = [CommitItem(tp(0), 5, "m" * 10), CommitItem(tp(1, "refunds"), 5, "m" * 30)]
    error = denial(OPTIONS, KafkaError(code), items)
    assert error is not None
    for part in (f"GROUPKAFKA.{condition}", *parts, "What to do: "):
        assert part in str(error)


def test_a_commit_that_may_yet_be_taken_is_no_error() -> None:
    for code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS, KafkaError._TIMED_OUT):
        assert denial(OPTIONS, KafkaError(code), [CommitItem(tp(0), 5, "m")]) is None


@pytest.mark.parametrize(
    ("settings", "incremental"),
    [
        ({}, True),
        ({"kafka__partition__assignment__strategy": "range"}, False),
        ({"kafka__partition__assignment__strategy": "range,roundrobin"}, False),
        ({"kafka__group__protocol": "consumer"}, True),
    ],
)
def test_which_protocols_revoke_incrementally(settings: dict[str, str], incremental: bool) -> None:
    assert LibrdkafkaGroup(make_options(**settings)).incremental is incremental


def test_a_poll_interval_below_the_default_session_timeout_suits_all_clients() -> None:
    """The member's session timeout allows it; the others are no members, and their client would refuse it."""
    options = make_options(kafka__session__timeout__ms="6000", kafka__max__poll__interval__ms="10000")
    make_client(options, 1024 * 1024).close()
    with pytest.raises(KafkaException, match=r"Timed out|Transport|resolve"):
        Probe(options, TransportState(None)).committed("shop", [tp(0)], 0.01)


class BrokenConsumer:
    """Its client has had a fatal error: every call for records raises it."""

    def __init__(self, broken: str) -> None:
        self.broken = broken

    def incremental_assign(self, _: object) -> None:
        self._call("assign")

    def incremental_unassign(self, _: object) -> None:
        self._call("unassign")

    def consume(self, *_: object) -> list[Any]:
        self._call("consume")
        return []

    def close(self) -> None:
        """Works."""

    def _call(self, name: str) -> None:
        if name == self.broken:
            raise KafkaException(KafkaError(KafkaError._FATAL, "the client is broken"))


@pytest.mark.parametrize("broken", ["assign", "consume", "unassign"])
def test_what_a_probe_cannot_read_is_an_error_of_the_catalogue(broken: str) -> None:
    consumer: Any = BrokenConsumer(broken)
    probe = Probe(make_options(), TransportState(None), lambda _: consumer)
    for look in (lambda: probe.next_records({tp(0): 5}, 0.01), lambda: probe.diverged({tp(0): (5, 1)}, 0.01)):
        with pytest.raises(KafkaUnavailableError, match=r"CLUSTER_REQUEST_FAILED.*Fetch.*the client is broken"):
            look()


def test_a_password_without_a_mechanism_is_about_the_mechanism() -> None:
    """The client's default is GSSAPI, and its error names neither of the options that were given."""
    options = make_options(**{"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.password": "hidden"})
    with pytest.raises(OptionError) as raised, creating_client(options):
        Consumer({"group.id": "g", "security.protocol": "SASL_PLAINTEXT", "sasl.password": "hidden"})
    assert raised.value.parameters["option"] == "kafka.sasl.mechanism"
    assert raised.value.parameters["value"] == "GSSAPI"
    assert "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512" in str(raised.value)
    assert "hidden" not in str(raised.value)


def test_a_mechanism_that_the_client_does_not_know_is_named() -> None:
    options = make_options(**{"kafka.security.protocol": "SASL_PLAINTEXT", "kafka.sasl.mechanism": "SCRAM"})
    shown = r"'kafka\.sasl\.mechanism' with the value 'SCRAM'.*SCRAM-SHA-512"
    with pytest.raises(OptionError, match=shown), creating_client(options):
        Consumer({"group.id": "g", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM"})


@pytest.mark.parametrize(
    ("protocol", "text", "likely"),
    [
        (
            {},
            "0/2 brokers are down",
            "does not expect kafka.security.protocol=plaintext but TLS or a login: set option",
        ),
        ({"kafka.security.protocol": "ssl"}, "1/1 brokers are down", "=ssl but a login"),
        ({"kafka.security.protocol": "sasl_plaintext"} | SCRAM, "1/1 brokers are down", "=sasl_plaintext but TLS"),
        ({}, "Connect to ipv4#127.0.0.1:9 failed: Connection refused", None),
        ({"kafka.security.protocol": "sasl_ssl"} | SCRAM, "1/1 brokers are down", None),
    ],
)
def test_brokers_that_answer_nothing_without_a_reason_have_a_likely_one(
    protocol: dict[str, str], text: str, likely: str | None
) -> None:
    """A listener closes the connection; or a load balancer without a broker behind it keeps it open, and is silent."""
    found = likely_reason(make_options(**protocol), text)
    assert found == text if likely is None else likely in found


def test_brokers_that_have_answered_before_expect_no_other_protocol() -> None:
    """They hang: a cluster that was paused for 5 minutes would be looked for behind TLS."""
    options, transport = make_options(), TransportState(None)
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    transport(down)
    assert "but TLS or a login" in str(map_error(options, down, "ListOffsets", transport))
    transport.worked()
    transport(down)
    found = str(map_error(options, down, "ListOffsets", transport))
    assert "by brokers that have answered before" in found
    assert "TLS" not in found


@pytest.mark.parametrize(
    ("settings", "login", "principal"),
    [
        ({}, "(no login)", "'User:ANONYMOUS'"),
        ({"kafka.security.protocol": "sasl_plaintext"} | SCRAM, "(user 'bob', mechanism SCRAM-SHA-512)", "'User:bob'"),
        ({"kafka.security.protocol": "ssl"}, "(TLS, no certificate)", "'User:<its principal>'"),
    ],
)
def test_a_denial_names_the_client_and_the_command_that_grants(
    settings: dict[str, str], login: str, principal: str
) -> None:
    text = str(topics_denied(make_options(**settings), ["b", "a"]))
    assert login in text
    assert f"kafka-acls.sh --add --allow-principal {principal} --operation Read --topic 'a' --topic 'b'" in text
    assert "a-secret" not in text
    assert login in str(not_authenticated(make_options(**settings), "no"))
