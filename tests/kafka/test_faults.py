"""The fault rig's shorter run: every kind of fault once, and the checker's judgement of promises P1-P8."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .harness import run_script

pytestmark = [pytest.mark.kafka, pytest.mark.alone]

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "faults_main.py"


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kafka")  # skipped without a real Kafka, as all tests here
def test_p1_to_p8_hold_under_every_kind_of_fault(tmp_path: Path) -> None:
    """What breaks is in the output: the fault, the promise, the records; the seed is fixed."""
    command = [sys.executable, str(_SCRIPT), "--short", "--seed", "1", "--out", str(tmp_path)]
    code, text = run_script(command, tmp_path / "output", 1740)
    assert code == 0, text[-20_000:]
    assert "PASSED" in text, text[-20_000:]
