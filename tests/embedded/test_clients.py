"""Both reading clients on a real client library and the embedded broker: the same rows, the same events."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from spark_groupsource import errors
from spark_groupsource.clock import SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.driver.fast_lane import FastLane, make_driver_consumer
from spark_groupsource.embedded import ApiKey, EmbeddedKafka
from spark_groupsource.errors import DataLossError, ReadError
from spark_groupsource.executor.clients.choose import native_library
from spark_groupsource.executor.clients.error_events import reading_client_settings
from spark_groupsource.executor.clients.native import NativeClient, NativeLibrary
from spark_groupsource.executor.clients.port import (
    EndOfPartition,
    FetchClient,
    Misfit,
    PositionLost,
    RequestFailed,
    Trouble,
)
from spark_groupsource.executor.clients.pure_python import PythonClient
from spark_groupsource.executor.clients.rows import arrow_schema
from spark_groupsource.executor.pool import ConsumerPool
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.reader import read_task
from spark_groupsource.executor.topic_ids import TopicIdRequest
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.model.offsets import NextRecords, OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.parse import parse_options
from tests.realkafka.rawbatch import RawRecord, produce_raw

WAIT_S = 60.0
MIB = 1024 * 1024
P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
Row = dict[str, Any]


def settings_of(options: SourceOptions, queued_bytes: int = 8 * MIB) -> dict[str, Any]:
    # The embedded broker's transaction markers have no checksum.
    return reading_client_settings(options, queued_bytes) | {"check.crcs": False}


def make_native(options: SourceOptions, queued_bytes: int = 8 * MIB) -> FetchClient:
    library = native_library()
    if not isinstance(library, NativeLibrary):
        # Where it must not be left out, a compiler that is missing is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"not built: {library}")
    return NativeClient(options, settings_of(options, queued_bytes), library)


def make_python(options: SourceOptions, queued_bytes: int = 8 * MIB) -> FetchClient:
    return PythonClient(options, settings_of(options, queued_bytes))


MAKERS: dict[str, Callable[..., FetchClient]] = {"native": make_native, "python": make_python}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 4}) as broker:
        yield broker


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[SourceOptions], FetchClient]:
    return MAKERS[request.param]


def options_of(kafka: EmbeddedKafka, **more: str) -> SourceOptions:
    raw = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": "g", "subscribe": "orders"}
    return parse_options(raw | {name.replace("__", "."): value for name, value in more.items()})


def pool_of(make: Callable[[SourceOptions], FetchClient]) -> ConsumerPool:
    return ConsumerPool(
        lambda options, partitions, bulk: RangeConsumer(options, make, partitions, bulk=bulk), pause=None
    )


def chunks_of(client: FetchClient, ends: dict[TopicPartition, int], max_bytes: int = 64 * MIB) -> list[pa.RecordBatch]:
    """Read the partitions from their beginning until the client says that these ends are reached."""
    client.assign(dict.fromkeys(ends, 0))
    chunks: list[pa.RecordBatch] = []
    waiting, deadline = dict(ends), time.monotonic() + WAIT_S
    while waiting:
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for the ends of {waiting}"
        for item in client.receive(next(iter(waiting)), 10_000, max_bytes, 0.2):
            if isinstance(item, pa.RecordBatch):
                item.validate(full=True)
                chunks.append(item)
            elif isinstance(item, EndOfPartition) and item.offset >= waiting.get(item.partition, 0):
                waiting.pop(item.partition, None)
    return chunks


def rows_of(chunks: list[pa.RecordBatch], headers: bool = False) -> list[Row]:
    """Return the rows, partition by partition; each partition's in the order in which they came."""
    rows = pa.Table.from_batches(chunks, arrow_schema(headers)).to_pylist()
    return sorted(rows, key=lambda row: int(row["partition"]))


def read(
    make: Callable[[SourceOptions], FetchClient], options: SourceOptions, ends: dict[TopicPartition, int]
) -> list[Row]:
    client = make(options)
    try:
        return rows_of(chunks_of(client, ends), options.include_headers)
    finally:
        client.close()


# --- rows


