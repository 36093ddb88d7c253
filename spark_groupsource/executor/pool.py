"""Keep the consumers of one Python worker between tasks, so that the steady state makes no new connection.

Spark schedules a partition on changing workers, so the position of an idle consumer is often somewhat below the
wanted start, or far from it. `_choose` picks the cheapest consumer. A consumer that is unused for `REST_AFTER_S`
rests: it stays connected and fetches nothing. One that is unused for `IDLE_TIMEOUT_S` is closed.

A task whose ranges do not fit together into the memory share of one consumer gets a bulk consumer, and the whole
memory of the worker: the others rest meanwhile, and the bulk consumer rests after the task. So does a task that reads
more than this memory: to keep its consumer's place saves it nothing, and a new assignment of a consumer that fetches at
the end of a log waits for this fetch (`fetch.wait.max.ms`).

Guards against:
1. Four consumers share the memory.
2. Each task has four ranges of 5 MB, of which a queue holds less.
3. The ranges are fetched again and again while a task reads, and each fetch waits for one of partitions that have no
   more records: measured six times slower.
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
from spark_groupsource.executor.partition_rows import UNKNOWN_RECORD_BYTES
from spark_groupsource.executor.range_consumer import REST_AFTER_S, RangeConsumer, bulk_queues
from spark_groupsource.executor.topic_ids import ClientKey, client_key
from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger(__name__)

# A worker runs one task at a time. With several consumers, large partitions keep their positions. Each consumer costs
# a few threads and its share of the memory for records fetched ahead: the client's queues, and rows read from them.
MAX_CONSUMERS = 4
IDLE_TIMEOUT_S = 120.0
# Up to this many partitions a consumer fetches the largest size from each (`reading_client_settings`).
_FEW = 3

PoolKey = tuple[ClientKey, bool, int]


@dataclass(slots=True)
class _Idle:
    consumer: RangeConsumer
    since_s: float

    @property
    def options(self) -> SourceOptions:
        """The options of the query that has read with it last."""
        return self.consumer.requests.options


def pool_key(options: SourceOptions) -> PoolKey:
    """Return the settings that two readers must have in common to share a consumer."""
    return client_key(options), options.include_headers, options.prefetch_memory_bytes


def share_bytes(options: SourceOptions, consumers: int = MAX_CONSUMERS) -> int:
    """Return how many bytes each consumer may fetch ahead if there are `consumers` of them."""
    return options.prefetch_memory_bytes // consumers


def make_consumer(options: SourceOptions, partitions: int, bulk: bool = False) -> RangeConsumer:
    """Return a new consumer for about `partitions` partitions. `keep_at_most` sets its memory limit."""
    # A bulk consumer has few queues at once, and the whole memory.
    memory = share_bytes(options, 1 if bulk else MAX_CONSUMERS)
    queues = bulk_queues(partitions) if bulk else partitions
    make = functools.partial(make_client, max_queued_bytes=memory, partitions=queues, bulk=bulk)
    return RangeConsumer(options, make, partitions, memory, bulk=bulk)


def fits(consumer: RangeConsumer, partitions: int, bulk: bool = False, size: int = 0) -> bool:
    """Return whether a consumer is of the wanted kind and its fetch sizes are right for `partitions` partitions.

    They leave room for all of them. For a task of `size` bytes that is more than a consumer's share of the memory they
    are not too small either.

    Guards against:
    1. A consumer was made for 32 partitions: its client fetches a 32nd part of the memory from each.
    2. A task reads 50 MB of one partition with it, in 200 fetches instead of 13. Each costs a round trip.
    """
    if consumer.bulk or bulk:
        return consumer.bulk == bulk
    most = 2 * max(_FEW, consumer.partitions)
    is_small = size <= share_bytes(consumer.requests.options)
    return partitions <= most and (is_small or consumer.partitions <= 4 * max(_FEW, partitions))


def takes_bulk(options: SourceOptions, sizes: Sequence[int]) -> bool:
    """Return whether a task exceeds the memory of the worker, or its ranges after the first one consumer's queues.

    `sizes` are those of the ranges, in bytes. A queue has room for half of a partition's share before the client stops
    fetching.
    """
    if sum(sizes) > options.prefetch_memory_bytes:
        return True
    later, room = sizes[1:], share_bytes(options)
    if max(later, default=0) * 2 * len(sizes) <= room:
        return False
    return sum(later) > room * 3 // 16


class ConsumerPool:
    """Hold idle consumers, oldest first. Thread-safe. `pause` is the housekeeper's sleep; None: no such thread."""

    def __init__(
        self,
        make: Callable[[SourceOptions, int, bool], RangeConsumer] = make_consumer,
        clock: Clock | None = None,
        pause: Callable[[float], None] | None = time.sleep,
    ) -> None:
        self._make = make
        self._clock = clock or SystemClock()
        self._pause = pause
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        self._housekeeper: threading.Thread | None = None

    def __repr__(self) -> str:
        resting = sum(not entry.consumer.assigned for entry in self._idle)
        return f"ConsumerPool(idle={len(self._idle)}, resting={resting})"

    def borrow(
        self, options: SourceOptions, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str] = {}
    ) -> RangeConsumer:
        """Return a consumer positioned at the start of the ranges; close an idle one first if the pool is full.

        `topic_ids` are those that the ranges were planned for. Consumers that have read another topic of the same name
        are closed.
        """
        key = pool_key(options)
        with self._lock:
            alike = [entry for entry in self._idle if pool_key(entry.options) == key]
            # R59: has read another topic id
            closing = [entry for entry in alike if not entry.consumer.is_current(topic_ids)]
            self._remove(closing)
            alike = [entry for entry in alike if entry not in closing]
            full = len(self._idle) >= MAX_CONSUMERS
            record_bytes = max((entry.consumer.record_bytes for entry in alike), default=UNKNOWN_RECORD_BYTES)
            sizes = [len(item) * record_bytes for item in ranges]
            bulk = takes_bulk(options, sizes)
            usable = [entry for entry in alike if fits(entry.consumer, len(ranges), bulk, sum(sizes))]
            found = _choose(usable, ranges, full, options.group_id)
            if found is None and full:
                closing.append(self._idle.pop(0))
            if found is not None:
                self._idle.remove(found)
            consumers = 1 if bulk else len(self._idle) + 1
            broken = [entry for entry in self._idle if _fails(_make_room, entry, None if bulk else consumers)]
            self._remove(broken)
        closing += broken
        # R60: outside of the lock, because it waits for a broker
        if found is not None and not found.consumer.follows_leaders(ranges):
            closing.append(found)
            found = None
        for entry in closing:
            _fails(entry.consumer.close)
        consumer = found.consumer if found is not None else self._make(options, len(ranges), bulk)
        try:
            consumer.requests.options = options
            consumer.keep_at_most(share_bytes(options, consumers), {item.partition for item in ranges})
            consumer.move_to(ranges, topic_ids)
        except BaseException:
            consumer.close()
            raise
        return consumer

    def give_back(self, consumer: RangeConsumer) -> None:
        """Keep a consumer for the next task."""
        if consumer.bulk and _fails(consumer.rest):
            # The task has all its rows.
            consumer.close()
            return
        with self._lock:
            self._idle.append(_Idle(consumer, self._clock.monotonic_s()))
            if self._housekeeper is None and self._pause is not None:
                housekeeper = threading.Thread(target=self._keep_house, name="groupkafka-pool", daemon=True)
                try:
                    housekeeper.start()
                except RuntimeError as error:
                    # The task has all its rows.
                    LOG.warning("idle consumers stay open until the next task ends: %s", error)
                else:
                    self._housekeeper = housekeeper

    def tidy(self) -> float | None:
        """Rest or close consumers that are due. Return the seconds until the next one is due, None if none is idle."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            old = [entry for entry in self._idle if now_s - entry.since_s >= IDLE_TIMEOUT_S]
            tired = [entry for entry in self._idle if now_s - entry.since_s >= REST_AFTER_S and entry not in old]
            # A task waits meanwhile: resting lasts milliseconds.
            broken = [entry for entry in tired if _fails(entry.consumer.rest)]
            self._remove([*old, *broken])
            waits = [_due_s(entry) - now_s for entry in self._idle]
        for entry in [*old, *broken]:
            _fails(entry.consumer.close)
        return max(0.0, min(waits)) if waits else None

    def _remove(self, entries: Collection[_Idle]) -> None:
        self._idle = [entry for entry in self._idle if entry not in entries]

    def _keep_house(self) -> None:
        """Run the housekeeper's thread until no consumer is idle."""
        while self._pause is not None:
            wait_s = self.tidy()
            with self._lock:
                if not self._idle:
                    self._housekeeper = None
                    return
            self._pause(max(0.1, wait_s or 0.0))


