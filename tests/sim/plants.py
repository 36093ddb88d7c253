"""Plant bugs in the product, one at a time, and see which of them the simulator and the other tests catch.

`plants.toml` is the list: a plant removes the guard of one rule, by a textual change of one place. The process that has
GROUPKAFKA_PLANT=<name> in its environment imports the changed module instead of the one in the file, if this module is
imported before the product: `scripts/simulate` does so, and pytest with `-p tests.sim.plants`:

    GROUPKAFKA_PLANT=plans-from-old-ownership scripts/simulate --seed 7
    GROUPKAFKA_PLANT=forgets-the-log-is-old pytest -p tests.sim.plants tests/unit/checkpoint

This module must not import the product: it would come too early.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

VARIABLE = "GROUPKAFKA_PLANT"
ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("plants.toml")
TABLE = Path(__file__).with_name("plants.md")
# How many seeds a run of all plants may take for one of them.
SEEDS = 3000
_PART = re.compile(r"(\d+)/(\d+)")
_LONGEST_S = 3600
_FIELDS = {"name", "rule", "file", "old", "new", "caught_by", "why"}
# What `caught_by` may be besides the id of a test.
BY_SEEDS, BY_NOTHING = "seeds", "nothing"


class PlantError(Exception):
    """Raised for a plant that does not fit the product, or a name that no plant has."""


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted bug. `why` is what goes wrong then; `why_not` why nothing can catch it, for `caught_by = "nothing"`."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    caught_by: str
    why: str
    why_not: str = ""

    @property
    def module(self) -> str:
        """The name of the changed module."""
        return self.file.removesuffix(".py").replace("/", ".")

    def source(self) -> str:
        """Return the changed source. Raises `PlantError` if the place to change is not there, or not the only one."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        found = text.count(self.old)
        if found != 1:
            raise PlantError(f"the plant is out of date: {self.name}: `old` occurs {found} times in {self.file}")
        return text.replace(self.old, self.new)

    def code(self) -> CodeType:
        """Return the changed module, compiled."""
        return compile(self.source(), str(ROOT / self.file), "exec", dont_inherit=True)


def plants() -> dict[str, Plant]:
    """Return all plants by name."""
    rows = tomllib.loads(LIST.read_text(encoding="utf-8"))["plant"]
    found: dict[str, Plant] = {}
    for row in rows:
        if not row.keys() >= _FIELDS or row["name"] in found:
            raise PlantError(f"a row of {LIST.name} lacks a key, or has the name of another one: {row}")
        if (row["caught_by"] == BY_NOTHING) != ("why_not" in row):
            raise PlantError(f'{row["name"]}: `why_not` belongs to caught_by = "{BY_NOTHING}"')
        found[row["name"]] = Plant(**row)
    return found


# --- the import of the changed module


class _Loader(importlib.machinery.SourceFileLoader):
    """Load a module with its planted bug. Nothing is kept in `__pycache__`."""

    def __init__(self, plant: Plant) -> None:
        super().__init__(plant.module, str(ROOT / plant.file))
        self._plant = plant

    def get_code(self, fullname: str) -> CodeType:
        """See the base class."""
        return self._plant.code()


