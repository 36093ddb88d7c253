"""Logs that lost what was read already: noticed by leader epoch, and by an end that stays too short."""

from __future__ import annotations

import pytest

from spark_groupsource.driver.data_loss import TruncationWatch
from spark_groupsource.driver.query_state import SHORT_S, QueryState
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.planning.batch import Backlog
from tests.unit.fakes import FakeCluster, ManualClock, tp

P0, P1 = tp(0), tp(1)


class Bed:
    """A watch that has read both partitions up to 20 in epoch 3, and counts its looks into the logs."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(orders=2)
        self.looks: list[dict[str, int]] = []
        diverged = self.cluster.diverged
        self.cluster.diverged = lambda asked: (  # type: ignore[method-assign]
            self.looks.append({str(p): epoch for p, (_, epoch) in asked.items()}) or diverged(asked)  # type: ignore[func-returns-value]
        )
        self.state = QueryState(self.clock)
        self.watch = TruncationWatch(self.cluster, self.state)
        self.watch.learn([OffsetRange(P0, 0, 20, 3), OffsetRange(P1, 0, 20, 3)])


def test_the_same_leader_is_not_asked() -> None:
    bed = Bed()
    assert bed.watch.truncated({P0: Backlog(20, 30, 3), P1: Backlog(20, 20, 3)}) == {}
    assert bed.looks == []


def test_a_new_leader_is_asked_once() -> None:
    bed = Bed()
    for _ in range(2):
        assert bed.watch.truncated({P0: Backlog(20, 30, 4), P1: Backlog(20, 20, 3)}) == {}
    assert bed.looks == [{"orders-0": 3}]


@pytest.mark.parametrize("end", [10, 20, 30])
@pytest.mark.rule("R45")
def test_a_truncated_log_is_reported_however_long_it_has_grown_since(end: int) -> None:
    bed = Bed()
    bed.cluster.cut = {P0: 10}
    assert bed.watch.truncated({P0: Backlog(20, end, 4)}) == {P0: 10}
    bed.clock.advance(SHORT_S)
    assert bed.watch.truncated({P0: Backlog(20, end + 1, 4)}) == {}, "it is told once"


@pytest.mark.rule("R45")
def test_a_clean_move_after_a_truncation_is_no_second_one() -> None:
    """The log was truncated at 10, has grown to 12, and its next leader has all of that."""
    bed = Bed()
    bed.cluster.cut = {P0: 10}
    assert bed.watch.truncated({P0: Backlog(20, 12, 4)}) == {P0: 10}
    bed.cluster.cut = {P0: 12}
    assert bed.watch.truncated({P0: Backlog(20, 12, 5)}) == {}
    bed.cluster.cut = {P0: 8}
    assert bed.watch.truncated({P0: Backlog(20, 12, 6)}) == {P0: 8}, "a second truncation"


def test_what_was_cut_behind_the_position_is_no_loss() -> None:
    """A batch that was planned up to 20 was given up: the position is still 5."""
    bed = Bed()
    bed.cluster.cut = {P0: 10}
    assert bed.watch.truncated({P0: Backlog(5, 30, 4)}) == {}


def test_a_partition_without_an_epoch_learns_it_from_its_first_look() -> None:
    bed = Bed()
    bed.state.partition(P0).mark = None
    assert bed.watch.truncated({P0: Backlog(15, 20, 3)}) == {}
    bed.cluster.cut = {P0: 10}
    assert bed.watch.truncated({P0: Backlog(15, 20, 4)}) == {P0: 10}
    assert bed.watch.truncated({P0: Backlog(15, 20, None)}) == {}, "a broker that tells no epoch"


def test_an_end_before_the_position_is_a_lagging_leader_for_a_while() -> None:
    bed = Bed()
    short = {P0: Backlog(20, 15, 3), P1: Backlog(20, 20, 3)}
    assert bed.watch.truncated(short) == {}
    bed.clock.advance(SHORT_S - 1)
    assert bed.watch.truncated(short) == {}
    bed.clock.advance(1)
    assert bed.watch.truncated(short) == {P0: 15}
    assert bed.watch.truncated(short) == {}, "it is told once"


def test_only_logs_of_these_partitions_are_in_doubt() -> None:
    """A partition that left the member while its log was short holds up no AvailableNow."""
    bed = Bed()
    bed.watch.truncated({P0: Backlog(20, 15, 3), P1: Backlog(20, 20, 3)})
    assert bed.watch.in_doubt([P0, P1])
    assert not bed.watch.in_doubt([P1])


def test_an_open_transaction_is_no_truncation() -> None:
    """The group was committed by somebody who reads uncommitted records."""
    watch = TruncationWatch(FakeCluster(orders=1), QueryState(clock := ManualClock()), read_committed=True)
    for _ in range(3):
        assert watch.truncated({P0: Backlog(20, 15, 3)}) == {}
        clock.advance(SHORT_S)


def test_an_end_that_has_come_back_is_forgotten() -> None:
    bed = Bed()
    bed.watch.truncated({P0: Backlog(20, 15, 3)})
    bed.clock.advance(SHORT_S - 1)
    bed.watch.truncated({P0: Backlog(20, 20, 3)})
    bed.clock.advance(2)
    assert bed.watch.truncated({P0: Backlog(20, 15, 3)}) == {}
