"""The session: a topic that is deleted, and partitions that do not exist."""

from __future__ import annotations

import logging

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.topics import REFRESH_S
from spark_groupsource.errors import DataLossError, OptionError
from spark_groupsource.model.offsets import OffsetRange, SourceOffset
from spark_groupsource.options.model import ReadBounds
from tests.unit.driver.session_bed import P0, P1, START, Bed, earliest, flat, ranges
from tests.unit.fakes import (
    TOPIC_ID,
    offset_of,
    tp,
)


def deleted(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has planned up to 50 of 60 records when the topic is deleted."""
    bed = earliest(p0=60, refunds=0, subscribe="orders,refunds", **options)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=50))
    del bed.cluster.topics["orders"]
    return bed, end


@pytest.mark.parametrize("subscription", [{}, {"subscribePattern": "ord.*"}], ids=["list", "pattern"])
@pytest.mark.rule("R91")
def test_a_topic_that_was_deleted_while_the_query_was_down(subscription: dict[str, str]) -> None:
    bed = Bed(startingOffsets="earliest", **subscription)
    del bed.cluster.topics["orders"]
    with pytest.raises(DataLossError, match=r"orders-0 \[50, \.\.\.\): the topic was deleted"):
        bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 50)))
    if not subscription:
        with pytest.raises(OptionError, match="TOPIC_UNKNOWN"):
            bed.session.latest_offset(START)


@pytest.mark.parametrize("subscription", [{"subscribe": "new"}, {"subscribePattern": "new.*"}])
def test_a_topic_that_was_unsubscribed_and_deleted_is_missed_by_no_start(subscription: dict[str, str]) -> None:
    """The last batch has its end; the option was changed, and the topic deleted, because all of it was read."""
    bed = Bed(startingOffsets="earliest", **subscription)
    del bed.cluster.topics["orders"]
    bed.ends(new=3)
    bed.join(tp(0, "new"))
    end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 50)))
    assert ranges(end) == ["new-0 [0, 3)"]


@pytest.mark.parametrize("subscription", [{"subscribe": "orders"}, {"subscribePattern": "orders.*"}])
def test_a_batch_runs_again_without_a_topic_that_was_unsubscribed_and_deleted(subscription: dict[str, str]) -> None:
    """The process dies in a batch that has nothing of refunds; the option is changed, and refunds deleted."""
    bed = earliest(p0=20, **subscription)
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(tp(0, "refunds"), 5, 5))
    assert flat(bed.session.tasks(START, logged)) == ["orders-0 [10, 20)"]
    bed.session.commit(logged)
    assert bed.session.latest_offset(logged) is logged


def handing_over(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has read refunds to 4 and handed it over."""
    bed = earliest(p0=1, refunds=4, failOnDataLoss="false", **options)
    end = bed.session.latest_offset(START)
    bed.session.latest_offset(end)
    bed.lose(tp(0, "refunds"))
    bed.assign()
    return bed, next_batch(bed, end)


def next_batch(bed: Bed, start: SourceOffset, later_s: float = 0.0) -> SourceOffset:
    """Return the next batch, of one record of orders-0."""
    bed.clock.advance(later_s)
    bed.cluster.ends[P0] += 1
    end = bed.session.latest_offset(start)
    assert end is not start
    return end


@pytest.mark.rule("R44")
def test_topics_that_come_and_go_leave_neither_rows_nor_ends() -> None:
    """Under a pattern, in turn: read and deleted here; handed over and deleted later; handed over without a batch."""
    bed = earliest(p0=1, subscribePattern=".*", failOnDataLoss="false")
    end = bed.session.latest_offset(START)
    state, asked, sizes = bed.session._state, [], []
    missing_topics = bed.cluster.missing_topics
    bed.cluster.missing_topics = lambda topics: (asked.append(len(set(topics))), missing_topics(topics))[1]  # type: ignore[method-assign]
    for number in range(120):
        partition = tp(0, f"short-{number}")
        read, here = number % 3 != 2, number % 3 == 0
        bed.cluster.topics[partition.topic] = TopicInfo(f"id-{number}", 1)
        bed.cluster.ends[partition] = 5 if read else 0
        bed.assign(partition)
        bed.clock.advance(REFRESH_S)
        end = bed.next_batch(end)
        assert (partition in end.ends()) is read
        if here:
            del bed.cluster.topics[partition.topic]
        bed.lose(partition)
        bed.assign()
        end = next_batch(bed, end)
        bed.cluster.topics.pop(partition.topic, None)
        del bed.cluster.ends[partition]
        sizes.append((len(state.partitions), len(state.deleted), len(str(end.to_json()))))
    partitions, deleted, size = map(max, zip(*sizes, strict=True))
    assert (partitions, deleted) <= (6, 6)
    assert size < 2 * max(size for *_, size in sizes[:10])
    assert max(asked) <= 4, "requests do not grow either"
    for _ in range(4):
        end = next_batch(bed, end, REFRESH_S)
    assert (list(state.partitions), state.deleted, list(end.ends())) == ([P0], set(), [P0])


@pytest.mark.rule("R44")
def test_p2_the_end_of_a_topic_that_may_not_be_described_stays() -> None:
    """It is not listed, and nobody says that it does not exist. Nor is one that the pattern matches no more."""
    bed, end = handing_over(subscribePattern=".*")
    bed.cluster.matching = ("orders",)
    for _ in range(5):
        end = next_batch(bed, end, REFRESH_S)
    assert end.ends()[tp(0, "refunds")] == 4


@pytest.mark.parametrize("available_now", [True, False])
def test_a_named_topic_that_was_deleted_while_the_query_was_down_ends_no_available_now(available_now: bool) -> None:
    bed = earliest(p0=60, subscribe="orders,refunds", failOnDataLoss="false")
    if available_now:
        bed.session.prepare_available_now()
    end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 50), OffsetRange(tp(0, "refunds"), 3, 4)))
    assert ranges(end) == ["orders-0 [50, 60)"]
    bed.ends(p0=70)
    following = bed.next_batch(end)
    assert ranges(following) == (["orders-0 [60, 70)"] if not available_now else ranges(end))


