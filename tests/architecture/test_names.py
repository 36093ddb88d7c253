"""One name means one thing: no two modules of the package define a public name of the same spelling."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "spark_groupsource"
# Names that several modules may define, and why.
SHARED = {
    "LOG": "each module's logger",
    "T": "a type variable, which means something only inside one signature",
    "classify_refusal": "one duty, once for each of the two Kafka clients",
    "main": "the entry point of a command",
    "others": "one duty, once for each of the two Kafka clients",
}


def _defined(source: str) -> Iterator[str]:
    """Yield the public names that a module defines at its top level: functions, classes, constants and aliases."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [part.id for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        else:
            names = []
        yield from (name for name in names if not name.startswith("_"))


def _shared(sources: dict[str, str]) -> dict[str, list[str]]:
    """Return the names that several modules define, with these modules."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for module, source in sources.items():
        for name in dict.fromkeys(_defined(source)):
            modules[name].append(module)
    return {name: sorted(found) for name, found in sorted(modules.items()) if len(found) > 1}


def test_no_two_modules_define_a_public_name_of_the_same_spelling() -> None:
    sources = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    shared = {name: modules for name, modules in _shared(sources).items() if name not in SHARED}
    assert not shared, "rename all but one, or give the reason in SHARED"
    assert SHARED.keys() <= _shared(sources).keys(), "remove exceptions that no two modules need"


def test_all_kinds_of_definitions_count() -> None:
    first = "def table(): ...\nclass Member: ...\nSay = str\nLIMIT: int = 1\nA, B = 1, 2\n_private = 1\n"
    second = "async def table(): ...\nMember = 1\nclass Say: ...\nLIMIT = 2\nB = 3\n_private = 2\nfrom one import A\n"
    shared = _shared({"one.py": first, "two.py": second})
    assert list(shared) == ["B", "LIMIT", "Member", "Say", "table"]
    assert shared["table"] == ["one.py", "two.py"]
