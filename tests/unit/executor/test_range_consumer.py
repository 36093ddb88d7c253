"""The executor's consumer: which records belong to a range, and when a range has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from spark_groupsource.driver.fast_lane import make_driver_consumer
from spark_groupsource.errors import AccessError, OptionError, ReadError
from spark_groupsource.executor.clients.error_events import reading_client_settings
from spark_groupsource.executor.clients.port import RequestFailed
from spark_groupsource.executor.clients.pure_python import PythonClient
from spark_groupsource.executor.clients.rows import edge_offsets
from spark_groupsource.executor.pool import make_consumer
from spark_groupsource.executor.range_consumer import REST_AFTER_S, RangeConsumer
from spark_groupsource.executor.read_errors import OutOfRange
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions
from tests.unit.fakes import (
    FakeClient,
    FakeMessage,
    ManualClock,
    eof,
    make_options,
    out_of_range,
    range_consumer,
    records,
    tp,
    unknown,
)

P0, P1 = tp(0), tp(1)
R0, R1 = OffsetRange(P0, 10, 13), OffsetRange(P1, 0, 2)


def consumer_of(
    *batches: list[FakeMessage], ranges: tuple[OffsetRange, ...] = (R0,)
) -> tuple[RangeConsumer, FakeClient]:
    client = FakeClient(ManualClock(), *batches)
    consumer = range_consumer(client)
    consumer.move_to(ranges)
    return consumer, client


def taken(consumer: RangeConsumer, item: OffsetRange = R0) -> list[int]:
    return [offset for batch in consumer.next_rows([item], 0.1) for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([records(0, 10, 11), records(0, 12)], [[10, 11], [12]]),
        # The last offset of the range is a transaction marker, or was compacted away.
        ([records(0, 10, 11), [eof(0, 13)]], [[10, 11], []]),
        ([records(0, 10, 11), [eof(0, 99)]], [[10, 11], []]),
        ([[*records(0, 10, 11), eof(0, 13)]], [[10, 11]]),
        ([[eof(0, 13), eof(0, 11)]], [[]]),
        ([records(0, 10, 20)], [[10]]),
        ([[*records(0, 10), eof(0, 13), unknown(0)]], [[10], []]),
    ],
    ids=[
        "by position", "by an end of partition", "beyond the range", "with its records", "before an older one",
        "a record beyond", "and is not lost",
    ],
)  # fmt: skip
def test_how_a_range_ends(batches: list[list[FakeMessage]], expected: list[list[int]]) -> None:
    consumer, client = consumer_of(*batches)
    for offsets in expected[: len(batches) - 1]:
        assert taken(consumer) == offsets
        assert not consumer.finished(R0)
    for offsets in expected[len(batches) - 1 :]:
        assert taken(consumer) == offsets
        assert consumer.finished(R0)
    assert len(client.asked) == len(batches)


def test_only_records_beyond_the_range_leave_it_empty() -> None:
    consumer, _ = consumer_of(records(0, 20, 21))
    assert taken(consumer) == []
    assert consumer.finished(R0)
    assert consumer.position(P0) == 13


@pytest.mark.parametrize("end", [10, 12])
@pytest.mark.rule("R58")
def test_an_end_of_partition_before_the_range_ends_nothing(end: int) -> None:
    """A follower, a leader that lags, an old event of a pooled consumer."""
    consumer, _ = consumer_of([eof(0, end)], records(0, 10, 11, 12))
    assert taken(consumer) == []
    assert not consumer.finished(R0)
    assert taken(consumer) == [10, 11, 12]
    assert consumer.finished(R0)


def test_a_range_ends_behind_a_transaction_marker_without_an_event() -> None:
    consumer, client = consumer_of(records(0, 10, 11))
    client.passed[P0] = 13
    assert taken(consumer) == [10, 11]
    assert consumer.finished(R0)
    assert consumer.distance([OffsetRange(P0, 13, 20)]) == (0, 0)


def test_a_marker_inside_the_range_ends_nothing() -> None:
    consumer, client = consumer_of(records(0, 10), records(0, 12))
    client.passed[P0] = 12
    assert taken(consumer) == [10]
    assert not consumer.finished(R0)
    assert taken(consumer) == [12]
    assert consumer.finished(R0)


def test_where_an_earlier_assignment_had_got_ends_nothing() -> None:
    """The client forgets it in its own time: until a record came, it may tell of the earlier one."""
    consumer, client = consumer_of(records(0, 10, 11, 12), [], records(0, 5))
    taken(consumer)
    client.passed[P0] = 13
    earlier = OffsetRange(P0, 5, 6)
    consumer.move_to([earlier])
    assert taken(consumer, earlier) == []
    assert not consumer.finished(earlier)
    assert taken(consumer, earlier) == [5]


@pytest.mark.rule("R89")
def test_markers_that_were_passed_for_an_earlier_range_end_the_next_one() -> None:
    """1. The client passes markers beyond a range. 2. The next range is of these. 3. No event comes."""
    consumer, client = consumer_of(records(0, 10, 11))
    client.passed[P0] = 20
    assert taken(consumer) == [10, 11]
    following = OffsetRange(P0, 13, 20)
    consumer.move_to([following])
    assert taken(consumer, following) == []
    assert consumer.finished(following)
    after = OffsetRange(P0, 20, 22)
    consumer.move_to([after])
    assert not consumer.finished(after)


def test_markers_do_not_hide_records_that_are_kept() -> None:
    consumer, client = consumer_of(records(0, 10, 11, 12, 13, 14))
    client.passed[P0] = 16
    assert taken(consumer) == [10, 11, 12]
    following = OffsetRange(P0, 13, 16)
    consumer.move_to([following])
    assert not consumer.finished(following)
    assert taken(consumer, following) == [13, 14]
    assert consumer.finished(following)


def test_records_beyond_the_range_are_kept_for_the_next() -> None:
    consumer, client = consumer_of(records(0, 10, 11, 12, 13, 14))
    assert taken(consumer) == [10, 11, 12]
    following = OffsetRange(P0, 13, 15)
    assert consumer.distance([following]) == (0, 0)
    consumer.move_to([following])
    assert taken(consumer, following) == [13, 14]
    assert consumer.finished(following)
    assert len(client.assigned) == 1
    assert len(client.asked) == 1


def test_an_end_of_partition_waits_for_the_records_that_are_kept() -> None:
    consumer, _ = consumer_of([*records(0, 10, 11, 12, 13), eof(0, 14)])
    assert taken(consumer) == [10, 11, 12]
    following = OffsetRange(P0, 13, 14)
    consumer.move_to([following])
    assert not consumer.finished(following)
    assert taken(consumer, following) == [13]


def test_moving_forgets_what_was_fetched() -> None:
    consumer, client = consumer_of([*records(0, 10, 11, 12, 13), eof(0, 14)], records(0, 5))
    taken(consumer)
    earlier = OffsetRange(P0, 5, 6)
    assert consumer.distance([earlier]) == (1, 0)
    consumer.move_to([earlier])
    assert not consumer.finished(earlier)
    assert taken(consumer, earlier) == [5]
    assert client.assigned == [[(P0, 10)], [(P0, 5)]]
    assert client.unassigned == [[P0]]


def test_what_came_of_the_tasks_next_range_is_taken_with_it() -> None:
    client = FakeClient(ManualClock(), [*records(1, 0, 1), *records(0, 10, 11, 12)])
    consumer = range_consumer(client)
    consumer.move_to([R0, R1])
    assert [batch.num_rows for batch in consumer.next_rows([R0, R1], 0.1)] == [3, 2]
    assert consumer.finished(R0)
    assert consumer.finished(R1)
    assert client.unassigned == []


def test_an_answer_as_large_as_asked_for_is_no_time_to_look_for_markers() -> None:
    """There is more behind it, and one question per partition and answer would cost more than its records."""
    large = OffsetRange(P0, 0, 50_000)
    consumer, client = consumer_of(records(0, *range(64)), records(0, 64), ranges=(large,))
    client.passed[P0] = 40_000
    assert len(taken(consumer, large)) == 64
    assert consumer.position(P0) == 64
    assert taken(consumer, large) == [64]
    assert consumer.position(P0) == 40_000


def test_an_end_of_partition_belongs_to_its_partition() -> None:
    consumer, _ = consumer_of([eof(1, 99)], ranges=(R0, R1))
    taken(consumer, R0)
    assert not consumer.finished(R0)
    assert taken(consumer, R1) == []
    assert consumer.finished(R1)


# --- ahead of where it stands


def test_what_another_worker_has_read_is_dropped_as_it_comes() -> None:
    consumer, client = consumer_of(records(0, 10, 11, 12), records(0, 13, 14), records(0, 15, 16, 17, 18))
    assert taken(consumer) == [10, 11, 12]
    ahead = OffsetRange(P0, 16, 18)
    assert consumer.distance([ahead]) == (0, 3)
    consumer.move_to([ahead])
    assert taken(consumer, ahead) == []
    assert not consumer.finished(ahead)
    assert taken(consumer, ahead) == [16, 17]
    assert consumer.finished(ahead)
    assert len(client.assigned) == 1
    assert len(client.asked) == 3


def test_a_gap_without_records_is_no_gap() -> None:
    consumer, _ = consumer_of([*records(0, 10), eof(0, 20)])
    taken(consumer)
    consumer.settle(R0)
    ahead = OffsetRange(P0, 18, 20)
    consumer.move_to([ahead])
    assert consumer.finished(ahead)


@pytest.mark.parametrize("start", [5, 10 + 50_001])
def test_what_takes_a_new_assignment(start: int) -> None:
    consumer, client = consumer_of(ranges=(R0, R1))
    ahead = OffsetRange(P0, start, 90_000)
    assert consumer.distance([ahead]) == (1, 0)
    consumer.move_to([ahead])
    assert client.assigned[1:] == [[(P0, start)]]
    assert client.unassigned == [[P0]]


def test_large_records_are_not_dropped_in_bulk() -> None:
    consumer, _ = consumer_of()
    # Nothing is known of their size yet.
    assert consumer.distance([OffsetRange(P0, 10 + 1_000, 20_000)]) == (1, 0)


# --- other logs of the same name


def at(number: int, start: int, end: int, epoch: int | None) -> OffsetRange:
    return OffsetRange(tp(number), start, end, epoch)


@pytest.mark.rule("R60")
def test_what_was_fetched_in_another_leader_epoch_is_fetched_anew() -> None:
    """An unclean election: the new leader has other records at the offsets that were fetched ahead from the old one."""
    old, new = at(0, 10, 13, 1), at(0, 13, 15, 2)
    consumer, client = consumer_of(records(0, 10, 11, 12, 13, 14), records(0, 13, 14), ranges=(old,))
    assert taken(consumer, old) == [10, 11, 12]
    assert consumer.distance([new]) == (1, 0)
    consumer.move_to([new])
    assert (client.unassigned, client.assigned[-1]) == ([[P0]], [(P0, 13)])
    assert taken(consumer, new) == [13, 14]
    assert len(client.asked) == 2, "what was kept is dropped"


@pytest.mark.rule("R60")
@pytest.mark.parametrize("rested", [False, True])
def test_the_leaders_of_a_newer_epoch_are_requested(rested: bool) -> None:
    """The client's leader was paused while another one was elected: it goes on, and still has the old records."""
    consumer, client = consumer_of(ranges=(at(0, 10, 20, 1), at(1, 0, 2, None)))
    if rested:
        consumer.rest()
    client.answers = False
    assert consumer.follows_leaders([at(0, 20, 30, 1), at(1, 2, 4, None)]), "nothing is asked"
    new = [at(0, 20, 30, 2)]
    assert not consumer.follows_leaders(new), "the only broker that it knows is the one that is paused"
    client.answers = True
    assert consumer.follows_leaders(new)
    consumer.move_to(new)
    client.answers = False
    assert consumer.follows_leaders([at(0, 30, 40, 2), at(0, 40, 50, 1)]), "once for a new epoch"


