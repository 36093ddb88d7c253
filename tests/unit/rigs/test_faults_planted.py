"""The checker of fault runs catches errors that are planted into a good history, each under its promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.history import Commit, GroupRecord, MemberEvent, Produced, Start
from tests.faults.judge.verdict import BEHIND, SAME_LINEAGE, UNEXPLAINED
from tests.unit.rigs.histories import (
    TOPIC,
    Story,
    assert_good,
    assert_violated,
    away_coordinator,
    begun_at_10,
    cleanly,
    cut_short,
    judged,
    not_slow,
    record_id,
    recreated,
    recreated_with_another_partition,
    swap,
    texts,
    two_members,
    with_gap,
)

A, B = "q1#1", "q2#1"


def test_rows_of_a_run_that_does_not_count() -> None:
    """The run before the commit log's entry lacks a record; a later one has it, which helps nobody."""
    story = two_members()
    story.edit_rows(B, 0, lambda rows: rows[:-1])
    story.sink(5.0, B, 0, {1: (20, 40)})
    assert_violated(story, "P1", "P3")


def test_a_doubled_record_of_one_lineage() -> None:
    story = two_members()
    story.completed[-1].end["topics"][TOPIC]["ranges"]["0"] = [69, 100]
    story.change_commit(0, 100, "[70", "[69")
    story.edit_rows(B, 2, lambda rows: [(0, TOPIC, 0, 69, record_id(0, 69)), *rows])
    verdict = assert_violated(story, "P2", "P7")
    assert "[69, 70) (1 records) in batch 1 of q2#1" in texts(verdict, "P2")
    assert verdict.figures.repeats[SAME_LINEAGE] == 1


def test_a_repeat_across_members_without_an_unclean_fault() -> None:
    verdict = assert_violated(not_slow(cleanly(two_members())), "P6")
    assert verdict.figures.repeats[UNEXPLAINED] == 19
    assert "with nothing unclean between" in texts(verdict, "P6")


def test_a_repeat_after_a_clean_handover() -> None:
    story = two_members()
    story.edit_rows(B, 0, lambda rows: [(1, TOPIC, 1, 19, record_id(1, 19)), *rows])
    story.ranges(B, 0)["1"] = [19, 40]
    story.change_commit(1, 40, "[20", "[19")
    assert_violated(story, "P6")


# --- rows that are changed


SWAPPED = {record_id(0, 3): record_id(0, 4), record_id(0, 4): record_id(0, 3)}


@pytest.mark.parametrize(
    ("life", "batch", "attempt", "rows", "promise", "text"),
    [
        (B, 0, 0, lambda rows: rows[:5] + rows[6:], "P1", "orders-1: in no completed batch: [25, 26) (1 records)"),
        (A, 0, 0, lambda rows: [(*r[:4], SWAPPED.get(r[4], r[4])) for r in rows], "P1",
         "offset 3 is '0/4', in the log '0/3'"),
        (B, 2, 0, lambda rows: [*rows, (9, *rows[0][1:])], "P2", "twice in batch 2"),
        (A, 2, 0, lambda rows: rows[:-1], "P3", "the later one has more: [59, 60)"),
        (A, 2, 1, lambda rows: rows[1:], "P3", "the later one lacks [40, 41)"),
        (B, 0, 0, lambda rows: [rows[1], rows[0], *rows[2:]], "P7", "20 after 21"),
    ],
    ids=["dropped", "swapped", "twice in a batch", "a replay has more", "a replay has less", "a task's order"],
)  # fmt: skip
def test_rows(life: str, batch: int, attempt: int, rows: Any, promise: str, text: str) -> None:
    story = two_members()
    story.edit_rows(life, batch, rows, attempt)
    assert text in texts(assert_violated(story, promise), promise)


# --- plans and commits that are changed


