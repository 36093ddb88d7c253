"""A query on a version of Spark: each record exactly once, through restarts, handovers, kills and failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests import checkout
from tests.kafka.harness import Independent, Query, assert_once, newest_commit, planned_records, wait_for
from tests.kafka.table_sinks import table_records

from .applications import SharedQuery, VersionedApplication
from .conftest import StartProcess, StartQuery
from .environments import OWN, environment, release

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

AVAILABLE_NOW = {"availableNow": True}
ONCE = {"once": True}
PROTOCOLS = {"cooperative": {}, "kip848": {"kafka.group.protocol": "consumer"}}


def add(client: Independent, topic: str, name: str, count: int = 300, partitions: int = 3) -> None:
    """Produce values of a name."""
    client.produce(topic, (f"{name}{n}" for n in range(count)), partitions)


def share_and_take_over(client: Independent, topic: str, group: str, *, leaves: Query, stays: Query) -> None:
    """Let two members of one group share four partitions; one stops, and the other reads on alone, each record once."""

    def logs() -> str:
        return leaves.log() + stays.log()

    wait_for("both to share", lambda: sorted(map(len, client.members(group))) == [2, 2], 120, logs)
    add(client, topic, "b", partitions=4)
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, logs)
    leaves.stop()
    add(client, topic, "c", partitions=4)
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, stays.log)
    stays.stop()
    assert_once([leaves, stays], client.records(topic))


def options_of(protocol: str, options: dict[str, str]) -> dict[str, str]:
    """Return the options under a protocol. In a KIP-848 group the timeouts are the broker's."""
    if protocol == "cooperative":
        return options
    dropped = ("kafka.session.timeout.ms", "kafka.heartbeat.interval.ms")
    return {name: value for name, value in options.items() if name not in dropped} | PROTOCOLS[protocol]


def ended(query: SharedQuery) -> SharedQuery:
    """Return a query that has ended by itself without an error."""
    assert query.wait_ended(180) == 0, query.log()
    return query


@pytest.mark.smoke
@pytest.mark.parametrize("lane", ["fast lane", "executors"])
def test_a_query_stops_and_goes_on(
    lane: str, client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    is_old: bool,
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    add(client, topic, "a")
    given = options | {"fastLaneMaxOffsets": "10000" if lane == "fast lane" else "0"}
    first = start_query("first", given, listen=True)
    first.wait_for_records(client.records(topic))
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, first.log)
    first.stop()
    assert client.member_count(group) == 0, "a clean stop leaves the group"
    add(client, topic, "b")
    again = start_query("again", given, checkpoint=str(first.checkpoint))
    again.wait_for_records(client.records(topic) - first.records().keys())
    again.stop()
    assert client.lag(group, topic) == 0
    # Both have one checkpoint, so a batch is asked for by who ran it.
    assert first.records() + again.records() == Counter(client.records(topic))
    said = first.said()
    assert "no fast lane" not in said
    assert ("lag=?" if is_old else "lag=0") in said
    assert unread_lines(first) == unread_lines(again) == []


@pytest.mark.parametrize("protocol", [pytest.param("cooperative", marks=pytest.mark.smoke), "kip848"])
def test_members_share_and_take_over(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery
) -> None:
    client.create_topic(topic, 4)
    add(client, topic, "a", partitions=4)
    given = options_of(protocol, options)
    first = start_query("first", given)
    second = start_query("second", given)
    share_and_take_over(client, topic, group, leaves=first, stays=second)


@pytest.mark.parametrize("whole", [True, False], ids=["all processes", "the JVM alone"])
def test_a_killed_query_runs_its_batch_again(
    whole: bool, client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    start_process: StartProcess,
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    add(client, topic, "a")
    first = start_query("query", options)
    first.wait_for_records(client.records(topic))
    first.stop()
    number = newest_commit(first.checkpoint) + 1
    add(client, topic, "b")
    gate = first.out / "gate"
    held = start_process("query", options, gate=str(gate))
    wait_for("a batch in flight", Path(f"{gate}.reached").exists, 120, held.log)
    if whole:
        held.kill()
    else:
        os.kill(held.jvm_pid(), signal.SIGKILL)
        wait_for("the member's end", lambda: client.member_count(group) == 0, 30, held.log)
        held.kill()
    planned = planned_records(first.checkpoint, number)
    add(client, topic, "c")
    again = start_query("query", options)
    again.wait_for_records(client.records(topic) - first.records().keys())
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, again.log)
    again.stop()
    assert Counter(again.completed_batches()[number]) == Counter(planned), "the replay read other records"
    assert first.records() + again.records() == Counter(client.records(topic))


