"""The checker of fault runs takes what is normal for normal, is fast, and notices a history that is not whole."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.faults import history as files
from tests.faults.history import Commit, GroupRecord, Logged, QueryRun, Start, TopicLife, Watched
from tests.faults.judge.checker import check
from tests.faults.judge.verdict import BEHIND, CHECKPOINT, REPLAY, RESET, SAME_LINEAGE, UNCLEAN, UNEXPLAINED
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
    large_story,
    not_slow,
    record_id,
    recreated,
    recreated_with_another_partition,
    rewound_after_recreation,
    texts,
    two_members,
    with_gap,
)  # fmt: skip

A, B = "q1#1", "q2#1"
LOST = [[TOPIC, 0, 70, 80]]


# --- what is normal


def test_a_clean_handover_and_one_crash() -> None:
    figures = assert_good(two_members()).figures
    assert figures.records == 199
    assert figures.completed == 6
    assert figures.attempts == 7
    repeats = {UNCLEAN: 19, BEHIND: 0, REPLAY: 19, SAME_LINEAGE: 0, UNEXPLAINED: 0, CHECKPOINT: 0, RESET: 0}
    assert figures.repeats == repeats


def test_a_history_from_files_is_judged_the_same(tmp_path) -> None:
    story = two_members()
    files.save(tmp_path, story.history())
    assert check(files.load(tmp_path)) == judged(story)


def test_a_replay_without_what_another_lineage_has_committed() -> None:
    story = two_members()
    del story.batches[story.run_of(A, 2, 1)]
    story.sink(12.9, A, 2, {0: (60, 60)})
    story.complete(13.0, A, 2)
    assert assert_good(story).figures.repeats[UNCLEAN] == 0


def test_proofs_repeat_the_offset_of_the_group() -> None:
    story = two_members()
    story.commit(16.0, B, 0, (70, 100))
    story.commit(16.1, B, 1, (100, 100))
    assert_good(story)


def test_the_end_of_a_batch_pinned_as_a_start_position_after_a_lost_commit() -> None:
    story = two_members()
    del story.commits[story.commit_of(1, 40)]
    story.revoke(4.8, "q2", 1)
    story.assign(5.0, "q2", 1)
    story.commit(5.1, B, 1, (40, 40), before=60)
    assert_good(story)


def test_a_commit_that_was_on_its_way_when_the_partition_went() -> None:
    story = two_members()
    story.revoke(15.45, "q2", 0)
    assert_good(story)


def _rewound(story: Story, *, fault: bool) -> None:
    story.leave(16.0, "q2")
    if fault:
        story.fault("group-rewound", "rig", 16.1, 20.0, moved=[[TOPIC, 0, 100, 80]])
    story.commits.append(Commit(16.15, TOPIC, 0, 80, ""))
    story.assign(17.0, "q1", 0)
    story.batch(17.1, A, 3, {0: (80, 100)})


def test_a_group_that_a_fault_has_rewound() -> None:
    story = two_members()
    _rewound(story, fault=True)
    assert assert_good(story).figures.repeats[RESET] == 20


def test_a_rewound_group_that_no_fault_explains() -> None:
    story = two_members()
    _rewound(story, fault=False)
    assert_violated(story, "P4", "P5", "P6")


def test_a_rewind_does_not_excuse_what_lies_before_it() -> None:
    story = two_members()
    _rewound(story, fault=True)
    story.completed[-1].end["topics"][TOPIC]["ranges"]["0"] = [75, 100]
    story.commits[-1] = replace(story.commits[-1], metadata=story.commits[-1].metadata.replace("80", "75"))
    story.edit_rows(A, 3, lambda rows: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(75, 100)])
    # The fault may touch q2, but its repeat is of one batch and within the bounds of P6.
    assert assert_good(story).figures.repeats[UNCLEAN] == 19 + 5


def _gone_on_at(story: Story, start: int) -> None:
    """q1, whose checkpoint had read partition 0 up to 60, goes on there after the rewind of the group to 80."""
    _rewound(story, fault=True)
    n = story.plan_of(A, 3)
    story.completed[n].end["topics"][TOPIC]["ranges"]["0"] = [start, 100]
    story.commits[-1] = replace(story.commits[-1], metadata=story.commits[-1].metadata.replace("80", str(start)))
    story.edit_rows(A, 3, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(start, 100)])


@pytest.mark.parametrize(("start", "broken"), [(60, "P6"), (55, "P2")])
def test_a_checkpoint_that_does_not_follow_the_group_after_a_rewind(start: int, broken: str) -> None:
    """At its own end, or before it: only [80, 100) is the rewind's."""
    story = two_members()
    _gone_on_at(story, start)
    verdict = judged(story)
    assert broken in verdict.violated()
    assert verdict.figures.repeats[RESET] == 20


