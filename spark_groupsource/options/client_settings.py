"""Check client settings: which `kafka.*` options pass through to librdkafka, and which are refused with a reason.

This module checks names, and the few values that the package itself depends on. It renames settings of the Java client
that librdkafka has under another name. librdkafka checks the rest when the client is created; the adapters report its
refusal as CLIENT_REFUSED_OPTION.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from enum import Enum

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.model.names import is_broker_list
from spark_groupsource.options.librdkafka_names import is_known, similar
from spark_groupsource.options.permissions import Permissions
from spark_groupsource.options.secrets import (
    CLIENT_FILES,
    check_references,
    conflict,
    permitted,
    reference,
    setting_of,
)
from spark_groupsource.options.token_login import EXECUTOR_OPTION as EXECUTOR_TOKEN_PROVIDER
from spark_groupsource.options.token_login import OPTION as TOKEN_PROVIDER
from spark_groupsource.redaction import MASK, without_user

LOG = logging.getLogger(__name__)
CLIENT_PREFIX = "kafka."
# Prefix of settings for the executors' clients only.
EXECUTOR_PREFIX = "executor.kafka."

_SENSITIVE = re.compile(
    r"secret|password|passphrase|token|credential|private|jaas|oauthbearer\.config|\.pem$|kinit|access\.?key",
    re.IGNORECASE,
)
# Options that name the provider of a token, not a token.
_NAMES_A_PROVIDER = frozenset({TOKEN_PROVIDER.lower(), EXECUTOR_TOKEN_PROVIDER.lower()})
_PLAIN = re.compile(r"[0-9]{1,12}|true|false", re.IGNORECASE)


class GroupProtocol(Enum):
    """Group protocol of the member: classic, or consumer (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


def is_sensitive(name: str) -> bool:
    """Return whether an option's value may be a secret, judged by its name. A path or variable name is not secret."""
    if name.lower() in _NAMES_A_PROVIDER:
        return False
    return _SENSITIVE.search(name) is not None and reference(_setting(name)) is None


def _setting(option: str) -> str:
    """Return a client setting's name without its prefix."""
    return option.lower().removeprefix(EXECUTOR_PREFIX).removeprefix(CLIENT_PREFIX)


def shown_value(name: str, value: str) -> str:
    """Return the value for errors and logs: masked if it may be a secret, by its name, or as a URL with a user."""
    has_user = "@" in value and name.lower().endswith("bootstrap.servers")
    return MASK if has_user or is_sensitive(name) else without_user(value)


def shown_unknown(name: str, value: str) -> str:
    """Return the value of a setting unknown to the client, for errors: masked unless plain, as it may be a secret."""
    plain = _PLAIN.fullmatch(value) is not None and not _setting(name).startswith(("sasl.", "ssl.", "https."))
    return shown_value(name, value) if plain else MASK


_OWN_COMMITS = "the source commits the group's offsets itself, only when a batch is complete (promise P4)."
_RAW_BYTES = "the source returns keys and values as bytes."
_SHOWN_BY_SPARK = "Spark shows its value in plans and in its event log, unless spark.redaction.regex matches its name."
_UNLESS = "{other}; docs/security.md describes when you may name it in option allowedUnsafeSettings ({name})."
_ONE_NAME = "it is librdkafka's other name of bootstrap.servers."
_CAST = "leave it out, and cast the columns key and value in Spark."

# Settings of the Java client that Spark's own source accepts -> what to use instead
_TRUSTED = "use kafka.ssl.ca.location (PEM)"
_OWN_KEY = "use kafka.ssl.certificate.location and kafka.ssl.key.location (PEM), or a keystore in PKCS#12"
_LOGIN = "use kafka.sasl.mechanism and its settings (docs/security.md)"
_OF_THE_JAVA_CLIENT = {
    "interceptor.classes": "leave it out",
    "max.poll.records": "use maxOffsetsPerTrigger",
    "sasl.client.callback.handler.class": _LOGIN,
    "sasl.jaas.config": "use kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password.file; for a keytab or"
    " tokens see docs/security.md",
    "sasl.login.callback.handler.class": _LOGIN,
    "sasl.login.class": _LOGIN,
    "ssl.keystore.certificate.chain": _OWN_KEY,
    "ssl.keystore.key": _OWN_KEY,
    "ssl.keystore.type": _OWN_KEY,
    "ssl.truststore.certificates": _TRUSTED,
    "ssl.truststore.location": _TRUSTED,
    "ssl.truststore.password": _TRUSTED,
    "ssl.truststore.type": _TRUSTED,
}

# Request timeouts of the Java client. librdkafka uses the second name for something else, for producers only.
_IGNORED = frozenset({"default.api.timeout.ms", "request.timeout.ms"})
# The Java client's name -> librdkafka's name for the same setting in the same unit, with librdkafka's bounds. A buffer
# of -1 means the system's default in Java; librdkafka uses 0 for that.
_JAVA_NAMES = {
    "fetch.max.wait.ms": ("fetch.wait.max.ms", 0, 300_000),
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", -1, 100_000_000),
    "send.buffer.bytes": ("socket.send.buffer.bytes", -1, 100_000_000),
}
# The Java client's metadata.max.age.ms sets how soon changes in the cluster are noticed. librdkafka has a setting of
# that name with another meaning: when it discards metadata. If the user sets both names, librdkafka's meanings apply.
_AGE, _REFRESH = "metadata.max.age.ms", "topic.metadata.refresh.interval.ms"
# The minimum is for users who mean "at once" by 0 or 1; the maximum is librdkafka's.
_MIN_REFRESH_MS, _MAX_REFRESH_MS = 100, 3_600_000
# A topic whose metadata is discarded before the next refresh looks deleted to a member, which would rejoin.
_MIN_AGE_MS = 15_000
# librdkafka's message.max.bytes; it rejects a smaller fetch.max.bytes.
_LEAST_FETCH = "1000000"

# Limits a broker's answer, and the uncompressed size of a zstd batch; then librdkafka's largest value of it.
RECEIVED_SETTING = "receive.message.max.bytes"
RECEIVED_MAX_BYTES = 2**31 - 1

# name -> (reason, what to do instead)
REFUSED_CLIENT_SETTINGS: dict[str, tuple[str, str]] = {
    "enable.auto.commit": (_OWN_COMMITS, "leave it out; the source commits itself."),
    "enable.auto.offset.store": (_OWN_COMMITS, "leave it out; the source commits itself."),
    "auto.commit.interval.ms": (_OWN_COMMITS, "leave it out; the source commits itself."),
    "auto.commit.enable": (_OWN_COMMITS, "leave it out; the source commits itself."),
    "auto.offset.reset": (
        "a silent reset would skip or repeat records (promise P8).",
        "use startingOffsets or startingTimestamp for the start, and failOnDataLoss for lost records.",
    ),
    "offset.store.method": (_OWN_COMMITS, "leave it out; offsets are stored in the group."),
    "offset.store.path": (_OWN_COMMITS, "leave it out; offsets are stored in the group."),
    "metadata.broker.list": (_ONE_NAME, "use kafka.bootstrap.servers."),
    "key.deserializer": (_RAW_BYTES, _CAST),
    "value.deserializer": (_RAW_BYTES, _CAST),
    "key.serializer": (_RAW_BYTES, _CAST),
    "value.serializer": (_RAW_BYTES, _CAST),
    "enable.partition.eof": ("the reader depends on end-of-partition events.", "leave it out."),
    "check.crcs": ("records are always checked against their checksum.", "leave it out."),
    "allow.auto.create.topics": (
        "a misspelt topic would be created instead of reported.",
        "create the topic first.",
    ),
    **{name: ("it is a setting of the Java client.", f"{instead}.") for name, instead in _OF_THE_JAVA_CLIENT.items()},
}

# Settings that make the client load or run code, or send the machine's own identity. Options cannot allow them, only
# the driver's environment can (`permissions.ALLOW_UNSAFE_SETTINGS`).
CODE_SETTINGS: dict[str, str] = {
    "plugin.library.paths": "it makes the client load a library",
    "ssl.engine.location": "it makes the client load a library",
    "ssl.providers": "it makes the client load a library",
    "sasl.kerberos.kinit.cmd": "it makes the client run a command",
    # The options also name the brokers, which would receive this identity.
    "sasl.oauthbearer.metadata.authentication.type": "it makes the client send the machine's own cloud identity",
}
_NO_IDENTITY = "none"
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - no password
# Names of settings that a later librdkafka may have, and that may be like the ones above.
_SOUNDS_UNSAFE = re.compile(
    r".*\.(location|file|dir|directory|path|paths|cmd|command|url|urls|uri)|.*(library|plugin|provider|engine).*"
)
# Secrets that Spark shows, because their names do not match spark.redaction.regex -> what to use instead. Option
# allowedUnsafeSettings allows them by name: they are secrets of the same user who sets the options.
SHOWN_SECRETS: dict[str, str] = {
    name: f"use kafka.{name}.file or kafka.{name}.env"
    for name in (
        "ssl.key.pem",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    )
}
# Names that option allowedUnsafeSettings accepts. It no longer allows those that run code; naming them is not an error.
UNSAFE_SETTINGS = (*(name for name in CODE_SETTINGS if not name.startswith("sasl.oauthbearer")), *SHOWN_SECRETS)
# File and address settings that are checked elsewhere, and the name of an engine, which has no effect without a
# library.
_KNOWN_PLACES = CLIENT_FILES | {"ssl.engine.id"}
# Settings that become part of the shell command that fetches a Kerberos ticket, the first one without quotes.
_SHELL_WORDS = {"sasl.kerberos.principal": r"\w[\w.@/-]*", "sasl.kerberos.keytab": r"[^\"$`\\\n]+"}

# Settings that executors cannot have of their own: they concern the group or the offsets that the driver has planned.
_COMMON_SETTINGS = re.compile(
    r"group\..*|session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms|isolation\.level"
    r"|partition\.assignment\.strategy"
)
# Settings that identify a client. Part of another identity is useless, and executors need not receive it.
_IDENTITY = re.compile(
    r"security\.protocol|sasl\.mechanisms?|sasl\.(username|password)(\.file|\.env)?|sasl\.oauthbearer\..*"
    r"|sasl\.kerberos\..*|ssl\.(key|certificate|keystore)\..*"
)

# Settings for tests, and callbacks, which cannot be text.
_REFUSED_PATTERNS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"test\.mock\..*"), "it replaces the cluster by an emulation.", "leave it out."),
    (
        re.compile(r".*_cb|logger|on_commit|on_delivery|opaque|default\.topic\.config"),
        "its value is not a text.",
        "leave it out.",
    ),
)

