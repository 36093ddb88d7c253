"""Child processes of the demo: started with their output in files, followed, and always ended, by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TERMINATE_TIMEOUT_S = 90.0  # longer than the job's own limit for a clean stop
TAIL_LINES = 30


class Child:
    """One child process, the leader of a session of its own, so that a Ctrl-C reaches the demo alone.

    Its standard output and its log are files `<name>.out` and `<name>.log` in the directory.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.out = directory / f"{name.replace(' ', '-')}.out"
        self.log = directory / f"{name.replace(' ', '-')}.log"
        self._read = 0
        with self.out.open("wb") as out, self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                cwd=directory,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def new_lines(self) -> list[str]:
        """Complete lines of standard output since the last call."""
        with self.out.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._read += len(complete)
        return complete.decode("utf-8", "replace").splitlines()

    def ask_to_stop(self) -> None:
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return not self.running

    def end(self) -> None:
        """SIGTERM, and after a while SIGKILL to what is left of the session. Safe to call again."""
        self.ask_to_stop()
        if not self.wait(TERMINATE_TIMEOUT_S):
            print(f"{self.name} (pid {self.pid}) did not end within {TERMINATE_TIMEOUT_S:.0f} s: killing it")
        # Also when the process itself has ended: Spark's Python processes may be left of a killed JVM.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def tail(self) -> str:
        """The end of what the child has written, for an error message."""
        parts = []
        for file in (self.log, self.out):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            parts += [f"--- the end of {file}", *lines]
        return "\n".join(parts)


class ChildFailed(Exception):
    """A child process ended that was not asked to, or not in the way it should have."""

    def __init__(self, child: Child) -> None:
        super().__init__(f"{child.name} (pid {child.pid}) has ended\n{child.tail()}")


def wait_until(
    condition: Callable[[], bool], timeout_s: float, what: str, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Poll until the condition holds; after the timeout raise an error that says what was waited for."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        meanwhile()
        time.sleep(0.2)
