"""Translate librdkafka's settings to kafka-python's, for a member on that client and for its admin client.

`kafka.*` options keep librdkafka's names, whichever client the member uses. Each setting is translated, or left to the
executors because it concerns reading records, or refused by name. None is silently ignored: the cluster's security
could depend on it.

kafka-python accepts no logger: its modules log under `kafka`. This module forwards those lines to this package's log,
with secrets masked, repeats collapsed, and nothing below a warning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from spark_groupsource import errors
from spark_groupsource.client.errors import CONTACT_TIMEOUT_S
from spark_groupsource.client.log import quiet_logger
from spark_groupsource.client.settings import base_settings
from spark_groupsource.client.tokens import TokenKeeper
from spark_groupsource.errors import OptionError
from spark_groupsource.options.client_settings import shown_unknown, shown_value
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.secrets import setting_of


def _security_protocol(value: str) -> str:
    # The client treats unknown values as PLAINTEXT.
    if value.upper() not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ValueError("plaintext, ssl, sasl_plaintext or sasl_ssl")
    return value.upper()


def _endpoint_check(value: str) -> bool:
    if value.lower() not in ("https", "none"):
        raise ValueError("https or none")
    return value.lower() == "https"


# librdkafka's name -> (kafka-python's name, parser of the value). Without ssl.cipher.suites: the consumer accepts
# ssl_ciphers, but no part of the client reads it.
_BOTH: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", str),
    "client.id": ("client_id", str),
    "security.protocol": ("security_protocol", _security_protocol),
    "sasl.mechanism": ("sasl_mechanism", str.upper),
    "sasl.mechanisms": ("sasl_mechanism", str.upper),
    "sasl.username": ("sasl_plain_username", str),
    "sasl.password": ("sasl_plain_password", str),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "ssl.ca.location": ("ssl_cafile", str),
    "ssl.certificate.location": ("ssl_certfile", str),
    "ssl.key.location": ("ssl_keyfile", str),
    "ssl.key.password": ("ssl_password", str),
    "ssl.crl.location": ("ssl_crlfile", str),
    "ssl.endpoint.identification.algorithm": ("ssl_check_hostname", _endpoint_check),
    "client.dns.lookup": ("client_dns_lookup", str),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "socket.timeout.ms": ("request_timeout_ms", int),
}
_MEMBER: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "client.rack": ("client_rack", str),
    "group.instance.id": ("group_instance_id", str),
    "session.timeout.ms": ("session_timeout_ms", int),
    "heartbeat.interval.ms": ("heartbeat_interval_ms", int),
    "max.poll.interval.ms": ("max_poll_interval_ms", int),
    # Sets how soon a new partition is noticed.
    "topic.metadata.refresh.interval.ms": ("metadata_max_age_ms", int),
}
# Settings that the source sets itself (strategies), that only readers of records need, or that only concern
# librdkafka's log and the metrics that it sends to brokers (KIP-714).
_LEFT_TO_OTHERS = re.compile(
    r"partition\.assignment\.strategy|group\.protocol|isolation\.level|logger"
    r"|fetch\..*|queued\..*|max\.partition\.fetch\.bytes|receive\.message\.max\.bytes|message\.max\.bytes"
    r"|socket\.(receive|send)\.buffer\.bytes|topic\.metadata\.(refresh\.(fast|sparse)|propagation)\..*"
    r"|statistics\.interval\.ms|debug|log_level|log\..*|broker\.version\.fallback|api\.version\..*|enable\.metrics\.push"
)
_REFUSED = "with option assignors the membership uses the client kafka-python, which has no such setting."
_INSTEAD = "leave it out (executor.kafka.{name} sets it for executors only), or leave assignors out."
_ROLE = "member"
# The minimum that kafka-python accepts: longer than a fetch may wait.
_MIN_REQUEST_MS = 1_000
_METADATA_AGE_MS = 5_000


def member_consumer_settings(options: SourceOptions) -> dict[str, Any]:
    """Return the settings for `KafkaConsumer`, without strategies.

    Raises `OptionError` for a setting that the client does not have, or for a value that it cannot parse.
    """
    settings = _translated(options, _ROLE, {**_BOTH, **_MEMBER})
    # A response that takes longer than the session timeout is useless to a member.
    settings.setdefault("request_timeout_ms", max(_MIN_REQUEST_MS, round(options.session_timeout_s * 1000)))
    # The client's own default is five minutes.
    settings.setdefault("metadata_max_age_ms", _METADATA_AGE_MS)
    settings.setdefault("heartbeat_interval_ms", round(options.heartbeat_interval_s * 1000))
    settings["connections_max_idle_ms"] = max(
        settings.get("connections_max_idle_ms", 540_000), 2 * settings["request_timeout_ms"]
    )
    return settings | {
        "group_id": options.group_id,
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
        "bootstrap_timeout_ms": round(CONTACT_TIMEOUT_S * 1000),
    }


def named_in(options: SourceOptions, text: str) -> tuple[str, str]:
    """Return the option of a setting that kafka-python names in an error text, and the option's value as shown."""
    for name, value in options.client_settings.items():
        key = {**_BOTH, **_MEMBER}.get(name, ("", str))[0]
        if key and key in text:
            return options.option_name(name), shown_value(name, value)
    return "kafka.*", "..."