LIBRDKAFKA_STRATEGIES = ("cooperative-sticky", "range", "roundrobin")
_BROKER_SIDE_SETTINGS = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
# Longer than one loop of the membership thread, because the thread's silence is measured against it.
_LEAST_HEARTBEAT_MS = 100
_INTEGERS = {
    "session.timeout.ms": (1, 3_600_000),
    "heartbeat.interval.ms": (_LEAST_HEARTBEAT_MS, 3_600_000),
    "max.poll.interval.ms": (1, 86_400_000),
    _REFRESH: (-1, _MAX_REFRESH_MS),
}
# The client's defaults of settings that the package depends on itself.
_DEFAULTS_MS = {"session.timeout.ms": 45_000, "heartbeat.interval.ms": 3_000, "max.poll.interval.ms": 300_000}
_CHOICES = {
    "group.protocol": tuple(protocol.value for protocol in GroupProtocol),
    "isolation.level": ("read_committed", "read_uncommitted"),
}


def librdkafka_has(strategies: Collection[str]) -> bool:
    """Return whether a member on librdkafka can offer these strategies; without any it offers its default."""
    return all(name in LIBRDKAFKA_STRATEGIES for name in strategies)


def interval_ms(settings: Mapping[str, str], name: str) -> int:
    """Return a timeout or an interval of a member in milliseconds, as it was set, or the client's default."""
    return int(settings.get(name, _DEFAULTS_MS[name]))


