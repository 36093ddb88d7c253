"""Write the command line's output: results to stdout, warnings and errors to stderr.

The reader of either may close it (`| head`), or its disk is full. That interrupts no work: a command with --execute
still commits, and a monitor gets its exit code.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import TextIO, TypeAlias

# Prints one line of output, or one warning.
PrintLine: TypeAlias = Callable[[str], object]

STDOUT_CLOSED = "stdout cannot be written to: the command continues, and the rest of its output is shown here"


class OutputClosedError(Exception):
    """The reader has closed the output of --watch."""


class Output:
    """Writes lines to stdout; `used` is True after the first one. `step` shows on a terminal what the command does.

    After stdout was closed, lines go to stderr with `rest_to_stderr` (for commands that change something, whose result
    must be shown), otherwise nowhere.
    """

    def __init__(self, step: PrintLine, *, rest_to_stderr: bool = False) -> None:
        self.step = step
        self.used = False
        self._closed = False
        self._rest_to_stderr = rest_to_stderr

    def print_line(self, line: str) -> None:
        """Write a line."""
        self.used = True
        if not self._closed and not _written(line, sys.stdout):
            self._closed = True
            if self._rest_to_stderr:
                warn(STDOUT_CLOSED)
        if self._closed and self._rest_to_stderr:
            warn(line)

    def pause(self, seconds: float) -> None:
        """Wait between two rounds of --watch. Raises `OutputClosedError`."""
        if self._closed:
            raise OutputClosedError
        self.step("")
        time.sleep(seconds)


def warn(line: str) -> None:
    """Write a line to stderr."""
    _written(line, sys.stderr)


def _written(line: str, stream: TextIO | None) -> bool:
    """Write a line at once; return False if the stream is closed (`| head`, `>&-`) or takes no more (a full disk)."""
    if stream is None:
        return False
    # A name that the stream's encoding cannot represent must not end a command that has changed something.
    encoding = stream.encoding or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except OSError:
        # Discard all further output, also Python's own at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return False
    return True
