"""Define the data source and its readers: translate between Spark's calls and the session.

Spark builds the reader twice: in the long-lived reader process of the query, and in a plan worker that pickles it for
the executors. So constructors do no I/O, and the member joins at the first call that only the driver makes.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_groupsource import errors
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.stopping import StopCause
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition, new_lineage, parse_offset
from spark_groupsource.options.client_settings import warn_of_unused
from spark_groupsource.options.model import NextTrigger, ReadBounds, Reads, SourceOptions
from spark_groupsource.options.parse import parse_options
from spark_groupsource.redaction import MaskSecrets
from spark_groupsource.spark.executor_python import guarded
from spark_groupsource.spark.reader_signals import on_signals
from spark_groupsource.spark.row_handover import HandsOverRows, spark_hook
from spark_groupsource.spark.spark_calls import PlanningCalls, without_frames

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_groupsource.driver.fast_lane import FastLane, Standby
    from spark_groupsource.driver.session import Session

LOG = logging.getLogger("spark_groupsource")


def source_schema(include_headers: bool) -> StructType:
    """Return the columns: the same as in Spark's own Kafka source."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if include_headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    return StructType(fields)


class GroupKafkaDataSource(DataSource):
    """`spark.readStream.format("groupkafka")`: a streaming query that is a member of a Kafka consumer group.

    Raises `OptionError` if an option is missing, unknown, malformed or refused.
    """

    @without_frames
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        # The constructor cannot know whether Spark plans a streaming query or a batch read.
        self._parsed = parse_options(options, None)
        # Here, because Spark builds the readers of one query in several processes.
        warn_of_unused(self._parsed.client_settings, self._parsed.executor_settings)
        self._has_reader = False

    def __repr__(self) -> str:
        return f"GroupKafkaDataSource({self._parsed!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state. Executors, who receive it with the reader, get none of the options."""
        return self.__dict__ | {"options": {}, "_parsed": None} if self._has_reader else self.__dict__

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Make the executor's Python check its packages before it unpickles anything of this one."""
        made = super().__reduce_ex__(protocol)
        return guarded(_remade, self.__class__, self.__getstate__()) if self._has_reader else made

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "groupkafka"

    def schema(self) -> StructType:
        """Return the fixed schema."""
        return source_schema(self._parsed.include_headers)

    @without_frames
    def streamReader(self, schema: StructType) -> GroupKafkaStreamReader:
        """Return a streaming reader. It does no I/O before its first driver-side call."""
        self._check_schema(schema)
        self._has_reader = True
        return GroupKafkaStreamReader(parse_options(self.options, Reads.STREAM))

    @without_frames
    def reader(self, schema: StructType) -> GroupKafkaBatchReader:
        """Return the reader of a batch read."""
        self._check_schema(schema)
        self._has_reader = True
        return GroupKafkaBatchReader(parse_options(self.options, Reads.BATCH))

    @without_frames
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Raise `OptionError`: this format only reads."""
        raise OptionError(errors.WRITING_UNSUPPORTED)

    streamWriter = writer

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in self.schema())
            raise OptionError(errors.SCHEMA_FIXED, given=schema.simpleString(), columns=columns)


def _remade(kind: type[GroupKafkaDataSource], state: dict[str, Any]) -> GroupKafkaDataSource:
    """Rebuild a data source in another process, without the state that executors do not need."""
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


class GroupKafkaPartition(InputPartition):
    """One Spark task: ranges of one or more Kafka partitions, and the ids of their topics when it was planned."""

    def __init__(self, ranges: tuple[OffsetRange, ...], topic_ids: Mapping[str, str] = {}) -> None:
        self.ranges = ranges
        topics = {item.partition.topic for item in ranges}
        self.topic_ids = {topic: topic_ids[topic] for topic in topics if topic in topic_ids}

    def __repr__(self) -> str:
        return f"GroupKafkaPartition({', '.join(map(str, self.ranges))})"


class GroupKafkaStreamReader(HandsOverRows, PlanningCalls, DataSourceStreamReader):
    """Handles Spark's calls for one streaming query."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._session: Session | None = None
        self._lane: FastLane | None = None
        self._lane_chosen = False
        self._standby: Standby | None = None
        self._initial: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"GroupKafkaStreamReader(group={self._options.group_id!r}, session={self._session!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors: their part of the options. The session stays in the driver."""
        return dict.fromkeys(("_session", "_lane", "_lane_chosen", "_standby", "_initial")) | {
            "_options": self._options.for_reading()
        }

    # --- driver

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new lineage. Spark calls it more than once, and gets the same result."""
        if self._initial is None:
            self._initial = SourceOffset(new_lineage()).to_json()
        return self._initial

    @without_frames
    def _planned(
        self, start: dict[str, Any], bounds: ReadBounds, later: NextTrigger = NextTrigger.COMES
    ) -> dict[str, Any]:
        """Plan the next batch. Return `start` itself, unchanged, if there is nothing to read."""
        offset = parse_offset(start)
        session = self._driver()
        end = session.latest_offset(offset, bounds, later)
        # Only without a new batch, because it may take a while.
        idle = end is offset and not session.stopping
        if idle and (standby := self._standby) is not None and (lane := self._fast_lane()) is not None:
            session.unless_left(lambda: standby.keep_warm(lane))
        # Spark compares offsets as text: unchanged means no batch.
        return start if end is offset else end.to_json()

    @without_frames
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch that ends at `end`."""
        session, batch = self._driver(), parse_offset(end)
        tasks = self._tasks(start, end)
        # Ids of topics in this batch only. Topics that the member handed over may have been recreated since.
        topics = {item.partition.topic for item in batch.ranges}
        topic_ids = {topic: topic_id for topic, topic_id in batch.topic_ids if topic in topics}
        ranges = tuple(item for task in tasks for item in task)
        lane = self._fast_lane() if ranges else None
        rows = None if lane is None else lane.read(ranges, self._kept(session), topic_ids)
        if rows is None:
            return [GroupKafkaPartition(task, topic_ids) for task in tasks]
        session.read_on_driver(sum(batch.nbytes for batch in rows))
        self.hand_over(rows)
        return [GroupKafkaPartition(ranges, topic_ids)]

    def _kept(self, session: Session) -> frozenset[TopicPartition]:
        """Return the partitions whose positions the driver's consumer should keep."""
        return frozenset(session.owned) | (self._standby.partitions if self._standby is not None else frozenset())

    def commit(self, end: dict[str, Any]) -> None:
        """Handle Spark's late report that the batch that ends at `end` is complete."""
        self._driver().commit(parse_offset(end))

    def stop(self) -> None:
        """Leave the group. Spark calls it when the reader process ends after an error or the end of its input."""
        if self._session is not None:
            self._session.stop()
        if self._lane is not None:
            self._lane.close()

    def _driver(self) -> Session:
        if self._session is None:
            # Imported here, because an executor that unpickles a reader needs nothing of the membership.
            from spark_groupsource.spark.assembly import import_reading, make_session  # noqa: PLC0415

            _log_to_stderr()
            _log_slow_start(pyspark.__file__)
            self._session, self._standby = make_session(self._options)
            threading.Thread(target=import_reading, name="groupkafka-imports", daemon=True).start()
            _stop_on_signals(self._session)
        return self._session

    def _fast_lane(self) -> FastLane | None:
        """Return the driver's consumer for small batches, created at the first call; None if executors read all."""
        if not self._lane_chosen:
            from spark_groupsource.spark.assembly import make_lane  # noqa: PLC0415 - as in `_driver`

            self._lane = make_lane(self._options)
            if self._lane is not None and spark_hook() is None:
                LOG.info("no fast lane: this PySpark does not accept rows with a plan; executors read all batches")
                self._lane = None
            self._lane_chosen = True
        return self._lane

    # --- executors

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges as Arrow record batches."""
        return _read(self._options, partition)


class GroupKafkaBatchReader(DataSourceReader):
    """Handles one `spark.read`: plans in a process of the driver, reads on executors, joins no group.

    It accepts no filters. Spark 4.2.0 stores a reader's plan with the filters of one use of a DataFrame, and reads the
    same plan for all other uses, whatever their filters are (`PythonScanBuilder`, `PythonDataSourceV2`).
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for executors: their part of the options."""
        return self.__dict__ | {"_options": self._options.for_reading()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options.subscription.value!r})"

    @without_frames
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks. Start and end of the range are resolved now."""
        # Imported here, because executors need none of it.
        from spark_groupsource.clock import SystemClock  # noqa: PLC0415
        from spark_groupsource.cluster.admin import LibrdkafkaCluster  # noqa: PLC0415
        from spark_groupsource.spark.batch_read import batch_ranges, batch_tasks  # noqa: PLC0415

        _log_to_stderr()
        cluster = LibrdkafkaCluster(self._options, SystemClock(), time.sleep)
        try:
            ranges, topic_ids = batch_ranges(self._options, cluster)
        finally:
            cluster.close()
        tasks = batch_tasks(ranges, self._options)
        # Spark treats a source without partitions as one without a plan.
        return [GroupKafkaPartition(task, topic_ids) for task in tasks] or [GroupKafkaPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's ranges as Arrow record batches."""
        return _read(self._options, partition)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Imported here, because the driver needs none of it, and executors need nothing of the membership.
    from spark_groupsource.executor.reader import read_task  # noqa: PLC0415

    if not isinstance(partition, GroupKafkaPartition):
        raise TypeError(f"not a partition of this source: {partition!r}")
    _log_to_stderr()
    return read_task(options.for_reading(), partition.ranges, topic_ids=partition.topic_ids)


def _stop_on_signals(session: Session) -> None:
    """Leave the group on SIGTERM, after the batch in flight; on SIGINT, too.

    Spark ends the reader process with two SIGTERMs and then closes its socket; its runner then calls `stop()`, which
    does not wait for a batch. Other programs send SIGTERM to all processes of an application (see
    `membership.stopping`), and Ctrl-C in a terminal sends SIGINT to all of them. The request only sets an attribute.
    """
    if threading.current_thread() is threading.main_thread():
        # SIGINT is ignored if the JVM ignores it, as in a Python program that started the JVM.
        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        causes = {signal.SIGTERM.value: StopCause.SIGTERM, signal.SIGINT.value: StopCause.SIGINT}
        numbers = {signal.SIGTERM} if is_ignored else {signal.SIGTERM, signal.SIGINT}
        on_signals(numbers, lambda number: session.request_stop(causes[number]))


def _log_slow_start(module_file: str | None) -> None:
    """Log how to start Python processes faster if they compile PySpark anew: its archive has no bytecode.

    `module_file` is that of PySpark's package. An import from bytecode, or from a folder, has another name.
    """
    archive, inside, name = (module_file or "").partition(f".zip{os.sep}")
    if inside and name.endswith(".py"):
        LOG.info(
            "%s.zip has no bytecode, so each Python process that Spark starts takes about 0.4 s longer. Run this once"
            " per installation of PySpark: groupkafka doctor --fix-startup",
            archive,
        )


def _log_to_stderr() -> None:
    """Show this package's log in the process's own log, unless the application has configured logging."""
    if not LOG.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.addFilter(MaskSecrets())
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s pid=%(process)d: %(message)s"))
        LOG.addHandler(handler)
        LOG.setLevel(logging.INFO)
