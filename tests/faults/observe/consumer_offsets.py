"""Read a group's commits and members from `__consumer_offsets`, and removed members from the brokers' log files.

The topic holds every commit that the coordinator accepted, in order, with its time: a view that neither the source nor
a polling client can give. It is compacted, but never its active segment (100 MB by default): read it before it has
grown beyond that. The formats are those of Kafka 2.8 to 4.4:

- commits: OffsetCommitKey.json, LegacyOffsetCommitKey.json, OffsetCommitValue.json;
- classic protocol, the whole group at every assignment: GroupMetadataKey/Value.json;
- KIP-848, a member's client id: ConsumerGroupMemberMetadataKey/Value.json;
- KIP-848, a member's partitions: ConsumerGroupCurrentMemberAssignmentKey/Value.json.

Members and commits are in one log, so that their order needs no clock. Why a member left is in the broker's log file
alone.
"""

from __future__ import annotations

import logging
import re
import struct
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.faults.history import Commit, GroupRecord

Partitions = tuple[tuple[str, int], ...]

TOPIC = "__consumer_offsets"
_READ_S = 60.0
_ANSWER_S = 10.0
# Kafka's two record types of commits; others are about groups and their members.
_KEY_VERSIONS = (0, 1)
_NEWEST_VALUE = 4
_FLEXIBLE = 4  # the first value version with compact strings and tagged fields
_CLASSIC_GROUP, _MEMBER_METADATA, _MEMBER_ASSIGNMENT = 2, 5, 8
_FLEXIBLE_GROUP = 4  # the first version of a classic group's value with compact strings and tagged fields
_SUFFIX = "-member"  # what the source adds to the client id of its group member

_SILENT = logging.getLogger(__name__)
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


class CommitLogError(Exception):
    """The log of commits could not be read, or holds what no known version of Kafka writes."""


class Fields:
    """Reads Kafka's primitive types one after another. Raises CommitLogError at the end of the bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise CommitLogError(f"{len(self._data)} bytes end in the middle of a field: {self._data.hex()}")
        found, self._at = self._data[self._at : end], end
        return found

    def number(self, kind: str) -> int:
        """Read a number: "h" of 2 bytes, "i" of 4, "q" of 8."""
        value: int = struct.unpack(f">{kind}", self._take(struct.calcsize(kind)))[0]
        return value

    def varint(self) -> int:
        """Read an unsigned number of 7 bits a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text(self, compact: bool = False) -> str:
        """Read a string."""
        return self._take(self.varint() - 1 if compact else self.number("h")).decode()

    def optional(self, compact: bool = False) -> str | None:
        """Read a string that may be null."""
        length = self.varint() - 1 if compact else self.number("h")
        return None if length < 0 else self._take(length).decode()

    def blob(self, compact: bool = False) -> bytes:
        """Read bytes that may be null; b"" then."""
        length = self.varint() - 1 if compact else self.number("i")
        return b"" if length < 0 else self._take(length)

    def count(self, compact: bool = False) -> int:
        """Read how many items an array has; 0 for null."""
        return max(0, self.varint() - 1 if compact else self.number("i"))

    def raw(self, length: int) -> bytes:
        """Read this many bytes."""
        return self._take(length)

    def skip_tags(self) -> None:
        """Pass over the tagged fields at the end of a structure."""
        for _ in range(self.varint()):
            self.varint()
            self._take(self.varint())


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


