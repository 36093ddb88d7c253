"""The session: what it plans, and what it waits for before it does."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.driver.readiness import COMMIT_S, FIRST_ASSIGNMENT_S, SETTLE_S
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset, KnownTopics, Pin, parse_metadata
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.options.model import ReadBounds
from tests.unit.driver.session_bed import P0, P1, START, Bed, earliest, flat, metadata, ranges
from tests.unit.fakes import (
    LINEAGE,
    TOPIC_ID,
    offset_of,
)


def test_a_batch_is_planned_from_the_pinned_start() -> None:
    bed = earliest(p0=5, p1=0)
    end = bed.session.latest_offset(START)
    assert ranges(end) == ["orders-0 [0, 5)", "orders-1 [0, 0)"]
    assert (end.lineage, end.topic_id("orders")) == (LINEAGE, TOPIC_ID)
    assert end.ranges[0].leader_epoch == 3
    assert flat(bed.session.tasks(START, end)) == ["orders-0 [0, 5)"]
    assert bed.session.newest_offsets() == {"orders": {"0": 5, "1": 0}}


def test_pins_are_committed_before_anything_is_planned() -> None:
    """Else a crash would move 'latest', and the records between would be lost."""
    bed = Bed()
    bed.join(P0)
    bed.ends(p0=5, p1=9)
    assert bed.session.latest_offset(START) is START
    assert bed.member.planned == []
    item, other = bed.group.commits()[0]
    assert (item.partition, item.offset) == (P0, 5)
    assert (other.partition, other.offset) == (P1, 9), "the other member's partition"
    pinned = CommitMetadata(LINEAGE, TOPIC_ID, 5, 5, Pin(5, 2, KnownTopics.of({"orders": TOPIC_ID})))
    assert parse_metadata(item.metadata) == pinned
    bed.ends(p0=8)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [5, 8)"]


def test_nothing_new_returns_start_itself() -> None:
    """Spark runs an empty batch for anything else."""
    bed = earliest(p0=5)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    assert bed.session.latest_offset(end) is end


@pytest.mark.parametrize("partitions", [(), (P0,)])
def test_the_first_call_waits_for_an_assignment(partitions: tuple[TopicPartition, ...]) -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(*partitions)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    if partitions:
        assert (ranges(end), bed.paused) == (["orders-0 [0, 5)"], 0.0)
    else:
        assert end is START
        assert bed.paused == pytest.approx(FIRST_ASSIGNMENT_S, abs=0.1)
        assert bed.session.latest_offset(START) is START
        assert bed.paused == pytest.approx(FIRST_ASSIGNMENT_S + SETTLE_S, abs=0.1)


def second_batch_uncommitted(bed: Bed) -> SourceOffset:
    """The first batch is complete, and its commit has no answer; there is more to read."""
    bed.join(P0)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.ends(p0=9)
    bed.refuse_commits()
    bed.paused = 0.0
    return end


@pytest.mark.rule("R9")
def test_p6_a_member_that_is_lost_while_it_waits_plans_nothing() -> None:
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.member.during_view = lambda: bed.lose(P0) if bed.paused > 0.5 else None
    assert bed.session.latest_offset(end) is end


@pytest.mark.rule("R9")
def test_m09_batches_go_on_without_commits_after_one_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The ends are asked for anew after the wait; the batches behind it do not wait, until a commit is taken."""
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.member.during_view = lambda: bed.ends(p0=11) if bed.paused > 0.5 else None
    with caplog.at_level(logging.WARNING):
        second = bed.session.latest_offset(end)
    assert ranges(second) == ["orders-0 [5, 11)"]
    assert bed.paused == pytest.approx(COMMIT_S, abs=0.1)
    assert [record.getMessage() for record in caplog.records] == [
        "batches go on, although no commit was accepted for 1 s: group=shop"
    ]
    bed.member.during_view = lambda: None
    bed.ends(p0=12)
    third = bed.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [11, 12)"]
    assert bed.paused == pytest.approx(COMMIT_S, abs=0.1)
    bed.accept_commits()
    bed.ends(p0=13)
    with caplog.at_level(logging.INFO):
        fourth = bed.session.latest_offset(third)
    assert "commits are accepted again: group=shop" in caplog.messages
    bed.refuse_commits()
    bed.ends(p0=14)
    assert ranges(bed.session.latest_offset(fourth)) == ["orders-0 [13, 14)"]
    assert bed.paused == pytest.approx(2 * COMMIT_S, abs=0.1)


