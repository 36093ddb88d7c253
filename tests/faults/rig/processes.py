"""The processes of one Spark application, as /proc tells: all that are in its session, whoever their parent is.

The application's Python driver leads the session; below it are the JVM, the source's reader process, and Spark's daemon
with its Python workers, which make process groups of their own. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A live process."""

    pid: int
    parent: int
    session: int
    command: str


def _read(entry: Path) -> Process | None:
    try:
        state, parent, _group, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    return None if state in "ZX" else Process(int(entry.name), int(parent), int(session), command)


def in_session(session: int) -> list[Process]:
    """Return the session's live processes, oldest first."""
    found = [_read(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return sorted((p for p in found if p is not None and p.session == session), key=lambda p: p.pid)


def jvm(session: int) -> int | None:
    """Return the pid of the application's JVM."""
    return next((p.pid for p in in_session(session) if "org.apache.spark.deploy.SparkSubmit" in p.command), None)


def readers(session: int) -> list[int]:
    """Return the pids of the source's reader processes: none, or one per running query."""
    return [p.pid for p in in_session(session) if "python_streaming_source_runner" in p.command]


def workers(session: int) -> list[int]:
    """Return the pids of the Python workers, which are children of Spark's Python daemon."""
    daemons = [p for p in in_session(session) if "pyspark.daemon" in p.command]
    parents = {p.pid for p in daemons}
    return [p.pid for p in daemons if p.parent in parents]


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to each; those that are gone are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_session(session: int) -> None:
    """SIGKILL all processes of a session, and those that were being started meanwhile."""
    for _round in range(20):
        left = [p.pid for p in in_session(session)]
        if not left:
            return
        send(signal.SIGKILL, left)
