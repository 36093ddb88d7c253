"""The session: records that were removed, logs that were truncated, and what executors may have skipped."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_groupsource.cluster.port import CONFIRM_S, LogEnd, TopicInfo
from spark_groupsource.driver.query_state import SHORT_S
from spark_groupsource.driver.read_check import COUNTS_S
from spark_groupsource.errors import DataLossError
from spark_groupsource.membership.stopping import StopCause, member_left
from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.options.model import NextTrigger
from tests.unit.driver.session_bed import P0, P1, PIN, START, Bed, flat, lossy, ranges
from tests.unit.fakes import (
    OTHER_LINEAGE,
    TOPIC_ID,
    offset_of,
    tp,
)

# --- lost data


@pytest.mark.parametrize("read", [True, False])
def test_a_loss_of_everything_is_reported_once_and_its_batch_has_nothing_to_read(
    read: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bed = lossy("false")
    bed.ends(p0=50)
    bed.cluster.beginnings[P0] = 50
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(START)
        assert ranges(end) == ["orders-0 [50, 50)"]
        if read:
            assert bed.session.tasks(START, end) == ()
        assert bed.session.latest_offset(end) is end
    assert caplog.text.count("data lost and skipped") == 1
    assert "has not read it" not in caplog.text
    assert bed.committed() == {0: 50}


# --- a truncated log


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_available_now_and_once_do_not_end_before_a_short_log_is_reported(
    fails: str, once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Another program has set the group's offset beyond the log's end: run after run would succeed and read nothing."""
    bed = Bed(startingOffsets="earliest", failOnDataLoss=fails)
    bed.group.committed[P0] = GroupOffset(1_000, "")
    bed.ends(p0=20, p1=5)
    bed.join(P0, P1)
    if not once:
        bed.session.prepare_available_now()
    later = NextTrigger.NONE if once else NextTrigger.COMES
    read = bed.session.latest_offset(START, later=later)
    assert ranges(read)[1:] == ["orders-1 [0, 5)"], "the other partition does not wait"
    if fails == "true":
        with pytest.raises(DataLossError, match=r"orders-0 \[20, 1000\): .*reset the group"):
            bed.session.latest_offset(read, later=later)
    else:
        assert bed.session.latest_offset(read, later=later) is read
        assert "orders-0 [20, 1000): the log was truncated" in caplog.text
    assert SHORT_S <= bed.paused < SHORT_S + 2


@pytest.mark.parametrize("known_by", ["the checkpoint", "the group's offset"])
def test_a_truncation_is_noticed_after_a_restart_and_by_the_next_owner(known_by: str) -> None:
    bed, start = Bed(startingOffsets="earliest"), START
    if known_by == "the checkpoint":
        start = offset_of(OffsetRange(P0, 0, 20, 3))
    else:
        text = CommitMetadata(OTHER_LINEAGE, TOPIC_ID, 0, 20, PIN, leader_epoch=3).to_text()
        bed.group.committed[P0] = GroupOffset(20, text)
    bed.join(P0)
    bed.ends(p0=22)
    bed.cluster.epoch, bed.cluster.cut = 4, {P0: 10}
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 20\): the log was truncated"):
        bed.session.latest_offset(start)


@pytest.mark.parametrize(("at", "left"), [(10, ["orders-0 [5, 10)"]), (3, [])])
def test_a_logged_batch_of_a_truncated_log_reads_what_is_left(at: int, left: list[str]) -> None:
    logged = offset_of(OffsetRange(P0, 5, 20, 3))
    failing, going_on = Bed(), Bed(failOnDataLoss="false")
    for bed in failing, going_on:
        bed.ends(p0=22)
        bed.cluster.epoch, bed.cluster.cut = 4, {P0: at}
    with pytest.raises(DataLossError, match=rf"orders-0 \[{at}, 20\): the log was truncated"):
        failing.session.tasks(START, logged)
    assert flat(going_on.session.tasks(START, logged)) == left


