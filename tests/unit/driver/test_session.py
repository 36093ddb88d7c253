"""The session: its life, and what it reports of batches that nobody reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from spark_groupsource import errors
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.draining import END_AFTER_S
from spark_groupsource.errors import KafkaUnavailableError, MembershipError, OptionError
from spark_groupsource.membership.stopping import StopCause, member_left
from spark_groupsource.model.offsets import OffsetRange
from tests.unit.driver.session_bed import P0, START, Bed, earliest
from tests.unit.fakes import (
    group_denied,
    offset_of,
)

# --- life


def test_nothing_happens_before_the_first_call() -> None:
    bed = Bed()
    assert bed.group.calls == []
    assert repr(bed.session) == f"Session(group='shop', lineage=None, {bed.member!r})"


def test_an_unknown_topic_fails_before_the_member_joins() -> None:
    bed = Bed(subscribe="orders,nowhere")
    with pytest.raises(OptionError, match=r"TOPIC_UNKNOWN.*'nowhere'"):
        bed.session.start()
    assert bed.group.calls == []


def test_start_is_done_once() -> None:
    bed = Bed()
    bed.session.start()
    bed.session.start()
    assert bed.group.calls == [("open", None), ("subscribe", ("orders",))]


def test_a_missing_checkpoint_location_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(checkpoint=False)
    with caplog.at_level(logging.WARNING):
        bed.session.start()
        bed.session.start()
    assert caplog.text.count("checkpointLocation is not set") == 1


def test_stop_is_idempotent_and_frees_the_cluster() -> None:
    bed = Bed()
    bed.session.start()
    bed.session.stop()
    bed.session.stop()
    assert bed.member.stopping
    assert bed.cluster.closed


def test_a_stop_by_signal_is_not_the_end_of_what_is_available_now() -> None:
    """Guards against: 1. SIGTERM comes to the reader alone, 2. the next trigger has "nothing new", 3. the query ends as
    if it had read everything."""
    bed = earliest(p0=5)
    bed.session.prepare_available_now()
    bed.session.request_stop()
    with pytest.raises(MembershipError, match="MEMBER_LEFT"):
        bed.session.latest_offset(START)


# --- batches that nobody reads


def test_a_batch_that_spark_completes_without_a_read_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """The sequence: planned and logged; the sink drops it, so `partitions` is not called; the next trigger comes."""
    bed = earliest(p0=5)
    first = bed.session.latest_offset(START)
    bed.ends(p0=8)
    second = bed.session.latest_offset(first)
    assert "Spark has not read it (logged once): group=shop orders-0 [0, 5): a file sink" in caplog.text
    caplog.clear()
    assert bed.session.latest_offset(second) == second
    assert "has not read it" not in caplog.text


def test_a_batch_that_is_read_is_not_reported_as_unread(caplog: pytest.LogCaptureFixture) -> None:
    bed = earliest(p0=5)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.ends(p0=8)
    bed.session.latest_offset(end)
    assert "has not read it" not in caplog.text


def test_a_plan_that_spark_never_logged_is_not_reported_as_unread(caplog: pytest.LogCaptureFixture) -> None:
    bed = earliest(p0=5)
    bed.session.latest_offset(START)
    bed.session.latest_offset(START)
    assert "has not read it" not in caplog.text


@pytest.mark.rule("R79")
def test_after_a_request_to_stop_spark_gets_its_start_back_and_an_error_when_nobody_stops_the_query() -> None:
    bed = earliest(p0=5)
    end = bed.session.latest_offset(START)
    bed.session.request_stop()
    bed.ends(p0=9)
    assert bed.session.latest_offset(end) is end
    assert bed.committed() == {0: 5}, "the batch that ended there is complete"
    bed.clock.advance(END_AFTER_S - 1.0)
    assert bed.session.latest_offset(end) is end
    bed.session.commit(end)
    bed.clock.advance(2.0)
    with pytest.raises(MembershipError, match="MEMBER_LEFT"):
        bed.session.latest_offset(end)


def test_available_now_ends_after_a_request_to_this_query() -> None:
    bed = earliest(p0=5, watched=True)
    bed.session.prepare_available_now()
    bed.watch.requested = True
    bed.session.request_stop()
    assert bed.session.latest_offset(START) is START


def _stopped_without_brokers(bed: Bed) -> None:
    """Let each question to the cluster end as in a query that is asked to stop while the brokers are away."""

    def fail(_topics: Iterable[str]) -> dict[str, TopicInfo]:
        bed.session.request_stop()
        raise KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request="DescribeTopics", reason="away")

    bed.cluster.describe = fail  # type: ignore[method-assign]


@pytest.mark.rule("R79")
def test_sparks_commit_does_not_start_a_member_after_a_stop() -> None:
    """1. A query has two sources, and is stopped before one of them has started its member, 2. the other source has
    a batch, and Spark reports its end to both."""
    bed = Bed(startingOffsets="earliest", watched=True)
    bed.session.request_stop()
    assert bed.session.latest_offset(START) is START
    bed.session.commit(START)
    assert not bed.group.named("open")


@pytest.mark.rule("R79")
def test_a_stop_while_the_brokers_do_not_answer_fails_no_query() -> None:
    """The request ends the query's wait for the brokers."""
    bed = Bed(startingOffsets="earliest")
    _stopped_without_brokers(bed)
    assert bed.session.latest_offset(START) is START
    bed.clock.advance(END_AFTER_S + 1.0)
    with pytest.raises(MembershipError, match=r"MEMBER_LEFT.*Its last batch is complete and committed"):
        bed.session.latest_offset(START)


