"""What a batch read reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import DataLossError, OptionError
from spark_groupsource.options.model import Reads
from spark_groupsource.options.parse import parse_options
from spark_groupsource.spark.batch_read import batch_ranges, batch_tasks
from tests.unit.fakes import FakeCluster, tp

P0, P1 = tp(0), tp(1)


class Bed:
    """Two partitions, [10, 100) and [20, 200)."""

    def __init__(self, **extra: str) -> None:
        self.options = parse_options({"kafka.bootstrap.servers": "b:1", "subscribe": "orders"} | extra, Reads.BATCH)
        self.cluster = FakeCluster(orders=2)
        self.cluster.beginnings = {P0: 10, P1: 20}
        self.cluster.ends = {P0: 100, P1: 200}

    def ranges(self) -> list[str]:
        return [str(item) for item in batch_ranges(self.options, self.cluster)[0]]


def test_all_that_is_there() -> None:
    assert Bed().ranges() == ["orders-0 [10, 100)", "orders-1 [20, 200)"]


def test_from_one_offset_to_another() -> None:
    bed = Bed(startingOffsets='{"orders":{"0":30,"1":-2}}', endingOffsets='{"orders":{"0":40,"1":-1}}')
    assert bed.ranges() == ["orders-0 [30, 40)", "orders-1 [20, 200)"]


def test_what_a_group_has_not_done_yet_and_what_it_has_done() -> None:
    for options, expected in (
        ({"startingOffsets": "group:billing"}, ["orders-0 [50, 100)", "orders-1 [20, 200)"]),
        ({"endingOffsets": "group:billing"}, ["orders-0 [10, 50)"]),
    ):
        bed = Bed(**options)
        bed.cluster.groups["billing"] = {P0: 50}
        assert bed.ranges() == expected


def test_a_group_that_is_ahead_of_an_open_transaction() -> None:
    """What is behind it cannot be read yet, and is no part of the read."""
    for options, expected in (
        ({"startingOffsets": "group:billing"}, ["orders-1 [20, 200)"]),
        ({"endingOffsets": "group:billing"}, ["orders-0 [10, 100)"]),
    ):
        bed = Bed(**options, **{"kafka.isolation.level": "read_committed"})
        bed.cluster.groups["billing"] = {P0: 105}
        bed.cluster.written = {P0: 110}
        assert bed.ranges() == expected


def test_a_given_start_behind_the_beginning_of_an_open_transaction_and_a_given_end() -> None:
    """Nothing of the partition can be read from such a start. Such an end would leave out what the next read skips."""
    offsets = '{"orders":{"0":105,"1":150}}'
    bed = Bed(startingOffsets=offsets, **{"kafka.isolation.level": "read_committed"})
    bed.cluster.written = {P0: 110}
    assert bed.ranges() == ["orders-1 [150, 200)"]
    bed = Bed(endingOffsets=offsets, **{"kafka.isolation.level": "read_committed"})
    bed.cluster.written = {P0: 110}
    with pytest.raises(OptionError, match="for orders-0 an offset up to 100"):
        bed.ranges()


def test_times() -> None:
    bed = Bed(startingTimestamp="5", endingTimestamp="9")
    bed.cluster.at_time = {P0: 33, P1: 44}
    assert bed.ranges() == []
    bed = Bed(endingTimestamp="9")
    bed.cluster.at_time = {P0: 33}
    assert bed.ranges() == ["orders-0 [10, 33)", "orders-1 [20, 200)"], "no record at or after it: up to the end"


EACH = '{"orders":{"0":%d,"1":%d}}'


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"startingOffsets": EACH % (60, 60), "endingOffsets": EACH % (60, 50)},
            r"'startingOffsets' has the value '{.*:60,.*:60}}'.*The specified start offset 60 is greater"
            r" than the end offset 50 for orders-1 \(option 'endingOffsets'\)",
        ),
        (
            {"startingTimestamp": "9", "endingTimestamp": "8"},
            r"'startingTimestamp' has the value '9'.*The specified start timestamp 9 is greater than the end timestamp"
            r" 8 for every partition \(option 'endingTimestamp'\)",
        ),
        (
            {"startingTimestamp": "9", "endingOffsetsByTimestamp": EACH % (9, 8)},
            r"'startingTimestamp' has the value '9'.* timestamp 8 for orders-1 \(option 'endingOffsetsByTimestamp'\)",
        ),
        (
            {"startingOffsetsByTimestamp": EACH % (9, 8), "endingTimestamp": "8"},
            r"'startingOffsetsByTimestamp' has the value '{.*:9,.*}'.* timestamp 8 for orders-0"
            r" \(option 'endingTimestamp'\)",
        ),
    ],
)
def test_a_start_behind_the_end_is_reported_by_the_options_alone(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=rf"OPTION_INVALID.*{text}"):
        Bed(**options)


def test_a_start_that_is_the_end() -> None:
    assert Bed(startingOffsets=EACH % (60, 60), endingOffsets=EACH % (60, 70)).ranges() == ["orders-1 [60, 70)"]
    bed = Bed(startingTimestamp="9", endingTimestamp="9")
    bed.cluster.at_time = {P0: 33, P1: 44}
    assert bed.ranges() == []


def test_a_start_that_turns_out_to_be_behind_the_end() -> None:
    """Told before lost records are: what is wrong is the options."""
    bed = Bed(startingOffsets=EACH % (5, 60), endingTimestamp="9")
    bed.cluster.at_time = {P0: 33, P1: 44}
    text = (
        r"OPTION_INVALID.*'startingOffsets' has the value '{.*:60}}'.*The resolved start offset 60 is greater than the"
        r" resolved end offset 44 for orders-1 \(option 'endingTimestamp', value '9'\)"
    )
    with pytest.raises(OptionError, match=text):
        bed.ranges()
    bed = Bed(startingTimestamp="9", endingOffsets=EACH % (30, 50))
    bed.cluster.at_time = {P0: 33, P1: 44}
    text = (
        r"'startingTimestamp' has the value '9'.*offset 33 .*offset 30 .*\(option 'endingOffsets', value '{.*:30,.*}'\)"
    )
    with pytest.raises(OptionError, match=text):
        bed.ranges()


def test_groups_and_edges_of_logs_are_behind_the_end_without_an_error() -> None:
    """There is nothing to read, yet or any more."""
    for options in (
        {"startingOffsets": "group:billing", "endingOffsets": EACH % (40, 20)},
        {"startingOffsets": EACH % (60, 20), "endingOffsets": "group:billing"},
        {"startingOffsets": "earliest", "endingOffsets": EACH % (5, 5)},
        # No record of orders-0 is at or after it, and that of orders-1 lies before the end.
        {
            "startingTimestamp": "9",
            "endingOffsets": EACH % (50, 44),
            "startingOffsetsByTimestampStrategy": "latest",
        },
    ):
        bed = Bed(**options)
        bed.cluster.groups["billing"] = {P0: 50}
        bed.cluster.at_time = {P1: 44}
        assert bed.ranges() == [], options


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest", "startingTimestamp": "5"},
        {"startingOffsets": EACH % (-1, 0), "startingOffsetsByTimestamp": EACH % (5, 5)},
        {"endingOffsets": "earliest", "endingTimestamp": "5"},
        {"endingOffsets": EACH % (-2, 0), "endingOffsetsByTimestamp": EACH % (5, 5)},
        {"startingOffsets": EACH % (60, 60), "endingOffsets": EACH % (50, 50), "startingTimestamp": "5"},
    ],
)
def test_only_the_position_that_counts_is_checked(options: dict[str, str]) -> None:
    Bed(**options)
    malformed = {name: "newest" for name in options if name.endswith("Offsets")}
    with pytest.raises(OptionError, match=r"'newest'\. Allowed: "):
        Bed(**options | malformed)


def test_lost_records(caplog: pytest.LogCaptureFixture) -> None:
    start = {"startingOffsets": '{"orders":{"0":3,"1":-2}}'}
    with pytest.raises(DataLossError, match=r"DATA_LOST.*orders-0 \[3, 10\)"):
        Bed(**start).ranges()
    assert Bed(**start, failOnDataLoss="false").ranges() == ["orders-0 [10, 100)", "orders-1 [20, 200)"]
    assert "orders-0 [3, 10)" in caplog.text


def test_what_is_missing_behind_the_end_is_not_lost() -> None:
    assert Bed(startingOffsets=EACH % (30, 5), endingOffsets=EACH % (40, 5)).ranges() == ["orders-0 [30, 40)"]
    with pytest.raises(DataLossError, match=r"orders-0 \[0, 8\)"):
        Bed(startingOffsets=EACH % (0, 30), endingOffsets=EACH % (8, 40)).ranges()


def test_tasks_follow_the_options() -> None:
    bed = Bed(minPartitions="4")
    ranges, _ = batch_ranges(bed.options, bed.cluster)
    assert len(batch_tasks(ranges, bed.options)) == 4


def test_a_topic_that_is_recreated_while_its_range_is_looked_up() -> None:
    """The range may be of the new topic. Its tasks have the old id, and so give out no row of it."""
    bed = Bed()

    class Recreating(FakeCluster):
        def log_offsets(self, *given: Any, **more: Any) -> Any:
            bed.cluster.topics["orders"] = TopicInfo("another", 2)
            return FakeCluster.log_offsets(self, *given, **more)

    bed.cluster.__class__ = Recreating
    before = bed.cluster.topics["orders"].topic_id
    assert batch_ranges(bed.options, bed.cluster)[1] == {"orders": before}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", " Latest"),
        ("startingOffsets", '{"orders":{"0":-1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"orders":{"0":-2}}'),
        ("startingOffsets", '{"orders":"latest"}'),
        ("endingOffsets", '{"orders":"earliest"}'),
    ],
)
def test_a_read_that_must_be_empty_is_refused(name: str, value: str) -> None:
    words = "can't be (latest|earliest) for batch queries on Kafka"
    with pytest.raises(
        OptionError, match=rf"OPTION_INVALID.*'{name}' has the value '{re.escape(value)}'.*in a batch read no.*{words}"
    ):
        Bed(**{name: value})


def test_a_topic_from_its_beginning_to_its_end() -> None:
    bed = Bed(startingOffsets='{"orders":"earliest"}', endingOffsets='{"orders":"latest"}')
    assert bed.ranges() == ["orders-0 [10, 100)", "orders-1 [20, 200)"]
