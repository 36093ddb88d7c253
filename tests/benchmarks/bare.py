"""A Python source without Kafka: it hands rows to Spark that it has in memory, with the same columns.

What it takes is what PySpark's Data Source API takes by itself: starting Python, record batches on their way to the
JVM, and the JVM's work on their rows. No source on that API can take less.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_groupsource.executor.clients.arrow_buffers import ConstantColumns
from spark_groupsource.executor.clients.rows import arrow_schema
from spark_groupsource.spark.source import source_schema

NAME = "bare"
_TASKS = 2  # as many as the session has cores
# Of one record batch: as the executors' consumers make them.
_BATCH_ROWS, _BATCH_BYTES = 10_000, 2 * 1024 * 1024


class BareSource(DataSource):
    """Options: `records` in all, and `size`, the bytes of each value."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of Spark's own Kafka source."""
        return source_schema(False)

    def streamReader(self, schema: StructType) -> BareReader:
        """Return the reader; the schema is fixed."""
        return BareReader(int(self.options["records"]), int(self.options["size"]))


class BareReader(DataSourceStreamReader):
    """All records are there from the beginning."""

    def __init__(self, records: int, size: int) -> None:
        self._records, self._size = records, size

    def initialOffset(self) -> dict[str, int]:
        """Nothing is read yet."""
        return {"records": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:
        """All records, in one batch."""
        return {"records": self._records}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Share the records out."""
        wanted = end["records"] - start["records"]
        shares = [wanted // _TASKS + (number < wanted % _TASKS) for number in range(_TASKS)]
        return [InputPartition(share) for share in shares if share]

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Hand the same rows over again and again, each batch with offsets of its own."""
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // (self._size + 64)))
        columns = ConstantColumns()
        values = os.urandom(self._size) * rows
        key = pa.Array.from_buffers(pa.binary(), rows, [pa.py_buffer(bytes((rows + 7) // 8)), *_variable(0, rows, b"")])
        value = pa.Array.from_buffers(pa.binary(), rows, [None, *_variable(self._size, rows, values)], 0)
        kinds = _numbers(pa.int32(), array("i", bytes(4 * rows)))
        for first in range(0, partition.value, rows):
            counted = array("q", range(first, first + rows))
            arrays = [
                key,
                value,
                columns.topic("bench-12345678", rows),
                columns.partition(0, rows),
                _numbers(pa.int64(), counted),
                _numbers(arrow_schema(False).field("timestamp").type, counted),
                kinds,
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(False)).slice(0, partition.value - first)


def bare_options(records: int, size: int) -> dict[str, str]:
    """Return the options for so many records of this size."""
    return {"records": str(records), "size": str(size)}


def bare_stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """Return the stream that `bare_options` describe."""
    # Workers do not find modules of this folder.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(BareSource)
    return spark.readStream.format(NAME).options(**options).load()


def _variable(size: int, rows: int, data: bytes) -> list[pa.Buffer]:
    """Return the offsets and the data of a column of variable length whose values all have one size."""
    ends = array("i", range(0, size * rows + 1, size)) if size else array("i", bytes(4 * (rows + 1)))
    return [pa.py_buffer(ends.tobytes()), pa.py_buffer(data)]


def _numbers(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.tobytes())], 0)
