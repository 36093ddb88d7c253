"""Notices logs that have lost records which were read already, after an unclean leader election for instance.

The sequence this is for: offsets up to 20 of a partition are read; its leader dies with records 10 to 19, which no
other broker has; a replica that ends at 10 becomes the leader (unclean leader election), and takes new records as 10,
11, ...: by offset alone the first ten of them would be taken for read. A leader epoch that the log had when it reached
20 tells: in the new leader's log it ends at 10 (KIP-320).

Main thread of the reader process only. What an epoch costs: nothing while the leaders stay, one look per partition
after they have moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.port import ClusterPort, LogEnd
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.planning.batch import Backlog

# A new leader may show an end before the true one for a moment. One that does it for longer has lost records, also
# when no epoch is known of them.
SHORT_S = 30.0


class Mark(NamedTuple):
    """A log has reached `offset` when its leader's epoch was `leader_epoch`."""

    offset: int
    leader_epoch: int


class TruncationWatch:
    """Knows a mark of each partition, as far as it was learnt."""

    def __init__(self, cluster: ClusterPort, clock: Clock, *, read_committed: bool = False) -> None:
        self._cluster = cluster
        self._clock = clock
        self._ends_move_back = read_committed
        self._marks: dict[TopicPartition, Mark] = {}
        self._short: dict[TopicPartition, Deadline] = {}
        self._told: set[TopicPartition] = set()

    @property
    def in_doubt(self) -> bool:
        """Whether a log ended before its position when it was last looked at, and it may still be that for a moment."""
        return any(partition not in self._told for partition in self._short)

    def learn(self, ranges: Iterable[OffsetRange]) -> None:
        """Take what the ends of ranges say; of two marks the further one counts."""
        for item in ranges:
            known = self._marks.get(item.partition)
            if item.leader_epoch is not None and (known is None or known.offset <= item.end):
                self._marks[item.partition] = Mark(item.end, item.leader_epoch)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Their positions are found anew."""
        for partition in partitions:
            self._marks.pop(partition, None)
            self._short.pop(partition, None)
            self._told.discard(partition)

    def truncated(self, backlogs: Mapping[TopicPartition, Backlog]) -> dict[TopicPartition, int]:
        """Return where logs were truncated before the positions of these backlogs; each truncation once.

        Raises what the cluster does when the leaders cannot tell.
        """
        asked: dict[TopicPartition, Mark] = {}
        for partition, backlog in backlogs.items():
            mark, epoch = self._marks.get(partition), backlog.leader_epoch
            if epoch is None:
                continue
            if mark is None and backlog.position <= backlog.end:
                self._marks[partition] = Mark(backlog.position, epoch)
            elif mark is not None and mark.leader_epoch < epoch:
                asked[partition] = Mark(min(mark.offset, backlog.position), mark.leader_epoch)
        found = self._cluster.diverged(asked) if asked else {}
        for partition in found:
            self._marks[partition] = Mark(asked[partition].offset, backlogs[partition].leader_epoch or 0)
        cut = {partition: at for partition, at in found.items() if at is not None and at < asked[partition].offset}
        return self._short_for_long(backlogs, cut) | cut

    def _short_for_long(
        self, backlogs: Mapping[TopicPartition, Backlog], told: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        if self._ends_move_back:
            # read_committed: the end is before the oldest open transaction, and the position may rightly be behind it.
            return {}
        short = {partition for partition, backlog in backlogs.items() if backlog.end < backlog.position}
        self._told = (self._told | set(told)) & short
        self._short = {
            partition: self._short.get(partition) or Deadline(self._clock, SHORT_S) for partition in sorted(short)
        }
        found = {p: backlogs[p].end for p in short - self._told if self._short[p].expired()}
        self._told |= found.keys()
        return found


def beyond(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, LogEnd | None]
) -> dict[TopicPartition, Backlog]:
    """Return what logs have beyond these offsets, those whose ends are known."""
    known = ((partition, at, ends.get(partition)) for partition, at in positions.items())
    return {p: Backlog(at, end.offset, end.leader_epoch) for p, at, end in known if end is not None}
