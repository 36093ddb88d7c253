"""Flight delays from Kafka: raw rows to Parquet, and partial aggregates that any number of members can share.

    spark-submit --properties-file conf/spark-defaults.conf jobs/flight_delays.py \
        --bootstrap-servers HOST:PORT --output DIR --checkpoint DIR

Each started copy is one member of the consumer group: start a second one, with its own --checkpoint, and the two
share the topic's partitions. Settings come from conf/flight_delays.properties; arguments win over them.

State does not move between members, so the query keeps none. Every batch writes what it saw, and the partial
aggregates (counts, sums, extremes, histograms) of all batches of all members merge by adding them up.

foreachBatch may run a batch again after a failure. Each batch therefore owns a directory, named by query and batch,
and overwrites it: a batch that runs twice leaves one result.

SIGTERM and SIGINT, sent to this process or to spark-submit, stop the query between two batches, so the next owner of
the partitions continues exactly where this member ended.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_groupsource import ProgressListener

log = logging.getLogger("flight_delays")

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "conf" / "flight_delays.properties"

# The JSON object in each Kafka value. Times of flights that were cancelled are null.
FLIGHT_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
MALFORMED = "malformed"

# Upper ends (inclusive) of the histogram's buckets, in minutes of departure delay; one more bucket lies above the
# last. Narrow where most flights are, so that a percentile read from the histogram is off by a few minutes at most.
HISTOGRAM_EDGES = (-15, -10, -8, -6, -5, -4, -3, -2, -1, 0, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
GROUP_COLUMNS = ("carrier", "origin", "hour")
DELAYED_FROM_MINUTES = 15  # the industry's definition of a delayed flight

STOP_TIMEOUT_S = 60.0  # what a batch in flight gets to end after SIGTERM; then it is cancelled, and repeated by others


def parse_flights(records: DataFrame) -> DataFrame:
    """One row per Kafka record. A value that is no flight is kept as text in `malformed`, never dropped."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}
    flight = F.from_json(F.col("value").cast("string"), f"{FLIGHT_SCHEMA}, {MALFORMED} STRING", options)
    return records.select("topic", "partition", "offset", "timestamp", flight.alias("flight")).select(
        "topic", "partition", "offset", "timestamp", "flight.*"
    )


def partial_aggregates(flights: DataFrame) -> DataFrame:
    """Aggregates per carrier, origin and scheduled hour that merge by adding, or by least and greatest."""
    delay = F.col("dep_delay")
    return (
        flights.where(F.col("carrier").isNotNull())
        .groupBy(*GROUP_COLUMNS)
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count(delay).alias("departed"),
            F.count_if(delay >= DELAYED_FROM_MINUTES).alias("delayed"),
            F.sum(delay).alias("delay_sum"),
            F.min(delay).alias("delay_min"),
            F.max(delay).alias("delay_max"),
            F.array(*_histogram(delay)).alias("histogram"),
        )
    )


def _histogram(delay: Column) -> list[Column]:
    lower = (None, *HISTOGRAM_EDGES)
    upper = (*HISTOGRAM_EDGES, None)
    counts = []
    for low, high in zip(lower, upper, strict=True):
        inside = delay.isNotNull()
        if low is not None:
            inside = inside & (delay > low)
        if high is not None:
            inside = inside & (delay <= high)
        counts.append(F.count_if(inside))
    return counts


def write_batch(records: DataFrame, output: str, name: str) -> None:
    """Write the rows and the aggregates of one batch, over whatever an earlier run of the same batch left."""
    # Read from Kafka once, not once for each of the two outputs.
    flights = parse_flights(records).persist()
    try:
        flights.write.mode("overwrite").parquet(f"{output}/flights/batch={name}")
        partials = partial_aggregates(flights).coalesce(1)
        partials.write.mode("overwrite").parquet(f"{output}/delays/batch={name}")
    finally:
        flights.unpersist()


class StoppedBeforeBatch(Exception):
    """Ends a batch that Spark began after the stop was asked for; nothing of it was written."""


