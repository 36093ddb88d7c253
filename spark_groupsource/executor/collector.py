"""Keeps Python's cyclic garbage collector away from the objects of a batch.

A batch is tens of thousands of messages and tuples that live for milliseconds and are in no cycle: reference counts
free them. The collector, which is started by the number of new objects, walks them over and over; that took half of
a reader's time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector for the block; it must make no cycles, and end soon. One thread at a time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
