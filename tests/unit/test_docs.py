"""The documentation's links lead somewhere, and what the product prints names pages that exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from scripts import docs_links
from spark_groupsource.cli.arguments import command_parsers, parse_arguments
from spark_groupsource.cli.group.view import DescribedMember, GroupDescription, GroupReport, group_json
from spark_groupsource.cli.lag_command import lag_json
from spark_groupsource.lag.model import LagInput, lag_of
from tests.realkafka import deltajars
from tests.unit.fakes import tp

ROOT = docs_links.ROOT
# It is the table of contents.
_NO_NEXT = {"index.md"}


def test_no_link_is_broken() -> None:
    assert docs_links.broken_links(docs_links.pages()) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs_links, "ROOT", tmp_path)
    (tmp_path / "there.md").write_text('# A head, with `code`\n\n<a id="r1"></a>**R1**\n')
    page = tmp_path / "page.md"
    page.write_text(
        "[ok](there.md#a-head-with-code) [ok](there.md#r1) [no](gone.md)\n"
        "[no](there.md#other) `[code](x.md)`\n```\n[fence](x.md)\n```\n"
    )
    assert docs_links.broken_links([page]) == [
        "page.md:1: gone.md: there is no such file",
        "page.md:2: there.md#other: the page has no such heading",
    ]


def test_pages_that_the_product_names_exist() -> None:
    named = {
        name
        for path in (ROOT / "spark_groupsource").rglob("*.py")
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named, "nothing was found"
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_tests_that_the_list_of_protocol_features_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/reference/kips.md").read_text(encoding="utf-8"))
    assert named, "nothing was found"
    for path, function in named:
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{function}"


@pytest.mark.parametrize("command", ["lag", "group"])
def test_every_key_of_a_commands_json_is_on_its_page(command: str) -> None:
    lag = lag_of(LagInput(tp(0), committed=4, beginning=0, end=10), now_ms=0)
    description = GroupDescription("shop", members=(DescribedMember("A", "a", "h"),))
    report = GroupReport(description, {tp(0): lag})
    text = lag_json("shop", 0, [lag]) if command == "lag" else group_json(report, 0)
    value = json.loads(text)
    keys = set(value) | {key for part in value.values() if isinstance(part, dict) for key in part}
    keys |= {key for part in value.values() if isinstance(part, list) for each in part for key in each}
    page = (ROOT / "docs/how-to/lag.md").read_text(encoding="utf-8")
    section = page.split("## JSON for programs")[1].split(f"`{command}`:")[1].split("\n\n")[1]
    assert sorted(key for key in keys if f"`{key}`" not in section) == []


def test_tests_that_the_pages_name_exist() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    named = {
        (page.name, name)
        for page in docs_links.pages()
        for name in re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8"))
    }
    assert named, "nothing was found"
    assert sorted(each for each in named if each[1] not in tests) == []


def test_files_that_the_pages_of_explanation_name_exist() -> None:
    pages = (ROOT / "docs" / "explanation").glob("*.md")
    path = re.compile(r"`((?:tests|spark_groupsource)/[\w/]+\.py)`")
    named = {name for page in pages for name in path.findall(page.read_text(encoding="utf-8"))}
    assert named, "nothing was found"
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_modules_that_the_page_of_recreated_topics_names_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "recreated-topics.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([\w/]+\.py)`", page) if not name.startswith("tests/")}
    assert named, "nothing was found"
    assert sorted(name for name in named if not (ROOT / "spark_groupsource" / name).exists()) == []


def test_every_page_ends_with_where_to_go_next() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in _NO_NEXT]
    ending = re.compile(r"^(## (Next|Where to go next)|Next: )", re.MULTILINE)
    without = [page.name for page in pages if not ending.search(page.read_text(encoding="utf-8"))]
    assert without == []


def test_the_page_of_log_lines_has_every_warning_of_a_query_and_nothing_else() -> None:
    """Guard the page that is searched with a line of the log: both its texts and the package's change."""
    page = (ROOT / "docs" / "reference" / "log.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| ")]
    shown = {text for row in rows for text in re.findall(r"`([^`]+)`", row)}
    trees = {path: ast.parse(path.read_text("utf-8")) for path in (ROOT / "spark_groupsource").rglob("*.py")}
    written = {_dotted(text) for tree in trees.values() for text in _texts(tree)}
    assert sorted(text for text in shown - {"spark_groupsource.client.*"} if not _is_in(text, written)) == []
    warnings = {
        text for path, tree in trees.items() if "cli" not in path.relative_to(ROOT).parts for text in _warnings(tree)
    }
    # These begin with a text of their own, which is shown.
    unknown = {"...: group=...", "... (docs/deploying.md)"}
    assert len(warnings) > 50
    assert sorted(text for text in warnings - unknown if not any(each in text for each in shown)) == []


