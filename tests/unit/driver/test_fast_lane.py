"""Small batches on the driver: what it reads, what it leaves to the executors, where its consumer stands."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_groupsource import errors
from spark_groupsource.driver.fast_lane import MAX_BYTES, READ_TIMEOUT_S, REST_S, FastLane
from spark_groupsource.errors import OptionError
from spark_groupsource.executor.clients.rows import arrow_schema
from spark_groupsource.executor.range_consumer import REST_AFTER_S, RangeConsumer
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions
from tests.unit.fakes import (
    TOPIC_ID,
    FakeClient,
    FakeMessage,
    ManualClock,
    eof,
    make_options,
    out_of_range,
    range_consumer,
    records,
    tp,
)

P0, P1, P2 = tp(0), tp(1), tp(2)
OWNED = {P0, P1, P2}


class Bed:
    """A lane whose consumers stand on scripted clients, the first one with these batches."""

    def __init__(self, *batches: list[FakeMessage], **options: str) -> None:
        self.clock = ManualClock()
        self.batches = list(batches)
        self.made: list[FakeClient] = []
        self.bounds: dict[TopicPartition, tuple[int, int]] = {}
        self.topic_ids = {"orders": TOPIC_ID}
        self.made_again = False
        self.lane = FastLane(make_options(**{"fastLaneMaxOffsets": "10000"} | options), self.clock, self._make)

    def _make(self, options: SourceOptions, partitions: int) -> RangeConsumer:
        client = FakeClient(self.clock, *self.batches)
        client.bounds.update(self.bounds)
        client.topic_ids = {"orders": "another"} if self.made_again else self.topic_ids
        self.batches = []
        self.made.append(client)
        return range_consumer(client, options, partitions=partitions)

    def read(self, *ranges: OffsetRange, owned: set[TopicPartition] | None = None) -> list[tuple[int, int]] | None:
        """Return (partition, offset) of all rows, None when the executors are to read."""
        rows = self.lane.read(ranges, OWNED if owned is None else owned, self.topic_ids)
        if rows is None:
            return None
        return [
            (row["partition"], row["offset"]) for row in pa.Table.from_batches(rows, arrow_schema(False)).to_pylist()
        ]

    def warm(self, *ranges: OffsetRange) -> None:
        self.lane.warm(ranges, self.topic_ids)

    def positions(self) -> dict[int, int]:
        """Where the newest assignment of the newest client stands."""
        return {partition.partition: offset for partition, offset in self.made[-1].assigned[-1]}


def test_a_small_batch_of_two_partitions() -> None:
    bed = Bed([*records(0, 10, 11), *records(1, 5)])
    assert bed.read(OffsetRange(P0, 10, 12), OffsetRange(P1, 5, 6)) == [(0, 10), (0, 11), (1, 5)]


def test_a_batch_of_transaction_markers_is_no_row_and_is_read() -> None:
    assert Bed([eof(0, 12)]).read(OffsetRange(P0, 10, 12)) == []


def test_a_large_batch_is_the_executors_and_frees_the_consumer() -> None:
    bed = Bed(records(0, 0, 1), fastLaneMaxOffsets="2")
    assert bed.read(OffsetRange(P0, 0, 2)) == [(0, 0), (0, 1)]
    assert bed.read(OffsetRange(P0, 2, 5)) is None
    assert bed.made[0].closed == 1


def test_a_batch_above_the_largest_task_is_the_executors() -> None:
    """It would be one task, also where its partitions are small enough."""
    bed = Bed([*records(0, 0), *records(1, 0)], maxRecordsPerPartition="2")
    assert bed.read(OffsetRange(P0, 0, 1), OffsetRange(P1, 0, 1)) == [(0, 0), (1, 0)]
    assert bed.read(OffsetRange(P0, 1, 3), OffsetRange(P1, 1, 2)) is None


def test_a_split_partition_is_the_executors() -> None:
    assert Bed().read(OffsetRange(P0, 0, 2), OffsetRange(P0, 2, 4)) is None


def test_the_consumer_goes_on_where_it_stands() -> None:
    """Two batches, one after the other: what was fetched for the second one with the first is not fetched again."""
    bed = Bed(records(0, 0, 1, 2, 3))
    assert bed.read(OffsetRange(P0, 0, 2)) == [(0, 0), (0, 1)]
    assert bed.read(OffsetRange(P0, 2, 4)) == [(0, 2), (0, 3)]
    assert len(bed.made) == 1


def test_partitions_that_are_not_in_the_batch_stay_assigned_while_they_are_owned() -> None:
    bed = Bed([*records(0, 0), *records(1, 0)], records(1, 1), [*records(0, 1)])
    assert bed.read(OffsetRange(P0, 0, 1), OffsetRange(P1, 0, 1)) == [(0, 0), (1, 0)]
    assert bed.read(OffsetRange(P1, 1, 2)) == [(1, 1)]
    assert bed.positions() == {0: 0, 1: 0}, "nothing was assigned anew"
    assert bed.read(OffsetRange(P0, 1, 2), owned={P0}) == [(0, 1)]
    assert bed.made[0].unassigned == [[P1]], "what the group gave to another member is not fetched any more"


def test_a_member_that_has_come_to_many_partitions_gets_a_consumer_for_many() -> None:
    """The first one asks for so much of each partition that they would not leave each other room."""
    bed = Bed(records(0, 0))
    assert bed.read(OffsetRange(P0, 0, 1), owned={P0}) == [(0, 0)]
    bed.batches = [records(0, 1)]
    assert bed.read(OffsetRange(P0, 1, 2), owned={tp(number) for number in range(7)}) == [(0, 1)]
    assert [client.closed for client in bed.made] == [1, 0]
    assert bed.positions() == {0: 1}


def test_p2_p8_a_batch_whose_topic_was_recreated_is_the_executors() -> None:
    """They report what is lost, or fail. The new topic has records at the planned offsets."""
    bed = Bed(records(0, 0, 1))
    bed.made_again = True
    assert bed.read(OffsetRange(P0, 0, 2)) is None
    assert bed.made[0].closed == 1


def test_a_batch_that_does_not_come_is_the_executors_for_a_while() -> None:
    bed = Bed()
    before_s = bed.clock.now_s
    assert bed.read(OffsetRange(P0, 0, 2)) is None
    assert READ_TIMEOUT_S <= bed.clock.now_s - before_s < READ_TIMEOUT_S + 1
    assert bed.made[0].closed == 1
    assert bed.read(OffsetRange(P0, 0, 2)) is None
    assert len(bed.made) == 1, "not tried again"
    bed.clock.advance(REST_S)
    bed.batches = [records(0, 0, 1)]
    assert bed.read(OffsetRange(P0, 0, 2)) == [(0, 0), (0, 1)]


def test_few_but_huge_records_do_not_pass_through_the_driver() -> None:
    huge = records(0, 0, 1)
    huge[0].value = lambda: bytes(MAX_BYTES + 1)  # type: ignore[method-assign]
    bed = Bed(huge)
    assert bed.read(OffsetRange(P0, 0, 2)) is None
    assert bed.made[0].closed == 1
    assert bed.read(OffsetRange(P0, 2, 4)) is None
    assert len(bed.made) == 1, "the next ones are not read twice"


def test_an_interruption_frees_the_consumer() -> None:
    bed = Bed()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    bed.clock.advance = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        bed.read(OffsetRange(P0, 0, 2))
    assert bed.made[0].closed == 1


def test_a_standby_is_connected_and_has_fetched_what_comes_at_the_groups_offset() -> None:
    """It stands by for partition 0, the active member reads on to 2, this one takes over there."""
    bed = Bed(records(0, 1, 2, 3))
    bed.warm(OffsetRange(P0, 1, 1))
    assert bed.positions() == {0: 1}
    assert bed.read(OffsetRange(P0, 2, 4)) == [(0, 2), (0, 3)]
    assert len(bed.made) == 1, "what was warm is used"
    assert bed.positions() == {0: 1}, "nothing was fetched anew"


def test_what_a_member_stands_by_for_stays_assigned_while_it_reads_its_own() -> None:
    bed = Bed(records(1, 0), records(0, 7))
    bed.warm(OffsetRange(P0, 7, 7))
    assert bed.read(OffsetRange(P1, 0, 1), owned={P0, P1}) == [(1, 0)]
    assert bed.made[0].unassigned == []
    assert bed.read(OffsetRange(P0, 7, 8)) == [(0, 7)]


def test_nothing_is_warmed_for_nobody_nor_while_the_executors_read() -> None:
    bed = Bed()
    bed.warm()
    assert bed.made == []
    assert bed.read(OffsetRange(P0, 0, 2)) is None
    bed.warm(OffsetRange(P0, 1, 1))
    assert len(bed.made) == 1


# --- other logs of the same name


def test_a_topic_that_was_recreated_is_read_with_another_consumer() -> None:
    """What was fetched ahead is the old topic's."""
    bed = Bed(records(0, 0, 1, 2, 3))
    assert bed.read(OffsetRange(P0, 0, 2)) == [(0, 0), (0, 1)]
    assert bed.read(OffsetRange(P1, 0, 0), owned={P1}) == [], "the partition leaves"
    bed.topic_ids, bed.batches = {"orders": "b"}, [records(0, 2, 3)]
    assert bed.read(OffsetRange(P0, 2, 4)) == [(0, 2), (0, 3)]
    assert [client.closed for client in bed.made] == [1, 0]
    assert bed.positions() == {0: 2}


