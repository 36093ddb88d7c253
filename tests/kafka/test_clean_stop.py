"""`run_until_stopped`: SIGTERM at random moments of a batch repeats nothing, loses nothing, and commits all.

Each sink in each mode is stopped once, in a batch of 1 s. With GROUPKAFKA_STOPS all of them together are stopped that
many times, in batches of 3 s.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer

from tests.sparkcluster.sparkcluster import SparkCluster

from .connect_server import connect_server
from .harness import Independent, Record, newest_commit, wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(7200)]

_SCRIPT = Path(__file__).with_name("stopping_process.py")
_SUBMIT = Path(sys.executable).with_name("spark-submit")
_MODES, _SINKS = ("local", "cluster", "connect"), ("parquet", "foreachBatch")
_STOPS = int(os.environ.get("GROUPKAFKA_STOPS", "0"))
_ROUNDS = max(1, math.ceil(_STOPS / (len(_MODES) * len(_SINKS))))
_BATCH_S = 3.0 if _STOPS else 1.0
_PARTITIONS = 4
_RECORDS = 60  # of a batch, at most
_SESSION_S = 45.0  # longer than any noise of the machine: a handover waits for no session
_MOST_HIT = 2 + _ROUNDS // 10  # rounds that show nothing, because the signal has ended a command of Hadoop
_LOCAL = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "600m",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.pollingDelay": "50ms",
}


class Observer:
    """A second member that reads nothing, and knows since when it owns all partitions."""

    def __init__(self, options: dict[str, str]) -> None:
        names = ("session.timeout.ms", "heartbeat.interval.ms", "bootstrap.servers", "group.id")
        given = {name: options[f"kafka.{name}"] for name in names}
        strategy = {"partition.assignment.strategy": "cooperative-sticky", "enable.auto.commit": False}
        self._consumer = Consumer(given | strategy | {"client.id": "observer"})
        self._topic = options["subscribe"]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.since_s: float | None = None

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        self._consumer.close()

    def _run(self) -> None:
        self._consumer.subscribe([self._topic])
        while not self._ended.is_set():
            self._consumer.poll(0.02)
            owned = self._consumer.assignment()
            if owned:
                self._consumer.pause(owned)
            if len(owned) < _PARTITIONS:
                self.since_s = None
            elif self.since_s is None:
                self.since_s = time.time()


@dataclass(slots=True)
class Bed:
    """What the rounds of one test share: the checkpoint, the output, and how applications start."""

    mode: str
    sink: str
    folder: Path
    settings: dict[str, Any]
    took_s: list[float] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        """The query's checkpoint."""
        return self.folder / "checkpoint"

    def start(self, number: int, **variables: str) -> subprocess.Popen[bytes]:
        """Start the application, in a process group of its own, with these environment variables."""
        text = json.dumps(self.settings)
        command = [sys.executable, str(_SCRIPT), text]
        if self.mode == "cluster":
            # Its first process is a JVM, and a manager's signal comes to it alone.
            command = [str(_SUBMIT), "--master", self.settings["conf"]["spark.master"], "--driver-memory", "600m",
                       str(_SCRIPT), text]  # fmt: skip
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"} | variables
        with self.out(number).open("wb") as out, self.log_of(number).open("wb") as log:
            return subprocess.Popen(command, stdout=out, stderr=log, env=environment, start_new_session=True)

    def out(self, number: int) -> Path:
        """Return the file of the process's output."""
        return self.folder / f"out-{number}"

    def log_of(self, number: int) -> Path:
        """Return the file of the process's log."""
        return self.folder / f"log-{number}"

    def log_end(self, number: int) -> str:
        """Return the end of the process's log, as evidence."""
        return self.log_of(number).read_text(errors="replace")[-6000:]

    def in_flight(self) -> bool:
        """Return whether Spark has planned a batch that is not complete."""
        planned = max((int(entry.name) for entry in (self.checkpoint / "offsets").glob("[0-9]*")), default=-1)
        return planned > newest_commit(self.checkpoint)

    def written(self) -> Counter[Record]:
        """Return how often each record is in a file of the sink, complete or not."""
        files = [str(path) for path in (self.folder / "rows").rglob("*.parquet") if "_temporary" not in path.parts]
        rows = ds.dataset(files, format="parquet").to_table(["topic", "partition", "offset"]).to_pylist()
        return Counter((row["topic"], row["partition"], row["offset"]) for row in rows)


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a Spark Connect server."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("grpc_status", reason="Spark Connect is not installed: pip install 'groupkafka[connect]'")
    with connect_server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(scope="module")
