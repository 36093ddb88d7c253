"""Read an Avro schema: from JSON to types, with resolved names and only those logical types that are valid. Pure.

It accepts what registries accept. A registry checks neither the defaults of a schema nor its logical types, so a wrong
default is an error only where it is used (`avro_defaults`), and a logical type that is not valid is ignored ("Logical
Types" in the Avro specification; `LogicalTypes.fromSchemaIgnoreInvalid` in Java).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
# The logical types that Spark has a type for, besides decimal, and timestamps in nanoseconds, which have a unit. All
# others (uuid, time-millis, time-micros, duration, big-decimal) leave the stored value as it is, as in from_avro.
_STORED_IN = {
    "date": "int", "timestamp-millis": "long", "timestamp-micros": "long", "timestamp-nanos": "long",
    "local-timestamp-millis": "long", "local-timestamp-micros": "long", "local-timestamp-nanos": "long",
}  # fmt: skip
# Bits for one decimal digit, as `LogicalTypes.Decimal` has it: a fixed of n bytes holds floor(log10(2) * (8n - 1)).
_DIGITS_PER_BIT = 0.30102999566398120
NO_DEFAULT = object()


class UnsupportedSchema(ValueError):
    """The schema is malformed, or has a type that Spark has no column type for."""


@dataclass(frozen=True, slots=True)
class LogicalType:
    """A valid logical type. Precision and scale are those of a decimal."""

    name: str
    precision: int = 0
    scale: int = 0


@dataclass(slots=True, eq=False)
class PrimitiveType:
    """A primitive type."""

    kind: str
    logical: LogicalType | None = None


@dataclass(slots=True, eq=False)
class NamedType:
    """A type with a name. Names are full names; aliases, too."""

    name: str
    aliases: frozenset[str]


@dataclass(slots=True, eq=False)
class FixedType(NamedType):
    """A fixed number of bytes."""

    size: int
    logical: LogicalType | None = None


@dataclass(slots=True, eq=False)
class EnumType(NamedType):
    """An enum. A default that is none of the symbols is dropped."""

    symbols: tuple[str, ...]
    default: str | None = None


@dataclass(slots=True, eq=False)
class RecordField:
    """A field of a record. `default` is JSON, which nobody has checked."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


@dataclass(slots=True, eq=False)
class RecordType(NamedType):
    """A record. It may contain itself."""

    fields: list[RecordField] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ListType:
    """An array."""

    items: AvroType


@dataclass(slots=True, eq=False)
class DictType:
    """A map from strings."""

    values: AvroType


@dataclass(slots=True, eq=False)
class UnionType:
    """A union, as it is written: with null."""

    branches: tuple[AvroType, ...]

    @property
    def members(self) -> list[AvroType]:
        """The types that are not null."""
        return [branch for branch in self.branches if not is_null(branch)]


AvroType: TypeAlias = PrimitiveType | FixedType | EnumType | RecordType | ListType | DictType | UnionType


def is_null(kind: AvroType) -> bool:
    """Return whether a type is Avro's null."""
    return isinstance(kind, PrimitiveType) and kind.kind == "null"


