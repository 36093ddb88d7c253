"""The extension alone, on a scripted librdkafka: what no broker can be made to send, and who frees what."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from spark_groupsource._librdkafka import library_path
from spark_groupsource.executor.clients.arrow_buffers import ConstantColumns, run_rows
from spark_groupsource.executor.clients.choose import native_library
from spark_groupsource.executor.clients.native import GATHER_VERSION, NativeClient, NativeLibrary
from spark_groupsource.executor.clients.port import EndOfPartition, Trouble
from spark_groupsource.executor.clients.rows import arrow_schema
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.fakes import make_options

MIB = 1024 * 1024
RUN, EVENT, TIMESTAMP, HEADERS_UNREAD = 0, 1, 2, 3
QUEUE = 42
P0 = TopicPartition("orders", 0)


class CMessage(ctypes.Structure):
    """rd_kafka_message_t, as librdkafka's rdkafka.h has it."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


P = ctypes.POINTER
CONSUME = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_int, P(P(CMessage)), ctypes.c_size_t)
DESTROY = ctypes.CFUNCTYPE(None, P(CMessage))
STAMP = ctypes.CFUNCTYPE(ctypes.c_int64, P(CMessage), P(ctypes.c_int))
HEADERS = ctypes.CFUNCTYPE(ctypes.c_int, P(CMessage), P(ctypes.c_void_p))
HEADER_AT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, P(ctypes.c_char_p), P(ctypes.c_void_p), P(ctypes.c_size_t)
)
TOPIC_NAME = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
HEADERS_NEW = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
HEADER_ADD = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ssize_t, ctypes.c_char_p, ctypes.c_ssize_t
)
HEADERS_DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Record:
    """One scripted message; sizes may be claimed that only an unread payload can have."""

    def __init__(
        self,
        value: bytes | None = b"v",
        key: bytes | None = None,
        *,
        topic: bytes | None = b"orders",
        partition: int = 0,
        offset: int = 0,
        stamp: tuple[int, int] = (1, 1_000),
        headers: list[tuple[bytes, bytes | None]] | None = None,
        headers_error: int = KafkaError._NOENT,
        error: int = 0,
        claimed: int | None = None,
    ) -> None:
        self.stamp, self.headers, self.headers_error = stamp, headers, headers_error
        self.buffers = [_exactly(part) for part in (value, key)]
        self.names = [ctypes.create_string_buffer(name) for name, _ in headers or ()]
        self.values = [_exactly(part) for _, part in headers or ()]
        payload, name = (0 if buffer is None else ctypes.addressof(buffer) for buffer in self.buffers)
        self.message = CMessage(
            error, Script.topic(topic), partition, payload, len(value or b"") if claimed is None else claimed, name,
            len(key or b""), offset, None,
        )  # fmt: skip


def _exactly(data: bytes | None) -> Any:
    """Memory of exactly this size, so that the address sanitizer sees a step beyond it."""
    return None if data is None else ctypes.create_string_buffer(data, len(data))


