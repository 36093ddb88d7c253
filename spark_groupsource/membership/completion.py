"""Reads Spark's commit log on a thread of its own, to complete the batch in flight.

Duty: run one look at a time, bring its answer to the event thread, and report a store that does not answer. It must
not know the state machine: `Member` decides what an answer means.

Guards against a store that hangs:
1. a revoke waits for the batch in flight, and the commit log is read on the event thread;
2. the store does not answer for minutes: nothing is handed over, commands are not answered, and the query fails with
   an error about the group's coordinator.
Here the event thread goes on: the drain deadline counts, and commands are served. While a look hangs no other one is
started, so that threads do not pile up. The process ends without waiting for the thread.

When to look: at the next trigger Spark tells a source that a batch is complete; its commit log says it at once. With
looks at the log the group's offsets move when the batch ends, however long the trigger's interval is, and the trigger
that comes does not have to wait for the group's answer. The longer a batch or a look takes the rarer the looks, so that
they are a small part of it: a look at a local checkpoint costs some microseconds. It is a request to a store elsewhere:
then only a revoke or a stop looks, which wait for the batch.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.membership.port import BatchLog
from spark_groupsource.model.offsets import SourceOffset

LOG = logging.getLogger("spark_groupsource.membership")

# How often a waiting revoke or a stop looks at Spark's commit log.
PROBE_INTERVAL_S = 0.1
# A look that takes longer is reported.
LOOK_DEADLINE_S = 10.0
# How long a stop waits for its last look. Spark's runner waits 15 s for the whole stop.
LAST_LOOK_S = 5.0
_STEP_S = 0.02
_SHORTEST_S = 0.004
_LONGEST_S = 1.0
# How late the end of a batch may be seen, as a part of what the batch took; and what part of the time looks may take.
_SHARE = 0.05


def _end_without(thread: threading.Thread) -> None:
    """End the process at exit while `thread` still waits for the store.

    Guards against: 1. a request to a store hangs, 2. the query stops and its process ends, 3. pyarrow waits at exit for
    the end of all requests: 100 s with S3, in which the process of a stopped query is still there.
    """
    if thread.is_alive():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _nothing() -> None:
    """Follow a look that failed."""


class CompletionWatch:
    """Event thread only, apart from the thread that it runs.

    `post` runs a function on the event thread. `on_complete(end, waits)` is called there when the log has the batch
    that ends at `end`. The caller compares it with the batch in flight: an answer may be late.
    """

    def __init__(
        self,
        log: BatchLog,
        clock: Clock,
        *,
        post: Callable[[Callable[[], None]], object],
        serve_commands: Callable[[float], None],
        on_complete: Callable[[SourceOffset, bool], object],
    ) -> None:
        self._log = log
        self._clock = clock
        self._post = post
        self._serve_commands = serve_commands
        self._on_complete = on_complete
        self._lookout = Lookout(clock, looks=log.is_local)
        self._pace = Pace(clock, PROBE_INTERVAL_S)
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Since when a look is under way: at most one is.
        self._since_s: float | None = None
        self._reported = False
        # The last look that found its batch incomplete, and when it began.
        self._denied: tuple[SourceOffset, float] | None = None
        self._last: Deadline | None = None

    @property
    def busy(self) -> bool:
        """Whether the thread waits for the store."""
        return self._since_s is not None

    # --- looks

    def check_sometimes(self, flight: FlightBatch | None, *, wanted: bool) -> None:
        """Look while nobody waits for the batch: only into a local log, and at intervals (see `lookout`).

        Where the answer is not `wanted` now, the interval passes without a look.
        """
        if self.busy:
            self._report_hanging()
        elif self._lookout.due(flight) and flight is not None:
            if wanted:
                self._start(flight.end, waits=False)
            else:
                self._lookout.looked()

    def check_often(self, flight: FlightBatch | None) -> None:
        """Look while a revoke or a stop waits for the batch."""
        if self.busy:
            self._report_hanging()
        elif flight is not None and self._pace.due():
            self._start(flight.end, waits=True)

    def check_last(self, flight: Callable[[], FlightBatch | None]) -> None:
        """Look once more before leaving, and wait for the answer, all in all for `LAST_LOOK_S` at most.

        A look that is under way may have begun before the batch's end: its answer is not the last word.
        """
        if self._last is None:
            self._last = Deadline(self._clock, LAST_LOOK_S)
        self._await_answer(self._last, flight)
        batch = flight()
        if batch is None:
            return
        if not self.busy:
            self._start(batch.end, waits=True)
            self._await_answer(self._last, flight)
        if self.busy and flight() is not None:
            LOG.warning(
                "checkpoint not answering, a stop does not wait for it longer than %.0f s; if the last batch is"
                " complete, the next owner repeats it: option checkpointLocation=%s",
                LAST_LOOK_S,
                self._log.name,
            )

    def denies(self, end: SourceOffset, since_s: float) -> bool:
        """Whether a look that began at `since_s` or later found the batch incomplete, or the store does not answer."""
        answered = self._denied is not None and self._denied[0] == end and self._denied[1] >= since_s
        return answered or self._reported

    def check_start(self, start: SourceOffset) -> None:
        """Compare where Spark starts from with the log, as often as the log wants it; nobody waits for that."""
        if not self.busy and self._log.wants_start(start):
            self._run(lambda: self._compare(start))

    def wait_s(self, longest_s: float) -> float:
        """Return for how long the event thread may do nothing, in seconds."""
        return longest_s if self.busy else self._lookout.wait_s(longest_s)

    def close(self) -> None:
        """Let the thread end, as soon as it has its answer; the process does not wait for that."""
        self._requests.put(None)
        thread = self._thread
        if thread is not None and self.busy:
            # Registered late, so it runs before pyarrow's own.
            atexit.register(_end_without, thread)

    # --- under the hood

    def _start(self, end: SourceOffset, *, waits: bool) -> None:
        is_complete = self._log.is_complete if waits else self._log.glance

        began_s = self._clock.monotonic_s()

        def look() -> Callable[[], None]:
            complete = is_complete(end)
            return lambda: self._answered(end, complete, began_s, waits=waits)

        self._run(look)

    def _answered(self, end: SourceOffset, complete: bool, began_s: float, *, waits: bool) -> None:
        if not waits:
            self._lookout.looked()
        if complete:
            self._on_complete(end, waits)
        elif waits:
            self._denied = (end, began_s)

    def _compare(self, start: SourceOffset) -> Callable[[], None]:
        """Look thread only."""
        self._log.compare_start(start)
        return _nothing

    def _run(self, job: Callable[[], Callable[[], None]]) -> None:
        """Run a job on the look thread, and what it returns on the event thread."""

        def run() -> None:
            try:
                then = job()
            except Exception:  # A look must not end the thread: the next one would never be answered.
                LOG.exception("checkpoint not readable: option checkpointLocation=%s", self._log.name)
                then = _nothing
            self._post(lambda: self._free(then))

        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="groupkafka-commit-log", daemon=True)
            self._thread.start()
        self._since_s = self._clock.monotonic_s()
        # R30: the event thread does not wait for the store
        self._requests.put(run)

    def _serve(self) -> None:
        """Look thread only."""
        while (job := self._requests.get()) is not None:
            job()

    def _free(self, then: Callable[[], None]) -> None:
        if self._reported:
            LOG.warning("checkpoint answers again: option checkpointLocation=%s", self._log.name)
        self._since_s, self._reported = None, False
        then()

    def _await_answer(self, deadline: Deadline, flight: Callable[[], FlightBatch | None]) -> None:
        while self.busy and flight() is not None and not deadline.expired():
            self._serve_commands(_STEP_S)

    def _report_hanging(self) -> None:
        """Report a store that does not answer, once until it answers."""
        if self._reported or self._since_s is None:
            return
        seconds = self._clock.monotonic_s() - self._since_s
        if seconds >= LOOK_DEADLINE_S:
            self._reported = True
            LOG.warning(
                "checkpoint not answering for %.0f s; until it answers, a handover and a stop do not see that the batch"
                " in flight is complete, and the next trigger or drainTimeoutMs ends their wait:"
                " option checkpointLocation=%s",
                seconds,
                self._log.name,
            )


class Lookout:
    """Event thread only."""

    def __init__(self, clock: Clock, *, looks: bool) -> None:
        self._clock = clock
        self._looks = looks
        self._flight: FlightBatch | None = None
        self._since_s = 0.0
        self._look_s = 0.0
        self._next_s = 0.0

    def due(self, flight: FlightBatch | None) -> bool:
        """Whether to look now for the end of the batch in flight; tell `looked` afterwards."""
        now_s = self._clock.monotonic_s()
        if flight is not self._flight:
            self._flight, self._since_s, self._next_s = flight, now_s, now_s + _SHORTEST_S
        self._look_s = now_s
        return flight is not None and self._looks and now_s >= self._next_s

    def looked(self) -> None:
        """The look is over: the next one is later."""
        now_s = self._clock.monotonic_s()
        pause_s = min(max(_SHARE * (now_s - self._since_s), _SHORTEST_S), _LONGEST_S)
        self._next_s = now_s + max(pause_s, (now_s - self._look_s) / _SHARE)

    def wait_s(self, longest_s: float) -> float:
        """For how long the event thread may do nothing, in seconds: until the next look, but not longer than this."""
        if self._flight is None or not self._looks:
            return longest_s
        return min(longest_s, max(0.0, self._next_s - self._clock.monotonic_s()))
