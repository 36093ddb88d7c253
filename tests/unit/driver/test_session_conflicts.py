"""The session: what it does when checkpoint and group do not agree."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import DataLossError, MembershipError
from spark_groupsource.model.commit_metadata import GroupOffset, parse_metadata
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.options.model import ReadBounds
from tests.unit.driver.session_bed import P0, P1, P2, START, Bed, flat, metadata, ranges, restarted
from tests.unit.fakes import (
    LINEAGE,
    TOPIC_ID,
    offset_of,
)


@pytest.mark.parametrize(("choice", "planned"), [("checkpoint", "orders-0 [70, 95)"), ("group", "orders-0 [90, 95)")])
def test_a_conflict_is_decided_and_makes_a_new_lineage(
    choice: str, planned: str, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(onConflict=choice)
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)))
    assert ranges(end) == [planned]
    assert end.lineage != LINEAGE
    assert "orders-0 group=90 checkpoint=70" in caplog.text
    bed.session.commit(end)
    assert bed.committed() == {0: 95}


def test_a_conflict_is_decided_and_reported_once_however_often_its_start_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Start positions wait for the answer to a commit of another partition."""
    bed = Bed()
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.member.refused_establishes = 40
    bed.join(P0)
    bed.ends(p0=95)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)))
    assert ranges(end) == ["orders-0 [70, 95)"]
    assert caplog.text.count("conflict, decided by") == 1
    assert f"lineage={end.lineage}" in caplog.text


def test_a_conflict_may_fail_the_query() -> None:
    bed = Bed(onConflict="fail")
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=90 checkpoint=70"):
        bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)))


