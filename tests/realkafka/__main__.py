"""The command line of scripts/kafka: start, status, stop; and `watch`, the watchdog of a test's cluster."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.realkafka.cluster import Cluster
from tests.realkafka.jars import KAFKA_VERSION, RealKafkaError, cache_dir, say
from tests.realkafka.realkafka import RealKafka, remove


def _start(run_dir: Path, brokers: int, version: str) -> int:
    left = Cluster.load(run_dir)
    if left is not None:
        if any(left.alive(b) for b in left.processes):
            say(f"Kafka runs already: {left.bootstrap_servers} (scripts/kafka stop ends it)")
            return 1
        shutil.rmtree(run_dir)
    kafka = RealKafka(brokers, run_dir=run_dir, detached=True, version=version)
    kafka.start()
    print(f"bootstrap.servers={kafka.bootstrap_servers}", flush=True)
    return 0


def _status(run_dir: Path) -> int:
    cluster = Cluster.load(run_dir)
    if cluster is None or not any(cluster.alive(b) for b in cluster.brokers):
        print("Kafka is not running")
        return 3  # as init scripts say it
    for one in cluster.brokers:
        state = f"running, pid {one.pid}" if cluster.alive(one) else "down"
        print(f"broker {one.id} 127.0.0.1:{one.port} {state}")
    print(f"bootstrap.servers={cluster.bootstrap_servers}")
    return 0


def _stop(run_dir: Path) -> int:
    cluster = Cluster.load(run_dir)
    if cluster is None:
        print("Kafka is not running")
        return 0
    remove(cluster)
    print("Kafka is stopped, its data removed")
    return 0


def _watch(run_dir: Path) -> int:
    sys.stdin.buffer.read()
    cluster = Cluster.load(run_dir)
    if cluster is not None:
        remove(cluster)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of scripts/kafka."""
    parser = argparse.ArgumentParser(prog="scripts/kafka", description="A real Kafka on 127.0.0.1.")
    parser.add_argument("command", choices=("start", "stop", "status", "watch"))
    parser.add_argument("--brokers", type=int, default=1, help="for start; 3 replicates every topic")
    parser.add_argument("--version", default=KAFKA_VERSION, help="of Kafka, for start (default: %(default)s)")
    parser.add_argument("--run-dir", type=Path, default=cache_dir() / "run", help="data, logs and state")
    options = parser.parse_args(arguments)
    run_dir: Path = options.run_dir.absolute()
    try:
        if options.command == "start":
            return _start(run_dir, options.brokers, options.version)
        return {"stop": _stop, "status": _status, "watch": _watch}[options.command](run_dir)
    except RealKafkaError as error:
        say(f"scripts/kafka: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
