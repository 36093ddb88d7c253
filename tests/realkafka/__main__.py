"""The command line of scripts/kafka: start, status, stop; and `watch`, the watchdog of a test's cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.realkafka.cluster import Cluster
from tests.realkafka.commands import Commands
from tests.realkafka.jars import KAFKA_VERSION, RealKafkaError
from tests.realkafka.realkafka import RealKafka


def _start(run_dir: Path, given: argparse.Namespace) -> RealKafka:
    kafka = RealKafka(given.brokers, run_dir=run_dir, detached=True, version=given.version)
    kafka.start()
    return kafka


_COMMANDS = Commands("scripts/kafka", "Kafka", "run", Cluster.load, _start, RealKafkaError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of scripts/kafka."""
    parser = argparse.ArgumentParser(description="A real Kafka on 127.0.0.1.")
    parser.add_argument("--brokers", type=int, default=1, help="for start; 3 replicates every topic")
    parser.add_argument("--version", default=KAFKA_VERSION, help="of Kafka, for start (default: %(default)s)")
    return _COMMANDS.main(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
