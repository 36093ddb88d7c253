"""One member stores the start positions that change with time; the others wait for it, for a bounded time."""

from __future__ import annotations

import json
import logging

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.first_starts import ARRIVED_S, WAIT_S
from spark_groupsource.model.commit_metadata import GroupOffset, KnownTopics, Pin
from spark_groupsource.model.offsets import SourceOffset
from tests.unit.driver.session_bed import P0, P1, START, Bed, metadata, ranges
from tests.unit.fakes import OTHER_LINEAGE, TOPIC_ID

# The pin of a group that began with "latest".
PIN = Pin(7, 2, KnownTopics.of({"orders": TOPIC_ID}))


def waiting(**options: str) -> Bed:
    """Return a query that has got orders-1 only, in a group that has no start of it yet."""
    bed = Bed(**options)
    bed.join(P1)
    bed.ends(p0=5, p1=9)
    assert bed.session.latest_offset(START) is START
    return bed


def next_trigger(bed: Bed, seconds: float = 1.0) -> SourceOffset:
    """Return the plan of a trigger that comes later."""
    bed.clock.advance(seconds)
    return bed.session.latest_offset(START)


@pytest.mark.rule("R105")
def test_a_member_without_the_first_partition_waits_for_its_owner() -> None:
    bed = waiting()
    assert bed.committed() == {}
    bed.group.committed[P1] = GroupOffset(7, metadata(OTHER_LINEAGE, 7, 7, pin=PIN))
    next_trigger(bed)
    assert ranges(next_trigger(bed)) == ["orders-1 [7, 9)"]


@pytest.mark.rule("R105")
def test_a_new_partition_waits_too_if_a_broker_does_not_know_it_yet() -> None:
    """The group has given it to this member by another broker's answer."""
    bed = Bed()
    bed.join(P1)
    bed.ends(p0=5, p1=9)
    described = bed.cluster.describe
    bed.cluster.describe = lambda *_, **__: {"orders": TopicInfo(TOPIC_ID, 1)}  # type: ignore[method-assign]
    assert bed.session.latest_offset(START) is START
    bed.cluster.describe = described  # type: ignore[method-assign]
    bed.group.committed[P1] = GroupOffset(7, metadata(OTHER_LINEAGE, 7, 7, pin=PIN))
    next_trigger(bed)
    assert ranges(next_trigger(bed)) == ["orders-1 [7, 9)"]


@pytest.mark.rule("R105")
def test_other_partitions_are_read_meanwhile() -> None:
    bed = Bed()
    bed.group.committed[P0] = GroupOffset(2, metadata(OTHER_LINEAGE, 0, 2, pin=PIN))
    bed.join(P0, P1)
    bed.ends(p0=5, p1=9)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [2, 5)", "orders-1 [9, 9)"], "it stores both"


@pytest.mark.rule("R105")
def test_who_waits_in_vain_stores_the_position_of_its_first_moment(caplog: pytest.LogCaptureFixture) -> None:
    """What is written while it waits is read. Nothing is planned while another member's commit may arrive."""
    bed = waiting()
    bed.ends(p1=20)
    with caplog.at_level(logging.WARNING):
        assert next_trigger(bed, WAIT_S) is START
    assert bed.committed() == {1: 9}
    assert "stored no start positions for 10 s" in caplog.text
    assert "orders-1 at 9" in caplog.text
    assert next_trigger(bed, ARRIVED_S - 0.5) is START
    bed.clock.advance(0.6)
    assert ranges(next_trigger(bed)) == ["orders-1 [9, 20)"]


@pytest.mark.rule("R105")
def test_p5_a_start_that_arrives_after_the_wait_is_where_it_goes_on() -> None:
    bed = waiting()
    next_trigger(bed, WAIT_S)
    assert bed.committed() == {1: 9}
    bed.group.committed[P1] = GroupOffset(7, metadata(OTHER_LINEAGE, 7, 7, pin=PIN))
    next_trigger(bed, ARRIVED_S)
    assert ranges(next_trigger(bed)) == ["orders-1 [7, 9)"]


@pytest.mark.rule("R105")
def test_who_waits_and_gets_the_first_partition_stores_its_first_moment() -> None:
    bed = waiting()
    bed.ends(p0=8, p1=20)
    bed.assign(P0)
    bed.clock.advance(1.0)
    bed.session.latest_offset(START)
    assert bed.committed() == {0: 8, 1: 9}


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "earliest"},
        {"startingOffsets": json.dumps({"orders": {"0": 3, "1": 4}})},
        {"assign": json.dumps({"orders": [1]})},
    ],
)
def test_a_start_that_does_not_move_or_has_no_other_member_is_stored_at_once(options: dict[str, str]) -> None:
    bed = Bed(**options)
    bed.join(P1)
    bed.ends(p0=5, p1=9)
    bed.session.latest_offset(START)
    assert bed.committed().keys() == {1}


def test_a_start_that_the_group_refuses_for_another_member_holds_nothing_up_for_long() -> None:
    bed = Bed()
    bed.join(P0)
    bed.ends(p0=5, p1=9)
    bed.group.exists = lambda partition: partition == P0
    bed.session.latest_offset(START)
    bed.ends(p0=8)
    assert ranges(next_trigger(bed)) == ["orders-0 [5, 8)"]


def test_a_query_that_ends_by_itself_waits_too() -> None:
    bed = Bed()
    bed.join(P1)
    bed.ends(p0=5, p1=9)
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert bed.committed() == {1: 9}
    assert WAIT_S + ARRIVED_S <= bed.paused < WAIT_S + ARRIVED_S + 5.0


@pytest.mark.rule("R105")
@pytest.mark.parametrize("first", [3, -2], ids=["an offset", "the beginning"])
def test_the_owner_of_a_first_partition_that_does_not_move_stores_the_others(first: int) -> None:
    bed = Bed(startingOffsets=json.dumps({"orders": {"0": first, "1": -1}}))
    bed.join(P0)
    bed.ends(p0=5, p1=9)
    bed.session.latest_offset(START)
    assert bed.committed() == {0: max(first, 0), 1: 9}
