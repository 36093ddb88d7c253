"""One streaming query in a process of its own, as the tests of tests/kafka run it.

Reads its settings as JSON from the first argument. Every batch is written to `<out>/<batch>-<attempt>.json` as
{"batch": n, "rows": [[topic, partition, offset, value], ...]} before Spark records it as complete. SIGTERM stops the
query with `query.stop()`. Settings:

- `sink`: "parquet" writes `<out>/rows` with Spark's own file sink instead; other names write the Delta table at the
  path `table` (see table_sinks.py), and `<out>/written-<batch>` says that a batch is in it;
- `gate`: a path; while no file is there, a batch does not end. `<gate>.reached` says that one is held;
- `distinct`: the query has state: it writes each value once (`dropDuplicates`);
- `graceful`: SIGTERM lets the batch in flight end before the query is stopped, and the JVM ignores it, as in
  `run_until_stopped`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import LongType

from tests.kafka.table_sinks import table_writer


def session(name: str, conf: dict[str, str]) -> SparkSession:
    """Return a small local session, with `conf` on top; the tests run several processes on a small machine."""
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.pollingDelay": "50ms",
        **conf,
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _all_that_is_told(query: StreamingQuery, frame: DataFrame) -> str:
    """Return what Spark says of a query and of its source: plans and progress."""
    jvm = query._jsq
    frame.createOrReplaceTempView("source")
    described = [str(row) for row in frame.sparkSession.sql("describe extended source").collect()]
    plans = [frame._jdf.queryExecution().toString(), jvm.explainInternal(True), str(frame)]
    return "\n".join([*plans, *described, *map(str, query.recentProgress)])


def hold(gate: str) -> None:
    """Wait until there is a file at `gate`."""
    Path(f"{gate}.reached").touch()
    while not Path(gate).exists():
        time.sleep(0.02)


def parquet_writer(frame: DataFrame, out: Path, gate: str | None) -> DataStreamWriter:
    """Return a writer of Spark's file sink, whose tasks wait for the gate."""

    def held(offset: int) -> int:
        if gate is not None:
            hold(gate)
        return offset

    rows = frame.withColumn("offset", udf(held, LongType())("offset"))
    return rows.writeStream.format("parquet").option("path", str(out / "rows"))


def sink_of(settings: dict[str, Any], frame: DataFrame, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    """Return the writer that the settings ask for; `write` is the one for a batch by default."""
    kind, out, gate = settings.get("sink"), Path(settings["out"]), settings.get("gate")

    def after_write(number: int) -> None:
        (out / f"written-{number}").touch()
        time.sleep(settings.get("batch_s", 0))
        if gate is not None:
            hold(gate)

    if kind in (None, "foreachBatch"):
        return frame.writeStream.foreachBatch(write)
    if kind == "parquet":
        return parquet_writer(frame, out, gate)
    return table_writer(kind, frame, Path(settings["table"]), after_write)


def let_the_batch_end(query: StreamingQuery, checkpoint: Path) -> None:
    """Wait until all batches that Spark has planned are complete."""

    def numbers(folder: str) -> set[str]:
        return {path.name for path in (checkpoint / folder).glob("[0-9]*")}

    while query.isActive and numbers("offsets") != numbers("commits"):
        time.sleep(0.02)


def main(settings: dict[str, Any]) -> None:
    """Run the query until it ends or SIGTERM comes."""
    out = Path(settings["out"])
    gate = settings.get("gate")
    stopped = threading.Event()
    if settings.get("graceful"):
        # The JVM inherits it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    spark = session(settings["name"], settings.get("conf", {}))
    signal.signal(signal.SIGTERM, lambda _signal, _frame: stopped.set())
    spark.sparkContext.setLogLevel(settings.get("log_level", "WARN"))

    def write(batch: DataFrame, number: int) -> None:
        rows = [[r.topic, r.partition, r.offset, (r.value or b"").decode()] for r in batch.collect()]
        time.sleep(settings.get("batch_s", 0))
        if gate is not None:
            hold(gate)
        attempt = len(list(out.glob(f"{number}-*.json")))
        target = out / f"{number}-{attempt}.json"
        scratch = target.with_suffix(".tmp")
        scratch.write_text(json.dumps({"batch": number, "rows": rows, "at": time.time()}))
        scratch.rename(target)

    reader = spark.readStream.format(settings.get("format", "groupkafka")).options(**settings["options"])
    frame = reader.load().dropDuplicates(["value"]) if settings.get("distinct") else reader.load()
    writer = sink_of(settings, frame, write).option("checkpointLocation", settings["checkpoint"])
    trigger = settings.get("trigger", {"processingTime": "200 milliseconds"})
    query = writer.trigger(**trigger).start()
    (out / "started").write_text(str(os.getpid()))
    while query.isActive and not stopped.wait(0.1):
        pass
    if stopped.is_set():
        if settings.get("graceful"):
            let_the_batch_end(query, Path(settings["checkpoint"]))
        query.stop()
        (out / "stopped").write_text(str(time.time()))
    if settings.get("tell"):
        (out / "said").write_text(_all_that_is_told(query, reader.load()))
    failure = query.exception()
    if failure is not None:
        (out / "failure").write_text(str(failure))
    spark.stop()
    sys.exit(1 if failure else 0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
