"""Client settings: which `kafka.*` options pass through to librdkafka, and which are refused with a reason.

Duty: check names and the few values that the package itself depends on, and give settings of the Java client that have
an equal here its name. librdkafka checks the rest when the client is made; its refusal is mapped to
CLIENT_REFUSED_OPTION by the adapters.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from enum import Enum

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.options.permissions import NotPermitted, Permissions
from spark_groupsource.options.secrets import CLIENT_FILES, check_references, not_permitted, reference, setting_of
from spark_groupsource.redaction import MASK

LOG = logging.getLogger("spark_groupsource.options")
CLIENT_PREFIX = "kafka."
# Settings of the executors' clients alone.
EXECUTOR_PREFIX = "executor.kafka."

_SENSITIVE = re.compile(
    r"secret|password|passphrase|token|credential|private|jaas|oauthbearer\.config|\.pem$|kinit|access\.?key",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[0-9]{1,12}|true|false", re.IGNORECASE)


class GroupProtocol(Enum):
    """Which group protocol the member speaks: the classic one, or KIP-848's."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


def is_sensitive(name: str) -> bool:
    """Whether an option's value may be a secret, judged by its name; where a secret is to be found is none."""
    return _SENSITIVE.search(name) is not None and reference(_setting(name)) is None


def _setting(option: str) -> str:
    """Return a client setting's name without its prefix."""
    return option.lower().removeprefix(EXECUTOR_PREFIX).removeprefix(CLIENT_PREFIX)


def shown_value(name: str, value: str) -> str:
    """Return the value as it may appear in errors and logs: masked when the name says it is a secret."""
    return MASK if is_sensitive(name) else value


def shown_unknown(name: str, value: str) -> str:
    """Return the value of a setting that the client does not know: masked unless plain, as it may be a secret."""
    plain = _PLAIN.fullmatch(value) is not None and not _setting(name).startswith(("sasl.", "ssl.", "https."))
    return shown_value(name, value) if plain else MASK


_OWN_COMMITS = "the group's offsets move when, and only when, a batch is complete (promise P4)."
_RAW_BYTES = "keys and values are always given as bytes."
_SHOWN_BY_SPARK = "Spark shows it in plans and in its event log, unless it is told which options it must not show."
_UNLESS = "{other}; docs/security.md says when it may be named in option allowedUnsafeSettings ({name})."
_ONE_NAME = "it is librdkafka's other name of bootstrap.servers."
_CAST = "leave it out, and cast the columns key and value in Spark."

# Settings that only the Java client has, as Spark's own source takes them -> what to do instead
_TRUSTED = "use kafka.ssl.ca.location (PEM)"
_OWN_KEY = "use kafka.ssl.certificate.location and kafka.ssl.key.location (PEM), or a keystore in PKCS#12"
_LOGIN = "use kafka.sasl.mechanism and what belongs to it: docs/security.md"
_OF_THE_JAVA_CLIENT = {
    "interceptor.classes": "leave it out",
    "max.poll.records": "use maxOffsetsPerTrigger",
    "sasl.client.callback.handler.class": _LOGIN,
    "sasl.jaas.config": "use kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password",
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

# What bounds a request of the Java client. Under the second name librdkafka has something else, for producers only.
_IGNORED = frozenset({"default.api.timeout.ms", "request.timeout.ms"})
# The Java client's name -> librdkafka's for the same, in the same unit, and the bounds there. A buffer of -1 is the
# system's in Java, which is 0 here.
_JAVA_NAMES = {
    "fetch.max.wait.ms": ("fetch.wait.max.ms", 0, 300_000),
    "receive.buffer.bytes": ("socket.receive.buffer.bytes", -1, 100_000_000),
    "send.buffer.bytes": ("socket.send.buffer.bytes", -1, 100_000_000),
}
# How soon what is new in the cluster is noticed, which is the Java client's metadata.max.age.ms. librdkafka has a
# setting of that name, too: after how long it forgets what it knows. Who gives both means librdkafka's.
_AGE, _REFRESH = "metadata.max.age.ms", "topic.metadata.refresh.interval.ms"
# The shortest is for those who mean "at once" by 0 or 1; the longest is librdkafka's.
_MIN_REFRESH_MS, _MAX_REFRESH_MS = 100, 3_600_000
# A topic that is forgotten before the client has asked again looks deleted to a member, which would rejoin.
_MIN_AGE_MS = 15_000
# librdkafka's message.max.bytes, below which it takes no fetch.max.bytes.
_LEAST_FETCH = "1000000"

# name -> (reason, what to do instead)
REFUSED_CLIENT_SETTINGS: dict[str, tuple[str, str]] = {
    "enable.auto.commit": (_OWN_COMMITS, "leave it out; the source commits by itself."),
    "enable.auto.offset.store": (_OWN_COMMITS, "leave it out; the source commits by itself."),
    "auto.commit.interval.ms": (_OWN_COMMITS, "leave it out; the source commits by itself."),
    "auto.commit.enable": (_OWN_COMMITS, "leave it out; the source commits by itself."),
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
        "a misspelt topic would be made instead of reported.",
        "create the topic first.",
    ),
    **{name: ("it is a setting of the Java client.", f"{instead}.") for name, instead in _OF_THE_JAVA_CLIENT.items()},
}

