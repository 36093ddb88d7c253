"""What becomes of ranges whose records are gone when a task gets to them (promise P8)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline, SystemClock
from spark_groupsource.cluster.port import CONFIRM_S, ClusterPort, Edge
from spark_groupsource.errors import DataLossError, KafkaUnavailableError, OptionError, ReadError
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.read_errors import stalled
from spark_groupsource.executor.topic_proof import TopicProof
from spark_groupsource.model.offsets import OffsetRange, same_topic
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.executor")

_BOUNDS_TIMEOUT_S = 10.0
# For so long a new leader may show an end before the true one.
_LAG_S = 30.0
_PAUSE_S = 0.5


def connect(options: SourceOptions) -> ClusterPort:
    """Return what an executor asks for topics' ids. Its own client cannot tell them."""
    # Imported here: a task that loses nothing does without it.
    from spark_groupsource.cluster.admin import LibrdkafkaCluster  # noqa: PLC0415

    return LibrdkafkaCluster(options, SystemClock(), time.sleep)


class LostRecords:
    """Reports what one task has lost and goes on behind it, or fails, as option failOnDataLoss says.

    `topic_ids` are those that the task was planned for. It connects when something is lost, or may be.
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
        self._gone: dict[str, str] = {}

    def out_of_range(self, consumer: RangeConsumer, item: OffsetRange, proof: TopicProof) -> None:
        """Go on with a range at whose position the log has nothing, behind what is lost; where nothing is, try again.

        The topic's id comes first. The sequence this protects against: a task stands at 150 of a topic that is deleted
        and made again; the new log ends at 20, which by offset alone looks like a leader that lags; it grows past 150,
        and its records are delivered as the old topic's.
        """
        position = consumer.position(item.partition)
        # R61: before any offset is compared
        gone = self.judge(consumer, item.partition.topic, proof)
        if gone is None or gone:
            return
        try:
            low, high = consumer.inquiries.log_bounds(item.partition, position, _BOUNDS_TIMEOUT_S)
        except ReadError as error:
            # Also where the client has not heard of the partition yet. Tried again until the task's deadline.
            consumer.inquiries.reason = str(error.parameters["reason"])
            self._pause(_PAUSE_S)
            consumer.skip(item.partition, position)
            return
        if low <= position:
            # Not lost: a new leader may lag behind for a while. Tried again until the task's deadline.
            consumer.inquiries.reason = f"(its leader's log is [{low}, {high}))"
            # A new assignment forgets the client's own pause after an error.
            self._pause(_PAUSE_S)
            consumer.skip(item.partition, position)
            return
        lost = OffsetRange(item.partition, position, max(position, min(low, item.end)))
        self._report([(lost, f"the log is [{low}, {high})")])
        # Also at the range's end: the client has stopped there, and the next range starts where this one ended.
        consumer.skip(item.partition, lost.end)

    def judge(self, consumer: RangeConsumer, topic: str, proof: TopicProof) -> bool | None:
        """Give a topic up that is not the one that the plan meant; return whether it is gone, None if nobody tells.

        What is lost is all that is not proven to be of that topic.
        """
        try:
            gone = self._why_gone(topic)
        except KafkaUnavailableError as error:
            # Nothing is read on meanwhile. Asked again until the task's deadline.
            consumer.inquiries.reason = str(error.parameters["reason"])
            self._pause(_PAUSE_S)
            return None
        if gone:
            self._report([(item, gone) for item in proof.give_up(topic)])
        return bool(gone)

    def silent(
        self, consumer: RangeConsumer, ranges: Sequence[OffsetRange], timeout_s: float, proof: TopicProof
    ) -> None:
        """Give up what is missing of ranges when nothing has come for as long as a task may wait, if it is gone.

        `timeout_s` is that time. What is kept of the ranges stays, and a range that has arrived is left alone.
        Raises `ReadError` when the log has the missing records, or nobody can tell.
        """
        lost: list[tuple[OffsetRange, str]] = []
        # What the client said while it waited tells more than what becomes of a request now.
        waiting, reason = None, consumer.inquiries.reason
        missing = [item for item in ranges if not consumer.complete(item)]
        for item in missing:
            why = self._why_silent(consumer, item, timeout_s)
            if not why:
                waiting = item
                break
            lost.append((OffsetRange(item.partition, consumer.arrived(item), item.end), why))
        if waiting is not None and not (lost and self._options.fail_on_data_loss):
            raise stalled(waiting, consumer.arrived(waiting), timeout_s, reason)
        for item in missing:
            if item.partition.topic not in self._gone:
                consumer.cut_short(item)
        cut = [(item, why) for item, why in lost if item.partition.topic not in self._gone]
        topics = sorted({item.partition.topic for item, _ in lost} & self._gone.keys())
        self._report([*cut, *((item, self._gone[topic]) for topic in topics for item in proof.give_up(topic))])

    def close(self) -> None:
        """Disconnect; idempotent."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    # --- helpers

    def _why_silent(self, consumer: RangeConsumer, item: OffsetRange, silence_s: float) -> str:
        """Return why a range's records will never come; empty when they may.

        The plan has seen the log up to the range's end. One that has ended at the position for long was cut since.
        """
        if not consumer.inquiries.answers(item.partition.topic):
            return ""
        position = consumer.arrived(item)
        try:
            gone = self._why_gone(item.partition.topic)
            if gone:
                return gone
            low, high = consumer.inquiries.log_bounds(item.partition, position, _BOUNDS_TIMEOUT_S)
            if high <= position and self._cluster is not None:
                # Under read_committed that is where the oldest open transaction begins; the log may go on behind it.
                end = self._cluster.log_offsets({item.partition: Edge.LATEST}, uncommitted=True)[item.partition]
                high = high if end is None else max(high, end.offset)
        except (KafkaUnavailableError, ReadError):
            return ""
        # R63: a new leader may lag behind for that long
        return f"the log is [{low}, {high})" if high <= position and silence_s >= _LAG_S else ""

    def _why_gone(self, topic: str) -> str:
        """Return why nothing more of the topic that the plan meant can come; empty when it is still there."""
        if topic not in self._gone:
            why = self._looked_up(topic)
            if not why:
                return ""
            self._gone[topic] = why
        return self._gone[topic]

    def _looked_up(self, topic: str) -> str:
        if self._cluster is None:
            self._cluster = self._make_cluster(self._options)
        # The plan has seen the topic, but the task's own client has been told otherwise: out of range, or unknown, if
        # nothing at all then after a silence of seconds.
        deadline: Deadline | None = None
        while True:
            try:
                found = self._cluster.describe([topic])[topic].topic_id
            except OptionError as error:
                if error.condition != errors.TOPIC_UNKNOWN:
                    raise
                why = "the topic was deleted"
            else:
                if same_topic(self._topic_ids.get(topic, found), found):
                    return ""
                why = "the topic was deleted and made again"
            # From the first such answer on: to connect may take longer than it has to stand.
            deadline = deadline or Deadline(self._clock, CONFIRM_S)
            # R62: one answer may be of a broker that lags behind
            if deadline.expired():
                return why
            self._pause(_PAUSE_S)

    def _report(self, lost: Sequence[tuple[OffsetRange, str]]) -> None:
        if not lost:
            return
        shown = ", ".join(f"{item} ({why})" for item, why in lost)
        if self._options.fail_on_data_loss:
            raise DataLossError(errors.DATA_LOST, ranges=shown)
        LOG.warning("data lost and skipped, failOnDataLoss=false: %s", shown)
