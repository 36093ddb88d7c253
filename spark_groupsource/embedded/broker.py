"""Run an embedded Kafka broker for tests and demos: no JVM, no container, started in milliseconds.

It is the mock cluster of librdkafka, which is part of the confluent-kafka wheel, called through ctypes. It listens on
127.0.0.1 only; other processes of this machine can connect to it. This module must not import Spark, nor anything else
of this package, because users' own tests import it alone.

    with EmbeddedKafka(topics={"orders": 4}) as kafka:
        kafka.produce("orders", [("key", "value"), "a value alone"])
        ... .option("kafka.bootstrap.servers", kafka.bootstrap_servers)

From a shell, `python -m spark_groupsource.embedded --topic orders:4` prints
`bootstrap.servers=127.0.0.1:PORT` and runs until its standard input ends, or SIGTERM or SIGINT arrives.

What differs from Kafka (as of librdkafka 2.16; tests/embedded/test_gaps.py shows each line marked *):
- Records: in memory only; each partition keeps its newest 5 MiB * (as sent: compressed batches count as
  compressed) and 100,000 batches, and drops the oldest without a notice. No compaction, no retention by time.
- Reading: an empty fetch is answered after the full fetch.wait.max.ms *, also when a record arrives meanwhile
  (set it low in tests). One batch per partition and fetch.
- Offsets by timestamp: never found, -1 * (list_offsets, offsets_for_times, max_timestamp). Record timestamps
  and headers are kept.
- Transactions: markers take an offset each *, but the last stable offset is the end of the log * and aborted
  records are delivered to read_committed readers *.
- Producers: sequence numbers are checked for transactional producers only.
- Topics: no create *, delete, alter or describe-configs requests, no growth of a topic; use create_topic and
  delete_topic. A producer's or an admin client's metadata request creates a missing topic, with 4
  partitions *; a consumer's does not. Leaders are chosen at random. Topic ids are real.
- Groups: no describe; list_consumer_groups is empty *; list_consumer_group_offsets without partitions is
  empty *, with partitions it works. Offsets disappear with the topic *.
- Commit: in a group that ever had a member, a commit by a non-member (alter_consumer_group_offsets) is refused
  with UNKNOWN_MEMBER_ID, also after all have left *. A leader epoch that is not the current one is refused *,
  and the epoch that comes back is the partition's current one *. Metadata has no length limit *. As in Kafka,
  a member may commit partitions of others.
- Classic groups: a rebalance of a group with members takes session.timeout.ms less 1 s *, whatever the members
  do; a commit inside its revoke callback is refused with REBALANCE_IN_PROGRESS under the eager strategies *
  (cooperative ones may commit, unless they leave). Static membership does not exist: the instance id is
  ignored, no member is fenced.
- group.protocol=consumer: joins, drains, commits in the callback and leaves as in Kafka; static members
  return; a second live owner of an instance id gets neither partitions nor an error. The assignor is fixed.
- Coordinator: any broker accepts a group's requests; set_coordinator moves where clients send them. While a group
  has none, a synchronous commit of librdkafka does not return.
- No TLS, no SASL, no ACLs, no quotas.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import enum
import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from spark_groupsource._librdkafka import library_path
from spark_groupsource.embedded.mock_cluster import (
    EmbeddedKafkaError,
    Library,
    new_handle,
    seen_requests,
)

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

__all__ = ["ApiKey", "EmbeddedKafka", "EmbeddedKafkaError", "Record", "SeenRequest"]

_CHUNK_RECORDS = 1_000  # a batch of librdkafka holds 10,000 records
_CHUNK_BYTES = 1_000_000
Record: TypeAlias = str | bytes | tuple[Any, ...]
"""Input of `produce`: a value, or (key, value[, partition[, timestamp_ms[, headers]]])."""


class ApiKey(enum.IntEnum):
    """Kafka's request types that the broker supports, for `fail_next` and `requests`."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    API_VERSIONS = 18
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    CONSUMER_GROUP_HEARTBEAT = 68


class SeenRequest(NamedTuple):
    """One request that a broker received; time_us is on a monotonic clock."""

    broker_id: int
    api_key: int
    time_us: int


