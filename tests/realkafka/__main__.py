"""The command line of scripts/kafka: start, status, stop; and `watch`, the watchdog of a test's cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.realkafka.cluster import Cluster
from tests.realkafka.commands import Commands
from tests.realkafka.jars import KAFKA_VERSION, RealKafkaError, say, version_of
from tests.realkafka.login import OLDEST_WITH_USERS, Login
from tests.realkafka.realkafka import RealKafka

_USER = "app"
_TOPIC_TIMEOUT_S = 30.0


def _start(run_dir: Path, given: argparse.Namespace) -> RealKafka:
    if given.sasl and version_of(given.version) < OLDEST_WITH_USERS:
        raise RealKafkaError(f"--sasl needs Kafka 3.5 or newer, not {given.version}")
    security = Login(_USER) if given.sasl else None
    kafka = RealKafka(given.brokers, run_dir=run_dir, detached=True, version=given.version, security=security)
    kafka.start()
    try:
        _create_topics(kafka.bootstrap_servers, dict(given.topic))
        if given.sasl:
            _show_login(kafka.client_settings, run_dir / "client.properties")
    except BaseException:
        kafka.close()
        raise
    return kafka


def _create_topics(servers: str, partitions: Mapping[str, int]) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    if not partitions:
        return
    # Replicated as the brokers do by default.
    topics = [NewTopic(name, count, -1) for name, count in partitions.items()]
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for name, created in admin.create_topics(topics).items():
        try:
            created.result(_TOPIC_TIMEOUT_S)
        except KafkaException as error:
            raise RealKafkaError(f"topic {name} was not created: {error.args[0].str()}") from error
        say(f"topic {name}: {partitions[name]} partitions")


def _show_login(settings: Mapping[str, str], file: Path) -> None:
    """Write the settings of a client to a file that only this user can read, and show how to use them."""
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    say(f"user {settings['sasl.username']}, password {settings['sasl.password']}. Options for Spark:")
    for name, value in settings.items():
        say(f'    .option("kafka.{name}", "{value}")')
    say(f"For the commands of groupkafka: --bootstrap-servers {settings['bootstrap.servers']} --config {file}")


_COMMANDS = Commands(
    "scripts/kafka", "Kafka", "run", Cluster.load, _start, RealKafkaError, "all topics, records and offsets"
)


def _topic(text: str) -> tuple[str, int]:
    name, _, count = text.partition(":")
    if not name or not (count or "1").isdecimal() or int(count or "1") < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME:PARTITIONS, such as orders:4")
    return name, int(count or "1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line of scripts/kafka."""
    parser = argparse.ArgumentParser(description="A real Kafka on 127.0.0.1.")
    parser.add_argument("--brokers", type=int, default=1, help="for start; 3 replicates every topic")
    parser.add_argument(
        "--topic", type=_topic, action="append", default=[], metavar="NAME:PARTITIONS",
        help="for start: create it; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--sasl", action="store_true",
        help="for start: clients log in (SASL_PLAINTEXT, SCRAM-SHA-512); prints user, password and Spark's options",
    )  # fmt: skip
    parser.add_argument("--version", default=KAFKA_VERSION, help="of Kafka, for start (default: %(default)s)")
    return _COMMANDS.main(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