@pytest.mark.parametrize(
    ("change", "promises", "text"),
    [
        (lambda story: story.change_commit(0, 40, at=4.35), "P4", "before batch 1 of q1#1"),
        (lambda story: story.commits.pop(story.commit_of(1, 100)), "P4", "the group is at 60, the log at 100 (lag 40)"),
        (lambda story: story.commit(5.0, A, 0, (40, 45), before=70), "P4", "no planned batch ends there"),
        (lambda story: story.commit(16.0, B, 0, (40, 70)), "P5 P4", "goes back from 100"),
        # By commits alone nothing is wrong; the coordinator's records tell that the partition has gone to q2.
        (lambda story: story.commit(12.45, A, 0, (40, 60), before=70), "P5",
         "q1 commits after the coordinator gave the partition to q2 at 12.000"),
        (lambda story: story.leave(14.0, "q2"), "P5", "q2 had lost the partition at 14.000"),
        (lambda story: story.ranges(A, 2).update({"0": [40, 59]}), "P3", "outside of its plan [40, 59): [59, 60)"),
        (lambda story: story.plan(16.0, B, 3, {0: (100, 100)}, topic_id="V"), "P1",
         "is of topic id V, which was never created"),
        (lambda story: story.starts.append(Start(TOPIC, "T", 0, 10, 10)), "P1",
         "read although before the group's start 10: [0, 10)"),
        (lambda story: story.produced.insert(7, replace(story.produced.pop(7), id="another")), "P1",
         "other records than were acknowledged at [7, 8)"),
    ],
    ids=[
        "an early commit", "lag at the end", "no end of a batch", "goes back", "a zombie", "has left",
        "beyond its plan", "an unknown topic id", "before a start at the end", "a rewritten log",
    ],
)  # fmt: skip
def test_plans_commits_and_logs(change: Callable[[Story], object], promises: str, text: str) -> None:
    """The first of the promises has the text."""
    story = two_members()
    change(story)
    first, *others = promises.split()
    assert text in texts(assert_violated(story, first, *others), first)


# --- lies: what the product says of itself excuses nothing


@pytest.mark.parametrize("event", ["refused", "lost", "left", "commits", "conflict", "reset"])
def test_a_repeat_that_only_an_event_of_the_product_excuses(event: str) -> None:
    story = not_slow(cleanly(two_members()))
    details = {"behind": True, "ranges": [[TOPIC, 0, 40, 60]]}
    story.tell(6.5, "q1", event, 0, **details)
    story.tell(6.5, "q2", event, 0, **details)
    assert_violated(story, "P6")


@pytest.mark.parametrize("outcome", ["DEADLINE", "STOPPED", "LOST", ""])
def test_a_repeat_that_only_the_outcome_of_a_drain_excuses(outcome: str) -> None:
    """Nor that the coordinator removed a third member."""
    story = not_slow(cleanly(two_members()))
    if outcome:
        story.tell(6.5, "q1", "revoked", 0, outcome=outcome, drain_ms=5000, committed=0, uncommitted=1)
    else:
        story.expire(6.5, "q3")
    assert_violated(story, "P6")


@pytest.mark.parametrize(
    ("at", "end", "text"),
    [
        (14.9, 85, "but nobody had deleted [80, 85)"),
        (14.0, 80, "nobody had deleted [70, 80)"),
        (14.9, 78, "deleted before it was read, and not reported: [78, 80)"),
        (14.9, None, "deleted before it was read, and not reported: [70, 80)"),
    ],
    ids=["more than was deleted", "before the deletion", "less than was deleted", "no report"],
)
def test_a_report_of_deleted_records(at: float, end: int | None, text: str) -> None:
    story = with_gap()
    if end is not None:
        story.tell(at, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 70, end]])
    assert text in texts(assert_violated(story, "P8"), "P8")


@pytest.mark.parametrize(
    ("start", "produced_at", "text"),
    [(None, 0.5, "[100, 110)"), (None, 28.0, "no report names it"), (90, 0.5, "the group had read [90, 100)")],
    ids=["no report", "no report of the last seconds", "a report hides what was read"],
)
def test_a_topic_that_went_with_unread_records(start: int | None, produced_at: float, text: str) -> None:
    story = recreated(unread=True)
    story.produced = [replace(one, at=produced_at) if one.offset >= 100 else one for one in story.produced]
    if start is not None:
        story.tell(32.0, "q2", "data_lost", 0, ranges=[[TOPIC, 0, start, 110]])
    assert text in texts(assert_violated(story, "P8"), "P8")