def test_a_standby_of_a_topic_that_was_recreated_is_not_warm() -> None:
    bed = Bed(records(0, 1, 2, 3))
    bed.warm(OffsetRange(P0, 1, 1))
    bed.topic_ids, bed.batches = {"orders": "b"}, [records(0, 2, 3)]
    assert bed.read(OffsetRange(P0, 2, 4)) == [(0, 2), (0, 3)]
    assert [client.closed for client in bed.made] == [1, 0]
    bed.topic_ids = {"orders": "c"}
    bed.warm(OffsetRange(P1, 1, 1))
    assert [client.closed for client in bed.made] == [1, 1, 0]
    assert bed.positions() == {1: 1}


@pytest.mark.rule("R60")
def test_what_was_fetched_in_another_leader_epoch_is_fetched_anew() -> None:
    bed = Bed(records(0, 0, 1, 2, 3), records(0, 2, 3))
    assert bed.read(OffsetRange(P0, 0, 2, 1)) == [(0, 0), (0, 1)]
    assert bed.read(OffsetRange(P0, 2, 4, 2)) == [(0, 2), (0, 3)]
    assert bed.made[0].assigned == [[(P0, 0)], [(P0, 2)]]


@pytest.mark.rule("R60")
def test_a_client_that_does_not_learn_the_leader_of_a_newer_epoch_is_closed() -> None:
    bed = Bed(records(0, 0, 1))
    assert bed.read(OffsetRange(P0, 0, 2, 1)) == [(0, 0), (0, 1)]
    bed.made[0].answers, bed.batches = False, [records(0, 2, 3)]
    assert bed.read(OffsetRange(P0, 2, 4, 2)) == [(0, 2), (0, 3)]
    assert [client.closed for client in bed.made] == [1, 0]