def standalone() -> Iterator[SparkCluster]:
    """Return a cluster with one worker."""
    with SparkCluster(1) as cluster:
        yield cluster


@pytest.fixture
def where(mode: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the settings of an application that say where it runs."""
    if mode == "connect":
        return {"remote": request.getfixturevalue("remote")}
    if mode == "cluster":
        return {"conf": request.getfixturevalue("standalone").conf(cores=2)}
    return {"conf": _LOCAL}


def stop_once(bed: Bed, number: int, options: dict[str, str], chance: random.Random) -> str:
    """Start the application, send SIGTERM at a random moment, and return its output; the bed gets the handover time."""
    (bed.folder / "started").unlink(missing_ok=True)
    before = newest_commit(bed.checkpoint)
    evidence = partial(bed.log_end, number)

    with Observer(options) as observer:
        process = bed.start(number)
        try:
            started_s = time.time()
            wait_for(
                "a batch in flight", lambda: bed.in_flight() and newest_commit(bed.checkpoint) > before, 180, evidence
            )
            time.sleep(chance.uniform(0.0, 2 * _BATCH_S))
            # Of each kind and of its neighbours, half of the signals come to the process alone.
            whole_group = (number + _MODES.index(bed.mode) + _SINKS.index(bed.sink)) % 2 == 1
            sent_s = time.time()
            (os.killpg if whole_group else os.kill)(process.pid, signal.SIGTERM)
            # The end of the last batch, or the signal if there was none in flight.
            since = wait_for("the second member to own all", lambda: observer.since_s, 60, evidence)
            entry = bed.checkpoint / "commits" / str(newest_commit(bed.checkpoint))
            bed.took_s.append(since - max(entry.stat().st_mtime, sent_s))
            process.wait(120)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    print(f"{number}: group={whole_group} ran {time.time() - started_s:.1f} s, handover {bed.took_s[-1]:.2f} s")
    return bed.out(number).read_text(errors="replace").strip()


def hits_a_command_of_hadoop(log: Path) -> bool:
    """Return whether the signal has ended a command that Spark's file system runs, so that the query has failed.

    Without its native library Hadoop calls chmod for each file of the checkpoint. A signal to the whole process group
    ends that, too, or the helper by which Java starts it, and with it the query. The batch runs again later.
    """
    ended = r"ExitCodeException exitCode=143\b|Failed to exec spawn helper: pid: \d+, signal: 15\b"
    return re.search(ended, log.read_text(errors="replace")) is not None


@pytest.mark.parametrize("sink", _SINKS)
@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.rule("R78", "R79")
def test_sigterm_at_a_random_moment_repeats_and_loses_nothing(
    sink: str, mode: str, where: dict[str, Any], client: Independent, options: dict[str, str], topic: str, group: str,
    tmp_path: Path, record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    """Each round: every record below the group's offsets was written once, and no other one was written at all."""
    client.create_topic(topic, _PARTITIONS)
    client.produce(topic, (f"v{n}" for n in range(_ROUNDS * _RECORDS * 8)), _PARTITIONS)
    chance = random.Random(os.environ.get("GROUPKAFKA_STOPS_SEED", "") + f"{sink}-{mode}")
    given = options | {"maxOffsetsPerTrigger": str(_RECORDS), "kafka.session.timeout.ms": str(int(_SESSION_S * 1000))}
    settings = where | {
        "options": given, "out": str(tmp_path), "checkpoint": str(tmp_path / "checkpoint"), "sink": sink,
        "batch_s": _BATCH_S,
    }  # fmt: skip
    bed = Bed(mode, sink, tmp_path, settings)
    number, hit = -1, 0
    while (number := number + 1) < _ROUNDS + hit:
        said = stop_once(bed, number, given, chance)
        if hits_a_command_of_hadoop(bed.log_of(number)):
            hit += 1
            assert hit <= _MOST_HIT, "the signal ends commands of Hadoop again and again"
            continue
        evidence = f"round {number}: {said}\n{bed.log_end(number)}"
        assert said.splitlines()[-1:] == ["DRAINED"], evidence
        written, committed = bed.written(), client.committed(group)
        assert {record: times for record, times in written.items() if times > 1} == {}, evidence
        due = {(name, part, at) for (name, part), end in committed.items() for at in range(end)}
        assert due - written.keys() == set(), f"lost: {evidence}"
        assert written.keys() - due == set(), f"the last batch is not committed: {evidence}"
        # A reader of a server that lives on ends a moment after its query.
        wait_for("the run's file to be removed", lambda: not list((bed.checkpoint / "groupkafka").iterdir()), 30)
    record_property("handover_s", [round(seconds, 2) for seconds in bed.took_s])
    print(f"{mode} {sink}: {_ROUNDS} stops, handover median {sorted(bed.took_s)[_ROUNDS // 2]:.2f} s,"
          f" longest {max(bed.took_s):.2f} s")  # fmt: skip
    assert max(bed.took_s) < _SESSION_S / 2, bed.took_s


# It ends a second after the signal, when a JVM that obeys it has begun to shut down.
_CHMOD = """#!/bin/sh
trap 'sleep 1; exit 143' TERM
case "$*" in
  *{rows}*/attempt_*) if [ -e {hold} ]; then touch {hold}.reached; sleep 300; fi ;;
esac
exec /bin/chmod "$@"
"""


def test_sigterm_that_fails_a_task_ends_the_query(
    client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path
) -> None:
    """1. A task of local mode runs Hadoop's `chmod`. 2. SIGTERM to the process group ends that, so the task fails.
    3. The program ends at once, with the batch in flight cancelled, and its next run repeats the batch.

    A JVM that shuts down would report no failed task, and the batch would never end.
    """
    client.create_topic(topic, _PARTITIONS)
    client.produce(topic, (f"v{n}" for n in range(_RECORDS)), _PARTITIONS)
    settings = {
        "conf": _LOCAL, "options": options, "out": str(tmp_path), "checkpoint": str(tmp_path / "checkpoint"),
        "sink": "foreachBatch", "batch_s": 0.0,
    }  # fmt: skip
    bed, hold = Bed("local", "foreachBatch", tmp_path, settings), tmp_path / "hold"
    tool = tmp_path / "bin" / "chmod"
    tool.parent.mkdir()
    tool.write_text(_CHMOD.format(rows=tmp_path / "rows", hold=hold))
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"

    evidence = partial(bed.log_end, 0)
    process = bed.start(0, PATH=path)
    try:
        wait_for("the commit of all records", lambda: client.lag(group, topic) == 0, 180, evidence)
        before = client.committed(group)
        hold.touch()
        client.produce(topic, (f"w{n}" for n in range(_RECORDS)), _PARTITIONS)
        wait_for("a task to run the command", hold.with_name("hold.reached").exists, 60, evidence)
        os.killpg(process.pid, signal.SIGTERM)
        wait_for("the program's end", lambda: process.poll() is not None, 60, evidence)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert bed.out(0).read_text().splitlines()[-1:] == ["CANCELLED"], evidence()
    assert hits_a_command_of_hadoop(bed.log_of(0))
    assert client.committed(group) == before