@pytest.mark.rule("R79")
def test_a_stop_without_brokers_ends_available_now_and_a_replay_as_with_brokers() -> None:
    bed = Bed(startingOffsets="earliest", watched=True)
    _stopped_without_brokers(bed)
    bed.watch.requested = True
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    replay = Bed()
    _stopped_without_brokers(replay)
    with pytest.raises(MembershipError, match=r"MEMBER_LEFT.*The batch in flight may be repeated"):
        replay.session.tasks(START, offset_of(OffsetRange(P0, 0, 5)))


@pytest.mark.rule("R86")
def test_a_query_is_caught_up_when_its_logged_batch_runs_again_or_spark_asks_for_the_next_one() -> None:
    bed = earliest(p0=5, watched=True)
    _stopped_without_brokers(bed)
    with pytest.raises(MembershipError, match="MEMBER_LEFT"):
        bed.session.tasks(START, offset_of(OffsetRange(P0, 0, 5)))
    assert not bed.watch.caught_up
    again = earliest(p0=5, watched=True)
    again.session.tasks(START, offset_of(OffsetRange(P0, 0, 5)))
    assert again.watch.caught_up
    first = Bed(startingOffsets="earliest", watched=True)
    first.join(P0)
    first.session.latest_offset(START)
    assert first.watch.caught_up


@pytest.mark.rule("R79")
def test_a_member_that_leaves_while_its_standby_partitions_are_kept_warm_fails_no_query() -> None:
    bed = Bed()

    def leave() -> None:
        bed.session.request_stop()
        raise member_left("shop", clean=True, cause=StopCause.SIGTERM)

    bed.session.unless_left(leave)


def test_an_error_that_ended_the_member_before_a_stop_is_raised() -> None:
    bed = Bed(startingOffsets="earliest")
    _stopped_without_brokers(bed)
    describe = bed.cluster.describe

    def after_the_member_failed(topics: Iterable[str]) -> dict[str, TopicInfo]:
        bed.group.fail(group_denied())
        bed.settle()
        return describe(topics)

    bed.join()
    bed.cluster.describe = after_the_member_failed  # type: ignore[method-assign]
    with pytest.raises(KafkaUnavailableError):
        bed.session.latest_offset(START)