def group_protocol(settings: Mapping[str, str]) -> GroupProtocol:
    """Return the group protocol that was set, or the client's default."""
    return GroupProtocol(settings.get("group.protocol", GroupProtocol.CLASSIC.value).lower())


def check_client_settings(
    settings: Mapping[str, str], shown: Collection[str], permissions: Permissions
) -> dict[str, str]:
    """Return the settings to pass to librdkafka (names without the prefix), with the source's defaults.

    `shown` are the secrets that are allowed although Spark shows them. Raises `OptionError` for a refused name, for a
    malformed value that the package depends on, and for a setting that the driver does not permit.
    """
    checked = _check_each(settings, shown, CLIENT_PREFIX, permissions)
    checked.setdefault("isolation.level", "read_uncommitted")
    checked["isolation.level"] = checked["isolation.level"].lower()
    if group_protocol(checked) is GroupProtocol.CONSUMER:
        _check_broker_side(checked)
    else:
        checked.setdefault("partition.assignment.strategy", "cooperative-sticky")
        _check_intervals(checked)
        _set_heartbeat(checked)
    return checked


def check_executor_settings(
    settings: Mapping[str, str], shown: Collection[str], permissions: Permissions
) -> dict[str, str]:
    """Return the executors' own settings (names without the prefix).

    Raises `OptionError` as `check_client_settings` does, and for a setting that executors cannot have of their own.
    """
    for name in settings:
        if _COMMON_SETTINGS.fullmatch(name):
            raise OptionError(
                errors.OPTION_REFUSED, option=EXECUTOR_PREFIX + name, value=shown_value(name, settings[name]),
                reason="executors do not join the group, and read the offsets that the driver has planned.",
                replacement=f"use {CLIENT_PREFIX}{name}, which applies to all clients.",
            )  # fmt: skip
    return _check_each(settings, shown, EXECUTOR_PREFIX, permissions)


