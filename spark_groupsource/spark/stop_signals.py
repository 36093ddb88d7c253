"""Request the end of a program's queries: at SIGTERM and SIGINT, to this process or to its JVM."""

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

# Signals at which a JVM ends, by Java's names.
_NAMES = ("TERM", "INT", "HUP")
# Seconds that the JVM is held, at most, beyond the time that the queries have. A timer takes no infinite time.
_MARGIN_S, _LONGEST_HOLD_S = 10.0, 86_400.0


class EndRequest:
    """What signals request. Plain attributes: a signal handler may interrupt any line of the program."""

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
    """Request the stop at SIGTERM and SIGINT, whether this process or its JVM gets them."""
    requested = EndRequest()
    numbers = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    if not numbers:
        LOG.warning("signals do not stop the queries: it was not called on the main thread")
    before = {number: signal.signal(number, requested.on_signal) for number in numbers}
    try:
        JvmSignals.waiting.append(requested)
        JvmSignals.install(timeout_s)
        yield requested
    finally:
        for number, handler in before.items():
            # None: it was not installed from Python, and cannot be installed again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        JvmSignals.ended(requested)


class JvmSignals:
    """Take the signals that would end the JVM, and give it the last one when this process ends.

    spark-submit is a JVM that has started this process, and a resource manager signals that JVM alone. A shutdown hook
    that holds the JVM would do for most batches, but not for these:

    Guards against:
    1. SIGTERM comes to the process group of a job in local mode. The JVM begins to shut down, and is held.
    2. A task fails: the signal has ended a command of Hadoop (chmod).
    3. Spark reports no failed task of a JVM that shuts down (SPARK-20904). The batch never ends, and the program waits
       for `timeout_s`.
    """

    _one: JvmSignals | None = None
    # What waits now: several threads may wait, each for queries of its own.
    waiting: ClassVar[list[EndRequest]] = []

    def __init__(self) -> None:
        jvm: Any = SparkContext._jvm
        self._signals = jvm.sun.misc.Signal
        self._former: dict[str, Any] = {}
        self._taken = ""
        self._hold_s = 0.0
        for name in _NAMES:
            # Refused if the JVM was started with -Xrs: it ends at once, as the option says.
            with contextlib.suppress(Py4JError):
                self._former[name] = self._signals.handle(self._signals(name), self)
        atexit.register(self.release)

    @classmethod
    def install(cls, timeout_s: float) -> None:
        """Take the signals of this process's JVM, unless it has no JVM (Spark Connect)."""
        if SparkContext._jvm is None:
            return
        if cls._one is None:
            ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
            cls._one = cls()
        cls._one._hold_s = max(cls._one._hold_s, min(timeout_s, _LONGEST_HOLD_S) + _MARGIN_S)
        if cls._one._taken:
            # The program waits for its queries one after the other, and the signal came to an earlier one.
            cls._one._stop_all()

    @classmethod
    def ended(cls, requested: EndRequest) -> None:
        """Wait for a signal no longer. The handlers stay if one has come: the program is about to end."""
        cls.waiting.remove(requested)
        if cls._one is not None and not cls.waiting and not requested.stop:
            # Others may use the JVM longer than this process, which could not answer it then.
            one, cls._one = cls._one, None
            one.release()

    def handle(self, taken: Any) -> None:
        """Request the stop. The JVM calls this at a signal: a sun.misc.SignalHandler."""
        first, self._taken = not self._taken, str(taken.getName())
        if first:
            # If nothing waits, the queries may have been drained already, and the program ends with Spark's calls.
            end = threading.Timer(self._hold_s if self.waiting else _MARGIN_S, self.release)
            end.daemon = True
            end.start()
        self._stop_all()

    def _stop_all(self) -> None:
        for requested in tuple(self.waiting):
            requested.stop = True

    def release(self) -> None:
        """Give the JVM its handlers back, and the signal that it should have had. Idempotent.

        Without the signal, the exit code of spark-submit would be that of the program.
        """
        atexit.unregister(self.release)
        former, self._former = self._former, {}
        # The JVM may have ended.
        with contextlib.suppress(Py4JError, OSError):
            for name, handler in former.items():
                self._signals.handle(self._signals(name), handler)
            if self._taken in former:
                getattr(self._signals, "raise")(self._signals(self._taken))
                # The JVM takes the signal on another thread: before it notices the end of this process.
                time.sleep(0.2)

    class Java:
        """Names the Java interface that the JVM sees (py4j)."""

        implements = ("sun.misc.SignalHandler",)
