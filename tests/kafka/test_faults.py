"""The fault rig's shorter run: every kind of fault once, and the checker's judgement of promises P1-P8."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kafka

_SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "faults_main.py"


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("kafka")  # skipped without a real Kafka, as all tests here
def test_p1_to_p8_hold_under_every_kind_of_fault(tmp_path: Path) -> None:
    """What breaks is in the output: the fault, the promise, the records; the seed is fixed."""
    command = [sys.executable, str(_SCRIPT), "--short", "--seed", "1", "--out", str(tmp_path)]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            code = process.wait(1740)
        finally:
            if process.poll() is None:
                process.terminate()  # it ends its brokers and queries
                process.wait(60)
    text = (tmp_path / "output").read_text(errors="replace")
    assert code == 0, text[-20_000:]
    assert "PASSED" in text, text[-20_000:]
