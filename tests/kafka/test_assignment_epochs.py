"""What a KIP-848 coordinator answers while epochs change, before Kafka 4.3 and from 4.3 on (docs/brokers.md).

The requests are written here byte by byte: a client would not commit with an epoch that it knows to be old.
"""

from __future__ import annotations

import base64
import socket
import struct
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.faults.observe.consumer_offsets import Fields
from tests.realkafka.jars import KAFKA_VERSION, version_of

from .harness import Independent, wait_for
from .shared_broker import SharedBroker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(version_of(KAFKA_VERSION) < (4,), reason=f"Kafka {KAFKA_VERSION} has KIP-848 as a preview only"),
]

# KIP-1251: a commit is checked by the epoch of each partition. KIP-1263: assignments are made once a second at most.
HAS_PARTITION_EPOCHS = HAS_INTERVAL = version_of(KAFKA_VERSION) >= (4, 3)
INTERVAL_S = 1.0
_OFFSET_COMMIT, _HEARTBEAT = (8, 9), (68, 1)
_NO_COORDINATOR_YET = {14, 15, 16}
_STALE_MEMBER_EPOCH = 113
_ANSWER_S = 30.0


def compact(value: str | None) -> bytes:
    """Return a string of less than 127 bytes, or null."""
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def numbers(partitions: set[int]) -> bytes:
    return bytes([len(partitions) + 1]) + b"".join(struct.pack(">i", number) for number in sorted(partitions))


@dataclass(frozen=True, slots=True)
class Answer:
    """To a heartbeat. `assigned` is None when the assignment is as before."""

    epoch: int
    assigned: set[int] | None


class Connection:
    """Sends requests to the only broker, which is the coordinator."""

    def __init__(self, servers: str) -> None:
        host, _, port = servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _ANSWER_S)
        self._file = self._socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def ask(self, request: tuple[int, int], body: bytes) -> Fields:
        """Return the body of the answer."""
        payload = struct.pack(">hhi", *request, 7) + struct.pack(">h", 3) + b"raw" + b"\0" + body
        self._socket.sendall(struct.pack(">i", len(payload)) + payload)
        (size,) = struct.unpack(">i", self._file.read(4))
        fields = Fields(self._file.read(size))
        fields.number("i")  # correlation id
        fields.skip_tags()
        return fields


class Member:
    """A member of the group that does what the test tells it."""

    def __init__(self, connection: Connection, group: str, topic: str, topic_id: bytes) -> None:
        self._connection, self._group, self._topic, self._topic_id = connection, group, topic, topic_id
        self._id = str(uuid.uuid4())

    def join(self) -> Answer:
        return self.beat(0, set())

    def beat(self, epoch: int, owned: set[int] | None = None) -> Answer:
        """Send a heartbeat. Raises AssertionError when it is refused."""
        joins = epoch == 0
        body = compact(self._group) + compact(self._id) + struct.pack(">i", epoch) + compact(None) + compact(None)
        body += struct.pack(">i", 30_000 if joins else -1)
        body += b"\2" + compact(self._topic) if joins else b"\0"
        body += compact(None) + compact(None)  # pattern, assignor
        if owned is None:
            body += b"\0"
        else:
            body += b"\2" + self._topic_id + numbers(owned) + b"\0" if owned else b"\1"
        deadline = time.monotonic() + _ANSWER_S
        while True:
            fields = self._connection.ask(_HEARTBEAT, body + b"\0")
            fields.number("i")  # throttle time
            error = fields.number("h")
            if error not in _NO_COORDINATOR_YET or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        message = fields.optional(compact=True)
        assert error == 0, f"{error}: {message}"
        fields.optional(compact=True)  # member id
        epoch = fields.number("i")
        fields.number("i")  # interval
        if fields.raw(1) == b"\xff":
            return Answer(epoch, None)
        assigned: set[int] = set()
        for _ in range(fields.count(compact=True)):
            fields.raw(16)
            assigned |= {fields.number("i") for _ in range(fields.count(compact=True))}
            fields.skip_tags()
        return Answer(epoch, assigned)

    def commit(self, epoch: int, *partitions: int) -> set[int]:
        """Commit an offset of each partition; return the answers' error codes."""
        body = compact(self._group) + struct.pack(">i", epoch) + compact(self._id) + compact(None)
        body += b"\2" + compact(self._topic) + bytes([len(partitions) + 1])
        for number in partitions:
            body += struct.pack(">iqi", number, 1, -1) + compact("") + b"\0"
        fields = self._connection.ask(_OFFSET_COMMIT, body + b"\0" + b"\0")
        fields.number("i")  # throttle time
        errors: set[int] = set()
        for _ in range(fields.count(compact=True)):
            fields.text(compact=True)
            for _ in range(fields.count(compact=True)):
                fields.number("i")
                errors.add(fields.number("h"))
                fields.skip_tags()
            fields.skip_tags()
        return errors


