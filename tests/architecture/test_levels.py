"""levels.toml is complete: each promise, row and file has its tests, and each named test exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.levels import CORE, GATE, PROTOCOLS, Levels, levels, names_of, parse
from tests.realkafka.jars import TESTED_VERSIONS

PROMISES = [f"P{number}" for number in range(1, 9)]
ROWS = [f"M{number:02}" for number in range(1, 33)]
# Their tests need brokers, clusters or programs that a user's ten minutes have no room for.
SLOW_FOLDERS = ("kafka", "cluster", "browser", "monitoring")
NAMED = sorted(
    {
        *levels().core,
        *levels().quick,
        *levels().not_quick,
        *levels().gate,
        *(name for names in levels().proofs.values() for name in names),
    }
)
A, B = "tests/kafka/test_a.py::test_one", "tests/kafka/test_b.py::test_two"


@pytest.fixture(scope="module")
def collected() -> frozenset[str]:
    """Return all names by which the tests of this checkout may be named."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    return frozenset().union(*(names_of(line) for line in done.stdout.splitlines() if "::" in line))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_has_a_test_under_each_protocol(promise: str, protocol: str) -> None:
    """A test without a protocol among its parameters is one of cooperative, which is the default."""
    names = levels().proofs.get((promise, protocol))
    assert names, f"{promise} has no test under {protocol}"
    for name in names:
        parameters = set(name.partition("[")[2].rstrip("]").split("-"))
        assert parameters & set(PROTOCOLS) == {protocol} or (
            protocol == "cooperative" and parameters.isdisjoint(PROTOCOLS)
        ), name


@pytest.mark.parametrize("row", ROWS)
def test_what_must_work_has_a_test(row: str) -> None:
    names = levels().proofs.get((row, ""))
    assert names, f"{row} has no test"


def test_the_tables_have_no_other_promise_or_row() -> None:
    wanted = {(promise, protocol) for promise in PROMISES for protocol in PROTOCOLS} | {(row, "") for row in ROWS}
    assert set(levels().proofs) == wanted


def test_each_named_test_is_there(collected: frozenset[str]) -> None:
    """A test or a case that was renamed would silently leave its level."""
    assert [name for name in NAMED if name not in collected] == []


@pytest.mark.parametrize("folder", SLOW_FOLDERS)
def test_every_file_of_a_slow_folder_has_one_part(folder: str) -> None:
    for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        parts = [part.name for part in levels().parts if not {name, f"tests/{folder}"}.isdisjoint(part.tests)]
        assert len(parts) == 1, f"{name} is in the parts {parts}"


def test_a_part_has_tests_or_a_command() -> None:
    for part in levels().parts:
        assert bool(part.tests) != bool(part.command), part.name
        assert part.about
        for name in (*part.tests, *part.command[:1]):
            assert (ROOT / name).exists(), f"{part.name}: {name}"


def test_each_tested_version_of_kafka_but_the_newest_has_a_part() -> None:
    """The gate runs with the newest one."""
    chosen = [part.command[1:] for part in levels().parts if part.command[:1] == ("scripts/brokers",)]
    assert sorted(chosen) == [(version,) for version in TESTED_VERSIONS[:-1]]


def test_what_each_version_of_kafka_must_pass_is_of_all_protocols() -> None:
    parameters = {word for name in levels().contract for word in name.partition("[")[2].rstrip("]").split("-")}
    assert parameters >= set(PROTOCOLS)


def small(**changed: list[str]) -> Levels:
    """Return a table of two files in one part."""
    return parse(
        {
            "core": {"tests": changed.get("core", [])},
            "gate": {"tests": changed.get("gate", [])},
            "promises": {"P1": {"eager": changed.get("promise", [])}},
            "rows": {"M01": changed.get("row", [])},
            "quick": {"tests": changed.get("quick", []), "without": changed.get("not_quick", [])},
            "nightly": {"night": {"about": "all", "tests": ["tests/kafka"]}},
        }
    )


def test_a_test_is_at_the_first_level_that_names_it() -> None:
    assert small().level_of(A) == "night"
    assert small().level_of("tests/unit/test_c.py::test_three") == CORE
    assert small(row=["tests/unit/test_c.py"]).level_of("tests/unit/test_c.py::test_three") == CORE
    for place in ("gate", "promise", "row"):
        table = small(**{place: [A]})
        assert [table.level_of(name) for name in (A, f"{A}[eager]", f"{A}_and_more", B)] == [
            GATE,
            GATE,
            "night",
            "night",
        ]
    assert small(gate=["tests/kafka/test_a.py"]).level_of(f"{A}[x]") == GATE
    assert small(gate=[f"{A}[x]"]).level_of(f"{A}[y]") == "night"
    assert small(core=[f"{A}[x]"], gate=[A]).level_of(f"{A}[x]") == CORE


def test_a_file_is_left_out_only_if_no_test_of_it_is_at_the_level() -> None:
    table, path = small(core=[f"{A}[x]"], row=[f"{A}[y]"]), "tests/kafka/test_a.py"
    assert [table.may_have(level, path) for level in (CORE, GATE, "night")] == [True, True, True]
    assert [table.may_have(level, "tests/kafka/test_b.py") for level in (CORE, GATE, "night")] == [False, False, True]
    assert [table.may_have(level, "tests/unit/test_c.py") for level in (CORE, GATE, "night")] == [True, False, False]
    assert small(gate=[path]).may_have(GATE, path)


def test_quick_tests_are_core_tests_without_the_slowest() -> None:
    table = small(quick=["tests/unit", "tests/spark/test_a.py::test_one"], not_quick=["tests/unit/test_b.py"])
    names = ("tests/unit/test_a.py::test_x", "tests/unit/test_b.py::test_x", "tests/spark/test_a.py::test_one[1]")
    assert [table.has("quick", name) for name in names] == [True, False, True]
    assert not table.has("quick", "tests/spark/test_a.py::test_two")
    assert [table.may_have("quick", name.partition("::")[0]) for name in names] == [True, False, True]
    assert not table.may_have("quick", "tests/spark/test_b.py")
    assert {levels().level_of(name) for name in levels().quick} == {CORE}
