"""`pip install` is all it takes: Spark finds the source by itself, with nothing registered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
import sys
import spark_groupsource
assert spark_groupsource.__file__.startswith(sys.argv[1]), spark_groupsource.__file__
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.readStream.format("groupkafka").options(**{
    "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g", "subscribe": "t"}).load()
print("columns:", ",".join(frame.columns))
try:
    spark.readStream.format("groupkafka").load()
except Exception as error:
    print("error:", error)
"""


@pytest.mark.timeout(600)
def test_pip_install_makes_the_format_known(tmp_path: Path) -> None:
    """Install the built package into a directory of its own and use it from another process."""
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(ROOT)]
    subprocess.run(command, check=True, timeout=300, cwd=tmp_path)
    assert (target / "pyspark_groupkafka.py").exists()
    assert (target / "spark_groupsource" / "py.typed").exists()
    environment = os.environ | {"PYTHONPATH": str(target)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(target)],
        capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment, check=False,
    )  # fmt: skip
    assert "columns: key,value,topic,partition,offset,timestamp,timestampType" in done.stdout, done.stdout + done.stderr
    assert "[GROUPKAFKA.OPTION_MISSING] Option 'subscribe' is required" in done.stdout