@pytest.mark.parametrize(
    ("given", "stops"),
    [({"kafka__group__protocol": "consumer"}, True), ({}, True), ({"assignors": "weighted"}, False)],
)
@pytest.mark.rule("R71")
def test_p6_a_member_that_is_cut_off_plans_no_more_than_a_session_long(given: dict[str, str], stops: bool) -> None:
    """It cannot reach its coordinator, and reads from the other brokers; the group gives its partitions away.
    kafka-python takes no commits while it joins, which is as long as others drain."""
    bed = Bed(startingOffsets="earliest", **given)
    bed.cluster.session_s = 45.0
    end = second_batch_uncommitted(bed)
    second = bed.session.latest_offset(end)
    bed.clock.advance(43.0)
    bed.ends(p0=11)
    third = bed.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [9, 11)"]
    bed.clock.advance(1.0)
    bed.ends(p0=12)
    fourth = bed.session.latest_offset(third)
    assert fourth is third if stops else ranges(fourth) == ["orders-0 [11, 12)"]
    if stops:
        bed.accept_commits()
        assert ranges(bed.session.latest_offset(third)) == ["orders-0 [11, 12)"]


@pytest.mark.rule("R71")
def test_p6_the_time_of_a_session_begins_with_the_first_commit_without_an_answer() -> None:
    """1. A batch is complete, and the member is cut off. 2. Its session expires. 3. The next trigger comes."""
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer")
    bed.cluster.session_s = 45.0
    end = second_batch_uncommitted(bed)
    bed.member.complete(end)
    bed.clock.advance(50.0)
    assert bed.session.latest_offset(end) is end
    bed.accept_commits()
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [5, 9)"]


def test_p6_available_now_does_not_end_for_a_member_of_kip_848_that_is_cut_off() -> None:
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer", maxOffsetsPerTrigger="5")
    bed.ends(p0=9)
    bed.session.prepare_available_now()
    bed.assign(P0)
    bounds = ReadBounds(max_rows=5)
    end = bed.session.latest_offset(START, bounds)
    bed.refuse_commits()
    second = bed.session.latest_offset(end, ReadBounds(max_rows=2))
    assert ranges(second) == ["orders-0 [5, 7)"]
    bed.clock.advance(45.0)
    with pytest.raises(KafkaUnavailableError, match="OffsetCommit failed: the group's coordinator has not accepted it"):
        bed.session.latest_offset(second, bounds)


def test_a_stop_ends_the_wait_for_a_commit() -> None:
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.session.request_stop()
    assert bed.session.latest_offset(end) is end
    assert bed.paused == 0.0


def test_partitions_take_turns_by_what_was_logged() -> None:
    """A plan that Spark never logged was no turn."""
    bed = earliest(p0=5, p1=5)
    bounds = ReadBounds(max_rows=1)
    end = bed.session.latest_offset(START, bounds)
    assert ranges(end) == ["orders-0 [0, 1)", "orders-1 [0, 0)"]
    for _ in range(2):
        assert ranges(bed.session.latest_offset(end, bounds)) == ["orders-0 [1, 1)", "orders-1 [0, 1)"]


def test_a_plan_that_spark_never_logged_is_planned_again() -> None:
    bed = earliest(p0=5)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]
    bed.ends(p0=6)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 6)"]
    assert len(bed.member.planned) == 2
    assert bed.committed() == {0: 0}


@pytest.mark.parametrize(("available", "later_s", "planned"), [(9, 59.0, False), (10, 0.0, True), (1, 60.0, True)])
def test_too_few_records_are_left_for_later(available: int, later_s: float, planned: bool) -> None:
    """The first batch does not wait; the next ones do until there are enough records, or for maxTriggerDelay."""
    bed = earliest(p0=1, maxTriggerDelay="1m")
    first = bed.session.latest_offset(START, ReadBounds(min_rows=10))
    assert ranges(first) == ["orders-0 [0, 1)"]
    bed.ends(p0=1 + available)
    bed.clock.advance(later_s)
    assert (bed.session.latest_offset(first, ReadBounds(min_rows=10)) is not first) is planned


def test_too_few_records_are_left_for_later_beside_a_log_that_is_short() -> None:
    """A log that ends before its position is looked into: its topic may be another one. It is no reason to read."""
    bed = Bed(startingOffsets="earliest")
    bed.group.committed[P1] = GroupOffset(10, metadata(LINEAGE, 5, 10))
    bed.join(P0, P1)
    bed.ends(p0=5, p1=10)
    start = offset_of(OffsetRange(P0, 0, 0), OffsetRange(P1, 5, 10))
    first = bed.session.latest_offset(start, ReadBounds(min_rows=1))
    bed.ends(p0=6, p1=9)
    assert bed.session.latest_offset(first, ReadBounds(min_rows=100)) is first


def test_no_records_are_no_batch_however_long_it_waited() -> None:
    bed = Bed(startingOffsets="earliest", maxTriggerDelay="1m")
    bed.join(P0)
    assert bed.session.latest_offset(START, ReadBounds(min_rows=10)) is START
    bed.clock.advance(120.0)
    assert bed.session.latest_offset(START, ReadBounds(min_rows=10)) is START


def test_a_group_that_keeps_rebalancing_gives_no_batch_but_ends() -> None:
    bed = earliest(p0=5)
    bed.member.refused_fixes = 10**6
    bed.member.during_fix = lambda: bed.clock.advance(1.0)
    assert bed.session.latest_offset(START) is START