class Script:
    """Stands in for librdkafka: hands out records, and counts what is destroyed."""

    topics: ClassVar[dict[bytes, Any]] = {}

    def __init__(self, *records: Record) -> None:
        self.records = list(records)
        self.destroyed: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self._by_address = {ctypes.addressof(record.message): record for record in records}
        self._functions = (
            CONSUME(self._consume),
            DESTROY(self._destroy),
            STAMP(self._stamp),
            HEADERS(self._headers),
            HEADER_AT(self._header_at),
            TOPIC_NAME(lambda topic: topic),
            # Makes no headers by itself: names then end at a zero byte.
            HEADERS_NEW(lambda _: None),
            HEADER_ADD(lambda *_: 0),
            HEADERS_DESTROY(lambda _: None),
        )
        self.addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in self._functions]

    @classmethod
    def topic(cls, name: bytes | None) -> int:
        """The topic handle: the address of its name."""
        if name is None:
            return 0
        return ctypes.addressof(cls.topics.setdefault(name, ctypes.create_string_buffer(name)))

    def _record(self, message: Any) -> Record:
        return self._by_address[ctypes.addressof(message.contents)]

    def _consume(self, queue: int, timeout_ms: int, messages: Any, size: int) -> int:
        assert queue == QUEUE
        self.asked.append((timeout_ms, size))
        taken, self.records = self.records[:size], self.records[size:]
        for index, record in enumerate(taken):
            messages[index] = ctypes.pointer(record.message)
        return len(taken)

    def _destroy(self, message: Any) -> None:
        self.destroyed.append(message.contents.offset)

    def _stamp(self, message: Any, kind: Any) -> int:
        kind[0], value = self._record(message).stamp
        return value

    def _headers(self, message: Any, found: Any) -> int:
        record = self._record(message)
        if record.headers is None:
            return record.headers_error
        found[0] = ctypes.addressof(message.contents)
        return 0

    def _header_at(self, headers: int, index: int, name: Any, value: Any, size: Any) -> int:
        record = self._by_address[headers]
        if index >= len(record.names):
            return KafkaError._NOENT
        buffer = record.values[index]
        ctypes.cast(name, P(ctypes.c_void_p))[0] = ctypes.addressof(record.names[index])
        value[0] = None if buffer is None else ctypes.addressof(buffer)
        size[0] = 0 if buffer is None else len(buffer)
        return 0


@pytest.fixture
def gather() -> Iterator[ModuleType]:
    """The extension; afterwards it is joined to the real library again."""
    library = native_library()
    if not isinstance(library, NativeLibrary):
        # Where it must not be left out, a compiler that is missing is a failure.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"not built: {library}")
    from spark_groupsource.executor.clients import _gather  # type: ignore[attr-defined]

    yield _gather
    NativeLibrary(library_path(), _gather)


def run(
    gather: ModuleType, script: Script, *, size: int = 1_000, headers: bool = False, max_bytes: int = 64 * MIB
) -> list[Any]:
    """Gather once; every message must have been destroyed, once."""
    given = sorted(record.message.offset for record in script.records[:size])
    gather.connect(*script.addresses)
    items = gather.gather(QUEUE, size, 100, headers, max_bytes)
    assert sorted(script.destroyed) == given
    return list(items)


def rows(items: list[Any]) -> list[dict[str, Any]]:
    batches = [run_rows(item, ConstantColumns()) for item in items if item[0] == RUN]
    for batch in batches:
        batch.validate(full=True)
    return list(pa.Table.from_batches(batches, batches[0].schema).to_pylist())


def records(*offsets: int, **more: Any) -> list[Record]:
    return [Record(b"v%d" % offset, b"k%d" % offset, offset=offset, **more) for offset in offsets]


def test_a_first_message_is_waited_for_and_more_are_taken_if_they_are_there(gather: ModuleType) -> None:
    script = Script(*records(0, 1, 2, 3))
    assert [item[3] for item in run(gather, script, size=3)] == [3]
    assert script.asked == [(100, 1), (0, 2)]
    script = Script(*records(0))
    run(gather, script, size=1)
    assert script.asked == [(100, 1)]
    assert run(gather, Script()) == []


def test_after_an_event_nothing_is_waited_for(gather: ModuleType) -> None:
    script = Script(Record(b"the end", offset=7, error=KafkaError._PARTITION_EOF), *records(7))
    event, run_of_one = run(gather, script)
    assert event == (EVENT, "orders", 0, 7, KafkaError._PARTITION_EOF, "the end")
    assert run_of_one[3] == 1
    assert script.asked == [(100, 1), (0, 999)]


def test_events_without_topic_or_text(gather: ModuleType) -> None:
    script = Script(Record(None, topic=None, partition=-1, offset=-1001, error=-195), Record(b"\xff", error=-1))
    assert run(gather, script) == [(EVENT, None, -1, -1001, -195, ""), (EVENT, "orders", 0, 0, -1, "\ufffd")]


