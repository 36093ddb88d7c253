"""Measure the lag of a running query for its metrics, on a thread of its own that never delays a batch.

The thread owns the clients that measure. It knows the member only by its frozen view, which it requests as the main
thread does. It ends by itself after a stop was requested.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.port import leaderless_reason
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.lag.measure import LagRequests
from spark_groupsource.lag.model import Lag, lag_of, total
from spark_groupsource.membership.machine import MemberState
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.metrics import MetricsLog

LOG = logging.getLogger(__name__)

# Seconds until a stop is noticed.
_STEP_S = 0.1
# Seconds that a stop waits for a request under way. The process ends even if the request does not.
_STOP_S = 1.0
# Seconds between two tries while there is nothing to measure yet.
_RETRY_S = 1.0


class LagThread:
    """Write an event `lag` per interval: the lag of the group on the partitions of this member.

    The lag is measured from the group's offset: records that a crash would repeat count as lag.
    """

    def __init__(
        self,
        interval_s: float,
        *,
        clock: Clock,
        member: MembershipThread,
        requests: LagRequests,
        metrics: MetricsLog,
        pause: Callable[[float], object],
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._member = member
        self._requests = requests
        self._metrics = metrics
        self._pause = pause
        self._trouble = False
        self._thread = threading.Thread(target=self.run, name="groupkafka-lag", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait a moment for the thread, which ends after a stop was requested."""
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def run(self) -> None:
        """Measure until a stop is requested. Lag thread only."""
        wait = Deadline(self._clock, 0.0)
        while not self._member.stopping:
            if wait.expired():
                measured = self._measured()
                wait = Deadline(self._clock, self._interval_s if measured else min(self._interval_s, _RETRY_S))
            self._pause(_STEP_S)
        self._requests.close()

    def _measured(self) -> bool:
        """Measure once. Return False if there is nothing to measure. An error is logged once until it is over.

        After an error there is no lag for the port: an old one would hide the outage.
        """
        try:
            measured = self._measure()
        except Exception as error:  # noqa: BLE001 - a query does not fail for its metrics
            self._metrics.totals.forget_lag()
            if not self._trouble and not self._member.stopping and not self._member.failed:
                self._trouble = True
                LOG.warning("the lag is not measured: %s", error)
            return True
        if measured and self._trouble:
            self._trouble = False
            LOG.info("the lag is measured again")
        return measured

    def _measure(self) -> bool:
        view = self._member.view()
        if view.state is not MemberState.JOINED:
            return False
        committed = {
            owned.partition: owned.group.offset
            for owned in view.partitions
            # Before its start position is pinned, it is not known which records are to be read.
            if owned.position is not None and owned.group is not None and owned.group.offset is not None
        }
        if not committed:
            return False
        lag_inputs = self._requests.lag_inputs(committed)
        leaderless = sorted(one.partition for one in lag_inputs if one.end is None)
        if len(leaderless) == len(lag_inputs):
            reason = leaderless_reason(leaderless)
            raise KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request="ListOffsets", reason=reason)
        now_ms = int(self._clock.epoch_s() * 1000)
        lags = [lag_of(lag_input, now_ms) for lag_input in lag_inputs if lag_input.end is not None]
        if not self._member.stopping:
            self._metrics.write("lag", (lag.partition for lag in lags), **lag_details(lags), leaderless=leaderless)
        return True


def lag_details(lags: list[Lag]) -> dict[str, Any]:
    """Return an event's details: [topic, partition, records, seconds behind, seconds safe] of each, and the total."""
    records, lost, behind_s, safe_s = total(lags)
    return {
        "lag": [[*lag.partition, lag.records, _rounded(lag.behind_s), _rounded(lag.safe_s)] for lag in lags],
        "total": {"records": records, "lost": lost, "behind_s": _rounded(behind_s), "safe_s": _rounded(safe_s)},
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
