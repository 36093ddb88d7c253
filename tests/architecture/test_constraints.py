"""The constraints of a Spark version differ from constraints.txt in PySpark's own line only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.checkout import ROOT

MAIN = ROOT / "conf" / "constraints.txt"
OTHERS = sorted((ROOT / "conf").glob("constraints-*.txt"))


def lines_of(path: Path) -> list[str]:
    """Return the lines that are no comments."""
    return [line for line in path.read_text(encoding="ascii").splitlines() if line and not line.startswith("#")]


def test_each_version_but_that_of_constraints_txt_has_a_file() -> None:
    assert [path.stem.removeprefix("constraints-") for path in OTHERS] == ["4.0", "4.1", "4.3"]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.name)
def test_only_pyspark_differs(path: Path) -> None:
    minor = path.stem.removeprefix("constraints-")
    main, first, *others = lines_of(MAIN), *lines_of(path)
    assert re.fullmatch(rf"pyspark=={re.escape(minor)}\.\d+", first)
    assert [line for line in others if line not in main] == []
    named = {re.split("==", line)[0] for line in others}
    assert {"confluent-kafka", "pyarrow", "py4j", "grpcio", "pandas", "kafka-python"} <= named
    # All lines of a package, or none: an environment marker has its counterpart.
    assert others == [line for line in main if re.split("==", line)[0] in named]