def test_runs_end_where_partition_topic_or_kind_change(gather: ModuleType) -> None:
    script = Script(
        *records(0, 1), *records(0, 1, partition=1), *records(5, topic=b"other", partition=1),
        Record(b"", offset=9, error=-191), *records(6, topic=b"other", partition=1),
    )  # fmt: skip
    items = run(gather, script)
    assert [(item[0], item[1], item[2]) for item in items] == [
        (RUN, "orders", 0), (RUN, "orders", 1), (RUN, "other", 1), (EVENT, "orders", 0), (RUN, "other", 1),
    ]  # fmt: skip
    assert [item[3] for item in items if item[0] == RUN] == [2, 2, 1, 1]


def test_rows_are_exact(gather: ModuleType) -> None:
    sent = [(k, v) for k in (None, b"", b"k\x00k") for v in (None, b"", b"v" * 100)]
    kinds = [(0, -1), (0, 77), (1, -5), (2, 1_700_000_000_123), (1, 0)]
    script = Script(
        *(Record(v, k, offset=10 * i, stamp=kinds[i % len(kinds)]) for i, (k, v) in enumerate(sent)),
    )
    (item,) = run(gather, script)
    batch = run_rows(item, ConstantColumns())
    assert batch.schema == arrow_schema(False)
    found = rows([item])
    assert [(row["key"], row["value"]) for row in found] == sent
    assert [row["offset"] for row in found] == [10 * i for i in range(len(sent))]
    stamps = [kinds[i % len(kinds)] for i in range(len(sent))]
    expected = [-1_000 if kind == 0 else value * 1_000 for kind, value in stamps]
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == expected
    assert batch.column("timestampType").to_pylist() == [kind - 1 for kind, _ in stamps]


