"""Decode Confluent's wire format: the id of a schema (`schema_ids`), and the record in Avro's binary encoding.

A record whose whole schema is `bytes` is an exception of that format: its bytes follow as they are, without a length.

Each record is read with the schema that it was written with, and resolved to the reader's schema.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from spark_groupsource import errors
from spark_groupsource.functions.avro_columns import UNFIT, ReadColumn, column_of
from spark_groupsource.functions.avro_encoding import encoding_of
from spark_groupsource.functions.avro_guards import BadBytes
from spark_groupsource.functions.avro_numbers import BadValue
from spark_groupsource.functions.avro_reader import RawReader, RecordReader
from spark_groupsource.functions.avro_resolution import MismatchStep, resolution_of
from spark_groupsource.functions.avro_schema import PrimitiveType, UnsupportedSchema, parsed
from spark_groupsource.functions.avro_text import text_edit
from spark_groupsource.functions.avro_types import arrow_type
from spark_groupsource.functions.registry_options import RegistrySettings
from spark_groupsource.functions.schema_ids import PREFIX_SIZE, StoredId, parsed_id, rows_by_id
from spark_groupsource.functions.schema_registry import Registry, SchemaNotFound

# An id that the registry did not know may be known later: registries replicate.
_UNKNOWN_FOR_S = 30.0
# A column that is not Avro has a new "schema id" in each value.
_MAX_UNKNOWN = 1_000
_COLUMN_TYPES = (pa.binary(), pa.large_binary(), pa.null())


class BadRecord(ValueError):
    """A record is not of the wire format, or not readable with the reader's schema."""


def schema_texts(registry: Registry, found: dict[str, Any]) -> tuple[str, ...]:
    """Return a schema of the registry, after the schemas that it refers to. Raises `BadRecord` if one is not Avro.

    A reference's name has one schema everywhere: the first one that is found, as in Confluent's clients.
    """
    texts: dict[str, str] = {}

    def add(schema: dict[str, Any]) -> None:
        if schema.get("schemaType", "AVRO") != "AVRO":
            raise BadRecord(f"its schema is {schema['schemaType']}, not Avro")
        for name, subject, version in _references(schema):
            if name not in texts:
                texts[name] = ""
                referred = registry.by_version(subject, version)
                add(referred)
                del texts[name]  # it comes after those that it refers to
                texts[name] = referred["schema"]

    add(found)
    # Two names may have one schema.
    return (*dict.fromkeys(texts.values()), found["schema"])


