"""Topics that are deleted while they are read (P8): what is left goes on at once, and a strict query fails at once.

Each test runs two queries, each with a group of its own: `going-on` has failOnDataLoss=false, `failing` has true.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.realkafka.realkafka import RealKafka

from .batchloop import BatchLoop
from .harness import Independent, Record, wait_for
from .holding import Events, Held, released
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

PROTOCOLS = ["cooperative", "eager", "kip848"]
# Moments of a plan, in their order.
MOMENTS = ["before-backlogs", "before-survey", "before-fix", "before-partitions", "while-reading"]
# Far less than what a request to brokers that are away is given (120 s), which is what a deleted topic once took.
SOON_S = 25.0


class Scene:
    """Two queries over topics whose names begin with `prefix`."""

    def __init__(self, client: Independent, options: Mapping[str, str], folder: Path) -> None:
        self.client, self.prefix, self._folder = client, options["subscribe"], folder
        self.options = {name: value for name, value in options.items() if name != "subscribe"}
        self.events = {name: Events(folder, name) for name in ("going-on", "failing")}
        self.queries: dict[str, BatchLoop] = {}

    def topic(self, name: str, partitions: int = 5, records: int = 50) -> str:
        """Create a topic with records; return its name."""
        topic = f"{self.prefix}-{name}"
        self.client.create_topic(topic, partitions)
        self.client.produce(topic, (f"{name}{n}" for n in range(records)), partitions)
        return topic

    def start(self, subscription: Mapping[str, str], *, available_now: bool = False) -> None:
        """Start both queries, or start them again."""
        for name, fails in (("going-on", "false"), ("failing", "true")):
            options = self.options | self.events[name].options | dict(subscription)
            options |= {"failOnDataLoss": fails, "kafka.group.id": f"{self.prefix}-{name}"}
            sink = self.queries[name].sink if name in self.queries else None
            self.queries[name] = BatchLoop(name, options, self._folder / name, sink, available_now=available_now)

    def start_pattern(self) -> None:
        """Start both queries on the pattern that all topics match."""
        self.start({"subscribePattern": f"{self.prefix}.*"})

    def wait_for_records(self, *topics: str) -> None:
        """Wait until both queries have read these topics."""
        wanted = self.records(*topics)
        for query in self.queries.values():
            query.wait_for_records(wanted)

    def records(self, *topics: str) -> set[Record]:
        """Return the topics' records."""
        return set().union(*map(self.client.records, topics))

    def goes_on_with(self, *topics: str) -> None:
        """Wait until the query with failOnDataLoss=false has read these topics; soon, that is."""
        begun_s = time.monotonic()
        query = self.queries["going-on"]
        query.wait_for_records(self.records(*topics), SOON_S)
        print(f"went on after {time.monotonic() - begun_s:.1f} s")

    def fails_with(self, *parts: str) -> None:
        """Wait until the query with failOnDataLoss=true has ended; soon, and with the lost ranges."""
        begun_s = time.monotonic()
        query = self.queries["failing"]
        query.wait_ended(SOON_S)
        print(f"failed after {time.monotonic() - begun_s:.1f} s")
        failure = query.failure
        for part in ("DATA_LOST", *parts):
            assert part in failure, failure

    def lost(self) -> set[tuple[str, int]]:
        """Return the partitions of which the query with failOnDataLoss=false has reported losses."""
        lines = self.events["going-on"].lines("data_lost")
        return {(topic, number) for line in lines for topic, number, *_ in line["details"]["ranges"]}

    @contextmanager
    def holders(self, place: str) -> Iterator[Callable[[], None]]:
        """Hold both queries at a place until the block ends; yields what waits until they are there."""
        holders = [Held(name, place) for name in self.events]

        def wait_reached() -> None:
            for holder in holders:
                holder.wait_reached(self.evidence)

        with released(*holders):
            yield wait_reached

    def evidence(self) -> str:
        """Return what the queries reported."""
        return "\n".join([*map(repr, self.queries.values()), *(seen.tail() for seen in self.events.values())])

    def stop(self) -> None:
        """Stop both queries."""
        for query in self.queries.values():
            query.stop()


MakeScene = Callable[..., Scene]


