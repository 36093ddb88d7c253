"""See the group and its topics through clients that share no code with the source.

`Observer` asks and changes, `Watcher` writes down each change of the group's offsets, `read_log` reads the topics.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.faults.history import Logged, Watched
from tests.faults.observe.describer import Describer, Description
from tests.faults.waiting import RigError, wait_for

T = TypeVar("T")
Partition = tuple[str, int]
Offsets = dict[Partition, int]

# Brokers go and come all the time: what a client has to say about it is no news.
CLIENT: Mapping[str, str | int | float] = {
    "log_level": 0,
    "reconnect.backoff.max.ms": 300,
    "topic.metadata.refresh.interval.ms": 1000,
    "allow.auto.create.topics": False,
}
_ANSWER_S = 5.0
_READ_S = 120.0
PACE_S = 0.05
# Seconds after which every broker knows of a partition that was added.
_SPREAD_S = 10.0


def attempt(call: Callable[[], T]) -> T | None:
    """Return the call's value, or None when Kafka has no answer now."""
    try:
        return call()
    except KafkaException:
        return None


class Observer:
    """Looks at one group and its topics. One thread at a time; raises KafkaException when there is no answer."""

    def __init__(self, bootstrap_servers: str, group: str, topics: Iterable[str]) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.group = group
        self.topics = tuple(topics)
        self._settings = {**CLIENT, "bootstrap.servers": bootstrap_servers}
        self._admin = AdminClient(self._settings)
        # Neither subscribed nor assigned: it is no member, it only asks.
        self._client = Consumer({**self._settings, "group.id": group, "enable.auto.commit": False})
        self._describer = Describer(bootstrap_servers, group)
        self._known: set[Partition] = set()
        self._spreads_until_s = 0.0

    def create_topic(self, topic: str, partitions: int) -> str:
        """Create a topic whose records stay, and wait until it has its leaders; returns its id."""
        new = NewTopic(topic, partitions, config={"retention.ms": "-1"})
        self._admin.create_topics([new])[topic].result(30)
        wait_for(f"topic {topic}", 30, lambda: len(attempt(lambda: self.partitions_of(topic)) or ()) == partitions)
        return wait_for(f"the id of topic {topic}", 30, lambda: attempt(lambda: self._topic_id(topic)))

    def _topic_id(self, topic: str) -> str:
        described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=_ANSWER_S)
        return str(described[topic].result(_ANSWER_S + 2).topic_id)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and wait until no broker lists it."""
        self._admin.delete_topics([topic])[topic].result(30)
        wait_for(f"the end of topic {topic}", 60, lambda: attempt(lambda: self.partitions_of(topic)) == [])

    def partitions_of(self, topic: str) -> list[int]:
        """Return the partitions that have a leader."""
        found = self._admin.list_topics(topic, timeout=_ANSWER_S).topics.get(topic)
        return [] if found is None else sorted(n for n, p in found.partitions.items() if p.leader >= 0)

    def all_partitions(self) -> set[Partition]:
        """Return the partitions of all topics, as their metadata lists them."""
        listed = self._admin.list_topics(timeout=_ANSWER_S).topics
        if not all(topic in listed for topic in self.topics):  # a broker that is starting
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return {(topic, number) for topic in self.topics for number in listed[topic].partitions}

    def add_partition(self, topic: str) -> int:
        """Grow a topic by one partition; returns its number."""
        number = len(self.partitions_of(topic))
        self._admin.create_partitions([NewPartitions(topic, number + 1)])[topic].result(30)
        wait_for(
            f"partition {topic}-{number}", 30, lambda: number in (attempt(lambda: self.partitions_of(topic)) or ())
        )
        return number

    def set_group_session_timeout(self, timeout_ms: int) -> None:
        """Set the session timeout of a KIP-848 group, which is the broker's to set."""
        entry = ConfigEntry("consumer.session.timeout.ms", str(timeout_ms), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.GROUP, self.group, incremental_configs=[entry])
        self._admin.incremental_alter_configs([resource])[resource].result(30)

    def committed(self) -> Offsets:
        """Return the group's committed offsets; a partition that Kafka has no answer for now is left out."""
        # Not by the admin client: librdkafka (2.16) can crash there when the coordinator has moved.
        if not self._known:
            self._known = self.all_partitions()
        elif time.monotonic() < self._spreads_until_s:
            # The broker that was asked may not have heard of the change.
            self._known = attempt(self.all_partitions) or self._known
        answer = self._client.committed([TopicPartition(*one) for one in sorted(self._known)], timeout=_ANSWER_S)
        return {(p.topic, p.partition): p.offset for p in answer if p.error is None and p.offset >= 0}

    def ends(self, open_too: bool = False) -> Offsets:
        """Return where each partition ends for a reader of committed records; open_too: behind open transactions."""
        isolation = IsolationLevel.READ_UNCOMMITTED if open_too else IsolationLevel.READ_COMMITTED
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for topic, number in self.all_partitions()}
        answers = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_ANSWER_S)
        ends = {(p.topic, p.partition): future.result(30).offset for p, future in answers.items()}
        if min(ends.values(), default=0) < 0:
            # librdkafka's way to say that a leader is dead; it goes on asking that one.
            self._admin = AdminClient(self._settings)
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return ends

    def description(self) -> Description:
        """Return the group's members and coordinator."""
        found = self._describer.describe()
        if found is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return found

    def owners(self) -> dict[str, set[Partition]]:
        """Return each live member's partitions, by its client id."""
        return self.description().owners

    def coordinator(self) -> int:
        """Return the broker id of the group's coordinator."""
        return self.description().coordinator

    def move(self, offsets: Offsets) -> None:
        """Commit offsets without metadata, as a plain client does. The group must be empty."""
        targets = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        self._client.commit(offsets=targets, asynchronous=False)

    def delete_records(self, partition: Partition, before: int) -> None:
        """Delete a partition's records below an offset."""
        target = TopicPartition(*partition, before)
        self._admin.delete_records([target])[target].result(30)

    def look_again(self, topics: Iterable[str] | None = None) -> None:
        """Ask for the topics' partitions again at the next question: one was added, or these are the topics now."""
        if topics is not None:
            self.topics = tuple(topics)
        self._spreads_until_s = time.monotonic() + _SPREAD_S
        self._known = set()

    def close(self) -> None:
        """End the clients."""
        self._describer.close()
        self._client.close()