class _Finder(importlib.abc.MetaPathFinder):
    """Find one module: the planted one."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """See the base class."""
        if fullname != self._plant.module:
            return None
        return importlib.util.spec_from_file_location(fullname, ROOT / self._plant.file, loader=_Loader(self._plant))


def install() -> None:
    """Plant the bug that the environment names, if it names one. Raises `PlantError` if that comes too late."""
    name = os.environ.get(VARIABLE)
    if not name or any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    plant = _known([name])[0]
    plant.source()
    if plant.module in sys.modules:
        raise PlantError(f"{plant.module} was imported before {name} could be planted in it")
    sys.meta_path.insert(0, _Finder(plant))


def _known(names: Sequence[str]) -> list[Plant]:
    known = plants()
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PlantError(f"no such plant: {', '.join(unknown)}; {LIST.name} has {', '.join(known)}")
    return [known[name] for name in names]


# --- which are caught


@dataclass(frozen=True, slots=True)
class Found:
    """What became of a plant. `by` is a seed or a test, `problem` how it showed; `seeds` is how many were run."""

    plant: Plant
    by: str = ""
    problem: str = ""
    seeds: int = 0

    @property
    def is_caught(self) -> bool:
        """Whether it was caught."""
        return bool(self.by)

    @property
    def is_expected(self) -> bool:
        """Whether it was caught, or cannot be."""
        return self.is_caught or self.plant.caught_by == BY_NOTHING

    def row(self) -> str:
        """Return the row of the table."""
        if self.is_caught:
            how = "seeds" if self.by.startswith("seed") else "a test"
            cells = [how, f"`{self.by}`" if how == "a test" else self.by.removeprefix("seed "), self.problem]
        else:
            reason = self.plant.why_not or f"must be caught by {self.plant.caught_by}"
            cells = ["**not caught**", f"{self.seeds:,} seeds" if self.seeds else "", reason]
        return "| " + " | ".join([self.plant.name, self.plant.rule, *map(_cell, cells)]) + " |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def _in_process(arguments: Sequence[str], plant: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONHASHSEED": "0", VARIABLE: plant}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env=environment, text=True, capture_output=True, timeout=_LONGEST_S, check=False,
    )  # fmt: skip


def hunt(first: int, last: int) -> None:
    """Run seeds until one fails, and print it with its first problem. In a process that has the plant."""
    from tests.sim.explore import simulate_many

    for start in range(first, last + 1, 10):
        for outcome in simulate_many(range(start, min(start + 10, last + 1))):
            if outcome.problems:
                lines = outcome.problems[0].splitlines()
                # The last line of a traceback has the error.
                print(f"seed {outcome.plan.seed}: {lines[0] if 'UNEXPECTED' not in lines[0] else lines[-1]}")
                return


def _hunt_in_process(first: int, last: int, plant: str) -> tuple[int, str] | None:
    ran = _in_process(["-c", f"from tests.sim.plants import hunt; hunt({first}, {last})"], plant)
    if ran.returncode:
        # It does not even run: that is caught, too, but by any seed.
        return first, f"ERROR {ran.stderr.strip().splitlines()[-1]}"
    found = re.search(r"^seed (\d+): (.*)$", ran.stdout, re.MULTILINE)
    return (int(found[1]), found[2]) if found else None


def _by_seeds(plant: Plant, seeds: int) -> Found:
    """Run seeds until one fails that does not fail without the plant."""
    first = 1
    while first <= seeds:
        found = _hunt_in_process(first, seeds, plant.name)
        if found is None:
            break
        seed, problem = found
        if _hunt_in_process(seed, seed, "") is None:
            return Found(plant, f"seed {seed}", _first_words(problem), seed)
        print(f"{plant.name}: seed {seed} fails without the plant, too", flush=True)
        first = seed + 1
    return Found(plant, seeds=seeds)


def _by_test(plant: Plant) -> Found:
    """Run the named test, which must fail."""
    options = ["-p", "tests.sim.plants", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = _in_process(["-m", "pytest", *options, plant.caught_by], plant.name)
    if ran.returncode not in (0, 1):
        raise PlantError(f"{plant.name}: {plant.caught_by} could not run:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    if ran.returncode == 0:
        return Found(plant)
    problem = re.search(r"^E +(.+)$", ran.stdout, re.MULTILINE)
    return Found(plant, plant.caught_by, _first_words(problem[1] if problem else "fails"))


def _first_words(problem: str) -> str:
    words = problem.split()
    return " ".join(words[:14]) + (" ..." if len(words) > 14 else "")


def _look(plant: Plant, seeds: int) -> Found:
    began = time.monotonic()
    found = _by_seeds(plant, seeds) if plant.caught_by in (BY_SEEDS, BY_NOTHING) else _by_test(plant)
    state = f"caught by {found.by}: {found.problem}" if found.is_caught else "NOT caught"
    print(f"{plant.name} ({plant.rule}): {state} ({time.monotonic() - began:.0f} s)", flush=True)
    return found


def run_plants(names: Sequence[str], seeds: int, jobs: int) -> int:
    """Plant bugs, all or some, and print which are caught. Return 1 if one that must be caught is not.

    `names` may be a part of all (`1/4`). A run of all plants, or of a part, updates the rows of `plants.md`.
    """
    part = _PART.fullmatch(names[0]) if len(names) == 1 else None
    chosen = list(plants().values()) if not names or part else _known(names)
    if part:
        chosen = chosen[int(part[1]) - 1 :: int(part[2])]
    with ThreadPoolExecutor(jobs) as pool:
        found = list(pool.map(lambda plant: _look(plant, seeds), chosen))
    print("\n".join(["", *_HEAD, *(one.row() for one in found)]))
    if not names or part:
        write_table(found)
    missed = [one.plant.name for one in found if not one.is_expected]
    caught = sum(one.is_caught for one in found)
    print(f"{'FAILED' if missed else 'PASSED'}: {caught} of {len(found)} plants are caught; missed: {missed or 'none'}")
    return 1 if missed else 0


# --- the table

_HEAD = ("| plant | rule | caught by | seed or test | the problem, or why not |", "|---|---|---|---|---|")
_INTRODUCTION = """# Planted bugs

For whoever changes the simulator, or a rule: which planted bugs it catches. A plant of `plants.toml` removes the guard
of one rule. A seed is the first one, from 1 on, that fails with the plant and does not without it.

This page is written by `scripts/simulate --plants`, or in parts by `scripts/simulate --plants 1/4`. Rules are explained
in [rules](../../docs/explanation/rules.md).
"""


def rows_of(text: str) -> dict[str, str]:
    """Return the rows of the table by plant."""
    rows = (line for line in text.splitlines() if line.startswith("| ") and line not in _HEAD)
    return {row.split(" | ")[0].removeprefix("| "): row for row in rows}


def write_table(found: Sequence[Found]) -> None:
    """Update the rows of the plants that were run; drop those of plants that do not exist any more."""
    rows = rows_of(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    rows |= {one.plant.name: one.row() for one in found}
    ordered = [rows[name] for name in plants() if name in rows]
    caught = sum("**not caught**" not in row for row in ordered)
    text = [_INTRODUCTION, f"{caught} of {len(ordered)} are caught.\n", *_HEAD, *ordered, "", *_next()]
    TABLE.write_text("\n".join(text), encoding="utf-8")


def _next() -> Iterator[str]:
    yield "## Next"
    yield ""
    yield "[Add a plant](plants.toml), [what the simulator is](../../CONTRIBUTING.md), [the rig's faults](../faults)"
    yield ""


install()
