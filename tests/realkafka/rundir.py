"""What the clusters of processes for tests have in common: a run directory, and a watchdog that ends them.

The run directory holds the state file, which lets another process see the cluster and end it, and the logs.
"""

from __future__ import annotations

import json
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests import checkout

_STATE_FILE = "state.json"
_WATCHDOG_TIMEOUT_S = 20.0
Started = TypeVar("Started", bound="Owner")


class Owner(ABC):
    """A cluster that a `with` block starts and ends."""

    @abstractmethod
    def start(self) -> None:
        """Start all processes. Cleans up if that fails."""

    @abstractmethod
    def close(self) -> None:
        """End all processes and remove their files. A second call does nothing."""

    def __enter__(self: Started) -> Started:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Watchdog:
    """A process that ends a cluster when this one is gone: then its standard input ends.

    `package` is run with the command `watch` and the run directory.
    """

    def __init__(self, package: str, run_dir: Path) -> None:
        self._process = subprocess.Popen(
            checkout.command(package, "watch", "--run-dir", run_dir.absolute()),
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=checkout.ROOT,
        )

    def close(self) -> None:
        """Let it look, and wait for its end."""
        self._process.communicate(timeout=_WATCHDOG_TIMEOUT_S)


def save_state(run_dir: Path, state: Mapping[str, Any]) -> None:
    """Write the state file, whole or not at all."""
    new = run_dir / f"{_STATE_FILE}.new"
    new.write_text(json.dumps(state, indent=1) + "\n")
    new.replace(run_dir / _STATE_FILE)


def load_state(run_dir: Path) -> dict[str, Any] | None:
    """Return what the state file holds; None without one."""
    try:
        state: dict[str, Any] = json.loads((run_dir / _STATE_FILE).read_text())
    except FileNotFoundError:
        return None
    return state


def log_tail(path: Path, lines: int) -> str:
    """Return the last lines of a log."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])


def wait_until(
    what: str,
    timeout_s: float,
    done: Callable[[], bool],
    evidence: Callable[[], str] = str,
    *,
    error: type[Exception],
) -> None:
    """Return when done() is true. Raises `error` with `what` and the evidence after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise error(f"waited {timeout_s:.0f} s for {what}{evidence()}")
        time.sleep(0.1)
