"""Stop a query with a foreachBatch sink between two batches: at SIGTERM, at SIGINT, or when the JVM ends.

`query.stop()` alone cancels the batch in flight. What that batch had written stays, its offsets are not committed, and
the next owner of the partitions writes the same records again. `CleanStop` waits for the batch in flight until Spark
has recorded it, and lets no further batch write.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

LOG = logging.getLogger("spark_groupsource.clean_stop")

TIMEOUT_S = 60.0
_STEP_S = 0.05
_AWAIT_S = 0.25
# Shutdown hooks run by priority: this one runs before Spark's own, which would end the SparkContext under the query.
_HOOK_PRIORITY = 100

WriteBatch = Callable[[DataFrame, int, StreamingQuery], None]


class StoppedBeforeBatch(Exception):
    """Ends a batch that Spark began after the stop was requested; nothing of it was written."""


class CleanStop:
    """Stop one query between two batches.

    1. Pass `each_batch(write)` to foreachBatch.
    2. Start the query inside `with CleanStop().on_signals(spark) as stop`.
    3. Call `run_until_stopped(query)` there, on the main thread.

    A batch in flight gets `timeout_s` to end. Then it is cancelled, and the next owner of its partitions repeats it.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._requested = threading.Event()
        self._finished = threading.Event()
        self._held = threading.Event()
        self._jvm_waits = threading.Event()
        self._followed = threading.Event()
        self._query: StreamingQuery | None = None
        self._hooks: Any = None
        self._hook: Any = None
        self._running = False
        self._written: int | None = None
        self._last_batch_at = time.monotonic()

    def request(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Request the stop. It only sets a flag: a signal handler may interrupt any line of the program."""
        self._requested.set()

    @property
    def requested(self) -> bool:
        """Return True once a stop was requested."""
        return self._requested.is_set()

    def each_batch(self, write: WriteBatch) -> Callable[[DataFrame, int], None]:
        """Return the function for foreachBatch. It calls `write` with the rows, the batch's number and the query."""

        def on_batch(records: DataFrame, batch_id: int) -> None:
            # The first batch can begin before start() has returned the query.
            if not self._followed.wait(self._timeout_s) or self._query is None:
                raise TimeoutError(f"run_until_stopped(query) was not called within {self._timeout_s:.0f} s")
            self.batch_starts(self._query)
            write(records, batch_id, self._query)
            self.batch_ended(batch_id)

        return on_batch

    def run_until_stopped(self, query: StreamingQuery, idle_s: float = math.inf) -> None:
        """Wait until the query ends. Stop it when a stop is requested, or after `idle_s` without a batch."""
        self._query = query
        self._followed.set()
        try:
            while not query.awaitTermination(_AWAIT_S):  # type: ignore[arg-type] # seconds, declared as int
                quiet_s = time.monotonic() - self._last_batch_at
                if quiet_s > idle_s and not self.requested:
                    LOG.info("no batch for %.0f s: stopping", quiet_s)
                    self.request()
                if self.requested:
                    self.stop(query)
        except StreamingQueryException:
            # The batch that was held back counts as failed in Spark. It is no failure of the program.
            if not self.requested:
                raise

    def batch_starts(self, query: StreamingQuery) -> None:
        """Let the batch run, or hold it until the query is stopped and then end it. On the stream's thread."""
        self._running = True
        if not self.requested:
            return
        self._held.set()
        LOG.info("a stop was requested: the next batch is held back and writes nothing; the next owner reads it")
        deadline = time.monotonic() + self._timeout_s
        while query.isActive and time.monotonic() < deadline:
            time.sleep(_STEP_S)
        raise StoppedBeforeBatch

    def batch_ended(self, batch_id: int) -> None:
        """Note that the batch has written its rows. On the stream's thread."""
        self._written = batch_id
        self._running = False
        self._last_batch_at = time.monotonic()

    def _recorded(self, query: StreamingQuery) -> bool:
        """Return True when every batch that wrote something is in Spark's commit log."""
        if self._held.is_set():
            return True  # Spark begins a batch only after it has recorded the one before
        if self._running:
            return False
        progress = query.lastProgress
        return self._written is None or (progress is not None and progress["batchId"] >= self._written)

    def stop(self, query: StreamingQuery) -> None:
        """Wait until Spark has recorded the batch in flight, at most `timeout_s`, then stop the query."""
        deadline = time.monotonic() + self._timeout_s
        while query.isActive and not self._recorded(query):
            if time.monotonic() > deadline:
                LOG.warning("the batch in flight did not end within %.0f s and is cancelled", self._timeout_s)
                break
            time.sleep(_STEP_S)
        query.stop()

    @contextlib.contextmanager
    def on_signals(self, spark: SparkSession) -> Iterator[CleanStop]:
        """Request the stop at SIGTERM, at SIGINT and when the JVM ends. Leave it last: the JVM may wait for that."""
        try:
            self._install(spark)
            yield self
        finally:
            self.finished()

    def _install(self, spark: SparkSession) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.request)
        # spark-submit is a JVM that started this process, and a resource manager signals that JVM alone.
        context = spark.sparkContext
        ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
        jvm: Any = context._jvm
        seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._hook = jvm.java.lang.Thread(self)  # never started: an object of the JVM, so that it can be removed
        self._hooks.addShutdownHook(self._hook, _HOOK_PRIORITY, int(self._timeout_s) + 15, seconds)

    def finished(self) -> None:
        """Release the JVM: nothing is left to stop. On the main thread, last."""
        self._finished.set()
        if self._jvm_waits.is_set():
            time.sleep(0.2)  # the answer to the JVM's call of run() leaves on another thread
        elif self._hook is not None:
            # It would call a process that has ended. (Refused if the JVM begins to end right now.)
            with contextlib.suppress(Py4JError):
                self._hooks.removeShutdownHook(self._hook)

    def run(self) -> None:
        """Request the stop and wait for it. The JVM calls this when it is about to end: a java.lang.Runnable."""
        self._jvm_waits.set()
        self.request()
        self._finished.wait(self._timeout_s + 10)

    class Java:
        """Names the Java interface that the JVM sees (py4j)."""

        implements = ("java.lang.Runnable",)
