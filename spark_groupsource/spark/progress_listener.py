"""Show a line per batch with a streaming listener: rows, lag and owned partitions. For jobs and notebooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_groupsource.driver.executor_python import missing_in
from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model.offsets import SourceOffset, parse_offset


def lag_of(end: SourceOffset, newest: dict[str, dict[str, int]]) -> dict[str, int]:
    """Return the number of offsets after the batch's end, per owned partition ('topic-number')."""
    ends = {(tp.topic, str(tp.partition)): offset for tp, offset in end.ends().items()}
    return {
        f"{topic}-{number}": max(0, offset - ends.get((topic, number), offset))
        for topic, partitions in newest.items()
        for number, offset in partitions.items()
    }


def shown_partitions(names: Iterable[str]) -> str:
    """Return partition names in short form: `orders[0,2,5] refunds[1]`."""
    topics: dict[str, list[int]] = {}
    for name in names:
        topic, _, number = name.rpartition("-")
        topics.setdefault(topic, []).append(int(number))
    shown = (f"{topic}[{','.join(map(str, sorted(numbers)))}]" for topic, numbers in sorted(topics.items()))
    return " ".join(shown) or "none"


def progress_line(progress: dict[str, Any]) -> str | None:
    """Return the line for one of Spark's progress reports (parsed JSON); None if it has no groupkafka source."""
    parts = []
    for source in progress.get("sources", []):
        try:
            end = parse_offset(_parsed(source.get("endOffset")))
        except OffsetFormatError:
            continue
        newest = _parsed(source.get("latestOffset")) or {}
        lag = lag_of(end, newest)
        parts.append(f"lag={sum(lag.values())} partitions={shown_partitions(lag)}")
    if not parts:
        return None
    name = progress.get("name") or str(progress.get("id", "?"))[:8]
    rate = progress.get("processedRowsPerSecond") or 0.0
    batch_ms = progress.get("batchDuration", 0)
    head = f"{name} batch={progress.get('batchId')} rows={progress.get('numInputRows', 0)}"
    return f"{head} rows/s={float(rate):.0f} batch_ms={batch_ms} {' | '.join(parts)}"


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
    """`spark.streams.addListener(ProgressListener())` prints one line per batch; `show` replaces the print."""

    def __init__(self, show: Callable[[str], object] | None = None) -> None:
        self._show = show or _print
        # Later events of Spark do not contain the query's name.
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Show that a query started."""
        name = self._names[str(event.id)] = event.name or str(event.id)[:8]
        self._show(f"{name} started")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Show a batch."""
        line = progress_line(json.loads(event.progress.json))
        if line is not None:
            self._show(line)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Show nothing: an idle query would fill the screen."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Show that a query ended."""
        name = self._names.pop(str(event.id), str(event.id)[:8])
        self._show(f"{name} ended{f': {error_line(event.exception)}' if event.exception else ''}")


def _print(line: str) -> None:
    print(line, flush=True)