def _destroy(library: Library, cluster: int, handle: int, owner_pid: int) -> None:
    # A forked child has the memory but not the threads: joining them there would block for ever.
    if os.getpid() == owner_pid:
        library("mock_cluster_destroy", cluster)
        library("destroy", handle)


class EmbeddedKafka:
    """A running cluster of in-memory brokers with the ids 1 to `brokers`.

    Any thread may call any method: `close` waits for calls of other threads, which are short. A `produce` that is under
    way then fails.

    topics: name -> number of partitions, created at once. rebalance_delay_ms: how long a new classic group waits for
    more members (Kafka: 3000). session_timeout_ms, heartbeat_interval_ms: for groups with `group.protocol=consumer`;
    classic members choose their own. Errors are EmbeddedKafkaError, also every call of a closed cluster.
    """

    def __init__(
        self,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        *,
        rebalance_delay_ms: int = 0,
        session_timeout_ms: int = 6_000,
        heartbeat_interval_ms: int = 500,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: at least 1 is needed")
        self._library = Library(library_path())
        # The finalizer does without: it runs when no thread can call a method any more.
        self._lock = threading.Lock()
        handle = new_handle(self._library)
        cluster = self._library("mock_cluster_new", handle, brokers)
        if not cluster:
            self._library("destroy", handle)
            raise EmbeddedKafkaError(f"rd_kafka_mock_cluster_new({brokers}) returned no cluster")
        self._cluster: int = cluster
        self._handle: int = handle
        self._brokers = brokers
        self._end = weakref.finalize(self, _destroy, self._library, cluster, handle, os.getpid())
        self._end.atexit = False  # the process ends the threads anyway, and a client may still use them
        self._bootstrap_servers: str = self._library("mock_cluster_bootstraps", cluster).decode()
        try:
            self._call("mock_group_initial_rebalance_delay_ms", rebalance_delay_ms)
            self._call("mock_set_group_consumer_session_timeout_ms", session_timeout_ms)
            self._call("mock_set_group_consumer_heartbeat_interval_ms", heartbeat_interval_ms)
            self._call("mock_set_controller_id", 1)  # describe_topics needs a controller
            for name, partitions in (topics or {}).items():
                self.create_topic(name, partitions)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> EmbeddedKafka:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "running" if self._end.alive else "closed"
        return f"EmbeddedKafka({self._bootstrap_servers}, {state})"

    def _open(self) -> int:
        if not self._end.alive:
            raise EmbeddedKafkaError(f"{self!r}: the broker is closed")
        return self._cluster

    def _call(self, name: str, *args: Any) -> Any:
        with self._lock:
            return self._library(name, self._open(), *args)

    @property
    def bootstrap_servers(self) -> str:
        """host:port of every broker, comma separated: the value of `kafka.bootstrap.servers`."""
        return self._bootstrap_servers

    def close(self) -> None:
        """Disconnect every client and drop all data. A second call does nothing.

        Guards against:
        1. A thread is inside of a call, such as `requests`.
        2. Another thread closes the broker. librdkafka frees what the call uses, and the process crashes.
        """
        with self._lock:
            self._end()

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic, replicated to min(3, brokers) brokers. Raises an error if it exists."""
        if partitions < 1:
            raise ValueError(f"topic {name}: partitions={partitions}: at least 1 is needed")
        self._call("mock_topic_create", name.encode(), partitions, min(3, self._brokers))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and committed offsets. A new topic of this name has a new id."""
        self._call("mock_topic_delete", name.encode())

    def fail_topic(self, name: str, error: int) -> None:
        """Answer requests for this topic's metadata with a Kafka error code, until called with 0."""
        self._call("mock_topic_set_error", name.encode(), error)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Make before_offset the first offset of the partition, as retention would."""
        self._call("mock_partition_delete_records", topic.encode(), partition, before_offset)

    def set_leader(self, topic: str, partition: int, broker_id: int | None) -> None:
        """Move a partition's leader (its leader epoch rises); None leaves the partition without one."""
        leader = -1 if broker_id is None else broker_id
        self._call("mock_partition_set_leader", topic.encode(), partition, leader)

    def broker_down(self, broker_id: int | None = None) -> None:
        """Cut a broker's connections and refuse new ones (None: all brokers). Leaders stay where they are."""
        self._call("mock_broker_set_down", -1 if broker_id is None else broker_id)

    def broker_up(self, broker_id: int | None = None) -> None:
        """Accept connections again (None: on all brokers)."""
        self._call("mock_broker_set_up", -1 if broker_id is None else broker_id)

    def slow_down(self, delay_ms: int, broker_id: int | None = None) -> None:
        """Delay every response of a broker (None: of all brokers); 0 ends the delay."""
        self._call("mock_broker_set_rtt", -1 if broker_id is None else broker_id, delay_ms)

    def set_rack(self, broker_id: int, rack: str) -> None:
        """Set the rack that the broker reports in its metadata."""
        self._call("mock_broker_set_rack", broker_id, rack.encode())

    def set_coordinator(self, group_id: str, broker_id: int) -> None:
        """Make a broker the coordinator of a group; with an unknown id the coordinator is unavailable."""
        self._call("mock_coordinator_set", b"group", group_id.encode(), broker_id)

    def fail_next(self, api_key: int, *errors: int) -> None:
        """Answer the next requests of this type with these Kafka error codes, one each, in this order.

        KafkaError._TRANSPORT disconnects the client instead; 0 lets a request pass.
        """
        codes = (ctypes.c_int * len(errors))(*errors)
        self._call("mock_push_request_errors_array", api_key, len(errors), codes)

    def answer_next(self, broker_id: int, api_key: int, error: int = 0, delay_ms: int = 0) -> None:
        """Like `fail_next` with one error, but for one broker, and with a delayed response."""
        pair = (ctypes.c_int(error), ctypes.c_int(delay_ms))
        self._call("mock_broker_push_request_error_rtts", broker_id, api_key, 1, *pair)

    def clear_failures(self, api_key: int) -> None:
        """Discard errors of `fail_next` for this request type that no request has received yet."""
        self._call("mock_clear_request_errors", api_key)

    def requests(self, *api_keys: int) -> list[SeenRequest]:
        """Return the requests of these types (default: all) since `track_requests` was called, oldest first."""
        with self._lock:
            rows = seen_requests(self._library, self._handle, self._open())
        return [SeenRequest(*row) for row in rows if not api_keys or row[1] in api_keys]

    def track_requests(self) -> None:
        """Start a new list of requests. It is off by default, because it costs memory per request."""
        self._call("mock_clear_requests")
        self._call("mock_start_request_tracking")

    def produce(self, topic: str, records: Iterable[Record], *, timeout_s: float = 30.0) -> None:
        """Append records in this order and wait until the broker has stored them.

        A record is a value, or (key, value[, partition[, timestamp_ms[, headers]]]); None means "not given". Batches
        are compressed, so that more of them fit into the broker's limited memory. Raises EmbeddedKafkaError if a record
        is rejected, or not acknowledged within timeout_s; the records before it remain. librdkafka retries after an
        error that means a stale leader. If another batch overtakes the retried one, which is rare, the order is lost,
        and this raises EmbeddedKafkaError, too.
        """
        if isinstance(records, (str, bytes)):
            raise TypeError("records must be a list, such as [b'value'] or [(b'key', b'value')]")
        self._open()
        from confluent_kafka import Producer  # noqa: PLC0415  (needed only for produce)

        config: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap_servers,
            "compression.type": "lz4",
            "retries": 0,
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 60_000,  # a flush sends a chunk, as one batch if possible: see _append
            "message.max.bytes": 8 * _CHUNK_BYTES,
            "batch.size": 8 * _CHUNK_BYTES,
            "message.timeout.ms": 60_000 + max(1, int(timeout_s * 1000)),
            "log_level": 0,
        }
        producer, deadline = Producer(config), time.monotonic() + timeout_s
        try:
            for chunk in _chunks(records):
                _append(producer, topic, chunk, deadline)
        finally:
            producer.purge()


