"""The pool of consumers: which one a task gets, and what becomes of those that nobody uses."""

from __future__ import annotations

import threading

import pytest

from spark_groupsource.client.ending import on_own_thread
from spark_groupsource.executor.pool import (
    IDLE_TIMEOUT_S,
    MAX_CONSUMERS,
    REST_AFTER_S,
    ConsumerPool,
    pool_key,
    share_bytes,
)
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions
from tests.unit.fakes import WAIT_S, FakeClient, ManualClock, make_options, range_consumer, tp

P0, P1 = tp(0), tp(1)
OPTIONS = make_options()
OTHER = make_options(kafka__isolation__level="read_committed")
OTHER_GROUP = make_options(kafka__group__id="another")


def at(number: int, start: int = 0) -> OffsetRange:
    """Return a range that starts there."""
    return OffsetRange(tp(number), start, start + 100)


class Bed:
    """A pool on scripted clients, without its housekeeper."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.clients: list[FakeClient] = []
        self.pool = ConsumerPool(self.make, self.clock, pause=None)

    def make(self, options: SourceOptions, partitions: int, bulk: bool) -> RangeConsumer:
        self.clients.append(FakeClient(self.clock))
        return range_consumer(self.clients[-1], options, partitions=partitions, bulk=bulk)

    def fill(self, *ranges: OffsetRange, options: SourceOptions = OPTIONS) -> list[RangeConsumer]:
        """Put a consumer for each of these ranges into the pool."""
        consumers = [self.pool.borrow(options, [item]) for item in ranges]
        for consumer in consumers:
            self.pool.give_back(consumer)
        return consumers

    def take(self, *ranges: OffsetRange, options: SourceOptions = OPTIONS) -> RangeConsumer:
        return self.pool.borrow(options, ranges)


@pytest.mark.parametrize("consumers", range(1, MAX_CONSUMERS + 1))
@pytest.mark.parametrize("memory", ["1048576", "67108864", "1000000007"])
def test_all_consumers_together_stay_within_the_memory(consumers: int, memory: str) -> None:
    options = make_options(**{"kafkaConsumer.prefetchMemoryBytes": memory})
    assert 0.99 * int(memory) <= consumers * share_bytes(options, consumers) <= int(memory)


def test_what_a_consumer_may_keep_shrinks_with_every_other_one() -> None:
    bed = Bed()
    one, two = bed.fill(at(0), at(1))
    assert bed.take(at(2)) not in (one, two)
    assert {one.max_bytes, two.max_bytes} == {share_bytes(OPTIONS, 3)}


def test_one_that_was_made_for_few_partitions_is_not_given_many() -> None:
    """It asks for so much of each that they would not leave each other room."""
    bed = Bed()
    (few,) = bed.fill(at(0))
    assert bed.take(*(at(number) for number in range(6))) is few
    bed.pool.give_back(few)
    many = bed.take(*(at(number) for number in range(7)))
    assert many is not few
    bed.pool.give_back(many)
    assert bed.take(*(at(number) for number in range(14))) is many


def test_one_that_was_made_for_many_partitions_is_not_given_much_of_few() -> None:
    """Its fetches are so small that they would take longer than a new connection."""
    bed = Bed()
    many = bed.take(*(at(number) for number in range(32)))
    bed.pool.give_back(many)
    assert bed.take(at(0)) is many
    bed.pool.give_back(many)
    assert bed.take(OffsetRange(P0, 0, 50_000)) is not many


def test_one_that_stands_at_the_start_is_preferred() -> None:
    bed = Bed()
    consumers = bed.fill(at(0), at(1), at(2))
    assert bed.take(at(1)) is consumers[1]
    assert len(bed.clients[1].assigned) == 1


def test_one_that_stands_a_little_behind_moves_on_without_a_new_assignment() -> None:
    bed = Bed()
    consumers = bed.fill(at(0, 100), at(0, 110), at(0, 130))
    assert bed.take(at(0, 120)) is consumers[1]
    assert repr(consumers[1]) == "RangeConsumer(orders-0@120)"
    assert len(bed.clients[1].assigned) == 1


def test_one_that_is_left_behind_in_the_partition_is_moved() -> None:
    """The batches went to other workers: its place is of no use any more."""
    bed = Bed()
    consumers = bed.fill(at(1), at(0))
    assert bed.take(at(0, 1_000_000)) is consumers[1]
    assert len(bed.clients) == 2


def test_another_query_of_the_topic_does_not_take_the_place() -> None:
    """Two groups read one topic in one application: each moved the other's consumer, and fetched anew in every task."""
    bed = Bed()
    for _ in range(3):
        for options, start in ((OPTIONS, 100_000), (OTHER_GROUP, 0)):
            consumer = bed.take(at(0, start), options=options)
            bed.pool.give_back(consumer)
    assert [client.assigned for client in bed.clients] == [[[(P0, 100_000)]], [[(P0, 0)]]]


