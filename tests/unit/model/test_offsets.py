"""The offset JSON: canonical text, a strict parser, and the stored forms of every version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model.offsets import (
    OFFSET_MAX,
    PARTITION_MAX,
    TIME_MAX_MS,
    OffsetRange,
    Reset,
    SourceOffset,
    TopicPartition,
    new_lineage,
    newer,
    parse_offset,
)
from tests.checkout import ROOT
from tests.unit.fakes import LINEAGE, tp

GOLDEN = ROOT / "tests" / "golden"
ID = "Qw3zT0ynQ2uB8v7h1d2eZA"

FULL = SourceOffset.of(
    LINEAGE,
    {"refunds": "x-id", "orders": ID},
    [
        OffsetRange(TopicPartition("refunds", 0), 0, 1),
        OffsetRange(tp(10), 0, OFFSET_MAX),
        OffsetRange(tp(1), 7, 7),
        OffsetRange(tp(0), 100, 200, 3),
    ],
    {tp(4): 150},
)
RESET = Reset(1_700_000_000_000, "33333333-3333-3333-3333-333333333333")
# The stored texts are never edited: a release must read what an older one wrote.
STORED = {
    "offset-v1-full.json": FULL,
    "offset-v1-initial.json": SourceOffset(LINEAGE),
    "offset-v1-reset.json": SourceOffset.of(LINEAGE, {"orders": ID}, [OffsetRange(tp(0), 0, 50)], {}, RESET),
    "offset-v1-standby.json": SourceOffset.of(LINEAGE, {"orders": ID}, [], {tp(0): 10, tp(3): 0}),
}


def text_of(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def document(**changes: Any) -> dict[str, Any]:
    return {"v": 1, "lineage": LINEAGE, "topics": {"orders": {"id": ID, "ranges": {"0": [1, 2]}}}} | changes


def topic(**changes: Any) -> dict[str, Any]:
    return document(topics={"orders": {"id": ID, "ranges": {"0": [1, 2]}} | changes})


# --- golden files


def test_every_golden_file_has_a_value() -> None:
    assert {path.name for path in GOLDEN.glob("offset-v*.json")} == set(STORED)


@pytest.mark.parametrize("name", sorted(STORED))
def test_golden_file(name: str) -> None:
    text = (GOLDEN / name).read_text().strip()
    assert parse_offset(json.loads(text)) == STORED[name]
    assert text_of(STORED[name].to_json()) == text


# --- values


def test_the_text_does_not_depend_on_the_order_of_construction() -> None:
    """Spark compares offsets as text."""
    again = SourceOffset.of(LINEAGE, dict(reversed(FULL.topic_ids)), reversed(FULL.ranges), dict(reversed(FULL.done)))
    assert text_of(again.to_json()) == text_of(FULL.to_json())
    assert json.dumps(FULL.to_json(), sort_keys=True) == json.dumps(json.loads(text_of(FULL.to_json())), sort_keys=True)


def test_keys_are_in_canonical_order() -> None:
    shown = FULL.to_json()
    assert list(shown) == sorted(shown)
    assert list(shown["topics"]) == ["orders", "refunds"]
    assert list(shown["topics"]["orders"]) == sorted(shown["topics"]["orders"])


def test_initial_offsets_have_lineages_of_their_own() -> None:
    first, second = SourceOffset(new_lineage()), SourceOffset(new_lineage())
    assert first.lineage != second.lineage
    assert parse_offset(first.to_json()) == first


def test_ends_are_those_of_ranges_and_of_done() -> None:
    assert FULL.ends() == {tp(0): 200, tp(1): 7, tp(10): OFFSET_MAX, TopicPartition("refunds", 0): 1, tp(4): 150}


def test_topic_ids() -> None:
    assert (FULL.topic_id("orders"), FULL.topic_id("unknown")) == (ID, None)


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (6, 5), (0, OFFSET_MAX + 1)])
def test_a_range_is_half_open_and_not_negative(start: int, end: int) -> None:
    with pytest.raises(ValueError, match=r"not a half-open range.*orders-0"):
        OffsetRange(tp(0), start, end)


def test_a_range_shows_itself_and_its_length() -> None:
    item = OffsetRange(tp(0), 5, 8)
    assert (str(item), len(item)) == ("orders-0 [5, 8)", 3)


@pytest.mark.parametrize(
    ("reset", "known", "result"),
    [
        (None, None, False),
        (None, RESET, False),
        (RESET, None, True),
        (RESET, RESET, False),
        (RESET, Reset(RESET.at_ms - 1, "z"), True),
        (RESET, Reset(RESET.at_ms + 1, "a"), False),
        # made in the same millisecond: one of them is the newer one, whoever asks
        (Reset(5, "b"), Reset(5, "a"), True),
        (Reset(5, "a"), Reset(5, "b"), False),
    ],
)
def test_which_reset_is_news(reset: Reset | None, known: Reset | None, result: bool) -> None:
    assert newer(reset, known) is result


def test_a_reset_shows_itself() -> None:
    assert str(RESET) == "33333333-3333-3333-3333-333333333333@1700000000000"


# --- the parser refuses


def test_an_offset_of_sparks_own_source_is_distinguished() -> None:
    """Else the advice to start with a new checkpoint would leave a gap: the group has no offsets yet."""
    with pytest.raises(OffsetFormatError, match=r"OFFSET_OF_SPARKS_SOURCE.*groupkafka adopt"):
        parse_offset({"orders": {"0": 23, "1": 0}, "v": {"0": 5}})
    for other in ({"orders": {"0": 23}, "v": 1}, {"orders": {}}, {"orders": {"0": "23"}}):
        with pytest.raises(OffsetFormatError, match=r"OFFSET_MALFORMED"):
            parse_offset(other)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "expected an object, found NoneType"),
        ([], "expected an object, found list"),
        ("{}", "expected an object, found str"),
        ({}, "missing keys ['lineage', 'topics', 'v']"),
        (document(extra=1), "unknown keys ['extra']"),
        (document(v=0), "unknown version 0"),
        (document(v=True), "expected an integer"),
        (document(v="1"), "expected an integer"),
        (document(v=1.0), "expected an integer"),
        (document(v=None), "expected an integer"),
        (document(v=-1), "expected an integer"),
        (document(lineage=""), "expected a text"),
        (document(lineage=5), "expected a text"),
        (document(lineage="x" * 256), "expected a text"),
        (document(topics=[]), "'topics' is not an object"),
        (document(topics={"": {"id": ID, "ranges": {}}}), "expected a text"),
        (document(topics={"orders": []}), "expected an object, found list"),
        (document(topics={"orders": {"id": ID}}), "missing keys ['ranges']"),
        (document(topics={"orders": {"ranges": {}}}), "missing keys ['id']"),
        (topic(id=""), "expected a text"),
        (topic(id=None), "expected a text"),
        (topic(more={}), "unknown keys ['more']"),
        (topic(ranges=[]), "expected an object, found list"),
        (topic(ranges={"0": [1]}), "range of orders-0 is not a pair"),
        (topic(ranges={"0": [1, 2, 3]}), "range of orders-0 is not a pair"),
        (topic(ranges={"0": "12"}), "range of orders-0 is not a pair"),
        (topic(ranges={"0": [2, 1]}), "ends before it starts"),
        (topic(ranges={"0": [-1, 1]}), "expected an integer"),
        (topic(ranges={"0": [0, True]}), "expected an integer"),
        (topic(ranges={"0": [0, 1.0]}), "expected an integer"),
        (topic(ranges={"0": [0, float("nan")]}), "expected an integer"),
        (topic(ranges={"0": [0, float("inf")]}), "expected an integer"),
        (topic(ranges={"0": [0, "1"]}), "expected an integer"),
        (topic(ranges={"0": [0, OFFSET_MAX + 1]}), "expected an integer"),
        (topic(ranges={"00": [0, 1]}), "'00' is not a partition number"),
        (topic(ranges={"-1": [0, 1]}), "'-1' is not a partition number"),
        (topic(ranges={"+1": [0, 1]}), "'+1' is not a partition number"),
        (topic(ranges={" 1": [0, 1]}), "' 1' is not a partition number"),
        (topic(ranges={"1\n": [0, 1]}), "is not a partition number"),
        (topic(ranges={"\u0661": [0, 1]}), "is not a partition number"),
        (topic(ranges={"": [0, 1]}), "'' is not a partition number"),
        (topic(ranges={str(PARTITION_MAX + 1): [0, 1]}), "expected an integer"),
        (topic(done=[]), "expected an object, found list"),
        (topic(done={"1": -1}), "expected an integer"),
        (topic(done={"1": 1.5}), "expected an integer"),
        (topic(done={"1": False}), "expected an integer"),
        (topic(done={"0": 2}), "orders-0 is both in 'ranges' and in 'done'"),
        (topic(epochs={"1": 2}), "leader epochs without a range: orders [1]"),
        (topic(epochs={"0": -1}), "expected an integer"),
        (topic(epochs={"0": 2**31}), "expected an integer"),
        (topic(epochs={"0": None}), "expected an integer"),
        (topic(epochs=[3]), "expected an object, found list"),
        (document(reset=None), "the reset is not a pair"),
        (document(reset=[]), "the reset is not a pair"),
        (document(reset=[1, "id", 2]), "the reset is not a pair"),
        (document(reset={"0": 1, "1": "id"}), "the reset is not a pair"),
        (document(reset=["id", 1]), "expected an integer"),
        (document(reset=[-1, "id"]), "expected an integer"),
        (document(reset=[1.0, "id"]), "expected an integer"),
        (document(reset=[TIME_MAX_MS + 1, "id"]), "expected an integer"),
        (document(reset=[1, ""]), "expected a text"),
        (document(reset=[1, None]), "expected a text"),
    ],
)
def test_refused(value: object, reason: str) -> None:
    with pytest.raises(OffsetFormatError) as raised:
        parse_offset(value)
    assert "[GROUPKAFKA.OFFSET_MALFORMED] The stored offset is not valid: " in str(raised.value)
    assert reason in str(raised.value)


@pytest.mark.parametrize("changes", [{}, {"lineage": None, "more": 1}], ids=["same layout", "other layout"])
def test_a_newer_version_is_named_before_its_layout_is_looked_at(changes: dict[str, object]) -> None:
    with pytest.raises(OffsetFormatError, match=r"OFFSET_TOO_NEW.*version 2; this release reads versions up to 1"):
        parse_offset(document(v=2, **changes))


def test_long_values_are_cut_in_the_error() -> None:
    with pytest.raises(OffsetFormatError) as raised:
        parse_offset(topic(ranges={"0": ["x" * 10_000, 1]}))
    assert len(str(raised.value)) < 500


# --- hostile input


def test_a_deeply_nested_value_is_refused() -> None:
    value: Any = 1
    for _ in range(900):
        value = [value]
    with pytest.raises(OffsetFormatError):
        parse_offset(topic(ranges={"0": value}))
