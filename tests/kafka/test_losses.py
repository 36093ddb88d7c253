"""Records that the broker removes before they are read (P8): at any moment, skipped only when that is wanted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.realkafka.realkafka import RealKafka

from .application import Application
from .harness import Independent, wait_for
from .holding import Events
from .test_drain import make_scene
from .test_takeover import with_protocol

__all__ = ["make_scene"]

pytestmark = pytest.mark.kafka


# --- topics that are deleted


@pytest.mark.rule("R91")
def test_p8_a_topic_with_unread_records_is_deleted_while_the_query_runs(
    client: Independent, options: dict[str, str], topic: str, tmp_path: Path, application: Application
) -> None:
    """failOnDataLoss=false: the other topic goes on, and what is known to be lost is told; true: the query fails.

    Under KIP-848: test_deleted_topics.py, and the fault rig (topic-recreated, topic-replaced).
    """
    other, metrics = f"{topic}-other", Events(tmp_path, "going-on")
    client.create_topic(topic, 1)
    client.create_topic(other, 1)
    options = options | {"subscribe": f"{topic},{other}", "maxOffsetsPerTrigger": "10"}

    def take_long(*_: object) -> None:
        time.sleep(2)

    going_on = application.start_query(
        "going-on", options | {"failOnDataLoss": "false"} | metrics.options, batch=take_long
    )
    failing = application.start_query("failing", options | {"kafka.group.id": f"{topic}-failing"}, batch=take_long)
    client.produce(topic, (f"old{n}" for n in range(200)), 1)
    for query in going_on, failing:
        wait_for("a batch", query.completed_records, evidence=query.__repr__)
    client.delete_topic(topic)
    client.produce(other, (f"other{n}" for n in range(5)), 1)
    failure = failing.failure()
    assert "DATA_LOST" in failure
    assert f"{topic}-0 [" in failure
    assert "the topic was deleted" in failure
    going_on.wait_for_records({(other, 0, offset) for offset in range(5)})

    def seen() -> list[tuple[Any, ...]]:
        return [tuple(item) for line in metrics.lines("data_lost") for item in line["details"]["ranges"]]

    def read() -> set[int]:
        return {offset for of, _, offset in going_on.completed_records() if of == topic}

    def unread() -> set[int]:
        return {offset for _, _, start, end in seen() for offset in range(start, end)}

    # All that was not read is reported, maybe after the other topic's batch. Of the batch that was read meanwhile the
    # driver does not know what was read.
    wait_for("all to be read or reported", lambda: read() | unread() >= set(range(200)), evidence=metrics.tail)
    assert {item[:2] for item in seen()} == {(topic, 0)}
    assert read() | unread() == set(range(200))
    assert len(read() & unread()) <= 10


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_p8_a_topic_that_is_recreated_under_a_running_query_is_reported_by_its_id(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, application: Application
) -> None:
    """More records than before: by offset alone nothing would seem to be missing."""
    client.create_topic(topic, 1)
    client.produce(topic, (f"old{n}" for n in range(10)), 1)
    options = with_protocol(options, "kip848") if protocol == "consumer" else options
    going_on = application.start_query("going-on", options | {"failOnDataLoss": "false"})
    failing = application.start_query("failing", options | {"kafka.group.id": f"{topic}-failing"})
    for query in going_on, failing:
        query.wait_for_records({(topic, 0, offset) for offset in range(10)})
    client.delete_topic(topic)
    client.create_topic(topic, 1)
    client.produce(topic, (f"new{n}" for n in range(30)), 1)
    assert f"{topic}-0 [10, ...): the topic was deleted" in failing.failure()
    going_on.wait_for_values({f"new{n}" for n in range(30)})
    assert going_on.completed_values() == [f"old{n}" for n in range(10)] + [f"new{n}" for n in range(30)]
    wait_for("the commit", lambda: client.committed(group) == client.ends(topic), evidence=going_on.__repr__)


# --- a truncated log


@pytest.mark.rule("R45")
def test_p8_a_log_that_an_unclean_leader_election_truncated(
    tmp_path: Path, topic: str, group: str, application: Application
) -> None:
    """Twenty records are read; a replica that has ten of them becomes the leader and takes thirty new ones.

    One query runs meanwhile, the other one is stopped. failOnDataLoss=true: fails; false: skips those that have the
    offsets of what was read, and tells it.
    """
    names = ("running", "stopped")
    seen = {name: Events(tmp_path, name) for name in names}
    with RealKafka(brokers=3) as kafka:
        client = Independent(kafka.bootstrap_servers)
        client.create_replicated(topic, [2, 3], {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"})
        shared = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest",
            "kafka.session.timeout.ms": "6000",
        }  # fmt: skip
        options = {name: shared | seen[name].options | {"kafka.group.id": f"{group}-{name}"} for name in names}
        client.produce(topic, (f"kept{n}" for n in range(10)), 1)
        # The first question to a group's coordinator creates the topic of offsets; with ZooKeeper that takes as many
        # brokers as it gets replicas.
        assert client.committed(group) == {}
        kafka.kill_broker(3)
        wait_for("a single replica", lambda: client.replicas(topic) == (2, {2}))
        client.produce(topic, (f"cut{n}" for n in range(10)), 1)
        queries = {name: application.start_query(name, options[name]) for name in names}
        for query in queries.values():
            query.wait_for_records({(topic, 0, offset) for offset in range(20)})
        queries["stopped"].leave()
        kafka.kill_broker(2)
        kafka.start_broker(3)
        wait_for("the other replica", lambda: client.replicas(topic)[0] == 3)
        client.produce(topic, (f"new{n}" for n in range(30)), 1)
        queries["stopped"] = application.start_query("stopped", options["stopped"])
        for name in names:
            failure = queries[name].failure()
            assert f"{topic}-0 [10, 20): the log was truncated" in failure, f"{name}: {failure}"
        skipping = [application.start_query(name, options[name] | {"failOnDataLoss": "false"}) for name in names]
        for query in skipping:
            query.wait_for_values({f"new{n}" for n in range(10, 30)})
            query.leave()
            values = query.completed_values()[20:]
            assert values == [f"new{n}" for n in range(10, 30)], f"{query.name}: {values}"
            committed = client.committed(f"{group}-{query.name}")
            assert committed == {(topic, 0): 40}, f"{query.name}: {committed}"
            losses = [line["details"]["ranges"] for line in seen[query.name].lines("data_lost")]
            assert losses == [[[topic, 0, 10, 20]]], f"{query.name}: {losses}"
