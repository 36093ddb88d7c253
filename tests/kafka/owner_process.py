"""One of several drivers of a stateful query, as tests/kafka/owner_rig.py starts them.

Reads its settings as JSON from the first argument. The query drops duplicates by id and time, and counts the ids of
windows of ten seconds. Its sink knows batch ids: a batch is one file, `<out>/batches/<number>.json`. A batch that is
written again must be the same; if not, the other one is kept as `different-<number>-<name>.json`. Each write is a line
of `<out>/ledger-<name>.jsonl`, and what the driver does a line of `<out>/events-<name>.jsonl`. While there is a file
`<out>/hold-<name>`, a batch that is written does not end; `<out>/held-<name>` has its number.

With `alone` the query runs without a lock, until it was idle for some seconds: the run to compare with.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_groupsource import run_until_stopped, run_when_owner
from tests.kafka.query_process import session

_IDLE_S = 10.0


class Driver:
    """One driver: its query, and what it notes down."""

    def __init__(self, spark: SparkSession, settings: dict[str, Any]) -> None:
        self._spark = spark
        self._settings = settings
        self._name = settings["name"]
        self._out = Path(settings["out"])
        (self._out / "batches").mkdir(parents=True, exist_ok=True)

    def note(self, event: str, **more: object) -> None:
        """Note down what the driver does."""
        self._append("events", {"event": event, "by": self._name, "at": time.time(), **more})

    def start(self) -> StreamingQuery:
        """Start the query."""
        self.note("owner")
        checkpoint = self._settings["checkpoint"]
        options = self._settings["options"] | {"checkpointLocation": checkpoint}
        records = self._spark.readStream.format("groupkafka").options(**options).load()
        parts = F.split(F.col("value").cast("string"), ",")
        rows = records.select(parts[0].alias("id"), F.timestamp_millis(parts[1].cast("long")).alias("at"))
        distinct = rows.withWatermark("at", "30 seconds").dropDuplicates(["id", "at"])
        counts = distinct.groupBy(F.window("at", "10 seconds")).agg(
            F.count(F.lit(1)).alias("n"), F.array_sort(F.collect_list("id")).alias("ids")
        )
        flat = counts.select(F.unix_millis("window.start").alias("start"), "n", "ids")
        writer = flat.writeStream.foreachBatch(self._write).option("checkpointLocation", checkpoint)
        query = writer.outputMode("append").trigger(processingTime="200 milliseconds").start()
        self.note("started")
        return query

    def _write(self, batch: DataFrame, number: int) -> None:
        rows = sorted([row.start, row.n, row.ids] for row in batch.collect())
        time.sleep(self._settings["batch_s"] / 2)
        target, text = self._out / "batches" / f"{number}.json", json.dumps(rows)
        if not target.exists():
            scratch = target.with_suffix(f".{self._name}.tmp")
            scratch.write_text(text)
            scratch.rename(target)
        elif target.read_text() != text:
            (self._out / f"different-{number}-{self._name}.json").write_text(text)
        self._append("ledger", {"batch": number, "by": self._name, "at": time.time()})
        hold = self._out / f"hold-{self._name}"
        while hold.exists():
            (self._out / f"held-{self._name}").write_text(str(number))
            time.sleep(0.02)
        time.sleep(self._settings["batch_s"] / 2)

    def _append(self, kind: str, line: dict[str, object]) -> None:
        with (self._out / f"{kind}-{self._name}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def main(settings: dict[str, Any]) -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
        # The rig starts dozens of JVMs, which live for a minute or two: nothing is compiled that does not pay.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "1",
    }
    spark = session(settings["name"], conf)
    spark.sparkContext.setLogLevel("WARN")
    driver = Driver(spark, settings)
    driver.note("ready", pid=os.getpid())
    if settings.get("alone"):
        end = run_until_stopped(driver.start(), idle_s=_IDLE_S)
    else:
        end = run_when_owner(
            driver.start, group=settings["group"], topic=settings["topic"], options=settings["options"],
            checkpoint_location=settings["checkpoint"],
        )  # fmt: skip
    driver.note("ended", how=end.name)
    print(end.name, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