def test_a_consumer_serves_the_query_of_its_task() -> None:
    """What it says of a topic names that query's options, not those of the first one that it read for."""
    bed = Bed()
    (consumer,) = bed.fill(at(0))
    assert bed.take(at(0), options=OTHER_GROUP) is consumer
    assert consumer.requests.options is OTHER_GROUP


def test_one_that_rests_is_moved_before_a_new_one_is_made() -> None:
    bed = Bed()
    (consumer,) = bed.fill(at(0))
    bed.clock.advance(REST_AFTER_S)
    bed.pool.tidy()
    assert repr(bed.pool) == "ConsumerPool(idle=1, resting=1)"
    assert bed.take(at(1)) is consumer
    assert bed.clients[0].assigned == [[(P0, 0)], [(P1, 0)]]
    assert bed.clients[0].unassigned == [[P0]]


def test_a_new_one_is_made_while_there_is_room_then_partitions_are_added() -> None:
    bed = Bed()
    consumers = bed.fill(*(at(number) for number in range(MAX_CONSUMERS)))
    assert len(bed.clients) == MAX_CONSUMERS
    assert bed.take(at(99)) is consumers[0]
    assert len(bed.clients) == MAX_CONSUMERS
    assert repr(consumers[0]) == "RangeConsumer(orders-0@0, orders-99@0)"
    bed.pool.give_back(consumers[0])
    assert bed.take(at(98)) is consumers[1]


def test_steady_state_makes_no_consumer() -> None:
    """Nor an assignment: sixty-four partitions in turn, as on a worker that gets them all."""
    bed = Bed()
    for batch in range(5):
        for number in range(64):
            consumer = bed.take(at(number, batch * 100))
            bed.pool.give_back(consumer)
    assert len(bed.clients) == MAX_CONSUMERS
    assert all(client.closed == 0 and client.unassigned == [] for client in bed.clients)
    assert sum(len(client.assigned) for client in bed.clients) == 64


def test_of_packed_tasks_the_one_with_most_in_common_is_preferred() -> None:
    bed = Bed()
    first, second = ([at(number) for number in numbers] for numbers in (range(4), range(4, 8)))
    consumers = [bed.pool.borrow(OPTIONS, ranges) for ranges in (first, second)]
    for consumer in consumers:
        bed.pool.give_back(consumer)
    assert bed.take(*second[1:], at(0, 5)) is consumers[1]
    assert bed.clients[1].assigned[-1] == [(P0, 5)]


def test_one_that_fetches_all_is_preferred_to_one_that_is_nearer_in_most() -> None:
    bed = Bed()
    consumers = bed.fill(at(0, 100), at(1, 0))
    both = bed.pool.borrow(OPTIONS, [at(0, 90), at(1, 0)])
    assert both is consumers[1]


def test_readers_with_other_settings_do_not_share() -> None:
    bed = Bed()
    bed.fill(at(0))
    bed.take(at(0), options=OTHER)
    assert len(bed.clients) == 2


@pytest.mark.parametrize("name", ["includeHeaders", "kafkaConsumer.prefetchMemoryBytes", "kafka.client.rack"])
def test_what_readers_must_have_in_common(name: str) -> None:
    value = {"includeHeaders": "true", "kafkaConsumer.prefetchMemoryBytes": "1048576", "kafka.client.rack": "a"}[name]
    assert pool_key(make_options(**{name: value})) != pool_key(OPTIONS)


