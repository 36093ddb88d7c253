"""What all Kafka clients of this package share: settings, quiet logging, and the mapping of their errors.

confluent_kafka's errors are turned into the catalogue's here and in the adapters that call this module, nowhere
else. Only adapters import it.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.client.transport import AUTHENTICATION
from spark_groupsource.client.transport import LastTransportError as LastTransportError  # noqa: PLC0414 - part of every client
from spark_groupsource.clock import Clock, Pace, SystemClock
from spark_groupsource.errors import (
    AccessError,
    GroupKafkaError,
    KafkaUnavailableError,
    MembershipError,
    OptionError,
)
from spark_groupsource.model.commit_metadata import GroupOffset, without_tail
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import CLIENT_PREFIX, is_sensitive, shown_unknown, shown_value
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.secrets import resolved, setting_of
from spark_groupsource.redaction import MaskSecrets, remember

LOG = logging.getLogger("spark_groupsource.client")
# What is waited for, and nothing else: command lines show it, too.
WAITING = logging.getLogger("spark_groupsource.waiting")

# How long the first contact with the cluster may take before the query fails: long enough for a slow TLS or
# SASL handshake with every bootstrap server, short enough that a wrong address is noticed at once.
CONTACT_TIMEOUT_S = 20.0
_NOTICE_S = 5.0
# About every sixth text of another client was unreadable.
_METADATA_READS = 10
# The role of clients that read.
EXECUTOR_ROLE = "executor"
# What means nothing to a client that is no member: the library warns of some of it, and refuses a
# max.poll.interval.ms below its session timeout.
_MEMBER_SETTINGS = (
    r"group\..*|session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\..*|partition\.assignment\.strategy"
)
# How a query fetches records, for clients that fetch few or none.
FETCH_SETTINGS = r"fetch\..*|queued\..*|max\.partition\.fetch\.bytes"

_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
}
_PASSWORDS = {"ssl.key.password", "ssl.keystore.password"}
_PROTOCOL_CONFLICT = {
    KafkaError.INCONSISTENT_GROUP_PROTOCOL,
    KafkaError.GROUP_ID_NOT_FOUND,
    KafkaError.UNSUPPORTED_VERSION,
}


def base_settings(options: SourceOptions, role: str) -> dict[str, Any]:
    """Return librdkafka settings common to all clients of a reader; `role` ends up in client.id.

    Reads the secrets that stand in files or in the environment; whatever is a secret is masked from now on. Raises
    `OptionError` when one of them is not there.
    """
    side = "an executor" if role == EXECUTOR_ROLE else "the driver"
    settings: dict[str, Any] = resolved(options.client_settings, options.option_name, side, options.permissions)
    remember(value for name, value in settings.items() if is_sensitive(name) or name not in options.client_settings)
    settings["bootstrap.servers"] = options.bootstrap_servers
    settings["client.id"] = f"{settings.get('client.id', 'groupkafka')}-{role}"
    settings["logger"] = quiet_logger(role)
    return settings


def outsider_settings(options: SourceOptions, role: str, *left_out: str) -> dict[str, Any]:
    """Return `base_settings` of a client that is no member, also without those whose names match `left_out`."""
    unfit = re.compile("|".join((_MEMBER_SETTINGS, *left_out)))
    return {name: value for name, value in base_settings(options, role).items() if not unfit.fullmatch(name)}


def reading_settings(options: SourceOptions, role: str, *left_out: str) -> dict[str, Any]:
    """Return the settings of a consumer that reads what it is assigned, and joins no group; see `outsider_settings`."""
    return outsider_settings(options, role, *left_out) | {
        # The client insists on a group id, and looks for its coordinator; nothing is ever told to that group.
        "group.id": f"groupkafka-{role}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
    }


def received(consumer: Consumer, timeout_s: float, most: int) -> list[Message]:
    """Wait for a message, and return it with what else is there."""
    # Asked for many at once, the client would wait out the timeout for all of them.
    first = consumer.consume(1, timeout_s)
    return first + consumer.consume(most, 0.001) if first else first


def partition_of(message: Message) -> TopicPartition:
    """Return what partition a message is of."""
    return TopicPartition(str(message.topic()), int(message.partition() or 0))


def group_offsets(ask: Callable[[], Sequence[ClientPartition]]) -> dict[TopicPartition, GroupOffset]:
    """Return the committed offsets and their texts that `ask` brings; it is asked again while a text is unreadable.

    The client reads on behind a text of another client until it meets a zero byte: what it finds there is another one
    each time, and may be no text at all.
    """
    found: dict[TopicPartition, GroupOffset] = {}
    for _ in range(_METADATA_READS):
        answers = ask()
        for answer in answers:
            text = _metadata(answer)
            if text is not None:
                found[_partition(answer)] = _group_offset(answer, text)
        if len(found) == len(answers):
            return found
    return {_partition(answer): _group_offset(answer, "") for answer in answers} | found


def _partition(answer: ClientPartition) -> TopicPartition:
    return TopicPartition(answer.topic, answer.partition)


def _group_offset(answer: ClientPartition, text: str) -> GroupOffset:
    return GroupOffset(answer.offset if answer.offset >= 0 else None, text)


def _metadata(answer: ClientPartition) -> str | None:
    try:
        return without_tail(answer.metadata or "")
    except UnicodeDecodeError:
        return None


class CollapseRepeats(logging.Filter):
    """Lets a client's message through once per interval: an unreachable broker makes it say ~20 lines a second.

    Numbers are ignored when messages are compared, because they hold ports, counters and milliseconds.
    """

    def __init__(self, interval_s: float = 30.0, clock: Clock | None = None) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the first message of its kind in each interval and count the others."""
        kind = re.sub(r"\d+", "#", record.getMessage())
        now_s = self._clock.monotonic_s()
        with self._lock:
            last_s, repeats = self._seen.get(kind, (-self._interval_s, 0))
            if now_s - last_s < self._interval_s:
                self._seen[kind] = (last_s, repeats + 1)
                return False
            if len(self._seen) > 500:
                self._seen.clear()
            self._seen[kind] = (now_s, 0)
        if repeats:
            record.msg = f"{record.getMessage()} (and {repeats} more like it)"
            record.args = ()
        return True