@pytest.mark.parametrize(
    ("reported", "text"),
    [
        ([], "deleted before it was read, and not reported: [104, 110)"),
        ([[TOPIC, 0, 106, 110]], "and not reported: [104, 106)"),
    ],
)
def test_a_report_of_a_batch_that_was_cut_short(reported: list[object], text: str) -> None:
    story = cut_short()
    story.members = [
        replace(one, details={"ranges": reported}) if one.event == "data_lost" else one
        for one in story.members
        if reported or one.event != "data_lost"
    ]
    assert text in texts(assert_violated(story, "P8"), "P8")


def test_records_that_no_plan_had_when_their_topic_was_deleted() -> None:
    story = cut_short()
    story.ranges(B, 3)["0"] = [100, 104]
    assert "in no completed batch: [104, 110)" in texts(assert_violated(story, "P1", "P4"), "P1")


@pytest.mark.parametrize("partition", [0, 1])
def test_a_pin_over_records_that_the_group_had_to_read(partition: int) -> None:
    """Every commit says that the group began at 10; the rig started it at the earliest offset."""
    story = begun_at_10(two_members())
    if partition == 0:
        found = texts(assert_violated(story, "P1", "P8"), "P1")
        assert "orders-0: pinned at 10, but the group began between 0 and 0" in found
        assert "in no completed batch: [0, 10)" in found
    else:
        story.starts = [Start(TOPIC, "T", 1, 10, 10), Start(TOPIC, "T", 0, 10, 10)]
        assert "orders-1: pinned at 0, but the group began between 10 and 10" in texts(
            assert_violated(story, "P1"), "P1"
        )


def test_a_new_partition_that_is_pinned_in_its_middle() -> None:
    story = two_members()
    story.write(2, 0, 40)
    story.fault("partitions-added", TOPIC, 15.2, 16.0, clean=True, partition=2)
    story.assign(16.0, "q2", 2)
    story.commit(16.0, B, 2, (20, 20))
    story.batch(16.5, B, 3, {2: (20, 40)})
    swap(story, 2, '"p": 0', '"p": 20')
    found = texts(assert_violated(story, "P1", "P8"), "P1")
    assert "orders-2: pinned at 20, but the group began between 0 and 0" in found
    assert "in no completed batch: [0, 20)" in found


def test_a_pin_that_changes() -> None:
    story = two_members()
    story.starts = [Start(TOPIC, "T", 0, 0, 10)]
    story.change_commit(0, 40, '"p": 0', '"p": 7')
    assert "pinned at 7, and at 0 before" in texts(assert_violated(story, "P1"), "P1")


def test_a_repeat_in_one_checkpoint_that_only_a_conflict_excuses() -> None:
    story = two_members()
    ranges = [[TOPIC, 0, 70, 100]]
    story.tell(17.0, "q2", "conflict", ranges=ranges)
    story.batch(18.1, B, 3, {0: (70, 100)}, lineage="new after the conflict")
    assert_violated(story, "P2")


def test_a_loss_that_the_product_reports_and_nobody_made() -> None:
    """The records are gone from the log by no deed of the rig: the report excuses nothing."""
    story = with_gap()
    story.faults.pop()
    story.tell(14.9, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 70, 80]])
    found = assert_violated(story, "P1", "P8")
    assert "in no completed batch: [70, 80)" in texts(found, "P1")
    assert "reported [70, 80) as lost at 14.900, but nobody had deleted" in texts(found, "P8")


def test_a_committed_record_of_a_deleted_topic_that_nobody_read() -> None:
    story = recreated()
    story.edit_rows(B, 1, lambda rows: [row for row in rows if row[2:4] != (1, 45)])
    assert "the group's offset was 100 when the topic was deleted" in texts(assert_violated(story, "P1"), "P1")


def test_the_beginning_of_a_recreated_topic_that_is_skipped() -> None:
    story = recreated()
    story.completed[-1].end["topics"][TOPIC]["ranges"]["0"] = [5, 10]
    story.edit_rows(B, 3, lambda rows: [row for row in rows if row[2] == 1 or row[3] >= 5])
    n = len(story.commits) - 2
    story.commits[n] = replace(story.commits[n], metadata=story.commits[n].metadata.replace("[0, 10]", "[5, 10]"))
    assert "in no completed batch: [0, 5)" in texts(assert_violated(story, "P1", "P8"), "P1")


