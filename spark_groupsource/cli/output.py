"""Write the command line's output: results to stdout, warnings and errors to stderr.

The reader of either may close it (`| head`), or its disk is full. That interrupts no work: a command with --execute
still commits, and a monitor gets its exit code.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

STDOUT_CLOSED = "stdout is closed: the command continues, and the rest of its output is shown here"


class OutputClosedError(Exception):
    """The output of --watch is closed. `failed`: not by its reader, but because nothing can be written to it."""

    def __init__(self, *, failed: bool) -> None:
        super().__init__(failed)
        self.failed = failed


class Output:
    """Writes lines to stdout; `used` is True after the first one. `step` shows on a terminal what the command does.

    After stdout was closed, lines go to stderr with `rest_to_stderr` (for commands that change something, whose result
    must be shown), otherwise nowhere.
    """

    def __init__(self, step: Callable[[str], object], *, rest_to_stderr: bool = False) -> None:
        self.step = step
        self.used = False
        self._closed = False
        self._failed = False
        self._rest_to_stderr = rest_to_stderr

    def print_line(self, line: str) -> None:
        """Write a line."""
        self.used = True
        error = None if self._closed else _write(line, sys.stdout)
        if error is not None:
            self._closed, self._failed = True, not isinstance(error, BrokenPipeError)
            if self._failed:
                warn(f"stdout cannot be written to: {error.strerror or error}")
            if self._rest_to_stderr:
                warn(STDOUT_CLOSED)
        if self._closed and self._rest_to_stderr:
            warn(line)

    def warn(self, line: str) -> None:
        """Write a line that is not part of the output to stderr."""
        warn(line)

    def pause(self, seconds: float) -> None:
        """Wait between two rounds of --watch. Raises `OutputClosedError`."""
        if self._closed:
            raise OutputClosedError(failed=self._failed)
        self.step("")
        time.sleep(seconds)


def in_flags(error: str) -> str:
    """Return an error of the source in the words of the command line: a flag's name instead of its option's."""
    return re.sub(r"option 'kafka\.(bootstrap\.servers|group\.id)'", _flag_of, error)


def _flag_of(option: re.Match[str]) -> str:
    return "--bootstrap-servers" if option[1] == "bootstrap.servers" else "--group"


def warn(line: str) -> None:
    """Write a line to stderr."""
    _write(line, sys.stderr)


def _write(line: str, stream: TextIO | None) -> OSError | None:
    """Write a line at once. Return the error if the stream is closed (`| head`, `>&-`) or full; nothing is raised."""
    if stream is None:
        return BrokenPipeError()
    # A name that the stream's encoding cannot represent must not end a command that has changed something.
    encoding = stream.encoding or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except OSError as error:
        # Discard all further output, also Python's own at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        return error
    return None
