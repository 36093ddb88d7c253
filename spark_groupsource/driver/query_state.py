"""Keep what a query knows of its partitions and topics in one table, owned by the main thread of the reader process.

A row holds what `start_positions`, `topics`, `data_loss` and the session know of one partition, by its topic's name.
Later the name may refer to another topic. Only `establish` changes a row's topic. It resets all that belongs to the
former topic. `remove` drops the rows of deleted topics, so that short-lived ones do not fill the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from spark_groupsource.clock import Clock, Deadline, HeldFor
from spark_groupsource.cluster.port import CONFIRM_S
from spark_groupsource.model.commit_metadata import Anchor
from spark_groupsource.model.offsets import OffsetRange, TopicPartition, same_topic

# Seconds until the group is asked again for the starts that another member stores.
PUT_OFF_S = 0.5
# Seconds. A new leader may report an end before the true one for a moment. A log that stays short for longer has lost
# records, also when no leader epoch is known.
SHORT_S = 30.0


class Mark(NamedTuple):
    """A log had reached `offset` when its leader's epoch was `leader_epoch` (KIP-320)."""

    offset: int
    leader_epoch: int


class Reached(NamedTuple):
    """A partition of the topic with this id was read up to `offset`."""

    topic_id: str
    offset: int


@dataclass(slots=True)
class TrackedPartition:
    """One partition, owned or not.

    - `anchor`: fixes the start position; None until it is established.
    - `log_end`: the last known end of the log, when its topic had the same id.
    - `seen_end`: a later end, of which it is not known whether the topic had the same id.
    - `mark`: the known mark with the largest offset.
    - `cut`: the truncation that was reported last: its offset, the position, and the leader epoch that showed it.
    - `short_reported`: whether it was reported that the log ends before the position.
    - `lost_to`: the offset up to which losses were reported.
    - `read`: how far this query knows the partition to be read, and under which topic id; None if it does not know.
    - `shared`: whether other members may have read it since.
    - `left`: whether the partition is not this member's, and is to be compared with the cluster (rule R91).
    - `missing_reported`: whether the partition was reported as missing and has had no position since.
    - `put_off`: set if another member stores the partition's start: until when it is left out.
    - `followed`: set if another program has set the group's offset inside of a batch that ran again, until there is a
      position: what the batch has read from there on.
    - `absent_of`: set if the topic does not have the partition: the id of the topic that had it, empty if not known.
    """

    anchor: Anchor | None = None
    log_end: int | None = None
    seen_end: int = 0
    mark: Mark | None = None
    cut: tuple[int, int, int] | None = None
    short_reported: bool = False
    lost_to: int = 0
    read: Reached | None = None
    shared: bool = False
    left: bool = False
    missing_reported: bool = False
    put_off: Deadline | None = None
    followed: OffsetRange | None = None
    absent_of: str | None = None


