"""What the embedded broker does otherwise than Kafka. A failing test here is news: correct the list in
embedded.py, and the tests that worked round the gap."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from spark_groupsource.embedded import ApiKey, EmbeddedKafka

_WAIT_S = 60.0
_RANGE: dict[str, Any] = {"partition.assignment.strategy": "range"}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as broker:
        yield broker


@pytest.fixture
def admin(kafka: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


class _Member:
    """A group member that commits offset 7 of what it loses, and keeps what became of it."""

    def __init__(self, kafka: EmbeddedKafka, group: str, **config: Any) -> None:
        settings: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **config,
        }
        self.consumer = Consumer(settings)
        self.revoke_commits: list[int] = []
        self.consumer.subscribe(["orders"], on_revoke=self._revoked)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        given_up = [TopicPartition(p.topic, p.partition, 7) for p in partitions]
        try:
            consumer.commit(offsets=given_up, asynchronous=False)
            self.revoke_commits.append(KafkaError.NO_ERROR)
        except KafkaException as error:
            self.revoke_commits.append(error.args[0].code())

    def owned(self) -> int:
        return len(self.consumer.assignment())


def _classic(session_ms: int, **more: Any) -> dict[str, Any]:
    return {"session.timeout.ms": session_ms, "heartbeat.interval.ms": 200, **more}


def _poll_until(members: list[_Member], what: str, done: Callable[[], bool]) -> float:
    """Seconds it took."""
    started = time.monotonic()
    while not done():
        assert time.monotonic() - started < _WAIT_S, f"waited {_WAIT_S} s for {what}"
        for member in members:
            member.consumer.poll(0.02)
    return time.monotonic() - started


def _offset(admin: AdminClient, topic: str, spec: OffsetSpec, **options: Any) -> int:
    asked = TopicPartition(topic, 0)
    answer = admin.list_offsets({asked: spec}, request_timeout=30, **options)
    return int(answer[asked].result(_WAIT_S).offset)


def _code(call: Callable[[], Any]) -> int:
    with pytest.raises(KafkaException) as raised:
        call()
    return int(raised.value.args[0].code())


def test_a_partition_keeps_its_newest_5_mib(kafka: EmbeddedKafka, admin: AdminClient) -> None:
    kafka.produce("orders", [(None, os.urandom(10_000), 0) for _ in range(800)])
    assert _offset(admin, "orders", OffsetSpec.latest()) == 800
    first = _offset(admin, "orders", OffsetSpec.earliest())
    assert 200 < first < 400


def test_an_empty_fetch_is_answered_after_the_full_wait(kafka: EmbeddedKafka) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "fetch.wait.max.ms": 1_500})
    started = time.monotonic()  # before the fetch is sent
    consumer.assign([TopicPartition("orders", 0, 0)])
    deadline = time.monotonic() + _WAIT_S
    kafka.track_requests()
    while not kafka.requests(ApiKey.FETCH):
        assert time.monotonic() < deadline, "waited for the first fetch"
        consumer.poll(0.02)
    kafka.produce("orders", [("k", "v", 0)])
    message = consumer.poll(_WAIT_S)
    assert message is not None
    assert message.value() == b"v"
    assert time.monotonic() - started > 1.4
    consumer.close()


def test_no_offset_is_found_by_timestamp(kafka: EmbeddedKafka, admin: AdminClient) -> None:
    kafka.produce("orders", [("k", "v", 0, 1_000), ("k", "v", 0, 2_000)])
    assert _offset(admin, "orders", OffsetSpec.for_timestamp(1_500)) == -1
    assert _offset(admin, "orders", OffsetSpec.max_timestamp()) == -1


def test_transactions_have_markers_but_no_isolation(kafka: EmbeddedKafka, admin: AdminClient) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(_WAIT_S)
    producer.begin_transaction()
    producer.produce("orders", b"aborted", partition=0)
    producer.flush(_WAIT_S)
    committed = {"isolation_level": IsolationLevel.READ_COMMITTED}
    assert _offset(admin, "orders", OffsetSpec.latest(), **committed) == 1  # Kafka: 0
    producer.abort_transaction(_WAIT_S)
    assert _offset(admin, "orders", OffsetSpec.latest(), **committed) == 2
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "g",
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition("orders", 0, 0)])
    message = consumer.poll(_WAIT_S)
    assert message is not None
    assert message.value() == b"aborted"
    consumer.close()


def test_no_topic_requests(admin: AdminClient) -> None:
    code = _code(lambda: admin.create_topics([NewTopic("new", 1, 1)], request_timeout=2)["new"].result(5))
    assert code == KafkaError._UNSUPPORTED_FEATURE


def test_who_creates_a_topic_by_looking(kafka: EmbeddedKafka, admin: AdminClient) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    assert consumer.list_topics("a", timeout=_WAIT_S).topics["a"].error is not None
    consumer.close()
    assert admin.list_topics("b", timeout=_WAIT_S).topics["b"].error is None
    assert sorted(admin.list_topics(timeout=_WAIT_S).topics) == ["b", "orders"]
    assert len(admin.list_topics("b", timeout=_WAIT_S).topics["b"].partitions) == 4


def test_groups_are_neither_described_nor_listed(admin: AdminClient) -> None:
    described = admin.describe_consumer_groups(["g"], request_timeout=30)["g"]
    assert _code(lambda: described.result(_WAIT_S)) == KafkaError._UNSUPPORTED_FEATURE
    assert admin.list_consumer_groups(request_timeout=30).result(_WAIT_S).valid == []


def test_commits_of_non_members(kafka: EmbeddedKafka, admin: AdminClient) -> None:
    def alter(group: str) -> Any:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition("orders", 0, 3)])
        done = admin.alter_consumer_group_offsets([wanted], request_timeout=30)[group].result(_WAIT_S)
        return done.topic_partitions[0].error

    def listed(group: str, partitions: list[TopicPartition] | None) -> list[int]:
        wanted = ConsumerGroupTopicPartitions(group, partitions)
        answer = admin.list_consumer_group_offsets([wanted], request_timeout=30)[group].result(_WAIT_S)
        return [p.offset for p in answer.topic_partitions]

    assert alter("never-joined") is None
    assert listed("never-joined", [TopicPartition("orders", 0)]) == [3]
    assert listed("never-joined", None) == []
    member = _Member(kafka, "joined", **_classic(6_000))
    _poll_until([member], "the join", lambda: member.owned() == 2)
    assert alter("joined").code() == KafkaError.UNKNOWN_MEMBER_ID
    member.consumer.close()
    assert alter("joined").code() == KafkaError.UNKNOWN_MEMBER_ID


def test_leader_epoch_and_metadata_of_commits(kafka: EmbeddedKafka) -> None:
    kafka.set_leader("orders", 0, None)
    kafka.set_leader("orders", 0, 1)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0})

    def commit(epoch: int, metadata: str = "") -> Any:
        wanted = TopicPartition("orders", 0, 3, metadata, epoch)
        return consumer.commit(offsets=[wanted], asynchronous=False)

    def read_back() -> TopicPartition:
        return consumer.committed([TopicPartition("orders", 0)], timeout=_WAIT_S)[0]

    current = read_back().leader_epoch
    assert current is not None
    assert current > 0
    assert _code(lambda: commit(current - 1)) == KafkaError.FENCED_LEADER_EPOCH
    assert _code(lambda: commit(current + 1)) == KafkaError.UNKNOWN_LEADER_EPOCH
    commit(current, "m" * 10_000)
    assert read_back().metadata == "m" * 10_000
    kafka.set_leader("orders", 0, 1)
    assert read_back().leader_epoch == current + 1
    consumer.close()


def test_offsets_go_with_the_topic(kafka: EmbeddedKafka) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0})
    consumer.commit(offsets=[TopicPartition("orders", 0, 3, "m")], asynchronous=False)
    kafka.delete_topic("orders")
    kafka.create_topic("orders", 2)
    assert consumer.committed([TopicPartition("orders", 0)], timeout=_WAIT_S)[0].offset < 0
    consumer.close()


def test_an_eager_rebalance_refuses_commits_and_waits_for_the_session(kafka: EmbeddedKafka) -> None:
    config = _classic(3_000, **_RANGE)
    first = _Member(kafka, "g", **config)
    _poll_until([first], "the first join", lambda: first.owned() == 2)
    joined = time.monotonic()
    second = _Member(kafka, "g", **config)
    both = [first, second]
    _poll_until(both, "the second join", lambda: second.owned() == 1 and first.owned() == 1)
    assert set(first.revoke_commits) == {KafkaError.REBALANCE_IN_PROGRESS}  # it may take two rebalances
    assert time.monotonic() - joined > 1.5  # session.timeout.ms less 1 s
    for member in both:
        member.consumer.close()


def test_a_rebalance_of_the_consumer_protocol_is_quick_and_takes_commits() -> None:
    with EmbeddedKafka(topics={"orders": 2}, session_timeout_ms=45_000) as kafka:
        first = _Member(kafka, "g", **{"group.protocol": "consumer"})
        _poll_until([first], "the first join", lambda: first.owned() == 2)
        second = _Member(kafka, "g", **{"group.protocol": "consumer"})
        both = [first, second]
        took_s = _poll_until(both, "the second join", lambda: second.owned() == 1 and first.owned() == 1)
        assert set(first.revoke_commits) == {KafkaError.NO_ERROR}
        assert took_s < 30  # it waits for no session
        for member in both:
            member.consumer.close()
