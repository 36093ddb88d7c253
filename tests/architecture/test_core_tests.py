"""The list of the core tests: what it names is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import core_tests

_ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("line", core_tests())
def test_a_core_test_is_there(line: str) -> None:
    """A renamed test would silently leave the proof that users run."""
    file, _, name = line.partition("::")
    text = (_ROOT / file).read_text(encoding="utf-8")
    assert not name or f"def {name.partition('[')[0]}(" in text
