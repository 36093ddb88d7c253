"""Read secrets from a file or an environment variable: `kafka.X.file` and `kafka.X.env` instead of `kafka.X`.

The option holds only the place of the secret. The secret is read each time a client is created, on the machine that
creates it, so it never appears in plans, pickles, logs or Spark's pages.

The rack of a client (`kafka.client.rack`) is no secret, but differs between machines, and is read in the same way.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.options.permissions import NotPermitted, Permissions
from spark_groupsource.redaction import MASK

# Settings that may be given by reference: a client's identity and its proof. Options are checked against none of them.
SECRET_SETTINGS = frozenset(
    {
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.private.key.pem",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.certificate.pem",
        "ssl.ca.pem",
        "ssl.keystore.password",
        "https.ca.pem",
    }
)
# Settings that differ between machines.
_OF_THE_MACHINE = frozenset({"client.rack"})
_REFERABLE = SECRET_SETTINGS | _OF_THE_MACHINE
# Files that librdkafka reads itself. Their content may be sent to a broker or a token endpoint, or proves the client's
# identity; the content of the trust stores does neither.
TRUST_STORES = frozenset({"ssl.ca.location", "ssl.crl.location", "https.ca.location"})
CLIENT_FILES = TRUST_STORES | {
    "ssl.key.location",
    "ssl.certificate.location",
    "ssl.keystore.location",
    "sasl.kerberos.keytab",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.jwt.template.file",
}
# Means the system's own list of authorities.
_PROBE = "probe"
_KINDS = {"file": "file", "env": "environment variable"}
# Much larger than any key or certificate chain; a path given by mistake may be endless.
_LARGEST_FILE = 1024 * 1024


class Reference(NamedTuple):
    """The place of a setting's value: `kind` is file or env."""

    setting: str
    kind: str


def reference(name: str) -> Reference | None:
    """Parse a setting's name as a reference to its value. Return None for librdkafka's own and for unknown settings."""
    setting, _, kind = name.rpartition(".")
    return Reference(setting, kind) if kind in _KINDS and setting in _REFERABLE else None


def refers_to_secret(name: str) -> bool:
    """Return whether a setting's name is a reference to a secret."""
    found = reference(name)
    return found is not None and found.setting not in _OF_THE_MACHINE


def setting_of(name: str) -> str:
    """Return the setting that a reference sets; the name itself if it is not a reference."""
    refers = reference(name)
    return name if refers is None else refers.setting


def check_references(settings: Mapping[str, str], prefix: str, permissions: Permissions) -> None:
    """Check the settings that refer to their values.

    Raises `OptionError` if a value is given twice, if the setting is not one of `_REFERABLE`, or if the driver
    does not permit the variable. Files are checked on the machine that reads them, by `resolved`.
    """
    for name, value in settings.items():
        setting, _, kind = name.rpartition(".")
        found = reference(name)
        if found is None:
            if kind in _KINDS and name not in CLIENT_FILES:
                raise OptionError(
                    errors.OPTION_REFUSED,
                    option=prefix + name,
                    value="...",
                    reason="only the client's rack and settings of its identity can be read from a file or an"
                    " environment variable: " + ", ".join(sorted(_REFERABLE)),
                    replacement=f"use {prefix}{setting} itself.",
                )
            continue
        given = [item for item in (setting, f"{setting}.file", f"{setting}.env") if item in settings]
        if len(given) > 1:
            raise OptionError(
                errors.OPTION_CONFLICT,
                options=" and ".join(f"'{prefix}{item}'" for item in given),
                reason="only one of them can set the value.",
            )
        if not value:
            allowed = "an absolute path" if kind == "file" else "the name of an environment variable"
            raise OptionError(errors.OPTION_INVALID, option=prefix + name, value="", allowed=allowed)
        if kind == "env":
            with permitted(prefix + name, _shown_place("env", value)):
                permissions.check_variable(value)


