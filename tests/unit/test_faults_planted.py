"""The checker of fault runs catches errors that are planted into a good history, each under its promise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faultrig.history import Commit, Produced
from faultrig.verdict import BEHIND, SAME_LINEAGE, UNCLEAN, UNEXPLAINED

from tests.unit.histories import TOPIC, Story, assert_good, assert_violated, record_id, texts, two_members, with_gap

A, B = "q1#1", "q2#1"


def test_a_dropped_record() -> None:
    story = two_members()
    story.edit_rows(B, 0, lambda rows: rows[:5] + rows[6:])
    assert "orders-1: in no completed batch: [25, 26) (1 records)" in texts(assert_violated(story, "P1"), "P1")


def test_rows_of_a_run_that_does_not_count() -> None:
    """The run before the commit log's entry lacks a record; a later one has it, which helps nobody."""
    story = two_members()
    story.edit_rows(B, 0, lambda rows: rows[:-1])
    story.sink(5.0, B, 0, {1: (20, 40)})
    assert_violated(story, "P1", "P3")


def test_a_doubled_record_of_one_lineage() -> None:
    story = two_members()
    story.completed[-1].end["topics"][TOPIC]["ranges"]["0"] = [69, 100]
    n = story.commit_of(0, 100)
    story.commits[n] = replace(story.commits[n], metadata=story.commits[n].metadata.replace("[70", "[69"))
    story.edit_rows(B, 2, lambda rows: [(0, TOPIC, 0, 69, record_id(0, 69)), *rows])
    verdict = assert_violated(story, "P2", "P7")
    assert "[69, 70) (1 records) in batch 1 of q2#1" in texts(verdict, "P2")
    assert verdict.figures.repeats[SAME_LINEAGE] == 1


def test_a_record_twice_in_one_batch() -> None:
    story = two_members()
    story.edit_rows(B, 2, lambda rows: [*rows, (9, *rows[0][1:])])
    assert "twice in batch 2" in texts(assert_violated(story, "P2"), "P2")


def test_a_repeat_across_members_without_an_unclean_fault() -> None:
    story = two_members()
    story.faults = [replace(fault, clean=True) for fault in story.faults]
    verdict = assert_violated(story, "P6")
    assert verdict.figures.repeats[UNEXPLAINED] == 19
    assert "with nothing unclean between" in texts(verdict, "P6")


def test_a_repeat_after_a_clean_handover() -> None:
    story = two_members()
    story.edit_rows(B, 0, lambda rows: [(1, TOPIC, 1, 19, record_id(1, 19)), *rows])
    story.completed[story.plan_of(B, 0)].end["topics"][TOPIC]["ranges"]["1"] = [19, 40]
    n = story.commit_of(1, 40)
    story.commits[n] = replace(story.commits[n], metadata=story.commits[n].metadata.replace("[20", "[19"))
    assert_violated(story, "P6")


@pytest.mark.parametrize("outcome", ["DEADLINE", "STOPPED", "LOST"])
def test_a_repeat_after_a_drain_that_failed(outcome: str) -> None:
    story = two_members()
    story.faults = [replace(fault, clean=True) for fault in story.faults]
    story.revoke(6.5, "q1", 0, outcome=outcome)
    assert assert_good(story).figures.repeats[UNCLEAN] == 19


@pytest.mark.parametrize("event", ["lost", "refused", "left"])
def test_a_repeat_after_a_loss(event: str) -> None:
    story = two_members()
    story.faults = [replace(fault, clean=True) for fault in story.faults]
    story.tell(6.5, "q1", event, *(() if event == "left" else (0,)))
    assert assert_good(story).figures.repeats[UNCLEAN] == 19


def test_the_loss_of_another_partition_excuses_nothing() -> None:
    story = two_members()
    story.faults = [replace(fault, clean=True) for fault in story.faults]
    story.tell(6.5, "q1", "lost", 1)
    assert_violated(story, "P6")


def two_batches_repeated() -> Story:
    """q1 completes two batches that q2 reads too."""
    story = two_members()
    story.plan(12.45, A, 3, {0: (60, 70)})
    story.sink(12.5, A, 3, {0: (60, 70)})
    story.complete(12.55, A, 3)
    return story


def test_a_batch_that_was_planned_while_no_commit_was_taken() -> None:
    story = two_batches_repeated()
    story.fault("coordinator-killed", "broker-1", 6.0, 13.0)
    story.tell(12.4, "q1", "commits", behind=True)
    story.tell(13.0, "q1", "commits", behind=False)
    repeats = assert_good(story).figures.repeats
    assert (repeats[UNCLEAN], repeats[BEHIND]) == (19, 10)


