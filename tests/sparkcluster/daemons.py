"""The processes and files of one Spark standalone cluster: state file, ports, command lines, signals.

Does not know who owns the cluster or for how long: that is sparkcluster.py. The state file in the run directory lets
another process see the daemons and end them. A process is ended by pid, and only while its command line shows that it
belongs to this cluster: pids are used again.

Executors are children of a worker. One outlives its worker by seconds when the worker is killed, so it is found by the
worker's address, which stays the same over a restart.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests import spark_archive
from tests.realkafka import rundir
from tests.realkafka.jars import find_java

_EXECUTOR_CLASS = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DAEMON_MODULE = "pyspark.daemon"
# Nothing of the caller's Python or Spark may reach the workers: they stand for other machines.
_NOT_INHERITED = ("SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV", "GROUPKAFKA_")


class SparkClusterError(RuntimeError):
    """The cluster could not be started, reached or ended; the text has what was seen."""


@dataclass(slots=True)
class Daemon:
    """One master or worker as the state file has it; pid is None while it is stopped.

    python: the interpreter that a plain `python` or `python3` starts on this worker; None for the machine's own.
    """

    name: str
    port: int
    ui_port: int
    pid: int | None = None
    cores: int = 0
    memory: str = ""
    python: str | None = None

    @property
    def is_master(self) -> bool:
        return self.name == "master"


@dataclass(frozen=True, slots=True)
class Process:
    """A line of the process table."""

    pid: int
    parent: int
    command: str


@dataclass(frozen=True, slots=True)
class Executor:
    """An executor process. executor_id is unique within its application."""

    pid: int
    app_id: str
    executor_id: str
    worker: str


def spark_home() -> Path:
    """Return the directory of PySpark, which is a complete Spark. Raises SparkClusterError."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkClusterError("PySpark is not installed: the cluster runs from its files (pip install pyspark)")
    return Path(spec.origin).parent


def process_table() -> list[Process]:
    """Return all live processes of this machine, without zombies."""
    run = subprocess.run(
        ["ps", "-axww", "-o", "pid=,ppid=,stat=,command="], capture_output=True, text=True, check=True, errors="replace"
    )
    found = []
    for line in run.stdout.splitlines():
        pid, parent, state, command = [*line.split(None, 3), ""][:4]
        if not state.startswith("Z"):
            found.append(Process(int(pid), int(parent), command))
    return found


wait_until = partial(rundir.wait_until, error=SparkClusterError)


def _argument(command: str, name: str) -> str:
    found = re.search(rf"{name} (\S+)", command)
    return found.group(1) if found else ""


