"""A topic that is deleted and made again between a batch's plan and its read (P2, P8).

The new topic has records at all the planned offsets, so by name and offset nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_groupsource.executor.clients import choose as clients

from .batchloop import BatchLoop
from .harness import Independent, Query, wait_for
from .holding import Events, Held, released

pytestmark = pytest.mark.kafka

OLD, NEW = 100, 300


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("path", ["c", "python", "fast-lane"])
@pytest.mark.rule("R57")
def test_p2_p8_a_topic_that_is_recreated_between_the_plan_and_the_read(
    path: str, warm: bool, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path,
    start_query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """failOnDataLoss=true fails with the planned range. With false no record of the new topic is in that batch.

    Guards against:
    1. [start, start + 100) is planned.
    2. The topic is deleted, made again, and gets 300 records.
    3. The task reads [start, start + 100) of the new topic. The next batch reads them once more.
    """
    if path == "python":
        monkeypatch.setenv(clients.GATHER_VARIABLE, "python")
    shown = Events(tmp_path, "skipping")
    start = 10 if warm else 0
    options = options | {"fastLaneMaxOffsets": "10000" if path == "fast-lane" else "0"}
    client.create_topic(topic, 1)
    if warm:
        client.produce(topic, (f"warm{n}" for n in range(start)), 1)
    skipping = start_query(
        "skipping", options | {"kafka.client.id": "skipping", "failOnDataLoss": "false"} | shown.options
    )
    failing = start_query("failing", options | {"kafka.client.id": "failing", "kafka.group.id": f"{group}-failing"})
    for query in (skipping, failing):
        query.wait_started()
        query.wait_for_records({(topic, 0, offset) for offset in range(start)})
    held = [Held(name, "before-partitions") for name in ("skipping", "failing")]
    with released(*held):
        client.produce(topic, (f"old{n}" for n in range(OLD)), 1)
        for each, query in zip(held, (skipping, failing), strict=True):
            each.wait_reached(query.log)
        client.delete_topic(topic)
        client.create_topic(topic, 1)
        client.produce(topic, (f"new{n}" for n in range(NEW)), 1)
    planned = f"{topic}-0 [{start}, {start + OLD})"
    assert failing.wait_ended() == 1
    assert f"{planned}: the topic was deleted and recreated" in failing.failure(), failing.failure()
    assert not [row for batch in failing.batches() for row in batch["rows"] if row[3].startswith("new")]

    wait_for("the new records", lambda: len(skipping.completed_records()) >= NEW, evidence=skipping.log)
    values = [value for batch in skipping.batches() for *_, value in batch["rows"]]
    assert values == [f"warm{n}" for n in range(start)] + [f"new{n}" for n in range(NEW)]
    lost = [topic, 0, start, start + OLD]

    def ranges() -> list[list[object]]:
        return [item for line in shown.lines("data_lost") for item in line["details"]["ranges"]]

    wait_for("the loss to be told", lambda: lost in ranges(), evidence=shown.tail)
    losses = shown.lines("data_lost")
    assert losses[-1]["metrics"]["records_lost"] == OLD


@pytest.mark.rule("R35")
def test_p1_a_topic_that_is_recreated_with_as_many_records(
    client: Independent, options: dict[str, str], topic: str, tmp_path: Path
) -> None:
    """Between two triggers, so that no log is ever seen to end before what was read of it."""
    client.create_topic(topic, 1)
    client.produce(topic, (f"old{n}" for n in range(OLD)), 1)
    loop = BatchLoop("idle", options | {"failOnDataLoss": "false"}, tmp_path / "checkpoint")
    try:
        loop.wait_for_records({(topic, 0, offset) for offset in range(OLD)})
        held = Held("idle", "before-backlogs")
        with released(held):
            held.wait_reached(loop.__repr__)
            client.delete_topic(topic)
            client.create_topic(topic, 1)
            client.produce(topic, (f"new{n}" for n in range(OLD)), 1)
        wait_for("the new records", lambda: loop.check() and len(loop.rows()) == 2 * OLD, 30, loop.__repr__)
    finally:
        loop.stop()
    assert [row.value for row in loop.rows()] == [f"{made}{n}" for made in ("old", "new") for n in range(OLD)]
