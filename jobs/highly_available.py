"""Counts with state, on one of two drivers: the other one waits, and takes over with the same checkpoint.

    spark-submit --properties-file conf/spark-defaults.conf jobs/highly_available.py \
        --bootstrap-servers HOST:PORT --group-id orders-per-minute --topic orders --output DIR --checkpoint DIR

Start it twice, on two machines, with the same arguments; output and checkpoint are on storage that both reach. The
query counts the records of each key per minute, into Parquet files. The log of Spark's file sink accepts each batch
once: a new owner that runs the last batch of the former one again doubles nothing, even if both write at the same time.
Read the output with Spark, which goes by this log; other readers would also see files of attempts that did not count.
"""

import argparse
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from spark_groupsource import ProgressListener, QueryFailedError, run_when_owner


def counts_per_minute(records: DataFrame, late: str) -> DataFrame:
    """Return a row per key and minute, when the minute is over. Records later than `late` are dropped.

    A record that was sent twice (same key, value and timestamp) counts once.
    """
    rows = records.select(F.col("key").cast("string").alias("key"), "value", "timestamp").withWatermark(
        "timestamp", late
    )
    distinct = rows.dropDuplicates(["key", "value", "timestamp"])
    minutes = distinct.groupBy(F.window("timestamp", "1 minute").alias("minute"), "key")
    return minutes.agg(F.count(F.lit(1)).alias("records")).select("minute.start", "key", "records")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments; `option` has those of the source that were given as KEY=VALUE."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    for name in ("bootstrap-servers", "group-id", "topic", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--lock-topic", help="an existing topic for the lock (default: --topic)")
    parser.add_argument("--late", default="1 minute", help="how late a record may be (default: %(default)s)")
    parser.add_argument("--trigger", default="1 second", help="time between two batches (default: %(default)s)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of the source (repeatable)")
    given = parser.parse_args(arguments)
    wrong = [text for text in given.option if "=" not in text]
    if wrong:
        parser.error(f"no KEY=VALUE: {', '.join(text.partition('=')[0] for text in wrong)}")
    given.option = dict(text.split("=", 1) for text in given.option)
    return given


def source_options(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the source. Each --option wins over the job's own."""
    return {
        "kafka.bootstrap.servers": given.bootstrap_servers,
        "kafka.group.id": given.group_id,
        "subscribe": given.topic,
        # A new group counts what the topic has already; the source's own default is the latest offset.
        "startingOffsets": "earliest",
        # A driver that wakes up after others took over ends its query instead of joining the group again.
        "onPartitionsLost": "fail",
        **given.option,
    }


def main(given: argparse.Namespace) -> None:
    """Wait for the lock, and run the query until SIGTERM or SIGINT arrives."""
    # Before the wait: a takeover must not wait for Spark to start.
    spark = SparkSession.builder.appName(given.group_id).config("spark.sql.session.timeZone", "UTC").getOrCreate()
    if spark.sparkContext.getConf().get("spark.sql.shuffle.partitions") is None:
        # Each of Spark's default of 200 has a store of state: on few cores the first batches take 30 to 50 s.
        spark.conf.set("spark.sql.shuffle.partitions", "8")
    spark.streams.addListener(ProgressListener())
    options = source_options(given)
    checkpoint = {"checkpointLocation": given.checkpoint}

    def start() -> StreamingQuery:
        records = spark.readStream.format("groupkafka").options(**options, **checkpoint).load()
        writer = counts_per_minute(records, given.late).writeStream.queryName(given.group_id).options(**checkpoint)
        writer = writer.format("parquet").outputMode("append").trigger(processingTime=given.trigger)
        return writer.start(given.output)

    try:
        end = run_when_owner(start, group=given.group_id, topic=given.lock_topic or given.topic, options=options)
    except QueryFailedError as error:
        sys.exit(f"{given.group_id} failed: {error}")
    print(f"{given.group_id} stopped: {end.name}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(parse_arguments(sys.argv[1:]))
