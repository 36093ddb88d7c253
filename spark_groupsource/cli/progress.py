"""Show on a terminal that a command still works: its step, and how long it has taken.

A command that ends within some seconds shows nothing. Without a terminal nothing is shown either: there a program may
read stderr, and take a line as a warning.
"""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from spark_groupsource.cli.output import warn

# Seconds until the first line, and between two lines.
FIRST_S, EVERY_S = 3.0, 5.0


class Progress:
    """Writes lines to stderr from the thread of a timer, which the first step starts. A context manager."""

    def __init__(self) -> None:
        # `2>&-` leaves no stderr.
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._lock = threading.Lock()
        self._text = ""
        self._began_s = 0.0
        self._timer = threading.Timer(0, self._show)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._text = ""
            self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()

    def step(self, text: str) -> None:
        """Note what the command does from now on. After an empty text, time counts from the next step."""
        with self._lock:
            before, self._text = self._text, text
            if text and not before:
                self._began_s = time.monotonic()
                self._wait(FIRST_S)
            elif not text:
                self._timer.cancel()

    def _wait(self, seconds: float) -> None:
        if self._is_terminal:
            self._timer = threading.Timer(seconds, self._show)
            self._timer.name, self._timer.daemon = "progress", True
            self._timer.start()

    def _show(self) -> None:
        with self._lock:
            # Else the step of this timer is over.
            if self._text and self._timer is threading.current_thread():
                warn(f"[{time.monotonic() - self._began_s:.0f} s] {self._text}")
                self._wait(EVERY_S)
