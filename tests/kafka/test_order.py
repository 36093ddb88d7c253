"""The order of a packed task's rows on three brokers, one of which answers later than the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from spark_groupsource.clock import SystemClock
from spark_groupsource.driver import fast_lane
from spark_groupsource.executor.clients import choose as clients
from spark_groupsource.executor.pool import ConsumerPool
from spark_groupsource.executor.reader import read_task
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.parse import parse_options
from tests.realkafka.proxy import Action, Api, On, Rule
from tests.realkafka.realkafka import RealKafka

from .harness import Independent
from .shared_broker import SharedBroker

pytestmark = pytest.mark.kafka

PARTITIONS, RECORDS = 9, 60


@pytest.fixture(scope="module")
def brokers() -> Iterator[RealKafka]:
    """Three brokers behind a proxy."""
    with RealKafka(brokers=3, proxied=True) as kafka:
        yield kafka


@pytest.fixture(params=["c", "python"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Read with one of both clients."""
    if request.param == "python":
        monkeypatch.setenv(clients.GATHER_VARIABLE, "python")
    clients.native_library.cache_clear()
    yield request.param
    clients.native_library.cache_clear()


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in pa.Table.from_batches(list(batches)).to_pylist()]


def test_p1_p2_p3_a_broker_that_answers_later_changes_no_row_of_a_task(
    brokers: RealKafka, topic: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same task is read with each broker delayed in turn: by new consumers, by kept ones, and on the driver."""
    del path
    monkeypatch.setattr(fast_lane, "READ_TIMEOUT_S", 60.0)  # then the driver leaves the task to the executors
    client = Independent(brokers.bootstrap_servers)
    client.create_topic(topic, PARTITIONS)
    client.produce(topic, (f"v{n}" for n in range(PARTITIONS * RECORDS)), PARTITIONS)
    options = parse_options(
        {"kafka.bootstrap.servers": brokers.proxied_servers, "kafka.group.id": topic, "subscribe": topic}
    )
    task = tuple(OffsetRange(TopicPartition(topic, number), 5, RECORDS) for number in range(PARTITIONS))
    wanted = [(item.partition.partition, offset) for item in task for offset in range(item.start, item.end)]
    warm, lane = ConsumerPool(pause=None), fast_lane.FastLane(options, SystemClock())
    for broker in (None, 1, 2, 3):
        brokers.proxy.clear()
        late = Rule(Api.FETCH, broker=broker, on=On.RESPONSE, action=Action.DELAY, delay_s=0.3, times=None)
        if broker is not None:
            brokers.proxy.add(late)
        for pool in (warm, ConsumerPool(pause=None)):
            assert rows_of(read_task(options, task, pool)) == wanted
        rows = lane.read(task, [item.partition for item in task])
        assert rows is not None
        assert rows_of(rows) == wanted
        assert late.fired or broker is None
    brokers.proxy.clear()
    lane.close()


def test_p1_p2_p3_small_batches_of_large_producer_batches(kafka: SharedBroker, topic: str, path: str) -> None:
    """The queues of all partitions together exceed the memory many times. All tasks are read twice."""
    del path
    partitions, records, step = 64, 900, 60
    Independent(kafka.bootstrap_servers).create_topic(topic, partitions)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "batch.size": 1_000_000, "linger.ms": 500, "acks": "all"}
    )
    for number in range(partitions):
        for _ in range(records):
            producer.produce(topic, bytes(1_000), partition=number)
        producer.poll(0)
    assert producer.flush(60) == 0
    options = parse_options(
        {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": topic,
            "subscribe": topic,
            "kafkaConsumer.prefetchMemoryBytes": str(8 * 1024 * 1024),
        }
    )
    pool = ConsumerPool()
    numbers = range(partitions)
    for start in range(0, records, step):
        task = tuple(OffsetRange(TopicPartition(topic, number), start, start + step) for number in numbers)
        wanted = [(number, offset) for number in numbers for offset in range(start, start + step)]
        assert rows_of(read_task(options, task, pool)) == wanted
        assert rows_of(read_task(options, task, ConsumerPool(pause=None))) == wanted
