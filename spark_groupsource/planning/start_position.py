"""Where a newly assigned partition starts: pure decisions, no I/O.

The group's committed offset is the merged checkpoint of all members; this lineage's own newest completed end is
what its checkpoint says. The larger one is right as long as both were written by lineages of this source. Every
other case is a conflict, and the option `onConflict` decides.

A reset by our own command is no conflict: it beats every checkpoint that does not know it. The sequence this protects
against: query B is stopped, and its checkpoint says that p0 is read up to 900; the group is reset to 0; query A takes
p0, reads [0, 50) and commits 50 in its own name; A stops, B starts and gets p0. The larger of 900 and 50 would skip
the records from 50 on, which were to be read again. So every commit carries the newest reset on, and a checkpoint
says which one it knows.

A pin fixes a start position in the group. Besides the position it names what there was when the group began: how many
partitions the topic had, and which topics. A partition without an offset starts by that.
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
    """What a start position rests on."""

    GROUP = "the group's committed offset"
    LINEAGE = "this lineage's own completed end"
    STARTING_POSITION = "startingOffsets or its relatives"
    BEGINNING = "the partition's beginning, because it appeared later"
    FIRST_OFFSET = "offset 0, because the partition was made later"
    FORGOTTEN = "the partition's beginning, because the group has forgotten how far it was read"


class Age(Enum):
    """When a partition was made, as the group's initial positions tell."""

    INITIAL = "it was there when they were pinned, or nothing tells"
    LATER = "its topic was not among the group's topics then"
    ADDED = "it was not there then"
    FORGOTTEN = "the group has lost those of its topic, which has been read"


@dataclass(frozen=True, slots=True)
class Memory:
    """What a query knows itself of a partition's topic, besides the group's initial positions.

    `topic_id` is the one that it has read, None if it has not; `has_read` tells whether its checkpoint has read any
    topic; `appeared`, that the topic as it is now was not there when the query started.
    """

    topic_id: str | None = None
    has_read: bool = False
    appeared: bool = False
    by_pattern: bool = False


@dataclass(frozen=True, slots=True)
class Takeover:
    """All that is known of one newly assigned partition.

    `recreated` tells that this lineage has read another topic of the same name; `reset`, that the partition was reset
    after the checkpoint was written; `decided`, that the group's offset is where a conflict was decided for it.
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
    """`offset` is None when the log has to be asked, as `basis` says."""

    partition: TopicPartition
    basis: Basis
    offset: int | None
    # What group and checkpoint disagree about, for a warning or an error; None when they agree.
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

    One that was made after the group's start begins at 0 for it, also where its log begins further on by now: what
    retention has removed meanwhile is lost (promise P8), as Spark's own source has it, too.
    """
    metadata, group = takeover.group_metadata, takeover.group_offset
    other_topic = not same_topic(metadata.topic_id, takeover.topic_id) if metadata else takeover.recreated
    # R35: an offset of a deleted topic of the same name
    if other_topic:
        # By name alone the offset of a deleted topic would land on its successor and skip its records.
        return StartDecision(takeover.partition, Basis.FIRST_OFFSET, None, recreated=True)
    # A partition that the group has no offset for was no part of the reset, and nobody else has read it since.
    # R46: the checkpoint's end is from before the reset
    own = None if takeover.reset and group is not None else takeover.own_end
    if group is None and own is None:
        return StartDecision(takeover.partition, _OPEN[age], None)
    if group is None or own is None:
        return StartDecision(
            takeover.partition, Basis.LINEAGE if group is None else Basis.GROUP, group if own is None else own
        )
    # Not once more. The sequence this protects against: an old checkpoint of p0 and p1 has won (100) over the group
    # (1000), and lineage N has read to 120; p1 leaves and comes back; decided anew, for a lineage N2, p0's text, which
    # says N, would look like a takeover after the next restart, when N2 has read to 140: 140 to 1000 would be skipped.
    # R54: decided before, for this checkpoint
    decided = takeover.decided and own < group and on_conflict is OnConflict.CHECKPOINT
    conflict = None if decided or own == group else _conflict(takeover, own, group)
    if conflict is None and not decided:
        return StartDecision(takeover.partition, Basis.LINEAGE if own > group else Basis.GROUP, max(own, group))
    if on_conflict is OnConflict.GROUP:
        return StartDecision(takeover.partition, Basis.GROUP, group, conflict)
    return StartDecision(takeover.partition, Basis.LINEAGE, own, conflict)