# Settings that make the client load or run code, or hand out what the machine is known by. Options cannot allow them:
# the driver's environment does (`permissions.UNSAFE_SETTINGS`).
CODE_SETTINGS: dict[str, str] = {
    "plugin.library.paths": "it makes the client load a library",
    "ssl.engine.location": "it makes the client load a library",
    "ssl.providers": "it makes the client load a library",
    "sasl.kerberos.kinit.cmd": "it makes the client run a command",
    # Whichever broker the options name would be given it.
    "sasl.oauthbearer.metadata.authentication.type": "it makes the client hand out the machine's own cloud identity",
}
_NO_IDENTITY = "none"
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 - no password
# A setting that a later librdkafka may have, and that sounds like one of the above.
_SOUNDS_UNSAFE = re.compile(
    r".*\.(location|file|dir|directory|path|paths|cmd|command|url|urls|uri)|.*(library|plugin|provider|engine).*"
)
# Secrets that Spark shows, because their names do not match spark.redaction.regex -> what to do instead. Option
# allowedUnsafeSettings allows them by name: they are the secrets of whoever sets the options.
SHOWN_SECRETS: dict[str, str] = {
    name: f"use kafka.{name}.file or kafka.{name}.env"
    for name in (
        "ssl.key.pem",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.pem",
        "sasl.oauthbearer.assertion.private.key.passphrase",
    )
}
# What option allowedUnsafeSettings may name. Of those that run code it allows none any more: naming them is no error.
UNSAFE_SETTINGS = (*(name for name in CODE_SETTINGS if not name.startswith("sasl.oauthbearer")), *SHOWN_SECRETS)
# Files and addresses that are checked elsewhere, and the name of an engine, which means nothing without its library.
_KNOWN_PLACES = CLIENT_FILES | {"ssl.engine.id"}
# Stand in the shell command that fetches a Kerberos ticket, the first one without quotes.
_SHELL_WORDS = {"sasl.kerberos.principal": r"\w[\w.@/-]*", "sasl.kerberos.keytab": r"[^\"$`\\\n]+"}

# What executors are given for themselves must not concern the group, or what the driver has planned.
_COMMON_SETTINGS = re.compile(
    r"group\..*|session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms|isolation\.level"
    r"|partition\.assignment\.strategy"
)
# Who a client is. A part of another identity is of no use, and no executor's business.
_IDENTITY = re.compile(
    r"security\.protocol|sasl\.mechanisms?|sasl\.(username|password)(\.file|\.env)?|sasl\.oauthbearer\..*"
    r"|sasl\.kerberos\..*|ssl\.(key|certificate|keystore)\..*"
)

# Settings of tests, and callbacks, which cannot be given as text.
_REFUSED_PATTERNS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"test\.mock\..*"), "it replaces the cluster by an emulation.", "leave it out."),
    (
        re.compile(r".*_cb|logger|on_commit|on_delivery|opaque|default\.topic\.config"),
        "it is no text setting.",
        "leave it out.",
    ),
)

LIBRDKAFKA_STRATEGIES = ("cooperative-sticky", "range", "roundrobin")
_BROKER_SIDE_SETTINGS = ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy")
# Longer than a round of the membership thread, whose silence is measured against it.
_LEAST_HEARTBEAT_MS = 100
_INTEGERS = {
    "session.timeout.ms": (1, 3_600_000),
    "heartbeat.interval.ms": (_LEAST_HEARTBEAT_MS, 3_600_000),
    "max.poll.interval.ms": (1, 86_400_000),
    _REFRESH: (-1, _MAX_REFRESH_MS),
}
_CHOICES = {
    "group.protocol": tuple(protocol.value for protocol in GroupProtocol),
    "isolation.level": ("read_committed", "read_uncommitted"),
}


