"""The consumers of one Python worker, kept between tasks so that steady state makes no new connection.

Spark gives a partition now to this worker, now to that one, so a kept consumer often stands a little behind the
wanted start, or nowhere near it. `_choose` says which one is cheapest. One that nobody has used for some seconds rests:
connected, but fetching nothing. One that stays unused is closed.

A task whose ranges do not fit together into what one of several consumers may keep gets a bulk consumer, and the whole
memory of the worker: the others rest meanwhile, and it rests after the task. Guards against: 1. Four consumers share
the memory. 2. Each task has four ranges of 5 MB, and a consumer may keep 4 MB. 3. The ranges are fetched one after the
other, and each assignment waits for a fetch of partitions that have no more records: measured six times slower.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.executor.clients.choose import make_client
from spark_groupsource.executor.range_consumer import REST_AFTER_S, RangeConsumer
from spark_groupsource.executor.row_buffer import UNKNOWN_RECORD_BYTES
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.executor")

# A worker runs one task at a time; several consumers keep the places of large partitions apart. Each costs a few
# threads, and its share of the memory for records fetched ahead: the client's queue, and what was taken out of it.
MAX_CONSUMERS = 4
_QUEUE_SHARE = 0.75
IDLE_TIMEOUT_S = 120.0
# For so many partitions a consumer asks for the most of each (`executor_settings`).
_FEW = 3

Key = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Idle:
    key: Key
    consumer: RangeConsumer
    since_s: float
    group_id: str


def pool_key(options: SourceOptions) -> Key:
    """Return what two readers must have in common to share a consumer."""
    settings = dict(options.client_settings) | {
        "bootstrap.servers": options.bootstrap_servers,
        "(headers)": str(options.include_headers),
        "(memory)": str(options.prefetch_memory_bytes),
    }
    return tuple(sorted(settings.items()))


def queue_bytes(options: SourceOptions) -> int:
    """Return how much one consumer's queue may hold."""
    return int(options.prefetch_memory_bytes // MAX_CONSUMERS * _QUEUE_SHARE)


def kept_bytes(options: SourceOptions, consumers: int) -> int:
    """Return how much one of so many consumers may keep besides its queue."""
    return options.prefetch_memory_bytes // consumers - queue_bytes(options)


def make_consumer(options: SourceOptions, partitions: int, bulk: bool = False) -> RangeConsumer:
    """Return a new consumer for about so many partitions; what it may keep depends on the others."""
    # A bulk consumer fetches only as many at once as it has room for, so it asks for the most of each.
    at_once = 1 if bulk else partitions
    make = functools.partial(make_client, max_queued_bytes=queue_bytes(options), partitions=at_once, bulk=bulk)
    return RangeConsumer(options, make, partitions, bulk=bulk)


def fits(consumer: RangeConsumer, partitions: int, bulk: bool = False) -> bool:
    """Whether a consumer is of the kind, and its answers leave room for so many partitions."""
    return consumer.bulk == bulk and (bulk or partitions <= 2 * max(_FEW, consumer.partitions))


def takes_bulk(options: SourceOptions, ranges: Sequence[OffsetRange], record_bytes: int) -> bool:
    """Whether the ranges behind the first are more than one of all consumers may keep (`RangeConsumer`)."""
    return sum(map(len, ranges[1:])) * record_bytes > kept_bytes(options, MAX_CONSUMERS) * 3 // 4


class ConsumerPool:
    """Idle consumers, oldest first. Thread-safe. `pause` makes the housekeeper wait; tests do without the thread."""

    def __init__(
        self,
        make: Callable[[SourceOptions, int, bool], RangeConsumer] = make_consumer,
        clock: Clock | None = None,
        pause: Callable[[float], None] | None = time.sleep,
    ) -> None:
        self._make = make
        self._clock = clock or SystemClock()
        self._pause = pause
        # Notified when the housekeeper has put back what it had taken.
        self._lock = threading.Condition()
        self._idle: list[_Idle] = []
        self._busy = False
        self._housekeeper: threading.Thread | None = None

    def __repr__(self) -> str:
        resting = sum(not entry.consumer.assigned for entry in self._idle)
        return f"ConsumerPool(idle={len(self._idle)}, resting={resting})"

    def take(
        self, options: SourceOptions, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str] = {}
    ) -> RangeConsumer:
        """Return a consumer that stands at the start of the ranges; a new one only while there is room.

        `topic_ids` are those that the ranges were planned for; what has read other topics of these names is closed.
        """
        key = pool_key(options)
        with self._lock:
            self._lock.wait_for(lambda: not self._busy)
            # R59: has read another topic id
            closing = [entry for entry in self._idle if entry.key == key and not entry.consumer.current(topic_ids)]
            self._remove(closing)
            full = len(self._idle) >= MAX_CONSUMERS
            alike = [entry for entry in self._idle if entry.key == key]
            record_bytes = max((entry.consumer.record_bytes for entry in alike), default=UNKNOWN_RECORD_BYTES)
            bulk = takes_bulk(options, ranges, record_bytes)
            usable = [entry for entry in alike if fits(entry.consumer, len(ranges), bulk)]
            found = _choose(usable, ranges, full, options.group_id)
            if found is None and full:
                closing.append(self._idle.pop(0))
            if found is not None:
                self._idle.remove(found)
            consumers = 1 if bulk else len(self._idle) + 1
            broken = [entry for entry in self._idle if _fails(_make_room, entry, None if bulk else consumers)]
            self._remove(broken)
        closing += broken
        for entry in closing:
            _fails(entry.consumer.close)
        consumer = found.consumer if found is not None else self._make(options, len(ranges), bulk)
        try:
            consumer.serve(options)
            consumer.keep_at_most(kept_bytes(options, consumers), {item.partition for item in ranges})
            consumer.position_at(ranges, topic_ids)
        except BaseException:
            consumer.close()
            raise
        return consumer

    def give_back(self, options: SourceOptions, consumer: RangeConsumer) -> None:
        """Keep a consumer for the next task."""
        if consumer.bulk:
            consumer.rest()
        with self._lock:
            self._idle.append(_Idle(pool_key(options), consumer, self._clock.monotonic_s(), options.group_id))
            if self._housekeeper is None and self._pause is not None:
                self._housekeeper = threading.Thread(target=self._keep_house, name="groupkafka-pool", daemon=True)
                self._housekeeper.start()

    def tidy(self) -> float | None:
        """Let consumers rest or close them when their time has come; return the seconds until the next such time."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            old = [entry for entry in self._idle if now_s - entry.since_s >= IDLE_TIMEOUT_S]
            tired = [entry for entry in self._idle if now_s - entry.since_s >= REST_AFTER_S and entry not in old]
            tired = [entry for entry in tired if entry.consumer.assigned]
            self._remove(old)
            # While it is set nobody takes a consumer: resting is a matter of milliseconds.
            self._busy = bool(tired)
        broken = [entry for entry in tired if _fails(entry.consumer.rest)]
        with self._lock:
            self._remove(broken)
            self._busy = False
            self._lock.notify_all()
        for entry in [*old, *broken]:
            _fails(entry.consumer.close)
        with self._lock:
            waits = [_due_s(entry) - now_s for entry in self._idle]
        return max(0.0, min(waits)) if waits else None

    def _remove(self, entries: Collection[_Idle]) -> None:
        self._idle = [entry for entry in self._idle if entry not in entries]

    def _keep_house(self) -> None:
        """Housekeeper's thread: ends when nothing is left to look after."""
        while self._pause is not None:
            wait_s = self.tidy()
            with self._lock:
                if wait_s is None and not self._idle:
                    self._housekeeper = None
                    return
            self._pause(max(0.1, wait_s or 0.0))


