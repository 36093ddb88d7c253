"""Which topics are read now: matches a pattern again and again, and notices topics that are deleted or made smaller.

Main thread of the reader process only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.clusterport import ClusterPort, TopicInfo
from spark_groupsource.errors import OptionError
from spark_groupsource.losses import LossReporter
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.offsets import TopicPartition
from spark_groupsource.option_types import SourceOptions
from spark_groupsource.positions import check_assigned

# How often a pattern is matched, and a topic that is gone looked for.
REFRESH_S = 5.0


class TopicWatch:
    """`names` are the subscription's topics that exist, as far as is known.

    `forget` drops what the member holds of partitions: nobody is to wait for the commit of one that is gone.
    """

    def __init__(
        self,
        options: SourceOptions,
        cluster: ClusterPort,
        clock: Clock,
        losses: LossReporter,
        forget: Callable[[Sequence[TopicPartition]], object],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._losses = losses
        self._forget = forget
        self._clock = clock
        self._checked = Deadline(clock, 0.0)
        self._positions: dict[TopicPartition, int] = {}
        self._gone: set[str] = set()
        # Partitions that their topic, made again, has no more.
        self._cut: set[TopicPartition] = set()
        self.names: tuple[str, ...] = ()

    def find(self, known: Mapping[TopicPartition, int]) -> None:
        """Look for the topics; `known` says how far partitions are read.

        Raises `OptionError` for one that is named, does not exist and was never read.
        """
        subscription = self._options.subscription
        self.names = self._cluster.matching_topics(subscription)
        if subscription.pattern is None:
            check_assigned(subscription, self.describe(self.names, known))
        else:
            unmatched = {partition: at for partition, at in known.items() if partition.topic not in self.names}
            self._notice(unmatched, self._cluster.missing_topics({partition.topic for partition in unmatched}))
        self._checked = Deadline(self._clock, REFRESH_S)

    def refresh(self) -> bool:
        """Look for them again when it is time to; whether the member is to subscribe anew."""
        unsettled = self._options.subscription.pattern is not None or self._gone or self._cut
        if not self._checked.expired() or not unsettled:
            return False
        self.names = self._cluster.matching_topics(self._options.subscription)
        self._gone &= self._cluster.missing_topics(self._gone)
        self._cut = self._cluster.missing_partitions(self._cut)
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
        owned = {item.partition for item in view.partitions}
        left = {p: max(at, known.get(p, at)) for p, at in self._positions.items() if p not in owned}
        self._positions = {o.partition: o.position for o in view.partitions if o.position is not None}
        if left:
            self._notice(left, self._cluster.missing_topics({partition.topic for partition in left}))
            self._notice_cut(left)
        gone = {p for p in owned if p.topic in self._gone or p in self._cut}
        if stale := sorted(gone & self._positions.keys()):
            self._forget(stale)
        return replace(view, partitions=tuple(o for o in view.partitions if o.partition not in gone))

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
        unread = missing - self._gone
        if unread and self._options.subscription.pattern is None:
            raise error
        # A pattern's topic that came and went between two looks.
        self._gone |= unread
        self._notice_cut(read)

    def _notice(self, positions: Mapping[TopicPartition, int], missing: set[str]) -> None:
        deleted = {partition: at for partition, at in positions.items() if partition.topic in missing - self._gone}
        self._losses.report_deleted(deleted)
        self._gone |= {partition.topic for partition in deleted}

    def _notice_cut(self, positions: Mapping[TopicPartition, int]) -> None:
        there = {partition for partition in positions if partition.topic not in self._gone}
        cut = self._cluster.missing_partitions(there - self._cut)
        self._losses.report_cut({partition: positions[partition] for partition in cut})
        self._cut |= cut
