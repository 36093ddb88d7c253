"""The session: a topic that is deleted and recreated, with as many partitions or fewer."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.log_ends import IDS_AGE_S
from spark_groupsource.driver.topics import REFRESH_S
from spark_groupsource.errors import DataLossError
from spark_groupsource.model.commit_metadata import GroupOffset, KnownTopics, Pin
from spark_groupsource.model.offsets import NO_TOPIC_ID, OffsetRange, SourceOffset
from spark_groupsource.options.model import ReadBounds
from tests.unit.driver.session_bed import P0, P1, START, Bed, earliest, joined, metadata, ranges
from tests.unit.fakes import (
    LINEAGE,
    OTHER_LINEAGE,
    TOPIC_ID,
)

# --- a topic that is deleted and made again


def recreated(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has read 50 records of a topic, which then is another one with 60 records."""
    bed = earliest(p0=50, **options)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.recreate(p0=60)
    return bed, end


# --- fewer partitions, and topics that come back


@pytest.mark.parametrize("taken", [True, False], ids=["taken by the group", "still assigned"])
def test_a_topic_that_is_recreated_with_fewer_partitions(taken: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The unread records of the partition that is gone are told, once; the others are read from their beginning."""
    failing, going_on = (Bed(startingOffsets="earliest", failOnDataLoss=choice) for choice in ("true", "false"))
    ends = []
    for bed in failing, going_on:
        bed.join(P0, P1)
        bed.ends(p0=60, p1=60)
        ends.append(bed.session.latest_offset(START, ReadBounds(max_rows=100)))
        bed.recreate(1, p0=20)
        if taken:
            bed.lose(P0, P1)
            bed.assign(P0)
    with pytest.raises(DataLossError, match=r"orders-1 \[50, 60\): .* recreated with fewer partitions"):
        failing.session.latest_offset(ends[0])
    with caplog.at_level(logging.WARNING):
        end = going_on.next_batch(ends[1])
        assert ranges(end) == ["orders-0 [0, 20)"]
        going_on.ends(p0=25)
        assert ranges(going_on.next_batch(end)) == ["orders-0 [20, 25)"]
    assert caplog.text.count("orders-1 [50, 60)") == 1
    assert "orders-0 [50, 60): the topic was deleted and recreated" in caplog.text


def test_a_broker_that_lists_fewer_partitions_of_the_same_topic_is_not_believed() -> None:
    """It has not heard yet that some were added; the group has moved one of those meanwhile."""
    bed = earliest(p0=60, p1=60)
    end = bed.session.latest_offset(START)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.lose(P0, P1)
    bed.assign(P0)
    bed.ends(p0=70)
    assert ranges(bed.next_batch(end)) == ["orders-0 [60, 70)"]


def test_a_recreated_topic_before_its_first_batch_is_no_new_one() -> None:
    bed = joined(p0=60, failOnDataLoss="false")
    assert ranges(bed.next_batch(START)) == []
    bed.recreate(p0=67)
    bed.group.committed.clear()
    assert ranges(bed.next_batch(START)) == ["orders-0 [0, 67)"]


def test_partitions_that_come_back_are_read_again() -> None:
    bed = earliest(p0=60, p1=60, failOnDataLoss="false")
    end = bed.session.latest_offset(START)
    bed.recreate(1, p0=20)
    end = bed.next_batch(end)
    bed.recreate(p0=20, p1=7)
    bed.clock.advance(REFRESH_S + 1)
    assert "orders-1 [0, 7)" in ranges(bed.next_batch(end))


# --- brokers without topic ids


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_topic_that_gets_an_id_is_the_one_that_was_read(
    again: bool, starting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against: 1. brokers without topic ids are read from; 2. they are upgraded, and give the topic an id; 3. it
    is taken for another topic of that name: a loss is reported, and all of it is read again.
    """
    pin = Pin(0, 2, None if starting == "earliest" else KnownTopics.of({"orders": NO_TOPIC_ID}))
    committed = GroupOffset(5, metadata(LINEAGE, 0, 5, pin=pin, topic_id=NO_TOPIC_ID))
    start = SourceOffset.of(LINEAGE, {"orders": NO_TOPIC_ID}, [OffsetRange(P0, 0, 5)], {})
    bed = Bed(startingOffsets=starting)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID if again else NO_TOPIC_ID, 2)
    bed.group.committed[P0] = committed
    bed.ends(p0=7, p1=3)
    bed.join(P0)
    end = bed.session.latest_offset(start)
    assert ranges(end) == ["orders-0 [5, 7)"]
    bed.session.tasks(start, end)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.ends(p0=9)
    bed.clock.advance(60.0)
    later = bed.next_batch(end)
    assert ranges(later) == ["orders-0 [7, 9)"]
    assert later.topic_id("orders") == TOPIC_ID
    bed.session.commit(later)
    assert bed.committed()[0] == 9
    assert "recreated" not in caplog.text


