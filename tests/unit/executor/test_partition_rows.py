"""What is received of one partition and not returned yet."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from spark_groupsource.executor.clients.port import PositionLost
from spark_groupsource.executor.clients.rows import record_batch
from spark_groupsource.executor.partition_rows import PartitionRows, RecordSize
from tests.unit.fakes import records, tp

P0 = tp(0)


def rows_at(position: int, *chunks: Iterable[int]) -> PartitionRows:
    rows = PartitionRows(position, 0.0)
    rows.start(position)
    for offsets in chunks:
        rows.add(record_batch(P0, records(0, *offsets), False))
    return rows


def popped(rows: PartitionRows, end: int) -> list[int]:
    return [offset for batch in rows.pop_rows(end) for offset in batch.column("offset").to_pylist()]


@pytest.mark.parametrize("offsets", [range(10), (0, 2, 3, 7, 9)], ids=["all", "gaps"])
def test_rows_are_cut_at_every_offset(offsets: Iterable[int]) -> None:
    for start in range(10):
        for end in range(start, 11):
            rows = rows_at(start, offsets)
            assert popped(rows, end) == [offset for offset in offsets if start <= offset < end]
            assert popped(rows, 20) == [offset for offset in offsets if offset >= max(start, end)]
            assert rows.position == 10


def test_a_range_inside_a_gap_of_kept_rows_has_no_record_batch() -> None:
    """1. 10 and 20 are received; 11 to 19 were compacted. 2. One task reads [10, 12), the next one [12, 15)."""
    rows = rows_at(10, [10, 20])
    assert popped(rows, 12) == [10]
    assert rows.pop_rows(15) == []
    assert rows.position == 15
    assert popped(rows, 21) == [20]


def test_what_a_range_lacks() -> None:
    rows = rows_at(0)
    assert rows.lacks(2)
    rows.eof = 1
    assert rows.lacks(2), "an end before the range's end says nothing"
    rows.eof = 2
    assert rows.finished(2)
    assert rows.lacks(3)
    rows.event = PositionLost(P0)
    assert not rows.lacks(3)
    rows.cut(3)
    assert rows.finished(3)


def test_few_records_are_received_at_once_while_their_size_is_unknown() -> None:
    size = RecordSize()
    assert (size.at_once(10**9, 0), size.at_once(1, 10**6)) == (64, 30)
    size.add_sample(100, 10_000)
    assert (size.at_once(10**9, 0), size.at_once(1, 10**6), size.at_once(1, 0)) == (10_000, 1_024, 1)
