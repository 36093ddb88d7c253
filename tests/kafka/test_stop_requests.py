"""A query is asked to stop by `drain`, or from outside: any trigger, with and without `run_until_stopped`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from pyspark.errors import StreamingQueryException

from spark_groupsource import QueryEnd, drain

from .application import Application
from .harness import Independent, newest_commit, wait_for
from .holding import Gate, Held, released

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def groupkafka_stop(location: object, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "spark_groupsource", "stop", "--checkpoint-location", str(location), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_available_now_ends_early_and_its_next_run_reads_the_rest(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, (f"v{n}" for n in range(300)), 2)
    everything = client.records(topic)
    given = options | {"maxOffsetsPerTrigger": "20"}
    now: dict[str, str | bool] = {"availableNow": True}
    first = application.start_query("first", given, trigger=now, batch=lambda *_: time.sleep(1))
    wait_for("two batches", lambda: newest_commit(first.checkpoint) >= 1, 120, first.__repr__)
    assert drain(first.query) is QueryEnd.DRAINED
    read = first.completed_records()
    assert 0 < len(read) < len(everything)
    assert first.records() == read, "every batch that was written is complete"
    assert client.lag(group, topic) == len(everything) - len(read)
    second = application.start_query("first", options, trigger=now)
    wait_for("its end", lambda: not second.query.isActive, 120, second.__repr__)
    assert second.query.exception() is None
    assert second.records() == dict.fromkeys(everything, 1)


def test_a_long_trigger_is_not_waited_for(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """Nor is a batch cancelled: `drain` returns when the batch in flight is complete."""
    client.create_topic(topic, 2)
    client.produce(topic, (f"v{n}" for n in range(40)), 2)
    gate = Gate()
    gate.armed = True
    first = application.start_query("first", options, trigger={"processingTime": "7 days"}, batch=gate)
    with released(gate):
        gate.wait_reached(first.__repr__)
        timer = threading.Timer(2.0, gate.release)
        since_s = time.monotonic()
        timer.start()
        assert drain(first.query) is QueryEnd.DRAINED
        assert 2.0 <= time.monotonic() - since_s < 32.0
    assert client.lag(group, topic) == 0
    assert client.member_count(group) == 0
    assert list((first.checkpoint / "groupkafka").iterdir()) == []


@pytest.mark.rule("R86")
def test_a_stop_before_the_batch_of_a_crash_ran_again_is_not_clean(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """1. A batch fails. 2. The query starts again. 3. It is asked to stop before it has planned that batch again."""

    def fail(_number: int, _records: object) -> None:
        raise RuntimeError("the sink fails")

    client.create_topic(topic, 2)
    client.produce(topic, (f"v{n}" for n in range(40)), 2)
    first = application.start_query("first", options, batch=fail)
    with pytest.raises(StreamingQueryException, match="the sink fails"):
        first.query.awaitTermination(120)
    held = Held("first", "before-join")
    with released(held):
        again = application.start_query("first", options)
        held.wait_reached(again.__repr__)
        asked = groupkafka_stop(again.checkpoint, "--wait", "60")
        assert (asked.returncode, "INCOMPLETE" in asked.stderr) == (1, True), asked
    with pytest.raises(StreamingQueryException, match=r"MEMBER_LEFT.*The batch in flight may be repeated"):
        again.query.awaitTermination(120)
    assert client.lag(group, topic) == 40
    third = application.start_query("first", options)
    third.wait_for_records(client.records(topic))
    third.check()
    assert third.completed_records() == dict.fromkeys(client.records(topic), 1)


@pytest.mark.rule("R79")
def test_a_query_that_waits_for_its_end_alone_is_stopped_from_outside(
    application: Application, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """It fails 30 s after its member has left, and says why. A start afterwards is not stopped."""
    client.create_topic(topic, 2)
    client.produce(topic, (f"v{n}" for n in range(40)), 2)
    first = application.start_query("first", options)
    first.wait_for_records(client.records(topic))
    asked = groupkafka_stop(first.checkpoint, "--wait", "60")
    assert asked.returncode == 0, asked.stderr
    assert "has left: group=" in asked.stdout
    assert first.query.isActive
    assert (client.member_count(group), client.lag(group, topic)) == (0, 0)
    client.produce(topic, (f"w{n}" for n in range(20)), 2)
    with pytest.raises(StreamingQueryException, match="MEMBER_LEFT"):
        first.query.awaitTermination(90)
    assert drain(first.query) is QueryEnd.DRAINED, "it has ended, and nothing of it is repeated"
    assert client.lag(group, topic) == 20
    wait_for("the reader's end", lambda: list((first.checkpoint / "groupkafka").iterdir()) == [], 30)
    again = groupkafka_stop(first.checkpoint)
    assert (again.returncode, "STOP_NO_QUERY" in again.stderr) == (1, True)
    second = application.start_query("first", options)
    second.wait_for_records(client.records(topic))
    second.check()
    assert second.completed_records() == dict.fromkeys(client.records(topic), 1)
