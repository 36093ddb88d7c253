"""Build Arrow arrays on the memory that _gather.c has filled, without a copy.

Arrays are built from buffers only: `pyarrow.array` and `pyarrow.scalar` import pandas if it is installed, which takes
half a second and 40 MB in every process that reads.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from spark_groupsource.executor.clients.rows import arrow_schema

T = TypeVar("T", str, int)

Column: TypeAlias = tuple[bytes | None, bytes, bytes, int]
"""validity bits (None: nothing is null), 32-bit offsets, data, number of nulls."""

_HEADERS = arrow_schema(True).field("headers").type
_HEADER = _HEADERS.value_type
_TIMESTAMP = arrow_schema(False).field("timestamp").type
# Constant columns are slices of longer arrays. This many arrays are cached; others are built on each call.
_REPEATED_ROWS = 10_240
_TOPICS_MAX, _NUMBERS_MAX = 8, 256
# Number of text lengths for which `_ends` caches its result.
_LENGTHS_MAX = 64


class ConstantColumns:
    """Cache the columns topic and partition, built once per topic and partition."""

    def __init__(self) -> None:
        self._topics: dict[str, pa.Array] = {}
        self._numbers: dict[int, pa.Array] = {}

    def topic(self, name: str, rows: int) -> pa.Array:
        """Return the column topic with `rows` rows."""
        return _cut(self._topics, _TOPICS_MAX, name, rows, _same_text)

    def partition(self, number: int, rows: int) -> pa.Array:
        """Return the column partition with `rows` rows."""
        return _cut(self._numbers, _NUMBERS_MAX, number, rows, _same_number)


def run_rows(run: tuple[Any, ...], constants: ConstantColumns) -> pa.RecordBatch:
    """Return the rows of a run, a tuple as `_gather.gather` returns it."""
    _, topic, number, rows, keys, values, offsets, timestamps, types, headers = run
    arrays = [
        _binary(pa.binary(), rows, keys),
        _binary(pa.binary(), rows, values),
        constants.topic(topic, rows),
        constants.partition(number, rows),
        _fixed(pa.int64(), rows, offsets),
        _fixed(_TIMESTAMP, rows, timestamps),
        _fixed(pa.int32(), rows, types),
    ]
    if headers is not None:
        arrays.append(_headers(rows, *headers))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(headers is not None))


def _cut(known: dict[T, pa.Array], most: int, value: T, rows: int, make: Callable[[T, int], pa.Array]) -> pa.Array:
    if rows > _REPEATED_ROWS or (value not in known and len(known) >= most):
        return make(value, rows)
    if value not in known:
        known[value] = make(value, _REPEATED_ROWS)
    return known[value].slice(0, rows)


def _same_text(text: str, rows: int) -> pa.Array:
    data = text.encode()
    return _binary(pa.string(), rows, (None, _ends(len(data), max(rows, _REPEATED_ROWS)), data * rows, 0))


@functools.lru_cache(maxsize=_LENGTHS_MAX)
def _ends(length: int, rows: int) -> bytes:
    """Return the Arrow offsets of `rows` consecutive texts of one length."""
    return array("i", range(0, (rows + 1) * length, length)).tobytes()


def _same_number(number: int, rows: int) -> pa.Array:
    return _fixed(pa.int32(), rows, array("i", [number]).tobytes() * rows)


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
