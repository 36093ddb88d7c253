"""Records that the broker removes before they are read (P8): at any moment, skipped only when that is wanted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.realkafka.realkafka import RealKafka

from .harness import Independent, Query, wait_for
from .holding import Held, Told, released
from .test_drain import Scene, make_scene

__all__ = ["make_scene"]

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("place", ["before-partitions", "while-reading"])
def test_p8_records_deleted_between_the_plan_and_the_read_are_skipped(
    place: str, make_scene: Callable[[str], Scene]
) -> None:
    """The task finds its offset out of the log's range; it reports that, and reads on behind it."""
    scene = make_scene("cooperative")
    query = scene.start("first", failOnDataLoss="false")
    scene.told["first"].wait_for("assigned")
    scene.produce()
    query.wait_for_records(scene.client.records(scene.topic))
    held = Held("first", place)
    with released(held):
        scene.produce()
        held.wait_reached(scene.evidence)
        admin = AdminClient({"bootstrap.servers": scene.client.bootstrap_servers})
        (deleted,) = admin.delete_records([TopicPartition(scene.topic, 0, 15)]).values()
        deleted.result(30)
    scene.produce()
    query.wait_for_records(scene.client.records(scene.topic))
    wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
    offsets = {offset for _, number, offset in query.completed_records() if number == 0}
    assert offsets >= set(range(10)) | set(range(15, 30))


