"""Map kafka-python's errors to those of the catalogue, and classify those of commits.

The error codes are the protocol's. So the code is enough where librdkafka's errors are mapped already.
"""

from __future__ import annotations

import ssl

from confluent_kafka import KafkaError as ProtocolError
from kafka import errors as client_errors

from spark_groupsource import errors
from spark_groupsource.assignors.interface import AssignorError
from spark_groupsource.client.errors import (
    CONTACT_TIMEOUT_S,
    TransportState,
    map_group_error,
    not_authenticated,
    topics_denied,
)
from spark_groupsource.errors import GroupKafkaError, KafkaUnavailableError, MembershipError
from spark_groupsource.membership.backends import commit_errors
from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.options.model import SourceOptions

_AUTHENTICATION = (
    client_errors.SaslAuthenticationFailedError,
    client_errors.UnsupportedSaslMechanismError,
    client_errors.IllegalSaslStateError,
)
_HANDSHAKE = "Handshake failed: "


def classify_refusal(error: BaseException) -> Refusal:
    """Return why a commit was not accepted; see `commit_errors.classify_refusal`."""
    if isinstance(error, client_errors.CommitFailedError):
        cause = error.args[0] if error.args else None
        # R27: without a cause the session has ended; the client reports that when it joins again
        return classify_refusal(cause) if isinstance(cause, BaseException) else Refusal.LOST
    code = _code(error)
    return Refusal.UNCERTAIN if code is None else commit_errors.classify_refusal(ProtocolError(code))


def refused_commit(options: SourceOptions, error: BaseException, items: tuple[CommitItem, ...]) -> CommitResult:
    """Return the result of a commit that was not accepted."""
    refused, code = tuple((item, classify_refusal(error)) for item in items), _code(error)
    cause = None if code is None else commit_errors.denial(options, ProtocolError(code, str(error)), items)
    return CommitResult(refused=refused, reason=str(error), error=cause)


def _code(error: BaseException) -> int | None:
    return error.errno if isinstance(error, client_errors.BrokerResponseError) else None


def fatal(options: SourceOptions, error: BaseException) -> GroupKafkaError | None:
    """Return the catalogue's error if only a person can fix it; None if the client tries again.

    Not for a refused identity, which may pass: see `identity.py`.
    """
    if isinstance(error, AssignorError):
        return MembershipError(errors.ASSIGNMENT_REFUSED, group=options.group_id, reason=str(error))
    if isinstance(error, client_errors.TopicAuthorizationFailedError):
        return topics_denied(options, map(str, error.args[0]) if error.args else "?")
    code = _code(error)
    if code is not None:
        mapped = map_group_error(options, ProtocolError(code, str(error)))
        if mapped is not None:
            return mapped
    if isinstance(error, client_errors.KafkaError) and error.retriable:
        return None
    return MembershipError(errors.MEMBER_FAILED, group=options.group_id, reason=str(error) or type(error).__name__)


def unreachable(options: SourceOptions, error: BaseException, transport: TransportState) -> GroupKafkaError:
    """Return the error for a first contact that failed. The client's own error may only be a timeout."""
    if transport.authentication_failed or is_refused_identity(error):
        return not_authenticated(options, transport.text or str(error))
    return KafkaUnavailableError(
        errors.BROKER_UNREACHABLE,
        servers=options.bootstrap_servers,
        timeout_s=CONTACT_TIMEOUT_S,
        reason=transport.text or str(error) or type(error).__name__,
    )


def is_refused_identity(error: BaseException) -> bool:
    """Return whether a broker clearly refuses the client's identity, or the client the broker's.

    A connection that ends in the middle of a handshake is not clear: a broker that stops or starts does that, too.
    """
    if isinstance(error, _AUTHENTICATION) or "AuthenticationFailed" in type(error).__name__:
        return True
    text = str(error)
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)) and "EOF" not in text
    # The client reports errors before a connection is established in this form.
    return _HANDSHAKE in text and ("[SSL" in text or "certificate" in text.lower()) and "EOF" not in text
