"""Read with librdkafka's public C API through ctypes, and gather the records with _gather.c.

The library is the one in the confluent-kafka wheel, which `confluent_kafka` itself uses. No Python function is ever
called from its threads: errors, log lines and delays by quotas are read from its main queue.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from spark_groupsource import errors
from spark_groupsource.client.errors import TransportState
from spark_groupsource.client.settings import creating_client
from spark_groupsource.client.tokens import SETTING as TOKENS
from spark_groupsource.client.tokens import TokenKeeper
from spark_groupsource.executor.clients.arrow_buffers import ConstantColumns, run_rows
from spark_groupsource.executor.clients.error_events import check_topic, item_of, trouble
from spark_groupsource.executor.clients.port import FetchedItem, Misfit, RequestFailed
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# The version of _gather.c that this module needs.
GATHER_VERSION = 4
_KIND_RUN, _KIND_EVENT, _KIND_TIMESTAMP = 0, 1, 2
_ERRSTR_SIZE = 512
_CONSUMER = 1  # rd_kafka_type_t
_EVENT_LOG, _EVENT_ERROR = 0x4, 0x8
# Events of the main queue that one call of `receive` reads.
_EVENTS_AT_ONCE = 100

_PTR, _STR, _INT, _I32, _I64, _SIZE = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_size_t,
)


# rd_kafka_conf_set_throttle_cb: client, broker's name and id, delay in ms, opaque. Called by `queue_poll` only.
_ON_THROTTLE = ctypes.CFUNCTYPE(None, _PTR, _STR, _I32, _INT, _PTR)


class _Partition(ctypes.Structure):
    """Map the first fields of rd_kafka_topic_partition_t."""

    _fields_ = (("topic", _STR), ("partition", _I32), ("offset", _I64))


class _TopicMetadata(ctypes.Structure):
    """Map rd_kafka_metadata_topic_t."""

    _fields_ = (("topic", _STR), ("partition_count", _INT), ("partitions", _PTR), ("error", _INT))


class _Metadata(ctypes.Structure):
    """Map the first fields of rd_kafka_metadata_t."""

    _fields_ = (
        ("broker_count", _INT),
        ("brokers", _PTR),
        ("topic_count", _INT),
        ("topics", ctypes.POINTER(_TopicMetadata)),
    )


# Name without "rd_kafka_": (result, arguments), from librdkafka's rdkafka.h. Its enums are C ints.
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "err2str": (_STR, (_INT,)),
    "conf_new": (_PTR, ()),
    "conf_destroy": (None, (_PTR,)),
    "conf_set": (_INT, (_PTR, _STR, _STR, _STR, _SIZE)),
    "conf_set_events": (None, (_PTR, _INT)),
    "conf_set_throttle_cb": (None, (_PTR, _ON_THROTTLE)),
    "new": (_PTR, (_INT, _PTR, _STR, _SIZE)),
    "destroy": (None, (_PTR,)),
    "consumer_close": (_INT, (_PTR,)),
    "queue_get_consumer": (_PTR, (_PTR,)),
    "queue_get_main": (_PTR, (_PTR,)),
    "queue_get_partition": (_PTR, (_PTR, _STR, _I32)),
    "queue_forward": (None, (_PTR, _PTR)),
    "queue_length": (_SIZE, (_PTR,)),
    "queue_destroy": (None, (_PTR,)),
    "queue_poll": (_PTR, (_PTR, _INT)),
    "set_log_queue": (_INT, (_PTR, _PTR)),
    "event_type": (_INT, (_PTR,)),
    "event_error": (_INT, (_PTR,)),
    "event_error_string": (_STR, (_PTR,)),
    "event_log": (_INT, (_PTR, ctypes.POINTER(_STR), ctypes.POINTER(_STR), ctypes.POINTER(_INT))),
    "event_destroy": (None, (_PTR,)),
    "topic_partition_list_new": (_PTR, (_INT,)),
    "topic_partition_list_add": (ctypes.POINTER(_Partition), (_PTR, _STR, _I32)),
    "topic_partition_list_set_offset": (_INT, (_PTR, _STR, _I32, _I64)),
    "topic_partition_list_destroy": (None, (_PTR,)),
    "position": (_INT, (_PTR, _PTR)),
    # These two return a rd_kafka_error_t, which is null on success.
    "incremental_assign": (_PTR, (_PTR, _PTR)),
    "incremental_unassign": (_PTR, (_PTR, _PTR)),
    "error_code": (_INT, (_PTR,)),
    "error_string": (_STR, (_PTR,)),
    "error_destroy": (None, (_PTR,)),
    "topic_new": (_PTR, (_PTR, _STR, _PTR)),
    "topic_destroy": (None, (_PTR,)),
    "metadata": (_INT, (_PTR, _INT, _PTR, ctypes.POINTER(_PTR), _INT)),
    "metadata_destroy": (None, (_PTR,)),
    "query_watermark_offsets": (_INT, (_PTR, _STR, _I32, ctypes.POINTER(_I64), ctypes.POINTER(_I64), _INT)),
}
# In the order of _gather.connect's arguments.
_GATHERED = (
    "consume_batch_queue",
    "message_destroy",
    "message_timestamp",
    "message_headers",
    "header_get_all",
    "topic_name",
    "headers_new",
    "header_add",
    "headers_destroy",
)


class NativeLibrary:
    """Connect librdkafka and the extension. Raises `OSError` or `AttributeError` if they do not fit together."""

    def __init__(self, path: str, gather: ModuleType) -> None:
        if gather.VERSION != GATHER_VERSION:
            raise OSError(f"_gather has version {gather.VERSION}, not {GATHER_VERSION}: install the package again")
        dll = ctypes.CDLL(path)
        self._functions: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(dll, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function
        addresses = (ctypes.cast(getattr(dll, f"rd_kafka_{name}"), _PTR).value for name in _GATHERED)
        # False with a librdkafka that keeps names of headers in another way: there, a zero byte ends a name.
        self.reads_whole_names: bool = gather.connect(*addresses)
        self.gather = gather.gather

    def __call__(self, name: str, *args: Any) -> Any:
        """Call rd_kafka_<name>; the GIL is released meanwhile."""
        return self._functions[name](*args)

    def text(self, code: int) -> str:
        """Return the text of an error code."""
        return str(self("err2str", code).decode(errors="replace"))


class NativeClient:
    """Implement `FetchClient` on librdkafka's C API."""

    def __init__(self, options: SourceOptions, settings: Mapping[str, Any], library: NativeLibrary) -> None:
        self._library = library
        self._include_headers = options.include_headers
        self._constants = ConstantColumns()
        self._transport = TransportState(options.token_login)
        # Kept as long as the client, which calls it.
        self._on_throttle = _throttle_callback(self._transport)
        self._logger: logging.Logger = settings["logger"]
        tokens = settings.get(TOKENS)
        self._tokens = tokens if isinstance(tokens, TokenKeeper) else None
        if self._tokens is not None:
            # Before there is a client: it would delay the provider's error until it is destroyed.
            self._tokens.current()
        with creating_client(options):
            self._handle: int | None = _new_handle(library, settings, self._on_throttle)
        if self._tokens is not None:
            self._log_in(self._tokens, self._handle)
        self._consumer = library("queue_get_consumer", self._handle)
        self._main = library("queue_get_main", self._handle)
        self._queues: dict[TopicPartition, int] = {}
        library("set_log_queue", self._handle, self._main)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `FetchClient`."""
        for partition in positions:
            queue = self._library("queue_get_partition", self._handle, partition.topic.encode(), partition.partition)
            # Before the assignment, which would let the consumer's queue receive the records.
            self._library("queue_forward", queue, None)
            self._queues[partition] = queue
        self._change_assignment("incremental_assign", positions)

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `FetchClient`."""
        self._change_assignment("incremental_unassign", dict.fromkeys(partitions, 0))
        for partition in partitions:
            queue = self._queues.pop(partition)
            # The library keeps the records of a partition that it has stopped, until somebody reads its queue.
            self._library.gather(queue, 1, 0, False, 1)
            self._library("queue_destroy", queue)

    def hold_at_most(self, max_bytes: int) -> None:
        """See `FetchClient`: all records are in queues."""

    def receive(
        self, partition: TopicPartition, max_records: int, max_bytes: int, timeout_s: float
    ) -> Sequence[FetchedItem]:
        """See `FetchClient`."""
        found = self._gather(self._queues[partition], max_records, max_bytes, timeout_s)
        if not found:
            # Errors of the consumer as a whole.
            found = self._gather(self._consumer, _EVENTS_AT_ONCE, max_bytes, 0.0)
        items = [self._event(entry) if entry[0] != _KIND_RUN else run_rows(entry, self._constants) for entry in found]
        if found and found[-1][0] == _KIND_RUN and self._transport.text:
            self._transport.worked()
        # Also after a full batch: the client limits neither the number nor the size of the events in this queue.
        self._serve_main_queue()
        if not found:
            items.append(trouble(self._transport))
        return [item for item in items if item is not None]

    def waiting(self, partition: TopicPartition) -> int:
        """See `FetchClient`."""
        return int(self._library("queue_length", self._queues[partition]))

    def passed(self, partition: TopicPartition) -> int:
        """See `FetchClient`."""
        partitions = self._library("topic_partition_list_new", 1)
        try:
            asked = self._library("topic_partition_list_add", partitions, partition.topic.encode(), partition.partition)
            code = self._library("position", self._handle, partitions)
            return -1 if code else int(asked.contents.offset)
        finally:
            self._library("topic_partition_list_destroy", partitions)

    def request_leaders(self, topic: str, timeout_s: float) -> None:
        """See `FetchClient`."""
        handle = self._library("topic_new", self._handle, topic.encode(), None)
        metadata = _PTR()
        try:
            code = self._library("metadata", self._handle, 0, handle, ctypes.byref(metadata), int(timeout_s * 1000))
            if code:
                raise RequestFailed(self._library.text(code))
            found = ctypes.cast(metadata, ctypes.POINTER(_Metadata)).contents
            error = found.topics[0].error if found.topic_count == 1 else 0
            self._library("metadata_destroy", metadata)
            self._transport.worked()
            check_topic(error, self._library.text(error))
        finally:
            if handle:
                self._library("topic_destroy", handle)

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """See `FetchClient`."""
        low, high = _I64(), _I64()
        code = self._library(
            "query_watermark_offsets",
            self._handle,
            partition.topic.encode(),
            partition.partition,
            ctypes.byref(low),
            ctypes.byref(high),
            int(timeout_s * 1000),
        )
        if code:
            raise RequestFailed(self._library.text(code))
        return low.value, high.value

    def close(self) -> None:
        """See `FetchClient`."""
        handle, self._handle = self._handle, None
        if handle is not None:
            if self._tokens is not None:
                self._tokens.remove_handle(handle)
            self._library("consumer_close", handle)
            for queue in (*self._queues.values(), self._consumer, self._main):
                self._library("queue_destroy", queue)
            self._library("destroy", handle)

    # --- helpers

    def _log_in(self, tokens: TokenKeeper, handle: int) -> None:
        try:
            tokens.add_handle(handle)
        except BaseException:
            self._library("destroy", handle)
            raise

    def _gather(self, queue: int, max_records: int, max_bytes: int, timeout_s: float) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self._library.gather(
            queue, max_records, int(timeout_s * 1000), self._include_headers, max_bytes
        )
        return found

    def _change_assignment(self, function: str, positions: Mapping[TopicPartition, int]) -> None:
        partitions = self._library("topic_partition_list_new", len(positions))
        for (topic, number), offset in positions.items():
            self._library("topic_partition_list_add", partitions, topic.encode(), number)
            self._library("topic_partition_list_set_offset", partitions, topic.encode(), number, offset)
        error = self._library(function, self._handle, partitions)
        self._library("topic_partition_list_destroy", partitions)
        if error:
            code, text = self._library("error_code", error), self._library("error_string", error)
            self._library("error_destroy", error)
            raise KafkaException(KafkaError(code, text.decode(errors="replace")))

    def _event(self, entry: tuple[Any, ...]) -> FetchedItem | None:
        kind, topic, number, offset, value, *text = entry
        # An error about the client as a whole has no partition.
        partition = TopicPartition(topic or "?", max(0, number))
        if kind == _KIND_EVENT:
            error = KafkaError(value, text[0] or self._library.text(value))
            return item_of(partition, offset, error, self._transport)
        if kind == _KIND_TIMESTAMP:
            return Misfit(partition, offset, errors.TIMESTAMP_IMPOSSIBLE, value)
        return Misfit(partition, offset, errors.TOO_MANY_HEADERS)

    def _serve_main_queue(self) -> None:
        """Process errors and log lines. librdkafka also serves its own requests to the application here."""
        for _ in range(_EVENTS_AT_ONCE):
            event = self._library("queue_poll", self._main, 0)
            if not event:
                return
            try:
                self._on_event(event)
            finally:
                self._library("event_destroy", event)

    def _on_event(self, event: int) -> None:
        kind = self._library("event_type", event)
        if kind == _EVENT_ERROR:
            text = self._library("event_error_string", event) or b""
            self._transport(KafkaError(self._library("event_error", event), text.decode(errors="replace")))
        elif kind == _EVENT_LOG:
            facility, text, level = _STR(), _STR(), _INT()
            if self._library("event_log", event, ctypes.byref(facility), ctypes.byref(text), ctypes.byref(level)) == 0:
                shown = [(part.value or b"").decode(errors="replace") for part in (facility, text)]
                self._logger.log(_log_level(level.value), "%s %s", *shown)


