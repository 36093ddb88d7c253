"""Ask the sources of a Spark Connect query to stop: through the server, which can reach the query's checkpoint.

The client may run on a machine that knows neither the checkpoint's disk nor the credentials of its store. A read of the
small data source `groupkafka_stop` asks there: Spark plans a read on the driver's machine, with the Python and the
rights of the query's reader. Its one row is the answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from spark_groupsource.checkpoint.stop_requests import Answer, StopFiles, ask_to_stop

_ASK, _FORGET = "ask", "forget"
# The option of the location, which may have credentials: Spark masks it where it masks that of the query's source.
_LOCATION = "checkpointlocation"


class StopRequestSource(DataSource):
    """`spark.read.format("groupkafka_stop")`: ask the sources of one checkpoint to stop, and return their answers."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "groupkafka_stop"

    def schema(self) -> StructType:
        """Return the one column: a JSON text."""
        return StructType([StructField("answers", StringType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader, which does all in `partitions`: that runs on the driver's machine."""
        return _StopRequestReader(dict(self.options))


class _Answers(InputPartition):
    def __init__(self, text: str) -> None:
        super().__init__(0)
        self.text = text


class _StopRequestReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Ask, or remove the request. The result is the only partition."""
        files = StopFiles(self._options[_LOCATION])
        known = _parsed(json.loads(self._options["answers"]))
        try:
            if self._options["action"] == _ASK:
                known = ask_to_stop(files, known, self._options["query"])
            else:
                for run in known:
                    files.forget(run)
        except ValueError as error:
            return [_Answers(json.dumps({"error": f"{files.name}: {error}"}))]
        return [_Answers(json.dumps({"answers": _plain(known)}))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Return the row of the partition."""
        if not isinstance(partition, _Answers):
            raise TypeError(f"not a partition of this source: {partition!r}")
        yield (partition.text,)


class RemoteRequest:
    """The request of a Spark Connect client. See `stop.SourceRequest`. It works in a session of its own.

    Guards against a hang of PySpark's worker of foreachBatch (SPARK-58846, up to Spark 4.2):

    1. A read with a Python data source leaves values in the accumulator of its session.
    2. The server sends them with the answer to the session's next command.
    3. When a batch ends, its worker removes the batch's frame (`CachedRemoteRelation.__del__`), in the query's session.
       That call accepts one message at most. With a second one it waits for ever, and the batch never ends.
    """

    # Each read starts several processes of Python beside the batch in flight.
    pause_s = 0.5

    def __init__(self, query: StreamingQuery, location: str) -> None:
        self._query: Any = query
        self._location = location
        self._answers: dict[str, Answer | None] = {}
        self._own: Any = None

    def ask(self) -> Mapping[str, Answer | None]:
        """See `SourceRequest`."""
        self._answers = self._read(_ASK)
        return self._answers

    def close(self) -> None:
        """See `SourceRequest`."""
        try:
            self._read(_FORGET)
        finally:
            if self._own is not None:
                # Not `stop()`: with remote("local") it ends the server.
                self._own.client.release_session()
                self._own.client.close()

    def _read(self, action: str) -> dict[str, Answer | None]:
        if self._own is None:
            self._own = self._query._session.cloneSession()
            self._own.dataSource.register(StopRequestSource)
        options = {_LOCATION: self._location, "action": action, "answers": json.dumps(_plain(self._answers))}
        options["query"] = str(self._query.id)
        row = self._own.read.format(StopRequestSource.name()).options(**options).load().collect()[0]
        found = json.loads(row[0])
        if "error" in found:
            raise ValueError(found["error"])
        return _parsed(found["answers"])


def _plain(answers: Mapping[str, Answer | None]) -> dict[str, str | None]:
    return {run: None if answer is None else answer.name for run, answer in answers.items()}


def _parsed(names: Mapping[str, str | None]) -> dict[str, Answer | None]:
    return {run: None if name is None else Answer[name] for run, name in names.items()}
