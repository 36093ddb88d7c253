"""What a ConsumerGroupHeartbeat (KIP-848) says: enough of its body to tell its kinds apart. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.realkafka.wire import Api, Request, WireError

_EPOCH = struct.Struct(">i")
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class GroupHeartbeat:
    """Epoch 0 joins, -1 and -2 leave. `owned` is None while the member's partitions are as it said before."""

    member_epoch: int
    owned: int | None


class _Body:
    """Reads the flexible encoding: lengths are varints, one more than the value, 0 for null."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    def skip(self, count: int) -> None:
        self._position += count
        if self._position > len(self._data):
            raise WireError("a heartbeat that is cut short")

    def varint(self) -> int:
        value = shift = 0
        while True:
            self.skip(1)
            byte = self._data[self._position - 1]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_text(self) -> None:
        self.skip(max(0, self.varint() - 1))

    def skip_tags(self) -> None:
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())

    def int32(self) -> int:
        self.skip(_EPOCH.size)
        return int(_EPOCH.unpack_from(self._data, self._position - _EPOCH.size)[0])


def joins(request: Request) -> bool:
    """Return whether a heartbeat joins the group."""
    return parse_heartbeat(request).member_epoch == 0


def acknowledges(request: Request) -> bool:
    """Return whether a heartbeat of a member acknowledges its partitions."""
    heartbeat = parse_heartbeat(request)
    return heartbeat.member_epoch > 0 and heartbeat.owned is not None


def parse_heartbeat(request: Request) -> GroupHeartbeat:
    """Read a ConsumerGroupHeartbeat request. Raises WireError for another request."""
    if request.api_key != Api.CONSUMER_GROUP_HEARTBEAT or request.api_version not in (0, 1):
        raise WireError(f"not a known heartbeat: api key {request.api_key}, version {request.api_version}")
    body = _Body(request.payload, request.body)
    body.skip_tags()
    body.skip_text()  # group id
    body.skip_text()  # member id
    epoch = body.int32()
    body.skip_text()  # instance id
    body.skip_text()  # rack id
    body.int32()  # rebalance timeout
    for _ in range(max(0, body.varint() - 1)):
        body.skip_text()  # subscribed topics
    if request.api_version > 0:
        body.skip_text()  # subscribed pattern
    body.skip_text()  # server's assignor
    topics = body.varint() - 1
    owned = 0
    for _ in range(max(0, topics)):
        body.skip(_UUID_BYTES)
        partitions = max(0, body.varint() - 1)
        body.skip(partitions * _EPOCH.size)
        body.skip_tags()
        owned += partitions
    return GroupHeartbeat(epoch, None if topics < 0 else owned)
