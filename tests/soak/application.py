"""A Spark application of the soak: one query over a pattern, which writes down what each completed batch has read.

Reads its settings as JSON from the first argument. A line on standard input stops the query ("stop"), starts it again
("start") or ends the application ("exit"); so does the end of standard input. Each batch appends a line to the file
`read`: {"batch": number, "topics": {topic: records}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery


def session(name: str) -> SparkSession:
    """Return a small local session."""
    builder = SparkSession.builder.master("local[1]").appName(name)
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "600m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.ui.retainedExecutions": "1",
        "spark.python.unix.domain.socket.enabled": "true",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def start(spark: SparkSession, settings: dict[str, Any]) -> StreamingQuery:
    """Start the query, from where its checkpoint is."""
    out = Path(settings["read"])

    def write(batch: DataFrame, number: int) -> None:
        line = {
            "batch": number,
            "topics": {row["topic"]: row["count"] for row in batch.groupBy("topic").count().collect()},
        }
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    rows = spark.readStream.format("groupkafka").options(**settings["options"]).load()
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", settings["checkpoint"])
    return writer.trigger(processingTime="1 second").start()


def main(settings: dict[str, Any]) -> int:
    """Serve the commands on standard input."""
    spark = session(settings["name"])
    query = start(spark, settings)
    print("started", flush=True)
    for line in sys.stdin:
        command = line.strip()
        if query.exception() is not None:
            break
        if command == "stop":
            query.stop()
        elif command == "start":
            query = start(spark, settings)
        elif command == "exit":
            break
    failure = query.exception()
    query.stop()
    spark.stop()
    if failure is not None:
        Path(settings["failure"]).write_text(str(failure))
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
