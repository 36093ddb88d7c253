"""The consumers of one Python worker, kept between tasks so that steady state makes no new connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.executor.consumer import RangeConsumer
from spark_groupsource.offsets import OffsetRange
from spark_groupsource.options import SourceOptions

# A worker runs one task at a time; several consumers let each of its usual partitions keep its place. Each costs
# a few threads and its fetch queue.
MAX_IDLE = 8
IDLE_TIMEOUT_S = 120.0

Key = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Idle:
    key: Key
    consumer: RangeConsumer
    since_s: float


def pool_key(options: SourceOptions) -> Key:
    """Return what two readers must have in common to share a consumer."""
    settings = dict(options.client_settings) | {"bootstrap.servers": options.bootstrap_servers}
    return tuple(sorted(settings.items()))


class ConsumerPool:
    """Idle consumers, oldest first. Thread-safe."""

    def __init__(
        self, make: Callable[[SourceOptions], RangeConsumer] = RangeConsumer, clock: Clock | None = None
    ) -> None:
        self._make = make
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []

    def __repr__(self) -> str:
        return f"ConsumerPool(idle={len(self._idle)})"

    def take(self, options: SourceOptions, ranges: Sequence[OffsetRange]) -> RangeConsumer:
        """Return a consumer that stands at the start of the ranges.

        Preferred is the one that stands there already; else a new one while there is room; else the one that has
        been idle longest, moved without a new connection.
        """
        key, surplus = pool_key(options), []
        with self._lock:
            now_s = self._clock.monotonic_s()
            for entry in [e for e in self._idle if now_s - e.since_s > IDLE_TIMEOUT_S]:
                self._idle.remove(entry)
                surplus.append(entry.consumer)
            same = [entry for entry in self._idle if entry.key == key]
            found = next((entry for entry in same if entry.consumer.positioned_at(ranges)), None)
            if found is None and len(self._idle) >= MAX_IDLE:
                found = same[0] if same else None
                if found is None:
                    surplus.append(self._idle.pop(0).consumer)
            if found is not None:
                self._idle.remove(found)
        for consumer in surplus:
            consumer.close()
        consumer = found.consumer if found is not None else self._make(options)
        consumer.position_at(ranges)
        return consumer

    def give_back(self, options: SourceOptions, consumer: RangeConsumer) -> None:
        """Keep a consumer for the next task."""
        with self._lock:
            self._idle.append(_Idle(pool_key(options), consumer, self._clock.monotonic_s()))


POOL = ConsumerPool()
