"""A decoder with a registry in memory, for tests without Spark."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pyarrow as pa

from spark_groupsource.functions import avro_decoder
from spark_groupsource.functions.avro_decoder import Decoder, Reading
from spark_groupsource.functions.registry_options import RegistrySettings, RegistryUrl
from spark_groupsource.functions.schema_registry import SchemaNotFound

from .avro_rules import Schema, encoded, kind


class SchemasInMemory:
    """What a decoder asks a registry for. Ids begin with 1."""

    def __init__(self, *schemas: Schema) -> None:
        self.answers = [{"schema": json.dumps(schema)} for schema in schemas]

    def by_id(self, number: int) -> dict[str, Any]:
        """Return a schema."""
        if not 1 <= number <= len(self.answers):
            raise SchemaNotFound(f"no schema {number}")
        return self.answers[number - 1]


def decoder(reader: Schema, *writers: Schema, is_strict: bool = False) -> Decoder:
    """Return a decoder of records of several writers."""
    texts = (json.dumps(reader),)
    with mock.patch.object(avro_decoder, "Registry", return_value=SchemasInMemory(*writers)):
        registry = RegistrySettings((RegistryUrl("http://registry.invalid"),))
        return Decoder(Reading(registry, texts, is_strict))


def record(number: int, writer: Schema, value: Any) -> bytes:
    """Return a record in the wire format."""
    is_raw = not isinstance(writer, list) and kind(writer) == "bytes"
    return b"\0" + number.to_bytes(4, "big") + (value if is_raw else encoded(writer, value))


def decoded(reader: Schema, writer: Schema, *values: Any, is_strict: bool = True) -> list[Any]:
    """Return what values of one writer are read as, comparable: see `plain`."""
    records = [record(1, writer, value) for value in values]
    return plain(decoder(reader, writer, is_strict=is_strict).decode(pa.array(records, pa.binary())))


def plain(array: pa.Array) -> list[Any]:
    """Return an array's values with timestamps in microseconds and dates in days: Python's hold fewer."""
    kind = array.type
    if pa.types.is_struct(kind):
        parts = {item.name: plain(part) for item, part in zip(kind, array.flatten(), strict=True)}
        rows = [{name: part[row] for name, part in parts.items()} for row in range(len(array))]
        return [row if is_valid else None for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind):
        return [None if not item.is_valid else dict(_pairs(item.values)) for item in array]
    if pa.types.is_list(kind):
        return [None if not item.is_valid else plain(item.values) for item in array]
    if pa.types.is_timestamp(kind):
        return array.cast(pa.int64()).to_pylist()
    return (array.cast(pa.int32()) if pa.types.is_date(kind) else array).to_pylist()


def _pairs(entries: pa.StructArray) -> list[tuple[str, Any]]:
    keys, values = entries.flatten()
    return list(zip(keys.to_pylist(), plain(values), strict=True))
