"""Translate the calls with which Spark plans and runs batches: those of Spark 4.2 and newer, or of 4.0 and 4.1.

This is the only module that knows the difference. `PlanningCalls` is the base of the stream reader for the installed
PySpark.

Before 4.2, Python sources have no admission control:

- Spark calls `latestOffset()` without a start and without a limit. `BatchTrail` derives the start.
- Trigger.AvailableNow runs one batch, as Trigger.Once does, and the source does not learn the trigger.
- Spark never calls `reportLatestOffset`, so its progress has no lag.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from spark_groupsource import errors
from spark_groupsource.errors import GroupKafkaError, OptionError
from spark_groupsource.model.offsets import parse_offset
from spark_groupsource.options.model import UNBOUNDED, NextTrigger, ReadBounds, SourceOptions

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_groupsource.driver.session import Session
    from spark_groupsource.planning.tasks import Task

LOG = logging.getLogger(__name__)
# The largest number of rows that Spark can name.
_NO_LIMIT = sys.maxsize

_Parameters = ParamSpec("_Parameters")
_Returned = TypeVar("_Returned")


def without_frames(call: Callable[_Parameters, _Returned]) -> Callable[_Parameters, _Returned]:
    """Raise this package's own errors without the stack inside of the call.

    Spark logs the stack of a call that fails, and repeats it in its exception. An error of the catalogue says what to
    do; the 30 lines from here to the request that failed would only hide it. They are logged at level DEBUG.
    """

    @functools.wraps(call)
    def short(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Returned:
        try:
            return call(*args, **kwargs)
        except GroupKafkaError as error:
            LOG.debug("a call of Spark fails", exc_info=error)
            raise error.with_traceback(None) from None

    return short


class BatchTrail:
    """Derive the start of a plan from the batches that Spark has run (Spark 4.0 and 4.1).

    Spark runs one batch after the other, so a plan starts at the end of the batch that it ran last, and Spark calls
    `partitions(start, end)` for each batch. After a restart it first calls `partitions(X, X)` with the newest logged
    end X (`AcceptsLatestSeenOffset`), and then `partitions(S, X)` if that batch runs again.
    Source: org.apache.spark.sql.execution.streaming.MicroBatchExecution (4.0; `runtime.MicroBatchExecution` in 4.1).

    `is_complete` returns whether a plan is in Spark's commit log.
    """

    def __init__(self, is_complete: Callable[[dict[str, Any]], bool]) -> None:
        self._is_complete = is_complete
        # The end of the newest batch that Spark has run, or has in its offset log.
        self._end: dict[str, Any] | None = None
        # The last plan, until Spark has run it.
        self._plan: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"BatchTrail(end={self._end}, plan={self._plan})"

    def runs(self, end: dict[str, Any]) -> None:
        """Record that Spark runs the batch that ends at `end`, or has it in its offset log.

        Raises `OptionError` (PLAN_NOT_RUN) if another batch was planned.
        """
        if self._plan not in (None, end):
            raise OptionError(errors.PLAN_NOT_RUN)
        self._end, self._plan = end, None

    def start(self, initial: dict[str, Any]) -> dict[str, Any]:
        """Return the start of the next plan; `initial` before the first batch.

        Raises `OptionError` (PLAN_NOT_RUN) if Spark has not run the last plan.
        Guards against:
        1. Spark calls `latestOffset` for a report, or for a wrapper of the source, and never runs that plan.
        2. The plan counts as complete at the next call, and its end is committed.
        3. Its records are lost.
        A batch that Spark ran without the source, as after `where("false")`, is in its commit log.
        """
        if self._plan is not None:
            if not self._is_complete(self._plan):
                raise OptionError(errors.PLAN_NOT_RUN)
            self._end, self._plan = self._plan, None
        return initial if self._end is None else self._end

    def planned(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Record a plan. It is none if `end` is `start`."""
        self._plan = None if end == start else end


class _Planning:
    """What the calls of both kinds need of the stream reader."""

    _options: SourceOptions

    def _driver(self) -> Session:
        raise NotImplementedError

    def _planned(
        self, start: dict[str, Any], bounds: ReadBounds, later: NextTrigger = NextTrigger.COMES
    ) -> dict[str, Any]:
        """Plan the next batch. Return `start` itself, unchanged, if there is nothing to read."""
        raise NotImplementedError