@pytest.mark.parametrize("stamp", [2**63 - 1, -(2**63), (2**63 - 1) // 1000 + 1, -((2**63 - 1) // 1000) - 1])
def test_a_timestamp_that_spark_cannot_hold_stands_in_its_place(gather: ModuleType, stamp: int) -> None:
    script = Script(*records(0, 1), Record(offset=2, stamp=(1, stamp)), *records(3))
    items = run(gather, script)
    assert [item[0] for item in items] == [RUN, TIMESTAMP, RUN]
    assert items[1] == (TIMESTAMP, "orders", 0, 2, stamp)


@pytest.mark.parametrize("stamp", [(2**63 - 1) // 1000, -((2**63 - 1) // 1000)])
def test_the_outermost_timestamps(gather: ModuleType, stamp: int) -> None:
    (item,) = run(gather, Script(Record(stamp=(2, stamp))))
    batch = run_rows(item, ConstantColumns())
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [stamp * 1000]


def test_headers(gather: ModuleType) -> None:
    sent: list[list[tuple[bytes, bytes | None]] | None] = [
        None, [], [(b"a", b"1"), (b"a", None)], [(b"", b"")], None, [("\u00e9".encode(), b"\xff\x00")] * 9,
    ]  # fmt: skip
    script = Script(*(Record(offset=i, headers=headers) for i, headers in enumerate(sent)))
    found = rows(run(gather, script, headers=True))
    assert [row["headers"] for row in found] == [
        [{"key": name.decode(), "value": value} for name, value in headers] if headers else None for headers in sent
    ]


def test_headers_that_the_library_does_not_read_stand_in_the_rows_place(gather: ModuleType) -> None:
    def script() -> Script:
        return Script(Record(offset=0), Record(offset=1, headers_error=KafkaError._BAD_MSG), Record(offset=2))

    found = run(gather, script(), headers=True)
    assert [item[0] for item in found] == [RUN, HEADERS_UNREAD, RUN]
    assert found[1] == (HEADERS_UNREAD, "orders", 0, 1, 1_000)
    assert [item[3] for item in run(gather, script(), headers=False)] == [3]


def test_a_header_name_that_is_no_text_is_replaced(gather: ModuleType) -> None:
    """As in Spark's own source."""
    (row,) = rows(run(gather, Script(Record(headers=[(b"a\xffb", b"1")])), headers=True))
    assert row["headers"] == [{"key": "a\ufffdb", "value": b"1"}]


def test_a_library_that_does_not_show_the_sizes_of_names(gather: ModuleType) -> None:
    """Then a name ends at its first zero byte, as librdkafka's public interface has it."""
    (row,) = rows(run(gather, Script(Record(headers=[(b"a\0b", b"1")])), headers=True))
    assert row["headers"] == [{"key": "a", "value": b"1"}]
    assert gather.connect(*Script().addresses) is False


def test_the_installed_library_shows_the_sizes_of_names(gather: ModuleType) -> None:
    """If this fails with a new librdkafka: see stored_name_size in _gather_parts.h."""
    assert NativeLibrary(library_path(), gather).reads_whole_names


@pytest.mark.parametrize("part", ["key", "value", "header"])
def test_a_run_ends_before_it_exceeds_the_bound(gather: ModuleType, part: str) -> None:
    def record(offset: int, size: int) -> Record:
        data = b"x" * size
        if part == "header":
            return Record(None, None, offset=offset, headers=[(b"", data)])
        return Record(data, None, offset=offset) if part == "value" else Record(None, data, offset=offset)

    script = Script(*(record(i, size) for i, size in enumerate([40, 40, 500, 1, 40, 20, 60])))
    items = run(gather, script, headers=True, max_bytes=100 + 2 * 16 * (part == "header"))
    assert [item[3] for item in items] == [2, 1, 3, 1]
    assert [row["offset"] for row in rows(items)] == list(range(7))


def test_empty_headers_count_too(gather: ModuleType) -> None:
    script = Script(*(Record(None, offset=i, headers=[(b"", b"")] * 10) for i in range(4)))
    assert [item[3] for item in run(gather, script, headers=True, max_bytes=350)] == [2, 2]


def test_a_record_beyond_an_arrow_array_is_an_error(gather: ModuleType) -> None:
    """It is told by its size alone; nothing of it is touched, and all messages are freed."""
    script = Script(*records(0), Record(b"v", offset=1, claimed=2**31), *records(2))
    with pytest.raises(OverflowError, match=r"2147483648 bytes"):
        run(gather, script)
    assert script.destroyed == [0, 1, 2]


def test_ten_thousand_runs(gather: ModuleType) -> None:
    script = Script(*(Record(b"%d" % i, offset=i) for i in range(10_000)))
    items = run(gather, script, size=10_000, max_bytes=1)
    assert len(items) == 10_000
    assert [row["value"] for row in rows(items)] == [b"%d" % i for i in range(10_000)]


def test_many_topics_and_partitions_have_columns_of_their_own() -> None:
    """Only so many are kept; what does not fit is made for the rows that there are, and throws no other one out."""
    constants = ConstantColumns()
    for _ in range(2):
        for number in range(300):
            name = f"topic-{number}" * (1 + number % 5)
            assert constants.topic(name, 3).to_pylist() == [name] * 3
            assert constants.partition(number, 2).to_pylist() == [number] * 2
    assert constants.topic("topic-0", 20_000).to_pylist() == ["topic-0"] * 20_000
    first = constants.topic("topic-0", 1).buffers()[2].address
    for number in range(9):
        assert constants.topic(f"another-{number}", 1).to_pylist() == [f"another-{number}"]
    assert constants.topic("topic-0", 1).buffers()[2].address == first


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1, 0, False, 1),
        (QUEUE, 0, 0, False, 1),
        (QUEUE, 2**40, 0, False, 1),
        (QUEUE, 1, -1, False, 1),
        (QUEUE, 1, 0, False, 0),
        (QUEUE, 1, 0, False, 2**31),
        (QUEUE, 1),
    ],
)
def test_refused_arguments(gather: ModuleType, arguments: tuple[Any, ...]) -> None:
    script = Script(*records(0))
    gather.connect(*script.addresses)
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        gather.gather(*arguments)
    assert script.asked == []


def test_refused_addresses_and_versions(gather: ModuleType) -> None:
    with pytest.raises(ValueError, match="null"):
        gather.connect(1, 2, 3, 4, 5, 6, 7, 8, 0)
    stale = ModuleType("_gather")
    stale.VERSION = GATHER_VERSION + 1  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="install the package again"):
        NativeLibrary(library_path(), stale)


