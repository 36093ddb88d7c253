"""The fault rig's shorter runs, on one machine and on a Spark cluster, and the checker's judgement of P1-P8."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import checkout

from .harness import run_script

pytestmark = [pytest.mark.kafka, pytest.mark.alone]

_CLUSTER_KINDS = "executor-killed,task-failed,allocation-scaled,spark-worker-killed"


def _assert_passes(folder: Path, *arguments: str) -> None:
    """Run the rig; what breaks is in the output: the fault, the promise, the records."""
    command = checkout.command("tests.faults", *arguments, "--seed", "1", "--out", folder)
    code, text = run_script(command, folder / "output", 1740)
    assert code == 0, text[-20_000:]
    assert "PASSED" in text, text[-20_000:]


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kafka")  # skipped without a real Kafka, as all tests here
def test_p1_to_p8_hold_under_every_kind_of_fault(tmp_path: Path) -> None:
    _assert_passes(tmp_path, "--short")


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kafka")
def test_p1_to_p8_hold_under_faults_of_a_spark_cluster(tmp_path: Path) -> None:
    """Four kinds of the nine; `scripts/faults --cluster` has all."""
    _assert_passes(tmp_path, "--cluster", "--smoke", "--kinds", _CLUSTER_KINDS)
