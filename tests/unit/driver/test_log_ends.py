"""How often the cluster is asked how much there is to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from spark_groupsource.cluster.offset_lookup import all_partitions
from spark_groupsource.cluster.port import Edge, LogEnd, LogSurvey
from spark_groupsource.driver.log_ends import IDS_AGE_S, SURVEY_AGE_S, LogWatch
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.fakes import FakeCluster, ManualClock, tp

P0, P1 = tp(0), tp(1)


class CountingCluster(FakeCluster):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(orders=2)
        self.asked: list[str] = []

    def log_offsets(self, wanted: Mapping[TopicPartition, Edge | int]) -> dict[TopicPartition, LogEnd | None]:
        self.asked.append("ends")
        return super().log_offsets(wanted)

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        found = super().survey(partitions)
        self.asked = [*self.asked[:-2], "survey"]
        return found


class Bed:
    """A watch over two partitions with 500 records each, which a last trigger found worth reading."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = CountingCluster()
        self.logs = LogWatch(self.cluster, self.clock)
        self.cluster.ends = {P0: 500, P1: 500}
        self.plan(0, 0, None)
        self.cluster.asked.clear()
        self.clock.advance(SURVEY_AGE_S)

    def plan(self, p0: int, p1: int, limit: int | None) -> list[int]:
        """Look, and survey when there is something to read; return the backlogs' sizes."""
        backlogs = self.logs.backlogs({P0: p0, P1: p1}, limit)
        if self.logs.enough(backlogs, None) or self.logs.suspicious(backlogs) or self.logs.ids_due:
            self.logs.survey(backlogs)
        return [backlogs[partition].size for partition in (P0, P1)]


def test_a_trigger_with_records_is_one_survey() -> None:
    bed = Bed()
    assert bed.plan(0, 0, 100) == [500, 500]
    assert bed.cluster.asked == ["survey"]


def test_an_idle_trigger_is_one_small_request() -> None:
    bed = Bed()
    assert bed.plan(500, 500, None) == [0, 0]
    assert bed.plan(500, 500, None) == [0, 0]
    assert bed.cluster.asked == ["survey", "ends"]
    bed.cluster.ends[P0] = 501
    assert bed.plan(500, 500, None) == [1, 0]
    assert bed.cluster.asked == ["survey", "ends", "ends", "survey"]


@pytest.mark.rule("R35")
def test_idle_triggers_ask_for_the_topics_ids_every_five_seconds() -> None:
    bed = Bed()
    bed.plan(500, 500, None)
    for _ in range(3):
        bed.clock.advance(IDS_AGE_S / 2)
        bed.plan(500, 500, None)
    assert bed.cluster.asked == ["survey", "ends", "ends", "survey", "ends"]


def test_a_backlog_that_fills_the_batch_is_not_asked_for_again() -> None:
    bed = Bed()
    bed.plan(0, 0, 100)
    bed.clock.advance(SURVEY_AGE_S / 2)
    assert bed.plan(50, 50, 900) == [450, 450]
    assert bed.cluster.asked == ["survey"]
    assert bed.logs.newest == {P0: 500, P1: 500}


@pytest.mark.parametrize(("limit", "later_s"), [(901, 0.0), (None, 0.0), (900, SURVEY_AGE_S)])
def test_what_is_asked_for_again(limit: int | None, later_s: float) -> None:
    """A batch that would not be full, or has no bound: newer records belong to it. An old survey."""
    bed = Bed()
    bed.plan(0, 0, 100)
    bed.clock.advance(later_s)
    bed.cluster.ends[P0] = 700
    assert bed.plan(50, 50, limit) == [650, 450]
    assert bed.cluster.asked == ["survey", "survey"]


def test_a_partition_that_the_survey_does_not_have() -> None:
    bed = Bed()
    bed.logs.backlogs({P0: 0}, 100)
    assert bed.plan(0, 0, 100) == [500, 500]
    assert bed.cluster.asked == ["survey", "survey"]


def test_a_partition_that_is_no_longer_owned_counts_for_nothing() -> None:
    bed = Bed()
    bed.plan(0, 0, 100)
    assert bed.logs.backlogs({P1: 0}, 500)[P1].size == 500
    assert bed.logs.newest == {P1: 500}
    assert bed.cluster.asked == ["survey"]
    bed.logs.backlogs({P1: 0}, 501)
    assert bed.cluster.asked == ["survey", "survey"]


def test_available_now_ends_at_its_targets() -> None:
    bed = Bed()
    bed.logs.fix_targets(all_partitions(bed.cluster.describe(["orders"])))
    bed.cluster.ends = {P0: 900, P1: 900}
    assert bed.logs.targets == {P0: 500, P1: 500}
    assert bed.plan(100, 500, None) == [400, 0]
    assert bed.plan(500, 500, None) == [0, 0]
