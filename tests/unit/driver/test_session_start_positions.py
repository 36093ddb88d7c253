"""The session: where a partition starts."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.topics import REFRESH_S
from spark_groupsource.errors import KafkaUnavailableError, OptionError
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from tests.unit.driver.session_bed import P0, P1, P2, START, Bed, joined, metadata, ranges
from tests.unit.fakes import (
    LINEAGE,
    OTHER_LINEAGE,
    TOPIC_ID,
    offset_of,
    tp,
)


def test_a_new_group_starts_from_a_group_that_has_offsets_in_another_partition_only() -> None:
    bed = Bed(startingOffsets="group:billing")
    bed.join(P0)
    with pytest.raises(OptionError, match="'billing' has none of topics orders"):
        bed.session.latest_offset(START)
    bed.cluster.groups["billing"] = {P1: 30}
    bed.ends(p0=5, p1=30)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.rule("R4")
def test_p8_what_an_added_partition_lost_before_anybody_looked_is_reported(
    starting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The query is down; a partition is added and filled; retention removes its first records; the query starts."""
    bed = Bed(startingOffsets=starting, failOnDataLoss="false")
    bed.group.committed[P0] = GroupOffset(5, metadata(LINEAGE, 0, 5))
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    bed.ends(p0=5, p2=9)
    bed.cluster.beginnings[P2] = 4
    bed.join(P0, P2)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 5)))
    assert ranges(end) == ["orders-0 [5, 5)", "orders-2 [4, 9)"]
    assert "data lost and skipped, failOnDataLoss=false: group=shop orders-2 [0, 4)" in caplog.text


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_what_a_new_group_finds_removed_is_no_loss(starting: str) -> None:
    bed = Bed(startingOffsets=starting)
    bed.ends(p0=5, p1=9)
    bed.cluster.beginnings[P1] = 4
    bed.join(P0, P1)
    bed.session.latest_offset(START)
    assert bed.committed() == ({0: 0, 1: 4} if starting == "earliest" else {0: 5, 1: 9})


@pytest.mark.rule("R4")
def test_a_topic_that_appears_later_starts_at_its_beginning() -> None:
    bed = joined(p0=5, subscribePattern=".*")
    assert bed.session.latest_offset(START) is START
    refund = TopicPartition("refunds", 0)
    bed.ends(refunds=4)
    bed.clock.advance(6.0)
    assert bed.session.latest_offset(START) is START
    assert bed.group.named("subscribe") == [("orders",), ("orders", "refunds")]
    bed.assign(refund)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [5, 5)", "refunds-0 [0, 4)"]


@pytest.mark.rule("R4")
def test_other_topics_after_a_restart_start_at_their_beginning() -> None:
    """As in Spark's own source: the starting options are those of a new query."""
    refund = TopicPartition("refunds", 0)
    for start, position in ((offset_of(OffsetRange(P0, 0, 5)), 0), (START, 4)):
        bed = Bed(subscribe="refunds")
        bed.ends(refunds=4)
        bed.join(refund)
        bed.session.latest_offset(start)
        assert bed.group.committed[refund].offset == position


def test_p1_a_topic_that_appears_while_a_standby_waits_is_a_new_one_among_too_many_to_pin() -> None:
    """A pin tells up to 400 topics. The sequence: 401 topics are pinned by another member; the standby starts; one more
    topic is made, with records, and given to the standby. By default one that was there would start at its end.
    """
    names = [f"t{number}" for number in range(401)]
    topics = {name: TopicInfo(f"{name}-id", 1) for name in names}
    first, standby = Bed(subscribePattern="t.*"), Bed(subscribePattern="t.*")
    first.cluster.topics, standby.cluster.topics = dict(topics), dict(topics)
    first.join(tp(0, "t0"))
    assert first.session.latest_offset(START) is START
    standby.group.committed = first.group.committed
    standby.join()
    assert standby.session.latest_offset(START) is START
    new = tp(0, "tnew")
    standby.cluster.topics["tnew"] = TopicInfo("tnew-id", 1)
    standby.cluster.ends[new] = 4
    standby.clock.advance(REFRESH_S + 1)
    standby.session.latest_offset(START)
    standby.assign(new)
    assert ranges(standby.session.latest_offset(START)) == ["tnew-0 [0, 4)"]


