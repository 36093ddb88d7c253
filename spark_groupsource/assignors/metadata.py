"""Encode and decode the built-in strategies' member metadata: small JSON objects, parsed strictly. Pure.

A member with metadata of another format (another release's, or another program's under the same name) gets the
defaults. An error would stop the whole group because of one member, and a default share is only uneven, never wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from spark_groupsource.model.offsets import PARTITION_MAX, TopicPartition

# More than any application's cores. The limit exists because one absurd weight would starve all other members.
COUNT_MAX = 1_000_000


def encode(fields: Mapping[str, object]) -> bytes:
    """Return the fields as canonical JSON."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode(raw: bytes) -> dict[str, object]:
    """Return the fields; empty if the data is not a JSON object."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def count(raw: bytes, name: str, default: int) -> int:
    """Return a field with an integer from 1 to `COUNT_MAX`; the default if it is missing or has another value."""
    found = decode(raw).get(name)
    return found if type(found) is int and 1 <= found <= COUNT_MAX else default


def partitions_in(raw: bytes, name: str) -> frozenset[TopicPartition]:
    """Return the partitions in a field; topics whose numbers are malformed are left out."""
    found = decode(raw).get(name)
    return frozenset(
        TopicPartition(topic, number)
        for topic, numbers in (found.items() if isinstance(found, dict) else ())
        if isinstance(numbers, list) and all(type(n) is int and 0 <= n <= PARTITION_MAX for n in numbers)
        for number in numbers
    )
