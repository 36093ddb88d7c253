"""The text that accompanies a committed offset."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource.commits import (
    MAX_BYTES,
    CommitItem,
    CommitMetadata,
    GroupOffset,
    Pin,
    overruled,
    parse_metadata,
    requests_of,
    topic_digest,
    topics_digest,
)
from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.offsets import OFFSET_MAX, PARTITION_MAX, TIME_MAX_MS, Reset

from .fakes import LINEAGE, tp

GOLDEN = Path(__file__).parent.parent / "golden"
ID = "Qw3zT0ynQ2uB8v7h1d2eZA"
RESET = Reset(1_700_000_000_000, "33333333-3333-3333-3333-333333333333")
STORED = {
    "commit-metadata-v1-full.txt": CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4, "05b5a1c43e7e"), 3),
    "commit-metadata-v1-pin.txt": CommitMetadata(LINEAGE, ID, 0, 0, Pin(0, 1)),
    "commit-metadata-v1-reset.txt": CommitMetadata(LINEAGE, ID, 0, 50, Pin(0, 1), reset=RESET),
}
FULL = STORED["commit-metadata-v1-full.txt"]


def changed(**changes: Any) -> str:
    return json.dumps(json.loads(FULL.to_text()) | changes)


def without(key: str) -> str:
    value = json.loads(FULL.to_text())
    del value[key]
    return json.dumps(value)


def test_every_golden_file_has_a_value() -> None:
    assert {path.name for path in GOLDEN.glob("commit-metadata-v*.txt")} == set(STORED)


@pytest.mark.parametrize("name", sorted(STORED))
def test_golden_file(name: str) -> None:
    text = (GOLDEN / name).read_text().strip()
    assert parse_metadata(text) == STORED[name]
    assert STORED[name].to_text() == text


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "consumer-1-abc",
        "{",
        "[1]",
        "{}",
        '{"v":1}',
        '"gk"',
        "{" + " " * MAX_BYTES + "}",
        '{"gk":' + "[" * 4000,
    ],
)
def test_the_text_of_another_writer_is_no_error(text: str | None) -> None:
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
        FULL.to_text().replace('"n":4', '"n":4,"n":5'),
        FULL.to_text().replace('"p":90', '"p":NaN'),
    ],
)
def test_our_version_with_another_content_is_nobodys(text: str) -> None:
    assert parse_metadata(text) is None


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_version_is_an_error(version: int) -> None:
    with pytest.raises(OffsetFormatError, match=rf"OFFSET_TOO_NEW.*commit metadata.*version {version}"):
        parse_metadata(changed(gk=version))


def test_optional_parts_may_be_absent() -> None:
    parsed = parse_metadata(json.dumps({k: v for k, v in json.loads(FULL.to_text()).items() if k not in ("e", "k")}))
    assert parsed == CommitMetadata(LINEAGE, ID, 100, 200, Pin(90, 4))


def test_the_longest_text_fits_into_the_brokers_default() -> None:
    topics = [f"{number:03d}-{'t' * 240}" for number in range(400)]
    pin = Pin(OFFSET_MAX, PARTITION_MAX, topics_digest(dict.fromkeys(topics, ID)))
    text = CommitMetadata("l" * 255, "t" * 255, OFFSET_MAX, OFFSET_MAX, pin, 2**31 - 1).to_text()
    assert len(text.encode()) <= MAX_BYTES
    assert parse_metadata(text) is not None


def test_a_pin_knows_its_topics() -> None:
    pin = Pin(0, 1, topics_digest({"orders": ID, "refunds": ""}))
    assert pin.knows_topic("orders", ID)
    assert not pin.knows_topic("orders", "of another one, made after the first was deleted")
    assert pin.knows_topic("refunds", "any, where the id was not known")
    assert not pin.knows_topic("returns", ID)


def test_digests_are_compared_at_their_own_places_only() -> None:
    """A digest that straddles two others is not a topic."""
    first, second = topic_digest("orders"), topic_digest("refunds")
    straddling = (first + second)[3:9]
    pin = Pin(0, 1, first + second)
    assert straddling in first + second
    assert not any(
        pin.knows_topic(name, "")
        for name in (f"t{n}" for n in range(2000))
        if topic_digest(name) not in (first, second)
    )


def test_a_pin_without_topics_knows_all() -> None:
    assert Pin(0, 1).knows_topic("orders", ID)


def test_too_many_topics_have_no_digest() -> None:
    assert topics_digest(dict.fromkeys(map(str, range(400)), ID)) is not None
    assert topics_digest(dict.fromkeys(map(str, range(401)), ID)) is None
    assert Pin(0, 1, topics_digest({})).knows_topic("orders", ID) is False


def test_mutated_texts_never_raise_anything_else() -> None:
    source = random.Random(41)
    text = FULL.to_text()
    same = 0
    for _ in range(2000):
        at = source.randrange(len(text))
        cut = at + source.randint(0, 3)
        mutated = text[:at] + source.choice(["", "0", "9", '"', "{", "]", ",", "null", "\u00e9", "1e9"]) + text[cut:]
        try:
            parsed = parse_metadata(mutated)
        except OffsetFormatError:
            continue
        if parsed is not None:
            same += 1
            assert parse_metadata(parsed.to_text()) == parsed
    assert same > 100


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


def test_another_programs_offset_is_left_alone_until_the_start_position_is_established() -> None:
    late = CommitItem(tp(0), 900, CommitMetadata(LINEAGE, ID, 800, 900, Pin(0, 1)).to_text())
    assert overruled(late, GroupOffset(0, ""), established=False)
    assert not overruled(late, GroupOffset(None), established=False)
    mine = GroupOffset(0, CommitMetadata("another", ID, 0, 0, Pin(0, 1)).to_text())
    assert not overruled(late, mine, established=False)


def test_a_commit_is_cut_into_requests_that_the_coordinator_can_store() -> None:
    """A broker refused 1,200 partitions with the digests of 200 topics: together they are 1.6 MB."""
    items = [CommitItem(tp(number), 7, "x" * 1336) for number in range(1200)]
    requests = requests_of(items)
    assert [item for request in requests for item in request] == items
    assert all(sum(len(item.metadata) for item in request) < 500_000 for request in requests)
    assert len(requests) == 4
    assert requests_of(items[:3]) == [tuple(items[:3])]
    assert requests_of([]) == []
