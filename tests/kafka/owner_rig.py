"""Two drivers of one stateful query: kill, stop and pause the owner again and again, and compare with one calm run.

    python -m tests.kafka.owner_rig --kills 20 --stops 20 --pauses 10

It starts a real broker, writes ids all the time, each one twice, and looks after its drivers (`owner_process.py`) with
one checkpoint. In the end another query, which nobody disturbs, reads the same topic alone. The results must be equal
id by id: nothing lost, nothing counted twice. Exit code 1 if they are not, or if an old owner ran a new batch.

A takeover is measured from the signal: until the other driver has the lock and begins to start its query, and until
that query's first batch is in Spark's commit log. With --minutes it ends early, and judges what has happened.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests import checkout
from tests.kafka.harness import Independent, newest_commit, wait_for
from tests.realkafka.realkafka import RealKafka

_PARTITIONS = 4
_PER_SECOND = 60
# The second copy of an id comes so many ids later.
_AGAIN_AFTER = 150
_STEP_S = 0.05
# A killed driver is given up within its session; a driver on a busy machine starts within this time.
_LONG_S = 120.0


class Ids(threading.Thread):
    """Writes ids all the time, each one twice, into different partitions."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(name="ids", daemon=True)
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 20})
        self._ended = threading.Event()
        self.written = 0

    def run(self) -> None:
        """Write until `end`."""
        times: list[int] = []
        for number in count():
            if self._ended.wait(1 / _PER_SECOND):
                break
            times.append(int(time.time() * 1000))
            self._send(number, times[number])
            if number >= _AGAIN_AFTER:
                self._send(number - _AGAIN_AFTER, times[number - _AGAIN_AFTER], shift=1)
            self.written = number + 1

    def end(self, wait_read: Callable[[], object]) -> None:
        """End, and write one record per partition from far in the future: all windows of the ids are complete then.

        `wait_read` waits until all ids are read. A partition that is without an owner for a moment is read later than
        the others: its ids would be too late behind their last records.
        """
        self._ended.set()
        self.join()
        assert self._producer.flush(60) == 0
        wait_read()
        for partition in range(_PARTITIONS):
            late_ms = int((time.time() + 86_400) * 1000)
            self._producer.produce(self._topic, f"end-{partition},{late_ms}".encode(), partition=partition)
        assert self._producer.flush(60) == 0

    def _send(self, number: int, at_ms: int, shift: int = 0) -> None:
        self._producer.produce(self._topic, f"{number},{at_ms}".encode(), partition=(number + shift) % _PARTITIONS)
        self._producer.poll(0)


class Process:
    """One driver."""

    def __init__(self, name: str, folder: Path, settings: Mapping[str, Any]) -> None:
        self.name = name
        self._out = Path(settings["out"])
        self._log = folder / f"log-{name}"
        command = checkout.command("tests.kafka.owner_process", json.dumps({**settings, "name": name}))
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=checkout.ROOT, start_new_session=True
            )

    def events(self) -> list[dict[str, Any]]:
        """Return what it has noted down."""
        return _lines(self._out / f"events-{self.name}.jsonl")

    def batches(self) -> list[dict[str, Any]]:
        """Return the writes of its sink."""
        return _lines(self._out / f"ledger-{self.name}.jsonl")

    def happened(self, event: str, since_s: float = 0.0) -> float | None:
        """Return when an event happened last, None if it did not since then."""
        times: list[float] = [one["at"] for one in self.events() if one["event"] == event and one["at"] >= since_s]
        return times[-1] if times else None

    def log(self) -> str:
        """Return its output."""
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the driver, its JVM, its reader and its workers."""
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        """End all its processes."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait(30)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