@pytest.mark.parametrize("group", [90, 70], ids=["ahead", "where we are"])
def test_an_offset_of_another_program_is_pinned_in_our_name(group: int) -> None:
    """So that one without metadata is one that was moved since."""
    bed = Bed()
    bed.member.committed[P0] = GroupOffset(group, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    assert ranges(bed.session.latest_offset(START)) == [f"orders-0 [{group}, 95)"]
    written = parse_metadata(bed.member.committed[P0].metadata)
    assert written is not None
    assert (written.lineage, written.start, written.end) == (LINEAGE, group, group)


@pytest.mark.parametrize("choice", ["group", "checkpoint"])
def test_a_conflict_with_another_program_leaves_the_pinned_initial_offset(choice: str) -> None:
    """The sequence: a program joins the group, is given a partition, commits its own text, and leaves."""
    bed = Bed(onConflict=choice, startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=70)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.member.lose(P0)
    bed.member.committed[P0] = GroupOffset(90, "of another program")
    bed.member.assign(P0)
    bed.ends(p0=95)
    assert bed.session.latest_offset(end) is not end
    bed.session.commit(bed.session.latest_offset(end))
    written = parse_metadata(bed.member.committed[P0].metadata)
    assert written is not None
    assert written.pin.offset == 0


@pytest.mark.parametrize("fetched", [True, False], ids=["offsets are known", "offsets come later"])
@pytest.mark.parametrize(("choice", "position"), [("checkpoint", 100), ("group", 40), ("fail", None)])
@pytest.mark.rule("R49")
def test_a_rewind_while_the_session_was_lost_is_decided_and_not_undone(
    choice: str, position: int | None, fetched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """1. [0, 100) is complete; 2. the session expires, and another tool moves the empty group to 40; 3. the member gets
    its partition back, and the next trigger says that 100 is complete before it looks for a start position.
    """
    bed = Bed(onConflict=choice, startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=100)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    assert bed.session.latest_offset(end) is end
    bed.member.lose(P0)
    bed.member.committed[P0] = GroupOffset(40, "")
    bed.member.assign(P0)
    if fetched:
        bed.member.view()
    bed.ends(p0=110)
    if position is None:
        with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=40 checkpoint=100"):
            bed.session.latest_offset(end)
        assert bed.committed() == {0: 40}
    else:
        with caplog.at_level(logging.WARNING):
            assert ranges(bed.session.latest_offset(end)) == [f"orders-0 [{position}, 110)"]
        assert "orders-0 group=40 checkpoint=100" in caplog.text
        assert bed.committed() == {0: position}


def test_what_is_complete_is_committed_before_a_start_position_is_established_where_nobody_has_moved_it() -> None:
    """The partition is lost and comes back while its batch is in flight; it may be wanted back before the next plan."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=100)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.member.lose(P0)
    bed.member.assign(P0)
    bed.member.view()
    bed.session.commit(end)
    assert bed.committed() == {0: 100}


@pytest.mark.rule("R77")
def test_p6_a_conflict_of_another_partition_leaves_no_completed_end_uncommitted() -> None:
    """1. Both partitions are lost with their batch in flight; 2. another tool moves one of them; 3. both come back, and
    the query fails for the one, before it has established the other."""
    bed = Bed(startingOffsets="earliest", onConflict="fail")
    bed.join(P0, P1)
    bed.ends(p0=100, p1=100)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.member.lose(P0, P1)
    bed.session.commit(end)
    bed.member.committed[P1] = GroupOffset(40, "")
    bed.member.assign(P0, P1)
    with pytest.raises(MembershipError, match=r"CONFLICT.*orders-1 group=40 checkpoint=100"):
        bed.session.latest_offset(end)
    bed.member.take_commits()
    assert bed.committed() == {0: 100, 1: 40}


@pytest.mark.rule("R77")
def test_p6_a_late_report_of_a_batch_leaves_no_completed_end_uncommitted() -> None:
    """1. A partition is lost with batch N in flight; 2. N is complete, and N+1 is planned without it; 3. Spark reports
    N once more, as it does; 4. the partition comes back while N+1 is in flight, and is revoked."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0, P1)
    bed.ends(p0=100, p1=100)
    first = bed.session.latest_offset(START)
    bed.session.tasks(START, first)
    bed.member.lose(P0)
    bed.member.assign(P1)
    bed.ends(p0=150, p1=150)
    second = bed.session.latest_offset(first)
    assert ranges(second) == ["orders-1 [100, 150)"]
    bed.session.tasks(first, second)
    bed.session.commit(first)
    bed.member.assign(P0)
    bed.member.view()
    assert [(each.partition, each.offset) for each in bed.member.machine.pending((P0,))] == [(P0, 100)]


@pytest.mark.rule("R55")
def test_p1_what_another_program_has_skipped_is_not_skipped_by_the_next_owner() -> None:
    """1. another program moves the group to 90, the checkpoint at 70 wins, 2. [70, 80) completes, 3. the partition goes
    to a member with another checkpoint: it must not start at 90, because nobody has read [80, 90).
    """
    bed = Bed(onConflict="checkpoint")
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    first = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)), ReadBounds(max_rows=10))
    assert ranges(first) == ["orders-0 [70, 80)"]
    assert bed.committed() == {0: 70}, "a handover now would skip [70, 90)"
    assert ranges(bed.session.latest_offset(first, ReadBounds(max_rows=5))) == ["orders-0 [80, 85)"]
    assert bed.committed() == {0: 80}

    other = Bed()
    other.member.committed = bed.member.committed
    other.join(P0)
    other.ends(p0=95)
    assert ranges(other.session.latest_offset(START)) == ["orders-0 [80, 95)"]


@pytest.mark.rule("R55")
def test_p6_an_old_end_of_a_partition_that_was_handed_over_moves_no_group_back() -> None:
    """1. [0, 70) is read, and the partition handed over; 2. others read to 200; 3. another program moves the group back
    to 90, and the partition returns: with the group at 70, its next owner would repeat what others have read to 90.
    """
    bed = Bed(onConflict="checkpoint")
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    bed.ends(p0=200)
    start = SourceOffset.of(LINEAGE, {"orders": TOPIC_ID}, (OffsetRange(P1, 0, 5),), {P0: 70})
    assert "orders-0 [70, 200)" in ranges(bed.session.latest_offset(start))
    assert bed.committed()[0] == 90