def test_a_full_pool_of_others_makes_room() -> None:
    bed = Bed()
    bed.fill(*(at(number) for number in range(MAX_CONSUMERS)), options=OTHER)
    bed.take(at(0))
    assert bed.clients[0].closed == 1
    assert repr(bed.pool) == f"ConsumerPool(idle={MAX_CONSUMERS - 1}, resting=0)"


def test_a_consumer_that_cannot_be_positioned_is_closed() -> None:
    bed = Bed()

    def refuse(_: object) -> None:
        raise RuntimeError("no")

    def make(options: SourceOptions, partitions: int, bulk: bool) -> RangeConsumer:
        consumer = bed.make(options, partitions, bulk)
        bed.clients[-1].incremental_assign = refuse  # type: ignore[method-assign,assignment]
        return consumer

    with pytest.raises(RuntimeError, match="no"):
        ConsumerPool(make, bed.clock, pause=None).borrow(OPTIONS, [at(0)])
    assert bed.clients[0].closed == 1


@pytest.mark.rule("R87")
def test_a_client_that_does_not_end_holds_up_nobody() -> None:
    """1. The pool's consumer has read the old topic. 2. The next task closes it. 3. Its client does not end."""
    ends, ended = threading.Event(), threading.Event()

    class Endless(FakeClient):
        def close(self) -> None:
            ends.set()
            ended.wait(WAIT_S)

    clock = ManualClock()
    clients = [Endless(clock), FakeClient(clock)]
    made = iter(clients)

    def make(options: SourceOptions, partitions: int, bulk: bool) -> RangeConsumer:
        return range_consumer(next(made), options, partitions=partitions, bulk=bulk, apart=on_own_thread)

    pool = ConsumerPool(make, clock, pause=None)
    pool.give_back(pool.borrow(OPTIONS, [at(0)], {"orders": "a"}))
    try:
        pool.borrow(OPTIONS, [at(0, 100)], {"orders": "b"})
        assert ends.wait(WAIT_S)
        assert clients[1].assigned == [[(P0, 100)]]
        assert not ended.is_set()
    finally:
        ended.set()


@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.rule("R59")
def test_what_has_read_another_topic_of_the_name_is_closed(rests: bool) -> None:
    """[0, 100) of the old topic was read here, [0, 100) of the new one elsewhere; [100, 200) of the new one comes."""
    bed = Bed()
    old, new = {"orders": "a"}, {"orders": "b"}
    consumer = bed.pool.borrow(OPTIONS, [OffsetRange(P0, 0, 100)], old)
    consumer.settle(OffsetRange(P0, 0, 100))
    bed.pool.give_back(consumer)
    if rests:
        bed.clock.advance(REST_AFTER_S)
        bed.pool.tidy()
    following = OffsetRange(P0, 100, 200)
    other = bed.pool.borrow(OPTIONS, [following], new)
    assert other is not consumer
    assert [client.closed for client in bed.clients] == [1, 0]
    assert bed.clients[1].assigned == [[(P0, 100)]]
    bed.pool.give_back(other)
    assert bed.pool.borrow(OPTIONS, [following], new) is other


def test_other_topics_and_other_clusters_keep_their_consumers() -> None:
    bed = Bed()
    elsewhere = make_options(kafka__bootstrap__servers="elsewhere:9092")
    for options, topic_ids in ((OPTIONS, {"orders": "a"}), (elsewhere, {"orders": "x"})):
        bed.pool.give_back(bed.pool.borrow(options, [at(0)], topic_ids))
    bed.pool.borrow(OPTIONS, [OffsetRange(tp(0, "refunds"), 0, 9)], {"refunds": "b"})
    assert [client.closed for client in bed.clients] == [0, 0, 0]
    assert repr(bed.pool) == "ConsumerPool(idle=2, resting=0)"


