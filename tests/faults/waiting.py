"""Waiting with a deadline, and the rig's one error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class RigError(Exception):
    """The group did not recover, or the rig itself is at its end; the text holds the evidence."""


def wait_for(
    what: str,
    timeout_s: float,
    condition: Callable[[], T | None],
    evidence: Callable[[], str] = str,
    pace_s: float = 0.05,
) -> T:
    """Return the condition's first true value. Raises RigError with `what` and the evidence after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise RigError(f"waited {timeout_s:.0f} s for {what}\n{evidence()}")
        time.sleep(pace_s)
