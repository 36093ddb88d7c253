"""A Spark application of the rig: it runs one streaming query at a time, as commands on standard input say.

Commands, JSON one a line:
    {"do": "start", "run", "query", "checkpoint", "life", "options", "sink", "trigger", "conf", "shuffle"}
                                                                   start a query
    {"do": "slow", "sleep_s"}                                      the next batch's sink sleeps
    {"do": "hurt", "how": "fail" | "slow", "sleep_s", "marker"}    one task of the next batch fails, or sleeps
    {"do": "stop"}                                                 query.stop()
    {"do": "exit"}                                                 stop, and end the application

`conf.json` in the folder of the first argument has {"settings": of Spark, "warm"}: on a cluster the master, and what
the application may take of it. There the sink puts a shuffle behind each batch that deals rows out by their position
(`shuffle` of a start command): records are lost and doubled if a task that Spark reruns gives another order.

`state.json` in the folder of the first argument tells how it goes: {"state": "idle" | "running" | "stopped" | "failed",
"run", "error"}. Every run of a batch that reached the sink is a file `<sink>/<life>/<batch>-<run>-<count>.json`: a
SinkBatch of history.py, without its attempt number. A restart of a query inside a running application saves the seconds
that a Spark session takes; the rig starts a new application only after a fault that ended one.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

Json = dict[str, Any]
# local[1,4]: a task that dies with its Python worker is tried again, as on a cluster.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The stack: Spark looks for an interruption in a long Python traceback with a regular expression that recurses.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss16m",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.minBatchesToRetain": "100000",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
}

_TWICE_EVERY = 3  # batches: one of so many is evaluated twice
_SCHEMA = "task int, place long, topic string, partition int, offset long, value string"
_SHUFFLED = 3  # tasks behind the shuffle


def _chosen(batch: DataFrame, hurt: Json | None, *, shuffle: bool) -> DataFrame:
    """Return what the sink records of each row, with its task and its place among the rows of all tasks."""
    task, place = F.spark_partition_id().alias("task"), F.monotonically_increasing_id().alias("place")
    chosen = batch.select(task, place, "topic", "partition", "offset", F.col("value").cast("string").alias("value"))
    if hurt is not None:
        chosen = chosen.mapInArrow(_hurting(hurt["how"], hurt["marker"], hurt["sleep_s"]), _SCHEMA)
    return chosen.repartition(_SHUFFLED) if shuffle else chosen


def _hurting(how: str, marker: str, sleep_s: float) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a step that fails, or sleeps, in the first task that gets to it, when a part of its rows is through."""

    def step(batches: Iterable[Any]) -> Iterator[Any]:
        for number, one in enumerate(batches):
            yield one
            if number == 0:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    continue
                if how == "fail":
                    raise RuntimeError("the rig lets this task fail once")
                time.sleep(sleep_s)

    return step


def _collected(chosen: DataFrame) -> list[list[Any]]:
    """Return the rows in the order in which their tasks gave them: `place` counts them task by task."""
    found = sorted(chosen.collect(), key=lambda row: row["place"])
    return [[row["task"], row["topic"], row["partition"], row["offset"], row["value"]] for row in found]


class QueryApp:
    """The application: one session, at most one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._commands: queue.Queue[Json] = queue.Queue()
        self._query: StreamingQuery | None = None
        self._run = 0
        self._count = 0
        self._slow_s = 0.0
        self._hurt: Json | None = None
        self._spark = self._session()

    def _session(self) -> SparkSession:
        conf = json.loads((self._folder / "conf.json").read_text())
        builder = SparkSession.builder.appName(self._folder.name)
        settings = {"spark.master": "local[1,4]"} | SETTINGS | {"spark.local.dir": str(self._folder / "local")}
        for key, value in (settings | conf["settings"]).items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        if conf["warm"]:
            # A first job takes seconds (classes, Python daemon): a spare application has that behind it.
            spark.range(1).mapInArrow(lambda batches: batches, "id long").select(F.spark_partition_id()).collect()
        return spark

    def _tell(self, state: str, error: str = "") -> None:
        scratch = self._folder / "state.json.new"
        scratch.write_text(json.dumps({"state": state, "run": self._run, "error": error}))
        scratch.replace(self._folder / "state.json")

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put({"do": "exit"})

    def serve(self) -> None:
        """Carry out commands until `exit`, or until the JVM is gone."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._tell("idle")
        while True:
            try:
                command = self._commands.get(timeout=0.05)
            except queue.Empty:
                self._look()
                continue
            if command["do"] == "exit":
                self._stop()
                self._spark.stop()
                return
            self._carry_out(command)

    def _carry_out(self, command: Json) -> None:
        if command["do"] == "start":
            self._start(command)
        elif command["do"] == "slow":
            self._slow_s = float(command["sleep_s"])
        elif command["do"] == "hurt":
            self._hurt = command
        elif command["do"] == "stop":
            self._stop()

    def _look(self) -> None:
        if self._query is not None and not self._query.isActive:
            failure = self._query.exception()
            self._query = None
            self._tell("failed", str(failure))

    def _start(self, command: Json) -> None:
        self._run = command["run"]
        self._slow_s, self._hurt = 0.0, None
        for key, value in command["conf"].items():
            self._spark.conf.set(key, value)
        reader = self._spark.readStream.format("groupkafka").options(**command["options"])
        writer = reader.load().writeStream.foreachBatch(self._sink(command))
        writer = writer.option("checkpointLocation", command["checkpoint"])
        try:
            self._query = writer.trigger(processingTime=command["trigger"]).start()
        except Exception as error:  # noqa: BLE001  (told to the rig, which decides)
            self._tell("failed", str(error))
        else:
            self._tell("running")

    def _sink(self, command: Json) -> Callable[[DataFrame, int], None]:
        folder = Path(command["sink"]) / command["life"]
        folder.mkdir(parents=True, exist_ok=True)
        run = command["run"]

        def write(batch: DataFrame, number: int) -> None:
            started_at = time.time()
            hurt, self._hurt = self._hurt, None
            chosen = _chosen(batch, hurt, shuffle=command["shuffle"])
            rows = _collected(chosen)
            # As when Spark reruns tasks: the same plan must give the same rows in the same order.
            again = _collected(chosen) if number % _TWICE_EVERY == 0 else None
            slow_s, self._slow_s = self._slow_s, 0.0
            time.sleep(slow_s)
            self._count += 1
            target = folder / f"{number}-{run}-{self._count}.json"
            scratch = target.with_suffix(".new")
            content = {"query": command["query"], "checkpoint": command["life"], "batch": number}
            content |= {"started_at": started_at, "rows": rows, "at": time.time(), "again": again}
            scratch.write_text(json.dumps(content, separators=(",", ":")))
            scratch.rename(target)

        return write

    def _stop(self) -> None:
        query, self._query = self._query, None
        if query is not None:
            query.stop()
            self._tell("stopped")


def main(folder: Path) -> None:
    """Run the application; without its JVM it ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        QueryApp(folder).serve()
    except BaseException as error:  # noqa: BLE001  (a lost JVM shows as any of a dozen errors)
        print(f"ended by {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
