"""What the built-in strategies say of a member: small JSON objects, strict when read back. Pure.

A member whose metadata is of another form (another release's, another program's under the same name) is served as if it
had said nothing: an error would stop the whole group for the sake of one member, and a default share is never wrong,
only uneven.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from spark_groupsource.model.offsets import PARTITION_MAX, TopicPartition

# More than any application has cores; a bound, because one absurd weight would starve all other members.
COUNT_MAX = 1_000_000


def encode(fields: Mapping[str, object]) -> bytes:
    """Return the fields as canonical JSON."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def decode(raw: bytes) -> dict[str, object]:
    """Return the fields; none when it is no JSON object."""
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def count(raw: bytes, name: str, default: int) -> int:
    """Return a field that is a whole number from 1 to `COUNT_MAX`; the default when it is missing or anything else."""
    found = decode(raw).get(name)
    return found if type(found) is int and 1 <= found <= COUNT_MAX else default


def partitions(raw: bytes, name: str) -> frozenset[TopicPartition]:
    """Return the partitions that a field holds; none of a topic whose numbers are of another form."""
    found = decode(raw).get(name)
    return frozenset(
        TopicPartition(topic, number)
        for topic, numbers in (found.items() if isinstance(found, dict) else ())
        if isinstance(numbers, list) and all(type(n) is int and 0 <= n <= PARTITION_MAX for n in numbers)
        for number in numbers
    )
