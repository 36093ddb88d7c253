"""The order of a packed task's rows on three brokers, one of which answers later than the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from spark_groupsource.clock import SystemClock
from spark_groupsource.driver.fast_lane import FastLane
from spark_groupsource.executor.clients import choose as clients
from spark_groupsource.executor.pool import ConsumerPool
from spark_groupsource.executor.reader import ReadSettings, read_task
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.parse import parse_options
from tests.realkafka.proxy import Action, Api, On, Rule
from tests.realkafka.realkafka import RealKafka

from .harness import Independent

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
    brokers: RealKafka, topic: str, path: str
) -> None:
    """The same task is read with each broker delayed in turn: by new consumers, by kept ones, and on the driver."""
    del path
    client = Independent(brokers.bootstrap_servers)
    client.create_topic(topic, PARTITIONS)
    client.produce(topic, (f"v{n}" for n in range(PARTITIONS * RECORDS)), PARTITIONS)
    options = parse_options(
        {"kafka.bootstrap.servers": brokers.proxied_servers, "kafka.group.id": topic, "subscribe": topic}
    )
    task = tuple(OffsetRange(TopicPartition(topic, number), 5, RECORDS) for number in range(PARTITIONS))
    wanted = [(item.partition.partition, offset) for item in task for offset in range(item.start, item.end)]
    warm, lane = ConsumerPool(pause=None), FastLane(options, SystemClock())
    for broker in (None, 1, 2, 3):
        brokers.proxy.clear()
        late = Rule(Api.FETCH, broker=broker, on=On.RESPONSE, action=Action.DELAY, delay_s=0.3, times=None)
        if broker is not None:
            brokers.proxy.add(late)
        for pool in (warm, ConsumerPool(pause=None)):
            assert rows_of(read_task(ReadSettings(options), task, pool)) == wanted
        rows = lane.read(task, [item.partition for item in task])
        assert rows is not None
        assert rows_of(rows) == wanted
        assert late.fired or broker is None
    brokers.proxy.clear()
    lane.close()
