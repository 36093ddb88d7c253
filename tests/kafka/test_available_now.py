"""Several members of a group run with Trigger.AvailableNow: together they read what was there."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from .batchloop import BatchLoop, Row
from .harness import Independent, assert_once
from .shared_broker import SharedBroker
from .test_assignment_epochs import Connection, Member, join_alone, raw_id
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

PROTOCOLS = ("cooperative", "eager", "kip848", "weighted")


@pytest.mark.rule("R118")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_r118_runs_with_a_limit_read_all_that_was_there(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """1. The second run joins while the first reads. 2. The first gives up two partitions after its batch."""
    chosen = with_protocol(options, protocol) | {"maxOffsetsPerTrigger": "200"}
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(400)), 4)
    runs: list[BatchLoop] = []
    planned = threading.Event()

    class Second(BatchLoop):
        def plan(self, start: dict[str, Any]) -> dict[str, Any]:
            end = super().plan(start)
            planned.set()
            # Spark takes about a second to end a query, or to run an empty first batch.
            time.sleep(1.5)
            return end

    def holds(_: list[Row]) -> None:
        if len(runs) == 1:
            runs.append(Second("second", chosen, tmp_path / "second", available_now=True))
            # A run that ends too early does so after 5 s without partitions.
            planned.wait(9)

    runs.append(BatchLoop("first", chosen, tmp_path / "first", available_now=True, before_commit=holds))
    runs[0].wait_ended(120)
    runs[1].wait_ended(120)
    assert [run.failure for run in runs] == ["", ""]
    assert_once(runs, client.records(topic))
    assert client.lag(group, topic) == 0


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_that_gets_no_partition_ends(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """The other member has the only one, and keeps it."""
    chosen = with_protocol(options, protocol)
    client.create_topic(topic, 1)
    client.produce(topic, (f"a{n}" for n in range(10)), 1)
    owner = BatchLoop("owner", chosen, tmp_path / "owner")
    try:
        owner.wait_for_records(client.records(topic))
        run = BatchLoop("run", chosen, tmp_path / "run", available_now=True)
        run.wait_ended(60)
        assert run.failure == ""
        assert run.rows() == []
    finally:
        owner.stop()
    assert_once([owner], client.records(topic))


@pytest.mark.rule("R118")
@pytest.mark.parametrize("protocol", ["kip848"])
def test_r118_a_run_waits_for_the_session_of_a_killed_member(
    protocol: str, kafka: SharedBroker, client: Independent, options: dict[str, str], topic: str, group: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Until then the coordinator gives the run nothing: the group has one partition."""
    client.create_topic(topic, 1)
    client.produce(topic, (f"a{n}" for n in range(10)), 1)
    client.set_group_session_timeout(group, 15_000)
    connection = Connection(kafka.bootstrap_servers)
    killed = Member(connection, group, topic, raw_id(client.topic_ids([topic])[topic]))
    join_alone(killed, frozenset({0}))
    run = BatchLoop("run", with_protocol(options, protocol), tmp_path / "run", available_now=True)
    run.wait_ended(90)
    connection.close()
    assert run.failure == ""
    assert_once([run], client.records(topic))
