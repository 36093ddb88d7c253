"""What goes from the plan to whoever reads: ranges, and the ids of the topics that they were planned for."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from spark_groupsource.cluster import admin as cluster
from spark_groupsource.errors import OptionError
from spark_groupsource.executor import reader
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.options.model import UNBOUNDED, NextTrigger, ReadBounds, Reads
from spark_groupsource.options.parse import parse_options
from spark_groupsource.spark.source import (
    GroupKafkaBatchReader,
    GroupKafkaDataSource,
    GroupKafkaPartition,
    GroupKafkaStreamReader,
    _log_slow_start,
    source_schema,
)
from tests.unit.fakes import LINEAGE, TOPIC_ID, FakeCluster, make_options, tp

ORDERS, REFUNDS, OLD = tp(0), tp(0, "refunds"), tp(0, "old")
TASKS = ((OffsetRange(ORDERS, 0, 5),), (OffsetRange(ORDERS, 5, 9), OffsetRange(REFUNDS, 0, 2)))
# `idle` is owned and has nothing to read, `old` was handed over.
BATCH = SourceOffset.of(
    LINEAGE,
    {"orders": "a", "refunds": "b", "idle": "c", "old": "d"},
    [OffsetRange(ORDERS, 0, 9), OffsetRange(REFUNDS, 0, 2), OffsetRange(tp(0, "idle"), 7, 7)],
    {OLD: 3},
)
NEEDED = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders", "kafka.group.id": "shop"}


class Driver:
    """A session with this batch, and a lane that leaves it to the executors."""

    owned = (ORDERS, REFUNDS)

    def __init__(self) -> None:
        self.given: list[Mapping[str, str]] = []

    def tasks(self, start: SourceOffset, end: SourceOffset) -> tuple[tuple[OffsetRange, ...], ...]:
        assert (start.lineage, end) == (LINEAGE, BATCH)
        return TASKS

    def read(
        self, ranges: Sequence[OffsetRange], owned: Collection[TopicPartition], topic_ids: Mapping[str, str]
    ) -> None:
        self.given.append(topic_ids)


def test_a_streams_tasks_and_its_fast_lane_know_their_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, driver = GroupKafkaStreamReader(make_options()), Driver()
    stream._session = stream._lane = driver  # type: ignore[assignment]
    stream._lane_chosen = True
    tasks = stream.partitions(SourceOffset(LINEAGE).to_json(), BATCH.to_json())
    assert driver.given == [{"orders": "a", "refunds": "b", "idle": "c"}]
    first, second = (pickle.loads(pickle.dumps(task)) for task in tasks)
    assert (first.ranges, first.topic_ids) == (TASKS[0], {"orders": "a"})
    assert (second.ranges, second.topic_ids) == (TASKS[1], {"orders": "a", "refunds": "b"})
    given: list[Any] = []
    monkeypatch.setattr(reader, "read_task", lambda _, ranges, **more: given.append((ranges, more)))
    stream.read(second)
    assert given == [(TASKS[1], {"topic_ids": {"orders": "a", "refunds": "b"}})]


def test_the_tasks_of_a_batch_read_know_their_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is made again between two reads is not read from what a worker has fetched for the first one."""
    fake = FakeCluster(orders=1)
    fake.ends[ORDERS] = 5
    monkeypatch.setattr(cluster, "LibrdkafkaCluster", lambda *_: fake)
    options = parse_options({"kafka.bootstrap.servers": "b:1", "subscribe": "orders"}, Reads.BATCH)
    (task,) = GroupKafkaBatchReader(options).partitions()
    assert isinstance(task, GroupKafkaPartition)
    assert (task.ranges, task.topic_ids) == ((OffsetRange(ORDERS, 0, 5),), {"orders": TOPIC_ID})


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, UNBOUNDED),
        ({"maxOffsetsPerTrigger": "7"}, ReadBounds(7)),
        ({"maxBytesPerTrigger": "7"}, ReadBounds(max_bytes=7)),
        ({"minOffsetsPerTrigger": "7"}, ReadBounds(None, 7)),
    ],
)
def test_only_once_has_no_later_trigger_and_no_limits(options: dict[str, str], limits: ReadBounds) -> None:
    """With Trigger.Once Spark's limit is ReadAllAvailable; all other triggers have the source's own limit."""
    stream = GroupKafkaStreamReader(make_options(**options))
    seen: list[tuple[ReadBounds, NextTrigger]] = []

    class Planner(Driver):
        stopping = True

        def latest_offset(self, start: SourceOffset, bounds: ReadBounds, later: NextTrigger) -> SourceOffset:
            seen.append((bounds, later))
            return start

    stream._session = Planner()  # type: ignore[assignment]
    start = SourceOffset(LINEAGE).to_json()
    for limit in (stream.getDefaultReadLimit(), ReadAllAvailable()):
        # As Spark sends it to the reader's process.
        assert stream.latestOffset(start, type(limit)(*_state(limit))) is start
    assert seen == [(limits, NextTrigger.COMES), (UNBOUNDED, NextTrigger.NONE)]


def _state(limit: ReadLimit) -> tuple[int, ...]:
    return tuple(vars(limit).values())


@pytest.mark.parametrize(
    ("module_file", "is_slow"),
    [
        ("/spark/python/lib/pyspark.zip/pyspark/__init__.py", True),
        ("/spark/python/lib/pyspark.zip/pyspark/__init__.pyc", False),
        ("/venv/site-packages/pyspark/__init__.py", False),
        (None, False),
    ],
)
def test_an_archive_without_bytecode_is_logged_with_the_command(
    module_file: str | None, is_slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "spark_groupsource"):
        _log_slow_start(module_file)
    shown = "/spark/python/lib/pyspark.zip has no bytecode, so each Python process that Spark starts takes about 0.4 s"
    assert [message.partition(" longer")[0] for message in caplog.messages] == [shown] * is_slow
    assert ["groupkafka doctor --fix-startup" in message for message in caplog.messages] == [True] * is_slow


def test_settings_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Spark builds the reader of one query in several processes."""
    source = GroupKafkaDataSource(NEEDED | {"kafka.ssl.ca.location": "/ca.pem"})
    source.streamReader(source.schema())
    source.reader(source.schema())
    assert caplog.messages == ["no effect with security.protocol=plaintext: kafka.ssl.ca.location"]


def test_batch_and_streaming_writes_are_refused() -> None:
    source = GroupKafkaDataSource(NEEDED)
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionError, match="WRITING_UNSUPPORTED"):
            make(source_schema(False), True)


@pytest.mark.parametrize("make", [
    lambda: GroupKafkaDataSource({"subscribe": "t", "startingoffsets": "{"}),
    lambda: GroupKafkaDataSource(NEEDED | {"startingoffsets": "latest"}).reader(source_schema(False)),
    lambda: GroupKafkaDataSource(NEEDED | {"endingoffsets": "latest"}).streamReader(source_schema(False)),
])  # fmt: skip
def test_a_refused_option_shows_no_stack_of_this_package(make: Callable[[], object]) -> None:
    with pytest.raises(OptionError) as raised:
        make()
    frames = [Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[-1] == "spark_calls.py"
    assert "parse.py" not in frames
