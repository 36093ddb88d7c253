"""Read with confluent_kafka and convert its messages to rows one by one, in pure Python.

confluent_kafka has one queue for all partitions. So messages of a partition that nobody reads now are held here, and
the partition is paused while many are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.client.answers import headers_of
from spark_groupsource.client.errors import LastTransportError
from spark_groupsource.client.settings import creating_client
from spark_groupsource.client.tokens import new_consumer
from spark_groupsource.executor.clients.error_events import check_topic, item_of, trouble
from spark_groupsource.executor.clients.port import (
    Chunk,
    FetchedItem,
    ImpossibleTimestamp,
    RequestFailed,
    TopicIdRequest,
    UnreadableHeaders,
)
from spark_groupsource.executor.clients.rows import UnfitTimestamp, fits_timestamp, record_batch
from spark_groupsource.executor.gc_control import collector_paused
from spark_groupsource.executor.topic_ids import ADMINS, AdminClients, request_topic_ids
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# Messages that one call reads of all partitions, of which only one is waited for.
_AT_ONCE = 10_000
# Bytes held of a partition that is paused, if the settings do not limit the client's queue.
_HELD_BYTES = 4 * 1024 * 1024


@dataclass(slots=True)
class _Held:
    """Hold the messages of one assigned partition."""

    messages: deque[Message] = field(default_factory=deque)
    bytes: int = 0
    paused: bool = False


class PythonClient:
    """Implement `FetchClient` on confluent_kafka. `make_consumer` and `admins` are for tests."""

    def __init__(
        self,
        options: SourceOptions,
        settings: Mapping[str, Any],
        make_consumer: Callable[[dict[str, Any]], Consumer] = new_consumer,
        admins: AdminClients = ADMINS,
    ) -> None:
        self._options = options
        self._admins = admins
        self._include_headers = options.include_headers
        self._transport = LastTransportError(options.token_login)
        with creating_client(options):
            self._consumer = make_consumer({**settings, "error_cb": self._transport})
        self._most_held_bytes = int(settings.get("queued.max.messages.kbytes", _HELD_BYTES // 1024)) * 1024
        self._held: dict[TopicPartition, _Held] = {}
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `FetchClient`."""
        self._held |= {partition: _Held() for partition in positions}
        self._consumer.incremental_assign([ClientPartition(*tp, at) for tp, at in positions.items()])

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `FetchClient`."""
        self._consumer.incremental_unassign([ClientPartition(*tp) for tp in partitions])
        for partition in partitions:
            if self._held.pop(partition).paused:
                # A pause outlives the assignment.
                self._consumer.resume([ClientPartition(*partition)])

    def receive(
        self, partition: TopicPartition, max_records: int, max_bytes: int, timeout_s: float
    ) -> Sequence[FetchedItem]:
        """See `FetchClient`."""
        held = self._held[partition]
        with collector_paused():
            others = [] if held.messages else self._fetch(timeout_s)
            taken = [held.messages.popleft() for _ in range(min(max_records, len(held.messages)))]
            held.bytes -= sum(map(len, taken))
            if held.paused and not held.messages:
                held.paused = False
                self._consumer.resume([ClientPartition(*partition)])
            return [*self._items(partition, taken, max_bytes), *others]

    def waiting(self, partitions: Iterable[TopicPartition]) -> int:
        """See `FetchClient`."""
        return sum(len(self._held[partition].messages) for partition in partitions)

    def passed(self, partition: TopicPartition) -> int:
        """See `FetchClient`."""
        if self._held[partition].messages:
            # The client's position is behind what is held here.
            return -1
        return int(self._consumer.position([ClientPartition(*partition)])[0].offset)

    def request_leaders(self, topic: str, timeout_s: float) -> None:
        """See `FetchClient`."""
        try:
            found = self._consumer.list_topics(topic, timeout_s).topics.get(topic)
        except KafkaException as error:
            raise RequestFailed(str(error)) from None
        self._transport.worked()
        if found is not None and found.error is not None:
            check_topic(found.error.code(), found.error.str())

    def request_topic_ids(self, topics: Sequence[str], timeout_s: float) -> TopicIdRequest:
        """See `FetchClient`."""
        return request_topic_ids(self._options, topics, timeout_s, self._admins)

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """See `FetchClient`."""
        try:
            low, high = self._consumer.get_watermark_offsets(
                ClientPartition(partition.topic, partition.partition), timeout=timeout_s
            )
        except KafkaException as error:
            raise RequestFailed(str(error)) from None
        return int(low), int(high)

    def close(self) -> None:
        """See `FetchClient`."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    # --- helpers

    def _fetch(self, timeout_s: float) -> list[FetchedItem]:
        """Read messages of all partitions and hold them. Return events that belong to no assigned partition."""
        # A request for a full batch would wait for the whole timeout.
        messages = self._consumer.consume(1, timeout_s)
        if messages:
            messages += self._consumer.consume(_AT_ONCE - 1, 0.0)
            if messages[-1].error() is None and self._transport.authentication_failed:
                self._transport.worked()
        found = [] if messages else [trouble(self._transport)]
        for message in messages:
            # An error about the client as a whole has no partition.
            partition = TopicPartition(message.topic() or "?", max(0, int(message.partition() or 0)))
            held, error = self._held.get(partition), message.error()
            if held is not None:
                held.messages.append(message)
                held.bytes += len(message)
            elif error is not None:
                found.append(item_of(partition, int(message.offset() or 0), error, self._transport))
        full = [tp for tp, held in self._held.items() if held.bytes >= self._most_held_bytes and not held.paused]
        for partition in full:
            self._held[partition].paused = True
        if full:
            self._consumer.pause([ClientPartition(*partition) for partition in full])
        return [item for item in found if item is not None]

    def _items(self, partition: TopicPartition, messages: Sequence[Message], max_bytes: int) -> Iterator[FetchedItem]:
        for is_record, group in groupby(messages, lambda message: message.error() is None):
            if is_record:
                yield from self._rows(partition, list(group), max_bytes)
                continue
            errors = ((int(message.offset() or 0), message.error()) for message in group)
            items = (item_of(partition, at, error, self._transport) for at, error in errors if error is not None)
            yield from (item for item in items if item is not None)

    def _rows(self, partition: TopicPartition, messages: Sequence[Message], max_bytes: int) -> Iterator[FetchedItem]:
        if not self._include_headers:
            yield from self._fitting_rows(partition, messages, max_bytes)
            return
        # Once for each message: see `headers_of`.
        readable = [headers_of(message) is not None for message in messages]
        for is_readable, pairs in groupby(zip(readable, messages, strict=True), key=itemgetter(0)):
            group = [message for _, message in pairs]
            if is_readable:
                yield from self._fitting_rows(partition, group, max_bytes)
            else:
                yield from (UnreadableHeaders(partition, message.offset() or 0) for message in group)

    def _fitting_rows(
        self, partition: TopicPartition, messages: Sequence[Message], max_bytes: int
    ) -> Iterator[FetchedItem]:
        try:
            batch = record_batch(partition, messages, self._include_headers)
        except UnfitTimestamp:
            for fits, group in groupby(messages, fits_timestamp):
                if fits:
                    yield from self._fitting_rows(partition, list(group), max_bytes)
                else:
                    yield from (ImpossibleTimestamp(partition, m.offset() or 0, m.timestamp()[1]) for m in group)
            return
        for piece in _cut(batch, max_bytes):
            yield Chunk(partition, piece)


def _cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halve a batch until no piece exceeds the bound; a single record may."""
    if batch.nbytes <= max_bytes or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _cut(batch.slice(0, middle), max_bytes)
    yield from _cut(batch.slice(middle), max_bytes)
