"""Says when to look into Spark's commit log while a batch is in flight.

At the next trigger Spark tells a source that a batch is complete; its commit log says it at once. With looks at the log
the group's offsets move when the batch ends, however long the trigger's interval is, and the trigger that comes does
not have to wait for the group's answer.

The longer a batch or a look takes the rarer the looks, so that they are a small part of it: a look at a local
checkpoint costs some microseconds. It is a request to a store elsewhere: then only a revoke or a stop looks, which wait
for the batch.
"""

from __future__ import annotations

from spark_groupsource.clock import Clock
from spark_groupsource.membership.events import FlightBatch

_SHORTEST_S = 0.004
_LONGEST_S = 1.0
# How late the end of a batch may be seen, as a part of what the batch took; and what part of the time looks may take.
_SHARE = 0.05


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