# --- topics that are deleted


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the options of a group protocol."""
    if request.param == "classic":
        return {}
    return {"kafka.group.protocol": "consumer"}


def for_protocol(options: dict[str, str], protocol: dict[str, str]) -> dict[str, str]:
    """Return the options with those of the protocol; under KIP-848 the broker sets the intervals."""
    dropped = ("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms") if protocol else ()
    return {name: value for name, value in options.items() if name not in dropped} | protocol


@pytest.mark.rule("R38")
def test_p8_a_topic_with_unread_records_is_deleted_while_the_query_runs(
    client: Independent, options: dict[str, str], protocol: dict[str, str], topic: str, tmp_path: Path,
    start_query: Callable[..., Query],
) -> None:  # fmt: skip
    """failOnDataLoss=false: the other topic goes on, and what is known to be lost is told; true: the query fails."""
    other, metrics = f"{topic}-other", Told(tmp_path, "going-on")
    client.create_topic(topic, 1)
    client.create_topic(other, 1)
    options = for_protocol(options, protocol) | {"subscribe": f"{topic},{other}", "maxOffsetsPerTrigger": "10"}
    going_on = start_query("going-on", options | {"failOnDataLoss": "false"} | metrics.options, batch_s=2)
    failing = start_query("failing", options | {"kafka.group.id": f"{topic}-failing"}, batch_s=2)
    client.produce(topic, (f"old{n}" for n in range(200)), 1)
    for query in going_on, failing:
        wait_for("a batch", query.records, evidence=query.log)
    client.delete_topic(topic)
    client.produce(other, (f"other{n}" for n in range(5)), 1)
    assert failing.wait_ended() == 1
    assert "DATA_LOST" in failing.failure()
    assert f"{topic}-0 [" in failing.failure()
    assert "the topic was deleted" in failing.failure()
    going_on.wait_for_records({(other, 0, offset) for offset in range(5)})

    def told() -> list[tuple[Any, ...]]:
        return [tuple(item) for line in metrics.lines("data_lost") for item in line["details"]["ranges"]]

    def read() -> set[int]:
        return {offset for of, _, offset in going_on.completed_records() if of == topic}

    def unread() -> set[int]:
        return {offset for _, _, start, end in told() for offset in range(start, end)}

    # All that was not read is reported, maybe after the other topic's batch. Of the batch that was read meanwhile the
    # driver does not know what was read.
    wait_for("all to be read or reported", lambda: read() | unread() >= set(range(200)), evidence=metrics.tail)
    assert {item[:2] for item in told()} == {(topic, 0)}
    assert read() | unread() == set(range(200))
    assert len(read() & unread()) <= 10


def test_p8_a_topic_that_is_made_anew_under_a_running_query_is_told_by_its_id(
    client: Independent, options: dict[str, str], protocol: dict[str, str], topic: str,
    start_query: Callable[..., Query],
) -> None:  # fmt: skip
    """More records than before: by offset alone nothing would seem to be missing."""
    client.create_topic(topic, 1)
    client.produce(topic, (f"old{n}" for n in range(10)), 1)
    options = for_protocol(options, protocol)
    going_on = start_query("going-on", options | {"failOnDataLoss": "false"})
    failing = start_query("failing", options | {"kafka.group.id": f"{topic}-failing"})
    for query in going_on, failing:
        query.wait_for_records({(topic, 0, offset) for offset in range(10)})
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    client.produce(topic, (f"new{n}" for n in range(30)), 1)
    assert failing.wait_ended() == 1
    assert f"{topic}-0 [10, 10): the topic was deleted" in failing.failure()
    wait_for("the new records", lambda: len(going_on.completed_records()) == 30, evidence=going_on.log)
    values = [value for batch in going_on.batches() for *_, value in batch["rows"]]
    assert values == [f"old{n}" for n in range(10)] + [f"new{n}" for n in range(30)]


def test_p8_a_topic_that_is_made_anew_with_fewer_partitions_goes_on_with_those(
    client: Independent, options: dict[str, str], protocol: dict[str, str], topic: str, group: str,
    start_query: Callable[..., Query],
) -> None:  # fmt: skip
    """The group takes the others from the member at its next look at the topic, which may be minutes away."""
    client.create_topic(topic, 3)
    client.produce(topic, (f"old{n}" for n in range(30)), 3)
    options = for_protocol(options, protocol)
    going_on = start_query("going-on", options | {"failOnDataLoss": "false"})
    failing = start_query("failing", options | {"kafka.group.id": f"{topic}-failing"})
    for query in going_on, failing:
        wait_for("the old records", lambda query=query: len(query.completed_records()) == 30, evidence=query.log)
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    client.produce(topic, (f"new{n}" for n in range(30)), 1)
    assert failing.wait_ended() == 1
    assert "DATA_LOST" in failing.failure()
    assert "the topic was deleted" in failing.failure()
    going_on.wait_for_records({(topic, 0, offset) for offset in range(30)})
    values = [value for batch in going_on.batches() for *_, value in batch["rows"]]
    assert values[30:] == [f"new{n}" for n in range(30)]
    wait_for("the commit", lambda: client.committed(group) == client.ends(topic), evidence=going_on.log)


@pytest.mark.rule("R39")
def test_p8_a_topic_that_comes_back_with_fewer_partitions_between_two_runs(
    client: Independent, options: dict[str, str], topic: str, start_query: Callable[..., Query]
) -> None:
    """Told at the start, for nobody is assigned what is gone; a batch later the checkpoint knows of it no more."""
    client.create_topic(topic, 2)
    client.produce(topic, (f"old{n}" for n in range(20)), 2)
    query = start_query("query", options)
    query.wait_for_records(client.records(topic))
    query.stop()
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    client.produce(topic, (f"new{n}" for n in range(5)), 1)
    failing = start_query("query", options)
    assert failing.wait_ended() == 1
    assert f"{topic}-1 [10, 10): the topic was deleted and recreated with fewer partitions" in failing.failure()

    going_on = start_query("query", options | {"failOnDataLoss": "false"})
    going_on.wait_for_records({(topic, 0, offset) for offset in range(5)})
    going_on.stop()
    client.produce(topic, ["more"], 1)
    strict = start_query("query", options)
    strict.wait_for_records({(topic, 0, 5)})


# --- a truncated log


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
@pytest.mark.rule("R45")
def test_p8_a_log_that_an_unclean_leader_election_truncated(
    running: bool, tmp_path: Path, topic: str, group: str, start_query: Callable[..., Query]
) -> None:
    """Twenty records are read; a replica that has ten of them becomes the leader and takes thirty new ones.

    failOnDataLoss=true: fails; false: skips those that have the offsets of what was read, and tells it.
    """
    told = tmp_path / "metrics"
    with RealKafka(brokers=3) as kafka:
        client = Independent(kafka.bootstrap_servers)
        client.create_replicated(topic, [2, 3], {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "kafka.group.id": group, "subscribe": topic,
            "startingOffsets": "earliest", "kafka.session.timeout.ms": "6000", "metricsPath": str(told),
        }  # fmt: skip
        client.produce(topic, (f"kept{n}" for n in range(10)), 1)
        # The first question to the group's coordinator creates the topic of offsets; with ZooKeeper that takes as many
        # brokers as it gets replicas.
        assert client.committed(group) == {}
        kafka.kill_broker(3)
        wait_for("a single replica", lambda: client.replicas(topic) == (2, {2}))
        client.produce(topic, (f"cut{n}" for n in range(10)), 1)
        query = start_query("query", options)
        query.wait_for_records({(topic, 0, offset) for offset in range(20)})
        if not running:
            query.stop()
        kafka.kill_broker(2)
        kafka.start_broker(3)
        wait_for("the other replica", lambda: client.replicas(topic)[0] == 3)
        client.produce(topic, (f"new{n}" for n in range(30)), 1)
        if not running:
            query = start_query("query", options)
        assert query.wait_ended() == 1
        assert f"{topic}-0 [10, 20): the log was truncated" in query.failure()
        query = start_query("query", options | {"failOnDataLoss": "false"})
        wait_for("the new records", lambda: len(query.completed_records()) >= 20, evidence=query.log)
        query.stop()
        values = {value for batch in query.batches() for *_, value in batch["rows"]}
        assert values == {f"new{n}" for n in range(10, 30)}
        assert client.committed(group) == {(topic, 0): 40}
        losses = [json.loads(line)["details"] for line in told.read_text().splitlines() if '"data_lost"' in line]
        assert [loss["ranges"] for loss in losses] == [[[topic, 0, 10, 20]]]
