"""Remove a member from its group as its own client would, so that only the coordinator knows. Loopback only.

For the member that is what a session that expires is while its machine is suspended: its next request is refused.
"""

from __future__ import annotations

import socket
import struct

from tests.realkafka.wire import Api

_TIMEOUT_S = 20.0
_CORRELATION = 7


def _text(value: str) -> bytes:
    encoded = value.encode()
    assert len(encoded) < 127
    return bytes([len(encoded) + 1]) + encoded


def _leave_classic(group: str, member: str) -> tuple[int, int, bytes]:
    """Return a LeaveGroup request of version 4: api key, version, body."""
    return 13, 4, _text(group) + b"\x02" + _text(member) + b"\x00\x00\x00"


def _leave_consumer(group: str, member: str) -> tuple[int, int, bytes]:
    """Return a ConsumerGroupHeartbeat request of version 0 with the epoch -1."""
    epoch_instance_rack = struct.pack(">i", -1) + b"\x00\x00"
    timeout_topics_assignor_owned_tags = struct.pack(">i", -1) + b"\x00\x00\x00\x00"
    body = _text(group) + _text(member) + epoch_instance_rack + timeout_topics_assignor_owned_tags
    return Api.CONSUMER_GROUP_HEARTBEAT, 0, body


def remove_member(bootstrap_servers: str, group: str, member: str, *, consumer: bool) -> None:
    """Let the only broker remove a member of a KIP-848 group (`consumer`) or of a classic one."""
    key, version, body = (_leave_consumer if consumer else _leave_classic)(group, member)
    header = struct.pack(">hhih", key, version, _CORRELATION, -1) + b"\x00"
    answer = exchange(bootstrap_servers, header + body)
    # Length, correlation id, tags, throttle time, error code.
    correlation, _, _, error = struct.unpack_from(">ibih", answer, 4)
    assert (correlation, error) == (_CORRELATION, 0), answer


def exchange(bootstrap_servers: str, request: bytes) -> bytes:
    """Send a request to the only broker, and return its answer with the length before it."""
    host, _, port = bootstrap_servers.partition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = b""
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            chunk = connection.recv(65536)
            assert chunk, f"the broker closed the connection: {answer!r}"
            answer += chunk
    return answer