def _chunks(records: Iterable[Record]) -> Iterator[list[dict[str, Any]]]:
    """Return the producer arguments of the records, in chunks that each fit into one batch of a partition."""
    chunk: list[dict[str, Any]] = []
    size = 0
    for record in records:
        arguments = _arguments(record)
        chunk.append(arguments)
        size += sum(len(arguments[name] or "") for name in ("key", "value") if name in arguments)
        if len(chunk) >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _append(producer: Producer, topic: str, chunk: list[dict[str, Any]], deadline: float) -> None:
    """Send the chunk and wait for it. Raises EmbeddedKafkaError, also if the order of the records changed.

    With two batches of a partition in flight, the second overtakes the first if that one is retried, even with one
    request in flight. Idempotence does not help, since this broker checks sequence numbers only for transactions.
    Waiting for each chunk makes that rare, but librdkafka may still split a chunk, so the offsets are checked.
    """
    from confluent_kafka import KafkaException  # noqa: PLC0415  (needed only for produce)

    failed: list[str] = []
    places: list[tuple[int, int]] = [(-1, -1)] * len(chunk)

    def delivered(index: int, error: object, message: Message) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            places[index] = (message.partition() or 0, message.offset() or 0)

    for index, arguments in enumerate(chunk):
        try:
            producer.produce(topic, on_delivery=partial(delivered, index), **arguments)
        except (KafkaException, BufferError) as error:
            # The client refuses this record. Those before it are sent all the same.
            failed += [str(error)] * (len(chunk) - index)
            break
    left = producer.flush(max(0.0, deadline - time.monotonic()))
    if failed or left:
        reason = failed[0] if failed else "not acknowledged in time"
        raise EmbeddedKafkaError(f"produce to {topic}: {len(failed) + left} records failed: {reason}")
    newest: dict[int, int] = {}
    for partition, offset in places:
        if offset <= newest.get(partition, -1):
            raise EmbeddedKafkaError(f"produce to {topic}: a retried batch was overtaken: the order is lost")
        newest[partition] = offset


