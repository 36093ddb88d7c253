"""Where a streaming query starts, and what it waits for; on a real broker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from .conftest import ReadAll
from .harness import Independent, wait_for
from .holding import Events, Held, released
from .local_query import TIME_MS, Filler, each, fill, open_transaction
from .test_drain import Scene, make_scene

__all__ = ["fill", "make_scene"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def filled(fill: Filler) -> str:
    """Return a topic of three partitions with ten records each, a second apart."""
    return fill.topic("", 30, 3)


def counts(frame: DataFrame) -> dict[int, int]:
    return {row.partition: row["count"] for row in frame.groupBy("partition").count().collect()}


def test_each_partition_at_its_own_offset(read_all: ReadAll, filled: str, client: Independent, group: str) -> None:
    assert counts(read_all(startingOffsets=each(filled, 3, -1, -2))) == {0: 7, 2: 10}
    assert client.committed(group) == client.ends(filled)


def test_the_groups_offset_wins_over_the_option(
    read_all: ReadAll, filled: str, client: Independent, group: str
) -> None:
    client.commit(group, {(filled, 0): 8})
    assert counts(read_all(startingOffsets=each(filled, 3, 4, 5))) == {0: 2, 1: 6, 2: 5}


def test_where_another_group_has_got_to(read_all: ReadAll, filled: str, client: Independent, group: str) -> None:
    client.commit(f"{group}-other", {(filled, 0): 8, (filled, 1): 10})
    assert counts(read_all(startingOffsets=f"group:{group}-other")) == {0: 2, 2: 10}
    assert client.committed(f"{group}-other") == {(filled, 0): 8, (filled, 1): 10}, "which is only read"


def test_where_another_group_has_got_to_that_is_ahead_of_an_open_transaction(
    read_all: ReadAll, filled: str, client: Independent, group: str
) -> None:
    """It reads uncommitted records. The query waits for the transaction, and goes on where the group is."""
    given = {"startingOffsets": f"group:{group}-other", "kafka.isolation.level": "read_committed"}
    with open_transaction(client, filled, 3):
        client.commit(f"{group}-other", {(filled, 0): 12, (filled, 1): 8, (filled, 2): 10})
        assert counts(read_all(**given)) == {1: 2}
        assert client.committed(group)[filled, 0] == 12
    assert counts(read_all(**given)) == {0: 1, 1: 2}
    assert client.committed(group) == client.ends(filled)


def test_each_partition_at_its_own_time(read_all: ReadAll, filled: str) -> None:
    times = each(filled, TIME_MS + 7_500, TIME_MS, TIME_MS + 9_000)
    assert counts(read_all(startingOffsetsByTimestamp=times, startingOffsets="latest")) == {0: 2, 1: 10, 2: 1}


@pytest.mark.rule("R18")
def test_more_partitions_than_the_coordinator_stores_at_once(
    read_all: ReadAll, client: Independent, group: str, topic: str
) -> None:
    """200 topics of 6: with what "latest" has to remember of the topics, one request with all offsets is too large."""
    topics = [f"{topic}-{number}" for number in range(200)]
    for name in topics:
        client.create_topic(name, 6)
    given = {"subscribePattern": f"{topic}-.*", "startingOffsets": "latest"}
    try:
        client.produce(topics[0], ["old"] * 6, 6)
        assert read_all(drop=["subscribe"], **given).count() == 0
        assert len(client.committed(group)) == 1200
        client.produce(topics[0], ["new"] * 6, 6)
        client.produce(topics[-1], ["new"] * 6, 6)
        rows = read_all(drop=["subscribe"], **given).select("topic", "offset").collect()
        assert sorted((row.topic, row.offset) for row in rows) == [(topics[0], 1)] * 6 + [(topics[-1], 0)] * 6
        assert sum(client.committed(group).values()) == 6 * 2 + 6
    finally:
        for name in topics:
            client.delete_topic(name)


# --- assign


def assigned(read_all: ReadAll, checkpoint: str, topic: str, *partitions: int, **more: str) -> DataFrame:
    return read_all(checkpoint, drop=("subscribe",), assign=json.dumps({topic: partitions}), **more)


def test_assign_commits_without_being_a_member(read_all: ReadAll, filled: str, client: Independent, group: str) -> None:
    assert counts(assigned(read_all, "assigned", filled, 0, 2)) == {0: 10, 2: 10}
    assert client.committed(group) == {(filled, 0): 10, (filled, 2): 10}
    client.produce(filled, ["more"] * 3, 3)
    assert counts(assigned(read_all, "assigned", filled, 0, 2)) == {0: 11, 2: 11}
    assert client.committed(group) == {(filled, 0): 11, (filled, 2): 11}


@pytest.mark.parametrize("committed", [False, True], ids=["nothing is committed", "all is read"])
def test_assign_in_a_group_with_members_fails(
    committed: bool, read_all: ReadAll, filled: str, client: Independent, group: str, tmp_path: Path
) -> None:
    """Before it reads anything, also where there is nothing to read and to commit."""
    if committed:
        client.commit(group, {(filled, 0): 10})
    client.create_topic(f"{filled}-other", 1)
    client.produce(f"{filled}-other", ["one"], 1)
    member = Consumer(
        {"bootstrap.servers": client.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    )
    try:
        member.subscribe([f"{filled}-other"])
        wait_for("the member's first record", lambda: member.poll(0.5) is not None)
        with pytest.raises(StreamingQueryException, match=r"ASSIGN_GROUP_IN_USE"):
            assigned(read_all, "assigned", filled, 0)
    finally:
        member.close()
    assert not list(tmp_path.glob("**/assigned/offsets/[0-9]*"))


# --- minOffsetsPerTrigger


def owned_by(seen: Events) -> set[int]:
    """Return the partitions that a member owns, by its own words."""
    owned: set[int] = set()
    for line in seen.lines():
        numbers = {number for _, number in line["partitions"]}
        if line["event"] == "assigned":
            owned |= numbers
        elif line["event"] in ("revoked", "lost"):
            owned -= numbers
    return owned


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.rule("R105")
def test_p1_latest_is_one_moment_for_a_topic(protocol: str, make_scene: Callable[[str], Scene]) -> None:
    """1. Two queries begin a group. 2. The one that does not own partition 0 dies before its starts are stored.
    3. Records come before the other one gets its partitions.
    """
    scene = make_scene(protocol)
    scene.options["startingOffsets"] = "latest"
    held = {name: Held(name, "before-start-positions") for name in scene.events}
    with released(*held.values()):
        queries = {name: scene.start(name) for name in scene.events}
        scene.wait_shared()
        wait_for("an owner of partition 0", lambda: any(0 in owned_by(seen) for seen in scene.events.values()), 30)
        lives, dies = sorted(scene.events, key=lambda name: 0 not in owned_by(scene.events[name]))
        held[dies].wait_reached(scene.evidence)
        held[lives].release()
        wait_for("its own starts", lambda: len(scene.client.committed(scene.group)) >= 2, 30, scene.evidence)
        print(f"{protocol}: {len(scene.client.committed(scene.group))} of 4 partitions have a start")
        scene.produce()
        os.kill(scene.events[dies].reader_pid(), signal.SIGKILL)
        scene.queries.remove(queries[dies])
        wait_for(
            "all partitions", lambda: scene.events[lives].metrics()["assigned_partitions"] == 4, 60, scene.evidence
        )
        scene.produce(4)
        everything, survivor = scene.client.records(scene.topic), queries[lives]
        wait_for("the new records", lambda: len(survivor.completed_records()) >= 24, 60, scene.evidence)
        wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
    missing = everything - set(survivor.completed_records())
    print(f"{protocol}: {len(missing)} of {len(everything)} records were skipped")
    assert missing == set()
