"""kafka-python's errors: what they mean for a commit, and which end the query with which condition."""

from __future__ import annotations

import ssl

import pytest
from kafka import errors as client_errors

from spark_groupsource.client.errors import TransportState
from spark_groupsource.membership.backends.kafka_python.errors import (
    classify_refusal,
    fatal,
    is_refused_identity,
    unreachable,
)
from spark_groupsource.membership.backends.kafka_python.identity import Identity
from spark_groupsource.membership.port import Refusal
from tests.unit.fakes import ManualClock, make_options

OPTIONS = make_options(assignors="weighted", kafka__group__instance__id="one")


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (client_errors.UnknownMemberIdError(), Refusal.LOST),
        (client_errors.FencedInstanceIdError(), Refusal.LOST),
        (client_errors.CommitFailedError(client_errors.UnknownMemberIdError()), Refusal.LOST),
        (client_errors.RebalanceInProgressError("joins"), Refusal.REBALANCE),
        (client_errors.IllegalGenerationError(), Refusal.REBALANCE),
        (client_errors.CommitFailedError(client_errors.IllegalGenerationError()), Refusal.REBALANCE),
        (client_errors.CommitFailedError(client_errors.RebalanceInProgressError()), Refusal.REBALANCE),
        (client_errors.CommitFailedError("not part of an active group"), Refusal.LOST),
        (client_errors.UnknownTopicOrPartitionError(), Refusal.NO_TOPIC),
        (client_errors.RequestTimedOutError(), Refusal.UNCERTAIN),
        (client_errors.KafkaConnectionError(), Refusal.UNCERTAIN),
        (client_errors.NotCoordinatorError(), Refusal.UNCERTAIN),
        (client_errors.CoordinatorNotAvailableError(), Refusal.UNCERTAIN),
        (client_errors.CoordinatorLoadInProgressError(), Refusal.UNCERTAIN),
        (client_errors.TopicAuthorizationFailedError({"orders"}), Refusal.DENIED),
        (client_errors.GroupAuthorizationFailedError("shop"), Refusal.DENIED),
        (client_errors.OffsetMetadataTooLargeError(), Refusal.DENIED),
        (client_errors.InvalidCommitOffsetSizeError(), Refusal.DENIED),
        (RuntimeError("NetworkSelector closed!"), Refusal.UNCERTAIN),
        (GeneratorExit(), Refusal.UNCERTAIN),
    ],
)
@pytest.mark.rule("R19")
def test_refused_commits_are_not_all_alike(error: BaseException, refusal: Refusal) -> None:
    assert classify_refusal(error) is refusal


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (client_errors.TopicAuthorizationFailedError({"orders"}), "TOPIC_ACCESS_DENIED"),
        (client_errors.GroupAuthorizationFailedError("shop"), "GROUP_ACCESS_DENIED"),
        (client_errors.InvalidSessionTimeoutError(), "SESSION_TIMEOUT_REFUSED"),
        (client_errors.InconsistentGroupProtocolError(), "GROUP_PROTOCOL_CONFLICT"),
        (client_errors.FencedInstanceIdError(), "INSTANCE_ID_IN_USE"),
        (client_errors.GroupMaxSizeReachedError("shop"), "MEMBER_FAILED"),
        (client_errors.UnsupportedVersionError("old"), "GROUP_PROTOCOL_CONFLICT"),
        (client_errors.KafkaConfigurationError("odd"), "MEMBER_FAILED"),
        (ValueError("odd"), "MEMBER_FAILED"),
        (RuntimeError(), "MEMBER_FAILED"),
    ],
)
def test_what_ends_the_query(error: BaseException, condition: str) -> None:
    found = fatal(OPTIONS, error)
    assert found is not None
    assert found.condition.id == f"GROUPKAFKA.{condition}"
    assert "What to do: " in str(found)


@pytest.mark.parametrize(
    "error",
    [
        client_errors.KafkaConnectionError("gone"),
        client_errors.NodeNotReadyError("coordinator"),
        client_errors.KafkaTimeoutError("late"),
        client_errors.RequestTimedOutError(),
        client_errors.NotCoordinatorError(),
        client_errors.CoordinatorNotAvailableError(),
        client_errors.CoordinatorLoadInProgressError(),
        client_errors.UnknownTopicOrPartitionError(),
    ],
)
def test_what_heals_by_itself(error: BaseException) -> None:
    assert fatal(OPTIONS, error) is None


