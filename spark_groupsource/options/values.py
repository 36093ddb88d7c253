"""Parse single option values: text in, value out, or `ValueError`. Pure."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from enum import Enum

from spark_groupsource.clock import SystemClock
from spark_groupsource.model.names import is_broker_list, topic_name
from spark_groupsource.model.offsets import PARTITION_MAX, TopicPartition
from spark_groupsource.options.client_settings import CLIENT_PREFIX, UNSAFE_SETTINGS
from spark_groupsource.options.offset_spec import ReasonedValueError, json_by_topic
from spark_groupsource.options.times import moment_ms

INT64_MAX = 2**63 - 1
# Tokens of a pattern, for finding sets: a "]" directly after "[" does not end the set.
_SET_TOKEN = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL)


def text(value: str) -> str:
    """Return the text without surrounding white space. Raises `ValueError` if it is empty."""
    if not value.strip():
        raise ValueError
    return value.strip()


def local_path(value: str) -> str:
    """Return a path of this machine. Raises `ValueError` for a URI, which would be a relative path."""
    if re.match("[a-z][a-z0-9+.-]+:/", value.strip(), re.IGNORECASE):
        raise ReasonedValueError("The value is a URI")
    return text(value)


def broker_list(value: str) -> str:
    """Return a list of brokers without white space, see `is_broker_list`.

    A list may have a broker a line, and librdkafka would take the line's end for a part of the name.
    """
    if not is_broker_list(value):
        raise ValueError
    return "".join(value.split())


def topic_list(value: str) -> tuple[str, ...]:
    """Return the topic names of a comma-separated list, without duplicates.

    White space around a name is ignored, as in Spark's own source: no topic has any.
    """
    names = tuple(dict.fromkeys(topic_name(name.strip()) for name in value.split(",") if name.strip()))
    if not names:
        raise ValueError
    return names


def name_list(value: str) -> tuple[str, ...]:
    """Return the entries of a comma-separated list. Raises `ValueError` for a duplicate."""
    found = tuple(name.strip() for name in value.split(","))
    if not all(found) or len(set(found)) != len(found):
        raise ValueError
    return found


def pattern(value: str) -> str:
    """Return a regular expression that compiles, and has no set with another meaning in Java ([a[b]], [a&&b]).

    White space is a part of it, as in Spark's own source.
    """
    try:
        with warnings.catch_warnings():
            # Python warns about other nested sets, and up to 3.10 about flags that are not at the beginning.
            warnings.simplefilter("error")
            re.compile(value)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ReasonedValueError(f"The value does not compile: {error}") from error
    if not value.strip():
        raise ValueError
    if _has_nested_set(value):
        raise ReasonedValueError("The value has a set inside a set, which means something else in Java")
    return value


def _has_nested_set(value: str) -> bool:
    inside = False
    for part in _SET_TOKEN.findall(value):
        if part.startswith("["):
            if inside:
                return True
            inside = True
        elif part == "]":
            inside = False
    return False


def boolean(value: str) -> bool:
    """Parse true or false."""
    lowered = value.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError
    return lowered == "true"


def integer(low: int, high: int = INT64_MAX) -> Callable[[str], int]:
    """Return a parser of integers from `low` to `high`."""

    def parse(value: str) -> int:
        if not re.fullmatch(r"\+?[0-9]{1,19}", value.strip()):
            raise ValueError
        number = int(value)
        if not low <= number <= high:
            raise ValueError
        return number

    return parse


def moment(value: str) -> int:
    """Return a time in milliseconds since the epoch: given so, or in a form of `times`. Relative times are resolved."""
    if re.fullmatch(r"\+?[0-9]+", value.strip()):
        return integer(0)(value)
    return moment_ms(value, SystemClock().epoch_s())


def choice(kind: type[Enum]) -> Callable[[str], Enum]:
    """Return a parser of an enumeration's values in any case."""
    return lambda value: kind(value.strip().lower())


def unsafe_settings(value: str) -> frozenset[str]:
    """Return the client settings of a comma-separated list; all must be in `UNSAFE_SETTINGS`."""
    names = {name.strip().lower().removeprefix(CLIENT_PREFIX) for name in value.split(",") if name.strip()}
    if not names <= set(UNSAFE_SETTINGS):
        raise ValueError
    return frozenset(names)


def partition_list(value: str) -> tuple[TopicPartition, ...]:
    """Return the partitions of Spark's JSON {"topic": [0, 1]}, without duplicates."""
    found: list[TopicPartition] = []
    for topic, numbers in json_by_topic(value).items():
        if not isinstance(numbers, list) or not numbers:
            raise ValueError
        for number in numbers:
            if type(number) is not int or not 0 <= number <= PARTITION_MAX:
                raise ValueError
            found.append(TopicPartition(topic, number))
    return tuple(sorted(set(found)))


# Spark's own units of a duration (JavaUtils.timeStringAsMs); the default is milliseconds.
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_s(value: str) -> float:
    """Parse a duration in Spark's form, such as 500ms, 15m or 1h. Return seconds."""
    match = re.fullmatch(r"([0-9]{1,12})\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError
    return int(match[1]) * _UNITS_MS[match[2]] / 1000
