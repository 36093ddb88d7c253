"""Flight delays from Kafka: raw rows to Parquet, and partial aggregates that any number of members can share.

    spark-submit --properties-file conf/spark-defaults.conf jobs/flight_delays.py \
        --bootstrap-servers HOST:PORT --output DIR --checkpoint DIR

Each started copy is one member of the consumer group: start a second one, with its own --checkpoint, and the two
share the topic's partitions. Settings come from conf/flight_delays.properties; arguments win over them.

State does not move between members, so the query keeps none. Every batch writes what it saw, and the partial
aggregates of all batches of all members merge by adding them up.
Each batch owns a directory, named by query and batch, and overwrites it: a batch that runs twice leaves one result.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_groupsource import CleanStop, ProgressListener

log = logging.getLogger("flight_delays")
DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "conf" / "flight_delays.properties"

# The JSON object in each Kafka value. Times of flights that were cancelled are null.
FLIGHT_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
# Upper ends (inclusive) of the histogram's buckets, in minutes, narrow where most flights are. One more lies above.
HISTOGRAM_EDGES = (-15, -10, -8, -6, -5, -4, -3, -2, -1, 0, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
DELAYED_FROM_MINUTES = 15  # the industry's definition of a delayed flight

# Arguments, and the settings that they stand for; conf/flight_delays.properties says what each one means.
ARGUMENTS = {
    "--bootstrap-servers": "kafka.bootstrap.servers", "--group-id": "kafka.group.id", "--topic": "subscribe",
    "--output": "job.output", "--checkpoint": "job.checkpoint",
    "--trigger": "job.trigger", "--stop-when-idle": "job.stop-when-idle",
}  # fmt: skip
REQUIRED = ("kafka.bootstrap.servers", "kafka.group.id", "job.output", "job.checkpoint")


def parse_flights(records: DataFrame) -> DataFrame:
    """Return one row per Kafka record. A value that is no flight is kept as text in `malformed`, never dropped."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"}
    flight = F.from_json(F.col("value").cast("string"), f"{FLIGHT_SCHEMA}, malformed STRING", options)
    place = ("topic", "partition", "offset", "timestamp")
    return records.select(*place, flight.alias("flight")).select(*place, "flight.*")


def partial_aggregates(flights: DataFrame) -> DataFrame:
    """Return aggregates per carrier, origin and scheduled hour that merge by adding, or by least and greatest."""
    delay = F.col("dep_delay")
    aggregates = {
        "flights": F.count(F.lit(1)), "departed": F.count(delay), "delayed": F.count_if(delay >= DELAYED_FROM_MINUTES),
        "delay_sum": F.sum(delay), "delay_min": F.min(delay), "delay_max": F.max(delay),
        "histogram": F.array(*_histogram(delay)),
    }  # fmt: skip
    grouped = flights.where(F.col("carrier").isNotNull()).groupBy("carrier", "origin", "hour")
    return grouped.agg(*(column.alias(name) for name, column in aggregates.items()))


def _histogram(delay: Column) -> list[Column]:
    first, last = delay <= HISTOGRAM_EDGES[0], delay > HISTOGRAM_EDGES[-1]
    between = [(delay > low) & (delay <= high) for low, high in pairwise(HISTOGRAM_EDGES)]
    return [F.count_if(inside) for inside in (first, *between, last)]


def write_batch(records: DataFrame, output: str, name: str) -> None:
    """Write the rows and the aggregates of one batch, over whatever an earlier run of the same batch left."""
    flights = parse_flights(records).persist()  # read from Kafka once, not once for each of the two outputs
    try:
        flights.write.mode("overwrite").parquet(f"{output}/flights/batch={name}")
        partial_aggregates(flights).coalesce(1).write.mode("overwrite").parquet(f"{output}/delays/batch={name}")
    finally:
        flights.unpersist()


def read_properties(path: Path) -> dict[str, str]:
    """Return the lines key=value of a file; empty lines and lines that begin with # are skipped."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#") and "=" not in line:  # the text is not shown: it may be a secret
            raise SystemExit(f"{path}, line {number}: expected key=value")
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return the settings: those of the file, replaced by arguments, replaced by each --option."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="properties file (default: %(default)s)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="any setting (repeatable)")
    for flag, key in ARGUMENTS.items():
        parser.add_argument(flag, dest=key, help=f"instead of {key} in the file")
    given = vars(parser.parse_args(arguments))
    config, options = given.pop("config"), [text.partition("=") for text in given.pop("option")]
    # A copy of this file alone, without the default configuration, can run from arguments.
    settings = read_properties(config) if config != DEFAULT_CONFIG or config.exists() else {}
    settings |= {k: v for k, v in given.items() if v is not None} | {k: v for k, _, v in options}
    wrong = {
        "no KEY=VALUE": [key for key, separator, _ in options if not separator],
        "unknown": [key for key in settings if key.startswith("job.") and key not in ARGUMENTS.values()],
        "missing": [key for key in REQUIRED if not settings.get(key)],
    }
    if any(wrong.values()):
        parser.error("; ".join(f"{problem}: {', '.join(keys)}" for problem, keys in wrong.items() if keys))
    return settings


def start(spark: SparkSession, settings: dict[str, str], stop: CleanStop) -> StreamingQuery:
    """Start the query; each batch writes into a directory of its own."""
    output, checkpoint = settings["job.output"].rstrip("/"), settings["job.checkpoint"]
    source = {key: value for key, value in settings.items() if not key.startswith("job.")}
    # The source reads Spark's commit log there: it then hands over, or stops, right after a batch instead of at the
    # next trigger, and commits the last batch before a stop.
    records = spark.readStream.format("groupkafka").options(**source).option("checkpointLocation", checkpoint).load()
    write = stop.each_batch(lambda rows, number, query: write_batch(rows, output, f"{query.id}-{number}"))
    writer = records.writeStream.queryName("flight-delays").foreachBatch(write)
    interval = settings.get("job.trigger", "1 second")
    trigger = {"availableNow": True} if interval == "available-now" else {"processingTime": interval}
    return writer.option("checkpointLocation", checkpoint).trigger(**trigger).start()


def main(arguments: Sequence[str]) -> None:
    """Run until the topic is read (available-now), the job is idle for long enough, or SIGTERM or SIGINT arrives."""
    settings = parse_arguments(arguments)
    idle_s = float(settings.get("job.stop-when-idle") or "inf")
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for name in ("flight_delays", "spark_groupsource.clean_stop"):
        logging.getLogger(name).setLevel(logging.INFO)
    spark = SparkSession.builder.appName("flight-delays").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    with CleanStop().on_signals(spark) as stop:
        spark.streams.addListener(ProgressListener())
        stop.run_until_stopped(start(spark, settings, stop), idle_s)
        log.info("stopped")
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
