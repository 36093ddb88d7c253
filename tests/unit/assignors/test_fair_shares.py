"""Shares: against all possible answers where there are few, and their bounds where there are many."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.assignors.fair_shares import Item, share_out
from tests.unit.assigning import PROPERTIES, SEEDS

Places = list[frozenset[str]]


@st.composite
def problems(draw: st.DrawFn, items: int, members: int) -> tuple[list[Item], dict[str, Fraction]]:
    """Return items of some classes, each class with its takers and their weights, and the quotas that follow."""
    names = [f"m{number}" for number in range(draw(st.integers(1, members)))]
    source = random.Random(draw(SEEDS))
    weights = {name: source.randint(1, 4) for name in names}
    classes = [source.sample(names, source.randint(1, len(names))) for _ in range(2)]
    due = dict.fromkeys(names, Fraction(0))
    found = []
    for _ in range(draw(st.integers(0, items))):
        takers = source.choice(classes)
        copies = source.randint(1, min(2, len(takers)))
        found.append(Item({name: source.randint(0, 3) for name in takers}, copies))
        for name in takers:
            # With several copies weights could ask for more than one of a kind.
            part = Fraction(weights[name], sum(weights[taker] for taker in takers))
            due[name] += part if copies == 1 else Fraction(copies, len(takers))
    return found, due


def cost(items: list[Item], places: Places) -> int:
    return sum(item.costs[name] for item, names in zip(items, places, strict=True) for name in names)


def within(due: dict[str, Fraction], places: Places) -> bool:
    loads = Counter(name for names in places for name in names)
    return all(part // 1 <= loads[name] <= -(-part // 1) for name, part in due.items())


def check(items: list[Item], places: Places) -> None:
    for item, names in zip(items, places, strict=True):
        assert len(names) == item.copies
        assert names <= item.costs.keys()


@PROPERTIES
@given(problems(items=5, members=3))
def test_none_of_all_answers_within_the_bounds_is_cheaper(problem: tuple[list[Item], dict[str, Fraction]]) -> None:
    items, due = problem
    places = share_out(items, due)
    check(items, places)
    assert within(due, places)
    every = product(*([frozenset(names) for names in combinations(item.costs, item.copies)] for item in items))
    assert cost(items, places) == min(cost(items, list(other)) for other in every if within(due, list(other)))


def test_who_is_due_most_gets_the_rest() -> None:
    due = {"a": Fraction(4, 10), "b": Fraction(9, 10), "c": Fraction(7, 10)}
    assert share_out([Item(dict.fromkeys(due, 0)), Item(dict.fromkeys(due, 0))], due) == [{"b"}, {"c"}]


def test_who_has_it_keeps_the_rest_though_others_are_due_more() -> None:
    due = {"a": Fraction(4, 10), "b": Fraction(9, 10), "c": Fraction(7, 10)}
    assert share_out([Item({"a": 0, "b": 1, "c": 1}), Item({"a": 1, "b": 1, "c": 1})], due) == [{"a"}, {"b"}]


def test_what_nobody_may_have_goes_to_nobody() -> None:
    assert share_out([Item({})], {"a": Fraction(0)}) == [frozenset()]
    assert share_out([], {}) == []


def test_too_few_takers() -> None:
    with pytest.raises(ValueError, match="fewer possible members than copies"):
        share_out([Item({"a": 0}, 2)], {"a": Fraction(1)})
