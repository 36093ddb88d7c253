"""Keep Python's cyclic garbage collector from scanning objects that it cannot free.

A batch of the pure Python client is tens of thousands of messages and tuples that live for milliseconds and are in no
cycle: reference counts free them. The number of new objects starts the collector, which scans them again and again.
That took half of a reader's time.

Spark's Python daemon collects all generations after every task, and scans every imported module: 40 ms on one of the
task's cores.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector for the block, which must create no cycles and be short. One thread at a time."""
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
    """Exclude all existing objects, mostly modules, from later collections. Takes effect once per process."""
    gc.freeze()
