"""Translate client errors into reader events, and build the settings of a reading client. Used by both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from spark_groupsource.client.errors import NO_TOPIC, TransportState
from spark_groupsource.client.settings import EXECUTOR_ROLE, assigned_consumer_settings
from spark_groupsource.executor.clients.port import (
    MESSAGE_BYTES,
    Damaged,
    EndOfPartition,
    FetchedItem,
    PositionLost,
    TopicDenied,
    TopicForbidden,
    TopicUnknown,
    Trouble,
)
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import RECEIVED_MAX_BYTES, RECEIVED_SETTING
from spark_groupsource.options.model import SourceOptions

# Fetch size per partition: at most four times the client's default, which reads a third faster; at least two batches of
# a producer with default settings.
_FETCH_BYTES = 4 * 1024 * 1024
_MIN_FETCH_BYTES = 32 * 1024
_MIN_ANSWER_BYTES = 1024 * 1024
# The part of an answer that is not for records, and the client's default of message.max.bytes.
_ANSWER_HEAD_BYTES = 512
_RECORD_BYTES = 1_000_000
# In the client's text about a batch that it cannot decompress: the codec is zstd.
_ZSTD = "(codec 0x4)"
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def reading_client_settings(
    options: SourceOptions, max_queued_bytes: int, partitions: int = 1, *, bulk: bool = False, one_queue: bool = False
) -> dict[str, Any]:
    """Return the client settings to read about `partitions` partitions with queues of `max_queued_bytes` together.

    `bulk`: for large tasks, which assign partitions while they run and fetch nothing between tasks. `one_queue`: all
    partitions share one.
    """
    settings = assigned_consumer_settings(options, EXECUTOR_ROLE)
    settings |= {"auto.offset.reset": "error", "check.crcs": True}
    # The default of 1,000 ms stalls a consumer whose queue is full: measured five times slower.
    settings.setdefault("fetch.queue.backoff.ms", "1")
    # The longest time until an end-of-partition event: a range that ends with a transaction marker waits for it. Also
    # the longest time of an assignment: it waits for the fetch under way, maybe of partitions without more records.
    settings.setdefault("fetch.wait.max.ms", "5" if bulk else "100")
    # Half of a partition's share, so that the next answer arrives while one is read.
    share = min(2 * _FETCH_BYTES, max_queued_bytes // max(1, partitions))
    fetch_bytes = max(_MIN_FETCH_BYTES, min(_FETCH_BYTES, share // 2))
    if "max.partition.fetch.bytes" not in settings:
        settings.setdefault("fetch.message.max.bytes", str(fetch_bytes))
    # Limit over all partitions.
    settings.setdefault("fetch.max.bytes", str(_answer_bytes(settings, max_queued_bytes)))
    # The client continues to fetch a partition while its queue is below both limits.
    queued_kb = max(1, (min(max_queued_bytes // 2, _FETCH_BYTES) if one_queue else share - fetch_bytes) // 1024)
    settings.setdefault("queued.max.messages.kbytes", str(queued_kb))
    settings.setdefault("queued.min.messages", str(max(1, queued_kb * 1024 // MESSAGE_BYTES)))
    return settings


def _answer_bytes(settings: Mapping[str, Any], max_queued_bytes: int) -> int:
    """Return the limit of an answer in bytes: the queue's size, within the limits that the user's settings allow.

    The client refuses to start with less than its message.max.bytes, or with more than its receive.message.max.bytes
    has room for. If these two contradict each other, it reports that itself.
    """
    least = _number(settings, "message.max.bytes", _RECORD_BYTES)
    room = _number(settings, RECEIVED_SETTING, RECEIVED_MAX_BYTES) - _ANSWER_HEAD_BYTES
    return max(least, min(room, max(_MIN_ANSWER_BYTES, max_queued_bytes)))


def _number(settings: Mapping[str, Any], name: str, default: int) -> int:
    """Return a setting as a number. Return the default for other text, which the client rejects itself."""
    try:
        return int(str(settings.get(name, default)), 0)
    except ValueError:
        return default


def trouble(transport: TransportState, fallback: str = "") -> FetchedItem | None:
    """Return the known reason why nothing arrives, None if there is none."""
    text = transport.text or fallback
    return Trouble(text, refused=transport.authentication_failed) if text else None


def item_of(partition: TopicPartition, offset: int, error: KafkaError, transport: TransportState) -> FetchedItem | None:
    """Return the event for an error that arrived in place of a record; None if it has no meaning to a reader."""
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        transport.worked()
        return EndOfPartition(partition, offset)
    if code in _OUT_OF_RANGE or code in NO_TOPIC:
        return PositionLost(partition, error.str() if code in NO_TOPIC else "")
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return TopicForbidden(partition)
    if code in (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION):
        return Damaged(partition, error.str(), limited=code == KafkaError._BAD_COMPRESSION and _ZSTD in error.str())
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        # Rights on the unused group are not needed.
        return None
    return trouble(transport, error.str())


def check_topic(code: int, text: str) -> None:
    """Raise `TopicDenied` or `TopicUnknown` if a broker's error code for a topic means that; ignore other codes."""
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise TopicDenied(text)
    if code in NO_TOPIC:
        raise TopicUnknown(text)
