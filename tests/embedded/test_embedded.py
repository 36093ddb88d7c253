"""The embedded broker: what it promises, how it fails, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from spark_groupsource._librdkafka import library_path
from spark_groupsource.embedded import ApiKey, EmbeddedKafka, EmbeddedKafkaError
from spark_groupsource.embedded import broker as embedded
from spark_groupsource.embedded import mock_cluster as _mockcluster

_ROOT = Path(__file__).parents[2]
_WAIT_S = 60.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as broker:
        yield broker


def _admin(kafka: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 200})


def _end_offset(kafka: EmbeddedKafka, topic: str, partition: int, timeout_s: float = 30.0) -> int:
    asked = TopicPartition(topic, partition)
    admin = _admin(kafka)  # a client that is gone never answers its futures
    answer = admin.list_offsets({asked: OffsetSpec.latest()}, request_timeout=timeout_s)
    return int(answer[asked].result(timeout_s + 5).offset)


def _read(kafka: EmbeddedKafka, topic: str, partition: int, count: int, start: int = 0) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, start)])
    messages: list[Message] = []
    deadline = time.monotonic() + _WAIT_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"waited for {count} records, got {len(messages)}"
        messages += [m for m in consumer.consume(count - len(messages), 0.2) if m.error() is None]
    consumer.close()
    return messages


def _commit(consumer: Consumer, offset: int) -> Any:
    return consumer.commit(offsets=[TopicPartition("orders", 0, offset, "note")], asynchronous=False)


def _eventually(what: str, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not done():
        assert time.monotonic() < deadline, f"waited {_WAIT_S} s for {what}"
        time.sleep(0.05)


def test_what_is_produced_can_be_read(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", [("k", "v", 2, 1_700_000_000_000, [("h", b"1")]), (None, b"x", 2), ("t", None, 2)])
    first, second, third = _read(kafka, "orders", 2, 3)
    assert (first.key(), first.value(), first.headers()) == (b"k", b"v", [("h", b"1")])
    assert first.timestamp()[1] == 1_700_000_000_000
    assert (second.key(), second.value()) == (None, b"x")
    assert (third.key(), third.value()) == (b"t", None)


def test_a_timestamp_of_0_is_refused_because_the_client_would_send_now(kafka: EmbeddedKafka) -> None:
    with pytest.raises(ValueError, match=r"timestamp_ms is 0.*use 1 or more"):
        kafka.produce("orders", [("k", "v", 2, 0)])
    kafka.produce("orders", [("k", "v", 2, 1)])
    (only,) = _read(kafka, "orders", 2, 1)
    assert only.timestamp()[1] == 1


def test_plain_values_are_spread_over_the_partitions(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", ["a", b"b", "c"])
    assert sum(_end_offset(kafka, "orders", p) for p in range(4)) == 3


@pytest.mark.parametrize("records", ["hello", b"hello"])
def test_a_value_is_no_list_of_records(kafka: EmbeddedKafka, records: Any) -> None:
    """A text is an iterable of texts, too: its letters would be the records."""
    with pytest.raises(TypeError, match="records must be a list"):
        kafka.produce("orders", records)


def test_order_is_kept(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", [("k", str(i), 0) for i in range(8_000)])
    assert [m.value() for m in _read(kafka, "orders", 0, 8_000)] == [b"%d" % i for i in range(8_000)]


def test_order_is_kept_or_reported_over_refused_batches(kafka: EmbeddedKafka) -> None:
    stale = KafkaError.NOT_LEADER_FOR_PARTITION
    kafka.fail_next(ApiKey.PRODUCE, stale, 0, 0, stale, stale, 0, stale)
    said = ""
    try:
        kafka.produce("orders", [("k", str(i), 0) for i in range(8_000)])
    except EmbeddedKafkaError as error:
        said = str(error)
    if said:
        assert "order is lost" in said
    else:
        assert [m.value() for m in _read(kafka, "orders", 0, 8_000)] == [b"%d" % i for i in range(8_000)]


@pytest.mark.parametrize("error", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._TRANSPORT])
def test_a_refused_batch_is_an_error_and_ends_the_call(kafka: EmbeddedKafka, error: int) -> None:
    kafka.fail_next(ApiKey.PRODUCE, 0, error)
    with pytest.raises(EmbeddedKafkaError, match=r"\d+ records failed"):
        kafka.produce("orders", [("k", str(i), 0) for i in range(5_000)])
    written = _end_offset(kafka, "orders", 0)
    assert 0 < written < 2_000  # the chunk that failed was the last, the ones before it stay
    values = [int(m.value() or b"") for m in _read(kafka, "orders", 0, written)]
    assert values == sorted(set(values))


def test_a_lost_order_is_an_error() -> None:
    class Acknowledged:
        def partition(self) -> int:
            return 0

        def offset(self) -> int:
            return next(offsets)

    class Overtaken:
        """A producer whose second record got the lower offset."""

        def produce(self, topic: str, value: str, on_delivery: Callable[[Any, Any], None]) -> None:
            on_delivery(None, Acknowledged())

        def flush(self, timeout: float) -> int:
            return 0

    offsets = iter([1, 0])
    producer: Any = Overtaken()
    with pytest.raises(EmbeddedKafkaError, match="order is lost"):
        embedded._append(producer, "orders", [{"value": "a"}, {"value": "b"}], time.monotonic() + 1)


def test_a_record_that_the_client_refuses_is_an_error_and_the_ones_before_it_stay(kafka: EmbeddedKafka) -> None:
    with pytest.raises(EmbeddedKafkaError, match=r"produce to orders: 1 records failed: .*MSG_SIZE_TOO_LARGE"):
        kafka.produce("orders", [("k", "before", 0), ("k", bytes(9_000_000), 0), ("k", "after", 0)])
    assert [m.value() for m in _read(kafka, "orders", 0, 1)] == [b"before"]
    assert _end_offset(kafka, "orders", 0) == 1


def test_large_records_pass(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", [("k", os.urandom(1_500_000), 0), ("k", "after", 0)])
    assert _end_offset(kafka, "orders", 0) == 2


@pytest.mark.parametrize("record", [("key",), 5, ("k", "v", 0, 0, [], "more")])
def test_a_malformed_record_is_refused(kafka: EmbeddedKafka, record: Any) -> None:
    with pytest.raises(TypeError, match="a record is"):
        kafka.produce("orders", [record])


def test_a_failed_delivery_is_an_error(kafka: EmbeddedKafka) -> None:
    kafka.broker_down()
    with pytest.raises(EmbeddedKafkaError, match="produce to orders: 2 records failed"):
        kafka.produce("orders", ["a", "b"], timeout_s=1.0)


def test_three_brokers_replicate_a_topic() -> None:
    with EmbeddedKafka(brokers=3, topics={"orders": 6}) as kafka:
        kafka.set_rack(2, "rack-b")  # no Python client shows racks: this only shows that the call is accepted
        assert kafka.bootstrap_servers.count("127.0.0.1:") == 3
        cluster = _admin(kafka).list_topics(timeout=_WAIT_S)
        partitions = cluster.topics["orders"].partitions.values()
        assert {p.leader for p in partitions} <= {1, 2, 3}  # which one is chance
        assert {len(p.replicas) for p in partitions} == {3}


def test_a_new_topic_of_the_same_name_has_a_new_id(kafka: EmbeddedKafka) -> None:
    admin = _admin(kafka)

    def topic_id() -> str:
        asked = admin.describe_topics(TopicCollection(["orders"]), request_timeout=30)
        return str(asked["orders"].result(_WAIT_S).topic_id)

    before = topic_id()
    assert topic_id() == before
    kafka.delete_topic("orders")
    kafka.create_topic("orders", 4)
    assert topic_id() != before


def test_deleted_records_are_removed(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", [("k", str(i), 0) for i in range(5)])
    kafka.delete_records("orders", 0, 5)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=_WAIT_S) == (5, 5)
    consumer.close()
    with pytest.raises(EmbeddedKafkaError, match="OFFSET_OUT_OF_RANGE"):
        kafka.delete_records("orders", 0, 6)


def test_a_moved_leader_raises_the_epoch() -> None:
    with EmbeddedKafka(brokers=2, topics={"orders": 1}) as kafka:
        kafka.produce("orders", [("k", "v", 0)])
        for leader in (1, 2):
            kafka.set_leader("orders", 0, leader)
        kafka.produce("orders", [("k", "v", 0)])
        before, after = (m.leader_epoch() for m in _read(kafka, "orders", 0, 2))
        assert (before, after) == (0, 2)


def test_a_broker_goes_down_and_comes_back(kafka: EmbeddedKafka) -> None:
    kafka.broker_down(1)
    with pytest.raises(KafkaException):
        _admin(kafka).list_topics(timeout=1)
    kafka.broker_up(1)
    assert "orders" in _admin(kafka).list_topics(timeout=_WAIT_S).topics
    with pytest.raises(EmbeddedKafkaError, match="mock_broker_set_down"):
        kafka.broker_down(9)


def test_injected_errors_come_once_each_and_in_order(kafka: EmbeddedKafka) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0})
    _commit(consumer, 1)
    wanted = [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION]
    kafka.fail_next(ApiKey.OFFSET_COMMIT, *wanted)
    seen = []
    for _ in wanted:
        with pytest.raises(KafkaException) as raised:
            _commit(consumer, 2)
        seen.append(raised.value.args[0].code())
    assert seen == wanted
    kafka.fail_next(ApiKey.OFFSET_COMMIT, KafkaError.UNKNOWN_MEMBER_ID)
    kafka.clear_failures(ApiKey.OFFSET_COMMIT)
    _commit(consumer, 3)
    back = consumer.committed([TopicPartition("orders", 0)], timeout=_WAIT_S)[0]
    assert (back.offset, back.metadata) == (3, "note")
    consumer.close()


def test_answers_can_be_delayed(kafka: EmbeddedKafka) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0})
    _commit(consumer, 1)
    kafka.answer_next(1, ApiKey.OFFSET_COMMIT, delay_ms=400)
    started = time.monotonic()
    _commit(consumer, 2)
    assert time.monotonic() - started >= 0.4
    kafka.slow_down(300)
    started = time.monotonic()
    _commit(consumer, 3)
    assert time.monotonic() - started >= 0.3
    kafka.slow_down(0)
    consumer.close()


def test_requests_show_where_the_coordinator_is() -> None:
    with EmbeddedKafka(brokers=2, topics={"orders": 1}) as kafka:
        kafka.set_coordinator("g", 2)
        kafka.track_requests()
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0})
        _commit(consumer, 1)
        assert [r.broker_id for r in kafka.requests(ApiKey.OFFSET_COMMIT)] == [2]
        kafka.set_coordinator("g", 1)
        kafka.fail_next(ApiKey.OFFSET_COMMIT, KafkaError.NOT_COORDINATOR)
        _commit(consumer, 2)
        assert kafka.requests(ApiKey.OFFSET_COMMIT)[-1].broker_id == 1
        assert len(kafka.requests()) > len(kafka.requests(ApiKey.OFFSET_COMMIT))
        kafka.track_requests()
        assert kafka.requests(ApiKey.OFFSET_COMMIT) == []
        consumer.close()


def test_a_topic_can_be_made_to_fail(kafka: EmbeddedKafka) -> None:
    kafka.fail_topic("orders", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    error = _admin(kafka).list_topics("orders", timeout=_WAIT_S).topics["orders"].error
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.fail_topic("orders", KafkaError.NO_ERROR)
    assert _admin(kafka).list_topics("orders", timeout=_WAIT_S).topics["orders"].error is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: EmbeddedKafka(brokers=0),
        lambda: EmbeddedKafka(topics={"orders": 0}),
    ],
)
def test_a_size_below_one_is_refused(make: Callable[[], EmbeddedKafka]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make()


def test_creating_a_topic_twice_names_the_call_and_the_reason(kafka: EmbeddedKafka) -> None:
    with pytest.raises(EmbeddedKafkaError, match=r"mock_topic_create\(orders, 1, 1\): TOPIC_ALREADY_EXISTS"):
        kafka.create_topic("orders", 1)


def test_a_function_that_the_library_lacks_is_named() -> None:
    library = _mockcluster.Library(library_path())
    with pytest.raises(EmbeddedKafkaError, match="has no rd_kafka_mock_time_travel: a newer confluent-kafka"):
        library("mock_time_travel")


def test_close_twice_then_use() -> None:
    kafka = EmbeddedKafka(topics={"orders": 1})
    assert "running" in repr(kafka)
    kafka.close()
    kafka.close()
    assert "closed" in repr(kafka)
    with pytest.raises(EmbeddedKafkaError, match="the broker is closed"):
        kafka.create_topic("more")


def test_threads_and_descriptors_are_given_back() -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    if not Path("/proc/self/task").exists():
        pytest.skip("counts in /proc")
    with EmbeddedKafka():
        pass
    before, files = threads(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with EmbeddedKafka(brokers=2, topics={"orders": 2}):
            pass
    _eventually("the threads to end", lambda: threads() <= before)
    _eventually("the descriptors to be closed", lambda: len(os.listdir("/proc/self/fd")) <= files)


def _command_line(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "spark_groupsource.embedded", *arguments],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("end", ["stdin", signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_other_processes_until_asked_to_end(end: str | signal.Signals) -> None:
    process = _command_line("--topic", "flights:12", "--brokers", "2")
    assert process.stdout is not None
    name, _, servers = process.stdout.readline().strip().partition("=")
    assert name == "bootstrap.servers"
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    assert len(admin.list_topics(timeout=_WAIT_S).topics["flights"].partitions) == 12
    if isinstance(end, signal.Signals):
        process.send_signal(end)
        process.wait(timeout=_WAIT_S)  # before its standard input ends, too
    out, errors = process.communicate(timeout=_WAIT_S)
    assert (process.returncode, out) == (0, "")
    reason = "a signal arrived" if isinstance(end, signal.Signals) else "its standard input has ended"
    assert errors.splitlines() == ["runs until Ctrl-C, or until its standard input ends", f"ending: {reason}"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--topic", "flights"], "'flights' is not NAME:PARTITIONS"),
        (["--brokers", "0"], "--brokers: invalid choice: 0"),
    ],
)
def test_the_command_explains_bad_arguments(arguments: list[str], text: str) -> None:
    process = _command_line(*arguments)
    _, errors = process.communicate(timeout=_WAIT_S)
    assert process.returncode == 2
    assert text in errors


def test_the_plugin_is_light_and_its_fixtures_work(tmp_path: Path) -> None:
    loaded = (
        "import sys, spark_groupsource.embedded.pytest_plugin; print({'pyspark', 'confluent_kafka'} & set(sys.modules))"
    )
    light = subprocess.run(
        [sys.executable, "-c", loaded], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert light.stdout.strip() == "set()"
    (tmp_path / "test_user.py").write_text(
        "def test_two(embedded_kafka, embedded_kafka_session):\n"
        "    embedded_kafka.create_topic('orders', 2)\n"
        "    embedded_kafka.produce('orders', ['a'])\n"
        "    assert embedded_kafka.bootstrap_servers != embedded_kafka_session.bootstrap_servers\n"
    )
    # By module name, so that it works without an installed package, and not twice with one.
    plugin = ["-p", "no:groupkafka", "-p", "spark_groupsource.embedded.pytest_plugin"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "1 passed" in run.stdout, run.stdout + run.stderr
