"""Queries through Spark Connect, in a process of their own: it allows no ordinary Spark session beside its own.

Reads its settings as JSON from the first argument, {"options": of the source, "out": folder, "records": how many}, and
prints what it has seen as JSON, as its last line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from spark_groupsource import ProgressListener

_PATIENCE_S = 120.0


def session() -> SparkSession:
    """Start a server on a free port of loopback (PySpark's own switch for tests), and return a session of it."""
    os.environ["SPARK_TESTING"] = "1"
    builder = SparkSession.builder.remote("local[2]")
    for key, value in {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "800m",
        "spark.ui.enabled": "false",
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    """Raise `TimeoutError` when it does not come true."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {_PATIENCE_S:.0f} s for {what}")
        time.sleep(0.05)


def streamed(spark: SparkSession, options: dict[str, str], out: Path, records: int) -> dict[str, Any]:
    """Run a query with foreachBatch until it has all records, and stop it; return what its listener showed."""
    rows, checkpoint, lines = str(out / "rows"), str(out / "checkpoint"), list[str]()

    def write(batch: DataFrame, number: int) -> None:
        batch.selectExpr(f"{number} as batch", "*").write.mode("append").parquet(rows)

    listener = ProgressListener(lines.append)
    spark.streams.addListener(listener)
    stream = spark.readStream.format("groupkafka").options(**options, checkpointLocation=checkpoint).load()
    writer = stream.writeStream.queryName("orders").foreachBatch(write).option("checkpointLocation", checkpoint)
    query = writer.start()
    wait_for("all records", lambda: sum(one.numInputRows for one in query.recentProgress) >= records)
    query.stop()
    wait_for("the listener", lambda: any("ended" in line for line in lines))
    spark.streams.removeListener(listener)
    return {"lines": lines, "failed": str(query.exception() or "")}


def to_files(spark: SparkSession, options: dict[str, str], out: Path) -> int:
    """Run a query with Spark's file sink to its end; return how many rows it has written."""
    checkpoint, rows = str(out / "files-checkpoint"), str(out / "files")
    given = options | {"kafka.group.id": f"{options['kafka.group.id']}-files", "checkpointLocation": checkpoint}
    stream = spark.readStream.format("groupkafka").options(**given).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start(rows)
    if not query.awaitTermination(int(_PATIENCE_S)):
        raise TimeoutError("the query did not end")
    return spark.read.parquet(rows).count()


def refused(spark: SparkSession, options: dict[str, str]) -> str:
    """Return the error of a misspelt option: it comes when the frame is looked at, not when it is made."""
    frame = spark.readStream.format("groupkafka").options(**options, startingOffset="latest").load()
    try:
        return f"no error, but {frame.schema}"
    except AnalysisException as error:
        return str(error)


def main(settings: dict[str, Any]) -> None:
    """Run all, and print the result."""
    out, options = Path(settings["out"]), settings["options"]
    spark = session()
    result = streamed(spark, options, out, settings["records"])
    result["files"] = to_files(spark, options, out)
    read = {key: options[key] for key in ("kafka.bootstrap.servers", "subscribe")}
    result["batch"] = spark.read.format("groupkafka").options(**read).load().where("partition = 1").count()
    result["refused"] = refused(spark, options)
    result["session"] = type(spark).__module__
    spark.stop()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
