"""The benchmark's cases. Each runs both sources alternately in one Spark session and returns series of milliseconds.

Every measured query has a fresh checkpoint and, for groupkafka, a fresh group. Before anything is measured a case
lets each source read once, and compares what they read: rows, offsets and the values' checksums must be equal.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench_report import OURS, PEER, Series, series_of
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafkajars import say
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

_TIMEOUT_S = 300.0
_WARM_UP_BATCHES = 5  # of each block of small batches: the first connects, the next few are slower than the rest
_PAUSE_S = 0.005


class BenchError(RuntimeError):
    """A measurement is not valid: a query failed or stalled, or the sources did not read the same."""


@dataclass(frozen=True, slots=True)
class Bed:
    """Where cases run. `options` are added to those of each source."""

    spark: SparkSession
    bootstrap_servers: str
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "linger.ms": 20,
                "batch.size": 1024 * 1024,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 512 * 1024,
                "log_level": 5,  # without a note about its queue at each end
            }
        )

    def create_topic(self, partitions: int) -> str:
        topic = f"bench-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        admin.create_topics([NewTopic(topic, partitions, config={"retention.ms": "-1"})])[topic].result(_TIMEOUT_S)
        return topic

    def stream(self, source: str, topic: str, checkpoint: Path, **more: str) -> DataFrame:
        """A topic from its beginning; `more` are options that both sources know."""
        options = {"kafka.bootstrap.servers": self.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest"}
        if source == OURS:
            options |= {"kafka.group.id": f"bench-{uuid.uuid4().hex[:8]}", "checkpointLocation": str(checkpoint)}
        options |= more | dict(self.options.get(source, {}))
        return self.spark.readStream.format(source).options(**options).load()


def alternating(runs: int) -> Iterator[tuple[int, str]]:
    """Yield (run, source) so that neither source is always the second: AB BA AB ..."""
    for run in range(runs):
        for source in (OURS, PEER) if run % 2 == 0 else (PEER, OURS):
            yield run, source


def wait_for(what: str, done: Callable[[], bool], query: StreamingQuery) -> None:
    """Raises `BenchError` when the query fails first, or after the time limit."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not done():
        error = query.exception()
        if error is not None:
            raise BenchError(f"the query failed while waiting for {what}: {error}")
        if time.monotonic() > deadline:
            raise BenchError(f"waited {_TIMEOUT_S:.0f} s for {what}; last progress: {query.lastProgress}")
        time.sleep(_PAUSE_S)