def test_all_values_are_there_or_none_is(kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]) -> None:
    kafka.produce("orders", [(None, b"v%d" % i, 0) for i in range(100)] + [(b"k%d" % i, None, 1) for i in range(100)])
    rows = read(make, options_of(kafka), {P0: 100, P1: 100})
    assert [row["value"] for row in rows] == [b"v%d" % i for i in range(100)] + [None] * 100
    assert [row["key"] for row in rows] == [None] * 100 + [b"k%d" % i for i in range(100)]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient], compression: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": compression})
    for i in range(500):
        producer.produce("orders", b"value %d " % i * 20, b"key", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert [row["value"] for row in read(make, options_of(kafka), {P0: 500})] == [
        b"value %d " % i * 20 for i in range(500)
    ]


# Names that Java's UTF-8 decoder, and so Spark's own source, reads as these texts.
ODD_NAMES = {b"\xff\xfe": "\ufffd\ufffd", b"caf\xe9": "caf\ufffd", b"a\xe2\x82": "a\ufffd", b"\x80x": "\ufffdx"}
ZERO_NAMES = {b"a\0b": "a\0b", b"\0": "\0", b"\0\xff": "\0\ufffd", b"x\0": "x\0", b"": ""}


def test_names_of_headers_are_read_whole_in_c(kafka: EmbeddedKafka) -> None:
    """librdkafka returns names up to a zero byte, and any bytes before it."""
    names = ODD_NAMES | ZERO_NAMES
    values = [b"v", None, b"", b"v\0v"]
    sent = [RawRecord(b"%d" % i, 1_000, [(name, value) for name in names]) for i, value in enumerate(values)]
    produce_raw(kafka.bootstrap_servers, "orders", sent)
    rows = read(make_native, options_of(kafka, includeHeaders="true"), {P0: len(values)})
    assert [row["headers"] for row in rows] == [
        [{"key": text, "value": value} for text in names.values()] for value in values
    ]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_name_that_is_no_utf8_is_an_error_in_pure_python(kafka: EmbeddedKafka, name: bytes) -> None:
    """confluent-kafka keeps a list with null pointers for such a record; to read one of them kills the process."""
    good, odd = (
        RawRecord(b"v", 1_000, [(b"h", b"x")]),
        RawRecord(b"v", 1_000, [(b"h", b"x"), (name, b"x"), (b"i", None)]),
    )
    produce_raw(kafka.bootstrap_servers, "orders", [good, good, *[odd] * 11, good])
    client = make_python(options_of(kafka, includeHeaders="true"))
    client.assign({P0: 0})
    items: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while not any(isinstance(item, EndOfPartition) for item in items) and time.monotonic() < deadline:
        items += client.receive(P0, 10_000, MIB, 0.2)
    client.close()
    assert [item for item in items if isinstance(item, Misfit)] == [
        Misfit(P0, offset, errors.HEADER_NAME_UNREADABLE) for offset in range(2, 13)
    ]
    found = [o for item in items if isinstance(item, pa.RecordBatch) for o in item.column("offset").to_pylist()]
    assert found == [0, 1, 13]
    assert len(read(make_python, options_of(kafka), {P0: 14})) == 14, "without includeHeaders all rows are read"
    consumer = RangeConsumer(options_of(kafka, includeHeaders="true"), make_python, 1)
    item = OffsetRange(P0, 0, 14)
    consumer.move_to([item])
    with pytest.raises(ReadError, match=r"HEADER_NAME_UNREADABLE.* record at orders-0 offset 2 "):
        offsets_read(consumer, item)
    consumer.close()


def test_more_headers_than_librdkafka_reads_are_an_error_in_c(kafka: EmbeddedKafka) -> None:
    """It reports 100,000 at most, and none for a record with more: the row would have a null."""
    most = 100_000
    sent = [RawRecord(b"v", 1_000, [(b"", None)] * count) for count in (most, most + 1, 1)]
    produce_raw(kafka.bootstrap_servers, "orders", sent)
    options = options_of(kafka, includeHeaders="true")
    consumer = RangeConsumer(options, make_native, 1)
    first, item = OffsetRange(P0, 0, 1), OffsetRange(P0, 1, 3)
    consumer.move_to([first])
    assert [len(row["headers"]) for row in rows_of(consumer.next_rows([first], WAIT_S), True)] == [most]
    consumer.move_to([item])
    with pytest.raises(ReadError, match=r"TOO_MANY_HEADERS.* record at orders-0 offset 1 "):
        offsets_read(consumer, item)
    consumer.close()
    assert len(read(make_native, options_of(kafka), {P0: 3})) == 3, "without includeHeaders all rows are read"


def test_a_size_is_estimated_without_the_headers_that_cannot_be_read(kafka: EmbeddedKafka) -> None:
    """For maxBytesPerTrigger, on the driver."""
    produce_raw(kafka.bootstrap_servers, "orders", [RawRecord(b"v" * 100, 1_000, [(b"\xff", b"x")])] * 3)
    cluster = LibrdkafkaCluster(options_of(kafka), SystemClock(), time.sleep)
    assert cluster.next_records({P0: 0}) == {P0: NextRecords(0, 100.0)}
    cluster.close()


def zstd_stream(data: bytes) -> bytes:
    """Compress without the size in the frame, as Kafka's Java clients do."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        for start in range(0, len(data), MIB):
            stream.write(data[start : start + MIB])
    return bytes(sink.getvalue())


def zstd_frame(data: bytes) -> bytes:
    """Compress with the size in the frame, as librdkafka does."""
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def produce_inflating(kafka: EmbeddedKafka, size_mb: int, compress: Callable[[bytes], bytes]) -> None:
    record = RawRecord(b"a" * 1_000_000, 1_700_000_000_000)
    produce_raw(kafka.bootstrap_servers, "orders", [record] * size_mb, 4, compress)


@pytest.mark.parametrize(("size_mb", "compress"), [(60, zstd_stream), (110, zstd_frame)])
def test_a_batch_that_inflates_beyond_the_clients_default_limit(
    kafka: EmbeddedKafka, size_mb: int, compress: Callable[[bytes], bytes]
) -> None:
    """By both reading clients, and by those that read few records; the compressed batch has some kilobytes."""
    produce_inflating(kafka, size_mb, compress)
    for make in (make_native, make_python):
        client = make(options_of(kafka))
        assert sum(chunk.num_rows for chunk in chunks_of(client, {P0: size_mb})) == size_mb
        client.close()
    cluster = LibrdkafkaCluster(options_of(kafka), SystemClock(), time.sleep)
    assert cluster.next_records({P0: 0}) == {P0: NextRecords(0, 1_000_000.0)}
    cluster.close()
    requests = LagRequests(options_of(kafka), SystemClock(), time.sleep)
    (lag,) = requests.lag_inputs({P0: 0})
    requests.close()
    assert lag.next_ms == 1_700_000_000_000


def test_a_limit_of_the_user_is_kept_and_named(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]
) -> None:
    produce_inflating(kafka, 10, zstd_stream)
    consumer = RangeConsumer(options_of(kafka, kafka__receive__message__max__bytes="5000000"), make, 1)
    item = OffsetRange(P0, 0, 10)
    consumer.move_to([item])
    text = r"BATCH_TOO_LARGE.* orders-0 .* offset 0: .*'kafka.receive.message.max.bytes' has the value '5000000'"
    with pytest.raises(ReadError, match=text):
        offsets_read(consumer, item)
    consumer.close()


def produce_large(kafka: EmbeddedKafka, *sizes: int) -> None:
    """Send large records, which the embedded broker holds because they can be compressed."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": "lz4",
            "message.max.bytes": 200 * MIB,
            "batch.size": 200 * MIB,
            "queue.buffering.max.kbytes": 400 * 1024,
            "linger.ms": 60_000,
        }
    )
    for i, size in enumerate(sizes):
        producer.produce("orders", b"%d" % i * size, b"k", partition=0)
    assert producer.flush(WAIT_S) == 0


