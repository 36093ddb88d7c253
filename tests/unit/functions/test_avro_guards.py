"""Bytes that fastavro alone reads as something else, or that take the process: they are bad records."""

from __future__ import annotations

import json
import time
from typing import Any

import pyarrow as pa
import pytest

from spark_groupsource.errors import ReadError
from spark_groupsource.functions.avro_guards import MAX_DEPTH, MAX_EMPTY_ITEMS
from spark_groupsource.functions.avro_resolution import MAX_STEPS

from .avro_records import decoder, plain
from .avro_rules import varint

CHAIN = {
    "type": "record",
    "name": "Chain",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Chain"]}],
}
TREE = {"type": "record", "name": "T", "fields": [{"name": "c", "type": {"type": "array", "items": "T"}}]}
VALUE = {"type": "record", "name": "Chain", "fields": [{"name": "v", "type": "int"}]}  # the chain is not read
EMPTY = {"type": "record", "name": "E", "fields": []}


def of(**fields: Any) -> dict[str, Any]:
    """Return a record's schema."""
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def read(reader: Any, writer: Any, *bodies: bytes, is_strict: bool = False) -> list[Any]:
    """Return what bytes of records are read as."""
    data = pa.array([b"\0\0\0\0\1" + body for body in bodies], pa.binary())
    return plain(decoder(reader, writer, is_strict=is_strict).decode(data))


def chain(depth: int) -> bytes:
    """Return a record with `depth` records inside."""
    return b"\2\2" * depth + b"\2\0"


@pytest.mark.parametrize("writer", [["null", "string"], ["string", "null"], ["int", "string", "null"]])
@pytest.mark.parametrize("branch", [-1, -2, -3, 3])
def test_a_union_has_no_branch_before_its_first(writer: Any, branch: int) -> None:
    registered = of(a="int", u=writer)
    body, good = b"\2" + varint(branch) + b"\2Z", b"\2" + varint(writer.index("string")) + b"\2Z"
    for reader in (registered, of(a="int")):
        found = read(reader, registered, good, body, good)
        assert [row and row["a"] for row in found] == [1, None, 1]
        with pytest.raises(ReadError, match=f"a union has no branch {branch}"):
            read(reader, registered, body, is_strict=True)


def test_a_union_without_a_record_around_it_has_no_negative_branch() -> None:
    assert read(["null", "string"], ["null", "string"], b"\2\2Z", b"\1\2Z", b"\0") == ["Z", None, None]


def test_records_inside_themselves_are_read_up_to_the_limit() -> None:
    found = read(CHAIN, CHAIN, chain(2), chain(MAX_DEPTH), chain(MAX_DEPTH + 2), chain(0))
    assert [row and row["v"] for row in found] == [1, 1, None, 1]
    assert found[1]["next"].count("next") == MAX_DEPTH
    (row,) = read(VALUE, CHAIN, chain(MAX_DEPTH), is_strict=True)
    assert row == {"v": 1}


@pytest.mark.parametrize("reader", [CHAIN, VALUE])
@pytest.mark.parametrize("body", [chain(400), chain(2_000), b"\2" * 50_000, b"\2" * 1_000_001])
def test_records_nested_too_deep_are_bad(reader: Any, body: bytes) -> None:
    assert [row and row["v"] for row in read(reader, CHAIN, chain(1), body, chain(0))] == [1, None, 1]
    with pytest.raises(ReadError, match=f"records are nested deeper than {MAX_DEPTH}"):
        read(reader, CHAIN, body, is_strict=True)


@pytest.mark.parametrize("depth", [100, 240, 400, 100_000])
def test_a_deep_tree_is_read_or_bad(depth: int) -> None:
    """Lists between the records may reach Python's own limit first."""
    found = read(TREE, TREE, b"\2" * depth + b"\0" * (depth + 1), b"\0")
    assert (found[0] is not None, found[1]) == (depth == 100, {"c": []})


def test_levels_of_a_type_that_is_used_twice_keep_their_names() -> None:
    leaf = {"type": "record", "name": "L", "fields": [{"name": "x", "type": ["null", "int"]}]}
    writer = of(a=leaf, b={"type": "array", "items": "L"}, c="L")
    assert read(writer, writer, b"\2\2\2\2\4\0\0") == [{"a": {"x": 1}, "b": [{"x": 2}], "c": {"x": None}}]


