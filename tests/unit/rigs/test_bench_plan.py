"""Which cases the benchmark runs, and what its topics hold."""

from __future__ import annotations

import pytest

from tests.benchmarks.cases import alternating
from tests.benchmarks.plan import FULL, GROUPS, SMOKE, Plan, cases_of
from tests.benchmarks.report import OURS, PEER


@pytest.fixture(autouse=True)
def _linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.plan.is_available", lambda: True)


@pytest.mark.parametrize("plan", [FULL, SMOKE])
def test_what_two_groups_want_is_measured_once_and_topics_are_made_once(plan: Plan) -> None:
    cases = cases_of(plan, GROUPS)
    assert {case.subject.group for case in cases} == set(GROUPS)
    contents = [case.content for case in cases if case.content is not None]
    changes = [content for n, content in enumerate(contents) if n == 0 or contents[n - 1] != content]
    assert len(changes) == len(set(contents))


def test_neither_source_is_always_the_second() -> None:
    assert list(alternating(3)) == [(0, OURS), (0, PEER), (1, PEER), (1, OURS), (2, OURS), (2, PEER)]
    assert [source for _, source in alternating(2, "abc")] == list("abccba")