@pytest.mark.rule("R53")
def test_a_conflict_that_the_checkpoint_has_won_stays_won(caplog: pytest.LogCaptureFixture) -> None:
    """1. the group is at 90, the old checkpoint at 70 wins, 2. [70, 80) completes, [80, 85) is logged, the query dies,
    3. started again, the batch is read as logged, and the next one goes on behind it, not at 90.
    """
    bed = Bed(onConflict="checkpoint")
    bed.member.committed[P0] = GroupOffset(90, metadata(LINEAGE, 80, 90))
    bed.join(P0)
    bed.ends(p0=95)
    first = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)), ReadBounds(max_rows=10))
    second = bed.session.latest_offset(first, ReadBounds(max_rows=5))
    assert (ranges(first), ranges(second)) == (["orders-0 [70, 80)"], ["orders-0 [80, 85)"])
    assert bed.committed() == {0: 90}, "the group's offset went back"

    again = Bed(onConflict="checkpoint")
    again.member.committed = bed.member.committed
    again.join(P0)
    again.ends(p0=95)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert flat(again.session.tasks(first, second)) == ["orders-0 [80, 85)"]
        third = again.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [85, 95)"]
    assert "conflict" not in caplog.text, "it is decided"
    assert third.lineage == first.lineage
    again.session.commit(third)
    assert again.committed() == {0: 95}


def attempt(committed: dict[TopicPartition, GroupOffset], lost: int, **options: str) -> list[str] | str:
    """Start the query on a checkpoint at 100 of two partitions, one of whose logs begins at `lost`; it logs nothing."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.member.committed = committed
    bed.ends(p0=200, p1=200)
    bed.cluster.beginnings[P1] = lost
    bed.join(P0, P1)
    try:
        return ranges(bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100))))
    except DataLossError as error:
        return str(error.parameters["ranges"])


@pytest.mark.rule("R52")
def test_a_conflict_is_decided_in_the_same_way_until_a_batch_of_that_is_logged() -> None:
    """1. an old checkpoint (100) is restored, the group is at 150, the checkpoint wins; 2. the query ends with a loss
    before it has logged anything, and is started again: the group's text in the new lineage's name is no progress.
    """
    held = GroupOffset(150, metadata(LINEAGE, 100, 150))
    committed = {P0: held, P1: held}
    assert attempt(committed, 120) == attempt(committed, 120) == "orders-1 [100, 120)"
    assert attempt(committed, 120, failOnDataLoss="false") == ["orders-0 [100, 200)", "orders-1 [120, 200)"]
    assert {partition: group.offset for partition, group in committed.items()} == {P0: 150, P1: 150}


@pytest.mark.rule("R25")
def test_a_late_commit_of_the_lineage_that_has_lost_a_conflict_commits_nothing() -> None:
    """1. The group is at 50, the checkpoint at 100, and the group wins. 2. [50, 55) is planned in a new lineage's name.
    3. Spark reports late that the batch that ended at 100 is complete.
    """
    bed = Bed(onConflict="group")
    bed.member.committed[P0] = GroupOffset(50, "")
    bed.join(P0)
    bed.ends(p0=55)
    start = offset_of(OffsetRange(P0, 90, 100))
    end = bed.session.latest_offset(start)
    assert (end.lineage != LINEAGE, ranges(end)) == (True, ["orders-0 [50, 55)"])
    bed.session.commit(start)
    assert bed.committed() == {0: 50}
    bed.session.commit(end)
    assert bed.committed() == {0: 55}


def won_by_an_old_checkpoint(*others: TopicPartition) -> tuple[Bed, SourceOffset]:
    """Return a query on a checkpoint at 100, which has won over its own lineage's 1000, and its first batch, to 120."""
    bed = Bed()
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    held = GroupOffset(1000, metadata(LINEAGE, 900, 1000))
    bed.member.committed = {P0: held, P1: held}
    bed.join(P0, P1)
    bed.ends(p0=1000, p1=1000, p2=1000)
    start = offset_of(OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100), done=dict.fromkeys(others, 100))
    first = bed.session.latest_offset(start, ReadBounds(max_rows=40))
    assert ranges(first) == ["orders-0 [100, 120)", "orders-1 [100, 120)"]
    bed.session.tasks(start, first)
    return bed, first


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.rule("R54")
def test_a_conflict_that_the_checkpoint_has_won_is_not_decided_anew_when_a_partition_comes_back(replayed: bool) -> None:
    """1. an old checkpoint (100) wins over the group (1000), [100, 120) is logged in lineage N; 2. p1 leaves and comes
    back, [120, 140) is logged; 3. killed, started again: whose text p0 has, N's, is this query's own.
    """
    bed, first = won_by_an_old_checkpoint()
    bed.member.lose(P1)
    bed.member.assign(P1)
    second = bed.session.latest_offset(first, ReadBounds(max_rows=40))
    assert (second.lineage, ranges(second)) == (first.lineage, ["orders-0 [120, 140)", "orders-1 [120, 140)"])
    again = restarted(bed, P0, P1)
    if replayed:
        assert flat(again.session.tasks(first, second)) == ranges(second)
    else:
        assert ranges(again.session.latest_offset(second)) == ["orders-0 [140, 1000)", "orders-1 [140, 1000)"]
    assert {group.offset for group in again.member.committed.values()} == {1000}