def test_the_usual_epochs_assign_nothing_anew() -> None:
    """The same one in every batch and in all pieces of one; idle partitions, and brokers that tell none, have none."""
    first = at(0, 10, 13, 1)
    consumer, client = consumer_of(records(0, *range(10, 40)), ranges=(first,))
    for item in (at(0, 10, 13, 1), at(0, 13, 15, 1), at(0, 15, 15, None), at(0, 15, 20, None), at(0, 20, 25, 1)):
        assert consumer.distance([item]) == (0, 0)
        consumer.move_to([item])
        if len(item):
            assert taken(consumer, item) == list(range(item.start, item.end))
    assert len(client.assigned) == 1


def test_an_unknown_epoch_is_known_after_one_assignment() -> None:
    first = at(0, 10, 13, None)
    consumer, client = consumer_of(ranges=(first,))
    for item in (at(0, 10, 13, 4), at(0, 10, 13, None), at(0, 10, 13, 4)):
        consumer.move_to([item])
    assert client.assigned == [[(P0, 10)]] * 2


def test_the_epoch_of_an_earlier_assignment_says_nothing_of_a_later_one() -> None:
    consumer, client = consumer_of(ranges=(at(0, 10, 13, 1),))
    consumer.rest()
    for _ in range(2):
        consumer.move_to([at(0, 10, 13, None)])
    for _ in range(2):
        consumer.move_to([at(0, 10, 13, 1)])
    assert client.assigned == [[(P0, 10)]] * 3


