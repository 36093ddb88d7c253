"""Fixtures of the tests on a Spark cluster; the broker is the one of the tests on a real broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.conftest import client, group, kafka, options, start_query, topic
from tests.sparkcluster.sparkcluster import SparkCluster

__all__ = ["client", "group", "kafka", "options", "start_query", "topic"]  # fixtures of another module


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter without any package: neither this one nor pyarrow."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=240)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def spark_cluster(bare_python: Path) -> Iterator[SparkCluster]:
    """Two workers with two cores each, whose own Python lacks every package. A test leaves both of them running."""
    with SparkCluster(2, pythons=[bare_python, bare_python]) as cluster:
        yield cluster