def _fails(do: Callable[..., None], *args: object) -> bool:
    """Call `do` on an idle consumer; return whether it failed. A failure is logged and not raised.

    Guards against:
    1. A client fails while it is put to rest. The housekeeper's thread ends. No consumer rests or is closed again.
    2. A client fails while its memory is reduced. A task fails that uses another consumer.
    """
    try:
        do(*args)
    except Exception:
        LOG.warning("an idle consumer is given up", exc_info=True)
        return True
    return False


def _make_room(entry: _Idle, consumers: int | None) -> None:
    """Limit an idle consumer to its share of the memory among `consumers`; rest it if that is None."""
    if consumers is None:
        entry.consumer.rest()
    else:
        entry.consumer.keep_at_most(share_bytes(entry.options, consumers))


def _due_s(entry: _Idle) -> float:
    return entry.since_s + (REST_AFTER_S if entry.consumer.assigned else IDLE_TIMEOUT_S)


def _choose(idle: Sequence[_Idle], ranges: Sequence[OffsetRange], full: bool, group_id: str) -> _Idle | None:
    """Return the idle consumer that reaches the ranges at the least cost, None if a new one is better. In order:

    1. The consumer that can continue in most of the partitions, at least half, nearest to the starts.
    2. A consumer that this group has used for one of the partitions: no later task needs its old position. A consumer
       of another group on the same topic is left alone, because that group's next task continues at its position.
    3. A resting consumer: it has no fetch under way that would have to end first.
    4. A new consumer, while there is room.
    5. The consumer with the fewest partitions. The new partitions are added, and unused ones are dropped later.
    """
    distances = [(*entry.consumer.distance(ranges), index) for index, entry in enumerate(idle)]
    near = min(distances, default=None)
    if near is not None and near[0] * 2 <= len(ranges):
        return idle[near[2]]
    left_behind = (entry for entry in idle if entry.options.group_id == group_id and entry.consumer.shares(ranges))
    resting = (entry for entry in idle if not entry.consumer.assigned)
    for entry in (*left_behind, *resting):
        return entry
    return min(idle, key=lambda entry: entry.consumer.assigned) if full and idle else None


POOL = ConsumerPool()
