"""The soak: short-lived topics under a pattern, members that join and leave, and what that costs over time.

    scripts/soak                                   an hour, 500 topics
    scripts/soak --minutes 10 --topics 80 --output /tmp/soak

One real broker. A long-lived topic is written to all the time (lz4). A short-lived topic is created every few seconds,
written to, and deleted when the group has committed its end. One member stays; another one joins and leaves. Every
ten seconds the soak measures the staying application: resident memory, descriptors and threads by kind of process,
the size of the newest offset in Spark's log, and what the application has logged.

Output: samples.json, soak.png, and a table with the growth per hour after the warm-up (the first quarter). The exit
code is 1 when a record is missing, a query has failed, or a topic's end was not committed in time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import checkout
from tests.benchmarks.processes import KINDS, kind_of, parse_pss_kb, tree
from tests.plots import new_figure, save
from tests.realkafka.realkafka import RealKafka
from tests.steps import say

_PARTITIONS = 2
_RECORDS = 200
_LASTING = "soak-lasting"
_SAMPLE_S = 10.0
_COMMITTED_WITHIN_S = 180.0
_GROUP = "soak"


@dataclass(slots=True)
class Soak:
    """What the threads of a run share."""

    folder: Path
    servers: str
    started_s: float = field(default_factory=time.monotonic)
    ended: threading.Event = field(default_factory=threading.Event)
    produced: Counter[str] = field(default_factory=Counter)
    samples: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    deleted: int = 0

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started_s

    def fail(self, text: str) -> None:
        """Keep a failure, and end the run."""
        self.failures.append(f"[{self.elapsed_s():.0f} s] {text}")
        self.ended.set()


class Application:
    """A Spark application with one query (application.py)."""

    def __init__(self, soak: Soak, name: str) -> None:
        self.folder = soak.folder / name
        self.folder.mkdir()
        self.checkpoint = self.folder / "checkpoint"
        self.log = self.folder / "log"
        settings = {
            "name": name,
            "read": str(self.folder / "read"),
            "failure": str(self.folder / "failure"),
            "checkpoint": str(self.checkpoint),
            "options": {
                "kafka.bootstrap.servers": soak.servers,
                "kafka.group.id": _GROUP,
                "kafka.group.protocol": "consumer",
                "kafka.topic.metadata.refresh.interval.ms": "1000",
                "subscribePattern": "soak-.*",
                "startingOffsets": "earliest",
                "failOnDataLoss": "false",
                "checkpointLocation": str(self.checkpoint),
            },
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                checkout.command("tests.soak.application", json.dumps(settings)),
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env=checkout.environment({"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}),
            )  # fmt: skip

    def command(self, text: str) -> None:
        """Send a line."""
        if self.process.stdin is not None:
            self.process.stdin.write(text.encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> Counter[str]:
        """Return how many records of each topic are in completed batches; a batch that ran twice counts once."""
        path = self.folder / "read"
        last = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            batch = json.loads(line)
            last[batch["batch"]] = batch["topics"]
        done: Counter[str] = Counter()
        # Batches are completed in order, and Spark keeps the newest hundred entries only.
        newest = max((int(entry.name) for entry in (self.checkpoint / "commits").glob("[0-9]*")), default=-1)
        for number, topics in last.items():
            if number <= newest:
                done.update(topics)
        return done

    def end(self) -> int:
        """End it and return its exit code."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait(30)


def sample(application: Application, at_s: float) -> dict[str, Any]:
    """Measure an application: sums over the processes of each kind."""
    found: dict[str, Any] = {"at_s": round(at_s, 1)}
    for kind in KINDS:
        found[kind] = {"processes": 0, "pss_mb": 0.0, "descriptors": 0, "threads": 0}
    for pid in tree(application.process.pid):
        proc = Path("/proc") / str(pid)
        try:
            kind = kind_of((proc / "cmdline").read_bytes())
            memory_mb = parse_pss_kb((proc / "smaps_rollup").read_text()) / 1024
            descriptors, threads = len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))
        except OSError:
            continue  # it has ended
        one = found[kind]
        one["processes"] += 1
        one["pss_mb"] = round(one["pss_mb"] + memory_mb, 1)
        one["descriptors"] += descriptors
        one["threads"] += threads
    offsets = application.checkpoint / "offsets"
    newest = max((int(p.name) for p in offsets.glob("[0-9]*")), default=None) if offsets.exists() else None
    found["offset_bytes"] = 0 if newest is None else (offsets / str(newest)).stat().st_size
    found["log_bytes"] = application.log.stat().st_size
    return found


