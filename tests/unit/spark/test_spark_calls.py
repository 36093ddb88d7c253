"""The calls of Spark 4.0 and 4.1: where a plan starts, limits, and plans that Spark never runs."""

from __future__ import annotations

import inspect
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader

from spark_groupsource.errors import PLAN_NOT_RUN, KafkaUnavailableError, OptionError
from spark_groupsource.model.offsets import OffsetRange, SourceOffset
from spark_groupsource.options.model import NextTrigger, ReadBounds
from spark_groupsource.spark import source
from spark_groupsource.spark.row_handover import HandsOverRows
from spark_groupsource.spark.spark_calls import BatchTrail, CallsWithoutStart, CallsWithStart, PlanningCalls
from tests.unit.fakes import LINEAGE, make_options, tp

Json = dict[str, Any]
INITIAL = SourceOffset(LINEAGE).to_json()


def end_at(number: int) -> Json:
    """Return the end of a batch as Spark hands it back: from its JSON text."""
    end = SourceOffset.of(LINEAGE, {"orders": "a"}, [OffsetRange(tp(0), max(0, number - 10), number)], {})
    found: Json = json.loads(json.dumps(end.to_json()))
    return found


A, B, C = end_at(10), end_at(20), end_at(30)


def trail(*complete: Json) -> BatchTrail:
    """Return a trail of a query whose commit log has these ends."""
    return BatchTrail(lambda end: end in complete)


def planned(found: BatchTrail, end: Json) -> Json:
    """Plan a batch, and return its start."""
    start = found.start(INITIAL)
    found.planned(start, end)
    return start


# --- the trail


def test_a_plan_starts_at_the_end_of_the_batch_that_ran_last() -> None:
    found = trail()
    assert planned(found, A) == INITIAL
    found.runs(A)
    assert planned(found, B) == A
    found.runs(B)
    assert planned(found, B) == B, "nothing new is no plan"
    assert planned(found, B) == B
    assert planned(found, C) == B


def test_a_first_batch_without_records_is_a_batch() -> None:
    found = trail()
    assert planned(found, INITIAL) == INITIAL
    found.runs(INITIAL)
    assert planned(found, A) == INITIAL


def test_a_batch_whose_tasks_are_planned_twice_is_one() -> None:
    found = trail()
    planned(found, A)
    found.runs(A)
    found.runs(A)
    assert planned(found, B) == A


@pytest.mark.parametrize("call", ["the next plan", "another batch"])
def test_a_plan_that_spark_never_ran_ends_the_query(call: str) -> None:
    """A report, or the wrapper of spark.sql.streaming.triggerAvailableNowWrapper.enabled, calls `latestOffset`, too."""
    found = trail()
    planned(found, A)
    with pytest.raises(OptionError) as raised:
        found.start(INITIAL) if call == "the next plan" else found.runs(B)
    assert raised.value.condition == PLAN_NOT_RUN


def test_a_batch_that_spark_ran_without_the_source_is_complete_by_its_commit_log() -> None:
    """After `where("false")` Spark asks for no tasks."""
    found = trail(A)
    planned(found, A)
    assert planned(found, B) == A
    with pytest.raises(OptionError):
        found.start(INITIAL)


# --- the reader on Spark 4.0 and 4.1


class Session:
    """A session with a log of 35 records, whose batches have ten at most, or the limit."""

    def __init__(self, log_end: int = 35) -> None:
        self.log_end = log_end
        self.calls: list[tuple[Any, ...]] = []
        self.stopping = False
        self.failure: Exception | None = None

    def latest_offset(self, start: SourceOffset, bounds: ReadBounds, later: NextTrigger) -> SourceOffset:
        self.calls.append(("plan", start.ends().get(tp(0), 0), bounds.max_rows, later))
        begin = start.ends().get(tp(0), 0)
        end = min(self.log_end, begin + (bounds.max_rows or 10))
        return (
            start if end == begin else SourceOffset.of(LINEAGE, {"orders": "a"}, [OffsetRange(tp(0), begin, end)], {})
        )

    def tasks(self, start: SourceOffset, end: SourceOffset) -> tuple[tuple[OffsetRange, ...], ...]:
        self.calls.append(("tasks", start.ends().get(tp(0), 0), end.ends().get(tp(0), 0)))
        return () if start == end else (end.ranges,)

    def unread_after(self, end: SourceOffset) -> int:
        if self.failure is not None:
            raise self.failure
        return self.log_end - end.ends()[tp(0)]


class OldReader(HandsOverRows, CallsWithoutStart, DataSourceStreamReader):  # type: ignore[misc]
    """`GroupKafkaStreamReader` on the calls of Spark 4.0 and 4.1."""

    __init__ = source.GroupKafkaStreamReader.__init__
    __getstate__ = source.GroupKafkaStreamReader.__getstate__
    _planned = source.GroupKafkaStreamReader._planned
    partitions = source.GroupKafkaStreamReader.partitions
    read = source.GroupKafkaStreamReader.read

    def initialOffset(self) -> Json:
        return INITIAL

    def _driver(self) -> Any:
        return self._session

    def _fast_lane(self) -> None:
        return None


