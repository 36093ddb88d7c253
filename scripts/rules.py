"""Fill in docs/explanation/rules.md: the functions that guard each rule, and the tests that show it.

A guard is a comment in the package that begins with the rule's id, as in `# R7: ...` or `# R7, R8: ...`. A test has the
marker `@pytest.mark.rule("R7")`. All else on the page is written by hand. `--check` only reports what does not agree.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "rules.md"
COMMAND = "python -m scripts.rules"

_HEADING = re.compile(r"^### (R\d+): .+$", re.MULTILINE)
_SECTION = re.compile(r"^##", re.MULTILINE)
_COMMENT = re.compile(r"# (R\d+(?:, R\d+)*): ")
# Ids that may be missing: work that went on at the same time took its ids from different tens. 16 is part of R17, and
# 51 to 55 were of conflicts that a checkpoint could win.
_MAY_BE_MISSING = (16, *range(51, 56), *range(94, 101), 109, 110)
_GUARDS = "Decided in:\n"
_TESTS = "Shown by:\n"


class Place(NamedTuple):
    """A function or a constant, or a test: the file below the checkout's root, and the name in it."""

    path: str
    name: str


Places = dict[str, list[Place]]


def page_ids(text: str) -> list[str]:
    """Return the ids of the page's rules, in its order."""
    return _HEADING.findall(text)


def guards(root: Path = ROOT) -> Places:
    """Return where the package's comments name each rule."""
    found: Places = {}
    for path in sorted((root / "spark_groupsource").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "# R" not in text:
            continue
        tree = ast.parse(text)
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            named = _COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
            if named:
                place = Place(str(path.relative_to(root)), _around(tree, token.start[0]))
                for rule in named[1].split(", "):
                    found.setdefault(rule, []).append(place)
    return found


def marked_tests(root: Path = ROOT) -> Places:
    """Return the tests that are marked with each rule."""
    found: Places = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.rule(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for rule in _marked(node):
                    found.setdefault(rule, []).append(Place(str(path.relative_to(root)), node.name))
    return found


def _marked(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for each in function.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.rule":
            yield from (ast.literal_eval(argument) for argument in each.args)


def _around(tree: ast.Module, line: int) -> str:
    """Return the qualified name of the function, class or constant that has this line; empty if none has."""
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        node = next((each for each in body if each.lineno <= line <= (each.end_lineno or 0)), None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
            body = node.body
            continue
        if not names and isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names.append(ast.unparse(target))
        return ".".join(names)


def render(text: str, guarded: Places, shown: Places) -> str:
    """Return the page with the places of all its rules."""
    rules = list(_HEADING.finditer(text))
    for rule in reversed(rules):
        after = _SECTION.search(text, rule.end())
        end = after.start() if after else len(text)
        written = text[rule.start() : end].partition(_GUARDS)[0].rstrip()
        places = f"{_GUARDS}\n{_listed(guarded.get(rule[1], []))}\n{_TESTS}\n{_listed(shown.get(rule[1], []))}"
        text = f"{text[: rule.start()]}{written}\n\n{places}\n{text[end:]}"
    return text.rstrip() + "\n"


def _listed(places: list[Place]) -> str:
    by_path: dict[str, list[str]] = {}
    for place in sorted(set(places)):
        by_path.setdefault(place.path, []).append(f"`{place.name}`" if place.name else "the module")
    return "".join(f"- `{path}`: {', '.join(names)}\n" for path, names in by_path.items()) or "- nothing\n"


def disagreements(text: str, guarded: Places, shown: Places) -> list[str]:
    """Return what page, code and tests do not agree about, a sentence each."""
    ids = page_ids(text)
    found = _misnumbered(ids)
    found += [f"{rule} has no comment '# {rule}: ...' in the package" for rule in ids if rule not in guarded]
    found += [f"{rule} has no test with the marker rule" for rule in ids if rule not in shown]
    found += [
        f"{place.path} names {rule}, which the page does not have"
        for places in (guarded, shown)
        for rule in sorted(places.keys() - set(ids))
        for place in places[rule]
    ]
    return found


def _misnumbered(ids: list[str]) -> list[str]:
    """Return what is wrong with the ids: each number up to the largest is in use once, in any section."""
    numbers = Counter(int(rule[1:]) for rule in ids)
    wanted = [n for n in range(1, max(numbers, default=0) + 1) if numbers[n] or n not in _MAY_BE_MISSING]
    return [f"the page has rule R{number} {numbers[number]} times" for number in wanted if numbers[number] != 1]


def main() -> int:
    """Write the page, or check it."""
    text, guarded, shown = PAGE.read_text(encoding="utf-8"), guards(), marked_tests()
    written = render(text, guarded, shown)
    found = disagreements(text, guarded, shown)
    if "--check" in sys.argv[1:]:
        found += [f"{PAGE.name} is stale: run {COMMAND}"] if written != text else []
    else:
        PAGE.write_text(written, encoding="utf-8")
    print("\n".join(found) or f"{PAGE.name}: {len(page_ids(text))} rules, and page, code and tests agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
