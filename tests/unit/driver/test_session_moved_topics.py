"""The session: a topic that is deleted or recreated, and partitions that this query does not hold any more."""

from __future__ import annotations

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import DataLossError
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import OffsetRange, SourceOffset
from spark_groupsource.options.model import ReadBounds
from tests.unit.driver.session_bed import P0, P1, START, Bed, earliest, metadata, ranges
from tests.unit.fakes import OTHER_LINEAGE, offset_of, tp

NEW_ID = "the second topic's id"
AT_MOST = "(at most, because other members may have read it since)"


def shared(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a query that has read [0, 10) of 20 records of each partition, in a group with another member."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.cluster.group_members = dict.fromkeys(("m", "another"), frozenset())
    bed.join(P0, P1)
    bed.ends(p0=20, p1=20)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=20))
    assert ranges(end) == ["orders-0 [0, 10)", "orders-1 [0, 10)"]
    return bed, end


def started(before: SourceOffset, *owned: int, others: bool = True, **options: str) -> Bed:
    """Return a query that is started again from `before`; the group gives it these partitions."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.cluster.group_members = dict.fromkeys(("m", "another") if others else (), frozenset())
    bed.join(*map(tp, owned))
    return bed


def recreate(bed: Bed, *, pinned: bool = False) -> None:
    """Recreate the topic with three records; `pinned`: another member has begun to read it."""
    bed.cluster.topics["orders"] = TopicInfo(NEW_ID, 2)
    bed.group.committed.clear()
    bed.ends(p0=3, p1=3)
    if pinned:
        text = metadata(OTHER_LINEAGE, 0, 0, topic_id=NEW_ID)
        bed.group.committed |= {p: GroupOffset(0, text) for p in (P0, P1)}


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the reports of losses."""
    return [line for line in caplog.messages if "data" in line and "lost" in line]


# --- a recreated topic (F1)


@pytest.mark.rule("R91")
def test_p8_an_answer_with_the_former_id_does_not_settle_what_has_left(caplog: pytest.LogCaptureFixture) -> None:
    """1. orders-1 leaves with its topic. 2. A broker that lags behind still reports the former id."""
    bed, end = shared(failOnDataLoss="false")
    bed.lose(P0, P1)
    bed.assign()
    assert bed.session.latest_offset(end) is end
    assert lost(caplog) == []
    recreate(bed)
    assert bed.session.latest_offset(end) is end
    (line,) = lost(caplog)
    assert "orders-0 [10, 20), orders-1 [10, 20): the topic was deleted and recreated" in line


# --- a deleted topic (F4)


@pytest.mark.parametrize("unread", [True, False])
@pytest.mark.rule("R82", "R91")
def test_p8_partitions_that_leave_with_their_topic_fail_a_query_that_knows_of_unread_records(
    unread: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bed, end = shared()
    if not unread:
        end = bed.next_batch(end)
    bed.lose(P0, P1)
    bed.assign()
    del bed.cluster.topics["orders"]
    if unread:
        with pytest.raises(
            DataLossError, match=r"orders-0 \[10, 20\), orders-1 \[10, 20\): the topic was deleted \(at most"
        ):
            bed.session.latest_offset(end)
    else:
        assert bed.session.latest_offset(end) is end
        assert f"orders-0 [20, ...), orders-1 [20, ...): the topic was deleted {AT_MOST}" in caplog.text


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.rule("R91", "R82")
def test_a_restart_after_a_topic_was_deleted_fails_only_if_no_other_member_can_have_read_it(
    others: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = offset_of(OffsetRange(P0, 0, 10), OffsetRange(P1, 20, 30))
    bed = started(before, others=others)
    del bed.cluster.topics["orders"]
    if others:
        assert bed.session.latest_offset(before) is before
        assert f"orders-0 [10, ...), orders-1 [30, ...): the topic was deleted {AT_MOST}" in caplog.text
    else:
        with pytest.raises(DataLossError, match=r"orders-0 \[10, \.\.\.\), orders-1 \[30, \.\.\.\): the topic was del"):
            bed.session.latest_offset(before)


def test_records_that_wait_for_a_larger_batch_are_lost_with_their_topic() -> None:
    """The trigger that has seen them has planned nothing: minOffsetsPerTrigger."""
    bed = earliest(p0=10)
    end = bed.session.latest_offset(START)
    bed.ends(p0=15)
    assert bed.session.latest_offset(end, ReadBounds(min_rows=100)) is end
    del bed.cluster.topics["orders"]
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 15\): the topic was deleted"):
        bed.session.latest_offset(end)