@pytest.fixture
def members(kafka: SharedBroker, client: Independent, topic: str, group: str) -> Iterator[list[Member]]:
    """Return three members of a group on a topic with four partitions, none of which has joined."""
    client.create_topic(topic, 4)
    client.committed(group)  # makes the topic of the coordinator
    text = client.topic_ids([topic])[topic]
    topic_id = raw_id(text)
    connection = Connection(kafka.bootstrap_servers)
    yield [Member(connection, group, topic, topic_id) for _ in range(3)]
    connection.close()


def raw_id(text: str) -> bytes:
    """Return the bytes of a topic id as clients write it."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_" if set(text) & set("-_") else None)


def join_alone(member: Member, every: frozenset[int] = frozenset(range(4))) -> int:
    """Let a group's first member have all partitions; return its epoch.

    A coordinator that has just started learns of the topic a little later.
    """
    answer = member.join()

    def has_all() -> bool:
        nonlocal answer
        if answer.assigned != every:
            answer = member.beat(answer.epoch)
        return answer.assigned == every

    wait_for("all partitions", has_all)
    member.beat(answer.epoch, set(every))
    return answer.epoch


def shared(first: Member, second: Member) -> tuple[int, int, set[int]]:
    """Let two members share: return the first one's epochs before and after, and what it keeps.

    The coordinator has the newer epoch with the heartbeat that reports what the member has given up. A member whose
    answer is late commits with the older one.
    """
    alone = join_alone(first)
    time.sleep(1.2 * INTERVAL_S)
    assert second.join().assigned == set()
    said = first.beat(alone)
    assert said.assigned is not None
    assert len(said.assigned) == 2
    assert said.epoch == alone, "the epoch rises when the others are given up"
    newer = first.beat(alone, said.assigned).epoch
    assert newer > alone
    return alone, newer, said.assigned


def test_a_commit_with_an_older_epoch_is_accepted_for_partitions_that_stayed(members: list[Member]) -> None:
    """KIP-1251. Whatever the version, what has been given up is refused, and refuses the whole commit."""
    first, second, _ = members
    older, newer, kept = shared(first, second)
    lost = {0, 1, 2, 3} - kept
    assert first.commit(older, *kept) == ({0} if HAS_PARTITION_EPOCHS else {_STALE_MEMBER_EPOCH})
    assert first.commit(older, *lost) == {_STALE_MEMBER_EPOCH}
    assert first.commit(older, *kept, *lost) == {_STALE_MEMBER_EPOCH}
    assert first.commit(newer, *kept) == {0}
    assert first.commit(newer + 1, *kept) == {_STALE_MEMBER_EPOCH}


def test_a_second_change_within_the_interval_waits_for_its_assignment(
    members: list[Member], client: Independent, group: str
) -> None:
    """KIP-1263. The assignment is computed by the first heartbeat after the interval, of any member."""
    first, second, third = members
    if HAS_INTERVAL:  # longer than any noise of the machine
        client.set_group_config(group, {"consumer.assignment.interval.ms": 15_000})
    alone = join_alone(first)
    late = second.join()
    assert late.assigned == set()
    if not HAS_INTERVAL:
        assert late.epoch > alone
        return
    assert late.epoch == alone, "the assignment of the change before"
    assert third.join().epoch == late.epoch
    assert second.beat(late.epoch).epoch == late.epoch
    client.set_group_config(group, {"consumer.assignment.interval.ms": 0})
    wait_for("the assignment of all changes", lambda: second.beat(late.epoch).epoch > late.epoch)
