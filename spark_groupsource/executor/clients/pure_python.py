"""Read with confluent_kafka and convert its messages to rows one by one, in pure Python.

confluent_kafka has one queue for all partitions. So messages that arrive before those that are read now are held here.
If too many are, the client stops fetching their partitions until the held ones are read. It is asked rarely, because it
drops what it has fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.client.answers import headers_of
from spark_groupsource.client.errors import TransportState
from spark_groupsource.client.settings import creating_client
from spark_groupsource.client.tokens import new_consumer
from spark_groupsource.executor.clients.error_events import check_topic, item_of, trouble
from spark_groupsource.executor.clients.port import (
    MESSAGE_BYTES,
    FetchedItem,
    Misfit,
    RequestFailed,
)
from spark_groupsource.executor.clients.rows import UnfitTimestamp, fits_timestamp, record_batch
from spark_groupsource.executor.gc_control import collector_paused
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# Messages that one call reads at least, if there are as many: they are of all partitions, and one is waited for.
_AT_ONCE = 1_024
# Bytes of messages that are held, until `hold_at_most`.
_HELD_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class _Held:
    """Hold the messages of one assigned partition."""

    messages: deque[Message] = field(default_factory=deque)
    # Where the client goes on when these are read; None while it fetches.
    resumes_at: int | None = None

    @property
    def bytes(self) -> int:
        """Return about how many bytes are held: the last message is taken for an average one."""
        return len(self.messages) * (len(self.messages[-1]) + MESSAGE_BYTES) if self.messages else 0

    @property
    def is_stoppable(self) -> bool:
        """Return whether the client fetches on behind a record that is held."""
        return self.resumes_at is None and bool(self.messages) and self.messages[-1].error() is None

    def pop(self, most: int) -> list[Message]:
        """Remove and return the first messages."""
        return [self.messages.popleft() for _ in range(min(most, len(self.messages)))]


class PythonClient:
    """Implement `FetchClient` on confluent_kafka. `make_consumer` is for tests."""

    def __init__(
        self,
        options: SourceOptions,
        settings: Mapping[str, Any],
        make_consumer: Callable[[dict[str, Any]], Consumer] = new_consumer,
    ) -> None:
        self._include_headers = options.include_headers
        self._transport = TransportState(options.token_login)
        with creating_client(options):
            self._consumer = make_consumer({**settings, **self._transport.callbacks})
        self._most_held_bytes = _HELD_BYTES
        self._held: dict[tuple[str, int], _Held] = {}
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """See `FetchClient`."""
        self._held |= {partition: _Held() for partition in positions}
        self._consumer.incremental_assign([ClientPartition(*tp, at) for tp, at in positions.items()])

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """See `FetchClient`."""
        fetched = [partition for partition in partitions if self._held.pop(partition).resumes_at is None]
        if fetched:
            self._consumer.incremental_unassign([ClientPartition(*partition) for partition in fetched])

    def hold_at_most(self, max_bytes: int) -> None:
        """See `FetchClient`."""
        # Besides these there are the client's queue and answers that are being processed.
        self._most_held_bytes = max_bytes // 2

    def receive(
        self, partition: TopicPartition, max_records: int, max_bytes: int, timeout_s: float
    ) -> Sequence[FetchedItem]:
        """See `FetchClient`."""
        held = self._held[partition]
        with collector_paused():
            others = [] if held.messages else self._fetch(partition, max(max_records, _AT_ONCE), timeout_s)
            taken = held.pop(max_records)
            if held.resumes_at is not None and len(held.messages) <= len(taken):
                # The next messages arrive while the last ones are read.
                self._consumer.incremental_assign([ClientPartition(*partition, held.resumes_at)])
                held.resumes_at = None
            return [*self._items(partition, taken, max_bytes), *others]

    def waiting(self, partition: TopicPartition) -> int:
        """See `FetchClient`."""
        return len(self._held[partition].messages)

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

    def _fetch(self, current: TopicPartition, most: int, timeout_s: float) -> list[FetchedItem]:
        """Read messages of all partitions and hold them. Return events that belong to no assigned partition."""
        # A request for a full batch would wait for the whole timeout.
        messages = self._consumer.consume(1, timeout_s)
        if messages:
            messages += self._consumer.consume(most - 1, 0.0)
            if messages[-1].error() is None and self._transport.text:
                self._transport.worked()
        found = [] if messages else [trouble(self._transport)]
        if len(self._held) == 1 and all(message.error() is None for message in messages):
            self._held[current].messages += messages
            messages = []
        for message in messages:
            # An error about the client as a whole has no partition.
            topic, number = message.topic() or "?", message.partition() or 0
            held, error = self._held.get((topic, number)), message.error()
            if held is not None and held.resumes_at is None:
                held.messages.append(message)
            elif error is not None:
                partition = TopicPartition(topic, max(0, number))
                found.append(item_of(partition, int(message.offset() or 0), error, self._transport))
        self._stop_others(current)
        return [item for item in found if item is not None]

    def _stop_others(self, current: TopicPartition) -> None:
        """Stop fetching the partitions of which most is held, if too much is held. The one that is read goes on.

        `pause` would take longer: the client begins to fetch a resumed partition within a second, an assigned one at
        once.

        Guards against:
        1. The first of four large ranges is read. The client fetches the others as well.
        2. What has arrived of them is held, until the first one ends.
        """
        sizes = {partition: held.bytes for partition, held in self._held.items() if partition != current}
        if sum(sizes.values()) <= self._most_held_bytes:
            return
        fair = self._most_held_bytes // (2 * len(sizes))
        full = [tp for tp, size in sizes.items() if size > fair and self._held[tp].is_stoppable]
        for partition in full:
            self._held[partition].resumes_at = int(self._held[partition].messages[-1].offset() or 0) + 1
        if full:
            self._consumer.incremental_unassign([ClientPartition(*partition) for partition in full])

    def _items(self, partition: TopicPartition, messages: Sequence[Message], max_bytes: int) -> Iterator[FetchedItem]:
        for is_record, group in groupby(messages, lambda message: message.error() is None):
            if is_record:
                yield from self._rows(partition, list(group), max_bytes)
                continue
            found = ((int(message.offset() or 0), message.error()) for message in group)
            items = (item_of(partition, at, error, self._transport) for at, error in found if error is not None)
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
                yield from (Misfit(partition, m.offset() or 0, errors.HEADER_NAME_UNREADABLE) for m in group)

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
                    stamped = ((m.offset() or 0, m.timestamp()[1]) for m in group)
                    yield from (Misfit(partition, at, errors.TIMESTAMP_IMPOSSIBLE, stamp) for at, stamp in stamped)
            return
        yield from _cut(batch, max_bytes)


def _cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Halve a batch until no piece exceeds the bound; a single record may."""
    if batch.nbytes <= max_bytes or batch.num_rows <= 1:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from _cut(batch.slice(0, middle), max_bytes)
    yield from _cut(batch.slice(middle), max_bytes)