def quiet_logger(role: str) -> logging.Logger:
    """Return the logger to give to a client as its `logger` setting."""
    logger = LOG.getChild(role)
    if not any(isinstance(known, CollapseRepeats) for known in logger.filters):
        logger.addFilter(MaskSecrets())
        logger.addFilter(CollapseRepeats())
    return logger


@contextmanager
def creating_client(options: SourceOptions) -> Iterator[None]:
    """Map the client's refusal of a setting to an error that names the option."""
    try:
        yield
    except (KafkaException, ValueError, TypeError) as error:
        raise _refused_setting(options, error) from None


def _refused_setting(options: SourceOptions, error: Exception) -> GroupKafkaError:
    cause = error.args[0] if error.args else error
    reason = cause.str() if isinstance(cause, KafkaError) else str(error)
    named = [name for name in options.client_settings if setting_of(name) in reason]
    name = max(named, key=len, default="bootstrap.servers")
    value = options.client_settings.get(name, options.bootstrap_servers)
    if "SASL mechanism" in reason and not named:
        # The client's default, which this build of it does not have, refuses a password without a mechanism.
        name, value = "sasl.mechanism", "GSSAPI"
        reason += " (that is what counts where none is set; a password goes with PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512)"
    unknown = isinstance(cause, KafkaError) and "No such configuration property" in reason
    shown = shown_unknown(name, value) if unknown else shown_value(name, value)
    # librdkafka repeats the value in some of its messages; of an unknown setting it names the name only.
    reason = reason.replace(value, shown) if value and not unknown and shown != value else reason
    reason += _file_trouble(name, value)
    return OptionError(errors.CLIENT_REFUSED_OPTION, option=options.option_name(name), value=shown, reason=reason)


def _file_trouble(name: str, value: str) -> str:
    """Return what a refused setting that names a file is about: OpenSSL only tells which of its routines failed."""
    if not name.endswith(".location"):
        return ""
    try:
        with open(value, "rb"):
            password = f"{name.removesuffix('.location')}.password"
            return f" (the file can be read; is {CLIENT_PREFIX}{password} right?)" if password in _PASSWORDS else ""
    except (IsADirectoryError, ValueError):
        return ""
    except OSError as error:
        return f" (the file cannot be read on host '{socket.gethostname()}': {error.strerror})"


def kafka_error(error: KafkaException) -> KafkaError:
    """Return the client's error inside an exception."""
    cause = error.args[0] if error.args else None
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(error))


class Patience:
    """Says from time to time that the brokers are waited for: who hears nothing takes it for a hang.

    `begin` starts the wait; calling it says something when it is time.
    """

    def __init__(self, options: SourceOptions, clock: Clock, transport: LastTransportError) -> None:
        self._servers = options.bootstrap_servers
        self._transport = transport
        self._pace = Pace(clock, _NOTICE_S)

    def begin(self) -> None:
        """A request is sent."""
        self._pace.wait()

    def __call__(self) -> None:
        """There is no answer yet."""
        if self._pace.due():
            reason = self._transport.describe("none")
            WAITING.warning("waiting for an answer of Kafka: servers=%s last_error=%s", self._servers, reason)


def map_error(
    options: SourceOptions,
    error: KafkaError,
    request: str,
    transport: LastTransportError,
    topic: str = "?",
    *,
    waited_s: float = CONTACT_TIMEOUT_S,
) -> GroupKafkaError:
    """Turn a client's error into the one of the catalogue that names the option, the value and what to do.

    `waited_s` is how long brokers that cannot be reached had to answer.
    """
    code = error.code()
    servers = options.bootstrap_servers
    if code in AUTHENTICATION or transport.authentication_failed:
        reason = transport.describe(error.str())
        return AccessError(errors.AUTHENTICATION_FAILED, servers=servers, reason=reason)
    if code in _UNREACHABLE:
        return KafkaUnavailableError(
            errors.BROKER_UNREACHABLE,
            servers=servers,
            timeout_s=waited_s,
            reason=transport.describe(error.str()),
        )
    subscription = options.subscription
    if code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION):
        return OptionError(errors.TOPIC_UNKNOWN, option=subscription.option, value=subscription.value, topic=topic)
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return AccessError(
            errors.TOPIC_ACCESS_DENIED, option=subscription.option, value=subscription.value, topic=topic
        )
    return map_group_error(options, error) or KafkaUnavailableError(
        errors.CLUSTER_REQUEST_FAILED, request=request, reason=error.str()
    )


@contextmanager
def mapped_errors(options: SourceOptions, request: str, transport: LastTransportError) -> Iterator[None]:
    """Turn what the client raises into the catalogue's errors; see `map_error`."""
    try:
        yield
    except KafkaException as error:
        raise map_error(options, kafka_error(error), request, transport) from None


def map_group_error(options: SourceOptions, error: KafkaError) -> GroupKafkaError | None:
    """Turn an error of the group protocol into the catalogue's; None when it is another kind of error."""
    code = error.code()
    settings = options.client_settings
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return AccessError(errors.GROUP_ACCESS_DENIED, group=options.group_id)
    if code == KafkaError.INVALID_SESSION_TIMEOUT:
        value = settings.get("session.timeout.ms", "45000")
        return MembershipError(errors.SESSION_TIMEOUT_REFUSED, value=value)
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
