"""Ends the members of the sessions under test: their threads are greenlets, which end by themselves only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.driver.session_bed import BEDS


@pytest.fixture(autouse=True)
def members_end() -> Iterator[None]:
    """Stop the member of each session after a test."""
    yield
    while BEDS:
        bed = BEDS.pop()
        bed.member.stop_now()
        assert bed.member.join(60.0), f"the member does not end: {bed.member!r}"
