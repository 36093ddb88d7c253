"""From positions to offsets."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_groupsource.cluster.offset_lookup import check_assigned, check_named, look_up, partitions_of
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import OptionError
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import Subscription
from spark_groupsource.options.offset_spec import AtEdge, AtGroup, AtOffset, AtTime, Start, Starting
from tests.unit.fakes import FakeCluster, tp

P0, P1 = tp(0), tp(1)


class Bed:
    """Two partitions, [10, 100) and [20, 200), and another group."""

    def __init__(self) -> None:
        self.cluster = FakeCluster(orders=2)
        self.cluster.beginnings = {P0: 10, P1: 20}
        self.cluster.ends = {P0: 100, P1: 200}
        self.cluster.groups["billing"] = {P0: 50}

    def find(self, p0: Start | None, p1: Start | None = None, *, latest: bool = False) -> dict[TopicPartition, int]:
        starts = {P0: p0} if p1 is None else {P0: p0, P1: p1}
        return look_up(self.cluster, starts, Starting(text="as typed"), unmatched_is_latest=latest)


def test_edges_and_offsets() -> None:
    assert Bed().find(AtEdge(), AtEdge(latest=True)) == {P0: 10, P1: 200}
    assert Bed().find(AtOffset(42), AtOffset(200)) == {P0: 42, P1: 200}


def test_a_removed_offset_is_kept() -> None:
    """What lies between it and the log's beginning is lost, and told so."""
    assert Bed().find(AtOffset(3)) == {P0: 3}


def test_an_offset_behind_the_end() -> None:
    with pytest.raises(
        OptionError, match=r"'startingOffsets' has the value 'as typed'.*orders-0 an offset up to 100, .* not 101"
    ):
        Bed().find(AtOffset(101))


def test_another_group_and_where_it_has_no_offset() -> None:
    assert Bed().find(AtGroup("billing"), AtGroup("billing")) == {P0: 50, P1: 20}


def test_a_group_without_any_offset_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """Its name may be misspelt: all would be read, or nothing, without a word."""
    assert Bed().find(AtGroup("biling"), AtGroup("biling")) == {P0: 10, P1: 20}
    assert "group has no offsets, starting at the logs' beginnings: group=biling topics=orders" in caplog.text
    caplog.clear()
    Bed().find(AtGroup("billing"), AtGroup("billing"))
    assert not caplog.records


def test_a_group_that_must_have_offsets() -> None:
    """One partition with an offset is enough: the others begin later."""
    bed = Bed()
    typed = Starting(text=" GROUP:biling")
    with pytest.raises(OptionError, match=r"' GROUP:biling'.*'biling' has none of topics orders"):
        look_up(bed.cluster, {P1: AtGroup("biling")}, typed, unmatched_is_latest=True, must_have=[P0, P1])
    bed.cluster.groups["billing"] = {P0: 50}
    found = look_up(bed.cluster, {P1: AtGroup("billing")}, typed, unmatched_is_latest=True, must_have=[P0])
    assert found == {P1: 20}


@pytest.mark.parametrize("start", [AtGroup("billing"), AtOffset(105)])
def test_an_offset_behind_the_beginning_of_an_open_transaction(start: Start) -> None:
    """With read_committed the log ends where the transaction begins; the offset is in the log all the same."""
    bed = Bed()
    bed.cluster.groups["billing"] = {P0: 105}
    bed.cluster.written = {P0: 110}
    assert bed.find(start) == {P0: 105}
    bed.cluster.written = {P0: 104}
    with pytest.raises(OptionError, match=r"value 'as typed'.*orders-0 an offset up to 104, .* not 105"):
        bed.find(start)


def test_times() -> None:
    bed = Bed()
    bed.cluster.at_time = {P0: 33}
    assert bed.find(AtTime(5)) == {P0: 33}
    assert bed.find(AtTime(5), AtTime(6), latest=True) == {P0: 33, P1: 200}
    with pytest.raises(
        OptionError, match=r"value 'as typed'.*orders-1 has none at or after 6 .1970-01-01T00:00:00.006Z"
    ):
        bed.find(AtTime(5), AtTime(6))


@pytest.mark.rule("R88")
def test_p1_a_record_that_is_written_while_its_time_is_looked_up_is_not_skipped() -> None:
    """1. No record has the time. 2. One is written. 3. The start is where the log ended before."""
    bed = Bed()

    class Written(FakeCluster):
        def log_offsets(self, wanted: Any, *, uncommitted: bool = False) -> Any:
            found = FakeCluster.log_offsets(self, wanted, uncommitted=uncommitted)
            self.ends[P0] += len(wanted)
            return found

    bed.cluster.__class__ = Written
    assert bed.find(AtTime(5), latest=True) == {P0: 100}


def test_a_partition_that_is_not_named() -> None:
    with pytest.raises(OptionError, match=r"every partition of the topics; orders-0 has none"):
        Bed().find(None)


def test_a_partition_that_does_not_exist_is_named() -> None:
    check_named(Starting(AtEdge()), [])
    starting = Starting(None, {P0: AtOffset(5), P1: AtEdge()}, "endingOffsets")
    check_named(starting, [P0, P1])
    with pytest.raises(OptionError, match=r"'endingOffsets'.*are read \(orders\); orders-1 is none of them"):
        check_named(starting, [P0, tp(2)])
    typed = '{"orders":"earliest","refunds":"Earliest"}'
    topics = Starting(None, topics={"orders": AtEdge(), "refunds": AtEdge()}, text=typed)
    check_named(topics, [P0, tp(0, "refunds")])
    with pytest.raises(OptionError, match=rf"'{re.escape(typed)}'.*; refunds is none of them"):
        check_named(topics, [P0, P1])


def test_of_option_assign_no_other_partition_is_read() -> None:
    described = {"orders": TopicInfo("id", 2)}
    assert partitions_of(Subscription(partitions=(P1,)), described) == [P1]
    assert partitions_of(Subscription(topics=("orders",)), described) == [P0, P1]


def test_a_partition_that_its_topic_does_not_have() -> None:
    """The error has the option's value and the partition."""
    asked = Subscription(partitions=(P0, tp(7)))
    with pytest.raises(OptionError) as raised:
        check_assigned(asked, {"orders": TopicInfo("id", 2)})
    text = str(raised.value)
    assert "Option 'assign' has the value 'orders-0,orders-7'" in text
    assert "partitions 0 to 1 of topic 'orders'; orders-7 does not exist" in text