class Bare:
    """Stands in for librdkafka and the extension of a client that is handed these runs, one after the other."""

    def __init__(self, *found: list[Any]) -> None:
        self._found = list(found)

    def __call__(self, name: str, *_: object) -> int:
        return QUEUE if name == "queue_get_partition" else 1 if name in {"conf_new", "new"} else 0

    def gather(self, queue: int, *_: object) -> list[Any]:
        return self._found.pop(0) if queue == QUEUE else []


def test_a_refused_identity_is_forgotten_when_rows_come(gather: ModuleType) -> None:
    """A client that has none of an old refusal's words left does not tell them at the next silence."""
    runs = run(gather, Script(*records(0, 1)))
    end = (EVENT, "orders", 0, 2, KafkaError._PARTITION_EOF, "the end")
    library: Any = Bare([], runs, [], [end], [])
    client = NativeClient(make_options(), {"logger": logging.getLogger("unit")}, library)
    client.assign({P0: 0})
    told: list[list[Any]] = []
    for refused in (True, False, False, True, False):
        if refused:
            client._transport(KafkaError(KafkaError._AUTHENTICATION, "invalid token"))
        told.append([getattr(item, "refused", type(item)) for item in client.receive(P0, 10, MIB, 0.1)])
    assert told == [[True], [pa.RecordBatch], [False], [EndOfPartition], [False]]


class Throttled(Bare):
    """Calls the client's throttle callback while its main queue is served, as librdkafka does."""

    def __call__(self, name: str, *args: Any) -> int:
        if name == "conf_set_throttle_cb":
            self.throttle = args[1]
        if name == "queue_poll":
            self.throttle(None, b"kafka-3:9092", 3, 32_100, None)
        return super().__call__(name, *args)


def test_a_quota_is_the_reason_why_nothing_comes(gather: ModuleType) -> None:
    library: Any = Throttled([])
    client = NativeClient(make_options(), {"logger": logging.getLogger("unit")}, library)
    client.assign({P0: 0})
    assert client.receive(P0, 10, MIB, 0.1) == [Trouble("a quota delays this client, by 32.1 s on broker 3")]


class Chatty(Bare):
    """A client whose main queue gets `per_call` events with each call that returns these runs."""

    def __init__(self, per_call: int, *found: list[Any]) -> None:
        super().__init__(*found)
        self.queued, self.asked = 0, 0
        self._per_call = per_call

    def __call__(self, name: str, *args: object) -> int:
        if name == "queue_poll":
            self.asked += 1
            self.queued, event = max(0, self.queued - 1), min(1, self.queued)
            return event
        return super().__call__(name, *args)

    def gather(self, queue: int, *args: object) -> list[Any]:
        self.queued += self._per_call
        return super().gather(QUEUE, *args)


@pytest.mark.parametrize(("per_call", "asked"), [(0, 1), (4, 5)])
def test_events_are_read_also_after_full_calls(gather: ModuleType, per_call: int, asked: int) -> None:
    """A reader that always finds records must not leave errors and log lines in the client's memory."""
    calls = 20
    runs = [run(gather, Script(*records(0, 1))) for _ in range(calls)]
    library: Any = Chatty(per_call, *runs)
    client = NativeClient(make_options(), {"logger": logging.getLogger("unit")}, library)
    client.assign({P0: 0})
    for number in range(1, calls + 1):
        assert [type(item) for item in client.receive(P0, 2, MIB, 0.1)] == [pa.RecordBatch]
        assert library.queued == 0
        assert library.asked == number * asked
