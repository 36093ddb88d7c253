"""Executors whose Python lacks the package: one error with the cure."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_groupsource.spark.progress_listener import error_line
from tests.kafka.harness import Independent, Query
from tests.sparkcluster.sparkcluster import SparkCluster

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def pyarrow_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter with pyarrow, as many platforms have it, and without this package."""
    folder = tmp_path_factory.mktemp("pyarrow-only") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=240)
    target = next(folder.glob("lib/python*/site-packages"))
    for package in Path(sysconfig.get_path("platlib")).glob("pyarrow*"):
        (target / package.name).symlink_to(package)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def clusters(bare_python: Path, pyarrow_only: Path) -> Iterator[dict[str, SparkCluster]]:
    """Return two clusters by what their Python has."""
    with (
        SparkCluster(1, pythons=[bare_python]) as nothing,
        SparkCluster(1, pythons=[pyarrow_only]) as pyarrow,
    ):
        yield {"nothing": nothing, "pyarrow": pyarrow}


@pytest.mark.parametrize("has", ["nothing", "pyarrow"])
def test_an_executor_without_the_package_is_one_error_with_the_cure(
    clusters: dict[str, SparkCluster], pyarrow_only: Path, client: Independent, options: dict[str, str], topic: str,
    start_query: Callable[..., Query], has: str,
) -> None:  # fmt: skip
    """The driver's plain `python3` has the package, that of the executors has not."""
    client.create_topic(topic, 1)
    client.produce(topic, ["v"], 1)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"PYSPARK_PYTHON": "python3", "PYSPARK_DRIVER_PYTHON": "python3", "PATH": path}
    conf = clusters[has].conf(cores=1) | {"spark.task.maxFailures": "1"}
    query = start_query(has, options | {"fastLaneMaxOffsets": "0"}, conf=conf, environment=variables)
    assert query.wait_ended(400) == 1, query.log()
    failure = query.failure()
    line = error_line(failure)
    assert line.startswith("[GROUPKAFKA.EXECUTOR_PACKAGE_MISSING] The Python of an executor"), failure
    assert "install groupkafka there" in line
    if has == "nothing":
        assert "ModuleNotFoundError: No module named 'pyarrow'" in failure, "PySpark's own error"
    else:
        assert f"({pyarrow_only.parent / 'python3'}) has no package 'spark_groupsource'" in line, line
        assert line in failure, "without a listener, too"
