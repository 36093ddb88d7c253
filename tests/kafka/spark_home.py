"""A Spark home of a test's own, so that executors of `local-cluster` write their logs below the test's folder."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest


@pytest.fixture
def spark_home(tmp_path: Path) -> Path:
    """Return a Spark home whose folder `work` is below the test's folder."""
    home = tmp_path / "spark-home"
    home.mkdir()
    for name in ("bin", "jars", "python"):
        (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home
