"""The decoder of the broker's commit log, on bytes as brokers write them."""

from __future__ import annotations

import pytest

from tests.faults.history import Commit
from tests.faults.observe.consumer_offsets import CommitKey, CommitLogError, LogRecord, decode, decode_key, decode_value

# Recorded from Kafka 4.1.1: group "rig", topic "t", partition 0.
KEY = bytes.fromhex("0001 0003 726967 0001 74 00000000")
# Offset 5, no leader epoch, metadata {"gk":1} as a Java client would write it.
VALUE = bytes.fromhex("0004 0000000000000005 ffffffff 09 7b22676b223a317d 000001a1fea74714 00")
AT = 0x01A1FEA74714 / 1000
GROUP_KEY = bytes.fromhex("0002 0003 726967")
MEMBER_KEY = bytes.fromhex("0005 0003 726967 0002 6d31")


def test_key() -> None:
    assert decode_key(KEY) == CommitKey("rig", "t", 0)


def test_key_of_the_oldest_version() -> None:
    assert decode_key(bytes.fromhex("0000 0003 726967 0003 c3bc74 0000000a")) == CommitKey("rig", "\u00fct", 10)


@pytest.mark.parametrize("key", [GROUP_KEY, MEMBER_KEY])
def test_keys_of_groups_and_members_are_no_commits(key: bytes) -> None:
    assert decode_key(key) is None


def test_value_as_kafka_4_1_writes_it() -> None:
    assert decode_value(VALUE) == (5, '{"gk":1}', AT)


def test_value_by_a_python_client_has_a_nul_behind_its_metadata() -> None:
    value = bytes.fromhex("0004 0000000000000005 ffffffff 0a 7b22676b223a317d00 000001a1fea74714 00")
    assert decode_value(value) == (5, '{"gk":1}', AT)


def test_value_with_a_topic_id() -> None:
    tagged = bytes.fromhex("01 00 10 000102030405060708090a0b0c0d0e0f")
    assert decode_value(VALUE[:-1] + tagged) == (5, '{"gk":1}', AT)


def test_value_with_metadata_whose_length_takes_two_bytes() -> None:
    value = bytes.fromhex("0004 0000000000000009 00000003 ad02") + b"m" * 300 + bytes.fromhex("000001a1fea74714 00")
    assert decode_value(value) == (9, "m" * 300, AT)


@pytest.mark.parametrize(
    ("version", "epoch", "rest"),
    [("0000", "", ""), ("0001", "", "000001a1fea75000"), ("0002", "", ""), ("0003", "00000007", "")],
)
def test_values_of_older_versions(version: str, epoch: str, rest: str) -> None:
    text = f"{version} 00000000000000ff {epoch} 0002 6869 000001a1fea74714 {rest}"
    assert decode_value(bytes.fromhex(text)) == (255, "hi", AT)


def test_value_of_an_unknown_version() -> None:
    with pytest.raises(CommitLogError, match="unknown version 5"):
        decode_value(b"\x00\x05" + VALUE[2:])


@pytest.mark.parametrize("length", [1, 9, 14, 20, 25])
def test_value_that_is_cut_off(length: int) -> None:
    with pytest.raises(CommitLogError, match="in the middle of a field"):
        decode_value(VALUE[:length])


def test_commits_of_one_group_in_order() -> None:
    other = KEY.replace(b"rig", b"rag")
    second = VALUE.replace(bytes([5]), bytes([6]))
    records = [(KEY, VALUE), (GROUP_KEY, b"x"), (other, VALUE), (KEY, None), (None, b"x"), (KEY, second)]
    numbered = [LogRecord(position, AT, key, value) for position, (key, value) in enumerate(records)]
    first, second_commit = decode(numbered, "rig")
    assert first == Commit(AT, "t", 0, 5, '{"gk":1}', 0)
    assert second_commit == Commit(AT, "t", 0, 6, '{"gk":1}', 5)
