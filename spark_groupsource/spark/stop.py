"""Stop queries between two batches: at SIGTERM, at SIGINT, when the JVM ends, or when the caller decides.

`query.stop()` alone cancels the batch in flight. What that batch had written stays, its offsets are not committed, and
the next owner of the partitions writes the same records again. The functions here ask the query's source first: it
plans no new batch, completes and commits the one in flight, and leaves the group. Then they stop the query. Any sink,
any trigger, also through Spark Connect.

The request is a file in the checkpoint location (`checkpoint.stop_requests`), so the source needs option
`checkpointLocation`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from types import FrameType
from typing import Any, ClassVar, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql.streaming.query import StreamingQuery

from spark_groupsource import errors
from spark_groupsource.checkpoint.stop_requests import Answer, StopFiles, ask_to_stop

LOG = logging.getLogger(__name__)

# As the default of option drainTimeoutMs: the source itself waits no longer for its batch.
TIMEOUT_S = 240.0
_STEP_S = 0.1
# Seconds until a query with batches is stopped although its source has not registered at the checkpoint. A source whose
# store fails tries again every 5 s.
_UNREACHABLE_S = 10.0
# Seconds from the end of a query to the answer of its reader, at most: Spark's runner allows 15 s for the whole stop.
_ANSWER_S = 20.0
# Shutdown hooks run by priority: this one runs before Spark's own, which would end the SparkContext under the query.
_HOOK_PRIORITY = 100
# Seconds. The JVM takes no infinite timeout.
_LONGEST_HOLD_S = 86_400.0
# Seconds that the end of a drain waits for the removal of its request.
_CLOSE_S = 5.0
# In the offsets of this source, and of no other one, in Spark's progress.
_OWN_OFFSET = '"lineage"'


class QueryEnd(Enum):
    """How a query ended. One that fails raises its exception instead."""

    FINISHED = "by itself: AvailableNow has read everything, or other code has stopped it"
    DRAINED = "between two batches: the last batch is complete and committed, and nothing is repeated"
    CANCELLED = "in the middle of a batch, which the next owner repeats: the batch took too long, or the source was not\
 reached"


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
    `StreamingQueryException` if it fails meanwhile.

    `checkpoint_location` is the text of the source's option checkpointLocation. It is needed with Spark Connect, and
    for a location with parameters of pyarrow (`?endpoint_override=...`).
    """
    _check_seconds("timeout_s", timeout_s)
    return _drained([_Target(query, checkpoint_location)], timeout_s, _Requested())


def run_until_stopped(
    *queries: StreamingQuery,
    timeout_s: float = TIMEOUT_S,
    idle_s: float = math.inf,
    checkpoint_location: str | Sequence[str] | None = None,
) -> QueryEnd:
    """Wait until the queries have ended, and return how. Call it on the main thread.

    SIGTERM, SIGINT and the end of the JVM (spark-submit, YARN, Kubernetes) drain and stop all of them, as `drain` does.
    A second SIGINT stops them at once. They are also stopped when none has had a batch for `idle_s` seconds, and when
    one has failed: its `StreamingQueryException` is then raised in the end. With several queries the worst end is
    returned, and `checkpoint_location` is one for each, in their order.
    """
    if not queries:
        raise ValueError("run_until_stopped was called without a query")
    _check_seconds("timeout_s", timeout_s)
    _check_seconds("idle_s", idle_s)
    given = [checkpoint_location] if isinstance(checkpoint_location, str) else checkpoint_location
    locations = [None] * len(queries) if given is None else given
    targets = [_Target(query, location) for query, location in zip(queries, locations, strict=True)]
    with _on_signals(timeout_s) as requested:
        quiet = _Quiet(targets, idle_s)
        while not requested.stop and not quiet.is_over() and _go_on(targets):
            time.sleep(_STEP_S)
        return _drained(targets, timeout_s, requested)


def _check_seconds(name: str, value: float) -> None:
    """Raise ValueError for a negative number, which would cancel the batch in flight at once, and for NaN."""
    if not value >= 0:
        raise ValueError(f"{name} is {value}. Allowed: seconds, 0 or more; math.inf sets no limit")


