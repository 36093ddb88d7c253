"""Older brokers: each version takes part in a takeover, and a topic keeps its place when it is given an id.

docs/brokers.md has what each version lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException

from tests.realkafka.jars import TESTED_VERSIONS, RealKafkaError, version_of
from tests.realkafka.realkafka import RealKafka

from .application import Application
from .harness import Independent, Query, skipped, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.brokers]

# No topic of such a cluster has an id.
_BEFORE_IDS = {"inter.broker.protocol.version": "2.7"}
_WITH_IDS = {"inter.broker.protocol.version": "2.8"}
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def started(version: str, properties: dict[str, str]) -> Iterator[RealKafka]:
    """Run a broker of a version."""
    kafka = RealKafka(version=version, properties=properties)
    with skipped(f"NO KAFKA {version}"):
        kafka.start()
    try:
        yield kafka
    finally:
        kafka.close()


def _has_id(client: Independent, topic: str) -> bool:
    """Whether the topic has an id; a broker that has just started may not know the topic yet."""
    try:
        return client.topic_ids([topic])[topic] != _NO_ID
    except KafkaException:
        return False


@pytest.fixture(params=TESTED_VERSIONS)
def kafka(request: pytest.FixtureRequest) -> Iterator[RealKafka]:
    """Return a broker of each version; the fixtures `client` and `options` are for it."""
    yield from started(request.param, {})


def test_takeover_on_each_version(
    kafka: RealKafka, client: Independent, options: dict[str, str], topic: str, group: str,
    start_query: Callable[..., Query], application: Application,
) -> None:  # fmt: skip
    """First alone, second joins, first is killed and second goes on: nothing is lost, no completed batch repeats."""
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(200)), 4)
    first = start_query("first", options)
    first.wait_for_records(client.records(topic))
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, first.log)

    second = application.start_query("second", options)
    wait_for("two each", lambda: sorted(map(len, client.members(group))) == [2, 2], 90, second.__repr__)
    client.produce(topic, (f"b{n}" for n in range(200)), 4)
    wait_for("lag 0 with two", lambda: client.lag(group, topic) == 0, 60, second.__repr__)
    first.kill()
    client.produce(topic, (f"c{n}" for n in range(200)), 4)
    wait_for("lag 0 after the takeover", lambda: client.lag(group, topic) == 0, 90, second.__repr__)

    times = first.completed_records() + second.completed_records()
    assert set(times) == client.records(topic)
    assert set(times.values()) == {1}, "committed, and read again by the new owner"
    second.stop()


class TestWithoutTopicIds:
    """Brokers as before 2.8, which are then upgraded."""

    @pytest.fixture
    def kafka(self) -> Iterator[RealKafka]:
        """Return a broker whose topics have no ids."""
        yield from started("2.8.2", _BEFORE_IDS)

    def test_a_topic_that_is_given_an_id_is_no_other_one(
        self, kafka: RealKafka, client: Independent, options: dict[str, str], topic: str, group: str,
        start_query: Callable[..., Query], application: Application,
    ) -> None:  # fmt: skip
        """Guards against: 1. a query reads; 2. the brokers are upgraded, and give the topic an id; 3. it is taken for
        another topic of that name: a loss is reported, and its records are read again.
        """
        chosen = options | {"startingOffsets": "latest", "subscribePattern": f"{topic}.*"}
        del chosen["subscribe"]
        client.create_topic(topic, 2)
        client.produce(topic, (f"old{n}" for n in range(10)), 2)
        assert client.topic_ids([topic])[topic] == _NO_ID
        query = start_query("query", chosen)
        wait_for("a start position", lambda: client.committed(group) == client.ends(topic), 90, query.log)
        client.produce(topic, (f"a{n}" for n in range(20)), 2)
        wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, query.log)
        assert query.log().count("no topic ids") == 1

        kafka.restart_with(1, _WITH_IDS)
        wait_for("an id", lambda: _has_id(client, topic), 60)
        client.produce(topic, (f"b{n}" for n in range(20)), 2)
        wait_for("lag 0 after the upgrade", lambda: client.lag(group, topic) == 0, 90, query.log)
        query.stop()
        again = application.start_query("query", chosen, checkpoint=query.checkpoint)
        client.produce(topic, (f"c{n}" for n in range(20)), 2)
        wait_for("lag 0 after a restart", lambda: client.lag(group, topic) == 0, 90, again.__repr__)
        again.stop()
        times = query.completed_records() + again.completed_records()
        assert set(times) == {record for record in client.records(topic) if record[2] >= 5}
        assert set(times.values()) == {1}


def test_versions_are_compared_by_their_numbers() -> None:
    assert version_of("3.10.0") > version_of("3.9.1") > version_of("2.8.2")
    with pytest.raises(RealKafkaError, match="'newest' is no version"):
        version_of("newest")
