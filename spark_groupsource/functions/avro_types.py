"""Translate an Avro type to an Arrow type, as Spark's own `from_avro` maps the types (`SchemaConverters.toSqlType`).

Differences: every field may be null, and a record inside itself is JSON text (`avro_text`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def arrow_type(kind: AvroType, inside: frozenset[RecordType] = frozenset()) -> pa.DataType:
    """Return the Arrow type of a type inside the records `inside`. Raises `UnsupportedSchema`."""
    match kind:
        case PrimitiveType() | FixedType():
            return _scalar(kind)
        case EnumType():
            return pa.string()
        case ListType():
            return pa.list_(arrow_type(kind.items, inside))
        case DictType():
            return pa.map_(pa.string(), arrow_type(kind.values, inside))
        case UnionType():
            return _union(kind, inside)
        case RecordType() if kind in inside:
            return pa.string()
    opened = inside | {kind}
    return pa.struct([pa.field(item.name, arrow_type(item.type, opened)) for item in kind.fields])


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


def _union(kind: UnionType, inside: frozenset[RecordType]) -> pa.DataType:
    sole = sole_type(kind)
    if sole is not None:
        return arrow_type(sole, inside)
    return pa.struct([pa.field(f"member{i}", arrow_type(item, inside)) for i, item in enumerate(kind.members)])