@pytest.mark.parametrize("batches", [1, 2])
def test_a_lost_checkpoint_repeats_one_batch_at_most(batches: int) -> None:
    story = two_members()
    story.write(0, 100, 120)
    story.batch(16.0, B, 3, {0: (100, 120)})
    del story.commits[-1]  # read again, because its commit did not arrive
    if batches == 2:
        del story.commits[story.commit_of(0, 100)]
    story.leave(17.0, "q2")
    story.fault("checkpoint-lost", "q2", 17.0, 20.0, old=B, new="q2#2")
    story.assign(18.0, "q2", 0, 1)
    story.batch(18.1, "q2#2", 0, {0: (100 if batches == 1 else 70, 120)})
    if batches == 1:
        assert assert_good(story).figures.repeats[CHECKPOINT] == 20
    else:
        assert "more than the last batch after checkpoint-lost" in texts(assert_violated(story, "P6"), "P6")


def _restored(story: Story) -> None:
    """q2 goes on with a copy of its checkpoint that ends at 60, and reads from there; the group is at 100."""
    story.fault("checkpoint-restored", "q2", 17.0, 20.0, old=B, new="q2#2", batch=0)
    story.assign(18.0, "q2", 0, 1)
    story.batch(18.1, "q2#2", 2, {0: (60, 100)}, lineage="new after the conflict")


def test_an_old_checkpoint_repeats_no_more_than_its_last_batch_by_itself() -> None:
    story = two_members()
    _restored(story)
    assert_violated(story, "P6")


def test_an_old_checkpoint_repeats_what_the_group_was_reset_to() -> None:
    story = two_members()
    story.fault("group-reset", "shop", 17.5, 17.6, moved=[[TOPIC, 0, 100, 60]])
    story.commits.append(Commit(17.55, TOPIC, 0, 60, None))
    _restored(story)
    assert assert_good(story).figures.repeats[RESET] == 40


def test_a_gap_that_is_reported() -> None:
    story = with_gap()
    story.tell(14.9, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 70, 80]])
    assert assert_good(story).figures.reported_lost == 10


def test_records_that_were_read_may_be_deleted() -> None:
    story = two_members()
    story.remove(0, 0, 60)
    assert_good(story)


@pytest.mark.parametrize("bounds", [(10, 10), (5, 12)])
def test_a_start_where_the_rig_knows_that_the_group_began(bounds: tuple[int, int]) -> None:
    """With "latest" or a timestamp, by the log's ends before and after the group's start."""
    story = begun_at_10(two_members())
    story.starts = [Start(TOPIC, "T", 0, *bounds)]
    assert_good(story)


def test_a_plan_that_was_written_late_belongs_to_the_earlier_owner() -> None:
    """q1 is stopped between fixing its plan and Spark's writing it down; q2 plans first, by the files."""
    story = two_members()
    n = story.plan_of(A, 2)
    story.completed[n] = replace(story.completed[n], planned_at=12.25)
    del story.batches[story.run_of(A, 2)]
    story.members = [one for one in story.members if not (one.query == "q1" and one.at == 12.1)]
    assert assert_good(story).figures.repeats[UNCLEAN] == 19


def test_a_checkpoint_that_is_started_twice() -> None:
    """A second run of q2 comes and goes while the first keeps its partition."""
    story = two_members()
    story.tell(4.6, "q2", "started")
    twin = [GroupRecord(-1, 4.7, "q2", "twin", "owns"), GroupRecord(-1, 5.0, "q2", "twin", "gone")]
    story.group += twin
    assert_good(story)


