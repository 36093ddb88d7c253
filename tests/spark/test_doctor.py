"""The command `doctor` with a master: executors of their own processes, with and without the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource._version import __version__
from spark_groupsource.embedded import EmbeddedKafka

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

# Two executors, each a process with a folder of its own.
MASTER = "local-cluster[2,1,512]"


def examined(broker: EmbeddedKafka, python: Path | str, folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit code and the findings of `doctor`, where the source would be run by this Python."""
    command = [
        sys.executable, "-m", "spark_groupsource", "doctor", "--json", "--master", MASTER,
        "--bootstrap-servers", broker.bootstrap_servers, "--topic", "orders",
    ]  # fmt: skip
    environment = os.environ | {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=500, check=False, cwd=folder,
        # Executors have 512 MB.
        env=environment | {"PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=512m pyspark-shell"},
    )  # fmt: skip
    assert done.stdout.strip(), done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["wrong"] == sum(row["verdict"] == "wrong" for row in said["findings"])
    return done.returncode, said["findings"]


def of_executors(findings: list[dict[str, Any]], check: str) -> list[dict[str, Any]]:
    """Return the findings of one check of executors."""
    return [row for row in findings if row["check"] == check and row["text"].startswith("executor ")]


def test_every_executor_is_asked(embedded_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    embedded_kafka.create_topic("orders", 1)
    embedded_kafka.produce("orders", [(b"k", b"v", 0)])
    code, findings = examined(embedded_kafka, sys.executable, tmp_path)
    versions = of_executors(findings, "versions")
    assert len({row["text"].partition(": ")[0] for row in versions}) == 2, json.dumps(findings, indent=1)
    assert all(f"groupkafka {__version__}" in row["text"] and row["verdict"] == "ok" for row in versions)
    assert len(of_executors(findings, "reading")) == 2
    assert len(of_executors(findings, "descriptors")) == 2
    assert {"check": "executors", "verdict": "ok", "text": "2 of 2 have answered", "cure": ""} in findings
    assert any(row["check"] == "clock" and row["verdict"] == "ok" for row in findings)
    # PySpark's own defaults are not what is recommended.
    assert any(row["check"] == "settings" and row["verdict"] == "advice" for row in findings)
    assert code == (1 if any(row["verdict"] == "wrong" for row in findings) else 0)


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python of this version that has no package at all."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


def test_executors_whose_python_lacks_the_package(
    embedded_kafka: EmbeddedKafka, bare_python: Path, tmp_path: Path
) -> None:
    """The driver has it: only a query's first task would show it."""
    code, findings = examined(embedded_kafka, bare_python, tmp_path)
    assert code == 1
    versions = of_executors(findings, "versions")
    assert len(versions) == 2, json.dumps(findings, indent=1)
    for row in versions:
        assert row["verdict"] == "wrong"
        assert "No module named 'spark_groupsource'" in row["text"]
        assert f"install groupkafka into {bare_python}" in row["cure"]


def test_a_python_that_executors_do_not_have(embedded_kafka: EmbeddedKafka, tmp_path: Path) -> None:
    code, findings = examined(embedded_kafka, "/no/such/python", tmp_path)
    assert code == 1
    (row,) = [row for row in findings if row["check"] == "executors"]
    assert row["verdict"] == "wrong"
    assert "/no/such/python" in row["text"]
    assert "PYSPARK_PYTHON" in row["cure"]
