"""How a reader process ends: SIGTERM with a batch in flight, to the whole process group or to the reader alone.

systemd, YARN and supervisors send SIGTERM to JVM, driver and reader at once, and the application may finish its batch.
`query.stop()` sends SIGTERM to the reader, too (twice), and then closes its socket: the batch is over by then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, Query, wait_for
from .holding import Events, Gate, held_until_assigned, released
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

ONCE = {"processingTime": "7 days"}  # Only the first trigger comes.
# What a member that leaves too early needs at most to be gone.
A_WHILE_S = 3.0
QUICK_S = 10.0


class Gated:
    """A query process whose batches end only when `release` was called."""

    def __init__(self, start_query: Callable[..., Query], folder: Path, options: dict[str, str]) -> None:
        self.events = Events(folder, "gated")
        self._gate = folder / "gate"
        given = options | self.events.options | {"kafka.client.id": "gated"}
        with held_until_assigned(self.events):
            self.query = start_query("gated", given, trigger=ONCE, gate=str(self._gate), graceful=True)
            self.query.wait_started()

    def wait_held(self) -> None:
        """Wait until a batch is in flight and held in its sink."""
        wait_for("a held batch", self._gate.with_name("gate.reached").exists, 120, self.query.log)

    def release(self) -> None:
        """Let the batch end."""
        self._gate.touch()

    def wait_complete(self) -> float:
        """Wait until Spark has recorded the batch as complete; return when it has, in seconds of the epoch."""
        path = self.query.checkpoint / "commits" / "0"
        wait_for("the batch's end", path.exists, 60, self.evidence)
        return path.stat().st_mtime

    def evidence(self) -> str:
        """Return what the member told."""
        return f"{self.events.tail()}\n{self.query.log()}"


def test_p6_sigterm_to_the_process_group_leaves_when_the_batch_in_flight_is_complete(
    start_query: Callable[..., Query],
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """Guards against: 1. a batch of 100 records is in flight, and a second member joins, 2. SIGTERM comes to all
    processes of the first one, 3. its member leaves, the second one reads from the old offsets, 4. the application
    finishes its batch: the records are in completed batches of both.
    """
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(100)), 2)
    gated = Gated(start_query, tmp_path, options)
    gated.wait_held()
    second = application.start_query("second", options)
    gated.events.wait_for("revoking")

    os.killpg(gated.query.process.pid, signal.SIGTERM)
    time.sleep(A_WHILE_S)
    gone_early = [line["event"] for line in gated.events.lines() if line["event"] in ("revoked", "left")]
    gated.release()
    gated.wait_complete()
    assert gated.query.wait_ended() == 0, gated.evidence()
    wait_for("the first member to have left", lambda: gated.events.lines("left"), 30, gated.evidence)

    client.produce(topic, (f"b{n}" for n in range(20)), 2)
    everything = client.records(topic)
    second.wait_for_records(everything - gated.query.completed_records().keys())
    twice = {r: n for r, n in (gated.query.completed_records() + second.completed_records()).items() if n > 1}
    print(f"{len(twice)} of 100 records in completed batches of two applications")
    assert twice == {}, f"{len(twice)} records twice\n{gated.evidence()}"
    assert gone_early == []
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, gated.evidence)


@pytest.mark.parametrize("signals", [1, 3])
def test_sigterm_to_the_reader_alone_leaves_when_the_batch_in_flight_is_complete(
    signals: int,
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """However often it comes. The query then fails at its next trigger, with the cause."""
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(40)), 2)
    gate, seen = Gate(), Events(tmp_path, "first")
    gate.armed = True
    trigger = {"processingTime": "5 seconds"}
    first = application.start_query("first", options | seen.options, trigger=trigger, batch=gate)
    with released(gate):
        gate.wait_reached(seen.tail)
        for _ in range(signals):
            os.kill(seen.reader_pid(), signal.SIGTERM)
            time.sleep(0.2)
        time.sleep(A_WHILE_S)
        assert client.member_count(group) == 1, seen.tail()
        gate.release()
        seen.wait_for("left", timeout_s=QUICK_S)
        assert client.lag(group, topic) == 0, seen.tail()
    wait_for("the query's end", lambda: not first.query.isActive, 60, first.__repr__)
    assert "MEMBER_LEFT" in str(first.query.exception())


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.parametrize("moment", ["while it is stopped", "2 ms after it goes on"])
@pytest.mark.rule("R104")
def test_sigterm_to_a_reader_that_is_stopped_counts_when_it_goes_on(
    moment: str,
    protocol: str,
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """1. A reader is stopped (SIGSTOP) while its main thread waits for the JVM. 2. SIGTERM comes. 3. It goes on:
    whichever thread takes the signal, the member leaves at once. Three readers, since the kernel chooses the thread.
    """
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(40)), 2)
    seen = [Events(tmp_path, str(number)) for number in range(3)]
    for number, lines in enumerate(seen):
        given = with_protocol(options | lines.options | {"kafka.group.id": f"{group}-{number}"}, protocol)
        with held_until_assigned(lines):
            application.start_query(str(number), given, trigger=ONCE)
    for lines in seen:
        lines.wait_for("completed")
    left_s = []
    for lines in seen:
        pid = lines.reader_pid()
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)
        if moment == "while it is stopped":
            os.kill(pid, signal.SIGTERM)
        since_s = time.time()
        os.kill(pid, signal.SIGCONT)
        if moment != "while it is stopped":
            time.sleep(0.002)
            os.kill(pid, signal.SIGTERM)
        until_s = time.monotonic() + QUICK_S
        while not lines.lines("left") and time.monotonic() < until_s:
            time.sleep(0.05)
        left_s.append(float(lines.lines("left")[0]["at"]) - since_s if lines.lines("left") else QUICK_S)
    print(f"{protocol}, {moment}: left after {', '.join(f'{seconds:.3f}' for seconds in left_s)} s")
    assert max(left_s) < QUICK_S / 2, left_s


@pytest.mark.parametrize("way", ["query.stop()", "SIGTERM to the reader without a batch"])
def test_a_stop_that_nothing_waits_for_is_quick(
    way: str,
    start_query: Callable[..., Query],
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """`query.stop()` cancels the batch in flight, which will never be complete."""
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(40)), 2)
    seen, gate = Events(tmp_path, "first"), tmp_path / "gate"
    stops = way == "query.stop()"
    if not stops:
        gate.touch()
    given = options | seen.options | {"kafka.client.id": "first"}
    with held_until_assigned(seen):
        query = start_query("first", given, trigger=ONCE, sink="parquet", gate=str(gate))
        query.wait_started()
    if stops:
        wait_for("a held batch", gate.with_name("gate.reached").exists, 120, query.log)
        time.sleep(0.5)
        since_s = time.time()
        query.process.send_signal(signal.SIGTERM)  # The driver's handler calls `query.stop()`.
    else:
        wait_for("the batch's end", (query.checkpoint / "commits" / "0").exists, 120, query.log)
        since_s = time.time()
        os.kill(seen.reader_pid(), signal.SIGTERM)
    left_s = float(seen.wait_for("left", timeout_s=30)["at"]) - since_s
    record_property("left_s", round(left_s, 3))
    print(f"{way}: left after {left_s:.3f} s")
    assert left_s < QUICK_S
    assert client.lag(group, topic) == (40 if stops else 0)


def test_a_killed_jvm_ends_the_wait_for_its_batch(
    start_query: Callable[..., Query],
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(40)), 2)
    gated = Gated(start_query, tmp_path, options)
    gated.wait_held()
    os.kill(gated.events.reader_pid(), signal.SIGTERM)
    time.sleep(A_WHILE_S)
    assert gated.events.lines("left") == [], gated.evidence()
    since_s = time.time()
    os.kill(gated.query.jvm_pid(), signal.SIGKILL)
    left_s = float(gated.events.wait_for("left", timeout_s=30)["at"]) - since_s
    print(f"left {left_s:.3f} s after the JVM's end")
    assert client.member_count(group) == 0
    assert client.lag(group, topic) == 40, "the batch was never complete"


def test_a_batch_that_hangs_holds_a_member_that_was_sent_sigterm_for_drain_timeout_only(
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, (f"a{n}" for n in range(40)), 2)
    gate, seen = Gate(), Events(tmp_path, "first")
    gate.armed = True
    given = options | seen.options | {"drainTimeoutMs": "4000"}
    with released(gate):
        with held_until_assigned(seen):
            application.start_query("first", given, trigger=ONCE, batch=gate)
        gate.wait_reached(seen.tail)
        since_s = time.time()
        os.kill(seen.reader_pid(), signal.SIGTERM)
        left_s = float(seen.wait_for("left", timeout_s=30)["at"]) - since_s
        assert 3.9 <= left_s < 4.0 + QUICK_S, seen.tail()
        assert seen.lines("left")[0]["details"]["outcome"] == "DEADLINE"
        assert client.lag(group, topic) == 40
