"""The text that accompanies a committed offset."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model.commit_metadata import (
    Anchor,
    CommitItem,
    CommitMetadata,
    GroupOffset,
    KnownTopics,
    Pin,
    commit_items,
    overruled,
    parse_metadata,
    requests_of,
)
from spark_groupsource.model.offsets import (
    NO_TOPIC_ID,
    OFFSET_MAX,
    PARTITION_MAX,
    TIME_MAX_MS,
    OffsetRange,
    Reset,
    same_topic,
)
from tests.checkout import ROOT
from tests.unit.fakes import LINEAGE, OTHER_LINEAGE, TOPIC_ID, offset_of, tp

GOLDEN = ROOT / "tests" / "golden"
ID = "Qw3zT0ynQ2uB8v7h1d2eZA"
P0, P1 = tp(0), tp(1)
ANCHOR = Anchor(TOPIC_ID, Pin(0, 3))
RESET = Reset(1_700_000_000_000, "33333333-3333-3333-3333-333333333333")
OLDER = Reset(1_600_000_000_000, "older")
HEX = KnownTopics(6, "05b5a1c43e7e", is_hex=True)
TOPICS = {"orders": ID, "refunds": ""}
STORED = {
    "commit-metadata-v1-conflict.txt": CommitMetadata(LINEAGE, ID, 150, 150, Pin(90, 4), instead_of=OTHER_LINEAGE),
    "commit-metadata-v2-conflict.txt": CommitMetadata(
        LINEAGE, ID, 150, 150, Pin(90, 4, KnownTopics.of(TOPICS)), reset=RESET, instead_of=OTHER_LINEAGE
    ),
    "commit-metadata-v1-full.txt": CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4, HEX), 3),
    "commit-metadata-v1-pin.txt": CommitMetadata(LINEAGE, ID, 0, 0, Pin(0, 1)),
    "commit-metadata-v1-reset.txt": CommitMetadata(LINEAGE, ID, 0, 50, Pin(0, 1), reset=RESET),
    "commit-metadata-v2-topics.txt": CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4, KnownTopics.of(TOPICS)), 3),
    "commit-metadata-v2-too-many.txt": CommitMetadata(LINEAGE, ID, 0, 0, Pin(0, 1, KnownTopics(0, ""))),
    "commit-metadata-v3-state.txt": CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4), has_state=True),
    "commit-metadata-v3-hex.txt": CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4, HEX), 3, has_state=True),
    "commit-metadata-v3-topics.txt": CommitMetadata(
        LINEAGE, ID, 100, 200, Pin(90, 4, KnownTopics.of(TOPICS)), 3, RESET, has_state=True
    ),
}
NEW = STORED["commit-metadata-v2-topics.txt"]
FULL = STORED["commit-metadata-v1-full.txt"]
STATE = STORED["commit-metadata-v3-topics.txt"]


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(FULL.to_text()) | changes)


def without(key: str, metadata: CommitMetadata = FULL) -> str:
    value = json.loads(metadata.to_text())
    del value[key]
    return json.dumps(value)


def changed_new(**changes: Any) -> str:
    return json.dumps(json.loads(NEW.to_text()) | changes)


def changed_state(**changes: Any) -> str:
    return json.dumps(json.loads(STATE.to_text()) | changes)


def test_every_golden_file_has_a_value() -> None:
    assert {path.name for path in GOLDEN.glob("commit-metadata-v*.txt")} == set(STORED)


@pytest.mark.parametrize("name", sorted(STORED))
def test_golden_file(name: str) -> None:
    text = (GOLDEN / name).read_text().strip()
    assert parse_metadata(text) == STORED[name]
    # Only read: of version 0.2.
    if STORED[name].instead_of is None:
        assert STORED[name].to_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "consumer-1-abc",
        "{",
        "[1]",
        "{}",
        '{"v":1}',
        '"gk"',
        '{"gk":0}',
        '{"gk":' + "[" * 4000,
    ],
)
def test_the_text_of_another_writer_is_no_error(text: str) -> None:
    assert parse_metadata(text) is None


@pytest.mark.parametrize(
    "text",
    [
        *[without(key) for key in ("l", "t", "r", "p", "n")],
        changed(x=1),
        changed(z=None),
        changed(z=[1]),
        changed(z=["id", 1]),
        changed(z=[TIME_MAX_MS + 1, "id"]),
        changed(z=[1, ""]),
        changed(l=""),
        changed(t=5),
        changed(r=5),
        changed(r=[1]),
        changed(r=[1, 2, 3]),
        changed(r="12"),
        changed(r=[-1, 2]),
        changed(r=[1, 2.0]),
        changed(r=[True, 2]),
        changed(p=-1),
        changed(p=None),
        changed(n=PARTITION_MAX + 1),
        changed(e=-1),
        changed(e="3"),
        changed(k=5),
        changed(k="12345"),
        changed(k=[6, "05b5a1c43e7e"]),
        without("k", NEW),
        changed_new(k="05b5a1c43e7e"),
        changed_new(k=[]),
        changed_new(k=[12]),
        changed_new(k=[12, "x" * 13]),
        changed_new(k=[12, "x" * 3252]),
        changed_new(k=[11, "x" * 11]),
        changed_new(k=[12, "x" * 12, 1]),
        changed_new(k=[0, "x"]),
        changed_new(k=[False, ""]),
        changed_new(k=[12.0, "x" * 12]),
        changed_new(k=[-12, ""]),
        FULL.to_text().replace('"n":4', '"n":4,"n":5'),
        FULL.to_text().replace('"p":90', '"p":NaN'),
    ],
)
def test_our_version_with_another_content_is_nobodys(text: str) -> None:
    assert parse_metadata(text) is None


@pytest.mark.parametrize("version", [4, 99])
def test_a_newer_version_is_an_error(version: int) -> None:
    with pytest.raises(OffsetFormatError, match=rf"OFFSET_TOO_NEW.*commit metadata.*version {version}"):
        parse_metadata(changed(gk=version))


@pytest.mark.parametrize("text", [without("s", STATE), changed_state(s=2), changed_state(s=True), changed_state(o="x")])
def test_version_3_has_the_mark_and_nothing_else_in_its_place(text: str) -> None:
    assert parse_metadata(text) is None


def test_the_mark_costs_six_bytes_and_only_queries_with_state_pay_them() -> None:
    for stored in STORED.values():
        plain = replace(stored, has_state=False).to_text()
        assert json.loads(plain)["gk"] < 3
        assert "s" not in json.loads(plain)
        assert len(replace(stored, has_state=True).to_text()) == len(plain) + len('"s":1,')


def test_optional_parts_may_be_absent() -> None:
    parsed = parse_metadata(json.dumps({k: v for k, v in json.loads(FULL.to_text()).items() if k not in ("e", "k")}))
    assert parsed == CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4))


@pytest.mark.parametrize(
    ("count", "width"), [(0, 12), (270, 12), (271, 10), (324, 10), (325, 8), (405, 8), (406, 6), (540, 6)]
)
def test_digests_are_as_long_as_fits_into_the_brokers_default(count: int, width: int) -> None:
    topics = {f"{number:03d}-{'t' * 240}": ID for number in range(count)}
    known = KnownTopics.of(topics)
    assert (known.width, len(known.digests)) == (width, width * count)
    text = CommitMetadata("l" * 255, "t" * 255, OFFSET_MAX, OFFSET_MAX, Pin(0, PARTITION_MAX, known), 2**31 - 1)
    # With the zero byte that the client commits, too.
    assert len(text.to_text().encode()) + 1 <= 4096
    assert parse_metadata(text.to_text()) == text
    assert all(known.has(topic, ID) for topic in topics)
    assert not any(known.has(topic, "made again") for topic in topics)


def test_a_pin_of_more_topics_than_fit_knows_none() -> None:
    """A topic that is not known is read from its beginning: its records are not skipped."""
    known = KnownTopics.of(dict.fromkeys(map(str, range(541)), ID))
    assert known == KnownTopics(0, "")
    assert known.too_many
    pin = Pin(5, 1, known)
    assert not pin.knows_topic("1", ID)
    assert not pin.leaves_out("1", ID)
    assert not KnownTopics.of({}).too_many
    assert Pin(0, 1, KnownTopics.of({})).leaves_out("orders", ID)


@pytest.mark.parametrize("known", [KnownTopics.of(TOPICS), KnownTopics(6, "2124d74fdc1d", is_hex=True)])
@pytest.mark.rule("R6")
def test_a_pin_knows_its_topics(known: KnownTopics) -> None:
    pin = Pin(0, 1, known)
    assert pin.knows_topic("orders", ID)
    assert not pin.knows_topic("orders", "of another one, made after the first was deleted")
    assert pin.knows_topic("refunds", "any, where the id was not known")
    assert not pin.knows_topic("returns", ID)


def test_a_topic_of_brokers_without_ids_is_known_by_its_name() -> None:
    known = KnownTopics.of({"orders": NO_TOPIC_ID})
    assert known.has("orders", NO_TOPIC_ID)
    assert known.has("orders", "of a topic that was given one since")
    assert not known.has("refunds", NO_TOPIC_ID)


def test_topics_that_shared_the_old_digest_are_distinguished() -> None:
    """Guards against: 1. a group begins at "latest" with one topic; 2. a topic is created whose SHA-256 begins with the
    same 24 bits; 3. it is taken for one that was there, and its records up to now are skipped.
    """
    seen: dict[str, str] = {}
    for number in range(100_000):
        name = f"orders-{number}"
        other = seen.setdefault(hashlib.sha256(f"{name}/{ID}".encode()).hexdigest()[:6], name)
        if other != name:
            break
    else:
        pytest.fail("no collision")
    assert KnownTopics(6, hashlib.sha256(f"{other}/{ID}".encode()).hexdigest()[:6], is_hex=True).has(name, ID)
    pin = Pin(0, 1, KnownTopics.of({other: ID}))
    assert (pin.knows_topic(other, ID), pin.knows_topic(name, ID)) == (True, False)


def test_digests_are_compared_at_their_own_places_only() -> None:
    """A digest that straddles two others is not a topic."""
    whole = {name: KnownTopics.of({name: ID}).digests for name in ("orders", "refunds", "returns")}
    straddling = KnownTopics(12, "a" * 6 + whole["returns"] + "b" * 6)
    assert whole["returns"] in straddling.digests
    assert not straddling.has("returns", ID)
    assert KnownTopics(12, whole["orders"] + whole["returns"]).has("returns", ID)


def test_a_pin_without_topics_knows_all() -> None:
    assert Pin(0, 1).knows_topic("orders", ID)


@pytest.mark.parametrize(
    ("one", "other", "result"),
    [
        (ID, ID, True),
        (ID, "another", False),
        (ID, NO_TOPIC_ID, True),
        (NO_TOPIC_ID, ID, True),
        (NO_TOPIC_ID, NO_TOPIC_ID, True),
        (None, NO_TOPIC_ID, False),
        (ID, None, False),
        (None, None, True),
    ],
)
def test_an_id_that_is_not_known_may_be_any(one: str | None, other: str | None, result: bool) -> None:
    assert same_topic(one, other) is result


@pytest.mark.parametrize(
    ("item", "group", "result"),
    [
        # nobody has reset the group, or the batch was planned after it
        (None, None, False),
        (RESET, None, False),
        (RESET, RESET, False),
        (RESET, Reset(5, "older"), False),
        # reset since
        (None, RESET, True),
        (Reset(5, "older"), RESET, True),
    ],
)
@pytest.mark.rule("R47")
def test_a_reset_overrules_batches_that_were_planned_before_it(
    item: Reset | None, group: Reset | None, result: bool
) -> None:
    late = CommitItem(tp(0), 900, CommitMetadata(LINEAGE, ID, 800, 900, Pin(0, 1), reset=item).to_text())
    held = GroupOffset(0, CommitMetadata("another", ID, 0, 0, Pin(0, 1), reset=group).to_text())
    assert overruled(late, held) is result
    other = CommitMetadata("another", "another topic's id", 0, 0, Pin(0, 1)).to_text()
    assert overruled(late, GroupOffset(0, other)), "a topic that was made again is another one"
    assert not overruled(late, GroupOffset(0, "")), "another program's offset is no reset"
    assert not overruled(late, GroupOffset(None))


@pytest.mark.rule("R12")
def test_another_programs_offset_is_left_alone_until_the_start_position_is_established() -> None:
    late = CommitItem(tp(0), 900, CommitMetadata(LINEAGE, ID, 800, 900, Pin(0, 1)).to_text())
    assert overruled(late, GroupOffset(0, ""), established=False)
    assert not overruled(late, GroupOffset(None), established=False)
    mine = GroupOffset(0, CommitMetadata("another", ID, 0, 0, Pin(0, 1)).to_text())
    assert not overruled(late, mine, established=False)


@pytest.mark.rule("R18")
def test_a_commit_is_cut_into_requests_that_the_coordinator_can_store() -> None:
    """A broker refused 1,200 partitions with the digests of 200 topics: together they are 1.6 MB."""
    items = [CommitItem(tp(number), 7, "x" * 1336) for number in range(1200)]
    requests = requests_of(items)
    assert [item for request in requests for item in request] == items
    assert all(sum(len(item.metadata) for item in request) < 500_000 for request in requests)
    assert len(requests) == 4
    assert requests_of(items[:3]) == [tuple(items[:3])]
    assert requests_of([]) == []


# --- commit_items


@pytest.mark.rule("R13")
def test_the_planned_end_is_committed_with_the_batch_in_its_text() -> None:
    (item,) = commit_items(offset_of(OffsetRange(P0, 10, 20, 3)), {P0: ANCHOR})
    assert (item.partition, item.offset, item.leader_epoch) == (P0, 20, 3)
    assert parse_metadata(item.metadata) == CommitMetadata(LINEAGE, TOPIC_ID, 10, 20, ANCHOR.pin, 3)


def test_partitions_without_an_anchor_are_not_committed() -> None:
    assert commit_items(offset_of(OffsetRange(P0, 10, 20), done={P1: 7}), {P1: ANCHOR}) == ()


@pytest.mark.rule("R35")
def test_the_end_in_a_deleted_topic_is_not_committed_to_its_successor() -> None:
    assert commit_items(offset_of(OffsetRange(P0, 10, 20)), {P0: Anchor("new-id", ANCHOR.pin)}) == ()


@pytest.mark.rule("R47")
def test_nothing_is_committed_of_a_partition_that_was_reset_after_the_plan() -> None:
    """The commit would undo the reset; where it left a partition alone, the batch has read what it says. Each text
    repeats its own partition's reset."""
    end = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    (item,) = commit_items(end, {P0: Anchor(TOPIC_ID, ANCHOR.pin, RESET), P1: ANCHOR})
    assert (item.partition, item.offset) == (P1, 9)
    assert len(commit_items(end, {P0: ANCHOR, P1: ANCHOR})) == 2
    knowing = replace(end, reset=RESET)
    items = commit_items(knowing, {P0: Anchor(TOPIC_ID, ANCHOR.pin, RESET), P1: Anchor(TOPIC_ID, ANCHOR.pin, OLDER)})
    assert [parse_metadata(item.metadata).reset for item in items] == [RESET, OLDER]  # type: ignore[union-attr]