def _log_level(syslog: int) -> int:
    """Return Python's level of a syslog level."""
    levels = (logging.CRITICAL, logging.CRITICAL, logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO)
    return levels[syslog] if syslog < len(levels) else logging.INFO if syslog == len(levels) else logging.DEBUG


def _throttle_callback(transport: TransportState) -> Any:
    return _ON_THROTTLE(lambda _client, _name, broker, delay_ms, _opaque: transport.throttled(broker, delay_ms / 1000))


def _new_handle(library: NativeLibrary, settings: Mapping[str, Any], on_throttle: Any) -> int:
    """Create a consumer. Raises `KafkaException` as confluent_kafka does."""
    text = ctypes.create_string_buffer(_ERRSTR_SIZE)
    conf = library("conf_new")
    library("conf_set_events", conf, _EVENT_ERROR | _EVENT_LOG)
    library("conf_set_throttle_cb", conf, on_throttle)
    for name, value in (settings | {"log.queue": True}).items():  # type: ignore[operator]
        if not isinstance(value, str | bool | int):
            continue  # Python objects, such as the logger
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        if library("conf_set", conf, name.encode(), shown.encode(), text, _ERRSTR_SIZE) != 0:
            library("conf_destroy", conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
    handle = library("new", _CONSUMER, conf, text, _ERRSTR_SIZE)  # on success the client owns conf
    if not handle:
        library("conf_destroy", conf)
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
    return int(handle)
