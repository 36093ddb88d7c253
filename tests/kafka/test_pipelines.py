"""Spark Declarative Pipelines and SQL, as far as they work with this source (docs/how-to/sql-and-pipelines.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from .connect_server import connect_server
from .harness import Independent, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SPEC = """name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
TABLE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def orders():
    rows = spark.readStream.format("groupkafka").options(**{options!r}).load()
    return rows.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
"""


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """Return the address of a server, whose catalog outlives a run and whose tables are in the test's folder."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("grpc_status", reason="Spark Connect is not installed: pip install 'groupkafka[connect]'")
    with connect_server(tmp_path) as address:
        yield address


def run_pipeline(folder: Path, remote: str, *arguments: str) -> None:
    """Run the pipeline once, to its end."""
    run = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "--remote", remote, "run", *arguments],
        cwd=folder, check=False, env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-6000:]


def rows_of(folder: Path) -> Counter[tuple[int, int]]:
    """Return how often the table's files have each record."""
    files = (folder / "spark-warehouse" / "orders").glob("*.parquet")
    rows = (row for file in files for row in pyarrow.parquet.ParquetFile(file).read().to_pylist())
    return Counter((row["partition"], row["offset"]) for row in rows)


def test_a_streaming_table_of_a_pipeline(
    client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path, remote: str
) -> None:
    """Runs go on where the last one ended, and the group's offsets are the table's end."""
    flow = tmp_path / "storage" / "_checkpoints" / "spark_catalog" / "default" / "orders" / "orders"
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    given = options | {"checkpointLocation": str(flow)}
    (tmp_path / "transformations" / "orders.py").write_text(TABLE.format(options=given))
    client.create_topic(topic, 2)
    for done in (20, 40):
        client.produce(topic, (f"v{n}" for n in range(20)), 2)
        run_pipeline(tmp_path, remote)
        assert rows_of(tmp_path) == Counter({(n % 2, n // 2): 1 for n in range(done)})
        wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30)
    assert [entry.name for entry in flow.iterdir()] == ["0"]

    client.produce(topic, (f"v{n}" for n in range(20)), 2)
    run_pipeline(tmp_path, remote, "--full-refresh-all")
    assert (flow / "1" / "commits").exists(), "a full refresh begins a checkpoint"
    assert rows_of(tmp_path) == Counter({(n % 2, n // 2): 1 for n in range(40, 60)}), "the group's offsets stay"
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30)


def test_views_and_tables_in_sql(
    client: Independent, options: dict[str, str], topic: str, tmp_path: Path, spark: SparkSession
) -> None:
    """A view of a stream works in SQL. A table does not pass its options to a stream, which Spark decides.

    With the options at the read it works.
    """
    client.create_topic(topic, 1)
    client.produce(topic, (f"v{n}" for n in range(10)), 1)
    location = str(tmp_path / "checkpoint")
    reader = spark.readStream.format("groupkafka").options(**options | {"checkpointLocation": location})
    reader.load().createOrReplaceTempView("orders_stream")
    selected = spark.sql("select offset, cast(value as string) as value from orders_stream where offset % 2 = 0")
    writer = selected.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert {(row.offset, row.value) for row in found} == {(n, f"v{n}") for n in range(0, 10, 2)}
    wait_for("lag 0", lambda: client.lag(options["kafka.group.id"], topic) == 0, 30)

    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in reader.load().schema)
    pairs = ", ".join(f"'{name}' = '{value}'" for name, value in options.items())
    with pytest.raises(Exception, match="OPTION_UNKNOWN"):
        spark.sql(f"create table orders_inferred using groupkafka options ({pairs})")
    spark.sql(f"create table orders_table ({columns}) using groupkafka options ({pairs})")
    try:
        lost = spark.readStream.table("orders_table").writeStream.format("noop")
        query = lost.option("checkpointLocation", str(tmp_path / "lost")).trigger(availableNow=True).start()
        with pytest.raises(Exception, match="OPTION_MISSING"):
            query.awaitTermination(120)
        client.produce(topic, (f"v{n}" for n in range(10, 20)), 1)
        location = str(tmp_path / "table")
        named = spark.readStream.options(**options | {"checkpointLocation": location}).table("orders_table")
        writer = named.writeStream.format("parquet").option("path", str(tmp_path / "table-rows"))
        query = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "table-rows")).collect()
        assert {row.offset for row in found} == set(range(10, 20)), "the group has read the others"

        assert spark.sql(f"select offset from orders_table with ({pairs})").count() == 20
        client.produce(topic, (f"v{n}" for n in range(20, 30)), 1)
        rows = spark.sql(f"select offset from stream orders_table with ({pairs}, 'checkpointLocation' = '{location}')")
        writer = rows.writeStream.format("parquet").option("path", str(tmp_path / "table-rows"))
        query = writer.option("checkpointLocation", location).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        found = spark.read.parquet(str(tmp_path / "table-rows")).collect()
        assert sorted(row.offset for row in found) == list(range(10, 30))
    finally:
        spark.sql("drop table orders_table")
