"""Which rows of a batch read are not read at all."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from spark_groupsource.offsets import OFFSET_MAX, OffsetRange
from spark_groupsource.planning.filters import Comparison, Restriction, restrict

from .fakes import tp

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
NOON_MS = int(NOON.timestamp() * 1000)


def after(*filters: Comparison) -> Restriction:
    known = Restriction()
    for item in filters:
        found = restrict(known, item)
        assert found is not None
        known, _ = found
    return known


@pytest.mark.parametrize(
    ("kind", "column", "value", "expected", "exact"),
    [
        ("EqualTo", "topic", "orders", Restriction(topics=frozenset({"orders"})), True),
        ("In", "topic", ("a", "b", None), Restriction(topics=frozenset({"a", "b"})), True),
        ("EqualNullSafe", "partition", 3, Restriction(numbers=frozenset({3})), True),
        ("In", "partition", [1, 2], Restriction(numbers=frozenset({1, 2})), True),
        ("EqualTo", "offset", 7, Restriction(low=7, high=8), True),
        ("GreaterThan", "offset", 7, Restriction(low=8), True),
        ("GreaterThanOrEqual", "offset", 7, Restriction(low=7), True),
        ("LessThan", "offset", 7, Restriction(high=7), True),
        ("LessThanOrEqual", "offset", 7, Restriction(high=8), True),
        ("LessThan", "offset", -7, Restriction(high=0), True),
        ("GreaterThanOrEqual", "timestamp", NOON, Restriction(since_ms=NOON_MS - 1), False),
        ("IsNotNull", "offset", None, Restriction(), True),
    ],
)
def test_what_a_filter_leaves_out(kind: str, column: str, value: object, expected: Restriction, exact: bool) -> None:
    assert restrict(Restriction(), Comparison(kind, column, value)) == (expected, exact)


@pytest.mark.parametrize(
    ("kind", "column", "value"),
    [
        ("LessThan", "timestamp", NOON),  # later records may be older
        ("EqualTo", "value", b"x"),
        ("IsNotNull", "key", None),  # a key may be null
        ("IsNull", "offset", None),
        ("In", "offset", (1, 2)),
        ("Not", "topic", "orders"),
        ("EqualTo", "", "orders"),
    ],
)
def test_what_stays_with_spark(kind: str, column: str, value: object) -> None:
    assert restrict(Restriction(), Comparison(kind, column, value)) is None


def test_filters_add_up() -> None:
    known = after(
        Comparison("In", "partition", (1, 2, 3)),
        Comparison("In", "partition", (2, 3, 4)),
        Comparison("GreaterThan", "offset", 5),
        Comparison("GreaterThanOrEqual", "offset", 3),
        Comparison("LessThan", "offset", 9),
        Comparison("GreaterThan", "timestamp", NOON),
        Comparison("EqualTo", "timestamp", datetime(2020, 1, 1, tzinfo=timezone.utc)),
    )
    assert known == Restriction(None, frozenset({2, 3}), 6, 9, NOON_MS - 1)


def test_what_it_admits_and_cuts() -> None:
    known = Restriction(frozenset({"orders"}), frozenset({1}), 10, 20)
    assert [known.admits(p) for p in (tp(1), tp(0), tp(1, "refunds"))] == [True, False, False]
    assert known.clip(OffsetRange(tp(1), 5, 100)) == OffsetRange(tp(1), 10, 20)
    assert len(known.clip(OffsetRange(tp(1), 30, 100))) == 0
    assert len(known.clip(OffsetRange(tp(1), 0, 5))) == 0
    assert Restriction().clip(OffsetRange(tp(1), 5, OFFSET_MAX)) == OffsetRange(tp(1), 5, OFFSET_MAX)
