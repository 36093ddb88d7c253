"""Run queries on one of several drivers: `run_when_owner` waits for the lock of their group, and gives way.

All drivers have the same code and the same checkpoint, on storage that all of them reach. One owns the lock
(`membership.owner_lock`) and runs the queries, the others wait with their Spark sessions ready.

The lock decides who starts. It cannot stop a process that does not run: what fences an old driver that wakes up late is
its source, which proves its membership before it plans (rule R67), and Spark, which refuses the second one of two
writers of a checkpoint's log.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote as has_remote_session

from spark_groupsource import errors
from spark_groupsource.clock import Deadline, Pace, SystemClock
from spark_groupsource.cluster.admin import LibrdkafkaCluster
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.backends.peers import members
from spark_groupsource.membership.lock_states import LockState
from spark_groupsource.membership.owner_lock import OwnerLock, lock_options
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.spark.stop import TIMEOUT_S, QueryEnd, WatchedQueries, check_seconds, is_remote, say
from spark_groupsource.spark.stop_signals import EndRequest, JvmSignals, on_end_signals

LOG = logging.getLogger(__name__)

_STEP_S = 0.1
# Seconds that the end of the queries waits for the coordinator's word on who owns the lock.
_SETTLE_S = 10.0
# Seconds between two lines of a driver that waits, and until the first one: the client of a driver that starts alone
# needs a moment.
_NOTICE_S, _FIRST_NOTICE_S = 300.0, 2.0
# Failures that a driver may cause that was the owner before: it wrote an entry of the checkpoint's log first (Spark's
# logs of offsets and batches, and that of its file sink). And the source's own, with onPartitionsLost=fail.
_BY_FORMER_OWNER = re.compile(
    rf"CONCURRENT_STREAM_LOG_UPDATE|Race while writing batch|{re.escape(errors.PARTITIONS_LOST.id)}"
)
# Starts in a row after such failures. A former owner has one batch in flight: it is in the way of its plan, and of its
# end. A start that has lasted a minute begins a new row.
_RESTARTS, _ROW_S = 3, 60.0

StartedQueries = StreamingQuery | Sequence[StreamingQuery]


def run_when_owner(
    start: Callable[[], StartedQueries],
    *,
    group: str,
    topic: str,
    options: Mapping[str, str],
    timeout_s: float = TIMEOUT_S,
    idle_s: float = float("inf"),
    checkpoint_location: str | Sequence[str] | None = None,
) -> QueryEnd:
    """Wait until this driver owns the group's lock, call `start`, and run its queries until they are stopped.

    Several drivers call it with the same arguments and the same checkpoint: one runs the queries, the others wait. Call
    it on the main thread, with a Spark session that exists already, so that a takeover does not wait for Spark.

    `start` starts one query or several and returns them; it is called again whenever this driver gets the lock again.
    The lock is a member of the group `<group>.lock` on one partition of `topic`, which exists; no record of it is read.
    `options` are those of the source: addresses, login and timeouts of the client (`kafka.*`) are used for the lock,
    too. `kafka.session.timeout.ms` is the time until others take over from a driver that was killed.

    SIGTERM, SIGINT, `idle_s` and requests of others end it as in `run_until_stopped`: the queries are drained, and then
    the lock is given up. If the lock is lost (a process that hung), the queries are stopped at once, and this driver
    waits again. Returns how the queries ended, `QueryEnd.WAITED` if none ran at the end.

    Give the source option `onPartitionsLost=fail`: a former owner that wakes up late then ends its query, and does not
    join the queries' group again before it has noticed that it lost the lock.

    Raises the exception of `start`; that of a query which fails, as `run_until_stopped` does, while the lock is held;
    `OptionError` for a wrong option, a missing topic, and for Spark Connect; other errors of this package if the
    brokers refuse the lock's member or do not answer at first.
    """
    check_seconds("timeout_s", timeout_s)
    check_seconds("idle_s", idle_s)
    if has_remote_session():
        raise OptionError(errors.OWNER_BY_CONNECT)
    settings = lock_options(group, topic, options)

    def watched(queries: Sequence[StreamingQuery]) -> WatchedQueries:
        return WatchedQueries(queries, timeout_s=timeout_s, idle_s=idle_s, checkpoint_location=checkpoint_location)

    with on_end_signals(timeout_s) as requested:
        length = _session_length(settings)
        with OwnerLock(settings, length=length) as lock:
            driver = _Driver(lock, settings, requested, start=start, watched=watched, timeout_s=timeout_s)
            while (end := driver.run_once()) is None:
                pass
            return end


class _Driver:
    """One driver of several."""

    def __init__(
        self,
        lock: OwnerLock,
        settings: SourceOptions,
        requested: EndRequest,
        *,
        start: Callable[[], StartedQueries],
        watched: Callable[[Sequence[StreamingQuery]], WatchedQueries],
        timeout_s: float,
    ) -> None:
        self._lock = lock
        self._settings = settings
        self._requested = requested
        self._start = start
        self._watched = watched
        self._timeout_s = timeout_s
        self._restarts = 0
        # A driver that has just owned the lock knows that it runs.
        self._is_new = True

    def run_once(self) -> QueryEnd | None:
        """Wait for the lock, and run the queries once. Return their end; None if the driver goes on.

        Guards against:
        1. A driver is stopped (SIGSTOP) with a batch in flight, and another one takes over.
        2. It wakes up. Its query fails, because the other one has recorded the batch first. Or the other way round.
        3. The failure would end a driver that is the owner, or a standby that is needed later.
        So the coordinator decides who owns the lock before the end of a query counts. The owner starts again, a driver
        that is none waits.
        """
        if not self._await_lock():
            return QueryEnd.WAITED
        began_s = time.monotonic()
        queries, gave_way = self._run()
        if self._requested.stop:
            return queries.result()
        if gave_way or self._lock.settled(_SETTLE_S) is LockState.WAITING:
            self._waits_again(queries)
        elif not self._may_start_again(queries, began_s):
            return queries.result()
        return None

    def _run(self) -> tuple[WatchedQueries, bool]:
        """Start the queries and run them until they have to end. Return them, and whether they gave way.

        Afterwards none runs.

        Guards against:
        1. `start` starts one query, and fails before it starts the next one. Or what it returns is refused.
        2. The lock is given up, and the next driver starts its queries.
        3. The program catches the error and goes on: two drivers have a query of one checkpoint.
        """
        before = set(_active())
        queries: Sequence[StreamingQuery] = ()
        try:
            started = self._start()
            queries = started if isinstance(started, Sequence) else [started]
            watched = self._watched(_local(queries))
            # The JVM may have been started by `start`.
            JvmSignals.install(self._timeout_s)
            watched.wait(self._requested, lambda: self._lock.gives_way)
            watched.drain(self._requested, lambda: self._lock.stops_at_once)
            watched.report()
        except BaseException:
            left = {run: query for run, query in _active().items() if run not in before}
            for query in (*queries, *left.values()):
                with contextlib.suppress(Exception):
                    query.stop()
            raise
        else:
            return watched, self._lock.gives_way
        finally:
            self._lock.ended()

    def _await_lock(self) -> bool:
        """Wait until this driver may start its queries. Return False if a stop was requested before."""
        notice = Pace(SystemClock(), _NOTICE_S)
        notice.wait()
        first = Deadline(SystemClock(), _FIRST_NOTICE_S)
        while not self._requested.stop:
            if self._lock.state is LockState.OWNED and self._lock.take():
                say(f"this driver owns the lock of group {self._settings.group_id}: the queries start")
                self._is_new = False
                return True
            if (self._is_new and first.expired()) or notice.due():
                self._is_new = False
                known = ", ".join(sorted(members(self._settings))) or "none known"
                say(f"this driver waits for the lock of group {self._settings.group_id}; its members: {known}")
            time.sleep(_STEP_S)
        return False

    def _waits_again(self, queries: WatchedQueries) -> None:
        for failure in queries.failures():
            LOG.info("a query of a driver without the lock has failed", exc_info=failure)
        say(f"this driver has given up the lock of group {self._settings.group_id}, and waits again")
        self._restarts = 0

    def _may_start_again(self, queries: WatchedQueries, began_s: float) -> bool:
        failures = queries.failures()
        if not failures or not all(_BY_FORMER_OWNER.search(str(failure)) for failure in failures):
            return False
        self._restarts = 1 if time.monotonic() - began_s > _ROW_S else self._restarts + 1
        if self._restarts > _RESTARTS:
            return False
        say("this driver starts its queries again: a former owner was in the way")
        LOG.info("a former owner was in the way", exc_info=failures[0])
        return True


def _active() -> dict[str, StreamingQuery]:
    """Return the queries that run in this program's session, by run."""
    session = SparkSession.getActiveSession()
    return {} if session is None else {str(query.runId): query for query in session.streams.active}


def _session_length(settings: SourceOptions) -> SessionLength:
    """Return the session of the lock's member.

    Raises an error of the catalogue unless the lock's topic exists and the brokers answer.
    """
    cluster, length = LibrdkafkaCluster(settings, SystemClock(), time.sleep), SessionLength(settings)
    try:
        cluster.describe(settings.subscription.topics)
        if length.is_the_brokers:
            length.learn(cluster.group_session_s(settings.group_id))
    finally:
        cluster.close()
    return length


def _local(queries: Sequence[StreamingQuery]) -> Sequence[StreamingQuery]:
    """Return the queries. Raises ValueError if there is none, and `OptionError` for those of a Spark Connect server."""
    if not queries:
        raise ValueError("start of run_when_owner returned no query")
    if any(is_remote(query) for query in queries):
        raise OptionError(errors.OWNER_BY_CONNECT)
    return queries
