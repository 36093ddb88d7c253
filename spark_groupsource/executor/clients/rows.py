"""Convert client messages to Arrow record batches, with the columns of Spark's own Kafka source."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from spark_groupsource.model.offsets import TopicPartition

# The largest milliseconds that fit a Spark timestamp (microseconds in 64 bits).
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
# The client's timestamp types are Kafka's plus one: not available, create time, log append time.
_TIMESTAMP_TYPE_SHIFT = 1

_FIELDS = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
)
_HEADERS = pa.field("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())]))))

TOPIC_COLUMN = 2
OFFSET_COLUMN = 4

# A record batch has a fixed cost in Spark, as much as some hundred rows. Smaller ones are joined, by a copy, until they
# have this many rows or bytes.
_SMALL_ROWS = 1_000
_SMALL_BYTES = 256 * 1024
_JOINED_BYTES = 1024 * 1024


class SmallBatches:
    """Join small record batches to larger ones, of about 1 MiB at most; rows keep their order."""

    def __init__(self) -> None:
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, size: int) -> list[pa.RecordBatch]:
        """Add a record batch of `size` bytes; return the record batches that are large enough to send to Spark."""
        if batch.num_rows >= _SMALL_ROWS or size >= _SMALL_BYTES:
            return [*self.flush(), batch]
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += size
        return self.flush() if self._rows >= _SMALL_ROWS or self._bytes >= _JOINED_BYTES else []

    def flush(self) -> list[pa.RecordBatch]:
        """Return the waiting rows as a record batch, none if there are none."""
        waiting, self._waiting, self._rows, self._bytes = self._waiting, [], 0, 0
        if len(waiting) <= 1:
            return waiting
        joined: list[pa.RecordBatch] = pa.Table.from_batches(waiting).combine_chunks().to_batches()
        return joined


class UnfitTimestamp(Exception):
    """Messages have timestamps that Spark cannot hold: `fits_timestamp` is false for them."""


class ClientMessage(Protocol):
    """Declare the part of `confluent_kafka.Message` that rows are built from."""

    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def headers(self) -> Any: ...


def arrow_schema(include_headers: bool) -> pa.Schema:
    """Return the schema of all record batches; Spark checks that the first one equals it exactly."""
    return pa.schema([*_FIELDS, _HEADERS] if include_headers else list(_FIELDS))


def record_batch(partition: TopicPartition, messages: Sequence[ClientMessage], include_headers: bool) -> pa.RecordBatch:
    """Return the messages of one partition as a record batch.

    Raises `UnfitTimestamp` if Spark cannot hold a timestamp.
    """
    count = len(messages)
    arrays = [
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        pa.repeat(pa.scalar(partition.topic, pa.string()), count),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        _offsets(messages),
        *_timestamps(messages),
    ]
    if include_headers:
        arrays.append(pa.array([_headers(message) for message in messages], _HEADERS.type))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(include_headers))


def fits_timestamp(message: ClientMessage) -> bool:
    """Return whether Spark can hold the message's timestamp; True if it has none."""
    kind, value = message.timestamp()
    return kind == 0 or abs(value) <= _TIMESTAMP_MS_MAX


def edge_offsets(batch: pa.RecordBatch) -> tuple[int, int]:
    """Return the offsets of the first and the last row."""
    offsets = batch.column(OFFSET_COLUMN)
    return int(offsets[0].as_py()), int(offsets[batch.num_rows - 1].as_py())


def split_at(batch: pa.RecordBatch, offset: int, first: int, last: int) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return the rows before an offset, and the rows from it on, without a copy. `first` and `last` are its offsets."""
    rows = batch.num_rows
    if last - first + 1 == rows:
        cut = offset - first
    else:
        offsets = batch.column(OFFSET_COLUMN)
        cut = bisect_left(range(rows), offset, key=lambda row: int(offsets[row].as_py()))
    return batch.slice(0, cut), batch.slice(cut)


def _offsets(messages: Sequence[ClientMessage]) -> pa.Array:
    count = len(messages)
    first = messages[0].offset() if messages else None
    last = messages[-1].offset() if messages else None
    # Offsets rise: if last - first + 1 is the count, no offset is missing between them. The usual case.
    if first is not None and last is not None and last - first + 1 == count:
        return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", range(first, last + 1)))])
    return pa.array([message.offset() for message in messages], pa.int64())


def _timestamps(messages: Sequence[ClientMessage]) -> tuple[pa.Array, pa.Array]:
    """Return the columns timestamp and timestampType."""
    stamps = [message.timestamp() for message in messages]
    kinds = {kind for kind, _ in stamps}
    if len(kinds) == 1 and 0 not in kinds:
        values = [value for _, value in stamps]
        types = pa.repeat(pa.scalar(kinds.pop() - _TIMESTAMP_TYPE_SHIFT, pa.int32()), len(stamps))
    else:
        # A record without a timestamp has -1, as in Spark's own source.
        values = [value if kind else -1 for kind, value in stamps]
        types = pa.array([kind - _TIMESTAMP_TYPE_SHIFT for kind, _ in stamps], pa.int32())
    if values and not -_TIMESTAMP_MS_MAX <= min(values) <= max(values) <= _TIMESTAMP_MS_MAX:
        raise UnfitTimestamp
    milliseconds = pa.array(values, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    return milliseconds.cast(pa.timestamp("us", tz="UTC")), types


def _headers(message: ClientMessage) -> list[dict[str, Any]] | None:
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None
