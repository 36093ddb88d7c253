"""The benchmark runs: every kind of case once, tiny. No ratio is asserted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from bench_plan import GROUPS
from bench_processes import is_available
from kafkajars import RealKafkaError, find_java
from peerjars import peer_jars

from .harness import run_script

pytestmark = [pytest.mark.kafka, pytest.mark.alone]

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench_main.py"


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("kafka")  # skipped without a real Kafka, as all tests here
def test_every_case_of_the_benchmark_runs(tmp_path: Path) -> None:
    try:
        peer_jars(find_java())
    except RealKafkaError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"without Spark's own Kafka source there is nothing to compare with: {error}")
    results, chart = tmp_path / "bench.json", tmp_path / "bench.svg"
    command = [sys.executable, str(_SCRIPT), "--smoke", "--json", str(results), "--chart", str(chart)]
    code, text = run_script(command, tmp_path / "output", 840)
    assert code == 0, text[-20_000:]
    found = json.loads(results.read_text())
    assert found["failures"] == []
    wanted = set(GROUPS) if is_available() else set(GROUPS) - {"memory"}
    for source in ("groupkafka", "kafka"):
        assert {one["group"] for one in found["series"] if one["source"] == source} == wanted
    assert {one["group"] for one in found["series"] if one["source"] == "bare"} == wanted & {"query", "memory"}
    assert chart.read_text().startswith("<svg")