class CallsWithoutStart(_Planning):
    """Handle the calls of Spark 4.0 and 4.1: `latestOffset()` has neither a start nor a limit."""

    # None until the first call: executors, who receive the reader too, need none.
    _trail: BatchTrail | None = None
    _is_first_plan = True
    _is_first_batch = True

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new lineage."""
        raise NotImplementedError

    def latestOffset(self) -> dict[str, Any]:
        """Plan the next batch, within the options' limits.

        The first call may be the only one (AvailableNow, Once), so it waits as long as it does with these.
        """
        trail = self._batches()
        start = trail.start(self.initialOffset())
        options, later = self._options, NextTrigger.UNKNOWN if self._is_first_plan else NextTrigger.COMES
        self._is_first_plan = False
        limits = ReadBounds(
            options.max_offsets_per_trigger, options.min_offsets_per_trigger, options.max_bytes_per_trigger
        )
        end = self._planned(start, limits, later)
        trail.planned(start, end)
        return end

    def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[Task, ...]:
        """Return the tasks of the batch that ends at `end`."""
        is_replay = self._is_first_plan
        self._batches().runs(end)
        session = self._driver()
        tasks = session.tasks(parse_offset(start), parse_offset(end))
        if self._is_first_batch and start != end:
            self._is_first_batch = False
            self._report_unread(session, end, is_replay=is_replay)
        return tasks

    def _batches(self) -> BatchTrail:
        if self._trail is None:
            self._trail = BatchTrail(self._is_logged_complete)
        return self._trail

    def _is_logged_complete(self, end: dict[str, Any]) -> bool:
        from spark_groupsource.checkpoint.log import CheckpointLog  # noqa: PLC0415 - executors need it not

        location = self._options.checkpoint_location
        return location is not None and CheckpointLog(location).is_complete(parse_offset(end))

    def _report_unread(self, session: Session, end: dict[str, Any], *, is_replay: bool) -> None:
        """Log what stays unread if this batch, the first one, is the only one of the run.

        It is logged with the batch, because Spark drops what the reader process prints after the query's end.
        Guards against:
        1. A job with Trigger.AvailableNow and maxOffsetsPerTrigger runs once an hour.
        2. More records arrive in an hour than the limit. Each run reads one batch and ends with exit code 0.
        3. The job falls behind, until retention removes unread records.
        """
        options = self._options
        limits = {
            "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
            "maxBytesPerTrigger": options.max_bytes_per_trigger,
        }
        set_limits = " ".join(f"{name}={value}" for name, value in limits.items() if value is not None)
        if not set_limits and not is_replay:
            return
        try:
            unread = session.unread_after(parse_offset(end))
        except GroupKafkaError as error:
            LOG.info("the number of unread records is not known: group=%s error=%s", options.group_id, error)
            return
        if unread:
            LOG.log(
                logging.WARNING if set_limits else logging.INFO,
                "%d records stay unread if the trigger is AvailableNow or Once, because before Spark 4.2 such a run has"
                " one batch%s: group=%s",
                unread, f", with {set_limits}" if set_limits else " (this one is a batch that runs again)",
                options.group_id,
            )  # fmt: skip


if HAS_ADMISSION_CONTROL:

    class CallsWithStart(_Planning, SupportsTriggerAvailableNow):
        """Handle the calls of Spark 4.2 and newer, with a start and a limit."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """Return option minOffsetsPerTrigger, maxOffsetsPerTrigger or maxBytesPerTrigger as Spark's read limit.

            Python has no composite limit: Spark gets the first one that is set, and the source applies the others
            itself. It is never `ReadAllAvailable`: so that is Trigger.Once, which has no later trigger
            (`org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution`).
            """
            options = self._options
            if options.min_offsets_per_trigger is not None:
                return ReadMinRows(options.min_offsets_per_trigger)
            if options.max_offsets_per_trigger is not None:
                return ReadMaxRows(options.max_offsets_per_trigger)
            if options.max_bytes_per_trigger is not None:
                return ReadMaxBytes(options.max_bytes_per_trigger)
            return ReadMaxRows(_NO_LIMIT)

        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
            """Plan the next batch. Return `start` itself, unchanged, if there is nothing to read."""
            later = NextTrigger.NONE if isinstance(limit, ReadAllAvailable) else NextTrigger.COMES
            return self._planned(start, self._bounds(limit), later)

        def _bounds(self, limit: ReadLimit) -> ReadBounds:
            """Convert Spark's limit. Without one (Trigger.Once) the options' limits do not apply either."""
            max_bytes = self._options.max_bytes_per_trigger
            if isinstance(limit, ReadAllAvailable):
                return UNBOUNDED
            if isinstance(limit, ReadMaxRows):
                return ReadBounds(None if limit.max_rows == _NO_LIMIT else limit.max_rows, max_bytes=max_bytes)
            if isinstance(limit, ReadMinRows):
                return ReadBounds(self._options.max_offsets_per_trigger, limit.min_rows, max_bytes)
            if isinstance(limit, ReadMaxBytes):
                return ReadBounds(max_bytes=limit.max_bytes)
            raise OptionError(errors.READ_LIMIT_UNSUPPORTED, limit=limit)

        def reportLatestOffset(self) -> dict[str, Any]:
            """Return the newest offsets of the owned partitions, for Spark's progress and its lag."""
            return self._driver().newest_offsets()

        def prepareForTriggerAvailableNow(self) -> None:
            """Fix the end of 'available now': the newest offsets of the whole subscription."""
            self._driver().prepare_available_now()

        def _tasks(self, start: dict[str, Any], end: dict[str, Any]) -> tuple[Task, ...]:
            """Return the tasks of the batch from `start` to `end`."""
            return self._driver().tasks(parse_offset(start), parse_offset(end))

    PlanningCalls = CallsWithStart
else:
    PlanningCalls = CallsWithoutStart  # type: ignore[misc, assignment]
