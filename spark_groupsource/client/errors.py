"""Map errors of Kafka clients to those of the catalogue, and remember why brokers cannot be reached.

Only this module, and the adapters that call it, map confluent_kafka's errors.

A client reports connection errors through a callback. `TransportState` keeps those that explain a timeout.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.client.tokens import provider_trouble
from spark_groupsource.clock import Clock, Pace, SystemClock
from spark_groupsource.errors import (
    AccessError,
    GroupKafkaError,
    KafkaUnavailableError,
    MembershipError,
    OptionError,
)
from spark_groupsource.options.client_settings import interval_ms
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.token_login import TokenLogin

AUTHENTICATION = {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
# TLS alerts with which a broker rejects a client's certificate. The client reports them as a broken connection.
_TLS_ALERT = re.compile(
    r"alert (bad certificate|certificate (required|unknown|expired|revoked)|unknown ca|unsupported certificate"
    r"|access denied|decrypt error)"
)
# Texts that the client reports as an authentication error although no broker rejected it: the connection ended during
# a handshake, or the client had no token.
_CUT_OFF = re.compile(r"Local: (Broker transport failure|Timed out)|Disconnected: ")
_NO_TOKEN = re.compile(r"Failed to acquire SASL OAUTHBEARER token|there is no token available")
# What the client reports if brokers answer nothing on its connections. A refused connection has a reason.
_DOWN = re.compile(r"\d+/\d+ brokers are down")
# librdkafka's texts when it creates a client, and when a client meets another broker.
_NO_THREAD = re.compile(r"(Failed|Unable) to create (\w+ )?thread")
_EXPECTS = {
    "plaintext": "TLS or a login: set option kafka.security.protocol (ssl, sasl_plaintext or sasl_ssl) and kafka.sasl.*"
    " or kafka.ssl.*",
    "sasl_plaintext": "TLS: set option kafka.security.protocol=sasl_ssl and kafka.ssl.*",
    "ssl": "a login: set option kafka.security.protocol=sasl_ssl and kafka.sasl.*",
}
_BY_USER = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
# The brokers make it of a token or a certificate.
_PRINCIPAL = "User:<its principal>"
# Credentials that were accepted before count as rejected for good when two rejections, without any answer in between,
# are this far apart. That is long enough for a restart of a token provider or a broker. A client repeats a continuing
# rejection after 30 s, which is then the worst case, and within the default session timeout of 45 s.
_REFUSED_S = 20.0
# A client repeats an error that continues every 30 s. One that is older, before a request was answered, is over.
_OVER_S = 60.0


class TransportState:
    """Keep the reason why the brokers could not be reached, because the error of a timeout does not contain it.

    `accepted`: whether a request was ever answered.
    `login`: where the client has its tokens from, if it logs in with tokens. Its provider's failure is a reason, too.
    `text`: the last reason; empty if there is none, or if it is over. `authentication_failed`: whether a broker
    rejected the client's credentials, and no request was answered since.
    """

    def __init__(self, login: TokenLogin | None, clock: Clock | None = None) -> None:
        self._login = login
        self._clock = clock or SystemClock()
        self.text = ""
        # If the text is about a quota: its broker, and when the delay is over.
        self._delayed: tuple[int, float] | None = None
        self._reported_s = 0.0
        # Whether the brokers have ever answered, so have accepted the credentials.
        self.accepted = False
        self.authentication_failed = False
        # Since the last answer: whether credentials were clearly rejected; time of the first and last rejection.
        self._clear = False
        self._first_s = self._last_s = 0.0

    def __call__(self, error: KafkaError) -> None:
        """Store an error that the client reports (its `error_cb`)."""
        text = error.str() or ""
        self._reported_s = self._clock.monotonic_s()
        if self._delayed:
            self.text, self._delayed = "", None
        if self._refuses(error.code(), text):
            self._last_s = self._reported_s
            if not self.authentication_failed:
                self._first_s = self._last_s
            self.authentication_failed = True
            self._clear = self._clear or not (_CUT_OFF.search(text) or _NO_TOKEN.search(text))
            # The broker only reports that the token has expired.
            self.text = "; ".join(filter(None, (text, provider_trouble(self._login))))
        elif not self.authentication_failed and (not self.text or error.code() != KafkaError._ALL_BROKERS_DOWN):
            self.text = text

    @property
    def callbacks(self) -> dict[str, Any]:
        """The callbacks that a client of confluent_kafka calls, as its settings."""
        return {"error_cb": self, "throttle_cb": lambda event: self.throttled(event.broker_id, event.throttle_time)}

    def throttled(self, broker: int, delay_s: float) -> None:
        """Store that a quota delays this client; a delay of 0 ends that. An error is the better reason.

        Guards against:
        1. A quota delays the answer of a broker by 20 s. Another broker answers without a delay.
        2. The client reports a delay of 0 once, for the broker that answers first.
        3. The wait for the delayed broker would have no reason.
        """
        known, now_s = self._delayed, self._clock.monotonic_s()
        if self.text and known is None:
            return
        delayed, until_s = known or (broker, now_s)
        if broker == delayed or now_s + delay_s >= until_s:
            self._reported_s, self._delayed = now_s, (broker, now_s + delay_s) if delay_s > 0 else None
            self.text = f"a quota delays this client, by {delay_s:.1f} s on broker {broker}" if self._delayed else ""

    def _refuses(self, code: int, text: str) -> bool:
        # Credentials were accepted before, so a connection that ends in a handshake means a broker that shuts down.
        known = self.accepted and _CUT_OFF.search(text)
        return not known and (code in AUTHENTICATION or _TLS_ALERT.search(text) is not None)

    def worked(self) -> None:
        """Note that a request was answered: the credentials are not rejected now.

        Guards against:
        1. A broker is restarted. An executor's client reports that its connection is refused, and goes on.
        2. Hours later a quota slows the client down.
        3. The refused connection would be reported as the reason.
        """
        # Read once: a client that closes on a thread of its own calls, too.
        delayed = self._delayed
        if self._clock.monotonic_s() > (delayed[1] if delayed else self._reported_s + _OVER_S):
            self.text, self._delayed = "", None
        self.accepted, self.authentication_failed, self._clear = True, False, False

    @property
    def refused_for_good(self) -> bool:
        """Whether waiting cannot help: a wrong setting, or credentials that are no longer valid.

        Guards against (rule R76):
        1. A token provider is away while the token is good, or a broker closes a connection in the handshake.
        2. The client reports a refused identity, and connects again by itself.
        3. The query would have ended for nothing.
        """
        if not self.authentication_failed:
            return False
        # R76: a first refusal may pass
        return (self._clear and not self.accepted) or self._last_s - self._first_s >= _REFUSED_S


# The log of waits only, because command lines show it, too.
WAITING = logging.getLogger("spark_groupsource.waiting")
# Limit for the first contact with the cluster, in seconds: long enough for a slow TLS or SASL handshake with every
# bootstrap server, short enough to notice a wrong address soon.
CONTACT_TIMEOUT_S = 20.0
_NOTICE_S = 5.0
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
}
# A topic or partition does not exist. The client's own two codes also stand for a broker's answer.
NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_PROTOCOL_CONFLICT = {
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError.UNSUPPORTED_VERSION,
}


def likely_reason(options: SourceOptions, text: str, *, answered: bool = False) -> str:
    """Return a client's text, with the likely cause if brokers accept the client's connections and answer nothing.

    A listener with TLS or SASL closes those of a client without it. What is between (a proxy, a firewall) may keep them
    open. The client reports neither. Brokers that have `answered` before do not expect another protocol: they hang.
    """
    protocol = options.client_settings.get("security.protocol", "plaintext").lower()
    if not _DOWN.fullmatch(text.strip()) or protocol not in _EXPECTS:
        return text
    if answered:
        return "connections are accepted, then closed or left without an answer, by brokers that have answered before"
    return (
        "connections are accepted, then closed or left without an answer; probably the listener does not expect"
        f" kafka.security.protocol={protocol} but {_EXPECTS[protocol]}; or a proxy or firewall is between"
    )


def lacking_resources(text: str) -> KafkaUnavailableError | None:
    """Return the error if a client's text says that the system refuses it a thread; None for other texts.

    Guards against:
    1. A Python worker has too little address space (spark.executor.pyspark.memory), or its container too few processes.
    2. A client starts, but cannot start its thread for a broker. It reports that once, and goes on without it.
    3. The task waits for records until kafkaConsumer.pollTimeoutMs has passed, and then blames the broker.
    """
    no_thread = _NO_THREAD.search(text)
    return KafkaUnavailableError(errors.CLIENT_LACKS_RESOURCES, reason=text) if no_thread else None


def not_authenticated(options: SourceOptions, reason: str) -> AccessError:
    """Return the error for a client whose identity the brokers refuse."""
    login = _identity(options)["login"]
    return AccessError(errors.AUTHENTICATION_FAILED, servers=options.bootstrap_servers, login=login, reason=reason)


def topics_denied(options: SourceOptions, topics: Iterable[str]) -> AccessError:
    """Return the error for topics that the client may not read, with the command that grants it."""
    names, subscription = sorted(topics), options.subscription
    return AccessError(
        errors.TOPIC_ACCESS_DENIED, **_identity(options), option=subscription.option, value=subscription.value,
        topic=", ".join(names), resources=" ".join(f"--topic '{name}'" for name in names),
    )  # fmt: skip


def _identity(options: SourceOptions) -> dict[str, str]:
    """Return by what a client logs in, and its principal where the client knows it, as parameters of access errors."""
    settings = options.client_settings
    protocol = settings.get("security.protocol", "plaintext").lower()
    user, certificate = settings.get("sasl.username"), settings.get("ssl.certificate.location")
    if protocol.startswith("sasl"):
        mechanism = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or "GSSAPI"
        by_name = user is not None and mechanism.upper() in _BY_USER
        who = f"user '{user}', mechanism {mechanism}" if by_name else f"mechanism {mechanism}"
        return {"login": who, "principal": f"User:{user}" if by_name else _PRINCIPAL}
    if protocol == "ssl":
        login = f"certificate '{certificate}'" if certificate else "TLS, no certificate"
        return {"login": login, "principal": _PRINCIPAL}
    return {"login": "no login", "principal": "User:ANONYMOUS"}


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the `KafkaError` inside a client's exception."""
    cause = error.args[0] if error.args else None
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


