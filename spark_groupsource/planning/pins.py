"""What fixes a start position in the group: pure decisions, no I/O.

A pin tells, besides the position, what there was when the group began: how many partitions the topic had, and which
topics. Whoever is given a partition without an offset goes by that (`planning/start.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from spark_groupsource.model.commit_metadata import Anchor, CommitItem, CommitMetadata, GroupOffset, Pin, parse_metadata
from spark_groupsource.model.offsets import Reset, TopicPartition
from spark_groupsource.planning.start_position import Basis, StartDecision


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
    if has_read and not pins:
        return {}
    # Thousands of pins have few texts.
    distinct = {pin.known_topics: pin for pin in pins.values()}.values()
    return {
        name: topic_id for name, topic_id in topic_ids.items() if all(p.knows_topic(name, topic_id) for p in distinct)
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
