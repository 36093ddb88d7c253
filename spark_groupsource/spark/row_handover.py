"""Send rows to Spark together with the plan, so that no Python task is started for them.

PySpark does this for its simple readers: it stores rows that come with the partitions in Spark's block manager, and a
JVM task reads them there (or reads the partition in Python, if the block is missing). This interface is private (class
`_SimpleStreamReaderWrapper`, checked with `isinstance`), so the source uses it only if it has the known form.
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
    """Return PySpark's class whose instances may send rows with partitions; None if it does not have the known form."""
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as Wrapper  # noqa: PLC0415
        from pyspark.sql.streaming import python_streaming_source_runner as runner  # noqa: PLC0415
    except ImportError:
        return None
    take = getattr(Wrapper, "getCache", None)
    known = take is not None and list(inspect.signature(take).parameters) == ["self", "start", "end"]
    return Wrapper if known and getattr(runner, "_SimpleStreamReaderWrapper", None) is Wrapper else None


class HandsOverRows:
    """Mixin for a stream reader: PySpark treats it as a simple reader while it has rows to send.

    `partitions` calls `hand_over`. Directly after it PySpark checks `isinstance(reader, <the hook>)`, and then fetches
    the rows. At any other time the reader has its own class.
    """

    _rows: Sequence[pa.RecordBatch] | None = None

    def hand_over(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Send these rows with the one partition that `partitions` returns. Only if `spark_hook` returns a class."""
        self._rows = rows

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self) if self._rows is None else spark_hook() or type(self)

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch] | None:
        """Return the rows once. The name is PySpark's."""
        del start, end  # the same as in the `partitions` call before
        rows, self._rows = self._rows, None
        return None if rows is None else iter(rows)