class GroupLog:
    """Takes the records of one group's log in order; `found` is what they say of members."""

    def __init__(self, group: str, topics: Mapping[str, str]) -> None:
        self.group = group
        self._topics = dict(topics)
        self._classic: set[str] = set()  # member ids of the newest generation
        self._names: dict[str, str] = {}  # member id -> query
        self.found: list[GroupRecord] = []

    def take(self, position: int, at: float, key: bytes | None, value: bytes | None) -> None:
        """Take one record; those of other groups and of other kinds are passed over."""
        if key is None:
            return
        fields = Fields(key)
        kind = fields.number("h")
        if kind not in (_CLASSIC_GROUP, _MEMBER_METADATA, _MEMBER_ASSIGNMENT) or fields.text() != self.group:
            return
        if kind == _CLASSIC_GROUP:
            self._take_group(position, at, value)
            return
        member = fields.text()
        if value is None:
            if kind == _MEMBER_ASSIGNMENT:
                self._add(position, at, member, "gone")
        elif kind == _MEMBER_METADATA:
            self._names[member] = _client_of(value).removesuffix(_SUFFIX)
        else:
            self._add(position, at, member, "owns", self._assigned(value))

    def query_of(self, member: str) -> str:
        """Return the query of a member id."""
        return self._names.get(member, member)

    def _add(self, position: int, at: float, member: str, event: str, partitions: Partitions = ()) -> None:
        self.found.append(GroupRecord(position, at, self.query_of(member), member, event, partitions))

    def _take_group(self, position: int, at: float, value: bytes | None) -> None:
        members = list(_classic_members(value)) if value is not None else []
        for gone in sorted(self._classic - {member for member, _, _ in members}):
            self._add(position, at, gone, "gone")
        self._classic = {member for member, _, _ in members}
        for member, client, partitions in members:
            self._names[member] = client.removesuffix(_SUFFIX)
            self._add(position, at, member, "owns", partitions)

    def _assigned(self, value: bytes) -> Partitions:
        """Return what a KIP-848 member has, with what it is still giving back."""
        fields = Fields(value)
        fields.number("h")
        fields.number("i")  # member epoch
        fields.number("i")  # previous member epoch
        fields.raw(1)  # state
        found: list[tuple[str, int]] = []
        for _which in ("assigned", "pending revocation"):
            for _ in range(fields.count(compact=True)):
                topic_id = b64encode(fields.raw(16)).rstrip(b"=").decode()  # as clients write an id
                topic = self._topics.get(topic_id, topic_id)
                found += [(topic, fields.number("i")) for _ in range(fields.count(compact=True))]
                fields.skip_tags()
        return tuple(sorted(found))


def _client_of(value: bytes) -> str:
    fields = Fields(value)
    fields.number("h")
    fields.optional(compact=True)  # instance id
    fields.optional(compact=True)  # rack
    return fields.text(compact=True)


def _classic_members(value: bytes) -> Iterator[tuple[str, str, Partitions]]:
    """Yield (member id, client id, partitions) of a classic group."""
    fields = Fields(value)
    version = fields.number("h")
    compact = version >= _FLEXIBLE_GROUP
    fields.text(compact)  # protocol type
    fields.number("i")  # generation
    fields.optional(compact)  # protocol
    fields.optional(compact)  # leader
    if version >= 2:
        fields.number("q")  # when the state began
    for _ in range(fields.count(compact)):
        member = fields.text(compact)
        if version >= 3:
            fields.optional(compact)  # instance id
        client = fields.text(compact)
        fields.text(compact)  # host
        if version >= 1:
            fields.number("i")  # rebalance timeout
        fields.number("i")  # session timeout
        fields.blob(compact)  # subscription
        yield member, client, _assignment(fields.blob(compact))
        if compact:
            fields.skip_tags()


def _assignment(data: bytes) -> Partitions:
    """Decode ConsumerProtocolAssignment; user data and what later versions add lies behind it."""
    if not data:
        return ()
    fields = Fields(data)
    fields.number("h")
    found: list[tuple[str, int]] = []
    for _ in range(fields.count()):
        topic = fields.text()
        found += [(topic, fields.number("i")) for _ in range(fields.count())]
    return tuple(sorted(found))


# --- the broker's log file

_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d{3}) \S+ GroupMetadataManager: (.*)$")
_REMOVED = (
    re.compile(r"Member (\S+) in group {group} has failed, removing it"),
    re.compile(r"\[GroupId {group}\] Member (\S+) fenced from the group because"),
    re.compile(r"Group {group} removed (?:dynamic )?members who haven't (?:joined|sent their sync requests): (.*)$"),
)


def removals(lines: Iterable[str], group: str, members: GroupLog) -> Iterator[GroupRecord]:
    """Yield the members that the coordinator removed, from the lines of a broker's log file."""
    patterns = [re.compile(pattern.pattern.replace("{group}", re.escape(group))) for pattern in _REMOVED]
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:
            continue
        day, milliseconds, text = matched.groups()
        at = time.mktime(time.strptime(day, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1000
        for pattern in patterns:
            found = pattern.search(text)
            for member in re.findall(r"[^\s\[\],]+", found.group(1)) if found is not None else ():
                yield GroupRecord(-1, at, members.query_of(member), member, "expired")