class Patience:
    """Log from time to time that a request waits for the brokers, so that it does not look like a hang.

    `begin` starts the wait. Call the object repeatedly during the wait; it logs when a line is due.
    """

    def __init__(self, options: SourceOptions, clock: Clock, transport: TransportState) -> None:
        self._options = options
        self._transport = transport
        self._pace = Pace(clock, _NOTICE_S)

    def begin(self) -> None:
        """Start the wait: a request was sent."""
        self._pace.wait()

    def __call__(self, reason: str = "") -> None:
        """Log a line if one is due: the request is not answered yet, or with this reason to repeat it."""
        if self._pace.due():
            reason = reason or likely_reason(
                self._options, self._transport.text or "none", answered=self._transport.accepted
            )
            servers = self._options.bootstrap_servers
            WAITING.warning("waiting for an answer from Kafka: servers=%s last_error=%s", servers, reason)


def map_error(
    options: SourceOptions,
    error: KafkaError,
    request: str,
    transport: TransportState,
    topics: Sequence[str] = ("?",),
    *,
    waited_s: float = CONTACT_TIMEOUT_S,
) -> GroupKafkaError:
    """Map a client's error to the one of the catalogue that names the option, the value and what to do.

    `topics` are those that the request was about. `waited_s` is the time that unreachable brokers had to answer.

    Guards against:
    1. A provider of tokens is away. The client reports that, and goes on with the token that it has.
    2. A broker answers a request: the topic does not exist.
    3. Reported as rejected credentials, a deleted topic would end a query that can go on without it.
    """
    code = error.code()
    servers = options.bootstrap_servers
    # The client's own codes are below UNKNOWN.
    answered = code >= KafkaError.UNKNOWN or code in NO_TOPIC
    if code in AUTHENTICATION or (transport.authentication_failed and not answered):
        reason = transport.text or error.str()
        return not_authenticated(options, reason)
    if code in _UNREACHABLE:
        return KafkaUnavailableError(
            errors.BROKER_UNREACHABLE,
            servers=servers,
            timeout_s=waited_s,
            reason=likely_reason(options, transport.text or error.str(), answered=transport.accepted),
        )
    subscription = options.subscription
    if code in NO_TOPIC:
        return OptionError(
            errors.TOPIC_UNKNOWN, option=subscription.option, value=subscription.value, topic=", ".join(topics)
        )
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return topics_denied(options, topics)
    return map_group_error(options, error) or KafkaUnavailableError(
        errors.CLUSTER_REQUEST_FAILED, request=request, reason=error.str()
    )


