"""When the driver's consumer is put at the offsets of what the member stands by for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_groupsource.driver.fast_lane import Standby
from spark_groupsource.membership.member import MemberStatus
from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset, Pin
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from tests.unit.fakes import LINEAGE, ManualClock, tp

P0, P1 = tp(0), tp(1)
EPOCH = 4


def group(offset: int, topic_id: str = "a") -> GroupOffset:
    """Return what the active member has committed."""
    return GroupOffset(offset, CommitMetadata(LINEAGE, topic_id, 0, offset, Pin(0, 2), EPOCH).to_text())


def there(partition: TopicPartition, offset: int) -> OffsetRange:
    return OffsetRange(partition, offset, offset, EPOCH)


class Member:
    """What the member says."""

    def __init__(self) -> None:
        self.parts: frozenset[TopicPartition] = frozenset()
        self.offsets: dict[TopicPartition, GroupOffset] = {}

    @property
    def status(self) -> MemberStatus:
        return MemberStatus(standby=self.parts)

    def fetch_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        return {partition: self.offsets[partition] for partition in partitions if partition in self.offsets}


class Stage(Member):
    """A member that stands by, and a lane that is told to be warm."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.warmed: list[list[OffsetRange]] = []
        self.topic_ids: dict[str, str] = {}
        self._standby = Standby(self, self.clock)  # type: ignore[arg-type]

    def warm(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        self.warmed.append(list(ranges))
        self.topic_ids = dict(topic_ids)

    def trigger(self) -> None:
        self._standby.keep_warm(self)  # type: ignore[arg-type]


def test_a_member_that_stands_by_for_nothing_asks_nothing() -> None:
    stage = Stage()
    stage.trigger()
    assert stage.warmed == []


def test_at_once_when_it_changes_and_every_30_s_otherwise() -> None:
    stage = Stage()
    stage.parts, stage.offsets = frozenset({P0}), {P0: group(5)}
    stage.trigger()
    stage.trigger()
    assert stage.warmed == [[there(P0, 5)]]
    assert stage.topic_ids == {"orders": "a"}
    stage.offsets[P0] = group(9)
    stage.clock.advance(30)
    stage.trigger()
    assert stage.warmed == [[there(P0, 5)], [there(P0, 9)]]
    stage.parts, stage.offsets[P1] = frozenset({P0, P1}), group(1)
    stage.trigger()
    assert stage.warmed[-1] == [there(P0, 9), there(P1, 1)]


def test_what_says_of_no_topic_id_or_of_two_is_not_warm() -> None:
    """What would be fetched might be the records of a topic that was deleted."""
    stage = Stage()
    stage.parts, stage.offsets = frozenset({P0, P1}), {P0: group(5), P1: group(7, "b")}
    stage.trigger()
    assert (stage.warmed, stage.topic_ids) == ([[there(P0, 5)]], {"orders": "a"})
    stage = Stage()
    stage.parts, stage.offsets = frozenset({P0, P1}), {P0: GroupOffset(5, "of another program"), P1: group(7)}
    stage.trigger()
    assert (stage.warmed, stage.topic_ids) == ([[there(P1, 7)]], {"orders": "a"})


def test_where_the_group_has_no_offset_yet_nothing_is_warm() -> None:
    stage = Stage()
    stage.parts, stage.offsets = frozenset({P0}), {P0: GroupOffset(None, "")}
    stage.trigger()
    assert stage.warmed == [[]]
