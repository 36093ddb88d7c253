"""How names become strategies, which of them can be in one list, and the guide's example."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spark_groupsource import assignors
from spark_groupsource.assignors.interface import (
    Assignor,
    ClusterInfo,
    GroupAssignment,
    MemberSettings,
    RebalanceProtocol,
)
from spark_groupsource.assignors.leader import JoinedMember, lead
from spark_groupsource.assignors.registry import (
    BUILT_IN,
    KAFKA_PYTHON_NAMES,
    AssignorNotFound,
    ProtocolConflict,
    SameName,
    common_protocol,
    find,
    find_all,
)
from spark_groupsource.assignors.weighted import WeightedAssignor
from tests.checkout import ROOT
from tests.unit.assigning import cluster, digits, member

GUIDE = ROOT / "docs" / "assignors.md"
MODULE = "groupkafka_test_strategies"
EAGER, COOPERATIVE = RebalanceProtocol.EAGER, RebalanceProtocol.COOPERATIVE


class Plain(Assignor):
    name = "plain"

    def assign(self, cluster: ClusterInfo, members: Any) -> GroupAssignment:
        return GroupAssignment({})


def kind(name: str = "plain", **values: Any) -> type[Plain]:
    return type("Other", (Plain,), {"name": name, **values})


@pytest.fixture
def strategies(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that can be imported."""
    module = ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def test_built_in_names() -> None:
    assert sorted(BUILT_IN) == ["co-partitioned", "rack-aware", "redundant", "single-active", "weighted"]
    assert all(find(name) is found and found.name == name for name, found in BUILT_IN.items())
    assert [find(name) for name in KAFKA_PYTHON_NAMES] == ["range", "roundrobin", "sticky", "cooperative-sticky"]


def test_own_strategies(strategies: ModuleType) -> None:
    strategies.Plain = Plain  # type: ignore[attr-defined]
    assert find(f"{MODULE}:Plain") is Plain
    assert find("spark_groupsource.assignors.weighted:WeightedAssignor") is WeightedAssignor


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "wieghted",
            "there is no strategy wieghted (did you mean weighted?); there are co-partitioned, cooperative-sticky, "
            "rack-aware, range, redundant, roundrobin, single-active, sticky, weighted, and package.module:Class",
        ),
        ("Weighted", "there is no strategy Weighted (did you mean weighted?); there are "),
        ("", "there is no strategy ; there are "),
        ("a b:C", "a b:C is not of the form package.module:Class"),
        (".relative:C", ".relative:C is not of the form package.module:Class"),
        ("json:", "json: is not of the form package.module:Class"),
        (
            "no_such:C",
            "module no_such cannot be imported: ModuleNotFoundError: No module named 'no_such'; the source runs in its"
            " own Python process, so the module must be installed there or be on PYTHONPATH; --py-files does not reach"
            " it",
        ),
        ("json:Nothing", "module json has no Nothing"),
        (
            "__main__:Mine",
            "__main__:Mine is defined in the script or notebook itself, but Spark starts another Python process for "
            "the source: put Mine into a module that is installed or on PYTHONPATH",
        ),
        ("json:loads", "json:loads is not a subclass of Assignor"),
        ("json:JSONDecoder", "json:JSONDecoder is not a subclass of Assignor"),
        (
            "spark_groupsource.assignors.interface:Assignor",
            "spark_groupsource.assignors.interface:Assignor does not define assign",
        ),
    ],
)
def test_names_that_are_none(name: str, reason: str) -> None:
    with pytest.raises(AssignorNotFound) as caught:
        find(name)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (kind(name=""), "has no name"),
        (kind(name=" x"), "has no name"),
        (type("Nameless", (Assignor,), {"assign": Plain.assign}), "has no name"),
        (kind(name="sticky"), "has the name sticky, which is one of kafka-python's strategies"),
        (kind(name="weighted"), "has the name weighted, which is one of this package's strategies"),
        (
            type("Heavier", (WeightedAssignor,), {"version": 2}),
            "has the name weighted, which is one of this package's strategies",
        ),
        (kind(version=0), "has version 0, which is not an integer from 1"),
        (kind(version="2"), "has version '2', which is not an integer from 1"),
        (kind(protocols=()), "has no tuple of rebalance protocols"),
        (kind(protocols=("eager",)), "has no tuple of rebalance protocols"),
        (kind(__init__=lambda self, size: None), "cannot be created without arguments"),
    ],
)
def test_classes_that_are_none(strategies: ModuleType, found: type, reason: str) -> None:
    strategies.Found = found  # type: ignore[attr-defined]
    with pytest.raises(AssignorNotFound) as caught:
        find(f"{MODULE}:Found")
    assert str(caught.value) == f"{MODULE}:Found {reason}"


