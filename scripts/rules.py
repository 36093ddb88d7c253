"""Write docs/explanation/rules.md and docs/explanation/rules-index.md from the package and the tests.

The title and the sentence of each rule are written by hand, on the page. All else is generated:

- The sequence of events is in the package, in a docstring or a comment near the guard: `Guards against (rule R7):`, or
  `Guards against (rule R7, in some case):`, and numbered steps. A rule may have several.
- A guard is a comment that begins with the rule's id: `# R7: ...` or `# R7, R9: ...`.
- A test has the marker `@pytest.mark.rule("R7")`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "rules.md"
INDEX = PAGE.with_name("rules-index.md")
COMMAND = "python -m scripts.rules"
WIDTH = 120

_ENTRY = re.compile(r'^<a id="(r\d+)"></a>\*\*(R\d+): (.+?)\.\*\*\s', re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"# (R\d+(?:, R\d+)*): ")
_SEQUENCE = re.compile(r"( *(?:# )?)Guards against \(rule (R\d+)(?:, ([^)]+))?\):$")
# Ends what is written by hand in a rule's paragraph.
_BREAK = "<br>"
_INDEX_TOP = f"""# Where each rule is decided

For each of the [rules](rules.md), the functions of the package that have a comment with its id, and the tests that
produce its sequence. Use this page when you look for a guard or for its tests. `{COMMAND}` writes it.
"""
_INDEX_END = """
## Next

[The rules](rules.md), [how to add a rule](../../CONTRIBUTING.md#add-something).
"""


class Place(NamedTuple):
    """A function or a constant, or a test: the file below the checkout's root, and the name in it."""

    path: str
    name: str


class Sequence(NamedTuple):
    """The steps of a sequence that a rule guards against, and in which file they are.

    `case`: how it differs from the rule's other sequences.
    """

    case: str
    path: str
    steps: tuple[str, ...]


Places = dict[str, list[Place]]
Sequences = dict[str, list[Sequence]]


def page_ids(text: str) -> list[str]:
    """Return the ids of the page's rules, in its order."""
    return [entry[2] for entry in _ENTRY.finditer(text)]


def sequences(root: Path = ROOT) -> Sequences:
    """Return the sequences of each rule: first those without a case, then by file and line."""
    found: Sequences = {}
    for path in sorted((root / "spark_groupsource").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if head := _SEQUENCE.match(line):
                steps = tuple(_steps(lines[number + 1 :], head[1]))
                found.setdefault(head[2], []).append(Sequence(head[3] or "", str(path.relative_to(root)), steps))
    return {rule: sorted(each, key=lambda sequence: bool(sequence.case)) for rule, each in found.items()}


def _steps(lines: list[str], margin: str) -> Iterator[str]:
    """Yield the numbered steps at the beginning of the lines, whose text may go on in lines that are indented."""
    step = ""
    number = 1
    for line in lines:
        if line.startswith(f"{margin}{number}. "):
            if step:
                yield step
            step = line.removeprefix(f"{margin}{number}. ").strip()
            number += 1
        elif step and line.startswith(f"{margin}   ") and line.removeprefix(margin).strip():
            step = f"{step} {line.removeprefix(margin).strip()}"
        else:
            break
    if step:
        yield step


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


def render(text: str, against: Sequences) -> str:
    """Return the page with the sequences of all its rules."""
    paragraphs = []
    for paragraph in text.rstrip().split("\n\n"):
        entry = _ENTRY.match(paragraph)
        if entry is None:
            paragraphs.append(paragraph)
            continue
        written = " ".join(paragraph.partition(_BREAK)[0].split())
        lines = [written + _BREAK, *_against(against.get(entry[2], []))]
        paragraphs.append("\n".join(map(_wrapped, lines)))
    return "\n\n".join(paragraphs) + "\n"


def _against(found: list[Sequence]) -> Iterator[str]:
    for number, sequence in enumerate(found):
        label = "*Or*" if number else "*Against*"
        case = f" ({sequence.case})" if sequence.case else ""
        # A number stays with its text: a line that began with "1." would begin a list.
        steps = " ".join(f"{at}.\0{_linked(step)}" for at, step in enumerate(sequence.steps, 1))
        last = _BREAK if number < len(found) - 1 else ""
        yield f"{label}{case}:\0{steps}{last}"


def _linked(step: str) -> str:
    return re.sub(r"\b(?:rule )?R(\d+)\b", r"[R\1](#r\1)", step)


def _wrapped(text: str) -> str:
    # The same holds for a number at the end of a sentence: it stays with the word before.
    joined = re.sub(r" (\d+\. )", "\0\\1", text)
    lines = textwrap.wrap(joined, WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def index(text: str, guarded: Places, shown: Places) -> str:
    """Return the page of the places of all rules, by id."""
    titles = {entry[2]: " ".join(entry[3].split()) for entry in _ENTRY.finditer(text)}
    parts = [_INDEX_TOP]
    for rule in sorted(titles, key=_number):
        parts.append(f"\n## {rule}\n\n[{titles[rule]}](rules.md#{rule.lower()})\n")
        parts.append(f"\nDecided in:\n\n{_listed(guarded.get(rule, []))}")
        parts.append(f"\nShown by:\n\n{_listed(shown.get(rule, []))}")
    return "".join([*parts, _INDEX_END])


def _listed(places: list[Place]) -> str:
    by_path: dict[str, list[str]] = {}
    for place in sorted(set(places)):
        by_path.setdefault(place.path, []).append(f"`{place.name}`" if place.name else "the module")
    return "".join(f"- `{path}`: {', '.join(names)}\n" for path, names in by_path.items()) or "- nothing\n"


def disagreements(text: str, against: Sequences, guarded: Places, shown: Places) -> list[str]:
    """Return what page, code and tests do not agree about, a sentence each."""
    ids = page_ids(text)
    found = [f"the page has rule {rule} {times} times" for rule, times in Counter(ids).items() if times > 1]
    found += [
        f"{entry[2]} has the anchor {entry[1]}" for entry in _ENTRY.finditer(text) if entry[1] != entry[2].lower()
    ]
    found += [f"{rule} has no comment '# {rule}: ...' in the package" for rule in ids if rule not in guarded]
    found += [f"{rule} has no 'Guards against (rule {rule}):' in the package" for rule in ids if rule not in against]
    found += [f"{rule} has no test with the marker rule" for rule in ids if rule not in shown]
    found += [
        f"{place.path} names {rule}, which the page does not have"
        for places in (against, guarded, shown)
        for rule in sorted(places.keys() - set(ids))
        for place in places[rule]
    ]
    for rule, each in against.items():
        if [one.case for one in each].count("") > 1:
            found.append(f"{rule} has several sequences without a case: '(rule {rule}, in some case)'")
        found += [f"{one.path} has no steps 1., 2., ... of {rule}" for one in each if len(one.steps) < 2]
        files = {place.path for place in guarded.get(rule, ())}
        if files and not files & {one.path for one in each}:
            found.append(f"{rule} has no sequence in a file with its comment: {', '.join(sorted(files))}")
    return found


def _number(rule: str) -> int:
    return int(rule[1:])


def main() -> int:
    """Write the pages, and print what does not agree."""
    text, against, guarded, shown = PAGE.read_text(encoding="utf-8"), sequences(), guards(), marked_tests()
    PAGE.write_text(render(text, against), encoding="utf-8")
    INDEX.write_text(index(text, guarded, shown), encoding="utf-8")
    found = disagreements(text, against, guarded, shown)
    print("\n".join(found) or f"{PAGE.name}: {len(page_ids(text))} rules, and page, code and tests agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