def test_a_record_of_90_mb(kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]) -> None:
    size = 90_000_000
    produce_large(kafka, 10, size, 10)
    client = make(options_of(kafka))
    chunks = chunks_of(client, {P0: 3})
    client.close()
    assert [chunk.num_rows for chunk in chunks] == [1, 1, 1]
    values = [chunk.column("value")[0] for chunk in chunks]
    assert [len(value.as_buffer()) for value in values] == [10, size, 10]
    assert values[1].as_py() == b"1" * size


def test_a_run_beyond_the_bound_is_split(kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]) -> None:
    produce_large(kafka, *[30 * MIB] * 5)
    client = make(options_of(kafka))
    chunks = chunks_of(client, {P0: 5})
    client.close()
    assert all(chunk.nbytes <= 64 * MIB for chunk in chunks)
    assert [offset for chunk in chunks for offset in chunk.column("offset").to_pylist()] == list(range(5))


def random_record(dice: random.Random) -> tuple[Any, ...]:
    def data() -> bytes | None:
        return dice.choice([None, b"", dice.randbytes(dice.randrange(1, 300))])

    names = ["a", "b", "", "\u00e9\u20ac\U0001f600"]
    headers = [(dice.choice(names), data()) for _ in range(200 if dice.random() < 0.01 else dice.randrange(4))]
    stamp = dice.choice([1, dice.randrange(2**41), 253_402_300_799_999])
    return data(), data(), dice.randrange(4), stamp, headers