@pytest.mark.smoke
def test_a_batch_that_failed_runs_again(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery, tmp_path: Path
) -> None:
    client.create_topic(topic, 3)
    add(client, topic, "a")
    fails = tmp_path / "fails"
    first = start_query("query", options, fails=str(fails))
    first.wait_for_records(client.records(topic))
    wait_for("the commit of the batch", lambda: client.lag(group, topic) == 0, 30, first.log)
    committed = client.committed(group)
    fails.touch()
    add(client, topic, "b")
    assert first.wait_ended() == 1
    assert "this batch is to fail" in first.failure()
    assert client.committed(group) == committed
    add(client, topic, "c")
    again = start_query("query", options)
    again.wait_for_records(client.records(topic) - first.records().keys())
    again.stop()
    assert first.records() + again.records() == Counter(client.records(topic))
    assert client.lag(group, topic) == 0


@pytest.mark.smoke
@pytest.mark.rule("R116")
def test_the_first_batch_of_a_query_with_state_is_marked_and_a_new_query_fails(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery
) -> None:
    """When Spark makes the folder `state` is not in its interface."""
    client.create_topic(topic, 2)
    add(client, topic, "a", partitions=2)
    first = start_query("first", options, distinct=True)
    first.wait_for_records(client.records(topic))
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, first.log)
    second = start_query("second", options)
    assert second.wait_ended() == 1
    assert "[GROUPKAFKA.SHARED_STATE]" in second.failure()
    add(client, topic, "b", partitions=2)
    first.wait_for_records(client.records(topic))
    first.stop()
    assert_once([first], client.records(topic))


def test_a_drained_query_repeats_nothing(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery, tmp_path: Path
) -> None:
    """Asked to stop in the middle of a batch: the batch ends, and another checkpoint goes on after it."""
    client.create_topic(topic, 3)
    add(client, topic, "a")
    gate = tmp_path / "gate"
    first = start_query("first", options, gate=str(gate))
    wait_for("a batch in flight", Path(f"{gate}.reached").exists, 120, first.log)
    add(client, topic, "b")
    threading.Timer(3, gate.touch).start()
    assert first.drain() == "DRAINED"
    assert client.lag(group, topic) == 300
    second = start_query("second", options)
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, second.log)
    second.stop()
    assert_once([first, second], client.records(topic))


# --- queries that end by themselves


def unread_lines(query: SharedQuery) -> list[str]:
    """Return what the source says of records that a run leaves."""
    return [line for line in query.said().splitlines() if "records stay unread" in line]


@pytest.mark.smoke
@pytest.mark.parametrize("trigger", [AVAILABLE_NOW, ONCE], ids=["AvailableNow", "Once"])
def test_a_limit_of_a_run_that_ends_itself(
    trigger: dict[str, bool], client: Independent, options: dict[str, str], topic: str, group: str,
    start_query: StartQuery, is_old: bool,
) -> None:  # fmt: skip
    """A scheduled job that falls behind has a warning, with the number of records."""
    client.create_topic(topic, 4)
    add(client, topic, "a", 2000, 4)
    given = options | {"maxOffsetsPerTrigger": "400"}
    first = ended(start_query("query", given, trigger=trigger))
    if not is_old:
        sizes = [400] * 5 if trigger == AVAILABLE_NOW else [2000]
        assert unread_lines(first) == []
    else:
        sizes = [400]
        (line,) = unread_lines(first)
        assert " WARNING " in line
        assert "1600 records stay unread" in line
    assert [len(rows) for _, rows in sorted(first.completed_batches().items())] == sizes
    assert client.lag(group, topic) == 2000 - sum(sizes)


