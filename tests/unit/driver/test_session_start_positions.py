"""The session: where a partition starts."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.errors import OptionError
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from tests.unit.driver.session_bed import P0, P1, START, Bed, joined, ranges
from tests.unit.fakes import (
    offset_of,
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
def test_what_a_new_group_finds_removed_is_no_loss(starting: str) -> None:
    bed = Bed(startingOffsets=starting)
    bed.ends(p0=5, p1=9)
    bed.cluster.beginnings[P1] = 4
    bed.join(P0, P1)
    bed.session.latest_offset(START)
    assert bed.committed() == ({0: 0, 1: 4} if starting == "earliest" else {0: 5, 1: 9})


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
