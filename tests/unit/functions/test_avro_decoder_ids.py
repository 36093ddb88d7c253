"""How the decoder finds the schema that a record was written with: in front of it, or in a header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from spark_groupsource.errors import ReadError
from spark_groupsource.functions.avro_decoder import Decoder, Reading
from spark_groupsource.functions.registry_options import registry_settings
from spark_groupsource.options.permissions import EVERYTHING
from tests.spark.registry import USER_INFO, SchemaRegistry, schema_registry

LONG = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]})
INT = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
TYPE = pa.struct([("n", pa.int64())])


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """Return a registry with two schemas."""
    with schema_registry() as found:
        found.register("s", LONG)
        found.register("s", INT)
        yield found


def decoder(registry: SchemaRegistry, *, is_strict: bool = True) -> Decoder:
    settings = registry_settings(registry.url, {"basic.auth.user.info": USER_INFO}, EVERYTHING)
    return Decoder(Reading(settings, (LONG,), is_strict))


def guid(registry: SchemaRegistry, number: int) -> bytes:
    return b"\1" + UUID(registry.guid(number)).bytes


def numbers(found: pa.Array) -> list[Any]:
    assert found.type == TYPE
    return [None if value is None else value["n"] for value in found.to_pylist()]


def test_all_places_in_one_array(registry: SchemaRegistry) -> None:
    first, second = guid(registry, 1), guid(registry, 2)
    records = [b"\x02", b"\0\0\0\0\1\x04", None, first + b"\x06", b"\x08", b"\x0a", b"\0\0\0\0\2\x0c"]
    ids = [first, None, first, None, second, b"\0\0\0\0\1", None]
    mine = decoder(registry)
    for _ in range(2):
        assert numbers(mine.decode(pa.array(records, pa.binary()), ids)) == [1, 2, None, 3, 4, 5, 6]
    guids = sorted(f"GET /schemas/guids/{registry.guid(number)}" for number in (1, 2))
    assert sorted(set(registry.requests)) == [*guids, "GET /schemas/ids/1", "GET /schemas/ids/2"]
    assert len(registry.requests) <= 6, "each once, by each of its places"


def test_bad_ids(registry: SchemaRegistry) -> None:
    unknown = b"\1" + bytes(16)
    records = [b"\x02", b"\x02", b"\x02", b"\1\2\3", b"\x02\x02", b"\x02"]
    ids = [unknown, b"\5", b"", None, guid(registry, 1), guid(registry, 1)]
    reasons = ["Schema not found", "has the bytes 05", "does not begin", "nor with a byte 1", ""]
    array = pa.array(records, pa.binary())
    assert numbers(decoder(registry, is_strict=False).decode(array, ids)) == [None] * 5 + [1]
    for record, header, reason in zip(records, ids, reasons, strict=False):
        with pytest.raises(ReadError, match="argument 'headers'") as raised:
            decoder(registry).decode(pa.array([record], pa.binary()), [header])
        assert reason in str(raised.value)