@pytest.mark.parametrize(
    "items", ["null", EMPTY, {"type": "fixed", "name": "F", "size": 0}, of(a="null", b=EMPTY) | {"name": "I"}]
)
def test_items_without_bytes_are_bounded(items: Any) -> None:
    registered = of(v="int", a={"type": "array", "items": items})
    bodies = [b"\2" + (varint(count) if count else b"") + b"\0" for count in (0, 3, MAX_EMPTY_ITEMS, 2**40, 3)]
    for reader in (registered, of(v="int")):
        found = read(reader, registered, *bodies)
        assert [row and row["v"] for row in found] == [1, 1, 1, None, 1]
    found = read(registered, registered, *bodies)
    assert [row and len(row["a"]) for row in found] == [0, 3, MAX_EMPTY_ITEMS, None, 3]
    with pytest.raises(ReadError, match=f"more than {MAX_EMPTY_ITEMS} items of an array have no bytes"):
        read(registered, registered, bodies[3], is_strict=True)


@pytest.mark.parametrize("depth", [11, 60])
def test_a_value_of_many_values_without_bytes_is_bad(depth: int) -> None:
    """Of 60 records that each have two fields of the next one, no byte would be read for years."""
    doubled: Any = EMPTY
    for number in range(depth):
        fields = [{"name": "a", "type": doubled}, {"name": "b", "type": doubled["name"]}]
        doubled = {"type": "record", "name": f"D{number}", "fields": fields}
    registered = of(v="int", x=["null", doubled])
    assert read(of(v="int"), registered, b"\2\2") == [None]
    with pytest.raises(ReadError, match=f"a record has more than {MAX_EMPTY_ITEMS} values without bytes"):
        read(of(v="int"), registered, b"\2\2", is_strict=True)


@pytest.mark.parametrize("depth", [15, 50])
def test_a_resolution_of_too_many_steps_makes_bad_records(depth: int) -> None:
    """In the place of each record the writer has two that fit: names match without their namespaces."""
    reader: Any = of(v="int")
    writer: Any = [reader | {"namespace": "a"}]
    for number in range(depth):
        reader = {"type": "record", "name": f"N{number}", "fields": [{"name": "x", "type": reader}]}
        names = [f"{one['namespace']}.{one['name']}" for one in writer]
        first, second = (
            {"type": "record", "name": f"N{number}", "namespace": space, "fields": [{"name": "x", "type": kind}]}
            for space, kind in (("a", writer), ("b", names))
        )
        writer = [first, second]
    assert read(reader, writer, b"\0") == [None]
    with pytest.raises(ReadError, match=f"takes more than {MAX_STEPS} steps"):
        read(reader, writer, b"\0", is_strict=True)


def test_many_records_that_refer_to_each_other_take_no_minutes() -> None:
    defined: set[int] = set()
    count = 60

    def node(number: int) -> Any:
        """Return a record that refers to all of them, or its name if it is defined already."""
        name = f"N{number}"
        if number in defined:
            return name
        defined.add(number)
        fields = [{"name": f"f{other}", "type": ["null", node(other)]} for other in range(count)]
        return {"type": "record", "name": name, "fields": fields}

    registered = of(v="int", x=["null", node(0)])
    began_s = time.process_time()
    nulls = b"\0" * count
    inner = b"\2\2" + nulls + b"\0" * (count - 1)
    assert read(of(v="int"), registered, b"\2\0", b"\4" + inner) == [{"v": 1}, {"v": 2}]
    assert time.process_time() - began_s < 10


def test_a_boolean_that_is_neither_0_nor_1_is_true() -> None:
    registered = of(v="boolean")
    assert read(registered, registered, b"\0", b"\1", b"\2", b"\xff") == [{"v": n > 0} for n in range(4)]


def test_items_without_bytes_by_name() -> None:
    registered = of(e=EMPTY, a={"type": "array", "items": "E"})
    assert read(registered, registered, b"\4\0", varint(2**40) + b"\0") == [{"e": {}, "a": [{}, {}]}, None]


def test_an_int_of_a_text_has_32_bits() -> None:
    for kind in ("int", {"type": "int", "logicalType": "date"}):
        registered = json.loads(json.dumps(CHAIN))
        registered["fields"][0]["type"] = kind
        bodies = [b"\2\2" + varint(number) + b"\0" for number in (2**31 - 1, -(2**31), 2**31, 2**40)]
        assert [row is not None for row in read(registered, registered, *bodies)] == [True, True, False, False]
