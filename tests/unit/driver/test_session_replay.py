"""The session: a logged batch that runs again."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.errors import DataLossError, KafkaUnavailableError, MembershipError
from spark_groupsource.model.commit_metadata import GroupOffset, metadata_of
from spark_groupsource.model.offsets import OffsetRange
from tests.unit.driver.session_bed import P0, P1, START, Bed, joined, metadata, ranges, replayed
from tests.unit.fakes import (
    LINEAGE,
    OTHER_LINEAGE,
    offset_of,
)


def test_a_logged_batch_is_read_again_as_it_was_owned_or_not() -> None:
    bed = Bed()
    bed.join(P0)
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    assert replayed(bed, logged) == ["orders-0 [10, 20)", "orders-1 [5, 9)"]
    batch = bed.member.flight
    assert batch is not None
    assert batch.end == logged


def test_an_empty_batch_that_runs_again_is_not_in_flight() -> None:
    """1. A query is stopped while Spark runs its first batch, which is empty, 2. it starts again, and is stopped
    before it has read anything: nothing can be repeated."""
    bed = Bed()
    bed.join(P0)
    assert bed.session.tasks(START, offset_of(lineage=OTHER_LINEAGE)) == ()
    assert bed.member.flight is None


@pytest.mark.parametrize(
    ("assignors", "known", "goes_on"), [("weighted", True, True), ("weighted", False, False), ("range", True, False)]
)
def test_a_replay_waits_while_others_of_its_group_drain(assignors: str, known: bool, goes_on: bool) -> None:
    """1. The query is restarted with a logged batch, and joins its group, 2. the group waits for a member that drains a
    long batch; a member on kafka-python gets no offsets meanwhile. It does not wait so long for a coordinator that is
    away."""
    bed = Bed(assignors=assignors)
    bed.join(P0)
    bed.member.shows(coordinator_known=known)
    bed.group.unanswered_fetches = 10**6
    logged = offset_of(OffsetRange(P0, 10, 20))
    began_s = bed.clock.monotonic_s()
    pause = bed.session._starts._pause

    def until_drained(seconds: float) -> object:
        bed.group.unanswered_fetches = 0 if bed.clock.monotonic_s() - began_s > 250.0 else 10**6
        return pause(seconds)

    bed.session._starts._pause = until_drained
    if goes_on:
        assert replayed(bed, logged) == ["orders-0 [10, 20)"]
    else:
        with pytest.raises(KafkaUnavailableError, match="OffsetFetch failed"):
            replayed(bed, logged)


def test_a_replay_keeps_the_leader_epochs() -> None:
    """Executors tell by them whether what they have fetched ahead is what was planned."""
    bed = joined(p0=20)
    logged = offset_of(OffsetRange(P0, 10, 20, bed.cluster.epoch))
    assert [item.leader_epoch for task in bed.session.tasks(START, logged) for item in task] == [bed.cluster.epoch]


@pytest.mark.rule("R11")
def test_a_replay_leaves_out_what_another_lineage_has_committed_and_remembers_it() -> None:
    bed = Bed()
    bed.join(P0)
    bed.group.committed[P0] = GroupOffset(15, metadata(OTHER_LINEAGE, 10, 15))
    bed.group.committed[P1] = GroupOffset(9, metadata(LINEAGE, 5, 9))
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    assert replayed(bed, logged) == ["orders-0 [15, 20)", "orders-1 [5, 9)"]
    bed.group.committed[P0] = GroupOffset(18, metadata(OTHER_LINEAGE, 15, 18))
    assert replayed(bed, logged) == ["orders-0 [15, 20)", "orders-1 [5, 9)"]


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_replay_whose_records_are_removed_meanwhile(fail: str, caplog: pytest.LogCaptureFixture) -> None:
    """P8: the query is down, retention removes what its logged batch reads, Spark runs the batch again."""
    bed = Bed(failOnDataLoss=fail)
    bed.join(P0)
    bed.cluster.beginnings |= {P0: 14, P1: 30}
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    if fail == "true":
        with pytest.raises(DataLossError, match=r"orders-0 \[10, 14\), orders-1 \[5, 9\)"):
            bed.session.tasks(START, logged)
    else:
        with caplog.at_level(logging.WARNING):
            assert replayed(bed, logged) == ["orders-0 [14, 20)"]
        assert "orders-0 [10, 14), orders-1 [5, 9)" in caplog.text


def test_a_replay_in_conflict_may_fail_the_query() -> None:
    bed = Bed(onConflict="fail")
    bed.group.committed[P0] = GroupOffset(30, "moved by hand")
    bed.join(P0)
    with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 \[60, 70\) group=30 .*another program"):
        replayed(bed, offset_of(OffsetRange(P0, 60, 70)))
    assert bed.member.flight is None


def test_a_group_that_was_moved_back_stays_there_after_a_replay() -> None:
    """onConflict=group: the batch is read as logged and not committed, then everything from the group's offset on."""
    bed = Bed(onConflict="group")
    bed.group.committed[P0] = GroupOffset(30, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    logged = offset_of(OffsetRange(P0, 60, 70))
    assert replayed(bed, logged) == ["orders-0 [60, 70)"]
    assert ranges(bed.session.latest_offset(logged)) == ["orders-0 [30, 95)"]
    assert bed.committed() == {0: 30}


@pytest.mark.parametrize("moved", [60, 65], ids=["to the batch's start", "inside of it"])
@pytest.mark.rule("R11")
def test_a_group_that_was_moved_into_a_batch_is_followed_once(moved: int) -> None:
    """To skip record 64, another program moves the group to 65: the batch that runs again reads [65, 70), and no later
    one does."""
    bed = Bed()
    bed.group.committed[P0] = GroupOffset(moved, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    logged = offset_of(OffsetRange(P0, 60, 70))
    assert replayed(bed, logged) == [f"orders-0 [{moved}, 70)"]
    assert ranges(bed.session.latest_offset(logged)) == ["orders-0 [70, 95)"]
    assert bed.committed() == {0: 70}
    found = metadata_of(bed.group.committed[P0])
    assert found is not None
    assert found.pin.offset == moved, "its initial offset is where the other program has put it"


def test_a_group_that_is_moved_again_after_a_replay_is_followed_again() -> None:
    bed = Bed()
    bed.group.committed[P0] = GroupOffset(65, "moved by hand")
    bed.ends(p0=95)
    logged = offset_of(OffsetRange(P0, 60, 70))
    assert replayed(bed, logged) == ["orders-0 [65, 70)"]
    bed.group.committed[P0] = GroupOffset(66, "moved by hand")
    bed.join(P0)
    assert ranges(bed.session.latest_offset(logged)) == ["orders-0 [66, 95)"]
