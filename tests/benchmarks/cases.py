"""The benchmark's cases. Each runs both sources alternately in one Spark session and returns series of numbers.

Every measured query has a fresh checkpoint and, for groupkafka, a fresh group. Before a topic is measured each source
reads it once, and what they read is compared: rows, offsets and the values' checksums must be equal. A new case is a
class with `content`, `subject` and `run(bed)`, listed in plan.py.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyspark
from confluent_kafka import Producer
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from tests import checkout
from tests.benchmarks.bare import bare_options
from tests.benchmarks.peerjars import PACKAGES
from tests.benchmarks.processes import CpuMeter, WholeCpu, is_available
from tests.benchmarks.records import BenchError, Content, produce, producer, size_name, values_of
from tests.benchmarks.report import (
    ADD_BATCH,
    BARE,
    CPU,
    CPU_PART,
    FIRST_BATCH,
    JOB_CPU,
    LATEST_OFFSET,
    OURS,
    PEAK,
    PEER,
    SEEN,
    TRIGGER,
    WHOLE_JOB,
    WHOLE_QUERY,
    Series,
    Subject,
    series_of,
)
from tests.benchmarks.spark import (
    DEFAULTS,
    SHORT_WAIT,
    TIMEOUT_S,
    Bed,
    jvm_pid,
    read_all,
    running,
    wait_for,
    with_rows,
)
from tests.steps import say

WARM_UP_BATCHES = 5  # of each block of small batches: the first connects, the next few are slower than the rest


class Case(Protocol):
    """One thing to measure. Cases with the same content are run one after the other, on one topic."""

    @property
    def content(self) -> Content | None: ...

    @property
    def subject(self) -> Subject: ...

    def run(self, bed: Bed) -> list[Series]: ...


def alternating(runs: int, sources: Sequence[str] = (OURS, PEER)) -> Iterator[tuple[int, str]]:
    """Yield (run, source) so that no source is always the second: AB BA AB ..."""
    for run in range(runs):
        for source in sources if run % 2 == 0 else reversed(sources):
            yield run, source


def _measure(
    case: Case,
    runs: int,
    measured: Callable[[str], list[dict[str, float]]],
    goals: Mapping[str, float],
    sources: Sequence[str] = (OURS, PEER),
) -> list[Series]:
    """Let the sources run in turn; `measured` returns the metrics of one run, or of each of its batches."""
    found: dict[str, list[dict[str, float]]] = {source: [] for source in sources}
    for run, source in alternating(runs, sources):
        metrics = measured(source)
        found[source] += metrics
        medians = {name: statistics.median(one[name] for one in metrics) for name in metrics[0]}
        said = "; ".join(f"{name}: {value:,.5g}" for name, value in medians.items())
        batches = f" ({len(metrics)} batches)" if len(metrics) > 1 else ""
        say(f"    run {run + 1} of {runs} {source}{batches}: {said}")
    return [one for source, metrics in found.items() for one in series_of(case.subject, source, metrics, goals)]


@dataclass(frozen=True, slots=True)
class Throughput:
    """A topic read from its beginning to its end by Trigger.AvailableNow, into the sink that drops all.

    With its default settings a task of Spark's own source ends with a wait of kafka.fetch.max.wait.ms, 500 ms: what it
    asks next waits at the broker behind a fetch at the end of the log. `short_wait` shortens that for it, so that only
    the reading is compared. With `bare` the source without Kafka has its turns, too.
    """

    group: str = field(compare=False)  # two groups may want the same: it is measured once
    content: Content
    runs: int
    aggregated: bool = False
    short_wait: bool = False
    bare: bool = False
    goals: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def subject(self) -> Subject:
        what = f"{self.content}, {'count and sum by key' if self.aggregated else 'noop sink'}"
        what += ", short fetch wait" if self.short_wait else ""
        return Subject(self.group, what, self.content.partitions, self.content.records)

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.topic_of(self.content)
        sources = (OURS, PEER, BARE) if self.bare else (OURS, PEER)
        cold = [source for source in sources if (source, self.aggregated) not in bed.warm] if self.runs > 1 else []
        for source in cold:
            bed.warm.add((source, self.aggregated))
            self._read(bed, source, topic)
        return _measure(self, self.runs, lambda source: self._read(bed, source, topic), self.goals, sources)

    def _read(self, bed: Bed, source: str, topic: str) -> list[dict[str, float]]:
        records = self.content.records
        meter = CpuMeter(jvm_pid(bed.spark)) if is_available() else None
        more = SHORT_WAIT if self.short_wait and source == PEER else {}
        more = bare_options(records, self.content.size) if source == BARE else more
        progress, wall_ms = read_all(bed, source, topic, records, more=more, aggregated=self.aggregated)
        metrics = {ADD_BATCH: float(sum(one.durationMs["addBatch"] for one in progress)), WHOLE_QUERY: round(wall_ms)}
        if meter is not None:
            metrics[CPU] = round(meter.seconds() / records * 1e6, 3)
            if self.bare:
                parts = meter.parts()
                metrics |= {CPU_PART.format(part): round(used / records * 1e6, 3) for part, used in parts.items()}
        return [metrics]


@dataclass(frozen=True, slots=True)
class SmallBacklog:
    """A topic read in batches of a few records (maxOffsetsPerTrigger) that are all there already."""

    batch_records: int
    content: Content
    runs: int
    goals: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def subject(self) -> Subject:
        return _batch_subject("backlog", "batches of a backlog", self.batch_records, self.content)

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.topic_of(self.content)
        return _measure(self, self.runs, lambda source: self._block(bed, source, topic), self.goals)

    def _block(self, bed: Bed, source: str, topic: str) -> list[dict[str, float]]:
        limit = {"maxOffsetsPerTrigger": str(self.batch_records)}
        progress, _ = read_all(bed, source, topic, self.content.records, more=limit)
        if len(progress) <= WARM_UP_BATCHES:
            raise BenchError(f"{source} read {self.content.records} records in {len(progress)} batches only")
        return [_batch_metrics(one) for one in progress[WARM_UP_BATCHES:]]


@dataclass(frozen=True, slots=True)
class DeepBacklog:
    """The same with far more records than the batches take: a query that catches up under a limit.

    What a source fetches beyond a batch is of use to it only if it keeps it for the next ones.
    """

    batch_records: int
    batches: int
    content: Content
    runs: int

    @property
    def subject(self) -> Subject:
        return _batch_subject("deep", "batches of a deep backlog", self.batch_records, self.content)

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.topic_of(self.content)
        return _measure(self, self.runs, lambda source: self._block(bed, source, topic), {})

    def _block(self, bed: Bed, source: str, topic: str) -> list[dict[str, float]]:
        wanted = WARM_UP_BATCHES + self.batches
        if wanted * self.batch_records > self.content.records:
            raise BenchError(f"{self.content.records} records are less than {wanted} batches of {self.batch_records}")
        with running(bed, source, topic, maxOffsetsPerTrigger=str(self.batch_records)) as query:
            wait_for(f"{wanted} batches", lambda: len(with_rows(query)) >= wanted, query)
            return [_batch_metrics(one) for one in with_rows(query)[WARM_UP_BATCHES:wanted]]


@dataclass(frozen=True, slots=True)
class NewRecords:
    """A running query with the default trigger, which gets a few records, and again when their batch is done.

    Each task of Spark's own source takes about 500 ms here, which is its kafka.fetch.max.wait.ms (see `Throughput`).
    `SmallBacklog` is without it, and the fairer comparison.
    """

    batch: Content
    batches: int
    runs: int
    content: None = None

    @property
    def subject(self) -> Subject:
        return _batch_subject("new", "batches of new records", self.batch.records, self.batch)

    def run(self, bed: Bed) -> list[Series]:
        return _measure(self, self.runs, lambda source: self._block(bed, source), {})

    def _block(self, bed: Bed, source: str) -> list[dict[str, float]]:
        topic, client = bed.create_topic(self.batch.partitions), producer(bed.bootstrap_servers)
        metrics: list[dict[str, float]] = []
        with running(bed, source, topic) as query:
            for number in range(WARM_UP_BATCHES + 3 * self.batches):
                produced_at = time.monotonic()
                batches = self._one_round(query, client, topic)
                seen_ms = (time.monotonic() - produced_at) * 1000
                # The trigger may fire between two partitions' writes: such a round is two batches, and no case.
                if number >= WARM_UP_BATCHES and len(batches) == 1:
                    metrics.append(_batch_metrics(batches[0]) | {SEEN: round(seen_ms)})
                if len(metrics) == self.batches:
                    return metrics
        raise BenchError(f"{source}: only {len(metrics)} of {3 * self.batches} rounds were one batch")

    def _one_round(self, query: StreamingQuery, client: Producer, topic: str) -> Sequence[StreamingQueryProgress]:
        before = query.lastProgress
        last = -1 if before is None else before.batchId
        produce(client, topic, self.batch, values_of(self.batch))
        batches: dict[int, StreamingQueryProgress] = {}

        def all_read() -> bool:
            newest = query.lastProgress
            if newest is None or newest.batchId <= last or newest.batchId in batches:
                return False
            batches.update({p.batchId: p for p in query.recentProgress if p.batchId > last and p.numInputRows})
            return sum(p.numInputRows for p in batches.values()) == self.batch.records

        wait_for(f"{self.batch.records} records", all_read, query)
        return list(batches.values())


@dataclass(frozen=True, slots=True)
class FirstBatch:
    """A new streaming query over records that are there already: from `start()` to its first progress with rows."""

    content: Content
    runs: int
    goals: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def subject(self) -> Subject:
        return Subject("start", f"the first batch of a streaming query, {self.content}", self.content.partitions)

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.topic_of(self.content)
        return _measure(self, self.runs, lambda source: self._first(bed, source, topic), self.goals)

    def _first(self, bed: Bed, source: str, topic: str) -> list[dict[str, float]]:
        started_at = time.monotonic()
        with running(bed, source, topic) as query:
            wait_for("the first batch", lambda: bool(with_rows(query)), query)
            return [{FIRST_BATCH: round((time.monotonic() - started_at) * 1000)}]


def _batch_subject(group: str, what: str, records: int, content: Content) -> Subject:
    return Subject(group, f"{what}, {records:,} x {size_name(content.size)}", content.partitions)


def _batch_metrics(progress: StreamingQueryProgress) -> dict[str, float]:
    names = {ADD_BATCH: "addBatch", TRIGGER: "triggerExecution", LATEST_OFFSET: "latestOffset"}
    return {metric: float(progress.durationMs.get(name, 0)) for metric, name in names.items()}


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """What an application needs at most that reads a topic with one source: a fresh one for each run.

    In a session of both sources the JVM would keep what the other one made it take.
    """

    content: Content
    runs: int

    @property
    def subject(self) -> Subject:
        return Subject("memory", f"{self.content}, noop sink, an application of its own", self.content.partitions)

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.topic_of(self.content)
        sources = (OURS, PEER, BARE)
        return _measure(self, self.runs, lambda source: self._application(bed, source, topic), {}, sources)

    def _application(self, bed: Bed, source: str, topic: str) -> list[dict[str, float]]:
        options = bare_options(self.content.records, self.content.size) if source == BARE else bed.options.get(source)
        shown = {
            "source": source,
            "bootstrap_servers": bed.bootstrap_servers,
            "topic": topic,
            "records": self.content.records,
            "jars": [str(jar) for jar in bed.jars],
            "options": options or {},
        }
        command = checkout.command("tests.benchmarks.application", json.dumps(shown))
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, env=checkout.environment()
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"an application with {source} did not end in {TIMEOUT_S:.0f} s") from None
        if run.returncode != 0:
            raise BenchError(f"an application with {source} failed: {run.stderr.strip()[-1000:]}")
        peaks = json.loads(run.stdout.splitlines()[-1])
        return [{PEAK.format(kind): value for kind, value in peaks.items()}]


@dataclass(frozen=True, slots=True)
class Job:
    """A job by spark-submit, from the command to its end, which is mostly a start of a JVM and of Python.

    Spark's own source is given with --jars, or with `packages`, which looks the jars up in a cache that has them.
    """

    content: Content
    runs: int
    packages: bool = False

    @property
    def subject(self) -> Subject:
        way = "--packages" if self.packages else "--jars"
        return Subject("job", f"{self.content}, Spark's own with {way}", self.content.partitions)

    def run(self, bed: Bed) -> list[Series]:
        topic = bed.topic_of(self.content)
        for source in (OURS, PEER) if self.runs > 1 else ():
            self._submit(bed, source, topic)
        return _measure(self, self.runs, lambda source: self._submit(bed, source, topic), {})

    def _submit(self, bed: Bed, source: str, topic: str) -> list[dict[str, float]]:
        jars = ",".join(str(jar) for jar in bed.jars)
        given = ["--packages", PACKAGES] if self.packages else ["--jars", jars]
        with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
            checkpoint = Path(folder) / "checkpoint"
            shown = {
                "format": source,
                "options": bed.stream_options(source, topic, checkpoint),
                "checkpoint": str(checkpoint),
                "records": self.content.records,
            }
            command = [
                str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
                "--properties-file", str(DEFAULTS), "--master", "local[2]",
                "--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={folder}",
                *(given if source == PEER else ()),
                str(Path(__file__).with_name("job.py")), json.dumps(shown),
            ]  # fmt: skip
            began = time.monotonic()
            with (Path(folder) / "log").open("w+b") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, env=checkout.environment())
                with WholeCpu(process.pid) as cpu:
                    code = process.wait(TIMEOUT_S)
                wall_ms = (time.monotonic() - began) * 1000
                if code != 0:
                    log.seek(0)
                    raise BenchError(f"a job with {source} failed: {log.read().decode(errors='replace')[-1000:]}")
        return [{WHOLE_JOB: round(wall_ms), JOB_CPU: round(cpu.seconds() * 1000)}]
