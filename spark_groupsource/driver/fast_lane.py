"""Read small batches on the driver, because a Spark Python task takes tens of milliseconds before it reads anything.

Driver and executors read the same ranges, so a batch that Spark runs again may be read on the other side.
`spark/row_handover.py` passes the rows to Spark.

A standby member keeps the same consumer warm: it is connected to the leaders of the standby partitions and has fetched
the records at the group's offsets. After a takeover it reads its first batch at once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.executor.clients.choose import make_client
from spark_groupsource.executor.pool import fits, share_bytes
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.reader import read_ranges
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.model.commit_metadata import metadata_of
from spark_groupsource.model.offsets import OFFSET_MAX, OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

LOG = logging.getLogger(__name__)

# Seconds. A batch that is not read by then is left to the executors, which wait up to kafkaConsumer.pollTimeoutMs.
READ_TIMEOUT_S = 2.0
# Seconds for which the executors read everything after the fast lane was too slow or failed.
REST_S = 30.0
# A small batch has few records of each partition.
_QUEUE_BYTES = 4 * 1024 * 1024
# Maximum size of a batch that passes through the driver.
MAX_BYTES = 16 * 1024 * 1024
# Seconds by which the warm consumer may lag behind the active member. Each round moves it to the group's offsets, where
# it fetches again.
_INTERVAL_S = 30.0


def make_driver_consumer(options: SourceOptions, partitions: int) -> RangeConsumer:
    """Return a new consumer for about `partitions` partitions, with short queues because batches are small."""
    queued = min(_QUEUE_BYTES, share_bytes(options))
    make = functools.partial(make_client, max_queued_bytes=queued, partitions=partitions)
    return RangeConsumer(options, make, partitions, share_bytes(options, 1))


class FastLane:
    """Read small batches with the driver's own consumer, which a large batch closes. Main thread only."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Clock,
        make: Callable[[SourceOptions, int], RangeConsumer] = make_driver_consumer,
    ) -> None:
        self._options = options.for_reading()
        # The driver reads a batch as one task.
        self._limit = min(options.fast_lane_max_offsets, options.max_records_per_partition or OFFSET_MAX)
        self._clock = clock
        self._make = make
        self._consumer: RangeConsumer | None = None
        # Empty ranges at the consumer's positions, with the leader epoch in which the next records were fetched.
        self._positions: dict[TopicPartition, OffsetRange] = {}
        self._rest: Deadline | None = None

    def read(
        self, ranges: Sequence[OffsetRange], owned: Collection[TopicPartition], topic_ids: Mapping[str, str] = {}
    ) -> tuple[pa.RecordBatch, ...] | None:
        """Return the records of the ranges, planned for these topics; None if the executors must read them.

        The consumer keeps all owned partitions that it has seen, because small batches have different partitions each
        time.
        """
        if sum(map(len, ranges)) > self._limit or len({item.partition for item in ranges}) < len(ranges):
            self.close()
            return None
        if self._rest is not None and not self._rest.expired():
            return None
        try:
            rows = self._read(ranges, owned, topic_ids)
        except GroupKafkaError as error:
            # The executors get the same error, and report it in full.
            LOG.info("left to the executors for %.0f s: group=%s %s", REST_S, self._options.group_id, error)
            rows = None
            self._rest = Deadline(self._clock, REST_S)
        except BaseException:
            self.close()
            raise
        if rows is None:
            self.close()
        return rows

    def warm(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        """Connect to the leaders of these empty ranges, and fetch their first records without waiting for them."""
        if not ranges or (self._rest is not None and not self._rest.expired()):
            return
        try:
            consumer = self._fitting(len({*self._positions, *(item.partition for item in ranges)}), ranges, topic_ids)
            consumer.move_to(ranges, topic_ids)
        except GroupKafkaError as error:
            # A cold consumer only makes the first batch slower.
            LOG.info("not kept warm: group=%s %s", self._options.group_id, error)
            self.close()
            return
        except BaseException:
            self.close()
            raise
        self._positions |= {item.partition: item for item in ranges}

    def close(self) -> None:
        """Close the consumer; the next small batch creates another one."""
        consumer, self._consumer = self._consumer, None
        self._positions = {}
        if consumer is not None:
            consumer.close()

    def _fitting(self, partitions: int, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> RangeConsumer:
        """Return the consumer for these ranges.

        A new one if it was created for far fewer partitions, has read other topics, or cannot learn new leaders.
        """
        known = self._consumer
        if known is not None and not (
            fits(known, partitions) and known.is_current(topic_ids) and known.follows_leaders(ranges)
        ):
            self.close()
        if self._consumer is None:
            self._consumer = self._make(self._options, partitions)
        return self._consumer

    def _read(
        self, ranges: Sequence[OffsetRange], owned: Collection[TopicPartition], topic_ids: Mapping[str, str]
    ) -> tuple[pa.RecordBatch, ...] | None:
        wanted = {item.partition: item for item in ranges}
        consumer = self._fitting(len({*owned, *wanted}), ranges, topic_ids)
        # The wanted ranges keep their ends: the consumer requests that many records from its client.
        positions = {partition: at for partition, at in self._positions.items() if partition in owned} | wanted
        consumer.drop_partitions(partition for partition in self._positions if partition not in positions)
        consumer.move_to(list(positions.values()), topic_ids)
        rows, size = [], 0
        for batch in read_ranges(self._options, consumer, ranges, self._clock, READ_TIMEOUT_S, topic_ids=topic_ids):
            size += batch.nbytes
            if size > MAX_BYTES:
                # The next batches are probably as large, and would be read twice, too.
                self._rest = Deadline(self._clock, REST_S)
                return None
            rows.append(batch)
        read = {item.partition: OffsetRange(item.partition, item.end, item.end, item.leader_epoch) for item in ranges}
        self._positions = positions | read
        return tuple(rows)


class Standby:
    """Keep the driver's consumer warm for the standby partitions. Main thread only."""

    def __init__(self, member: MembershipThread, clock: Clock) -> None:
        self._member = member
        self._pace = Pace(clock, _INTERVAL_S)
        # The member's standby partitions in the last round.
        self.partitions: frozenset[TopicPartition] = frozenset()

    def keep_warm(self, lane: FastLane) -> None:
        """Move the consumer to the group's offsets of the standby partitions. Do nothing between two rounds."""
        partitions = self._member.status.standby
        if partitions != self.partitions:
            self.partitions = partitions
            self._pace.hurry()
        if not partitions or not self._pace.due():
            return
        found = self._member.fetch_offsets(sorted(partitions))
        if not found:
            # The group is rebalancing, or its coordinator is away.
            self._pace.hurry()
        ranges: list[OffsetRange] = []
        topic_ids: dict[str, str] = {}
        for partition, group in found.items():
            metadata = metadata_of(group)
            if group.offset is None or metadata is None:
                # An offset of another program has no topic id, so it is not known which topic would be fetched.
                continue
            if topic_ids.setdefault(partition.topic, metadata.topic_id) == metadata.topic_id:
                ranges.append(OffsetRange(partition, group.offset, group.offset, metadata.leader_epoch))
        lane.warm(ranges, topic_ids)
