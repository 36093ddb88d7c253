"""Read from levels.toml at which level a test runs: `scripts/test`, its `--gate`, or a part of its `--nightly`.

Levels: `core` (what a user's machine shows in ten minutes), `gate` (what each change must pass besides), and the names
of the nightly parts. `quick` is a part of core that ends in two minutes. Tests are named by node ids; an id without
parameters names all cases of a test, a path all tests of a file.

    python -m tests.levels     lists the tests that each version of Kafka must pass (scripts/brokers)
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

PATH = Path(__file__).with_name("levels.toml")
CORE, GATE, QUICK = "core", "gate", "quick"
PROTOCOLS = ("cooperative", "eager", "kip848", "weighted")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the nightly run: tests, or a command without them."""

    name: str
    about: str
    tests: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Levels:
    """The table: `proofs` is (promise or row, protocol or "") -> node ids."""

    core: tuple[str, ...]
    gate: tuple[str, ...]
    parts: tuple[Part, ...]
    proofs: dict[tuple[str, str], tuple[str, ...]]
    quick: tuple[str, ...]
    not_quick: tuple[str, ...]

    def has(self, level: str, node_id: str) -> bool:
        """Return whether a test is of a level."""
        if level != QUICK:
            return self.level_of(node_id) == level
        names = names_of(node_id)
        return not names.isdisjoint(self.quick) and names.isdisjoint(self.not_quick)

    def level_of(self, node_id: str) -> str:
        """Return the level of a test: core without a nightly part, else the first that names it."""
        names, part = names_of(node_id), self.part_of(node_id.partition("::")[0])
        if part == CORE or not names.isdisjoint(self.core):
            return CORE
        return GATE if not names.isdisjoint(self._gated) else part

    def may_have(self, level: str, path: str) -> bool:
        """Return whether a test file may have tests of a level. Others need not be imported."""
        part = self.part_of(path)
        if level == QUICK:
            named = {name.partition("::")[0] for name in self.quick}
            return not names_of(path).isdisjoint(named) and path not in self.not_quick
        if part == CORE:
            return level == CORE
        chosen = {CORE: self.core, GATE: self._gated}.get(level)
        return part == level if chosen is None else any(name.partition("::")[0] == path for name in chosen)

    def part_of(self, path: str) -> str:
        """Return the part of a file; core without one."""
        names = names_of(path)
        return next((part.name for part in self.parts if not names.isdisjoint(part.tests)), CORE)

    @property
    def contract(self) -> tuple[str, ...]:
        """Return the tests of the promises that need a broker: what each version of Kafka must pass."""
        found = (name for (promise, protocol), names in self.proofs.items() if protocol for name in names)
        return tuple(dict.fromkeys(name for name in found if name.startswith("tests/kafka/")))

    @cached_property
    def _gated(self) -> frozenset[str]:
        return frozenset(self.gate).union(*self.proofs.values())


def names_of(node_id: str) -> set[str]:
    """Return the names by which levels.toml may mean a test: its id, that of all its cases, its file and folders."""
    path, _, function = node_id.partition("::")
    return {node_id, f"{path}::{function.partition('[')[0]}", path, *map(str, PurePosixPath(path).parents)}


@cache
def levels() -> Levels:
    """Return the table of this checkout."""
    return parse(tomllib.loads(PATH.read_text(encoding="utf-8")))


def parse(found: dict[str, Any]) -> Levels:
    """Return the table from levels.toml's content."""
    proofs = {
        (promise, protocol): tuple(names)
        for promise, cells in found["promises"].items()
        for protocol, names in cells.items()
    }
    proofs |= {(row, ""): tuple(names) for row, names in found["rows"].items()}
    parts = tuple(
        Part(name, given["about"], tuple(given.get("tests", ())), tuple(given.get("command", ())))
        for name, given in found["nightly"].items()
    )
    return Levels(
        tuple(found["core"]["tests"]), tuple(found["gate"]["tests"]), parts, proofs,
        tuple(found["quick"]["tests"]), tuple(found["quick"]["without"]),
    )  # fmt: skip


if __name__ == "__main__":
    print("\n".join(levels().contract))