def test_a_member_that_the_coordinator_removed() -> None:
    story = cleanly(two_members())
    story.expire(11.9, "q1")
    assert assert_good(story).figures.repeats[UNCLEAN] == 19


def test_a_batch_that_took_longer_than_the_drain_deadline() -> None:
    """By the times of Spark's own files: it was planned at 6.0, and complete at 12.4."""
    story = cleanly(two_members())
    story.run = replace(story.run, drain_timeout_s=6.0)
    assert assert_good(story).figures.repeats[UNCLEAN] == 19


def test_a_run_that_ended_in_the_middle_of_a_batch() -> None:
    story = not_slow(cleanly(two_members()))
    assert_violated(story, "P6")
    story.runs.append(QueryRun("q1", 1, 0.1, 6.25, "stopped"))
    assert assert_good(story).figures.repeats[UNCLEAN] == 19


def test_a_run_that_ended_between_two_batches_excuses_nothing() -> None:
    story = not_slow(cleanly(two_members()))
    story.runs += [QueryRun("q1", 1, 0.1, 5.9, "stopped"), QueryRun("q1", 2, 5.95, 12.45, "stopped")]
    assert_violated(story, "P6")


def test_batches_that_were_planned_while_a_dead_coordinator_took_no_commit() -> None:
    story = away_coordinator()
    repeats = assert_good(story).figures.repeats
    assert (repeats[UNCLEAN], repeats[BEHIND]) == (0, 29)


def test_a_topic_that_was_recreated_is_another_one() -> None:
    assert_good(recreated())


def test_records_that_went_with_their_topic_and_are_reported() -> None:
    """Offsets 100 to 110 were acknowledged long before the topic was deleted, and nobody had read them."""
    story = recreated(unread=True)
    story.tell(32.0, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 110]], reason="the topic was deleted")
    assert assert_good(story).figures.reported_lost == 10


def test_a_query_that_has_read_the_deleted_topic_alone_begins_the_new_one_after_a_rewind() -> None:
    """An offset without metadata has no topic id, so it may be one of the deleted topic."""
    verdict = judged(rewound_after_recreation())
    assert ("P6" in verdict.violated(), verdict.figures.repeats[RESET]) == (False, 20)


@pytest.mark.parametrize("given", [{"start": 3}, {"life": "q3#1"}])
def test_no_other_query_may_begin_it_again(given: dict[str, Any]) -> None:
    """Nor one that begins elsewhere."""
    verdict = judged(rewound_after_recreation(**given))
    assert ("P6" in verdict.violated(), verdict.figures.repeats[RESET]) == (True, 5)


def test_a_partition_that_only_the_recreated_topic_has_is_named_with_nothing_in_it() -> None:
    """A query that had another partition of the old topic does not know how many it had."""
    story = recreated_with_another_partition()
    story.tell(32.6, "q2", "data_lost", 2, ranges=[[TOPIC, 2, 0, 0]], possible=[[TOPIC, 2, 0, 0]])
    assert assert_good(story).figures.reported_lost == 0


def test_records_that_are_reported_as_lost_at_most() -> None:
    """A member that had the partition before others cannot know how much of it they have read."""
    story = recreated(unread=True)
    story.tell(32.0, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 100]], possible=[[TOPIC, 0, 50, 110]])
    assert assert_good(story).figures.reported_lost == 0


def test_records_that_nobody_can_have_seen_before_their_topic_went() -> None:
    """A report names what was seen: its end may be below that of the log."""
    story = recreated(unread=True)
    story.produced = [replace(one, at=28.0) if one.offset >= 100 else one for one in story.produced]
    story.tell(32.0, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 100]], reason="the topic was deleted")
    assert_good(story)


@pytest.mark.parametrize(("planned_at", "is_silent"), [(15.0, False), (17.0, True)])
def test_records_that_were_written_in_a_batch_that_ran_until_their_topic_went(
    planned_at: float, is_silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a batch is in flight, its query requests no log's end. At 16 s the records are written."""
    monkeypatch.setattr("tests.faults.judge.records.SEEN_S", 10.0)
    story = recreated(unread=True)
    story.produced = [replace(one, at=16.0) if one.offset >= 100 else one for one in story.produced]
    n = story.plan_of(B, 2)
    story.completed[n] = replace(story.completed[n], planned_at=planned_at, at=31.0)
    story.tell(32.0, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 100]], possible=[[TOPIC, 0, 90, 100]])
    assert ("P8" in judged(story).violated()) == is_silent