class _Requested:
    """What signals and the JVM request. Plain attributes: a signal handler may interrupt any line of the program."""

    def __init__(self) -> None:
        self.stop = False
        self.hurry = False
        self._interrupts = 0

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Request the stop; a second SIGINT requests it at once."""
        self._interrupts += number == signal.SIGINT
        self.hurry = self._interrupts > 1
        self.stop = True


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
        self._asking = _Asking(_request_to(query, location))
        self._ended_s: float | None = None
        self.end: QueryEnd | None = None
        self.failure: Exception | None = None

    def step(self, *, give_up: bool) -> None:
        """Take a step towards the end: ask the source, and stop the query when the member has left."""
        if not self.query.isActive:
            # The reader answers when its process ends, a moment after the query.
            self._ended_s = self._ended_s or time.monotonic()
            if give_up or not self._may_be_answered(self._ended_s) or self._has_failed():
                self._ended()
            return
        if not give_up:
            self._asking.begin()
        known = self._known()
        if self._all_found(known) and None not in known:
            self._stop(QueryEnd.DRAINED if set(known) == {Answer.COMPLETE} else QueryEnd.CANCELLED)
        elif give_up or self._is_unreachable(known):
            self._stop(QueryEnd.CANCELLED)

    def close(self) -> None:
        """Remove the request."""
        self._asking.end()

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
        if not known:
            return False
        progress = self.query.lastProgress
        sources = () if progress is None else progress.get("sources", ())
        own = sum(_OWN_OFFSET in str(source["endOffset"]) for source in sources)
        return len(known) >= own

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

    def _stop(self, end: QueryEnd) -> None:
        if end is QueryEnd.CANCELLED:
            LOG.warning("the query is stopped in the middle of a batch: answers=%s", _shown(self._asking.answers))
        try:
            self.query.stop()
        except Exception as error:  # noqa: BLE001 - raised when the other queries are stopped, too
            self.failure, end = error, QueryEnd.CANCELLED
        self.end = end

    def _has_failed(self) -> bool:
        """Return whether the query has failed for another reason than a request to stop, whoever made it."""
        failure = self.query.exception()
        return failure is not None and errors.MEMBER_LEFT.id not in str(failure)

    def _ended(self) -> None:
        failure, known = self.query.exception(), self._known()
        left_clean = failure is not None and errors.NOTHING_REPEATED in str(failure)
        if self._has_failed():
            self.failure, self.end = failure, QueryEnd.CANCELLED
        elif set(known) - {Answer.COMPLETE, None} or (None in known and not left_clean):
            self.end = QueryEnd.CANCELLED
        elif left_clean or (known and self._all_found(known)):
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


def _drained(targets: Sequence[_Target], timeout_s: float, requested: _Requested) -> QueryEnd:
    """Drain all queries at the same time. Raises the exception of the first one that failed."""
    deadline = time.monotonic() + timeout_s
    try:
        while left := [target for target in targets if target.end is None]:
            for target in left:
                target.step(give_up=requested.hurry or time.monotonic() > deadline)
            if any(target.end is None for target in left):
                time.sleep(_STEP_S)
    finally:
        for target in targets:
            target.close()
    for target in targets:
        if target.failure is not None:
            raise target.failure
    ends = {target.end for target in targets}
    return next(end for end in (QueryEnd.CANCELLED, QueryEnd.DRAINED, QueryEnd.FINISHED) if end in ends)


def _shown(answers: Mapping[str, Answer | None]) -> str:
    return ", ".join("none yet" if answer is None else answer.name for answer in answers.values()) or "none"


class _Quiet:
    """Notice that no query has had a batch for some time."""

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
        if batches != self._batches or any(one["isDataAvailable"] and one["isTriggerActive"] for one in status):
            self._batches, self._since_s = batches, time.monotonic()
        if time.monotonic() - self._since_s < self._idle_s:
            return False
        LOG.info("no batch for %.0f s: stopping", self._idle_s)
        return True


# --- the request


class _LocalRequest:
    """The request of a program that can reach the checkpoint itself."""

    pause_s = _STEP_S

    def __init__(self, query: StreamingQuery, location: str) -> None:
        self._query = str(query.id)
        self._files = StopFiles(location)
        self._answers: dict[str, Answer | None] = {}

    def ask(self) -> Mapping[str, Answer | None]:
        """See `SourceRequest`."""
        self._answers = ask_to_stop(self._files, self._answers, self._query)
        return self._answers

    def close(self) -> None:
        """See `SourceRequest`."""
        for run in self._answers:
            self._files.forget(run)


def _request_to(query: StreamingQuery, location: str | None) -> SourceRequest:
    if type(query).__module__.startswith("pyspark.sql.connect"):
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


# --- signals


@contextlib.contextmanager
def _on_signals(timeout_s: float) -> Iterator[_Requested]:
    """Request the stop at SIGTERM, at SIGINT and when the JVM ends."""
    requested = _Requested()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    if not numbers:
        LOG.warning("signals do not stop the queries: run_until_stopped was not called on the main thread")
    before = {number: signal.signal(number, requested.on_signal) for number in numbers}
    try:
        _JvmEnd.install(timeout_s)
        _JvmEnd.waiting.append(requested)
        yield requested
    finally:
        if requested in _JvmEnd.waiting:
            _JvmEnd.waiting.remove(requested)
        for number, handler in before.items():
            # None: it was not installed from Python, and cannot be installed again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class _JvmEnd:
    """Request the stop when the JVM ends, and hold the JVM until this process has ended.

    spark-submit is a JVM that has started this process, and a resource manager signals that JVM alone.
    """

    _one: _JvmEnd | None = None
    # What waits now: several threads may wait, each for queries of its own.
    waiting: ClassVar[list[_Requested]] = []

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waits = False
        self._ended = threading.Event()
        jvm: Any = SparkContext._jvm
        self._hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._hook = jvm.java.lang.Thread(self)  # never started: an object of the JVM, so that it can be removed
        seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._hooks.addShutdownHook(self._hook, _HOOK_PRIORITY, int(timeout_s) + 15, seconds)
        atexit.register(self.release)

    @classmethod
    def install(cls, timeout_s: float) -> None:
        """Install the hook in this process's JVM, unless it has no JVM (Spark Connect)."""
        timeout_s = min(timeout_s, _LONGEST_HOLD_S)
        if SparkContext._jvm is None:
            return
        if cls._one is None or cls._one._timeout_s < timeout_s:
            ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
            former, cls._one = cls._one, cls(timeout_s)
            if former is not None:
                former.release()

    def run(self) -> None:
        """Request the stop and wait. The JVM calls this when it is about to end: a java.lang.Runnable."""
        if not self.waiting:
            return
        self._waits = True
        for requested in tuple(self.waiting):
            requested.stop = True
        self._ended.wait(self._timeout_s + 10)

    def release(self) -> None:
        """Release the JVM: nothing is left to stop. At the end of this process; idempotent."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._waits:
            time.sleep(0.2)  # the answer to the JVM's call of run() leaves on another thread
            return
        # It would call a process that has ended. (Refused if the JVM begins to end right now, or has ended.)
        with contextlib.suppress(Py4JError, OSError):
            self._hooks.removeShutdownHook(self._hook)

    class Java:
        """Names the Java interface that the JVM sees (py4j)."""

        implements = ("java.lang.Runnable",)
