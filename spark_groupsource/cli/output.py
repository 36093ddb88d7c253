"""Where the command line writes to: stdout for what a command tells, stderr for what is to be known besides.

Who reads either of them may close it (`| head`). That ends nothing that was begun: a command with --execute commits all
the same, and a monitor gets its exit code.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

STDOUT_CLOSED = "stdout is closed: the command goes on, and the rest of its output is shown here"


class OutputClosedError(Exception):
    """Nobody reads the output of --watch any more."""


class Output:
    """Writes lines to stdout; `used` tells that there was one.

    From the line on that a closed stdout does not take, they go to stderr with `rest_to_stderr` (for commands that
    change something: somebody has to be told), and nowhere without.
    """

    def __init__(self, *, rest_to_stderr: bool = False) -> None:
        self.used = False
        self._closed = False
        self._rest_to_stderr = rest_to_stderr

    def say(self, line: str) -> None:
        """Write a line."""
        self.used = True
        if not self._closed and not _written(line, sys.stdout):
            self._closed = True
            if self._rest_to_stderr:
                warn(STDOUT_CLOSED)
        if self._closed and self._rest_to_stderr:
            warn(line)

    def pause(self, seconds: float) -> None:
        """Wait between two looks of --watch. Raises `OutputClosedError`."""
        if self._closed:
            raise OutputClosedError
        time.sleep(seconds)


def warn(line: str) -> None:
    """Write a line to stderr."""
    _written(line, sys.stderr)


def _written(line: str, stream: TextIO) -> bool:
    """Write a line at once; return False when nobody reads the stream any more."""
    # A name that the stream's encoding does not have must not end a command that has changed something.
    encoding = stream.encoding or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        # What is left goes nowhere, also what Python writes at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return False
    return True