@pytest.mark.rule("R59")
def test_a_topic_that_was_recreated_is_not_for_this_consumer() -> None:
    consumer, _ = consumer_of()
    assert consumer.is_current({"orders": "a"})
    consumer.move_to([R0], {"orders": "a"})
    assert consumer.is_current({"orders": "a", "refunds": "b"})
    assert not consumer.is_current({"orders": "b"})
    consumer.rest()
    assert not consumer.is_current({"orders": "b"}), "the client still knows the old topic's leaders"


# --- several tasks' partitions


def test_a_partition_that_nobody_uses_is_dropped() -> None:
    consumer, client = consumer_of(ranges=(R0, R1))
    client.clock.advance(REST_AFTER_S - 1.0)
    consumer.move_to([R0])
    client.clock.advance(1.0)
    consumer.move_to([R0])
    assert client.unassigned == [[P1]]
    assert repr(consumer) == "RangeConsumer(orders-0@10)"
    consumer.move_to([R1])
    assert client.assigned[-1] == [(P1, 0)]


def many(count: int, start: int = 0) -> list[OffsetRange]:
    return [OffsetRange(tp(number), start, start + 2) for number in range(count)]


def test_as_many_partitions_as_the_memory_has_room_for_have_a_queue() -> None:
    """By what queues have held. The first ones of a task keep theirs, for the next task."""
    mib = 1024 * 1024
    client = FakeClient(ManualClock())
    consumer = range_consumer(client, max_bytes=10 * mib, partitions=1_000)
    task = many(20)
    consumer.move_to(task)
    assert consumer.assigned == 10, "before anything is known, a queue has a producer's batch of 1 MiB"
    for _ in range(40):
        consumer._queue_bytes += (2 * mib - consumer._queue_bytes) // 8
    consumer.keep_at_most(10 * mib)
    assert client.unassigned == [[tp(number) for number in range(9, 4, -1)]]