def _fails(do: Callable[..., None], *args: object) -> bool:
    """Do something to an idle consumer; whether that failed, of which nobody but the log is told.

    The sequences this protects against: a client fails when it is to rest, the housekeeper's thread ends, and no
    consumer ever rests or is closed again; or it fails when it is to keep less, and a task fails that has another one.
    """
    try:
        do(*args)
    except Exception:
        LOG.warning("an idle consumer is given up", exc_info=True)
        return True
    return False


def _make_room(entry: _Idle, consumers: int | None) -> None:
    """Share the memory among so many consumers, or leave it to another one."""
    if consumers is None:
        entry.consumer.rest()
    else:
        entry.consumer.keep_at_most(kept_bytes(entry.consumer.options, consumers))


def _due_s(entry: _Idle) -> float:
    return entry.since_s + (REST_AFTER_S if entry.consumer.assigned else IDLE_TIMEOUT_S)


def _choose(idle: Sequence[_Idle], ranges: Sequence[OffsetRange], full: bool, group_id: str) -> _Idle | None:
    """Return the idle consumer that gets to the ranges at the least cost; None: a new one is better.

    1. One that fetches all their partitions, nearest to the starts.
    2. One that stands well in half of them, or that this group's tasks left behind in one: its place there is of no use
       to anybody. Another group, which reads the same topic, comes back to where its tasks left off.
    3. One that rests: no fetch is under way that would have to end first.
    4. A new one, while there is room.
    5. The one with the fewest partitions; these become more, and those that nobody uses are dropped in time.
    """
    distances = [(*entry.consumer.distance(ranges), index) for index, entry in enumerate(idle)]
    near = min(distances, default=None)
    if near is not None and near[0] * 2 <= len(ranges):
        return idle[near[2]]
    left_behind = (entry for entry in idle if entry.group_id == group_id and entry.consumer.shares(ranges))
    resting = (entry for entry in idle if not entry.consumer.assigned)
    for entry in (*left_behind, *resting):
        return entry
    return min(idle, key=lambda entry: entry.consumer.assigned) if full and idle else None


POOL = ConsumerPool()
