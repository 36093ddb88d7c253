"""What clients that join no group have in common: messages and committed offsets, as this package knows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from confluent_kafka import Consumer, Message
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.model.commit_metadata import GroupOffset, without_tail
from spark_groupsource.model.offsets import TopicPartition

# About every sixth text of another client was unreadable.
_METADATA_READS = 10


def received(consumer: Consumer, timeout_s: float, most: int) -> list[Message]:
    """Wait for a message, and return it with what else is there."""
    # Asked for many at once, the client would wait out the timeout for all of them.
    first = consumer.consume(1, timeout_s)
    return first + consumer.consume(most, 0.001) if first else first


def partition_of(message: Message) -> TopicPartition:
    """Return what partition a message is of."""
    return TopicPartition(str(message.topic()), int(message.partition() or 0))


def group_offsets(ask: Callable[[], Sequence[ClientPartition]]) -> dict[TopicPartition, GroupOffset]:
    """Return the committed offsets and their texts that `ask` brings; it is asked again while a text is unreadable.

    The client reads on behind a text of another client until it meets a zero byte: what it finds there is another one
    each time, and may be no text at all.
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