def warn_of_unused(client: Mapping[str, str], executor: Mapping[str, str]) -> None:
    """Log a warning for settings of TLS, or of a login, that no client uses.

    The client ignores them, so the user may believe that the connections are encrypted. It is no error: settings that
    several environments share may contain them.
    """
    common = client.get("security.protocol", "plaintext")
    own = executor.get("security.protocol", common)
    # The executors have the common settings, too.
    for settings, prefix, protocols in ((client, CLIENT_PREFIX, (own, common)), (executor, EXECUTOR_PREFIX, (own,))):
        for kind in ("ssl", "sasl"):
            unused = sorted(prefix + name for name in settings if name.startswith(f"{kind}."))
            if unused and not any(kind in protocol.lower() for protocol in protocols):
                LOG.warning("no effect with security.protocol=%s: %s", protocols[-1], ", ".join(unused))


def has_own_identity(own: Mapping[str, str]) -> bool:
    """Return whether the executors' own settings have a part of an identity."""
    return any(map(_IDENTITY.fullmatch, own))


def merged_executor_settings(common: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return an executor's settings: its own settings over the common ones.

    If the executor has its own identity, it gets no secret of the common one.
    """
    given = {setting_of(name) for name in own}
    left = {name: value for name, value in common.items() if setting_of(name) not in given}
    if has_own_identity(own):
        kept = ("security.protocol", "sasl.mechanism", "sasl.mechanisms")
        left = {name: value for name, value in left.items() if name in kept or not _IDENTITY.fullmatch(name)}
    return left | dict(own)


def _check_each(
    settings: Mapping[str, str], shown: Collection[str], prefix: str, permissions: Permissions
) -> dict[str, str]:
    given = {name: value.strip() for name, value in settings.items()}
    for name, value in given.items():
        if name not in shown or name not in SHOWN_SECRETS:
            _refuse(name, value, prefix)
        _check_value(name, value, prefix)
    check_references(given, prefix, permissions)
    for name, value in given.items():
        with permitted(prefix + name, shown_unknown(name, value)):
            _check_permitted(name, value, permissions)
    found = _as_librdkafka_has_it(given, prefix)
    for name in given.keys() & found.keys():
        if not is_known(setting_of(name)):
            near = similar(name)
            suggestion = f" Did you mean '{prefix}{near}'?" if near else " It is no setting of librdkafka's."
            raise OptionError(errors.OPTION_UNKNOWN, option=prefix + name, suggestion=suggestion)
    return found


def _check_permitted(name: str, value: str, permissions: Permissions) -> None:
    """Raise `NotPermitted` for a value that only the driver's environment can allow. Files are checked when read."""
    if name == _TOKEN_URL:
        permissions.check_token_endpoint(value)
    elif name == "bootstrap.servers":
        permissions.check_brokers(value)
    elif name == "sasl.oauthbearer.metadata.authentication.type" and value.lower() == _NO_IDENTITY:
        return
    elif name in CODE_SETTINGS:
        permissions.check_setting(name, CODE_SETTINGS[name])
    elif _SOUNDS_UNSAFE.fullmatch(name) and name not in _KNOWN_PLACES and reference(name) is None and is_known(name):
        permissions.check_setting(name, "this release does not know it; by its name it may read a file or run code")


def _as_librdkafka_has_it(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the settings under librdkafka's names and within its bounds."""
    found = {name: value for name, value in given.items() if name not in _IGNORED | _JAVA_NAMES.keys()}
    if "bootstrap.servers" in found:
        found["bootstrap.servers"] = "".join(found["bootstrap.servers"].split())
    for name in sorted(_IGNORED & given.keys()):
        shown = shown_unknown(name, given[name])
        LOG.warning("%s%s=%s is ignored: kafka.socket.timeout.ms limits the duration of requests", prefix, name, shown)
    for name, (own_name, low, high) in _JAVA_NAMES.items():
        if name in given:
            value = str(max(0, _integer(name, given[name], low, high, prefix)))
            if found.setdefault(own_name, value) != value:
                shown = shown_unknown(own_name, given[own_name])
                reason = "both are names of the same setting."
                raise conflict(prefix + name, given[name], prefix + own_name, shown, reason)
    if _AGE in given and _REFRESH not in given:
        refresh_ms = min(max(_integer(_AGE, given[_AGE], 0, 2**63 - 1, prefix), _MIN_REFRESH_MS), _MAX_REFRESH_MS)
        found |= {_REFRESH: str(refresh_ms), _AGE: str(max(3 * refresh_ms, _MIN_AGE_MS))}
    if re.fullmatch("[0-9]{1,6}", given.get("fetch.max.bytes", "")) and "message.max.bytes" not in given:
        found["fetch.max.bytes"] = _LEAST_FETCH
        LOG.warning("%sfetch.max.bytes=%s is raised to %s, the minimum", prefix, given["fetch.max.bytes"], _LEAST_FETCH)
    return found


def _refuse(name: str, value: str, prefix: str) -> None:
    refusal = REFUSED_CLIENT_SETTINGS.get(name)
    if name in SHOWN_SECRETS:
        refusal = (_SHOWN_BY_SPARK, _UNLESS.format(other=SHOWN_SECRETS[name], name=name))
    if refusal is None:
        whys = ((why, instead) for pattern, why, instead in _REFUSED_PATTERNS if pattern.fullmatch(name))
        refusal = next(whys, None)
        if refusal is None:
            return
    reason, replacement = refusal
    raise OptionError(
        errors.OPTION_REFUSED,
        option=prefix + name,
        value=shown_value(name, value),
        reason=reason,
        replacement=replacement,
    )


def invalid_option(name: str, value: str, allowed: str) -> OptionError:
    """Build the error for a malformed or out-of-range value. A secret value is masked."""
    return OptionError(errors.OPTION_INVALID, option=name, value=shown_value(name, value), allowed=allowed)


def _integer(name: str, value: str, low: int, high: int, prefix: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", value) or not low <= int(value) <= high:
        raise invalid_option(prefix + name, value, f"an integer from {low} to {high}")
    return int(value)


def _check_value(name: str, value: str, prefix: str) -> None:
    if name in _INTEGERS:
        _integer(name, value, *_INTEGERS[name], prefix)
    elif name in _CHOICES:
        if value.lower() not in _CHOICES[name]:
            raise invalid_option(prefix + name, value, ", ".join(_CHOICES[name]))
    elif name in _SHELL_WORDS:
        if not re.fullmatch(_SHELL_WORDS[name], value):
            raise invalid_option(prefix + name, value, "no characters with a meaning in a shell")
    elif name == "bootstrap.servers" and not is_broker_list(value):
        raise invalid_option(prefix + name, value, "host:port, comma separated")
    elif name == "partition.assignment.strategy":
        names = [part.strip() for part in value.split(",")]
        cooperative = [part for part in names if part == "cooperative-sticky"]
        if not librdkafka_has(names) or (cooperative and len(names) > 1):
            allowed = "cooperative-sticky; or one or both of range, roundrobin (for others see option assignors)"
            raise invalid_option(CLIENT_PREFIX + name, value, allowed)


def _check_broker_side(settings: Mapping[str, str]) -> None:
    for name in _BROKER_SIDE_SETTINGS:
        if name in settings:
            reason = (
                "under KIP-848 the broker sets session timeout, heartbeat interval and assignor. A group's own are"
                " consumer.session.timeout.ms and consumer.heartbeat.interval.ms (kafka-configs.sh, entity type"
                " groups)."
            )
            raise conflict("kafka.group.protocol", "consumer", CLIENT_PREFIX + name, settings[name], reason)


def _check_intervals(settings: Mapping[str, str]) -> None:
    session_ms = interval_ms(settings, "session.timeout.ms")
    poll_ms = interval_ms(settings, "max.poll.interval.ms")
    if poll_ms < session_ms:
        allowed = f"at least kafka.session.timeout.ms ({session_ms})"
        raise invalid_option("kafka.max.poll.interval.ms", str(poll_ms), allowed)
    # Otherwise the session would expire between two heartbeats, repeatedly.
    if int(settings.get("heartbeat.interval.ms", "0")) >= session_ms:
        allowed = f"below kafka.session.timeout.ms ({session_ms})"
        raise invalid_option("kafka.heartbeat.interval.ms", settings["heartbeat.interval.ms"], allowed)


def _set_heartbeat(settings: dict[str, str]) -> None:
    """Set the heartbeat to a third of a short session timeout, as Kafka's documentation recommends, unless given."""
    short_ms = max(_LEAST_HEARTBEAT_MS, interval_ms(settings, "session.timeout.ms") // 3)
    if short_ms < _DEFAULTS_MS["heartbeat.interval.ms"]:
        settings.setdefault("heartbeat.interval.ms", str(short_ms))
