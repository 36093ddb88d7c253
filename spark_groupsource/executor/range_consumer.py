"""Read assigned ranges with one client, which keeps its positions between batches.

The consumer joins no group: partitions are assigned by hand, and nothing is committed. Rows fetched beyond a range are
kept for the next task, because the next batch most often starts there. Records that another worker has read meanwhile
are dropped as they arrive, which is cheaper than a new assignment. Partitions of earlier tasks stay assigned until
they are idle or take too much memory.

A task returns its rows range by range, in the order of its ranges. Spark may run a task again and keep a part of its
first output, so the same task must return the same rows in the same order wherever it runs. The ranges are fetched
in parallel, and rows of later ranges are kept until the ranges before them have ended.

Memory: `max_kept_bytes` for kept rows (measured on the rows), plus one answer of the client that is being added (2 MiB,
or one larger record), plus the client's own queue. Three quarters of `max_kept_bytes` are for the task's later ranges:
as many of them are fetched, in their order, as fit completely, by the size of the last records. If records turn out
larger, the rows of the last ranges are dropped and fetched again later. The first unfinished range is always fetched,
so a small bound makes a task slower and never stops it.

A `bulk` consumer is for tasks whose ranges do not fit all at once. Its client waits only some milliseconds for new
records, so that the next ranges can be assigned at any time, and it fetches no range beyond its end. Between tasks
this would keep the brokers busy, so the consumer then rests, without positions.

Invariant, by partition:
- `fed`: assigned partitions, with the client's next offset. `kept`, followed by the records that the client still
  delivers, is the log from `position` on, without offsets below `position`.
- `eof`: the largest offset of an end-of-partition event. All records before it were delivered.
- `begun`: partitions that have delivered records since they were assigned.
- `lost`: why no more rows are accepted, until the partition is assigned again.
- `parked`: partitions that are not assigned while their kept rows last, with the offset to resume at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from spark_groupsource.client.ending import on_own_thread
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.executor.broker_requests import BrokerRequests
from spark_groupsource.executor.clients.port import (
    Chunk,
    Damaged,
    EndOfPartition,
    FetchClient,
    FetchedItem,
    IdentityRefused,
    Misfit,
    PositionLost,
    TopicForbidden,
    Trouble,
)
from spark_groupsource.executor.clients.rows import last_offset
from spark_groupsource.executor.read_errors import end_of
from spark_groupsource.executor.row_buffer import RecordSize, RowBuffer, partitions_to_drop
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions

# Default of `max_kept_bytes`.
_MAX_KEPT_BYTES = 8 * 1024 * 1024
# Size limit of one record batch: Spark copies it whole, and Arrow's offsets have 32 bits.
_MAX_CHUNK_BYTES = 64 * 1024 * 1024
# A partition or a consumer that is unused for this long stops fetching; an assigned partition would be fetched for
# ever. Longer than the pauses between the batches of a busy query.
REST_AFTER_S = 5.0


class Histories:
    """Remember the topic ids and leader epochs of the ranges that a consumer was positioned for.

    Guards against (rule R59):
    1. An executor has read [0, 100) and fetched more. The topic is deleted, recreated and filled.
    2. [100, 200) of the recreated topic is planned. The consumer would give out the deleted topic's records.
    3. Assigned again, its client would ignore the new topic's leaders while their epochs are lower.

    Guards against (rule R60):
    1. 100 to 119 are fetched ahead. The leader dies with them.
    2. The new leader takes other records as 100, 101, ... These are planned.
    3. The records that were fetched ahead would be given out in their place.
    """

    def __init__(self) -> None:
        self._topic_ids: dict[str, str] = {}
        self._epochs: dict[TopicPartition, int | None] = {}

    def is_current(self, topic_ids: Mapping[str, str]) -> bool:
        """Return whether none of these topics was read under another id."""
        # R59: read under another id
        return all(self._topic_ids.get(topic, topic_id) == topic_id for topic, topic_id in topic_ids.items())

    def has_same_epoch(self, item: OffsetRange) -> bool:
        """Return whether the rows fetched ahead have the range's leader epoch; True for a range without an epoch.

        A clean leader change has a new epoch, too: the rows are then fetched once more.
        """
        # R60: fetched from another history
        return item.leader_epoch is None or self._epochs.get(item.partition) == item.leader_epoch

    def record(self, reassigned: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        """Record the ids of the topics read, and the epochs of the ranges that are assigned again (`reassigned`)."""
        self._topic_ids |= topic_ids
        self._epochs |= {item.partition: item.leader_epoch for item in reassigned}

    def drop_epochs(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the epochs of partitions of which no fetched rows are left."""
        for partition in partitions:
            self._epochs.pop(partition, None)


