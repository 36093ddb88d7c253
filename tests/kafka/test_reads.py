"""What the executors read: transactions, Trigger.AvailableNow, splits; on a real broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException

from .conftest import ReadAll
from .harness import Independent, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_available_now_reads_what_is_there_and_commits_its_last_batch(
    client: Independent, read_all: ReadAll, topic: str, group: str
) -> None:
    """Each run takes what the log held when it started, in batches of at most maxOffsetsPerTrigger."""
    client.create_topic(topic, 3)
    client.produce(topic, (f"a{n}" for n in range(90)), 3)
    rows = read_all(maxOffsetsPerTrigger="40").collect()
    assert {(r.topic, r.partition, r.offset) for r in rows} == client.records(topic)
    assert len(rows) == 90
    sizes = sorted(sum(r.batch == n for r in rows) for n in {r.batch for r in rows})
    assert sizes == [12, 39, 39]
    assert client.committed(group) == client.ends(topic)
    wait_for("an empty group", lambda: client.members(group) == [], 30)

    client.produce(topic, (f"b{n}" for n in range(30)), 3)
    assert read_all().count() == 120
    assert client.committed(group) == client.ends(topic)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.rule("R13")
def test_transactions_and_a_marker_at_the_end_of_the_range(
    isolation: str, client: Independent, read_all: ReadAll, topic: str, group: str
) -> None:
    """The log ends with a commit marker; aborted records are left out only under read_committed; lag is 0."""
    client.create_topic(topic, 1)
    transactions = {"a": True, "b": False, "c": True}
    client.transact(topic, *(([f"{value}{n}" for n in range(10)], done) for value, done in transactions.items()))

    rows = read_all(**{"kafka.isolation.level": isolation}).collect()
    values = sorted(bytes(r.value).decode()[0] for r in rows)
    assert {v: values.count(v) for v in "abc"} == {"a": 10, "b": 10 if isolation == "read_uncommitted" else 0, "c": 10}
    assert {(r.topic, r.partition, r.offset) for r in rows} == client.records(topic, isolation)
    # 30 records and 3 markers: the planned end is committed, not the last record + 1.
    assert client.committed(group) == client.ends(topic) == {(topic, 0): 33}


def test_a_range_of_markers_only_ends(
    client: Independent, read_all: ReadAll, topic: str, group: str, tmp_path: Path
) -> None:
    """A second run finds nothing but an aborted transaction, which takes no bytes: it has one batch."""
    client.create_topic(topic, 1)
    client.produce(topic, ["a"], 1)
    settings = {"kafka.isolation.level": "read_committed", "maxBytesPerTrigger": "1"}
    assert read_all(**settings).count() == 1
    client.transact(topic, (["b", "c", "d"], False))
    assert read_all(**settings).count() == 1
    assert client.committed(group) == client.ends(topic) == {(topic, 0): 5}
    assert len(list(tmp_path.glob("**/commits/[0-9]"))) == 2


def test_large_partitions_are_split_and_small_ones_share_a_task(
    client: Independent, read_all: ReadAll, topic: str
) -> None:
    """`minPartitions` and `maxRecordsPerPartition` cut ranges; without them four small partitions are one task."""
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(400)), 4)

    def tasks(name: str, **more: str) -> int:
        rows = read_all(name, **{"kafka.group.id": f"{topic}-{name}"} | more).collect()
        assert {(r.topic, r.partition, r.offset) for r in rows} == client.records(topic)
        assert len(rows) == 400
        return len({r.task for r in rows})

    assert tasks("packed") == 1
    assert tasks("split", minPartitions="10") == 10
    assert tasks("bounded", maxRecordsPerPartition="50") == 8


@pytest.mark.parametrize("more", [{}, {"maxOffsetsPerTrigger": "15"}], ids=["bytes", "bytes and offsets"])
def test_batches_of_about_so_many_bytes(
    client: Independent, read_all: ReadAll, topic: str, more: dict[str, str]
) -> None:
    """Two partitions, one with records ten times as large as the other's: each gets its share of 22,000 bytes."""
    client.create_topic(topic, 2)
    client.produce(topic, ["x" * (1_000 if number % 2 else 100) for number in range(100)], 2)
    rows = read_all(maxBytesPerTrigger="22000", **more).collect()
    assert len(rows) == 100
    batches = {number: [r for r in rows if r.batch == number] for number in {r.batch for r in rows}}
    assert max(sum(len(r.value) for r in batch) for batch in batches.values()) <= 22_000 + 1_100
    assert max(map(len, batches.values())) == (14 if more else 40)


def test_an_impossible_timestamp_is_named(client: Independent, read_all: ReadAll, topic: str, kafka: Any) -> None:
    """A broker that is told not to check takes any."""
    client.create_topic(topic, 1, **{"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for stamp in (1_700_000_000_000, 2**62):
        producer.produce(topic, b"v", partition=0, timestamp=stamp)
    assert producer.flush(30) == 0
    with pytest.raises(StreamingQueryException, match=rf"TIMESTAMP_IMPOSSIBLE.*{topic}-0 offset 1 .*{2**62} ms"):
        read_all()
