"""Spark applications of chosen versions, each in a process of its own that many tests share, and queries in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import checkout
from tests.kafka.harness import Query, wait_for

from .environments import environment


class VersionedApplication:
    """A running application (app_process.py) with one version of Spark."""

    def __init__(self, folder: Path, version: str) -> None:
        self.version, self.folder = version, folder
        folder.mkdir()
        names = environment(version)
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [names["PYSPARK_PYTHON"], *checkout.command("tests.versions.app_process")[1:]],
            stdin=subprocess.PIPE, stdout=self._log, stderr=self._log, text=True, cwd=checkout.ROOT,
            env=os.environ | names, start_new_session=True,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"VersionedApplication({self.version})"

    def log(self) -> str:
        """Return all output."""
        return (self.folder / "log").read_text(errors="replace")

    def send(self, **command: Any) -> None:
        """Send a command."""
        assert self.process.poll() is None, self.log()[-6000:]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def batch_read(self, options: Mapping[str, str]) -> tuple[str, int, list[tuple[str, int, int]]]:
        """Return Spark's version, the number of rows of partition 1, and all records."""
        out = self.folder / uuid.uuid4().hex
        out.mkdir()
        self.send(do="batch", options=dict(options), out=str(out))
        target = out / "batch.json"
        wait_for("the batch read", lambda: self.process.poll() is not None or target.exists(), 120, self.log)
        assert target.exists(), self.log()[-6000:]
        version, filtered, found = json.loads(target.read_text())
        return version, filtered, [tuple(row) for row in found]

    def close(self) -> None:
        """End it, with all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        # What is left in the pipe of a killed process is lost.
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=30)
        self._log.close()


class SharedQuery(Query):
    """A query in a shared application."""

    def __init__(self, app: VersionedApplication, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
        self.app, self.process = app, app.process
        self.name = f"{name}-{uuid.uuid4().hex[:8]}"
        self.out = folder / name / f"run-{len(list((folder / name).glob('run-*')))}"
        self.out.mkdir(parents=True)
        self.checkpoint = Path(settings.get("checkpoint", folder / name / "checkpoint"))
        options = {"checkpointLocation": str(self.checkpoint), "kafka.client.id": self.name} | settings["options"]
        self._since = len(app.log())
        more = {"options": options, "out": str(self.out), "checkpoint": str(self.checkpoint)}
        app.send(**{**settings, **more, "do": "start", "name": self.name})

    def said(self) -> str:
        """Return the application's output since this query started."""
        return self.app.log()[self._since :]

    def log(self) -> str:
        """Return the end of that."""
        return f"--- {self.name}, {self.app!r} ---\n{self.failure()}\n{self.said()[-6000:]}"

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.log()
        assert not (self.out / "ended").exists(), self.log()
        return True

    def wait_ended(self, timeout_s: float = 120.0) -> int:
        """Wait until the query has ended by itself and its member has left; return 1 after an error, else 0."""
        wait_for(f"the end of {self.name}", (self.out / "ended").exists, timeout_s, self.log)
        # Its reader process commits, leaves the group, and removes its file.
        files = self.checkpoint / "groupkafka"
        wait_for(f"the end of the reader of {self.name}", lambda: not list(files.glob("*.json")), 60, self.log)
        return 1 if self.failure() else 0

    def failure(self) -> str:
        """Return the query's error."""
        path = self.out / "ended"
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        """Stop the query, and wait for the end of its member."""
        self.app.send(do="stop", name=self.name)
        assert self.wait_ended() == 0, self.log()

    def drain(self) -> str:
        """Stop the query between two batches; return how that ended."""
        self.app.send(do="drain", name=self.name, out=str(self.out))
        wait_for(f"{self.name} to be drained", (self.out / "drained").exists, 60, self.log)
        self.wait_ended()
        return (self.out / "drained").read_text()

    def kill(self) -> None:
        """Stop it without a look at the result, at the end of a test."""
        if not (self.out / "ended").exists() and self.process.poll() is None and (self.out / "started").exists():
            self.app.send(do="stop", name=self.name)
            wait_for(f"the end of {self.name}", (self.out / "ended").exists, 60, self.log)
