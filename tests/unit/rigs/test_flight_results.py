"""Merging, percentiles and the checks of the demo, on literal tables."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from scripts.demo.flight_results import (
    Delays,
    GroupKey,
    Route,
    aggregate_rows,
    by_route,
    check_aggregates,
    check_offsets,
    check_rows,
    merge_all,
)

EDGES = (0, 10)
UA, AA = GroupKey("UA", "EWR", 5), GroupKey("AA", "JFK", 6)


def flights(*rows: tuple[str, str, int, int | None]) -> pa.Table:
    carrier, origin, hour, delay = zip(*rows, strict=True)
    return pa.table({"carrier": carrier, "origin": origin, "hour": hour, "dep_delay": pa.array(delay, pa.int64())})


def delays_of(*delays: int | None) -> Delays:
    return aggregate_rows(flights(*(("UA", "EWR", 5, delay) for delay in delays)), EDGES)[UA]


def test_a_value_on_an_edge_is_in_the_bucket_below() -> None:
    assert delays_of(-3, 0, 1, 10, 11).histogram == (2, 2, 1)


def test_a_cancelled_flight_is_counted_and_has_no_delay() -> None:
    assert delays_of(None, 20) == Delays(2, 1, 1, 20, 20, 20, (0, 0, 1))
    assert delays_of(None) == Delays(1, 0, 0, 0, None, None, (0, 0, 0))
    assert delays_of(None).mean is None
    assert delays_of(None).percentile(0.5, EDGES) is None


@pytest.mark.parametrize("cut", range(6))
def test_merging_parts_gives_the_whole(cut: int) -> None:
    delays = [None, -5, 0, 7, 30]
    whole = delays_of(*delays)
    parts = [delays_of(*part) for part in (delays[:cut], delays[cut:]) if part]
    assert merge_all([(UA, part) for part in parts]) == {UA: whole}


def test_merging_keeps_groups_apart_and_routes_add_up_hours() -> None:
    late = GroupKey("UA", "EWR", 23)
    merged = merge_all([(UA, delays_of(1)), (AA, delays_of(2)), (late, delays_of(3)), (UA, delays_of(4))])
    assert merged[UA] == delays_of(1, 4)
    assert by_route(merged) == {Route("UA", "EWR"): delays_of(1, 3, 4), Route("AA", "JFK"): delays_of(2)}


@pytest.mark.parametrize(
    ("delays", "fraction", "expected"),
    [
        ((5,), 0.5, 5.0),  # both ends of the bucket are cut to what was seen
        ((2, 4, 6, 8), 0.5, 5.0),  # half of the bucket from 2 to 8
        ((-10, -10, 5, 20), 0.5, 0.0),  # the end of the first bucket
        ((-10, -10, 5, 20), 1.0, 20.0),
        ((20, 40), 0.5, 30.0),  # the last bucket ends at the greatest value
    ],
)
def test_percentile_is_linear_inside_a_bucket(delays: tuple[int, ...], fraction: float, expected: float) -> None:
    assert delays_of(*delays).percentile(fraction, EDGES) == expected


def rows(*pairs: tuple[int, int]) -> pa.Table:
    partition, offset = zip(*pairs, strict=True)
    return pa.table({"partition": partition, "offset": offset})


@pytest.mark.parametrize(
    ("got", "ok", "detail"),
    [
        (rows((0, 0), (0, 1), (1, 0)), True, "0 missing, 0 doubled, 0 unknown"),
        (rows((0, 0), (1, 0)), False, "1 missing, 0 doubled, 0 unknown"),
        (rows((0, 0), (0, 1), (0, 1), (1, 0)), False, "0 missing, 1 doubled, 0 unknown"),
        (rows((0, 0), (0, 0), (1, 0)), False, "1 missing, 1 doubled, 0 unknown"),
        (rows((0, 0), (0, 1), (1, 0), (1, 1)), False, "0 missing, 0 doubled, 1 unknown"),
        (rows((0, 0), (0, 1), (1, 0), (2, 0)), False, "0 missing, 0 doubled, 1 unknown"),
    ],
)
def test_lost_and_doubled_records_are_counted(got: pa.Table, ok: bool, detail: str) -> None:
    check = check_offsets(got, {0: 2, 1: 1, 3: 0})
    assert check.ok is ok
    assert detail in check.detail


def input_flight(**changes: Any) -> pa.Table:
    hour = datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
    flight = {"carrier": "UA", "flight": 1545, "dep_delay": None, "minute": 15, "time_hour": hour, **changes}
    types = {"carrier": pa.string(), "time_hour": pa.timestamp("s", "UTC")}
    return pa.table({name: pa.array([value], types.get(name, pa.int64())) for name, value in flight.items()})


def row_of(**changes: Any) -> pa.Table:
    at = datetime(2013, 1, 1, 10, 15, tzinfo=timezone.utc)
    row = {
        "timestamp": pa.array([changes.pop("timestamp", at)], pa.timestamp("us", "UTC")),
        "malformed": pa.array([changes.pop("malformed", None)], pa.string()),
    }
    flight = input_flight(**changes)
    # Spark's types are narrower than those of the input.
    narrow = {name: flight[name].cast(pa.int32()) for name in ("flight", "dep_delay", "minute")}
    return pa.table({"carrier": flight["carrier"], **narrow, "time_hour": flight["time_hour"], **row})


def test_rows_equal_the_input_also_in_another_order() -> None:
    got = pa.concat_tables([row_of(flight=2, dep_delay=7), row_of(flight=1)])
    assert check_rows(got, pa.concat_tables([input_flight(flight=1), input_flight(flight=2, dep_delay=7)])).ok


@pytest.mark.parametrize(
    "row",
    [
        row_of(dep_delay=0),
        row_of(flight=1),
        row_of(timestamp=datetime(2013, 1, 1, 10, 16, tzinfo=timezone.utc)),
        row_of(malformed="{"),
        pa.concat_tables([row_of(), row_of()]),
    ],
)
def test_a_row_that_differs_is_found(row: pa.Table) -> None:
    assert not check_rows(row, input_flight()).ok


def test_aggregates_are_compared_over_the_groups_of_both() -> None:
    wanted = {UA: delays_of(1), AA: delays_of(2)}
    assert check_aggregates(wanted, wanted, 2).ok
    check = check_aggregates({UA: delays_of(1), GroupKey("XX", "JFK", 1): delays_of(1)}, wanted, 2)
    assert not check.ok
    assert "2 wrong" in check.detail