def test_ranges_without_a_queue_get_one_when_it_is_their_turn() -> None:
    """A partition of an earlier task is dropped first, then those that the task has read."""
    client = FakeClient(ManualClock(), *[records(number, 0, 1) for number in range(4)])
    consumer = range_consumer(client, max_bytes=0)
    consumer.move_to([OffsetRange(tp(10), 0, 2)])
    client.clock.advance(1.0)
    left, found = many(4), []
    consumer.move_to(left)
    assert client.unassigned == [[tp(10)]]
    assert consumer.assigned == 2
    while left:
        found += [batch.column("partition")[0].as_py() for batch in consumer.next_rows(left, 0.1)]
        left = [item for item in left if not consumer.finished(item)]
    assert found == list(range(4))
    assert client.unassigned[1:] == [[tp(0)], [tp(1)]]


def test_a_task_that_was_held_up_stops_fetching_what_it_has_read() -> None:
    """Such partitions are at the end of their logs, and the client waits there for new records."""
    client = FakeClient(ManualClock(), records(0, 10, 11, 12), [], records(1, 0), [], records(1, 1))
    consumer = range_consumer(client)
    consumer.move_to([R0, R1])
    assert taken(consumer, R0) == [10, 11, 12]
    assert [taken(consumer, R1) for _ in range(2)] == [[], [0]]
    assert client.unassigned == [[P0]]


def test_pure_python_stops_what_fills_the_memory_and_continues_there() -> None:
    """Its messages have to be taken from the client, which has one queue for all."""
    late = [*records(0, 10, 11, 12), *records(1, 9)]
    client = FakeClient(ManualClock(), records(1, *range(9)), late, records(1, 9))
    consumer = range_consumer(client, max_bytes=1_000)
    following = OffsetRange(P1, 0, 10)
    consumer.move_to([R0, following])
    assert consumer.next_rows([R0, following], 0.1) == []
    assert (client.unassigned, len(client.assigned)) == ([[P1]], 1)
    assert [batch.num_rows for batch in consumer.next_rows([R0, following], 0.1)] == [3, 9]
    assert client.assigned[1:] == [[(P1, 9)]]
    assert taken(consumer, following) == [9]
    assert client.unassigned.count([P1]) == 1


def test_pure_python_does_not_stop_what_is_read() -> None:
    client = FakeClient(ManualClock(), records(1, *range(9)), records(0, 10, 11, 12))
    consumer = range_consumer(client, max_bytes=1_000)
    consumer.move_to([OffsetRange(P1, 0, 9), R0])
    assert [batch.num_rows for batch in consumer.next_rows([OffsetRange(P1, 0, 9), R0], 0.1)] == [9]
    assert client.unassigned == []


