"""One Spark application in the pytest process, whose queries share its JVM.

A query is still a group member of its own: each has a reader process. So tests with several members need no JVM per
member; those that kill a driver use `harness.Query`, which is a process.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from .harness import Record, newest_commit, wait_for

# Called with the batch's number and records after the sink has them and before Spark records the batch as complete.
# It may block or raise. Spark cannot stop a query while it blocks.
BatchHook = Callable[[int, tuple[Record, ...]], object]

_TRIGGER = {"processingTime": "100 milliseconds"}


@dataclass(frozen=True, slots=True)
class Batch:
    """What one run of a batch brought to the sink."""

    number: int
    records: tuple[Record, ...]
    values: tuple[str, ...] = ()


@dataclass(slots=True)
class Sink:
    """What the queries of one checkpoint have written, one after the other."""

    checkpoint: Path
    batches: list[Batch] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, batch: Batch) -> None:
        """Take a batch; called on Spark's callback thread."""
        with self._lock:
            self.batches.append(batch)

    def records(self) -> Counter[Record]:
        """Return how often each record was written; a replay counts again."""
        with self._lock:
            return Counter(record for batch in self.batches for record in batch.records)

    def completed(self) -> list[Batch]:
        """Return the batches in Spark's commit log, the last run of each."""
        with self._lock:
            last = {batch.number: batch for batch in self.batches}
        newest = newest_commit(self.checkpoint)
        return [batch for number, batch in sorted(last.items()) if number <= newest]


class AppQuery:
    """A running query. Queries that are started one after the other on one checkpoint share what `records` tells."""

    def __init__(self, name: str, query: StreamingQuery, sink: Sink) -> None:
        self.name = name
        self.query = query
        self.sink = sink

    def __repr__(self) -> str:
        done = [(batch.number, len(batch.records)) for batch in self.sink.completed()]
        return f"AppQuery({self.name}, active={self.query.isActive}, status={self.query.status}, completed={done})"

    @property
    def checkpoint(self) -> Path:
        """The writer's and the source's checkpoint location."""
        return self.sink.checkpoint

    def records(self) -> Counter[Record]:
        """Return how often the sink has each record; a replay counts again."""
        return self.sink.records()

    def completed_records(self) -> Counter[Record]:
        """Return how often each record is in a batch that Spark recorded as complete; a replay counts once."""
        return Counter(record for batch in self.sink.completed() for record in batch.records)

    def completed_values(self) -> list[str]:
        """Return the values in batches that Spark recorded as complete, in their order; a replay counts once."""
        return [value for batch in self.sink.completed() for value in batch.values]

    def wait_for_records(self, wanted: set[Record], timeout_s: float = 120.0) -> None:
        """Wait until all of these records are in completed batches."""
        wait_for(
            f"{self.name} to complete {len(wanted)} records",
            lambda: self.check() and wanted <= self.completed_records().keys(),
            timeout_s,
            lambda: f"missing {sorted(wanted - self.completed_records().keys())[:10]}\n{self!r}",
        )

    def wait_for_values(self, wanted: set[str], timeout_s: float = 120.0) -> None:
        """Wait until all of these values are in completed batches: a recreated topic has the old one's offsets."""
        wait_for(
            f"{self.name} to complete {len(wanted)} values",
            lambda: self.check() and wanted <= set(self.completed_values()),
            timeout_s,
            lambda: f"missing {sorted(wanted - set(self.completed_values()))[:10]}\n{self!r}",
        )

    def check(self) -> bool:
        """Return True; fails with the query's error when it has ended."""
        assert self.query.isActive, f"{self.name} has ended: {self.query.exception()}"
        return True

    def stop(self) -> None:
        """Stop cleanly. The member leaves a moment later: its process looks at the commit log first."""
        self.query.stop()

    def leave(self) -> None:
        """Stop cleanly and wait until the member has left: its process removes its file then."""
        self.stop()
        files = self.checkpoint / "groupkafka"
        wait_for(f"{self.name} to leave", lambda: not list(files.glob("*.json")), 60, self.__repr__)

    def failure(self) -> str:
        """Wait for the query's failure and return what it says."""
        with pytest.raises(StreamingQueryException) as caught:
            self.query.awaitTermination(120)
        return str(caught.value)


class Application:
    """Starts queries in one Spark session and stops what is left of them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self._folder = folder
        self._sinks: dict[Path, Sink] = {}
        self._queries: list[AppQuery] = []

    def start_query(
        self,
        name: str,
        options: Mapping[str, str],
        *,
        trigger: Mapping[str, str | bool] | None = None,
        batch: BatchHook | None = None,
        checkpoint: Path | None = None,
        distinct: bool = False,
    ) -> AppQuery:
        """Start a query with its own reader process, and so its own member.

        distinct: the query has state: it writes each value once (`dropDuplicates`).
        checkpoint: of the writer and, unless the options name one, of the source; `<folder>/<name>` without it.
        """
        location = checkpoint or self._folder / name
        sink = self._sinks.setdefault(location, Sink(location))

        def write(frame: DataFrame, number: int) -> None:
            rows = frame.selectExpr("topic", "partition", "offset", "string(value) as value").collect()
            records = tuple((row.topic, row.partition, row.offset) for row in rows)
            sink.write(Batch(number, records, tuple(row.value or "" for row in rows)))
            if batch is not None:
                batch(number, records)

        # A member's client id tells it apart in the broker's log and at the proxy.
        chosen = {"checkpointLocation": str(location), "kafka.client.id": name} | dict(options)
        reader = self.spark.readStream.format("groupkafka").options(**chosen)
        rows = reader.load().dropDuplicates(["value"]) if distinct else reader.load()
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(location))
        # A name may be used again as soon as its query has ended, which Spark notices late.
        query = writer.queryName(f"{name}-{uuid.uuid4().hex[:8]}").trigger(**(trigger or _TRIGGER)).start()
        started = AppQuery(name, query, sink)
        self._queries.append(started)
        return started

    def close(self) -> None:
        """Stop every query that still runs."""
        for query in self._queries:
            if query.query.isActive:
                query.query.stop()
        self._queries.clear()


@pytest.fixture
def application(spark: SparkSession, tmp_path: Path) -> Iterator[Application]:
    """Return an application whose queries end with the test."""
    made = Application(spark, tmp_path)
    yield made
    made.close()