def _conflict(takeover: Takeover, own: int, group: int) -> str | None:
    """Say what is wrong when the two offsets cannot both come from lineages of this source."""
    metadata = takeover.group_metadata
    where = f"{takeover.partition} group={group} checkpoint={own}"
    if metadata is None:
        return f"{where} (the group's offset was set by another program)"
    # R52: the decision was not logged
    if metadata.instead_of == takeover.lineage:
        return f"{where} (decided before, and the query ended before it had logged a batch of that)"
    if metadata.lineage == takeover.lineage and group > own:
        return f"{where} (the checkpoint is older than the group's offset: was an old one restored, or one used twice?)"
    # Another lineage went further (a takeover), or our last commit did not arrive: both are normal.
    return None


def age_of(
    partition: TopicPartition, topic_id: str, pins: Mapping[TopicPartition, Pin], memory: Memory = Memory()
) -> Age:
    """Tell when a partition without a committed offset was made, by the first of the group's initial positions.

    `pins` are those of all partitions of the subscription that have one.
    """
    # R6: the topic id did not exist when the query started
    if memory.appeared:
        # A standby has neither pins nor batches, when the one topic of the group is made again.
        return Age.ADDED
    of_topic = [pin for other, pin in pins.items() if other.topic == partition.topic]
    # Partitions that were added later carry a larger count: the smallest is the initial one.
    # R4: the smallest pinned count is the initial one
    if of_topic and partition.partition >= min(pin.partition_count for pin in of_topic):
        return Age.ADDED
    # So it is with topics: pins of what was added later know also what came with it, and only the first ones tell.
    # Two sequences this protects against, with "latest". Partitions are added to one topic, and a second topic is
    # made; the partitions are pinned first, and know the second topic. A topic is made; one of its partitions is
    # pinned by a member, the other one goes to a member that has not pinned it yet. Records would be skipped.
    # R4: a topic that one of the pins does not name appeared later
    known = all(pin.knows_topic(partition.topic, topic_id) for pin in pins.values())
    if _forgotten(partition.topic, topic_id, of_topic, memory):
        return Age.FORGOTTEN
    # Where no pin tells which topics there were, one that is new to a query that has read others appeared later.
    untold = all(pin.known_topics is None for pin in pins.values())
    if known and not (untold and memory.has_read and memory.topic_id is None):
        return Age.INITIAL
    # What nobody has named was made since, as Spark's own source takes it.
    return Age.ADDED if memory.by_pattern else Age.LATER


def _forgotten(topic: str, topic_id: str, of_topic: list[Pin], memory: Memory) -> bool:
    """Whether the group had positions of this topic, and has lost them.

    Nothing is planned before its pin is acknowledged, so a group without pins of what a checkpoint has read has lost
    them. What is pinned then stands where the checkpoint was, and does not know its own topic; nor does the pin of a
    topic that was made again, but that one is at 0.

    The sequence this protects against, with "latest": the group is empty for longer than offsets.retention.minutes, or
    is deleted; meanwhile a partition is added and filled, or another query had been at 500 of it. Its end would be
    taken for its start, and the records before would be skipped.
    """
    # R8: no pin of a topic that the checkpoint has read
    if not of_topic:
        return same_topic(memory.topic_id, topic_id)
    return any(pin.offset > 0 and pin.leaves_out(topic, topic_id) for pin in of_topic)


def open_start(decision: StartDecision, starting: Starting) -> Start | None:
    """Return where an open decision starts; None when the options do not name the partition."""
    return starting.of(decision.partition) if decision.basis is Basis.STARTING_POSITION else AtEdge()


def conflicts(decisions: Iterable[StartDecision]) -> str:
    """Return all conflicts in one text, empty when there are none."""
    return "; ".join(decision.conflict for decision in decisions if decision.conflict is not None)


def newest_reset(resets: Iterable[Reset | None]) -> Reset | None:
    """Return the newest of these resets, None when there is none."""
    return max((reset for reset in resets if reset is not None), default=None)


def left_alone(metadata: CommitMetadata | None, known: Reset | None) -> bool:
    """Whether no reset that is newer than `known` was for this partition: its own text would tell.

    The sequence this protects against: a query dies in a batch of A and B; topic A alone is reset; started again, it
    reads its range of B and completes the batch, whose commit does not arrive. B's end of the checkpoint holds.
    """
    # R48: its own text would name the reset
    return metadata is not None and not newer(metadata.reset, known)


