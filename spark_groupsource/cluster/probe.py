"""Looks into groups and logs with a consumer that joins nothing: what the client's admin requests do not tell.

One thread at a time. Errors are the catalogue's, apart from those of `committed`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.client.answers import partition_of, received
from spark_groupsource.client.errors import LastTransportError, mapped_errors
from spark_groupsource.client.settings import FETCH_SETTINGS, creating_client, reading_settings
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# Answers are small, and come at once: the first record, or the end of the partition.
_SETTINGS: dict[str, Any] = {
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 64 * 1024,
    "queued.min.messages": 1,
}
_POLL_S = 0.1
_MAX_RECORDS = 500
# How often a client that waits for a group's coordinator is asked why.
_LOOK_S = 2.0
# The client tells it in words only; without a number there, all is taken to be cut.
_TRUNCATED_AT = re.compile(r"log truncation detected.*broker end offset is (\d+)")


class Probe:
    """See the module's head. `Probe` makes its client when it is first asked, and keeps it until `close`.

    `make_consumer` is for tests.
    """

    def __init__(
        self,
        options: SourceOptions,
        transport: LastTransportError,
        make_consumer: Callable[[dict[str, Any]], Consumer] = Consumer,
    ) -> None:
        self._options = options
        self._transport = transport
        self._make_consumer = make_consumer
        self._consumer: Consumer | None = None

    def committed(self, group: str, partitions: Iterable[TopicPartition], timeout_s: float) -> list[ClientPartition]:
        """Return what a group has committed, a client's answer per partition.

        A client that may not ask for the group's coordinator waits for it all the time, and says why only when polled.
        Raises `KafkaException`: whoever asks knows what passes, and maps the rest.
        """
        consumer = self._client({"group.id": group})
        wanted = [ClientPartition(p.topic, p.partition) for p in partitions]
        deadline_s = time.monotonic() + timeout_s
        try:
            while True:
                left_s = deadline_s - time.monotonic()
                try:
                    return consumer.committed(wanted, timeout=max(0.001, min(left_s, _LOOK_S)))
                except KafkaException as error:
                    denied = _group_denied(consumer)
                    if denied is not None:
                        raise KafkaException(denied) from None
                    if left_s <= _LOOK_S or error.args[0].code() != KafkaError._TIMED_OUT:
                        raise
        finally:
            consumer.close()

    def diverged(
        self, positions: Mapping[TopicPartition, tuple[int, int]], timeout_s: float
    ) -> dict[TopicPartition, int | None]:
        """Say of each (offset, leader epoch) whether the log still has what it had up to that offset.

        None: it has. An offset: the log was truncated there since (KIP-320). Partitions that nothing was heard of in
        time are left out.
        """
        wanted = [ClientPartition(*tp, offset, leader_epoch=epoch) for tp, (offset, epoch) in positions.items()]
        # A client that is asked about a partition once more takes the log for whole, or says nothing.
        consumer = self._client()
        try:
            return self._judged(self._heard(consumer, wanted, timeout_s), positions)
        finally:
            consumer.close()

    @staticmethod
    def _judged(
        heard: Iterable[Message], positions: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int | None]:
        found: dict[TopicPartition, int | None] = {}
        left = set(positions)
        for message in heard:
            partition, error = partition_of(message), message.error()
            if partition not in left:
                continue
            if error is not None and error.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                # It may heal.
                continue
            text = "" if error is None else error.str()
            match = _TRUNCATED_AT.search(text)
            # Without the text it is a record, the log's end, or an offset that retention has removed.
            at = None if "truncat" not in text.lower() else int(match[1]) if match else 0
            found[partition] = None if at is None else min(at, positions[partition][0])
            left.discard(partition)
            if not left:
                break
        return found

    def record_bytes(self, positions: Mapping[TopicPartition, int], timeout_s: float) -> dict[TopicPartition, float]:
        """Return how many bytes an offset takes on average, keys, values and headers, in what follows these offsets.

        Judged by the first records of each partition; partitions that gave none in time are left out.
        """
        sizes: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        left = set(positions)
        self._consumer = self._consumer or self._client()
        wanted = [ClientPartition(*tp, offset) for tp, offset in positions.items()]
        for message in self._heard(self._consumer, wanted, timeout_s):
            partition = partition_of(message)
            if message.error() is None:
                sizes[partition] = sizes.get(partition, 0) + _size_of(message)
                ends[partition] = (message.offset() or 0) + 1
            left.discard(partition)
            if not left:
                break
        return {tp: sizes[tp] / max(1, ends[tp] - positions[tp]) for tp in sizes}

    def close(self) -> None:
        """Free the client; idempotent."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _client(self, more: Mapping[str, Any] = {}) -> Consumer:
        settings = reading_settings(self._options, "probe", FETCH_SETTINGS) | _SETTINGS
        with creating_client(self._options):
            return self._make_consumer({**settings, **more, "error_cb": self._transport})

    def _heard(self, consumer: Consumer, wanted: list[ClientPartition], timeout_s: float) -> Iterator[Message]:
        """Yield records and events of partitions, until the caller has enough, or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        with mapped_errors(self._options, "Fetch", self._transport):
            consumer.incremental_assign(wanted)
            try:
                while time.monotonic() < deadline_s:
                    # Errors that are no partition's are told to `error_cb`, too.
                    yield from (m for m in received(consumer, _POLL_S, _MAX_RECORDS) if m.topic() is not None)
            finally:
                consumer.incremental_unassign(wanted)


def _group_denied(consumer: Consumer) -> KafkaError | None:
    while (message := consumer.poll(0.0)) is not None:
        error = message.error()
        if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return error
    return None


def _size_of(message: Message) -> int:
    headers: Any = message.headers() or []
    parts = [message.key(), message.value(), *(part for pair in headers for part in pair)]
    return sum(len(part or b"") for part in parts)