def _is_in(text: str, written: Iterable[str]) -> bool:
    return any(text in each for each in written)


def _dotted(text: str) -> str:
    return re.sub(r"%[-.\d]*[a-z]", "...", text)


def _texts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _warnings(tree: ast.AST) -> Iterator[str]:
    """Return the format of each line from level WARNING on: the text itself, or that of the name that is logged."""
    named: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            named.setdefault(ast.unparse(node.targets[0]), []).append(_dotted(node.value.value))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) in {"LOG", "WAITING"} and node.func.attr in {"warning", "error", "exception"}:
            yield from map(_dotted, _texts(node.args[0]))
            yield from named.get(ast.unparse(node.args[0]), [])


def test_examples_give_the_checkpoint_location_once() -> None:
    """One copy of the text would be changed, and the other one forgotten."""
    given = re.compile(r"""checkpointLocation['"]\s*[,=:]\s*f?(['"])(.+?)\1""")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    examples = [
        (page.name, code)
        for page in pages
        for code in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        if "checkpointLocation" in code
    ]
    assert examples, "nothing was found"
    twice = [(page, text) for page, code in examples for text in _twice(found[1] for found in given.findall(code))]
    assert twice == []
    bad = """WITH ('checkpointLocation' = '/a')"); writer.option("checkpointLocation", "/a")"""
    assert _twice(found[1] for found in given.findall(bad)) == ["/a"]


def test_commands_in_tables_work_when_copied() -> None:
    rows = [
        row
        for page in (ROOT / "docs" / "how-to").glob("*.md")
        for row in page.read_text(encoding="utf-8").splitlines()
        if row.startswith("|")
    ]
    names = "|".join(command_parsers()[1])
    commands = [text for row in rows for text in re.findall(rf"`((?:groupkafka )?(?:{names}) --[^`]*)`", row)]
    assert commands, "nothing was found"
    for command in commands:
        program, *arguments = shlex.split(command)
        assert (program, "..." in command) == ("groupkafka", False), command
        # Exits if an argument is missing or not known.
        parse_arguments(arguments)


def test_the_session_with_delta_is_what_the_tests_of_the_recipes_have() -> None:
    page = (ROOT / "docs" / "how-to" / "sinks.md").read_text(encoding="utf-8")
    settings = dict(re.findall(r'\.config\("([\w.]+)", "([^"]+)"\)', page.split("## A session with Delta")[1]))
    tested = {name: value for name, value in deltajars.CONF.items() if name != "spark.driver.memory"}
    assert settings.items() >= {"spark.jars.packages": deltajars.COORDINATE, **tested}.items()


def test_the_readme_fits_on_few_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_page_of_the_architecture_leaves_details_to_others() -> None:
    assert len((ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 280


def test_every_key_that_is_stored_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "stored-formats.md").read_text(encoding="utf-8")
    stored = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests" / "golden").iterdir())]
    # Names of topics and numbers of partitions are data.
    keys = {key for text in stored for key in _keys(json.loads(text)) if not key.isdigit()} - {"orders", "refunds"}
    assert {"o", "z", "done", "taken_ms"} <= keys
    assert sorted(key for key in keys if f"`{key}`" not in page) == []


def _twice(texts: Iterable[str]) -> list[str]:
    return [text for text, times in Counter(texts).items() if times > 1]


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, held in value.items():
            yield key
            yield from _keys(held)