class QueryState:
    """Hold the table. Main thread only.

    - `ids_at_start`: the ids of the topics that existed when the query started. All others are new.
    - `deleted`: the topics that are missing, and were read or handed over.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.partitions: dict[TopicPartition, TrackedPartition] = {}
        self.ids_at_start: Mapping[str, str] = {}
        self.deleted: set[str] = set()
        # The ids of topics.
        self._ids = HeldFor[str](clock, CONFIRM_S)
        # Topics that no broker knows.
        self._unknown = HeldFor[str](clock, CONFIRM_S)
        # Partitions that have left, whose topic has the id that it had. When that counts, they were handed over: no
        # lagging broker can have reported a deleted topic.
        self._alive = HeldFor[TopicPartition](clock, CONFIRM_S)
        # Partitions whose log ends before the position. When that counts, the log was truncated.
        self._short = HeldFor[TopicPartition](clock, SHORT_S)

    def partition(self, partition: TopicPartition) -> TrackedPartition:
        """Return the row of a partition; create it if there is none."""
        return self.partitions.setdefault(partition, TrackedPartition())

    # --- start positions

    @property
    def anchors(self) -> dict[TopicPartition, Anchor]:
        """The anchors of the partitions whose start positions are established."""
        return {partition: row.anchor for partition, row in self.partitions.items() if row.anchor is not None}

    def anchor(self, partition: TopicPartition) -> Anchor | None:
        """Return the anchor of a partition; None if its start position is not established."""
        row = self.partitions.get(partition)
        return None if row is None else row.anchor

    def topic_id(self, partition: TopicPartition) -> str | None:
        """Return the topic id in a partition's anchor; None if its start position is not established."""
        anchor = self.anchor(partition)
        return None if anchor is None else anchor.topic_id

    def id_read(self, partition: TopicPartition) -> str | None:
        """Return the topic id under which a partition was read; None if it was not, as far as is known."""
        row = self.partitions.get(partition)
        return None if row is None or row.read is None else row.read.topic_id

    def establish(self, partition: TopicPartition, anchor: Anchor) -> None:
        """Set the anchor of a partition. If its topic was recreated, drop what was known of the former topic."""
        row = self.partition(partition)
        if row.anchor is None or row.anchor.topic_id != anchor.topic_id:
            row.lost_to, row.log_end, row.seen_end = 0, None, 0
        row.anchor, row.mark = anchor, None
        self.clear_short(partition)

    def positioned(self, positions: Mapping[TopicPartition, int]) -> None:
        """Record that partitions have a position: if they are missing later, that is another loss."""
        for partition, position in positions.items():
            row = self.partition(partition)
            row.missing_reported, row.shared, row.followed = False, False, None
            if row.anchor is not None:
                row.read = Reached(row.anchor.topic_id, position)

    # --- what the query has read, by topic ids (rule R91)

    def started_from(
        self, last: Mapping[TopicPartition, int], done: Mapping[TopicPartition, int], ids: Mapping[str, str]
    ) -> None:
        """Record how far a checkpoint has read, when the query starts: it holds nothing yet.

        `last` is of its newest batch. Partitions of `done` were handed over before that. These are compared, too: they
        may have come back, and the query was killed before they were in a batch again.

        Guards against (rule R91, not in the newest batch):
        1. A query hands a partition over, gets it back, and is killed before it plans a batch of it.
        2. The topic is deleted, with unread records.
        3. By the newest batch another query has it: nobody reports it.
        """
        for partition, end in {**done, **last}.items():
            row = self.partition(partition)
            row.read = Reached(ids[partition.topic], end)
            # R91: no batch says whose it was when the query ended
            row.left, row.shared = True, partition not in last
            self._alive.forget([partition])

    def hold(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Record the partitions that the member owns, and their positions: these have not left.

        One without a position keeps what was known of it. If it had a start position, it was away meanwhile.
        """
        self._alive.forget(positions)
        for partition, position in positions.items():
            row = self.partition(partition)
            row.left = False
            if row.anchor is None:
                continue
            if position is None:
                row.shared = True
            else:
                row.read = Reached(row.anchor.topic_id, position)

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions have left the member. Those that it has read are compared with the cluster."""
        for partition in partitions:
            row = self.partition(partition)
            row.left = row.read is not None
            self._alive.forget([partition])

    def reached(self, ends: Mapping[TopicPartition, int], ids: Mapping[str, str]) -> None:
        """Record how far partitions were read meanwhile, if that was under the same topic ids."""
        for partition, end in ends.items():
            row = self.partitions.get(partition)
            if row is not None and row.read is not None and same_topic(row.read.topic_id, ids[partition.topic]):
                row.read = Reached(row.read.topic_id, max(row.read.offset, end))

    def share(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that other members may have read partitions since."""
        for partition in partitions:
            self.partition(partition).shared = True

    @property
    def left(self) -> dict[TopicPartition, Reached]:
        """The partitions that are not this member's, and are to be compared with the cluster."""
        return {p: row.read for p, row in self.partitions.items() if row.left and row.read is not None}

    def read_under_other_ids(
        self, partitions: Iterable[TopicPartition], ids: Mapping[str, str]
    ) -> dict[TopicPartition, int]:
        """Return those that were read under another id than their topic has now, and how far. Others are left out."""
        known = {partition: self.partition(partition).read for partition in partitions if partition.topic in ids}
        return {
            partition: read.offset
            for partition, read in known.items()
            if read is not None and not same_topic(read.topic_id, ids[partition.topic])
        }

    def saw_alive(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions have left whose topics have the ids under which they were read.

        After `CONFIRM_S` they were handed over: a loss is their next owners' to report.
        """
        for partition in partitions:
            self._alive.answered({partition: True})
            row = self.partition(partition)
            row.shared, row.left = True, not self._alive.counts(partition)

    def alive_lately(self, partition: TopicPartition) -> bool:
        """Return whether a partition that has left was seen alive less than `CONFIRM_S` ago for the first time."""
        return partition in self._alive and not self._alive.counts(partition)

    def compared(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions that have left are not to be compared any more, because their loss was reported."""
        for partition in partitions:
            self.partition(partition).left = False

    def saw_ids(self, ids: Mapping[str, str], asked_s: float) -> None:
        """Record the ids of topics that a broker has reported, and when it was asked."""
        self._ids.answered(ids, asked_s)

    def confirmed(self, names: Iterable[str]) -> bool:
        """Return whether all answers for `CONFIRM_S` had the ids that were seen last of these topics."""
        return all(map(self._ids.counts, names))

    def put_off(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions wait for the member that stores their starts."""
        for partition in partitions:
            self.partition(partition).put_off = Deadline(self._clock, PUT_OFF_S)

    def is_put_off(self, partition: TopicPartition) -> bool:
        """Return whether a partition is left out for now, because it waits for its start."""
        row = self.partitions.get(partition)
        return row is not None and row.put_off is not None and not row.put_off.expired()

    # --- logs

    def saw_ends(self, ends: Mapping[TopicPartition, int], *, same_ids: bool = True) -> None:
        """Store the current ends of logs. `same_ids`: their topics have the ids that they had."""
        for partition, end in ends.items():
            row = self.partition(partition)
            row.seen_end = end
            if same_ids:
                row.log_end = end

    def saw_short(self, partition: TopicPartition) -> bool:
        """Record that the log ends before the position. Return whether it has done so for `SHORT_S`."""
        self._short.answered({partition: True})
        return self._short.counts(partition)

    def clear_short(self, partition: TopicPartition) -> None:
        """Record that the log reaches the position, or that there is none to compare."""
        self._short.forget([partition])
        self.partition(partition).short_reported = False

    def short_in_doubt(self, partition: TopicPartition) -> bool:
        """Return whether the log ended before the position when checked, and that may be temporary."""
        return partition in self._short and not self.partition(partition).short_reported

    # --- topics and partitions that are missing

    def unknown_for_long(self, names: Collection[str]) -> set[str]:
        """Return those of these topics that were unknown in every call for `CONFIRM_S`. One left out starts again."""
        self._unknown.keep(names)
        self._unknown.answered(dict.fromkeys(names))
        return {name for name in names if self._unknown.counts(name)}

    def remove(self, names: Collection[str]) -> None:
        """Drop what is known of deleted topics that nothing refers to any more.

        The id of a topic that existed when the query started stays: without it the topic would count as new. There are
        no more of them than there were topics then.
        """
        if not names:
            return
        gone = [partition for partition in self.partitions if partition.topic in names]
        self.partitions = {p: row for p, row in self.partitions.items() if p.topic not in names}
        self._ids.forget(names)
        for held in (self._alive, self._short):
            held.forget(gone)
        self.deleted.difference_update(names)

    @property
    def absent(self) -> dict[TopicPartition, str]:
        """The partitions that their topics do not have, and the ids of the topics that had them (empty: not known)."""
        return {partition: row.absent_of for partition, row in self.partitions.items() if row.absent_of is not None}

    def miss(self, partitions: Mapping[TopicPartition, str]) -> None:
        """Record that topics do not have these partitions, and the ids of the topics that had them."""
        for partition, topic_id in partitions.items():
            self.partition(partition).absent_of = topic_id
            self.clear_short(partition)

    def found(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions exist."""
        for partition in partitions:
            self.partition(partition).absent_of = None

    def is_missing(self, partition: TopicPartition) -> bool:
        """Return whether a partition is known to be missing, or its topic to be deleted."""
        row = self.partitions.get(partition)
        return partition.topic in self.deleted or (row is not None and row.absent_of is not None)

    def appeared(self, name: str, topic_id: str) -> bool:
        """Return whether a topic did not exist, or was another one, when the query started."""
        return not same_topic(self.ids_at_start.get(name), topic_id)
