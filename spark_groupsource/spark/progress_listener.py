"""Show each batch with a streaming listener: rows, lag and owned partitions. For jobs and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_groupsource.assignors.notes import by_topic
from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model.offsets import SourceOffset, TopicPartition, parse_offset
from spark_groupsource.spark.executor_python import missing_in
from spark_groupsource.spark.notebook_table import NotebookTable, notebook_display


def lag_by_partition(end: SourceOffset, newest: dict[str, Any]) -> dict[TopicPartition, int | None]:
    """Return the number of offsets after the batch's end, per owned partition.

    Before Spark 4.2 it is unknown (None): Spark reports the batch's own end as the newest offset.
    """
    if "lineage" in newest:
        return {item.partition: None for item in end.ranges}
    ends = end.ends()
    lags: dict[TopicPartition, int | None] = {}
    for topic, offsets in newest.items():
        for number, offset in offsets.items():
            partition = TopicPartition(topic, int(number))
            lags[partition] = max(0, offset - ends.get(partition, offset))
    return lags


def short_partitions(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions in short form: `orders[0,2,5] refunds[1]`."""
    shown = (f"{topic}[{','.join(map(str, numbers))}]" for topic, numbers in by_topic(partitions).items())
    return " ".join(shown) or "none"


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What is shown of a batch; `lags` has the lag by partition of each groupkafka source."""

    query: str
    name: str
    batch: str
    rows: int
    rows_per_s: float
    batch_ms: int
    lags: tuple[dict[TopicPartition, int | None], ...]


def batch_figures(progress: dict[str, Any]) -> BatchFigures | None:
    """Return the figures of one of Spark's progress reports (parsed JSON); None if it has no groupkafka source."""
    lags = []
    for source in progress.get("sources", []):
        try:
            end = parse_offset(_parsed(source.get("endOffset")))
        except OffsetFormatError:
            continue
        lags.append(lag_by_partition(end, _parsed(source.get("latestOffset")) or {}))
    if not lags:
        return None
    query = str(progress.get("id", "?"))
    return BatchFigures(
        query, progress.get("name") or query[:8], str(progress.get("batchId")), progress.get("numInputRows", 0),
        float(progress.get("processedRowsPerSecond") or 0.0), progress.get("batchDuration", 0), tuple(lags),
    )  # fmt: skip


def progress_line(found: BatchFigures) -> str:
    """Return a batch as a line; sources are shown one by one."""
    parts = (f"lag={_total(lag)} partitions={short_partitions(lag)}" for lag in found.lags)
    head = f"{found.name} batch={found.batch} rows={found.rows}"
    return f"{head} rows/s={found.rows_per_s:.0f} batch_ms={found.batch_ms} {' | '.join(parts)}"


def _total(lag: dict[TopicPartition, int | None]) -> str:
    known = [number for number in lag.values() if number is not None]
    return f"{sum(known)}" if len(known) == len(lag) else "?"


def table_cells(found: BatchFigures) -> tuple[str, ...]:
    """Return a batch as cells of the table in a notebook; sources are summed up."""
    totals = [_total(one) for one in found.lags]
    lag = "?" if "?" in totals else f"{sum(map(int, totals)):,}"
    partitions = " | ".join(short_partitions(one) for one in found.lags)
    return (
        found.batch, f"{found.rows:,}", f"{found.rows_per_s:,.0f}", f"{found.batch_ms:,}", lag, partitions
    )  # fmt: skip


def error_line(text: str) -> str:
    """Return the most useful line of an error: this source's own line, or else the first one.

    If an executor's Python lacks a package, the error is PySpark's, deep in a stack trace; this returns the advice for
    it.
    """
    missing = missing_in(text)
    if missing is not None:
        return str(missing)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = next((line for line in lines if "[GROUPKAFKA." in line), None)
    return own[own.index("[GROUPKAFKA.") :] if own is not None else next(iter(lines), "unknown error")


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        # Another source's offset, whose text need not be JSON.
        return None


class ProgressListener(StreamingQueryListener):
    """`spark.streams.addListener(ProgressListener())` prints one line per batch; `show` replaces the print.

    In a notebook it shows a table instead, with a row per query, which is updated in place. With `show` there is none.
    """

    def __init__(self, show: Callable[[str], object] | None = None) -> None:
        display = notebook_display() if show is None else None
        self._table = None if display is None else NotebookTable(display)
        self._show = show or _print
        # Later events of Spark do not contain the query's name.
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Show that a query started."""
        query = str(event.id)
        name = self._names[query] = event.name or query[:8]
        if self._table is not None:
            self._table.started(query, name)
        else:
            self._show(f"{name} started")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Show a batch."""
        found = batch_figures(json.loads(event.progress.json))
        if found is None:
            return
        if self._table is not None:
            self._table.progressed(found.query, found.name, table_cells(found))
        else:
            self._show(progress_line(found))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Show nothing: an idle query would fill the screen."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Show that a query ended."""
        query = str(event.id)
        name = self._names.pop(query, query[:8])
        error = error_line(event.exception) if event.exception else ""
        if self._table is not None:
            self._table.ended(query, name, error)
        else:
            self._show(f"{name} ended{f': {error}' if error else ''}")


def _print(line: str) -> None:
    print(line, flush=True)
