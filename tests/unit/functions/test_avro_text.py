"""Records inside themselves as JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_groupsource.errors import ReadError
from spark_groupsource.functions.avro_text import _day

from .avro_records import decoder, record

FIELDS = {
    "day": {"type": "int", "logicalType": "date"}, "at": {"type": "long", "logicalType": "timestamp-millis"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "raw": "bytes", "ratio": "double",
    "kind": {"type": "enum", "name": "K", "symbols": ["A", "B"]}, "either": ["null", "int", "string"],
}  # fmt: skip
VALUE = {
    "day": 19000, "at": 1_700_000_000_000, "local": 1, "price": b"\4\xd2", "raw": b"\xff", "ratio": float("inf"),
    "kind": "B", "either": (2, "x"),
}  # fmt: skip
SHOWN = {
    "day": "2022-01-08", "at": "2023-11-14T22:13:20.000000Z", "local": "1970-01-01T00:00:00.000001", "price": "12.34",
    "raw": "/w==", "ratio": "Infinity", "kind": "B", "either": {"member1": "x"},
}  # fmt: skip


def node(**fields: Any) -> dict[str, Any]:
    """Return a record with a list of itself."""
    items = [{"name": name, "type": kind} for name, kind in fields.items()]
    return {
        "type": "record",
        "name": "Node",
        "fields": [*items, {"name": "parts", "type": {"type": "array", "items": "Node"}}],
    }


def encodable(**fields: Any) -> dict[str, Any]:
    """Return what three levels of `node` are written with: the rules of these tests know no names."""
    found: Any = "null"
    for level in "abc":
        items = [{"name": name, "type": kind} for name, kind in fields.items()]
        kind = {"type": "array", "items": found}
        found = {"type": "record", "name": level, "fields": [*items, {"name": "parts", "type": kind}]}
    return found


def read(reader: Any, registered: Any, value: Any, fields: dict[str, Any]) -> list[Any]:
    import pyarrow as pa

    data = record(1, encodable(**fields), value)
    return decoder(reader, registered, is_strict=True).decode(pa.array([data, data], pa.binary())).to_pylist()


def test_deeper_records_are_text_with_the_readers_types() -> None:
    leaf = VALUE | {"parts": []}
    rows = read(node(**FIELDS), node(**FIELDS), VALUE | {"parts": [leaf | {"parts": [leaf]}, leaf]}, FIELDS)
    for row in rows:
        assert row["kind"] == "B"
        assert [json.loads(part) for part in row["parts"]] == [
            SHOWN | {"parts": [SHOWN | {"parts": []}]}, SHOWN | {"parts": []},
        ]  # fmt: skip


def test_deeper_records_evolve_too() -> None:
    new = node(v="long")
    new["fields"].append({"name": "added", "type": "bytes", "default": "\u00ff"})
    value = {"v": 1, "gone": "x", "parts": [{"v": 2, "gone": "y", "parts": []}]}
    fields = {"v": "int", "gone": "string"}
    for row in read(new, node(**fields), value, fields):
        assert json.loads(row["parts"][0]) == {"v": 2, "parts": [], "added": "/w=="}


def test_a_decimal_in_a_text_has_all_its_digits() -> None:
    """Python's decimals are rounded to 28 digits by default."""
    digits = 10**37 + 9_876_543_211
    price = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}
    for number, shown in ((digits, "100000000000000000000000000098765432.11"), (-5, "-0.05"), (0, "0.00")):
        value = {"p": number.to_bytes(16, "big", signed=True), "parts": []}
        for row in read(node(p=price), node(p=price), value | {"parts": [value]}, {"p": "bytes"}):
            assert json.loads(row["parts"][0]) == {"p": shown, "parts": []}


def test_a_bad_value_inside_a_text_is_a_bad_record() -> None:
    value = {"v": 0, "parts": [{"v": 2**62, "parts": []}]}
    at = {"type": "long", "logicalType": "timestamp-millis"}
    with pytest.raises(ReadError, match="4611686018427387904 is beyond Spark's timestamps"):
        read(node(v=at), node(v=at), value, {"v": "long"})


def test_an_optional_record_inside_itself() -> None:
    chain = {
        "type": "record",
        "name": "Chain",
        "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Chain"]}],
    }
    end = {"type": "record", "name": "e", "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": "int"}]}
    import pyarrow as pa

    # 1, then 2, then the end: a branch is a number, as an int is.
    last = record(1, end, {"v": 2, "next": 0})
    data = record(1, end, {"v": 1, "next": 1}) + last[5:]
    found = decoder(chain, chain).decode(pa.array([data, last, None], pa.binary())).to_pylist()
    assert found == [{"v": 1, "next": '{"v": 2, "next": null}'}, {"v": 2, "next": None}, None]


@settings(deadline=None, max_examples=50)
@given(st.integers(-719162, 2932896))
def test_days_are_those_of_python(days: int) -> None:
    import datetime

    assert _day(days) == str(datetime.date(1970, 1, 1) + datetime.timedelta(days))


def test_days_outside_pythons_years() -> None:
    assert [_day(days) for days in (-719163, -719164, 2932897)] == ["0000-12-31", "0000-12-30", "+10000-01-01"]
    assert _day(-719529) == "-0001-12-31"
