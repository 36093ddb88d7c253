"""Fixtures of the tests on a real broker. Without one they are skipped loudly; in CI that is a failure."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.realkafka.jars import KAFKA_VERSION, version_of

from .application import application
from .harness import NO_KAFKA, Independent, Query, skipped, wait_for
from .shared_broker import SharedBroker, shared_broker

__all__ = ["application"]  # a fixture of another module

ReadAll = Callable[..., DataFrame]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what brokers of the chosen version do not have (GROUPKAFKA_KAFKA_VERSION)."""
    if version_of(KAFKA_VERSION) >= (4,):
        return
    for item in items:
        chosen = getattr(item, "callspec", None)
        # A test that is parametrized by protocol; others that need it say so themselves.
        if chosen is not None and {"kip848", "consumer"} & {str(value) for value in chosen.params.values()}:
            item.add_marker(pytest.mark.skip(reason=f"Kafka {KAFKA_VERSION} has KIP-848 as a preview only"))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[SharedBroker]:
    """Return one real broker for all tests, also for those in the other processes of pytest-xdist."""
    own = tmp_path_factory.getbasetemp()
    folder = own if worker_id == "master" else own.parent
    with skipped(NO_KAFKA), shared_broker(folder) as broker:
        yield broker


@pytest.fixture
def client(kafka: SharedBroker) -> Independent:
    """Return an independent client of the broker."""
    return Independent(kafka.bootstrap_servers)


@pytest.fixture
def topic() -> str:
    """Return a fresh topic name."""
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def group() -> str:
    """Return a fresh group name."""
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def options(kafka: SharedBroker, topic: str, group: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the source options that most tests start from.

    Half of the tests read their small batches on the driver, as users do without asking, the others on executors.
    """
    fast_lane = zlib.crc32(request.node.name.encode()) % 2
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group,
        "kafka.session.timeout.ms": "6000",
        "kafka.heartbeat.interval.ms": "500",
        "kafka.topic.metadata.refresh.interval.ms": "1000",
        "subscribe": topic,
        "startingOffsets": "earliest",
        "fastLaneMaxOffsets": "10000" if fast_lane else "0",
    }


@pytest.fixture
def start_query(tmp_path: Path) -> Iterator[Callable[..., Query]]:
    """Start query processes that end with the test."""
    started: list[Query] = []

    def start(name: str, options: dict[str, str], **settings: Any) -> Query:
        query = Query(tmp_path, name, {"options": options, **settings})
        started.append(query)
        return query

    yield start
    for query in started:
        query.kill()


@pytest.fixture
def read_all(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> ReadAll:
    """Run a query with Trigger.AvailableNow to its end and return what it wrote, with the batch's number."""

    def run(checkpoint: str = "checkpoint", drop: Sequence[str] = (), **more: str) -> DataFrame:
        given = {name: value for name, value in options.items() if name not in drop}
        location, out = str(tmp_path / checkpoint), str(tmp_path / f"{checkpoint}-out")
        reader = spark.readStream.format("groupkafka").options(**given | {"checkpointLocation": location} | more)

        def write(batch: DataFrame, number: int) -> None:
            batch.selectExpr(f"{number} as batch", "*", "spark_partition_id() as task").write.mode("append").parquet(
                out
            )

        writer = reader.load().writeStream.foreachBatch(write).option("checkpointLocation", location)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"
        # Its reader process commits, leaves the group, and removes its file.
        wait_for("the reader's end", lambda: not list(Path(location, "groupkafka").glob("*.json")), 60)
        return spark.read.parquet(out)

    return run


@pytest.fixture
def stored(client: Independent, topic: str) -> set[tuple[str, int, int]]:
    """Return the records of a topic that is there."""
    client.create_topic(topic, 2)
    client.produce(topic, map(str, range(100)), 2)
    return client.records(topic)
