"""Stop queries between two batches: at SIGTERM, at SIGINT, or when the caller decides.

`query.stop()` alone cancels the batch in flight. What that batch had written stays, its offsets are not committed, and
the next owner of the partitions writes the same records again. The functions here ask the query's source first: it
plans no new batch, completes and commits the one in flight, and leaves the group. Then they stop the query. Any sink,
any trigger, also through Spark Connect.

The request is a file in the checkpoint location (`checkpoint.stop_requests`), so the source needs option
`checkpointLocation`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from spark_groupsource import errors
from spark_groupsource.checkpoint.location import is_local
from spark_groupsource.checkpoint.stop_requests import Answer, StopFiles, ask_to_stop
from spark_groupsource.spark.progress_listener import error_line
from spark_groupsource.spark.stop_signals import EndRequest, on_end_signals

LOG = logging.getLogger(__name__)

# As the default of option drainTimeoutMs: the source itself waits no longer for its batch.
TIMEOUT_S = 240.0
_STEP_S = 0.1
# Seconds until a query with batches is stopped although its source has not registered at the checkpoint. A source whose
# store fails tries again every 5 s.
_UNREACHABLE_S = 10.0
# Seconds from the end of a query to the answer of its reader, at most: Spark's runner allows 15 s for the whole stop.
_ANSWER_S = 20.0
# Seconds that the end of a drain waits for the removal of its request.
_CLOSE_S = 5.0
# Seconds between two looks for a request of others: a look at a store is a request that costs money.
_LOCAL_LOOK_S, _STORE_LOOK_S = 0.5, 2.0
# Seconds that the end waits for Spark's listeners, so that the last lines of a program are not lost.
_LISTENERS_S = 3.0
# How Spark reports that a signal to all processes has ended a command of Hadoop (chmod, with a local checkpoint), a
# Python worker, or a planner: that is an EOFException, without a message.
_PROCESS_ENDED = re.compile(
    r"ExitCodeException exitCode=(130|143)\b|spawn helper: pid: \d+, signal: (2|15)\b"
    r"|Python worker exited unexpectedly|terminated with exception: +(null )?SQLSTATE"
)
# In the offsets of this source, and of no other one, in Spark's progress.
_OWN_OFFSET = '"lineage"'


class QueryEnd(Enum):
    """How a query ended. One that fails raises its exception instead.

    - FINISHED: AvailableNow has read everything, or other code has stopped it.
    - DRAINED: between two batches. The last batch is complete and committed.
    - CANCELLED: in the middle of a batch, which the next owner repeats. The batch took too long, or the source was not
      reached.
    - WAITED: before it began. `run_when_owner` was stopped while it waited for its lock.
    """

    FINISHED = "it has ended by itself"
    DRAINED = "nothing is repeated"
    CANCELLED = "a batch that was in flight is repeated"
    WAITED = "no query runs here"


class QueryFailedError(StreamingQueryException):
    """A query has failed with an error of this package. Its text is that error: id, message and what to do.

    `original` is Spark's exception, with both stack traces and the plan. It is no cause or context of this one, because
    Python would print it, too, and the message would be lost between a hundred lines.
    """

    def __init__(self, message: str, original: Exception) -> None:
        super().__init__(message)
        self.original = original


def _shortened(failure: Exception) -> Exception:
    """Return an error with this package's message alone if there is one in a query's error, else the error itself."""
    if not isinstance(failure, StreamingQueryException):
        return failure
    line = error_line(str(failure))
    return QueryFailedError(line, failure) if line.startswith("[GROUPKAFKA.") else failure


class SourceRequest(Protocol):
    """The request to the sources of one query, for one thread. Raises an error if the checkpoint cannot be reached.

    `pause_s` is the time between two rounds of questions, in seconds.
    """

    pause_s: float

    def ask(self) -> Mapping[str, Answer | None]:
        """Ask all sources that run to stop. Return their answers; None where the member has not left yet."""

    def close(self) -> None:
        """Remove the request."""


def drain(query: StreamingQuery, *, timeout_s: float = TIMEOUT_S, checkpoint_location: str | None = None) -> QueryEnd:
    """Stop a query between two batches, and return how it ended.

    1. The source plans no new batch. The batch in flight completes and is committed, and the member leaves the group.
    2. The query is stopped.

    A batch that takes longer than `timeout_s`, or than the source's drainTimeoutMs, is cancelled. Raises the query's
    `StreamingQueryException` if it fails meanwhile; `QueryFailedError`, which is one, for an error of this package.

    `checkpoint_location` is the text of the source's option checkpointLocation. It is needed with Spark Connect, and
    for a location with parameters of pyarrow (`?endpoint_override=...`).
    """
    watched = WatchedQueries([query], timeout_s=timeout_s, idle_s=math.inf, checkpoint_location=checkpoint_location)
    watched.drain(EndRequest())
    return watched.result()


def run_until_stopped(
    *queries: StreamingQuery,
    timeout_s: float = TIMEOUT_S,
    idle_s: float = math.inf,
    checkpoint_location: str | Sequence[str] | None = None,
) -> QueryEnd:
    """Wait until the queries have ended, and return how. Call it on the main thread.

    SIGTERM and SIGINT, to this process or to its JVM (spark-submit, YARN, Kubernetes), drain and stop all of them, as
    `drain` does. A second SIGINT to this process stops them at once. They are also stopped when none has had a batch
    for `idle_s` seconds, when others ask one to stop (`groupkafka stop`; not through Spark Connect), and when one has
    failed: its `StreamingQueryException` is then raised in the end, as in `drain`. With several queries the worst end
    is returned, and `checkpoint_location` is one for each, in their order.

    A line on stderr says how each query ended. It goes to this module's logger instead if the program has configured
    logging.
    """
    if not queries:
        raise ValueError("run_until_stopped was called without a query")
    watched = WatchedQueries(queries, timeout_s=timeout_s, idle_s=idle_s, checkpoint_location=checkpoint_location)
    with on_end_signals(timeout_s) as requested:
        watched.wait(requested)
        watched.drain(requested)
        watched.report()
    return watched.result()


class WatchedQueries:
    """Queries that a program waits for, drains together, and reports. Arguments: see `run_until_stopped`."""

    def __init__(
        self,
        queries: Sequence[StreamingQuery],
        *,
        timeout_s: float,
        idle_s: float,
        checkpoint_location: str | Sequence[str] | None,
    ) -> None:
        check_seconds("timeout_s", timeout_s)
        check_seconds("idle_s", idle_s)
        given = [checkpoint_location] if isinstance(checkpoint_location, str) else checkpoint_location
        locations = [None] * len(queries) if given is None else given
        self._targets = [_Target(query, location) for query, location in zip(queries, locations, strict=True)]
        self._timeout_s, self._idle_s = timeout_s, idle_s

    def wait(self, requested: EndRequest, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until a stop is requested, a query has ended, all are idle, or `is_over`."""
        quiet = _Quiet(self._targets, self._idle_s)
        with _Others(self._targets) as others:
            while not (requested.stop or others.asked or quiet.is_over() or is_over()) and _go_on(self._targets):
                time.sleep(_STEP_S)

    def drain(self, requested: EndRequest, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """Drain all at the same time. As soon as `is_hurried`, they are cancelled."""
        deadline = time.monotonic() + self._timeout_s
        try:
            while left := [target for target in self._targets if target.end is None]:
                for target in left:
                    target.step(give_up=requested.hurry or is_hurried() or time.monotonic() > deadline)
                if any(target.end is None for target in left):
                    time.sleep(_STEP_S)
        finally:
            for target in self._targets:
                target.close()
        if requested.signalled:
            for target in self._targets:
                target.excuse_signal()

    def report(self) -> None:
        """Write a line for each query that has not failed, after the last lines of Spark's listeners."""
        for target in self._targets:
            _await_listeners(target.query)
        for target in self._targets:
            if target.failure is None and target.end is not None:
                name, how = target.query.name or target.query.id, target.remark or target.end.value
                say(f"{name}: {target.end.name}, {how}")

    def failures(self) -> list[Exception]:
        """Return the errors with which queries have failed."""
        return [target.failure for target in self._targets if target.failure is not None]

    def result(self) -> QueryEnd:
        """Return the worst end. Raises the exception of the first query that failed."""
        if failures := self.failures():
            # `from None`: see QueryFailedError
            raise _shortened(failures[0]) from None
        ends = {target.end for target in self._targets}
        return next(end for end in (QueryEnd.CANCELLED, QueryEnd.DRAINED, QueryEnd.FINISHED) if end in ends)


def say(line: str) -> None:
    """Log a line; write it on stderr if the program has not configured logging."""
    if LOG.hasHandlers():
        LOG.info(line)
    else:
        print(f"{datetime.now():%H:%M:%S} {line}", file=sys.stderr, flush=True)


def check_seconds(name: str, value: float) -> None:
    """Raise ValueError for a negative number, which would cancel the batch in flight at once, and for NaN."""
    if not value >= 0:
        raise ValueError(f"{name} is {value}. Allowed: seconds, 0 or more; math.inf sets no limit")


class _Asking:
    """Ask the sources of one query again and again, on a thread of its own.

    Guards against:
    1. The checkpoint's store hangs.
    2. The query is to be stopped.
    3. The program waits for the store: neither `timeout_s` nor a second SIGINT ends the wait.
    """

    def __init__(self, request: SourceRequest) -> None:
        self._request = request
        self._in_trouble = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupkafka-asks-to-stop", daemon=True)
        # When it was begun, in seconds of the monotonic clock; None before.
        self.begun_s: float | None = None
        # The answers of the last round that is over, and when that round began.
        self.answers: Mapping[str, Answer | None] = {}
        self.as_of_s = -math.inf

    def begin(self) -> None:
        """Begin to ask, once."""
        if self.begun_s is None:
            self.begun_s = time.monotonic()
            self._thread.start()

    def end(self) -> None:
        """Remove the request. A store that hangs keeps it: nobody needs it."""
        self._ended.set()
        if self.begun_s is not None:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            try:
                self.answers = self._request.ask()
                self._in_trouble = False
            except Exception as error:  # noqa: BLE001 - the query is stopped without its source
                if not self._in_trouble:
                    self._in_trouble = True
                    LOG.warning("the source is not reached by its checkpoint: %s", error)
            self.as_of_s = began_s
            self._ended.wait(self._request.pause_s)
        try:
            self._request.close()
        except Exception as error:  # noqa: BLE001 - the next start of the query removes the request
            LOG.info("the request to stop is not removed: %s", error)


class _Target:
    """A query that is waited for, or drained."""

    def __init__(self, query: StreamingQuery, location: str | None) -> None:
        self.query = query
        request = _request_to(query, location)
        # None with Spark Connect: each look would start processes beside the batch in flight.
        self.local = request if isinstance(request, _LocalRequest) else None
        self._asking = _Asking(request)
        self._ended_s: float | None = None
        self.end: QueryEnd | None = None
        self.failure: Exception | None = None
        # Why it ended like this, instead of the usual text.
        self.remark = ""

    def step(self, *, give_up: bool) -> None:
        """Take a step towards the end: ask the source, and stop the query when the member has left."""
        if not self.query.isActive:
            # The reader answers when its process ends, a moment after the query.
            self._ended_s = self._ended_s or time.monotonic()
            if give_up or not self._may_be_answered(self._ended_s) or self._has_failed():
                self._judge()
            return
        if not give_up:
            self._asking.begin()
        known = self._known()
        if (self._all_found(known) and None not in known) or give_up or self._is_unreachable(known):
            self._stop()

    def close(self) -> None:
        """Remove the request."""
        self._asking.end()

    def excuse_signal(self) -> None:
        """Take a failure for a cancelled batch if the signal that asked for the stop has caused it.

        Guards against:
        1. Ctrl-C in the terminal of spark-submit, or SIGTERM to all processes, while Spark writes a local checkpoint.
        2. The signal also ends a command of Hadoop (chmod), or a Python worker. Spark fails the query, whose batch runs
           again later.
        3. The program ends with a hundred lines about chmod.
        """
        if self.failure is not None and _PROCESS_ENDED.search(str(self.failure)):
            LOG.info("the signal has ended a process of Spark's", exc_info=self.failure)
            self.failure, self.end = None, QueryEnd.CANCELLED
            self.remark = "the signal also ended a process of Spark's, so the batch in flight is repeated"

    def _known(self) -> list[Answer | None]:
        """Return the answers of all runs that are not runs of the past."""
        return [answer for answer in self._asking.answers.values() if answer is not Answer.UNKNOWN]

    def _all_found(self, known: Sequence[Answer | None]) -> bool:
        """Return whether each source of the query was found, as far as Spark's progress shows them.

        Guards against:
        1. A query unites two groups, and only one of the sources has option checkpointLocation.
        2. That one has left, and the batch in flight is of the other one.
        3. The query is stopped in the middle of this batch, as if nothing was repeated.
        """
        return bool(known) and len(known) >= self._own_sources()

    def _own_sources(self) -> int:
        """Return how many sources of this format the query has, by Spark's progress; 0 before its first trigger."""
        progress = self.query.lastProgress
        sources = () if progress is None else progress.get("sources", ())
        return sum(_OWN_OFFSET in str(source["endOffset"]) for source in sources)

    def _may_be_answered(self, ended_s: float) -> bool:
        """Return whether an answer may come, after the query has ended."""
        if self._asking.begun_s is None or time.monotonic() - ended_s >= _ANSWER_S:
            return False
        return self._asking.as_of_s < ended_s or None in self._known()

    def _is_unreachable(self, known: Sequence[Answer | None]) -> bool:
        """Return whether the sources have planned batches, and have not registered at the checkpoint."""
        begun_s = self._asking.begun_s
        if begun_s is None or self._asking.as_of_s - begun_s < _UNREACHABLE_S:
            return False
        if self._all_found(known) or self.query.lastProgress is None:
            return False
        LOG.warning(
            "a source is not reached: give each one option checkpointLocation (that of the writer); if its text has"
            " parameters, pass the same text as checkpoint_location"
        )
        return True

    def _stop(self) -> None:
        try:
            self.query.stop()
        except Exception as error:  # noqa: BLE001 - raised when the other queries are stopped, too
            self.failure, self.end = error, QueryEnd.CANCELLED
            return
        # An answer may have come since the last step, a moment before a second SIGINT for example.
        self.end = QueryEnd.DRAINED if self._is_complete(self._known()) else QueryEnd.CANCELLED
        if self.end is QueryEnd.CANCELLED:
            LOG.warning(
                "the query is stopped, maybe in the middle of a batch: answers=%s", _shown(self._asking.answers)
            )

    def _is_complete(self, known: Sequence[Answer | None]) -> bool:
        """Return whether all sources have left the group with nothing to repeat."""
        return self._all_found(known) and set(known) == {Answer.COMPLETE}

    def _has_failed(self) -> bool:
        """Return whether the query has failed for another reason than a request to stop, whoever made it."""
        failure = self.query.exception()
        return failure is not None and errors.MEMBER_LEFT.id not in str(failure)

    def _judge(self) -> None:
        """Find out how the query has ended."""
        failure, known = self.query.exception(), self._known()
        left_clean = failure is not None and errors.NOTHING_REPEATED in str(failure)
        if self._has_failed():
            self.failure, self.end = failure, QueryEnd.CANCELLED
        elif set(known) - {Answer.COMPLETE, None} or (None in known and not left_clean):
            self.end = QueryEnd.CANCELLED
        elif self._all_found(known) or (left_clean and self._own_sources() <= 1):
            self.end = QueryEnd.DRAINED
        else:
            # Without an answer it is not known whether the last commit was accepted.
            self.end = QueryEnd.FINISHED if failure is None else QueryEnd.CANCELLED


def _go_on(targets: Sequence[_Target]) -> bool:
    """Return whether a query runs, and none has failed."""
    active = [target.query.isActive for target in targets]
    return any(active) and all(
        runs or target.query.exception() is None for runs, target in zip(active, targets, strict=True)
    )


def _await_listeners(query: StreamingQuery) -> None:
    """Wait until Spark's listeners have seen the end of the query.

    Guards against:
    1. The query has ended, and Spark has not called the listeners of this process yet.
    2. The program ends. Its last lines are lost, and Spark logs that it cannot call the listeners.
    """
    if is_remote(query):
        return
    jvm_query: Any = getattr(query, "_jsq", None)
    # Private to Spark: without it, the last line may be lost, as before.
    with contextlib.suppress(Exception):
        bus = jvm_query.streamingQuery().sparkSession().sparkContext().listenerBus()
        bus.waitUntilEmpty(int(_LISTENERS_S * 1000))


def _shown(answers: Mapping[str, Answer | None]) -> str:
    return ", ".join("none yet" if answer is None else answer.name for answer in answers.values()) or "none"


class _Others:
    """Watch whether others ask a query to stop (`groupkafka stop`), on a thread of its own: a store may hang.

    Guards against:
    1. `groupkafka stop` asks the source of a query, whose program waits in `run_until_stopped`.
    2. The member leaves. Nobody has asked the program, so the query goes on without batches.
    3. After 30 s it fails with MEMBER_LEFT. Until then an idle driver runs, and Spark logs an error.
    """

    def __init__(self, targets: Sequence[_Target]) -> None:
        self.asked = False
        self._requests = [target.local for target in targets if target.local is not None]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="groupkafka-others-ask", daemon=True)

    def __enter__(self) -> _Others:
        if self._requests:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        pause_s = max(request.look_s for request in self._requests)
        while not (self.asked or self._ended.wait(pause_s)):
            for request in self._requests:
                # A store that cannot be read: the query then ends with MEMBER_LEFT, as described above.
                with contextlib.suppress(ValueError):
                    self.asked = self.asked or request.is_asked_by_others()


