"""Track which topics are read: match the pattern repeatedly, and find deleted topics and missing partitions.

The checks return what is missing. They report no loss and leave nothing out: `MissingTopics` does both with their
results. Main thread of the reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from spark_groupsource.clock import Clock, Deadline, Pace
from spark_groupsource.cluster.offset_lookup import check_assigned
from spark_groupsource.cluster.port import ClusterPort, TopicInfo
from spark_groupsource.driver.query_state import QueryState, Reached
from spark_groupsource.errors import OptionError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.model.offsets import SourceOffset, TopicPartition
from spark_groupsource.options.model import SourceOptions, Subscription

LOG = logging.getLogger(__name__)

# Maximum seconds between two matches of a pattern, and between two checks of a missing topic.
REFRESH_S = 5.0
# Seconds between two checks of the right to read the topics.
_ACCESS_S = 30.0
# Number of topics that a warning shows.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Known:
    """How far the lineage has read: its newest batch (`last`), what it handed over before (`done`), and topic ids.

    Losses of what was handed over are reported by the next owner. `replayed`: the batch runs again, so what is missing
    of it is lost, whoever owns it.
    """

    last: Mapping[TopicPartition, int]
    done: Mapping[TopicPartition, int]
    ids: Mapping[str, str]
    replayed: bool = False

    @classmethod
    def of(cls, offset: SourceOffset) -> Known:
        """Return what an entry of the offset log contains."""
        return cls({item.partition: item.end for item in offset.ranges}, dict(offset.done), dict(offset.topic_ids))

    @classmethod
    def of_replay(cls, end: SourceOffset, subscription: Subscription) -> Known:
        """Return what is known of a batch that runs again: its own ranges begin, and are not read yet.

        Empty ranges of topics that were unsubscribed since are left out: the topics may be deleted.
        """
        begun = {r.partition: r.start for r in end.ranges if len(r) or subscription.includes(r.partition.topic)}
        return replace(cls.of(end), last=begun, replayed=True)

    def ends(self) -> dict[TopicPartition, int]:
        """Return how far the lineage has completed all that it has read."""
        return {**self.done, **self.last}


NOTHING = Known({}, {}, {})


@dataclass(frozen=True, slots=True)
class Missing:
    """The result of a check: what is missing, and what this query loses with it.

    - `topics`: topics that do not exist.
    - `deleted`: the lost partitions of these topics, and how far each was read.
    - `recreated`: the partitions that have left, whose topics were recreated, and how far each was read.
    - `not_read`: those of the topics of which this query loses nothing, because other members have read them last.
    - `cut`: the lost partitions that their recreated topics do not have, how far each was read, and of which topic.
    - `absent`: other assigned partitions that do not exist.
    - `never_existed`: named topics that did not exist when the query started either.
    """

    topics: Collection[str] = frozenset()
    deleted: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    recreated: Mapping[TopicPartition, int] = field(default_factory=dict)
    not_read: Collection[str] = frozenset()
    cut: Mapping[TopicPartition, Reached] = field(default_factory=dict)
    absent: Collection[TopicPartition] = frozenset()
    never_existed: Collection[str] = frozenset()

    @property
    def lost(self) -> list[TopicPartition]:
        """The lost partitions."""
        return [*self.deleted, *self.recreated, *self.cut]


class TopicWatch:
    """Track the topics of the subscription. `names` are those that exist, as far as is known."""

    def __init__(self, options: SourceOptions, cluster: ClusterPort, clock: Clock, state: QueryState) -> None:
        self._options = options
        self._cluster = cluster
        self._state = state
        self._clock = clock
        refresh_s = int(options.client_settings.get("topic.metadata.refresh.interval.ms", "0")) / 1000
        self._refresh_s = min(REFRESH_S, refresh_s) if refresh_s > 0 else REFRESH_S
        self._checked = Deadline(clock, 0.0)
        self._access = Pace(clock, _ACCESS_S)
        # The partitions of the last view, and their positions.
        self._owned: dict[TopicPartition, int | None] = {}
        # Whether there was a view.
        self.assigned = False
        self.names: tuple[str, ...] = ()

    def match(self) -> None:
        """Find the topics of the subscription."""
        self.names = self._cluster.matching_topics(self._options.subscription)

    def started_with(self, topics: Mapping[str, TopicInfo]) -> None:
        """Record the topics that exist when the query starts.

        Raises `OptionError` for a partition of option assign that does not exist.
        """
        self._state.ids_at_start = {topic: info.topic_id for topic, info in topics.items()}
        check_assigned(self._options.subscription, topics)
        self._checked = Deadline(self._clock, self._refresh_s)
        self._access.wait()

    def warn_if_another_query(self, known: Known) -> None:
        """Warn if a checkpoint has read other topics only: it may be that of another query."""
        if known.ids and self.names and not known.ids.keys() & set(self.names):
            LOG.warning(
                "the checkpoint (option checkpointLocation, and the writer's) has read none of these topics, but %s: is"
                " it that of another query? Give each query a checkpoint of its own: group=%s topics=%s",
                ", ".join(sorted(known.ids)[:_SHOWN]), self._options.group_id, ", ".join(self.names[:_SHOWN]),
            )  # fmt: skip

    def refresh(self, known: Known) -> bool:
        """Find the topics again if the interval has passed. Return whether the member must subscribe again.

        Missing topics and partitions that exist again are read again. With a pattern, the rows of deleted topics are
        removed when nothing refers to the topics any more: this member owns no partition of them, and the newest entry
        of the offset log has no end of one. So the table does not grow with short-lived topics.
        """
        if not self._checked.expired():
            return False
        has_pattern = self._options.subscription.pattern is not None
        if not has_pattern:
            self._check_access()
        absent = {p: topic_id for p, topic_id in self._state.absent.items() if p in self._owned}
        deleted = self._state.deleted
        if not (has_pattern or deleted or absent):
            return False
        self.match()
        # Only topics that are listed again are checked: with a pattern over short-lived topics, deleted ones add up.
        listed = deleted & set(self.names)
        self._state.deleted -= listed - self._cluster.missing_topics(listed)
        self._state.found(absent.keys() - self._cluster.missing_partitions(absent))
        self._checked = Deadline(self._clock, self._refresh_s)
        if not has_pattern:
            return False
        self._state.remove(self._state.deleted - self._topics_of([*self._owned, *known.last, *known.done]))
        return True

    def _check_access(self) -> None:
        """Raise `AccessError` if this query may not describe a topic that it subscribes to, any more.

        Guards against (KIP-848):
        1. A right is taken away. The query that has the topic's partitions ends.
        2. The coordinator assigns them to this query, whose client says nothing of a topic that it may not describe.
        3. This query goes on with its other partitions, and nobody reads these.
        """
        if self._options.assigned_by_id and self._access.due():
            # What does not exist is noticed elsewhere.
            with suppress(OptionError):
                self._cluster.describe(set(self.names) - self._state.deleted)

    def started_from(self, known: Known) -> Missing:
        """Record what the checkpoint has read, when the query starts. Return what is missing of what it handed over.

        Topics that were unsubscribed since are not compared: they may have been read to their end, then deleted.
        """
        # R91: at a start, because no member is assigned a partition that does not exist
        last, done = self._subscribed(known.last), self._subscribed(known.done)
        self._state.started_from(last, done, known.ids)
        topics = self._cluster.missing_topics(self._topics_of(known.done))
        return Missing(topics=topics, not_read=topics)

    def hold(self, view: GroupView, known: Known) -> None:
        """Record which partitions the member owns. Those that it owned before have left.

        Guards against (rule R91):
        1. A topic with unread records is deleted.
        2. Its partitions are revoked. The query idles.
        """
        owned = {owned.partition: owned.position for owned in view.partitions}
        # R91: what has left is compared, because its topic may have been deleted
        self._state.leave(self._owned.keys() - owned.keys())
        self._state.reached(known.ends(), known.ids)
        self._state.hold(owned)
        if not self.assigned:
            # Of the checkpoint's partitions these are other members'.
            self._state.share(self._state.left)
        self._owned, self.assigned = owned, True

    def missing_left(
        self, taken: Callable[[Collection[TopicPartition]], Collection[TopicPartition]]
    ) -> tuple[Missing, bool]:
        """Compare the partitions that are not this member's with the cluster, by the ids that they were read under.

        Also return whether to call it again at once, because an id is not confirmed yet. Before the first assignment a
        partition of a recreated topic is not missing, because it may be assigned to this member: only those are that
        `taken` returns, which other members have begun to read.

        Guards against (rule R91, another topic id):
        1. A member has read [0, 10) of a partition that has 20 records. The topic is deleted and recreated.
        2. The partition moves to a member that has not read the former topic. Or the query stops first, and a new query
           has read the recreated topic before it starts again.
        3. By name the topic exists, and the new owner knows of no loss: nobody reports it.
        """
        left = self._state.left
        if not left:
            return Missing(), False
        topics = self._topics_of(left)
        gone = self._cluster.missing_topics(topics)
        asked_s = self._clock.monotonic_s()
        described = self._described(topics - gone)
        ids = {topic: info.topic_id for topic, info in described.items()}
        self._state.saw_ids(ids, asked_s)
        # R91: by its id, not by its name
        others = self._state.read_under_other_ids(left, ids)
        same = {p for p in left if p.topic in ids and p not in others}
        confirmed = {topic for topic in self._topics_of(others) if self._state.confirmed([topic])}
        # R44: a topic that was there a moment ago is unknown at every check for 3 s
        deleted = {p: read.offset for p, read in left.items() if p.topic in gone and not self._state.alive_lately(p)}
        cut = {p for p in others if p.partition >= described[p.topic].partition_count}
        found = {p: at for p, at in others.items() if p.topic in confirmed}
        present = found.keys() - cut
        # R91: another member's, though the group has assigned nothing to this one
        recreated = present if self.assigned or not present else present & set(taken(present))
        missing = Missing(
            topics={p.topic for p in deleted if not self._state.partition(p).shared},
            deleted=deleted,
            recreated={p: at for p, at in found.items() if p in recreated},
            cut={p: left[p] for p in found if p in cut},
        )
        if self.assigned:
            self._state.saw_alive(same)
        self._state.compared(missing.lost)
        waits = others if self.assigned else cut
        return missing, not self._topics_of(waits) <= confirmed

    def missing_unassigned(self, known: Known) -> Missing:
        """Return topics that were deleted after this member had handed their partitions over (rule R44).

        No partition leaves this member when such a topic is deleted, so nothing else triggers a check. The topic must
        be unknown at every check during `CONFIRM_S`. "Not authorized" is another answer, and keeps the end.

        Guards against (rule R44):
        1. A pattern matches short-lived topics, which are handed over and deleted. Each would stay in every later
           offset log entry.
        2. But a broker that has just started does not list a topic that exists, and the group has forgotten its
           offsets.
        3. The partition comes back. Without its end [0, 150) would be read once more.
        """
        handed_over = self._topics_of(known.done)
        # This query has rows of these, and nothing to lose: their partitions left before a batch was planned.
        tracked = self._topics_of(self._state.partitions) - self._topics_of([*self._owned, *known.last])
        unlisted = (handed_over | tracked) - set(self.names) - self._state.deleted
        missing = self._cluster.missing_topics(unlisted) if unlisted else ()
        # R44: unknown at every check for 3 s
        topics = self._state.unknown_for_long(missing)
        return Missing(topics=topics, not_read=topics & handed_over)

    def missing_of(self, known: Known) -> Missing:
        """Return what is missing after "unknown topic or partition", of what this member owns or runs again.

        Guards against (rule R41):
        1. A topic is recreated with fewer partitions. The member with one of the others leaves before the group
           notices.
        2. This member is assigned the missing partition. Its requests fail, and no other partition would be read.
        3. Or partitions are added and assigned before the broker that is asked knows them: they must keep what they
           have.

        Guards against (rule R42):
        1. A query subscribes to two topics. One of them is deleted.
        2. A member that had no partition of it takes a partition of the other topic over. It asks for both topics.
        3. One is unknown: the query would fail.
        """
        own = {partition: known.done.get(partition) for partition in self._owned}
        last = known.last if known.replayed else {p: at for p, at in known.last.items() if self._has_read(p, known)}
        positions = {partition: position for partition, position in self._owned.items() if position is not None}
        read = {**own, **positions, **last}
        elsewhere = self._topics_of([*known.done, *known.last])
        topics = self._cluster.missing_topics({*self.names, *elsewhere, *self._topics_of(read)} - self._state.deleted)
        deleted = {partition: at for partition, at in read.items() if partition.topic in topics}
        not_read = topics - self._topics_of(deleted)
        cut = self._cut({p: at for p, at in read.items() if at is not None}, topics, known)
        # Read by others, handed over before, or reported by an earlier run. A topic of a pattern may also have been
        # created and deleted unnoticed.
        # R42: a topic that existed when the query started is no wrong name
        never = not_read - elsewhere - self._state.ids_at_start.keys()
        never = never if self._options.subscription.pattern is None else set()
        # R41: left out until it exists
        left = self._present(self._owned, topics) - cut.keys()
        absent = self._cluster.missing_partitions(dict.fromkeys(left, ""))
        return Missing(topics=topics, deleted=deleted, not_read=not_read, cut=cut, absent=absent, never_existed=never)

    def without_missing(self, view: GroupView) -> GroupView:
        """Return the view without missing partitions, and without those that are put off."""
        state = self._state
        kept = (o for o in view.partitions if not (state.is_missing(o.partition) or state.is_put_off(o.partition)))
        return replace(view, partitions=tuple(kept))

    @property
    def present(self) -> list[str]:
        """The names without those of deleted topics."""
        deleted = self._state.deleted
        return [name for name in self.names if name not in deleted]

    @property
    def deleted(self) -> Collection[str]:
        """Deleted topics that the subscription does not name. A restart must know that named ones were read."""
        return self._state.deleted.difference(self._options.subscription.topics)

    # --- helpers

    def _has_read(self, partition: TopicPartition, known: Known) -> bool:
        """Return whether the member owns the partition, and has no position under another id than the offset log."""
        topic_id = self._state.topic_id(partition)
        return partition in self._owned and topic_id in (None, known.ids[partition.topic])

    def _subscribed(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {p: at for p, at in ends.items() if self._options.subscription.includes(p.topic)}

    def _described(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Return those of these topics that can be described: one may have been deleted since, or be forbidden now."""
        names = set(topics)
        try:
            return self._cluster.describe(names, or_known=True)
        except OptionError:
            if len(names) == 1:
                return {}
            return {name: info for each in sorted(names) for name, info in self._described([each]).items()}

    def _cut(
        self, positions: Mapping[TopicPartition, int], deleted: Collection[str], known: Known
    ) -> dict[TopicPartition, Reached]:
        """Return those of these partitions that their recreated topics do not have."""
        present = self._present(positions, deleted)
        ids = {p: known.ids.get(p.topic) if (id_ := self._state.topic_id(p)) is None else id_ for p in present}
        asked = {partition: topic_id for partition, topic_id in ids.items() if topic_id is not None}
        cut = self._cluster.missing_partitions(asked) if asked else set()
        return {partition: Reached(asked[partition], positions[partition]) for partition in cut}

    @staticmethod
    def _topics_of(partitions: Iterable[TopicPartition]) -> set[str]:
        return {partition.topic for partition in partitions}

    def _present(self, partitions: Iterable[TopicPartition], deleted: Collection[str]) -> set[TopicPartition]:
        """Return those of the partitions that are not known to be missing, nor belong to these deleted topics."""
        return {p for p in partitions if p.topic not in deleted and not self._state.is_missing(p)}
