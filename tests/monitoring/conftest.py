"""Fixtures of the tests with a real Prometheus. Without one they are skipped loudly.

Also in CI: Debian's archive is not among the registries that every machine reaches.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .prometheus import PrometheusError, programs


@pytest.fixture(scope="session")
def prometheus_programs() -> Path:
    """Return the directory of Prometheus's programs."""
    try:
        return programs()
    except PrometheusError as error:
        pytest.skip(f"NO PROMETHEUS, alerts and dashboard are not shown: {error}")
