"""What a client's errors mean to a reader, and the settings of a reading client: shared by both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from spark_groupsource.client.errors import LastTransportError
from spark_groupsource.client.settings import EXECUTOR_ROLE, reading_settings
from spark_groupsource.executor.clients.port import (
    Damaged,
    EndOfPartition,
    IdentityRefused,
    Item,
    PositionLost,
    RequestFailed,
    TopicDenied,
    TopicForbidden,
    TopicUnknown,
    Trouble,
)
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import SourceOptions

# What the client's queue needs per record besides its key and value.
_MESSAGE_BYTES = 400
# How much of one partition the client asks for at once: four times its default, which reads a third faster.
_FETCH_BYTES = 4 * 1024 * 1024
_MIN_FETCH_BYTES = 128 * 1024
_MIN_ANSWER_BYTES = 1024 * 1024
# The client's own bounds: of what it receives, of which so much is for other things than records, and of its queue in
# kilobytes. And its message.max.bytes where nothing is set.
_MAX_RECEIVED_BYTES = 2**31 - 1
_ANSWER_HEAD_BYTES = 512
_MAX_QUEUE_KB = _MAX_RECEIVED_BYTES // 1024
_RECORD_BYTES = 1_000_000
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
# The client's words for a partition that is not there: its topic may have been deleted.
_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


def executor_settings(
    options: SourceOptions, max_queued_bytes: int, partitions: int = 1, *, bulk: bool = False
) -> dict[str, Any]:
    """Return the client's settings for reading about so many partitions, with a queue of about this size.

    `bulk`: for large tasks, which assign partitions on their way and fetch nothing between tasks.
    """
    settings = reading_settings(options, EXECUTOR_ROLE)
    settings |= {"auto.offset.reset": "error", "check.crcs": True}
    # The default of 1,000 ms stalls a consumer whose queue is full: measured five times slower.
    settings.setdefault("fetch.queue.backoff.ms", "1")
    # How long an end-of-partition event may take; a range that ends with a transaction marker waits for it. And how
    # long an assignment may: it waits for the fetch under way, which may be of partitions that have no more records.
    settings.setdefault("fetch.wait.max.ms", "5" if bulk else "100")
    if "max.partition.fetch.bytes" not in settings:
        # A third of the queue: the next answer is on its way while one is read. The queue has room for all partitions:
        # a small batch takes a few records of each, and what comes of the first stands before those of the last.
        fetch_bytes = max(_MIN_FETCH_BYTES, min(_FETCH_BYTES, max_queued_bytes // max(3, partitions)))
        settings.setdefault("fetch.message.max.bytes", str(fetch_bytes))
    # Of all partitions together.
    settings.setdefault("fetch.max.bytes", str(_answer_bytes(settings, max_queued_bytes)))
    # It goes on fetching while its queue is below both.
    queued_kb = max(1, min(_MAX_QUEUE_KB, max_queued_bytes // 1024))
    settings.setdefault("queued.max.messages.kbytes", str(queued_kb))
    settings.setdefault("queued.min.messages", str(max(1_000, min(100_000, max_queued_bytes // _MESSAGE_BYTES))))
    return settings


def _answer_bytes(settings: Mapping[str, Any], max_queued_bytes: int) -> int:
    """Return how large an answer may be: as the queue, within what the client takes beside the user's settings.

    It refuses to start with less than its message.max.bytes, and with more than its receive.message.max.bytes has room
    for. Where these two contradict each other, it says so.
    """
    least = _number(settings, "message.max.bytes", _RECORD_BYTES)
    room = _number(settings, "receive.message.max.bytes", _MAX_RECEIVED_BYTES) - _ANSWER_HEAD_BYTES
    return max(least, min(room, max(_MIN_ANSWER_BYTES, max_queued_bytes)))


def _number(settings: Mapping[str, Any], name: str, default: int) -> int:
    """Return a setting as the client reads it; what is no number, it refuses in its own words."""
    try:
        return int(str(settings.get(name, default)), 0)
    except ValueError:
        return default


def trouble(transport: LastTransportError, fallback: str = "") -> Item | None:
    """Return why nothing arrives, as far as it is known."""
    text = transport.describe(fallback)
    if not text:
        return None
    return IdentityRefused(text) if transport.authentication_failed else Trouble(text)


def item_of(partition: TopicPartition, offset: int, error: KafkaError, transport: LastTransportError) -> Item | None:
    """Return what an error that came in the place of a record means; None when nothing."""
    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        transport.worked()
        return EndOfPartition(partition, offset)
    if code in _OUT_OF_RANGE or code in _UNKNOWN:
        return PositionLost(partition, error.str() if code in _UNKNOWN else "")
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return TopicForbidden(partition)
    if code in (KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION):
        return Damaged(partition, error.str())
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
        # Rights on the unused group are not needed.
        return None
    return trouble(transport, error.str())


def check_topic(code: int, text: str) -> None:
    """Raise `TopicDenied` or `TopicUnknown` when that is what a broker says of a topic; all else passes."""
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise TopicDenied(text)
    if code in _UNKNOWN:
        raise TopicUnknown(text)


def check_unknown(code: int, text: str) -> None:
    """Return when the error says that a topic does not exist. Raise `TopicDenied` or `RequestFailed` for others."""
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise TopicDenied(text)
    if code not in _UNKNOWN:
        raise RequestFailed(text)
