"""End clients that nobody needs any more, without waiting for them."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable

LOG = logging.getLogger(__name__)

# Calls of `on_own_thread` that no thread has taken yet.
_ends: deque[Callable[[], object]] = deque()


def on_own_thread(end: Callable[[], object]) -> None:
    """Call `end` on a thread of its own; with the next call, if the process may have no new thread now.

    At the interpreter's end there are no new threads, and nothing is called.
    """
    _ends.append(end)
    try:
        threading.Thread(target=_call_ends, name="groupkafka-close", daemon=True).start()
    except RuntimeError as error:
        if not sys.is_finalizing():
            LOG.warning("a client that is not needed any more stays open until the next one is closed: %s", error)


def _call_ends() -> None:
    while True:
        try:
            end = _ends.popleft()
        except IndexError:
            return
        try:
            end()
        except Exception:
            LOG.warning("a client that is not needed any more did not end", exc_info=True)
