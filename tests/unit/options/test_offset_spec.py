"""What startingOffsets and its relatives say."""

from __future__ import annotations

import pytest

from spark_groupsource.model.offsets import OFFSET_MAX, PARTITION_MAX
from spark_groupsource.options.offset_spec import AtEdge, AtGroup, AtOffset, AtTime, Starting, start_of, times_of
from spark_groupsource.options.values import moment
from tests.unit.fakes import tp

P0, P1, P2 = tp(0), tp(1), tp(2)


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("earliest", Starting(AtEdge())),
        (" LATEST ", Starting(AtEdge(latest=True))),
        ("group:billing", Starting(AtGroup("billing"))),
        (" Group:billing EU", Starting(AtGroup("billing EU"))),
        (
            '{"orders":{"0":23,"1":-1,"2":-2}}',
            Starting(None, {P0: AtOffset(23), P1: AtEdge(latest=True), P2: AtEdge()}),
        ),
        ('{"orders":{"0":0},"refunds":{"0":1}}', Starting(None, {P0: AtOffset(0), tp(0, "refunds"): AtOffset(1)})),
        (f'{{"orders":{{"{PARTITION_MAX}":{OFFSET_MAX}}}}}', Starting(None, {tp(PARTITION_MAX): AtOffset(OFFSET_MAX)})),
        ('{"orders":{"0":1},"refunds":"latest"}', Starting(None, {P0: AtOffset(1)}, topics={"refunds": AtEdge(True)})),
    ],
)
def test_starting_offsets(value: str, start: object) -> None:
    assert start_of(value) == start


@pytest.mark.parametrize(
    "value",
    [
        "",
        "newest",
        "group:",
        "group: ",
        "group: billing",
        "group:billing ",
        "group:billing\n",
        "group:bill\0ing",
        '{" orders":"latest"}',
        '{"orders ":"earliest","refunds":{"0":1}}',
        '{"orders ":{"0":1}}',
        "{}",
        "[]",
        "7",
        "null",
        '{"orders":{"0":-3}}',
        '{"orders":{"0":1.0}}',
        '{"orders":{"0":true}}',
        '{"orders":{"0":"1"}}',
        '{"orders":{"00":1}}',
        '{"orders":{"-1":1}}',
        '{"orders":{"x":1}}',
        '{"orders":[0]}',
        '{"orders":"newest"}',
        '{"or ders":{"0":1}}',
        '{"orders":{"0":1,"0":2}}',
        f'{{"orders":{{"0":{OFFSET_MAX + 1}}}}}',
        f'{{"orders":{{"{PARTITION_MAX + 1}":1}}}}',
        '{"orders":{"0":' + "9" * 5_000 + "}}",
        "[" * 100_000,
        '{"orders":{"0":NaN}}',
    ],
)
def test_what_starting_offsets_may_not_be(value: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        start_of(value)


def test_times() -> None:
    found = times_of('{"orders":{"0":0,"1":1700000000000}}', moment)
    assert found == Starting(None, {P0: AtTime(0), P1: AtTime(1_700_000_000_000)})
    assert times_of(f'{{"orders":{{"0":{OFFSET_MAX}}}}}', moment).each == {P0: AtTime(OFFSET_MAX)}, (
        "how Spark's users say: never"
    )
    for wrong in ('{"orders":{"0":-1}}', f'{{"orders":{{"0":{OFFSET_MAX + 1}}}}}', '{"orders":"latest"}', "latest"):
        with pytest.raises(ValueError, match=r".*"):
            times_of(wrong, moment)


def test_one_position_for_all_or_one_for_each() -> None:
    assert Starting().of(P0) == AtEdge(latest=True)
    each = Starting(None, {P0: AtOffset(3)})
    assert (each.of(P0), each.of(P1), each.is_earliest) == (AtOffset(3), None, False)
    assert Starting(AtEdge()).is_earliest
    assert (Starting(text="x" * 300).shown, Starting(text="x" * 301).shown) == ("x" * 300, "x" * 300 + "...")
    topics = Starting(None, {P0: AtOffset(3)}, topics={"orders": AtEdge()})
    assert (topics.of(P0), topics.of(P1), topics.of(tp(0, "refunds"))) == (AtOffset(3), AtEdge(), None)
