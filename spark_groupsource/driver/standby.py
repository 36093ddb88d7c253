"""Keeps the driver's consumer warm for the partitions that the member stands by for.

A member that takes over reads its first batch at once when its consumer is connected to the partitions' leaders and has
fetched what comes at the group's offset.
"""

from __future__ import annotations

from spark_groupsource.clock import Clock, Pace
from spark_groupsource.driver.fast_lane import FastLane
from spark_groupsource.driver.start_positions import metadata_of
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.model.offsets import OffsetRange, TopicPartition

# How far the warm consumer may fall behind the active member. Each round fetches anew what the other has read.
_INTERVAL_S = 30.0


class Standby:
    """Main thread only."""

    def __init__(self, member: MembershipThread, clock: Clock) -> None:
        self._member = member
        self._pace = Pace(clock, _INTERVAL_S)
        # What the member stands by for, as last seen.
        self.partitions: frozenset[TopicPartition] = frozenset()

    def keep_warm(self, lane: FastLane) -> None:
        """Put the consumer at the group's offsets of what the member stands by for; does nothing between two rounds."""
        partitions = self._member.standby()
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
                # What another program has committed tells no topic id: it would not be known what is fetched.
                continue
            if topic_ids.setdefault(partition.topic, metadata.topic_id) == metadata.topic_id:
                ranges.append(OffsetRange(partition, group.offset, group.offset, metadata.leader_epoch))
        lane.warm(ranges, topic_ids)