@pytest.mark.parametrize(("at", "span"), [(32.6, (0, 5)), (32.6, (50, 55)), (29.0, (0, 0))])
def test_a_report_of_a_partition_that_only_the_recreated_topic_has(at: float, span: tuple[int, int]) -> None:
    """Offsets that nobody had deleted; and an empty report before the deletion."""
    story = recreated_with_another_partition()
    story.tell(at, "q2", "data_lost", 2, ranges=[[TOPIC, 2, *span]])
    assert "nobody had deleted" in texts(assert_violated(story, "P8"), "P8")


def test_records_of_the_new_topic_in_a_batch_of_the_old_one() -> None:
    """[100, 110) was planned of the old topic; what the task read there is of its successor."""
    story = recreated(unread=True)
    story.tell(32.0, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 110]])
    story.plan(29.9, B, 9, {0: (100, 110)})
    story.sink(31.5, B, 9, {0: (100, 110)})
    story.complete(31.6, B, 9)
    story.edit_rows(B, 9, lambda rows: [(*row[:4], f"new/{row[3]}") for row in rows])
    assert "offset 100 is 'new/100', in the log '0/100'" in texts(assert_violated(story, "P1"), "P1")


def test_a_batch_that_was_cut_short_with_no_deletion() -> None:
    """Plan, rows, commit and report are those of a batch that a deletion cut short; the rig deleted nothing."""
    found = assert_violated(cut_short(deleted=False), "P1", "P8")
    assert "in no completed batch: [104, 110)" in texts(found, "P1")
    assert "reported [104, 110) as lost at 31.150, but nobody had deleted" in texts(found, "P8")


def test_a_batch_that_had_ended_when_its_topic_was_deleted() -> None:
    story = cut_short()
    story.topics[0] = replace(story.topics[0], deleted_at=31.05)  # its rows are in the sink since 31.0
    assert "in no completed batch: [104, 110)" in texts(assert_violated(story, "P1"), "P1")


@pytest.mark.parametrize(("query", "at"), [("q1", 31.4), ("q2", 33.0)])
def test_a_report_of_what_was_read_by_another_query_or_before_the_newest_batch(query: str, at: float) -> None:
    story = cut_short()
    story.edit_rows(B, 3, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(100, 110)])
    story.tell(at, query, "data_lost", 0, ranges=[[TOPIC, 0, 100, 110]])
    assert "the group had read [100, 110)" in texts(assert_violated(story, "P8"), "P8")


def test_a_hole_in_the_rows_of_a_batch_that_was_cut_short() -> None:
    """The task gave what lies behind the hole: no deletion took that record alone."""
    story = cut_short()
    story.edit_rows(B, 3, lambda rows: [row for row in rows if row[3] != 102])
    story.tell(31.15, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 102, 103]])
    assert "in no completed batch: [102, 103)" in texts(assert_violated(story, "P1"), "P1")


def test_what_an_earlier_batch_left_out_before_another_was_cut_short() -> None:
    """[100, 110) is in a batch that ended before the deletion, too: that one had to read it."""
    story = cut_short()
    story.plan(20.0, A, 9, {0: (100, 110)})
    story.sink(20.3, A, 9, {0: (100, 104)})
    story.complete(20.4, A, 9)
    assert "in no completed batch: [104, 110)" in texts(assert_violated(not_slow(story), "P1", "P6"), "P1")


def test_a_record_of_the_new_topic_where_the_old_one_had_none_acknowledged() -> None:
    """Whether the deleted topic had a record at 106 nobody knows; this one is of its successor."""
    story = cut_short()
    story.produced = [one for one in story.produced if (one.partition, one.offset) != (0, 106)]
    story.edit_rows(B, 3, lambda rows: [*rows, (0, TOPIC, 0, 106, "new/3")])
    n = next(n for n, one in enumerate(story.produced) if one.topic_id == "U" and one.offset == 3)
    story.produced[n] = replace(story.produced[n], id="new/3")
    assert "offset 106 is 'new/3'" in texts(assert_violated(story, "P1"), "P1")


def test_records_that_were_deleted_before_their_topic_was_and_no_word() -> None:
    story = with_gap()
    story.topics = [replace(story.topics[0], deleted_at=30.0)]
    story.log = []
    assert "deleted before it was read, and not reported: [70, 80)" in texts(judged(story), "P8")


