"""What is fetched and not taken yet: what is given up when it is too much."""

from __future__ import annotations

from collections.abc import Iterable

from spark_groupsource.executor.kept import Kept, beyond
from spark_groupsource.executor.port import Chunk
from spark_groupsource.executor.rows import record_batch
from spark_groupsource.offsets import OffsetRange

from .fakes import records, tp

P0, P1, P2 = tp(0), tp(1), tp(2)


def chunk(number: int, offsets: Iterable[int]) -> Chunk:
    return Chunk(tp(number), record_batch(tp(number), records(number, *offsets), False))


def test_the_largest_are_given_up_until_the_others_fit() -> None:
    sizes = {P0: 5, P1: 20, P2: 10}
    assert [beyond(sizes, most) for most in (35, 34, 14, 0)] == [[], [P1], [P1, P2], [P1, P2, P0]]


def test_sizes_follow_what_comes_and_goes() -> None:
    """Each chunk counts for what it takes by itself, too: a hundred of one row are more than one of a hundred rows."""
    kept = Kept()
    kept.add(chunk(0, range(100)), 0)
    one = kept.sizes(10)[P0] - 1_000
    assert one > 1_000
    for offset in range(100):
        kept.add(chunk(1, [offset]), 0)
    assert kept.sizes(10) == {P0: 1_000 + one, P1: 1_000 + 100 * one}
    kept.take(OffsetRange(P0, 0, 30), 0)
    kept.advance(P1, 90)
    assert kept.sizes(10) == {P0: 700 + one, P1: 100 + 10 * one}
    kept.add(chunk(0, range(20, 40)), 35)
    assert kept.sizes(10)[P0] == 750 + 2 * one
    kept.drop(P0)
    kept.take(OffsetRange(P1, 0, 100), 90)
    assert kept.sizes(10) == {}
