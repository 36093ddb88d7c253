"""Partitions and topics that appear later are picked up and read from their beginning (M05, M06)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_groupsource.driver.topics import REFRESH_S

from .application import Application
from .harness import Independent, wait_for
from .holding import Events, Held, released

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.rule("R4")
def test_new_partitions_and_new_topics_are_read_from_their_beginning(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, application: Application
) -> None:
    """With startingOffsets=latest, what was there before is skipped; what appears later is not."""
    chosen = options | {"startingOffsets": "latest", "subscribePattern": f"{topic}.*", "kafka.group.protocol": protocol}
    del chosen["subscribe"]
    if protocol == "consumer":
        del chosen["kafka.session.timeout.ms"], chosen["kafka.heartbeat.interval.ms"]
    client.create_topic(topic, 2)
    client.produce(topic, (f"old{n}" for n in range(20)), 2)
    query = application.start_query("query", chosen)
    wait_for("pinned positions", lambda: client.committed(group) == client.ends(topic), 90, query.__repr__)

    client.produce(topic, (f"new{n}" for n in range(20)), 2)
    client.add_partitions(topic, 4)
    client.produce(topic, (f"grown{n}" for n in range(40)), 4)
    other = f"{topic}-more"
    client.create_topic(other, 2)
    client.produce(other, (f"other{n}" for n in range(20)), 2)

    wanted = {f"new{n}" for n in range(20)} | {f"grown{n}" for n in range(40)} | {f"other{n}" for n in range(20)}
    query.wait_for_values(wanted)
    assert set(query.completed_values()) == wanted
    wait_for(
        "lag 0 on both topics",
        lambda: client.committed(group) == client.ends(topic) | client.ends(other),
        30,
        query.__repr__,
    )
    assert set(query.records().values()) == {1}


def test_a_topic_that_is_found_with_new_partitions_of_another_starts_at_its_beginning(
    client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path, application: Application
) -> None:
    """The new partitions are pinned in the very trigger that finds the new topic, and before it is assigned."""
    shown, other = Events(tmp_path, "query"), f"{topic}-more"
    chosen = options | shown.options | {"startingOffsets": "latest", "subscribePattern": f"{topic}.*"}
    # The group then settles on the new partitions before it knows of the new topic.
    chosen["kafka.group.protocol"] = "consumer"
    del chosen["subscribe"], chosen["kafka.session.timeout.ms"], chosen["kafka.heartbeat.interval.ms"]
    client.create_topic(topic, 2)
    query = application.start_query("query", chosen)
    shown.wait_for("assigned")
    wait_for("pinned positions", lambda: client.committed(group) == client.ends(topic), 90, query.__repr__)
    held = Held("query", "before-complete")
    with released(held):
        held.wait_reached(query.__repr__)
        client.add_partitions(topic, 4)
        client.create_topic(other, 2)
        client.produce(other, (f"other{n}" for n in range(20)), 2)
        wait_for(
            "the new partitions", lambda: shown.lines("assigned") and len(client.members(group)[0]) == 4, 60, shown.tail
        )
        # Until the pattern is matched again.
        time.sleep(REFRESH_S)
    query.wait_for_records(client.records(other))


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.rule("R4")
def test_p8_what_a_new_partition_lost_before_it_was_noticed_is_reported(
    starting: str, client: Independent, options: dict[str, str], topic: str, group: str, application: Application
) -> None:
    """The query is down; a partition is added and filled, and its first records are removed; the query starts."""
    client.create_topic(topic, 1)
    client.produce(topic, (f"old{n}" for n in range(10)), 1)
    query = application.start_query("query", options | {"startingOffsets": starting})
    wait_for("a committed start", lambda: client.committed(group) == client.ends(topic), 90, query.__repr__)
    client.produce(topic, (f"more{n}" for n in range(10)), 1)
    query.wait_for_records({record for record in client.records(topic) if record[2] >= 10})
    query.leave()
    client.add_partitions(topic, 2)
    client.produce(topic, (f"new{n}" for n in range(40)), 2)
    client.delete_records(topic, 1, 5)

    query = application.start_query("query", options | {"startingOffsets": starting})
    failure = query.failure()
    assert "DATA_LOST" in failure
    assert f"{topic}-1 [0, 5)" in failure

    query = application.start_query("query", options | {"startingOffsets": starting, "failOnDataLoss": "false"})
    query.wait_for_records({record for record in client.records(topic) if record[1] == 1 or record[2] >= 20})
    wait_for("lag 0", lambda: client.committed(group) == client.ends(topic), 30, query.__repr__)
