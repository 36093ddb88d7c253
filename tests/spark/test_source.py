"""The source in local mode on the embedded broker, as users test their own pipelines (M32)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from chispa import assert_df_equality
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_groupsource import ProgressListener
from spark_groupsource.embedded import EmbeddedKafka

pytestmark = pytest.mark.spark

Stream = Callable[..., DataFrame]


def wait_for(what: str, condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Wait until a condition is true; fail saying what was waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.05)


def committed(broker: EmbeddedKafka, group: str, topic: str, partitions: int) -> list[int]:
    """Return the group's offsets, read by a client that shares no code with the source."""
    client = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    try:
        return [p.offset for p in client.committed([TopicPartition(topic, n) for n in range(partitions)], timeout=60)]
    finally:
        client.close()


@pytest.fixture
def stream(spark: SparkSession, embedded_kafka: EmbeddedKafka, tmp_path: Path) -> Stream:
    """Return a streaming DataFrame on topic `orders` of the embedded broker."""

    def make(**options: str) -> DataFrame:
        base = {
            "kafka.bootstrap.servers": embedded_kafka.bootstrap_servers,
            "kafka.group.id": "orders-pipeline",
            # The embedded broker's classic groups rebalance slowly once they had a member.
            "kafka.group.protocol": "consumer",
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "checkpointLocation": str(tmp_path / "checkpoint"),
        }
        return spark.readStream.format("groupkafka").options(**base | options).load()

    return make


def run_available_now(frame: DataFrame, tmp_path: Path, name: str) -> None:
    """Write what is there now to an in-memory table."""
    writer = (
        frame.writeStream.format("memory").queryName(name).option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    assert writer.trigger(availableNow=True).start().awaitTermination(120)


def test_rows_schema_and_group_offsets(
    spark: SparkSession, embedded_kafka: EmbeddedKafka, stream: Stream, tmp_path: Path
) -> None:
    """`format("groupkafka")` without a register call; chispa compares the rows; the group's offsets follow."""
    embedded_kafka.create_topic("orders", 2)
    embedded_kafka.produce("orders", [(b"k1", b"v1", 0), (b"k2", b"v2", 1), (None, b"v3", 1)])
    run_available_now(stream(), tmp_path, "rows")
    found = spark.sql("select cast(key as string) k, cast(value as string) v, topic, partition, offset from rows")
    wanted = spark.createDataFrame(
        [("k1", "v1", "orders", 0, 0), ("k2", "v2", "orders", 1, 0), (None, "v3", "orders", 1, 1)],
        "k string, v string, topic string, partition int, offset long",
    )
    assert_df_equality(found, wanted, ignore_row_order=True, ignore_nullable=True)
    assert spark.table("rows").schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    wait_for("the commits", lambda: committed(embedded_kafka, "orders-pipeline", "orders", 2) == [1, 2])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_p4_an_idle_query_has_no_lag_and_progress_shows_it(
    protocol: str, spark: SparkSession, embedded_kafka: EmbeddedKafka, stream: Stream, tmp_path: Path
) -> None:
    """One trigger after its last batch the group's offsets are at the log's end; the listener says so."""
    embedded_kafka.create_topic("orders", 2)
    embedded_kafka.produce("orders", [(None, b"v", n % 2) for n in range(100)])
    lines: list[str] = []
    listener = ProgressListener(lines.append)
    spark.streams.addListener(listener)
    frame = stream(**{"kafka.group.protocol": protocol, "maxOffsetsPerTrigger": "60"})
    writer = frame.writeStream.format("memory").queryName(f"idle_{protocol}")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for("100 rows", lambda: spark.table(f"idle_{protocol}").count() == 100)
        wait_for("no lag", lambda: committed(embedded_kafka, "orders-pipeline", "orders", 2) == [50, 50])
        wait_for("a line with no lag", lambda: any("lag=0 partitions=orders[0,1]" in line for line in lines))
        assert any("lag=40" in line and "rows=60" in line for line in lines), lines
        report = json.loads(query.lastProgress.json)["sources"][0]
        assert json.loads(json.dumps(report["latestOffset"])) == {"orders": {"0": 50, "1": 50}}
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def test_p8_lost_records_fail_the_query_or_are_skipped(
    embedded_kafka: EmbeddedKafka, stream: Stream, tmp_path: Path
) -> None:
    """Records 10..59 are deleted before they were read: an error that names them, or a skip when that is wanted."""
    read: list[int] = []

    def run(frame: DataFrame) -> None:
        writer = frame.writeStream.foreachBatch(lambda batch, _: read.extend(r.offset for r in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    embedded_kafka.create_topic("orders", 1)
    embedded_kafka.produce("orders", [b"v"] * 10)
    run(stream())
    embedded_kafka.produce("orders", [b"w"] * 90)
    embedded_kafka.delete_records("orders", 0, 60)
    with pytest.raises(PySparkException, match=r"DATA_LOST.*orders-0 \[10, 60\)"):
        run(stream())
    assert sorted(read) == list(range(10))
    run(stream(failOnDataLoss="false"))
    assert sorted(read) == [*range(10), *range(60, 100)]
    wait_for("the commit", lambda: committed(embedded_kafka, "orders-pipeline", "orders", 1) == [100])


def test_a_batch_that_the_sink_drops_is_reported(
    spark: SparkSession, embedded_kafka: EmbeddedKafka, stream: Stream, tmp_path: Path
) -> None:
    """A folder that another checkpoint's query has written to: Spark's file sink drops the batches of a new one."""
    folder, said = str(tmp_path / "rows"), tmp_path / "events.jsonl"
    embedded_kafka.create_topic("orders", 1)
    for name, value in (("first", b"v1"), ("second", b"v2")):
        embedded_kafka.produce("orders", [(None, value, 0)])
        checkpoint = str(tmp_path / name)
        frame = stream(checkpointLocation=checkpoint, metricsPath=str(said))
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        assert writer.trigger(availableNow=True).start(folder).awaitTermination(120)
    assert [bytes(row.value) for row in spark.read.parquet(folder).collect()] == [b"v1"], "Spark drops the second one"

    def unread() -> list[object]:
        # A line may be read while it is written.
        events = map(json.loads, said.read_text().rpartition("\n")[0].splitlines())
        return [event["details"]["ranges"] for event in events if event["event"] == "unread"]

    wait_for("the event", unread)
    assert unread() == [[["orders", 0, 1, 2]]]


def test_a_schema_of_the_user_is_refused(spark: SparkSession, embedded_kafka: EmbeddedKafka) -> None:
    """As in Spark's own Kafka source, the schema is fixed."""
    embedded_kafka.create_topic("orders", 1)
    reader = spark.readStream.format("groupkafka").schema("value string")
    options = {
        "kafka.bootstrap.servers": embedded_kafka.bootstrap_servers,
        "kafka.group.id": "g",
        "subscribe": "orders",
    }
    query = reader.options(**options).load().writeStream.format("noop").start()
    with pytest.raises(PySparkException, match=r"SCHEMA_FIXED.*struct<value:string>.*key binary, value binary, topic"):
        query.awaitTermination(120)


def test_a_write_is_refused_with_the_format_that_writes(spark: SparkSession) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "orders"}
    with pytest.raises(PySparkException, match=r"WRITING_UNSUPPORTED.*format 'kafka'"):
        spark.range(1).selectExpr("'a' AS value").write.format("groupkafka").mode("append").options(**options).save()