@pytest.mark.parametrize("error", ["", "[GROUPKAFKA.DATA_LOST] orders-0 [70, 79)", "TimeoutError: orders-0"])
def test_a_query_that_had_to_fail_on_a_loss(error: str) -> None:
    story = with_gap()
    details = {**story.faults[-1].details, "must_fail": [[TOPIC, 0, 70, 80]], "error": error}
    story.faults[-1] = replace(story.faults[-1], details=details)
    story.tell(14.9, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 70, 80]])
    assert "[70, 80) was deleted, and orders" in texts(assert_violated(story, "P8"), "P8")


def test_a_zombie_that_plans_while_the_coordinator_is_away() -> None:
    """The coordinator's record says that q2 had the partition by then: the dead broker is no excuse."""
    story = away_coordinator()
    story.group = [replace(one, at=6.9) if one.query == "q2" and one.at == 12.0 else one for one in story.group]
    assert assert_good(story).figures.repeats[BEHIND] == 19
    story.group = [replace(one, at=5.6) if one.query == "q2" and one.at == 6.9 else one for one in story.group]
    assert "others repeated 2 batches of one stay of q1" in texts(assert_violated(story, "P6"), "P6")


def test_batches_without_commits_during_another_kind_of_fault() -> None:
    story = away_coordinator()
    story.faults[-1] = replace(story.faults[-1], kind="app-paused-long", target="q1")
    assert "others repeated 2 batches of one stay of q1" in texts(assert_violated(story, "P6"), "P6")


def test_a_lineage_that_only_an_event_ascribes_to_the_owner() -> None:
    """q1 commits what q2 has by then; an event says that its lineage is one of q2."""
    story = two_members()
    story.commit(12.45, A, 0, (40, 60), before=70)
    story.members.append(MemberEvent(0.1, "q2", f"lineage of {A}", "started"))
    assert "q1 commits after the coordinator gave the partition to q2" in texts(assert_violated(story, "P5"), "P5")


def test_an_owner_by_its_own_word_alone() -> None:
    """q2 says that it was assigned the partition; the coordinator gave it to nobody but q1."""
    story = two_members()
    story.group = [one for one in story.group if not (one.query == "q2" and one.at > 5)]
    assert "q2 commits after the coordinator gave the partition to q1" in texts(assert_violated(story, "P5"), "P5")


# --- the same rows in the same order


def packed() -> Story:
    """q2's last batch is one task that has read both partitions, the ranges in the order of the plan."""
    story = two_members()
    story.edit_rows(B, 2, lambda rows: [(0, *row[1:]) for row in rows])
    return story


def test_a_task_that_gives_its_rows_in_another_order_when_it_runs_again() -> None:
    story = packed()
    n = story.run_of(B, 2)
    story.batches[n] = replace(story.batches[n], again=story.batches[n].rows)
    assert_good(story)
    story.batches[n] = replace(story.batches[n], again=tuple(sorted(story.batches[n].rows, key=lambda row: row[3])))
    found = texts(assert_violated(story, "P3"), "P3")
    assert "task 0, evaluated twice: row 0 is orders-0 offset 70 ('0/70') first and orders-1 offset 60" in found


def test_a_task_that_gives_its_rows_in_the_order_of_arrival() -> None:
    story = packed()
    story.edit_rows(B, 2, lambda rows: sorted(rows, key=lambda row: row[3]))
    assert "task 0: goes back to orders-1 offset" in texts(assert_violated(story, "P3"), "P3")


def test_a_second_evaluation_that_lacks_a_row() -> None:
    story = packed()
    n = story.run_of(B, 2)
    story.batches[n] = replace(story.batches[n], again=story.batches[n].rows[:-1])
    assert "70 rows first and 69 then" in texts(assert_violated(story, "P3"), "P3")


def test_a_batch_that_ran_twice_with_a_task_in_another_order() -> None:
    story = packed()
    n = story.run_of(B, 2)
    story.batches.append(replace(story.batches[n], attempt=1, at=15.35))
    assert_good(story)
    rows = tuple(sorted(story.batches[n].rows, key=lambda row: row[3]))
    story.batches[-1] = replace(story.batches[-1], rows=rows)
    assert "runs 0 and 1, task 0: row 0 is orders-0 offset 70" in texts(assert_violated(story, "P3"), "P3")


