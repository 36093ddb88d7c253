"""Sinks of query_process.py that write a shared table of Delta or SQLite, and an independent reader of such a table.

The code of the recipes is that of docs/how-to/sinks.md.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamWriter

from tests.checkout import ROOT

Write = Callable[[DataFrame, int], None]
PAGE = ROOT / "docs" / "how-to" / "sinks.md"


def recipe(name: str, path: str) -> dict[str, Any]:
    """Run the page's Python code that defines `name`, with the table's path replaced by `path`; return its names."""
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        if f"def {name}(" in code:
            assert "/lake/orders" in code, "the page's table has another path"
            names: dict[str, Any] = {"__name__": "__main__"}  # so that functions are pickled with their code
            exec(compile(code.replace("/lake/orders", path), str(PAGE), "exec"), names)
            return names
    raise AssertionError(f"no Python code in {PAGE} defines {name}")


def table_writer(kind: str, frame: DataFrame, table: Path, after_write: Callable[[int], None]) -> DataStreamWriter:
    """Return a writer into the table: "delta" is Delta's own sink, other kinds are functions of the page.

    `after_write` is called with the batch's number between the write and Spark's commit log. Delta's own sink has no
    such moment for Python code.
    """
    rows = frame.selectExpr("topic", "partition", "offset", "cast(value as string) as value")
    if kind == "delta":
        return rows.writeStream.format("delta").option("path", str(table))
    names = recipe(kind, str(table))
    write: Write = names[kind]
    if "create_table" in names:
        names["create_table"](frame.sparkSession)
    if "create_database_table" in names:
        names["create_database_table"]()

    def write_and_wait(batch: DataFrame, number: int) -> None:
        write(batch, number)
        after_write(number)

    return rows.writeStream.foreachBatch(write_and_wait)


def actions(table: Path) -> list[dict[str, Any]]:
    """Return the actions of the table's log, in order."""
    log = sorted((table / "_delta_log").glob("[0-9]*.json"))
    return [json.loads(line) for file in log for line in file.read_text().splitlines()]


def table_records(table: Path) -> Counter[tuple[str, int, int]]:
    """Return how often the table has each record, read without Delta and without what wrote it."""
    if (file := Path(f"{table}.db")).exists():
        with closing(sqlite3.connect(file, timeout=60)) as database:
            return Counter(database.execute("SELECT topic, kafka_partition, kafka_offset FROM orders").fetchall())
    files: set[str] = set()
    for action in actions(table):
        if "add" in action:
            assert not action["add"].get("deletionVector"), "this reader knows no deletion vectors"
            files.add(action["add"]["path"])
        elif "remove" in action:
            files.discard(action["remove"]["path"])
    found: Counter[tuple[str, int, int]] = Counter()
    for path in sorted(files):
        # Columns that the table is partitioned by are not in the file.
        name = path.rpartition("/")[0]
        fixed = dict(part.split("=") for part in name.split("/") if part)
        rows = pyarrow.parquet.ParquetFile(table / path).read().to_pylist()
        found.update(
            (row.get("topic") or fixed["topic"], int(row.get("partition", fixed.get("partition"))), row["offset"])
            for row in rows
        )
    return found
