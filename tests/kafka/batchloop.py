"""Runs the source as Spark's micro-batch execution does, in a thread of the test, without Spark.

A member of the group like any other, at a tenth of a Spark query's cost: for tests with many members, and for those
about what the driver asks the cluster. The calls and their order are those of `MicroBatchExecution`: plan, log the
offset, commit the batch before, read, write the sink, log the commit. A checkpoint is on disk, in Spark's format.
"""

from __future__ import annotations

import json
import pickle
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_groupsource.spark.source import GroupKafkaDataSource, GroupKafkaStreamReader

from .harness import Record, wait_for

_TRIGGER_S = 0.1


@dataclass(frozen=True, slots=True)
class Row:
    """One record in the sink."""

    topic: str
    partition: int
    offset: int
    value: str

    @property
    def record(self) -> Record:
        """Where it is in Kafka."""
        return self.topic, self.partition, self.offset


@dataclass(slots=True)
class LoopSink:
    """What the loops of one checkpoint have written: the last run of each batch, and which are complete.

    `topic_ids` are those that a batch was planned for.
    """

    batches: dict[int, list[Row]] = field(default_factory=dict)
    topic_ids: dict[int, dict[str, str]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def rows(self) -> list[Row]:
        """Return the rows of completed batches, in the batches' order."""
        return [row for number in sorted(self.done) for row in self.batches.get(number, [])]


class BatchLoop:
    """One query. `sink` is handed on when a query is started again on the same checkpoint."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        checkpoint: Path,
        sink: LoopSink | None = None,
        *,
        available_now: bool = False,
        before_commit: Callable[[list[Row]], object] = lambda _: None,
    ) -> None:
        self.name, self.checkpoint, self.sink = name, checkpoint, sink or LoopSink()
        self.failure = ""
        self._before_commit = before_commit
        self._available_now = available_now
        self._stopping = threading.Event()
        given = {"checkpointLocation": str(checkpoint), "kafka.client.id": name, "fastLaneMaxOffsets": "0"}
        source = GroupKafkaDataSource(given | {k: v for k, v in options.items() if k != "fastLaneMaxOffsets"})
        self._reader: Any = source.streamReader(source.schema())
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        sizes = {number: len(rows) for number, rows in self.sink.batches.items()}
        return f"BatchLoop({self.name}, active={self.active}, batches={sizes}, done={sorted(self.sink.done)[-3:]})"

    @property
    def active(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    def rows(self) -> list[Row]:
        """Return the rows of completed batches."""
        return self.sink.rows()

    def completed_records(self) -> Counter[Record]:
        """Return how often each record is in a completed batch."""
        return Counter(row.record for row in self.rows())

    def wait_for_records(self, wanted: set[Record], timeout_s: float = 60.0) -> None:
        """Wait until all of these records are in completed batches."""
        wait_for(
            f"{self.name} to complete {len(wanted)} records",
            lambda: self.check() and wanted <= self.completed_records().keys(),
            timeout_s,
            lambda: f"missing {sorted(wanted - self.completed_records().keys())[:10]}\n{self!r}",
        )

    def wait_ended(self, timeout_s: float = 60.0) -> None:
        """Wait until it has ended by itself."""
        wait_for(f"{self.name} to end", lambda: not self.active, timeout_s, self.__repr__)

    def check(self) -> bool:
        """Return True; fails with the query's error when that has ended it."""
        assert not self.failure, f"{self.name} has failed: {self.failure}"
        return True

    def stop(self) -> None:
        """End it as Spark does: the batch in flight is interrupted, and the member leaves."""
        self._stopping.set()
        session = self._reader._session
        if session is not None:
            session.request_stop()
        self._thread.join(60)
        assert not self._thread.is_alive(), f"{self.name} does not stop"

    # --- Spark's side

    def plan(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return where the next batch ends; `start` if there is nothing to read."""
        end: dict[str, Any] = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        return end

    def _run(self) -> None:
        try:
            self._batches()
        except Exception:  # noqa: BLE001 - as Spark, whatever it is
            if not self._stopping.is_set():
                self.failure = traceback.format_exc()
        finally:
            self._reader.stop()

    def _batches(self) -> None:
        reader = self._reader
        logged, done = self._newest("offsets"), self._newest("commits")
        if self._available_now:
            reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        if logged is not None:
            before = logged if done == logged else logged - 1
            start = json.loads(self._read_log("offsets", before)) if before >= 0 else start
            if done != logged:
                start = self._batch(logged, start, json.loads(self._read_log("offsets", logged)))
        number = 0 if logged is None else logged + 1
        while not self._stopping.is_set():
            end = self.plan(start)
            if json.dumps(end) == json.dumps(start):
                if self._available_now:
                    return
                self._stopping.wait(_TRIGGER_S)
                continue
            self._write_log("offsets", number, json.dumps(end))
            if number > 0:
                reader.commit(start)
            start = self._batch(number, start, end)
            number += 1

    def _batch(self, number: int, start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        # What executors get is pickled.
        executor: GroupKafkaStreamReader = pickle.loads(pickle.dumps(self._reader))
        rows: list[Row] = []
        for task in self._reader.partitions(start, end):
            for batch in executor.read(pickle.loads(pickle.dumps(task))):
                columns = (batch.column(name).to_pylist() for name in ("topic", "partition", "offset", "value"))
                rows += [Row(t, p, o, (v or b"").decode()) for t, p, o, v in zip(*columns, strict=True)]
        self.sink.topic_ids[number] = {topic: entry["id"] for topic, entry in end["topics"].items()}
        self.sink.batches[number] = rows
        self._before_commit(rows)
        if self._stopping.is_set():
            raise InterruptedError
        self._write_log("commits", number, "{}")
        self.sink.done.add(number)
        return end

    def _newest(self, folder: str) -> int | None:
        numbers = [int(path.name) for path in (self.checkpoint / folder).iterdir() if path.name.isdigit()]
        return max(numbers, default=None)

    def _read_log(self, folder: str, number: int) -> str:
        return (self.checkpoint / folder / str(number)).read_text().splitlines()[-1]

    def _write_log(self, folder: str, number: int, text: str) -> None:
        lines = ["v1", "{}", text] if folder == "offsets" else ["v1", text]
        scratch = self.checkpoint / folder / f".{number}.tmp"
        scratch.write_text("\n".join(lines))
        scratch.rename(self.checkpoint / folder / str(number))
