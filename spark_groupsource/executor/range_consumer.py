"""A consumer that reads assigned ranges and stays where it is between batches.

It never takes part in a group: partitions are assigned by hand, nothing is committed. What it has fetched beyond
a range is kept for the next one, because the next batch most often starts there; what another worker has read
meanwhile is dropped as it comes, which is cheaper than a new assignment. Partitions of earlier tasks stay assigned
until they are idle, or take too much memory.

The rows of a task come range by range, in the order of its ranges: Spark may run a task again and keep a part of its
first output, so the same task has to give the same rows in the same order wherever it runs. The ranges are fetched
side by side, and rows that arrive before it is their turn are kept.

Memory: `max_kept_bytes` for what is kept (measured on the rows), one answer of the client that is being added to it
(2 MiB, or one record that is larger), and the client's own queue. Three quarters of it are for the task's later
ranges: only as many are fetched, in their order, as fit with all they have by the size of the last records. Where
records turn out larger, the rows of the last ranges are dropped and fetched again later. The range whose turn it is is
always fetched, so a small bound makes a task slower and never stops it.

A `bulk` consumer is for tasks whose ranges do not fit all at once. Its client waits only some milliseconds for new
records, so that the next ranges can be assigned at any time, and fetches no range beyond its end. That would keep the
brokers busy between tasks: it rests then, and stands nowhere.

Invariant: `fed` holds the assigned partitions, and where the client goes on in each. For each of them `kept`, followed
by what the client still delivers, is the log from `position` on, once offsets below `position` are left out. `eof` is
the furthest end-of-partition event, which stands behind all that was delivered before. `begun` holds the partitions
that have delivered since they were assigned. `lost` says why nothing more is taken of a partition until it is assigned
anew. `parked` holds those that are not assigned for as long as their kept rows last, and where the client is to go on
then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa

from spark_groupsource.clock import Clock, SystemClock
from spark_groupsource.executor.broker_queries import Inquiries
from spark_groupsource.executor.clients.port import (
    Chunk,
    Damaged,
    EndOfPartition,
    FetchClient,
    IdentityRefused,
    ImpossibleTimestamp,
    Item,
    PositionLost,
    TopicForbidden,
    Trouble,
)
from spark_groupsource.executor.clients.rows import last_offset
from spark_groupsource.executor.read_errors import end_of
from spark_groupsource.executor.row_buffer import Kept, RecordSize, beyond
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import SourceOptions

# What may be kept of partitions that no range of the task has, by default.
_MAX_KEPT_BYTES = 8 * 1024 * 1024
# Of one record batch: Spark copies it whole, and Arrow's offsets have 32 bits.
_MAX_CHUNK_BYTES = 64 * 1024 * 1024
# A partition or a consumer that has not been used for so long fetches no more: an assigned one asks its brokers for
# ever. Longer than the pauses between the batches of a busy query.
REST_AFTER_S = 5.0


class Histories:
    """What the ranges that a consumer was positioned for said of their logs.

    The sequences this protects against:
    - A consumer has read [0, 100) of a topic and fetched further; the topic is deleted, made again and filled; what the
      plan means by [100, 200) is the new topic's, what was fetched ahead is the old one's.
    - A consumer stands at 100 and has fetched 100 to 119; the leader dies with them, and the new one takes other
      records at 100, 101, ... (unclean leader election). The plan knows these, by the leader epoch.
    """

    def __init__(self) -> None:
        self._topic_ids: dict[str, str] = {}
        self._epochs: dict[TopicPartition, int | None] = {}

    def current(self, topic_ids: Mapping[str, str]) -> bool:
        """Whether none of these topics was read under another id."""
        # R59: read under another id
        return all(self._topic_ids.get(topic, topic_id) == topic_id for topic, topic_id in topic_ids.items())

    def same(self, item: OffsetRange) -> bool:
        """Whether what was fetched is what the range was planned by; one without an epoch does not say.

        A leader that changes cleanly has another epoch, too: what was fetched is then fetched once more.
        """
        # R60: fetched from another history
        return item.leader_epoch is None or self._epochs.get(item.partition) == item.leader_epoch

    def note(self, anew: Iterable[OffsetRange], topic_ids: Mapping[str, str]) -> None:
        """Take that these topics are read, and that from now on the ranges' partitions are fetched anew."""
        self._topic_ids |= topic_ids
        self._epochs |= {item.partition: item.leader_epoch for item in anew}

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is left of what was fetched of these partitions."""
        for partition in partitions:
            self._epochs.pop(partition, None)


class RangeConsumer:
    """See the module's head. One thread at a time. `max_kept_bytes` bounds what is kept besides the client's queue.

    `partitions` is for about how many of them the client was set up.
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
    ) -> None:
        self.options = options
        self.partitions = partitions
        self.bulk = bulk
        self._clock = clock or SystemClock()
        self.max_kept_bytes = max_kept_bytes
        self._client = make_client(options)
        self._used_s: dict[TopicPartition, float] = {}
        self._position: dict[TopicPartition, int] = {}
        self._fed: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._kept = Kept()
        self._parked: dict[TopicPartition, int] = {}
        self._eof: dict[TopicPartition, int] = {}
        self._lost: dict[TopicPartition, PositionLost | TopicForbidden | Damaged] = {}
        self._begun: set[TopicPartition] = set()
        self._histories = Histories()
        self._size = RecordSize()
        self._crowded = False
        self.inquiries = Inquiries(self._client, options)

    def __repr__(self) -> str:
        return f"RangeConsumer({', '.join(f'{tp}@{offset}' for tp, offset in sorted(self._position.items()))})"

    def serve(self, options: SourceOptions) -> None:
        """Read for the query with these options from now on; its clients have the same settings."""
        self.options = self.inquiries.options = options

    @property
    def assigned(self) -> int:
        """How many partitions it fetches, or has fetched ahead."""
        return len(self._fed) + len(self._parked)

    @property
    def record_bytes(self) -> int:
        """About how many bytes a record takes, by the last ones."""
        return self._size.likely_bytes

    def distance(self, ranges: Iterable[OffsetRange]) -> tuple[int, int]:
        """How far it is to the start of the ranges: partitions to assign, and offsets to drop in the others."""
        gaps = [self._gap(item) for item in ranges]
        return gaps.count(None), sum(gap for gap in gaps if gap is not None)

    def current(self, topic_ids: Mapping[str, str]) -> bool:
        """Whether none of these topics was made again since it was read with this consumer.

        If one was, it is of no use any more: the client would ignore the new topic's leaders as long as their epochs
        are lower than the old one's.
        """
        return self._histories.current(topic_ids)

    def shares(self, ranges: Iterable[OffsetRange]) -> bool:
        """Whether it fetches one of these ranges' partitions, wherever."""
        return any(self._has(item.partition) for item in ranges)

    def keep_at_most(self, max_kept_bytes: int, current: Collection[TopicPartition] = ()) -> None:
        """Bound what is kept of partitions from now on, `current` ones apart; what is too much is given up."""
        self.max_kept_bytes = max_kept_bytes
        self._bound_beyond({}, spared=current)

    def position_at(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str] = {}) -> None:
        """Stand at the start of these ranges; keeps connections, and what was fetched if it fits.

        `topic_ids` are those that the ranges were planned for; `current` says whether the consumer is the right one.
        """
        wanted = {item.partition: item.start for item in ranges}
        self._ends = {item.partition: item.end for item in ranges}
        now_s = self._clock.monotonic_s()
        idle = [tp for tp in self._position if tp not in wanted and now_s - self._used_s[tp] >= REST_AFTER_S]
        self.forget(idle)
        self._used_s |= dict.fromkeys(wanted, now_s)
        anew = [item for item in ranges if self._gap(item) is None]
        self._histories.note(anew, topic_ids)
        moved = {item.partition: item.start for item in anew}
        for partition, start in wanted.items():
            if partition not in moved:
                self._advance(partition, start)
        self._kept.limit(dict(self._ends))
        self._drop([partition for partition in moved if self._has(partition)])
        self._position |= moved
        window = {item.partition for item in (*ranges[:1], *self._window(ranges[1:]))}
        later = {item.partition for item in ranges if not self.complete(item)} - window
        self._assign({partition: start for partition, start in moved.items() if partition not in later})
        self.inquiries.reason = ""
        self.inquiries.meet(frozenset(tp.topic for tp in wanted))

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these partitions no longer, those of them that it has."""
        known = [partition for partition in partitions if partition in self._position]
        self._drop(known)
        for partition in known:
            del self._position[partition], self._used_s[partition]
        self._histories.forget(known)

    def rest(self) -> None:
        """Stop fetching, and forget what was fetched; stays connected."""
        self.forget(list(self._position))

    def position(self, partition: TopicPartition) -> int:
        """The next offset to take of a partition."""
        return self._position[partition]

    def close(self) -> None:
        """Free the client."""
        self._client.close()

    def finished(self, item: OffsetRange) -> bool:
        """Whether all records of the range were taken."""
        partition = item.partition
        if self._position[partition] >= item.end:
            return True
        # R58: An end-of-partition event before the range's end ends nothing: it may come from a leader that lags.
        return partition not in self._kept and self._eof.get(partition, -1) >= item.end

    def take(self, ranges: Sequence[OffsetRange], timeout_s: float) -> list[pa.RecordBatch]:
        """Return the next rows of the ranges, one range after the other; empty when none came in time.

        The ranges are of different partitions. The client fetches them side by side. What arrives of a later one is
        kept until all before it have ended, so the order of the rows does not depend on the order of arrival.
        Raises `OutOfRange` when the log of the first range does not have the position, or is gone; `skip` and
        `give_up` are the ways on. Raises `AccessError` for a topic that may not be read, and `ReadError` for a record
        that no row can hold, or that is damaged, once it is the next one.
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
        """Raise why a range has more records, and nothing comes of it any more."""
        event = self._lost.get(item.partition)
        if event is not None and item.partition not in self._kept:
            raise end_of(self.options, event, self._position[item.partition])

    def _take_kept(self, item: OffsetRange) -> list[pa.RecordBatch]:
        taken, self._position[item.partition] = self._kept.take(item, self._position[item.partition])
        return taken

    def arrived(self, item: OffsetRange) -> int:
        """Return the offset up to which a range was taken or is kept; its end at most."""
        partition = item.partition
        fed = self._fed.get(partition, self._parked.get(partition, 0))
        return min(item.end, max(self._position[partition], fed))

    def complete(self, item: OffsetRange) -> bool:
        """Whether all records of a range were taken or are kept."""
        return self.arrived(item) >= item.end or self._eof.get(item.partition, -1) >= item.end

    def settle(self, item: OffsetRange) -> None:
        """Stand at the range's end, past offsets that hold no record."""
        self._position[item.partition] = max(self._position[item.partition], item.end)

    def skip(self, partition: TopicPartition, offset: int) -> None:
        """Go on at another offset of a partition.

        By a new assignment: the client refuses to seek in a partition that it has stopped at an offset out of range.
        """
        self._assign({partition: offset})

    def give_up(self, item: OffsetRange) -> None:
        """Stand at a range's end whatever was to come of it, and fetch its partition no longer."""
        self._drop([item.partition])
        self.settle(item)

    def cut_short(self, item: OffsetRange) -> None:
        """Take of a range what is kept, and no more: the rest is gone. Its partition is fetched no longer."""
        partition = item.partition
        if partition not in self._kept:
            self.give_up(item)
            return
        self._park([partition] if partition in self._fed else [])
        self._lost.pop(partition, None)
        self._eof[partition] = max(self._eof.get(partition, -1), item.end)

    def check_access(self, ranges: Iterable[OffsetRange]) -> bool:
        """Ask for the topics of ranges of which nothing comes; those of one that is not known are out of range then.

        Returns whether the brokers answered for all of them. Raises `AccessError` for a topic that the client may not
        know, or when the brokers refuse the client.
        """
        partitions = {item.partition for item in ranges}
        unknown, answered = self.inquiries.unknown({partition.topic for partition in partitions})
        for partition in partitions:
            if partition.topic in unknown:
                self._on_end(PositionLost(partition, unknown[partition.topic]))
        return answered

    # --- helpers

    def _has(self, partition: TopicPartition) -> bool:
        return partition in self._fed or partition in self._parked

    def _gap(self, item: OffsetRange) -> int | None:
        """How many offsets to drop to get to a range's start; None when it takes a new assignment."""
        partition = item.partition
        if not self._has(partition) or partition in self._lost or not self._histories.same(item):
            return None
        gap = item.start - self._position[partition]
        return gap if gap == 0 or (gap > 0 and self._size.may_drop(gap)) else None

    def _advance(self, partition: TopicPartition, start: int) -> None:
        self._position[partition] = start
        self._kept.advance(partition, start)
        if partition in self._parked:
            self._parked[partition] = max(self._parked[partition], start)

    def _assign(self, wanted: dict[TopicPartition, int]) -> None:
        """Start anew at these offsets: what was fetched is dropped, what was lost is asked for again."""
        self._drop([partition for partition in wanted if self._has(partition)])
        if wanted:
            self._position |= wanted
            self._fed |= wanted
            self._client.assign(wanted)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these partitions no longer; their positions stay."""
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
        """Go past transaction markers without waiting for an end-of-partition event, which takes fetch.wait.max.ms.

        The client is asked only once a record has come: until then it may tell how far an earlier assignment got.
        """
        partition = item.partition
        if self._position[partition] >= item.end or partition in self._kept or partition not in self._begun:
            return
        if partition in self._lost:
            # R64: The client may go on behind what it cannot read, and tell how far: those records were not taken.
            return
        passed = self._client.passed(partition)
        if passed > self._fed[partition]:
            self._fed[partition] = passed
            self._position[partition] = max(self._position[partition], min(passed, item.end))

    def _bound_kept(self, ranges: Sequence[OffsetRange]) -> None:
        """Keep within `max_kept_bytes`, apart from the rows of the first range, which go out now.

        What is fetched of later ranges has room by plan (`_window`). When records are larger than the last ones were,
        the last ranges have too much: they are parked, and above the bound given up, to be fetched again.
        """
        later = ranges[1:]
        waiting = self._kept.within_bytes - self._kept.within(ranges[0].partition)
        if waiting > self.max_kept_bytes // 2:
            wanted = {item.partition for item in self._window(later)}
            self._park([item.partition for item in later if item.partition in self._fed.keys() - wanted])
        if waiting > self.max_kept_bytes:
            for item in reversed(later):
                if waiting <= self.max_kept_bytes:
                    break
                waiting -= self._kept.within(item.partition)
                self._drop([item.partition])
        self._bound_beyond({item.partition: item.end for item in ranges}, waiting)

    def _window(self, later: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges to fetch now, in their order: those that fit into the room with all that they have."""
        found, room = [], self.max_kept_bytes * 3 // 4
        for item in later:
            room -= self._need(item)
            if room < 0:
                break
            if not self.complete(item):
                found.append(item)
        return found

    def _need(self, item: OffsetRange) -> int:
        """Return how many bytes a range takes with all that it has, about."""
        missing = 0 if self.complete(item) else item.end - self.arrived(item)
        return self._kept.within(item.partition) + missing * self._size.likely_bytes

    def _bound_beyond(
        self, ends: Mapping[TopicPartition, int], waiting: int = 0, spared: Collection[TopicPartition] = ()
    ) -> None:
        """Park partitions of which more than a fair share is kept beyond the task; drop the largest if it is too much.

        `ends` are those of the ranges that are not read to their end, of which `waiting` bytes are kept.

        The sequence this protects against: a batch takes a few records of each partition; what the last one waits for
        stands behind the others' records; these are kept, the client goes on fetching them, and what is given up
        has to be fetched again for the next batch.
        """
        sizes = {partition: size for partition, size in self._kept.beyond().items() if partition not in spared}
        fair = self.max_kept_bytes // (2 * max(1, self.assigned))
        self._park([partition for partition, size in sizes.items() if size > fair and partition in self._fed])
        for partition in beyond(sizes, max(0, self.max_kept_bytes - waiting)):
            if partition not in ends:
                self._drop([partition])
                continue
            # The range has arrived, and its rows stay. The log behind it is fetched again by the task that wants it.
            self._park([partition] if partition in self._fed else [])
            self._kept.trim(partition)
            self._parked[partition] = self._eof[partition] = ends[partition]

    def _park(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch these partitions no longer; their rows are kept."""
        for partition in partitions:
            self._parked[partition] = self._fed.pop(partition)
            self._begun.discard(partition)
        if partitions:
            self._client.unassign(partitions)

    def _feed(self, ranges: Sequence[OffsetRange]) -> None:
        """Have the client fetch the first range, before the rows that are kept of it run out, and others with room.

        A bulk consumer stops fetching what has arrived: a fetch of nothing but such partitions waits for new records,
        and what comes then is of no use to the task. Others go on, for the next task, once all ranges are under way.
        """
        first, later = ranges[0], ranges[1:]
        if self.bulk:
            self._park([item.partition for item in ranges if item.partition in self._fed and self.complete(item)])
        missing = [item for item in ranges if item.partition not in self._fed and not self.complete(item)]
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
        """Take what has arrived; return whether there is most likely more.

        No more is asked for than the ranges have, because the client waits for what is not there yet. But when what
        they wait for stands behind other partitions' records, taking these by a few costs more than that.
        """
        wanted = [partition for partition, end in self._ends.items() if self._fed.get(partition, end) < end]
        remaining = sum(self._ends[partition] - self._fed[partition] for partition in wanted)
        fitting = self._size.at_once()
        asked, came = fitting if self._crowded else max(1, min(remaining, fitting)), 0
        before = sum(self._fed[partition] for partition in wanted)
        for item in self._client.receive(asked, _MAX_CHUNK_BYTES, timeout_s):
            if isinstance(item, Chunk | ImpossibleTimestamp):
                came += item.batch.num_rows if isinstance(item, Chunk) else 1
                self._on_rows(item)
            else:
                self._on_event(item)
        if came:
            self.inquiries.answered()
        self._crowded = came > 0 and sum(self._fed.get(partition, 0) for partition in wanted) == before
        return came >= asked and asked < remaining

    def _on_rows(self, item: Chunk | ImpossibleTimestamp) -> None:
        # R61: it may be of another topic
        if item.partition not in self._fed or item.partition in self._lost:
            return
        self._begun.add(item.partition)
        size = None
        if isinstance(item, Chunk):
            size = item.batch.nbytes
            self._fed[item.partition] = last_offset(item.batch) + 1
            self._size.learn(item.batch.num_rows, size)
        else:
            self._fed[item.partition] = item.offset + 1
        self._kept.add(item, self._position[item.partition], size)

    def _on_event(self, item: Item) -> None:
        if isinstance(item, EndOfPartition):
            self.inquiries.answered()
            if item.partition in self._fed and item.partition not in self._lost:
                self._eof[item.partition] = max(self._eof.get(item.partition, -1), item.offset)
        elif isinstance(item, PositionLost | TopicForbidden | Damaged):
            self._on_end(item)
        elif isinstance(item, IdentityRefused):
            self.inquiries.refuse(item.reason)
        elif isinstance(item, Trouble):
            # It may heal until the task's deadline.
            self.inquiries.reason = item.reason

    def _on_end(self, event: PositionLost | TopicForbidden | Damaged) -> None:
        """Take nothing more of a partition. Who has a range of it is told when it is its turn (`take`).

        The sequences this protects against: the client says it once, and it is about another range of the task. Or it
        is about a partition of another query that reads with the same consumer, or about a record behind the range's
        end: the task would fail for what it does not read. Such a partition is fetched no longer, until it is wanted.
        """
        partition = event.partition
        if isinstance(event, PositionLost) and event.reason:
            self.inquiries.reason = event.reason
        if partition not in self._fed:
            return
        # R65: a range of this task has more to read of it
        if self._position[partition] < self._ends.get(partition, 0):
            self._lost.setdefault(partition, event)
        else:
            self._drop([partition])
