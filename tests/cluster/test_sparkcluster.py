"""The Spark cluster that other tests of this directory run applications on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import checkout
from tests.kafka.harness import check_commands, wait_for
from tests.sparkcluster.daemons import Daemon, Daemons, process_table
from tests.sparkcluster.sparkcluster import Executor, SparkCluster, SparkClusterError

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

# Runs Python tasks until its standard input ends; prints the interpreters that its workers run on.
_BUSY = """
import json, sys, threading
from pyspark.sql import SparkSession
builder = SparkSession.builder.appName("busy").config(map=json.loads(sys.argv[1]))
sc = builder.getOrCreate().sparkContext
ended = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ended.set())).start()
def interpreter(_):
    import sys, time
    time.sleep(0.5)
    return sys.executable
while not ended.is_set():
    print(json.dumps(sorted(set(sc.parallelize(range(4), 4).map(interpreter).collect()))), flush=True)
"""


@contextmanager
def busy(cluster: SparkCluster, folder: Path, python: str = sys.executable) -> Iterator[Path]:
    """Keep an application with Python tasks running; yield the file of what it prints."""
    folder.mkdir()
    environment = os.environ | {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    with (folder / "out").open("wb") as out, (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _BUSY, json.dumps(cluster.conf(spark_decommission_enabled="true"))],
            stdin=subprocess.PIPE, stdout=out, stderr=log, env=environment,
        )  # fmt: skip
        try:
            yield folder / "out"
            assert process.poll() is None, (folder / "log").read_text()[-6000:]
            process.communicate(timeout=120)
            assert process.returncode == 0, (folder / "log").read_text()[-6000:]
        finally:
            process.kill()
            process.communicate(timeout=60)


def _with_daemons(cluster: SparkCluster, count: int) -> list[Executor]:
    """Wait for this many executors that run Python, and return those."""

    def running() -> list[Executor]:
        found = [one for one in cluster.executors("busy") if cluster.python_workers(one)]
        return found if len(found) == count else []

    found: list[Executor] = wait_for(
        f"{count} executors with Python daemons",
        running,
        120,
        lambda: f"{cluster.executors()}\n{cluster.executor_logs()}",
    )
    return found


def test_executors_daemons_and_workers_are_killed_and_come_back(tmp_path: Path) -> None:
    with SparkCluster() as cluster, busy(cluster, tmp_path / "busy") as out:
        before = _with_daemons(cluster, 2)
        assert {one.worker for one in before} == set(cluster.workers) == {"worker-1", "worker-2"}
        wait_for("the application", lambda: list(cluster.applications().values()) == ["busy"], 60)

        cluster.kill_executor(before[0])
        after = _with_daemons(cluster, 2)
        assert {one.pid for one in after} != {one.pid for one in before}

        daemon = cluster.daemons(after[0])
        assert cluster.kill_daemon(after[0])
        wait_for("another daemon", lambda: set(cluster.daemons(after[0])) - set(daemon), 120, cluster.executor_logs)
        assert after[0] in cluster.executors(), "the executor lives on"

        cluster.kill_worker("worker-1")
        wait_for("the master to notice", lambda: cluster.registered_workers() == {"worker-2"}, 60)
        assert {one.worker for one in cluster.executors()} == {"worker-2"}
        with pytest.raises(SparkClusterError, match="worker-2 is running already"):
            cluster.start_worker("worker-2")
        cluster.start_worker("worker-1")
        _with_daemons(cluster, 2)

        cluster.decommission_worker("worker-2")
        wait_for("no executor there", lambda: {one.worker for one in cluster.executors()} == {"worker-1"}, 120)
        wait_for("the master to know", lambda: cluster.registered_workers() == {"worker-1"}, 60)
        cluster.restart_worker("worker-2")
        _with_daemons(cluster, 2)
        seen = len(out.read_text().splitlines())
        wait_for("tasks to run on", lambda: len(out.read_text().splitlines()) > seen, 120)


def test_each_worker_has_its_own_python(tmp_path: Path) -> None:
    """A plain `python3` is the worker's own, and nothing of this process's environment is in it."""
    for name in ("a", "b"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / name)], check=True, timeout=120)
    pythons = [tmp_path / name / "bin" / "python" for name in ("a", "b")]
    with SparkCluster(pythons=pythons) as cluster, busy(cluster, tmp_path / "busy", "python3") as out:
        _with_daemons(cluster, 2)
        expected = [str(tmp_path / name / "bin" / "python3") for name in ("a", "b")]
        wait_for("tasks on both", lambda: json.dumps(expected) in out.read_text(), 120, out.read_text)


def test_the_cluster_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    program = (
        "import time; from pathlib import Path; from tests.sparkcluster.sparkcluster import SparkCluster\n"
        f"SparkCluster(1, run_dir=Path({str(run_dir)!r})).start()\n"
        "print('started', flush=True); time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=checkout.ROOT)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "started\n"
        assert [one for one in process_table() if f"{run_dir}/worker-1" in one.command]
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=60)
    wait_for("all to end", lambda: not [one for one in process_table() if f"{run_dir}/" in one.command], 60)
    wait_for("the files to be removed", lambda: not run_dir.exists(), 30)


def test_a_cluster_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    cluster = SparkCluster(1, memory="much", run_dir=tmp_path / "run")
    with pytest.raises(SparkClusterError, match=r"worker-1 ended while starting; its log:\n(.*\n)*  -m MEM"):
        cluster.start()
    assert not (tmp_path / "run").exists()


def test_the_command_line_starts_shows_and_stops(tmp_path: Path) -> None:
    check_commands("spark-cluster", tmp_path / "run", "spark.master=spark://127.0.0.1:", "--workers", "1")


def test_a_foreign_process_with_our_pid_is_left_alone(tmp_path: Path) -> None:
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        daemons = Daemons(tmp_path, [Daemon("master", 1, 2), Daemon("worker-1", 3, 4, pid=foreign.pid)])
        assert not daemons.alive(daemons.workers[0])
        daemons.kill(daemons.workers)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait(60)
