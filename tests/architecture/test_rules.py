"""Rules: docs/explanation/rules.md, the comments at the guards and the markers of the tests agree."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import rules

_PAGE = """# Rules

## Planning

### R1: A plan waits

Rule: nothing is planned early.

Guards against:

1. Something happens.

### R2: Another one

Rule: none.

Guards against:

1. Something else.

## Next
"""
_CODE = """LIMITS = {
    # R2: a limit
    "a": 1,
}


class Planner:
    def plan(self) -> None:
        # R1, R2: not before it is time
        if self.early:
            return
        text = "# R7: no comment"
"""
_TEST = """import pytest


@pytest.mark.rule("R1")
@pytest.mark.parametrize("early", [True, False])
def test_a_plan_waits(early: bool) -> None: ...


@pytest.mark.rule("R1", "R2")
def test_another_one() -> None: ...
"""


def planted(root: Path, code: str = _CODE, test: str = _TEST) -> tuple[rules.Places, rules.Places]:
    (root / "spark_groupsource").mkdir(parents=True)
    (root / "spark_groupsource" / "planner.py").write_text(code)
    (root / "tests" / "unit").mkdir(parents=True)
    (root / "tests" / "unit" / "test_planner.py").write_text(test)
    return rules.guards(root), rules.marked_tests(root)


def test_page_code_and_tests_agree() -> None:
    text = rules.PAGE.read_text(encoding="utf-8")
    guards, tests = rules.guards(), rules.marked_tests()
    assert rules.disagreements(text, guards, tests) == []
    assert text == rules.render(text, guards, tests), f"the page is stale: run {rules.COMMAND}"


def test_every_rule_is_a_sentence_and_a_sequence() -> None:
    text = rules.PAGE.read_text(encoding="utf-8")
    for section in re.split(r"^##+ ", text, flags=re.MULTILINE):
        if re.match(r"R\d+: ", section):
            assert re.search(r"^Rule: [A-Z]", section, re.MULTILINE), section
            assert re.search(r"^Guards against:\n\n1\. \S", section, re.MULTILINE), section


def test_places_are_found(tmp_path: Path) -> None:
    guards, tests = planted(tmp_path)
    module, test = "spark_groupsource/planner.py", "tests/unit/test_planner.py"
    assert guards == {"R1": [(module, "Planner.plan")], "R2": [(module, "LIMITS"), (module, "Planner.plan")]}
    both = (test, "test_another_one")
    assert tests == {"R1": [(test, "test_a_plan_waits"), both], "R2": [both]}


def test_the_page_names_them(tmp_path: Path) -> None:
    places = planted(tmp_path)
    page = rules.render(_PAGE, *places)
    assert rules.render(page, *places) == page
    assert rules.disagreements(page, *places) == []
    _, _, first = page.partition("1. Something happens.\n")
    assert first.startswith(
        "\nDecided in:\n\n- `spark_groupsource/planner.py`: `Planner.plan`\n"
        "\nShown by:\n\n- `tests/unit/test_planner.py`: `test_a_plan_waits`, `test_another_one`\n"
        "\n### R2: Another one\n"
    )
    assert page.endswith("## Next\n")


def test_what_does_not_agree_is_found(tmp_path: Path) -> None:
    guards, tests = planted(tmp_path, _CODE.replace("R1, R2", "R3"), _TEST.replace('"R1", "R2"', '"R4"'))
    assert rules.disagreements(_PAGE.replace("### R2", "### R1"), guards, tests) == [
        "the page has rule R1 2 times",
        "R1 has no comment '# R1: ...' in the package",
        "R1 has no comment '# R1: ...' in the package",
        "spark_groupsource/planner.py names R2, which the page does not have",
        "spark_groupsource/planner.py names R3, which the page does not have",
        "tests/unit/test_planner.py names R4, which the page does not have",
    ]


def test_ids_need_not_rise_over_the_page(tmp_path: Path) -> None:
    """A rule is in the section of what it decides."""
    places = planted(tmp_path)
    first, second = (_PAGE.index(f"### R{number}") for number in (1, 2))
    end = _PAGE.index("## Next")
    turned = _PAGE[:first] + _PAGE[second:end] + _PAGE[first:second] + _PAGE[end:]
    assert rules.page_ids(turned) == ["R2", "R1"]
    assert rules.disagreements(turned, *places) == []


def test_a_number_that_is_left_out_is_found(tmp_path: Path) -> None:
    assert rules.disagreements(_PAGE.replace("### R2", "### R3"), *planted(tmp_path))[:1] == [
        "the page has rule R2 0 times"
    ]
