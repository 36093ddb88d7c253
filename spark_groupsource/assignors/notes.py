"""Encode and decode the user data of the consumer protocol between members and leader: strict, versioned JSON.

Owned partitions, generation and rack are in the consumer protocol's own fields (versions 1 to 3), where any tool can
read them. Only data without such a field is here. The data comes from other members: any other format raises
`WireError`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_groupsource.model.offsets import TopicPartition

_VERSION = 1


class WireError(ValueError):
    """User data in another format: of another program's strategy with the same name, or of a newer release."""


@dataclass(frozen=True, slots=True)
class MemberNote:
    """User data that a member sends when it joins."""

    # True: it still holds its owned partitions (cooperative). False: it had them before (eager).
    held: bool
    # The result of the strategy's `metadata`.
    data: bytes = b""
    # All strategies that the member offers, for the error of a member that shares none of them.
    offers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the user data of the subscription."""
        data = base64.b64encode(self.data).decode("ascii")
        return _encode({"held": self.held, "data": data, "offers": list(self.offers)})

    @classmethod
    def decode(cls, raw: bytes) -> MemberNote:
        """Parse the user data of a subscription. Raises `WireError`."""
        fields = _decode(raw, {"held": bool, "data": str, "offers": list})
        try:
            data = base64.b64decode(fields["data"], validate=True)
        except ValueError as error:
            raise WireError(f"data is not base64: {error}") from None
        return cls(fields["held"], data, tuple(map(str, fields["offers"])))


@dataclass(frozen=True, slots=True)
class LeaderNote:
    """User data that the leader sends to one member besides its partitions."""

    standby: frozenset[TopicPartition] = frozenset()
    # The reason why the strategy could not assign; empty if it could.
    error: str = ""

    def encode(self) -> bytes:
        """Return the user data of the assignment; empty if there is nothing to send.

        Kafka's coordinator converts a group to KIP-848 online only if no assignment has user data.
        """
        if self == LeaderNote():
            return b""
        return _encode({"standby": by_topic(self.standby), "error": self.error})

    @classmethod
    def decode(cls, raw: bytes) -> LeaderNote:
        """Parse the user data of an assignment; another client's leader sends none. Raises `WireError`."""
        if not raw:
            return cls()
        fields = _decode(raw, {"standby": dict, "error": str})
        found = set()
        for topic, numbers in fields["standby"].items():
            if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
                raise WireError(f"the partitions of topic {topic!r} are not numbers")
            found |= {TopicPartition(topic, number) for number in numbers}
        return cls(frozenset(found), fields["error"])


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, sorted."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return found


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps({"v": _VERSION, **fields}, sort_keys=True, separators=(",", ":")).encode()


def _decode(raw: bytes, kinds: Mapping[str, type]) -> dict[str, Any]:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError(f"it is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("v") != _VERSION:
        raise WireError(f"it is not of version {_VERSION}")
    for name, kind in kinds.items():
        if not isinstance(fields.get(name), kind):
            raise WireError(f"field {name!r} is missing, or of the wrong kind")
    return fields
