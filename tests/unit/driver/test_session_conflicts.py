"""The session: what it does when checkpoint and group do not agree."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.port import Refusal
from spark_groupsource.model.commit_metadata import GroupOffset, parse_metadata
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.planning.start_position import Lineage
from tests.unit.driver.session_bed import P0, P1, P2, START, Bed, earliest, ranges
from tests.unit.fakes import (
    LINEAGE,
    TOPIC_ID,
    offset_of,
)

START_70 = offset_of(OffsetRange(P0, 40, 70))


def test_a_conflict_is_reported_once_however_often_its_start_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Start positions wait for the answer to a commit of another partition."""
    bed = Bed()
    bed.group.committed[P0] = GroupOffset(90, "moved by hand")
    bed.group.refusals.extend([Refusal.REBALANCE] * 40)
    bed.join(P0)
    bed.ends(p0=95)
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.session.latest_offset(START_70)) == ["orders-0 [90, 95)"]
    assert caplog.text.count("the group's offsets and the checkpoint disagree") == 1


def test_another_programs_offset_may_fail_the_query() -> None:
    bed = Bed(onConflict="fail")
    bed.group.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=90 checkpoint=70"):
        bed.session.latest_offset(START_70)


@pytest.mark.rule("R46")
def test_a_partition_that_another_program_has_moved_is_no_end_of_a_checkpoint_that_knows_newer_resets() -> None:
    """p0 and p1 were moved, and p1 is another member's, which decides that: perhaps as an older reset than p0's."""
    bed = Bed()
    bed.group.committed = {P0: GroupOffset(40, ""), P1: GroupOffset(40, ""), P2: GroupOffset(7, "")}
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    bed.join(P0)
    bed.ends(p0=60, p1=60, p2=60)
    end = bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 100), done={P1: 100, P2: 7}))
    assert (ranges(end), dict(end.done)) == (["orders-0 [40, 60)"], {P2: 7})


def test_a_partition_that_comes_back_is_a_conflict_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    bed.group.committed = {P0: GroupOffset(40, ""), P1: GroupOffset(30, "")}
    bed.join(P0)
    bed.ends(p0=60, p1=60)
    start = offset_of(OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100))
    bed.session._starts.establish(bed.member.view(), start, ["orders"], Lineage(LINEAGE))
    bed.assign(P1)
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.session.latest_offset(start)) == ["orders-0 [40, 60)", "orders-1 [30, 60)"]
    assert "orders-1 group=30 checkpoint=100" in caplog.text


def test_a_conflict_with_another_program_leaves_the_pinned_initial_offset() -> None:
    """The sequence: a program joins the group, is given a partition, commits its own text, and leaves."""
    bed = earliest(p0=70)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.lose(P0)
    bed.group.committed[P0] = GroupOffset(90, "of another program")
    bed.assign(P0)
    bed.ends(p0=95)
    assert bed.session.latest_offset(end) is not end
    bed.session.commit(bed.session.latest_offset(end))
    written = parse_metadata(bed.group.committed[P0].metadata)
    assert written is not None
    assert written.pin.offset == 0
