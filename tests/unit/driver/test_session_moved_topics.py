"""The session: a topic that is deleted or recreated, and partitions that this query does not hold any more."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from spark_groupsource.cluster.port import CONFIRM_S, TopicInfo
from spark_groupsource.errors import DataLossError
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import OffsetRange, SourceOffset
from spark_groupsource.options.model import ReadBounds
from tests.unit.driver.session_bed import P0, P1, START, Bed, metadata, ranges
from tests.unit.fakes import OTHER_LINEAGE, TOPIC_ID, offset_of, tp

NEW_ID = "the second topic's id"
AT_MOST = "(at most, because other members may have read it since)"


def shared(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a query that has read [0, 10) of 20 records of each partition, in a group with another member."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.cluster.group_members = frozenset({"m", "another"})
    bed.join(P0, P1)
    bed.ends(p0=20, p1=20)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=20))
    assert ranges(end) == ["orders-0 [0, 10)", "orders-1 [0, 10)"]
    return bed, end


def started(before: SourceOffset, *owned: int, others: bool = True, **options: str) -> Bed:
    """Return a query that is started again from `before`; the group gives it these partitions."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.cluster.group_members = frozenset({"m", "another"} if others else ())
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


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.rule("R91")
def test_p8_a_partition_moves_after_its_topic_was_recreated(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    """1. [0, 10) of 20 records is read. 2. The topic is recreated. 3. Another member gets orders-1 under the new id."""
    bed, end = shared(failOnDataLoss=fails)
    recreate(bed, pinned=True)
    bed.lose(P1)
    bed.assign(P0)
    if fails == "true":
        with pytest.raises(DataLossError, match=r"orders-1 \[10, 20\): the topic was deleted and recreated"):
            bed.session.latest_offset(end)
        return
    following = bed.next_batch(end)
    assert ranges(following) == ["orders-0 [0, 3)"]
    assert f"orders-1 [10, 20): the topic was deleted and recreated, and is read from its beginning {AT_MOST}" in str(
        lost(caplog)
    )
    bed.ends(p0=4)
    bed.session.latest_offset(following)
    assert caplog.text.count("orders-1 [10, 20)") == 1
    assert bed.session._metrics.records_lost == 10, "orders-0 was held all the time"


@pytest.mark.rule("R91")
def test_p8_two_queries_swap_their_partitions_at_a_recreation(caplog: pytest.LogCaptureFixture) -> None:
    """1. This query reads orders-0, another one orders-1. 2. The topic is recreated. 3. They get each other's."""
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.cluster.group_members = frozenset({"m", "another"})
    bed.join(P0)
    bed.ends(p0=20)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=10))
    recreate(bed, pinned=True)
    bed.lose(P0)
    bed.assign(P1)
    assert ranges(bed.next_batch(end)) == ["orders-1 [0, 3)"]
    assert "orders-0 [10, 20): the topic was deleted and recreated" in str(lost(caplog))


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.rule("R91")
def test_p8_a_restart_beside_a_fresh_query_that_has_pinned_the_new_topic(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """1. This query stops with unread records. 2. The topic is recreated. 3. A fresh query pins both. 4. A restart."""
    before = offset_of(OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10))
    bed = started(before, failOnDataLoss=fails)
    recreate(bed, pinned=True)
    bed.assign(P0)
    if fails == "true":
        with pytest.raises(DataLossError, match=r"orders-0 \[10, \.\.\.\): the topic was deleted and recreated"):
            bed.session.latest_offset(before)
    else:
        assert ranges(bed.next_batch(before)) == ["orders-0 [0, 3)"]
        assert "orders-0 [10, ...): the topic was deleted and recreated" in str(lost(caplog))
    assert f"orders-1 [10, 10): the topic was deleted and recreated, and is read from its beginning {AT_MOST}" in str(
        lost(caplog)
    )


@pytest.mark.rule("R91")
def test_p8_a_restart_without_a_partition_reports_what_its_checkpoint_knows(caplog: pytest.LogCaptureFixture) -> None:
    before = offset_of(OffsetRange(P0, 0, 10), OffsetRange(P1, 0, 10))
    bed = started(before)
    recreate(bed, pinned=True)
    assert bed.session.latest_offset(before) is before
    (line,) = lost(caplog)
    assert "orders-0 [10, 10), orders-1 [10, 10): the topic was deleted and recreated" in line


