"""Read with confluent_kafka and convert its messages to rows one by one, in pure Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

# After the first message: how long to wait for more before rows are built.
_LINGER_S = 0.005


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
        self._assigned: set[TopicPartition] = set()
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `FetchClient`."""
        self._assigned |= positions.keys()
        self._consumer.incremental_assign([ClientPartition(*tp, at) for tp, at in positions.items()])

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `FetchClient`."""
        self._assigned -= set(partitions)
        self._consumer.incremental_unassign([ClientPartition(*tp) for tp in partitions])

    def receive(self, max_records: int, max_bytes: int, timeout_s: float) -> Sequence[FetchedItem]:
        """See `FetchClient`."""
        with collector_paused():
            # A request for a full batch would wait for the whole timeout.
            messages = self._consumer.consume(1, timeout_s)
            if messages and max_records > 1:
                linger_s = _LINGER_S if messages[0].error() is None else 0.0
                messages += self._consumer.consume(max_records - 1, linger_s)
            if not messages:
                found = trouble(self._transport)
                return [] if found is None else [found]
            if messages[-1].error() is None and self._transport.authentication_failed:
                self._transport.worked()
            return list(self._items(messages, max_bytes))

    def passed(self, partition: TopicPartition) -> int:
        """See `FetchClient`."""
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

    def _items(self, messages: Sequence[Message], max_bytes: int) -> Iterator[FetchedItem]:
        if len(self._assigned) == 1 and all(message.error() is None for message in messages):
            if messages:
                yield from self._rows(next(iter(self._assigned)), messages, max_bytes)
            return
        # The records of each partition are grouped, never across an event: see _gather.c.
        waiting: dict[TopicPartition, list[Message]] = {}
        for message in messages:
            error = message.error()
            # An error about the client as a whole has no partition.
            partition = TopicPartition(message.topic() or "?", max(0, int(message.partition() or 0)))
            if error is None:
                waiting.setdefault(partition, []).append(message)
                continue
            yield from self._waiting_rows(waiting, max_bytes)
            waiting = {}
            item = item_of(partition, int(message.offset() or 0), error, self._transport)
            if item is not None:
                yield item
        yield from self._waiting_rows(waiting, max_bytes)

    def _waiting_rows(
        self, waiting: Mapping[TopicPartition, Sequence[Message]], max_bytes: int
    ) -> Iterator[FetchedItem]:
        for partition, messages in waiting.items():
            yield from self._rows(partition, messages, max_bytes)

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
