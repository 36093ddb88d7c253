"""Set quotas of client ids. The Python clients have no request for it. Loopback only."""

from __future__ import annotations

import struct

from tests.realkafka.evict import exchange

_ALTER_CLIENT_QUOTAS, _CORRELATION = 49, 7


def set_quota(bootstrap_servers: str, client_id: str, name: str, value: float) -> None:
    """Let the only broker limit a client id, by a quota such as `consumer_byte_rate`."""
    # AlterClientQuotas, version 0: one entry, with one entity and one value; not only validated.
    entry = struct.pack(">ii", 1, 1) + _text("client-id") + _text(client_id)
    entry += struct.pack(">i", 1) + _text(name) + struct.pack(">d??", value, False, False)
    header = struct.pack(">hhih", _ALTER_CLIENT_QUOTAS, 0, _CORRELATION, -1)
    answer = exchange(bootstrap_servers, header + entry)
    # Length, correlation id, throttle time, number of entries, error code.
    correlation, _, _, error = struct.unpack_from(">iiih", answer, 4)
    assert (correlation, error) == (_CORRELATION, 0), answer


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()
