"""One query that ends by `run_until_stopped`, in a process of its own, as tests/kafka/test_clean_stop.py runs it.

Reads its settings as JSON from the first argument: `options` of the source, `out`, `checkpoint`, `sink` ("parquet" or
"foreachBatch"), `batch_s` (how long a batch takes at least), and `conf` of the session or `remote`, a Spark Connect
server. It prints how the query ended, as its last line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_groupsource import run_until_stopped

_COLUMNS = "topic string, partition int, offset bigint"


def session(settings: dict[str, Any]) -> SparkSession:
    """Return the session: a client of the server `remote`, or one with a JVM of its own."""
    if "remote" in settings:
        return SparkSession.builder.remote(settings["remote"]).getOrCreate()
    builder = SparkSession.builder.appName("stopping")
    for key, value in settings["conf"].items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def parquet(frame: DataFrame, seconds: float, out: str) -> Any:
    """Return the writer of Spark's file sink. Each task takes `seconds`."""

    def slow(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        time.sleep(seconds)
        yield from chunks

    return frame.mapInArrow(slow, _COLUMNS).writeStream.format("parquet").option("path", f"{out}/rows")


def for_each_batch(frame: DataFrame, seconds: float, out: str) -> Any:
    """Return the writer of foreachBatch: a folder per batch and run, so that a repeat is seen."""

    def write(batch: DataFrame, number: int) -> None:
        import time

        batch.write.mode("error").parquet(f"{out}/rows/batch-{number}-{time.time_ns()}")
        time.sleep(seconds)

    return frame.writeStream.foreachBatch(write)


def main(settings: dict[str, Any]) -> None:
    """Run the query until it is stopped."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session(settings)
    checkpoint = settings["checkpoint"]
    options = settings["options"] | {"checkpointLocation": checkpoint}
    frame = spark.readStream.format("groupkafka").options(**options).load().select("topic", "partition", "offset")
    made = parquet if settings["sink"] == "parquet" else for_each_batch
    writer = made(frame, settings["batch_s"], settings["out"]).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="100 milliseconds").start()
    (Path(settings["out"]) / "started").write_text(str(time.time()))
    end = run_until_stopped(query, checkpoint_location=checkpoint if "remote" in settings else None)
    print(end.name, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
