"""Moments at which a test can hold a query: named places in the code, off unless the environment asks for them.

A test sets GROUPKAFKA_FAILPOINTS to a directory and arms a place by making the file `<client.id>.<place>` there.
Whoever reaches the place renames it to `<client.id>.<place>.reached` and waits until the test removes that file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "GROUPKAFKA_FAILPOINTS"
# A test that died must not hold a process for ever.
_LONGEST_S = 120.0


def reach(place: str, client_id: str | None) -> None:
    """Wait here if a test has armed this place for the query with this kafka.client.id."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    armed = Path(folder, f"{client_id}.{place}")
    reached = armed.with_name(f"{armed.name}.reached")
    try:
        armed.rename(reached)
    except FileNotFoundError:
        return
    deadline = time.monotonic() + _LONGEST_S
    while reached.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
