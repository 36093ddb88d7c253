"""Losses of partitions that a query does not hold, and of batches that no later trigger checks (P8).

Two queries share a group, and a topic is deleted or recreated. What a query has read of the former topic is compared
with the cluster by the topic's id. Within one process: test_session_moved_topics.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, wait_for
from .holding import Events, Held, held_until_assigned, released
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

PROTOCOLS = ["cooperative", "kip848"]


def spans(seen: Events, *kinds: str) -> set[tuple[str, int, int, int]]:
    """Return (topic, partition, start, end) of all reported losses; `kinds`: ranges, possible."""
    wanted = kinds or ("ranges", "possible")
    lines = seen.lines("data_lost")
    return {tuple(item) for line in lines for kind in wanted for item in line["details"].get(kind, ())}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R91")
def test_p8_a_restart_beside_a_fresh_query_that_reads_the_recreated_topic(
    protocol: str, client: Independent, options: dict[str, str], topic: str, tmp_path: Path, application: Application
) -> None:
    """1. A query stops. 2. Its topic is recreated. 3. A fresh query reads the new one. 4. The first one comes back."""
    seen = Events(tmp_path, "first")
    options = with_protocol(options, protocol)
    client.create_topic(topic, 2)
    client.produce(topic, (f"old{n}" for n in range(20)), 2)
    first = application.start_query("first", options)
    first.wait_for_records(client.records(topic))
    first.leave()
    client.produce(topic, (f"unread{n}" for n in range(20)), 2)
    client.delete_topic(topic)
    client.create_topic(topic, 2)
    client.produce(topic, (f"new{n}" for n in range(6)), 2)
    fresh = application.start_query("fresh", options)
    fresh.wait_for_values({f"new{n}" for n in range(6)})
    strict = application.start_query("first", options)
    assert "[10, ...): the topic was deleted and recreated" in strict.failure()
    going_on = application.start_query("first", options | {"failOnDataLoss": "false"} | seen.options)
    wait_for(
        "both partitions to be reported",
        lambda: {(p, end) for _, p, _, end in spans(seen)} >= {(0, 10), (1, 10)},
        evidence=seen.tail,
    )
    client.produce(topic, (f"newer{n}" for n in range(20)), 2)
    wanted = {f"newer{n}" for n in range(20)}
    wait_for("the newer", lambda: wanted <= {*going_on.completed_values(), *fresh.completed_values()}, 60, seen.tail)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R91")
def test_p8_a_partition_moves_when_its_topic_is_recreated(
    protocol: str, client: Independent, options: dict[str, str], topic: str, tmp_path: Path, application: Application
) -> None:
    """1. A query has read 5 of 20 records of each partition. 2. The topic is recreated. 3. Before the query's next
    trigger another one gets a partition.
    """
    seen = Events(tmp_path, "first")
    options = with_protocol(options, protocol) | {"failOnDataLoss": "false"}
    client.create_topic(topic, 2)
    client.produce(topic, (f"old{n}" for n in range(40)), 2)
    trigger = Held("first", "before-complete")
    first = application.start_query("first", options | {"maxOffsetsPerTrigger": "10"} | seen.options)
    with released(trigger):
        trigger.wait_reached(seen.tail)
        # Spark's first batch is empty if they come late.
        wait_for("partitions", seen.has_partitions, 60, seen.tail)
        trigger.next()
        trigger.wait_reached(seen.tail)
        assert first.completed_records() == dict.fromkeys([(topic, p, n) for p in range(2) for n in range(5)], 1)
        client.delete_topic(topic)
        client.create_topic(topic, 2)
        client.produce(topic, (f"new{n}" for n in range(6)), 2)
        fresh = application.start_query("fresh", options)
        wait_for("a partition of the fresh query", fresh.completed_records, 90, fresh.__repr__)
    wanted = {(topic, 0, 5, 20), (topic, 1, 5, 20)}
    wait_for("both partitions to be reported", lambda: wanted <= spans(seen), evidence=seen.tail)
    assert len(spans(seen, "ranges") & wanted) <= 1, "of the one that moved it is not known who has read it"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R92")
def test_p8_what_tasks_have_skipped_is_reported_by_a_stop_before_the_next_trigger(
    protocol: str, client: Independent, options: dict[str, str], topic: str, tmp_path: Path, application: Application
) -> None:
    """1. A batch is planned. 2. Some of its records are removed, and its tasks skip them. 3. The query is stopped."""
    seen = Events(tmp_path, "query")
    options = with_protocol(options, protocol) | {"failOnDataLoss": "false", "fastLaneMaxOffsets": "0"}
    client.create_topic(topic, 1)
    client.produce(topic, (f"old{n}" for n in range(20)), 1)
    held = Held("query", "before-partitions")
    with released(held):
        with held_until_assigned(seen):
            query = application.start_query("query", options | seen.options, trigger={"processingTime": "1 hour"})
        held.wait_reached(seen.tail)
        client.delete_records(topic, 0, 15)
    wait_for("the batch", query.completed_records, evidence=query.__repr__)
    assert query.completed_records() == dict.fromkeys([(topic, 0, n) for n in range(15, 20)], 1)
    query.leave()
    wait_for("the report", lambda: (topic, 0, 0, 15) in spans(seen), 20, seen.tail)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R91", "R82")
def test_p8_a_topic_that_others_have_read_before_it_was_deleted_stops_no_restart(
    protocol: str, client: Independent, options: dict[str, str], topic: str, tmp_path: Path, application: Application
) -> None:
    """1. A query stops. 2. Another one reads on. 3. The topic is deleted. 4. The first one starts, with the default."""
    seen = Events(tmp_path, "first")
    kept, deleted = f"{topic}-kept", f"{topic}-deleted"
    options = with_protocol(options, protocol) | {"subscribePattern": f"{topic}.*"}
    del options["subscribe"]
    for name in (kept, deleted):
        client.create_topic(name, 2)
        client.produce(name, (f"old{n}" for n in range(20)), 2)
    first = application.start_query("first", options)
    first.wait_for_records(client.records(kept) | client.records(deleted))
    first.leave()
    other = application.start_query("other", options | {"failOnDataLoss": "false"})
    client.produce(deleted, (f"more{n}" for n in range(20)), 2)
    other.wait_for_values({f"more{n}" for n in range(20)})
    client.delete_topic(deleted)
    again = application.start_query("first", options | seen.options)
    client.produce(kept, (f"newer{n}" for n in range(20)), 2)
    seen.wait_for("assigned")
    client.produce(kept, (f"newest{n}" for n in range(20)), 2)
    wanted = {f"{name}{n}" for name in ("newer", "newest") for n in range(20)}
    wait_for(
        "the newest",
        lambda: again.check() and wanted <= {*again.completed_values(), *other.completed_values()},
        60,
        seen.tail,
    )
    assert spans(seen, "possible") >= {(deleted, 0, 10, 10), (deleted, 1, 10, 10)}
    assert seen.metrics()["records_lost"] == 0