class Spark40:
    """`MicroBatchExecution` of Spark 4.0 and 4.1: its calls to a source without admission control, and its logs."""

    def __init__(self, reader: Any, log: list[Json], done: int) -> None:
        self.reader, self.log, self.done = reader, log, done

    def run(self, batches: int | None = None) -> list[tuple[int, int]]:
        """Run so many batches (with AvailableNow and Once it is one), or until there is nothing new; return ranges."""
        seen = []
        if self.log:
            self._tasks(self.log[-1], self.log[-1])
        while batches is None or len(seen) < batches:
            start = self.log[self.done - 1] if self.done else None
            if self.done == len(self.log):
                end = json.loads(json.dumps(self.reader.latestOffset()))
                # The first batch has no committed offset to be compared with.
                if end == start:
                    return seen
                self.log.append(end)
            seen += self._tasks(start or self.reader.initialOffset(), self.log[-1])
            self.done += 1
        return seen

    def _tasks(self, start: Json, end: Json) -> list[tuple[int, int]]:
        tasks = self.reader.partitions(start, end)
        return [(item.start, item.end) for task in tasks for item in task.ranges]


def old_reader(session: Session, **options: str) -> Any:
    """Return a reader with a session."""
    reader = OldReader(make_options(**options))
    reader._session = session  # type: ignore[assignment]
    return reader


def test_the_whole_log_is_read_once_and_within_the_limit() -> None:
    session = Session()
    assert Spark40(old_reader(session, maxOffsetsPerTrigger="7"), [], 0).run() == [
        (0, 7), (7, 14), (14, 21), (21, 28), (28, 35),
    ]  # fmt: skip
    plans = [call for call in session.calls if call[0] == "plan"]
    # Only the first call may be the query's only one.
    assert plans[0] == ("plan", 0, 7, NextTrigger.UNKNOWN)
    assert {call[3] for call in plans[1:]} == {NextTrigger.COMES}


@pytest.mark.parametrize(("done", "begins"), [(2, 20), (1, 10)])
def test_a_restart_goes_on_or_runs_the_open_batch_again(done: int, begins: int) -> None:
    log = [A, B]
    found = Spark40(old_reader(Session()), log, done).run()
    assert found == [(begins, begins + 10), (begins + 10, min(35, begins + 20)), *([(30, 35)] if done == 1 else [])]


def test_all_limits_are_the_options() -> None:
    session = Session()
    seen: list[ReadBounds] = []
    original = session.latest_offset

    def latest_offset(start: SourceOffset, bounds: ReadBounds, later: NextTrigger) -> SourceOffset:
        seen.append(bounds)
        return original(start, bounds, later)

    session.latest_offset = latest_offset  # type: ignore[assignment, method-assign]
    limits = {"maxOffsetsPerTrigger": "7", "minOffsetsPerTrigger": "3", "maxBytesPerTrigger": "99"}
    old_reader(session, **limits).latestOffset()
    assert seen == [ReadBounds(7, 3, 99)]


def test_a_run_that_may_end_after_its_batch_reports_what_it_leaves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Spark40(old_reader(Session(), maxOffsetsPerTrigger="7"), [], 0).run(2)
    (found,) = [record for record in caplog.records if "unread" in record.message]
    assert found.levelno == logging.WARNING
    assert found.message.startswith("28 records stay unread if the trigger is AvailableNow or Once")
    assert "maxOffsetsPerTrigger=7: group=" in found.message


def test_a_batch_that_runs_again_reports_what_it_leaves(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Spark40(old_reader(Session()), [A], 0).run(1)
    (found,) = [record for record in caplog.records if "unread" in record.message]
    assert (found.levelno, found.message[:2]) == (logging.INFO, "25")


@pytest.mark.parametrize("case", ["no limit", "all read", "brokers do not answer"])
def test_nothing_is_reported_without_need(case: str, caplog: pytest.LogCaptureFixture) -> None:
    session = Session(5 if case == "all read" else 35)
    if case == "brokers do not answer":
        session.failure = KafkaUnavailableError(PLAN_NOT_RUN)
    options = {} if case == "no limit" else {"maxBytesPerTrigger": "7"}
    Spark40(old_reader(session, **options), [], 0).run(1)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_commit_log_shows_a_batch_that_spark_ran_without_the_source(tmp_path: Path) -> None:
    reader = old_reader(Session(), checkpointLocation=str(tmp_path))
    end = reader.latestOffset()
    for folder, text in (("offsets", f"v1\n{{}}\n{json.dumps(end)}"), ("commits", "v1\n{}")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "0").write_text(text)
    assert reader.latestOffset() != end


def test_executors_get_no_trail() -> None:
    reader = old_reader(Session())
    reader.latestOffset()
    assert reader._trail is not None
    assert "_trail" not in reader.__getstate__()


# --- what PySpark sees


def test_the_signature_is_what_pyspark_asks_for() -> None:
    """`check_support_func` of Spark 4.2: a `latestOffset` with parameters has admission control."""
    assert len(inspect.signature(OldReader(make_options()).latestOffset).parameters) == 0
    new = source.GroupKafkaStreamReader(make_options())
    assert issubclass(source.GroupKafkaStreamReader, PlanningCalls)
    assert len(inspect.signature(new.latestOffset).parameters) == (2 if PlanningCalls is CallsWithStart else 0)
    assert type(pickle.loads(pickle.dumps(new))) is source.GroupKafkaStreamReader
