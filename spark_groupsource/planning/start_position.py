"""Decide where a newly assigned partition starts: pure functions, no I/O.

The group's committed offset is the merged checkpoint of all members. The checkpoint holds the newest completed end of
this lineage. The larger of the two is right if both were written by lineages of this source. Every other case is a
conflict (`planning/conflicts.py`): the group's offset applies, or the query fails.

A reset by `groupkafka reset` is no conflict: it takes precedence over every checkpoint that does not know it. So every
commit repeats its partition's newest reset, and a checkpoint names the newest one that it knows. A conflict that was
decided is stored as a reset, too.

Guards against (rule R46):
1. Query B stops at 900. The group is reset to 0.
2. Query A reads [0, 50) and commits 50 in its own name. A stops.
3. B starts and gets the partition. The larger of 50 and 900 would skip [50, 900), which was to be read again.

Guards against (rule R46, a decided conflict):
1. The checkpoint is at 100, and an operator moves the group to 40. The query follows: it commits 40 in its own name.
2. It dies before Spark has logged a batch of that.
3. After the restart the group's text does not look foreign, and the larger of 100 and 40 would undo the operator's
   move in silence.

A pin fixes a start position in the group. Besides the position it records the state when the group began: the topic's
partition count, and the names of the topics. They decide the start of a partition without an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from spark_groupsource.model.commit_metadata import (
    Anchor,
    CommitItem,
    CommitMetadata,
    GroupOffset,
    Pin,
    metadata_of,
    next_reset,
)
from spark_groupsource.model.offsets import OffsetRange, Reset, SourceOffset, TopicPartition, newer, same_topic
from spark_groupsource.options.offset_spec import AtEdge, Start, Starting
from spark_groupsource.planning import conflicts
from spark_groupsource.planning.conflicts import Conflict
from spark_groupsource.planning.shared_state import ReadByOthers, read_by_others


class Basis(Enum):
    """Name the source of a start position. All but the first two are for a partition without any offset."""

    GROUP = "the group's committed offset"
    LINEAGE = "this lineage's own completed end"
    STARTING_POSITION = "startingOffsets, or a related option: it existed when the group began, or that is not known"
    BEGINNING = "the partition's beginning: its topic is newer than the group, or the group began with earliest"
    FIRST_OFFSET = "offset 0, because the partition was created after the group began"
    FORGOTTEN = "the partition's beginning, because the group has forgotten how far it was read"


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

    `own_end`, `lineage` and `known_reset` are the checkpoint's. `recreated`: this lineage has read another topic of the
    same name. `followed`: the part of a batch that ran again from the offset on that another program had set.
    """

    partition: TopicPartition
    topic_id: str
    group_offset: int | None
    group_metadata: CommitMetadata | None
    own_end: int | None
    lineage: str
    known_reset: Reset | None = None
    recreated: bool = False
    followed: OffsetRange | None = None


@dataclass(frozen=True, slots=True)
class StartDecision:
    """Hold a start position. `offset` is None if it must be read from the log, as `basis` describes."""

    partition: TopicPartition
    basis: Basis
    offset: int | None
    # How group and checkpoint disagree; None if they agree.
    conflict: Conflict | None = None
    # The group's offset belongs to a deleted topic of the same name.
    recreated: bool = False
    # What others have completed before the start; None if that is not known, or the checkpoint's end is the start. No
    # part of the decision.
    others: ReadByOthers | None = field(default=None, compare=False)


def decide_start(takeover: Takeover, without_offset: Basis) -> StartDecision:
    """Choose the start of one partition. The caller checks whether a conflict allows it (`conflicts.check_allowed`).

    `without_offset` is its basis if neither the group nor the checkpoint has an offset of it.

    Guards against (rule R11, a moved offset):
    1. A batch [100, 200) fails. Another program moves the group to 151.
    2. Spark runs the batch again, and the query reads [151, 200). By the group's offset it would do so once more.

    Guards against (a late commit for a deleted topic, rule R83):
    1. A query reads [0, 5) of a recreated topic, commits 5 and stops.
    2. A batch of the deleted topic ends, and its late commit replaces the 5.
    3. The query starts again. Its checkpoint has the 5. From the topic's beginning it would read [0, 5) twice.

    A partition created after the group's start begins at 0, even if its log now begins later: records that retention
    has deleted meanwhile are lost (promise P8), as in Spark's own source.
    """
    partition, metadata, group = takeover.partition, takeover.group_metadata, takeover.group_offset
    other_topic = not same_topic(metadata.topic_id, takeover.topic_id) if metadata else takeover.recreated
    # R46: the checkpoint's end is from before the reset
    own = None if was_reset(metadata, takeover.topic_id, takeover.known_reset) else takeover.own_end
    # R35: an offset of a deleted topic of the same name
    if other_topic:
        # By name alone, the offset of the deleted topic would be used for the new one and skip its records.
        # R83: the checkpoint's end is of the recreated topic
        basis = Basis.FIRST_OFFSET if own is None else Basis.LINEAGE
        return StartDecision(partition, basis, own, recreated=True)
    if group is None:
        return StartDecision(partition, without_offset if own is None else Basis.LINEAGE, own)
    others = read_by_others(partition, own, group, metadata)
    if own is None:
        return StartDecision(partition, Basis.GROUP, group, others=others)
    conflict = conflicts.at_start(partition, own, group, metadata, takeover.lineage)
    followed = takeover.followed
    # R11: the batch that ran again has followed the group already
    if followed is not None and metadata is None and (followed.start, followed.end) == (group, own):
        conflict = None
    if conflict is None and own > group:
        return StartDecision(partition, Basis.LINEAGE, own)
    # A conflict is no batch of another query: the user decides it.
    return StartDecision(partition, Basis.GROUP, group, conflict, others=others if conflict is None else None)