@pytest.mark.parametrize("seed", range(3))
def test_both_paths_give_the_same_rows(kafka: EmbeddedKafka, seed: int) -> None:
    dice = random.Random(seed)
    sent = [random_record(dice) for _ in range(5_000)]
    kafka.produce("orders", sent)
    ends = {TopicPartition("orders", p): sum(record[2] == p for record in sent) for p in range(4)}
    options = options_of(kafka, includeHeaders="true")
    native, python = (read(make, options, ends) for make in (make_native, make_python))
    assert native == python
    expected = sorted(sent, key=lambda record: int(record[2]))
    for row, (key, value, _, stamp, headers) in zip(native, expected, strict=True):
        assert (row["key"], row["value"], row["timestampType"]) == (key, value, 0)
        assert round(row["timestamp"].timestamp() * 1000) == stamp
        assert row["headers"] == ([{"key": name, "value": data} for name, data in headers] or None)


# --- events and requests


def first_items(client: FetchClient) -> list[Any]:
    items: list[Any] = []
    deadline = time.monotonic() + WAIT_S
    while not items and time.monotonic() < deadline:
        items += client.receive(P0, 10, MIB, 0.2)
    return items


def test_a_position_that_the_log_does_not_have(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]
) -> None:
    kafka.produce("orders", [(b"k", b"v", 0)] * 10)
    kafka.delete_records("orders", 0, 5)
    client = make(options_of(kafka))
    client.assign({P0: 2})
    items = first_items(client)
    assert items == [PositionLost(P0)]
    assert client.log_bounds(P0, WAIT_S) == (5, 10)
    client.close()


def test_a_broker_that_cannot_be_reached_is_the_reason(make: Callable[[SourceOptions], FetchClient]) -> None:
    raw = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "orders"}
    client = make(parse_options(raw))
    client.assign({P0: 0})
    items = first_items(client)
    assert isinstance(items[0], Trouble)
    assert "Connection refused" in items[0].reason
    with pytest.raises(RequestFailed):
        client.log_bounds(P0, 0.2)
    with pytest.raises(RequestFailed):
        client.request_leaders("orders", 0.2)
    client.close()
    client.close()


def test_what_a_client_says_goes_to_the_log(
    make: Callable[[SourceOptions], FetchClient], caplog: pytest.LogCaptureFixture
) -> None:
    raw = {"kafka.bootstrap.servers": "localhost:1", "kafka.group.id": "g", "subscribe": "orders"}
    client = make(parse_options(raw))
    client.assign({P0: 0})
    deadline = time.monotonic() + WAIT_S
    while "Connection refused" not in caplog.text and time.monotonic() < deadline:
        client.receive(P0, 10, MIB, 0.1)
    client.close()
    assert "Connection refused" in caplog.text


# --- ranges


