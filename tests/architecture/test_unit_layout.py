"""Where the unit tests of a module are: the folders below tests/unit are the package's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkout import ROOT

UNIT, PACKAGE = ROOT / "tests" / "unit", ROOT / "spark_groupsource"
# Of a folder as a whole, not of a module in it.
OF_A_FOLDER = {"assignors/test_strategies.py"}
TESTS = sorted(
    str(path.relative_to(UNIT))
    for path in UNIT.rglob("test_*.py")
    if path.parent != UNIT and "rigs" not in path.parts and str(path.relative_to(UNIT)) not in OF_A_FOLDER
)


def subject_of(test: str) -> Path | None:
    """Return the module that a test file is about: that of its name, or of the longest beginning of its name."""
    folder = PACKAGE / Path(test).parent
    words = Path(test).stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    found = (folder / f"{prefix}{name}{ext}" for name in names for prefix in ("", "_") for ext in (".py", ".c"))
    return next((path for path in found if path.exists()), None)


@pytest.mark.parametrize("test", TESTS)
def test_a_test_has_its_modules_folder_and_name(test: str) -> None:
    """A test that covers one subject of a module adds the subject to the name: test_session_replay.py."""
    assert subject_of(test) is not None, f"tests/unit/{test}: no module of this name in spark_groupsource"


def test_a_module_that_does_not_exist_is_found() -> None:
    assert subject_of("driver/test_session_replay.py") == PACKAGE / "driver" / "session.py"
    assert subject_of("driver/test_lookout.py") is None
    assert subject_of("checkpoint/test_session.py") is None
