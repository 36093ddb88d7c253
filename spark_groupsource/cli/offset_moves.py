"""Plan the moves of a reset: pure decisions, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.cli.text_table import aligned
from spark_groupsource.model.commit_metadata import CommitItem, CommitMetadata, GroupOffset, Pin, metadata_of
from spark_groupsource.model.offsets import Reset, TopicPartition, same_topic


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """A partition's log: its first and last offset, and id and partition count of its topic."""

    topic_id: str
    partition_count: int
    beginning: int
    end: int


@dataclass(frozen=True, slots=True)
class WantedOffset:
    """The wanted offset of a partition before the log's bounds are applied, with the reason, and the known pin."""

    offset: int
    why: str
    pin: Pin | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's move. `missing` is the half-open range of unread offsets that are missing in the log."""

    partition: TopicPartition
    current: int | None
    new: int
    why: str
    missing: tuple[int, int] | None = None

    @property
    def row(self) -> tuple[str, str, str, str, str]:
        """The cells of the table."""
        if self.current is None:
            return str(self.partition), "-", str(self.new), "-", self.why
        difference = self.new - self.current
        return str(self.partition), str(self.current), str(self.new), f"{difference:+}" if difference else "0", self.why


_HEADER = ("partition", "current", "new", "difference", "why")


def pin_of(group: GroupOffset | None, topic_id: str) -> Pin | None:
    """Return the partition's pinned initial position; None if there is none, or it is a deleted topic's."""
    metadata = metadata_of(group)
    return metadata.pin if metadata is not None and same_topic(metadata.topic_id, topic_id) else None


def plan_move(partition: TopicPartition, group: GroupOffset | None, log: PartitionLog, wish: WantedOffset) -> Move:
    """Return the move of one partition.

    An offset below the log's beginning is kept, so that the query itself reports the loss (failOnDataLoss). An offset
    greater than the log's end is set to the end: the log was truncated, and records written since would be skipped.
    """
    current = None if group is None else group.offset
    if wish.offset > log.end:
        return Move(partition, current, log.end, f"{wish.why}, limited to the log's end")
    missing = (wish.offset, log.beginning) if wish.offset < log.beginning else None
    return Move(partition, current, wish.offset, wish.why, missing)


def commit_item(move: Move, pin: Pin, topic_id: str, reset: Reset) -> CommitItem:
    """Return the offset to commit, with the reset as marker; its lineage is the reset's own, of no query."""
    metadata = CommitMetadata(reset.id, topic_id, move.new, move.new, pin, reset=reset)
    return CommitItem(move.partition, move.new, metadata.to_text())


def moves_table(moves: Iterable[Move]) -> str:
    """Return the moves as aligned text."""
    return "\n".join(aligned([_HEADER, *(move.row for move in moves)], left={0, 4}))


def move_warnings(moves: Iterable[Move]) -> list[str]:
    """Return one line per partition whose new offset is missing in its log."""
    return [
        f"WARNING: the broker no longer has the records {move.partition} [{move.missing[0]}, {move.missing[1]});"
        " the query reports them as lost (failOnDataLoss)"
        for move in moves
        if move.missing is not None
    ]


def partition_names(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions as text for users."""
    return ", ".join(map(str, sorted(partitions)))


def in_topics(partitions: Iterable[TopicPartition], known: Mapping[str, object]) -> list[TopicPartition]:
    """Return the partitions of known topics, sorted."""
    return sorted(partition for partition in partitions if partition.topic in known)