def test_a_named_topic_that_never_was_ends_available_now() -> None:
    bed = Bed(subscribe="orders,nowhere")
    bed.session.prepare_available_now()
    with pytest.raises(OptionError, match=r"TOPIC_UNKNOWN.*'nowhere'"):
        bed.session.latest_offset(START)


def test_a_topic_that_is_listed_at_the_start_and_deleted_a_moment_later() -> None:
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*")
    bed.cluster.matching = ("ordeal", "orders")
    bed.join(P0)
    bed.session.prepare_available_now()
    with pytest.raises(DataLossError, match=r"ordeal-0 \[7, \.\.\.\): the topic was deleted"):
        bed.session.latest_offset(offset_of(OffsetRange(tp(0, "ordeal"), 0, 7)))


def test_a_topic_that_is_deleted_once_more_is_reported_once_more(caplog: pytest.LogCaptureFixture) -> None:
    """In between it had a position, and records that no batch has read."""
    bed, end = deleted(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert bed.session.latest_offset(end) is end
        bed.recreate(1, p0=9)
        bed.group.committed.clear()
        bed.clock.advance(REFRESH_S + 1)
        assert bed.next_batch(end, ReadBounds(min_rows=1000)) is end
        del bed.cluster.topics["orders"]
        assert bed.session.latest_offset(end) is end
    assert caplog.text.count("the topic was deleted\n") == 2
    assert "recreated" not in caplog.text


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "fewer partitions"])
def test_what_was_handed_over_is_its_next_owners_to_report(deleted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else can say how far it was read."""
    mine = tp(0, "ordeal")
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*")
    bed.cluster.topics = {"ordeal": TopicInfo(TOPIC_ID, 1)} | ({} if deleted else {"orders": TopicInfo("other", 1)})
    bed.join(mine)
    bed.cluster.ends[mine] = 5
    before = offset_of(OffsetRange(mine, 0, 4), done={P1: 10})
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.next_batch(before)) == ["ordeal-0 [4, 5)"]
    assert ("topics=['orders'] handed_over=['orders-1 at 10']" in caplog.text) is deleted


def test_what_came_back_before_it_was_deleted_is_this_querys_to_report() -> None:
    """It has no position yet, and the one who had it before is gone."""
    bed, _ = deleted()
    refunds = tp(0, "refunds")
    before = offset_of(OffsetRange(refunds, 0, 4), done={P0: 30})
    bed.lose(P0, refunds)
    bed.assign(P0, refunds)
    with pytest.raises(DataLossError, match=r"orders-0 \[30, 60\): the topic was deleted"):
        bed.session.latest_offset(before)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.rule("R42")
def test_a_deleted_topic_of_others_does_not_keep_a_member_from_taking_over(fail: str) -> None:
    """It is named in subscribe, was there when the query started, and never had anything of this query."""
    bed = earliest(p0=60, subscribe="orders,refunds", failOnDataLoss=fail)
    bed.ends(refunds=0)
    end = bed.session.latest_offset(START)
    del bed.cluster.topics["refunds"]
    bed.assign(P1)
    bed.ends(p0=70, p1=5)
    assert ranges(bed.next_batch(end)) == ["orders-0 [60, 70)", "orders-1 [0, 5)"]


def test_a_batch_runs_again_when_a_topic_of_another_member_is_deleted() -> None:
    bed = Bed(startingOffsets="earliest", subscribe="orders,refunds")
    end = offset_of(OffsetRange(P0, 40, 50), done={tp(0, "refunds"): 7})
    bed.ends(p0=50)
    assert flat(bed.session.tasks(START, end)) == ["orders-0 [40, 50)"]


def test_a_batch_that_runs_again_says_which_partitions_are_missing(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.cluster.topics["orders"] = TopicInfo("other", 1)
    bed.join(P0)
    end = offset_of(OffsetRange(P0, 40, 50), OffsetRange(P1, 40, 55))
    with caplog.at_level(logging.WARNING):
        assert flat(bed.session.tasks(START, end)) == []
    assert "orders-0 [40, 50): the topic was deleted and recreated" in caplog.text
    assert "orders-1 [40, 55): the topic was deleted and recreated with fewer partitions" in caplog.text


@pytest.mark.rule("R41")
def test_what_a_broker_has_not_heard_of_keeps_its_position_and_its_commit() -> None:
    bed = earliest(p0=60, p1=60)
    end = bed.session.latest_offset(START)
    bed.refuse_commits()
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.session.latest_offset(end)
    assert {owned.partition: owned.position for owned in bed.member.view().partitions} == {P0: 60, P1: 60}
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.accept_commits()
    bed.clock.advance(REFRESH_S + 1)
    bed.ends(p1=65)
    assert ranges(bed.next_batch(end))[-1] == "orders-1 [60, 65)"
    assert bed.committed() == {0: 60, 1: 60}


@pytest.mark.rule("R41")
def test_a_partition_that_does_not_exist_is_left_out_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    """Its owner left before the group looked at the topic, which was made again with fewer: it came to this member."""
    bed = Bed(startingOffsets="earliest")
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0, P1)
    bed.ends(p0=5)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(START)
        assert ranges(end) == ["orders-0 [0, 5)"]
        assert bed.session.latest_offset(end) is end
    assert caplog.text.count("left out until they do: group=shop orders-1") == 1
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.ends(p1=3)
    bed.clock.advance(REFRESH_S + 1)
    assert ranges(bed.next_batch(end)) == ["orders-0 [5, 5)", "orders-1 [0, 3)"]


@pytest.mark.parametrize(
    ("interval_ms", "after_s", "found"),
    [("500", 0.6, True), ("500", 0.4, False), ("60000", REFRESH_S + 1, True), ("-1", REFRESH_S + 1, True)],
)
def test_how_soon_a_pattern_is_matched_again(interval_ms: str, after_s: float, found: bool) -> None:
    bed = Bed(subscribePattern="ord.*", kafka__topic__metadata__refresh__interval__ms=interval_ms)
    bed.join(P0)
    bed.session.latest_offset(START)
    bed.cluster.topics["ordeal"] = TopicInfo("another", 1)
    bed.clock.advance(after_s)
    bed.session.latest_offset(START)
    assert ("ordeal" in bed.group.named("subscribe")[-1]) is found


def test_a_patterns_topic_that_came_and_went_ends_no_query() -> None:
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*")
    bed.cluster.matching = ("orders", "ordeal")
    bed.join(P0)
    bed.ends(p0=5)
    assert ranges(bed.next_batch(START)) == ["orders-0 [0, 5)"]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_p8_a_batch_of_a_deleted_topic_that_available_now_runs_again_is_reported(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The query finds the topic missing when it fixes what to read, before it knows of the batch."""
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*", failOnDataLoss=fails)
    bed.cluster.matching = ("orders", "ordeal")
    bed.cluster.topics = {"ordeal": TopicInfo("another", 1)}
    bed.session.prepare_available_now()
    logged = offset_of(OffsetRange(P0, 40, 50))
    if fails == "true":
        with pytest.raises(DataLossError, match=r"orders-0 \[40, 50\): the topic was deleted"):
            bed.session.tasks(START, logged)
    else:
        assert bed.session.tasks(START, logged) == ()
        assert caplog.text.count("orders-0 [40, 50): the topic was deleted") == 1
