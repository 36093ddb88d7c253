"""Show on a terminal that a command still works: its step, and how long it has taken.

A command that ends within some seconds shows nothing. Without a terminal nothing is shown either: there a program may
read stderr, and take a line as a warning.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from spark_groupsource.cli.output import warn

# Seconds until the first line, and between two lines.
FIRST_S, EVERY_S = 3.0, 5.0


class Progress:
    """Writes lines to stderr from a thread of its own, which the first step starts. A context manager."""

    def __init__(
        self,
        write: Callable[[str], object] = warn,
        *,
        first_s: float = FIRST_S,
        every_s: float = EVERY_S,
        is_terminal: bool | None = None,
    ) -> None:
        self._write = write
        # `2>&-` leaves no stderr.
        here = sys.stderr is not None and sys.stderr.isatty()
        self._is_terminal = here if is_terminal is None else is_terminal
        self._first_s = first_s
        self._every_s = every_s
        self._changed = threading.Condition()
        self._text = ""
        self._began_s = self._due_s = 0.0
        self._closed = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def step(self, text: str) -> None:
        """Note what the command does from now on. After an empty text, time counts from the next step."""
        with self._changed:
            if text and not self._text:
                self._began_s = time.monotonic()
                self._due_s = self._began_s + self._first_s
            self._text = text
            if text and self._thread is None and self._is_terminal:
                self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                left_s = self._due_s - time.monotonic()
                if not self._text:
                    self._changed.wait()
                elif left_s > 0:
                    self._changed.wait(left_s)
                else:
                    now_s = time.monotonic()
                    self._write(f"[{now_s - self._began_s:.0f} s] {self._text}")
                    self._due_s = now_s + self._every_s