@pytest.fixture
def make_scene(client: Independent, options: dict[str, str], tmp_path: Path) -> Iterator[MakeScene]:
    """Return a maker of scenes for a protocol."""
    made: list[Scene] = []

    def make(protocol: str, client: Independent = client, **more: str) -> Scene:
        made.append(Scene(client, with_protocol(options | more, protocol), tmp_path))
        return made[-1]

    yield make
    for scene in made:
        scene.stop()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p8_all_named_topics_are_deleted_and_one_is_recreated(protocol: str, make_scene: MakeScene) -> None:
    scene = make_scene(protocol)
    topics = [scene.topic(name) for name in ("a", "b")]
    scene.start({"subscribe": ",".join(topics)})
    scene.wait_for_records(*topics)
    for topic in topics:
        scene.client.delete_topic(topic)
    scene.fails_with(f"{topics[0]}-0 [10, ...)", "the topic was deleted")
    lost = {(topic, number) for topic in topics for number in range(5)}
    wait_for("the losses", lambda: scene.lost() == lost, SOON_S, scene.evidence)
    again = scene.topic("b", records=100)
    query = scene.queries["going-on"]
    wait_for("the new records", lambda: query.check() and len(query.rows()) >= 200, SOON_S, scene.evidence)
    assert Counter(row.record for row in query.rows()[100:]) == Counter(scene.records(again))


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.parametrize("place", MOMENTS)
def test_p8_a_topic_is_deleted_at_any_moment_of_a_plan(place: str, protocol: str, make_scene: MakeScene) -> None:
    """The topic has unread records, and is all that the queries read; another one appears before they go on."""
    scene = make_scene(protocol)
    first = scene.topic("first")
    scene.start_pattern()
    scene.wait_for_records(first)
    with scene.holders(place) as wait_reached:
        scene.client.produce(first, (f"more{n}" for n in range(50)), 5)
        wait_reached()
        scene.client.delete_topic(first)
        second = scene.topic("second")
    scene.goes_on_with(second)
    scene.fails_with(f"{first}-")
    failure, read = scene.queries["failing"].failure, scene.queries["failing"].completed_records()
    # An executor may have fetched ahead what was deleted: it names only what it could not give to Spark.
    named = [number for number in range(5) if f"{first}-{number} [" in failure]
    assert named, failure
    for number in named:
        position = sum(read[first, number, offset] for offset in range(20))
        assert f"{first}-{number} [{position}, " in failure


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.parametrize("partitions", [5, 1])
def test_p8_a_topic_is_recreated_with_less_than_was_planned(
    partitions: int, protocol: str, make_scene: MakeScene
) -> None:
    """Guards against:

    1. [0, 10) of five partitions is planned.
    2. The topic is deleted and recreated: without records, or with one partition.
    3. The task asks for offset 0 of the new log, or of no partition. The brokers know the topic by its name. The task
       waits for kafkaConsumer.pollTimeoutMs (120 s), and so does every rebalance of the group.
    """
    scene = make_scene(protocol)
    with scene.holders("before-partitions") as wait_reached:
        first = scene.topic("first")
        scene.start_pattern()
        wait_reached()
        scene.client.delete_topic(first)
        scene.client.create_topic(first, partitions)
        second = scene.topic("second")
    scene.goes_on_with(second)
    scene.fails_with(f"{first}-4 [0, 10)", "the topic was deleted and recreated")
    assert scene.lost() >= {(first, number) for number in range(5)}


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.rule("R67")
def test_p8_a_membership_is_proven_while_a_topic_is_deleted(protocol: str, make_scene: MakeScene) -> None:
    """Guards against:

    1. A member has partitions of two topics. One topic is deleted, and the group leaves its partitions with the member
       until it looks at the topics again (topic.metadata.refresh.interval.ms, 5 minutes).
    2. The process is silent for longer than a heartbeat interval. The member commits one offset of each topic, to prove
       that it is still a member. The coordinator accepts one of them.
    3. librdkafka reports the whole commit as refused. The member is never proven again, and the query stands still.
    """
    scene = make_scene(protocol, **{"kafka.topic.metadata.refresh.interval.ms": "300000"})
    kept, deleted = scene.topic("kept"), scene.topic("deleted")
    scene.start({"subscribe": f"{kept},{deleted}"})
    scene.wait_for_records(kept, deleted)
    with scene.holders("before-complete") as wait_reached:
        wait_reached()
        scene.client.delete_topic(deleted)
        for query in scene.queries.values():
            query._reader._session._member._member.machine.proven = False
        scene.client.produce(kept, (f"more{n}" for n in range(50)), 5)
    scene.goes_on_with(kept)
    scene.fails_with(f"{deleted}-0 [10, ...)", "the topic was deleted")


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_p8_a_topic_is_deleted_while_its_start_positions_are_looked_up(protocol: str, make_scene: MakeScene) -> None:
    """Described, and gone when its log is asked; nothing of it was read, so nothing is known to be lost."""
    scene = make_scene(protocol)
    first = scene.topic("first")
    with scene.holders("before-start-positions") as wait_reached:
        scene.start_pattern()
        wait_reached()
        scene.client.delete_topic(first)
        second = scene.topic("second")
    scene.goes_on_with(second)


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.parametrize("moment", ["before", "during"])
def test_p8_available_now_with_a_topic_that_is_deleted(moment: str, protocol: str, make_scene: MakeScene) -> None:
    """Before the run that would read it, or after that run has fixed what to read."""
    scene = make_scene(protocol)
    first, pattern = scene.topic("first"), {"subscribePattern": f"{scene.prefix}.*"}
    scene.start(pattern, available_now=True)
    for query in scene.queries.values():
        query.wait_ended()
        assert query.completed_records().keys() == scene.records(first), query.failure
    scene.client.produce(first, (f"more{n}" for n in range(50)), 5)
    second = scene.topic("second")
    if moment == "before":
        scene.client.delete_topic(first)
        scene.start(pattern, available_now=True)
    else:
        with scene.holders("before-backlogs") as wait_reached:
            scene.start(pattern, available_now=True)
            wait_reached()
            scene.client.delete_topic(first)
    query = scene.queries["going-on"]
    query.wait_ended(SOON_S)
    query.check()
    assert scene.records(second) <= query.completed_records().keys()
    scene.fails_with(f"{first}-0 [10, ", "the topic was deleted")


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_p8_a_topic_with_leaders_on_three_brokers_is_deleted(protocol: str, make_scene: MakeScene) -> None:
    with RealKafka(brokers=3) as kafka:
        scene = make_scene(
            protocol, Independent(kafka.bootstrap_servers), **{"kafka.bootstrap.servers": kafka.bootstrap_servers}
        )
        first = scene.topic("first", partitions=6, records=60)
        scene.start_pattern()
        scene.wait_for_records(first)
        scene.client.delete_topic(first)
        second = scene.topic("second", partitions=6, records=60)
        scene.goes_on_with(second)
        scene.fails_with(f"{first}-0 [10, ...)", f"{first}-5 [10, ...)", "the topic was deleted")
        scene.stop()