@pytest.mark.parametrize("trigger", [AVAILABLE_NOW, ONCE], ids=["AvailableNow", "Once"])
def test_a_run_without_a_limit_reads_everything(
    trigger: dict[str, bool], client: Independent, options: dict[str, str], topic: str, group: str,
    start_query: StartQuery,
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    runs = []
    for name in "abc":
        add(client, topic, name)
        runs.append(ended(start_query("query", options, trigger=trigger)))
        assert unread_lines(runs[-1]) == []
        assert client.lag(group, topic) == 0
    assert sum((run.records() for run in runs), Counter()) == Counter(client.records(topic))
    # Nothing is new.
    assert not ended(start_query("query", options, trigger=trigger)).records()


def test_a_run_after_one_that_failed(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery, tmp_path: Path,
    is_old: bool,
) -> None:  # fmt: skip
    """Before 4.2 it runs the batch again and ends; the next one reads the rest."""
    client.create_topic(topic, 3)
    add(client, topic, "a")
    fails = tmp_path / "fails"
    fails.touch()
    assert start_query("query", options, trigger=AVAILABLE_NOW, fails=str(fails)).wait_ended() == 1
    add(client, topic, "b")
    runs = [ended(start_query("query", options, trigger=AVAILABLE_NOW)) for _ in range(2)]
    rows = [sum(run.records().values()) for run in runs]
    assert rows == ([300, 300] if is_old else [600, 0])
    said = unread_lines(runs[0])
    assert "300 records stay unread" in said[0] if is_old else said == []
    assert sum((run.records() for run in runs), Counter()) == Counter(client.records(topic))
    assert client.lag(group, topic) == 0


def test_a_run_that_meets_a_dead_members_session_waits_for_its_end(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    start_process: StartProcess,
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    add(client, topic, "a")
    given = options | {"kafka.session.timeout.ms": "30000", "kafka.heartbeat.interval.ms": "1000"}
    dead = start_process("dead", given)
    dead.wait_for_records(client.records(topic))
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, dead.log)
    dead.kill()
    add(client, topic, "b")
    since_s = time.monotonic()
    run = ended(start_query("run", given, trigger=AVAILABLE_NOW))
    assert dead.records() + run.records() == Counter(client.records(topic))
    print(f"the run took {time.monotonic() - since_s:.0f} s")


def test_the_wrapper_for_available_now_ends_the_query(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    is_old: bool,
) -> None:  # fmt: skip
    """Spark calls `latestOffset` there for plans that it never runs; they do not count as complete."""
    client.create_topic(topic, 3)
    add(client, topic, "a")
    conf = {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"}
    run = start_query("query", options, trigger=AVAILABLE_NOW, conf=conf)
    code = run.wait_ended()
    if not is_old:
        assert code == 0
        assert_once([run], client.records(topic))
        return
    assert code == 1
    assert "[GROUPKAFKA.PLAN_NOT_RUN]" in run.failure()
    again = ended(start_query("query", options, trigger=AVAILABLE_NOW))
    more = ended(start_query("query", options, trigger=AVAILABLE_NOW))
    assert run.records() + again.records() + more.records() == Counter(client.records(topic))


# --- limits, filters


@pytest.mark.parametrize(
    ("limits", "bound", "size"),
    [({"maxOffsetsPerTrigger": "75"}, max, 75), ({"minOffsetsPerTrigger": "300", "maxTriggerDelay": "1h"}, min, 300)],
    ids=["max", "min"],
)
def test_limits_hold_in_each_batch(
    limits: dict[str, str], bound: Callable[[Iterable[int]], int], size: int, client: Independent,
    options: dict[str, str], topic: str, start_query: StartQuery,
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    add(client, topic, "a")
    query = start_query("query", options | limits)
    query.wait_for_records(client.records(topic))
    for name in "bcd":
        add(client, topic, name, 100 if "minOffsetsPerTrigger" in limits else 300)
        time.sleep(1)
    query.wait_for_records(client.records(topic))
    query.stop()
    assert bound(len(rows) for rows in query.completed_batches().values()) == size
    assert_once([query], client.records(topic))


def test_a_batch_that_spark_runs_without_the_source_is_complete(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery
) -> None:
    client.create_topic(topic, 3)
    add(client, topic, "a")
    query = start_query("query", options, where="false")
    for name in "bc":
        wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, query.log)
        add(client, topic, name)
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, query.log)
    query.stop()
    assert query.failure() == ""


# --- other reads


@pytest.mark.smoke
def test_a_batch_read(
    client: Independent, options: dict[str, str], topic: str, version: str,
    application: Callable[[str], VersionedApplication],
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    add(client, topic, "a")
    given = {name: options[name] for name in ("kafka.bootstrap.servers", "subscribe")}
    spark, filtered, found = application(version).batch_read(given)
    assert spark == release(version)
    assert Counter(found) == Counter(client.records(topic))
    assert filtered == 100


def through_connect(script: Path, options: dict[str, str], version: str, folder: Path) -> Any:
    """Run a script with a Spark Connect server of PySpark's own to its end; return its result."""
    settings = {"options": options | {"maxOffsetsPerTrigger": "100"}, "out": str(folder), "records": 100}
    names = environment(version) | {"PYTHONPATH": str(checkout.ROOT)}
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            [names["PYSPARK_PYTHON"], str(script), json.dumps(settings)], stdout=subprocess.PIPE, stderr=log,
            env=os.environ | names, cwd=folder, check=False, timeout=400,
        )  # fmt: skip
    assert done.returncode == 0, (folder / "log").read_text(errors="replace")[-6000:]
    return json.loads(done.stdout.decode().splitlines()[-1])


def test_spark_connect(client: Independent, options: dict[str, str], topic: str, version: str, tmp_path: Path) -> None:
    """foreachBatch, a listener, Spark's file sink and a batch read."""
    client.create_topic(topic, 2)
    add(client, topic, "a", 100, 2)
    script = checkout.ROOT / "tests" / "kafka" / "connect_process.py"
    found = through_connect(script, options, version, tmp_path)
    assert found["session"].startswith("pyspark.sql.connect")
    assert (found["failed"], found["files"], found["batch"]) == ("", 100, 50)


def test_the_recipes_of_the_page_of_sinks_through_spark_connect(
    client: Independent, options: dict[str, str], topic: str, version: str, tmp_path: Path
) -> None:
    """Since Spark 4.3 `foreachBatch` has a session of its own there."""
    client.create_topic(topic, 2)
    add(client, topic, "a", 100, 2)
    counted = through_connect(Path(__file__).with_name("connect_sinks.py"), options, version, tmp_path)
    assert counted == 100
    assert table_records(tmp_path / "table") == Counter(client.records(topic))


def test_a_sink_of_your_own_takes_arrow_batches(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery, version: str
) -> None:
    if version == "4.0":
        pytest.skip("Spark 4.0 gives sinks in Python rows only")
    client.create_topic(topic, 3)
    add(client, topic, "a")
    query = start_query("query", options, sink="arrow")
    query.wait_for_records(client.records(topic))
    add(client, topic, "b")
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, query.log)
    query.stop()
    assert_once([query], client.records(topic))