def test_pure_python_does_not_stop_behind_an_event() -> None:
    """Only a record tells where to continue."""
    client = FakeClient(ManualClock(), [*records(1, *range(9)), eof(1, 9)], records(0, 10, 11, 12))
    consumer = range_consumer(client, max_bytes=1_000)
    consumer.move_to([R0, R1])
    assert consumer.next_rows([R0, R1], 0.1) == []
    assert client.unassigned == []


def test_a_partition_that_was_stopped_in_pure_python_can_be_dropped() -> None:
    client = FakeClient(ManualClock(), records(1, *range(9)))
    consumer = range_consumer(client, max_bytes=1_000)
    consumer.move_to([R0, R1])
    taken(consumer, R0)
    consumer.rest()
    assert client.unassigned == [[P1], [P0]]


def parked(*following: list[FakeMessage]) -> tuple[RangeConsumer, FakeClient]:
    """Return a consumer that has read 0 and 1 of ten partitions; its memory has room for two queues."""
    client = FakeClient(ManualClock(), *[records(number, *range(9)) for number in range(10)], *following)
    consumer = range_consumer(client, max_bytes=40_000)
    left = many(10)
    consumer.move_to(left)
    while left:
        consumer.next_rows(left, 0.1)
        left = [item for item in left if not consumer.finished(item)]
    return consumer, client


def test_a_partition_without_room_for_its_queue_keeps_a_share_of_its_rows() -> None:
    """1. A queue holds more than there is room for. 2. Each task would fetch all of it again."""
    consumer, client = parked()
    assert client.unassigned == [[tp(number)] for number in range(8)]
    assigned = len(client.assigned)
    assert consumer.assigned == 10
    task = many(10, start=2)
    assert consumer.distance(task) == (0, 0)
    consumer.move_to(task)
    assert consumer.shares([OffsetRange(P0, 2, 4)])
    assert [batch.num_rows for batch in consumer.next_rows(task, 0.1)] == [2] * 10
    assert len(client.assigned) == assigned, "nothing is fetched again"


def test_a_parked_partition_is_fetched_behind_its_rows_when_a_range_needs_more() -> None:
    consumer, client = parked(records(0, 9, 10))
    item = OffsetRange(P0, 2, 11)
    consumer.move_to([item])
    assert client.assigned[-1] == [(P0, 9)]
    assert taken(consumer, item) == list(range(2, 9))
    assert taken(consumer, item) == [9, 10]
    assert consumer.finished(item)


def test_rows_of_parked_partitions_are_dropped_when_the_memory_is_less_or_they_are_given_up() -> None:
    consumer, _ = parked()
    consumer.move_to([OffsetRange(P0, 2, 4)])
    consumer.give_up(OffsetRange(P0, 2, 4))
    assert (consumer.assigned, consumer.distance([OffsetRange(P0, 4, 6)])) == (9, (1, 0))
    consumer.keep_at_most(30_000, {P1})
    assert consumer.distance([OffsetRange(P1, 2, 4), OffsetRange(tp(2), 2, 4)]) == (1, 0)


@pytest.mark.rule("R60")
def test_rows_of_a_parked_partition_are_of_their_leader_epoch() -> None:
    consumer, _ = parked()
    assert consumer.distance([OffsetRange(P0, 2, 4, 7)]) == (1, 0)


@pytest.mark.rule("R65")
def test_an_error_that_comes_while_a_partition_is_parked_fails_no_later_task() -> None:
    client = FakeClient(ManualClock(), records(0, 0, 1), [out_of_range(0)], records(1, 0, 1), records(0, 2))
    consumer = range_consumer(client, max_bytes=0)
    consumer.move_to([OffsetRange(P0, 0, 2)])
    assert taken(consumer, OffsetRange(P0, 0, 2)) == [0, 1]
    consumer.move_to([R1, OffsetRange(tp(2), 0, 2)])
    consumer.move_to([OffsetRange(P0, 2, 3)])
    assert client.assigned[-1] == [(P0, 2)]


def test_events_of_dropped_partitions_mean_nothing() -> None:
    consumer, _ = consumer_of([*records(1, 0), eof(1, 99), *records(0, 10)])
    assert taken(consumer) == [10]
    consumer.move_to([R1])
    assert not consumer.finished(R1)


@pytest.mark.rule("R65")
def test_an_error_of_a_dropped_partition_is_not_one_of_the_partition_that_is_read() -> None:
    consumer, _ = consumer_of([out_of_range(1), eof(1, 99)], records(0, 10, 11, 12), ranges=(R0, R1))
    consumer.drop_partitions([P1])
    assert taken(consumer) == []
    assert not consumer.finished(R0)
    assert taken(consumer) == [10, 11, 12]


# --- lost, or resting


