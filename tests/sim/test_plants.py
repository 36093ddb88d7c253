"""The list of planted bugs fits the product, and the table of what catches them is complete. No seeds run here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts import rules
from tests.sim.plants import BY_NOTHING, BY_SEEDS, LIST, ROOT, TABLE, VARIABLE, Plant, PlantError, plants, rows_of

_PLANTS = plants()
_RULES = rules.page_ids(rules.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("plant", _PLANTS.values(), ids=_PLANTS.keys())
def test_a_plant_fits_the_product(plant: Plant) -> None:
    plant.code()
    assert plant.source() != (ROOT / plant.file).read_text(encoding="utf-8")
    assert not re.fullmatch(r"R\d+", plant.rule) or plant.rule in _RULES
    assert plant.why.endswith(".")


@pytest.mark.parametrize("plant", _PLANTS.values(), ids=_PLANTS.keys())
def test_what_catches_a_plant_exists(plant: Plant) -> None:
    if plant.caught_by not in (BY_SEEDS, BY_NOTHING):
        path, _, name = plant.caught_by.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_table_has_only_known_plants() -> None:
    """It has the last run of each part, and none before the first run."""
    rows = rows_of(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
    assert rows.keys() <= _PLANTS.keys(), "the table is stale: run scripts/simulate --plants"
    for name, row in rows.items():
        assert ("**not caught**" in row) == (_PLANTS[name].caught_by == BY_NOTHING), row


def test_each_rule_of_the_simulated_side_has_a_plant() -> None:
    counted = Counter(plant.rule for plant in _PLANTS.values())
    assert all(
        counted[f"R{number}"]
        for number in (*range(1, 39), 45, 46, 47, 56, 57, 58, 59, 63, 67, 71, 91)
        if f"R{number}" in _RULES
    ), counted


def test_a_plant_that_is_out_of_date_is_named() -> None:
    plant = Plant("old-news", "R1", "spark_groupsource/clock.py", "no such text", "", BY_SEEDS, "Nothing.")
    with pytest.raises(PlantError, match="the plant is out of date: old-news: `old` occurs 0 times in spark_group"):
        plant.source()


def _planted(name: str, code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {VARIABLE: name}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, text=True, capture_output=True, check=False
    )


def test_the_changed_module_is_imported() -> None:
    code = "import tests.sim, inspect; from spark_groupsource.membership.liveness import MembershipProof as proof;"
    code += "print('monotonic_s' in proof.measure_gap_s.__code__.co_names)"
    ran = _planted("a-suspended-machine-counts-no-time", code)
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr
    assert _planted("", code).stdout == "False\n"


def test_a_plant_that_comes_too_late_is_an_error() -> None:
    ran = _planted("a-suspended-machine-counts-no-time", "import spark_groupsource.membership.liveness, tests.sim")
    assert ran.returncode
    assert "was imported before a-suspended-machine-counts-no-time could be planted in it" in ran.stderr


def test_a_name_that_no_plant_has_is_an_error() -> None:
    ran = _planted("no-such-plant", "import tests.sim")
    assert f"no such plant: no-such-plant; {LIST.name} has " in ran.stderr


def test_the_modules_of_the_list_come_after_this_one() -> None:
    # Else none of the product could be planted in.
    code = "import tests.sim.plants, sys; print([name for name in sys.modules if name.startswith('spark_group')])"
    assert _planted("", code).stdout == "[]\n", Path(__file__).name