def basis_without_offset(
    partition: TopicPartition, topic_id: str, pins: Mapping[TopicPartition, Pin], memory: Memory = Memory()
) -> Basis:
    """Return the basis of a partition without an offset: it depends on when the partition was created.

    The first of the group's initial positions show that. `pins` are the pins of all partitions of the subscription that
    have one.

    Guards against (rule R4):
    1. With `startingOffsets=latest`, a partition is added, or a new topic matches the pattern.
    2. Producers write 100 records before the query notices the partition.
    3. By `latest` it would start after these records.

    Guards against (rule R4, retention):
    1. The query is down. A partition is added and filled. Retention removes its first records, which belonged to the
       group.
    2. The query starts. If the partition started where its log begins, nobody would report it.
    """
    # R6: the topic id did not exist when the query started
    if memory.appeared:
        # A standby has neither pins nor batches when the only topic of the group is recreated.
        return Basis.FIRST_OFFSET
    of_topic = [pin for other, pin in pins.items() if other.topic == partition.topic]
    # R4: partitions that were added later carry a larger count, so the smallest pinned one is the initial one
    if of_topic and partition.partition >= min(pin.partition_count for pin in of_topic):
        # R4: 0, not the log's beginning
        return Basis.FIRST_OFFSET
    # The same holds for topics: a later pin also names topics that were created with it, so only the first pins count.
    # Guards against two ways to skip records, with "latest":
    # 1. Partitions are added to one topic, and a second topic is created. The partitions are pinned first, and their
    #    pins name the second topic.
    # 2. A topic is created. A member pins one of its partitions. The other one is assigned to a member that has not
    #    pinned it yet.
    # R4: a topic that one of the pins does not name appeared later
    known = all(pin.knows_topic(partition.topic, topic_id) for pin in pins.values())
    if _forgotten(partition.topic, topic_id, of_topic, memory):
        return Basis.FORGOTTEN
    # If no pin names topics, a topic that is new to a query that has read others appeared later.
    no_pin_names_topics = all(pin.known_topics is None for pin in pins.values())
    if not known or (no_pin_names_topics and memory.has_read and memory.topic_id is None):
        # A topic that a pattern matched and no pin names was created since, as in Spark's own source.
        return Basis.FIRST_OFFSET if memory.by_pattern else Basis.BEGINNING
    # R4: startingOffsets may have been changed since
    return Basis.BEGINNING if began_with_earliest(pins) else Basis.STARTING_POSITION


def began_with_earliest(pins: Mapping[TopicPartition, Pin]) -> bool:
    """Return whether the group began with `startingOffsets=earliest`: only then do its pins name no topics.

    A partition without an offset starts at its beginning in such a group, whatever the options say now.

    Guards against:
    1. A group begins with "earliest". Its queries start again with "latest".
    2. Meanwhile a topic was created that its pattern matches.
    3. A query that has read nothing gets it: by "latest" it would skip the topic's first records.

    Guards against:
    1. A and B begin a group with "earliest". A reads orders-0. B owns orders-1, and dies before the group has a start
       of it.
    2. Both start again with "latest": orders-1 would start at its end.
    """
    return bool(pins) and all(pin.known_topics is None for pin in pins.values())


def _forgotten(topic: str, topic_id: str, of_topic: list[Pin], memory: Memory) -> bool:
    """Return whether the group had positions of this topic and has lost them.

    No batch is planned before its pins are acknowledged, so a group without pins of a topic that the checkpoint has
    read has lost them. Later pins are at the checkpoint's end and do not name their own topic. Neither does the pin of
    a recreated topic, but that one is at 0.

    Guards against (rule R4, forgotten offsets):
    1. With `startingOffsets=latest`, a group is empty for longer than `offsets.retention.minutes`: its offsets are
       deleted.
    2. Meanwhile a partition is added, or another query of the group had read a partition to 500.
    3. `latest` would pin that partition at its end, and skip the unread records.
    """
    # R4: no pin of a topic that the checkpoint has read
    if not of_topic:
        return same_topic(memory.topic_id, topic_id)
    return any(pin.offset > 0 and pin.leaves_out(topic, topic_id) for pin in of_topic)


