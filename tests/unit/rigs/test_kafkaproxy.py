"""What the proxy of the tests knows of Kafka's protocol, without sockets."""

from __future__ import annotations

import struct

import pytest

from tests.realkafka.groupwire import GroupHeartbeat, parse_heartbeat
from tests.realkafka.wire import (
    Action,
    Api,
    Exchanges,
    FrameSplitter,
    On,
    Request,
    Rule,
    RuleBook,
    WireError,
    framed,
    parse_request,
)

MEMBER = "first-member"


def payload(
    api: int, correlation_id: int = 1, client_id: str | None = MEMBER, body: bytes = b"", version: int = 1
) -> bytes:
    name = None if client_id is None else client_id.encode()
    length = -1 if name is None else len(name)
    return struct.pack(">hhih", api, version, correlation_id, length) + (name or b"") + body


def request(api: int, client_id: str | None = MEMBER, correlation_id: int = 1) -> Request:
    return parse_request(payload(api, correlation_id, client_id))


def response(correlation_id: int) -> bytes:
    return struct.pack(">i", correlation_id) + b"answer"


# --- frames


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_come_whole_however_the_stream_is_cut(step: int) -> None:
    frames = [b"", b"abc", b"x" * 300]
    stream = b"".join(map(framed, frames)) + b"\0\0"
    splitter = FrameSplitter()
    got = [frame for begin in range(0, len(stream), step) for frame in splitter.feed(stream[begin : begin + step])]
    assert got == frames
    assert splitter.feed(b"\0\1z") == [b"z"], "the two bytes that were left begin the next frame"


def test_a_request_header_is_read() -> None:
    got = parse_request(payload(Api.JOIN_GROUP, 77, "shop-member", b"body", version=9))
    assert (got.api_key, got.api_version, got.correlation_id, got.client_id) == (11, 9, 77, "shop-member")
    assert got.payload[got.body :] == b"body"
    assert request(Api.METADATA, client_id=None).client_id == ""


@pytest.mark.parametrize("short", [b"", b"\0\3\0", payload(3)[:-1]])
def test_a_header_that_is_cut_short_is_refused(short: bytes) -> None:
    with pytest.raises(WireError):
        parse_request(short)


def test_a_response_belongs_to_its_request_and_earlier_ones_are_forgotten() -> None:
    exchanges = Exchanges()
    for number in (1, 2, 3):
        exchanges.asked(request(Api.FETCH, correlation_id=number))
    assert exchanges.answered(response(9)) is None
    second = exchanges.answered(response(2))
    assert second is not None
    assert second.correlation_id == 2
    assert exchanges.answered(response(1)) is None, "its answer would have come before"
    third = exchanges.answered(response(3))
    assert third is not None
    assert third.correlation_id == 3
    with pytest.raises(WireError):
        exchanges.answered(b"\0")


# --- rules


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Rule(Api.JOIN_GROUP), True),
        (Rule(None), True),
        (Rule(Api.SYNC_GROUP), False),
        (Rule(Api.JOIN_GROUP, client="first"), True),
        (Rule(Api.JOIN_GROUP, client="second"), False),
        (Rule(Api.JOIN_GROUP, broker=1), True),
        (Rule(Api.JOIN_GROUP, broker=2), False),
        (Rule(Api.JOIN_GROUP, on=On.RESPONSE), False),
        (Rule(Api.JOIN_GROUP, where=lambda r: r.correlation_id == 1), True),
        (Rule(Api.JOIN_GROUP, where=lambda r: r.correlation_id == 2), False),
    ],
)
def test_a_rule_acts_on_what_it_names(rule: Rule, matches: bool) -> None:
    book = RuleBook()
    book.add(rule)
    assert (book.match(On.REQUEST, request(Api.JOIN_GROUP), 1) is rule) == matches
    assert rule.fired == int(matches)


def test_a_rule_acts_as_often_as_it_says() -> None:
    book = RuleBook()
    twice = book.add(Rule(Api.HEARTBEAT, times=2, skip=1))
    ever = book.add(Rule(Api.HEARTBEAT, action=Action.DELAY, times=None))
    got = [book.match(On.REQUEST, request(Api.HEARTBEAT), 1) for _ in range(5)]
    assert got == [ever, twice, twice, ever, ever]
    assert (twice.fired, ever.fired) == (2, 3)


# --- KIP-848 heartbeats


def heartbeat(epoch: int, owned: bytes, version: int = 1) -> Request:
    body = b"\0" + b"\x05shop" + b"\x03m1" + struct.pack(">i", epoch) + b"\0" + b"\x03r1" + struct.pack(">i", 45_000)
    body += b"\x02\x07orders" + (b"\0" if version > 0 else b"") + b"\0" + owned + b"\0"
    return parse_request(payload(Api.CONSUMER_GROUP_HEARTBEAT, body=body, version=version))


TWO_AND_ONE = (
    b"\x03"
    + b"i" * 16
    + b"\x03"
    + struct.pack(">ii", 0, 5)
    + b"\0"
    + b"j" * 16
    + b"\x02"
    + struct.pack(">i", 2)
    + b"\0"
)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("epoch", "owned", "expected"),
    [
        (0, b"\x01", GroupHeartbeat(0, 0)),
        (4, b"\0", GroupHeartbeat(4, None)),
        (-1, b"\0", GroupHeartbeat(-1, None)),
        (5, TWO_AND_ONE, GroupHeartbeat(5, 3)),
    ],
)
def test_a_group_heartbeat_is_read(version: int, epoch: int, owned: bytes, expected: GroupHeartbeat) -> None:
    assert parse_heartbeat(heartbeat(epoch, owned, version)) == expected


def test_what_is_no_known_heartbeat_is_refused() -> None:
    with pytest.raises(WireError, match="not a known heartbeat"):
        parse_heartbeat(request(Api.HEARTBEAT))
    with pytest.raises(WireError, match="not a known heartbeat"):
        parse_heartbeat(heartbeat(0, b"\x01", version=2))
    with pytest.raises(WireError, match="cut short"):
        parse_heartbeat(request(Api.CONSUMER_GROUP_HEARTBEAT))
