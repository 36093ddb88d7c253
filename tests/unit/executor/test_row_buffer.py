"""What is fetched and not taken yet: what is given up when it is too much."""

from __future__ import annotations

from collections.abc import Iterable

from spark_groupsource.executor.clients.port import Chunk
from spark_groupsource.executor.clients.rows import record_batch
from spark_groupsource.executor.row_buffer import RowBuffer, partitions_to_drop
from spark_groupsource.model.offsets import OffsetRange
from tests.unit.fakes import FakeMessage, records, tp

P0, P1, P2 = tp(0), tp(1), tp(2)


def chunk(number: int, offsets: Iterable[int]) -> Chunk:
    return Chunk(tp(number), record_batch(tp(number), records(number, *offsets), False))


def test_the_largest_are_given_up_until_the_others_fit() -> None:
    sizes = {P0: 5, P1: 20, P2: 10}
    assert [partitions_to_drop(sizes, most) for most in (35, 34, 14, 0)] == [[], [P1], [P1, P2], [P1, P2, P0]]


def test_sizes_follow_what_comes_and_goes() -> None:
    """Each chunk counts for what it takes by itself, too: a hundred of one row are more than one of a hundred rows."""
    kept, row = RowBuffer(), chunk(0, range(100)).batch.nbytes // 100
    kept.set_range_ends({P0: 50})
    kept.add(chunk(0, range(100)), 0)
    one = kept.bytes_within(P0) - 50 * row
    assert one > 1_000
    assert abs(kept.bytes_beyond()[P0] - kept.bytes_within(P0)) < 100
    for offset in range(100):
        kept.add(chunk(1, [offset]), 0)
    assert kept.bytes_beyond()[P1] > 90 * one
    kept.pop_rows(OffsetRange(P0, 0, 50), 0)
    assert (kept.bytes_within(P0), kept.within_bytes) == (0, 0)
    before = kept.bytes_beyond()[P1]
    kept.set_range_ends({P1: 95})
    assert kept.bytes_beyond()[P1] < before // 15
    kept.advance(P1, 90)
    assert before // 25 < kept.bytes_within(P1) == kept.within_bytes < before // 15
    kept.trim(P1)
    assert kept.bytes_beyond().keys() == {P0}
    kept.drop(P0)
    kept.pop_rows(OffsetRange(P1, 0, 100), 90)
    assert (kept.bytes_beyond(), kept.within_bytes) == ({}, 0)


def test_the_rows_of_large_records_count_with_their_bytes() -> None:
    """An average of small and large ones would let a topic with large records go beyond the bound."""
    kept = RowBuffer()
    kept.add(chunk(0, range(10)), 0)
    large = FakeMessage(P1, 0)
    large.value = lambda: bytes(1_000_000)  # type: ignore[method-assign]
    kept.add(Chunk(P1, record_batch(P1, [large], False)), 0)
    sizes = kept.bytes_beyond()
    assert sizes[P0] < 10_000
    assert 1_000_000 < sizes[P1] < 1_010_000
