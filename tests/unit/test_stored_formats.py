"""A golden file exists for every key of every stored format: a release must read what an older one wrote."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator

import pytest

from spark_groupsource.cli import savepoint_file
from spark_groupsource.cli.savepoint_file import Savepoint, parse_savepoint
from spark_groupsource.model import offsets
from spark_groupsource.model.commit_metadata import CommitMetadata, parse_metadata
from spark_groupsource.model.offsets import SourceOffset, parse_offset
from tests.checkout import ROOT

GOLDEN = ROOT / "tests" / "golden"
# The functions that write a format's keys.
WRITERS: dict[str, list[Callable[..., object]]] = {
    "commit-metadata": [CommitMetadata.to_text],
    "offset": [SourceOffset.to_json],
    "savepoint": [Savepoint.to_text, savepoint_file._pin_to_json],
}
PARSERS: dict[str, Callable[[str], object]] = {
    "commit-metadata": parse_metadata,
    "offset": lambda text: parse_offset(json.loads(text)),
    "savepoint": parse_savepoint,
}
FILES = sorted(GOLDEN.iterdir())
VERSIONS = sorted({path.name[: path.name.index("-v") + 3] for path in FILES})
# Names of topics and numbers of partitions are data, not keys.
TOPICS = {"orders", "refunds"}


def keys_of(value: object) -> Iterator[str]:
    """Yield the keys of a stored value, at all depths."""
    if isinstance(value, dict):
        for key, held in value.items():
            if key not in TOPICS and not key.isdigit():
                yield key
            yield from keys_of(held)


def golden_keys(prefix: str) -> set[str]:
    """Return the keys of the golden files whose names begin so."""
    texts = [path.read_text(encoding="utf-8") for path in FILES if path.name.startswith(prefix)]
    return {key for text in texts for key in keys_of(json.loads(text))}


def written_keys(function: Callable[..., object]) -> set[str]:
    """Return the texts that a function's source uses as keys: in a dict literal, or as the target of an assignment."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Dict):
            found += node.keys
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.append(node.slice)
    return {key.value for key in found if isinstance(key, ast.Constant) and isinstance(key.value, str)}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_every_key_that_is_written_is_in_a_golden_file(name: str) -> None:
    written = {key for function in WRITERS[name] for key in written_keys(function)}
    assert len(written) > 3, "the function that writes the format has moved"
    assert sorted(written - golden_keys(f"{name}-v")) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_key_that_a_version_may_have_is_in_a_golden_file(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: set[str] = set()
    checked = offsets.checked_object

    def recorded(what: str, value: object, required: set[str], optional: set[str] = frozenset()) -> object:  # type: ignore[assignment]
        allowed.update(required | optional)
        return checked(what, value, required, optional)

    monkeypatch.setattr(offsets, "checked_object", recorded)
    for path in FILES:
        if path.name.startswith(version):
            PARSERS[version.rpartition("-")[0]](path.read_text(encoding="utf-8").strip())
    assert allowed, "nothing was parsed"
    assert sorted(allowed - golden_keys(version)) == []


def test_a_key_without_a_golden_file_is_found() -> None:
    def to_text(known: bool) -> dict[str, object]:
        value: dict[str, object] = {"gk": 1}
        if known:
            value["new"] = 1
        return value

    assert written_keys(to_text) - golden_keys("commit-metadata-v") == {"new"}
