"""The demo's own view of Kafka: an independent client, which is no member of the group that it looks at."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

log = logging.getLogger("demo.kafka")
log.addHandler(logging.NullHandler())  # clients log every failed connection; what matters is raised
log.propagate = False

REQUEST_TIMEOUT_S = 15.0
TOPIC_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Offsets of one partition; `committed` is None when the group has committed nothing."""

    partition: int
    first: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int:
        return self.end - (self.first if self.committed is None else self.committed)

    @property
    def done(self) -> int:
        return 0 if self.committed is None else self.committed - self.first


class GroupView:
    """Reads a topic's ends and a group's committed offsets. It has the group's id, and never subscribes."""

    def __init__(self, settings: Mapping[str, str], group: str, topic: str) -> None:
        self._consumer = Consumer({**settings, "group.id": group, "enable.auto.commit": False}, logger=log)
        self._topic = topic
        self._limits: dict[int, tuple[int, int]] = {}

    def load_limits(self) -> Mapping[int, tuple[int, int]]:
        """First and end offset of each partition, and remembered: the demo's topic is written once."""
        metadata = self._consumer.list_topics(self._topic, REQUEST_TIMEOUT_S).topics[self._topic]
        self._limits = {
            number: self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), REQUEST_TIMEOUT_S)
            for number in sorted(metadata.partitions)
        }
        return self._limits

    def partitions(self) -> list[PartitionState]:
        wanted = [TopicPartition(self._topic, number) for number in self._limits]
        committed = {tp.partition: tp.offset for tp in self._consumer.committed(wanted, REQUEST_TIMEOUT_S)}
        return [
            PartitionState(number, first, end, committed[number] if committed[number] >= 0 else None)
            for number, (first, end) in self._limits.items()
        ]

    def close(self) -> None:
        self._consumer.close()


def offset_table(partitions: list[PartitionState]) -> str:
    lines = ["partition     first       end  committed    lag"]
    for state in partitions:
        committed = "-" if state.committed is None else f"{state.committed:,}"
        lines.append(f"{state.partition:>9} {state.first:>9,} {state.end:>9,} {committed:>10} {state.lag:>6,}")
    return "\n".join(lines)


def create_topic(settings: Mapping[str, str], topic: str, partitions: int) -> None:
    """Create the topic, with the cluster's default replication, and wait until every partition has a leader."""
    reasons: list[str] = []
    admin = AdminClient({**settings, "error_cb": lambda error: reasons.append(error.str())}, logger=log)
    try:
        admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        admin.poll(0)  # delivers the reasons
        servers, reason = settings["bootstrap.servers"], (reasons or [error.args[0].str()])[0]
        raise SystemExit(f"no Kafka answers at {servers} within {REQUEST_TIMEOUT_S:.0f} s: {reason}") from error
    # The flights are of 2013, and so are their timestamps: a topic with a retention time would drop them at once.
    new = NewTopic(topic, num_partitions=partitions, config={"retention.ms": "-1"})
    try:
        admin.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)[topic].result(REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise SystemExit(f"cannot create the topic {topic}: {error.args[0].str()}") from error
    deadline = time.monotonic() + TOPIC_TIMEOUT_S
    while time.monotonic() < deadline:
        found = admin.list_topics(topic, REQUEST_TIMEOUT_S).topics[topic]
        if len(found.partitions) == partitions and all(p.leader >= 0 for p in found.partitions.values()):
            return
        time.sleep(0.2)
    raise TimeoutError(f"waited {TOPIC_TIMEOUT_S:.0f} s for the partitions of {topic} to have leaders")