def test_a_resting_consumer_fetches_nothing_and_forgets_what_it_had() -> None:
    consumer, client = consumer_of(records(0, 10, 11, 12, 13), records(0, 13))
    taken(consumer)
    consumer.rest()
    assert (consumer.assigned, repr(consumer)) == (0, "RangeConsumer()")
    assert client.unassigned == [[P0]]
    following = OffsetRange(P0, 13, 14)
    assert consumer.distance([following]) == (1, 0)
    consumer.move_to([following])
    assert client.assigned[-1] == [(P0, 13)]
    assert taken(consumer, following) == [13]


@pytest.mark.parametrize("event", [unknown(0), out_of_range(0)])
@pytest.mark.rule("R57")
def test_what_comes_behind_a_lost_position_is_another_logs(event: FakeMessage) -> None:
    """The client goes on by itself when the topic is back."""
    consumer, _ = consumer_of([event, *records(0, 10, 11, 12), eof(0, 13)], records(0, 10, 11, 12))
    for _ in range(2):
        with pytest.raises(OutOfRange):
            consumer.next_rows([R0], 0.1)
        assert not consumer.finished(R0)


def test_a_range_that_is_given_up() -> None:
    consumer, client = consumer_of([unknown(0)], records(0, 13))
    with pytest.raises(OutOfRange):
        consumer.next_rows([R0], 0.1)
    consumer.give_up(R0)
    assert consumer.finished(R0)
    assert client.unassigned == [[P0]]
    following = OffsetRange(P0, 13, 14)
    consumer.move_to([following])
    assert taken(consumer, following) == [13]


# --- records that no row can hold


def test_an_impossible_timestamp_fails_the_range_that_holds_it() -> None:
    messages = records(0, 10, 11, 12)
    messages[1].stamp = (1, 2**62)
    consumer, _ = consumer_of(messages)
    assert taken(consumer) == [10]
    assert not consumer.finished(R0)
    with pytest.raises(ReadError, match=rf"TIMESTAMP_IMPOSSIBLE.*orders-0 offset 11 has the timestamp {2**62} ms"):
        taken(consumer)


def test_an_impossible_timestamp_beyond_the_range_does_not_matter() -> None:
    messages = records(0, 10, 13)
    messages[1].stamp = (1, 2**62)
    consumer, _ = consumer_of(messages)
    assert taken(consumer) == [10]
    assert consumer.finished(R0)
    following = OffsetRange(P0, 14, 15)
    consumer.move_to([following])
    assert consumer.position(P0) == 14


# --- out of range


def test_it_is_remembered_for_another_range_of_the_task() -> None:
    """The client says it once, and delivers nothing of that partition any more."""
    consumer, client = consumer_of([out_of_range(1), eof(0, 11), *records(0, 10)], [eof(0, 13)], ranges=(R0, R1))
    assert taken(consumer, R0) == [10]
    assert taken(consumer, R0) == []
    assert consumer.finished(R0)
    asked = len(client.asked)
    for _ in range(2):
        with pytest.raises(OutOfRange, match="orders-1"):
            consumer.next_rows([R1], 0.1)
    assert len(client.asked) == asked


def test_log_bounds() -> None:
    consumer, client = consumer_of()
    client.bounds[P0] = (5, 50)
    assert consumer.requests.log_bounds(P0, 1.0) == (5, 50)
    client.bounds[P0] = KafkaException(KafkaError(KafkaError._TRANSPORT, "connection refused"))
    with pytest.raises(RequestFailed, match="connection refused"):
        consumer.requests.log_bounds(P0, 1.0)


# --- errors


TROUBLES = {
    "forbidden": KafkaError.TOPIC_AUTHORIZATION_FAILED,
    "checksum": KafkaError._BAD_MSG,
    "compression": KafkaError._BAD_COMPRESSION,
    "unknown": KafkaError.UNKNOWN_TOPIC_OR_PART,
}


