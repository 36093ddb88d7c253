"""Flight delays from Kafka: raw rows to Parquet, and partial aggregates that any number of members can share.

    spark-submit --properties-file conf/spark-defaults.conf jobs/flight_delays.py \
        --bootstrap-servers HOST:PORT --output DIR --checkpoint DIR

Each started copy, with its own --checkpoint, is a member of the consumer group; copies share the topic's partitions.
Settings come from conf/flight_delays.properties; arguments win over them. State does not move between members: partial
aggregates merge by adding them up. Each batch owns a directory: a batch that this query runs again leaves one result.
After a crash another member writes the records under its own name: remove duplicate rows by topic, partition, offset.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_groupsource import ProgressListener, QueryFailedError, run_until_stopped

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "conf" / "flight_delays.properties"
# The JSON object in each Kafka value. Times of flights that were cancelled are null.
FLIGHT_SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour TIMESTAMP, malformed STRING"
)
# Upper ends (inclusive) of the histogram's buckets, in minutes, narrow where most flights are. One more lies above.
HISTOGRAM_EDGES = (-15, -10, -8, -6, -5, -4, -3, -2, -1, 0, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300)
DELAYED_FROM_MINUTES = 15  # the industry's definition of a delayed flight
# Arguments, and the settings that they stand for (see conf/flight_delays.properties)
ARGUMENTS = {
    "--bootstrap-servers": "kafka.bootstrap.servers", "--group-id": "kafka.group.id", "--topic": "subscribe",
    "--output": "job.output", "--checkpoint": "job.checkpoint",
    "--trigger": "job.trigger", "--stop-when-idle": "job.stop-when-idle",
}  # fmt: skip
REQUIRED = ("kafka.bootstrap.servers", "kafka.group.id", "job.output", "job.checkpoint")


def parse_flights(records: DataFrame) -> DataFrame:
    """Return one row per Kafka record. A value that is no flight is kept as text in `malformed`, never dropped."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "malformed"}
    flight = F.from_json(F.col("value").cast("string"), FLIGHT_SCHEMA, options).alias("flight")
    return records.select("*", flight).select("topic", "partition", "offset", "timestamp", "flight.*")


def partial_aggregates(flights: DataFrame) -> DataFrame:
    """Return aggregates per carrier, origin and scheduled hour that merge by adding, or by least and greatest."""
    delay, edges = F.col("dep_delay"), HISTOGRAM_EDGES
    between = [(delay > low) & (delay <= high) for low, high in pairwise(edges)]
    buckets = [delay <= edges[0], *between, delay > edges[-1]]
    return flights.where("carrier IS NOT NULL").groupBy("carrier", "origin", "hour").agg(
        F.count(F.lit(1)).alias("flights"), F.count(delay).alias("departed"),
        F.count_if(delay >= DELAYED_FROM_MINUTES).alias("delayed"), F.sum(delay).alias("delay_sum"),
        F.min(delay).alias("delay_min"), F.max(delay).alias("delay_max"),
        F.array(*map(F.count_if, buckets)).alias("histogram"),
    )  # fmt: skip


def write_batch(records: DataFrame, output: str, name: str) -> None:
    """Write the rows and the aggregates of one batch, over whatever an earlier run of the same batch left."""
    flights = parse_flights(records).persist()  # read from Kafka once, not once for each of the two outputs
    try:
        flights.write.mode("overwrite").parquet(f"{output}/flights/batch={name}")
        partial_aggregates(flights).coalesce(1).write.mode("overwrite").parquet(f"{output}/delays/batch={name}")
    finally:
        flights.unpersist()


def read_properties(path: Path) -> dict[str, str]:
    """Return the lines key=value of a file; empty lines and lines that begin with # are skipped.

    White space at a value's end is kept for the source, as Java does: it refuses a group's name with it.
    """
    lines = [line.lstrip() for line in path.read_text(encoding="utf-8").splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#") and "=" not in line:  # the text is not shown: it may be a secret
            raise SystemExit(f"{path}, line {number}: expected key=value")
    return {key.strip(): value.strip() if key.startswith("job.") else value.lstrip() for key, _, value in pairs}


def idle_seconds(settings: dict[str, str]) -> float:
    """Return job.stop-when-idle, infinity if it is not set. Raises ValueError if it is no number of seconds."""
    seconds = float(settings.get("job.stop-when-idle") or "inf")
    if not seconds >= 0:  # NaN is not
        raise ValueError(f"{seconds} s")
    return seconds


def parse_arguments(arguments: list[str]) -> dict[str, str]:
    """Return the settings: those of the file, replaced by arguments, replaced by each --option."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="properties file (default: %(default)s)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="any setting (repeatable)")
    for flag, key in ARGUMENTS.items():
        parser.add_argument(flag, dest=key, help=f"instead of {key} in the file")
    given = vars(parser.parse_args(arguments))
    config, options = given.pop("config"), [text.partition("=") for text in given.pop("option")]
    settings = read_properties(config) if config != DEFAULT_CONFIG or config.exists() else {}
    settings |= {k: v for k, v in given.items() if v is not None} | {k: v for k, _, v in options}
    missing = [key for key in REQUIRED if not settings.get(key)]
    wrong = [f"no KEY=VALUE: {key}" for key, separator, _ in options if not separator]
    wrong += [f"unknown: {key}" for key in settings if key.startswith("job.") and key not in ARGUMENTS.values()]
    wrong += [f"missing: {', '.join(missing)}"] if missing else []
    try:
        idle_seconds(settings)
    except ValueError:
        wrong.append(f"not a number of seconds: job.stop-when-idle={settings['job.stop-when-idle']}")
    return parser.error("; ".join(wrong)) if wrong else settings


def main(settings: dict[str, str]) -> None:
    """Run until the topic is read (available-now), the job is idle for long enough, or SIGTERM or SIGINT arrives."""
    spark = SparkSession.builder.appName("flight-delays").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    if spark.sparkContext.getConf().get("spark.sql.shuffle.partitions") is None:
        # A batch's aggregates are a few hundred rows: Spark's default of 200 shuffle tasks takes longer than the rest.
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.streams.addListener(ProgressListener())
    source = {key: value for key, value in settings.items() if not key.startswith("job.")}
    # The source needs the writer's checkpoint: it sees there that a batch is complete, and that it is asked to stop.
    checkpoint = {"checkpointLocation": settings["job.checkpoint"]}
    records = spark.readStream.format("groupkafka").options(**source, **checkpoint).load()

    def write(rows: DataFrame, number: int) -> None:
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        write_batch(rows, settings["job.output"].rstrip("/"), f"{query_id}-{number}")

    every = settings.get("job.trigger", "1 second")
    trigger = {"availableNow": True} if every == "available-now" else {"processingTime": every}
    writer = records.writeStream.queryName("flight-delays").foreachBatch(write).options(**checkpoint).trigger(**trigger)
    try:
        end = run_until_stopped(writer.start(), idle_s=idle_seconds(settings))
    except QueryFailedError as error:
        sys.exit(f"flight-delays failed: {error}")
    print(f"flight-delays stopped: {end.name}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
