"""Let a test stop a query at a named place in the code. Off unless the environment enables it.

A test sets GROUPKAFKA_FAILPOINTS to a directory and arms a place: it creates the file `<client.id>.<place>` there.
The process that reaches the place renames the file to `<client.id>.<place>.reached` and waits until the test removes
that file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

FAILPOINTS_VARIABLE = "GROUPKAFKA_FAILPOINTS"
# A test that crashed must not block a process for ever. In seconds.
_LONGEST_S = 120.0


def reach(place: str, client_id: str | None) -> None:
    """Wait at this place if a test has armed it for the query with this kafka.client.id."""
    folder = os.environ.get(FAILPOINTS_VARIABLE)
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