def offsets_read(consumer: RangeConsumer, item: OffsetRange) -> list[int]:
    """Read a range on a consumer that stands there."""
    found: list[int] = []
    deadline = time.monotonic() + WAIT_S
    while not consumer.finished(item):
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {item}, has {len(found)}"
        for batch in consumer.next_rows([item], 0.1):
            batch.validate(full=True)
            found += batch.column("offset").to_pylist()
    consumer.settle(item)
    return found


def test_a_consumer_goes_on_skips_ahead_rests_and_moves(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]
) -> None:
    kafka.produce("orders", [(b"k", b"v", 0)] * 3_000 + [(b"k", b"v", 1)] * 10)
    consumer = RangeConsumer(options_of(kafka), make, 1)
    kafka.track_requests()
    for start, end in ((0, 100), (100, 250), (400, 500), (1_500, 3_000), (10, 20)):
        item = OffsetRange(P0, start, end)
        consumer.move_to([item])
        assert offsets_read(consumer, item) == list(range(start, end))
    for item in (OffsetRange(P1, 0, 10), OffsetRange(P0, 5, 6)):
        consumer.move_to([item])
        assert offsets_read(consumer, item) == list(range(item.start, item.end))
        consumer.rest()
    # An answer that is under way may come yet; then there is no request any more.
    deadline = time.monotonic() + WAIT_S
    before = -1
    while before != (now := len(kafka.requests(ApiKey.FETCH))):
        assert time.monotonic() < deadline, "waited for the last fetch"
        before = now
        time.sleep(0.5)
    consumer.close()