def admin_settings(options: SourceOptions) -> dict[str, Any]:
    """Return the settings for `KafkaAdminClient`, without those of a member.

    Raises `OptionError` as `member_consumer_settings` does.
    """
    settings = _translated(options, "admin", dict(_BOTH), ignored=set(_MEMBER))
    return settings | {"bootstrap_timeout_ms": round(CONTACT_TIMEOUT_S * 1000)}


def _translated(
    options: SourceOptions,
    role: str,
    table: Mapping[str, tuple[str, Callable[[str], Any]]],
    ignored: set[str] | frozenset[str] = frozenset(),
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in base_settings(options, role).items():
        if isinstance(value, TokenKeeper):
            found["sasl_oauth_token_provider"] = _token_provider(value)
            continue
        if name in ignored or _LEFT_TO_OTHERS.fullmatch(name):
            continue
        # The name of the option as given, which differs if it refers to a file or a variable.
        given = next((each for each in options.client_settings if setting_of(each) == name), name)
        option = options.option_name(given)
        if name not in table:
            raise OptionError(
                errors.OPTION_REFUSED, option=option, value=shown_unknown(name, str(value)), reason=_REFUSED,
                replacement=_INSTEAD.format(name=given),
            )  # fmt: skip
        key, read = table[name]
        try:
            new = read(str(value))
            # Two settings limit the age of metadata.
            found[key] = min(new, found[key]) if key == "metadata_max_age_ms" and key in found else new
        except ValueError as error:
            raise OptionError(
                errors.CLIENT_REFUSED_OPTION, option=option, value=shown_value(name, str(value)), reason=str(error)
            ) from None
    return found


def _token_provider(keeper: TokenKeeper) -> Any:
    """Return a keeper's tokens as kafka-python wants them. Its I/O thread calls this; so the first token is here."""
    # kafka-python is an extra.
    from kafka.net.sasl.oauth import AbstractTokenProvider  # noqa: PLC0415

    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return keeper.latest().value

        def extensions(self) -> dict[str, str]:
            return dict(keeper.latest().extensions)

    keeper.current()
    return Tokens()


class _Forward(logging.Handler):
    """Forward each record to this package's logger of the member's client, whose filters apply."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record under this package's name."""
        if "event loop" in str(record.msg) and record.levelno <= logging.WARNING:
            # Warnings about the duration of the client's own steps, which are normal on a busy machine.
            return
        quiet_logger(_ROLE).handle(
            logging.LogRecord(
                f"spark_groupsource.client.{_ROLE}", record.levelno, record.pathname, record.lineno,
                "kafka-python: " + record.getMessage(), None, None, record.funcName,
            )
        )  # fmt: skip


def quiet() -> None:
    """Forward the client's log to this package's. Idempotent. Does nothing if the application has set up `kafka`."""
    client = logging.getLogger("kafka")
    # The client adds a NullHandler itself, as libraries do.
    if not all(isinstance(handler, logging.NullHandler) for handler in client.handlers):
        return
    client.addHandler(_Forward())
    client.propagate = False
    if client.level == logging.NOTSET:
        client.setLevel(logging.WARNING)
