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


def _extend(run_dir: Path, given: argparse.Namespace) -> bool:
    """Create the missing topics on the running brokers. Return False if no topic was given."""
    cluster = Cluster.load(run_dir)
    if cluster is None or not given.topic:
        return False
    if given.sasl and not cluster.login:
        raise RealKafkaError("Kafka is running already, without a login: stop it first, or leave --sasl out")
    wanted = dict(given.topic)
    there = _partition_counts(cluster.bootstrap_servers)
    for name, count in wanted.items():
        if there.get(name, count) != count:
            raise RealKafkaError(f"topic {name} exists, and has {there[name]} partitions, not {count}")
    say("Kafka is running already")
    for name in wanted.keys() & there.keys():
        say(f"topic {name}: exists already, with {there[name]} partitions")
    _create_topics(cluster.bootstrap_servers, {name: wanted[name] for name in wanted if name not in there})
    return True


def _partition_counts(servers: str) -> dict[str, int]:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    try:
        topics = admin.list_topics(timeout=_TOPIC_TIMEOUT_S).topics
    except KafkaException as error:
        raise RealKafkaError(f"the topics cannot be listed: {error.args[0].str()}") from error
    return {name: len(topic.partitions) for name, topic in topics.items()}


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
    "scripts/kafka", "Kafka", "run", Cluster.load, _start, RealKafkaError, "all topics, records and offsets", _extend
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
        help="for start: create it, also on brokers that run already; may be given more than once",
    )  # fmt: skip
    parser.add_argument(
        "--sasl", action="store_true",
        help="for start: clients log in (SASL_PLAINTEXT, SCRAM-SHA-512); prints user, password and Spark's options",
    )  # fmt: skip
    parser.add_argument("--version", default=KAFKA_VERSION, help="of Kafka, for start (default: %(default)s)")
    return _COMMANDS.main(parser, arguments)


if __name__ == "__main__":
    sys.exit(main())
