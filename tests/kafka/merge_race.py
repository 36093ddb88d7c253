"""Facts about Delta that docs/how-to/sinks.md relies on, without a broker.

- Threads create the page's table at the same time: how often does one end with a conflict?
- Threads run the page's MERGE over ranges that overlap, at the same time: how often does one end with a conflict?
- Two queries write with one `txnAppId`, and the second one is behind: how many of their batches are kept?
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from tests.kafka.table_sinks import recipe

THREADS, STEPS, STEP = 3, 2, 20


class Counting:
    """A session whose `sql` counts conflicts: of writes, and of a table's creation."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.conflicts = 0
        self.created_by_another = 0

    def sql(self, text: str) -> Any:
        """Run a statement."""
        try:
            return self._spark.sql(text)
        except Exception as error:
            self.conflicts += "DELTA_CONCURRENT" in str(error)
            self.created_by_another += "DELTA_PROTOCOL_CHANGED" in str(error)
            raise


class Batch:
    """A batch with a session of its own, as each query has one; all else is the data frame's."""

    def __init__(self, spark: SparkSession, first: int, last: int) -> None:
        self.sparkSession = Counting(spark.newSession())
        text = "select 'orders' topic, 0 partition, id offset, 'v' value"
        self._frame = self.sparkSession._spark.sql(f"{text} from range({first}, {last})")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frame, name)


def race(spark: SparkSession, table: str) -> str:
    """Let the threads create the table, and merge ranges that begin together and end apart. Return all answers."""
    names = recipe("merge_each_record_once", table)
    together = threading.Barrier(THREADS)

    def create(_: int) -> int:
        session = Counting(spark.newSession())
        together.wait(120)
        names["create_table"](session)
        return session.created_by_another

    def write(number: int) -> int:
        found = 0
        for step in range(STEPS):
            first = step * STEP
            batch = Batch(spark, first, first + STEP * (1 + number))
            together.wait(120)
            names["merge_each_record_once"](batch, step)
            found += batch.sparkSession.conflicts
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        creations = sum(pool.map(create, range(THREADS)))
        conflicts = sum(pool.map(write, range(THREADS)))
    other = f"{table}-one-id"
    for number in (3, 0):
        rows = spark.range(1).write.format("delta").mode("append")
        rows.option("txnAppId", "group").option("txnVersion", number).save(other)
    kept = spark.read.format("delta").load(other).count()
    return f"creations that failed first: {creations}, conflicts: {conflicts}, with one id for all: {kept} of 2 batches"