# --- repeats


def two_batches_repeated() -> Story:
    """q1 completes two batches that q2 reads too."""
    story = two_members()
    story.plan(12.45, A, 3, {0: (60, 70)})
    story.sink(12.5, A, 3, {0: (60, 70)})
    story.complete(12.55, A, 3)
    return story


def test_a_zombie_that_plans_once_more() -> None:
    """Two batches of one stay are repeated: the one in flight, and one planned after the partition had gone."""
    story = two_batches_repeated()
    assert "others repeated 2 batches of one stay of q1" in texts(assert_violated(story, "P6"), "P6")


def test_a_proof_that_commits_again_what_a_plain_client_has_set() -> None:
    story = two_members()
    story.fault("group-rewound", "shop", 14.0, 16.0)
    story.commits.append(Commit(14.05, TOPIC, 0, 90, None))
    story.commits.append(Commit(18.0, TOPIC, 0, 90, None))
    found = texts(assert_violated(story, "P4"), "P4")
    assert "nobody" not in found  # it is the lag alone
    story.commits.append(Commit(18.1, TOPIC, 0, 89, None))
    assert "commit 89 at 18.100 by nobody's lineage" in texts(assert_violated(story, "P4", "P5"), "P4")


def test_a_moved_offset_that_is_put_back() -> None:
    """By a start position, before anything is planned: the group is to be followed."""
    story = two_members()
    story.fault("group-rewound", "shop", 14.0, 16.0)
    story.commits.append(Commit(14.05, TOPIC, 0, 500, None))
    story.commit(18.0, B, 0, (100, 100))
    assert "goes back from 500" in texts(assert_violated(story, "P5"), "P5")


def test_a_row_that_no_log_has() -> None:
    story = two_members()
    story.edit_rows(A, 2, lambda rows: [*rows[:10], (0, TOPIC, 0, 50, "ghost"), *rows[10:]], attempt=1)
    story.edit_rows(A, 2, lambda rows: [*rows[:10], (0, TOPIC, 0, 50, "ghost"), *rows[10:]])
    assert "in the log 'no record'" in texts(assert_violated(story, "P1"), "P1")


def test_an_acknowledged_record_that_is_nowhere() -> None:
    story = two_members()
    story.remove(1, 25, 26)
    story.edit_rows(B, 0, lambda rows: [row for row in rows if row[3] != 25])
    found = texts(assert_violated(story, "P1", "P8"), "P1")
    assert "[25, 26) (1 records), 0 of them in the log, 1 acknowledged and not in the log" in found


def test_an_acknowledged_record_behind_the_end_of_the_log() -> None:
    story = two_members()
    story.produced.append(Produced(TOPIC, 1, 100, "lost by the broker"))
    assert_violated(story, "P1", "P4")


def test_a_loss_that_is_reported_and_was_none() -> None:
    """The records are still in the log: a report excuses nothing."""
    story = two_members()
    story.edit_rows(B, 0, lambda rows: [row for row in rows if row[3] != 25])
    story.tell(4.2, "q2", "data_lost", 1, ranges=[[TOPIC, 1, 25, 26]])
    assert_violated(story, "P1", "P8")


def test_a_commit_in_the_same_tick_as_the_commit_log() -> None:
    story = two_members()
    story.change_commit(0, 40, at=4.399)
    assert_good(story)


def test_a_commit_of_a_batch_that_never_completed() -> None:
    story = two_members()
    story.write(1, 100, 120)
    story.plan(16.0, B, 3, {1: (100, 120)})
    story.commit(16.5, B, 1, (100, 120))
    assert "never complete" in texts(assert_violated(story, "P1", "P4"), "P4")


def test_a_commit_by_a_zombie_that_others_have_overtaken() -> None:
    """q1's batch 2 is committed when q2 has carried the partition on; q1 has not noticed that it was lost."""
    story = two_members()
    story.ranges(A, 2)["0"] = [40, 80]
    for attempt in (0, 1):
        story.edit_rows(A, 2, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(40, 80) if o != 50], attempt)
    story.commit(13.0, A, 0, (40, 80), before=100)
    assert "it was not assigned again" in texts(assert_violated(story, "P5"), "P5")
    story.members, story.group = [], []
    assert "it was not assigned again" in texts(assert_violated(story, "P5"), "P5")


