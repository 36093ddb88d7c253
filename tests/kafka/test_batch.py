"""`spark.read.format("groupkafka")`: ranges by offset, time and group, without joining one; on a real broker."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.checkout import ROOT

from .days import NOON, fill_days, first_since
from .harness import Independent
from .local_query import TIME_MS, Filler, fill, open_transaction

__all__ = ["fill"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, kafka: Any, topic: str) -> Read:
    """Return a way to read the topic; a keyword's `__` stands for a dot."""

    def frame(**options: str) -> DataFrame:
        given = {name.replace("__", "."): value for name, value in options.items()}
        settings = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic} | given
        if {"assign", "subscribePattern"} & given.keys():
            del settings["subscribe"]
        return spark.read.format("groupkafka").options(**settings).load()

    return frame


@pytest.fixture
def filled(fill: Filler) -> str:
    """Return a topic of two partitions with ten records each, a second apart."""
    return fill.topic("", 20)


def offsets(frame: DataFrame) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return {partition: sorted(values) for partition, values in sorted(found.items())}


def span(start: int, end: int) -> list[int]:
    return list(range(start, end))


def each(topic: str, p0: int, p1: int) -> str:
    return json.dumps({topic: {"0": p0, "1": p1}})


def test_a_read_without_a_group(read: Read, filled: str) -> None:
    assert offsets(read()) == {0: span(0, 10), 1: span(0, 10)}


def test_what_a_group_has_not_done_and_what_it_has(read: Read, filled: str, client: Independent, group: str) -> None:
    client.commit(group, {(filled, 0): 4})
    assert offsets(read(startingOffsets=f"group:{group}")) == {0: span(4, 10), 1: span(0, 10)}
    assert offsets(read(endingOffsets=f"group:{group}")) == {0: span(0, 4)}
    assert client.member_count(group) == 0


def test_a_group_that_is_ahead_of_an_open_transaction(read: Read, filled: str, client: Independent, group: str) -> None:
    """What lies behind the transaction cannot be read yet; it is not waited for."""
    committed = {"kafka__isolation__level": "read_committed"}
    with open_transaction(client, filled, 3):
        client.commit(group, {(filled, 0): 12, (filled, 1): 8})
        assert offsets(read(startingOffsets=f"group:{group}", **committed)) == {1: [8, 9]}
        assert offsets(read(endingOffsets=f"group:{group}", **committed)) == {0: span(0, 10), 1: span(0, 8)}
    assert offsets(read(endingOffsets=f"group:{group}", **committed)) == {0: span(0, 12), 1: span(0, 8)}


def test_from_time_to_time(read: Read, filled: str) -> None:
    frame = read(startingTimestamp=str(TIME_MS + 2_500), endingTimestamp=str(TIME_MS + 5_000))
    assert offsets(frame) == {0: [3, 4], 1: [3, 4]}
    by_partition = json.dumps({filled: {"0": TIME_MS, "1": TIME_MS + 9_000}})
    assert offsets(read(startingOffsetsByTimestamp=by_partition)) == {0: span(0, 10), 1: [9]}
    assert offsets(read(endingTimestamp=str(TIME_MS + 60_000))) == {0: span(0, 10), 1: span(0, 10)}


def test_a_day_whose_records_are_up_to_an_hour_late(
    spark: SparkSession, kafka: Any, client: Independent, topic: str
) -> None:
    page = (ROOT / "docs" / "how-to" / "batch-reads.md").read_text(encoding="utf-8")
    code = next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def read_day" in code)
    recipe: dict[str, Any] = {"__name__": "read_day"}
    exec(compile(code, "batch-reads.md", "exec"), recipe)
    day, late = date.today() - timedelta(days=2), random.Random(37)
    begin = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    client.create_topic(topic, 3)  # the last partition stays empty
    producer, expected = Producer({"bootstrap.servers": kafka.bootstrap_servers}), []
    for minute in range(-240, 1740, 2):
        time = begin + timedelta(minutes=minute) - timedelta(seconds=late.randrange(3600))
        producer.produce(topic, str(minute), partition=minute // 2 % 2, timestamp=int(time.timestamp() * 1000))
        if begin <= time < begin + timedelta(days=1):
            expected.append(str(minute))
    assert producer.flush(60) == 0
    found = recipe["read_day"](spark, {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}, day)
    assert sorted(bytes(row.value).decode() for row in found.collect()) == sorted(expected)


def test_the_times_of_the_page(spark: SparkSession, kafka: Any, client: Independent, topic: str) -> None:
    """The page's examples: the last 24 hours, yesterday, and from a time in ISO 8601 until yesterday."""
    page = (ROOT / "docs" / "how-to" / "batch-reads.md").read_text(encoding="utf-8")
    section = page.split("## The last 24 hours")[1].split("\n## ")[0]
    code = "".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))
    times = fill_days(client, topic)

    def expected() -> dict[str, dict[int, list[int]]]:
        ranges = {
            "recent": (first_since(times, "-24h"), len(times)),
            "day": (first_since(times, "yesterday"), first_since(times, "today")),
            "since": (first_since(times, NOON.isoformat()), first_since(times, "yesterday")),
        }
        return {name: {0: span(*found)} for name, found in ranges.items()}

    before, names = expected(), {"spark": spark}
    code = code.replace("localhost:9092", kafka.bootstrap_servers).replace('"orders"', f'"{topic}"')
    exec(compile(code, "batch-reads.md", "exec"), names)
    found = {name: offsets(names[name]) for name in before}  # type: ignore[arg-type]
    # Both, because a midnight may lie between them.
    assert found in (before, expected())


def test_some_partitions_and_a_pattern(read: Read, filled: str) -> None:
    assert offsets(read(assign=json.dumps({filled: [1]}))) == {1: span(0, 10)}
    assert offsets(read(subscribePattern=f"{filled[:-2]}.*")) == {0: span(0, 10), 1: span(0, 10)}
    assert read(subscribePattern=f"{filled}-none").count() == 0
    with pytest.raises(PySparkException, match=r"'assign'.*partitions 0 to 1"):
        read(assign=json.dumps({filled: [2]})).count()


def test_a_frame_keeps_to_what_it_found_first(read: Read, filled: str, client: Independent) -> None:
    """PySpark plans a frame once. Spark's own source looks anew for every action."""
    frame = read()
    assert frame.count() == 20
    client.produce(filled, ["more", "still more"], 2)
    assert frame.count() == 20
    assert read().count() == 22


def test_removed_records(read: Read, filled: str, client: Independent) -> None:
    client.delete_records(filled, 0, 6)
    assert offsets(read())[0] == span(6, 10)
    gone = each(filled, 2, 0)
    with pytest.raises(PySparkException, match=r"DATA_LOST.*-0 \[2, 6\)"):
        read(startingOffsets=gone).count()
    assert offsets(read(startingOffsets=gone, failOnDataLoss="false"))[0] == span(6, 10)
