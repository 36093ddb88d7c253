"""Schemas that registries accept: names, and logical types that are not valid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_groupsource.functions.avro_schema import (
    EnumType,
    FixedType,
    LogicalType,
    PrimitiveType,
    RecordType,
    UnsupportedSchema,
    parsed,
)


def read(*schemas: Any) -> Any:
    """Return the type of the last schema."""
    return parsed(tuple(map(json.dumps, schemas)))


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, LogicalType("date")),
        ({"type": "long", "logicalType": "date"}, None),
        ({"type": "string", "logicalType": "timestamp-millis"}, None),
        ({"type": "long", "logicalType": "time-micros"}, None),
        ({"type": "long", "logicalType": 5}, None),
        ({"type": "long", "logicalType": ["timestamp-millis"]}, None),
        ({"type": "long", "logicalType": None}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4}, LogicalType("decimal", 4, 0)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 4}, LogicalType("decimal", 4, 4)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": "1"}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4.0}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": True}, None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, None),
        ({"type": "bytes", "logicalType": "decimal"}, None),
        ({"type": "long", "logicalType": "decimal", "precision": 4}, None),
    ],
)
def test_a_logical_type_that_is_not_valid_is_ignored(schema: dict[str, Any], logical: LogicalType | None) -> None:
    assert read(schema).logical == logical


@pytest.mark.parametrize(("size", "digits"), [(1, 2), (2, 4), (4, 9), (8, 18), (16, 38)])
def test_a_fixed_holds_as_many_digits_as_its_bytes(size: int, digits: int) -> None:
    for precision, is_valid in ((digits, True), (digits + 1, False)):
        decimal = {"logicalType": "decimal", "precision": precision}
        assert (read({"type": "fixed", "name": "F", "size": size} | decimal).logical is not None) == is_valid


def test_names_are_resolved_in_their_namespace() -> None:
    code = {"type": "fixed", "name": "Code", "size": 2, "aliases": ["Old", "other.Code"]}
    inner = {"type": "record", "name": "deep.Inner", "fields": [{"name": "code", "type": code}]}
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "deep.Code"}, {"name": "c", "type": "R"}]
    found = read({"type": "record", "name": "R", "namespace": "shop", "fields": fields})
    assert isinstance(found, RecordType)
    assert [found.name, found.fields[0].type.name, found.fields[1].type.name] == ["shop.R", "deep.Inner", "deep.Code"]
    assert found.fields[1].type.aliases == {"deep.Old", "other.Code"}
    assert found.fields[2].type is found


def test_a_name_without_a_namespace_is_found_from_inside_one() -> None:
    fields = [{"name": "a", "type": "Code"}]
    found = read({"type": "fixed", "name": "Code", "size": 2}, {"type": "record", "name": "n.R", "fields": fields})
    assert isinstance(found.fields[0].type, FixedType)


def test_nested_types_and_defaults_of_enums() -> None:
    assert isinstance(read({"type": {"type": "string"}}), PrimitiveType)
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    for default, kept in (("A", "A"), ("Z", None), (None, None), (5, None)):
        found = read(enum | {"default": default})
        assert isinstance(found, EnumType)
        assert found.default == kept


@pytest.mark.parametrize(
    "schema",
    [
        [], "Unknown", {}, {"type": "array"}, {"type": "map"}, {"type": "record", "name": "R"}, {"type": "record"},
        {"type": "record", "name": 5, "fields": []}, {"type": "record", "name": "R", "fields": ["x"]},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
        {"type": "enum", "name": "E"}, {"type": "enum", "name": "E", "symbols": "AB"}, ["null", ["int"]], 5, None,
        {"type": "fixed", "name": "F"}, {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": "2"}, {"type": "record", "name": "R", "fields": None},
        {"type": "record", "name": "R", "fields": 5}, {"type": "record", "name": "R", "fields": {"a": 1}},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": None}]}, {"type": None},
        {"type": "enum", "name": "E", "symbols": None}, {"type": "enum", "name": "E", "symbols": [[]]},
    ],
)  # fmt: skip
def test_a_malformed_schema_is_an_error_of_the_package(schema: Any) -> None:
    with pytest.raises(UnsupportedSchema):
        read(schema)


def test_a_name_is_defined_once() -> None:
    one, two = {"type": "fixed", "name": "N", "size": 2}, {"type": "enum", "name": "N", "symbols": ["A"]}
    fields = [{"name": "a", "type": one}, {"name": "b", "type": two}]
    for schemas in ([{"type": "record", "name": "R", "fields": fields}], [one, two], [["null", one, two]]):
        with pytest.raises(UnsupportedSchema, match="'N' is defined twice"):
            read(*schemas)


def test_a_text_that_is_not_json_is_an_error_of_the_package() -> None:
    for text in ("{", "string", "[" * 100_000):
        with pytest.raises(UnsupportedSchema):
            parsed((text,))