def test_p1_the_first_pins_name_no_topic_that_was_created_since_the_query_started() -> None:
    """1. the query starts, with nothing to read; 2. refunds is made, with records; 3. orders is pinned; 4. another
    member, which knows both, is given refunds.
    """
    refunds = tp(0, "refunds")
    bed, other = Bed(subscribePattern=".*"), Bed(subscribePattern=".*")
    bed.join()
    assert bed.session.latest_offset(START) is START
    for each in (bed, other):
        each.ends(refunds=4)
    bed.clock.advance(REFRESH_S + 1)
    bed.assign(P0)
    bed.session.latest_offset(START)
    other.group.committed = bed.group.committed
    other.join(refunds)
    assert ranges(other.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["refunds-0 [0, 4)"]


def test_starting_timestamp() -> None:
    bed = joined(p0=9, startingTimestamp="1700000000000")
    bed.cluster.at_time[P0] = 6
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [6, 9)"]


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_starting_timestamp_after_all_records(strategy: str) -> None:
    bed = joined(p0=9, startingTimestamp="1700000000000", startingOffsetsByTimestampStrategy=strategy)
    if strategy == "error":
        with pytest.raises(
            OptionError,
            match=r"'startingTimestamp' has the value '1700000000000'.*orders-0 has none at or after .* \(2023-11-14",
        ):
            bed.session.latest_offset(START)
    else:
        assert bed.session.latest_offset(START) is START
        assert bed.committed()[0] == 9


def test_a_coordinator_that_does_not_report_the_offsets_fails_in_bounded_time() -> None:
    bed = Bed()
    bed.join(P0)
    bed.session.start()
    bed.member.view()
    bed.group.unanswered_fetches = 10**6
    with pytest.raises(KafkaUnavailableError, match="OffsetFetch failed"):
        bed.session.latest_offset(START)
    assert bed.paused < 125.0


@pytest.mark.parametrize("subscription", [{"subscribe": "orders"}, {"subscribePattern": "orders.*"}])
@pytest.mark.parametrize("at_once", [True, False], ids=["assigned at once", "one after the other"])
@pytest.mark.rule("R4")
def test_p1_what_was_added_while_the_group_forgot_its_offsets_is_read(
    at_once: bool, subscription: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """By default a new group starts at the end. The sequence: the query has read orders-0 to 100, and is down for
    longer than offsets.retention.minutes; meanwhile orders-1 is added, gets 40 records, and loses 10 of them. Whether
    another query had read these nobody knows: no loss is told.
    """
    bed = Bed(**subscription)
    bed.ends(p0=120, p1=40)
    bed.cluster.beginnings[P1] = 10
    start = offset_of(OffsetRange(P0, 90, 100))
    with caplog.at_level(logging.WARNING):
        if at_once:
            bed.join(P0, P1)
            end = bed.session.latest_offset(start)
            assert ranges(end) == ["orders-0 [100, 120)", "orders-1 [10, 40)"]
        else:
            bed.join(P0)
            first = bed.session.latest_offset(start)
            bed.assign(P1)
            assert ranges(bed.session.latest_offset(first)) == ["orders-0 [120, 120)", "orders-1 [10, 40)"]
    assert caplog.text.count("the group has no offsets of what was read before") == (1 if at_once else 2)


@pytest.mark.rule("R7")
def test_p1_a_pin_after_the_group_forgot_names_no_other_topic() -> None:
    """1. A has read orders, B refunds to 500. 2. The group forgets both. 3. A starts first and gets orders: what it
    pins must not say that refunds begins now. 4. C, which has read nothing, gets refunds.
    """
    refunds = tp(0, "refunds")
    first, second = Bed(subscribe="orders,refunds"), Bed(subscribe="orders,refunds")
    second.group.committed = first.group.committed
    for bed in (first, second):
        bed.ends(p0=120, refunds=1000)
    first.join(P0)
    first.session.latest_offset(offset_of(OffsetRange(P0, 90, 100)))
    second.join(refunds)
    assert ranges(second.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["refunds-0 [0, 1000)"]