@pytest.mark.rule("R60")
def test_one_that_was_left_in_another_leader_epoch_is_moved() -> None:
    bed = Bed()
    consumers = [bed.pool.borrow(OPTIONS, [OffsetRange(P0, 0, 1_000, epoch)]) for epoch in (1, 2)]
    for consumer in consumers:
        bed.pool.give_back(consumer)
    assert bed.pool.borrow(OPTIONS, [OffsetRange(P0, 0, 1_000, 2)]) is consumers[1]
    assert bed.clients[1].assigned == [[(P0, 0)]]
    assert bed.pool.borrow(OPTIONS, [OffsetRange(P0, 0, 1_000, 2)]) is consumers[0]
    assert bed.clients[0].assigned == [[(P0, 0)]] * 2


@pytest.mark.rule("R60")
def test_one_whose_client_does_not_learn_the_leader_of_a_newer_epoch_is_closed() -> None:
    """1. Its leader is paused, another one is elected. 2. The next plan has that epoch. 3. The old leader goes on."""
    bed = Bed()
    stale = bed.pool.borrow(OPTIONS, [OffsetRange(P0, 0, 1_000, 1)])
    bed.pool.give_back(stale)
    bed.clients[0].answers = False
    assert bed.pool.borrow(OPTIONS, [OffsetRange(P0, 1_000, 2_000, 2)]) is not stale
    assert [client.closed for client in bed.clients] == [1, 0]


