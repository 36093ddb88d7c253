"""The job's transformations and its writes on a static DataFrame, in local mode."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from jobs.flight_delays import HISTOGRAM_EDGES, parse_flights, partial_aggregates, write_batch
from scripts.demo.flight_results import aggregate_rows, merge_all, read_partials, read_rows

pytestmark = pytest.mark.spark

AT = datetime(2013, 1, 1, 10, 15, tzinfo=timezone.utc)


def flight(**changes: Any) -> str:
    """A value as scripts/demo/load_flights.py writes it."""
    return json.dumps(
        {
            **{"year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2},
            **{"arr_time": 830, "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545},
            **{"tailnum": "N14228", "origin": "EWR", "dest": "IAH", "air_time": 227, "distance": 1400},
            **{"hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z", **changes},
        }
    )


def records(spark: SparkSession, *values: str | None) -> DataFrame:
    """A batch as the source gives it."""
    rows = [
        (b"UA1545", None if value is None else bytearray(value.encode()), "flights", 0, offset, AT, 0)
        for offset, value in enumerate(values)
    ]
    schema = (
        "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
    )
    return spark.createDataFrame(rows, schema)


def test_a_value_becomes_columns(spark: SparkSession) -> None:
    got = parse_flights(records(spark, flight())).select("partition", "offset", "carrier", "dep_delay", "time_hour")
    want = spark.createDataFrame(
        [(0, 0, "UA", 2, datetime(2013, 1, 1, 10, tzinfo=timezone.utc))],
        "partition int, offset long, carrier string, dep_delay int, time_hour timestamp",
    )
    assert_df_equality(got, want)


def test_no_record_is_dropped_when_a_value_is_no_flight(spark: SparkSession) -> None:
    batch = records(spark, flight(dep_delay=None), "no json", None, flight(dep_delay="late"))
    got = parse_flights(batch).select("offset", "carrier", "dep_delay", "malformed")
    late = (3, "UA", None, flight(dep_delay="late"))
    want = spark.createDataFrame(
        [(0, "UA", None, None), (1, None, None, "no json"), (2, None, None, None), late],
        "offset long, carrier string, dep_delay int, malformed string",
    )
    assert_df_equality(got, want, ignore_row_order=True)


def test_aggregates_per_carrier_origin_and_hour(spark: SparkSession) -> None:
    values = [flight(dep_delay=delay) for delay in (None, -20, 0, 15, 400)]
    batch = parse_flights(records(spark, *values, flight(carrier="AA", dep_delay=None), "no json", None))
    want_ua, want_aa = [0] * (len(HISTOGRAM_EDGES) + 1), [0] * (len(HISTOGRAM_EDGES) + 1)
    for bucket in (0, HISTOGRAM_EDGES.index(0), HISTOGRAM_EDGES.index(15), len(HISTOGRAM_EDGES)):
        want_ua[bucket] = 1
    want = spark.createDataFrame(
        [("UA", "EWR", 5, 5, 4, 2, 395, -20, 400, want_ua), ("AA", "EWR", 5, 1, 0, 0, None, None, None, want_aa)],
        "carrier string, origin string, hour int, flights long, departed long, delayed long, delay_sum long, "
        "delay_min int, delay_max int, histogram array<long>",
    )
    assert_df_equality(partial_aggregates(batch), want, ignore_row_order=True, ignore_nullable=True)


def test_a_batch_that_runs_again_overwrites_its_own_output(spark: SparkSession, tmp_path: Path) -> None:
    output = str(tmp_path)
    write_batch(records(spark, flight(flight=1), flight(flight=2)), output, "query-0")
    write_batch(records(spark, flight(flight=3, dep_delay=None)), output, "query-1")
    # The second run of batch 0 reads less: another member has completed a part of it meanwhile.
    write_batch(records(spark, flight(flight=1)), output, "query-0")
    rows = read_rows(tmp_path)
    assert sorted(zip(rows["batch"].to_pylist(), rows["flight"].to_pylist(), strict=True)) == [
        ("query-0", 1),
        ("query-1", 3),
    ]
    merged = merge_all(read_partials(tmp_path))
    assert merged == aggregate_rows(rows, HISTOGRAM_EDGES)
