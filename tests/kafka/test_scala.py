"""The source from Scala: an application without a line of Python, in spark-shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .harness import Independent, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_SCRIPT = """
import org.apache.spark.sql.streaming.Trigger
val options = Map({options})
def run(): Unit = {{
  val orders = spark.readStream.format("groupkafka").options(options).load()
  orders.select("topic", "partition", "offset").writeStream.format("parquet").option("path", "{folder}/rows").
    option("checkpointLocation", "{folder}/checkpoint").trigger(Trigger.AvailableNow).start().awaitTermination()
}}
try {{
  run()
  run()
  println("batch read: " + spark.read.format("groupkafka").options(options).load().count)
  spark.readStream.format("groupkafka").options(options).option("startingoffset", "latest").load()
}} catch {{ case error: Throwable => println("failed: " + error.getMessage) }}
System.exit(0)
"""


def test_a_scala_application_reads_as_a_member_of_the_group(
    spark: SparkSession, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """Two queries one after the other with the same checkpoint, a batch read, a wrong option."""
    client.create_topic(topic, 2)
    client.produce(topic, (str(n) for n in range(100)), 2)
    given = options | {"checkpointLocation": f"{tmp_path}/checkpoint"}
    texts = ", ".join(f'"{name}" -> "{value}"' for name, value in given.items())
    # All that such an application says of Python.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment["PYSPARK_PYTHON"] = sys.executable
    script = tmp_path / "orders.scala"
    script.write_text(_SCRIPT.format(options=texts, folder=tmp_path))
    shell = Path(sys.executable).with_name("spark-shell")
    done = subprocess.run(
        [shell, "--master", "local[2]", "--conf", "spark.ui.enabled=false", "-i", script],
        env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400,
        check=False,
    )  # fmt: skip
    said = f"{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
    assert "batch read: 100" in done.stdout, said
    assert "[GROUPKAFKA.OPTION_UNKNOWN] Option 'startingoffset' is not known." in done.stdout, said
    rows = spark.read.parquet(f"{tmp_path}/rows").collect()
    assert sorted((row.topic, row.partition, row.offset) for row in rows) == sorted(client.records(topic))
    wait_for("the member to leave", lambda: client.member_count(group) == 0, 30)
    assert client.committed(group) == client.ends(topic)