@dataclass
class Rig:
    """The broker, the drivers, and what was measured."""

    folder: Path
    client: Independent
    settings: dict[str, Any]
    drivers: list[Process] = field(default_factory=list)
    owner_s: dict[str, list[float]] = field(default_factory=dict)
    batch_s: dict[str, list[float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _names: Iterator[int] = field(default_factory=count)
    _is_written: bool = False

    @property
    def checkpoint(self) -> Path:
        """The one checkpoint."""
        return Path(self.settings["checkpoint"])

    def add(self) -> None:
        """Start a driver."""
        self.drivers.append(Process(f"driver-{next(self._names)}", self.folder, self.settings))

    def await_standby(self) -> Process:
        """Wait until an owner runs its query, and another driver waits for the lock. Return the owner."""
        lock = f"{self.settings['group']}.lock"

        def ready() -> bool:
            return sum(one.happened("ready") is not None for one in self.drivers) > 1

        wait_for("two drivers", ready, _LONG_S, self.evidence)
        wait_for("two members of the lock", lambda: self.client.member_count(lock) > 1, _LONG_S, self.evidence)
        owner: Process = wait_for("an owner", self.owner, _LONG_S, self.evidence)
        return owner

    def owner(self) -> Process | None:
        """Return the driver that has got the lock last."""
        owned = {one.happened("owner") or 0.0: one for one in self.drivers if one.process.poll() is None}
        newest = max(owned, default=0.0)
        return owned[newest] if newest else None

    def in_flight(self) -> int | None:
        """Return the number of the batch that is planned and not complete; None if there is none."""
        planned = max((int(entry.name) for entry in (self.checkpoint / "offsets").glob("[0-9]*")), default=-1)
        return planned if planned > newest_commit(self.checkpoint) else None

    def at_random_moment(self) -> None:
        """Wait until a batch with records is in flight, and then for a moment of it."""
        wait_for("a batch", lambda: self.in_flight() is not None, _LONG_S, self.evidence)
        time.sleep(random.uniform(0, self.settings["batch_s"]))

    def takeover(self, kind: str, since_s: float, former: Process) -> None:
        """Wait until another driver runs, and has completed a batch. Measure both."""

        def successor() -> Process | None:
            return next((one for one in self.drivers if one is not former and one.happened("owner", since_s)), None)

        def first_batch() -> int | None:
            return next((one["batch"] for one in other.batches() if one["at"] >= since_s), None)

        other: Process = wait_for("another owner", successor, _LONG_S, self.evidence)
        wait_for(f"a batch of {other.name}", lambda: first_batch() is not None, _LONG_S, self.evidence)
        batch = first_batch() or 0
        commit = self.checkpoint / "commits" / str(batch)
        wait_for(f"the end of batch {batch}", commit.exists, _LONG_S, self.evidence)
        owner_s, batch_s = (other.happened("owner", since_s) or 0.0) - since_s, commit.stat().st_mtime - since_s
        self.owner_s.setdefault(kind, []).append(owner_s)
        self.batch_s.setdefault(kind, []).append(batch_s)
        print(f"{kind}: owner after {owner_s:.1f} s, batch {batch} complete after {batch_s:.1f} s", flush=True)

    # --- what happens to an owner

    def kill(self) -> None:
        """SIGKILL to all processes of the owner."""
        owner = self.await_standby()
        self.at_random_moment()
        since_s = time.time()
        owner.kill()
        self.drivers.remove(owner)
        self.takeover("SIGKILL", since_s, owner)
        self.add()

    def stop(self) -> None:
        """SIGTERM to the owner's driver."""
        owner = self.await_standby()
        self.at_random_moment()
        since_s = time.time()
        owner.process.send_signal(signal.SIGTERM)
        self.takeover("clean stop", since_s, owner)
        code = owner.process.wait(_LONG_S)
        how = next((one["how"] for one in owner.events() if one["event"] == "ended"), "no end")
        if (code, how) != (0, "DRAINED"):
            self.faults.append(f"{owner.name} ended {how} with code {code}")
        self.drivers.remove(owner)
        self.add()

    def pause(self) -> None:
        """SIGSTOP to all processes of the owner while a batch is in flight, until the other one has run batches.

        Every second time its sink has written the batch already, which the other one then writes again.
        """
        owner, held = self.await_standby(), None
        self._is_written = not self._is_written
        while held is None:
            if self._is_written:
                self.hold(owner)
            else:
                self.at_random_moment()
            since_s = time.time()
            owner.signal(signal.SIGSTOP)
            held = self.in_flight()
            if held is None:
                owner.signal(signal.SIGCONT)
        again = "has given up the lock"
        seen = owner.log().count(again)
        try:
            self.takeover("SIGSTOP", since_s, owner)
            wait_for("a new batch", lambda: newest_commit(self.checkpoint) > held, _LONG_S, self.evidence)
        finally:
            woken_s = time.time()
            owner.signal(signal.SIGCONT)
            self.release(owner)
        wait_for(f"{owner.name} to wait again", lambda: owner.log().count(again) > seen, _LONG_S, self.evidence)
        newer = [one["batch"] for one in owner.batches() if one["at"] >= woken_s and one["batch"] > held]
        if newer and owner.happened("owner", woken_s) is None:
            self.faults.append(f"{owner.name} ran batches {newer} after it woke; batch {held} was in flight")

    def hold(self, driver: Process) -> int:
        """Hold the next batch of a driver when its sink has written it. Return its number."""
        out = Path(self.settings["out"])
        (out / f"held-{driver.name}").unlink(missing_ok=True)
        (out / f"hold-{driver.name}").touch()
        wait_for("a batch that is held", (out / f"held-{driver.name}").exists, _LONG_S, self.evidence)
        return self.in_flight() or 0

    def release(self, driver: Process) -> None:
        """Let the batch end that is held."""
        (Path(self.settings["out"]) / f"hold-{driver.name}").unlink(missing_ok=True)

    # --- the end

    def evidence(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {one.name} ({one.process.poll()})\n{one.log()[-3000:]}" for one in self.drivers)

    def close(self) -> None:
        """End all drivers."""
        for one in self.drivers:
            one.kill()


def results(out: Path) -> dict[int, tuple[int, list[str]]]:
    """Return the windows of the sink: start in ms -> count and ids. A window that came twice has the ids of both."""
    found: dict[int, tuple[int, list[str]]] = {}
    for path in (out / "batches").glob("*.json"):
        for start, number, ids in json.loads(path.read_text()):
            before = found.get(start, (0, []))
            found[start] = (before[0] + number, before[1] + ids)
    return found


def compare(disturbed: Path, calm: Path, written: int) -> tuple[str, bool]:
    """Compare two outputs id by id. Return a text, and whether they are equal and complete."""
    ours, theirs = results(disturbed), results(calm)
    counted = Counter(chain.from_iterable(ids for _, ids in ours.values()))
    wanted = {str(number) for number in range(written)}
    lost = sorted(wanted - counted.keys())
    doubled = sorted(name for name, times in counted.items() if times > 1)
    other = sorted(start for start in ours.keys() | theirs.keys() if ours.get(start) != theirs.get(start))
    wrong = sorted(start for start, (number, ids) in ours.items() if number != len(ids))
    text = (
        f"{written} ids in {len(theirs)} windows: {len(lost)} lost {lost[:5]}, {len(doubled)} counted twice"
        f" {doubled[:5]}, {len(other)} windows differ from the calm run, {len(wrong)} wrong counts"
    )
    return text, not (lost or doubled or other or wrong)


def _drive(rig: Rig, ids: Ids, actions: Sequence[Callable[[], None]], minutes: float, drivers: int) -> None:
    deadline_s = time.monotonic() + 60 * minutes
    for _ in range(drivers):
        rig.add()
    rig.await_standby()
    ids.start()
    for number, action in enumerate(actions, start=1):
        if time.monotonic() > deadline_s:
            print(f"the time is over after {number - 1} of {len(actions)}", flush=True)
            break
        print(f"[{number}/{len(actions)}] {ids.written} ids", flush=True)
        action()
    group, topic = rig.settings["group"], rig.settings["topic"]
    ids.end(lambda: wait_for("all ids read", lambda: rig.client.lag(group, topic) == 0, _LONG_S, rig.evidence))


def _calm_run(rig: Rig, servers: str) -> Path:
    """Let one query read the whole topic alone. Return its output."""
    out = rig.folder / "calm"
    options = rig.settings["options"] | {
        "kafka.group.id": f"{rig.settings['group']}-calm",
        "kafka.bootstrap.servers": servers,
    }
    settings = {**rig.settings, "out": str(out), "checkpoint": str(rig.folder / "calm-checkpoint"), "alone": True}
    calm = Process("calm", rig.folder, settings | {"options": options})
    try:
        assert calm.process.wait(600) == 0, calm.log()[-3000:]
    finally:
        calm.kill()
    return out


def make(folder: Path, servers: str, name: str, *, protocol: str = "classic", session_ms: int = 6000) -> Rig:
    """Return a rig with a topic and a group of this name, without drivers."""
    client = Independent(servers)
    client.create_topic(name, _PARTITIONS)
    options = {
        "kafka.bootstrap.servers": servers, "kafka.group.id": name, "subscribe": name,
        "startingOffsets": "earliest", "kafka.group.protocol": protocol, "onPartitionsLost": "fail",
    }  # fmt: skip
    if protocol == "classic":
        options["kafka.session.timeout.ms"] = str(session_ms)
    else:
        for group in (name, f"{name}.lock"):
            client.set_group_session_timeout(group, session_ms, 1_000)
    settings = {
        "out": str(folder / "out"), "checkpoint": str(folder / "checkpoint"), "group": name, "topic": name,
        "options": options, "batch_s": 0.6,
    }  # fmt: skip
    return Rig(folder, client, settings)


def run(rig: Rig, actions: Mapping[str, int], *, minutes: float = 1e6, drivers: int = 2) -> bool:
    """Run the actions in a random order. Return whether all was as it must be."""
    servers, out = rig.client.bootstrap_servers, Path(rig.settings["out"])
    ids = Ids(servers, rig.settings["topic"])
    try:
        todo = [getattr(rig, name) for name, times in actions.items() for _ in range(times)]
        random.shuffle(todo)
        _drive(rig, ids, todo, minutes, drivers)
        wanted = {str(number) for number in range(ids.written)}

        def complete() -> bool:
            return wanted <= set(chain.from_iterable(found for _, found in results(out).values()))

        with contextlib.suppress(AssertionError):  # judged below
            wait_for("all ids", complete, 60, rig.evidence)
    finally:
        rig.close()
    text, is_equal = compare(out, _calm_run(rig, servers), ids.written)
    different = [path.name for path in out.glob("different-*")]
    rewritten = Counter(one["batch"] for path in out.glob("ledger-*") for one in _lines(path))
    print(text)
    print(f"batches that a second run wrote again: {sum(times > 1 for times in rewritten.values())}, "
          f"with other rows: {len(different)} {different[:5]}")  # fmt: skip
    for fault in rig.faults:
        print(f"FAULT: {fault}")
    return is_equal and not different and not rig.faults


def report(rig: Rig) -> None:
    """Print the takeover times."""
    for kind, owner_s in rig.owner_s.items():
        for what, times in (("owner", owner_s), ("first batch complete", rig.batch_s[kind])):
            print(f"{kind}, {what}: n={len(times)} min={min(times):.1f} median={statistics.median(times):.1f} "
                  f"max={max(times):.1f} s")  # fmt: skip


def main() -> int:
    """Run the rig from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, text in (("kills", "SIGKILL"), ("stops", "SIGTERM"), ("pauses", "SIGSTOP")):
        parser.add_argument(f"--{name}", type=int, default=1, help=f"owners that get {text} (default: 1)")
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--session-ms", type=int, default=6000)
    parser.add_argument("--minutes", type=float, default=1e6, help="end after this time (default: no limit)")
    parser.add_argument("--drivers", type=int, default=2, help="with more, nothing waits for a new one (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep logs and results there")
    given = parser.parse_args()
    random.seed(given.seed)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="groupkafka-owner-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs and results: {folder}", flush=True)
    actions = {"kill": given.kills, "stop": given.stops, "pause": given.pauses}
    with RealKafka(brokers=1) as broker:
        servers = broker.bootstrap_servers
        rig = make(folder, servers, "payments", protocol=given.protocol, session_ms=given.session_ms)
        is_right = run(rig, actions, minutes=given.minutes, drivers=given.drivers)
    report(rig)
    print("PASSED" if is_right else "FAILED")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
