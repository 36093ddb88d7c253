"""What is fetched and not taken yet: what is given up when it is too much."""

from __future__ import annotations

from collections.abc import Iterable

from spark_groupsource.executor.kept import Kept, beyond
from spark_groupsource.executor.port import Chunk
from spark_groupsource.executor.rows import record_batch
from spark_groupsource.offsets import OffsetRange

from .fakes import FakeMessage, records, tp

P0, P1, P2 = tp(0), tp(1), tp(2)


def chunk(number: int, offsets: Iterable[int]) -> Chunk:
    return Chunk(tp(number), record_batch(tp(number), records(number, *offsets), False))


def test_the_largest_are_given_up_until_the_others_fit() -> None:
    sizes = {P0: 5, P1: 20, P2: 10}
    assert [beyond(sizes, most) for most in (35, 34, 14, 0)] == [[], [P1], [P1, P2], [P1, P2, P0]]


def test_sizes_follow_what_comes_and_goes() -> None:
    """Each chunk counts for what it takes by itself, too: a hundred of one row are more than one of a hundred rows."""
    kept, row = Kept(), chunk(0, range(100)).batch.nbytes // 100
    kept.add(chunk(0, range(100)), 0)
    one = kept.sizes()[P0] - 100 * row
    assert one > 1_000
    for offset in range(100):
        kept.add(chunk(1, [offset]), 0)
    sizes = kept.sizes()
    assert sizes[P1] > sizes[P0] + 90 * one
    kept.take(OffsetRange(P0, 0, 30), 0)
    kept.advance(P1, 90)
    assert sizes[P0] - 40 * row < kept.size(P0) < sizes[P0] - 20 * row
    assert 9 * kept.size(P1) < sizes[P1] < 11 * kept.size(P1)
    kept.add(chunk(0, range(20, 40)), 35)
    assert kept.sizes()[P0] > sizes[P0] - 40 * row + one
    kept.drop(P0)
    kept.take(OffsetRange(P1, 0, 100), 90)
    assert kept.sizes() == {}
    assert kept.size(P1) == 0


def test_the_rows_of_large_records_count_with_their_bytes() -> None:
    """An average of small and large ones would let a topic with large records go beyond the bound."""
    kept = Kept()
    kept.add(chunk(0, range(10)), 0)
    large = FakeMessage(P1, 0)
    large.value = lambda: bytes(1_000_000)  # type: ignore[method-assign]
    kept.add(Chunk(P1, record_batch(P1, [large], False)), 0)
    assert kept.size(P0) < 10_000
    assert 1_000_000 < kept.size(P1) < 1_010_000
