"""What a query knows of its partitions and topics: one table, which the main thread of the reader process owns.

A row is what `start_positions`, `topics`, `data_loss` and the session know of a partition, or of a topic by its name. A
name may stand for another topic later: `establish` and `forget` are the two verbs that change a row's topic, and they
reset all that belongs to the topic before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.cluster.port import CONFIRM_S
from spark_groupsource.model.commit_metadata import Anchor
from spark_groupsource.model.offsets import TopicPartition, same_topic


class Mark(NamedTuple):
    """A log has reached `offset` when its leader's epoch was `leader_epoch` (KIP-320)."""

    offset: int
    leader_epoch: int


@dataclass(slots=True)
class TrackedPartition:
    """One partition, owned or not.

    `anchor` fixes the start position: None until it is established. `log_end` is the log's end as last seen.
    `mark` is the furthest known one. `short_until` is set while the log ends before the position: from then on that
    counts as truncation; `short_reported` says that it was reported. `lost_to` is how far losses were reported.
    `missing_reported` says that the partition was reported as missing and has had no position since. `absent_of` is the
    id of the topic that had the partition, when its topic has fewer partitions now; empty if that id is not known.
    """

    anchor: Anchor | None = None
    log_end: int | None = None
    mark: Mark | None = None
    short_until: Deadline | None = None
    short_reported: bool = False
    lost_to: int = 0
    missing_reported: bool = False
    absent_of: str | None = None

    def forget_log(self) -> None:
        """Forget what depends on the position in the log: it is established anew."""
        self.mark, self.short_until, self.short_reported = None, None, False


@dataclass(slots=True)
class TrackedTopic:
    """One topic by its name.

    `id_at_start` is its id when the query started; a topic without one appeared later. `id_before` is the id of the
    topic of which partitions had positions that were forgotten. `deleted` says that the topic is missing, and was read
    or handed over. `unknown_until` is set while the cluster does not know a topic that was handed over: from then on it
    counts as deleted. `new_id`, with `new_until`, is another id that a broker names: from then on it counts.
    """

    id_at_start: str | None = None
    id_before: str | None = None
    deleted: bool = False
    unknown_until: Deadline | None = None
    new_id: str | None = None
    new_until: Deadline | None = None


class QueryState:
    """The table. Main thread only."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, TrackedPartition] = {}
        self.topics: dict[str, TrackedTopic] = {}

    def partition(self, partition: TopicPartition) -> TrackedPartition:
        """Return the row of a partition; it is made when there is none."""
        return self.partitions.setdefault(partition, TrackedPartition())

    def topic(self, name: str) -> TrackedTopic:
        """Return the row of a topic; it is made when there is none."""
        return self.topics.setdefault(name, TrackedTopic())

    # --- start positions

    @property
    def anchors(self) -> dict[TopicPartition, Anchor]:
        """The anchors of the partitions whose start positions are established."""
        return {partition: row.anchor for partition, row in self.partitions.items() if row.anchor is not None}

    def anchor(self, partition: TopicPartition) -> Anchor | None:
        """Return the anchor of a partition, None when its start position is not established."""
        row = self.partitions.get(partition)
        return None if row is None else row.anchor

    def started_with(self, ids: Mapping[str, str]) -> None:
        """Note the topics that there are when the query starts: all others are new ones."""
        for row in self.topics.values():
            row.id_at_start = None
        for name, topic_id in ids.items():
            self.topic(name).id_at_start = topic_id

    def id_at_start(self, name: str) -> str | None:
        """Return the id that a topic had when the query started; None when there was no such topic."""
        row = self.topics.get(name)
        return None if row is None else row.id_at_start

    def id_before(self, name: str) -> str | None:
        """Return the id of the topic of that name whose positions were forgotten, None when none were."""
        row = self.topics.get(name)
        return None if row is None else row.id_before

    def establish(self, partition: TopicPartition, anchor: Anchor) -> None:
        """Give a partition its anchor. Of a recreated topic nothing counts that was known of the topic before."""
        row = self.partition(partition)
        before = self.id_before(partition.topic) if row.anchor is None else row.anchor.topic_id
        if before != anchor.topic_id:
            row.lost_to, row.log_end = 0, None
        row.forget_log()
        row.anchor = anchor

    def replayed(self, partition: TopicPartition, anchor: Anchor) -> None:
        """Take the anchor that the group holds of a partition that a replay reads, owned or not."""
        self.partition(partition).anchor = anchor

    def positioned(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that partitions have a position: if they are missing from now on, that is another loss."""
        for partition in partitions:
            self.partition(partition).missing_reported = False

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the anchors of partitions that are missing, or belong to a recreated topic."""
        for partition in partitions:
            row = self.partitions.get(partition)
            if row is not None and row.anchor is not None:
                self.topic(partition.topic).id_before = row.anchor.topic_id
                row.anchor = None
                row.forget_log()

    def confirmed(self, ids: Mapping[str, str], clock: Clock) -> bool:
        """Whether these topics have been named with these ids for `CONFIRM_S`; a topic that is left out starts anew."""
        for name, row in self.topics.items():
            if ids.get(name) != row.new_id:
                row.new_id, row.new_until = None, None
        for name, topic_id in ids.items():
            row = self.topic(name)
            if row.new_until is None:
                row.new_id, row.new_until = topic_id, Deadline(clock, CONFIRM_S)
        return all((until := self.topic(name).new_until) is not None and until.expired() for name in ids)

    # --- logs

    def saw_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take the ends of logs as they are now."""
        for partition, end in ends.items():
            self.partition(partition).log_end = end

    # --- topics and partitions that are missing

    @property
    def deleted(self) -> set[str]:
        """The topics that are missing."""
        return {name for name, row in self.topics.items() if row.deleted}

    def delete(self, names: Iterable[str]) -> None:
        """Note that topics are missing."""
        for name in names:
            self.topic(name).deleted = True

    def unknown_for_long(self, names: Iterable[str], clock: Clock) -> set[str]:
        """Return those of these topics that were unknown in every call for `CONFIRM_S`; one left out starts anew."""
        unknown = set(names)
        for name, row in self.topics.items():
            if name not in unknown:
                row.unknown_until = None
        for name in unknown:
            row = self.topic(name)
            row.unknown_until = row.unknown_until or Deadline(clock, CONFIRM_S)
        return {name for name in unknown if (until := self.topic(name).unknown_until) and until.expired()}

    def undelete(self, names: Iterable[str]) -> None:
        """Note that topics are there again, or that nothing asks for them any more."""
        for name in names:
            self.topic(name).deleted = False

    @property
    def absent(self) -> dict[TopicPartition, str]:
        """The partitions that their topics do not have, and the ids of those that had them (empty: not known)."""
        return {partition: row.absent_of for partition, row in self.partitions.items() if row.absent_of is not None}

    def miss(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Note that topics do not have these partitions, and the ids of the topics that had them."""
        for partition, topic_id in partitions.items():
            self.partition(partition).absent_of = topic_id

    def found(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that partitions exist."""
        for partition in partitions:
            self.partition(partition).absent_of = None

    def is_missing(self, partition: TopicPartition) -> bool:
        """Whether a partition is known to be missing, or its topic to be deleted."""
        topic, row = self.topics.get(partition.topic), self.partitions.get(partition)
        return (topic is not None and topic.deleted) or (row is not None and row.absent_of is not None)

    def appeared(self, name: str, topic_id: str) -> bool:
        """Whether a topic was not there, or was another one, when the query started."""
        return not same_topic(self.id_at_start(name), topic_id)
