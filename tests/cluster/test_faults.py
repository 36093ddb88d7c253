"""The fault rig's shorter run on a Spark cluster, and the checker's judgement of P1-P8."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.harness import assert_rig_passes

pytestmark = [pytest.mark.kafka, pytest.mark.cluster, pytest.mark.alone]

_KINDS = "executor-killed,task-failed,allocation-scaled,spark-worker-killed"


@pytest.mark.timeout(1800)
def test_p1_to_p8_hold_under_faults_of_a_spark_cluster(tmp_path: Path) -> None:
    """Four kinds of the nine; `scripts/faults --cluster` has all."""
    assert_rig_passes(tmp_path, "--cluster", "--smoke", "--kinds", _KINDS)
