"""Any record of any older schema is read as Avro's rules have it, or is bad: checked against the rules, written again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, event, given, settings

from . import avro_rules
from .avro_records import decoded, decoder, plain, record
from .avro_rules import Schema
from .avro_schemas import histories


def expected(writer: Schema, reader: Schema, value: Any) -> Any:
    try:
        return avro_rules.read(writer, reader, value)
    except avro_rules.Bad:
        return None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_every_value_is_as_avros_rules_have_it(history: tuple[Schema, Schema, list[Any]]) -> None:
    writer, reader, values = history
    found = decoded(reader, writer, *values, is_strict=False)
    wanted = [expected(writer, reader, value) for value in values]
    event(f"good: {sum(value is not None for value in wanted) > 0}")
    assert repr(found) == repr(wanted)


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(histories())
def test_records_of_both_versions_keep_their_rows(history: tuple[Schema, Schema, list[Any]]) -> None:
    writer, reader, values = history
    found = decoder(writer, writer, reader)
    old = [record(1, writer, value) for value in values]
    alone = plain(found.decode(pa.array(old, pa.binary())))
    mixed = [item for value in old for item in (value, None, b"\0\0\0\0\2", value + b"x")]
    both = plain(found.decode(pa.array(mixed, pa.binary())))
    assert repr(both[::4]) == repr(alone)
    assert both[1::4] == both[3::4] == [None] * len(values)