@pytest.mark.rule("R91")
def test_a_partition_that_was_handed_over_before_its_topic_was_recreated_fails_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. orders-1 is another member's. 2. It answers for the recreated topic, and pins it. 3. orders-1 comes back."""
    bed, end = shared()
    bed.lose(P1)
    bed.assign(P0)
    end = bed.next_batch(end)
    bed.clock.advance(CONFIRM_S)
    end = bed.next_batch(end)
    before = SourceOffset.of(end.lineage, {"orders": TOPIC_ID}, [], {P0: 20, P1: 10})
    again = started(before)
    recreate(again, pinned=True)
    again.assign(P1)
    assert ranges(again.next_batch(before)) == ["orders-1 [0, 3)"]
    assert f"orders-1 [10, 10): the topic was deleted and recreated, and is read from its beginning {AT_MOST}" in str(
        lost(caplog)
    )


@pytest.mark.parametrize("lags", [CONFIRM_S - 1, CONFIRM_S + 60])
@pytest.mark.rule("R91")
def test_a_broker_that_lags_behind_decides_nothing_of_what_has_left(
    lags: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It reports another id for a moment, or the former one."""
    bed, end = shared(failOnDataLoss="false")
    bed.lose(P1)
    bed.assign(P0)
    until_s, describe, right = bed.clock.now_s + lags, bed.cluster.describe, lags > CONFIRM_S

    def lagging(topics: Iterable[str], **_: object) -> dict[str, TopicInfo]:
        other = bed.clock.now_s < until_s
        found = describe(topics)
        return {name: TopicInfo(NEW_ID if other else TOPIC_ID, info.partition_count) for name, info in found.items()}

    bed.cluster.describe = lagging  # type: ignore[method-assign]
    bed.session.latest_offset(end)
    assert ("orders-1 [10, 20)" in caplog.text) is right


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
        assert f"orders-0 [20, 20), orders-1 [20, 20): the topic was deleted {AT_MOST}" in caplog.text


@pytest.mark.rule("R82", "R91")
def test_p8_what_another_member_has_read_of_a_deleted_topic_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """1. orders-1 is handed over with unread records. 2. Its next owner reads them. 3. The topic is deleted."""
    refunds = tp(0, "refunds")
    bed = Bed(startingOffsets="earliest", subscribe="orders,refunds")
    bed.cluster.topics["refunds"] = TopicInfo("the refunds' id", 1)
    bed.join(P1, refunds)
    bed.cluster.ends |= {P1: 20, refunds: 20}
    end = bed.session.latest_offset(START, ReadBounds(max_rows=20))
    bed.lose(P1)
    bed.assign(refunds)
    assert ranges(following := bed.session.latest_offset(end)) == ["refunds-0 [10, 20)"]
    bed.clock.advance(CONFIRM_S)
    assert bed.session.latest_offset(following) is following
    del bed.cluster.topics["orders"]
    bed.group.committed.clear()
    bed.cluster.ends[refunds] = 25
    assert ranges(bed.next_batch(following)) == ["refunds-0 [20, 25)"]
    assert "[10, 20)" not in caplog.text
    assert bed.session._metrics.records_lost == 0


@pytest.mark.rule("R82", "R91")
def test_p8_a_partition_that_moved_and_was_in_the_newest_batch_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was planned since it moved, so the newest entry of the offset log still has it."""
    bed, end = shared()
    bed.lose(P0, P1)
    bed.assign()
    assert bed.session.latest_offset(end) is end
    bed.clock.advance(CONFIRM_S)
    assert bed.session.latest_offset(end) is end
    del bed.cluster.topics["orders"]
    bed.group.committed.clear()
    assert bed.session.latest_offset(end) is end
    assert lost(caplog) == []


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.rule("R39", "R82")
def test_a_restart_after_a_topic_was_deleted_fails_only_if_no_other_member_can_have_read_it(
    others: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = offset_of(OffsetRange(P0, 0, 10), OffsetRange(P1, 20, 30))
    bed = started(before, others=others)
    del bed.cluster.topics["orders"]
    if others:
        assert bed.session.latest_offset(before) is before
        assert f"orders-0 [10, 10), orders-1 [30, 30): the topic was deleted {AT_MOST}" in caplog.text
    else:
        with pytest.raises(DataLossError, match=r"orders-0 \[10, \.\.\.\), orders-1 \[30, \.\.\.\): the topic was del"):
            bed.session.latest_offset(before)


def test_records_that_wait_for_a_larger_batch_are_lost_with_their_topic() -> None:
    """The trigger that has seen them has planned nothing: minOffsetsPerTrigger."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=10)
    end = bed.session.latest_offset(START)
    bed.ends(p0=15)
    assert bed.session.latest_offset(end, ReadBounds(min_rows=100)) is end
    del bed.cluster.topics["orders"]
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 15\): the topic was deleted"):
        bed.session.latest_offset(end)