def librdkafka_has(strategies: Collection[str]) -> bool:
    """Whether a member on librdkafka can offer these strategies; with none it offers its own."""
    return all(name in LIBRDKAFKA_STRATEGIES for name in strategies)


def check_client_settings(
    settings: Mapping[str, str], shown: Collection[str], permissions: Permissions
) -> dict[str, str]:
    """Return the settings to pass to librdkafka (names without the prefix), with the source's defaults.

    `shown` are the secrets that may be given although Spark shows them. Raises `OptionError` for a refused name, for a
    value the package depends on that is malformed, and for what is not permitted.
    """
    checked = _check_each(settings, shown, CLIENT_PREFIX, permissions)
    checked.setdefault("isolation.level", "read_uncommitted")
    checked["isolation.level"] = checked["isolation.level"].lower()
    if checked.get("group.protocol", "classic").lower() == GroupProtocol.CONSUMER.value:
        _check_broker_side(checked)
    else:
        checked.setdefault("partition.assignment.strategy", "cooperative-sticky")
        _check_intervals(checked)
        _set_heartbeat(checked)
    return checked


def check_executor_settings(
    settings: Mapping[str, str], shown: Collection[str], permissions: Permissions
) -> dict[str, str]:
    """Return the settings that executors have of their own (names without the prefix). Raises as above."""
    for name in settings:
        if _COMMON_SETTINGS.fullmatch(name):
            raise OptionError(
                errors.OPTION_REFUSED, option=EXECUTOR_PREFIX + name, value=shown_value(name, settings[name]),
                reason="executors are in no group, and read what the driver has planned.",
                replacement=f"use {CLIENT_PREFIX}{name}, which is for all clients.",
            )  # fmt: skip
    return _check_each(settings, shown, EXECUTOR_PREFIX, permissions)


