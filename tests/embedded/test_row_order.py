"""The order of a task's rows on both clients and several brokers: cold, warm and moved consumers, and the fast lane."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa
import pytest

from spark_groupsource.clock import SystemClock
from spark_groupsource.driver.fast_lane import FastLane
from spark_groupsource.embedded import EmbeddedKafka
from spark_groupsource.executor.clients.port import FetchClient
from spark_groupsource.executor.pool import ConsumerPool
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.reader import read_task
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions
from tests.embedded.test_clients import MAKERS, MIB, options_of

PARTITIONS, RECORDS = 6, 40
Rows = list[tuple[int, int]]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers, each of which leads two of six partitions."""
    with EmbeddedKafka(brokers=3, topics={"orders": PARTITIONS}) as broker:
        for number in range(PARTITIONS):
            broker.set_leader("orders", number, number % 3 + 1)
        records = [(b"k", bytes(50), number) for number in range(PARTITIONS) for _ in range(RECORDS)]
        broker.produce("orders", records)
        yield broker


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[SourceOptions], FetchClient]:
    """Return the maker of one of both clients."""
    return functools.partial(MAKERS[request.param], queued_bytes=MIB)


def ranges_of(numbers: Iterable[int], start: int, end: int) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(TopicPartition("orders", number), start, end) for number in numbers)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Rows:
    found = pa.Table.from_batches(list(batches)).to_pylist()
    return [(row["partition"], row["offset"]) for row in found]


def wanted(task: Iterable[OffsetRange]) -> Rows:
    return [(item.partition.partition, offset) for item in task for offset in range(item.start, item.end)]


def slow(kafka: EmbeddedKafka, delays_ms: Mapping[int, int]) -> None:
    for broker in (1, 2, 3):
        kafka.slow_down(delays_ms.get(broker, 0), broker)


@pytest.mark.parametrize("kept_bytes", [0, 8 * 1024 * 1024])
@pytest.mark.rule("R56")
def test_p1_p2_p3_the_same_task_gives_the_same_rows_whichever_broker_answers_last(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient], kept_bytes: int
) -> None:
    """Each run has another slow broker; on a cold pool, a warm one, and one whose consumer stood elsewhere."""
    options = options_of(kafka)

    def consumer(given: SourceOptions, partitions: int, bulk: bool) -> RangeConsumer:
        return RangeConsumer(given, make, partitions, kept_bytes, bulk=bulk)

    task = ranges_of((2, 0, 4, 1, 3, 5), 0, 30)
    following, elsewhere = ranges_of((5, 1, 0, 3, 2, 4), 30, RECORDS), ranges_of((1, 4), 7, 9)
    pools = [ConsumerPool(consumer, pause=None)]
    for slow_broker in (1, 2, 3):
        slow(kafka, {slow_broker: 150, slow_broker % 3 + 1: 60})
        pools.append(ConsumerPool(consumer, pause=None))
        for pool in pools:
            for each in (task, following, elsewhere, task):
                found = rows_of(read_task(options, each, pool))
                assert found == wanted(each)
    slow(kafka, {})


def test_p1_the_fast_lane_gives_a_batch_as_an_executor_would(kafka: EmbeddedKafka) -> None:
    """A batch that the driver has read is read by an executor when its rows are gone from the block manager."""
    options = options_of(kafka)
    lane = FastLane(options, SystemClock())
    task = ranges_of((3, 1, 5, 0, 4, 2), 0, 10)
    for slow_broker in (1, 2, 3):
        slow(kafka, {slow_broker: 150})
        rows = lane.read(task, [item.partition for item in task])
        assert rows is not None
        assert rows_of(rows) == wanted(task)
    slow(kafka, {})
    lane.close()


def test_p1_partitions_of_very_different_sizes(make: Callable[[SourceOptions], FetchClient]) -> None:
    """Far more than is kept and than the client queues: later partitions are parked, given up and fetched again."""
    sizes = {0: 3_000, 1: 10, 2: 4_000, 3: 1, 4: 2_500, 5: 600}
    with EmbeddedKafka(topics={"orders": 6}) as kafka:
        produced = [(None, bytes(1_000), number) for number, count in sizes.items() for _ in range(count)]
        random.Random(1).shuffle(produced)
        kafka.produce("orders", produced)
        options = options_of(kafka)
        maker = functools.partial(RangeConsumer, max_bytes=300_000)
        pool = ConsumerPool(lambda options, partitions, bulk: maker(options, make, partitions, bulk=bulk), pause=None)
        task = tuple(OffsetRange(TopicPartition("orders", n), 0, count) for n, count in sorted(sizes.items()))
        for _ in range(2):
            assert rows_of(read_task(options, task, pool)) == wanted(task)
