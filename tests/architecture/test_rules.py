"""Rules: docs/explanation/rules.md, the sequences and comments at the guards, and the markers of the tests agree."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import rules

# A page that a person can hold in mind.
_MAX_LINES = 650
_PAGE = """# Rules

1. **A plan waits.** It does.

## A plan waits

<a id="r1"></a>**R1: A plan waits.** Nothing is planned
early.<br>

<a id="r2"></a>**R2: Another one.** None.<br>

## Next
"""
_CODE = '''LIMITS = {
    # R2: a limit
    # Guards against (rule R2):
    # 1. Something else.
    # 2. It is lost, as R1 has it.
    # Not a step.
    "a": 1,
}


class Planner:
    def plan(self) -> None:
        """Plan. A text before.

        Guards against (rule R1, a late answer):
        1. A late answer.
        2. It is lost.

        Guards against (rule R1):
        1. Something happens, and it goes on
           in a second line.
        2. The offset is 50. It is lost.
        """
        # R1, R2: not before it is time
        if self.early:
            return
        text = "# R7: no comment"
'''
_TEST = """import pytest


@pytest.mark.rule("R1")
@pytest.mark.parametrize("early", [True, False])
def test_a_plan_waits(early: bool) -> None: ...


@pytest.mark.rule("R1", "R2")
def test_another_one() -> None: ...
"""

Found = tuple[rules.Sequences, rules.Places, rules.Places]


def planted(root: Path, code: str = _CODE, test: str = _TEST) -> Found:
    (root / "spark_groupsource").mkdir(parents=True)
    (root / "spark_groupsource" / "planner.py").write_text(code)
    (root / "tests" / "unit").mkdir(parents=True)
    (root / "tests" / "unit" / "test_planner.py").write_text(test)
    return rules.sequences(root), rules.guards(root), rules.marked_tests(root)


def test_pages_code_and_tests_agree() -> None:
    text = rules.PAGE.read_text(encoding="utf-8")
    against, guards, tests = rules.sequences(), rules.guards(), rules.marked_tests()
    assert rules.disagreements(text, against, guards, tests) == []
    assert text == rules.render(text, against), f"the page is stale: run {rules.COMMAND}"
    assert rules.INDEX.read_text(encoding="utf-8") == rules.index(text, guards, tests), (
        f"the index is stale: run {rules.COMMAND}"
    )


def test_the_page_is_short() -> None:
    lines = rules.PAGE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= _MAX_LINES, "merge rules, or shorten their steps"
    assert [line for line in lines if len(line) > rules.WIDTH] == []


def test_every_section_is_an_invariant_of_the_list() -> None:
    text = rules.PAGE.read_text(encoding="utf-8")
    invariants = re.findall(r"^\d+\. \*\*(.+?)\.\*\* [A-Z`]", text.partition("\n## ")[0], re.MULTILINE)
    assert len(invariants) == 15
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [*invariants, "Next"]


def test_every_rule_is_a_sentence_and_a_sequence() -> None:
    text = rules.PAGE.read_text(encoding="utf-8")
    for paragraph in text.split("\n\n"):
        if paragraph.startswith("<a id="):
            written, _, steps = paragraph.partition("<br>\n")
            assert re.fullmatch(r'<a id="r\d+"></a>\*\*R\d+:\s.+?\.\*\*\s[A-Z].+\.', written, re.DOTALL), paragraph
            assert re.match(r"\*Against\*(?: \([^)]+\))?: 1\. \S", steps), paragraph
    assert len(re.findall(r"^<a id=", text, re.MULTILINE)) == len(rules.page_ids(text))


def test_every_sequence_of_a_rule_is_read() -> None:
    """A head in another form would be overlooked."""
    heads = 0
    for path in (rules.ROOT / "spark_groupsource").rglob("*.py"):
        heads += len(re.findall(r"Guards\s+against\s+\(rules? R", path.read_text(encoding="utf-8")))
    assert heads == sum(map(len, rules.sequences().values()))


def test_places_are_found(tmp_path: Path) -> None:
    _, guards, tests = planted(tmp_path)
    module, test = "spark_groupsource/planner.py", "tests/unit/test_planner.py"
    assert guards == {"R1": [(module, "Planner.plan")], "R2": [(module, "LIMITS"), (module, "Planner.plan")]}
    both = (test, "test_another_one")
    assert tests == {"R1": [(test, "test_a_plan_waits"), both], "R2": [both]}


def test_sequences_are_found(tmp_path: Path) -> None:
    against, _, _ = planted(tmp_path)
    module = "spark_groupsource/planner.py"
    assert against == {
        "R1": [
            ("", module, ("Something happens, and it goes on in a second line.", "The offset is 50. It is lost.")),
            ("a late answer", module, ("A late answer.", "It is lost.")),
        ],
        "R2": [("", module, ("Something else.", "It is lost, as R1 has it."))],
    }


def test_the_page_has_the_sequences(tmp_path: Path) -> None:
    against, guards, tests = planted(tmp_path)
    page = rules.render(_PAGE, against)
    assert rules.render(page, against) == page
    assert rules.disagreements(page, against, guards, tests) == []
    assert page == (
        "# Rules\n\n1. **A plan waits.** It does.\n\n## A plan waits\n\n"
        '<a id="r1"></a>**R1: A plan waits.** Nothing is planned early.<br>\n'
        "*Against*: 1. Something happens, and it goes on in a second line. 2. The offset is 50. It is lost.<br>\n"
        "*Or* (a late answer): 1. A late answer. 2. It is lost.\n\n"
        '<a id="r2"></a>**R2: Another one.** None.<br>\n'
        "*Against*: 1. Something else. 2. It is lost, as [R1](#r1) has it.\n\n"
        "## Next\n"
    )


def test_no_line_of_the_page_begins_a_list(tmp_path: Path) -> None:
    against = {"R2": [rules.Sequence("", "", tuple(f"{'word ' * n}ends at 1." for n in range(15, 30)))]}
    page = rules.render(_PAGE, against)
    assert re.findall(r"^1\. .*", page.partition("## A plan waits")[2], re.MULTILINE) == []
    assert max(map(len, page.splitlines())) <= rules.WIDTH


def test_the_index_names_the_places(tmp_path: Path) -> None:
    _, guards, tests = planted(tmp_path)
    written = rules.index(_PAGE, guards, tests)
    assert (
        "\n## R1\n\n[A plan waits](rules.md#r1)\n"
        "\nDecided in:\n\n- `spark_groupsource/planner.py`: `Planner.plan`\n"
        "\nShown by:\n\n- `tests/unit/test_planner.py`: `test_a_plan_waits`, `test_another_one`\n"
        "\n## R2\n"
    ) in written


def test_what_does_not_agree_is_found(tmp_path: Path) -> None:
    code = _CODE.replace("R1, R2", "R3").replace("(rule R2)", "(rule R5)")
    found = planted(tmp_path, code, _TEST.replace('"R1", "R2"', '"R4"'))
    assert rules.disagreements(_PAGE.replace("**R2", "**R1"), *found) == [
        "the page has rule R1 2 times",
        "R1 has the anchor r2",
        "R1 has no comment '# R1: ...' in the package",
        "R1 has no comment '# R1: ...' in the package",
        "spark_groupsource/planner.py names R5, which the page does not have",
        "spark_groupsource/planner.py names R2, which the page does not have",
        "spark_groupsource/planner.py names R3, which the page does not have",
        "tests/unit/test_planner.py names R4, which the page does not have",
    ]


def test_a_rule_without_a_sequence_is_found(tmp_path: Path) -> None:
    found = planted(tmp_path, _CODE.replace("Guards against (rule R2)", "Guards against"))
    assert rules.disagreements(_PAGE, *found) == ["R2 has no 'Guards against (rule R2):' in the package"]


def test_a_sequence_that_is_no_list_is_found(tmp_path: Path) -> None:
    found = planted(
        tmp_path, _CODE.replace("# 2. It is lost, as", "# 3. It is lost, as").replace(", a late answer)", ")")
    )
    assert rules.disagreements(_PAGE, *found) == [
        "spark_groupsource/planner.py has no steps 1., 2., ... of R2",
        "R1 has several sequences without a case: '(rule R1, in some case)'",
    ]


def test_a_sequence_far_from_the_guard_is_found(tmp_path: Path) -> None:
    against, guards, tests = planted(tmp_path)
    against["R2"] = [against["R2"][0]._replace(path="spark_groupsource/other.py")]
    assert rules.disagreements(_PAGE, against, guards, tests) == [
        "R2 has no sequence in a file with its comment: spark_groupsource/planner.py"
    ]


def test_ids_need_not_rise_over_the_page(tmp_path: Path) -> None:
    """A rule is in the section of its invariant."""
    found = planted(tmp_path)
    first, second = (_PAGE.index(f'<a id="r{number}">') for number in (1, 2))
    end = _PAGE.index("## Next")
    turned = _PAGE[:first] + _PAGE[second:end] + _PAGE[first:second] + _PAGE[end:]
    assert rules.page_ids(turned) == ["R2", "R1"]
    assert rules.disagreements(turned, *found) == []
