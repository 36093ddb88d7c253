"""The fault rig's shorter run: most kinds of faults once, and the checker's judgement of promises P1-P8."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from faultrig.kinds import KINDS

from .harness import run_script

pytestmark = [pytest.mark.kafka, pytest.mark.alone]

# The judge takes a batch that a deletion cut short for a loss of P1 where the group has its end: a run by hand for now.
_NOT_HERE = {"topic-recreated", "topic-replaced"}
_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "faults_main.py"


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kafka")  # skipped without a real Kafka, as all tests here
def test_p1_to_p8_hold_under_many_kinds_of_faults(tmp_path: Path) -> None:
    """What breaks is in the output: the fault, the promise, the records; the seed is fixed."""
    kinds = ",".join(sorted(KINDS.keys() - _NOT_HERE))
    command = [sys.executable, str(_SCRIPT), "--short", "--seed", "1", "--kinds", kinds, "--out", str(tmp_path)]
    code, text = run_script(command, tmp_path / "output", 1740)
    assert code == 0, text[-20_000:]
    assert "PASSED" in text, text[-20_000:]
