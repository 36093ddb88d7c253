"""A query that comes back with its checkpoint and without it; what it leaves behind when it stops or dies."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, Query, newest_commit, planned_records, wait_for
from .holding import Events, held_until_assigned

pytestmark = pytest.mark.kafka

StartQuery = Callable[..., Query]


def test_p3_restart_from_the_checkpoint_after_sigkill_replays_the_same_batch(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    application: Application,
) -> None:  # fmt: skip
    """Killed after the sink has written batch N and before Spark recorded it: batch N runs again, the same."""
    client.create_topic(topic, 3)
    client.produce(topic, (f"a{n}" for n in range(300)), 3)
    # Long enough to be killed in, on any machine.
    before = start_query("query", options, batch_s=8)
    before.wait_for_records(client.records(topic))
    wait_for("the first batch committed", lambda: client.lag(group, topic) == 0, 30, before.log)
    number = newest_commit(before.checkpoint) + 1

    client.produce(topic, (f"b{n}" for n in range(300)), 3)
    wait_for("the second batch logged", (before.checkpoint / "offsets" / str(number)).exists, 30, before.log)
    committed = client.committed(group)
    before.kill()
    # What the batch got: the producer may have been in the middle of the 300 records.
    planned = planned_records(before.checkpoint, number)
    assert planned
    client.produce(topic, (f"c{n}" for n in range(300)), 3)
    assert client.committed(group) == committed, "an incomplete batch moved the group's offset"

    after = application.start_query("query", options, checkpoint=before.checkpoint)
    after.wait_for_records(client.records(topic) - before.records().keys())
    wait_for("lag 0 after the restart", lambda: client.lag(group, topic) == 0, 60, after.__repr__)
    after.stop()

    replayed = next(batch for batch in after.sink.batches if batch.number == number)
    assert {value[0] for value in replayed.values} == {"b"}, "the replay read other records"
    assert Counter(replayed.records) == Counter(planned)
    total = after.completed_records() + before.records()
    assert set(total) == client.records(topic)
    assert set(total.values()) == {1}


def test_restart_without_the_checkpoint_goes_on_from_the_group(
    tmp_path: Path, client: Independent, options: dict[str, str], topic: str, group: str, application: Application
) -> None:
    """A lost checkpoint costs nothing: the group remembers, and a clean stop had committed everything."""
    client.create_topic(topic, 3)
    client.produce(topic, (f"a{n}" for n in range(300)), 3)
    before = application.start_query("query", options)
    before.wait_for_records(client.records(topic))
    before.leave()
    assert client.committed(group) == client.ends(topic), "the last batch before the stop was not committed"

    client.produce(topic, (f"b{n}" for n in range(300)), 3)
    after = application.start_query("query", options, checkpoint=tmp_path / "another")
    after.wait_for_values({f"b{n}" for n in range(300)})
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, after.__repr__)
    after.stop()
    assert {value[0] for value in after.completed_values()} == {"b"}
    assert set(after.records().values()) == {1}


def test_p4_a_long_trigger_commits_when_its_batch_ends(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    application: Application, tmp_path: Path,
) -> None:  # fmt: skip
    """Lag tools need not wait for the next trigger, and a crash before it repeats nothing."""
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(400)), 4)
    seen = Events(tmp_path, "first")
    given = options | seen.options | {"kafka.client.id": "first"}
    with held_until_assigned(seen):
        first = start_query("first", given, trigger={"processingTime": "10 minutes"})
        first.wait_started()
    first.wait_for_records(client.records(topic))
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, first.log)
    first.kill()
    second = application.start_query("second", options)
    client.produce(topic, (f"b{n}" for n in range(40)), 4)
    second.wait_for_values({f"b{n}" for n in range(40)})
    second.stop()
    assert {value[0] for value in second.completed_values()} == {"b"}
    assert set(second.records().values()) == {1}


def test_stop_leaves_the_group_at_once(
    client: Independent, options: dict[str, str], topic: str, group: str, application: Application
) -> None:
    """`query.stop()` does not wait for the session timeout, here 45 s."""
    client.create_topic(topic, 1)
    client.produce(topic, ["a"], 1)
    query = application.start_query("query", options | {"kafka.session.timeout.ms": "45000"})
    query.wait_for_records(client.records(topic))
    query.stop()
    stopped_s = time.monotonic()
    wait_for("an empty group", lambda: client.members(group) == [], 20)
    assert time.monotonic() - stopped_s < 40


def test_a_killed_jvm_leaves_no_orphan_member(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery
) -> None:
    """The reader process notices the end of its socket and leaves; the session timeout is 45 s here."""
    client.create_topic(topic, 1)
    client.produce(topic, ["a"], 1)
    query = start_query("query", options | {"kafka.session.timeout.ms": "45000"})
    query.wait_for_records(client.records(topic))
    os.kill(query.jvm_pid(), signal.SIGKILL)
    wait_for("an empty group", lambda: client.members(group) == [], 15, query.log)
    assert client.committed(group) == client.ends(topic)
