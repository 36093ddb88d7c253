"""A Spark application that runs queries as commands on its standard input say: several at once, each in a session.

Commands, JSON one a line:
    {"do": "start", "name", "out", "checkpoint", "options", "trigger", "conf", "where", "gate", "fails", "sink",
     "distinct"}
    {"do": "stop", "name"}                                         query.stop()
    {"do": "drain", "name", "out"}                                 drain(query); `<out>/drained` gets the result
    {"do": "batch", "out", "options"}                              a batch read; `<out>/batch.json` gets its records

Every batch is a file `<out>/<batch>-<attempt>.json` as those of tests/kafka/query_process.py. While there is no file
at `gate`, a batch does not end; while there is one at `fails`, it fails. With the `sink` "arrow" (Spark 4.1 or newer)
arrow_sink.py writes the files, without both. `<out>/ended` appears with the end of a query: its error, or nothing. The
application ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from spark_groupsource import ProgressListener, drain
from tests.kafka.query_process import hold, session

Json = dict[str, Any]


def put(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text)
    scratch.rename(path)


def writer_of(command: Json) -> Callable[[DataFrame, int], None]:
    """Return the sink of a query."""
    out = Path(command["out"])

    def write(batch: DataFrame, number: int) -> None:
        if "fails" in command and Path(command["fails"]).exists():
            raise RuntimeError("this batch is to fail")
        rows = [[r.topic, r.partition, r.offset, (r.value or b"").decode()] for r in batch.collect()]
        if "gate" in command:
            hold(command["gate"])
        attempt = len(list(out.glob(f"{number}-*.json")))
        put(out / f"{number}-{attempt}.json", json.dumps({"batch": number, "rows": rows, "at": time.time()}))

    return write


def sink_of(spark: SparkSession, frame: DataFrame, command: Json) -> DataStreamWriter:
    """Return the frame's writer into the sink of a query."""
    if command.get("sink") != "arrow":
        return frame.writeStream.foreachBatch(writer_of(command))
    from tests.versions.arrow_sink import ArrowFiles  # Spark 4.0 has no such sinks

    spark.dataSource.register(ArrowFiles)
    # Spark looks for sinks in Python in the active session, which a thread does not have before its first frame.
    spark.createDataFrame([], "number INT")
    return frame.writeStream.format("arrowfiles").option("out", command["out"])


def run(spark: SparkSession, command: Json, queries: dict[str, StreamingQuery]) -> None:
    """Run a query to its end."""
    out = Path(command["out"])
    try:
        for key, value in command.get("conf", {}).items():
            spark.conf.set(key, value)
        if command.get("listen"):
            spark.streams.addListener(ProgressListener(lambda line: print(line, file=sys.stderr, flush=True)))
        frame = spark.readStream.format("groupkafka").options(**command["options"]).load()
        frame = frame.where(command.get("where", "true"))
        if command.get("distinct"):
            frame = frame.dropDuplicates(["value"])
        writer = sink_of(spark, frame, command).option("checkpointLocation", command["checkpoint"])
        trigger = command.get("trigger", {"processingTime": "200 milliseconds"})
        query = queries[command["name"]] = writer.trigger(**trigger).start()
        (out / "started").touch()
        while query.isActive:
            time.sleep(0.05)
        put(out / "ended", str(query.exception() or ""))
    except Exception as error:  # noqa: BLE001 - for the test
        put(out / "ended", f"{type(error).__name__}: {error}")


def read(spark: SparkSession, command: Json) -> None:
    """Read a range once, and once more with a filter."""
    frame = spark.read.format("groupkafka").options(**command["options"]).load()
    found = [[row.topic, row.partition, row.offset] for row in frame.collect()]
    filtered = frame.where("partition = 1").count()
    put(Path(command["out"]) / "batch.json", json.dumps([spark.version, filtered, found]))


def main() -> None:
    """Carry out commands until standard input ends."""
    spark = session("versions", {"spark.driver.memory": "900m"})
    spark.sparkContext.setLogLevel("WARN")
    queries: dict[str, StreamingQuery] = {}
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "start":
            arguments = (spark.newSession(), command, queries)
            threading.Thread(target=run, args=arguments, daemon=True).start()
        elif command["do"] == "drain":
            put(Path(command["out"]) / "drained", drain(queries[command["name"]]).name)
        elif command["do"] == "stop":
            queries[command["name"]].stop()
        else:
            read(spark, command)
    spark.stop()


if __name__ == "__main__":
    main()