def test_a_commit_after_the_partition_came_back() -> None:
    """The range does not start where the other lineage has ended: a replay, less what that one had committed."""
    story = two_members()
    story.ranges(A, 2)["0"] = [40, 80]
    n = story.run_of(A, 2, 1)
    story.batches[n] = replace(story.batches[n], started_at=13.2, at=13.3)
    story.complete(13.4, A, 2)
    story.edit_rows(A, 2, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(40, 80) if o != 50])
    story.edit_rows(A, 2, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(70, 80)], attempt=1)
    story.revoke(12.9, "q2", 0)
    story.assign(13.0, "q1", 0)
    story.commit(13.5, A, 0, (40, 80), before=100)
    story.revoke(14.0, "q1", 0)
    story.assign(14.1, "q2", 0)
    story.ranges(B, 2)["0"] = [80, 100]
    story.edit_rows(B, 2, lambda rows: [row for row in rows if row[2] == 1 or row[3] >= 80])
    story.change_commit(0, 100, "[70", "[80")
    assert_good(story)


def test_a_commit_by_a_query_that_never_had_the_partition() -> None:
    story = two_members()
    story.group = []
    story.assign(3.1, "q2", 1)
    story.assign(3.2, "q1", 0)
    assert "never had the partition" in texts(assert_violated(story, "P5"), "P5")


def pinned_by(story: Story, query: str, owner: str) -> Story:
    """Let a query store the start of partition 2, which another one owns, at 0.3 s."""
    partition = (TOPIC, 2)
    story.group += [GroupRecord(-1, 0.25, owner, "m", "owns", (partition,)), GroupRecord(-1, 0.9, owner, "m", "gone")]
    story.commit(0.3, f"{query}#1", 2, (0, 0))
    return story


def test_the_owner_of_the_first_partition_stores_the_start_of_anothers() -> None:
    assert_good(pinned_by(two_members(), "q1", "q2"))


def test_a_start_that_the_owner_of_no_first_partition_stores_for_another() -> None:
    assert "q2" in texts(assert_violated(pinned_by(two_members(), "q2", "q1"), "P5"), "P5")


def test_a_second_start_of_anothers_partition() -> None:
    story = two_members()
    story.commit(0.28, "q2#1", 2, (0, 0))
    story.write(2, 0, 5)
    story.commit(0.31, "q1#1", 2, (5, 5))
    assert "q1" in texts(judged(pinned_by(story, "q1", "q2")), "P5")


def test_without_records_of_the_coordinator_nothing_is_said_of_owners() -> None:
    story = two_members()
    story.members, story.group = [], []
    assert_good(story)


def test_a_replay_with_a_hole() -> None:
    """Others have committed beyond it, but what is left out is not the beginning."""
    story = two_members()
    n = story.run_of(A, 2, 1)
    story.batches[n] = replace(story.batches[n], started_at=12.9, at=13.0)
    story.complete(13.1, A, 2)
    story.edit_rows(A, 2, lambda rows: [row for row in rows if row[3] != 45], attempt=1)
    assert "lacks [45, 46)" in texts(assert_violated(story, "P3"), "P3")


def test_two_tasks_that_share_a_partition_have_orders_of_their_own() -> None:
    story = two_members()
    story.edit_rows(B, 0, lambda rows: [(5, *row[1:]) for row in rows[10:]] + list(rows[:10]))
    assert_good(story)


def test_a_wrong_order_across_batches() -> None:
    """q2's two last batches, the other way round."""
    story = two_members()
    first, second = story.plan_of(B, 1), story.plan_of(B, 2)
    story.completed[first] = replace(story.completed[first], batch=2)
    story.completed[second] = replace(story.completed[second], batch=1)
    n, m = story.run_of(B, 1), story.run_of(B, 2)
    story.batches[n], story.batches[m] = replace(story.batches[n], batch=2), replace(story.batches[m], batch=1)
    assert "begins at 40, after batch 1 of q2#1" in texts(assert_violated(story, "P7"), "P7")


def test_a_partition_that_nobody_reads() -> None:
    story = two_members()
    story.write(2, 0, 3)
    assert "nothing was ever committed" in texts(assert_violated(story, "P1", "P4"), "P4")
