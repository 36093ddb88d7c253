"""Spark applications as processes: started ahead of need, given commands, ended by pid.

All processes of an application are in its session, whoever their parent is; /proc lists them, on Linux only. The
application's Python driver leads the session. Below it are the JVM, the source's reader process, and Spark's daemon
with its Python workers, which make process groups of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import checkout
from tests.faults.waiting import RigError, wait_for

_START_S = 300.0


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


class App:
    """One application: a Python driver with its JVM, in a session of its own (see query_app.py)."""

    def __init__(self, folder: Path, settings: Mapping[str, str], *, warm: bool = True) -> None:
        """Start it with these settings of Spark; `warm`: it runs a first job before it takes commands."""
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "conf.json").write_text(json.dumps({"settings": dict(settings), "warm": warm}))
        environment = checkout.environment({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"})
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                checkout.command("tests.faults.rig.query_app", folder),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                cwd=folder,
            )
        self.session = self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the application's driver runs."""
        return self._process.poll() is None

    def state(self) -> tuple[str, int, str]:
        """Return (state, run, error) as the application last told; state is "starting" or "dead" without it."""
        if not self.alive:
            return "dead", 0, self.log_tail(5)
        try:
            said = json.loads((self.folder / "state.json").read_text())
        except (OSError, ValueError):
            return "starting", 0, ""
        return said["state"], said["run"], said["error"]

    def wait_ready(self) -> None:
        """Wait until the application takes commands."""
        wait_for(
            f"application {self.folder.name}", _START_S,
            lambda: not self.alive or self.state()[0] != "starting", lambda: self.log_tail(40),
        )  # fmt: skip
        if not self.alive:
            raise RigError(f"application {self.folder.name} did not start\n{self.log_tail(40)}")

    def command(self, **command: Any) -> None:
        """Send a command; a dead application takes none."""
        line = json.dumps(command).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def wait_ended(self, timeout_s: float) -> None:
        """Wait until the driver has ended by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL everything of the application; also what outlived its driver."""
        kill_session(self.session)
        self._process.wait(30)
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def log_tail(self, lines: int) -> str:
        """Return the last lines of its output."""
        text = (self.folder / "log").read_text(errors="replace")
        return f"--- {self.folder.name} ---\n" + "\n".join(text.splitlines()[-lines:])


class AppPool:
    """Applications that wait for a query: one is always being started ahead."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._settings = settings
        self._count = 0
        self._spares: list[App] = []
        self._all: list[App] = []

    def prepare(self, count: int) -> None:
        """Have at least `count` spares, started or starting."""
        self._spares = [app for app in self._spares if app.alive]
        while len(self._spares) < count:
            self._spares.append(self._new({}))

    def _new(self, more: Mapping[str, str], *, warm: bool = True) -> App:
        self._count += 1
        app = App(self._folder / f"app-{self._count}", {**self._settings, **more}, warm=warm)
        self._all.append(app)
        return app

    def cold(self, **more: str) -> App:
        """Start an application that runs no job of its own, with settings on top (`_` for the dots of their names)."""
        app = self._new({name.replace("_", "."): value for name, value in more.items()}, warm=False)
        app.wait_ready()
        return app

    def take(self) -> App:
        """Return an application that takes commands, the readiest one."""
        self.prepare(1)
        app = next((spare for spare in self._spares if spare.state()[0] != "starting"), self._spares[0])
        self._spares.remove(app)
        app.wait_ready()
        return app

    def give_back(self, app: App) -> None:
        """Take back an application whose query is stopped."""
        if app.alive:
            self._spares.append(app)

    def close(self) -> None:
        """End all applications."""
        for app in self._all:
            app.kill()