def _references(schema: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Return name, subject and version of a schema's references. Raises `BadRecord` for others than the API has."""
    found = schema.get("references") or []
    try:
        references = [(item["name"], item["subject"], item["version"]) for item in found]
    except (TypeError, KeyError):
        references = [("", "", None)]
    for name, subject, version in references:
        if not (isinstance(name, str) and isinstance(subject, str) and type(version) is int):
            raise BadRecord(f"its references are malformed: {str(found)[:200]}")
    return references


@dataclass(frozen=True, slots=True)
class Reading:
    """What a task needs: pickled into it."""

    registry: RegistrySettings
    reader_schema: tuple[str, ...]  # JSON; the last one is the schema, the others define names for it
    is_strict: bool


@dataclass(frozen=True, slots=True)
class _Written:
    """How the records of one writer's schema are read."""

    reader: RecordReader | RawReader
    column: ReadColumn


class Decoder:
    """Decodes arrays; keeps the writers' schemas."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._registry = Registry(reading.registry, side="an executor")
        self._reader = parsed(reading.reader_schema)
        self._type = arrow_type(self._reader)
        self._written: dict[StoredId, _Written] = {}
        self._unknown: dict[StoredId, tuple[float, str]] = {}

    def decode(self, column: pa.Array, header_ids: Sequence[bytes | None] | None = None) -> pa.Array:
        """Return the records of an array of byte strings. A null is null.

        `header_ids` has the id of each record's schema from its headers, None for an id in front of the record.
        Raises `ReadError` for a bad record if the reading is strict; the record is null otherwise. Raises
        `KafkaUnavailableError` if the registry cannot be asked, and `OptionError` for an array of another type.
        """
        if column.type not in _COLUMN_TYPES:
            value, allowed = f"a column of {column.type}", "binary, as the source's columns key and value"
            raise errors.OptionError(errors.OPTION_INVALID, option="column", value=value, allowed=allowed)
        records = column.to_pylist()
        by_id = rows_by_id(records, header_ids)
        places: list[int | None] = [None] * len(records)
        arrays: list[pa.Array] = []
        count = 0
        for stored, rows in by_id.items():
            found = self._decoded(stored, [records[row] for row in rows])
            if len(by_id) == 1 and len(found) == len(records):
                return found
            for place, row in enumerate(rows, count):
                places[row] = place
            count += len(found)
            arrays.append(found)
        if not arrays:
            return pa.nulls(len(records), self._type)
        return pa.concat_arrays(arrays).take(pa.array(places, pa.int64()))

    def _decoded(self, stored: StoredId, records: list[bytes]) -> pa.Array:
        """Return the records of one writer's schema. Bad ones are null."""
        try:
            written = self._written.get(stored) or self._schema_of(stored)
        except BadRecord as error:
            self._bad(records[0], error)
            return pa.nulls(len(records), self._type)
        good: list[bytes] = []
        values: list[Any] = []
        places: list[int | None] = []
        for record in records:
            try:
                values.append(written.reader.read(record[stored.size :]))
            except (BadBytes, BadValue) as error:
                self._bad(record, error)
                places.append(None)
            else:
                places.append(len(good))
                good.append(record)
        found = self._built(written.column, good, values)
        return found if len(good) == len(records) else found.take(pa.array(places, pa.int64()))

    def _built(self, column: ReadColumn, records: list[bytes], values: list[Any]) -> pa.Array:
        """Return the array of values. Arrow refuses all values for one that does not fit: halves find it."""
        try:
            return column.array(values)
        except UNFIT as error:
            if len(values) == 1:
                self._bad(records[0], error)
                return pa.nulls(1, self._type)
        middle = len(values) // 2
        halves = (slice(middle), slice(middle, None))
        return pa.concat_arrays([self._built(column, records[half], values[half]) for half in halves])

    def _bad(self, record: bytes, error: Exception) -> None:
        if self._reading.is_strict:
            start = record[:PREFIX_SIZE].hex()
            raise errors.ReadError(errors.AVRO_RECORD_INVALID, start=start, reason=str(error)[:300]) from None

    def _schema_of(self, stored: StoredId) -> _Written:
        until, reason = self._unknown.get(stored, (0.0, ""))
        if time.monotonic() < until:
            raise BadRecord(reason)
        try:
            schema_id = parsed_id(stored)
        except ValueError as error:
            raise BadRecord(str(error)) from None
        try:
            texts = schema_texts(self._registry, self._registry.by_id(schema_id))
            self._written[stored] = self._written_with(texts)
        except (SchemaNotFound, BadRecord, UnsupportedSchema, RecursionError) as error:
            if len(self._unknown) >= _MAX_UNKNOWN:
                self._unknown.clear()
            self._unknown[stored] = (time.monotonic() + _UNKNOWN_FOR_S, str(error))
            raise BadRecord(str(error)) from None
        return self._written[stored]

    def _written_with(self, texts: tuple[str, ...]) -> _Written:
        writer = parsed(texts)
        step = resolution_of(writer, self._reader)
        if isinstance(step, MismatchStep):
            raise BadRecord(step.reason)
        encoding, is_raw = encoding_of(step), isinstance(writer, PrimitiveType) and writer.kind == "bytes"
        reader = RawReader(encoding) if is_raw else RecordReader(encoding, text_edit(step))
        return _Written(reader, column_of(step, self._type))


@lru_cache(maxsize=64)
def decoder_of(reading: Reading) -> Decoder:
    """Return this process's decoder for a reading: Python workers are used for many tasks."""
    return Decoder(reading)
