"""Read from groups and logs with a consumer that joins no group, where admin requests do not suffice.

For one thread at a time. Errors are those of the catalogue, except in `committed`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from itertools import chain
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.client.answers import headers_of, partition_of, received
from spark_groupsource.client.ending import on_own_thread
from spark_groupsource.client.errors import TransportState, mapped_errors
from spark_groupsource.client.settings import creating_client, few_records_settings
from spark_groupsource.client.tokens import new_consumer
from spark_groupsource.errors import CommandError
from spark_groupsource.model.names import is_addressable
from spark_groupsource.model.offsets import NextRecords, TopicPartition
from spark_groupsource.options.model import SourceOptions

# Responses are small and immediate: the first record, or the end of the partition.
_SETTINGS: dict[str, Any] = {
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 64 * 1024,
    "queued.min.messages": 1,
}
_POLL_S = 0.1
_MAX_RECORDS = 500
# Interval in seconds at which a client that waits for a group's coordinator is polled for the reason.
_DENIAL_CHECK_S = 2.0
# The client reports this only as text. Without a number in the text, the whole log counts as truncated.
_TRUNCATED_AT = re.compile(r"log truncation detected.*broker end offset is (\d+)")


class Probe:
    """A consumer without a group, for reads of committed offsets and logs.

    `next_records` keeps its client until `close`, unless a partition did not answer twice. Nobody waits for the end of
    a client that has read. `make_consumer` is for tests.
    """

    def __init__(
        self,
        options: SourceOptions,
        transport: TransportState,
        make_consumer: Callable[[dict[str, Any]], Consumer] = new_consumer,
    ) -> None:
        self._options = options
        self._transport = transport
        self._make_consumer = make_consumer
        self._consumer: Consumer | None = None
        # Partitions that did not answer the last `next_records` of this client.
        self._silent: set[TopicPartition] = set()

    def committed(self, group: str, partitions: Iterable[TopicPartition], timeout_s: float) -> list[ClientPartition]:
        """Return the committed offsets of a group, as the client returns them per partition.

        A client without rights on the group waits for the coordinator until the timeout, and reports the reason only
        when polled. Raises `KafkaException`; the caller decides what to retry, and maps the rest. Raises `CommandError`
        for a name that the client would cut: the exporter's pattern may find a group with any name.
        """
        if not is_addressable(group):
            raise CommandError(errors.GROUP_NOT_ADDRESSABLE, group=group)
        consumer = self._client({"group.id": group})
        wanted = [ClientPartition(p.topic, p.partition) for p in partitions]
        deadline_s = time.monotonic() + timeout_s
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                try:
                    return consumer.committed(wanted, timeout=max(0.001, min(left_s, _DENIAL_CHECK_S)))
                except KafkaException as error:
                    denied = _group_denied(consumer)
                    if denied is not None:
                        raise KafkaException(denied) from None
                    if left_s <= _DENIAL_CHECK_S or error.args[0].code() != KafkaError._TIMED_OUT:
                        raise
        finally:
            # It has read no partition, so it ends.
            consumer.close()

    def diverged(
        self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """Check for each (offset, leader epoch) whether the log was truncated before that offset (KIP-320).

        The result is None if it was not, else the offset at which it was truncated. Partitions without a response in
        time are left out.
        """
        wanted = [ClientPartition(*tp, offset, leader_epoch=epoch) for tp, (offset, epoch) in positions.items()]
        # A new client each time: for a partition that it has validated before, a client reports no truncation, or
        # nothing.
        consumer = self._client()
        try:
            # The partitions are unassigned before the client ends: Python would report on stderr that it is closed.
            with closing(self._messages(consumer, wanted, timeout_s)) as messages:
                return self._truncations(chain.from_iterable(messages), positions)
        finally:
            # R87: the client may never end
            on_own_thread(consumer.close)

    @staticmethod
    def _truncations(
        messages: Iterable[Message], positions: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        left = set(positions)
        for message in messages:
            partition, error = partition_of(message), message.error()
            if partition not in left:
                continue
            if error is not None and error.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                # It may recover.
                continue
            text = "" if error is None else error.str()
            match = _TRUNCATED_AT.search(text)
            # Otherwise it is a record, the log's end, or an offset that retention has removed.
            at = None if "truncat" not in text.lower() else int(match[1]) if match else 0
            found[partition] = None if at is None else min(at, positions[partition][0])
            left.discard(partition)
            if not left:
                break
        return found

    def next_records(
        self, positions: Mapping[TopicPartition, int], timeout_s: float
    ) -> dict[TopicPartition, NextRecords]:
        """Return the offset of the first record at or after each of these offsets, and the size of what follows it.

        The size is of keys, values and headers. The estimate uses the first records of each partition. Partitions
        without an answer in time are left out.

        Guards against:
        1. A log begins with a hole: compaction or an aborted transaction has left a million offsets without records.
        2. One record of 1 KB behind it would count as 0.001 bytes per offset.
        3. A batch of any size would pass for a small one.

        Guards against (a client that does not answer):
        1. Topics A and B are read. B is deleted and recreated, and its leader epochs are lower than before.
        2. The kept client ignores the new leaders of B, and asks the old ones again and again.
        3. A answers, B never does: each plan waits for B until the timeout.
        """
        sizes: dict[TopicPartition, int] = {}
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        left = set(positions)
        self._consumer = self._consumer or self._client()
        wanted = [ClientPartition(*tp, offset) for tp, offset in positions.items()]
        for messages in self._messages(self._consumer, wanted, timeout_s):
            for message in messages:
                partition, error = partition_of(message), message.error()
                offset = message.offset() or 0
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    starts.setdefault(partition, offset)
                if error is None:
                    sizes[partition] = sizes.get(partition, 0) + _size_of(message)
                    ends[partition] = offset + 1
                left.discard(partition)
            if not left:
                break
        again, self._silent = left & self._silent, left
        # A slow leader may be late once. After an outage, a client may wait for long before it asks again.
        if again or (left and not sizes):
            self.close()
        found = {tp: NextRecords(first, None) for tp, first in starts.items()}
        return found | {tp: NextRecords(starts[tp], sizes[tp] / max(1, ends[tp] - starts[tp])) for tp in sizes}

    def close(self) -> None:
        """Free the client; idempotent.

        Guards against:
        1. The client has read a topic, which is deleted and recreated.
        2. The next plan drops the client. It never ends (issue 4362 of librdkafka).
        3. The query's main thread waits for it, without an error.
        """
        self._silent = set()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            # R87: the client may never end
            on_own_thread(consumer.close)

    def _client(self, more: Mapping[str, Any] = {}) -> Consumer:
        settings = few_records_settings(self._options, "probe") | _SETTINGS
        with creating_client(self._options):
            return self._make_consumer({**settings, **more, **self._transport.callbacks})

    def _messages(
        self, consumer: Consumer, wanted: list[ClientPartition], timeout_s: float
    ) -> Generator[list[Message], None, None]:
        """Yield the records and events of the partitions as they arrive, until the caller stops or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        with mapped_errors(self._options, "Fetch", self._transport):
            consumer.incremental_assign(wanted)
            try:
                while time.monotonic() < deadline_s:
                    # Errors without a partition are also reported to `error_cb`.
                    yield [m for m in received(consumer, _POLL_S, _MAX_RECORDS) if m.topic() is not None]
            finally:
                consumer.incremental_unassign(wanted)


def _group_denied(consumer: Consumer) -> KafkaError | None:
    while (message := consumer.poll(0.0)) is not None:
        error = message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return error
    return None


def _size_of(message: Message) -> int:
    # Without headers that the client cannot return: this is an estimate.
    parts = [message.key(), message.value(), *(part for pair in headers_of(message) or () for part in pair)]
    return sum(len(part or b"") for part in parts)