class RangeConsumer:
    """Read ranges as the module's docstring describes. One thread at a time.

    `max_kept_bytes` limits the kept rows; the client's queue has its own limit. `partitions` is about the number of
    partitions that the client was configured for.
    """

    def __init__(
        self,
        options: SourceOptions,
        make_client: Callable[[SourceOptions], FetchClient],
        partitions: int,
        max_kept_bytes: int = _MAX_KEPT_BYTES,
        clock: Clock | None = None,
        *,
        bulk: bool = False,
        apart: Callable[[Callable[[], object]], None] = on_own_thread,
    ) -> None:
        self.options = options
        self._apart = apart
        self.partitions = partitions
        self.bulk = bulk
        self._clock = clock or SystemClock()
        self.max_kept_bytes = max_kept_bytes
        self._client = make_client(options)
        self._used_s: dict[TopicPartition, float] = {}
        self._position: dict[TopicPartition, int] = {}
        self._fed: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._kept = RowBuffer()
        self._parked: dict[TopicPartition, int] = {}
        self._eof: dict[TopicPartition, int] = {}
        self._lost: dict[TopicPartition, PositionLost | TopicForbidden | Damaged] = {}
        self._begun: set[TopicPartition] = set()
        self._histories = Histories()
        self._size = RecordSize()
        self._crowded = False
        self.requests = BrokerRequests(self._client, options)

    def __repr__(self) -> str:
        return f"RangeConsumer({', '.join(f'{tp}@{offset}' for tp, offset in sorted(self._position.items()))})"

    def serve(self, options: SourceOptions) -> None:
        """Read for the query with these options from now on. Its client settings must be the same."""
        self.options = self.requests.options = options

    @property
    def assigned(self) -> int:
        """Return the number of partitions that are fetched or parked."""
        return len(self._fed) + len(self._parked)

    @property
    def record_bytes(self) -> int:
        """Return about how many bytes a record takes, by the last ones."""
        return self._size.likely_bytes

    def distance(self, ranges: Iterable[OffsetRange]) -> tuple[int, int]:
        """Return the cost to reach the ranges' starts: partitions to assign, and offsets to drop in the others."""
        gaps = [self._gap(item) for item in ranges]
        return gaps.count(None), sum(gap for gap in gaps if gap is not None)

    def is_current(self, topic_ids: Mapping[str, str]) -> bool:
        """Return whether none of these topics was recreated since this consumer has read it.

        If one was, the consumer must be closed: its client would ignore the new topic's leaders as long as their epochs
        are lower than the old ones.
        """
        return self._histories.is_current(topic_ids)

    def shares(self, ranges: Iterable[OffsetRange]) -> bool:
        """Return whether one of these ranges' partitions is fetched or parked, at any offset."""
        return any(self._has(item.partition) for item in ranges)

    def keep_at_most(self, max_kept_bytes: int, current: Collection[TopicPartition] = ()) -> None:
        """Set the limit of kept rows. Rows above it are dropped now, except those of `current` partitions."""
        self.max_kept_bytes = max_kept_bytes
        self._bound_beyond({}, spared=current)

    def position_at(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str] = {}) -> None:
        """Move to the start of these ranges. Connections stay, and so do fetched rows that the ranges can use.

        `topic_ids` are those that the ranges were planned for; call `is_current` with them first.
        """
        wanted = {item.partition: item.start for item in ranges}
        self._ends = {item.partition: item.end for item in ranges}
        now_s = self._clock.monotonic_s()
        idle = [tp for tp in self._position if tp not in wanted and now_s - self._used_s[tp] >= REST_AFTER_S]
        self.drop_partitions(idle)
        self._used_s |= dict.fromkeys(wanted, now_s)
        reassigned = [item for item in ranges if self._gap(item) is None]
        self._histories.record(reassigned, topic_ids)
        moved = {item.partition: item.start for item in reassigned}
        for partition, start in wanted.items():
            if partition not in moved:
                self._advance(partition, start)
        self._kept.set_range_ends(dict(self._ends))
        self._drop([partition for partition in moved if self._has(partition)])
        self._position |= moved
        window = {item.partition for item in (*ranges[:1], *self._window(ranges[1:]))}
        later = {item.partition for item in ranges if not self.has_all_rows(item)} - window
        self._assign({partition: start for partition, start in moved.items() if partition not in later})
        self.requests.reason = ""
        self.requests.request_new_leaders(frozenset(tp.topic for tp in wanted))

    def drop_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions and drop their rows and positions. Unknown partitions are ignored."""
        known = [partition for partition in partitions if partition in self._position]
        self._drop(known)
        for partition in known:
            del self._position[partition], self._used_s[partition]
        self._histories.drop_epochs(known)

    def rest(self) -> None:
        """Stop fetching and drop all fetched rows. The client stays connected."""
        self.drop_partitions(list(self._position))

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset to return of a partition."""
        return self._position[partition]

    def close(self) -> None:
        """Free the client, on a thread of its own: nobody waits for its end.

        Guards against (rule R87):
        1. An executor has read a topic, which is deleted and recreated. The next task closes the consumer (R59).
        2. librdkafka does not end: a broker thread waits for the last reference to the deleted topic's partition (issue
           4362).
        3. The task never ends, its batch never completes, and every handover waits for the drain deadline.
        """
        # R87: the client may never end
        self._apart(self._client.close)

    def finished(self, item: OffsetRange) -> bool:
        """Return whether all records of the range were returned.

        Guards against (rule R58):
        1. [0, 100) is planned. The partition moves to a new leader whose high watermark lags.
        2. The leader reports the end of the partition at 50.
        3. If the range ended there, 50 to 99 would be committed unread.
        """
        partition = item.partition
        if self._position[partition] >= item.end:
            return True
        # R58: An end-of-partition event before the range's end ends nothing: it may come from a leader that lags.
        return partition not in self._kept and self._eof.get(partition, -1) >= item.end

    def next_rows(self, ranges: Sequence[OffsetRange], timeout_s: float) -> list[pa.RecordBatch]:
        """Return the next rows of the ranges, one range after the other; empty if none arrived in time.

        The ranges are of different partitions, and the client fetches them in parallel. Rows of a later range are kept
        until all ranges before it have ended, so the order of rows does not depend on the order of arrival.
        Raises `OutOfRange` if the log of the first range does not have the position or is missing; continue with `skip`
        or `give_up`. Raises `AccessError` for a topic that may not be read, and `ReadError` for a damaged record, or
        one that no row can hold, once it is the next one.

        Guards against (rule R56):
        1. A map task gives its rows in the order of the brokers' answers. Spark deals them to reducers by their
           position.
        2. Two reducers finish. The executor with the map output dies. Spark runs the task again, and keeps their
           results.
        3. In another order, rows dealt to the lost reducers go to the finished ones: they are lost and doubled.
        """
        self._feed(ranges)
        more_to_come = False
        if ranges[0].partition not in self._kept and any(item.partition not in self._lost for item in ranges):
            more_to_come = self._receive(timeout_s)
            self._bound_kept(ranges)
        taken: list[pa.RecordBatch] = []
        for item in ranges:
            if taken and self._kept.blocked(item.partition):
                break
            taken += self._take_kept(item)
            if not more_to_come:
                self._pass_markers(item)
            # R56: no row of a later range before this one has ended
            if not self.finished(item):
                if not taken:
                    self._raise_end(item)
                break
        return taken

    def _raise_end(self, item: OffsetRange) -> None:
        """Raise the error of an unfinished range that delivers no more records."""
        event = self._lost.get(item.partition)
        if event is not None and item.partition not in self._kept:
            raise end_of(self.options, event, self._position[item.partition])

    def _take_kept(self, item: OffsetRange) -> list[pa.RecordBatch]:
        taken, self._position[item.partition] = self._kept.pop_rows(item, self._position[item.partition])
        return taken

    def arrived(self, item: OffsetRange) -> int:
        """Return the offset up to which rows of a range were returned or are kept; at most its end."""
        partition = item.partition
        fed = self._fed.get(partition, self._parked.get(partition, 0))
        return min(item.end, max(self._position[partition], fed))

    def has_all_rows(self, item: OffsetRange) -> bool:
        """Return whether all records of a range were returned or are kept."""
        return self.arrived(item) >= item.end or self._eof.get(item.partition, -1) >= item.end

    def settle(self, item: OffsetRange) -> None:
        """Move to the range's end, past offsets without a record."""
        self._position[item.partition] = max(self._position[item.partition], item.end)

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset, by a new assignment.

        The client refuses to seek in a partition that it has stopped at an offset out of range.
        """
        self._assign({partition: offset})

    def give_up(self, item: OffsetRange) -> None:
        """Skip the rest of a range: drop its rows, stop fetching its partition, and move to its end."""
        self._drop([item.partition])
        self.settle(item)

    def cut_short(self, item: OffsetRange) -> None:
        """End a range after its kept rows, because the rest is lost. Its partition is no longer fetched."""
        partition = item.partition
        if partition not in self._kept:
            self.give_up(item)
            return
        self._park([partition] if partition in self._fed else [])
        self._lost.pop(partition, None)
        self._eof[partition] = max(self._eof.get(partition, -1), item.end)

    def check_access(self, ranges: Iterable[OffsetRange]) -> bool:
        """Request the topics of ranges that deliver nothing. Ranges of an unknown topic are then out of range.

        Return whether the brokers answered for all topics. Raises `AccessError` for a topic that the client may not
        describe, or if the brokers refuse the client.
        """
        partitions = {item.partition for item in ranges}
        unknown, answered = self.requests.unknown({partition.topic for partition in partitions})
        for partition in partitions:
            if partition.topic in unknown:
                self._on_end(PositionLost(partition, unknown[partition.topic]))
        return answered

    # --- helpers

    def _has(self, partition: TopicPartition) -> bool:
        return partition in self._fed or partition in self._parked

    def _gap(self, item: OffsetRange) -> int | None:
        """Return the offsets to drop to reach a range's start; None if that needs a new assignment."""
        partition = item.partition
        if not self._has(partition) or partition in self._lost or not self._histories.has_same_epoch(item):
            return None
        gap = item.start - self._position[partition]
        return gap if gap == 0 or (gap > 0 and self._size.may_drop(gap)) else None

    def _advance(self, partition: TopicPartition, start: int) -> None:
        self._position[partition] = start
        self._kept.advance(partition, start)
        if partition in self._parked:
            self._parked[partition] = max(self._parked[partition], start)

    def _assign(self, wanted: dict[TopicPartition, int]) -> None:
        """Assign partitions at these offsets. Drop their fetched rows and their `lost` state."""
        self._drop([partition for partition in wanted if self._has(partition)])
        if wanted:
            self._position |= wanted
            self._fed |= wanted
            self._client.assign(wanted)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions and drop their rows; their positions stay."""
        fetched = [partition for partition in partitions if self._fed.pop(partition, None) is not None]
        for partition in partitions:
            self._parked.pop(partition, None)
            self._kept.drop(partition)
            self._eof.pop(partition, None)
            self._lost.pop(partition, None)
            self._begun.discard(partition)
        if fetched:
            self._client.unassign(fetched)

    def _pass_markers(self, item: OffsetRange) -> None:
        """Skip transaction markers without waiting for an end-of-partition event, which takes fetch.wait.max.ms.

        The client's position is used only after a first record: before, it may be that of an earlier assignment.

        Guards against (rule R89):
        1. A task reads [10, 13): two records and a marker. More markers follow, up to 20, and the client passes them.
        2. The executor is cut off from the leader before the event "end of the partition at 20" has come.
        3. The next task reads [13, 20) with the same consumer. The client has nothing more to pass: the batch never
           ends.

        Guards against (rule R64):
        1. A record cannot be read, or the right to read was away for a moment.
        2. The client reports that once, and goes on after it.
        3. The offsets between would be passed as transaction markers, and lost.
        """
        partition = item.partition
        if self._position[partition] >= item.end or partition in self._kept or partition not in self._begun:
            return
        if partition in self._lost:
            # R64: the client may skip records that it cannot read and report a later position; they were not read
            return
        # R89: also what it had passed for an earlier task
        passed = self._fed[partition] = max(self._fed[partition], self._client.passed(partition))
        self._position[partition] = max(self._position[partition], min(passed, item.end))

    def _bound_kept(self, ranges: Sequence[OffsetRange]) -> None:
        """Keep rows within `max_kept_bytes`. The rows of the first range are returned now and not counted.

        `_window` plans room for the later ranges. If records are larger than the last ones were, the last ranges take
        too much: they are parked, and above the bound their rows are dropped, to be fetched again.
        """
        later = ranges[1:]
        waiting = self._kept.within_bytes - self._kept.bytes_within(ranges[0].partition)
        if waiting > self.max_kept_bytes // 2:
            wanted = {item.partition for item in self._window(later)}
            self._park([item.partition for item in later if item.partition in self._fed.keys() - wanted])
        if waiting > self.max_kept_bytes:
            for item in reversed(later):
                if waiting <= self.max_kept_bytes:
                    break
                waiting -= self._kept.bytes_within(item.partition)
                self._drop([item.partition])
        self._bound_beyond({item.partition: item.end for item in ranges}, waiting)

    def _window(self, later: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges to fetch now, in their order: the first ones that fit completely into the room."""
        found, room = [], self.max_kept_bytes * 3 // 4
        for item in later:
            room -= self._need(item)
            if room < 0:
                break
            if not self.has_all_rows(item):
                found.append(item)
        return found

    def _need(self, item: OffsetRange) -> int:
        """Return about how many bytes a complete range takes."""
        missing = 0 if self.has_all_rows(item) else item.end - self.arrived(item)
        return self._kept.bytes_within(item.partition) + missing * self._size.likely_bytes

    def _bound_beyond(
        self, ends: Mapping[TopicPartition, int], waiting: int = 0, spared: Collection[TopicPartition] = ()
    ) -> None:
        """Park partitions that keep more than a fair share beyond the task; above the limit drop the largest.

        `ends` are those of the ranges that are not read to their end. `waiting` bytes of them are kept.

        Guards against:
        1. A batch reads a few records of each partition.
        2. The records of the last partition arrive after many records of the others, which are kept.
        3. The client continues to fetch the others. Rows above the limit are dropped, and the next batch must fetch
           them again.
        """
        sizes = {partition: size for partition, size in self._kept.bytes_beyond().items() if partition not in spared}
        fair = self.max_kept_bytes // (2 * max(1, self.assigned))
        self._park([partition for partition, size in sizes.items() if size > fair and partition in self._fed])
        for partition in partitions_to_drop(sizes, max(0, self.max_kept_bytes - waiting)):
            if partition not in ends:
                self._drop([partition])
                continue
            # The range is complete, and its rows stay. The task that needs the log behind it fetches it again.
            self._park([partition] if partition in self._fed else [])
            self._kept.trim(partition)
            self._parked[partition] = self._eof[partition] = ends[partition]

    def _park(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions; keep their rows."""
        for partition in partitions:
            self._parked[partition] = self._fed.pop(partition)
            self._begun.discard(partition)
        if partitions:
            self._client.unassign(partitions)

    def _feed(self, ranges: Sequence[OffsetRange]) -> None:
        """Assign the first range before its kept rows run out, and the later ranges that have room.

        A bulk consumer stops fetching complete ranges: a fetch of only such partitions waits for new records, which the
        task does not need. Other consumers continue to fetch, for the next task, once all ranges are assigned.
        """
        first, later = ranges[0], ranges[1:]
        if self.bulk:
            self._park([item.partition for item in ranges if item.partition in self._fed and self.has_all_rows(item)])
        missing = [item for item in ranges if item.partition not in self._fed and not self.has_all_rows(item)]
        window = {first, *self._window(later)}
        wanted = [item for item in missing if item in window]
        if not self.bulk:
            ahead = ranges[:1] if any(item is not first for item in missing) else ranges
            wanted += [item for item in ahead if item not in wanted and self._needs_more(item)]
        resumed = {p: self._parked.pop(p, self._position[p]) for p in (item.partition for item in wanted)}
        if resumed:
            self._fed |= resumed
            self._client.assign(resumed)

    def _needs_more(self, item: OffsetRange) -> bool:
        partition = item.partition
        if partition in self._fed or self._eof.get(partition, -1) >= item.end:
            return False
        kept_on = self._parked.get(partition, 0) >= item.end + len(item)
        return not (kept_on and partition in self._kept)

    def _receive(self, timeout_s: float) -> bool:
        """Process received items; return whether more are most likely ready.

        At most the missing records of the ranges are requested, because the client waits for records that do not exist
        yet. If other partitions' records arrive first (`_crowded`), a full batch is requested: many small calls would
        cost more than that wait.
        """
        wanted = [partition for partition, end in self._ends.items() if self._fed.get(partition, end) < end]
        remaining = sum(self._ends[partition] - self._fed[partition] for partition in wanted)
        fitting = self._size.at_once()
        asked, came = fitting if self._crowded else max(1, min(remaining, fitting)), 0
        before = sum(self._fed[partition] for partition in wanted)
        for item in self._client.receive(asked, _MAX_CHUNK_BYTES, timeout_s):
            if isinstance(item, Chunk | Misfit):
                came += item.batch.num_rows if isinstance(item, Chunk) else 1
                self._on_rows(item)
            else:
                self._on_event(item)
        if came:
            self.requests.answered()
        self._crowded = came > 0 and sum(self._fed.get(partition, 0) for partition in wanted) == before
        return came >= asked and asked < remaining

    def _on_rows(self, item: Chunk | Misfit) -> None:
        # R61: it may be of another topic
        if item.partition not in self._fed or item.partition in self._lost:
            return
        self._begun.add(item.partition)
        size = None
        if isinstance(item, Chunk):
            size = item.batch.nbytes
            self._fed[item.partition] = last_offset(item.batch) + 1
            self._size.add_sample(item.batch.num_rows, size)
        else:
            self._fed[item.partition] = item.offset + 1
        self._kept.add(item, self._position[item.partition], size)

    def _on_event(self, item: FetchedItem) -> None:
        if isinstance(item, EndOfPartition):
            self.requests.answered()
            if item.partition in self._fed and item.partition not in self._lost:
                self._eof[item.partition] = max(self._eof.get(item.partition, -1), item.offset)
        elif isinstance(item, PositionLost | TopicForbidden | Damaged):
            self._on_end(item)
        elif isinstance(item, IdentityRefused):
            self.requests.refuse(item.reason)
        elif isinstance(item, Trouble):
            # The error may be temporary: the task's deadline decides.
            self.requests.reason = item.reason

    def _on_end(self, event: PositionLost | TopicForbidden | Damaged) -> None:
        """Accept no more rows of a partition. `next_rows` raises the error when the partition's range is next.

        A partition without records left for this task is dropped instead, until a task needs it.

        Guards against:
        1. The client reports the event once. It is about a later range of the task, about a partition that another
           query reads with the same consumer, or about a record behind the range's end.
        2. Raised at once, the task would fail for records that it does not read. Ignored, the later range would wait
           for its deadline.

        Guards against (rule R65):
        1. Two queries share a consumer of a Python worker.
        2. The topic of one query loses its ACL. The client reports it while a task of the other query reads.
        3. That task would fail for a topic that it does not read.
        """
        partition = event.partition
        if isinstance(event, PositionLost) and event.reason:
            self.requests.reason = event.reason
        if partition not in self._fed:
            return
        # R65: a range of this task has more to read of it
        if self._position[partition] < self._ends.get(partition, 0):
            self._lost.setdefault(partition, event)
        else:
            self._drop([partition])