class _Quiet:
    """Notice that no query has had a batch for some time, counted from the end of its first trigger.

    Guards against:
    1. The brokers cannot be reached. The first trigger waits for them, and fails after 20 s.
    2. `idle_s` is 20. If it counted from the start, the query would be stopped: drained, without an error.
    """

    def __init__(self, targets: Sequence[_Target], idle_s: float) -> None:
        self._targets = targets
        self._idle_s = idle_s
        self._since_s = time.monotonic()
        self._batches: list[Any] = []

    def is_over(self) -> bool:
        """Return whether the queries have been idle for long enough."""
        if math.isinf(self._idle_s):
            return False
        progress = [target.query.lastProgress for target in self._targets]
        batches = [None if one is None else one["batchId"] for one in progress]
        status = [target.query.status for target in self._targets]
        begins = None in progress and not all(map(_has_waited, status))
        runs = any(one["isDataAvailable"] and one["isTriggerActive"] for one in status)
        if begins or runs or batches != self._batches:
            self._batches, self._since_s = batches, time.monotonic()
        if time.monotonic() - self._since_s < self._idle_s:
            return False
        LOG.info("no batch for %.0f s: stopping", self._idle_s)
        return True


def _has_waited(status: dict[str, Any]) -> bool:
    """Return whether a query waits for its next trigger, so that one has ended (MicroBatchExecution)."""
    return str(status.get("message", "")).startswith("Waiting for")