@pytest.mark.parametrize("name", TROUBLES)
@pytest.mark.rule("R65")
def test_trouble_of_a_partition_that_the_task_does_not_read(name: str) -> None:
    """Another query's, which reads with the same consumer: it is told to that one, when it asks for it again."""
    trouble = FakeMessage(P1, 0, error=TROUBLES[name])
    consumer, client = consumer_of([trouble, *records(0, 10, 11, 12)], [trouble], ranges=(R0, R1))
    consumer.move_to([R0])
    assert taken(consumer) == [10, 11, 12]
    consumer.move_to([R1])
    assert taken(consumer, R1) == [], "it may be over: the client says it again, if it is not"
    assert (client.unassigned, client.assigned[-1]) == ([[P1]], [(P1, 0)])
    with pytest.raises((AccessError, ReadError, OutOfRange), match="orders"):
        taken(consumer, R1)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError._BAD_MSG, ReadError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessError),
        (KafkaError._AUTO_OFFSET_RESET, OutOfRange),
    ],
)
@pytest.mark.rule("R64")
def test_p1_records_behind_what_could_not_be_read_are_not_passed(code: int, error: type[Exception]) -> None:
    """The client goes on behind a damaged record or a right that was away, and says how far it has delivered."""
    consumer, client = consumer_of([*records(0, 10), FakeMessage(P0, 11, error=code), *records(0, 12)])
    client.passed["orders", 0] = 13
    assert taken(consumer) == [10]
    assert consumer.position(P0) == 11
    with pytest.raises(error):
        taken(consumer)


def test_one_range_that_is_lost_does_not_keep_the_others_from_being_read() -> None:
    consumer, _ = consumer_of([out_of_range(0)], records(1, 0), records(1, 1), ranges=(R0, R1))
    for _ in range(3):
        with pytest.raises(OutOfRange):
            consumer.next_rows([R0, R1], 0.1)
    consumer.give_up(R0)
    found = [rows for _ in range(2) for rows in consumer.next_rows([R1], 0.1)]
    assert [edge_offsets(rows) for rows in found] == [(0, 0), (1, 1)]


def test_a_reason_is_that_of_this_task() -> None:
    consumer, _ = consumer_of([FakeMessage(P0, 0, error=KafkaError._TRANSPORT)])
    assert taken(consumer) == []
    consumer.move_to([R1])
    assert consumer.requests.reason == ""


@pytest.mark.rule("R65")
def test_a_damaged_record_behind_the_range_does_not_matter() -> None:
    consumer, _ = consumer_of([*records(0, 10, 11, 12), FakeMessage(P0, 13, error=KafkaError._BAD_MSG)])
    assert taken(consumer) == [10, 11, 12]
    assert consumer.finished(R0)


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessError, r"TOPIC_ACCESS_DENIED.*'orders'"),
        (KafkaError._BAD_MSG, ReadError, r"READ_FAILED.*orders-0.*offset {at}"),
        (KafkaError._BAD_COMPRESSION, ReadError, r"READ_FAILED.*orders-0.*offset {at}"),
        (KafkaError._AUTO_OFFSET_RESET, OutOfRange, "orders-0"),
        (KafkaError.OFFSET_OUT_OF_RANGE, OutOfRange, "orders-0"),
    ],
)
@pytest.mark.parametrize("before", [(), (10,)], ids=["at once", "behind what was delivered before"])
def test_trouble_of_the_partition_that_is_read(
    before: tuple[int, ...], code: int, error: type[Exception], text: str
) -> None:
    at = 10 + len(before)
    consumer, _ = consumer_of([*records(0, *before), FakeMessage(P0, at, error=code)])
    if before:
        assert taken(consumer) == [10]
    with pytest.raises(error, match=text.format(at=at)) as raised:
        consumer.next_rows([R0], 0.1)
    assert error is not OutOfRange or raised.value.partition == P0


@pytest.mark.parametrize(
    ("code", "is_reason"), [(KafkaError._TRANSPORT, True), (KafkaError.GROUP_AUTHORIZATION_FAILED, False)]
)
def test_other_errors_are_remembered_as_the_reason_but_for_rights_on_the_unused_group(
    code: int, is_reason: bool
) -> None:
    consumer, _ = consumer_of([FakeMessage(P0, 0, error=code)])
    assert taken(consumer) == []
    assert (consumer.requests.reason != "") == is_reason


# --- settings and life


