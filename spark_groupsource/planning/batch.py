"""What one micro-batch reads: pure functions from positions and log ends to ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.commits import Anchor, CommitItem, CommitMetadata
from spark_groupsource.offsets import OffsetRange, SourceOffset, TopicPartition


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a partition has to offer: [position, end), and the leader epoch of the end."""

    position: int
    end: int
    leader_epoch: int | None = None

    @property
    def size(self) -> int:
        """Number of offsets; 0 when a lagging leader shows an end before the position."""
        return max(0, self.end - self.position)


def share_out(sizes: Mapping[TopicPartition, int], limit: int | None) -> dict[TopicPartition, int]:
    """Share `limit` out in proportion to `sizes` (largest remainder); never more than a size.

    The sum is exactly min(limit, sum of sizes), and every partition with a backlog gets something as long as the
    limit has room for it, so that a small partition next to a large one is not starved.
    """
    total = sum(sizes.values())
    if limit is None or limit >= total:
        return dict(sizes)
    waiting = {partition: size for partition, size in sizes.items() if size > 0}
    base = 1 if len(waiting) <= limit else 0
    spare, weight = limit - base * len(waiting), total - base * len(waiting)
    shares = dict.fromkeys(sizes, 0)
    remainders = []
    for partition, size in sorted(waiting.items()):
        extra, remainder = divmod(spare * (size - base), weight) if weight else (0, 0)
        shares[partition] = base + extra
        remainders.append((-remainder, partition))
    left = limit - sum(shares.values())
    for _, partition in sorted(remainders)[:left]:
        shares[partition] += 1
    return shares


def plan_ranges(backlogs: Mapping[TopicPartition, Backlog], limit: int | None) -> tuple[OffsetRange, ...]:
    """Return one range per partition, empty where there is nothing to read."""
    shares = share_out({partition: backlog.size for partition, backlog in backlogs.items()}, limit)
    return tuple(
        OffsetRange(
            partition,
            backlog.position,
            backlog.position + shares[partition],
            # The epoch belongs to the log's end only.
            backlog.leader_epoch if backlog.position + shares[partition] == backlog.end else None,
        )
        for partition, backlog in sorted(backlogs.items())
    )


def next_offset(
    start: SourceOffset, lineage: str, topic_ids: Mapping[str, str], ranges: Iterable[OffsetRange]
) -> SourceOffset:
    """Return the offset to log for a batch: its ranges, and what the lineage has done elsewhere.

    Ends of a topic that was deleted and made again (its id changed) are forgotten.
    """
    planned = tuple(ranges)
    owned = {item.partition for item in planned}
    known = dict(start.topic_ids)
    done = {
        partition: end
        for partition, end in start.ends().items()
        if partition not in owned and topic_ids.get(partition.topic, known[partition.topic]) == known[partition.topic]
    }
    topics = {item.partition.topic for item in planned} | {partition.topic for partition in done}
    ids = {topic: topic_ids.get(topic) or known[topic] for topic in topics}
    return SourceOffset.of(lineage, ids, planned, done)


def commit_items(end: SourceOffset, anchors: Mapping[TopicPartition, Anchor]) -> tuple[CommitItem, ...]:
    """Return what to commit when the batch is complete: the planned end, not the last record + 1.

    Transaction markers and compaction leave offsets without records; the last record + 1 would show as lag for
    ever. Left out are partitions without an anchor, whose start position is not established, and those whose
    topic was made anew since: the old end would skip records of the new topic.
    """
    items = []
    for item in end.ranges:
        anchor = anchors.get(item.partition)
        if anchor is None or anchor.topic_id != end.topic_id(item.partition.topic):
            continue
        metadata = CommitMetadata(end.lineage, anchor.topic_id, item.start, item.end, anchor.pin, item.leader_epoch)
        items.append(CommitItem(item.partition, item.end, metadata.to_text(), item.leader_epoch))
    return tuple(items)


def trim_replay(
    ranges: Iterable[OffsetRange],
    lineage: str,
    committed: Mapping[TopicPartition, tuple[int | None, CommitMetadata | None]],
) -> tuple[OffsetRange, ...]:
    """Return a logged batch's ranges less what another lineage has committed meanwhile (promises P2, P3, P6).

    The sequence this protects against: a member dies in the middle of a batch, another one takes its partitions
    over, completes and commits them, and the first is started again: Spark runs its logged batch once more.
    """
    trimmed = []
    for item in ranges:
        offset, metadata = committed.get(item.partition, (None, None))
        foreign = metadata is not None and metadata.lineage != lineage
        start = item.start if offset is None or not foreign else min(max(item.start, offset), item.end)
        trimmed.append(OffsetRange(item.partition, start, item.end, item.leader_epoch))
    return tuple(trimmed)