def reading_settings(common: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return an executor's settings: its own over the common ones.

    With an identity of its own it gets nothing of the common one's secrets.
    """
    given = {setting_of(name) for name in own}
    left = {name: value for name, value in common.items() if setting_of(name) not in given}
    if any(map(_IDENTITY.fullmatch, own)):
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
        try:
            _check_permitted(name, value, permissions)
        except NotPermitted as refusal:
            raise not_permitted(prefix + name, shown_unknown(name, value), refusal) from None
    return _as_librdkafka_has_it(given, prefix)


def _check_permitted(name: str, value: str, permissions: Permissions) -> None:
    """Raise `NotPermitted` for what only the driver's environment can allow; files are checked where they are read."""
    if name == _TOKEN_URL:
        permissions.check_token_endpoint(value)
    elif name == "bootstrap.servers":
        permissions.check_brokers(value)
    elif name == "sasl.oauthbearer.metadata.authentication.type" and value.lower() == _NO_IDENTITY:
        return
    elif name in CODE_SETTINGS:
        permissions.check_setting(name, CODE_SETTINGS[name])
    elif _SOUNDS_UNSAFE.fullmatch(name) and name not in _KNOWN_PLACES and reference(name) is None:
        permissions.check_setting(name, "it is not known here, and by its name it may read a file or run code")


def _as_librdkafka_has_it(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return the settings under librdkafka's names, where the Java client has others, and within its bounds."""
    found = {name: value for name, value in given.items() if name not in _IGNORED | _JAVA_NAMES.keys()}
    for name in sorted(_IGNORED & given.keys()):
        shown = shown_unknown(name, given[name])
        LOG.warning("%s%s=%s is ignored: kafka.socket.timeout.ms bounds requests here", prefix, name, shown)
    for name, (own_name, low, high) in _JAVA_NAMES.items():
        if name in given:
            value = str(max(0, _integer(name, given[name], low, high, prefix)))
            if found.setdefault(own_name, value) != value:
                raise OptionError(
                    errors.OPTION_CONFLICT,
                    options=f"'{prefix}{name}' (value '{given[name]}') and '{prefix}{own_name}'"
                    f" (value '{shown_unknown(own_name, given[own_name])}')",
                    reason="they are two names of one setting.",
                )
    if _AGE in given and _REFRESH not in given:
        refresh_ms = min(max(_integer(_AGE, given[_AGE], 0, 2**63 - 1, prefix), _MIN_REFRESH_MS), _MAX_REFRESH_MS)
        found |= {_REFRESH: str(refresh_ms), _AGE: str(max(3 * refresh_ms, _MIN_AGE_MS))}
    if re.fullmatch("[0-9]{1,6}", given.get("fetch.max.bytes", "")) and "message.max.bytes" not in given:
        found["fetch.max.bytes"] = _LEAST_FETCH
        LOG.warning("%sfetch.max.bytes=%s counts as %s", prefix, given["fetch.max.bytes"], _LEAST_FETCH)
    return found


def _refuse(name: str, value: str, prefix: str) -> None:
    refusal = REFUSED_CLIENT_SETTINGS.get(name)
    if name in SHOWN_SECRETS:
        refusal = (_SHOWN_BY_SPARK, _UNLESS.format(other=SHOWN_SECRETS[name], name=name))
    if refusal is None:
        matches = (why for pattern, *why in _REFUSED_PATTERNS if pattern.fullmatch(name))
        found = next(matches, None)
        if found is None:
            return
        refusal = (found[0], found[1])
    reason, replacement = refusal
    raise OptionError(
        errors.OPTION_REFUSED,
        option=prefix + name,
        value=shown_value(name, value),
        reason=reason,
        replacement=replacement,
    )


def _invalid(name: str, value: str, allowed: str, prefix: str = CLIENT_PREFIX) -> OptionError:
    return OptionError(errors.OPTION_INVALID, option=prefix + name, value=shown_value(name, value), allowed=allowed)


def _integer(name: str, value: str, low: int, high: int, prefix: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", value) or not low <= int(value) <= high:
        raise _invalid(name, value, f"an integer from {low} to {high}", prefix)
    return int(value)


def _check_value(name: str, value: str, prefix: str) -> None:
    if name in _INTEGERS:
        _integer(name, value, *_INTEGERS[name], prefix)
    elif name in _CHOICES:
        if value.lower() not in _CHOICES[name]:
            raise _invalid(name, value, ", ".join(_CHOICES[name]), prefix)
    elif name in _SHELL_WORDS:
        if not re.fullmatch(_SHELL_WORDS[name], value):
            raise _invalid(name, value, "no character that means something to a shell", prefix)
    elif name == "partition.assignment.strategy":
        names = [part.strip() for part in value.split(",")]
        cooperative = [part for part in names if part == "cooperative-sticky"]
        if not librdkafka_has(names) or (cooperative and len(names) > 1):
            raise _invalid(
                name, value, "cooperative-sticky; or one or both of range, roundrobin (for others see option assignors)"
            )


def _check_broker_side(settings: Mapping[str, str]) -> None:
    for name in _BROKER_SIDE_SETTINGS:
        if name in settings:
            raise OptionError(
                errors.OPTION_CONFLICT,
                options=f"'kafka.group.protocol' (value 'consumer') and '{CLIENT_PREFIX}{name}'"
                f" (value '{settings[name]}')",
                reason="under KIP-848 the broker sets session timeout, heartbeat interval and assignor.",
            )


def _check_intervals(settings: Mapping[str, str]) -> None:
    session_ms = int(settings.get("session.timeout.ms", "45000"))
    poll_ms = int(settings.get("max.poll.interval.ms", "300000"))
    if poll_ms < session_ms:
        raise _invalid("max.poll.interval.ms", str(poll_ms), f"at least kafka.session.timeout.ms ({session_ms})")
    # The session would end between two heartbeats, again and again.
    if int(settings.get("heartbeat.interval.ms", "0")) >= session_ms:
        allowed = f"below kafka.session.timeout.ms ({session_ms})"
        raise _invalid("heartbeat.interval.ms", settings["heartbeat.interval.ms"], allowed)


def _set_heartbeat(settings: dict[str, str]) -> None:
    """Keep to three heartbeats a session, as Kafka's documentation asks for, where only a short session is given."""
    short_ms = max(_LEAST_HEARTBEAT_MS, int(settings.get("session.timeout.ms", "45000")) // 3)
    if short_ms < 3000:
        settings.setdefault("heartbeat.interval.ms", str(short_ms))
