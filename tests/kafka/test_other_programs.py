"""A plain consumer of another program shares a query's group, on a real broker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer

from .harness import Independent, Query, Record, wait_for
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

SETTINGS = {
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "eager": {"partition.assignment.strategy": "range"},
    "kip848": {"group.protocol": "consumer"},
}


@contextmanager
def plain_consumer(servers: str, group: str, topic: str, protocol: str) -> Iterator[Counter[Record]]:
    """Consume as a member that commits each record before it asks for the next one. Yields what it has committed."""
    settings = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, **SETTINGS[protocol]}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    found: Counter[Record] = Counter()
    ended = threading.Event()

    def consume() -> None:
        while not ended.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                for part in consumer.commit(message=message, asynchronous=False):
                    found[part.topic, part.partition, part.offset - 1] += 1
        consumer.close()

    thread = threading.Thread(target=consume)
    consumer.subscribe([topic])
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join(60)


@pytest.mark.parametrize("protocol", SETTINGS)
def test_p1_p2_p4_p6_a_consumer_of_another_program_joins_and_leaves(
    protocol: str,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    start_query: Callable[..., Query],
) -> None:
    """It gets two of four partitions, and the query gets them back: no record is lost, and none is read twice."""
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(400)), 4)
    query = start_query("query", with_protocol(options, protocol))
    query.wait_for_records(client.records(topic))
    with plain_consumer(client.bootstrap_servers, group, topic, protocol) as consumed:
        wait_for("two partitions each", lambda: sorted(map(len, client.members(group))) == [2, 2], 90, query.log)
        client.produce(topic, (f"b{n}" for n in range(400)), 4)
        wait_for("lag 0 with two members", lambda: client.lag(group, topic) == 0, 60, query.log)
    wait_for("the query to own all", lambda: [len(m) for m in client.members(group)] == [4], 60, query.log)
    client.produce(topic, (f"c{n}" for n in range(400)), 4)
    wait_for("lag 0 with one member", lambda: client.lag(group, topic) == 0, 60, query.log)
    query.stop()

    total = query.completed_records() + consumed
    assert set(total) == client.records(topic)
    assert {record: times for record, times in total.items() if times > 1} == {}
    assert len(consumed) == 200
    assert client.committed(group) == client.ends(topic)
