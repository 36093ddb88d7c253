"""What the probe reads, and which clients it keeps, drops and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.client.errors import TransportState
from spark_groupsource.cluster.probe import Probe
from spark_groupsource.model.offsets import NextRecords, TopicPartition
from tests.unit.fakes import make_options, tp

P0, OTHER = tp(0), tp(0, "refunds")
TIMEOUT_S = 0.05
WAIT_S = 10.0


def message(partition: TopicPartition, offset: int, value: bytes = b"") -> Any:
    return SimpleNamespace(
        topic=lambda: partition.topic,
        partition=lambda: partition.partition,
        offset=lambda: offset,
        error=lambda: None,
        key=lambda: None,
        value=lambda: value,
        headers=lambda: [],
    )


def end_of(partition: TopicPartition, offset: int) -> Any:
    end = message(partition, offset)
    end.error = lambda: KafkaError(KafkaError._PARTITION_EOF)
    return end


class FakeConsumer:
    """Delivers a record of 40 bytes at each assigned offset, except for its `silent` topics."""

    def __init__(self, *silent: str) -> None:
        self.silent = silent
        self.fed: list[ClientPartition] = []
        self.ready: list[Any] = []
        self.ended = threading.Event()
        self.ended_by: threading.Thread | None = None
        self.fed_at_end: list[ClientPartition] = []

    def incremental_assign(self, partitions: list[ClientPartition]) -> None:
        self.fed += partitions
        wanted = [part for part in partitions if part.topic not in self.silent]
        self.ready += [message(TopicPartition(p.topic, p.partition), p.offset, b"x" * 40) for p in wanted]

    def incremental_unassign(self, partitions: list[ClientPartition]) -> None:
        for part in partitions:
            self.fed.remove(part)
        self.ready.clear()

    def consume(self, most: int, timeout_s: float) -> list[Any]:
        found, self.ready = self.ready[:most], self.ready[most:]
        if not found:
            time.sleep(min(timeout_s, 0.001))
        return found

    def close(self) -> None:
        self.ended_by, self.fed_at_end = threading.current_thread(), list(self.fed)
        self.ended.set()


class Bed:
    """A probe with these clients, one after the other."""

    def __init__(self, *consumers: FakeConsumer) -> None:
        self.consumers = consumers
        self.made = 0
        self.probe = Probe(make_options(), TransportState(None), self.make)

    def make(self, _: dict[str, Any]) -> Any:
        self.made += 1
        return self.consumers[self.made - 1]


def test_a_client_that_answers_for_all_partitions_is_kept() -> None:
    bed = Bed(FakeConsumer())
    for offset in (5, 6):
        found = bed.probe.next_records({P0: offset, OTHER: 0}, WAIT_S)
        assert found == {P0: NextRecords(offset, 40), OTHER: NextRecords(0, 40)}
    assert bed.made == 1
    assert not bed.consumers[0].ended.is_set()
    assert bed.consumers[0].fed == []


def test_the_end_of_a_partition_is_an_answer() -> None:
    bed = Bed(FakeConsumer("refunds"))
    bed.consumers[0].ready = [end_of(OTHER, 9)]
    assert bed.probe.next_records({P0: 5, OTHER: 0}, WAIT_S) == {P0: NextRecords(5, 40), OTHER: NextRecords(9, None)}
    assert not bed.consumers[0].ended.is_set()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Partition log truncation detected at offset 9: broker end offset is 6 (offset leader epoch 2)", 6),
        ("Partition log truncation detected at offset 9: broker end offset is 12 (offset leader epoch 2)", 9),
        ("Partition log truncated", 0),
        ("Broker: Offset out of range", None),
    ],
)
def test_where_a_log_was_truncated(text: str, at: int | None) -> None:
    bed, event = Bed(FakeConsumer("orders")), message(P0, 9)
    event.error = lambda: KafkaError(KafkaError._AUTO_OFFSET_RESET, text)
    bed.consumers[0].ready = [event]
    assert bed.probe.diverged({P0: (9, 2)}, WAIT_S) == {P0: at}


def test_offsets_without_records_make_no_record_small() -> None:
    """Compaction or an aborted transaction has left a million offsets before the next record."""
    bed = Bed(FakeConsumer("orders"))
    bed.consumers[0].ready = [message(P0, 1_000_000 + 2 * n, b"x" * 30) for n in range(2)]
    assert bed.probe.next_records({P0: 5}, WAIT_S) == {P0: NextRecords(1_000_000, 20)}


@pytest.mark.parametrize("others", [{}, {P0: 5}])
def test_a_client_that_is_silent_about_a_recreated_topic_is_replaced(others: dict[TopicPartition, int]) -> None:
    """Its leader epochs are lower than those of the deleted topic, so the client ignores its leaders."""
    bed = Bed(FakeConsumer("refunds"), FakeConsumer())
    wanted = {OTHER: 0} | others
    for _ in range(1 + len(others)):
        assert not bed.consumers[0].ended.is_set(), "a leader may be slow once, if others answer"
        assert bed.probe.next_records(wanted, TIMEOUT_S).keys() == others.keys()
    assert bed.probe.next_records(wanted, WAIT_S).keys() == wanted.keys()
    assert bed.consumers[0].ended.wait(WAIT_S)


@pytest.mark.parametrize(
    "ends_client",
    [
        lambda probe: probe.next_records({OTHER: 0}, TIMEOUT_S),
        lambda probe: (probe.next_records({P0: 0}, WAIT_S), probe.close()),
        lambda probe: probe.diverged({P0: (5, 1)}, WAIT_S),
    ],
    ids=["silent", "closed", "diverged"],
)
@pytest.mark.rule("R87")
def test_nobody_waits_for_the_end_of_a_client_that_has_read(ends_client: Callable[[Probe], object]) -> None:
    """One that has read a topic which is deleted now may never end; the query's main thread would hang."""
    consumer = FakeConsumer("refunds")
    ends_client(Bed(consumer).probe)
    assert consumer.ended.wait(WAIT_S)
    assert consumer.ended_by is not threading.current_thread()


def test_partitions_are_unassigned_before_the_client_ends() -> None:
    """confluent-kafka refuses it afterwards, in a generator that nobody reads any more: a traceback on stderr."""
    consumer = FakeConsumer()
    assert Bed(consumer).probe.diverged({P0: (5, 1)}, WAIT_S) == {P0: None}
    assert consumer.ended.wait(WAIT_S)
    assert consumer.fed_at_end == []
