"""Which cases the benchmark runs, and what its topics hold."""

from __future__ import annotations

import zlib

import pytest

from tests.benchmarks.__main__ import parse_arguments, plan_of
from tests.benchmarks.cases import alternating
from tests.benchmarks.plan import FULL, GROUPS, SMOKE, Plan, cases_of, default_records, throughput_goals
from tests.benchmarks.records import Content, json_texts, values_of
from tests.benchmarks.report import ADD_BATCH, CPU, OURS, PEER, WHOLE_QUERY


@pytest.fixture(autouse=True)
def _linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmarks.plan.is_available", lambda: True)


def names(plan: Plan, *groups: str) -> list[str]:
    return [f"{case.subject.group}: {case.subject.name}" for case in cases_of(plan, groups)]


def test_the_full_plan_has_every_size_sink_number_of_partitions_and_compression() -> None:
    found = names(FULL, *GROUPS)
    for wanted in (
        "throughput: 2,000,000 x 100 B, noop sink, 4 partitions",
        "throughput: 2,000,000 x 100 B, count and sum by key, 4 partitions",
        "throughput: 2,000,000 x 100 B, noop sink, 64 partitions",
        "shortwait: 500,000 x 1 KB, noop sink, short fetch wait, 64 partitions",
        "throughput: 100,000 x 10 KB, count and sum by key, 4 partitions",
        "compression: 500,000 x 1 KB of JSON, none, noop sink, short fetch wait, 4 partitions",
        "compression: 500,000 x 1 KB of JSON, lz4, noop sink, short fetch wait, 4 partitions",
        "compression: 500,000 x 1 KB of JSON, zstd, noop sink, short fetch wait, 4 partitions",
        "growth: 2,000,000 x 100 B, noop sink, short fetch wait, 256 partitions",
        "query: 10,000,000 x 100 B, noop sink, 4 partitions",
        "backlog: batches of a backlog, 1 x 100 B, 1 partition",
        "backlog: batches of a backlog, 400 x 100 B, 4 partitions",
        "backlog: batches of a backlog, 10,000 x 100 B, 4 partitions",
        "deep: batches of a deep backlog, 400 x 100 B, 16 partitions",
        "deep: batches of a deep backlog, 10,000 x 100 B, 16 partitions",
        "new: batches of new records, 400 x 100 B, 1 partition",
        "memory: 500,000 x 1 KB, noop sink, an application of its own, 4 partitions",
    ):
        assert wanted in found
    assert len(found) == len(set(found))


@pytest.mark.parametrize("plan", [FULL, SMOKE])
def test_what_two_groups_want_is_measured_once_and_topics_are_made_once(plan: Plan) -> None:
    cases = cases_of(plan, GROUPS)
    assert {case.subject.group for case in cases} == set(GROUPS)
    contents = [case.content for case in cases if case.content is not None]
    changes = [content for n, content in enumerate(contents) if n == 0 or contents[n - 1] != content]
    assert len(changes) == len(set(contents))


def test_one_group_alone_has_all_that_it_needs() -> None:
    found = names(FULL, "growth")
    assert found == [
        f"growth: 2,000,000 x 100 B, noop sink, short fetch wait, {count} partitions" for count in (4, 64, 256)
    ]


def test_goals() -> None:
    assert throughput_goals(Content(1, 100, 4), in_c=True) == {ADD_BATCH: 3.0, CPU: 2.0}
    assert throughput_goals(Content(1, 1000, 4), in_c=True) == {ADD_BATCH: 2.5, CPU: 2.0}
    assert throughput_goals(Content(10_000_000, 100, 4), in_c=True)[WHOLE_QUERY] == 2.0
    assert throughput_goals(Content(1, 100, 4), in_c=False) == {ADD_BATCH: 1.0}


def test_neither_source_is_always_the_second() -> None:
    assert list(alternating(3)) == [(0, OURS), (0, PEER), (1, PEER), (1, OURS), (2, OURS), (2, PEER)]
    assert [source for _, source in alternating(2, "abc")] == list("abccba")


# --- the command line


def test_what_is_given_changes_the_plan() -> None:
    words = "--case throughput --size 100 1000 --records 5_000 --partitions 2 --runs 7"
    given = parse_arguments(words.split())
    plan = plan_of(given)
    assert (plan.sizes, plan.partitions, plan.runs) == ({100: 5_000, 1000: 5_000}, [2], 7)
    assert given.case == ["throughput"]


def test_records_follow_from_the_size() -> None:
    assert plan_of(parse_arguments(["--size", "5000"])).sizes == {5000: 100_000}
    assert default_records(100) == 2_000_000
    assert default_records(1_000_000_000) == 1


def test_small_batches_that_fill_their_partitions() -> None:
    plan = plan_of(parse_arguments(["--batch-records", "1", "50", "--partitions", "4"]))
    assert plan.small == plan.new == [(1, 1), (50, 1), (50, 4)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("--records 0", "--records: 0 is not at least 1"),
        ("--runs many", "--runs"),
        ("--option x", "x is not KEY=VALUE"),
        ("--case all", "--case"),
        ("--json /no/such/folder/file", "/no/such/folder/file: no such folder"),
    ],
)
def test_wrong_arguments_are_refused(wrong: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(wrong.split())
    assert said in capsys.readouterr().err.splitlines()[-1]


# --- contents


def test_json_texts_have_their_size_and_can_be_compressed_as_such_data_can() -> None:
    texts = json_texts(1000, 200)
    assert {len(text) for text in texts} == {1000}
    assert len(set(texts)) == 200
    assert texts == json_texts(1000, 200)
    together = b"".join(texts)
    assert 2.5 < len(together) / len(zlib.compress(together)) < 8


@pytest.mark.parametrize("text", [False, True])
def test_no_more_values_than_records(text: bool) -> None:
    assert len(values_of(Content(3, 100, 1, text=text))) == 3