def _arguments(record: Record) -> dict[str, Any]:
    """Return the keyword arguments of Producer.produce for one record."""
    if isinstance(record, str | bytes):
        return {"value": record}
    if not isinstance(record, tuple) or not 2 <= len(record) <= 5:
        raise TypeError(f"{record!r}: a record is str, bytes or (key, value[, partition[, timestamp_ms[, headers]]])")
    if record[3:4] == (0,):
        # The client would take it for "not given", and send the time of now.
        raise ValueError(f"{record!r}: timestamp_ms is 0, which the client cannot send; use 1 or more")
    names = ("key", "value", "partition", "timestamp", "headers")
    given = zip(names, record, strict=False)
    return {name: part for name, part in given if name in {"key", "value"} or part is not None}


def _topic_argument(text: str) -> tuple[str, int]:
    name, colon, count = text.rpartition(":")
    if not colon or not name or not count.isdecimal() or int(count) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:PARTITIONS")
    return name, int(count)


def _catch_signals() -> int:
    """Make SIGTERM and SIGINT only write a byte to the returned descriptor."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    return wake


def _wait_for_end(wake: int) -> str:
    """Wait until standard input ends, or a signal has arrived since `_catch_signals`. Return the reason."""
    while True:
        ready, _, _ = select.select([wake, 0], [], [])
        if wake in ready:
            return "a signal arrived"
        with contextlib.suppress(BlockingIOError):
            if not os.read(0, 65_536):
                return "its standard input has ended"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: start, print the address, and wait for the end."""
    parser = argparse.ArgumentParser(prog="python -m spark_groupsource.embedded", description=__doc__.split("\n")[0])
    parser.add_argument("--topic", metavar="NAME:PARTITIONS", type=_topic_argument, action="append", default=[])
    parser.add_argument("--brokers", type=int, choices=range(1, 10), default=1, help="number of brokers (default: 1)")
    options = parser.parse_args(arguments)
    wake = _catch_signals()  # before the address is printed: its reader may send a signal at once
    with EmbeddedKafka(brokers=options.brokers, topics=dict(options.topic)) as kafka:
        print(f"bootstrap.servers={kafka.bootstrap_servers}", flush=True)
        print("runs until Ctrl-C, or until its standard input ends", file=sys.stderr, flush=True)
        print(f"ending: {_wait_for_end(wake)}", file=sys.stderr, flush=True)
    return 0
