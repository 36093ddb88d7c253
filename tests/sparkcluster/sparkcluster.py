"""A Spark standalone cluster on 127.0.0.1 for tests: a master and workers as processes of their own.

It runs from PySpark's own files; nothing is fetched. In a test, it ends with the process that started it, however that
ends:

    with SparkCluster(workers=2) as cluster:
        ... SparkSession.builder.master(cluster.master_url).config(map=cluster.conf()) ...
        ... cluster.kill_executor(cluster.executors()[0]) ... cluster.kill_worker("worker-2") ...

From a shell, it stays until it is stopped: `scripts/spark-cluster start [--workers 2]`, `status`, `stop`.
Workers are named worker-1, worker-2, ... Each has its own work folder and, on demand, its own Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import spark_archive
from tests.realkafka import rundir
from tests.realkafka.cluster import free_ports
from tests.realkafka.jars import RealKafkaError, find_java
from tests.sparkcluster.daemons import Daemon, Daemons, Executor, SparkClusterError, process_table, wait_until

__all__ = ["Executor", "SparkCluster", "SparkClusterError"]

_START_TIMEOUT_S = 90.0  # 4 to 6 s on an idle machine
# An application may lose more executors than the ten in a row after which the master gives it up.
_DAEMON_SETTINGS = {"spark.deploy.maxExecutorRetries": "-1", "spark.decommission.enabled": "true"}


class SparkCluster(rundir.Owner):
    """A standalone cluster with its files in a fresh directory, removed at the end.

    cores, memory: what each worker offers to executors.
    pythons: per worker, the interpreter that a plain `python` or `python3` starts there (its folder is first in the
        worker's PATH); None, or a missing entry, for the machine's own. The caller's virtual environment is not in it.
    settings: spark.* settings of master and workers, over the defaults of this module.
    run_dir: must not exist; a temporary directory without it.
    detached: the cluster outlives this process (scripts/spark-cluster); otherwise it ends with it.
    Errors are SparkClusterError. One thread at a time.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        cores: int = 2,
        memory: str = "2g",
        pythons: Sequence[Path | None] = (),
        settings: Mapping[str, str] | None = None,
        run_dir: Path | None = None,
        detached: bool = False,
        start_timeout_s: float = _START_TIMEOUT_S,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers={workers}: at least 1 is needed")
        if len(pythons) > workers:
            raise ValueError(f"pythons has {len(pythons)} entries for {workers} workers")
        self._count = workers
        self._cores = cores
        self._memory = memory
        self._pythons = [None if one is None else str(one) for one in pythons] + [None] * (workers - len(pythons))
        self._settings = _DAEMON_SETTINGS | dict(settings or {})
        self._wanted_dir = run_dir
        self._detached = detached
        self._timeout_s = start_timeout_s
        self._daemons: Daemons | None = None
        self._watchdog: rundir.Watchdog | None = None

    def __repr__(self) -> str:
        return f"SparkCluster({self._daemons.master_url if self._daemons else 'not running'})"

    @property
    def _running(self) -> Daemons:
        if self._daemons is None:
            raise SparkClusterError("the cluster is not running: use it in a with block, or call start()")
        return self._daemons

    @property
    def master_url(self) -> str:
        """spark://host:port of the master."""
        return self._running.master_url

    @property
    def address(self) -> str:
        """What applications are given, as a setting."""
        return self._running.address

    @property
    def workers(self) -> list[str]:
        """The names of all workers, running or not."""
        return [one.name for one in self._running.workers]

    @property
    def run_dir(self) -> Path:
        """The directory of all files of the cluster; a worker's own are in the folder of its name."""
        return self._running.run_dir

    def conf(self, cores: int | None = None, **more: str) -> dict[str, str]:
        """Return the settings of a small application on this cluster.

        cores: the most that it takes of the whole cluster; all of them without it.
        more: settings on top, with `_` for the dots of their names (Spark's own names have none of them).
        """
        found = {
            "spark.master": self.master_url,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "600m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": spark_archive.jvm_options(),
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.pollingDelay": "50ms",
            "spark.ui.enabled": "false",
        }
        if cores is not None:
            found["spark.cores.max"] = str(cores)
        return found | {name.replace("_", "."): value for name, value in more.items()}

    def start(self) -> None:
        """Start the master and all workers, and wait until the workers are registered. Cleans up if that fails."""
        try:
            find_java()
        except RealKafkaError as error:
            raise SparkClusterError(str(error)) from None
        if self._wanted_dir is None:
            run_dir = Path(tempfile.mkdtemp(prefix="groupkafka-spark-"))
        else:
            run_dir = self._wanted_dir.absolute()
            run_dir.mkdir(parents=True)
        ports = free_ports(2 * (self._count + 1))
        members = [Daemon("master", ports.pop(), ports.pop())]
        members += [
            Daemon(f"worker-{number + 1}", ports.pop(), ports.pop(), None, self._cores, self._memory, python)
            for number, python in enumerate(self._pythons)
        ]
        self._daemons = Daemons(run_dir, members, dict(self._settings))
        try:
            self._daemons.save()
            if not self._detached:
                self._watchdog = rundir.Watchdog("tests.sparkcluster", run_dir)
            for one in members:
                self._daemons.write_settings(one)
                self._daemons.spawn(one)  # workers try again until the master listens
            self._wait_registered(set(self.workers))
        except BaseException:
            self.close()
            raise

    def _wait_registered(self, names: set[str]) -> None:
        daemons = self._running

        def registered() -> bool:
            for name in ("master", *names):
                if not daemons.alive(daemons.daemon(name)):
                    raise SparkClusterError(f"{name} ended while starting; its log:\n{daemons.log_tail(name)}")
            return names <= self.registered_workers()

        def logs() -> str:
            return "".join(f"\n--- {name} ---\n{daemons.log_tail(name)}" for name in ("master", *sorted(names)))

        wait_until(f"the master to register {', '.join(sorted(names))}", self._timeout_s, registered, logs)

    def master_state(self) -> dict[str, Any]:
        """Return what the master reports in its JSON: workers, activeapps, completedapps, ...; empty if it is away."""
        return _json(self._running.daemon("master").ui_port)

    def registered_workers(self) -> set[str]:
        """Return the names of the workers that the master counts as alive."""
        ports = {one.port: one.name for one in self._running.workers}
        found = self.master_state().get("workers", [])
        return {ports[one["port"]] for one in found if one["state"] == "ALIVE" and one["port"] in ports}

    def applications(self) -> dict[str, str]:
        """Return the running applications: name by id."""
        return {one["id"]: one["name"] for one in self.master_state().get("activeapps", [])}

    def executors(self, app: str | None = None) -> list[Executor]:
        """Return the live executor processes of all applications, or of the application with this name or id."""
        found = self._running.executors()
        if app is None:
            return found
        ids = {app_id for app_id, name in self.applications().items() if name == app} | {app}
        return [one for one in found if one.app_id in ids]

    def daemons(self, executor: Executor) -> list[int]:
        """Return the pids of the Python daemons of an executor; the Python workers are their children."""
        return self._running.python_daemons(executor)

    def python_workers(self, executor: Executor) -> list[int]:
        """Return the pids of the Python workers of an executor."""
        return self._running.python_workers(executor)

    def kill_executor(self, executor: Executor) -> None:
        """SIGKILL an executor; its map output is lost with it. The master starts another one in its place."""
        _kill(executor.pid)

    def kill_daemon(self, executor: Executor) -> bool:
        """SIGKILL the Python daemons of an executor with their workers; False if it has none.

        The next task starts another one. The workers have to go with it: one that is left serves on without a daemon.
        """
        pids = [*self.daemons(executor), *self.python_workers(executor)]
        for pid in pids:
            _kill(pid)
        return bool(pids)

    def kill_worker(self, name: str, *, with_executors: bool = True) -> None:
        """SIGKILL a worker and, as when a machine dies, all that runs on it.

        with_executors=False: the worker alone; its executors end by themselves when they notice.
        """
        self._running.kill([self._running.daemon(name)])
        if with_executors:
            self._running.kill_executors([name])

    def start_worker(self, name: str) -> None:
        """Start a killed or decommissioned worker again, with the same ports, and wait until it is registered."""
        one = self._running.daemon(name)
        if self._running.alive(one):
            raise SparkClusterError(f"{name} is running already")
        self._running.spawn(one)
        self._wait_registered({name})

    def restart_worker(self, name: str) -> None:
        """Kill a worker with all that runs on it, and start it again."""
        self.kill_worker(name)
        self.start_worker(name)

    def decommission_worker(self, name: str) -> None:
        """SIGPWR: the worker takes no more executors, and those that it has end after their tasks.

        Needs spark.decommission.enabled=true in the application; without it, its executors stay. Whether they move
        their blocks away first is the application's setting, too (spark.storage.decommission.*).
        The worker process stays; start_worker needs a kill_worker before it.
        """
        if not self._running.send(self._running.daemon(name), signal.SIGPWR):
            raise SparkClusterError(f"{name} is not running")

    def log_tail(self, name: str, lines: int = 40) -> str:
        """Return the last lines of the log of the master or a worker."""
        return self._running.log_tail(name, lines)

    def executor_logs(self, lines: int = 40) -> str:
        """Return the last lines of standard error of every executor that there was."""
        found = []
        for path in sorted(self.run_dir.glob("worker-*/work/app-*/*/stderr")):
            text = path.read_text(errors="replace").splitlines()[-lines:]
            found.append("\n".join([f"--- {path.relative_to(self.run_dir)} ---", *text]))
        return "\n".join(found)

    def close(self) -> None:
        """End all processes and remove all files. A second call does nothing."""
        daemons, self._daemons = self._daemons, None
        watchdog, self._watchdog = self._watchdog, None
        try:
            if daemons is not None:
                daemons.remove()
        finally:
            if watchdog is not None:
                watchdog.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(f"killed process {pid} to disappear", 60.0, lambda: all(one.pid != pid for one in process_table()))


def _json(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=30.0) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except (OSError, ValueError):
        return {}