def produce_transactions(kafka: EmbeddedKafka, count: int) -> None:
    """Commit transactions of two records each; each takes three offsets."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t"})
    producer.init_transactions(WAIT_S)
    for _ in range(count):
        producer.begin_transaction()
        for _ in range(2):
            producer.produce("orders", b"v", partition=0)
        producer.commit_transaction(WAIT_S)


def test_a_range_that_ends_with_a_transaction_marker(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]
) -> None:
    """Markers take offsets that no record has: gaps, as compaction leaves them."""
    produce_transactions(kafka, 3)
    consumer = RangeConsumer(options_of(kafka), make, 1)
    item = OffsetRange(P0, 0, 9)
    consumer.move_to([item])
    assert offsets_read(consumer, item) == [0, 1, 3, 4, 6, 7]
    assert consumer.position(P0) == 9
    for start, end, expected in ((1, 3, [1]), (4, 7, [4, 6]), (2, 3, [])):
        item = OffsetRange(P0, start, end)
        consumer.move_to([item])
        assert offsets_read(consumer, item) == expected
    consumer.close()


def test_a_transaction_marker_is_not_waited_for(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]
) -> None:
    """The end-of-partition event would take fetch.wait.max.ms."""
    produce_transactions(kafka, 1)
    consumer = RangeConsumer(options_of(kafka, kafka__fetch__wait__max__ms="50000"), make, 1)
    item = OffsetRange(P0, 0, 3)
    started = time.monotonic()
    consumer.move_to([item])
    assert offsets_read(consumer, item) == [0, 1]
    assert consumer.position(P0) == 3
    assert time.monotonic() - started < 40.0
    consumer.close()


def test_a_task_over_many_partitions(make: Callable[[SourceOptions], FetchClient]) -> None:
    with EmbeddedKafka(topics={"orders": 16}) as kafka:
        kafka.produce("orders", [(b"k", b"%d" % i, p) for i in range(50) for p in range(16)])
        pool = pool_of(make)
        options = options_of(kafka)
        for start, end in ((0, 10), (10, 30), (30, 50), (0, 50)):
            task = tuple(OffsetRange(TopicPartition("orders", p), start, end) for p in range(16))
            table = pa.Table.from_batches(list(read_task(options, task, pool)), arrow_schema(False))
            found: dict[int, list[int]] = {}
            for p, offset in zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True):
                found.setdefault(p, []).append(offset)
            # Side by side, each in its order.
            assert found == {p: list(range(start, end)) for p in range(16)}
        assert repr(pool) == "ConsumerPool(idle=1, resting=0)"
        pool.borrow(options, task).close()


def test_the_driver_reads_batch_after_batch_of_many_partitions_with_one_consumer() -> None:
    made: list[RangeConsumer] = []

    def make(options: SourceOptions, partitions: int) -> RangeConsumer:
        made.append(make_driver_consumer(options, partitions))
        return made[-1]

    partitions = [TopicPartition("orders", number) for number in range(16)]
    with EmbeddedKafka(topics={"orders": 16}) as kafka:
        kafka.produce("orders", [(b"k", b"%d" % i, p) for i in range(20) for p in range(16)])
        lane = FastLane(options_of(kafka), SystemClock(), make)
        for start in (0, 10):
            rows = lane.read([OffsetRange(partition, start, start + 10) for partition in partitions], partitions)
            assert rows is not None
            assert sum(batch.num_rows for batch in rows) == 160
        lane.close()
    assert len(made) == 1


def topic_id(options: SourceOptions) -> str:
    cluster = LibrdkafkaCluster(options, SystemClock(), time.sleep)
    try:
        return cluster.describe(["orders"])["orders"].topic_id
    finally:
        cluster.close()


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_before_its_records_are_read(
    kafka: EmbeddedKafka,
    make: Callable[[SourceOptions], FetchClient],
    again: bool,
    fails: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker has read of it and fetched ahead. Of the new one, which is shorter, nothing is taken for the old one's.

    The client says nothing of one that is not made again: it is asked for after a silence of 5 s.
    """
    kafka.produce("orders", [(b"k", b"old", 0)] * 50)
    options = options_of(kafka, failOnDataLoss=fails)
    pool = pool_of(make)
    ids = {"orders": topic_id(options)}
    assert sum(b.num_rows for b in read_task(options, (OffsetRange(P1, 0, 0), OffsetRange(P0, 0, 9)), pool)) == 9
    kafka.delete_topic("orders")
    if again:
        kafka.create_topic("orders", 4)
        kafka.produce("orders", [(b"k", b"new", 0)] * 20)
    # Farther than what a consumer would drop to get there: it is assigned anew.
    task = (OffsetRange(P0, 60_000, 60_010, 0),)
    why = "the topic was deleted and recreated" if again else "the topic was deleted"
    if fails == "true":
        with pytest.raises(DataLossError, match=rf"DATA_LOST.*orders-0 \[60000, 60010\): {why}"):
            list(read_task(options, task, pool, topic_ids=ids))
        return
    started = time.monotonic()
    assert list(read_task(options, task, pool, topic_ids=ids)) == []
    assert f"orders-0 [60000, 60010): {why}" in caplog.text
    assert time.monotonic() - started < WAIT_S
    if again:
        new, following = {"orders": topic_id(options)}, (OffsetRange(P0, 0, 20),)
        table = pa.Table.from_batches(list(read_task(options, following, pool, topic_ids=new)))
        assert table["value"].to_pylist() == [b"new"] * 20
    pool.borrow(options, task).close()


def test_the_ids_of_topics(kafka: EmbeddedKafka) -> None:
    options = options_of(kafka)
    answers = [TopicIdRequest(options, ["orders", "nothing"], WAIT_S), TopicIdRequest(options, ["orders"], WAIT_S)]
    assert answers[0].answer(WAIT_S) == {"orders": topic_id(options), "nothing": None}
    assert answers[1].answer(WAIT_S) == {"orders": topic_id(options)}


def test_an_id_that_no_broker_reports(kafka: EmbeddedKafka) -> None:
    options = options_of(kafka)
    TopicIdRequest(options, ["orders"], WAIT_S).answer(WAIT_S)
    kafka.broker_down()
    request = TopicIdRequest(options, ["orders"], 5.0)
    assert request.answer(0.0) is None
    with pytest.raises(RequestFailed):
        assert request.answer(WAIT_S)


def test_a_task_whose_brokers_are_down_says_why(
    kafka: EmbeddedKafka, make: Callable[[SourceOptions], FetchClient]
) -> None:
    kafka.broker_down()
    pool = pool_of(make)
    options = options_of(kafka, kafkaConsumer__pollTimeoutMs="1500")
    with pytest.raises(ReadError, match=r"READ_STALLED.*Connect"):
        list(read_task(options, (OffsetRange(P0, 0, 5),), pool))
