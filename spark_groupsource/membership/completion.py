"""Read Spark's commit log on a thread of its own, to complete the batch in flight.

Runs one check at a time, passes its answer to the event thread, and reports a store that does not answer. It must not
know the state machine: `Member` decides what an answer means.

A store that hangs does not block the event thread (rule R30): the drain deadline counts, and commands are served. While
a check hangs, no other one is started, so that threads do not pile up. The process ends without waiting for the thread.

When to check: Spark reports the end of a batch to a source only at the next trigger, but its commit log has it at once.
With checks the group's offsets move when the batch ends, however long the trigger interval is, and the next trigger
does not have to wait for the group's answer. A check of a local checkpoint takes some microseconds. The longer a batch
or a check takes, the fewer checks there are, so that they take a small part of the time. For a remote store a check is
a request. Then only a revoke or a stop that waits for the batch checks.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.membership.port import BatchLog
from spark_groupsource.membership.runner import SYSTEM, Inbox, Runner, Running
from spark_groupsource.model.offsets import SourceOffset

LOG = logging.getLogger(__name__)

# Seconds between two checks of Spark's commit log while a revoke or a stop waits.
PROBE_INTERVAL_S = 0.1
# Seconds. A check that takes longer is reported.
CHECK_DEADLINE_S = 10.0
# Seconds that a stop waits for its last check. Spark's runner waits 15 s for the whole stop.
LAST_CHECK_S = 5.0
_STEP_S = 0.02
_SHORTEST_S = 0.004
_LONGEST_S = 1.0
# Maximum delay in noticing the end of a batch, as a fraction of the batch's duration. Also the maximum fraction of the
# time that checks may take.
_SHARE = 0.05


def end_process_without(thread: Running) -> None:
    """End the process at exit while `thread` still waits for the store.

    Guards against:
    1. A request to a store hangs.
    2. The query stops and its process ends.
    3. At exit pyarrow waits for the end of all requests: 100 s with S3, during which the process still exists.
    """
    if thread.is_alive():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class CompletionWatch:
    """Check the commit log for the batch in flight. Event thread only, apart from the thread that it runs.

    `flight()` is the batch in flight. `post` runs a function on the event thread. `on_complete(end)` is called there
    when the log has the batch that ends at `end`. The callee compares `end` with the batch in flight: an answer may be
    late.
    """

    def __init__(
        self,
        log: BatchLog,
        clock: Clock,
        *,
        flight: Callable[[], FlightBatch | None],
        post: Callable[[Callable[[], None]], object],
        serve_commands: Callable[[float], None],
        on_complete: Callable[[SourceOffset], object],
        runner: Runner = SYSTEM,
    ) -> None:
        self._log = log
        self._clock = clock
        self._flight = flight
        self._post = post
        self._serve_commands = serve_commands
        self._on_complete = on_complete
        self._schedule = CheckSchedule(clock, is_local=log.is_local)
        # Whether somebody waits for the batch: then `_pace` counts, and not the schedule.
        self._waits = False
        self._pace = Pace(clock, PROBE_INTERVAL_S)
        self._runner = runner
        self._requests: Inbox[Callable[[], None] | None] = runner.inbox()
        self._thread: Running | None = None
        # When the check under way began; None if there is none. There is at most one.
        self._since_s: float | None = None
        self._reported = False
        # The last check that found its batch incomplete: the batch's end, and when the check began.
        self._denied: tuple[SourceOffset, float] | None = None
        self._last: Deadline | None = None

    @property
    def busy(self) -> bool:
        """Whether the thread waits for the store."""
        return self._since_s is not None

    # --- checks

    def check(self, *, waits: bool) -> None:
        """Start a check if one is due. `waits`: somebody waits for the batch, such as a revoke or a stop.

        While nobody does, only a local log is checked, at intervals (see `CheckSchedule`).
        """
        self._waits, flight = waits, self._flight()
        if self.busy:
            self._report_hanging()
        elif (self._pace.due() if waits else self._schedule.due(flight)) and flight is not None:
            self._start(flight.end, waits=waits)

    def check_last(self) -> None:
        """Check once more before leaving, and wait for the answer, for `LAST_CHECK_S` at most in total.

        A check under way may have begun before the batch's end. So its answer is not the last one.
        """
        if self._last is None:
            self._last = Deadline(self._clock, LAST_CHECK_S)
        self._await_answer(self._last)
        flight = self._flight()
        if flight is None:
            return
        if not self.busy:
            self._start(flight.end, waits=True)
            self._await_answer(self._last)
        if self.busy and self._flight() is not None:
            LOG.warning(
                "checkpoint not answering, a stop does not wait for it longer than %.0f s; if the last batch is"
                " complete, the next owner repeats it: option checkpointLocation=%s",
                LAST_CHECK_S,
                self._log.name,
            )

    def denies(self, end: SourceOffset, since_s: float) -> bool:
        """Return whether a check begun at `since_s` or later found the batch incomplete, or the store hangs."""
        answered = self._denied is not None and self._denied[0] == end and self._denied[1] >= since_s
        return answered or self._reported

    def check_start(self, start: SourceOffset) -> None:
        """Compare the offset where Spark starts with the log, if the log wants it. Does not wait for the result."""
        if not self.busy and self._log.wants_start(start):
            self._run(lambda: self._log.compare_start(start))

    def wait_s(self, longest_s: float) -> float:
        """Return how long the event thread may wait, in seconds: at most `longest_s`.

        Guards against:
        1. A batch is in flight, and the schedule has its next check, with a local log.
        2. A stop, or maxBatchMs, begins to wait for the batch. Its checks do not move the schedule.
        3. The schedule's check is overdue, so the event thread waits no more: it takes a core until the batch ends.
        """
        return longest_s if self.busy or self._waits else self._schedule.wait_s(longest_s)

    def close(self) -> None:
        """Let the thread end as soon as it has its answer. The process does not wait for that."""
        self._requests.put(None)
        thread = self._thread
        if thread is not None and self.busy:
            # Registered late, so it runs before pyarrow's own exit function.
            self._runner.at_exit(lambda: end_process_without(thread))

    # --- internals

    def _start(self, end: SourceOffset, *, waits: bool) -> None:
        is_complete = self._log.is_complete if waits else self._log.glance

        began_s = self._clock.monotonic_s()

        def check() -> Callable[[], None]:
            complete = is_complete(end)
            return lambda: self._answered(end, complete, began_s, waits=waits)

        self._run(check)

    def _answered(self, end: SourceOffset, complete: bool, began_s: float, *, waits: bool) -> None:
        if not waits:
            self._schedule.checked()
        if complete:
            self._on_complete(end)
        elif waits:
            self._denied = (end, began_s)

    def _run(self, job: Callable[[], Callable[[], None] | None]) -> None:
        """Run a job on the check thread, and the function that it returns, if any, on the event thread.

        Guards against (rule R30):
        1. A revoke waits for the batch in flight, and the membership thread reads the commit log.
        2. The store does not answer for minutes. Nothing is handed over, and the whole group waits.
        3. Commands get no answer: the query fails with an error about the group's coordinator.
        """

        def run() -> None:
            then: Callable[[], None] | None = None
            try:
                then = job()
            except Exception:  # A check must not end the thread: the next one would never be answered.
                LOG.exception("checkpoint not readable: option checkpointLocation=%s", self._log.name)
            self._post(lambda: self._free(then))

        if self._thread is None:
            self._thread = self._runner.spawn(self._serve, "groupkafka-commit-log")
        self._since_s = self._clock.monotonic_s()
        # R30: the event thread does not wait for the store
        self._requests.put(run)

    def _serve(self) -> None:
        """Run jobs until None arrives. Check thread only."""
        while (job := self._requests.get()) is not None:
            job()

    def _free(self, then: Callable[[], None] | None) -> None:
        if self._reported:
            LOG.warning("checkpoint answers again: option checkpointLocation=%s", self._log.name)
        self._since_s, self._reported = None, False
        if then is not None:
            then()

    def _await_answer(self, deadline: Deadline) -> None:
        while self.busy and self._flight() is not None and not deadline.expired():
            self._serve_commands(_STEP_S)

    def _report_hanging(self) -> None:
        """Log that the store does not answer, once until it answers."""
        if self._reported or self._since_s is None:
            return
        seconds = self._clock.monotonic_s() - self._since_s
        if seconds >= CHECK_DEADLINE_S:
            self._reported = True
            LOG.warning(
                "checkpoint not answering for %.0f s; until it answers, a handover and a stop do not see that the batch"
                " in flight is complete, and the next trigger or drainTimeoutMs ends their wait:"
                " option checkpointLocation=%s",
                seconds,
                self._log.name,
            )


class CheckSchedule:
    """Decide when to check a local log while nobody waits. Event thread only."""

    def __init__(self, clock: Clock, *, is_local: bool) -> None:
        self._clock = clock
        self._is_local = is_local
        self._flight: FlightBatch | None = None
        self._since_s = 0.0
        self._check_s = 0.0
        self._next_s = 0.0

    def due(self, flight: FlightBatch | None) -> bool:
        """Return whether to check now for the end of the batch in flight. Call `checked` after the check."""
        now_s = self._clock.monotonic_s()
        if flight is not self._flight:
            self._flight, self._since_s, self._next_s = flight, now_s, now_s + _SHORTEST_S
        self._check_s = now_s
        return flight is not None and self._is_local and now_s >= self._next_s

    def checked(self) -> None:
        """Record that the check is over, and schedule the next one."""
        now_s = self._clock.monotonic_s()
        pause_s = min(max(_SHARE * (now_s - self._since_s), _SHORTEST_S), _LONGEST_S)
        self._next_s = now_s + max(pause_s, (now_s - self._check_s) / _SHARE)

    def wait_s(self, longest_s: float) -> float:
        """Return how long the event thread may wait, in seconds: until the next check, at most `longest_s`."""
        if self._flight is None or not self._is_local:
            return longest_s
        return min(longest_s, max(0.0, self._next_s - self._clock.monotonic_s()))
