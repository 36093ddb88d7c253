"""Build the settings of Kafka clients from the options, and the error for a setting that a client refuses.

Only adapters import this module.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.client.errors import lacking_resources
from spark_groupsource.client.log import quiet_logger
from spark_groupsource.client.tokens import SETTING as TOKENS
from spark_groupsource.client.tokens import TokenKeeper, keeper_of
from spark_groupsource.errors import (
    GroupKafkaError,
    OptionError,
)
from spark_groupsource.options.client_settings import (
    CLIENT_PREFIX,
    RECEIVED_MAX_BYTES,
    RECEIVED_SETTING,
    is_sensitive,
    shown_unknown,
    shown_value,
)
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.secrets import refers_to_secret, resolved, setting_of
from spark_groupsource.options.token_login import AWS_IAM, TokenLogin
from spark_groupsource.redaction import remember

# The role of clients that read records.
EXECUTOR_ROLE = "executor"
# Settings without meaning for a client that is no group member. librdkafka warns about some of them, and refuses a
# max.poll.interval.ms below its session timeout.
_MEMBER_SETTINGS = (
    r"group\..*|session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\..*|partition\.assignment\.strategy"
)
# Settings for fetching records, left out for clients that fetch few or none. A consumer uses message.max.bytes only as
# the minimum of fetch.max.bytes: it reads larger records, too.
FETCH_SETTINGS = r"fetch\..*|queued\..*|max\.partition\.fetch\.bytes|message\.max\.bytes"
# librdkafka's default of `RECEIVED_SETTING`.
_RECEIVED_BYTES = 100_000_000
# How long a connection may take to be set up, login included (Java's 10 s are without it): librdkafka's default of 30 s
# is longer than the whole first contact (`CONTACT_TIMEOUT_S`). It tries the addresses of a name one after the other, in
# random order.
_SETUP_SETTING, _SETUP_MS = "socket.connection.setup.timeout.ms", 10_000
_PASSWORDS = {"ssl.key.password", "ssl.keystore.password"}


def base_settings(options: SourceOptions, role: str) -> dict[str, Any]:
    """Return the librdkafka settings common to all clients of a reader. `role` becomes a part of client.id.

    Reads secrets from files and the environment, and registers all secrets for masking. Raises `OptionError` if one is
    missing.
    """
    side = "an executor" if role == EXECUTOR_ROLE else "the driver"
    settings: dict[str, Any] = resolved(options.client_settings, options.option_name, side, options.permissions)
    read = {setting_of(name) for name in options.client_settings if refers_to_secret(name)}
    remember(value for name, value in settings.items() if is_sensitive(name) or name in read)
    if options.token_login is not None:
        settings[TOKENS] = _token_keeper(settings, options.token_login, side)
    settings["bootstrap.servers"] = options.bootstrap_servers
    settings["client.id"] = f"{settings.get('client.id', 'groupkafka')}-{role}"
    settings["logger"] = quiet_logger(role)
    return settings


def librdkafka_settings(options: SourceOptions, role: str) -> dict[str, Any]:
    """Return `base_settings` with what librdkafka alone has.

    Guards against:
    1. A broker's name has two addresses. One of them answers nothing, not even that the port is closed.
    2. The client tries that one first, and for longer than the source waits for an answer.
    3. The query ends, although the other address answers.
    """
    return {_SETUP_SETTING: _SETUP_MS} | base_settings(options, role)


def _token_keeper(settings: dict[str, Any], login: TokenLogin, side: str) -> TokenKeeper:
    """Return the keeper of the tokens to log in with. Remove the settings that only a provider reads."""
    config = settings.pop("sasl.oauthbearer.config", None)
    extensions = None
    if login.provider == AWS_IAM:
        # librdkafka itself would not know how to get a token. confluent-kafka does, but only for its own clients.
        for name in ("sasl.oauthbearer.method", "sasl.oauthbearer.metadata.authentication.type"):
            settings.pop(name, None)
        extensions = settings.pop("sasl.oauthbearer.extensions", None)
    return keeper_of(login, config, extensions, side)


def outsider_settings(options: SourceOptions, role: str, *left_out: str) -> dict[str, Any]:
    """Return `librdkafka_settings` for a client that is no group member, without those whose names match `left_out`."""
    unfit = re.compile("|".join((_MEMBER_SETTINGS, *left_out)))
    return {name: value for name, value in librdkafka_settings(options, role).items() if not unfit.fullmatch(name)}


def assigned_consumer_settings(options: SourceOptions, role: str, *left_out: str) -> dict[str, Any]:
    """Return the settings of a consumer that reads assigned partitions without a group; see `outsider_settings`.

    Unless the user sets it, the limit `RECEIVED_SETTING` is the largest one. librdkafka also limits the uncompressed
    size of a zstd batch by it (not those of gzip, snappy and lz4). Its buffer for a batch without a size in the frame,
    as Kafka's Java clients write it, grows by a factor of 3: the default would end at a third of 100 MB.
    """
    settings = outsider_settings(options, role, *left_out)
    settings.setdefault(RECEIVED_SETTING, str(RECEIVED_MAX_BYTES))
    return settings | {
        # librdkafka requires a group id, and searches for its coordinator. Nothing is ever sent to that group.
        "group.id": f"groupkafka-{role}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "allow.auto.create.topics": False,
    }


def few_records_settings(options: SourceOptions, role: str) -> dict[str, Any]:
    """Return `assigned_consumer_settings` for a client that reads few records, without `FETCH_SETTINGS`.

    A receive.message.max.bytes above librdkafka's default is kept: an answer with a very large record needs it. A
    smaller one is left out: librdkafka refuses it if it has no room for the client's own fetch.max.bytes.
    """
    settings = assigned_consumer_settings(options, role, FETCH_SETTINGS)
    # librdkafka reports a value that is no number.
    with suppress(ValueError):
        if int(settings[RECEIVED_SETTING], 0) < _RECEIVED_BYTES:
            del settings[RECEIVED_SETTING]
    return settings


@contextmanager
def creating_client(options: SourceOptions) -> Iterator[None]:
    """Map the client's refusal of a setting to an `OptionError` that names the option.

    Raises `KafkaUnavailableError` if the system refuses the client its threads.
    """
    try:
        yield
    except (KafkaException, ValueError, TypeError) as error:
        cause = error.args[0] if error.args else error
        reason = cause.str() if isinstance(cause, KafkaError) else str(error)
        raise lacking_resources(reason) or _refused_setting(options, reason) from None


def _refused_setting(options: SourceOptions, reason: str) -> GroupKafkaError:
    named = [name for name in options.client_settings if setting_of(name) in reason]
    name = max(named, key=len, default="bootstrap.servers")
    value = options.client_settings.get(name, options.bootstrap_servers)
    if "SASL mechanism" in reason:
        # The text names no setting. GSSAPI is librdkafka's default, also for a password, and missing in some builds.
        name = "sasl.mechanisms" if "sasl.mechanisms" in options.client_settings else "sasl.mechanism"
        value = options.client_settings.get(name, "GSSAPI")
        reason += " (with a password set PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; others are OAUTHBEARER and GSSAPI)"
    unknown = "No such configuration property" in reason
    shown = shown_unknown(name, value) if unknown else shown_value(name, value)
    # librdkafka repeats the value in some messages; for an unknown setting it returns only the name.
    reason = reason.replace(value, shown) if value and not unknown else reason
    reason += _file_trouble(name, value)
    return OptionError(errors.CLIENT_REFUSED_OPTION, option=options.option_name(name), value=shown, reason=reason)


def _file_trouble(name: str, value: str) -> str:
    """Return the problem with a file that a refused setting names.

    OpenSSL reports only which of its routines failed.
    """
    if not name.endswith(".location"):
        return ""
    try:
        with open(value, "rb"):
            password = f"{name.removesuffix('.location')}.password"
            if password not in _PASSWORDS:
                return ""
            kind = "is it PKCS#12, and " if name == "ssl.keystore.location" else "is "
            return f" (the file can be read; {kind}{CLIENT_PREFIX}{password} right?)"
    except (IsADirectoryError, ValueError):
        return ""
    except OSError as error:
        return f" (the file cannot be read on host '{socket.gethostname()}': {error.strerror})"
