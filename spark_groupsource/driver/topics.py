"""Track which topics are read: match the pattern repeatedly, and detect deleted and smaller topics.

Main thread of the reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.offset_lookup import check_assigned, reads
from spark_groupsource.cluster.port import ClusterPort, TopicInfo
from spark_groupsource.driver.data_loss import LossReporter
from spark_groupsource.driver.query_state import QueryState
from spark_groupsource.driver.start_positions import StartPositions
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.model.offsets import SourceOffset, TopicPartition
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger("spark_groupsource.session")

# Maximum seconds between two matches of a pattern, and between two checks of a missing topic.
REFRESH_S = 5.0


@dataclass(frozen=True, slots=True)
class Known:
    """How far the lineage has read: its newest batch (`last`), what it handed over before (`done`), and topic ids.

    A missing partition of the newest batch is a loss. Losses of the others are reported by their next owner.
    """

    last: Mapping[TopicPartition, int]
    done: Mapping[TopicPartition, int]
    ids: Mapping[str, str]

    @classmethod
    def of(cls, offset: SourceOffset) -> Known:
        """Return what an entry of the offset log contains."""
        return cls({item.partition: item.end for item in offset.ranges}, dict(offset.done), dict(offset.topic_ids))


NOTHING = Known({}, {}, {})


class TopicWatch:
    """Track the topics of the subscription. `names` are those that exist, as far as is known."""

    def __init__(
        self,
        options: SourceOptions,
        cluster: ClusterPort,
        clock: Clock,
        *,
        state: QueryState,
        losses: LossReporter,
        starts: StartPositions,
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._state = state
        self._losses = losses
        self._starts = starts
        self._clock = clock
        refresh_s = int(options.client_settings.get("topic.metadata.refresh.interval.ms", "0")) / 1000
        self._refresh_s = min(REFRESH_S, refresh_s) if refresh_s > 0 else REFRESH_S
        self._checked = Deadline(clock, 0.0)
        self._looked_back = False
        # The partitions of the last view, and their positions.
        self._owned: dict[TopicPartition, int | None] = {}
        self.names: tuple[str, ...] = ()

    def find(self, known: Known) -> None:
        """Find the topics. Raises `OptionError` for a named topic that does not exist and was never read."""
        subscription = self._options.subscription
        self.names = self._cluster.matching_topics(subscription)
        found = self.describe(self.names, known)
        self._state.started_with({topic: info.topic_id for topic, info in found.items()})
        if subscription.pattern is None:
            check_assigned(subscription, found)
        self._checked = Deadline(self._clock, self._refresh_s)

    def look_back(self, known: Known) -> None:
        """Check once after a start for missing partitions of the newest batch, and report them (rule R39).

        Topics that were unsubscribed since are not checked: they may have been read to their end, then deleted.
        """
        if self._looked_back:
            return
        last = {p: at for p, at in known.last.items() if reads(self._options.subscription, p.topic)}
        missing = self._cluster.missing_topics({partition.topic for partition in [*last, *known.done]})
        lost = {partition: at for partition, at in last.items() if partition.topic in missing}
        # R39: no member is assigned a partition that does not exist
        self._losses.report_deleted(lost)
        self._leave_out_deleted(missing - {partition.topic for partition in lost}, known)
        self._state.delete(missing)
        self._notice_cut(last, known)
        self._looked_back = True

    def refresh(self, known: Known) -> bool:
        """Find the topics again if the interval has passed. Return whether the member must subscribe again."""
        absent = {p: topic_id for p, topic_id in self._state.absent.items() if p in self._owned}
        deleted = self._state.deleted
        unsettled = self._options.subscription.pattern is not None or deleted or absent
        if not self._checked.expired() or not unsettled:
            return False
        self.names = self._cluster.matching_topics(self._options.subscription)
        # Only topics that are listed again are checked: with a pattern over short-lived topics, deleted ones add up.
        listed = deleted & set(self.names)
        self._state.undelete(listed - self._cluster.missing_topics(listed))
        self._state.found(absent.keys() - self._cluster.missing_partitions(absent))
        self._checked = Deadline(self._clock, self._refresh_s)
        if self._options.subscription.pattern is None:
            return False
        self._check_handed_over(known)
        held = {partition.topic for partition in [*self._owned, *known.last, *known.done]}
        self._state.undelete(self._state.deleted - held)
        return True

    def _check_handed_over(self, known: Known) -> None:
        """Find topics that were deleted after their partitions were handed over, and drop their ends (rule R44).

        No partition leaves this member when such a topic is deleted, so nothing else triggers a check. The topic must
        be unknown at every check during `CONFIRM_S`. "Not authorized" is another answer, and keeps the end.
        """
        unlisted = {partition.topic for partition in known.done} - set(self.names) - self._state.deleted
        missing = self._cluster.missing_topics(unlisted) if unlisted else ()
        # R44: unknown at every check for 3 s
        self._leave_out_deleted(self._state.unknown_for_long(missing, self._clock), known)

    @property
    def present(self) -> list[str]:
        """The names without those of deleted topics."""
        deleted = self._state.deleted
        return [name for name in self.names if name not in deleted]

    @property
    def deleted(self) -> Collection[str]:
        """Deleted topics that the subscription does not name. A restart must know that named ones were read."""
        return self._state.deleted.difference(self._options.subscription.topics)

    def describe(self, topics: Iterable[str], known: Known) -> dict[str, TopicInfo]:
        """Return those of these topics that exist; `on_unknown` handles the others."""
        try:
            return self._cluster.describe(set(topics) - self._state.deleted)
        except OptionError as error:
            self.on_unknown(error, known)
            return self._cluster.describe(set(topics) - self._state.deleted)

    def without_deleted(self, view: GroupView, known: Mapping[TopicPartition, int]) -> GroupView:
        """Return the view without missing partitions. Check those that left since the last view (rule R38).

        `known` is how far the lineage has completed all that it has read.
        """
        before, self._owned = self._positions, {owned.partition: owned.position for owned in view.partitions}
        left = {p: max(at, known.get(p, at)) for p, at in before.items() if p not in self._owned}
        if left:
            # R38: their topic may have been deleted
            self._notice(left, self._cluster.missing_topics({partition.topic for partition in left}))
            self._notice_cut(left, NOTHING)
        gone = self.gone(self._owned)
        if not gone:
            return view
        absent = self._state.absent
        # R43: no plan waits for the commit of a missing partition
        if stale := sorted(p for p in gone if self._state.anchor(p) is not None and absent.get(p) != ""):
            self._starts.forget(stale)
        return replace(view, partitions=tuple(o for o in view.partitions if o.partition not in gone))

    def gone(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those of the partitions that are missing."""
        return {partition for partition in partitions if self._state.is_missing(partition)}

    def on_unknown(self, error: OptionError, known: Known) -> None:
        """Handle "unknown topic or partition": report data loss for what this query has read.

        Topics that matched a pattern are left out. Otherwise raises `error` again.

        Guards against (missing partitions):
        1. A topic is deleted and recreated with fewer partitions.
        2. The group leaves the missing ones with the member until it refreshes its metadata, minutes later.
        3. Requests for them fail, so that no other partition is read.
        """
        if error.condition != errors.TOPIC_UNKNOWN:
            raise error
        own = {partition: known.done.get(partition) for partition in self._owned}
        read = {**own, **self._positions, **known.last}
        elsewhere = {partition.topic for partition in known.done}
        topics = {*self.names, *elsewhere, *(partition.topic for partition in read)}
        missing = self._cluster.missing_topics(topics - self._state.deleted)
        self._notice({partition: at for partition, at in read.items() if partition.topic in missing}, missing)
        others = missing - self._state.deleted
        never_seen = {topic for topic in others - elsewhere if self._state.id_at_start(topic) is None}
        # R42: `seen` existed when the query started
        if never_seen and self._options.subscription.pattern is None:
            raise error
        # Read by others, handed over before, or reported by an earlier run. A topic of a pattern may also have been
        # created and deleted unnoticed.
        self._leave_out_deleted(others, known)
        self._notice_cut({partition: at for partition, at in read.items() if at is not None}, known)
        self._leave_out_absent()

    def _leave_out_deleted(self, topics: set[str], known: Known) -> None:
        """Leave out topics of which this query has nothing. Log how far it had read those it handed over."""
        done = [f"{partition} at {at}" for partition, at in sorted(known.done.items()) if partition.topic in topics]
        new = topics - self._state.deleted
        if new:
            LOG.warning(
                "deleted topics that others have read last, if anybody: group=%s topics=%s handed_over=%s",
                self._options.group_id, sorted(new), done,
            )  # fmt: skip
        self._state.delete(topics)

    def _notice(self, positions: Mapping[TopicPartition, int | None], missing: set[str]) -> None:
        new = missing - self._state.deleted
        deleted = {partition: at for partition, at in positions.items() if partition.topic in new}
        self._losses.report_deleted(deleted)
        self._state.delete({partition.topic for partition in deleted})

    def _notice_cut(self, positions: Mapping[TopicPartition, int], known: Known) -> None:
        """Report partitions that a recreated topic does not have."""
        anchors = self._state.anchors
        ids = {p: anchors[p].topic_id if p in anchors else known.ids.get(p.topic) for p in self._present(positions)}
        asked = {partition: topic_id for partition, topic_id in ids.items() if topic_id is not None}
        cut = self._cluster.missing_partitions(asked)
        self._losses.report_cut({partition: positions[partition] for partition in cut})
        self._state.miss({partition: asked[partition] for partition in cut})

    def _leave_out_absent(self) -> None:
        """Leave out other assigned partitions that do not exist, until they exist (rule R41)."""
        absent = self._cluster.missing_partitions(dict.fromkeys(self._present(self._owned), ""))
        if absent:
            LOG.warning("assigned, and not there; left out until they are: %s", ", ".join(map(str, sorted(absent))))
        # R41: until it exists
        self._state.miss(dict.fromkeys(absent, ""))

    @property
    def _positions(self) -> dict[TopicPartition, int]:
        return {partition: position for partition, position in self._owned.items() if position is not None}

    def _present(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Return those of the partitions that are not known to be missing."""
        return {partition for partition in partitions if not self._state.is_missing(partition)}
