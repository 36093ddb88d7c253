"""The fault rig's shorter run on one machine, and the checker's judgement of P1-P8."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import assert_rig_passes

pytestmark = [pytest.mark.kafka, pytest.mark.alone]


@pytest.mark.timeout(1800)
def test_p1_to_p8_hold_under_every_kind_of_fault(tmp_path: Path) -> None:
    assert_rig_passes(tmp_path, "--short")
