"""The session: a group that was moved by the command `reset`."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset
from spark_groupsource.model.offsets import OffsetRange, Reset
from tests.unit.driver.session_bed import P0, P1, PIN, START, Bed, earliest, ranges
from tests.unit.fakes import (
    LINEAGE,
    TOPIC_ID,
    offset_of,
)

RESET = Reset(2000, "the reset's id")


def reset_text(offset: int, lineage: str = "the reset's id", reset: Reset = RESET) -> GroupOffset:
    return GroupOffset(offset, CommitMetadata(lineage, TOPIC_ID, offset, offset, PIN, reset=reset).to_text())


def test_a_reset_is_remembered_before_the_next_batch_is_logged() -> None:
    """Nothing to read since: Spark goes on from the old offset, whose ends stay void."""
    bed = Bed()
    bed.group.committed |= {P0: reset_text(900), P1: reset_text(0)}
    bed.join(P0)
    bed.ends(p0=900, p1=0)
    start = offset_of(OffsetRange(P0, 800, 900), done={P1: 70})
    assert bed.session.latest_offset(start) is start
    bed.assign(P1)
    bed.ends(p1=80)
    assert ranges(bed.session.latest_offset(start)) == ["orders-0 [900, 900)", "orders-1 [0, 80)"]
    assert bed.committed() == {0: 900, 1: 0}, "an end from before the reset was committed"


def test_a_standby_and_a_new_checkpoint_learn_the_reset_quietly(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    bed.group.committed[P0] = reset_text(0)
    bed.join(P0)
    bed.ends(p0=5)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(START)
    assert (end.lineage, end.reset, ranges(end)) == (LINEAGE, RESET, ["orders-0 [0, 5)"])
    assert "reset" not in caplog.text


def test_a_second_reset_is_news_again() -> None:
    bed = Bed()
    bed.group.committed[P0] = reset_text(0, reset=Reset(3000, "the second"))
    bed.join(P0)
    bed.ends(p0=900)
    end = bed.session.latest_offset(replace(offset_of(OffsetRange(P0, 800, 900)), reset=RESET))
    assert (ranges(end), end.reset) == (["orders-0 [0, 900)"], Reset(3000, "the second"))


@pytest.mark.parametrize(("told_by_log", "tasks"), [(True, 1), (False, 10)])
def test_tasks_are_sized_by_what_a_batch_took_and_not_by_the_triggers_interval(told_by_log: bool, tasks: int) -> None:
    """1. a batch of a million records takes 2 s, 2. the next trigger comes ten minutes later."""
    bed = earliest(p0=1_000_000)
    first = bed.session.latest_offset(START)
    assert len(bed.session.tasks(START, first)) == 1
    bed.clock.advance(2.0)
    if told_by_log:
        flight = bed.member.flight
        assert flight is not None
        bed.member.complete(flight.end)
    bed.clock.advance(600.0)
    bed.ends(p0=2_000_000)
    second = bed.session.latest_offset(first)
    assert len(bed.session.tasks(first, second)) == tasks
