"""The nightly runner: its table, and the words of a result."""

from __future__ import annotations

import pytest

from tests import nightly
from tests.levels import Part


def test_a_row_replaces_the_older_one_of_its_part_and_leaves_the_others() -> None:
    old = {name: nightly.Row(name, "abc1234", "2026-01-02", 12, "passed: 3 passed") for name in ("b", "a", "gone")}
    text = nightly.table_of(old, ["a", "b", "c"])
    assert [line.split("|")[1].strip() for line in text.splitlines()[-2:]] == ["a", "b"]
    rows = nightly.rows_of(text)
    assert rows == {"a": old["a"], "b": old["b"]}
    new = nightly.Row("a", "def5678-dirty", "2026-01-03", 13, "FAILED: 1 failed, 2 passed")
    assert nightly.rows_of(nightly.table_of(rows | {"a": new}, ["a", "b", "c"])) == {"a": new, "b": old["b"]}


TESTS = Part("topics", "about", ("tests/kafka",))
COMMAND = Part("rig", "about", (), ("scripts/faults",))


@pytest.mark.parametrize(
    ("part", "output", "code", "result"),
    [
        (TESTS, ["x", "==== 3 passed, 1 skipped in 12.50s ===="], 0, "passed: 3 passed, 1 skipped"),
        (TESTS, ["1 failed, 2 passed in 61.02s (0:01:01)"], 1, "FAILED: 1 failed, 2 passed"),
        (TESTS, ["300 skipped, 4 deselected in 8.10s"], 0, "FAILED: 300 skipped, 4 deselected"),
        (TESTS, ["nothing"], 0, "FAILED: exit code 0"),
        (TESTS, [], -9, "FAILED: exit code -9"),
        (COMMAND, ["12:00:01 PASSED after 300 s, seed 1"], 0, "passed: PASSED after 300 s, seed 1"),
        (COMMAND, ["12:00:01 FAILED after 300 s, seed 1"], 1, "FAILED: FAILED after 300 s, seed 1"),
        (COMMAND, ["a table"], 0, "passed: exit code 0"),
    ],
)
def test_a_result_has_the_last_words_of_its_output(part: Part, output: list[str], code: int, result: str) -> None:
    assert nightly.result_of(part, output, code) == result