@pytest.mark.parametrize("missing", ["the fault", "the member's word"])
def test_many_batches_without_commits_need_both_a_fault_and_the_members_word(missing: str) -> None:
    story = two_batches_repeated()
    if missing == "the fault":
        story.faults = []
        story.tell(12.5, "q1", "lost", 0)
        story.tell(12.4, "q1", "commits", behind=True)
    else:
        story.fault("coordinator-killed", "broker-1", 6.0, 13.0)
    assert "others repeated 2 batches of one stay of q1" in texts(assert_violated(story, "P6"), "P6")


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
    """By a start position, before anything is planned; a batch's end below the group's offset stays a violation."""
    story = two_members()
    story.fault("group-rewound", "shop", 14.0, 16.0)
    story.commits.append(Commit(14.05, TOPIC, 0, 500, None))
    story.commit(18.0, B, 0, (100, 100))
    assert_good(story)
    story.fault("group-rewound", "shop", 18.02, 18.05)
    story.commits.append(Commit(18.03, TOPIC, 0, 600, None))
    story.commit(19.0, B, 0, (40, 100))
    assert "goes back from 600" in texts(assert_violated(story, "P5"), "P5")


def test_a_swap() -> None:
    story = two_members()
    ids = {record_id(0, 3): record_id(0, 4), record_id(0, 4): record_id(0, 3)}
    story.edit_rows(A, 0, lambda rows: [(*row[:4], ids.get(row[4], row[4])) for row in rows])
    found = texts(assert_violated(story, "P1"), "P1")
    assert "offset 3 is '0/4', in the log '0/3'" in found


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


def test_a_log_that_was_rewritten() -> None:
    story = two_members()
    story.produced[7] = replace(story.produced[7], id="another")
    assert "other records than were acknowledged at [7, 8)" in texts(assert_violated(story, "P1"), "P1")


def test_a_loss_that_is_reported_and_was_none() -> None:
    """The records are still in the log: a report excuses nothing."""
    story = two_members()
    story.edit_rows(B, 0, lambda rows: [row for row in rows if row[3] != 25])
    story.tell(4.2, "q2", "data_lost", 1, ranges=[[TOPIC, 1, 25, 26]])
    assert_violated(story, "P1")


def test_an_early_commit() -> None:
    story = two_members()
    n = story.commit_of(0, 40)
    story.commits[n] = replace(story.commits[n], at=4.35)
    assert "before batch 1 of q1#1" in texts(assert_violated(story, "P4"), "P4")


def test_a_commit_in_the_same_tick_as_the_commit_log() -> None:
    story = two_members()
    n = story.commit_of(0, 40)
    story.commits[n] = replace(story.commits[n], at=4.399)
    assert_good(story)


def test_a_commit_of_a_batch_that_never_completed() -> None:
    story = two_members()
    story.write(1, 100, 120)
    story.plan(16.0, B, 3, {1: (100, 120)})
    story.commit(16.5, B, 1, (100, 120))
    assert "never complete" in texts(assert_violated(story, "P1", "P4"), "P4")


def test_a_commit_that_is_no_end_of_a_batch() -> None:
    story = two_members()
    story.commit(5.0, A, 0, (40, 45), before=70)
    assert "no planned batch ends there" in texts(assert_violated(story, "P4"), "P4")


def test_a_commit_by_a_zombie_that_others_have_overtaken() -> None:
    """q1's batch 2 is committed when q2 has carried the partition on; q1 has not noticed that it was lost."""
    story = two_members()
    story.completed[story.plan_of(A, 2)].end["topics"][TOPIC]["ranges"]["0"] = [40, 80]
    for attempt in (0, 1):
        story.edit_rows(A, 2, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(40, 80) if o != 50], attempt)
    story.commit(13.0, A, 0, (40, 80), before=100)
    assert "it was not assigned again" in texts(assert_violated(story, "P5"), "P5")
    story.members = []
    assert "it was not assigned again" in texts(assert_violated(story, "P5"), "P5")


def test_a_commit_by_a_zombie_before_the_new_owner_has_committed() -> None:
    """By commits alone nothing is wrong; the events tell that the partition has gone to q2."""
    story = two_members()
    story.tell(11.0, "q1", "lost", 0)
    story.commit(12.45, A, 0, (40, 60), before=70)
    assert "q1 had lost the partition at 11.000" in texts(assert_violated(story, "P5"), "P5")


def test_a_commit_after_the_member_has_left() -> None:
    story = two_members()
    story.tell(14.0, "q2", "left")
    story.members = [replace(event, member=f"{event.query}-1") for event in story.members]
    assert "q2 had lost the partition at 14.000" in texts(assert_violated(story, "P5"), "P5")


