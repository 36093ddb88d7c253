"""Rows that go to Spark together with the plan, so that no Python task is started for them.

PySpark has this way for its simple readers: rows that come with the partitions are put into Spark's block manager, and
a task of the JVM takes them from there (or reads the partition in Python, if the block is gone). The way is private
(class `_SimpleStreamReaderWrapper`, asked for by `isinstance`), so it is looked for and not relied upon.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@cache
def spark_hook() -> type | None:
    """Return PySpark's class whose instances may hand over rows with their partitions; None if it is not as known."""
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as Wrapper  # noqa: PLC0415
        from pyspark.sql.streaming import python_streaming_source_runner as runner  # noqa: PLC0415
    except ImportError:
        return None
    take = getattr(Wrapper, "getCache", None)
    known = take is not None and list(inspect.signature(take).parameters) == ["self", "start", "end"]
    return Wrapper if known and getattr(runner, "_SimpleStreamReaderWrapper", None) is Wrapper else None


class HandsOverRows:
    """Mixed into a stream reader: PySpark takes it for a simple reader while it has rows to hand over.

    `hand_over` is called in `partitions`; right after it PySpark asks `isinstance(reader, <the hook>)`, and then for
    the rows. At any other time the reader is what it is.
    """

    _rows: Sequence[pa.RecordBatch] | None = None

    def hand_over(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Have these rows go with the one partition that `partitions` returns. Only where `spark_hook` has one."""
        self._rows = rows

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self) if self._rows is None else spark_hook() or type(self)

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:
        """Return the rows, once. PySpark's name for it."""
        del start, end  # they are those of the `partitions` call just before
        rows, self._rows = self._rows, None
        return None if rows is None else iter(rows)
