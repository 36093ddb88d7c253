"""Checks for deleted topics and missing partitions: they return what is missing, and change and report nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest

from spark_groupsource import errors
from spark_groupsource.cluster.port import CONFIRM_S, TopicInfo
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.driver.topics import NOTHING, Known, Missing, TopicWatch
from spark_groupsource.errors import AccessError, OptionError
from spark_groupsource.membership.machine import GroupView, MemberState, OwnedView
from spark_groupsource.model.commit_metadata import Anchor, Pin
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from tests.unit.fakes import TOPIC_ID, FakeCluster, ManualClock, make_options, offset_of, tp

P0, P1, REFUND = tp(0), tp(1), tp(0, "refunds")
KNOWN = Known.of(offset_of(OffsetRange(P0, 0, 50), OffsetRange(P1, 0, 60), done={REFUND: 7}))


class Bed:
    """A watch over orders (two partitions, owned and read to 50 and 60) and refunds (handed over at 7)."""

    def __init__(self, *, joined: bool = True, **options: str) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(orders=2, refunds=1)
        self.state = QueryState(self.clock)
        given = options or {"subscribe": "orders,refunds"}
        self.watch = TopicWatch(make_options(**given), self.cluster, self.clock, self.state)
        self.watch.match()
        self.watch.started_with(self.cluster.topics)
        if not joined:
            return
        for partition in (P0, P1):
            self.state.establish(partition, Anchor(TOPIC_ID, Pin(0, 2), None))
        assert self.left(P0, P1) == Missing()
        self.before = self.rows()

    def left(self, *partitions: TopicPartition) -> Missing:
        """Let the group leave these partitions with the member; return what the check finds."""
        owned = tuple(OwnedView(partition, None, 40) for partition in partitions)
        self.watch.hold(view(owned), KNOWN)
        return self.watch.missing_left(lambda _: ())[0]

    def rows(self) -> object:
        """Return a copy of the table."""
        return copy.deepcopy((self.state.partitions, self.state.deleted))


def view(owned: tuple[OwnedView, ...]) -> GroupView:
    return GroupView(MemberState.JOINED, 1, owned, proven=True, committed=True)


def test_a_deleted_topic_is_lost_from_where_it_was_read() -> None:
    bed = Bed()
    del bed.cluster.topics["orders"]
    missing = bed.watch.missing_of(KNOWN)
    assert (missing.topics, missing.deleted) == ({"orders"}, {P0: 50, P1: 60})
    assert (missing.not_read, missing.cut, missing.never_existed) == (set(), {}, set())
    assert bed.rows() == bed.before
    assert bed.left().deleted == {P0: 50, P1: 60}
    assert bed.left() == Missing(), "once"


@pytest.mark.rule("R91")
def test_the_newest_batch_of_a_checkpoint_is_compared_before_the_first_assignment() -> None:
    bed = Bed(joined=False)
    del bed.cluster.topics["orders"], bed.cluster.topics["refunds"]
    missing = bed.watch.started_from(KNOWN)
    assert (missing.deleted, missing.not_read) == ({}, {"refunds"})
    assert bed.watch.missing_left(lambda _: ())[0].deleted == {P0: 50, P1: 60, REFUND: 7}


def test_what_was_handed_over_is_not_lost_here() -> None:
    bed = Bed()
    del bed.cluster.topics["refunds"]
    missing = bed.watch.missing_of(KNOWN)
    assert (missing.deleted, missing.not_read) == ({}, {"refunds"})
    assert bed.rows() == bed.before


def test_partitions_that_a_recreated_topic_does_not_have_are_lost() -> None:
    bed = Bed()
    bed.cluster.topics["orders"] = TopicInfo("other", 1)
    missing = bed.watch.missing_of(KNOWN)
    assert (missing.cut, missing.topics) == ({P1: (TOPIC_ID, 60)}, set())
    assert bed.rows() == bed.before
    assert bed.left(P0) == Missing(topics=set())
    bed.clock.advance(CONFIRM_S)
    missing = bed.left(P0)
    assert (missing.cut, missing.topics) == ({P1: (TOPIC_ID, 60)}, set())


@pytest.mark.rule("R91")
def test_a_partition_that_has_left_is_compared_by_its_topics_id() -> None:
    bed = Bed()
    bed.cluster.topics["orders"] = TopicInfo("other", 2)
    bed.left(P0)
    bed.clock.advance(CONFIRM_S)
    assert bed.left(P0).recreated == {P1: 60}
    assert bed.left(P0) == Missing(), "once"


@pytest.mark.rule("R91")
def test_a_partition_that_was_handed_over_is_its_next_owners_after_three_seconds() -> None:
    bed = Bed()
    bed.left(P0)
    assert bed.state.left.keys() == {P1}
    bed.clock.advance(CONFIRM_S)
    bed.left(P0)
    assert bed.state.left == {}
    del bed.cluster.topics["orders"]
    assert bed.left(P0) == Missing()


@pytest.mark.rule("R41")
def test_an_assigned_partition_that_never_existed_is_absent() -> None:
    bed = Bed()
    bed.left(P0, P1, tp(2))
    assert bed.watch.missing_of(KNOWN).absent == {tp(2)}


@pytest.mark.rule("R42")
def test_a_named_topic_that_did_not_exist_at_the_start_is_wrong() -> None:
    bed = Bed(subscribe="orders,refunds,nowhere")
    assert bed.watch.missing_of(NOTHING).never_existed == {"nowhere"}


@pytest.mark.rule("R44")
def test_a_handed_over_topic_of_a_pattern_is_missing_after_three_seconds() -> None:
    bed = Bed(subscribePattern=".*")
    del bed.cluster.topics["refunds"]
    bed.watch.match()
    assert bed.watch.missing_unassigned(KNOWN) == Missing(topics=set(), not_read=set())
    bed.clock.advance(CONFIRM_S)
    missing = bed.watch.missing_unassigned(KNOWN)
    assert (missing.topics, missing.not_read) == ({"refunds"}, {"refunds"})
    assert bed.rows() == bed.before


def test_rows_of_a_topic_without_a_batch_are_found_without_a_report() -> None:
    bed = Bed(subscribePattern=".*")
    bed.state.establish(tp(0, "short"), Anchor("short-id", Pin(0, 1), None))
    bed.watch.missing_unassigned(KNOWN)
    bed.clock.advance(CONFIRM_S)
    missing = bed.watch.missing_unassigned(KNOWN)
    assert (missing.topics, missing.not_read) == ({"short"}, set())


@pytest.mark.parametrize("deleted", [set(), {"refunds"}], ids=["all exist", "one is deleted"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_right_that_is_taken_away_is_noticed_without_partitions_of_the_topic(
    protocol: str, deleted: set[str]
) -> None:
    """Under KIP-848 the client says nothing. A topic that does not exist is no reason."""
    bed = Bed(**{"subscribe": "orders,refunds", "kafka.group.protocol": protocol})
    bed.state.deleted = deleted
    for topic in deleted:
        del bed.cluster.topics[topic]
    asked = []

    def denied(topics: Iterable[str]) -> dict[str, TopicInfo]:
        asked.append(sorted(topics))
        if len(asked) == 1:
            raise OptionError(errors.TOPIC_UNKNOWN, option="subscribe", value="", topic="refunds")
        raise AccessError(errors.OTHER_GROUP_ACCESS_DENIED, group="shop")

    bed.cluster.describe = denied  # type: ignore[method-assign,assignment]
    for _ in range(59):
        bed.clock.advance(1.0)
        assert not bed.watch.refresh(KNOWN)
    bed.clock.advance(1.0)
    if protocol == "consumer":
        with pytest.raises(AccessError):
            bed.watch.refresh(KNOWN)
        assert asked == [sorted({"orders", "refunds"} - deleted)] * 2
    else:
        assert not bed.watch.refresh(KNOWN)
