"""The table of what a query knows of its partitions and topics: each verb, and what it resets."""

from __future__ import annotations

from spark_groupsource.cluster.port import CONFIRM_S
from spark_groupsource.driver.query_state import Mark, QueryState, TrackedPartition
from spark_groupsource.model.commit_metadata import Anchor, Pin
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.fakes import ManualClock

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
OLD, NEW = Anchor("old", Pin(0, 2), None), Anchor("new", Pin(0, 2), None)


def read(state: QueryState) -> TrackedPartition:
    """Establish P0, and let everything be known of it."""
    state.establish(P0, OLD)
    row = state.partition(P0)
    row.log_end, row.mark, row.lost_to, row.short_reported = 100, Mark(100, 4), 50, True
    return row


def test_a_recreated_topic_resets_all_that_was_known_of_its_partitions() -> None:
    state = QueryState(ManualClock())
    row = read(state)
    state.establish(P0, NEW)
    assert row == TrackedPartition(anchor=NEW)


def test_a_position_that_is_established_anew_keeps_what_was_reported_of_the_same_topic() -> None:
    """A rebalance gives the partition back: a loss that was reported is not reported once more."""
    state = QueryState(ManualClock())
    row = read(state)
    state.establish(P0, OLD)
    assert row == TrackedPartition(anchor=OLD, log_end=100, lost_to=50)


def test_the_id_under_which_a_partition_was_read_outlives_its_assignment() -> None:
    state = QueryState(ManualClock())
    assert state.id_read(P0) is None
    state.establish(P0, OLD)
    state.positioned({P0: 5})
    state.leave([P0])
    state.hold({P0: None})
    assert state.id_read(P0) == "old"


def test_what_was_there_when_the_query_started_has_not_appeared() -> None:
    state = QueryState(ManualClock())
    state.ids_at_start = {"orders": "old"}
    assert not state.appeared("orders", "old")
    assert state.appeared("orders", "new")
    assert state.appeared("refunds", "any")
    state.ids_at_start = {}
    assert state.appeared("orders", "old")


def test_deleted_topics_and_absent_partitions_are_missing() -> None:
    state = QueryState(ManualClock())
    state.deleted.add("refunds")
    state.miss({P1: "old"})
    refund = TopicPartition("refunds", 0)
    assert [state.is_missing(partition) for partition in (P0, P1, refund)] == [False, True, True]
    assert (state.deleted, state.absent) == ({"refunds"}, {P1: "old"})
    state.deleted.clear()
    state.found([P1])
    assert not any(map(state.is_missing, (P0, P1, refund)))


def test_the_rows_of_removed_topics_are_dropped() -> None:
    state = QueryState(ManualClock())
    state.ids_at_start = {"orders": "old"}
    refund = TopicPartition("refunds", 0)
    for partition in (P0, refund):
        state.establish(partition, OLD)
        state.deleted.add(partition.topic)
    state.remove(["orders", "refunds"])
    assert (state.partitions, state.deleted) == ({}, set())
    assert not state.appeared("orders", "old"), "it existed when the query started"


def test_a_partition_that_is_left_out_is_not_short_when_it_comes_back() -> None:
    state = QueryState(ManualClock())
    row = read(state)
    assert not state.saw_short(P0)
    row.short_reported = False
    assert state.short_in_doubt(P0)
    state.miss({P0: ""})
    assert (state.short_in_doubt(P0), row.short_reported) == (False, False)


def test_a_missing_partition_is_reported_once_until_it_has_a_position() -> None:
    state = QueryState(ManualClock())
    state.partition(P0).missing_reported = True
    state.positioned({P0: 5})
    assert not state.partition(P0).missing_reported


def test_a_topic_is_unknown_only_when_every_answer_says_so() -> None:
    state = QueryState(clock := ManualClock())
    assert state.unknown_for_long(["orders"]) == set()
    clock.advance(CONFIRM_S / 2)
    assert state.unknown_for_long([]) == set()
    clock.advance(CONFIRM_S)
    assert state.unknown_for_long(["orders"]) == set()
    clock.advance(CONFIRM_S)
    assert state.unknown_for_long(["orders"]) == {"orders"}


def test_a_new_id_counts_when_no_other_one_is_named_meanwhile() -> None:
    state = QueryState(clock := ManualClock())
    assert state.confirmed([])
    assert not state.confirmed(["orders"])
    state.saw_ids({"orders": "new"}, clock.monotonic_s())
    clock.advance(CONFIRM_S)
    state.saw_ids({"orders": "newer"}, clock.monotonic_s())
    assert not state.confirmed(["orders"])
    asked_s = clock.monotonic_s()
    clock.advance(CONFIRM_S)
    state.saw_ids({"orders": "newer"}, asked_s)
    assert not state.confirmed(["orders"]), "it was requested before the time was over, and read late"
    state.saw_ids({"orders": "newer", "refunds": "new"}, clock.monotonic_s())
    assert state.confirmed(["orders"])
    assert not state.confirmed(["orders", "refunds"])
