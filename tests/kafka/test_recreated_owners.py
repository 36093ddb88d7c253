"""A topic is recreated while several members of a KIP-848 group share it (P2).

The coordinator assigns partitions of a topic id, and the client reports them by the topic's name. A member that was
assigned a partition of the deleted topic keeps that name until its next heartbeat. By then another member may have been
assigned the partition of the recreated topic.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from spark_groupsource.driver.log_ends import IDS_AGE_S

from .batchloop import BatchLoop, Row
from .harness import Independent, wait_for
from .holding import Events, Gate, Held, released
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

TOPICS, RECORDS = 8, 10
# Between two heartbeats of a member, the most that brokers allow. That a topic was recreated is believed after 3 s.
HEARTBEAT_MS = 15_000


class Scene:
    """A group in which the first member owns all topics; its next heartbeat comes seconds after they are recreated."""

    def __init__(self, client: Independent, options: dict[str, str], topic: str, group: str, folder: Path) -> None:
        self.client, self.group, self.folder = client, group, folder
        self.topics = [f"{topic}-{number}" for number in range(TOPICS)]
        self.options = with_protocol(options, "kip848") | {
            "subscribe": ",".join(self.topics),
            "failOnDataLoss": "false",
        }
        self.events = {name: Events(folder, name) for name in ("first", "second")}
        self.loops: dict[str, BatchLoop] = {}

    def start(self, name: str, before_commit: Callable[[list[Row]], object] = lambda _: None) -> BatchLoop:
        """Start a member."""
        options = self.options | self.events[name].options
        self.loops[name] = BatchLoop(name, options, self.folder / name, before_commit=before_commit)
        return self.loops[name]

    def produce(self, text: str) -> set[str]:
        """Produce to all topics; return the values."""
        values = {topic: [f"{text}/{topic}/{n}" for n in range(RECORDS)] for topic in self.topics}
        for topic, wanted in values.items():
            self.client.produce(topic, wanted, 1)
        return {value for wanted in values.values() for value in wanted}

    def recreate(self) -> float:
        """Delete and create all topics; return when they were there."""
        for topic in self.topics:
            self.client.delete_topic(topic)
        for topic in self.topics:
            self.client.create_topic(topic, 1)
        return time.monotonic()

    def values(self) -> Counter[str]:
        """Return how often each value is in a completed batch of a member."""
        return Counter(row.value for loop in self.loops.values() for row in loop.rows())

    def wait_read(self, values: set[str]) -> None:
        """Wait until all of these values are in completed batches."""
        wait_for(
            f"{len(values)} values",
            lambda: all(loop.check() for loop in self.loops.values()) and values <= self.values().keys(),
            evidence=self.evidence,
        )

    def check_once(self) -> None:
        """Fail if a value is in completed batches twice."""
        repeated = {value: times for value, times in self.values().items() if times > 1}
        assert not repeated, f"{len(repeated)} repeated: {sorted(repeated)[:5]}\n{self.evidence()}"

    def evidence(self) -> str:
        """Return what the members reported."""
        return "\n".join([*map(repr, self.loops.values()), *(seen.tail() for seen in self.events.values())])


@contextmanager
def one_owner(
    client: Independent, options: dict[str, str], topic: str, group: str, folder: Path,
    before_commit: Callable[[list[Row]], object] = lambda _: None,
) -> Iterator[Scene]:  # fmt: skip
    """Let the first member own all topics, and heartbeat rarely from now on."""
    scene = Scene(client, options, topic, group, folder)
    client.set_group_session_timeout(group, 45_000, 500)
    for name in scene.topics:
        client.create_topic(name, 1)
    try:
        scene.start("first", before_commit)
        scene.wait_read(scene.produce("old"))
        client.set_group_session_timeout(group, 45_000, HEARTBEAT_MS)
        # The member learns its interval with the next answer.
        time.sleep(1.0)
        yield scene
    finally:
        for loop in scene.loops.values():
            loop.stop()


@pytest.mark.rule("R81")
def test_p2_a_member_of_the_deleted_topic_does_not_read_the_recreated_one(
    client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    with one_owner(client, options, topic, group, tmp_path) as scene:
        recreated_s = scene.recreate()
        scene.start("second")
        scene.events["second"].wait_for("assigned")
        # The first member believes that the topics are other ones.
        time.sleep(max(0.0, recreated_s + 4.0 - time.monotonic()))
        scene.wait_read(scene.produce("new"))
        # Until it has had a heartbeat.
        time.sleep(max(0.0, recreated_s + HEARTBEAT_MS / 1000 + 1 - time.monotonic()))
        scene.wait_read(scene.produce("newer"))
        scene.check_once()


@pytest.mark.rule("R83")
def test_p2_a_batch_of_the_deleted_topic_that_ends_late_does_not_bring_its_offset_back(
    client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """Its member commits by name, before it learns that the recreated topic's partition is another member's."""
    gate = Gate()
    with one_owner(client, options, topic, group, tmp_path, lambda rows: gate(0, tuple(rows))) as scene, released(gate):
        gate.armed = True
        # One batch of all topics.
        held = Held("first", "before-backlogs")
        with released(held):
            held.wait_reached(scene.evidence)
            scene.produce("held")
        gate.wait_reached(scene.evidence)
        scene.recreate()
        new = scene.produce("new")
        second = scene.start("second")
        mine = {topic for topic, _ in scene.events["second"].wait_for("assigned")["partitions"]}
        scene.wait_read({value for value in new if value.split("/")[1] in mine})
        read = {(name, 0): RECORDS for name in mine}

        def has_committed() -> bool:
            return read.items() <= client.committed(group).items()

        wait_for("the second member's commits", has_committed, evidence=scene.evidence)
        committed = client.committed(group)
        gate.release()
        wait_for("the late commit", lambda: client.committed(group) != committed, evidence=scene.evidence)
        # The second member asks for the topics' ids while it is idle.
        time.sleep(IDS_AGE_S + 2)
        wait_for("the second member's offsets again", has_committed, evidence=scene.evidence)
        second.stop()
        scene.wait_read(new)
        scene.wait_read(scene.produce("newer"))
        scene.check_once()


def test_two_consumers_without_the_source_own_the_same_partition(
    client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """By the names that librdkafka reports. By topic ids, as the coordinator counts, each partition has one owner.

    If this fails, the client reports it differently, and rule R81 may not be needed any more.
    """
    topics = [f"{topic}-{number}" for number in range(TOPICS)]
    client.set_group_session_timeout(group, 45_000, 500)
    for name in topics:
        client.create_topic(name, 1)
    settings = {"group.id": group, "group.protocol": "consumer", "auto.offset.reset": "earliest"}
    consumers = [Consumer(settings | {"bootstrap.servers": client.bootstrap_servers}) for _ in range(2)]
    first, second = consumers

    def owned(consumer: Consumer) -> set[tuple[str, int]]:
        consumer.poll(0.05)
        return {(part.topic, part.partition) for part in consumer.assignment()}

    try:
        first.subscribe(topics)
        wait_for("all partitions", lambda: len(owned(first)) == TOPICS)
        client.set_group_session_timeout(group, 45_000, HEARTBEAT_MS)
        # The consumer learns its interval with the next answer.
        time.sleep(1.0)
        for name in topics:
            client.delete_topic(name)
            client.create_topic(name, 1)
        second.subscribe(topics)
        wait_for("the second consumer's partitions", lambda: owned(second))
        assert owned(second) <= owned(first)
        assert sorted(map(len, client.members(group))) == [0, len(owned(second))]
        # Until the first one's next heartbeat.
        wait_for("one owner of each partition", lambda: not owned(first) & owned(second), 2 * HEARTBEAT_MS / 1000)
    finally:
        for consumer in consumers:
            consumer.close()
