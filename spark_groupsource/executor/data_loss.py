"""Handle ranges whose records are missing from the log when a task reads them (promise P8)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from spark_groupsource import errors
from spark_groupsource.clock import Clock, HeldFor, SystemClock
from spark_groupsource.cluster.port import CONFIRM_S, ClusterPort, Edge
from spark_groupsource.errors import KafkaUnavailableError, OptionError, report_loss
from spark_groupsource.executor.clients.port import RequestFailed
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.read_errors import stalled
from spark_groupsource.executor.topic_proof import TopicProof
from spark_groupsource.model.offsets import OffsetRange, same_topic
from spark_groupsource.options.model import SourceOptions

_BOUNDS_TIMEOUT_S = 10.0
# How long a new leader may report an end offset below the true one.
_LAG_S = 30.0
_PAUSE_S = 0.5


def connect(options: SourceOptions) -> ClusterPort:
    """Return a connection to request topic ids with. The executor's reading client cannot request them."""
    # Imported here: a task without data loss does not need it.
    from spark_groupsource.cluster.admin import LibrdkafkaCluster  # noqa: PLC0415

    return LibrdkafkaCluster(options, SystemClock(), time.sleep)


class LostRecords:
    """Report the data loss of one task: fail, or log it and skip it, as option failOnDataLoss decides.

    `topic_ids` are those that the task was planned for. It connects on the first suspected loss.
    """

    def __init__(
        self,
        options: SourceOptions,
        topic_ids: Mapping[str, str],
        clock: Clock,
        make_cluster: Callable[[SourceOptions], ClusterPort] = connect,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._options = options
        self._topic_ids = topic_ids
        self._clock = clock
        self._make_cluster = make_cluster
        self._pause = pause
        self._cluster: ClusterPort | None = None
        # Topics that were deleted or recreated since the plan, with the reason of the loss.
        self._replaced: dict[str, str] = {}

    def on_out_of_range(self, consumer: RangeConsumer, item: OffsetRange, proof: TopicProof) -> None:
        """Handle an out-of-range position.

        Give up the range if its topic was deleted or recreated, skip records that the log no longer has, otherwise
        retry from the same offset. The topic id is checked before any offset is compared. Raises `DataLossError` on
        loss if failOnDataLoss is true.

        Guards against (rule R57, out of range):
        1. A task has read to 150. The topic is deleted and recreated, and its log ends at 20.
        2. By offset alone the leader seems to lag. The task waits.
        3. The new log grows past 150: its records would pass for the deleted topic's.
        """
        position = consumer.position(item.partition)
        # R57: before any offset is compared
        if self.give_up_replaced(consumer, item.partition.topic, proof) is not False:
            return
        try:
            low, high = consumer.requests.log_bounds(item.partition, _BOUNDS_TIMEOUT_S)
        except RequestFailed as error:
            # Also if the client does not know the partition yet. Retried until the task's deadline.
            consumer.requests.reason = str(error)
            self._pause(_PAUSE_S)
            consumer.skip(item.partition, position)
            return
        if low <= position:
            # Not lost: a new leader may lag for a while. Retried until the task's deadline.
            consumer.requests.reason = f"its leader's log is [{low}, {high})"
            # A new assignment cancels the client's own pause after an error.
            self._pause(_PAUSE_S)
            consumer.skip(item.partition, position)
            return
        lost = OffsetRange(item.partition, position, max(position, min(low, item.end)))
        self._report([(lost, f"the log is [{low}, {high})")])
        # Also at the range's end: the client has stopped there, and the next range starts at that offset.
        consumer.skip(item.partition, lost.end)

    def give_up_replaced(self, consumer: RangeConsumer, topic: str, proof: TopicProof) -> bool | None:
        """Give up a topic that was deleted or recreated since the plan. Return whether it was, None if unknown.

        All records that are not proven to be of the planned topic are lost. Raises `DataLossError` for them if
        failOnDataLoss is true.
        """
        try:
            reason = self._replacement(topic)
        except KafkaUnavailableError as error:
            # Nothing is read meanwhile. The request is repeated until the task's deadline.
            consumer.requests.reason = str(error.parameters["reason"])
            self._pause(_PAUSE_S)
            return None
        if reason:
            self._report((item, reason) for item in proof.give_up(topic))
        return bool(reason)

    def on_silence(
        self, consumer: RangeConsumer, ranges: Sequence[OffsetRange], timeout_s: float, proof: TopicProof
    ) -> None:
        """Give up the missing records of ranges if the log does not have them, after `timeout_s` without progress.

        Rows that were fetched already are kept, and complete ranges are left unchanged. Raises `ReadError` if the log
        has the missing records, or if no broker answers, and `DataLossError` if failOnDataLoss is true.
        """
        lost: list[tuple[OffsetRange, str]] = []
        # The reason from the wait is more useful than the result of a request now.
        waiting, reason = None, consumer.requests.reason
        missing = consumer.missing(ranges)
        if not missing:
            # R89: nothing is missing, and yet the ranges do not end
            raise stalled(ranges[0], consumer.position(ranges[0].partition), timeout_s, reason)
        for item in missing:
            cause = self._cause_of_silence(consumer, item, timeout_s)
            if not cause:
                waiting = item
                break
            lost.append((OffsetRange(item.partition, consumer.arrived(item), item.end), cause))
        if waiting is not None and not (lost and self._options.fail_on_data_loss):
            raise stalled(waiting, consumer.arrived(waiting), timeout_s, reason)
        for item in missing:
            if item.partition.topic not in self._replaced:
                consumer.cut_short(item)
        cut = [(item, cause) for item, cause in lost if item.partition.topic not in self._replaced]
        topics = sorted({item.partition.topic for item, _ in lost} & self._replaced.keys())
        self._report([*cut, *((item, self._replaced[topic]) for topic in topics for item in proof.give_up(topic))])

    def close(self) -> None:
        """Disconnect; idempotent."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    # --- helpers

    def _cause_of_silence(self, consumer: RangeConsumer, item: OffsetRange, silence_s: float) -> str:
        """Return why a range's records will never arrive; empty if they may.

        When the batch was planned, the log reached the range's end. A log that now ends at the position, and has done
        so for `_LAG_S`, was truncated since.

        Guards against (rule R63):
        1. A partition moves to a new leader. For a moment it reports an end before the position.
        2. The records are there. They would count as lost.
        """
        if not consumer.requests.can_reach([item.partition.topic]):
            return ""
        position = consumer.arrived(item)
        try:
            replacement = self._replacement(item.partition.topic)
            if replacement:
                return replacement
            low, high = consumer.requests.log_bounds(item.partition, _BOUNDS_TIMEOUT_S)
            if high <= position and self._cluster is not None:
                # Under read_committed `high` is the start of the oldest open transaction; the log may continue there.
                end = self._cluster.log_offsets({item.partition: Edge.LATEST}, uncommitted=True)[item.partition]
                high = high if end is None else max(high, end.offset)
        except (KafkaUnavailableError, RequestFailed):
            return ""
        # R63: a new leader may lag behind for that long
        return f"the log is [{low}, {high})" if high <= position and silence_s >= _LAG_S else ""

    def _replacement(self, topic: str) -> str:
        """Return how the planned topic was deleted or recreated; empty if it still exists."""
        reason = self._replaced.get(topic) or self._requested_replacement(topic)
        if reason:
            self._replaced[topic] = reason
        return reason

    def _requested_replacement(self, topic: str) -> str:
        """Return why the topic is not the planned one any more; empty if it is the same topic.

        Guards against (rule R36, a task):
        1. A topic was recreated before it was planned. A broker has not heard of that yet.
        2. A task asks this broker. It reports the deleted topic's id, or no id.
        3. The task would report a loss where nothing is lost.
        """
        if self._cluster is None:
            self._cluster = self._make_cluster(self._options)
        # The topic existed when the batch was planned. The task's client has since reported "out of range", "unknown
        # topic", or nothing for seconds.
        gone = HeldFor[str](self._clock, CONFIRM_S)
        while True:
            asked_s = self._clock.monotonic_s()
            try:
                found = self._cluster.describe([topic])[topic].topic_id
            except OptionError as error:
                if error.condition != errors.TOPIC_UNKNOWN:
                    raise
                reason = "the topic was deleted"
            else:
                if same_topic(self._topic_ids.get(topic, found), found):
                    return ""
                reason = "the topic was deleted and recreated"
            # R36: one answer may be of a broker that lags behind
            gone.answered({topic: True}, asked_s)
            if gone.counts(topic):
                return reason
            self._pause(_PAUSE_S)

    def _report(self, lost: Iterable[tuple[OffsetRange, str]]) -> None:
        report_loss(lost, fail=self._options.fail_on_data_loss, group=self._options.group_id)