@dataclass(slots=True)
class Daemons:
    """The master and the workers of one run directory, whoever started them."""

    run_dir: Path
    members: list[Daemon]
    settings: dict[str, str] = field(default_factory=dict)
    _children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def load(cls, run_dir: Path) -> Daemons | None:
        """Return the cluster that the state file describes; None without one."""
        state = rundir.load_state(run_dir)
        if state is None:
            return None
        return cls(run_dir, [Daemon(**one) for one in state["daemons"]], state["settings"])

    def save(self) -> None:
        """Write the state file, whole or not at all."""
        state = {
            "master": self.master_url,
            "daemons": [asdict(one) for one in self.members],
            "settings": self.settings,
        }
        rundir.save_state(self.run_dir, state)

    @property
    def master_url(self) -> str:
        return f"spark://127.0.0.1:{self.daemon('master').port}"

    @property
    def address(self) -> str:
        return f"spark.master={self.master_url}"

    def running(self) -> bool:
        return any(self.alive(one) for one in self.members)

    def status(self) -> Iterator[str]:
        for one in self.members:
            state = f"running, pid {one.pid}" if self.alive(one) else "down"
            yield f"{one.name} 127.0.0.1:{one.port} ui http://127.0.0.1:{one.ui_port} {state}"
        for executor in self.executors():
            yield f"executor {executor.executor_id} of {executor.app_id} on {executor.worker}, pid {executor.pid}"

    @property
    def workers(self) -> list[Daemon]:
        return [one for one in self.members if not one.is_master]

    def daemon(self, name: str) -> Daemon:
        for one in self.members:
            if one.name == name:
                return one
        raise SparkClusterError(f"no daemon {name}: there are {', '.join(one.name for one in self.members)}")

    def folder(self, name: str) -> Path:
        return self.run_dir / name

    def log_tail(self, name: str, lines: int = 40) -> str:
        return rundir.log_tail(self.folder(name) / "log", lines)

    def alive(self, one: Daemon) -> bool:
        if one.pid is None:
            return False
        child = self._children.get(one.name)
        if child is not None and child.pid == one.pid:  # its pid is not used again before poll() took it
            return child.poll() is None
        return any(p.pid == one.pid and self._mark(one) in p.command for p in process_table())

    def _mark(self, one: Daemon) -> str:
        """In the command line from the first moment, when it is still that of the shell script."""
        return f"--properties-file {self.folder(one.name)}/spark.conf"

    def _command(self, one: Daemon) -> list[str]:
        folder = self.folder(one.name)
        common = [
            *("--host", "127.0.0.1", "--port", str(one.port), "--webui-port", str(one.ui_port)),
            *("--properties-file", f"{folder}/spark.conf"),
        ]
        script = str(spark_home() / "bin" / "spark-class")
        if one.is_master:
            return [script, "org.apache.spark.deploy.master.Master", *common]
        return [
            *(script, "org.apache.spark.deploy.worker.Worker", *common),
            *("--cores", str(one.cores), "--memory", one.memory, "--work-dir", f"{folder}/work"),
            self.master_url,
        ]

    def _environment(self, one: Daemon) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        venv = os.environ.get("VIRTUAL_ENV")
        folders = [part for part in kept.get("PATH", os.defpath).split(os.pathsep) if not venv or venv not in part]
        if one.python is not None:
            folders.insert(0, str(Path(one.python).parent))
        return kept | {
            "PATH": os.pathsep.join(folders),
            "JAVA_HOME": str(find_java().parent.parent),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder(one.name) / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": spark_archive.jvm_options(),
        }

    def write_settings(self, one: Daemon) -> None:
        folder = self.folder(one.name)
        folder.mkdir()
        (folder / "spark.conf").write_text("".join(f"{key} {value}\n" for key, value in self.settings.items()))

    def spawn(self, one: Daemon) -> None:
        """Start the process, in a session of its own: a Ctrl-C at the terminal is not meant for it."""
        with (self.folder(one.name) / "log").open("ab") as log:
            child = subprocess.Popen(
                self._command(one),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder(one.name),
                env=self._environment(one),
            )
        self._children[one.name] = child
        one.pid = child.pid
        self.save()

    def executors(self, table: Sequence[Process] | None = None) -> list[Executor]:
        """Return the executors of all applications, also of those whose worker was killed."""
        by_url = {f"spark://Worker@127.0.0.1:{one.port}": one.name for one in self.workers}
        found = []
        for one in process_table() if table is None else table:
            worker = by_url.get(_argument(one.command, "--worker-url")) if _EXECUTOR_CLASS in one.command else None
            if worker is not None:
                ids = _argument(one.command, "--app-id"), _argument(one.command, "--executor-id")
                found.append(Executor(one.pid, *ids, worker))
        return sorted(found, key=lambda e: (e.app_id, e.worker, e.executor_id))

    def python_daemons(self, executor: Executor, table: Sequence[Process] | None = None) -> list[int]:
        """Return the pids of an executor's Python daemons: one per interpreter and environment."""
        return [
            one.pid
            for one in (process_table() if table is None else table)
            if one.parent == executor.pid and _DAEMON_MODULE in one.command
        ]

    def send(self, one: Daemon, number: signal.Signals) -> bool:
        """Send a signal if the process is alive and ours; False if not."""
        if one.pid is None or not self.alive(one):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, number)
        return True

    def kill(self, members: Iterable[Daemon]) -> None:
        """SIGKILL, and wait until the processes are gone."""
        killed = list(members)
        for one in killed:
            self.send(one, signal.SIGKILL)
        wait_until("killed daemons to disappear", 60.0, lambda: not any(self.alive(one) for one in killed))
        for one in killed:
            one.pid = None
        self.save()

    def python_workers(self, executor: Executor, table: Sequence[Process] | None = None) -> list[int]:
        """Return the pids of an executor's Python workers, the children of its daemons."""
        table = process_table() if table is None else table
        parents = set(self.python_daemons(executor, table))
        return [one.pid for one in table if one.parent in parents]

    def kill_executors(self, workers: Iterable[str]) -> None:
        """SIGKILL all executors of these workers with their Python processes, and wait until they are gone."""
        of = set(workers)
        table = process_table()
        pids = [
            pid
            for one in self.executors(table)
            if one.worker in of
            for pid in (one.pid, *self.python_daemons(one, table), *self.python_workers(one, table))
        ]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until("killed executors to disappear", 60.0, lambda: not {p.pid for p in process_table()} & set(pids))

    def end(self, timeout_s: float) -> None:
        """End everything: SIGTERM, then SIGKILL to what is still there after timeout_s."""
        names = [one.name for one in self.workers]
        for one in self.members:
            self.send(one, signal.SIGCONT)  # a stopped process would not see the next signal
            self.send(one, signal.SIGTERM)
        with contextlib.suppress(SparkClusterError):
            wait_until("daemons to end", timeout_s, lambda: not any(self.alive(one) for one in self.members))
        self.kill(self.members)
        # An executor whose application is still there may have been started a moment ago.
        self.kill_executors(names)

    def remove(self) -> None:
        """End everything, and remove all files."""
        self.end(5.0)
        shutil.rmtree(self.run_dir)