def test_an_idle_consumer_that_cannot_keep_less_is_no_tasks_trouble(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    broken, found = bed.fill(at(0), at(1))
    broken.keep_at_most = _raise  # type: ignore[method-assign]
    assert bed.take(at(1)) is found
    assert [client.closed for client in bed.clients] == [1, 0]
    assert repr(bed.pool) == "ConsumerPool(idle=0, resting=0)"
    assert "an idle consumer is given up" in caplog.text


def _raise(*_: object) -> None:
    raise RuntimeError("no")


# --- what becomes of those that nobody uses


def test_idle_consumers_rest_and_then_are_closed() -> None:
    bed = Bed()
    bed.fill(at(0))
    assert bed.pool.tidy() == pytest.approx(REST_AFTER_S)
    bed.clock.advance(2.0)
    bed.fill(at(1))
    bed.clock.advance(REST_AFTER_S - 2.0)
    assert bed.pool.tidy() == pytest.approx(2.0)
    assert [client.unassigned for client in bed.clients] == [[[P0]], []]
    bed.clock.advance(2.0)
    assert bed.pool.tidy() == pytest.approx(IDLE_TIMEOUT_S - REST_AFTER_S - 2.0)
    bed.clock.advance(IDLE_TIMEOUT_S)
    assert bed.pool.tidy() is None
    assert [client.closed for client in bed.clients] == [1, 1]
    assert repr(bed.pool) == "ConsumerPool(idle=0, resting=0)"


def test_a_used_consumer_does_not_rest() -> None:
    bed = Bed()
    for _ in range(3):
        bed.fill(at(0))
        bed.clock.advance(REST_AFTER_S - 1.0)
        bed.pool.tidy()
    assert bed.clients[0].assigned == [[(P0, 0)]]


def test_a_consumer_that_cannot_rest_does_not_end_the_housekeeping(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    broken, other = bed.fill(at(0), at(1))
    broken.rest = _raise  # type: ignore[method-assign]
    bed.clock.advance(REST_AFTER_S)
    assert bed.pool.tidy() == pytest.approx(IDLE_TIMEOUT_S - REST_AFTER_S)
    assert [client.closed for client in bed.clients] == [1, 0]
    assert repr(bed.pool) == "ConsumerPool(idle=1, resting=1)"
    assert "an idle consumer is given up" in caplog.text
    other.close = _raise  # type: ignore[method-assign]
    bed.clock.advance(IDLE_TIMEOUT_S)
    assert bed.pool.tidy() is None


def test_the_housekeeper_runs_while_there_is_something_to_look_after() -> None:
    bed = Bed()
    waited: list[float] = []
    done = threading.Event()

    def pause(seconds: float) -> None:
        waited.append(seconds)
        bed.clock.advance(seconds)
        if bed.clients[0].closed:
            done.set()

    pool = ConsumerPool(bed.make, bed.clock, pause)
    for _ in range(2):  # it is started again
        waited.clear()
        consumer = pool.borrow(OPTIONS, [at(0)])
        pool.give_back(consumer)
        keepers = [thread for thread in threading.enumerate() if thread.name == "groupkafka-pool"]
        for thread in keepers:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert bed.clients[-1].closed == 1
        assert waited == [pytest.approx(REST_AFTER_S), pytest.approx(IDLE_TIMEOUT_S - REST_AFTER_S)]


def test_a_housekeeper_that_cannot_be_started_fails_no_task_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The process may have no new thread now. 2. A later task's end starts it."""
    bed = Bed()
    done = threading.Event()
    pool = ConsumerPool(bed.make, bed.clock, bed.clock.advance)
    consumer = pool.borrow(OPTIONS, [at(0)])

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        pool.give_back(consumer)
    assert repr(pool) == "ConsumerPool(idle=1, resting=0)"
    bed.clients[0].close = done.set  # type: ignore[method-assign]
    pool.give_back(pool.borrow(OPTIONS, [at(0)]))
    assert done.wait(WAIT_S), "the housekeeper closes what is idle"


def test_the_settings_of_an_idle_consumer_are_not_in_its_repr() -> None:
    bed = Bed()
    bed.fill(at(0), options=make_options(kafka__sasl__username="me", kafka__sasl__password="canary-91c4"))
    assert "canary-91c4" not in repr(bed.pool._idle)


def _bulk(*numbers: int) -> list[OffsetRange]:
    """Return the ranges of a task that is too large for a share of the memory."""
    return [OffsetRange(tp(number), 0, 10_000) for number in numbers]


def test_p1_to_p3_a_large_task_gets_a_bulk_consumer_and_the_others_memory() -> None:
    """1. Consumers share the memory. 2. A task's later ranges do not fit into one share: they came one by one."""
    bed = Bed()
    small = bed.fill(at(0), at(1))
    large = bed.take(*_bulk(0, 1, 2))
    assert large.bulk
    assert large.max_bytes == share_bytes(OPTIONS, 1)
    assert [consumer.assigned for consumer in small] == [0, 0]
    assert large.assigned == 3, "all at once"


def test_a_bulk_consumer_rests_between_tasks_and_serves_large_ones_only() -> None:
    """Its client asks the brokers every few milliseconds for what it has assigned."""
    bed = Bed()
    large = bed.take(*_bulk(0, 1, 2))
    bed.pool.give_back(large)
    assert large.assigned == 0
    small = bed.take(at(0))
    assert not small.bulk
    bed.pool.give_back(small)
    assert bed.take(*_bulk(3, 4)) is large


def test_a_consumer_that_cannot_rest_fails_no_task_that_has_ended() -> None:
    bed = Bed()
    large = bed.take(*_bulk(0, 1, 2))

    def refuse(*_: object) -> None:
        raise RuntimeError("no")

    bed.clients[-1].incremental_unassign = refuse  # type: ignore[method-assign,assignment]
    bed.pool.give_back(large)
    assert bed.clients[-1].closed == 1
    assert bed.take(*_bulk(0, 1, 2)) is not large


def test_a_task_without_ranges_needs_no_bulk_consumer() -> None:
    """Spark runs one task of a batch read that has nothing to read."""
    assert not Bed().take().bulk


@pytest.mark.parametrize(("records", "bulk"), [(67_000, False), (67_200, True), (10**9, True)])
def test_one_range_needs_a_bulk_consumer_from_the_size_of_the_memory_on(records: int, bulk: bool) -> None:
    """Below it the consumer keeps its place for the next batch. The memory is 64 MiB, a record 1 KB."""
    assert Bed().take(OffsetRange(P0, 0, records)).bulk is bulk


def test_many_ranges_that_fit_into_their_queues_need_no_bulk_consumer() -> None:
    """Half of a partition's share, 128 KiB here, is in a queue before the client stops fetching."""
    for records, bulk in ((120, False), (140, True)):
        task = [OffsetRange(tp(number), 0, records) for number in range(64)]
        assert Bed().take(*task).bulk == bulk
