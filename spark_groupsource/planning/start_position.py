"""Decide where a newly assigned partition starts: pure functions, no I/O.

The group's committed offset is the merged checkpoint of all members. The checkpoint holds the newest completed end of
this lineage. The larger of the two is right if both were written by lineages of this source. Every other case is a
conflict, and the option `onConflict` decides.

A reset by `groupkafka reset` is no conflict: it takes precedence over every checkpoint that does not know it. So every
commit carries the newest reset, and a checkpoint names the one that it knows.

Guards against (rule R46):
1. Query B stops at 900. The group is reset to 0.
2. Query A reads [0, 50) and commits 50 in its own name. A stops.
3. B starts and gets the partition. The larger of 50 and 900 would skip [50, 900), which was to be read again.

A pin fixes a start position in the group. Besides the position it records the state when the group began: the topic's
partition count, and the names of the topics. They decide the start of a partition without an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from spark_groupsource.model.commit_metadata import Anchor, CommitItem, CommitMetadata, GroupOffset, Pin, parse_metadata
from spark_groupsource.model.offsets import Reset, SourceOffset, TopicPartition, newer, same_topic
from spark_groupsource.options.model import OnConflict
from spark_groupsource.options.offset_spec import AtEdge, Start, Starting


class Basis(Enum):
    """Name the source of a start position."""

    GROUP = "the group's committed offset"
    LINEAGE = "this lineage's own completed end"
    STARTING_POSITION = "startingOffsets, or a related option"
    BEGINNING = "the partition's beginning, because its topic was created after the group began"
    FIRST_OFFSET = "offset 0, because the partition was created after the group began"
    FORGOTTEN = "the partition's beginning, because the group has forgotten how far it was read"


class Age(Enum):
    """Name when a partition was created, by the group's initial positions."""

    INITIAL = "it existed when they were pinned, or that is not known"
    LATER = "its topic was not among the group's topics then"
    ADDED = "it was not there then"
    FORGOTTEN = "the group has lost those of its topic, which has been read"


@dataclass(frozen=True, slots=True)
class Memory:
    """Hold the query's own knowledge of a partition's topic, besides the group's initial positions.

    `topic_id` is the id under which the query has read the topic, None if it has not. `has_read`: the checkpoint has
    read any topic. `appeared`: the topic with its present id did not exist when the query started.
    """

    topic_id: str | None = None
    has_read: bool = False
    appeared: bool = False
    by_pattern: bool = False


