"""Reads a group's offset commits and members from the broker's own log of them, the topic `__consumer_offsets`.

It holds every commit that the coordinator took, in order, with the time at which it took it: a view that neither the
source nor a polling client can give. The formats are those of Kafka's files OffsetCommitKey.json,
LegacyOffsetCommitKey.json and OffsetCommitValue.json (Kafka 4.1). The topic is compacted, but never its active segment
(100 MB by default): read it before it has grown beyond that.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.faults.history import Commit
from tests.faults.observe.grouplog import GroupLog
from tests.faults.observe.kafkabytes import CommitLogError, Fields

TOPIC = "__consumer_offsets"
_READ_S = 60.0
_ANSWER_S = 10.0
# Kafka's two record types of commits; others are about groups and their members.
_KEY_VERSIONS = (0, 1)
_NEWEST_VALUE = 4
_FLEXIBLE = 4  # the first value version with compact strings and tagged fields

_SILENT = logging.getLogger(__name__)
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


@dataclass(frozen=True, slots=True)
class CommitKey:
    """Whose offset it is."""

    group: str
    topic: str
    partition: int


def decode_key(data: bytes) -> CommitKey | None:
    """Return whose commit a record is; None when it is no commit."""
    fields = Fields(data)
    if fields.number("h") not in _KEY_VERSIONS:
        return None
    return CommitKey(fields.text(), fields.text(), fields.number("i"))


def decode_value(data: bytes) -> tuple[int, str, float]:
    """Return the offset, the metadata, and when the coordinator took the commit, in seconds since the epoch."""
    fields = Fields(data)
    version = fields.number("h")
    if not 0 <= version <= _NEWEST_VALUE:
        raise CommitLogError(f"unknown version {version} of a commit's value")
    offset = fields.number("q")
    if version >= 3:
        fields.number("i")  # leader epoch
    metadata = fields.text(compact=version >= _FLEXIBLE)
    # Behind it: a time of expiry in version 1, tagged fields such as the topic id in version 4.
    # confluent-kafka for Python commits the terminating NUL of its C string too; clients in C do not see it.
    return offset, metadata.removesuffix("\0"), fields.number("q") / 1000


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of the log; `at` is when it was appended, in seconds since the epoch."""

    position: int
    at: float
    key: bytes | None
    value: bytes | None


def decode(records: Iterable[LogRecord], group: str) -> Iterator[Commit]:
    """Yield the group's commits of these records; deleted offsets and what is about members is left out."""
    for one in records:
        if one.key is None or one.value is None:
            continue
        whose = decode_key(one.key)
        if whose is not None and whose.group == group:
            offset, metadata, at = decode_value(one.value)
            yield Commit(at, whose.topic, whose.partition, offset, metadata, one.position)


def read_group_log(bootstrap_servers: str, members: GroupLog) -> list[Commit]:
    """Return all commits of a group, in order; what the coordinator wrote about its members goes to `members`.

    Raises CommitLogError when the end is not reached in a minute.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers, "group.id": "rig-commits", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted", "logger": _SILENT,
        }
    )  # fmt: skip
    try:
        records = list(_records(consumer, members.group))
    finally:
        consumer.close()
    for one in records:
        members.take(one.position, one.at, one.key, one.value)
    return list(decode(records, members.group))


def _records(consumer: Consumer, group: str) -> Iterator[LogRecord]:
    deadline = time.monotonic() + _READ_S
    partition = _partition_of(consumer, group, deadline)
    _, end = _retried(consumer, partition, deadline)
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    position = 0
    while position < end:
        if time.monotonic() > deadline:
            raise CommitLogError(
                f"{TOPIC}-{partition}: at {position}, the end {end} was not reached in {_READ_S:.0f} s"
            )
        for message in consumer.consume(2000, 0.5):
            offset = message.offset() or 0
            if message.error() is None and offset < end:
                key, value = message.key(), message.value()
                yield LogRecord(offset, message.timestamp()[1] / 1000, _bytes(key), _bytes(value))
        # Also beyond offsets that hold no record.
        position = max(position, consumer.position([TopicPartition(TOPIC, partition)])[0].offset)


def _bytes(data: bytes | str | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _partition_of(consumer: Consumer, group: str, deadline: float) -> int:
    """Return the partition that has all of a group's records: Java's hash of its name, without the sign."""
    while True:
        try:
            count = len(consumer.list_topics(TOPIC, timeout=_ANSWER_S).topics[TOPIC].partitions)
        except KafkaException:
            count = 0
        if count:
            break
        if time.monotonic() > deadline:
            raise CommitLogError(f"no metadata of {TOPIC}")
        time.sleep(0.2)
    value = 0
    for unit in struct.unpack(f">{len(group.encode('utf-16-be')) // 2}H", group.encode("utf-16-be")):
        value = (31 * value + unit) & 0xFFFFFFFF
    return (value & 0x7FFFFFFF) % count


def _retried(consumer: Consumer, partition: int, deadline: float) -> tuple[int, int]:
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=_ANSWER_S)
        except KafkaException as error:
            if time.monotonic() > deadline:
                raise CommitLogError(f"{TOPIC}-{partition}: no offsets of its log: {error}") from error
            time.sleep(0.2)
        else:
            return low, high
