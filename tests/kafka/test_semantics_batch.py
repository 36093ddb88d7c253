"""What users of Spark's own Kafka source know `spark.read` to do, on a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from .local_query import TIME_MS, Filler, Streams, classic, fill

__all__ = ["classic", "fill"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
PREDICATES = (
    "topic <=> null or topic in ('{a}', 'x', null) and partition = 1",
    "partition in (0, null) and offset not in (1, 2)",
    "not (topic = '{a}')",
    "topic = '{b}' or offset > 17",
    "partition = 0 and partition = 1",
    "partition = 99999999999",
    "offset <=> 3",
    "offset between 3 and 5 and upper(topic) != 'X'",
    "offset > 9223372036854775806 or offset < -5",
    "offset >= -5 and offset <= 9223372036854775807 and cast(offset as int) % 7 = 0",
    "offset > 5 and offset < 3",
    "timestamp = timestamp_millis({t} + 5000)",
    "timestamp >= timestamp_micros(({t} + 5000) * 1000 + 1)",
    "timestamp > timestamp_micros(({t} + 5000) * 1000 - 1) and partition = 0",
    "timestamp <= timestamp_millis({t} + 2000)",
    "timestamp > timestamp'9999-12-31 23:59:59.999999'",
    "timestamp > timestamp'0001-01-01' and timestampType = 0 and key is null",
    "value = X'35' and offset = 2 or partition = 0 and timestamp > timestamp_millis({t} + 17000)",
)


def places(frame: DataFrame) -> list[tuple[str, int, int]]:
    return sorted(
        (row.topic, row.partition, row.offset) for row in frame.select("topic", "partition", "offset").collect()
    )


def test_filters_find_what_they_say_of_one_frame(spark: SparkSession, classic: Streams, fill: Filler) -> None:
    """Also where Spark may push filters down: it would keep what it planned for the first of them."""
    first, second = fill.topic("a", 40), fill.topic("b", 10)
    odd = [{"value": b"odd", "partition": 0}] * 4
    fill.produce(first, odd, [TIME_MS + 1, TIME_MS + 999, TIME_MS + 50_000, TIME_MS + 10])
    rows = classic.table(subscribe=f"{first},{second}").localCheckpoint()
    found, expected = {}, {}
    spark.conf.set(PUSHDOWN, "true")
    try:
        frame = classic.table(subscribe=f"{first},{second}")
        for predicate in PREDICATES:
            condition = predicate.format(a=first, b=second, t=TIME_MS)
            found[predicate] = places(frame.where(condition))
            expected[predicate] = places(rows.where(condition))
        assert places(frame) == places(rows)
        both = frame.where("partition = 0").union(frame.where("partition = 1"))
        assert places(both) == places(rows)
    finally:
        spark.conf.unset(PUSHDOWN)
    assert found == expected
    assert sum(map(bool, expected.values())) > 10


def test_a_frame_is_used_many_times(classic: Streams, fill: Filler) -> None:
    """Joined, cached, counted, pruned and split."""
    topic = fill.topic("a", 20)
    frame = classic.table(subscribe=topic)
    latter = classic.table(subscribe=topic, startingOffsets=json.dumps({topic: {"0": 5, "1": 5}}))
    assert frame.join(latter.select("partition", "offset"), ["partition", "offset"]).count() == 10
    assert frame.union(frame).count() == 40
    cached = frame.cache()
    assert (cached.count(), cached.where("partition = 1").count()) == (20, 10)
    cached.unpersist()
    assert frame.selectExpr("sum(offset)").collect()[0][0] == 90
    for number in (3, 7, 50):
        split = classic.table(subscribe=topic, minPartitions=str(number))
        assert (split.count(), split.rdd.getNumPartitions()) == (20, min(number, 20))
    assert classic.table(subscribe=topic, maxRecordsPerPartition="3").rdd.getNumPartitions() == 8


def test_transactions(classic: Streams, fill: Filler) -> None:
    """Offsets without records are no loss, and nobody waits for them."""
    topic = fill.topic("a", 0, 1)
    fill.client.transact(topic, *((map(str, range(5)), commits) for commits in (True, False)))
    committed: dict[str, Any] = {"subscribe": topic, "kafka__isolation__level": "read_committed"}
    assert [offset for _, _, offset in places(classic.table(**committed))] == [0, 1, 2, 3, 4]
    assert classic.table(**committed, startingOffsets=json.dumps({topic: {"0": 6}})).count() == 0
    assert classic.table(subscribe=topic).count() == 10
