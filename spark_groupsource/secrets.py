"""Secrets that stand in a file or in an environment variable: `kafka.X.file` and `kafka.X.env` instead of `kafka.X`.

An option names only where the secret is. It is read each time that a client is made, on the machine that makes it, so
plans, pickles, logs and Spark's own pages never hold it.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.masking import MASK

# What may be referred to: who a client is, and how it proves that. No setting that options are checked against.
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
# librdkafka has settings of its own that end in .file.
_OWN_FILES = "sasl.oauthbearer.assertion."
_KINDS = {"file": "file", "env": "environment variable"}
# Far above any key or chain of certificates; a path given by mistake may be endless.
_LARGEST_FILE = 1024 * 1024


class Reference(NamedTuple):
    """Where the value of a setting is: `kind` is file or env."""

    setting: str
    kind: str


def reference(name: str) -> Reference | None:
    """Return what a setting's name refers to; None when it is a setting of librdkafka's own, or no known one."""
    setting, _, kind = name.rpartition(".")
    return Reference(setting, kind) if kind in _KINDS and setting in SECRET_SETTINGS else None


def setting_of(name: str) -> str:
    """Return the setting that is meant: what a reference refers to, or the name itself."""
    refers = reference(name)
    return name if refers is None else refers.setting


def check_references(settings: Mapping[str, str], prefix: str) -> None:
    """Raise `OptionError` when a secret is given twice, or when a setting that is no secret is referred to."""
    for name, value in settings.items():
        setting, _, kind = name.rpartition(".")
        found = reference(name)
        if found is None:
            if kind in _KINDS and not (kind == "file" and name.startswith(_OWN_FILES)):
                raise OptionError(
                    errors.OPTION_REFUSED,
                    option=prefix + name,
                    value="...",
                    reason="only what a client identifies itself with is taken from a file or an environment variable: "
                    + ", ".join(sorted(SECRET_SETTINGS)),
                    replacement=f"use {prefix}{setting} itself.",
                )
            continue
        given = [item for item in (setting, f"{setting}.file", f"{setting}.env") if item in settings]
        if len(given) > 1:
            raise OptionError(
                errors.OPTION_CONFLICT,
                options=" and ".join(f"'{prefix}{item}'" for item in given),
                reason="a setting has one value.",
            )
        if not value:
            allowed = "an absolute path" if kind == "file" else "the name of an environment variable"
            raise OptionError(errors.OPTION_INVALID, option=prefix + name, value="", allowed=allowed)


# What is no name of a variable may be the secret itself, by mistake.
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def resolved(settings: Mapping[str, str], option_name: Callable[[str], str], side: str) -> dict[str, str]:
    """Return the settings with what is referred to in its place. Reads files and the environment.

    `option_name` gives a setting's name as an option, `side` says who makes the client. Raises `OptionError` for a file
    or a variable that is not there, or that is empty.
    """
    found = {name: value for name, value in settings.items() if reference(name) is None}
    for name, place in settings.items():
        refers = reference(name)
        if refers is None:
            continue
        try:
            found[refers.setting] = _text_of_file(place) if refers.kind == "file" else _text_of_variable(place)
        except (OSError, ValueError) as error:
            raise OptionError(
                errors.SECRET_UNREADABLE,
                option=option_name(name),
                kind=_KINDS[refers.kind],
                value=place if refers.kind == "file" or _VARIABLE.fullmatch(place) else MASK,
                host=socket.gethostname(),
                side=side,
                reason=getattr(error, "strerror", None) or str(error),
                remedy=_REMEDIES[refers.kind],
            ) from None
    return found


_REMEDIES = {
    "file": "put the file on the driver's machine and on those of all executors, readable to the user that Spark runs"
    " as; a path is best absolute.",
    "env": "set the variable before the driver starts, and for executors with spark.executorEnv.*; what a Python"
    " program puts into os.environ comes too late.",
}


def _text_of_file(path: str) -> str:
    if not stat.S_ISREG(os.stat(path).st_mode):
        # Whoever opens a named pipe waits for its writer, and a device may never end.
        raise ValueError("it is no regular file")
    with Path(path).open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"it is larger than {_LARGEST_FILE} bytes")
    try:
        return _not_empty(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None


def _text_of_variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ValueError("it is not set")
    return _not_empty(value)


def _not_empty(text: str) -> str:
    # Editors and `echo` end a file with a new line, which is no part of the secret.
    text = text.rstrip("\r\n")
    if not text:
        raise ValueError("it is empty")
    return text
