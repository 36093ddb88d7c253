"""Simulate one run of a streaming query: `MicroBatchExecution` with its order of calls, and executors' reads.

Source: org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution (Spark 4.2): `populateStartOffsets`,
`constructNextBatch`, `runBatch`. Spark 4.0 and 4.1 know no admission control of Python sources: `latestOffset()` has no
start, Trigger.AvailableNow runs one batch, and a restart asks for the tasks of [X, X) of the newest logged end X first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from spark_groupsource.model.offsets import OffsetRange, SourceOffset, parse_offset
from spark_groupsource.options.model import UNBOUNDED, NextTrigger, ReadBounds
from spark_groupsource.spark.spark_calls import BatchTrail
from tests.faults.history import Row, SinkBatch
from tests.sim.spark.checkpoint import Entry, Json, text_of

if TYPE_CHECKING:
    from spark_groupsource.driver.session import Session
    from tests.sim.spark.application import Application


class Interrupted(Exception):
    """`query.stop()` has interrupted Spark's thread."""


class TaskFailed(Exception):
    """A task has met records that do not exist any more, with failOnDataLoss=true."""


class Trigger(Enum):
    """When Spark plans batches."""

    PROCESSING_TIME = "again and again"
    AVAILABLE_NOW = "until what was there at the start is read"
    ONCE = "one batch"


class Reader(Protocol):
    """The calls of Spark that a version makes, on a session."""

    def latest_offset(self, start: Json, bounds: ReadBounds, later: NextTrigger) -> Json:
        """Return the end of the next batch, or the start itself."""

    def tasks(self, start: Json, end: Json) -> tuple[Any, ...]:
        """Return the tasks of a batch."""


class Reader42:
    """Spark 4.2 and newer: the start is an argument."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def latest_offset(self, start: Json, bounds: ReadBounds, later: NextTrigger) -> Json:
        """See `Reader`."""
        offset = parse_offset(start)
        end = self._session.latest_offset(offset, bounds, later)
        return start if end is offset else end.to_json()

    def tasks(self, start: Json, end: Json) -> tuple[Any, ...]:
        """See `Reader`."""
        return self._session.tasks(parse_offset(start), parse_offset(end))


class Reader40(Reader42):
    """Spark 4.0 and 4.1: the source derives the start of a plan from the batches whose tasks Spark asked for."""

    def __init__(self, session: Session, initial: Json) -> None:
        super().__init__(session)
        self._initial = initial
        # A query of the simulator always reads the source, so Spark runs each plan.
        self._trail = BatchTrail(lambda _: False)
        self._later = NextTrigger.UNKNOWN

    def latest_offset(self, start: Json, bounds: ReadBounds, later: NextTrigger) -> Json:
        """See `Reader`. Spark gives neither `start` nor `later`, so they are not used."""
        begin = self._trail.start(self._initial)
        derived, self._later = self._later, NextTrigger.COMES
        offset = parse_offset(begin)
        planned = self._session.latest_offset(offset, bounds, derived)
        end = begin if planned is offset else planned.to_json()
        self._trail.planned(begin, end)
        return end

    def tasks(self, start: Json, end: Json) -> tuple[Any, ...]:
        """See `Reader`."""
        self._trail.runs(end)
        return super().tasks(start, end)


class Source:
    """A source of the query, with what it left in the checkpoint and in the sink. The first one leads the query."""

    def __init__(self, app: Application, session: Session, initial: SourceOffset) -> None:
        self.app, self.session, self.entries = app, session, app.checkpoint.entries
        self.initial = initial.to_json()
        is_old = app.settings.spark in ("4.0", "4.1")
        self.reader: Reader = Reader40(session, self.initial) if is_old else Reader42(session)


# An offset of each source; None before its first batch.
Ends = tuple[Json | None, ...]


@dataclass
class Position:
    """Where the query is: the ends of the last completed batch, the newest planned ones, and that batch's number."""

    committed: Ends
    available: Ends
    batch: int
    is_constructed: bool


