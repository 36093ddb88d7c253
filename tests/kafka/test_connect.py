"""Spark Connect: the same queries, from a client that talks to a Spark server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from .harness import Independent, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_SCRIPT = Path(__file__).with_name("connect_process.py")


def test_the_same_queries_through_spark_connect(
    spark: SparkSession, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """foreachBatch with a listener, Spark's file sink, a batch read, a wrong option; what was read is read here."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("grpc_status", reason="Spark Connect is not installed: pip install 'groupkafka[connect]'")
    client.create_topic(topic, 2)
    client.produce(topic, (str(n) for n in range(100)), 2)
    settings = {"options": options | {"maxOffsetsPerTrigger": "60"}, "out": str(tmp_path), "records": 100}
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.run(
            [sys.executable, str(_SCRIPT), json.dumps(settings)],
            stdout=subprocess.PIPE, stderr=log, timeout=400, check=False, cwd=tmp_path,
        )  # fmt: skip
    said = (tmp_path / "log").read_text(errors="replace")
    assert run.returncode == 0, said[-6000:]
    result = json.loads(run.stdout.decode().splitlines()[-1])

    assert result["session"].startswith("pyspark.sql.connect"), "it was no test of Spark Connect"
    assert result["failed"] == ""
    assert (result["files"], result["batch"]) == (100, 50)
    assert "[GROUPKAFKA.OPTION_UNKNOWN] Option 'startingoffset' is not known." in result["refused"]
    rows = spark.read.parquet(str(tmp_path / "rows"))
    assert sorted((r.topic, r.partition, r.offset) for r in rows.collect()) == sorted(client.records(topic))
    assert rows.select("batch").distinct().count() >= 2
    wait_for("the members to leave", lambda: client.member_count(group) == 0, 30)
    assert client.committed(group) == client.ends(topic), "the last batch before the stop"
    lines = result["lines"]
    assert (lines[0], lines[-1]) == ("orders started", "orders ended")
    assert sum(int(line.partition(" rows=")[2].partition(" ")[0]) for line in lines[1:-1]) == 100
    assert f"lag=0 partitions={topic}[0,1]" in lines[-2]
