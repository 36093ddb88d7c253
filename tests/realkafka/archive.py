"""Make the class archive (JEP 350) with which brokers start in less time; see tests/spark_archive.py.

    python -m tests.realkafka.archive     makes it, once per virtual environment, Java and version of Kafka

Brokers use it if it is there, whoever starts them.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.realkafka.jars import KAFKA_VERSION, RealKafkaError, class_archive, class_path, find_java, say, version_of
from tests.realkafka.realkafka import RealKafka

_TOPIC = "archived"
_WAIT_S = 30.0


def make() -> None:
    """Use a broker for a moment, and keep the classes that it loads.

    Raises RealKafkaError, KafkaException, OSError or SubprocessError.
    """
    java = find_java()
    jars = class_path(java)
    made = class_archive(java, jars)
    if made.exists() or version_of(KAFKA_VERSION) < (4,):
        return
    say(f"[setup] making {made.name}, which speeds up the start of each broker (once; about 10 s)")
    # Beside its place: it is there as a whole or not at all.
    with tempfile.TemporaryDirectory(dir=made.parent, prefix="kafka-archive-") as folder:
        scratch = Path(folder) / made.name
        options = [f"-XX:ArchiveClassesAtExit={scratch}", "-Xlog:cds=off", "-Xlog:class+path=off"]
        with RealKafka(java_options=options) as kafka:
            _use(kafka.bootstrap_servers)
            # The JVM writes the archive while it ends.
            kafka.stop_broker(1)
        # A JVM crashes on one that was cut short, and leaves a report in its working directory.
        command = [str(java), "-Xshare:on", f"-XX:SharedArchiveFile={scratch}", "-cp", jars, "-version"]
        subprocess.run(command, check=True, timeout=_WAIT_S, capture_output=True, cwd=folder)
        scratch.replace(made)


def _use(servers: str) -> None:
    """Produce to a topic, and read it in a group of either protocol."""
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(_TOPIC, 1, 1)])[_TOPIC].result(_WAIT_S)
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(_TOPIC, b"x")
    producer.flush(_WAIT_S)
    for protocol in ("classic", "consumer"):
        settings = {"group.id": protocol, "group.protocol": protocol, "auto.offset.reset": "earliest"}
        consumer = Consumer({"bootstrap.servers": servers, **settings})
        consumer.subscribe([_TOPIC])
        if consumer.poll(_WAIT_S) is not None:
            consumer.commit(asynchronous=False)
        consumer.close()


if __name__ == "__main__":
    try:
        make()
    except (RealKafkaError, KafkaException, OSError, subprocess.SubprocessError) as error:
        # The tests run without it, only slower.
        say(f"[setup] no class archive of brokers: {type(error).__name__}: {error}")