def produce(producer: Producer, topic: str, partitions: int, records: int, size: int) -> None:
    """Write records of random bytes, evenly over the partitions; returns when all are acknowledged."""
    failed: list[KafkaError] = []
    acknowledged = 0

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            failed.append(error)

    # Random, so that nothing on the way can compress it; cut out at a new place for each record.
    noise = os.urandom(size + 4096)
    shown = time.monotonic()
    for number in range(records):
        start = number % 4096
        while True:
            try:
                producer.produce(
                    topic, noise[start : start + size], partition=number % partitions, on_delivery=on_delivery
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
            if time.monotonic() - shown > 3.0:
                shown = time.monotonic()
                say(f"    produced {number:,} of {records:,} records")
    producer.flush(_TIMEOUT_S)
    if failed or acknowledged != records:
        raise BenchError(f"{acknowledged} of {records} records were acknowledged; {failed[:1]}")


@dataclass(frozen=True, slots=True)
class Throughput:
    """A topic read from its beginning to its end by Trigger.AvailableNow, into the sink that drops all."""

    records: int
    size: int
    partitions: int
    runs: int

    @property
    def name(self) -> str:
        return f"throughput, {self.records:,} x {self.size} B, {self.partitions} partitions"

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.create_topic(self.partitions)
        produce(bed.producer(), topic, self.partitions, self.records, self.size)
        check_same_records(bed, topic, self.records)
        for source in (OURS, PEER):
            self._read(bed, source, topic)
        found: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
        for run, source in alternating(self.runs):
            metrics = self._read(bed, source, topic)
            found[source].append(metrics)
            rate = self.records / metrics["addBatch"] * 1000
            say(f"    run {run + 1} of {self.runs} {source}: {metrics} ({rate:,.0f} records/s in addBatch)")
        return [one for source, runs in found.items() for one in series_of(self.name, source, runs)]

    def _read(self, bed: Bed, source: str, topic: str) -> dict[str, float]:
        with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
            checkpoint = Path(folder) / "checkpoint"
            started = time.monotonic()
            stream = bed.stream(source, topic, checkpoint)
            progress = run_available_now(stream.writeStream.format("noop"), checkpoint)
            wall_ms = (time.monotonic() - started) * 1000
        rows = sum(one.numInputRows for one in progress)
        if rows != self.records:
            raise BenchError(f"{source} read {rows} of {self.records} records")
        return {"addBatch": float(sum(one.durationMs["addBatch"] for one in progress)), "whole query": round(wall_ms)}


def run_available_now(writer: DataStreamWriter, checkpoint: Path) -> list[StreamingQueryProgress]:
    """Run a query to its end and return its batches' progress."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        wait_for("a query with Trigger.AvailableNow to end", lambda: not query.isActive, query)
        query.awaitTermination(_TIMEOUT_S)  # raises what ended it
        return [one for one in query.recentProgress if one.numInputRows]
    finally:
        query.stop()


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
        stream = bed.stream(source, topic, checkpoint)
        run_available_now(stream.writeStream.foreachBatch(add), checkpoint)
    return total[0], total[1], total[2]


@dataclass(frozen=True, slots=True)
class SmallBatches:
    """A running query with the default trigger, which gets a few records, and again when their batch is done.

    Each task of Spark's own source takes about 500 ms here, which is its kafka.fetch.max.wait.ms: presumably a request
    that waits behind a fetch at the end of the log. `SmallBacklog` is without it, and the fairer comparison.
    """

    records: int
    size: int
    partitions: int
    batches: int
    runs: int

    @property
    def name(self) -> str:
        return f"new records, {self.records:,} x {self.size} B per batch, {self.partitions} partition(s)"

    def run(self, bed: Bed) -> list[Series]:
        found: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
        for run, source in alternating(self.runs):
            metrics = self._block(bed, source)
            found[source] += metrics
            _say_block(run, self.runs, source, metrics)
        return [one for source, runs in found.items() for one in series_of(self.name, source, runs)]

    def _block(self, bed: Bed, source: str) -> list[dict[str, float]]:
        topic, producer, metrics = bed.create_topic(self.partitions), bed.producer(), []
        with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
            checkpoint = Path(folder) / "checkpoint"
            writer = bed.stream(source, topic, checkpoint).writeStream.format("noop")
            query = writer.option("checkpointLocation", str(checkpoint)).start()
            try:
                for number in range(_WARM_UP_BATCHES + 3 * self.batches):
                    produced_at = time.monotonic()
                    batches = self._one_round(query, producer, topic)
                    seen_ms = (time.monotonic() - produced_at) * 1000
                    # The trigger may fire between two partitions' writes: such a round is two batches, and no case.
                    if number >= _WARM_UP_BATCHES and len(batches) == 1:
                        metrics.append(_batch_metrics(batches[0]) | {"produced to seen": round(seen_ms)})
                    if len(metrics) == self.batches:
                        return metrics
            finally:
                query.stop()
        raise BenchError(f"{source}: only {len(metrics)} of {3 * self.batches} rounds were one batch")

    def _one_round(self, query: StreamingQuery, producer: Producer, topic: str) -> Sequence[StreamingQueryProgress]:
        before = query.lastProgress
        last = -1 if before is None else before.batchId
        produce(producer, topic, self.partitions, self.records, self.size)
        batches: dict[int, StreamingQueryProgress] = {}

        def all_read() -> bool:
            newest = query.lastProgress
            if newest is None or newest.batchId <= last or newest.batchId in batches:
                return False
            batches.update({p.batchId: p for p in query.recentProgress if p.batchId > last and p.numInputRows})
            return sum(p.numInputRows for p in batches.values()) == self.records

        wait_for(f"{self.records} records", all_read, query)
        return list(batches.values())


def _batch_metrics(progress: StreamingQueryProgress) -> dict[str, float]:
    return {name: float(progress.durationMs.get(name, 0)) for name in ("addBatch", "triggerExecution", "latestOffset")}


def _say_block(run: int, runs: int, source: str, metrics: Sequence[dict[str, float]]) -> None:
    middle = statistics.median(one["addBatch"] for one in metrics)
    say(f"    block {run + 1} of {runs} {source}: addBatch {middle:.0f} ms, median of {len(metrics)} batches")


@dataclass(frozen=True, slots=True)
class SmallBacklog:
    """A topic read in batches of a few records (maxOffsetsPerTrigger) that are all there already."""

    records: int
    size: int
    partitions: int
    batches: int
    runs: int

    @property
    def name(self) -> str:
        return f"backlog, {self.records:,} x {self.size} B per batch, {self.partitions} partition(s)"

    def run(self, bed: Bed) -> list[Series]:
        topic, total = bed.create_topic(self.partitions), self.records * (_WARM_UP_BATCHES + self.batches)
        produce(bed.producer(), topic, self.partitions, total, self.size)
        check_same_records(bed, topic, total)
        found: dict[str, list[dict[str, float]]] = {OURS: [], PEER: []}
        for run, source in alternating(self.runs):
            metrics = self._block(bed, source, topic, total)
            found[source] += metrics
            _say_block(run, self.runs, source, metrics)
        return [one for source, runs in found.items() for one in series_of(self.name, source, runs)]

    def _block(self, bed: Bed, source: str, topic: str, total: int) -> list[dict[str, float]]:
        with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
            checkpoint = Path(folder) / "checkpoint"
            stream = bed.stream(source, topic, checkpoint, maxOffsetsPerTrigger=str(self.records))
            progress = run_available_now(stream.writeStream.format("noop"), checkpoint)
        rows = sum(one.numInputRows for one in progress)
        if rows != total:
            raise BenchError(f"{source} read {rows} of {total} records")
        return [_batch_metrics(one) for one in progress[_WARM_UP_BATCHES:]]