def lasting_load(soak: Soak) -> None:
    """Write to the long-lived topic, about 400 records a second."""
    producer = Producer({"bootstrap.servers": soak.servers, "compression.type": "lz4", "linger.ms": 20})
    number = 0
    while not soak.ended.wait(0.25):
        for _ in range(100):
            producer.produce(_LASTING, b"%0200d" % number, partition=number % 4)
            number += 1
        producer.poll(0)
        soak.produced[_LASTING] = number
    producer.flush(30)


def short_lived(soak: Soak, number: int) -> None:
    """Live one topic's life: create, write, wait until the group has it, delete."""
    topic = f"soak-{number:05}"
    admin = AdminClient({"bootstrap.servers": soak.servers})
    admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result(60)
    producer = Producer({"bootstrap.servers": soak.servers, "compression.type": "lz4"})
    for record in range(_RECORDS):
        while True:
            try:
                producer.produce(topic, b"%0200d" % record, partition=record % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(60):
        soak.fail(f"{topic}: not all records were acknowledged")
        return
    soak.produced[topic] = _RECORDS
    reader = Consumer({"bootstrap.servers": soak.servers, "group.id": _GROUP})
    wanted = [TopicPartition(topic, partition) for partition in range(_PARTITIONS)]
    deadline = time.monotonic() + _COMMITTED_WITHIN_S
    while _committed(reader, wanted) < _RECORDS:
        if time.monotonic() > deadline:
            soak.fail(f"{topic}: its end was not committed within {_COMMITTED_WITHIN_S:.0f} s")
            break
        if soak.ended.wait(1.0):
            break
    reader.close()
    if not soak.ended.is_set():
        admin.delete_topics([topic])[topic].result(60)
        soak.deleted += 1


def _committed(reader: Consumer, wanted: list[TopicPartition]) -> int:
    """Return how many records the group has committed; none while its coordinator is on its way."""
    try:
        return sum(max(0, partition.offset) for partition in reader.committed(wanted, timeout=30))
    except KafkaException as error:
        if error.args[0].retriable() or error.args[0].code() == KafkaError.NOT_COORDINATOR:
            return 0
        raise


def short_lives(soak: Soak, topics: int, minutes: float) -> None:
    """Start a topic's life every few seconds."""
    interval_s = minutes * 60 / topics
    lives = []
    for number in range(topics):
        life = threading.Thread(target=short_lived, args=(soak, number), name=f"topic-{number}", daemon=True)
        life.start()
        lives.append(life)
        if soak.ended.wait(interval_s):
            break
    for life in lives:
        life.join(_COMMITTED_WITHIN_S + 60)


def comes_and_goes(soak: Soak, member: Application, away_s: float, there_s: float) -> None:
    """Let a member leave and join again."""
    while not soak.ended.wait(there_s):
        member.command("stop")
        if soak.ended.wait(away_s):
            member.command("start")
            return
        member.command("start")


def growth_per_hour(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the slope of a least-squares line, in percent of its mean per hour. None without a spread."""
    if len({x for x, _ in points}) < 3:
        return None
    mean = statistics.fmean(y for _, y in points)
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    return slope * 3600 / mean * 100 if mean else None


def series(samples: Sequence[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return each measured figure over time."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in samples:
        for kind in KINDS:
            for figure in ("pss_mb", "descriptors", "threads"):
                found.setdefault(f"{kind}: {figure}", []).append((one["at_s"], one[kind][figure]))
        found.setdefault("newest offset: bytes", []).append((one["at_s"], one["offset_bytes"]))
        found.setdefault("application log: bytes", []).append((one["at_s"], one["log_bytes"]))
    return found


def table(samples: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table: each figure after the warm-up, first and last quarter of what is left, and its growth."""
    warm_s = samples[-1]["at_s"] / 4
    lines = ["| figure | after warm-up | at the end | growth per hour |", "|---|---|---|---|"]
    for name, points in series(samples).items():
        kept = [(x, y) for x, y in points if x >= warm_s]
        part = max(1, len(kept) // 4)
        first, last = (sum(y for _, y in some) / len(some) for some in (kept[:part], kept[-part:]))
        grown = growth_per_hour(kept)
        lines.append(f"| {name} | {first:,.1f} | {last:,.1f} | {'-' if grown is None else f'{grown:+.1f} %'} |")
    return lines


def draw(samples: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw memory, descriptors, threads, and the two sizes over time."""
    found = series(samples)
    panels = {
        "memory (PSS), MB": [name for name in found if name.endswith("pss_mb")],
        "descriptors": [name for name in found if name.endswith("descriptors")],
        "threads": [name for name in found if name.endswith("threads")],
        "bytes of the newest offset": ["newest offset: bytes"],
        "bytes logged": ["application log: bytes"],
    }
    figure = new_figure(10, 14)
    axes = figure.subplots(len(panels), 1, sharex=True)
    for axis, (title, names) in zip(axes, panels.items(), strict=True):
        for name in names:
            axis.plot([x / 60 for x, _ in found[name]], [y for _, y in found[name]], label=name.partition(":")[0])
        axis.set_ylabel(title)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if len(names) > 1:
            axis.legend(loc="center right")
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    save(figure, path)


def judge(soak: Soak, read: Counter[str]) -> None:
    """Compare what was produced with what completed batches have; a repeat is no failure here, a loss is."""
    for topic, count in soak.produced.items():
        if read[topic] < count:
            soak.failures.append(f"{topic}: {read[topic]} of {count} records are in completed batches")


def caught_up(soak: Soak, members: Sequence[Application]) -> Counter[str]:
    """Wait until the completed batches have all records; return what they have."""
    say("waiting until completed batches have all records")
    deadline = time.monotonic() + 120
    while True:
        read: Counter[str] = Counter()
        for member in members:
            read += member.read()
        if time.monotonic() > deadline or all(read[topic] >= count for topic, count in soak.produced.items()):
            return read
        time.sleep(2)


def run(soak: Soak, minutes: float, topics: int) -> Counter[str]:
    """Run the soak; return what the members have read."""
    admin = AdminClient({"bootstrap.servers": soak.servers})
    # What is read goes after a while: a broker's disk is no part of this.
    kept = {"retention.bytes": "50000000", "segment.bytes": "10000000"}
    admin.create_topics([NewTopic(_LASTING, 4, 1, config=kept)])[_LASTING].result(60)
    staying, guest = members = [Application(soak, "staying"), Application(soak, "guest")]
    threads = [
        threading.Thread(target=lasting_load, args=(soak,), name="load"),
        threading.Thread(target=short_lives, args=(soak, topics, minutes), name="topics"),
        threading.Thread(target=comes_and_goes, args=(soak, guest, 30.0, 90.0), name="guest"),
    ]
    for thread in threads:
        thread.start()
    try:
        while soak.elapsed_s() < minutes * 60 and not soak.ended.wait(_SAMPLE_S):
            soak.samples.append(sample(staying, soak.elapsed_s()))
            for member in members:
                if member.process.poll() is not None or (member.folder / "failure").exists():
                    soak.fail(f"{member.folder.name} has ended: see {member.log}")
            if len(soak.samples) % 6 == 0:
                reader = soak.samples[-1][KINDS[1]]
                say(
                    f"[{soak.elapsed_s() / 60:4.1f} min] {sum(soak.produced.values()):,} records, {soak.deleted} topics"
                    f" lived, reader {reader['pss_mb']} MB {reader['descriptors']} fds {reader['threads']} threads,"
                    f" offset {soak.samples[-1]['offset_bytes']} bytes"
                )
        threads[1].join(_COMMITTED_WITHIN_S + 60)
        soak.ended.set()
        for thread in threads:
            thread.join(60)
        return caught_up(soak, members)
    finally:
        soak.ended.set()
        codes = [member.end() for member in members]
        if any(codes):
            soak.failures.append(f"exit codes of the applications: {codes}")


def main() -> int:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description="An hour of short-lived topics and members.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--output", type=Path, help="a folder for samples, picture and logs")
    given = parser.parse_args()
    folder = given.output or Path(tempfile.mkdtemp(prefix=f"soak-{uuid.uuid4().hex[:6]}-"))
    folder.mkdir(parents=True, exist_ok=True)
    say("starting Kafka and two applications")
    with RealKafka(brokers=1) as kafka:
        soak = Soak(folder.absolute(), kafka.bootstrap_servers)
        read = run(soak, given.minutes, given.topics)
    judge(soak, read)
    (folder / "samples.json").write_text(json.dumps(soak.samples))
    lines = table(soak.samples)
    produced, found = sum(soak.produced.values()), sum(read.values())
    lines += ["", f"{produced:,} records of {len(soak.produced)} topics produced, {found:,} in completed batches."]
    lines += [f"FAILED: {text}" for text in soak.failures]
    (folder / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    draw(soak.samples, folder / "soak.png")
    print(f"in {folder}: samples.json, table.md, soak.png, and the logs of both applications")
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
