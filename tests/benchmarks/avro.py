"""Speed of from_confluent_avro, and of a plain Python UDF with fastavro: `python -m tests.benchmarks.avro`.

One core of Spark, a registry on loopback, records of nine fields, which are read from parquet and decoded into Spark's
`noop` sink. Prints the medians of several runs.
"""

from __future__ import annotations

import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import fastavro
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, udf

from spark_groupsource.functions import from_confluent_avro
from tests.spark.registry import USER_INFO, schema_registry

RECORDS, RUNS = 300_000, 5
ORDER = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "customer", "type": "string"}, {"name": "country", "type": "string"},
        {"name": "comment", "type": ["null", "string"], "default": None}, {"name": "amount", "type": "double"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}}, {"name": "count", "type": "int"},
        {"name": "is_new", "type": "boolean"},
    ],
}  # fmt: skip
# The records above are of an older version for it.
LATER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": "none"}]}
DDL = "id long, customer string, country string, comment string, amount double, at timestamp, tags array<string>, count int, is_new boolean"  # noqa: E501


def record(number: int) -> bytes:
    """Return a record in the wire format, under schema id 1."""
    data = io.BytesIO()
    fields = {
        "id": number, "customer": f"customer-{number % 10_000}", "country": "DE", "amount": number / 7, "count": 3,
        "comment": None if number % 3 else "as ordered by telephone", "at": 1_700_000_000_000 + number,
        "tags": ["a", "bc"], "is_new": number % 2 == 0,
    }  # fmt: skip
    fastavro.schemaless_writer(data, ORDER, fields)
    return b"\0\0\0\0\1" + data.getvalue()


def plain() -> Column:
    """Return what one would write without this package: the schema is in the function."""
    schema = fastavro.parse_schema(ORDER)

    def decode(value: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), schema)

    # Pickled: with useArrow=True its worker and the JVM waited for each other (Spark 4.2, one run).
    return udf(decode, DDL, useArrow=False)("value")


def seconds(frame: DataFrame, column: Column) -> float:
    """Return the median time of decoding the frame, after a run that warms up."""

    def run() -> float:
        started = time.perf_counter()
        frame.select(column.alias("o")).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    run()
    return statistics.median(run() for _ in range(RUNS))


def main() -> None:
    """Print one line per way."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.memory", "1g").config("spark.python.unix.domain.socket.enabled", "true")
    session = spark.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as folder, schema_registry() as registry:
        registry.register("orders-value", ORDER)
        registry.register("later-value", LATER)
        rows = [(record(number),) for number in range(RECORDS)]
        size = sum(len(row[0]) for row in rows) / RECORDS
        session.createDataFrame(rows, "value binary").coalesce(1).write.parquet(f"{folder}/rows")
        frame = session.read.parquet(f"{folder}/rows")
        login = {"basic.auth.user.info": USER_INFO}
        ways: dict[str, Callable[[], Column]] = {
            "from_confluent_avro": lambda: from_confluent_avro(
                "value", registry.url, subject="orders-value", options=login
            ),
            "from_confluent_avro, a field was added": lambda: from_confluent_avro(
                "value", registry.url, subject="later-value", options=login
            ),
            "plain Python UDF": plain,
            "no decoding": lambda: col("value"),
        }
        sys.stdout.write(f"{RECORDS} records of {size:.0f} B, local[1], medians of {RUNS}\n")
        for name, column in ways.items():
            took = seconds(frame, column())
            sys.stdout.write(f"{name}: {took:.2f} s, {RECORDS / took / 1000:.0f} thousand records/s\n")
    session.stop()


if __name__ == "__main__":
    main()
