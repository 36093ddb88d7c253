"""The command line of scripts/spark-cluster: start, status, stop; and `watch`, the watchdog of a test's cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.realkafka.jars import cache_dir, say
from tests.sparkcluster.daemons import Daemons, SparkClusterError
from tests.sparkcluster.sparkcluster import SparkCluster, remove


def _start(run_dir: Path, options: argparse.Namespace) -> int:
    left = Daemons.load(run_dir)
    if left is not None:
        if any(left.alive(one) for one in left.members):
            say(f"The cluster is running already: {left.master_url} (scripts/spark-cluster stop ends it)")
            return 1
        remove(left)  # executors may have been left
    cluster = SparkCluster(
        options.workers,
        cores=options.cores,
        memory=options.memory,
        pythons=options.python,
        run_dir=run_dir,
        detached=True,
    )
    cluster.start()
    print(f"spark.master={cluster.master_url}", flush=True)
    return 0


def _status(run_dir: Path) -> int:
    daemons = Daemons.load(run_dir)
    if daemons is None or not any(daemons.alive(one) for one in daemons.members):
        print("The cluster is not running")
        return 3  # the code that init scripts use
    for one in daemons.members:
        state = f"running, pid {one.pid}" if daemons.alive(one) else "down"
        print(f"{one.name} 127.0.0.1:{one.port} ui http://127.0.0.1:{one.ui_port} {state}")
    for executor in daemons.executors():
        print(f"executor {executor.executor_id} of {executor.app_id} on {executor.worker}, pid {executor.pid}")
    print(f"spark.master={daemons.master_url}")
    return 0


def _stop(run_dir: Path) -> int:
    daemons = Daemons.load(run_dir)
    if daemons is None:
        print("The cluster is not running")
        return 0
    remove(daemons)
    print("The cluster is stopped, its files removed")
    return 0


def _watch(run_dir: Path) -> int:
    sys.stdin.buffer.read()
    daemons = Daemons.load(run_dir)
    if daemons is not None:
        remove(daemons)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of scripts/spark-cluster."""
    parser = argparse.ArgumentParser(
        prog="scripts/spark-cluster", description="Spark standalone on 127.0.0.1, from PySpark's own files."
    )
    parser.add_argument("command", choices=("start", "stop", "status", "watch"))
    parser.add_argument("--workers", type=int, default=2, help="for start")
    parser.add_argument("--cores", type=int, default=2, help="for start: cores that each worker offers")
    parser.add_argument("--memory", default="2g", help="for start: memory that each worker offers")
    parser.add_argument(
        "--python", type=Path, action="append", default=[], help="for start: worker 1's Python; again for worker 2, ..."
    )
    parser.add_argument("--run-dir", type=Path, default=cache_dir() / "spark-run", help="files, logs and state")
    options = parser.parse_args(arguments)
    run_dir: Path = options.run_dir.absolute()
    try:
        if options.command == "start":
            return _start(run_dir, options)
        return {"stop": _stop, "status": _status, "watch": _watch}[options.command](run_dir)
    except SparkClusterError as error:
        say(f"scripts/spark-cluster: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
