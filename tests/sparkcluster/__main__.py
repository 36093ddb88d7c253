"""The command line of scripts/spark-cluster: start, status, stop; and `watch`, the watchdog of a test's cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.realkafka.commands import Commands
from tests.sparkcluster.daemons import Daemons, SparkClusterError
from tests.sparkcluster.sparkcluster import SparkCluster


def _start(run_dir: Path, given: argparse.Namespace) -> SparkCluster:
    cluster = SparkCluster(
        given.workers,
        cores=given.cores,
        memory=given.memory,
        pythons=given.python,
        run_dir=run_dir,
        detached=True,
    )
    cluster.start()
    return cluster


_COMMANDS = Commands(
    "scripts/spark-cluster",
    "The cluster",
    "spark-run",
    Daemons.load,
    _start,
    SparkClusterError,
    "its logs and work files",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of scripts/spark-cluster."""
    parser = argparse.ArgumentParser(description="Spark standalone on 127.0.0.1, from PySpark's own files.")
    parser.add_argument("--workers", type=int, default=2, help="for start")
    parser.add_argument("--cores", type=int, default=2, help="for start: cores that each worker offers")
    parser.add_argument("--memory", default="2g", help="for start: memory that each worker offers")
    parser.add_argument(
        "--python", type=Path, action="append", default=[], help="for start: worker 1's Python; again for worker 2, ..."
    )
    return _COMMANDS.main(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