def voided(start: SourceOffset, reset: Reset | None, group: Mapping[TopicPartition, GroupOffset]) -> str:
    """Name the ends of a checkpoint that a reset makes void, empty when there are none.

    All of them go but those of partitions that the group shows to be left alone, also those that others own now: the
    group was empty when it was reset, so its offsets hold everything that was completed and committed before.
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
    """In whose name a query plans and commits: the lineage, and the newest reset of the group that it knows."""

    name: str
    reset: Reset | None = None

    def named(self, name: str) -> Lineage:
        """Return the lineage of another name, which knows the same."""
        return self if name == self.name else replace(self, name=name)


def initial_topics(
    topic_ids: Mapping[str, str], pins: Mapping[TopicPartition, Pin], *, has_read: bool
) -> dict[str, str]:
    """Return which of these topics (name, id) a new pin may say were there when the group began.

    `pins` are those that the group has, `has_read` as in `Memory`. What is left out starts at its beginning, wherever
    it is pinned.

    1. None where a checkpoint has read and the group has no pins: it had some, and has lost them.
    2. Those that all pins know: later pins tell no more than the first ones, which may be gone. The sequence: a pattern
       matches orders, which is pinned; refunds and returns are made, with records, and refunds is pinned; orders is
       deleted, its offsets with it; by the pin of refunds returns had been there, and would start at its end.
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
    """Whether the pin of this partition may say that its own topic was there when the group began.

    `pinned` are the topics that have pins. Not where the topic was made again, is new, or was pinned before and that is
    lost. The sequence: both partitions of a topic were read, the group forgets them; one is pinned anew where the
    checkpoint was, then another member is given the other one, which by that pin was there, and starts at its end.
    """
    if decision.recreated:
        return False
    if group is not None and group.offset is not None:
        return True
    # Partitions that were added to a topic that was there at first are new, and it is not.
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
    """Return the offset to commit before anything is planned from `position`; None when the group's will do.

    `was_ours` tells that the checkpoint's newest batch had the partition.
    """
    if group is None or group.offset is None or position > group.offset or decision.recreated:
        return position
    if metadata is None and position == group.offset:
        # Set by another program. Said in our name, a later offset without metadata is one that moved since.
        return position
    if decision.conflict is None or position >= group.offset:
        return None
    # R55: an end of a partition that was handed over is old
    if metadata is None and was_ours:
        # Decided for the checkpoint, against another program: the group's offset goes back to where its queries are.
        # The sequence this protects against: an operator moves it from 100 to 500; the query goes on at 100, and its
        # partition goes to another member before it has got to 500: that one would start there, and 100 to 500 would
        # be skipped silently. Of a partition that was handed over long ago the checkpoint's end is old: others have
        # read on, and would read all that again.
        return position
    # Decided for an old checkpoint, against what was completed by queries of this source: the offset stays, in the
    # new lineage's name. Else, after a restart, it would look like another lineage's progress, and the decision would
    # be turned round silently.
    # R53: the offset stays, in the new lineage's name
    return group.offset


def start_item(
    partition: TopicPartition, offset: int, anchor: Anchor, own: Lineage, overruled: str | None
) -> CommitItem:
    """Return what is committed for a start position; `overruled` is the checkpoint's lineage, after a conflict."""
    metadata = CommitMetadata(
        own.name, anchor.topic_id, offset, offset, anchor.pin, reset=own.reset, instead_of=overruled
    )
    return CommitItem(partition, offset, metadata.to_text())


def decided_again(
    held: Mapping[TopicPartition, GroupOffset], before: Collection[str], own: str, overruled: str
) -> list[CommitItem]:
    """Return what says in the name of lineage `own` how conflicts were decided by those `before` it.

    `held` is what the group holds of partitions whose positions are behind that.

    The sequence this protects against: an old checkpoint of p0 has won (100) over the group (1000), and lineage N has
    read to 120; p1 comes, moved by another program, and that conflict makes lineage N2. [120, 140) of p0 is logged in
    its name. After a restart p0's text, which says N, would look like a takeover, and 140 to 1000 would be skipped.
    """
    found = {partition: (group.offset, parse_metadata(group.metadata)) for partition, group in held.items()}
    return [
        CommitItem(partition, offset, replace(metadata, lineage=own, instead_of=overruled).to_text())
        for partition, (offset, metadata) in found.items()
        if offset is not None and metadata is not None and metadata.decides_for(before) and metadata.lineage != own
    ]
