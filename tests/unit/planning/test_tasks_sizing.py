"""How large tasks are, by how long the last batches took."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_groupsource.model.offsets import OffsetRange
from spark_groupsource.planning.tasks import PACK_RECORDS, TaskSizing
from tests.unit.fakes import make_options, tp


class Bed:
    """Batches that read a number of records each from partitions, and take their time."""

    def __init__(self, **options: str) -> None:
        self.now_s = 1000.0
        self.sizing = TaskSizing(make_options(**options))

    def sizes(self, *records: int) -> list[int]:
        """Return how many records each task of a batch reads."""
        ranges = [OffsetRange(tp(number), 0, count) for number, count in enumerate(records)]
        return [sum(map(len, task)) for task in self.sizing.tasks(ranges, self.now_s)]

    def batch(self, took_s: float, *records: int) -> Sequence[int]:
        """Run a batch to its end."""
        sizes = self.sizes(*records)
        self.now_s += took_s
        self.sizing.completed(self.now_s)
        return sizes


def test_before_anything_is_measured() -> None:
    assert Bed().sizes(PACK_RECORDS // 2, PACK_RECORDS // 2, 10_000_000) == [PACK_RECORDS, 10_000_000]


@pytest.mark.parametrize(
    ("partitions", "records", "tasks"),
    [
        (64, 30_000, 22),  # three of them are 90,000
        (256, 10_000, 26),  # ten of them are 100,000
        (4, 25_000, 4),  # 100,000 in one task would be read by one core
        (64, 3_000, 16),  # a sixteenth of them each
    ],
)
def test_before_anything_is_measured_many_partitions_share_tasks(partitions: int, records: int, tasks: int) -> None:
    assert len(Bed().sizes(*[records] * partitions)) == tasks


def test_fast_tasks_take_more_partitions() -> None:
    bed = Bed()
    bed.batch(1.0, 1_000_000)
    assert bed.sizes(40_000, 40_000, 40_000, 40_000) == [80_000, 80_000]  # up to 100,000, in 0.1 s


def test_a_task_of_more_than_some_seconds_is_split() -> None:
    bed = Bed()
    bed.batch(20.0, 1_000_000)
    assert bed.sizes(1_000_000, 200_000) == [250_000] * 4 + [200_000]


def test_the_largest_rate_counts_and_fades() -> None:
    """A split batch on one core takes as long as a whole one, which says nothing against its rate."""
    bed = Bed()
    bed.batch(20.0, 1_000_000)
    for _ in range(20):
        bed.batch(20.0, 1_000_000)
    # 50,000 records a second at first. 0.8 of it is the rate then, until pieces have become small enough to show more.
    assert min(bed.sizes(1_000_000)) >= 100_000


def test_small_batches_show_nothing() -> None:
    bed = Bed()
    bed.batch(1.0, 1_000_000)
    for _ in range(50):
        bed.batch(0.1, 100)
    assert bed.sizes(20_000, 20_000) == [40_000]


def test_a_batch_that_waited_for_its_trigger_does_not_make_tasks_tiny() -> None:
    bed = Bed()
    for _ in range(50):
        bed.batch(30.0, PACK_RECORDS)
    assert bed.sizes(5_000, 5_000, 90_000) == [10_000, 90_000]


def test_options_have_precedence() -> None:
    bed = Bed(maxRecordsPerPartition="600000", minPartitions="2")
    bed.batch(20.0, 1_000_000)
    assert bed.sizes(1_000_000) == [500_000, 500_000]
    assert bed.sizes(5_000, 5_000) == [5_000, 5_000]