def test_idle_partitions_keep_their_leader_epoch() -> None:
    bed = Bed([*records(0, 0), *records(1, 0)], records(1, 1), [*records(0, 1)])
    assert bed.read(OffsetRange(P0, 0, 1, 5), OffsetRange(P1, 0, 1, 6)) == [(0, 0), (1, 0)]
    assert bed.read(OffsetRange(P1, 1, 2, 6)) == [(1, 1)]
    assert bed.read(OffsetRange(P0, 1, 2, 5)) == [(0, 1)]
    assert len(bed.made[0].assigned) == 1


def test_idle_partitions_that_were_dropped_meanwhile_keep_their_leader_epoch() -> None:
    """A warm round of a standby drops what was not used for a while; the next batch assigns it with the others."""
    bed = Bed([*records(0, 0), *records(1, 0)], [*records(1, 1), *records(0, 1)])
    assert bed.read(OffsetRange(P0, 0, 1, 5), OffsetRange(P1, 0, 1, 6)) == [(0, 0), (1, 0)]
    bed.clock.advance(REST_AFTER_S)
    bed.warm(OffsetRange(P2, 7, 7, 4))
    assert bed.made[0].unassigned == [[P0, P1]]
    assert bed.read(OffsetRange(P1, 1, 2, 6)) == [(1, 1)]
    assert bed.read(OffsetRange(P0, 1, 2, 5)) == [(0, 1)]
    assert bed.made[0].assigned == [[(P0, 0), (P1, 0)], [(P2, 7)], [(P1, 1), (P0, 1)]]


# --- what fails


def test_a_client_that_cannot_be_made_is_the_executors_to_report() -> None:
    def refuse(options: SourceOptions, partitions: int) -> RangeConsumer:
        raise OptionError(errors.CLIENT_REFUSED_OPTION, option="kafka.x", value="y", reason="no")

    lane = FastLane(make_options(), ManualClock(), refuse)
    lane.warm([OffsetRange(P0, 1, 1)], {})
    assert lane.read([OffsetRange(P0, 0, 1)], OWNED) is None


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_range_that_may_be_lost_is_the_executors_to_judge(fails: str) -> None:
    """They have the time to wait for a leader that lags; here nothing is skipped."""
    for batches, bounds in (([[out_of_range(0)]], (10, 20)), ([], (0, 0))):
        bed = Bed(*batches, failOnDataLoss=fails)
        bed.bounds[P0] = bounds
        assert bed.read(OffsetRange(P0, 0, 2)) is None
        assert bed.made[0].closed == 1
