"""What members and leader tell each other in the user data of the consumer protocol, as strict, versioned JSON.

Owned partitions, generation and rack travel in the consumer protocol's own fields (versions 1 to 3), where any tool
can read them; only what it has no field for is here. It comes from other members: whatever is not of this form raises
`WireError`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.model.offsets import TopicPartition

_VERSION = 1


class WireError(ValueError):
    """User data of another form: of another program's strategy with the same name, or of a newer release."""


@dataclass(frozen=True, slots=True)
class MemberNote:
    """What a member says when it joins."""

    # Whether it still holds what it names as owned (cooperative), or only had it before (eager).
    held: bool
    # What the strategy's `metadata` returned.
    data: bytes = b""
    # All strategies that the member offers, so that whoever shares none of them can be told.
    offers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the user data of the subscription."""
        data = base64.b64encode(self.data).decode("ascii")
        return _encode({"held": self.held, "data": data, "offers": list(self.offers)})

    @classmethod
    def decode(cls, raw: bytes) -> MemberNote:
        """Read it back. Raises `WireError`."""
        fields = _decode(raw, {"held": bool, "data": str, "offers": list})
        try:
            data = base64.b64decode(str(fields["data"]), validate=True)
        except binascii.Error as error:
            raise WireError(f"data is not base64: {error}") from None
        offers = fields["offers"]
        return cls(bool(fields["held"]), data, tuple(map(str, offers)) if isinstance(offers, list) else ())


@dataclass(frozen=True, slots=True)
class LeaderNote:
    """What the leader says to one member besides its partitions."""

    standby: frozenset[TopicPartition] = frozenset()
    # Why the strategy could not serve the group; empty when it could.
    error: str = ""

    def encode(self) -> bytes:
        """Return the user data of the assignment: none when there is nothing to say.

        Kafka's coordinator converts a group to KIP-848 online only where no assignment carries user data.
        """
        if self == LeaderNote():
            return b""
        return _encode({"standby": by_topic(self.standby), "error": self.error})

    @classmethod
    def decode(cls, raw: bytes) -> LeaderNote:
        """Read it back; another client's leader sends none. Raises `WireError`."""
        if not raw:
            return cls()
        fields = _decode(raw, {"standby": dict, "error": str})
        standby = fields["standby"]
        found = set()
        for topic, numbers in standby.items() if isinstance(standby, dict) else ():
            if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
                raise WireError(f"the partitions of topic {topic!r} are not numbers")
            found |= {TopicPartition(topic, number) for number in numbers}
        return cls(frozenset(found), str(fields["error"]))


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition numbers of each topic, sorted."""
    found: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition.partition)
    return found


def _encode(fields: Mapping[str, object]) -> bytes:
    return json.dumps({"v": _VERSION, **fields}, sort_keys=True, separators=(",", ":")).encode()


def _decode(raw: bytes, kinds: Mapping[str, type]) -> dict[str, object]:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError(f"it is no JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("v") != _VERSION:
        raise WireError(f"it is not of version {_VERSION}")
    for name, kind in kinds.items():
        if not isinstance(fields.get(name), kind):
            raise WireError(f"field {name!r} is missing, or of the wrong kind")
    return fields