@contextmanager
def permitted(option: str, value: str) -> Iterator[None]:
    """Check permissions: the error for what the driver does not permit then names the option. Raises `OptionError`."""
    try:
        yield
    except NotPermitted as refusal:
        raise OptionError(
            errors.NOT_PERMITTED, option=option, value=value, reason=str(refusal), remedy=refusal.remedy
        ) from None


def conflict(one: str, value: str | None, other: str, other_value: str, reason: str) -> OptionError:
    """Build the error for two options that cannot be used together."""
    options = f"'{one}' (value '{value}') and '{other}' (value '{other_value}')"
    return OptionError(errors.OPTION_CONFLICT, options=options, reason=reason)


# A value that cannot be the name of a variable, or is no absolute path, may be the secret itself, by mistake.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def _shown_place(kind: str, place: str) -> str:
    is_place = os.path.isabs(place) if kind == "file" else _VARIABLE.fullmatch(place)
    return place if is_place else MASK


def resolved(
    settings: Mapping[str, str], option_name: Callable[[str], str], side: str, permissions: Permissions
) -> dict[str, str]:
    """Return the settings with secrets in place of their references. Reads files and the environment.

    `option_name` returns a setting's option, `side` names the process that creates the client, both for errors. Raises
    `OptionError` for a file that the driver does not permit, also if librdkafka would read it, and for a file or
    variable that is missing or empty.
    """
    found: dict[str, str] = {}
    for name, place in settings.items():
        refers = reference(name)
        kind = "file" if refers is None else refers.kind
        shown = place if refers is None else _shown_place(kind, place)
        try:
            with permitted(option_name(name), shown):
                if refers is None:
                    _check_client_file(name, place, permissions)
                    found[name] = place
                else:
                    found[refers.setting] = (
                        _text_of_file(place, permissions) if kind == "file" else _text_of_variable(place)
                    )
        except (OSError, ValueError) as error:
            raise OptionError(
                errors.SECRET_UNREADABLE,
                option=option_name(name),
                kind=_KINDS[kind],
                value=shown,
                host=socket.gethostname(),
                side=side,
                reason=getattr(error, "strerror", None) or str(error),
                remedy=_REMEDIES[kind],
            ) from None
    return found


_REMEDIES = {
    "file": "put the file on the driver's machine and on those of all executors, readable to the user that Spark runs"
    " as; use an absolute path.",
    "env": "set the variable before the driver starts, and for executors with spark.executorEnv.*. A Python program"
    " that sets os.environ does so too late.",
}


def _check_client_file(name: str, place: str, permissions: Permissions) -> None:
    """Raise `NotPermitted` for a file that librdkafka would read and the driver does not permit.

    librdkafka reports other problems with the file.
    """
    if name not in CLIENT_FILES or permissions.everything:
        return
    with suppress(OSError):
        if name not in TRUST_STORES:
            permissions.check_file(place)
        elif place != _PROBE:
            permissions.check_trust_store(place)


def _text_of_file(place: str, permissions: Permissions) -> str:
    try:
        content = _content(permissions.check_file(place))
    except FileNotFoundError:
        # Kubernetes replaces a secret's directory: the real path may have been deleted since the check.
        content = _content(permissions.check_file(place))
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE} bytes")
    try:
        return _not_empty(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None


def _content(path: str) -> bytes:
    """Return a file's content, up to one byte more than is allowed."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        # Opening a named pipe waits for its writer, and a device may be endless.
        raise ValueError("it is not a regular file")
    # A link that replaced the file after the check is not followed.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(_LARGEST_FILE + 1)


def _text_of_variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ValueError("it is not set")
    return _not_empty(value)


def _not_empty(text: str) -> str:
    # Editors and `echo` end a file with a new line, which is not part of the secret.
    text = text.rstrip("\r\n")
    if not text:
        raise ValueError("it is empty")
    return text
