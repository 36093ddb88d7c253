"""Translate an Avro type to an Arrow type, as Spark's own `from_avro` maps the types (`SchemaConverters.toSqlType`).

Differences: every field may be null, and a record inside itself is JSON text (`avro_text`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from spark_groupsource.functions.avro_schema import (
    AvroType,
    DictType,
    EnumType,
    FixedType,
    ListType,
    PrimitiveType,
    RecordType,
    UnionType,
    UnsupportedSchema,
)

STORED: Mapping[str, pa.DataType] = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"), "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"), "local-timestamp-micros": pa.timestamp("us"),
}  # fmt: skip
# Spark's DecimalType has no more digits; from_avro refuses such a schema, too.
MAX_PRECISION = 38
# Columns of structs inside each other. Eight records that refer to each other have 110,000.
MAX_FIELDS = 10_000
_TOO_WIDE = f"its type has more than {MAX_FIELDS} fields; a record counts wherever it is referred to"


def arrow_type(kind: AvroType) -> pa.DataType:
    """Return the Arrow type of a type. Raises `UnsupportedSchema`."""
    return _inside(kind, frozenset(), iter(range(MAX_FIELDS)))


def _inside(kind: AvroType, inside: frozenset[RecordType], left: Iterator[int]) -> pa.DataType:
    """Return the Arrow type of a type inside the records `inside`, with at most the fields that are `left`."""
    match kind:
        case PrimitiveType() | FixedType():
            return _scalar(kind)
        case EnumType():
            return pa.string()
        case ListType():
            return pa.list_(_inside(kind.items, inside, left))
        case DictType():
            return pa.map_(pa.string(), _inside(kind.values, inside, left))
        case UnionType():
            return _union(kind, inside, left)
        case RecordType() if kind in inside:
            return pa.string()
    return _struct({item.name: item.type for item in kind.fields}, inside | {kind}, left)


def _struct(fields: Mapping[str, AvroType], inside: frozenset[RecordType], left: Iterator[int]) -> pa.DataType:
    found = []
    for name, kind in fields.items():
        if next(left, None) is None:
            raise UnsupportedSchema(_TOO_WIDE)
        found.append(pa.field(name, _inside(kind, inside, left)))
    return pa.struct(found)


def sole_type(union: UnionType) -> AvroType | None:
    """Return the type that a union is read as if its column is no struct.

    That is its only type that is not null, long for int and long, double for float and double. These two lose logical
    types, as in from_avro.
    """
    members = union.members
    if len(members) < 2:
        return members[0] if members else union.branches[0]
    kinds = {member.kind for member in members if isinstance(member, PrimitiveType)}
    if len(members) == 2 and kinds in ({"int", "long"}, {"float", "double"}):
        return PrimitiveType("long" if "long" in kinds else "double")
    return None


def _scalar(kind: PrimitiveType | FixedType) -> pa.DataType:
    stored = STORED[kind.kind] if isinstance(kind, PrimitiveType) else pa.binary()
    if kind.logical is None:
        return stored
    if kind.logical.name != "decimal":
        return _LOGICAL.get(kind.logical.name, stored)
    if kind.logical.precision > MAX_PRECISION:
        raise UnsupportedSchema(f"a decimal of {kind.logical.precision} digits; Spark's have {MAX_PRECISION} at most")
    return pa.decimal128(kind.logical.precision, kind.logical.scale)


def _union(kind: UnionType, inside: frozenset[RecordType], left: Iterator[int]) -> pa.DataType:
    sole = sole_type(kind)
    if sole is not None:
        return _inside(sole, inside, left)
    return _struct({f"member{i}": item for i, item in enumerate(kind.members)}, inside, left)