# --- several versions


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_group_with_a_member_on_another_spark(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery
) -> None:
    client.create_topic(topic, 4)
    add(client, topic, "a", partitions=4)
    given = options_of(protocol, options)
    chosen, other = start_query("chosen", given), start_query("other", given, spark=OWN)
    share_and_take_over(client, topic, group, leaves=other, stays=chosen)


@pytest.mark.parametrize("is_held", [False, True], ids=["stopped cleanly", "killed in a batch"])
def test_a_checkpoint_that_another_spark_continues_both_ways(
    is_held: bool, client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    start_process: StartProcess, version: str, tmp_path: Path,
) -> None:  # fmt: skip
    client.create_topic(topic, 3)
    done: Counter[tuple[str, int, int]] = Counter()
    for number, spark in enumerate((version, OWN, version)):
        add(client, topic, f"{number}")
        query = start_query("query", options, spark=spark)
        query.wait_for_records(client.records(topic) - done.keys())
        query.stop()
        done += query.records()
        # The batch of one version runs again with the other one.
        if is_held and number < 2:
            add(client, topic, f"held{number}")
            gate = tmp_path / f"gate{number}"
            held = start_process("query", options, spark=spark, gate=str(gate))
            wait_for("a batch in flight", Path(f"{gate}.reached").exists, 120, held.log)
            held.kill()
    assert done == Counter(client.records(topic))
    assert client.lag(group, topic) == 0


def test_state_moves_to_another_spark_and_back(
    client: Independent, options: dict[str, str], topic: str, group: str, start_query: StartQuery,
    start_process: StartProcess, version: str, tmp_path: Path,
) -> None:  # fmt: skip
    """Each version runs the batch again in which the other one was killed, and drops values that the other one read."""
    client.create_topic(topic, 3)
    written: Counter[str] = Counter()
    for number, spark in enumerate((version, OWN, version)):
        add(client, topic, f"{number}-")
        add(client, topic, "0-")
        query = start_query("query", options, spark=spark, distinct=True)
        wait_for("lag 0", lambda: client.lag(group, topic) == 0, 120, query.log)
        query.stop()
        written += Counter(value for batch in query.batches() for *_, value in batch["rows"])
        if number < 2:
            add(client, topic, f"held{number}-")
            gate = tmp_path / f"gate{number}"
            held = start_process("query", options, spark=spark, gate=str(gate), distinct=True)
            wait_for("a batch in flight", Path(f"{gate}.reached").exists, 120, held.log)
            held.kill()
    assert written == Counter(f"{name}-{n}" for name in ("0", "1", "2", "held0", "held1") for n in range(300))