def test_a_batch_that_the_deletion_of_its_topic_cut_short() -> None:
    """[100, 110) was planned before the deletion; its end is committed, and the report names what was not read."""
    figures = assert_good(cut_short()).figures
    assert (figures.lost, figures.reported_lost) == (0, 6)


def test_a_batch_that_read_nothing_of_a_deleted_topic() -> None:
    story = cut_short()
    story.edit_rows(B, 3, lambda _rows: [])
    story.tell(31.3, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 110]])
    assert_good(story)


@pytest.mark.parametrize("deleted_at", [30.0, 31.3])
def test_a_report_of_all_that_the_newest_batch_had_planned(deleted_at: float) -> None:
    """It got all of it; whether that was before the deletion of its topic the driver cannot know."""
    story = cut_short()
    story.edit_rows(B, 3, lambda _: [(0, TOPIC, 0, o, record_id(0, o)) for o in range(100, 110)])
    story.topics = [replace(story.topics[0], deleted_at=deleted_at), replace(story.topics[1], created_at=31.35)]
    story.members = [one for one in story.members if one.event != "data_lost"]
    story.tell(31.4, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 100, 110]])
    assert_good(story)


def test_records_that_were_deleted_before_their_topic_was() -> None:
    """They lie below the group's offset when the topic goes: the loss was reported when they were skipped."""
    story = with_gap()
    story.tell(14.9, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 70, 80]])
    story.topics = [replace(story.topics[0], deleted_at=30.0), TopicLife(TOPIC, "U", 30.5)]
    story.log = [Logged(TOPIC, 0, 0, "new", "U")]
    story.plan(30.6, B, 3, {0: (0, 1)}, topic_id="U")
    story.sink(30.8, B, 3, {0: (0, 1)})
    story.edit_rows(B, 3, lambda _rows: [(0, TOPIC, 0, 0, "new")])
    story.complete(30.9, B, 3)
    story.commit(31.0, B, 0, (0, 1), topic_id="U")
    assert_good(story)


def test_a_query_that_fails_with_the_range() -> None:
    story = with_gap()
    error = "[GROUPKAFKA.DATA_LOST] orders-0 [70, 80)"
    story.faults[-1] = replace(
        story.faults[-1], details={**story.faults[-1].details, "must_fail": LOST, "error": error}
    )
    story.tell(14.9, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 70, 80]])
    assert_good(story)


def test_tasks_of_another_size_have_orders_of_their_own() -> None:
    """A replay may be cut into other tasks; each task that is the same has the same rows in the same order."""
    story = two_members()
    story.edit_rows(A, 2, lambda rows: [(row[3] // 50, *row[1:]) for row in rows], attempt=1)
    assert_good(story)


# --- the history itself


def test_an_offset_of_the_group_that_no_commit_explains() -> None:
    history = replace(two_members().history(), watch=(Watched(5.0, 5.01, TOPIC, 0, 33),))
    verdict = check(history)
    assert not verdict.good
    assert not verdict.violated()
    assert "offset 33 was seen" in verdict.doubts[0]


def test_a_batch_of_the_sink_that_nobody_planned() -> None:
    story = two_members()
    story.sink(16.0, B, 9, {0: (0, 3)})
    assert "batch 9 of q2#1 is in the sink" in judged(story).doubts[0]


def test_a_large_history() -> None:
    """As many records and batches as a smoke run has."""
    verdict = check(large_story(200_000, 2_000, 8).history())
    assert verdict.good
    assert verdict.figures.completed == 2_000


def test_one_dropped_record_in_a_large_history() -> None:
    story = large_story(20_000, 200, 4)
    chosen = random.Random(1).randrange(len(story.batches))
    victim = story.batches[chosen]
    story.batches[chosen] = replace(victim, rows=victim.rows[:7] + victim.rows[8:])
    _, _, partition, offset, _ = victim.rows[7]
    assert f"{TOPIC}-{partition}: in no completed batch: [{offset}, {offset + 1})" in texts(
        assert_violated(story, "P1"), "P1"
    )
