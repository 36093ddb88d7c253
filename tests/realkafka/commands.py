"""The commands of scripts/kafka and scripts/spark-cluster: start, stop, status; and `watch`, a watchdog's.

What they know of a cluster is in its run directory, so each command may come from another process.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.realkafka.jars import cache_dir, say

_NOT_RUNNING = 3  # the code that init scripts use


class FoundCluster(Protocol):
    """A cluster as the state file of a run directory describes it, whoever started it."""

    @property
    def address(self) -> str:
        """What clients are given: a line name=value for each setting, the address first."""

    def running(self) -> bool:
        """Whether any of its processes that clients use runs."""

    def status(self) -> Iterator[str]:
        """A line for each process."""

    def remove(self) -> None:
        """End its processes, and remove its files."""


class StartedCluster(Protocol):
    """A cluster that this process has started."""

    @property
    def address(self) -> str:
        """What clients are given: a line name=value for each setting, the address first."""


def _nothing_to_add(run_dir: Path, given: argparse.Namespace) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of one kind of cluster. `error` is what starting and ending it may raise.

    contents: what is deleted with the cluster.
    extend: adds to a running cluster what the options of `start` ask for; False if they ask for nothing that can be
        added, which is an error.
    """

    script: str
    name: str
    folder: str
    load: Callable[[Path], FoundCluster | None]
    start: Callable[[Path, argparse.Namespace], StartedCluster]
    error: type[Exception]
    contents: str
    extend: Callable[[Path, argparse.Namespace], bool] = _nothing_to_add

    def main(self, parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
        """Run a command line; `parser` has the options of `start`."""
        parser.prog = self.script
        parser.add_argument("command", choices=("start", "stop", "status", "watch"))
        parser.add_argument("--run-dir", type=Path, default=cache_dir() / self.folder, help="files, logs and state")
        parser.epilog = f"`stop` deletes {self.contents}."
        given = parser.parse_args(arguments)
        run_dir: Path = given.run_dir.absolute()
        try:
            if given.command == "start":
                return self._start(run_dir, given)
            return {"stop": self._stop, "status": self._status, "watch": self._watch}[given.command](run_dir)
        except self.error as error:
            say(f"{self.script}: {error}")
            return 1

    def _start(self, run_dir: Path, given: argparse.Namespace) -> int:
        left = self.load(run_dir)
        if left is not None:
            if left.running():
                if self.extend(run_dir, given):
                    print(left.address, flush=True)
                    return 0
                say(f"{self.name} is running already: {left.address.splitlines()[0]} ({self.script} stop ends it)")
                return 1
            left.remove()  # its process may be there although no client can use it: an executor, ZooKeeper
        elif run_dir.exists():
            # What is left of a `stop` that was interrupted. Another directory is the user's.
            if run_dir != cache_dir() / self.folder and any(run_dir.iterdir()):
                raise self.error(f"--run-dir {run_dir} exists, and {self.script} did not make it")
            shutil.rmtree(run_dir)
        say(f"starting {self.name}")
        print(self.start(run_dir, given).address, flush=True)
        where = "" if run_dir == cache_dir() / self.folder else f" --run-dir {run_dir}"
        say(f"files and logs: {run_dir}. `{self.script} stop{where}` deletes {self.contents}.")
        return 0

    def _status(self, run_dir: Path) -> int:
        found = self.load(run_dir)
        if found is None or not found.running():
            print(f"{self.name} is not running")
            return _NOT_RUNNING
        for line in found.status():
            print(line)
        print(found.address)
        return 0

    def _stop(self, run_dir: Path) -> int:
        found = self.load(run_dir)
        if found is None:
            print(f"{self.name} is not running")
            return 0
        found.remove()
        print(f"{self.name} is stopped. Deleted: {self.contents} ({run_dir})")
        return 0

    def _watch(self, run_dir: Path) -> int:
        """Wait until the process at the other end of standard input is gone; see rundir.Watchdog."""
        sys.stdin.buffer.read()
        found = self.load(run_dir)
        if found is not None:
            found.remove()
        return 0
