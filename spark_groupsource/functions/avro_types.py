"""Translate an Avro schema to an Arrow type, as Spark's own `from_avro` maps the types.

Differences: a union of several types that are not null is refused, except int with long and float with double. Every
field may be null. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

AvroSchema = Any  # a schema: a name, a list (a union) or an object

_PRIMITIVE: Mapping[str, pa.DataType] = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
# Avro's named types may be used by name after their definition.
_NAMED = ("record", "error", "enum", "fixed")
_WIDENED = {("int", "long"): "long", ("double", "float"): "double"}
# As from_avro: Spark has no type for these, and shows what is stored.
_LEFT_AS_STORED = ("uuid", "time-millis", "time-micros", "duration")


class UnsupportedSchema(ValueError):
    """The schema is malformed, or has a type that Spark has no column type for."""


def arrow_type(schema: AvroSchema) -> pa.DataType:
    """Return the Arrow type of a schema. Raises `UnsupportedSchema`."""
    return _Names().type_of(schema)


def as_stored(schema: AvroSchema) -> AvroSchema:
    """Return the schema without the logical types that Spark has no type for, so that stored values are returned."""
    if isinstance(schema, list):
        return [as_stored(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: value if key in ("default", "symbols", "aliases") else as_stored(value)
        for key, value in schema.items()
        if not (key == "logicalType" and value in _LEFT_AS_STORED)
    }


class _Names:
    """The named types of one schema, while it is translated."""

    def __init__(self) -> None:
        self._known: dict[str, pa.DataType | None] = {}  # None: its definition is being translated

    def type_of(self, schema: AvroSchema, space: str = "") -> pa.DataType:
        """Return the type of a schema inside the namespace `space`."""
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise UnsupportedSchema(f"'{schema}' is no Avro schema")
        return self._of_object(schema, space)

    def _of_object(self, schema: dict[str, AvroSchema], space: str) -> pa.DataType:
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.type_of(kind, space)
        if kind == "array":
            return pa.list_(self.type_of(schema["items"], space))
        if kind == "map":
            return pa.map_(pa.string(), self.type_of(schema["values"], space))
        if kind in _NAMED:
            return self._definition(kind, schema, space)
        return _logical(schema) or self._by_name(kind, space)

    def _definition(self, kind: str, schema: dict[str, AvroSchema], space: str) -> pa.DataType:
        name = _full_name(schema["name"], schema.get("namespace", space))
        self._known[name] = None
        if kind == "enum":
            found = pa.string()
        elif kind == "fixed":
            found = _logical(schema) or pa.binary()
        else:
            inside = name.rpartition(".")[0]
            found = pa.struct([pa.field(f["name"], self.type_of(f["type"], inside)) for f in schema["fields"]])
        self._known[name] = found
        return found

    def _by_name(self, name: str, space: str) -> pa.DataType:
        if name in _PRIMITIVE:
            return _PRIMITIVE[name]
        full = _full_name(name, space)
        if full not in self._known:
            raise UnsupportedSchema(f"type '{full}' is not defined")
        found = self._known[full]
        if found is None:
            raise UnsupportedSchema(f"type '{full}' contains itself")
        return found

    def _union(self, schema: list[AvroSchema], space: str) -> pa.DataType:
        some = [item for item in schema if item != "null"]
        plain = tuple(sorted(item for item in some if isinstance(item, str)))
        if len(some) == 2 and plain in _WIDENED:
            return _PRIMITIVE[_WIDENED[plain]]
        if not schema:
            raise UnsupportedSchema("a union without types")
        if len(some) > 1:
            raise UnsupportedSchema(f"a union of {len(some)} types that are not null: {str(some)[:200]}")
        return self.type_of(some[0], space) if some else pa.null()


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _logical(schema: dict[str, AvroSchema]) -> pa.DataType | None:
    """Return the type of a logical type, None without one that has a type of its own."""
    found = {
        ("int", "date"): pa.date32(),
        ("long", "timestamp-millis"): pa.timestamp("us", "UTC"),
        ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
        ("long", "local-timestamp-millis"): pa.timestamp("us"),
        ("long", "local-timestamp-micros"): pa.timestamp("us"),
    }.get((schema["type"], schema.get("logicalType", "")))
    if found is None and schema.get("logicalType") == "decimal" and schema["type"] in ("bytes", "fixed"):
        return pa.decimal128(int(schema["precision"]), int(schema.get("scale", 0)))
    return found
