"""What is fetched and not taken yet: what is given up when it is too much."""

from __future__ import annotations

from spark_groupsource.executor.kept import beyond

from .fakes import tp

P0, P1, P2 = tp(0), tp(1), tp(2)


def test_the_largest_are_given_up_until_the_others_fit() -> None:
    sizes = {P0: 5, P1: 20, P2: 10}
    assert [beyond(sizes, most) for most in (35, 34, 14, 0)] == [[], [P1], [P1, P2], [P1, P2, P0]]