class CleanStop:
    """Stops a query between two batches.

    query.stop() alone cancels the batch in flight. What that batch had written stays, its offsets are not
    committed, and the next owner of the partitions writes the same records again. So the batch in flight is waited
    for, until Spark has recorded it, and no further one may write.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._finished = threading.Event()
        self._held = threading.Event()
        self._jvm_waits = threading.Event()
        self._hooks: Any = None
        self._hook: Any = None
        self._running = False
        self._written: int | None = None
        self.last_batch_at = time.monotonic()

    def ask(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Only sets a flag: a signal handler may interrupt any line of this program."""
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    def batch_starts(self, query: StreamingQuery) -> None:
        """Stream thread. Lets the batch run, or holds it until the query is stopped and then ends it."""
        self._running = True
        if not self.asked:
            return
        self._held.set()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        raise StoppedBeforeBatch

    def batch_ended(self, batch_id: int) -> None:
        """Stream thread."""
        self._written = batch_id
        self._running = False
        self.last_batch_at = time.monotonic()

    def _recorded(self, query: StreamingQuery) -> bool:
        """True when every batch that wrote something is in Spark's commit log."""
        if self._held.is_set():
            return True  # Spark begins a batch only after it has recorded the one before
        if self._running:
            return False
        progress = query.lastProgress
        return self._written is None or (progress is not None and progress["batchId"] >= self._written)

    def stop(self, query: StreamingQuery) -> None:
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while query.isActive and not self._recorded(query):
            if time.monotonic() > deadline:
                log.warning("the batch in flight did not end within %d s and is cancelled", STOP_TIMEOUT_S)
                break
            time.sleep(0.05)
        query.stop()

    def finished(self) -> None:
        """Main thread, last: nothing is left to stop."""
        self._finished.set()
        if self._jvm_waits.is_set():
            time.sleep(0.2)  # the answer to the JVM's call of run() leaves on another thread
        elif self._hook is not None:
            # It would call a process that has ended. (Refused if the JVM begins to end right now.)
            with contextlib.suppress(Py4JError):
                self._hooks.removeShutdownHook(self._hook)

    def run(self) -> None:
        """Called by the JVM, for which this object is a java.lang.Runnable, when it is about to end."""
        self._jvm_waits.set()
        self.ask()
        self._finished.wait(STOP_TIMEOUT_S + 10)

    class Java:
        implements = ("java.lang.Runnable",)

    def install(self, spark: SparkSession) -> None:
        """SIGTERM and SIGINT of this process, and the end of the JVM, ask for the stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.ask)
        # spark-submit is a JVM that started this process, and a resource manager signals that JVM alone. Its
        # shutdown hooks run by priority: 100 is before Spark's own, which would end the SparkContext under the query.
        context = spark.sparkContext
        ensure_callback_server_started(context._gateway)
        jvm: Any = context._jvm
        seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._hook = jvm.java.lang.Thread(self)  # never started: an object of the JVM, so that it can be removed
        self._hooks.addShutdownHook(self._hook, 100, int(STOP_TIMEOUT_S) + 15, seconds)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the job needs; `source` goes to the source as it is."""

    output: str
    checkpoint: str
    trigger: str
    stop_when_idle_s: float | None = None
    source: Mapping[str, str] = field(default_factory=dict)

    def trigger_options(self) -> dict[str, Any]:
        return {"availableNow": True} if self.trigger == "available-now" else {"processingTime": self.trigger}


def read_properties(path: Path) -> dict[str, str]:
    """Lines of key=value; empty lines and lines that begin with # are skipped."""
    properties: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        key, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"{path}, line {number}: expected key=value")
        properties[key.strip()] = value.strip()
    return properties


