"""Queries on streams as users of Spark's own Kafka source write them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .harness import wait_for
from .local_query import TIME_MS, Filler, Streams, classic, fill

__all__ = ["classic", "fill"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Tables:
    """Streaming frames into tables in memory."""

    def __init__(self, spark: SparkSession, streams: Streams) -> None:
        self._spark = spark
        self._streams = streams
        self.queries: list[Any] = []

    def start(self, frame: DataFrame, **trigger: Any) -> str:
        """Start a query and return its table's name."""
        name = f"table_{uuid.uuid4().hex}"
        writer = frame.writeStream.format("memory").queryName(name)
        query = writer.option("checkpointLocation", str(self._streams.fresh())).trigger(**trigger).start()
        self.queries.append(query)
        return name

    def read(self, name: str) -> DataFrame:
        """Return the table, when its query has read all that there is."""
        next(query for query in self.queries if query.name == name).processAllAvailable()
        return self._spark.table(name)


@pytest.fixture
def tables(spark: SparkSession, classic: Streams) -> Any:
    made = Tables(spark, classic)
    yield made
    for query in made.queries:
        query.stop()


def every(seconds: float) -> dict[str, Any]:
    return {"processingTime": f"{seconds} seconds"}


def test_windows_and_joins(classic: Streams, tables: Tables, fill: Filler) -> None:
    left, right = fill.topic("a", 20), fill.topic("b", 6)

    def frame(topic: str) -> DataFrame:
        return classic.frame(classic.fresh(), subscribe=topic)

    windows = frame(left).withWatermark("timestamp", "2 seconds").groupBy(F.window("timestamp", "5 seconds")).count()
    counted = tables.start(windows, **every(0.2))
    tables.read(counted)
    fill.produce(left, [{"value": b"later", "partition": 0}], [TIME_MS + 60_000])
    wait_for("closed windows", lambda: [row["count"] for row in tables.read(counted).collect()] == [10, 10])

    one = frame(left).selectExpr("value as a", "timestamp as ta").withWatermark("ta", "10 seconds")
    other = frame(right).selectExpr("value as b", "timestamp as tb").withWatermark("tb", "10 seconds")
    joined = tables.start(one.join(other, F.expr("a = b and ta = tb")), **every(0.2))
    assert tables.read(joined).count() == 6


def test_a_frame_used_twice_is_one_member(classic: Streams, tables: Tables, fill: Filler) -> None:
    topic = fill.topic("a", 6)
    frame = classic.frame(classic.fresh(), subscribe=topic)
    twice = tables.start(frame.union(frame), **every(0.2))
    assert {row["count"] for row in tables.read(twice).groupBy("partition", "offset").count().collect()} == {2}
    assert tables.read(twice).count() == 12


def test_continuous_processing_is_refused(classic: Streams, fill: Filler) -> None:
    topic = fill.topic("a", 2)
    place = classic.fresh()
    frame = classic.frame(place, subscribe=topic)
    continuous = (
        frame.writeStream.format("noop").option("checkpointLocation", str(place)).trigger(continuous="1 second")
    )
    with pytest.raises(PySparkException, match=r"does not support continuous processing"):
        continuous.start().awaitTermination(30)


# --- patterns


def test_which_names_match(classic: Streams, fill: Filler) -> None:
    """The whole name; internal topics never."""
    name = fill.topic("a", 1, 1).removesuffix("-a")
    fill.topic("ab", 1, 1)
    for pattern, found in (
        (f"{name}-a", ["a"]),
        (f"^{name}-(ab|a)$", ["a", "ab"]),
        (f"{name}.a.*", ["a", "ab"]),
        (f"{name}-A", []),
        (f"(?i){name.upper()}-A", ["a"]),
        (name, []),
    ):
        topics = [row.topic for row in classic.table(subscribePattern=pattern).select("topic").collect()]
        assert sorted(topics) == [f"{name}-{suffix}" for suffix in found], pattern
    internal = classic.table(subscribePattern=f"__.*|{name}-a")
    assert {row.topic for row in internal.select("topic").distinct().collect()} == {f"{name}-a"}
