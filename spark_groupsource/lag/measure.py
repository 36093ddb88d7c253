"""Measure lag inputs (committed offset, log bounds, timestamp of the next unread record) without joining a group.

A record's timestamp is known only by reading it. So the next unread record of each partition is fetched: by an
assigned consumer, with small requests, for a limited time. For one thread, with its own clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.client.answers import partition_of, received
from spark_groupsource.client.errors import WAITING, mapped_errors
from spark_groupsource.client.settings import creating_client, few_records_settings
from spark_groupsource.client.tokens import new_consumer
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.admin import LibrdkafkaCluster, in_parts
from spark_groupsource.lag.model import LagInput, Retention
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# Partitions per request. A request for 5,000 offsets of a group has about 100 KB.
_CHUNK = 5_000
# Time limit in seconds for all next records together. Some never arrive, because only transaction markers are left.
_RECORDS_S = 10.0
_CONSUME_TIMEOUT_S = 0.2
_MAX_RECORDS = 1_000
# A producer's usual batch. The broker returns a larger one if it is the first of its response.
_FETCH_BYTES = 16 * 1024
# librdkafka requires at least its message.max.bytes, by default 1,000,000.
_ANSWER_BYTES = 4 * 1024 * 1024
_UNREADABLE = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
# One record of each partition suffices.
_SETTINGS: dict[str, Any] = {
    # If records were removed after the log's beginning was requested, read the first one that is left.
    "auto.offset.reset": "earliest",
    "fetch.message.max.bytes": _FETCH_BYTES,
    "fetch.max.bytes": _ANSWER_BYTES,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": _ANSWER_BYTES // 1024,
}


class LagRequests:
    """Requests of lag reports to a cluster. Errors are those of the catalogue, and every wait has a limit.

    `abandoned` returns True when the caller no longer needs the result.
    """

    def __init__(
        self,
        options: SourceOptions,
        clock: Clock,
        pause: Callable[[float], object],
        abandoned: Callable[[], bool] = lambda: False,
    ) -> None:
        self._options = options
        self._clock = clock
        self._abandoned = abandoned
        self._cluster = LibrdkafkaCluster(options, clock, pause, abandoned)
        self._retention_unanswered = False
        self._consumer: Consumer | None = None

    def topics(self) -> dict[str, int]:
        """Return all topics that the client may describe, with their partition counts."""
        return self._cluster.topics()

    def group_offsets(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets of any group; partitions without one are left out."""
        found: dict[TopicPartition, int] = {}
        for chunk in in_parts(partitions, _CHUNK):
            found |= self._cluster.group_offsets(group, chunk)
        return found

    def log_bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (beginning, end) of these logs; partitions that have no leader are left out."""
        found: dict[TopicPartition, tuple[int, int]] = {}
        for chunk in in_parts(partitions, _CHUNK):
            found |= self._cluster.log_bounds(chunk)
        return found

    def lag_inputs(self, committed: Mapping[TopicPartition, int | None]) -> list[LagInput]:
        """Return the lag inputs of these partitions.

        `next_ms` is None if no record arrived in time or none is left. Log ends are requested after the group's
        offsets, so that no lag is below 0.
        """
        retentions = self._retentions({partition.topic for partition in committed})
        deadline = Deadline(self._clock, _RECORDS_S)
        lag_inputs = []
        for chunk in in_parts(committed, _CHUNK):
            bounds = self._cluster.log_bounds(chunk)
            starts = {p: max(beginning, committed[p] or 0) for p, (beginning, _) in bounds.items()}
            unread = {p: (starts[p], end) for p, (_, end) in bounds.items() if starts[p] < end}
            times = self._times(unread, deadline) if unread else {}
            for partition in chunk:
                if partition not in bounds:
                    lag_inputs.append(LagInput(partition, committed[partition]))
                    continue
                first, last = bounds[partition]
                retention = retentions.get(partition.topic, Retention(known=False))
                next_ms = times.get(partition)
                none_left = partition in times and next_ms is None
                lag_inputs.append(LagInput(partition, committed[partition], first, last, next_ms, retention, none_left))
        return lag_inputs

    def close(self) -> None:
        """Free the clients; idempotent."""
        self._cluster.close()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # --- the next records

    def _times(
        self, unread: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
    ) -> dict[TopicPartition, int | None]:
        """Return the timestamp (ms) of the first record in each of these offset ranges; None: the range has no record.

        Ranges for which neither is known are left out.
        """
        consumer = self._reader()
        waiting, times = dict(unread), dict[TopicPartition, int | None]()
        with mapped_errors(self._options, "Fetch", self._cluster.transport):
            consumer.assign([ClientPartition(*partition, at) for partition, (at, _) in unread.items()])
            while waiting and not deadline.expired() and not self._abandoned():
                answered = []
                for message in received(consumer, _CONSUME_TIMEOUT_S, _MAX_RECORDS):
                    partition = partition_of(message)
                    if partition in waiting and _answers(message, waiting[partition][1]):
                        kind, at_ms = message.timestamp()
                        if _is_end(message):
                            times[partition] = None
                        elif message.error() is None and kind != TIMESTAMP_NOT_AVAILABLE and at_ms >= 0:
                            times[partition] = at_ms
                        del waiting[partition]
                        answered.append(ClientPartition(*partition))
                if answered:
                    consumer.incremental_unassign(answered)
            consumer.unassign()
        return times

    def _reader(self) -> Consumer:
        if self._consumer is None:
            settings = few_records_settings(self._options, "lag") | _SETTINGS
            with creating_client(self._options):
                self._consumer = new_consumer({**settings, **self._cluster.transport.callbacks})
        return self._consumer

    # --- retention

    def _retentions(self, topics: set[str]) -> dict[str, Retention]:
        """Return the topics' retention; topics for which it cannot be read are left out.

        It needs an extra right (DESCRIBE_CONFIGS), and nothing else depends on it, so a broker's error is ignored.
        """
        if not topics:
            return {}
        configs, is_answered = self._cluster.topic_configs(topics)
        if not is_answered and not self._retention_unanswered:
            WAITING.warning(
                "no broker reports the topics' retention, so the time until unread records are lost is not known:"
                " servers=%s last_error=%s",
                self._options.bootstrap_servers, self._cluster.transport.text or "none",
            )  # fmt: skip
        self._retention_unanswered = not is_answered
        return {topic: retention_of(config) for topic, config in configs.items()}


def retention_of(config: Mapping[str, str]) -> Retention:
    """Return a topic's retention from its configuration. A log that is only compacted has no retention."""
    if "delete" not in (policy.strip() for policy in config.get("cleanup.policy", "delete").split(",")):
        return Retention()
    return Retention(_limit(config.get("retention.ms")), _limit(config.get("retention.bytes")))


def _limit(text: str | None) -> int | None:
    try:
        value = -1 if text is None else int(text)
    except ValueError:
        return None
    return value if value >= 0 else None


def _answers(message: Message, end: int) -> bool:
    """Return whether a partition needs no further wait.

    That is a record, no record up to the end, no right to read, or a batch that the client cannot read.
    """
    error = message.error()
    if error is None or error.code() in _UNREADABLE:
        return True
    offset: Any = message.offset()
    # A follower or a new leader may report the end too early.
    return _is_end(message) and offset is not None and offset >= end


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF
