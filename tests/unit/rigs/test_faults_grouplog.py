"""What the coordinator wrote and logged about a group's members, on bytes and lines as brokers write them."""

from __future__ import annotations

import struct
import time

import pytest

from tests.faults.history import GroupRecord
from tests.faults.judge.facts import ownerships
from tests.faults.observe.consumer_offsets import GroupLog, removals

TOPIC_ID = "+/8CAwQFBgcICQoLDA0ODw"  # as librdkafka writes it
RAW_ID = bytes([0xFB, 0xFF, *range(2, 16)])
PREFIX = "2026-03-04 05:06:07.250 INFO GroupMetadataManager: [GroupCoordinator id=1 topic=x partition=0] "


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def compact(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def assignment(partitions: dict[str, list[int]]) -> bytes:
    """ConsumerProtocolAssignment, version 1, with user data behind it."""
    found = struct.pack(">hi", 1, len(partitions))
    for topic, numbers in partitions.items():
        found += text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return found + struct.pack(">i", 2) + b"ud"


def classic(**owned: dict[str, list[int]]) -> tuple[bytes, bytes]:
    """A classic group's record, version 3."""
    value = struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 7) + text("range") + text("q1-member-1")
    value += struct.pack(">qi", 1, len(owned))
    for query, partitions in owned.items():
        data = assignment(partitions)
        value += text(f"{query}-member-1") + struct.pack(">h", -1) + text(f"{query}-member") + text("/127.0.0.1")
        value += struct.pack(">iii", 60000, 6000, 3) + b"sub" + struct.pack(">i", len(data)) + data
    return struct.pack(">h", 2) + text("rig"), value


def member_key(kind: int, member: str, group: str = "rig") -> bytes:
    return struct.pack(">h", kind) + text(group) + text(member)


def member_metadata(client: str) -> bytes:
    return struct.pack(">h", 0) + b"\0" + b"\0" + compact(client) + compact("/127.0.0.1") + b"\1\0" + b"rest"


def member_assignment(assigned: list[int], pending: list[int], epoch: int | None = None) -> bytes:
    """epoch: of each partition, in a tagged field, as Kafka has it from 4.3 on (KIP-1251)."""

    def one(numbers: list[int]) -> bytes:
        if not numbers:
            return b"\1"
        tags = b"\0"
        if epoch is not None:
            epochs = bytes([len(numbers) + 1]) + struct.pack(f">{len(numbers)}i", *(epoch for _ in numbers))
            tags = bytes([1, 0, len(epochs)]) + epochs
        return b"\2" + RAW_ID + bytes([len(numbers) + 1]) + struct.pack(f">{len(numbers)}i", *numbers) + tags

    return struct.pack(">hiib", 0, 4, 3, 0) + one(assigned) + one(pending) + b"\0"


def test_a_classic_group_at_each_assignment() -> None:
    log = GroupLog("rig", {})
    log.take(5, 1.0, *classic(q1={"orders": [0, 1], "payments": [0]}))
    log.take(8, 2.0, *classic(q1={"orders": [0]}, q2={"orders": [1]}))
    log.take(9, 3.0, *classic(q2={"orders": [1, 0]}))
    assert log.found == [
        GroupRecord(5, 1.0, "q1", "q1-member-1", "owns", (("orders", 0), ("orders", 1), ("payments", 0))),
        GroupRecord(8, 2.0, "q1", "q1-member-1", "owns", (("orders", 0),)),
        GroupRecord(8, 2.0, "q2", "q2-member-1", "owns", (("orders", 1),)),
        GroupRecord(9, 3.0, "q1", "q1-member-1", "gone"),
        GroupRecord(9, 3.0, "q2", "q2-member-1", "owns", (("orders", 0), ("orders", 1))),
    ]


def test_a_deleted_group_has_no_members() -> None:
    log = GroupLog("rig", {})
    key, value = classic(q1={"orders": [0]})
    log.take(1, 1.0, key, value)
    log.take(2, 2.0, key, None)
    assert log.found[-1] == GroupRecord(2, 2.0, "q1", "q1-member-1", "gone")


@pytest.mark.parametrize("epoch", [None, 3], ids=["Kafka 4.1", "KIP-1251"])
def test_members_under_kip_848(epoch: int | None) -> None:
    log = GroupLog("rig", {TOPIC_ID: "orders"})
    log.take(1, 1.0, member_key(5, "m1"), member_metadata("q1-member"))
    log.take(2, 1.1, member_key(8, "m1"), member_assignment([0, 2], [], epoch))
    log.take(3, 1.2, member_key(8, "m1"), member_assignment([0], [2], epoch))
    log.take(4, 1.3, member_key(8, "m1"), None)
    log.take(5, 1.4, member_key(5, "m1"), None)
    both = (("orders", 0), ("orders", 2))
    assert log.found == [
        GroupRecord(2, 1.1, "q1", "m1", "owns", both),
        # What it is still giving back is its own until it has.
        GroupRecord(3, 1.2, "q1", "m1", "owns", both),
        GroupRecord(4, 1.3, "q1", "m1", "gone"),
    ]


def test_other_groups_and_commits_are_passed_over() -> None:
    log = GroupLog("rig", {})
    log.take(1, 1.0, member_key(8, "m1", group="other"), member_assignment([0], []))
    log.take(2, 1.0, bytes.fromhex("0001 0003 726967 0001 74 00000000"), b"a commit")
    log.take(3, 1.0, None, b"x")
    assert log.found == []


@pytest.mark.parametrize(
    "line",
    [
        "Member q1-member-1 in group rig has failed, removing it from the group.",
        "[GroupId rig] Member q1-member-1 fenced from the group because the member session expired.",
        "[GroupId rig] Member q1-member-1 fenced from the group because it failed to transition from epoch 3 within 5",
        "Group rig removed dynamic members who haven't joined: [q1-member-1]",
        "Group rig removed members who haven't sent their sync requests: [q1-member-1]",
    ],
)
def test_members_that_the_coordinator_removed(line: str) -> None:
    log = GroupLog("rig", {})
    log.take(5, 1.0, *classic(q1={"orders": [0]}))
    at = time.mktime((2026, 3, 4, 5, 6, 7, 0, 0, -1)) + 0.25
    expected = GroupRecord(-1, at, "q1", "q1-member-1", "expired")
    assert list(removals(["", "junk", PREFIX + line], "rig", log)) == [expected]
    assert list(removals([PREFIX + line], "rigged", log)) == []


def test_a_member_that_leaves_was_not_removed() -> None:
    lines = [
        PREFIX + "[Group rig] Member q1-member-1 has left group through explicit `LeaveGroup` request",
        PREFIX + "[GroupId rig] Member q1-member-1 left the consumer group.",
        PREFIX + "Stabilized group rig generation 3 with 1 members.",
    ]
    assert list(removals(lines, "rig", GroupLog("rig", {}))) == []


def test_several_removed_members_in_one_line() -> None:
    line = PREFIX + "Group rig removed dynamic members who haven't joined: [a, b]"
    assert [one.member for one in removals([line], "rig", GroupLog("rig", {}))] == ["a", "b"]


def test_stays_of_owners() -> None:
    orders = ("orders", 0)
    records = [
        GroupRecord(1, 1.0, "q1", "m1", "owns", (orders,)),
        GroupRecord(2, 2.0, "q1", "m1", "owns", (orders,)),  # another generation: the same stay
        GroupRecord(-1, 3.0, "q1", "m1", "expired"),
        GroupRecord(4, 4.0, "q2", "m2", "owns", (orders,)),
        GroupRecord(5, 5.0, "q2", "m2", "owns", ()),
        GroupRecord(6, 6.0, "q1", "m3", "owns", (orders,)),
    ]
    owned = ownerships(records)
    first, second = owned["q1", orders]
    assert (first.start, first.end, first.gone) == (1.0, 3.0, True)
    assert (second.start, second.position, second.gone) == (6.0, 6, False)
    (other,) = owned["q2", orders]
    assert (other.start, other.end, other.end_position, other.gone) == (4.0, 5.0, 5, False)
