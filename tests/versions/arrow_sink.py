"""A sink in Python that takes Arrow batches, which Spark 4.1 and newer have: a file per batch, as app_process.py's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType


@dataclass
class Written(WriterCommitMessage):
    """The rows of a task."""

    rows: list[list[Any]]


class ArrowFiles(DataSource):
    """The sink; its option `out` names the folder."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "arrowfiles"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of a query."""
        return _Writer(self.options["out"])


class _Writer(DataSourceStreamArrowWriter):
    def __init__(self, out: str) -> None:
        self._out = out

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Return the rows of a task's batches."""
        rows = [row for batch in iterator for row in batch.to_pylist()]
        return Written([[r["topic"], r["partition"], r["offset"], (r["value"] or b"").decode()] for r in rows])

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Write the file of a batch."""
        rows = [row for message in messages if isinstance(message, Written) for row in message.rows]
        out = Path(self._out)
        attempt = len(list(out.glob(f"{batchId}-*.json")))
        scratch = out / f".{batchId}.tmp"
        scratch.write_text(json.dumps({"batch": batchId, "rows": rows, "at": time.time()}))
        scratch.rename(out / f"{batchId}-{attempt}.json")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: only a commit writes a file."""
