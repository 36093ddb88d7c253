"""Plan the ranges of a micro-batch: pure functions, no I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.model.commit_metadata import CommitMetadata
from spark_groupsource.model.offsets import (
    NextRecords,
    OffsetRange,
    Reset,
    SourceOffset,
    TopicPartition,
    newer,
    same_topic,
)
from spark_groupsource.planning import conflicts
from spark_groupsource.planning.conflicts import Conflict
from spark_groupsource.planning.shared_state import ReadByOthers
from spark_groupsource.planning.start_position import Lineage


@dataclass(frozen=True, slots=True)
class Backlog:
    """Hold a partition's readable offsets [position, end), and the leader epoch in which the log reached `end`."""

    position: int
    end: int
    leader_epoch: int | None = None

    @property
    def size(self) -> int:
        """Return the number of offsets; 0 if a lagging leader reports an end before the position."""
        return max(0, self.end - self.position)


def divide_limit(
    sizes: Mapping[TopicPartition, int], limit: int | None, last: TopicPartition | None = None
) -> dict[TopicPartition, int]:
    """Divide `limit` in proportion to `sizes`. No share exceeds its size, and the sum is at most `limit`.

    As in Spark's own source (`KafkaMicroBatchStream.rateLimit`), a share is rounded down but is at least 1, so that a
    small partition next to a large one is not starved. Spark's source exceeds the limit with many small partitions.
    Here partitions take turns if `limit` is too small for all of them: the first ones after `last` are next.
    """
    total = sum(sizes.values())
    if limit is None or limit >= total:
        return dict(sizes)
    shares = {partition: max(1, limit * size // total) if size > 0 else 0 for partition, size in sizes.items()}
    if sum(shares.values()) <= limit:
        return shares
    waiting = sorted(partition for partition, size in sizes.items() if size > 0)
    if limit < len(waiting):
        first = bisect_right(waiting, last) if last is not None else 0
        return dict.fromkeys(sizes, 0) | dict.fromkeys((waiting[first:] + waiting[:first])[:limit], 1)
    return _divide_exactly(sizes, limit)


def _divide_exactly(sizes: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Divide exactly `limit` (largest remainder), at least 1 to each, if rounded shares would exceed it."""
    waiting = {partition: size for partition, size in sizes.items() if size > 0}
    spare, weight = limit - len(waiting), sum(waiting.values()) - len(waiting)
    shares = dict.fromkeys(sizes, 0)
    remainders = []
    for partition, size in sorted(waiting.items()):
        extra, remainder = divmod(spare * (size - 1), weight)
        shares[partition] = 1 + extra
        remainders.append((-remainder, partition))
    left = limit - sum(shares.values())
    for _, partition in sorted(remainders)[:left]:
        shares[partition] += 1
    return shares


def average_bytes(found: Iterable[NextRecords], otherwise: float) -> float:
    """Return the average record size; `otherwise` if none is known."""
    sizes = [records.bytes_per_offset for records in found if records.bytes_per_offset is not None]
    return sum(sizes) / len(sizes) if sizes else otherwise


def within_bytes(
    backlogs: Mapping[TopicPartition, Backlog],
    found: Mapping[TopicPartition, NextRecords],
    max_bytes: int,
    usual_bytes: float,
) -> dict[TopicPartition, Backlog]:
    """Shorten backlogs to about `max_bytes` in total; each keeps at least one offset.

    Offsets before a partition's next record take no bytes. A partition without a known record size gets the average
    one; `usual_bytes` if none is known.
    """
    average = average_bytes(found.values(), usual_bytes)
    ahead = {p: found.get(p, NextRecords(backlog.position, None)) for p, backlog in backlogs.items()}
    known = {p: records.bytes_per_offset for p, records in ahead.items()}
    each = {p: max(1.0, average if size is None else size) for p, size in known.items()}
    sizes = {p: round(max(0, backlog.end - ahead[p].first) * each[p]) for p, backlog in backlogs.items()}
    shares = divide_limit(sizes, max_bytes)
    return {
        p: Backlog(b.position, min(b.end, ahead[p].first + max(1, int(shares[p] / each[p]))), b.leader_epoch)
        for p, b in backlogs.items()
    }


def last_read(ranges: Iterable[OffsetRange], last: TopicPartition | None) -> TopicPartition | None:
    """Return the partition with which the turns of a batch have ended. `last` is that of the batch before it."""
    read = [item.partition for item in ranges if len(item)]
    # The turns go on after the last partition with the first one.
    return max([partition for partition in read if last is not None and partition <= last] or read, default=last)


def plan_ranges(
    backlogs: Mapping[TopicPartition, Backlog], limit: int | None, last: TopicPartition | None = None
) -> tuple[OffsetRange, ...]:
    """Return one range per partition; the range is empty if there is nothing to read. `last` as in `divide_limit`."""
    shares = divide_limit({partition: backlog.size for partition, backlog in backlogs.items()}, limit, last)
    return tuple(
        OffsetRange(
            partition,
            backlog.position,
            backlog.position + shares[partition],
            # The epoch in which the log reached the end also holds for every offset before it.
            backlog.leader_epoch if backlog.position <= backlog.end else None,
        )
        for partition, backlog in sorted(backlogs.items())
    )


def next_offset(
    start: SourceOffset,
    lineage: Lineage,
    topic_ids: Mapping[str, str],
    ranges: Iterable[OffsetRange],
    *,
    deleted: Collection[str] = (),
) -> SourceOffset:
    """Return the offset to log for a batch: its ranges, and the lineage's completed offsets of other partitions.

    Dropped are the ends of `deleted` topics, of recreated ones (their id changed), and of the partitions for which the
    lineage's beginning has made them void.
    """
    planned = tuple(ranges)
    owned = {item.partition for item in planned}
    known = dict(start.topic_ids)
    dropped = owned | set(lineage.void if lineage.name != start.lineage else ())
    done = {
        partition: end
        for partition, end in start.ends().items()
        if partition not in dropped and partition.topic not in deleted
        if same_topic(topic_ids.get(partition.topic, known[partition.topic]), known[partition.topic])
    }
    topics = {item.partition.topic for item in planned} | {partition.topic for partition in done}
    ids = {topic: topic_ids.get(topic) or known[topic] for topic in topics}
    return SourceOffset.of(lineage.name, ids, planned, done, lineage.reset)


# --- replay


@dataclass(frozen=True, slots=True)
class Replay:
    """Hold the ranges that a logged batch reads when Spark runs it again.

    `conflicts` are how group and checkpoint disagree. `others` have completed the parts that are left out. `reset` is
    one that the checkpoint does not know: nothing is read of the partitions that it was for. `followed` are the parts
    of the ranges from the offset on that another program has set inside of them, or at their start.
    """

    ranges: tuple[OffsetRange, ...]
    conflicts: tuple[Conflict, ...] = ()
    others: tuple[ReadByOthers, ...] = ()
    reset: Reset | None = None
    followed: tuple[OffsetRange, ...] = ()


def plan_replay(
    end: SourceOffset,
    ranges: Iterable[OffsetRange],
    committed: Mapping[TopicPartition, tuple[int | None, CommitMetadata | None]],
) -> Replay:
    """Return the ranges of the logged batch that ends at `end`, without completed offsets.

    `ranges` are those whose topic still exists. `committed` are the group's offsets with their metadata. The first case
    that applies decides:

    1. The partition was reset since: nothing is read, because the reset decides where to read again. A range read here
       would be read twice, and its commit would undo the reset. A partition that the reset left alone (`--topic`) is
       read: its metadata does not name the reset. A query that owns only such partitions follows its checkpoint, which
       then records the batch as complete.
    2. Another lineage has committed: its completed offsets are left out (promises P2, P3, P6).
    3. This lineage has committed the range's end, so only the entry of the commit log was lost: it is read as logged.
    4. The group is elsewhere, and that is a conflict (`planning/conflicts.py`): the group is followed if it is allowed
       to be, so offsets before the group's are left out. A group's offset that was moved back changes nothing here:
       the batch is read as logged, so that the checkpoint stays correct. The start position after it is decided in
       `planning/start_position.py`.
    5. Otherwise the range is read as logged.

    Guards against (rule R11):
    1. A query dies in the middle of a batch [0, 100).
    2. Another member takes its partitions over, reads [0, 100) and commits 100.
    3. The first query is restarted. Spark runs the logged batch again.
    """
    read, found, others, resets, followed = [], [], [], [], []
    for item in ranges:
        offset, metadata = committed.get(item.partition, (None, None))
        if metadata is not None and not same_topic(metadata.topic_id, end.topic_id(item.partition.topic)):
            # The offset of a deleted topic of the same name.
            offset, metadata = None, None
        # R47: the reset decides what is read again
        if metadata is not None and metadata.reset is not None and newer(metadata.reset, end.reset):
            resets.append(metadata.reset)
            read.append(OffsetRange(item.partition, item.end, item.end, item.leader_epoch))
            continue
        conflict = conflicts.in_replay(item, offset, metadata, end.lineage)
        if conflict is not None:
            found.append(conflict)
        is_own = metadata is not None and metadata.lineage == end.lineage
        start = item.start
        # R11: another lineage has completed this part
        if offset is not None and not (is_own and offset == item.end):
            start = min(max(item.start, offset), item.end)
        if metadata is not None and conflict is None and start > item.start:
            others.append(ReadByOthers(item.partition, item.start, start, metadata.lineage, metadata.has_state))
        read.append(OffsetRange(item.partition, start, item.end, item.leader_epoch))
        # Not before the range: then all of it is read again, from there on.
        if metadata is None and offset == start < item.end:
            followed.append(read[-1])
    return Replay(tuple(read), tuple(found), tuple(others), max(resets, default=None), tuple(followed))
