"""The line per batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.spark.progress_listener import (
    batch_figures,
    error_line,
    lag_by_partition,
    progress_line,
    short_partitions,
    table_cells,
)
from tests.unit.fakes import offset_of, tp

END = offset_of(OffsetRange(tp(0), 0, 10), OffsetRange(tp(2), 5, 5), done={tp(3): 1})


def report(*sources: dict[str, Any], **extra: Any) -> dict[str, Any]:
    return {
        "id": "0123456789abcdef",
        "name": None,
        "batchId": 7,
        "numInputRows": 10,
        "processedRowsPerSecond": 123.4,
        "batchDuration": 81,
        "sources": list(sources),
    } | extra


def source(**extra: Any) -> dict[str, Any]:
    return {"endOffset": END.to_json(), "latestOffset": {"orders": {"0": 15, "2": 5}}} | extra


def line_of(progress: dict[str, Any]) -> str:
    """Return the line of a report that has a source of this format."""
    found = batch_figures(progress)
    assert found is not None
    return progress_line(found)


def test_lag_is_what_is_behind_the_batchs_end() -> None:
    assert lag_by_partition(END, {"orders": {"0": 15, "2": 5}}) == {tp(0): 5, tp(2): 0}


def test_a_log_that_is_shorter_or_unknown_has_no_lag() -> None:
    assert lag_by_partition(END, {"orders": {"0": 3, "9": 100}}) == {tp(0): 0, tp(9): 0}
    assert lag_by_partition(END, {}) == {}


def test_before_spark_4_2_the_lag_is_unknown() -> None:
    """Spark then reports the batch's end as the newest offset."""
    old = source(latestOffset=json.dumps(END.to_json()))
    assert "lag=? partitions=orders[0,2]" in line_of(report(old))
    assert "lag=5 partitions=orders[0,2] | lag=? " in line_of(report(source(), old))
    cells = [table_cells(found) for sources in ([old], [source(), old]) if (found := batch_figures(report(*sources)))]
    assert [cell[4] for cell in cells] == ["?", "?"]


@pytest.mark.parametrize(
    ("partitions", "shown"),
    [
        ([], "none"),
        ([tp(10), tp(2)], "orders[2,10]"),
        ([TopicPartition("b", 0), TopicPartition("a", 1), TopicPartition("a-b", 3)], "a[1] a-b[3] b[0]"),
    ],
)
def test_shown_partitions(partitions: list[TopicPartition], shown: str) -> None:
    assert short_partitions(partitions) == shown


def test_a_line() -> None:
    assert line_of(report(source())) == "01234567 batch=7 rows=10 rows/s=123 batch_ms=81 lag=5 partitions=orders[0,2]"


def test_offsets_may_come_as_text() -> None:
    written = source(endOffset=json.dumps(END.to_json()), latestOffset=json.dumps({"orders": {"0": 15}}))
    assert "lag=5 partitions=orders[0]" in line_of(report(written, name="flights"))


@pytest.mark.parametrize("latest", [None, "null", {}])
def test_a_batch_without_newest_offsets(latest: object) -> None:
    assert "lag=0 partitions=none" in line_of(report(source(latestOffset=latest)))


@pytest.mark.parametrize("end", [None, "5", "no json", '{"logOffset":3}', 5, {"v": 2}])
def test_other_sources_are_left_out(end: object) -> None:
    assert batch_figures(report({"endOffset": end})) is None
    assert line_of(report({"endOffset": end}, source())).count("lag=") == 1


def test_two_sources_are_shown_side_by_side() -> None:
    assert line_of(report(source(), source())).count(" | lag=") == 1


def test_a_report_without_numbers() -> None:
    assert line_of({"sources": [source()]}) == "? batch=None rows=0 rows/s=0 batch_ms=0 lag=5 partitions=orders[0,2]"


def test_the_line_of_an_error_that_says_most() -> None:
    text = (
        "Query failed\n  Traceback\nerrors.OptionError: [GROUPKAFKA.TOPIC_UNKNOWN] no such topic. What to do: x\n at y"
    )
    assert error_line(text) == "[GROUPKAFKA.TOPIC_UNKNOWN] no such topic. What to do: x"
    assert error_line("boom\n at y") == "boom"
    assert error_line("") == "unknown error"
