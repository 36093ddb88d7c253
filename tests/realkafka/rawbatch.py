"""Produce a record batch byte by byte: what no client library writes, such as names of headers that are no text.

For any broker, the embedded one included. A batch (magic 2) is a head with a checksum, and the records, compressed or
not; the request is Produce of version 3.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.realkafka.wire import Api, framed

_WAIT_S = 20.0
# The topic is so new that the broker is not its leader yet.
_LATER = {3, 5, 6}
_POLYNOMIAL = 0x82F63B78


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record; `time_ms` may be any number, and the names of its headers any bytes."""

    value: bytes | None
    time_ms: int = 1_000
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def produce_raw(
    bootstrap_servers: str,
    topic: str,
    records: Sequence[RawRecord],
    codec: int = 0,
    compress: Callable[[bytes], bytes] = bytes,
) -> None:
    """Write one batch to partition 0. `codec`: 0 none, 4 zstd. Raises RuntimeError if the broker refuses it."""
    request = _request(topic, _batch(records, codec, compress))
    host, _, port = bootstrap_servers.partition(",")[0].rpartition(":")
    deadline_s = time.monotonic() + _WAIT_S
    while (error := _error_of(_answer(host, int(port), request))) in _LATER and time.monotonic() < deadline_s:
        time.sleep(0.1)
    if error:
        raise RuntimeError(f"the broker refuses the batch: error {error}")


def _varint(number: int) -> bytes:
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def _data(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _crc32c(data: bytes) -> int:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (_POLYNOMIAL if number & 1 else 0)  # noqa: PLW2901 - the usual form
        table.append(number)
    found = 0xFFFFFFFF
    for byte in data:
        found = table[(found ^ byte) & 0xFF] ^ found >> 8
    return found ^ 0xFFFFFFFF


def _batch(records: Sequence[RawRecord], codec: int, compress: Callable[[bytes], bytes]) -> bytes:
    base, body = records[0].time_ms, bytearray()
    for index, record in enumerate(records):
        one = b"\0" + _varint(record.time_ms - base) + _varint(index) + _data(None) + _data(record.value)
        one += _varint(len(record.headers)) + b"".join(_data(name) + _data(value) for name, value in record.headers)
        body += _varint(len(one)) + one
    newest, count = max(record.time_ms for record in records), len(records)
    checked = struct.pack(">hiqqqhii", codec, count - 1, base, newest, -1, -1, -1, count) + compress(bytes(body))
    batch = struct.pack(">ibI", -1, 2, _crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(batch)) + batch


def _request(topic: str, batch: bytes) -> bytes:
    name = struct.pack(">h", len(topic)) + topic.encode()
    head = struct.pack(">hhih", Api.PRODUCE, 7, 1, 3) + b"raw" + struct.pack(">hhii", -1, 1, 10_000, 1)
    return framed(head + name + struct.pack(">iii", 1, 0, len(batch)) + batch)


def _answer(host: str, port: int, request: bytes) -> bytes:
    with socket.create_connection((host, port), _WAIT_S) as connection:
        connection.sendall(request)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        return connection.recv(int(size), socket.MSG_WAITALL)


def _error_of(answer: bytes) -> int:
    """Return the error code of the only partition: after correlation id, topics, the topic's name, and partitions."""
    (length,) = struct.unpack_from(">h", answer, 8)
    (error,) = struct.unpack_from(">h", answer, 10 + length + 8)
    return int(error)
