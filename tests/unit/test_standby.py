"""When the driver's consumer is put at the offsets of what the member stands by for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_groupsource.commits import GroupOffset
from spark_groupsource.offsets import TopicPartition
from spark_groupsource.standby import Standby

from .fakes import ManualClock, tp

P0, P1 = tp(0), tp(1)


class Member:
    """What the member says."""

    def __init__(self) -> None:
        self.parts: frozenset[TopicPartition] = frozenset()
        self.offsets: dict[TopicPartition, GroupOffset] = {}

    def standby(self) -> frozenset[TopicPartition]:
        return self.parts

    def fetch_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        return {partition: self.offsets[partition] for partition in partitions if partition in self.offsets}


class Stage(Member):
    """A member that stands by, and a lane that is told to be warm."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.warmed: list[dict[TopicPartition, int]] = []
        self._standby = Standby(self, self.clock)  # type: ignore[arg-type]

    def warm(self, positions: Mapping[TopicPartition, int]) -> None:
        self.warmed.append(dict(positions))

    def trigger(self) -> None:
        self._standby.keep_warm(self)  # type: ignore[arg-type]


def test_a_member_that_stands_by_for_nothing_asks_nothing() -> None:
    stage = Stage()
    stage.trigger()
    assert stage.warmed == []


def test_at_once_when_it_changes_and_every_30_s_otherwise() -> None:
    stage = Stage()
    stage.parts, stage.offsets = frozenset({P0}), {P0: GroupOffset(5, "")}
    stage.trigger()
    stage.trigger()
    assert stage.warmed == [{P0: 5}]
    stage.offsets[P0] = GroupOffset(9, "")
    stage.clock.advance(30)
    stage.trigger()
    assert stage.warmed == [{P0: 5}, {P0: 9}]
    stage.parts, stage.offsets[P1] = frozenset({P0, P1}), GroupOffset(1, "")
    stage.trigger()
    assert stage.warmed[-1] == {P0: 9, P1: 1}


def test_where_the_group_has_no_offset_yet_nothing_is_warm() -> None:
    stage = Stage()
    stage.parts, stage.offsets = frozenset({P0}), {P0: GroupOffset(None, "")}
    stage.trigger()
    assert stage.warmed == [{}]