def test_a_conflict_that_the_checkpoint_has_won_stays_won_when_partitions_come_one_by_one() -> None:
    """Started again behind [100, 120), the query is given p0, plans, and is given p1."""
    bed, first = won_by_an_old_checkpoint()
    again = restarted(bed, P0)
    second = again.session.latest_offset(first, ReadBounds(max_rows=40))
    again.member.assign(P1)
    assert ranges(again.session.latest_offset(second)) == ["orders-0 [160, 1000)", "orders-1 [120, 1000)"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.rule("R54")
def test_a_conflict_that_the_checkpoint_has_won_stays_won_after_another_one(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """1. an old checkpoint (100) wins over the group (1000), [100, 120) is logged in lineage N; 2. p2 comes, moved by
    another program: the checkpoint wins again, for a lineage N2, and a batch is logged in its name; 3. killed, started
    again: p0's text is to say N2, else 1000 would look like the progress of another lineage.
    """
    bed, first = won_by_an_old_checkpoint(P2)
    bed.member.committed[P2] = GroupOffset(50, "moved by hand")
    if at_once:
        bed = restarted(bed, P0, P1, P2)
    else:
        bed.member.assign(P2)
    second = bed.session.latest_offset(first, ReadBounds(max_rows=60))
    assert [item.start for item in second.ranges] == [120, 120, 100]
    assert second.lineage not in {LINEAGE, first.lineage}
    again = restarted(bed, P0, P1, P2)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        third = again.session.latest_offset(second, ReadBounds(max_rows=60))
    assert [item.start for item in third.ranges] == [item.end for item in second.ranges]
    assert "conflict" not in caplog.text


@pytest.mark.parametrize(("choice", "planned"), [("group", []), ("fail", None)])
def test_what_the_checkpoint_has_won_counts_for_no_other_choice(choice: str, planned: list[str] | None) -> None:
    """The user has changed option onConflict since."""
    bed, first = won_by_an_old_checkpoint()
    again = restarted(bed, P0, P1, onConflict=choice)
    if planned is None:
        with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=1000 checkpoint=120"):
            again.session.latest_offset(first)
    else:
        assert again.session.latest_offset(first) is first


@pytest.mark.rule("R51")
def test_the_same_old_checkpoint_restored_twice_is_read_again_twice(caplog: pytest.LogCaptureFixture) -> None:
    """The group's text is that of the first time: it decided the conflict, and is no progress of another lineage."""
    committed = {P0: GroupOffset(150, metadata(LINEAGE, 100, 150))}
    logged = offset_of(OffsetRange(P0, 100, 110))
    for _ in range(2):
        bed = Bed()
        bed.member.committed = committed
        bed.join(P0)
        bed.ends(p0=150)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert flat(bed.session.tasks(START, logged)) == ["orders-0 [100, 110)"]
        assert "orders-0 [100, 110) group=150 (the checkpoint is older" in caplog.text
        assert ranges(bed.session.latest_offset(logged, ReadBounds(max_rows=10))) == ["orders-0 [110, 120)"]


def test_a_conflict_that_the_group_has_won_is_won_again_after_a_kill() -> None:
    """The group was moved back by another program; the query is killed behind the pins, before its first batch."""
    committed = {P0: GroupOffset(50, ""), P1: GroupOffset(50, "")}
    wanted = ["orders-0 [50, 200)", "orders-1 [50, 200)"]
    assert attempt(committed, 0, onConflict="group") == wanted
    assert attempt(committed, 0, onConflict="group") == wanted
