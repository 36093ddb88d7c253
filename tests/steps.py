"""Lines of the tools for the person who waits: each step as it begins, and on a terminal how long it has lasted."""

from __future__ import annotations

import sys

from spark_groupsource.cli.progress import Progress

# For the whole process: its thread, which writes to a terminal only, ends with it.
_PROGRESS = Progress()


def begin(text: str) -> None:
    """Note a step that the tool has shown by itself."""
    # After an empty text, its time counts from now on.
    _PROGRESS.step("")
    _PROGRESS.step(text.strip())


def say(text: str) -> None:
    """Show a step on stderr: standard output is for results."""
    print(text, file=sys.stderr, flush=True)
    begin(text)