# --- the request


class _LocalRequest:
    """The request of a program that can reach the checkpoint itself."""

    pause_s = _STEP_S

    def __init__(self, query: StreamingQuery, location: str) -> None:
        self._query = str(query.id)
        self._files = StopFiles(location)
        # For another thread: `StopFiles` is for one.
        self._watched = StopFiles(location)
        self._answers: dict[str, Answer | None] = {}
        self._since_ms = _application_start_ms()
        self.look_s = _LOCAL_LOOK_S if is_local(location) else _STORE_LOOK_S

    def is_asked_by_others(self) -> bool:
        """Return whether a run of this application was asked to stop. Raises ValueError for a store in trouble."""
        return self._watched.is_any_requested(self._since_ms)

    def ask(self) -> Mapping[str, Answer | None]:
        """See `SourceRequest`."""
        self._answers = ask_to_stop(self._files, self._answers, self._query)
        return self._answers

    def close(self) -> None:
        """See `SourceRequest`."""
        for run in self._answers:
            self._files.forget(run)


def is_remote(query: StreamingQuery) -> bool:
    """Return whether the query is one of a Spark Connect server."""
    return type(query).__module__.startswith("pyspark.sql.connect")


def _application_start_ms() -> int:
    """Return when this Spark application started (ms since the epoch); 0 if there is none."""
    context: Any = SparkContext._active_spark_context
    return 0 if context is None else int(context.startTime)


def _request_to(query: StreamingQuery, location: str | None) -> SourceRequest:
    if is_remote(query):
        if location is None:
            raise ValueError(
                "checkpoint_location is missing: a Spark Connect client does not know the query's checkpoint. Pass the"
                " text of the source's option checkpointLocation"
            )
        # Imported here: Spark Connect's libraries are optional.
        from spark_groupsource.spark.stop_by_connect import RemoteRequest  # noqa: PLC0415

        return RemoteRequest(query, location)
    if location is None:
        jvm_query: Any = query._jsq
        location = str(jvm_query.streamingQuery().resolvedCheckpointRoot())
    return _LocalRequest(query, location)
