"""Defaults from JSON: what is stored, and what is wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from spark_groupsource.functions.avro_defaults import WrongDefault, stored_default
from spark_groupsource.functions.avro_schema import RecordField, parsed

FIXED = {"type": "fixed", "name": "F", "size": 2}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INNER = {"type": "record", "name": "N", "fields": [{"name": "a", "type": "bytes", "default": "\u00ff"}, {"name": "b", "type": "int"}]}  # fmt: skip  # noqa: E501


def stored(schema: Any, default: Any) -> Any:
    """Return the stored form of a default."""
    return stored_default(RecordField("f", parsed((json.dumps(schema),)), (), default))


@pytest.mark.parametrize(
    ("schema", "default", "value"),
    [
        ("bytes", "\u00ff\u0000", b"\xff\0"), (FIXED, "\u00ff\u0001", b"\xff\1"), (ENUM, "B", 1), ("double", 1, 1.0),
        ("float", "Infinity", math.inf), ("double", "-Infinity", -math.inf), ("int", 5.0, 5),
        ("long", 2**63 - 1, 2**63 - 1),
        ({"type": "array", "items": "bytes"}, ["\u00fe"], [b"\xfe"]),
        ({"type": "map", "values": ENUM}, {"k": "A"}, {"k": 0}),
        (INNER, {"b": 1}, {"a": b"\xff", "b": 1}), (["null", "bytes"], None, None),
        (["null", "bytes"], "\u00ff", b"\xff"),
        (["int", "string", "null"], "x", {"branch1": "x"}), (["int", "string", "null"], None, None),
        (["double", "string"], "NaN", {"branch1": "NaN"}), (["float", "bytes"], "Infinity", {"branch1": b"Infinity"}),
        (["float", "int"], "Infinity", {"branch0": math.inf}), (["null", "double"], "-Infinity", -math.inf),
        (["string", "bytes"], "x", {"branch0": "x"}), ("null", None, None), ("boolean", False, False),
    ],
)  # fmt: skip
def test_the_stored_form_of_a_default(schema: Any, default: Any, value: Any) -> None:
    assert stored(schema, default) == value


def test_no_number_is_a_default_of_floats() -> None:
    assert math.isnan(stored("float", "NaN"))
    assert math.isnan(stored("double", math.nan))


@pytest.mark.parametrize(
    ("schema", "default"),
    [
        ("string", None), ("int", "5"), ("int", 2**31), ("long", 2**63), ("int", 1.5), ("int", True), ("boolean", 0),
        ("bytes", "\u0100"), ("bytes", 5), (FIXED, "x"), (ENUM, "C"), (ENUM, 0), ("double", "5"), ("double", True),
        ("double", 10**400), ("null", 0), (["int", "null"], "x"), (INNER, {}), (INNER, {"b": "x"}), (INNER, []),
        ({"type": "array", "items": "int"}, {}), ({"type": "array", "items": "int"}, ["x"]),
        ({"type": "map", "values": "int"}, []),
        ("float", "nan"), ("int", math.inf), ("int", math.nan),
    ],
)  # fmt: skip
def test_a_wrong_default_is_an_error(schema: Any, default: Any) -> None:
    with pytest.raises(WrongDefault):
        stored(schema, default)
