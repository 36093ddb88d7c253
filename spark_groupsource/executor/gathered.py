"""Arrow arrays round the memory that _gather.c has filled, without a copy."""

from __future__ import annotations

from typing import Any, TypeAlias

import pyarrow as pa

from spark_groupsource.executor.port import Chunk
from spark_groupsource.executor.rows import arrow_schema
from spark_groupsource.offsets import TopicPartition

Column: TypeAlias = tuple[bytes | None, bytes, bytes, int]
"""validity bits (None: nothing is null), 32-bit offsets, data, number of nulls."""

_HEADERS = arrow_schema(True).field("headers").type
_HEADER = _HEADERS.value_type
_TIMESTAMP = arrow_schema(False).field("timestamp").type
# Columns that are the same in every row are cut from longer ones; so many are kept.
_REPEATED_ROWS = 16_384
_REPEATED_MAX = 256


class ConstantColumns:
    """The columns topic and partition, made once per partition."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, tuple[pa.Array, pa.Array]] = {}

    def of(self, partition: TopicPartition, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return both columns for this many rows."""
        if rows > _REPEATED_ROWS:
            return _constant(partition, rows)
        known = self._known.get(partition)
        if known is None:
            if len(self._known) >= _REPEATED_MAX:
                self._known.clear()
            known = self._known[partition] = _constant(partition, _REPEATED_ROWS)
        return known[0].slice(0, rows), known[1].slice(0, rows)


def chunk_of(run: tuple[Any, ...], constants: ConstantColumns) -> Chunk:
    """Return a run, as `_gather.gather` describes it, as rows."""
    _, topic, number, rows, keys, values, offsets, timestamps, types, headers = run
    partition = TopicPartition(topic, number)
    arrays = [
        _binary(pa.binary(), rows, keys),
        _binary(pa.binary(), rows, values),
        *constants.of(partition, rows),
        _fixed(pa.int64(), rows, offsets),
        _fixed(_TIMESTAMP, rows, timestamps),
        _fixed(pa.int32(), rows, types),
    ]
    if headers is not None:
        arrays.append(_headers(rows, *headers))
    return Chunk(partition, pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(headers is not None)))


def _constant(partition: TopicPartition, rows: int) -> tuple[pa.Array, pa.Array]:
    return (
        pa.repeat(pa.scalar(partition.topic, pa.string()), rows),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), rows),
    )


def _buffer(data: bytes | None) -> pa.Buffer | None:
    return None if data is None else pa.py_buffer(data)


def _fixed(kind: pa.DataType, rows: int, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, _buffer(data)], 0)


def _binary(kind: pa.DataType, rows: int, column: Column) -> pa.Array:
    validity, offsets, data, nulls = column
    return pa.Array.from_buffers(kind, rows, [_buffer(validity), _buffer(offsets), _buffer(data)], nulls)


def _headers(rows: int, lists: Column, count: int, names: Column, values: Column) -> pa.Array:
    fields = [_binary(pa.string(), count, names), _binary(pa.binary(), count, values)]
    elements = pa.Array.from_buffers(_HEADER, count, [None], 0, children=fields)
    validity, offsets, _, nulls = lists
    return pa.Array.from_buffers(_HEADERS, rows, [_buffer(validity), _buffer(offsets)], nulls, children=[elements])
