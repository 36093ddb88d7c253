"""The test file on the page about testing a pipeline runs as it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

pytestmark = pytest.mark.spark


def test_the_test_on_the_page_passes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "test-your-pipeline.md").read_text(encoding="utf-8")
    pasted, _ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "test_pasted.py").write_text(pasted, encoding="utf-8")
    # By module name, so that it works without an installed package, and not twice with one.
    plugin = ["-p", "no:groupkafka", "-p", "spark_groupsource.embedded.pytest_plugin"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugin, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "1 passed" in run.stdout, run.stdout + run.stderr
