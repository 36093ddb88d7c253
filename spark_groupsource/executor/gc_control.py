"""Keeps Python's cyclic garbage collector away from what it would walk in vain.

A batch of the pure Python client is tens of thousands of messages and tuples that live for milliseconds and are in no
cycle: reference counts free them. The collector, which is started by the number of new objects, walks them over and
over; that took half of a reader's time.

Spark's Python daemon collects all generations after every task, and so walks all that was ever imported: 40 ms, on one
of the task's cores.
"""

from __future__ import annotations

import functools
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


@functools.cache
def freeze_imported() -> None:
    """Leave what exists now out of all later collections, once per process: mostly modules, which live on anyway."""
    gc.freeze()
