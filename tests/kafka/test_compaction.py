"""A compacted log has offsets without records, also at the end of a range."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from .application import Application
from .harness import Independent, wait_for

pytestmark = pytest.mark.kafka


def test_a_compacted_topic_is_read_to_its_end(
    client: Independent, options: dict[str, str], topic: str, group: str, application: Application
) -> None:
    """300 records of three keys, compacted to a few; the ranges cut through the gaps (maxOffsetsPerTrigger)."""
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "100",
    }
    client.create_topic(topic, 1, **config)
    producer = Producer({"bootstrap.servers": client.bootstrap_servers})

    def write(count: int) -> None:
        for number in range(count):
            producer.produce(topic, key=str(number % 3).encode(), value=str(number).encode())
        assert producer.flush(30) == 0

    write(300)

    def compacted() -> bool:
        # A record into a new segment makes the old one eligible.
        write(1)
        return len(client.records(topic)) < 50

    wait_for("the log cleaner", compacted, 120)
    query = application.start_query("query", options | {"maxOffsetsPerTrigger": "40"})
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 90, query.__repr__)
    query.stop()
    assert client.records(topic) <= query.records().keys()
    assert set(query.records().values()) == {1}
