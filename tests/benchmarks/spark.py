"""The Spark sessions of the benchmark, and queries in them that read a topic with one source or the other."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests import checkout
from tests.benchmarks.bare import bare_stream
from tests.benchmarks.records import BenchError, Content, produce, producer, values_of
from tests.benchmarks.report import BARE, OURS, PEER
from tests.steps import say

TIMEOUT_S = 300.0
# The project's own settings.
DEFAULTS = checkout.ROOT / "conf" / "spark-defaults.conf"
_PAUSE_S = 0.005
SHORT_WAIT = {"kafka.fetch.max.wait.ms": "10"}  # an option of Spark's own source; 500 by default


def spark_defaults(path: Path) -> dict[str, str]:
    """Return the settings of a Spark properties file: a key, white space, a value."""
    lines = (line.strip() for line in path.read_text().splitlines()) if path.exists() else ()
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


@contextmanager
def spark_session(jars: Sequence[Path], folder: Path, cores: int = 2) -> Iterator[SparkSession]:
    """A session with the project's own settings, and the peer's jars."""
    settings = spark_defaults(DEFAULTS) | {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.sql.shuffle.partitions": "2",  # for the aggregation: a few rows, on two cores
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("groupkafka-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def jvm_pid(spark: SparkSession) -> int:
    """Return the driver's JVM, which is also the only executor."""
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


@dataclass(slots=True)
class Bed:
    """Where cases run. `options` are added to those of each source."""

    spark: SparkSession
    bootstrap_servers: str
    jars: Sequence[Path]
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    warm: set[tuple[str, bool]] = field(default_factory=set)  # sources, each with a sink that it has run with
    _topics: list[tuple[Content, str]] = field(default_factory=list)

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 5})

    def create_topic(self, partitions: int) -> str:
        """Return a new, empty topic."""
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        admin = self._admin()
        admin.create_topics([NewTopic(topic, partitions, config={"retention.ms": "-1"})])[topic].result(TIMEOUT_S)
        return topic

    def topic_of(self, content: Content) -> str:
        """Return a topic with these records, of which both sources have read the same.

        Only two are kept, the newest ones: of the one before an idle consumer may still fetch. Raises `BenchError`.
        """
        if self._topics and self._topics[-1][0] == content:
            return self._topics[-1][1]
        if len(self._topics) > 1:
            _, topic = self._topics.pop(0)
            admin = self._admin()  # a client that nothing holds is closed before it has the answer
            admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        topic = self.create_topic(content.partitions)
        produce(producer(self.bootstrap_servers, content.compression), topic, content, values_of(content))
        check_same_records(self, topic, content.records)
        self._topics.append((content, topic))
        return topic

    def stream_options(self, source: str, topic: str, checkpoint: Path, **more: str) -> dict[str, str]:
        """The options to read a topic from its beginning; `more` are options that both sources know."""
        options = {"kafka.bootstrap.servers": self.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        if source == OURS:
            options |= {"kafka.group.id": f"bench-{uuid.uuid4().hex[:8]}", "checkpointLocation": str(checkpoint)}
        return options | more | dict(self.options.get(source, {}))

    def stream(self, source: str, topic: str, checkpoint: Path, **more: str) -> DataFrame:
        """A topic from its beginning; `more` are options that both sources know, or those of the bare source."""
        if source == BARE:
            return bare_stream(self.spark, more | dict(self.options.get(source, {})))
        options = self.stream_options(source, topic, checkpoint, **more)
        return self.spark.readStream.format(source).options(**options).load()


def wait_for(what: str, done: Callable[[], bool], query: StreamingQuery) -> None:
    """Raises `BenchError` when the query fails first, or after the time limit."""
    deadline = time.monotonic() + TIMEOUT_S
    while not done():
        error = query.exception()
        if error is not None:
            raise BenchError(f"the query failed while waiting for {what}: {str(error).splitlines()[0]}")
        if time.monotonic() > deadline:
            raise BenchError(f"waited {TIMEOUT_S:.0f} s for {what}; last progress: {query.lastProgress}")
        time.sleep(_PAUSE_S)


@contextmanager
def running(bed: Bed, source: str, topic: str, **more: str) -> Iterator[StreamingQuery]:
    """A query from a topic's beginning into the sink that drops all, with a checkpoint of its own."""
    with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
        checkpoint = Path(folder) / "checkpoint"
        writer = bed.stream(source, topic, checkpoint, **more).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            yield query
        finally:
            query.stop()


def with_rows(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """Return the progress of the batches that read something."""
    return [one for one in query.recentProgress if one.numInputRows]


def run_available_now(writer: DataStreamWriter, checkpoint: Path) -> list[StreamingQueryProgress]:
    """Run a query to its end and return its batches' progress."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        wait_for("a query with Trigger.AvailableNow to end", lambda: not query.isActive, query)
        error = query.exception()
        if error is not None:
            raise BenchError(f"the query failed: {str(error).splitlines()[0]}")
        return with_rows(query)
    finally:
        query.stop()


def counted_by_key(stream: DataFrame) -> DataFrame:
    """An aggregation that looks at every record and costs little by itself: 16 keys, with a count and a sum each."""
    return stream.groupBy((F.col("offset") % 16).alias("key")).agg(F.count("*"), F.sum(F.length("value")))


def read_all(
    bed: Bed, source: str, topic: str, records: int, *, more: Mapping[str, str] | None = None, aggregated: bool = False
) -> tuple[list[StreamingQueryProgress], float]:
    """Read a topic into the sink that drops all. Return the batches' progress, and the milliseconds of it all.

    Raises `BenchError` unless as many records were read as there are.
    """
    with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
        checkpoint = Path(folder) / "checkpoint"
        started = time.monotonic()
        stream = bed.stream(source, topic, checkpoint, **(more or {}))
        if aggregated:
            writer = counted_by_key(stream).writeStream.format("noop").outputMode("update")
        else:
            writer = stream.writeStream.format("noop")
        progress = run_available_now(writer, checkpoint)
        wall_ms = (time.monotonic() - started) * 1000
    rows = sum(one.numInputRows for one in progress)
    if rows != records:
        raise BenchError(f"{source} read {rows} of {records} records")
    return progress, wall_ms


def check_same_records(bed: Bed, topic: str, records: int) -> None:
    """Raise `BenchError` unless both sources read the same rows, and as many as were written."""
    sums = {source: _checksum(bed, source, topic) for source in (OURS, PEER)}
    if sums[OURS] != sums[PEER] or sums[OURS][0] != records:
        raise BenchError(f"the sources read different rows of {records}: {sums}")
    say(f"    both sources read the same {records:,} rows")


def _checksum(bed: Bed, source: str, topic: str) -> tuple[int, int, int]:
    total = [0, 0, 0]
    columns = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")

    def add(batch: DataFrame, _number: int) -> None:
        sums = (F.count("*"), F.sum("offset"), F.sum(F.xxhash64(*columns).bitwiseAND(0xFFFFFFFF)))
        row = batch.agg(*sums).collect()[0]
        for index in range(3):
            total[index] += row[index] or 0

    with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
        checkpoint = Path(folder) / "checkpoint"
        stream = bed.stream(source, topic, checkpoint, **(SHORT_WAIT if source == PEER else {}))
        run_available_now(stream.writeStream.foreachBatch(add), checkpoint)
    return total[0], total[1], total[2]