def open_start(decision: StartDecision, starting: Starting) -> Start | None:
    """Return where to start after a decision that has no offset; None if the options do not name the partition."""
    return starting.of(decision.partition) if decision.basis is Basis.STARTING_POSITION else AtEdge()


def was_reset(metadata: CommitMetadata | None, topic_id: str | None, known: Reset | None) -> bool:
    """Return whether a partition of this topic id was reset since `known`, by the group's metadata of it.

    Guards against (rule R47, a partition that was left alone):
    1. A query dies in the middle of a batch of topics A and B. Only A is reset.
    2. Spark runs the batch again, and the query reads its range of B. The commit does not arrive.
    3. Then it gets a partition of A, which carries the reset. If that voided the end of B too, the range of B would be
       read twice.

    Guards against (a late commit for a deleted topic, rule R83):
    1. The group is reset. The topic is recreated. A query reads [0, 41) of it, and stops.
    2. A batch of the deleted topic ends, and its late commit carries the reset.
    3. The query starts again. By the deleted topic's reset it would read [0, 41) twice.
    """
    # R47: left alone, unless its own text names the reset
    return metadata is not None and same_topic(metadata.topic_id, topic_id) and newer(metadata.reset, known)


def void_ends(start: SourceOffset, group: Mapping[TopicPartition, GroupOffset]) -> frozenset[TopicPartition]:
    """Return the partitions whose ends in a checkpoint are void, owned or not, by the group's offsets.

    They were reset, or another program has moved them, which their owner decides. The checkpoint is about to name a
    newer reset than those, so it must not keep these ends.
    """
    ends = start.ends()
    found = {p: (held, metadata_of(held)) for p, held in group.items() if p in ends and held.offset is not None}
    return frozenset(
        partition
        for partition, (held, metadata) in found.items()
        if was_reset(metadata, start.topic_id(partition.topic), start.reset)
        or (metadata is None and held.offset != ends[partition])
    )


@dataclass(frozen=True, slots=True)
class Lineage:
    """Hold the lineage in whose name a query plans and commits, and the newest reset that it knows.

    `void`: the partitions whose ends in the checkpoint do not count any more, until a batch of the lineage is logged.
    """

    name: str
    reset: Reset | None = None
    void: frozenset[TopicPartition] = frozenset()

    def after_conflicts(
        self,
        name: str,
        decided: Collection[TopicPartition],
        start: SourceOffset,
        group: Mapping[TopicPartition, GroupOffset],
        now_ms: int,
    ) -> Lineage:
        """Return the lineage in which the group is followed for these partitions: their reset begins with it.

        `group` has the group's offsets of all partitions that the checkpoint `start` has read.
        """
        # R46: a decision is newer than all resets that a checkpoint may know
        reset = next_reset(group.values(), now_ms, name, self.reset)
        return Lineage(name, reset, self.void | void_ends(start, group) | frozenset(decided))


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
    # R7: the first pins are forgotten, so later ones name no topic
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


def must_pin(decision: StartDecision, position: int, group: GroupOffset | None) -> bool:
    """Return whether to commit the position before a batch is planned; if not, the group's own text is enough."""
    if group is None or group.offset is None or position > group.offset or decision.recreated:
        return True
    # R46: a decision is committed, also at the group's own offset
    # So is an offset of another program: one without metadata is then one that was moved since.
    return decision.conflict is not None or metadata_of(group) is None


def start_item(
    partition: TopicPartition, offset: int, anchor: Anchor, lineage: str, *, has_state: bool = False
) -> CommitItem:
    """Return the commit of a start position. `has_state`: whether it has the mark of a query with state."""
    metadata = CommitMetadata(
        lineage, anchor.topic_id, offset, offset, anchor.pin, reset=anchor.reset, has_state=has_state
    )
    return CommitItem(partition, offset, metadata.to_text())


def marked_item(partition: TopicPartition, group: GroupOffset | None, *, has_state: bool) -> CommitItem | None:
    """Return the commit of the group's own offset and text with the mark of a query with state, or without it.

    None if the text is so already. The mark is that of the partition's owner: one that a query without state has taken
    over is no reason any more to refuse a new query.

    Guards against (rule R116, an offset from before the mark):
    1. A, with state, has read orders-0 to 100. The commit has no mark: A was of an older release, or a reset wrote it.
    2. A starts again, and commits nothing, because there is nothing to read.
    3. B is new, gets orders-0, and completes what is written next.
    """
    metadata = metadata_of(group)
    # An older release's decision of a conflict has a form of its own, which the next batch replaces.
    if group is None or group.offset is None or metadata is None or metadata.instead_of:
        return None
    if metadata.has_state == has_state:
        return None
    return CommitItem(partition, group.offset, replace(metadata, has_state=has_state).to_text(), metadata.leader_epoch)
