"""How ranges become Spark tasks."""

from __future__ import annotations

import random

import pytest

from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.planning.tasks import PACK_RECORDS, pack_tasks, split_range
from tests.unit.fakes import tp

P0, P1, P2 = tp(0), tp(1), tp(2)


@pytest.mark.parametrize(
    ("size", "parts", "sizes"),
    [(10, 1, [10]), (10, 3, [4, 3, 3]), (10, 10, [1] * 10)],
)
def test_split_range(size: int, parts: int, sizes: list[int]) -> None:
    pieces = split_range(OffsetRange(P0, 100, 100 + size, 7), parts)
    assert [len(piece) for piece in pieces] == sizes
    assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]
    assert {piece.leader_epoch for piece in pieces} == {7}, "one without would not tell of a truncated log"


def test_nothing_to_read_gives_no_task() -> None:
    assert pack_tasks([], 4, None) == ()
    assert pack_tasks([OffsetRange(P0, 5, 5)], 4, None) == ()


def test_small_ranges_share_a_task() -> None:
    ranges = [OffsetRange(P0, 0, 10), OffsetRange(P1, 5, 5), OffsetRange(P2, 0, 10)]
    assert pack_tasks(ranges, None, None) == ((ranges[0], ranges[2]),)


def test_large_ranges_have_their_own_task() -> None:
    ranges = [OffsetRange(P0, 0, PACK_RECORDS), OffsetRange(P1, 0, 1), OffsetRange(P2, 0, PACK_RECORDS - 1)]
    assert pack_tasks(ranges, None, None) == ((ranges[0],), (ranges[1], ranges[2]))


def test_min_partitions_splits_the_largest() -> None:
    ranges = [OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 300)]
    tasks = pack_tasks(ranges, 4, None)
    assert [[str(piece) for piece in task] for task in tasks] == [
        ["orders-0 [0, 100)"],
        ["orders-1 [0, 100)"],
        ["orders-1 [100, 200)"],
        ["orders-1 [200, 300)"],
    ]


def test_max_records_per_partition_bounds_every_task() -> None:
    tasks = pack_tasks([OffsetRange(P0, 0, 25), OffsetRange(P1, 0, 4)], None, 10)
    assert [sum(map(len, task)) for task in tasks] == [9, 8, 8, 4]


def test_random_batches_are_read_exactly_once() -> None:
    source = random.Random(23)
    for _ in range(1500):
        scale = source.choice([3, 40, PACK_RECORDS * 3])
        ranges = [OffsetRange(tp(n), at := source.randint(0, 9), at + source.randint(0, scale)) for n in range(6)]
        least = source.choice([None, 1, source.randint(2, 12)])
        most = source.choice([None, source.randint(1, scale + 1)])
        if most is not None and scale // most > 500:
            most = scale // 500 + 1
        tasks = pack_tasks(ranges, least, most)
        case = f"{ranges} min={least} max={most}"
        for item in ranges:
            pieces = [piece for task in tasks for piece in task if piece.partition == item.partition]
            assert sum(map(len, pieces)) == len(item), case
            assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]], case
            assert not pieces or (pieces[0].start, pieces[-1].end) == (item.start, item.end), case
        total = sum(map(len, ranges))
        assert len(tasks) >= min(least or 1, total), case
        for task in tasks:
            assert all(len(piece) > 0 for piece in task), case
            assert len({piece.partition for piece in task}) == len(task), case
            records = sum(map(len, task))
            assert most is None or records <= most, case
            assert len(task) == 1 or records <= PACK_RECORDS, case
        assert pack_tasks(reversed(ranges), least, most) == tasks, case