class MicroBatchExecution:
    """One run of a query. `run` returns when the trigger ends the query; a stop raises `Interrupted`."""

    def __init__(self, app: Application, sources: Sequence[Source]) -> None:
        self._app, self._sources = app, sources
        self._world, self._rng = app.world, app.world.rng
        self._checkpoint = app.checkpoint
        self._is_old = app.settings.spark in ("4.0", "4.1")

    def run(self) -> None:
        """Run batches."""
        app = self._app
        if app.trigger is Trigger.AVAILABLE_NOW and not self._is_old:
            for source in self._sources:
                source.session.prepare_available_now()
        at = self._populate_start_offsets()
        # Spark 4.0 runs AvailableNow of a source without that trigger as Once: a batch that runs again is the one.
        is_single = app.trigger is Trigger.ONCE or (app.trigger is Trigger.AVAILABLE_NOW and self._is_old)
        while True:
            if not at.is_constructed:
                at.is_constructed = self._construct_next_batch(at)
            if at.is_constructed:
                self._run_batch(at)
                at = Position(at.available, at.available, at.batch + 1, is_constructed=False)
                if is_single:
                    return
                if app.trigger is Trigger.PROCESSING_TIME:
                    app.in_jvm(self._rng.uniform(0.0, 1.0) * app.trigger_s)
            elif app.trigger is not Trigger.PROCESSING_TIME:
                return
            else:
                self._wait_for_data()

    def _start_of(self, index: int, at: Position) -> Json:
        return at.committed[index] or self._sources[index].initial

    def _logged(self, number: int) -> Ends:
        return tuple(source.entries[number].end if number in source.entries else None for source in self._sources)

    def _populate_start_offsets(self) -> Position:
        newest = self._checkpoint.newest
        available = self._logged(newest)
        if newest < 0:
            return Position(available, available, 0, is_constructed=False)
        if self._is_old:
            for source in self._sources:
                source.reader.tasks(source.entries[newest].end, source.entries[newest].end)
        if self._checkpoint.entries[newest].completed_at is not None:
            return Position(available, available, newest + 1, is_constructed=False)
        self._world.saw("replay")
        return Position(self._logged(newest - 1), available, newest, is_constructed=True)

    def _construct_next_batch(self, at: Position) -> bool:
        """Plan; write the offset log; then report the end of the batch before to the source."""
        app, settings = self._app, self._app.settings
        once = app.trigger is Trigger.ONCE
        # Before 4.2 the source applies its limits with each trigger.
        limits = ReadBounds(settings.max_rows, settings.min_rows, settings.max_bytes)
        bounds = UNBOUNDED if once and not self._is_old else limits
        later = NextTrigger.NONE if once else NextTrigger.COMES
        ends, planned_at = [], []
        for index, source in enumerate(self._sources):
            ends.append(source.reader.latest_offset(self._start_of(index, at), bounds, later))
            planned_at.append(self._world.now)
            app.in_jvm(self._rng.uniform(0.001, 0.01))
        # `isNewDataAvailable`: the first batch of a query is new, also without a record.
        if tuple(ends) == at.committed:
            return False
        if not any(ranges_of(end) for end in ends):
            self._world.saw("an empty first batch")
        app.in_jvm(self._rng.uniform(0.002, 0.02))
        at.available = tuple(ends)
        for source, end, planned in zip(self._sources, ends, planned_at, strict=True):
            source.entries[at.batch] = Entry(text_of(end), planned)
            self._world.say(source.app.name, f"offset log {at.batch}: {ranges_of(end)}")
        for source in self._sources:
            if at.batch - 1 in source.entries:
                app.in_jvm(self._rng.uniform(0.001, 0.01))
                source.session.commit(parse_offset(source.entries[at.batch - 1].end))
        return True

    def _wait_for_data(self) -> None:
        """Wait for the next trigger. A query whose member has left was asked to stop: its application stops it."""
        app = self._app
        if app.is_drained():
            app.in_jvm(self._rng.uniform(0.01, 0.3))
            raise Interrupted
        app.in_jvm(self._rng.uniform(0.1, 1.0) * app.trigger_s)

    def _run_batch(self, at: Position) -> None:
        app, rng, world, number = self._app, self._rng, self._world, at.batch
        entry = self._checkpoint.entries[number]
        entry.attempts += 1
        # Spark plans the stateful operators before it asks the sources for the batch's partitions.
        self._checkpoint.has_state |= app.settings.has_state
        attempt = entry.attempts
        # Spark asks only the sources with something new.
        new = [index for index, end in enumerate(at.available) if end != at.committed[index]]
        found = [self._tasks(index, at) for index in new]
        began = world.now
        app.batch = number
        for index in new:
            self._sources[index].app.begun = number
        try:
            seconds = app.batch_s()
            world.say(app.name, f"runs batch {number}.{attempt} for {seconds:.2f} s")
            tasks = sum(len(every) for every, _ in found)
            rows = [self._read(every, end, seconds * 0.6 / (tasks or 1)) for every, end in found]
            app.in_jvm(seconds * (0.3 if tasks else 0.9))
            app.reach("before-sink")
            for index, each in zip(new, rows, strict=True):
                of, life = self._sources[index].app, self._sources[index].app.checkpoint.life
                of.batches.append(SinkBatch(of.name, life, number, attempt, began, world.now, tuple(each)))
                world.say(of.name, f"the sink has batch {number}.{attempt}, {len(each)} rows")
            app.reach("before-commit-log")
            app.in_jvm(seconds * 0.1)
            for source in self._sources:
                source.entries[number].complete(world.now)
            world.say(app.name, f"commit log {number}")
        finally:
            app.batch = None
        app.in_jvm(rng.uniform(0.001, 0.02))

    def _tasks(self, index: int, at: Position) -> tuple[tuple[Any, ...], SourceOffset]:
        end = at.available[index]
        assert end is not None
        return self._sources[index].reader.tasks(self._start_of(index, at), end), parse_offset(end)

    def _read(self, tasks: tuple[Any, ...], end: SourceOffset, seconds: float) -> list[Row]:
        """Return what executors read, each task in that time: nothing of another topic id, and what the logs have."""
        app, rows, ids = self._app, [], dict(end.topic_ids)
        for index, task in enumerate(tasks):
            app.in_jvm(seconds)
            while app.cluster.down_until > self._world.now:
                app.in_jvm(0.2)
            for item in task:
                rows += self._read_range(index, item, ids)
        return rows

    def _read_range(self, task: int, item: OffsetRange, ids: dict[str, str]) -> list[Row]:
        name, number = item.partition
        topic = self._app.cluster.topics.get(name)
        is_same = topic is not None and topic.id == ids.get(name) and number < len(topic.logs)
        if topic is None or not is_same:
            self._skip(item)
            return []
        log = topic.logs[number]
        if log.begin > item.start:
            self._skip(OffsetRange(item.partition, item.start, min(log.begin, item.end)))
        return [
            (task, name, number, offset, log.records[offset])
            for offset in range(item.start, item.end)
            if offset in log.records
        ]

    def _skip(self, item: OffsetRange) -> None:
        if not len(item):
            return
        self._world.say(self._app.name, f"a task skips {item}")
        self._world.saw("a task skips records")
        if self._app.fails_on_data_loss:
            raise TaskFailed(str(item))


def ranges_of(end: Json) -> str:
    """Return a batch's ranges for the trace."""
    return " ".join(
        f"{topic}-{number} [{span[0]}, {span[1]})"
        for topic, entry in sorted(end["topics"].items())
        for number, span in sorted(entry["ranges"].items())
    )