@pytest.mark.parametrize(
    "error",
    [
        client_errors.RebalanceInProgressError(),
        client_errors.UnknownMemberIdError(),
        client_errors.IllegalGenerationError(),
    ],
)
def test_what_the_client_answers_by_joining_again(error: client_errors.KafkaError) -> None:
    """No poll raises them: the client handles them where they arise. They are not among what it calls retriable."""
    assert not error.retriable


def test_an_error_without_a_text_is_named_by_its_kind() -> None:
    assert "RuntimeError" in str(fatal(OPTIONS, RuntimeError()))


def test_a_denied_topic_is_named() -> None:
    text = str(fatal(OPTIONS, client_errors.TopicAuthorizationFailedError({"refunds", "orders"})))
    assert "'subscribe'" in text
    assert "orders, refunds" in text
    assert "topic '?'" in str(fatal(OPTIONS, client_errors.TopicAuthorizationFailedError()))


@pytest.mark.parametrize(
    ("error", "condition", "reason"),
    [
        (client_errors.SaslAuthenticationFailedError("no"), "AUTHENTICATION_FAILED", "no"),
        (client_errors.KafkaTimeoutError("Unable to bootstrap"), "BROKER_UNREACHABLE", "Unable to bootstrap"),
        (OSError(), "BROKER_UNREACHABLE", "OSError"),
    ],
)
def test_a_first_contact_that_failed(error: BaseException, condition: str, reason: str) -> None:
    found = unreachable(OPTIONS, error, TransportState(None))
    assert found.condition.id == f"GROUPKAFKA.{condition}"
    assert "'broker:9092'" in str(found)
    assert reason in str(found)


# --- identities

WRONG = client_errors.SaslAuthenticationFailedError("invalid credentials with SASL mechanism SCRAM-SHA-512")
CUT_OFF = [
    ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
    ssl.SSLZeroReturnError("closed"),
    client_errors.KafkaConnectionError("Handshake failed: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred"),
    client_errors.KafkaConnectionError("Handshake failed: [Errno 104] Connection reset by peer"),
    client_errors.KafkaConnectionError("gone"),
    client_errors.Cancelled(),
    client_errors.KafkaTimeoutError("SASL Authentication timed out"),
]


@pytest.mark.parametrize(
    "error",
    [
        WRONG,
        client_errors.UnsupportedSaslMechanismError("no"),
        client_errors.IllegalSaslStateError("no"),
        ssl.SSLCertVerificationError("no"),
        ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required"),
        client_errors.KafkaConnectionError("Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed"),
    ],
)
def test_a_refused_identity_is_reported_for_what_it_is(error: BaseException) -> None:
    assert is_refused_identity(error)
    found = unreachable(OPTIONS, error, TransportState(None))
    assert found.condition.id == "GROUPKAFKA.AUTHENTICATION_FAILED"


@pytest.mark.parametrize("error", CUT_OFF)
def test_a_connection_that_ends_in_a_handshake_refuses_nobody(error: BaseException) -> None:
    assert not is_refused_identity(error)
    identity = Identity(None, ManualClock())
    identity.process(None)
    identity.process(error)
    assert not identity.transport.authentication_failed
    assert unreachable(OPTIONS, error, identity.transport).condition.id == "GROUPKAFKA.BROKER_UNREACHABLE"


def test_the_time_that_is_over_at_the_first_contact_hides_no_refusal() -> None:
    identity = Identity(None, ManualClock())
    identity.process(WRONG)
    found = unreachable(OPTIONS, client_errors.KafkaTimeoutError("Unable to bootstrap"), identity.transport)
    assert found.condition.id == "GROUPKAFKA.AUTHENTICATION_FAILED"
    assert "invalid credentials" in str(found)


def test_a_refusal_is_forgiven_as_with_librdkafka() -> None:
    """Once the identity was accepted: what does not last 20 s without any answer."""
    clock = ManualClock()
    identity = Identity(None, clock)
    for answered in (True, True, False):
        identity.process(None)
        for _ in range(4):
            identity.process(WRONG)
            clock.advance(6.0)
        assert not identity.transport.refused_for_good
        if answered:
            continue
        identity.process(WRONG)
        assert identity.transport.refused_for_good
