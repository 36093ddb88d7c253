"""What users of Spark's own Kafka source know a stream to do, under both group protocols, on a real broker."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from .local_query import TIME_MS, Filler, Streams, classic, each, fill, streams

__all__ = ["classic", "fill", "streams"]

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


# --- where a query starts


def test_offsets_and_times_mixed(classic: Streams, fill: Filler) -> None:
    """Of three starting options the first one counts: the time, the times per partition, the offsets."""
    topic = fill.topic("a", 30, partitions=3)
    late = {"startingTimestamp": str(TIME_MS + 8_500)}
    times = {"startingOffsetsByTimestamp": each(topic, TIME_MS, TIME_MS + 7_500, TIME_MS + 99_000)}
    offsets = {"startingOffsets": each(topic, 3, -1, -2)}
    strategy = {"startingOffsetsByTimestampStrategy": "LATEST"}
    for options, expected in (
        (offsets, {0: 7, 2: 10}),
        (offsets | times | strategy, {0: 10, 1: 2}),
        (offsets | times | late, {0: 1, 1: 1, 2: 1}),
    ):
        found = classic.run(subscribe=topic, **options).counts()
        assert found == {(topic, number): count for number, count in expected.items()}, options


# --- how much a batch reads


def test_limits(classic: Streams, fill: Filler) -> None:
    """Shared out by backlog; Trigger.Once knows none; AvailableNow does not wait for the smallest one."""
    topic = fill.topic("a", 0, partitions=3)
    fill.more(topic, 60, partitions=1)
    fill.more(topic, 9, partitions=3)
    query = classic.run(subscribe=topic, maxOffsetsPerTrigger="21")
    assert query.sizes == [21, 21, 21, 6]
    first = [row.partition for row in query.rows[:21]]
    assert [first.count(number) for number in range(3)] == [19, 1, 1]
    assert query.counts() == {(topic, 0): 63, (topic, 1): 3, (topic, 2): 3}

    both = {"minOffsetsPerTrigger": "40", "maxOffsetsPerTrigger": "40", "maxTriggerDelay": "10m"}
    assert classic.run(subscribe=topic, **both).sizes == [38, 31]
    once = classic.start(None, {"once": True}, subscribe=topic, **both)
    assert once.query.awaitTermination(60)
    assert once.sizes == [69]


# --- what a restart finds


def test_topics_that_grow_come_and_go(streams: Streams, fill: Filler) -> None:
    place = streams.fresh()
    first = fill.topic("a", 0)
    assert streams.run(place, subscribe=first).counts() == {}
    fill.more(first, 4)
    assert streams.run(place, subscribe=first).counts() == {(first, 0): 2, (first, 1): 2}
    fill.client.add_partitions(first, 3)
    fill.more(first, 3, partitions=3)
    assert streams.run(place, subscribe=first).counts() == {(first, number): 1 for number in range(3)}

    second = fill.topic("b", 4)
    # The starting options are those of a new query: topics that it subscribes to later start at their beginning.
    assert streams.run(place, subscribe=second, startingOffsets="latest").per_topic() == {second: 4}
    fill.more(first, 3, partitions=3)
    fill.more(second, 2)
    both = f"{first},{second}"
    assert streams.run(place, subscribe=both, startingOffsets="latest").per_topic() == {first: 3, second: 2}
    fill.client.delete_topic(first)
    fill.more(second, 2)
    assert streams.run(place, subscribe=second).per_topic() == {second: 2}


# --- what a row holds


def test_headers_nulls_sizes_and_timestamps(classic: Streams, fill: Filler) -> None:
    """The same from the driver, from executors and from a batch read."""
    topic = fill.topic("a", 0, 1, **{"max.message.bytes": "8000000"})
    large = bytes(range(256)) * 4096 * 5
    headers: list[tuple[str, bytes | None]] = [("a", None), ("a", b""), ("a", b"x"), ("\u00e9", b"\xff\x00")]
    records: list[dict[str, Any]] = [
        {"key": None, "value": None},
        {"key": b"", "value": b"", "headers": headers},
        {"key": b"k", "value": large, "headers": []},
    ]
    fill.produce(topic, records, [TIME_MS + 1, TIME_MS + 2, TIME_MS])
    at = [
        datetime.fromtimestamp(TIME_MS / 1000, timezone.utc).replace(tzinfo=None, microsecond=n)
        for n in (1000, 2000, 0)
    ]
    expected = [
        (None, None, topic, 0, 0, at[0], 0, None),
        (b"", b"", topic, 0, 1, at[1], 0, headers),
        (b"k", large, topic, 0, 2, at[2], 0, None),
    ]
    settings = {"subscribe": topic, "includeHeaders": "true"}
    for lane in ("0", "2000"):
        assert classic.run(**settings, fastLaneMaxOffsets=lane).rows == expected
    assert classic.table(**settings).collect() == expected

    stamped = fill.topic("b", 2, 1, **{"message.timestamp.type": "LogAppendTime"})
    for row in classic.run(subscribe=stamped).rows:
        assert row.timestampType == 1
        assert row.timestamp.year > 2023, "the broker's clock, not the producer's"
