"""Convert what clients without a group return, messages and committed offsets, to this package's types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.model.commit_metadata import GroupOffset, without_tail
from spark_groupsource.model.offsets import TopicPartition

# Attempts. About one in six reads of a text of another client failed to decode.
_METADATA_READS = 10
# Calls message.headers(). confluent-kafka returns the list that it has begun and an exception, both. The interpreter's
# own call, once it is specialised, does not notice that; this one raises SystemError.
_HEADERS = methodcaller("headers")


def received(consumer: Consumer, timeout_s: float, most: int) -> list[Message]:
    """Wait for a message, and return it with the others that have already arrived."""
    # A request for many messages at once would wait until the timeout for all of them.
    first = consumer.consume(1, timeout_s)
    return first + consumer.consume(most, 0.001) if first else first


def partition_of(message: Message) -> TopicPartition:
    """Return the partition of a message."""
    return TopicPartition(str(message.topic()), int(message.partition() or 0))


def headers_of(message: Message) -> Sequence[tuple[str, bytes | None]] | None:
    """Return a message's headers, empty if it has none; None if the name of one is not UTF-8.

    After None the message must not be asked for its headers again: confluent-kafka keeps the list that it has begun,
    and returns it with null pointers in the place of names. To read one of them kills the process.
    """
    try:
        headers: Sequence[tuple[str, bytes | None]] | None = _HEADERS(message)
    except (SystemError, UnicodeDecodeError):
        return None
    return headers or ()


def decoded_offsets(ask: Callable[[], Sequence[ClientPartition]]) -> dict[TopicPartition, GroupOffset]:
    """Return the committed offsets and metadata texts from `ask`; repeat `ask` while a text cannot be decoded.

    librdkafka reads past the end of a text that another client wrote, up to the next zero byte. The bytes it finds
    there differ each time, and may not be UTF-8.
    """
    found: dict[TopicPartition, GroupOffset] = {}
    for _ in range(_METADATA_READS):
        answers = ask()
        for answer in answers:
            text = _metadata(answer)
            if text is not None:
                found[_partition(answer)] = _group_offset(answer, text)
        if len(found) == len(answers):
            return found
    return {_partition(answer): _group_offset(answer, "") for answer in answers} | found


def _partition(answer: ClientPartition) -> TopicPartition:
    return TopicPartition(answer.topic, answer.partition)


def _group_offset(answer: ClientPartition, text: str) -> GroupOffset:
    return GroupOffset(answer.offset if answer.offset >= 0 else None, text)


def _metadata(answer: ClientPartition) -> str | None:
    try:
        return without_tail(answer.metadata or "")
    except UnicodeDecodeError:
        return None
