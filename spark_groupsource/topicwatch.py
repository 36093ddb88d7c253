"""Which topics are read now: matches a pattern again and again, and notices topics that are deleted or made smaller.

Main thread of the reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.clusterport import ClusterPort, TopicInfo
from spark_groupsource.errors import OptionError
from spark_groupsource.losses import LossReporter
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.offsets import SourceOffset, TopicPartition
from spark_groupsource.option_types import SourceOptions
from spark_groupsource.positions import StartPositions, check_assigned

LOG = logging.getLogger("spark_groupsource.session")

# How often a pattern is matched, and a topic that is gone looked for.
REFRESH_S = 5.0


class TopicWatch:
    """`names` are the subscription's topics that exist, as far as is known."""

    def __init__(
        self,
        options: SourceOptions,
        cluster: ClusterPort,
        clock: Clock,
        losses: LossReporter,
        starts: StartPositions,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._losses = losses
        self._starts = starts
        self._clock = clock
        self._checked = Deadline(clock, 0.0)
        # By earlier runs, some maybe deleted, and told, since.
        self._read: Collection[str] = ()
        self._looked_back = False
        self._owned: dict[TopicPartition, int | None] = {}
        self._gone: set[str] = set()
        # Partitions that their topic does not have, and the id of the one that had them; empty if none is known.
        self._cut: dict[TopicPartition, str] = {}
        self.names: tuple[str, ...] = ()

    def find(self, known: Mapping[TopicPartition, int], read: Collection[str]) -> None:
        """Look for the topics; `known` says how far partitions are read, `read` which topics were.

        Raises `OptionError` for one that is named, does not exist and was never read.
        """
        subscription, self._read = self._options.subscription, read
        self.names = self._cluster.matching_topics(subscription)
        if subscription.pattern is None:
            check_assigned(subscription, self.describe(self.names, known))
        self._checked = Deadline(self._clock, REFRESH_S)

    def look_back(self, start: SourceOffset) -> None:
        """Look once, after a start, for what is gone of what was read: nobody assigns it, so nobody would miss it.

        Of what the last batch had, it is a loss; what the query had handed over before is its next owner's to tell.
        """
        if self._looked_back:
            return
        named = self._options.subscription.pattern is None
        ends = {p: at for p, at in start.ends().items() if not named or p.topic in self.names}
        ids = {partition: start.topic_id(partition.topic) or "" for partition in ends}
        owned = {item.partition: item.end for item in start.ranges if item.partition in ends}
        missing = self._cluster.missing_topics({partition.topic for partition in ends})
        self._losses.report_deleted({partition: at for partition, at in owned.items() if partition.topic in missing})
        self._gone |= missing
        self._notice_cut(owned, {partition: ids[partition] for partition in owned})
        elsewhere = self._untold(ends)
        self._cut |= {p: ids[p] for p in self._cluster.missing_partitions({p: ids[p] for p in elsewhere})}
        self._looked_back = True

    def refresh(self) -> bool:
        """Look for them again when it is time to; whether the member is to subscribe anew."""
        cut = {partition: topic_id for partition, topic_id in self._cut.items() if partition in self._owned}
        unsettled = self._options.subscription.pattern is not None or self._gone or cut
        if not self._checked.expired() or not unsettled:
            return False
        self.names = self._cluster.matching_topics(self._options.subscription)
        self._gone &= self._cluster.missing_topics(self._gone)
        for partition in cut.keys() - self._cluster.missing_partitions(cut):
            del self._cut[partition]
        self._checked = Deadline(self._clock, REFRESH_S)
        return self._options.subscription.pattern is not None

    @property
    def present(self) -> list[str]:
        """The names without those of topics that were deleted."""
        return [name for name in self.names if name not in self._gone]

    def describe(self, topics: Iterable[str], known: Mapping[TopicPartition, int]) -> dict[str, TopicInfo]:
        """Return what exists of these topics; for the others see `on_unknown`."""
        try:
            return self._cluster.describe(set(topics) - self._gone)
        except OptionError as error:
            self.on_unknown(error, known)
            return self._cluster.describe(set(topics) - self._gone)

    def without_deleted(self, view: GroupView, known: Mapping[TopicPartition, int]) -> GroupView:
        """Return the view without partitions that are gone; those that left it since the last one are looked up.

        `known` is how far the lineage has completed all that it has read.

        The sequence this protects against: a topic with unread records is deleted; the group takes its partitions
        from the members, and a query without partitions would idle for ever, as if all were read.
        """
        before, self._owned = self._positions, {owned.partition: owned.position for owned in view.partitions}
        left = {p: max(at, known.get(p, at)) for p, at in before.items() if p not in self._owned}
        if left:
            self._notice(left, self._cluster.missing_topics({partition.topic for partition in left}))
            self._notice_cut(left, self._ids(left))
        gone = self.gone(self._owned)
        if stale := sorted(self._starts.anchors.keys() & gone):
            # Nobody is to wait for the commit of one that is gone.
            self._starts.forget(stale)
        return replace(view, partitions=tuple(o for o in view.partitions if o.partition not in gone))

    def gone(self, partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
        """Return those of the partitions that do not exist any more."""
        if not self._gone and not self._cut:
            return ()
        return {partition for partition in partitions if partition.topic in self._gone or partition in self._cut}

    def on_unknown(self, error: OptionError, known: Mapping[TopicPartition, int]) -> None:
        """Take the cluster's answer that a topic or partition does not exist: a loss when it was read, else the error.

        The sequence that the partitions are for: a topic is deleted and made again with fewer of them; the group leaves
        them with the member until it looks at the topic again, minutes later, and none of the others would be read.
        """
        if error.condition != errors.TOPIC_UNKNOWN:
            raise error
        read = {**self._positions, **known}
        missing = self._cluster.missing_topics({*self.names, *(partition.topic for partition in read)} - self._gone)
        lost = {partition: at for partition, at in read.items() if partition.topic in missing}
        self._notice(lost, missing)
        untold = missing - self._gone
        if untold.difference(self._read) and self._options.subscription.pattern is None:
            raise error
        # A pattern's topic that came and went between two looks, or one whose loss an earlier run has told.
        self._gone |= untold
        self._notice_cut(read, self._ids(read))
        self._leave_out_absent(known)

    def _notice(self, positions: Mapping[TopicPartition, int], missing: set[str]) -> None:
        deleted = {partition: at for partition, at in positions.items() if partition.topic in missing - self._gone}
        self._losses.report_deleted(deleted)
        self._gone |= {partition.topic for partition in deleted}

    def _notice_cut(self, positions: Mapping[TopicPartition, int], ids: Mapping[TopicPartition, str]) -> None:
        """Look for partitions that a topic made again does not have; `ids` are those of the topics that were read."""
        asked = {partition: ids[partition] for partition in self._untold(ids)}
        cut = self._cluster.missing_partitions(asked)
        self._losses.report_cut({partition: positions[partition] for partition in cut})
        self._cut |= {partition: asked[partition] for partition in cut}

    def _leave_out_absent(self, known: Mapping[TopicPartition, int]) -> None:
        """Leave out assigned partitions that were never read and do not exist, until they do.

        The sequence this protects against: a topic is made again with fewer partitions, and the member that had one of
        the others leaves before the group looks at the topic again: this member is given what does not exist.
        """
        new = self._untold(p for p, position in self._owned.items() if position is None and p not in known)
        absent = self._cluster.missing_partitions(dict.fromkeys(new, ""))
        if absent:
            LOG.warning("assigned, and not there; left out until they are: %s", ", ".join(map(str, sorted(absent))))
        self._cut |= dict.fromkeys(absent, "")

    @property
    def _positions(self) -> dict[TopicPartition, int]:
        return {partition: position for partition, position in self._owned.items() if position is not None}

    def _ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        anchors = self._starts.anchors
        return {partition: anchors[partition].topic_id for partition in partitions if partition in anchors}

    def _untold(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        return {p for p in partitions if p.topic not in self._gone and p not in self._cut}
