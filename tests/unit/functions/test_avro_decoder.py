"""Records in the wire format: versions, bad records and what they spare, without Spark."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_groupsource.errors import OptionError, ReadError
from spark_groupsource.functions.avro_decoder import BadRecord, schema_texts
from spark_groupsource.functions.avro_schema import parsed

from .avro_records import decoded, decoder, plain, record

MS, US = {"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}


def of(*fields: tuple[Any, ...], name: str = "R", **more: Any) -> dict[str, Any]:
    """Return a record's schema."""
    found = [dict(zip(("name", "type", "default"), item, strict=False)) for item in fields]
    return {"type": "record", "name": name, "fields": found, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    """Return a decimal in bytes."""
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@settings(deadline=None, max_examples=30)
@given(st.integers(-(2**31), 2**31 - 1))
def test_a_date_is_read_as_what_the_reader_has(days: int) -> None:
    assert decoded(DATE, "int", days) == decoded("int", DATE, days) == decoded("long", DATE, days) == [days]
    assert decoded(MS, "int", days) == [days * 1000]
    micros = days * 86_400_000_000
    assert decoded(MS, DATE, days, is_strict=False) == [micros if abs(micros) < 2**63 else None]


@pytest.mark.parametrize(
    ("writer", "value", "reader"),
    [
        (MS, 2**62, MS), ("bytes", b"\x7f" * 5, decimal(4, 0)), ("bytes", b"\x7f" * 40, decimal(38, 0)),
        (decimal(4, 2), b"\1", decimal(4, 0)), ("bytes", b"", decimal(4, 0)), ("bytes", b"\xff", "string"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", {"type": "enum", "name": "E", "symbols": ["A"]}),
        (["null", "int"], (0, None), "int"), (["string", "int"], (0, "x"), "int"),
    ],
)  # fmt: skip
def test_one_bad_value_spares_the_records_around_it(writer: Any, value: Any, reader: Any) -> None:
    """Also one deep inside: in a list of a map of a record."""

    def wrap(kind: Any) -> dict[str, Any]:
        inner = {"type": "map", "values": of(("v", kind), name="I")}
        return of(("id", "int"), ("l", {"type": "array", "items": inner}))

    records = [record(1, wrap(writer), {"id": n, "l": [{"k": {"v": value}}] if n == 3 else []}) for n in range(8)]
    found = plain(decoder(wrap(reader), wrap(writer)).decode(pa.array(records, pa.binary())))
    assert [row and row["id"] for row in found] == [0, 1, 2, None, 4, 5, 6, 7]
    with pytest.raises(ReadError, match="AVRO_RECORD_INVALID"):
        decoder(wrap(reader), wrap(writer), is_strict=True).decode(pa.array(records, pa.binary()))


def test_a_record_that_ends_in_the_next_one_is_found() -> None:
    """Many records are read in one call: bytes that one leaves and the next lacks must not cancel out."""
    writer = of(("a", "string"), ("b", "string"))
    one, two = (record(1, writer, {"a": text, "b": text}) for text in ("xy", "zz"))
    for cut in range(1, 4):
        moved = [one, one + two[5 : 5 + cut], two[:5] + two[5 + cut :], two]
        found = plain(decoder(writer, writer).decode(pa.array(moved, pa.binary())))
        assert found == [{"a": "xy", "b": "xy"}, None, None, {"a": "zz", "b": "zz"}]


def test_versions_in_one_batch_keep_their_units_and_rows() -> None:
    writers = [of(("at", MS)), of(("at", US)), of(("at", "long")), of(("other", "int"))]
    reader = of(("at", US, 7))
    records = [record(n + 1, writer, {"at": 5, "other": 1}) for n, writer in enumerate(writers)]
    found = decoder(reader, *writers).decode(pa.array([*records, None, *records[::-1]], pa.binary()))
    micros = [5000, 5, 5, 7]
    assert [row and row["at"] for row in plain(found)] == [*micros, None, *micros[::-1]]


def test_null_in_a_union_is_a_null_and_members_are_counted_without_it() -> None:
    union = ["int", "null", "string", of(("x", "int"), name="X")]
    assert decoded(union, union, (0, 1), (1, None), (2, "s"), (3, {"x": 2})) == [
        {"member0": 1, "member1": None, "member2": None}, None,
        {"member0": None, "member1": "s", "member2": None}, {"member0": None, "member1": None, "member2": {"x": 2}},
    ]  # fmt: skip


def test_int_and_long_in_a_union_of_more_are_distinguished() -> None:
    union = ["int", "long", "string"]
    found = decoded(union, union, (0, 5), (1, 5))
    assert [[name for name, item in row.items() if item is not None] for row in found] == [["member0"], ["member1"]]


def test_names_defined_in_another_place() -> None:
    code = {"type": "enum", "name": "n.Code", "symbols": ["A", "B"]}
    old = of(("a", code), ("b", "n.Code"))
    new = of(("b", ["null", code]), ("c", {"type": "array", "items": "n.Code"}, ["B"]), ("a", "n.Code"))
    bodies = pa.array([b"\0\0\0\0\1\0\2"], pa.binary())
    assert plain(decoder(new, old).decode(bodies)) == [{"b": "B", "c": ["B"], "a": "A"}]


def test_a_type_may_change_its_namespace_but_not_its_name() -> None:
    writer = of(("a", "int"), name="old.R")
    for name, more, found in (("new.R", {}, 1), ("S", {"aliases": ["old.R"]}, 1), ("S", {}, None)):
        (row,) = decoded(of(("a", "int"), name=name, **more), writer, {"a": 1}, is_strict=False)
        assert (row and row["a"]) == found


def test_bytes_that_nobody_reads_are_not_decoded() -> None:
    writer = of(("t", "bytes"), ("m", {"type": "map", "values": "bytes"}), ("a", "int"))
    registered = of(("t", "string"), ("m", {"type": "map", "values": "string"}), ("a", "int"))
    data = record(1, writer, {"t": b"\xff", "m": {"k": b"\xff"}, "a": 3})
    assert plain(decoder(of(("a", "int")), registered).decode(pa.array([data], pa.binary()))) == [{"a": 3}]


def test_an_enum_number_beyond_its_symbols_is_bad() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    for stored in (b"\1", b"\4"):  # -1 and 2
        assert decoder(enum, enum).decode(pa.array([b"\0\0\0\0\1" + stored], pa.binary())).to_pylist() == [None]


def test_a_default_is_wrong_only_where_it_is_used() -> None:
    reader = of(("a", "int"), ("b", "string", None))
    assert decoded(reader, reader, {"a": 1, "b": "x"}) == [{"a": 1, "b": "x"}]
    with pytest.raises(ReadError, match=r"field 'b' was not written, and its default cannot be used: None for string"):
        decoded(reader, of(("a", "int")), {"a": 1})


def test_a_decimal_default_without_bytes_is_wrong() -> None:
    with pytest.raises(ReadError, match="a default cannot be used: a decimal without bytes"):
        decoded(of(("a", "int"), ("b", decimal(4, 0), "")), of(("a", "int")), {"a": 1})


def test_a_record_without_a_usable_default_is_passed_over_by_its_own_bytes() -> None:
    """What follows it, here a record in the same map, is where the writer put it."""
    writer = {"type": "map", "values": [of(("a", "long"), name="I"), "string"]}
    reader = {"type": "map", "values": [of(("b", {"type": "array", "items": "string"}, 5), name="I"), "string"]}
    data = [record(1, writer, {"x": (0, {"a": 2**40}), "y": (1, "z")}), record(1, writer, {"y": (1, "z")})]
    found = plain(decoder(reader, writer).decode(pa.array(data, pa.binary())))
    assert found == [None, {"y": {"member0": None, "member1": "z"}}]
    with pytest.raises(ReadError, match="field 'b' was not written"):
        decoder(reader, writer, is_strict=True).decode(pa.array(data, pa.binary()))


def test_references_come_before_what_refers_to_them() -> None:
    def schema(name: str, *parts: str) -> dict[str, Any]:
        fields = [{"name": part.lower(), "type": part} for part in parts]
        references = [{"name": part, "subject": part, "version": 1} for part in parts]
        return {"schema": json.dumps({"type": "record", "name": name, "fields": fields}), "references": references}

    class Subjects:
        def by_version(self, subject: str, version: int) -> dict[str, Any]:
            return {"A": schema("A"), "B": schema("B", "A"), "C": schema("C", "A", "B")}[subject]

    texts = schema_texts(Subjects(), schema("D", "C", "B"))  # type: ignore[arg-type]
    assert [json.loads(text)["name"] for text in texts] == ["A", "B", "C", "D"]
    assert [item.type.name for item in parsed(texts).fields] == ["C", "B"]


class Subjects:
    """A registry of versions of subjects."""

    def __init__(self, **versions: dict[str, Any]) -> None:
        self.versions = versions

    def by_version(self, subject: str, version: int) -> dict[str, Any]:
        """Return a version."""
        return self.versions[f"{subject}{version}"]


def referring(schema: Any, *references: tuple[str, str, int]) -> dict[str, Any]:
    """Return a registry's answer."""
    found = [dict(zip(("name", "subject", "version"), item, strict=True)) for item in references]
    return {"schema": json.dumps(schema), "references": found}


@pytest.mark.parametrize(("order", "wanted"), [("bc", "old"), ("cb", "new")])
def test_a_references_name_has_the_schema_that_is_found_first(order: str, wanted: str) -> None:
    registry: Any = Subjects(
        b1=referring(of(("old", "int"), name="B")), b2=referring(of(("new", "int"), name="B")),
        c1=referring(of(("b", "B"), name="C"), ("B", "b", 2)),
    )  # fmt: skip
    top = referring(of(("b", "B"), ("c", "C")), *((name.upper(), name, 1) for name in order))
    found = parsed(schema_texts(registry, top))
    assert [item.name for item in found.fields[0].type.fields] == [wanted]
    assert found.fields[1].type.fields[0].type is found.fields[0].type


def test_two_names_of_one_schema_are_no_second_definition() -> None:
    registry: Any = Subjects(b1=referring(of(("x", "int"), name="B")))
    found = parsed(schema_texts(registry, referring(of(("b", "B")), ("B", "b", 1), ("also", "b", 1))))
    assert found.fields[0].type.name == "B"


MALFORMED = [5, [None], [5], ["x"], [{}], [{"name": "a", "subject": "b"}], {"name": "a"},
             [{"name": [], "subject": "b", "version": 1}], [{"name": "a", "subject": None, "version": 1}],
             [{"name": "a", "subject": "b", "version": "1"}], True]  # fmt: skip


@pytest.mark.parametrize("references", MALFORMED)
def test_malformed_references_are_a_bad_record(references: Any) -> None:
    with pytest.raises(BadRecord, match="its references are malformed"):
        schema_texts(Subjects(), {"schema": '"int"', "references": references})  # type: ignore[arg-type]


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("kind", [pa.string(), pa.int32()])
def test_a_column_of_another_type_is_an_error_and_no_bad_record(kind: pa.DataType, is_strict: bool) -> None:
    """For instance one that was cast to a string before."""
    with pytest.raises(OptionError, match=f"'column' has the value 'a column of {kind}'.*binary"):
        decoder("int", "int", is_strict=is_strict).decode(pa.array([None, 7]).cast(kind))
    assert decoder("int", "int").decode(pa.nulls(2)).to_pylist() == [None, None]


BYTES = {"type": "bytes"}


@pytest.mark.parametrize("writer", ["bytes", BYTES, decimal(20, 0)])
@pytest.mark.parametrize("data", [b"\6abc", b"hello", b"", b"\xff", b"\1"])
def test_a_record_of_the_schema_bytes_has_no_length(writer: Any, data: bytes) -> None:
    """An exception of Confluent's wire format, in all of their serializers."""
    record = b"\0\0\0\0\1" + data
    for reader in (writer, "bytes", ["null", "bytes"]):
        found = decoder(reader, writer, is_strict=reader != writer).decode(pa.array([record], pa.binary()))
        is_number = reader == decimal(20, 0)
        number = Decimal(int.from_bytes(data, "big", signed=True)) if data else None
        assert found.to_pylist() == [number if is_number else data]
    (text,) = decoder("string", writer).decode(pa.array([record], pa.binary())).to_pylist()
    assert text == (None if data == b"\xff" else data.decode())


@pytest.mark.parametrize("kind", [["null", "bytes"], {"type": "fixed", "name": "F", "size": 2}, "string"])
def test_other_records_have_avros_encoding(kind: Any) -> None:
    value = (1, b"ab") if isinstance(kind, list) else "ab" if kind == "string" else b"ab"
    assert decoded(kind, kind, value) == ["ab" if kind == "string" else b"ab"]


def test_a_malformed_schema_of_a_writer_is_a_bad_record() -> None:
    writer = {"type": "record", "name": "R", "fields": None}
    found = decoder(of(("a", "int")), writer).decode(pa.array([b"\0\0\0\0\1\2"], pa.binary()))
    assert found.to_pylist() == [None]
