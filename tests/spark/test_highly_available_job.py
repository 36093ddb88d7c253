"""The highly available job's counts on a stream of files, in local mode."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jobs.highly_available import counts_per_minute

pytestmark = pytest.mark.spark

_SCHEMA = "key binary, value binary, timestamp timestamp"


def at(minute: int, second: int = 0) -> datetime:
    """Return a time of a day."""
    return datetime(2026, 1, 1, 10, minute, second, tzinfo=timezone.utc)


def test_a_record_counts_once_and_a_minute_comes_when_it_is_over(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        (b"a", b"1", at(0)), (b"a", b"1", at(0)), (b"a", b"2", at(0, 30)), (b"b", b"1", at(0, 59)), (b"a", b"3", at(1)),
        (b"z", b"", at(20)),
    ]  # fmt: skip
    spark.createDataFrame(rows, _SCHEMA).coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(_SCHEMA).parquet(str(tmp_path / "in"))
    out = str(tmp_path / "out")
    writer = counts_per_minute(stream, "1 minute").writeStream.option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    query = writer.format("parquet").outputMode("append").trigger(availableNow=True).start(out)
    assert query.awaitTermination(120)
    found = spark.read.parquet(out).selectExpr("minute(start) as minute", "key", "records").collect()
    assert sorted((row.key, row.minute % 60, row.records) for row in found) == [("a", 0, 2), ("a", 1, 1), ("b", 0, 1)]