def parse_arguments(arguments: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(
        prog="flight_delays.py", description=(__doc__ or "").split("\n", 1)[0], allow_abbrev=False
    )
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="properties file (default: %(default)s)")
    named = {
        "--bootstrap-servers": ("kafka.bootstrap.servers", "host:port, comma separated"),
        "--group-id": ("kafka.group.id", "the consumer group that this job is a member of"),
        "--topic": ("subscribe", "topic, or topics, comma separated"),
        "--output": ("job.output", "directory for the results, shared by all members of the group"),
        "--checkpoint": ("job.checkpoint", "directory of this member's checkpoint; never shared"),
        "--trigger": ("job.trigger", "'1 second', '1 minute' ..., or available-now: read what is there, then end"),
        "--stop-when-idle": ("job.stop-when-idle", "end after so many seconds without a batch"),
    }
    for flag, (key, text) in named.items():
        parser.add_argument(flag, dest=key, help=text)
    parser.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the source (repeatable)"
    )
    given = vars(parser.parse_args(arguments))
    config: Path = given["config"]
    # A copy of this file alone, without the default configuration, can run from arguments.
    properties = read_properties(config) if config != DEFAULT_CONFIG or config.exists() else {}
    properties.update({key: given[key] for key, _ in named.values() if given[key] is not None})
    for option in given["option"]:
        key, separator, value = option.partition("=")
        if not separator:
            parser.error(f"--option {option}: expected KEY=VALUE")
        properties[key] = value
    try:
        return settings_from(properties)
    except ValueError as error:
        parser.error(str(error))


def settings_from(properties: Mapping[str, str]) -> Settings:
    """Keys that begin with `job.` are the job's; all others are options of the source."""
    job = {key.removeprefix("job."): value for key, value in properties.items() if key.startswith("job.")}
    source = {key: value for key, value in properties.items() if not key.startswith("job.")}
    unknown = sorted(set(job) - {"output", "checkpoint", "trigger", "stop-when-idle"})
    if unknown:
        raise ValueError(f"unknown job settings: {', '.join(unknown)}")
    missing = [key for key in ("kafka.bootstrap.servers", "kafka.group.id") if not source.get(key)]
    missing += [f"job.{key}" for key in ("output", "checkpoint") if not job.get(key)]
    if missing:
        raise ValueError(f"missing settings: {', '.join(missing)}")
    idle = job.get("stop-when-idle")
    return Settings(
        output=job["output"].rstrip("/"),
        checkpoint=job["checkpoint"],
        trigger=job.get("trigger", "1 second"),
        stop_when_idle_s=float(idle) if idle else None,
        source=source,
    )


def start(spark: SparkSession, settings: Settings, stop: CleanStop) -> StreamingQuery:
    started = threading.Event()
    queries: list[StreamingQuery] = []

    def on_batch(records: DataFrame, batch_id: int) -> None:
        # The first batch can begin before start() has returned the query.
        if not started.wait(STOP_TIMEOUT_S):
            raise TimeoutError("waited for the streaming query to start")
        query = queries[0]
        stop.batch_starts(query)
        write_batch(records, settings.output, f"{query.id}-{batch_id}")
        stop.batch_ended(batch_id)

    records = (
        spark.readStream.format("groupkafka")
        .options(**settings.source)
        # The source reads Spark's commit log there, so that it hands over, or stops, right after a batch instead of
        # at the next trigger, and commits the last batch before a stop.
        .option("checkpointLocation", settings.checkpoint)
        .load()
    )
    query = (
        records.writeStream.foreachBatch(on_batch)
        .queryName("flight-delays")
        .option("checkpointLocation", settings.checkpoint)
        .trigger(**settings.trigger_options())
        .start()
    )
    queries.append(query)
    started.set()
    return query


def run(query: StreamingQuery, settings: Settings, stop: CleanStop) -> None:
    """Wait for the end of the query, or end it when it is asked to or idle for long enough."""
    try:
        while not query.awaitTermination(0.25):
            idle_s = time.monotonic() - stop.last_batch_at
            if settings.stop_when_idle_s is not None and idle_s > settings.stop_when_idle_s:
                log.info("no batch for %.0f s: stopping", idle_s)
                stop.ask()
            if stop.asked:
                stop.stop(query)
    except StreamingQueryException:
        # The batch that was held back counts as failed in Spark; it is no failure of the job.
        if not stop.asked:
            raise


def main(arguments: Sequence[str]) -> int:
    settings = parse_arguments(arguments)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    log.setLevel(logging.INFO)
    spark = SparkSession.builder.appName("flight-delays").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    stop = CleanStop()
    try:
        spark.streams.addListener(ProgressListener())
        stop.install(spark)
        run(start(spark, settings, stop), settings, stop)
        log.info("stopped")
        spark.stop()
    finally:
        # Last, because the JVM may be waiting for it with its own end.
        stop.finished()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
