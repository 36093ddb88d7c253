"""A streaming query in the tests' own Spark session, which collects what it writes."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from tests.realkafka.realkafka import RealKafka

from .harness import Independent

CLASSIC, CONSUMER = "classic", "consumer"
AVAILABLE_NOW = {"availableNow": True}
SHORT_TRIGGERS = {"processingTime": "200 milliseconds"}
TIME_MS = 1_700_000_000_000


def each(topic: str, *values: int) -> str:
    """Return an option's JSON with these values of partitions 0, 1 and so on."""
    return json.dumps({topic: {str(number): value for number, value in enumerate(values)}})


class LocalQuery:
    """Runs until `stop`, or to its end with a trigger that has one."""

    def __init__(self, frame: DataFrame, checkpoint: Path, trigger: Mapping[str, Any]) -> None:
        self.rows: list[Row] = []
        self.sizes: list[int] = []
        self.group = f"group-{checkpoint.name}"
        writer = frame.writeStream.foreachBatch(self._write).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(**trigger).start()

    def _write(self, batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        self.rows += rows
        self.sizes.append(len(rows))

    def counts(self) -> dict[tuple[str, int], int]:
        """How many rows came of each partition."""
        return dict(Counter((row.topic, row.partition) for row in self.rows))

    def per_topic(self) -> dict[str, int]:
        """How many rows came of each topic."""
        return dict(Counter(row.topic for row in self.rows))

    def failure(self) -> str:
        """Wait for the query's failure and return what it says."""
        with pytest.raises(StreamingQueryException) as caught:
            self.query.awaitTermination(60)
        return str(caught.value)


class Streams:
    """Starts queries, each with its own group and checkpoint unless told otherwise, under one group protocol."""

    def __init__(self, spark: SparkSession, kafka: RealKafka, protocol: str, folder: Path) -> None:
        self.protocol = protocol
        self._spark = spark
        self._kafka = kafka
        self._folder = folder
        self._started: list[LocalQuery] = []

    def fresh(self) -> Path:
        """Return the place of a new checkpoint."""
        return Path(tempfile.mkdtemp(dir=self._folder))

    def frame(self, checkpoint: Path, **options: str) -> DataFrame:
        """Return a streaming frame; its group is named after the checkpoint, `__` stands for a dot."""
        given = {name.replace("__", "."): value for name, value in options.items()}
        settings = {
            "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
            "kafka.group.id": f"group-{checkpoint.name}",
            "kafka.group.protocol": self.protocol,
            "kafka.topic.metadata.refresh.interval.ms": "1000",
            "checkpointLocation": str(checkpoint),
            "startingOffsets": "earliest",
        }
        return self._spark.readStream.format("groupkafka").options(**settings | given).load()

    def table(self, **options: str) -> DataFrame:
        """Return a batch read."""
        given = {name.replace("__", "."): value for name, value in options.items()}
        settings = {"kafka.bootstrap.servers": self._kafka.bootstrap_servers} | given
        return self._spark.read.format("groupkafka").options(**settings).load()

    def start(
        self, checkpoint: Path | None = None, trigger: Mapping[str, Any] = SHORT_TRIGGERS, **options: str
    ) -> LocalQuery:
        """Start a query."""
        place = checkpoint or self.fresh()
        query = LocalQuery(self.frame(place, **options), place, trigger)
        self._started.append(query)
        return query

    def run(self, checkpoint: Path | None = None, **options: str) -> LocalQuery:
        """Read what is there now and return the query, which has ended."""
        query = self.start(checkpoint, AVAILABLE_NOW, **options)
        assert query.query.awaitTermination(120), "the query did not end"
        return query

    def stop(self) -> None:
        """Stop all queries that still run."""
        for item in self._started:
            item.query.stop()


class Filler:
    """Makes topics and fills them: a record per partition and second, in turn."""

    def __init__(self, client: Independent, name: str) -> None:
        self.client = client
        self._name = name

    def topic(self, suffix: str, records: int, partitions: int = 2, **config: str) -> str:
        """Return a new topic with so many records; without a suffix it has the test's own name."""
        name = f"{self._name}-{suffix}" if suffix else self._name
        self.client.create_topic(name, partitions, **{"retention.ms": "-1"} | config)
        self.more(name, records, partitions)
        return name

    def more(self, topic: str, records: int, partitions: int = 2) -> None:
        """Add records."""
        times = (TIME_MS + number // partitions * 1000 for number in range(records))
        self.produce(topic, ({"value": b"%d" % n, "partition": n % partitions} for n in range(records)), times)

    def produce(self, topic: str, records: Iterable[dict[str, Any]], times: Iterable[int]) -> None:
        """Produce records with these timestamps; returns when all are acknowledged."""
        settings = {"bootstrap.servers": self.client.bootstrap_servers, "message.max.bytes": 8_000_000}
        producer = Producer(settings)
        for record, timestamp_ms in zip(records, times, strict=False):
            producer.produce(topic, timestamp=timestamp_ms, **record)
        assert producer.flush(60) == 0


@contextmanager
def open_transaction(client: Independent, topic: str, records: int) -> Iterator[None]:
    """Write records to partition 0 of a topic; they are committed afterwards."""
    settings = {"bootstrap.servers": client.bootstrap_servers, "transactional.id": f"open-{topic}"}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(60) == 0
    yield
    producer.commit_transaction(60)


@pytest.fixture(params=[CLASSIC, CONSUMER])
def streams(request: pytest.FixtureRequest, spark: SparkSession, kafka: RealKafka, tmp_path: Path) -> Iterator[Streams]:
    """Queries under both group protocols."""
    made = Streams(spark, kafka, request.param, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def classic(spark: SparkSession, kafka: RealKafka, tmp_path: Path) -> Iterator[Streams]:
    """Queries under the classic protocol, for what no group has a say in."""
    made = Streams(spark, kafka, CLASSIC, tmp_path)
    yield made
    made.stop()


@pytest.fixture
def fill(client: Independent, topic: str) -> Filler:
    """Return what makes topics whose names begin with this test's own."""
    return Filler(client, topic)
