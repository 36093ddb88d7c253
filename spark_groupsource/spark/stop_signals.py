"""Request the end of a program's queries: at SIGTERM, at SIGINT, and when the JVM ends."""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, ClassVar

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

LOG = logging.getLogger(__name__)

# Shutdown hooks run by priority: this one runs before Spark's own, which would end the SparkContext under the query.
_HOOK_PRIORITY = 100
# Seconds. The JVM takes no infinite timeout.
_LONGEST_HOLD_S = 86_400.0


class EndRequest:
    """What signals and the JVM request. Plain attributes: a signal handler may interrupt any line of the program."""

    def __init__(self) -> None:
        self.stop = False
        self.hurry = False
        self.signalled = False
        self._interrupts = 0

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Request the stop; a second SIGINT requests it at once."""
        self._interrupts += number == signal.SIGINT
        self.hurry = self._interrupts > 1
        self.signalled = True
        self.stop = True


@contextlib.contextmanager
def on_end_signals(timeout_s: float) -> Iterator[EndRequest]:
    """Request the stop at SIGTERM, at SIGINT and when the JVM ends."""
    requested = EndRequest()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    if not numbers:
        LOG.warning("signals do not stop the queries: it was not called on the main thread")
    before = {number: signal.signal(number, requested.on_signal) for number in numbers}
    try:
        JvmEnd.install(timeout_s)
        JvmEnd.waiting.append(requested)
        yield requested
    finally:
        if requested in JvmEnd.waiting:
            JvmEnd.waiting.remove(requested)
        for number, handler in before.items():
            # None: it was not installed from Python, and cannot be installed again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class JvmEnd:
    """Request the stop when the JVM ends, and hold the JVM until this process has ended.

    spark-submit is a JVM that has started this process, and a resource manager signals that JVM alone.
    """

    _one: JvmEnd | None = None
    # What waits now: several threads may wait, each for queries of its own.
    waiting: ClassVar[list[EndRequest]] = []

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