# --- a topic that is made again while members of a KIP-848 group share it


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.rule("R81")
def test_a_new_member_joins_again_once_if_its_topic_was_recreated(protocol: str) -> None:
    """It may have been assigned the deleted topic's partitions, if the group assigns by topic id."""
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false", kafka__group__protocol=protocol)
    bed.group.committed[P0] = GroupOffset(5, metadata(OTHER_LINEAGE, 0, 5, topic_id="the first topic's id"))
    bed.join(P0)
    bed.ends(p0=7)
    assert ranges(bed.next_batch(START)) == ["orders-0 [0, 7)"]
    assert bed.group.joins == (protocol == "consumer")


def test_a_topic_that_is_recreated_twice_is_left_twice() -> None:
    bed, end = recreated(failOnDataLoss="false")
    end = bed.next_batch(end)
    assert bed.session.latest_offset(end) is end
    bed.recreate(p0=70)
    assert ranges(bed.next_batch(end)) == ["orders-0 [0, 70)"]
    assert bed.group.joins == 2


# --- a topic that is made again after its partition was another member's


@pytest.mark.rule("R82")
def test_what_the_group_has_read_of_a_topic_that_is_recreated_is_known_by_its_offset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bed = earliest(p0=20, failOnDataLoss="false")
    end = bed.session.latest_offset(START, ReadBounds(max_rows=5))
    bed.session.latest_offset(end, ReadBounds(min_rows=50))
    bed.lose(P0)
    bed.group.committed[P0] = GroupOffset(15, metadata(OTHER_LINEAGE, 5, 15))
    bed.recreate()
    bed.assign(P0)
    bed.session.latest_offset(end)
    assert "orders-0 [15, 20): the topic was deleted and recreated" in caplog.text
    assert bed.session._metrics.records_lost == 5


@pytest.mark.parametrize("replaced", [GroupOffset(None), GroupOffset(90, metadata(OTHER_LINEAGE, 80, 90))])
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.rule("R83")
def test_an_offset_of_the_topic_before_that_is_committed_late_is_replaced(
    protocol: str, replaced: GroupOffset, caplog: pytest.LogCaptureFixture
) -> None:
    bed, end = recreated(failOnDataLoss="false", kafka__group__protocol=protocol)
    end = bed.next_batch(end)
    assert bed.session.latest_offset(end) is end
    held = bed.group.committed[P0]
    bed.group.committed[P0] = replaced
    assert bed.session.latest_offset(end) is end
    assert bed.group.committed[P0] == replaced
    bed.clock.advance(IDS_AGE_S)
    assert bed.session.latest_offset(end) is end
    assert bed.group.committed[P0] == (held if protocol == "consumer" else replaced)
    assert ("orders-0 at 60" in caplog.text) is (protocol == "consumer")
    bed.ends(p0=61)
    assert ranges(bed.next_batch(end)) == ["orders-0 [60, 61)"]
