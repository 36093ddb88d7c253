"""Where the id of a record's schema is, and its forms."""

from __future__ import annotations

import uuid

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    dual_schema_id_deserializer,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_groupsource.errors import OptionError
from spark_groupsource.functions.schema_ids import StoredId, header_ids, header_name, parsed_id, rows_by_id

GUID = uuid.UUID("89791762-2336-4186-9674-299b90a802e2")
IN_HEADER = b"\1" + GUID.bytes
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(*rows: list[tuple[str, bytes | None]] | None, kind: pa.DataType = HEADERS) -> pa.Array:
    return pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], kind)


@pytest.mark.parametrize("field", [MessageField.KEY, MessageField.VALUE])
def test_what_confluents_serializers_write(field: str) -> None:
    context = SerializationContext("orders", field, headers=[])
    name = header_name(is_key=field == MessageField.KEY)
    written = SchemaId("AVRO", 258, str(GUID))
    assert header_schema_id_serializer(b"record", context, written) == b"record"
    assert context.headers == [(name, IN_HEADER)]
    (header,) = header_ids(headers(context.headers), name)
    assert rows_by_id([b"record"], [header]) == {StoredId(IN_HEADER, 0): [0]}
    assert parsed_id(StoredId(IN_HEADER, 0)) == GUID
    record = prefix_schema_id_serializer(b"record", None, written)
    ((stored, _),) = rows_by_id([record], None).items()
    assert (parsed_id(stored), record[stored.size :]) == (258, b"record")


@pytest.mark.parametrize(
    ("record", "header"),
    [
        (b"record", IN_HEADER), (b"record", b"\0\0\0\1\2"), (b"\0\0\0\1\2record", None), (IN_HEADER + b"record", None),
        (b"record", IN_HEADER + b"\2\0"), (b"\0\0\0\0\7", IN_HEADER),
    ],
)  # fmt: skip
def test_ids_are_read_as_confluents_deserializer_reads_them(record: bytes, header: bytes | None) -> None:
    expected = SchemaId("AVRO")
    given = [] if header is None else [("__value_schema_id", header)]
    context = SerializationContext("orders", MessageField.VALUE, headers=given)
    rest = dual_schema_id_deserializer(record, context, expected).read()
    ((stored, _),) = rows_by_id([record], [header]).items()
    found = parsed_id(stored)
    assert (found if isinstance(found, int) else None, found if isinstance(found, uuid.UUID) else None) == (
        expected.id, expected.guid,
    )  # fmt: skip
    assert record[stored.size :] == rest


@pytest.mark.parametrize("text", [b"", b"\0\0\0\0", b"\1" + bytes(15), b"{", b"\2" + bytes(20)])
def test_what_is_no_id(text: bytes) -> None:
    for record, header in ((text, None), (b"record", text)):
        ((stored, _),) = rows_by_id([record], [header]).items()
        with pytest.raises(ValueError, match="does not begin with a zero byte"):
            parsed_id(stored)


def test_rows_by_id() -> None:
    records = [b"\0\0\0\0\1a", None, b"b", b"\0\0\0\0\1c", b"d", None]
    ids = [None, None, IN_HEADER, None, b"\0\0\0\0\1", IN_HEADER]
    assert rows_by_id(records, ids) == {
        StoredId(b"\0\0\0\0\1", 5): [0, 3], StoredId(IN_HEADER, 0): [2], StoredId(b"\0\0\0\0\1", 0): [4],
    }  # fmt: skip
    assert rows_by_id([], None) == rows_by_id([None], None) == {}


def test_the_last_header_of_a_name_counts() -> None:
    found = headers(
        [("a", b"1"), ("id", b"2"), ("id", b"3")], None, [], [("id", b"4"), ("id", None)], [("b", None), ("id", b"")]
    )
    assert header_ids(found, "id") == [b"3", None, None, None, b""]
    assert header_ids(found.slice(2, 3), "id") == [None, None, b""]
    assert header_ids(headers(), "id") == []
    assert header_ids(pa.array([None, None], HEADERS), "id") == [None, None]


def test_large_types_and_other_fields() -> None:
    item = pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])
    for kind in (pa.large_list(item), pa.list_(item)):
        assert header_ids(headers([("id", b"1")], kind=kind), "id") == [b"1"]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.list_(pa.string()), pa.list_(pa.struct([("key", pa.string())])), pa.map_("str", "binary")]
)
def test_another_column_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match=r"'headers' has the value 'a column of .*includeHeaders=true"):
        header_ids(pa.array([None], kind), "id")
