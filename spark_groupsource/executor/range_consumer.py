"""Read assigned ranges with one client, which keeps its positions between batches.

The consumer joins no group: partitions are assigned by hand, and nothing is committed. The client fetches each assigned
partition into a queue of its own. A task reads range after range, each from its queue, while the client fetches the
others. Rows received beyond a range are kept for the next task, because the next batch most often starts there. Records
that another worker has read meanwhile are dropped as they arrive, which is cheaper than a new assignment. Partitions of
earlier tasks stay assigned until they are idle or their room is needed.

A task returns its rows range by range, in the order of its ranges. Spark may run a task again and keep a part of its
first output, so the same task must return the same rows in the same order wherever it runs.

Memory: the client fetches no more of a partition while its queue has a fixed size (`reading_client_settings`), and few
rows are kept beyond a range. So the number of assigned partitions limits the memory: as many as `max_bytes` has room
for, by what was found in the last queues. The first ranges of the task have a queue, the others get one when it is
their turn. A queue holds at least one batch of the producer, and may exceed its size by one fetch. A partition that
makes room is parked: some of its rows are kept, and it is assigned again behind them when they are used up.

A `bulk` consumer is for tasks whose ranges do not fit all at once. Its client waits only some milliseconds for new
records, so that the next ranges can be assigned at any time. It has few large queues. Between tasks this would keep the
brokers busy, so the consumer then rests, without positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from spark_groupsource.client.ending import on_own_thread
from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.executor.broker_requests import BrokerRequests
from spark_groupsource.executor.clients.port import (
    MESSAGE_BYTES,
    Damaged,
    EndOfPartition,
    FetchClient,
    FetchedItem,
    Misfit,
    PositionLost,
    TopicForbidden,
    Trouble,
)
from spark_groupsource.executor.partition_rows import PartitionRows, RecordSize
from spark_groupsource.executor.read_errors import end_of
from spark_groupsource.executor.topic_ids import ADMINS, AdminClients
from spark_groupsource.model.offsets import OFFSET_MAX, OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions

# Default of `max_bytes`.
_MAX_BYTES = 16 * 1024 * 1024
# Size limit of one record batch: Spark copies it whole, and Arrow's offsets have 32 bits.
_MAX_BATCH_BYTES = 64 * 1024 * 1024
# Assumed size of a queue until one was read: a batch of a producer is no larger, unless a topic's settings allow that.
_FIRST_QUEUE_BYTES = 1024 * 1024
# A consumer has at least this many queues, whatever they hold: one that is read, and one that is fetched meanwhile.
_LEAST_QUEUES = 2
# Limits of a bulk consumer's queues. More of them take more time, fewer of them wait for brokers.
_LEAST_BULK_QUEUES, _MOST_BULK_QUEUES, _PARTITIONS_PER_QUEUE = 8, 32, 16
# A partition or a consumer that is unused for this long stops fetching; an assigned partition would be fetched for
# ever. Longer than the pauses between the batches of a busy query.
REST_AFTER_S = 5.0


def bulk_queues(partitions: int) -> int:
    """Return how many queues a bulk consumer has that is made for about `partitions` partitions."""
    return max(_LEAST_BULK_QUEUES, min(_MOST_BULK_QUEUES, partitions // _PARTITIONS_PER_QUEUE))


class RangeConsumer:
    """Read ranges as the module's docstring describes. One thread at a time.

    `max_bytes` limits the fetched records. `partitions` is about the number of partitions that the client was
    configured for.
    """

    def __init__(
        self,
        options: SourceOptions,
        make_client: Callable[[SourceOptions], FetchClient],
        partitions: int,
        max_bytes: int = _MAX_BYTES,
        clock: Clock | None = None,
        *,
        bulk: bool = False,
        apart: Callable[[Callable[[], object]], None] = on_own_thread,
        admins: AdminClients = ADMINS,
    ) -> None:
        self._apart = apart
        self.partitions = partitions
        self.bulk = bulk
        self._clock = clock or SystemClock()
        self.max_bytes = max_bytes
        self._client = make_client(options)
        self._client.hold_at_most(max_bytes)
        self._partitions: dict[TopicPartition, PartitionRows] = {}
        self._topic_ids: dict[str, str] = {}
        # The newest leader epochs of the plans that this consumer has read.
        self._epochs: dict[TopicPartition, int] = {}
        # Whether the task has waited for records in vain.
        self._held_up = False
        self._size = RecordSize()
        # About how many bytes a queue holds, with the rows that are kept of it.
        self._queue_bytes = _FIRST_QUEUE_BYTES
        self.requests = BrokerRequests(self._client, options, admins)

    def __repr__(self) -> str:
        known = sorted((partition, rows.position) for partition, rows in self._partitions.items())
        return f"RangeConsumer({', '.join(f'{partition}@{offset}' for partition, offset in known)})"

    @property
    def assigned(self) -> int:
        """Return the number of partitions that are fetched or parked."""
        return sum(rows.is_known for rows in self._partitions.values())

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

        Guards against (rule R59):
        1. An executor has read [0, 100) and fetched more. The topic is deleted, recreated and filled.
        2. [100, 200) of the recreated topic is planned. The consumer would give out the deleted topic's records.
        3. Assigned again, its client would ignore the new topic's leaders while their epochs are lower.
        """
        # R59: read under another id
        return all(self._topic_ids.get(topic, topic_id) == topic_id for topic, topic_id in topic_ids.items())

    def follows_leaders(self, ranges: Iterable[OffsetRange]) -> bool:
        """Return whether the client has learned the leaders of these ranges, if their leader epochs are new to it.

        If not, the consumer must be closed: its client may be connected to no broker but a leader of before.

        Guards against:
        1. A leader is away for longer than its session: its machine was paused. Another replica becomes the leader. It
           lacks 20 to 29, and takes other records as 20, 21, ... These are planned.
        2. A task's client knows the old leader only, and waits for its answer.
        3. The old leader goes on, and gives its own 20 to 29 before it has heard of the new one. The new leader's
           records would be skipped, and nobody would report them.
        """
        # R60: before the ranges are read
        return self.requests.request_moved_leaders(frozenset(tp.topic for tp in self._newer_epochs(ranges)))

    def shares(self, ranges: Iterable[OffsetRange]) -> bool:
        """Return whether one of these ranges' partitions is fetched or parked, at any offset."""
        found = (self._partitions.get(item.partition) for item in ranges)
        return any(rows is not None and rows.is_known for rows in found)

    def keep_at_most(self, max_bytes: int, current: Collection[TopicPartition] = ()) -> None:
        """Set the limit of fetched records. Partitions above it are dropped now, except the `current` ones."""
        if max_bytes < self.max_bytes:
            self._stop([partition for partition in self._parked if partition not in current])
        self.max_bytes = max_bytes
        self._client.hold_at_most(max_bytes)
        self._make_room(current, 0)

    def move_to(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str] = {}) -> None:
        """Move to the start of these ranges. Connections stay, and so do fetched rows that the ranges can use.

        `topic_ids` are those that the ranges were planned for; call `is_current` with them first.
        """
        wanted = {item.partition for item in ranges}
        now_s = self._clock.monotonic_s()
        idle = [tp for tp, rows in self._partitions.items() if tp not in wanted and now_s - rows.used_s >= REST_AFTER_S]
        self.drop_partitions(idle)
        self._topic_ids |= topic_ids
        self._epochs |= self._newer_epochs(ranges)
        self._held_up = False
        moved = [item for item in ranges if self._gap(item) is None]
        self._stop([item.partition for item in moved])
        self._partitions |= {item.partition: PartitionRows(item.start, now_s, item.leader_epoch) for item in moved}
        for item in ranges:
            rows = self._partitions[item.partition]
            rows.used_s, rows.fresh = now_s, False
            rows.advance(item.start)
        self._make_room(wanted, 0)
        # Empty ranges come last: their partitions are only kept warm.
        self._feed(sorted(ranges, key=lambda item: not len(item)))
        self.requests.reason = ""
        self.requests.request_new_leaders(frozenset(tp.topic for tp in wanted))

    def drop_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions and drop their rows and positions. Unknown partitions are ignored."""
        known = [partition for partition in partitions if partition in self._partitions]
        self._stop(known)
        for partition in known:
            del self._partitions[partition]

    def rest(self) -> None:
        """Stop fetching and drop all fetched rows. The client stays connected."""
        self.drop_partitions(list(self._partitions))

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset to return of a partition."""
        return self._partitions[partition].position

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
        """Return whether all records of the range were returned."""
        return self._partitions[item.partition].finished(item.end)

    def next_rows(self, ranges: Sequence[OffsetRange], timeout_s: float) -> list[pa.RecordBatch]:
        """Return the next rows of the ranges, one range after the other; empty if none arrived in time.

        The ranges are of different partitions, and the client fetches them in parallel. Later ranges stay in their
        queues until all ranges before them have ended, so the order of rows does not depend on the order of arrival.
        Raises `OutOfRange` if the log of the first range does not have the position or is missing; continue with `skip`
        or `give_up`. Raises `AccessError` for a topic that may not be read, and `ReadError` for a damaged record, or
        one that no row can hold, once it is the next one of its range. A `ReadError` ends the task: rows of earlier
        ranges may be dropped with it.

        Guards against (rule R56):
        1. A map task gives its rows in the order of the brokers' answers. Spark deals them to reducers by their
           position.
        2. Two reducers finish. The executor with the map output dies. Spark runs the task again, and keeps their
           results.
        3. In another order, rows dealt to the lost reducers go to the finished ones: they are lost and doubled.
        """
        self._feed(ranges)
        taken: list[pa.RecordBatch] = []
        room = self._size.at_once(OFFSET_MAX, 0)
        for item in ranges:
            rows = self._partitions[item.partition]
            if rows.lacks(item.end):
                if not rows.assigned:
                    break
                self._receive(item, rows, timeout_s)
                self._held_up = self._held_up or (timeout_s > 0.0 and rows.lacks(item.end))
                timeout_s = 0.0
            found = rows.pop_rows(item.end)
            taken += found
            room -= sum(batch.num_rows for batch in found)
            # R56: no row of a later range before this one has ended
            if not rows.finished(item.end):
                if not taken:
                    self._raise_end(item.partition, rows)
                break
            if room <= 0:
                break
        return taken

    def arrivals(self, ranges: Iterable[OffsetRange]) -> int:
        """Return a number that grows when records of these ranges arrive in the client's queues.

        Guards against:
        1. A task reads [100, 200) of two topics, to which producers write all the time. The first one is deleted.
        2. The queue of the second one grows, by records beyond the range.
        3. If these counted, the brokers would never seem silent: nobody looks whether the topic is there, and the task
           and its batch never end.
        """
        return sum(min(item.end, self.arrived(item) + self._queued(item.partition)) for item in ranges)

    def arrived(self, item: OffsetRange) -> int:
        """Return the offset up to which rows of a range were returned or are kept; at most its end."""
        rows = self._partitions[item.partition]
        return min(item.end, max(rows.position, rows.reached))

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges with a queue of which not all records have arrived, and no further ones are there.

        `next_rows` has read the queue of the first one.
        """
        found = []
        for item in ranges:
            rows = self._partitions[item.partition]
            if not rows.assigned:
                continue
            if item is not ranges[0] and rows.event is None:
                self._receive(item, rows, 0.0)
            there = item is not ranges[0] and rows.event is None and self._client.waiting(item.partition)
            if not there and max(self.arrived(item), rows.eof) < item.end:
                found.append(item)
        return found

    def settle(self, item: OffsetRange) -> None:
        """Move to the range's end, past offsets without a record."""
        self._partitions[item.partition].advance(item.end)

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Continue a partition at another offset, by a new assignment.

        The client refuses to seek in a partition that it has stopped at an offset out of range.
        """
        self._stop([partition])
        self._assign({partition: offset})

    def give_up(self, item: OffsetRange) -> None:
        """Skip the rest of a range: drop its rows, stop fetching its partition, and move to its end."""
        self._stop([item.partition])
        self.settle(item)

    def cut_short(self, item: OffsetRange) -> None:
        """End a range after its kept rows, because the rest is lost. Its partition is no longer fetched."""
        self._unassign([item.partition])
        self._partitions[item.partition].cut(item.end)

    def check_access(self, ranges: Iterable[OffsetRange]) -> bool:
        """Request the topics of ranges that deliver nothing. Ranges of an unknown topic are then out of range.

        Return whether the brokers answered for all topics. Raises `AccessError` for a topic that the client may not
        describe, or if the brokers refuse the client.
        """
        partitions = {item.partition for item in ranges}
        unknown, answered = self.requests.unknown({partition.topic for partition in partitions})
        for partition in partitions:
            if partition.topic in unknown and self._is_assigned(partition):
                self._partitions[partition].fresh = True
                lost = PositionLost(partition, unknown[partition.topic])
                self._on_event(lost, partition, self._partitions[partition])
        return answered

    # --- helpers

    def _newer_epochs(self, ranges: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
        """Return the leader epochs of ranges that are newer than those of the plans before."""
        found = ((item.partition, item.leader_epoch) for item in ranges)
        return {p: epoch for p, epoch in found if epoch is not None and epoch > self._epochs.get(p, -1)}

    def _queued(self, partition: TopicPartition) -> int:
        return self._client.waiting(partition) if self._is_assigned(partition) else 0

    def _is_assigned(self, partition: TopicPartition) -> bool:
        return partition in self._partitions and self._partitions[partition].assigned

    def _gap(self, item: OffsetRange) -> int | None:
        """Return the offsets to drop to reach a range's start; None if that needs a new assignment.

        Guards against (rule R60):
        1. 100 to 119 are fetched ahead. The leader dies with them.
        2. The new leader takes other records as 100, 101, ... These are planned.
        3. The records that were fetched ahead would be given out in their place.

        A clean leader change has a new epoch, too: the rows are then fetched once more. A range without an epoch may be
        of any.
        """
        rows = self._partitions.get(item.partition)
        # R60: fetched from another history
        if rows is None or not rows.is_known or rows.event or item.leader_epoch not in (None, rows.epoch):
            return None
        gap = item.start - rows.position
        return gap if gap == 0 or (gap > 0 and self._size.may_drop(gap)) else None

    def _assign(self, wanted: Mapping[TopicPartition, int]) -> None:
        """Give each of these partitions a queue, and fetch it from the offset on."""
        for partition, offset in wanted.items():
            self._partitions[partition].start(offset)
        if wanted:
            self._client.assign(wanted)

    def _unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions; their rows and positions stay."""
        fetched = [partition for partition in partitions if self._is_assigned(partition)]
        for partition in fetched:
            self._partitions[partition].assigned = False
        if fetched:
            self._client.unassign(fetched)

    def _stop(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions and drop their rows; their positions stay."""
        self._unassign(partitions)
        for partition in partitions:
            if partition in self._partitions:
                self._partitions[partition].stop()

    def _park(self, partitions: Collection[TopicPartition]) -> None:
        """Stop fetching these partitions, and keep a fair share of the rows that have arrived for later tasks.

        Guards against:
        1. A batch reads a few records of each partition. A producer's batches are large, and a queue holds a whole one.
        2. There is no memory for all queues. Each task would fetch again what the task before it has fetched.
        """
        for partition in partitions:
            rows = self._partitions[partition]
            lacking = self._fair_bytes // self._size.bytes - (rows.reached - rows.position if rows.kept else 0)
            if rows.event is None and lacking > 0:
                self._take(partition, rows, self._size.at_once(lacking, 0), 0.0)
        self._unassign(partitions)

    def _feed(self, ranges: Sequence[OffsetRange]) -> None:
        """Give the first ranges a queue each, as many as there is room for.

        Assignments take time: if not all ranges have room, half of the queues are changed at once.

        Guards against:
        1. A task has read a range to the end of the log. The client asks for new records of that partition.
        2. The queue of the next range runs empty. Its fetch begins when the one under way ends.
        3. That takes fetch.wait.max.ms, with each queue that runs empty.

        So a bulk consumer stops fetching all other partitions. Others do so once a task has waited in vain: most tasks
        find all records in the queues, and the next task has the same partitions.
        """
        most = self._most_queues
        window = {item.partition: item.end for item in ranges[:most]}
        missing = {tp: self._partitions[tp].next_offset for tp, end in window.items() if self._needs_queue(tp, end)}
        if len(window) == most and ranges[0].partition not in missing and 2 * len(missing) < most:
            return
        others = [partition for partition in self._partitions if partition not in window]
        if self.bulk:
            self._stop([partition for partition in others if self._partitions[partition].is_known])
        elif self._held_up:
            self._park([partition for partition in others if self._is_assigned(partition)])
        elif missing:
            self._make_room(window, len(missing))
        self._assign(missing)

    def _needs_queue(self, partition: TopicPartition, end: int) -> bool:
        rows = self._partitions[partition]
        there = max(rows.eof, rows.reached if rows.kept else -1)
        return not rows.assigned and rows.event is None and there < end

    @property
    def _most_queues(self) -> int:
        if self.bulk:
            return bulk_queues(self.partitions)
        room = self.max_bytes - len(self._parked) * self._fair_bytes
        return max(_LEAST_QUEUES, room // max(1, self._queue_bytes))

    @property
    def _parked(self) -> list[TopicPartition]:
        """Return the partitions that are not fetched, and of which rows are kept."""
        return [partition for partition, rows in self._partitions.items() if rows.kept and not rows.assigned]

    @property
    def _fair_bytes(self) -> int:
        """Return how many bytes may be kept of a parked partition: together half of the memory."""
        return self.max_bytes // (2 * max(1, len(self._partitions)))

    def _make_room(self, current: Collection[TopicPartition], more: int) -> None:
        """Park partitions, so that there is room for `more` queues: the longest unused first, and of a task the last.

        A task often has the same partitions as the one before it, in the same order. If not all of them have room, the
        first ones keep theirs.
        """
        assigned = [partition for partition, rows in self._partitions.items() if rows.assigned]
        surplus = len(assigned) + more - self._most_queues
        if surplus > 0:
            spared = set(current)
            others = [partition for partition in reversed(assigned) if partition not in spared]
            self._park(sorted(others, key=lambda tp: self._partitions[tp].used_s)[:surplus])

    def _receive(self, item: OffsetRange, rows: PartitionRows, timeout_s: float) -> None:
        """Receive records of a range from its queue, and skip the transaction markers behind them."""
        asked = self._size.at_once(item.end - rows.reached, self._fair_bytes)
        came = self._take(item.partition, rows, asked, timeout_s)
        if came:
            held = (came + self._client.waiting(item.partition)) * (self._size.bytes + MESSAGE_BYTES)
            self._queue_bytes += (held - self._queue_bytes) // 8
        if came < asked and rows.begun:
            self._pass_markers(item.partition, rows)

    def _take(self, partition: TopicPartition, rows: PartitionRows, most: int, timeout_s: float) -> int:
        """Keep what has arrived of a partition; return the number of records."""
        came = size = 0
        for found in self._client.receive(partition, most, _MAX_BATCH_BYTES, timeout_s):
            if not isinstance(found, pa.RecordBatch | Misfit):
                self._on_event(found, partition, rows)
            # R57: behind an event that ends the log, they may be of another topic
            elif rows.event is None:
                if isinstance(found, pa.RecordBatch):
                    came, size = came + found.num_rows, size + found.nbytes
                else:
                    came += 1
                rows.add(found)
        if came:
            self.requests.answered()
        if size:
            self._size.add_sample(came, size)
        return came

    def _pass_markers(self, partition: TopicPartition, rows: PartitionRows) -> None:
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
        if rows.event is not None:
            # R64: the client may skip records that it cannot read and report a later position; they were not read
            return
        # R89: also what it had passed for an earlier task
        rows.reached = max(rows.reached, self._client.passed(partition))

    def _on_event(self, item: FetchedItem, partition: TopicPartition, rows: PartitionRows) -> None:
        """Process what is no row and was received while `partition` is read."""
        if isinstance(item, EndOfPartition):
            self.requests.answered()
        # R65: the client still delivers errors of a partition that is unassigned
        if not isinstance(item, Trouble) and item.partition != partition:
            return
        if isinstance(item, EndOfPartition):
            # R57: behind such an event it may be of another topic
            if rows.event is None:
                rows.eof = max(rows.eof, item.offset)
        elif isinstance(item, PositionLost | TopicForbidden | Damaged):
            if isinstance(item, PositionLost) and item.reason:
                self.requests.reason = item.reason
            rows.event = rows.event or item
        elif isinstance(item, Trouble):
            # The error may be temporary: the task's deadline decides.
            self.requests.reason = item.reason
            if item.refused:
                self.requests.refused = item.reason

    def _raise_end(self, partition: TopicPartition, rows: PartitionRows) -> None:
        """Raise the error of a range that delivers no more records.

        Guards against (rule R65):
        1. A topic loses its ACL and gets it back while no task reads it.
        2. The old report fails the next task.
        """
        if rows.event is None:
            return
        # R65: what may be older than the task is reported again
        if not rows.fresh:
            self.skip(partition, rows.position)
            return
        raise end_of(self.requests.options, rows.event, rows.position)