@pytest.mark.parametrize(
    ("code", "said"), [("1 / 0", "ZeroDivisionError: division by zero"), ("import sys; sys.exit(3)", "SystemExit: 3")]
)
def test_a_module_that_fails(code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "groupkafka_test_broken.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AssignorNotFound, match=f"cannot be imported: {said}"):
        find("groupkafka_test_broken:C")


def test_a_list() -> None:
    assert find_all(["weighted", "sticky"]) == (WeightedAssignor, "sticky")


def test_two_versions_of_one_strategy_may_be_in_a_list(strategies: ModuleType) -> None:
    strategies.Old, strategies.New = Plain, kind(version=2)  # type: ignore[attr-defined]
    assert find_all([f"{MODULE}:New", f"{MODULE}:Old"]) == (strategies.New, Plain)


def test_two_strategies_that_are_one_for_the_group(strategies: ModuleType) -> None:
    strategies.Old, strategies.New = kind(version=2), kind(name="plain-v2")  # type: ignore[attr-defined]
    with pytest.raises(SameName) as caught:
        find_all(["sticky", f"{MODULE}:New", f"{MODULE}:Old"])
    assert str(caught.value) == (
        f"the group cannot distinguish {MODULE}:New from {MODULE}:Old, both are plain-v2: "
        "give one of them another name or version"
    )
    with pytest.raises(SameName):
        find_all(["weighted", "spark_groupsource.assignors.weighted:WeightedAssignor"])


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["weighted"], COOPERATIVE),
        (["weighted", "redundant"], COOPERATIVE),
        (["weighted", "sticky"], EAGER),
        (["range", "roundrobin"], EAGER),
        (["cooperative-sticky", "weighted"], COOPERATIVE),
    ],
)
def test_the_common_protocol(names: list[str], expected: RebalanceProtocol) -> None:
    assert common_protocol([find(name) for name in names]) is expected


def test_a_strategy_may_prefer_the_eager_protocol() -> None:
    assert common_protocol([kind(protocols=(EAGER, COOPERATIVE)), WeightedAssignor]) is EAGER
    assert common_protocol([kind(protocols=(COOPERATIVE,)), WeightedAssignor]) is COOPERATIVE


def test_no_common_protocol() -> None:
    with pytest.raises(ProtocolConflict) as caught:
        common_protocol(["range", WeightedAssignor, "cooperative-sticky", kind(version=2, protocols=(COOPERATIVE,))])
    assert str(caught.value) == (
        "a member cannot offer range (eager protocol only) together with cooperative-sticky, plain-v2 (cooperative "
        "protocol only)"
    )


# --- the guide ---


def example() -> str:
    """Return the guide's example."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def test_the_example_of_the_guide_runs(strategies: ModuleType) -> None:
    exec(compile(example(), str(GUIDE), "exec"), strategies.__dict__)
    found = find(f"{MODULE}:Striped")
    assert not isinstance(found, str)
    clients = {"x": "query-2", "y": "query-1"}
    shown = {name: found().metadata(("orders",), MemberSettings(client_id=client)) for name, client in clients.items()}
    joined = [JoinedMember(member(name, metadata=raw), held=True) for name, raw in shown.items()]
    parts = lead(found(), cluster(orders=5), joined)
    assert {name: digits(part.active) for name, part in parts.items()} == {"y": "orders-024", "x": "orders-13"}
    assert {part.note.error for part in parts.values()} == {""}


def test_the_example_is_short() -> None:
    assert len(example().splitlines()) <= 20


def test_the_guide_names_all_strategies_and_fits_its_lines() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert text.isascii()
    assert all(f"| `{name}` |" in text for name in BUILT_IN)
    assert all(f"`{name}`" in text for name in KAFKA_PYTHON_NAMES)
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("|"))


def test_what_strategies_are_written_with() -> None:
    assert set(assignors.__all__) <= set(dir(assignors))
    assert assignors.Assignor is Assignor