def test_the_reading_client_never_touches_the_users_group() -> None:
    options = make_options(
        kafka__group__instance__id="one",
        kafka__session__timeout__ms="6000",
        kafka__heartbeat__interval__ms="500",
        kafka__isolation__level="read_committed",
    )
    settings = reading_client_settings(options, 8 * 1024 * 1024)
    assert settings["group.id"] == "groupkafka-executor"
    assert "shop" not in settings.values()
    for name in ("group.instance.id", "session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
        assert name not in settings
    expected = {
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "isolation.level": "read_committed",
        "client.id": "groupkafka-executor",
    }
    assert {name: settings[name] for name in expected} == expected


def test_the_user_may_choose_how_to_fetch() -> None:
    options = make_options(kafka__fetch__wait__max__ms="9", kafka__fetch__queue__backoff__ms="5")
    settings = reading_client_settings(options, 8 * 1024 * 1024)
    assert (settings["fetch.wait.max.ms"], settings["fetch.queue.backoff.ms"]) == ("9", "5")


def test_one_answer_has_room_for_all_partitions() -> None:
    mib = 1024 * 1024
    asked = {
        count: int(reading_client_settings(make_options(), 12 * mib, count)["fetch.message.max.bytes"])
        for count in (1, 3, 16, 10_000)
    }
    assert asked == {1: 4 * mib, 3: 2 * mib, 16: 12 * mib // 32, 10_000: 32 * 1024}


def test_a_queue_for_all_partitions_has_room_for_one_fetch() -> None:
    found = reading_client_settings(make_options(), 16 * 1024 * 1024, 64, one_queue=True)
    assert found["queued.max.messages.kbytes"] == "4096"
    assert reading_client_settings(make_options(), 16 * 1024 * 1024, 64)["queued.max.messages.kbytes"] == "128"


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka.message.max.bytes": "8000000"},
        {"kafka.receive.message.max.bytes": "2000000"},
        {"kafka.message.max.bytes": "3000000", "kafka.receive.message.max.bytes": "3000512"},
        {"kafkaConsumer.prefetchMemoryBytes": str(16 * 2**30)},
        {"kafkaConsumer.prefetchMemoryBytes": "1048576"},
    ],
)
@pytest.mark.parametrize("make", [make_driver_consumer, make_consumer])
def test_what_the_client_takes_beside_the_users_settings(
    make: Callable[[SourceOptions, int], RangeConsumer], settings: dict[str, str]
) -> None:
    """It refuses some combinations with what the source sets by itself; no broker is needed for that."""
    make(make_options(**settings), 3).close()


def test_how_large_an_answer_may_be() -> None:
    mib = 1024 * 1024

    def size(**more: str) -> int:
        return int(reading_client_settings(make_options(**more), 4 * mib)["fetch.max.bytes"])

    assert size() == 4 * mib
    assert size(kafka__message__max__bytes="8000000") == 8_000_000
    assert size(kafka__receive__message__max__bytes="2000000") == 2_000_000 - 512
    assert size(kafka__fetch__max__bytes="3000000") == 3_000_000
    assert int(reading_client_settings(make_options(), 2**40)["fetch.max.bytes"]) == 2**31 - 1 - 512
    assert reading_client_settings(make_options(), 2**40)["queued.max.messages.kbytes"] == "4096"


def test_settings_that_contradict_each_other_name_the_option() -> None:
    options = make_options(kafka__message__max__bytes="8000000", kafka__receive__message__max__bytes="8000000")
    with pytest.raises(OptionError, match=r"CLIENT_REFUSED_OPTION.*'kafka.receive.message.max.bytes'"):
        make_driver_consumer(options, 1)


def test_a_size_that_is_no_number_is_the_clients_to_refuse() -> None:
    with pytest.raises(OptionError, match=r"CLIENT_REFUSED_OPTION.*'kafka.message.max.bytes' with the value 'large'"):
        make_driver_consumer(make_options(kafka__message__max__bytes="large"), 1)


def test_a_refused_setting_names_the_option() -> None:
    def make(_: dict[str, Any]) -> Any:
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, "Invalid value for fetch.wait.max.ms"))

    with pytest.raises(OptionError, match=r"CLIENT_REFUSED_OPTION.*'kafka.fetch.wait.max.ms' with the value 'soon'"):
        PythonClient(make_options(kafka__fetch__wait__max__ms="soon"), {}, make)


def test_a_bulk_client_waits_for_no_new_records_unless_the_user_says_so() -> None:
    """An assignment waits for the fetch under way."""
    assert reading_client_settings(make_options(), 1024, bulk=True)["fetch.wait.max.ms"] == "5"
    assert reading_client_settings(make_options(), 1024)["fetch.wait.max.ms"] == "100"
    given = make_options(kafka__fetch__wait__max__ms="50")
    assert reading_client_settings(given, 1024, bulk=True)["fetch.wait.max.ms"] == "50"


def test_a_bulk_consumer_changes_half_of_its_queues_at_once() -> None:
    """An assignment takes time. Partitions that are read would hold up the next one."""
    client = FakeClient(ManualClock(), *[records(number, 0, 1) for number in range(12)])
    consumer = range_consumer(client, bulk=True)
    task = many(12)
    consumer.move_to(task)
    for number in range(12):
        assert [batch.num_rows for batch in consumer.next_rows(task[number:], 0.1)] == [2]
        consumer.settle(task[number])
    assert [[partition.partition for partition, _ in each] for each in client.assigned] == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [8, 9, 10, 11],
    ]
    assert client.unassigned[0] == [tp(number) for number in range(4)]
