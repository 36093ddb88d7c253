"""Decide which names of groups, topics and brokers are used as they are, and which are refused; list names. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

# What errors of options and commands call an allowed name of a group.
GROUP_NAME = "a group name without white space at its ends and without a zero byte"
# librdkafka removes these from the beginning of a setting (isspace of C), and everything from a zero byte on.
_CUT_BY_CLIENT = tuple(" \t\n\v\f\r")
# The form that librdkafka accepts. The client would report a malformed broker only after its first timeouts.
_BROKER = re.compile(
    r"((PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?(\[[0-9a-f:.%a-z]+\]|[^\s:/@\[\]]+)(:(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)
PORT_MAX = 65_535
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def first_names(names: Sequence[object], most: int = 10) -> str:
    """Return the first names for a log line or an error, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


def group_name(value: str) -> str:
    """Return a group's name unchanged. Raises `ValueError` unless it is `GROUP_NAME`.

    Kafka accepts any characters in a name, and "orders " and "orders" are two groups. Without white space at its ends,
    no client, file or shell can change it into the name of another group.
    """
    if not value or value != value.strip() or not is_addressable(value):
        raise ValueError("no group name")
    # UnicodeEncodeError is a ValueError.
    value.encode()
    return value


def is_addressable(group: str) -> bool:
    """Return whether librdkafka sends requests for this group, and not for another one with a part of the name."""
    return not group.startswith(_CUT_BY_CLIENT) and "\0" not in group


def topic_name(value: str) -> str:
    """Return a topic's name unchanged. Raises `ValueError` for a name that Kafka does not allow."""
    if not _TOPIC.fullmatch(value):
        raise ValueError("no topic name")
    return value


def is_broker_list(value: str) -> bool:
    """Return whether the value is a comma-separated list of `[protocol://]host[:port]`."""
    found = [_BROKER.fullmatch(entry.strip()) for entry in value.split(",") if entry.strip()]
    return bool(found) and all(match and 1 <= int(match["port"] or 1) <= PORT_MAX for match in found)