def test_a_commit_after_the_partition_came_back() -> None:
    """The range does not start where the other lineage has ended: a replay, less what that one had committed."""
    story = two_members()
    story.completed[story.plan_of(A, 2)].end["topics"][TOPIC]["ranges"]["0"] = [40, 80]
    n = story.run_of(A, 2, 1)
    story.batches[n] = replace(story.batches[n], started_at=13.2, at=13.3)
    story.complete(13.4, A, 2)
    story.edit_rows(A, 2, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(40, 80) if o != 50])
    story.edit_rows(A, 2, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(70, 80)], attempt=1)
    story.revoke(12.9, "q2", 0)
    story.tell(13.0, "q1", "assigned", 0)
    story.commit(13.5, A, 0, (40, 80), before=100)
    story.revoke(14.0, "q1", 0)
    story.tell(14.1, "q2", "assigned", 0)
    story.completed[story.plan_of(B, 2)].end["topics"][TOPIC]["ranges"]["0"] = [80, 100]
    story.edit_rows(B, 2, lambda rows: [row for row in rows if row[2] == 1 or row[3] >= 80])
    n = story.commit_of(0, 100)
    story.commits[n] = replace(story.commits[n], metadata=story.commits[n].metadata.replace("[70", "[80"))
    assert_good(story)


def test_a_commit_by_a_query_that_never_had_the_partition() -> None:
    story = two_members()
    story.members = [one for one in story.members if not (one.query == "q2" and one.event == "assigned")]
    assert "q2 never had the partition" in texts(assert_violated(story, "P5"), "P5")


def test_without_events_of_members_nothing_is_said_of_owners() -> None:
    story = two_members()
    story.members = []
    assert_good(story)


def test_a_commit_that_goes_back() -> None:
    story = two_members()
    story.commit(16.0, B, 0, (40, 70))
    assert "goes back from 100" in texts(assert_violated(story, "P4", "P5"), "P5")


def test_a_replay_that_differs() -> None:
    story = two_members()
    story.edit_rows(A, 2, lambda rows: rows[:-1])
    assert "the later one has more: [59, 60)" in texts(assert_violated(story, "P3"), "P3")


def test_a_replay_that_lacks_what_nobody_had_committed() -> None:
    story = two_members()
    story.edit_rows(A, 2, lambda rows: rows[1:], attempt=1)
    assert "the later one lacks [40, 41)" in texts(assert_violated(story, "P3"), "P3")


def test_a_replay_with_a_hole() -> None:
    """Others have committed beyond it, but what is left out is not the beginning."""
    story = two_members()
    n = story.run_of(A, 2, 1)
    story.batches[n] = replace(story.batches[n], started_at=12.9, at=13.0)
    story.complete(13.1, A, 2)
    story.edit_rows(A, 2, lambda rows: [row for row in rows if row[3] != 45], attempt=1)
    assert "lacks [45, 46)" in texts(assert_violated(story, "P3"), "P3")


def test_a_batch_that_reads_beyond_its_plan() -> None:
    story = two_members()
    story.completed[story.plan_of(A, 2)].end["topics"][TOPIC]["ranges"]["0"] = [40, 59]
    assert "outside of its plan [40, 59): [59, 60)" in texts(assert_violated(story, "P3"), "P3")


def test_a_wrong_order_within_a_task() -> None:
    story = two_members()
    story.edit_rows(B, 0, lambda rows: [rows[1], rows[0], *rows[2:]])
    assert "20 after 21" in texts(assert_violated(story, "P7"), "P7")


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


def test_a_gap_that_nobody_reports() -> None:
    story = with_gap()
    assert "skipped and not reported: [70, 80)" in texts(assert_violated(story, "P1", "P8"), "P8")


def test_lag_at_the_end() -> None:
    story = two_members()
    del story.commits[story.commit_of(1, 100)]
    assert "the group is at 60, the log at 100 (lag 40)" in texts(assert_violated(story, "P4"), "P4")


def test_a_partition_that_nobody_reads() -> None:
    story = two_members()
    story.write(2, 0, 3)
    assert "nothing was ever committed" in texts(assert_violated(story, "P1", "P4"), "P4")


def test_a_topic_that_was_made_again_is_another_one() -> None:
    story = two_members()
    story.log = [one for one in story.log if one.offset < 10]
    story.tell(20.0, "q2", "data_lost", 0, 1, reason="the topic was deleted and made again")
    for partition in (0, 1):
        story.commit(20.0, B, partition, (0, 0), topic_id="U")
    spans = {0: (0, 10), 1: (0, 10)}
    story.plan(20.1, B, 3, spans, topic_id="U")
    story.sink(20.4, B, 3, spans)
    story.complete(20.5, B, 3)
    for partition, span in spans.items():
        story.commit(20.6, B, partition, span, topic_id="U")
    assert_good(story)
