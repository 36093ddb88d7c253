"""Decode Confluent's wire format: the id of a schema (`schema_ids`), and the record in Avro's binary encoding.

Each record is read with the schema that it was written with, and resolved to the reader's schema. The only module that
imports fastavro (extra `avro`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from itertools import repeat
from typing import Any

import fastavro
import pyarrow as pa

from spark_groupsource import errors
from spark_groupsource.functions.avro_types import as_stored
from spark_groupsource.functions.registry_options import RegistrySettings
from spark_groupsource.functions.schema_ids import PREFIX_SIZE, parsed_id, stored_id
from spark_groupsource.functions.schema_registry import Registry, SchemaNotFound

# An id that the registry did not know may be known later: registries replicate.
_UNKNOWN_FOR_S = 30.0
# A column that is not Avro has a new "schema id" in each value.
_MAX_UNKNOWN = 1_000


class BadRecord(ValueError):
    """A record is not of the wire format, or not readable with the reader's schema."""


def parsed_schema(registry: Registry, found: dict[str, Any], named: dict[str, Any] | None = None) -> Any:
    """Parse a schema of the registry with the schemas that it refers to. Raises `BadRecord` if it is not Avro."""
    if found.get("schemaType", "AVRO") != "AVRO":
        raise BadRecord(f"its schema is {found['schemaType']}, not Avro")
    named = {} if named is None else named
    for reference in found.get("references") or ():
        if reference["name"] not in named:
            parsed_schema(registry, registry.by_version(reference["subject"], reference["version"]), named)
    return fastavro.parse_schema(as_stored(json.loads(found["schema"])), named_schemas=named)


def full_schema(registry: Registry, found: dict[str, Any]) -> Any:
    """Return a schema of the registry with the definitions that it refers to. Raises `BadRecord` if it is not Avro."""
    named: dict[str, Any] = {}
    return _inlined(parsed_schema(registry, found, named), named, set())


def _inlined(schema: Any, named: dict[str, Any], defined: set[str]) -> Any:
    """Replace the first use of each name by its definition."""
    if isinstance(schema, list):
        return [_inlined(item, named, defined) for item in schema]
    if isinstance(schema, str):
        return _inlined(named[schema], named, defined) if schema in named and schema not in defined else schema
    if schema.get("type") in ("record", "error", "enum", "fixed"):
        defined.add(schema["name"])
    found = {key: value for key, value in schema.items() if not key.startswith("__")}
    if "fields" in found:
        found["fields"] = [{**item, "type": _inlined(item["type"], named, defined)} for item in found["fields"]]
    for key in ("items", "values"):
        if key in found:
            found[key] = _inlined(found[key], named, defined)
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """What a task needs: pickled into it."""

    registry: RegistrySettings
    reader_schema: str  # JSON; named types are defined in it
    is_strict: bool
    type_text: bytes = field(repr=False)  # the Arrow type of the result, serialized


class Decoder:
    """Decodes arrays; keeps the writers' schemas."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._registry = Registry(reading.registry, side="an executor")
        self._type = pa.ipc.read_schema(pa.BufferReader(reading.type_text)).field(0).type
        self._reader = fastavro.parse_schema(as_stored(json.loads(reading.reader_schema)))
        # By the bytes of a schema's id: the writer's schema, and the reader's unless both are equal.
        self._schemas: dict[bytes, tuple[Any, Any]] = {}
        self._unknown: dict[bytes, tuple[float, str]] = {}

    def decode(self, column: pa.Array, ids: Sequence[bytes | None] | None = None) -> pa.Array:
        """Return the records of an array of byte strings. A null is null.

        `ids` has the id of each record's schema from its headers, None for records with the id in front of them.
        Raises `ReadError` for a bad record if the reading is strict; the record is null otherwise. Raises
        `KafkaUnavailableError` if the registry cannot be asked.
        """
        schemas, read, values = self._schemas, fastavro.schemaless_reader, []
        for record, header in zip(column.to_pylist(), ids or repeat(None), strict=False):
            # What _record does, without its calls, for a good record whose schema is known.
            try:
                writer, reader = schemas[record[:PREFIX_SIZE] if header is None else header]
                data = BytesIO(record)
                if header is None:
                    data.seek(PREFIX_SIZE)
                value = read(data, writer, reader)
                if data.tell() == len(record):
                    values.append(value)
                    continue
            except Exception:  # noqa: BLE001, S110
                pass
            values.append(None if record is None else self._record(record, header))
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, OverflowError):
            # fastavro does not check whether a number fits its type. Arrow does, and refuses all values for one.
            return pa.array(map(self._fitting, column.to_pylist(), values), self._type)

    def _record(self, record: bytes, header: bytes | None) -> Any:
        try:
            return self._decoded(record, header)
        except BadRecord as error:
            return self._bad(record, error)

    def _fitting(self, record: bytes, value: Any) -> Any:
        try:
            pa.array([value], self._type)
        except (pa.ArrowException, OverflowError) as error:
            return self._bad(record, error)
        return value

    def _bad(self, record: bytes, error: Exception) -> None:
        if self._reading.is_strict:
            start = record[:PREFIX_SIZE].hex()
            raise errors.ReadError(errors.AVRO_RECORD_INVALID, start=start, reason=str(error)[:300]) from None

    def _decoded(self, record: bytes, header: bytes | None) -> Any:
        try:
            stored = stored_id(record, header)
        except ValueError as error:
            raise BadRecord(str(error)) from None
        writer, reader = self._schemas.get(stored) or self._schema_of(stored)
        data = BytesIO(record)
        data.seek(len(stored) if header is None else 0)
        try:
            found = fastavro.schemaless_reader(data, writer, reader)
        except Exception as error:  # noqa: BLE001
            # fastavro raises whatever its reading of arbitrary bytes leads to.
            raise BadRecord(f"{type(error).__name__}: {error}"[:300]) from None
        if data.tell() != len(record):
            raise BadRecord(f"{len(record) - data.tell()} bytes follow the record")
        return found

    def _schema_of(self, stored: bytes) -> tuple[Any, Any]:
        until, reason = self._unknown.get(stored, (0.0, ""))
        if time.monotonic() < until:
            raise BadRecord(reason)
        try:
            writer = parsed_schema(self._registry, self._registry.by_id(parsed_id(stored)))
        except (SchemaNotFound, BadRecord, fastavro.schema.SchemaParseException, ValueError) as error:
            if len(self._unknown) >= _MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[stored] = (time.monotonic() + _UNKNOWN_FOR_S, str(error))
            raise BadRecord(str(error)) from None
        # fastavro compares unequal schemas once per record.
        self._schemas[stored] = (writer, None if writer == self._reader else self._reader)
        return self._schemas[stored]


@lru_cache(maxsize=64)
def decoder_of(reading: Reading) -> Decoder:
    """Return this process's decoder for a reading: Python workers are used for many tasks."""
    return Decoder(reading)