@dataclass(frozen=True, slots=True)
class Takeover:
    """Hold the inputs of the decision for one newly assigned partition.

    `recreated`: this lineage has read another topic of the same name. `reset`: the partition was reset after the
    checkpoint was written. `decided`: the group's offset records the decision of a conflict for this checkpoint.
    """

    partition: TopicPartition
    topic_id: str
    group_offset: int | None
    group_metadata: CommitMetadata | None
    own_end: int | None
    lineage: str
    recreated: bool = False
    reset: bool = False
    decided: bool = False


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Hold a start position. `offset` is None if it must be read from the log, as `basis` describes."""

    partition: TopicPartition
    basis: Basis
    offset: int | None
    # How group and checkpoint disagree, for a warning or an error; None if they agree.
    conflict: str | None = None
    # The group's offset belongs to a deleted topic of the same name.
    recreated: bool = False


_OPEN = {
    Age.INITIAL: Basis.STARTING_POSITION,
    Age.LATER: Basis.BEGINNING,
    # R5: 0, not the log's beginning
    Age.ADDED: Basis.FIRST_OFFSET,
    Age.FORGOTTEN: Basis.FORGOTTEN,
}


def decide_start(takeover: Takeover, on_conflict: OnConflict, age: Age) -> StartDecision:
    """Choose the start of one partition.

    A partition created after the group's start begins at 0, even if its log now begins later: records that retention
    has deleted meanwhile are lost (promise P8), as in Spark's own source.
    """
    metadata, group = takeover.group_metadata, takeover.group_offset
    other_topic = not same_topic(metadata.topic_id, takeover.topic_id) if metadata else takeover.recreated
    # R35: an offset of a deleted topic of the same name
    if other_topic:
        # By name alone, the offset of the deleted topic would be used for the new one and skip its records.
        return StartDecision(takeover.partition, Basis.FIRST_OFFSET, None, recreated=True)
    # A partition without an offset in the group was not part of the reset, and no other query has read it since.
    # R46: the checkpoint's end is from before the reset
    own = None if takeover.reset and group is not None else takeover.own_end
    if group is None and own is None:
        return StartDecision(takeover.partition, _OPEN[age], None)
    if group is None or own is None:
        return StartDecision(
            takeover.partition, Basis.LINEAGE if group is None else Basis.GROUP, group if own is None else own
        )
    # A conflict is decided only once.
    # Guards against (rule R54):
    # 1. An old checkpoint of p0 and p1 (100) won over the group (1000). Lineage N has read to 120.
    # 2. p1 leaves and comes back. Its conflict is decided again, for a new lineage N2, which reads to 140.
    # 3. After a restart p0's metadata, which names N, looks like another lineage's progress: [140, 1000) is skipped.
    # R54: decided before, for this checkpoint
    decided = takeover.decided and own < group and on_conflict is OnConflict.CHECKPOINT
    conflict = None if decided or own == group else _conflict(takeover, own, group)
    if conflict is None and not decided:
        return StartDecision(takeover.partition, Basis.LINEAGE if own > group else Basis.GROUP, max(own, group))
    if on_conflict is OnConflict.GROUP:
        return StartDecision(takeover.partition, Basis.GROUP, group, conflict)
    return StartDecision(takeover.partition, Basis.LINEAGE, own, conflict)


def _conflict(takeover: Takeover, own: int, group: int) -> str | None:
    """Return the conflict if the two offsets cannot both come from lineages of this source, else None.

    Guards against (rule R52):
    1. An old checkpoint (100) wins over the group (150). The commit has the name of a new lineage.
    2. The query fails before it has logged a batch of the new lineage.
    3. It is restarted with the old lineage. 150 would look like the progress of another query: 100 to 150 would be
       skipped silently.
    """
    metadata = takeover.group_metadata
    where = f"{takeover.partition} group={group} checkpoint={own}"
    if metadata is None:
        return f"{where} (the group's offset was set by another program)"
    # R52: the decision was not logged
    if metadata.instead_of == takeover.lineage:
        return f"{where} (this conflict was decided before, but the query ended before it logged the next batch)"
    if metadata.lineage == takeover.lineage and group > own:
        return f"{where} (the checkpoint is older than the group's offset: was an old one restored, or one used twice?)"
    # Another lineage has read further (a takeover), or our last commit was not accepted: both are normal.
    return None


def age_of(
    partition: TopicPartition, topic_id: str, pins: Mapping[TopicPartition, Pin], memory: Memory = Memory()
) -> Age:
    """Return when a partition without a committed offset was created, by the first of the group's initial positions.

    `pins` are the pins of all partitions of the subscription that have one.

    Guards against (rule R4):
    1. With `startingOffsets=latest`, a partition is added, or a new topic matches the pattern.
    2. Producers write 100 records before the query notices the partition.
    3. By `latest` it would start after these records.
    """
    # R6: the topic id did not exist when the query started
    if memory.appeared:
        # A standby has neither pins nor batches when the only topic of the group is recreated.
        return Age.ADDED
    of_topic = [pin for other, pin in pins.items() if other.topic == partition.topic]
    # Partitions that were added later carry a larger count: the smallest is the initial one.
    # R4: the smallest pinned count is the initial one
    if of_topic and partition.partition >= min(pin.partition_count for pin in of_topic):
        return Age.ADDED
    # The same holds for topics: a later pin also names topics that were created with it, so only the first pins count.
    # Guards against two ways to skip records, with "latest":
    # 1. Partitions are added to one topic, and a second topic is created. The partitions are pinned first, and their
    #    pins name the second topic.
    # 2. A topic is created. A member pins one of its partitions. The other one is assigned to a member that has not
    #    pinned it yet.
    # R4: a topic that one of the pins does not name appeared later
    known = all(pin.knows_topic(partition.topic, topic_id) for pin in pins.values())
    if _forgotten(partition.topic, topic_id, of_topic, memory):
        return Age.FORGOTTEN
    # If no pin names topics, a topic that is new to a query that has read others appeared later.
    no_pin_names_topics = all(pin.known_topics is None for pin in pins.values())
    if known and not (no_pin_names_topics and memory.has_read and memory.topic_id is None):
        return Age.INITIAL
    # A topic that a pattern matched and no pin names was created since, as in Spark's own source.
    return Age.ADDED if memory.by_pattern else Age.LATER


def _forgotten(topic: str, topic_id: str, of_topic: list[Pin], memory: Memory) -> bool:
    """Return whether the group had positions of this topic and has lost them.

    No batch is planned before its pins are acknowledged, so a group without pins of a topic that the checkpoint has
    read has lost them. Later pins are at the checkpoint's end and do not name their own topic. Neither does the pin of
    a recreated topic, but that one is at 0.

    Guards against (rule R8):
    1. With `startingOffsets=latest`, a group is empty for longer than `offsets.retention.minutes`: its offsets are
       deleted.
    2. Meanwhile a partition is added, or another query of the group had read a partition to 500.
    3. `latest` would pin that partition at its end, and skip the unread records.
    """
    # R8: no pin of a topic that the checkpoint has read
    if not of_topic:
        return same_topic(memory.topic_id, topic_id)
    return any(pin.offset > 0 and pin.leaves_out(topic, topic_id) for pin in of_topic)


def open_start(decision: StartDecision, starting: Starting) -> Start | None:
    """Return where to start after a decision that has no offset; None if the options do not name the partition."""
    return starting.of(decision.partition) if decision.basis is Basis.STARTING_POSITION else AtEdge()


def conflicts(decisions: Iterable[StartDecision]) -> str:
    """Return all conflicts in one text, empty if there are none."""
    return "; ".join(decision.conflict for decision in decisions if decision.conflict is not None)


def newest_reset(resets: Iterable[Reset | None]) -> Reset | None:
    """Return the newest of these resets, None if there is none."""
    return max((reset for reset in resets if reset is not None), default=None)


def left_alone(metadata: CommitMetadata | None, known: Reset | None) -> bool:
    """Return whether no reset newer than `known` included this partition: its commit metadata would name the reset.

    Guards against (rule R48):
    1. A query dies in the middle of a batch of topics A and B. Only A is reset.
    2. Spark runs the batch again, and the query reads its range of B. The commit does not arrive.
    3. Then it gets a partition of A, which carries the reset. If that voided the end of B too, the range of B would be
       read twice.
    """
    # R48: its own text would name the reset
    return metadata is not None and not newer(metadata.reset, known)


def voided(start: SourceOffset, reset: Reset | None, group: Mapping[TopicPartition, GroupOffset]) -> str:
    """Return the ends of a checkpoint that a reset makes void, as text; empty if there are none.

    All ends are void except those of partitions that the reset left alone, by the group's metadata. This includes
    partitions that other members own now: the group was empty when it was reset, so its offsets include everything that
    was completed and committed before.
    """
    if not newer(reset, start.reset):
        return ""
    kept = {partition for partition, held in group.items() if left_alone(parse_metadata(held.metadata), start.reset)}
    return "; ".join(
        f"{partition} checkpoint={end}" + (f" group={group[partition].offset}" if partition in group else "")
        for partition, end in sorted(start.ends().items())
        if partition not in kept
    )


@dataclass(frozen=True, slots=True)
class Lineage:
    """Hold the lineage in whose name a query plans and commits, and the newest reset of the group that it knows."""

    name: str
    reset: Reset | None = None

    def named(self, name: str) -> Lineage:
        """Return the lineage with another name and the same reset."""
        return self if name == self.name else replace(self, name=name)


def initial_topics(
    topic_ids: Mapping[str, str], pins: Mapping[TopicPartition, Pin], *, has_read: bool
) -> dict[str, str]:
    """Return the topics (name, id) that a new pin may name as existing when the group began.

    `pins` are the group's pins, `has_read` as in `Memory`. Topics that are left out start at their beginning.

    1. No topic, if the checkpoint has read topics and the group has no pins: the group has lost them.
    2. Otherwise the topics that all pins name: later pins name no more than the first ones, which may be deleted.

    Guards against (rule R7):
    1. With `startingOffsets=latest`, topic `orders` is pinned.
    2. `refunds` and `returns` are created and get records. `refunds` is pinned. `orders` is deleted, and its pins with
       it.
    3. If the pin of `refunds` named `returns`, then `returns` would count as initial and start at its end.
    """
    # R8: what is pinned from now on names no topic
    if has_read and not pins:
        return {}
    # Thousands of pins have few texts.
    distinct = {pin.known_topics: pin for pin in pins.values()}.values()
    return {
        # R7: later pins name no more than the first ones
        name: topic_id
        for name, topic_id in topic_ids.items()
        if all(p.knows_topic(name, topic_id) for p in distinct)
    }


def is_initial(decision: StartDecision, group: GroupOffset | None, pinned: Collection[str]) -> bool:
    """Return whether this partition's pin may name its own topic as existing when the group began.

    `pinned` are the topics that have pins. False if the topic was recreated, is new, or has lost its pins.

    Guards against:
    1. Both partitions of a topic were read. The group's offsets expire.
    2. One partition is pinned again, at the checkpoint's end.
    3. The other one is assigned to another member. By that pin it existed when the group began. It starts at its end.
    """
    if decision.recreated:
        return False
    if group is not None and group.offset is not None:
        return True
    # A partition that was added to an initial topic is new; its topic is not.
    added = decision.basis is Basis.FIRST_OFFSET and decision.partition.topic in pinned
    return added or decision.basis is Basis.STARTING_POSITION


def offset_to_pin(
    decision: StartDecision,
    position: int,
    group: GroupOffset | None,
    metadata: CommitMetadata | None,
    *,
    was_ours: bool,
) -> int | None:
    """Return the offset to commit before a batch is planned from `position`; None if the group's offset is enough.

    `was_ours`: the checkpoint's newest batch had the partition.

    Guards against (rule R53):
    1. An old checkpoint (100) wins over the group (150), which is not written again.
    2. The query reads [100, 120) and is restarted.
    3. The old text of the group looks like another lineage's progress: 120 to 150 would be skipped silently.
    """
    if group is None or group.offset is None or position > group.offset or decision.recreated:
        return position
    if metadata is None and position == group.offset:
        # Set by another program. With our metadata committed here, a later offset without metadata is a new change.
        return position
    if decision.conflict is None or position >= group.offset:
        return None
    # R55: an end of a partition that was handed over is old
    if metadata is None and was_ours:
        # Decided for the checkpoint, against another program: the group's offset moves back to the query's position.
        # Guards against (rule R55):
        # 1. An operator moves the group from 100 to 500. The query goes on at 100, as `onConflict=checkpoint` says.
        # 2. The partition moves to another member before the query has read to 500.
        # 3. That member would start at 500. Nobody would ever read the rest of [100, 500).
        # Not for a partition that was handed over: the checkpoint's end is old, others have read further, and would
        # read all that again.
        return position
    # Decided for an old checkpoint, against completed offsets of this source: the offset stays, in the new lineage's
    # name. Otherwise it would look like another lineage's progress after a restart, and silently reverse the decision.
    # R53: the offset stays, in the new lineage's name
    return group.offset


def start_item(
    partition: TopicPartition, offset: int, anchor: Anchor, own: Lineage, overruled: str | None
) -> CommitItem:
    """Return the commit of a start position. `overruled` is the checkpoint's lineage after a conflict, else None."""
    metadata = CommitMetadata(
        own.name, anchor.topic_id, offset, offset, anchor.pin, reset=own.reset, instead_of=overruled
    )
    return CommitItem(partition, offset, metadata.to_text())


def decided_again(
    held: Mapping[TopicPartition, GroupOffset], before: Collection[str], own: str, overruled: str
) -> list[CommitItem]:
    """Return commits that repeat, in the name of lineage `own`, the conflict decisions of the lineages `before` it.

    `held` are the group's offsets of partitions whose positions are below them.

    Guards against:
    1. An old checkpoint of p0 (100) won over the group (1000). Lineage N has read to 120.
    2. p1 is assigned, and another program has moved its offset. That conflict begins lineage N2, which logs [120, 140)
       of p0.
    3. After a restart p0's metadata, which names N, looks like a takeover. 140 to 1000 is skipped.
    """
    found = {partition: (group.offset, parse_metadata(group.metadata)) for partition, group in held.items()}
    return [
        CommitItem(partition, offset, replace(metadata, lineage=own, instead_of=overruled).to_text())
        for partition, (offset, metadata) in found.items()
        if offset is not None and metadata is not None and metadata.decides_for(before) and metadata.lineage != own
    ]