@pytest.mark.rule("R45")
def test_a_truncation_that_a_replay_has_reported_is_not_reported_for_the_start_position(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. A batch that ends at 20 is logged. 2. The log is truncated at 10. 3. The query starts again."""
    bed, logged = Bed(failOnDataLoss="false"), offset_of(OffsetRange(P0, 5, 20, 3))
    text = CommitMetadata(OTHER_LINEAGE, TOPIC_ID, 0, 5, PIN, leader_epoch=3).to_text()
    bed.group.committed[P0] = GroupOffset(5, text)
    bed.ends(p0=22)
    bed.cluster.epoch, bed.cluster.cut = 4, {P0: 10}
    assert flat(bed.session.tasks(START, logged)) == ["orders-0 [5, 10)"]
    bed.assign(P0)
    assert ranges(bed.next_batch(logged)) == ["orders-0 [20, 22)"]
    assert caplog.text.count("orders-0 [10, 20): the log was truncated") == 1
    assert bed.session._metrics.records_lost == 10


# --- what executors may have skipped


def batch_given_out(bed: Bed) -> tuple[SourceOffset, SourceOffset]:
    """Plan [0, 5) and [0, 7), and give them to executors."""
    bed.join(tp(0), tp(1))
    bed.ends(p0=5, p1=7)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    return START, end


def test_p8_what_was_removed_while_executors_read_is_reported_on_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    bed.cluster.beginnings[tp(0)] = 3
    bed.ends(p0=6)
    bed.session.latest_offset(end)
    (line,) = [line for line in caplog.messages if "data lost" in line]
    assert "orders-0 [0, 3): removed between the plan and the end of the batch (at most" in line
    assert bed.session._metrics.records_lost == 3


@pytest.mark.parametrize("again", [True, False], ids=["again", "deleted"])
def test_p8_a_topic_that_is_replaced_while_executors_read_is_reported_with_the_planned_ranges(
    again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    del bed.cluster.topics["orders"]
    if again:
        bed.cluster.topics["orders"] = TopicInfo("topic-id-2", 2)
    for _ in range(2):
        bed.session.latest_offset(end)
        bed.clock.advance(CONFIRM_S)
    (line,) = [line for line in caplog.messages if "data lost" in line and "the batch" in line]
    assert "orders-0 [0, 5), orders-1 [0, 7): the topic was deleted or recreated between the plan and" in line
    assert bed.session._metrics.records_lost == 12


@pytest.mark.parametrize("given", [{"failOnDataLoss": "true"}, {"failOnDataLoss": "false"}])
def test_nobody_looks_back_at_what_cannot_be_skipped(given: dict[str, str]) -> None:
    """With failOnDataLoss=true an executor has failed; what the driver has read it has read to its end."""
    bed = Bed(startingOffsets="earliest", **given)
    _, end = batch_given_out(bed)
    if given["failOnDataLoss"] == "false":
        bed.session.read_on_driver()
    bed.cluster.beginnings[tp(0)] = 3
    bed.session.latest_offset(end)
    assert bed.session._metrics.records_lost == 0


# --- when a completed batch is checked


def skipping(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a query whose batch of [0, 5) and [0, 7) is read by executors, while three records are removed."""
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest", **options)
    _, end = batch_given_out(bed)
    bed.cluster.beginnings[P0] = 3
    return bed, end


@pytest.mark.rule("R92")
def test_p8_a_trigger_after_the_member_has_left_leaves_the_check_to_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    bed, end = skipping()
    bed.member.complete(end)
    bed.session.request_stop()

    def left(_: SourceOffset) -> float:
        raise member_left("shop", clean=True, cause=StopCause.SIGTERM)

    bed.member.complete = left  # type: ignore[method-assign]
    assert bed.session.latest_offset(end) is end
    bed.session.stop()
    assert caplog.text.count("orders-0 [0, 3): removed between") == 1


def test_a_batch_that_is_not_complete_at_a_stop_is_not_checked() -> None:
    bed, _ = skipping()
    bed.session.stop()
    assert bed.session._metrics.records_lost == 0


@pytest.mark.parametrize("what", ["removed", "the topic was deleted or recreated"])
@pytest.mark.rule("R92")
def test_p8_the_newest_batch_is_checked_after_a_restart(what: str, caplog: pytest.LogCaptureFixture) -> None:
    """The query was killed before the trigger that would have checked it. Nobody knows what was skipped."""
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    before = offset_of(OffsetRange(P0, 4, 9), OffsetRange(P1, 7, 7))
    bed.ends(p0=9, p1=7)
    if what == "removed":
        bed.cluster.beginnings[P0] = 6
    else:
        bed.recreate()
    bed.join(P0, P1)
    bed.session.latest_offset(before)
    bed.clock.advance(5.0)
    bed.session.latest_offset(before)
    span = "[4, 6)" if what == "removed" else "[4, 9)"
    said = f"orders-0 {span}: {what} since the last batch before the restart was planned (at most"
    assert caplog.text.count(said) == 1
    assert bed.session._metrics.records_lost == 0


@pytest.mark.rule("R92")
def test_p8_one_answer_with_the_former_id_proves_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """1. The topic is recreated while a batch runs. 2. The broker that is asked at its end lags behind."""
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    assert bed.session.latest_offset(end) is end
    bed.recreate(p0=0, p1=0)
    for _ in range(4):
        bed.clock.advance(1.5)
        bed.session.latest_offset(end)
    assert caplog.text.count("orders-0 [0, 5), orders-1 [0, 7): the topic was deleted or recreated between") == 1
    assert bed.session._metrics.records_lost == 0, "nor does it prove that something was skipped"


@pytest.mark.rule("R92")
def test_p8_an_answer_proves_nothing_later_than_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """1. The broker that is asked for the ids lags behind. 2. The one that is asked for the beginnings is slow."""
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    log_offsets = bed.cluster.log_offsets

    def slow(*args: Any, **options: Any) -> dict[TopicPartition, LogEnd | None]:
        bed.clock.advance(CONFIRM_S + 2.0)
        return log_offsets(*args, **options)

    bed.cluster.log_offsets = slow  # type: ignore[method-assign]
    bed.session.latest_offset(end)
    bed.cluster.log_offsets = log_offsets  # type: ignore[method-assign]
    bed.recreate(p0=0, p1=0)
    for _ in range(4):
        bed.clock.advance(1.5)
        bed.session.latest_offset(end)
    assert caplog.text.count("orders-0 [0, 5), orders-1 [0, 7): the topic was deleted or recreated between") == 1


def test_a_batch_is_checked_until_its_topics_are_proven() -> None:
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    for _ in range(4):
        bed.clock.advance(1.5)
        assert bed.session.latest_offset(end) is end
    bed.recreate()
    bed.session._reads.check(last=True)
    assert bed.session._metrics.records_lost == 0


def test_what_is_removed_long_after_a_batch_counts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A pipeline that removes what it has processed, with a trigger of minutes."""
    bed, end = skipping()
    bed.member.complete(end)
    bed.clock.advance(COUNTS_S)
    bed.session.latest_offset(end)
    assert "data may be lost: group=shop orders-0 [0, 3): removed between the plan and the end" in caplog.text
    assert bed.session._metrics.records_lost == 0
