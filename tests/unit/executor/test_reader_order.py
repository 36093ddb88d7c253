"""The order of a task's rows: the concatenation of its ranges, whatever arrives first and however little is kept."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_groupsource.executor.clients.port import EndOfPartition, FetchedItem
from spark_groupsource.executor.clients.rows import record_batch
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.reader import read_ranges
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from tests.unit.assigning import PROPERTIES, SEEDS
from tests.unit.fakes import FakeMessage, ManualClock, make_options, tp

Rows = list[tuple[int, int]]


class Sized(FakeMessage):
    """A record with a value of a given size."""

    def __init__(self, partition: TopicPartition, offset: int, size: int) -> None:
        super().__init__(partition, offset)
        self.size = size

    def value(self) -> bytes:
        """Return that many bytes."""
        return bytes(self.size)


class ArrivingLogs:
    """A `FetchClient` on logs: what arrives next is drawn at random among the partitions that are assigned."""

    def __init__(self, logs: Mapping[TopicPartition, Sequence[int]], ends: Mapping[TopicPartition, int], seed: int,
                 sizes: Mapping[TopicPartition, int] | None = None) -> None:  # fmt: skip
        self.logs, self.ends, self.sizes = logs, ends, dict(sizes or {})
        self.random = random.Random(seed)
        self.next: dict[TopicPartition, int] = {}
        self.queues: dict[TopicPartition, list[FetchedItem]] = {}
        self.most = 0
        self.told: set[TopicPartition] = set()
        self.delivered = 0
        # Never answers for these, as long as others have something.
        self.last: frozenset[TopicPartition] = frozenset()

    def hold_at_most(self, max_bytes: int) -> None:
        """Hold nothing outside of the queues."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on there."""
        assert not positions.keys() & self.next.keys()
        self.next |= positions
        self.queues |= {partition: [] for partition in positions}
        self.most = max(self.most, len(self.next))

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Forget them."""
        for partition in partitions:
            del self.next[partition], self.queues[partition]
            self.told.discard(partition)

    def receive(
        self, partition: TopicPartition, max_records: int, max_bytes: int, timeout_s: float
    ) -> Sequence[FetchedItem]:
        """Let pieces of some partitions arrive, and deliver what has arrived of this one."""
        del max_bytes, timeout_s
        for _ in range(self.random.randint(1, 3)):
            self._arrive(max_records)
        items, self.queues[partition] = self.queues[partition], []
        return items

    def _arrive(self, most: int) -> None:
        ready = [p for p in sorted(self.next) if p not in self.told]
        ready = [p for p in ready if p not in self.last] or ready
        if not ready or most <= 0:
            return
        partition = self.random.choice(ready)
        left = [offset for offset in self.logs[partition] if offset >= self.next[partition]]
        taken = left[: min(most, self.random.randint(1, 7))]
        if not taken:
            self.queues[partition].append(EndOfPartition(partition, self.ends[partition]))
            self.told.add(partition)
            return
        self.delivered += len(taken)
        self.next[partition] = taken[-1] + 1
        messages = [Sized(partition, offset, self.sizes.get(partition, 10)) for offset in taken]
        self.queues[partition].append(record_batch(partition, messages, False))

    def waiting(self, partition: TopicPartition) -> int:
        """Return how much of it has arrived."""
        return len(self.queues[partition])

    def passed(self, partition: TopicPartition) -> int:
        """Tell nothing of markers."""
        del partition
        return -1

    def request_leaders(self, topic: str, timeout_s: float) -> None:
        """Know every topic."""

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Return the log's bounds."""
        del timeout_s
        return 0, self.ends[partition]

    def close(self) -> None:
        """Do nothing."""


def consumer_on(client: ArrivingLogs, max_bytes: int, *, bulk: bool) -> RangeConsumer:
    return RangeConsumer(make_options(), lambda _: client, 1, max_bytes, ManualClock(), bulk=bulk)


def read(consumer: RangeConsumer, ranges: Sequence[OffsetRange]) -> Rows:
    consumer.move_to(ranges)
    batches = list(read_ranges(make_options(), consumer, ranges, ManualClock(), 120.0))
    rows = pa.Table.from_batches(batches).to_pylist() if batches else []
    return [(row["partition"], row["offset"]) for row in rows]


@st.composite
def logs_and_ranges(draw: st.DrawFn) -> tuple[dict[TopicPartition, list[int]], list[list[OffsetRange]]]:
    """Return logs with gaps, and two tasks, one behind the other, of ranges in some order."""
    logs: dict[TopicPartition, list[int]] = {}
    tasks: list[list[OffsetRange]] = [[], []]
    numbers = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    for number in numbers:
        present = draw(st.lists(st.booleans(), min_size=1, max_size=40))
        logs[tp(number)] = [offset for offset, there in enumerate(present) if there]
        cuts = sorted(draw(st.lists(st.integers(0, len(present)), min_size=3, max_size=3)))
        tasks[0].append(OffsetRange(tp(number), cuts[0], cuts[1]))
        tasks[1].append(OffsetRange(tp(number), cuts[1], cuts[2]))
    return logs, [[item for item in task if len(item)] for task in tasks]


@settings(PROPERTIES, max_examples=300)
@given(drawn=logs_and_ranges(), seed=SEEDS, kept=st.sampled_from([0, 3_000, 12_000, 60_000, 10**6]), bulk=st.booleans())
@example(
    drawn=({tp(0): [0], tp(1): [0]}, [[OffsetRange(tp(1), 0, 1), OffsetRange(tp(0), 0, 1)], []]),
    seed=1, kept=0, bulk=False,
)  # fmt: skip
def test_p1_p2_p3_for_any_order_of_arrival_the_rows_are_the_ranges_one_after_the_other(
    drawn: tuple[dict[TopicPartition, list[int]], list[list[OffsetRange]]], seed: int, kept: int, bulk: bool
) -> None:
    """On a cold consumer, on the same one behind that (warm), and on a consumer that stood elsewhere (moved)."""
    logs, (first, second) = drawn
    ends = {p: max([*log, *(r.end - 1 for r in (*first, *second) if r.partition == p)], default=0) + 1
            for p, log in logs.items()}  # fmt: skip
    client = ArrivingLogs(logs, ends, seed)
    consumer = consumer_on(client, kept, bulk=bulk)

    def wanted(task: Sequence[OffsetRange]) -> Rows:
        return [(r.partition.partition, o) for r in task for o in logs[r.partition] if r.start <= o < r.end]

    for task in (first, second, first):
        if task:
            assert read(consumer, task) == wanted(task)


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_few_partitions_are_fetched_while_the_first_range_is_away(seed: int, bulk: bool) -> None:
    """Its leader answers last of all, and the memory has no room for all ranges."""
    logs = {tp(number): list(range(200)) for number in range(40)}
    client = ArrivingLogs(logs, dict.fromkeys(logs, 200), seed, dict.fromkeys(logs, 1_000))
    client.last = frozenset([tp(0)])
    consumer = consumer_on(client, 0, bulk=bulk)
    ranges = [OffsetRange(tp(number), 0, 200) for number in range(40)]
    assert read(consumer, ranges) == [(number, offset) for number in range(40) for offset in range(200)]
    assert client.most == (8 if bulk else 2)
    assert client.delivered == 40 * 200, "nothing is fetched twice"