def short_name(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition(".")[2]


def parsed(texts: tuple[str, ...]) -> AvroType:
    """Return the type of the last of several schemas (JSON). Each may use the names that those before it define.

    Raises `UnsupportedSchema`, also for a text that is not JSON.
    """
    names = _Names()
    try:
        found = [names.type_of(json.loads(text)) for text in texts]
    except UnsupportedSchema:
        raise
    except (ValueError, RecursionError) as error:
        raise UnsupportedSchema(f"it is not JSON, or too deep: {error}") from None
    return found[-1]


class _Names:
    """The named types of schemas, while they are read."""

    def __init__(self) -> None:
        self._known: dict[str, AvroType] = {}

    def type_of(self, schema: Any, space: str = "") -> AvroType:
        """Return the type of a schema inside the namespace `space`."""
        if isinstance(schema, list):
            return self._union(schema, space)
        if isinstance(schema, str):
            return self._by_name(schema, space)
        if not isinstance(schema, dict) or "type" not in schema:
            raise UnsupportedSchema(f"'{str(schema)[:200]}' is no Avro schema")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.type_of(kind, space)
        if kind == "array":
            return ListType(self.type_of(_required(schema, "items", object), space))
        if kind == "map":
            return DictType(self.type_of(_required(schema, "values", object), space))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(kind, schema, space)
        found = self._by_name(kind, space)
        return PrimitiveType(kind, _logical(kind, schema)) if isinstance(found, PrimitiveType) else found

    def _definition(self, kind: str, schema: Mapping[str, Any], space: str) -> AvroType:
        given, inside = _required(schema, "name", str), schema.get("namespace")
        name = _full_name(given, inside if isinstance(inside, str) else space)
        space = name.rpartition(".")[0]
        aliases = frozenset(_full_name(alias, space) for alias in _aliases(schema))
        if kind == "enum":
            symbols, default = _symbols(schema), schema.get("default")
            enum = EnumType(name, aliases, symbols, default if default in symbols else None)
            self._define(enum)
            return enum
        if kind == "fixed":
            size = _integer(schema, "size", -1)
            if size is None or size < 0:
                raise UnsupportedSchema(f"the size of '{name}' is {schema.get('size')}")
            fixed = FixedType(name, aliases, size, _logical(kind, schema, size))
            self._define(fixed)
            return fixed
        record = RecordType(name, aliases)
        self._define(record)  # before its fields, which may refer to it
        record.fields = [self._field(item, space) for item in _required(schema, "fields", list)]
        if len({item.name for item in record.fields}) < len(record.fields):
            raise UnsupportedSchema(f"'{name}' has two fields of the same name")
        return record

    def _define(self, found: NamedType) -> None:
        if found.name in self._known:
            raise UnsupportedSchema(f"'{found.name}' is defined twice")
        self._known[found.name] = found  # type: ignore[assignment]

    def _field(self, schema: Any, space: str) -> RecordField:
        if not isinstance(schema, dict):
            raise UnsupportedSchema(f"'{str(schema)[:200]}' is no field")
        found = self.type_of(_required(schema, "type", object), space)
        return RecordField(_required(schema, "name", str), found, _aliases(schema), schema.get("default", NO_DEFAULT))

    def _by_name(self, name: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return PrimitiveType(name)
        full = _full_name(name, space)
        # As Java's parser: a name without a namespace is looked for there, too.
        found = self._known.get(full) or self._known.get(name)
        if found is None:
            raise UnsupportedSchema(f"type '{full}' is not defined")
        return found

    def _union(self, schema: list[Any], space: str) -> AvroType:
        if not schema:
            raise UnsupportedSchema("a union without types")
        branches = tuple(self.type_of(item, space) for item in schema)
        if any(isinstance(branch, UnionType) for branch in branches):
            raise UnsupportedSchema("a union inside a union")
        return UnionType(branches)


def _full_name(name: str, space: str) -> str:
    # A name that begins with a dot is one without a namespace.
    return name.removeprefix(".") if "." in name or not space else f"{space}.{name}"


def _required(schema: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return what a schema has under a key: a text, a list, or with `object` anything."""
    if key not in schema:
        raise UnsupportedSchema(f"'{str(schema)[:200]}' has no '{key}'")
    found = schema[key]
    if not isinstance(found, kind):
        raise UnsupportedSchema(f"'{key}' of '{str(schema)[:200]}' is no {'text' if kind is str else 'list'}")
    return found


def _symbols(schema: Mapping[str, Any]) -> tuple[str, ...]:
    found = _required(schema, "symbols", list)
    if not all(isinstance(item, str) for item in found):
        raise UnsupportedSchema(f"'symbols' of '{str(schema)[:200]}' is no list of texts")
    return tuple(found)


def _aliases(schema: Mapping[str, Any]) -> tuple[str, ...]:
    found = schema.get("aliases")
    return tuple(item for item in found if isinstance(item, str)) if isinstance(found, list) else ()


def _integer(schema: Mapping[str, Any], key: str, absent: int) -> int | None:
    """Return an integer, None if it is something else."""
    found = schema.get(key, absent)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _logical(kind: str, schema: Mapping[str, Any], size: int | None = None) -> LogicalType | None:
    """Return a schema's logical type if it is valid for the type that stores it."""
    name = schema.get("logicalType")
    if not isinstance(name, str):
        return None
    if name != "decimal":
        return LogicalType(name) if _STORED_IN.get(name) == kind else None
    precision, scale = _integer(schema, "precision", 0), _integer(schema, "scale", 0)
    if kind not in ("bytes", "fixed") or precision is None or scale is None:
        return None
    digits = precision if size is None else int(_DIGITS_PER_BIT * (8 * size - 1))
    return LogicalType(name, precision, scale) if 0 < precision <= digits and 0 <= scale <= precision else None