class Watcher:
    """A thread with a client of its own; `offsets` is what it saw last."""

    def __init__(self, observer: Observer, path: Path) -> None:
        self._observer = observer
        self._path = path
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self.offsets: Offsets = {}

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def look_again(self, topics: Iterable[str] | None = None) -> None:
        """Watch partitions that were added too, or these topics from now on."""
        self._observer.look_again(topics)

    def stop(self) -> None:
        """End; a second call does nothing."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def _watch(self) -> None:
        with self._path.open("w", encoding="utf-8") as file:
            while not self._stopped.wait(PACE_S):
                asked_at = time.time()
                try:
                    seen = self._observer.committed()
                except KafkaException:  # the coordinator is away
                    continue
                at, known = time.time(), self.offsets
                for (topic, partition), offset in sorted(seen.items()):
                    if known.get((topic, partition)) != offset:
                        line = Watched(asked_at, at, topic, partition, offset)
                        file.write(json.dumps(asdict(line), separators=(",", ":"), sort_keys=True) + "\n")
                self.offsets = {**known, **seen}


def read_log(bootstrap_servers: str, ends: Mapping[Partition, int]) -> list[Logged]:
    """Return the committed records of each partition from its beginning up to (not including) its end."""
    consumer = Consumer(
        {
            **CLIENT, "bootstrap.servers": bootstrap_servers, "group.id": "rig-log", "enable.auto.commit": False,
            "auto.offset.reset": "earliest", "enable.partition.eof": True, "isolation.level": "read_committed",
        }
    )  # fmt: skip
    found: list[Logged] = []
    left = {partition for partition, end in ends.items() if end > 0}
    deadline = time.monotonic() + _READ_S
    try:
        consumer.assign([TopicPartition(topic, number, 0) for topic, number in sorted(left)])
        while left:
            if time.monotonic() > deadline:
                raise RigError(f"did not reach the end of {sorted(left)} in {_READ_S:.0f} s")
            for message in consumer.consume(5000, 0.5):
                partition = (str(message.topic()), int(message.partition() or 0))
                offset = int(message.offset() or 0)
                if partition not in ends:  # an error that is no partition's
                    continue
                # While records are written there may never be an end-of-partition event, which has an offset too.
                if offset + (message.error() is None) >= ends[partition]:
                    left.discard(partition)
                if message.error() is None and offset < ends[partition]:
                    found.append(Logged(*partition, offset, (message.value() or b"").decode()))
    finally:
        consumer.close()
    return found
