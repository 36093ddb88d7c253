"""conf/log4j2.properties in a JVM of Spark: a query that fails is one line, other errors keep their stack traces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT

pytestmark = pytest.mark.spark

PROGRAM = """
from pyspark.sql import SparkSession
jvm = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()._jvm
for name in ("org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
             "org.apache.spark.sql.execution.streaming.MicroBatchExecution", "org.apache.spark.Other"):
    logger = jvm.org.apache.logging.log4j.LogManager.getLogger(name)
    logger.error("terminated with error", jvm.java.lang.RuntimeException("boom"))
"""


def test_a_failed_query_is_one_line(tmp_path: Path) -> None:
    settings = tmp_path / "with space" / "log4j2.properties"
    settings.parent.mkdir()
    settings.write_bytes((ROOT / "conf" / "log4j2.properties").read_bytes())
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="ascii")
    submit = Path(sys.executable).with_name("spark-submit")
    # As scripts/demo writes it: Spark removes the quotes.
    options = f'-XX:TieredStopAtLevel=1 "-Dlog4j2.configurationFile={settings}"'
    run = subprocess.run(
        [submit, "--driver-java-options", options, program],
        capture_output=True, text=True, check=True, timeout=300, env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    lines = run.stderr.splitlines()
    places = [number for number, line in enumerate(lines) if line.endswith("terminated with error")]
    assert len(places) == 3, run.stderr
    assert (places[1], places[2]) == (places[0] + 1, places[0] + 2), "an error between is a stack trace"
    assert lines[places[2] + 1] == "java.lang.RuntimeException: boom"
