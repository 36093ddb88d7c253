"""Any record of any older schema is read as Avro's rules have it, or is bad: `avro_rules` has them a second time."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from . import avro_rules
from .avro_records import decoded, decoder, plain, record
from .avro_schemas import SchemaHistory

BLOCKS, SEEDS_PER_BLOCK = 4, 100


def expected(history: SchemaHistory, value: Any) -> Any:
    """Return a value as the rules have it, None if its record is bad."""
    try:
        return avro_rules.read(history.writer, history.reader, value)
    except avro_rules.Bad:
        return None


def check_values(seed: int) -> int:
    """Compare the values of one pair of schemas; return how many were good."""
    history = SchemaHistory(seed)
    found = decoded(history.reader, history.writer, *history.values, is_strict=False)
    wanted = [expected(history, value) for value in history.values]
    shown = f"seed {seed}\n{json.dumps(history.writer)}\n{json.dumps(history.reader)}\n{history.values}"
    assert repr(found) == repr(wanted), shown
    return sum(value is not None for value in wanted)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_every_value_is_as_avros_rules_have_it(block: int) -> None:
    good = [check_values(block * SEEDS_PER_BLOCK + number) for number in range(SEEDS_PER_BLOCK)]
    assert sum(map(bool, good)) > SEEDS_PER_BLOCK / 3, "most pairs fit each other"


def test_records_of_both_versions_keep_their_rows() -> None:
    for seed in range(50):
        history = SchemaHistory(seed)
        found = decoder(history.writer, history.writer, history.reader)
        old = [record(1, history.writer, value) for value in history.values]
        alone = plain(found.decode(pa.array(old, pa.binary())))
        mixed = [item for value in old for item in (value, None, b"\0\0\0\0\2", value + b"x")]
        both = plain(found.decode(pa.array(mixed, pa.binary())))
        assert repr(both[::4]) == repr(alone)
        assert both[1::4] == [None] * len(old)
        assert both[3::4] == [None] * len(old)