@contextmanager
def mapped_errors(options: SourceOptions, request: str, transport: TransportState) -> Iterator[None]:
    """Map `KafkaException` raised inside to the catalogue's errors; see `map_error`."""
    try:
        yield
    except KafkaException as error:
        raise map_error(options, kafka_error(error), request, transport) from None


def map_group_error(options: SourceOptions, error: KafkaError) -> GroupKafkaError | None:
    """Map an error of the group protocol to the catalogue's; return None for other kinds of errors."""
    code = error.code()
    settings = options.client_settings
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return AccessError(errors.GROUP_ACCESS_DENIED, **_identity(options), group=options.group_id)
    if code == KafkaError.INVALID_SESSION_TIMEOUT:
        session_ms = interval_ms(settings, "session.timeout.ms")
        return MembershipError(errors.SESSION_TIMEOUT_REFUSED, value=session_ms)
    if code == KafkaError.UNSUPPORTED_ASSIGNOR:
        value = settings.get("group.remote.assignor", "")
        return MembershipError(errors.REMOTE_ASSIGNOR_UNKNOWN, value=value, reason=error.str())
    if code in _PROTOCOL_CONFLICT:
        return MembershipError(
            errors.GROUP_PROTOCOL_CONFLICT,
            group=options.group_id,
            protocol=options.group_protocol.value,
            strategy=settings.get("partition.assignment.strategy", "(the broker's)"),
            reason=error.str(),
        )
    if code in (KafkaError.FENCED_INSTANCE_ID, KafkaError.UNRELEASED_INSTANCE_ID):
        return MembershipError(
            errors.INSTANCE_ID_IN_USE,
            value=options.instance_id,
            group=options.group_id,
            reason=error.str(),
        )
    return None
