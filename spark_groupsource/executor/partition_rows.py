"""Keep what a consumer knows of one partition: its position, and the rows that were received and not yet returned."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from spark_groupsource.executor.clients.port import Damaged, Misfit, PositionLost, TopicForbidden
from spark_groupsource.executor.clients.rows import edge_offsets, split_at
from spark_groupsource.executor.read_errors import misfit_error

# Limits of one `receive` call: enough records to be worth the call, few enough bytes for the processor's cache.
# 5,000 to 20,000 records take the same time each; at 2,000 and at 30,000 they take a tenth more.
_MAX_RECORDS = 10_000
_MAX_BYTES = 2 * 1024 * 1024
# A call takes as much time as some hundred records. So for a range of few records more are received if they are ready.
_FEW_RECORDS = 256
_READY_RECORDS = 1_024
# Assumed record sizes before the first record: a large one where a low guess does harm, a small one where it does not.
_FIRST_AVERAGE_BYTES = 32 * 1024
UNKNOWN_RECORD_BYTES = 1_000
# How far below a start a consumer may be and still get there by dropping records. Most of them are fetched already; a
# new assignment drops them, too, and waits for the fetch under way (up to fetch.wait.max.ms).
_MAX_DROPPED_RECORDS = 50_000
_MAX_DROPPED_BYTES = 8 * 1024 * 1024


class _Kept(NamedTuple):
    """Hold a received item with its offsets, which take a microsecond each to read from Arrow."""

    first: int
    last: int
    item: pa.RecordBatch | Misfit

    def split(self, offset: int) -> tuple[pa.RecordBatch, _Kept]:
        """Return the rows before an offset that is not behind the last row, and the rest. Not for a misfit."""
        rows, rest = split_at(self.item, offset, self.first, self.last)
        return rows, _Kept(max(self.first, offset), self.last, rest)


@dataclass(slots=True)
class PartitionRows:
    """Hold one partition's state.

    Invariant: while the partition is assigned, `kept`, followed by the records that the client still delivers, is the
    log from `position` on, without offsets below `position`. Before `reached`, the client delivers nothing more.
    """

    position: int
    used_s: float
    epoch: int | None = None
    assigned: bool = False
    # Whether the partition has been assigned since the current task began.
    fresh: bool = False
    # Whether records have been delivered since it was assigned.
    begun: bool = False
    reached: int = 0
    # The largest offset of an end-of-partition event. All records before it were delivered.
    eof: int = -1
    kept: deque[_Kept] = field(default_factory=deque)
    # Why no more rows are accepted, until the partition is assigned again.
    event: PositionLost | TopicForbidden | Damaged | None = None

    def start(self, offset: int) -> None:
        """Begin at an offset, as the client does that gets the partition assigned; behind the kept rows, if any."""
        if not self.kept:
            self.stop()
            self.position = offset
        self.reached = offset
        self.assigned, self.fresh, self.begun = True, True, False

    def stop(self) -> None:
        """Drop the rows and all that the client has delivered; the position stays."""
        self.assigned = self.fresh = self.begun = False
        self.reached, self.eof, self.event = self.position, -1, None
        self.kept.clear()

    @property
    def is_known(self) -> bool:
        """Return whether a task can continue here: the partition is assigned, or rows are kept."""
        return self.assigned or bool(self.kept)

    @property
    def next_offset(self) -> int:
        """Return where to begin if the partition is assigned again."""
        return max(self.position, self.reached) if self.kept else self.position

    def finished(self, end: int) -> bool:
        """Return whether all records before `end` were returned.

        Guards against (rule R58):
        1. [0, 100) is planned. The partition moves to a new leader whose high watermark lags.
        2. The leader reports the end of the partition at 50.
        3. If the range ended there, 50 to 99 would be committed unread.
        """
        # R58: An end-of-partition event before the range's end ends nothing: it may come from a leader that lags.
        return self.position >= end or (not self.kept and max(self.reached, self.eof) >= end)

    def lacks(self, end: int) -> bool:
        """Return whether the next record before `end`, if there is one, has to be received first."""
        return not self.kept and self.event is None and not self.finished(end)

    def cut(self, end: int) -> None:
        """Let the range end after its kept rows; the partition is assigned no longer."""
        self.assigned, self.event, self.eof = False, None, max(self.eof, end)

    def advance(self, position: int) -> None:
        """Move to a later offset and drop the rows before it."""
        self.position = position
        while self.kept and self.kept[0].first < position:
            head = self.kept.popleft()
            if head.last >= position and not isinstance(head.item, Misfit):
                self.kept.appendleft(head.split(position)[1])

    def add(self, item: pa.RecordBatch | Misfit) -> None:
        """Keep received rows from the position on."""
        first, last = (item.offset,) * 2 if isinstance(item, Misfit) else edge_offsets(item)
        self.begun, self.reached = True, last + 1
        if last >= self.position:
            self.kept.append(_Kept(first, last, item))
            self.advance(self.position)

    def pop_rows(self, end: int) -> list[pa.RecordBatch]:
        """Remove and return the rows before `end`, and move the position behind them.

        Raises `ReadError` if the next record is one that no row can hold.
        """
        taken: list[pa.RecordBatch] = []
        while self.kept and self.position < end:
            head = self.kept[0]
            if head.first >= end:
                self.position = end
            elif isinstance(head.item, Misfit):
                if taken:
                    self.position = head.first
                    return taken
                raise misfit_error(head.item)
            elif head.last < end:
                self.kept.popleft()
                taken.append(head.item)
                self.position = head.last + 1
            else:
                rows, self.kept[0] = head.split(end)
                # The head may begin in a gap: `first` is then before its first row.
                if rows.num_rows:
                    taken.append(rows)
                self.position = end
        if not self.kept:
            self.position = max(self.position, min(self.reached, end))
        return taken


class RecordSize:
    """Keep a moving average of the row sizes of the last record batches."""

    def __init__(self) -> None:
        self._average = 0

    @property
    def bytes(self) -> int:
        """Return the bytes of one record, with all its columns; a high guess before the first record."""
        return self._average or _FIRST_AVERAGE_BYTES

    @property
    def likely_bytes(self) -> int:
        """Return the bytes of one record; a low guess before the first record, for uses where that does no harm."""
        return self._average or UNKNOWN_RECORD_BYTES

    def add_sample(self, rows: int, size: int) -> None:
        """Add the size in bytes of `rows` rows to the average."""
        average = size // rows
        self._average = max(64, (self._average + average) // 2 if self._average else average)

    def at_once(self, missing: int, share: int) -> int:
        """Return how many records one `receive` call may return, for a range of which `missing` are not received.

        `share` is the size in bytes of rows that may be kept of one partition.
        """
        ready = min(_READY_RECORDS, share // self.bytes) if missing < _FEW_RECORDS else 0
        return max(1, min(_MAX_BYTES // self.bytes, _MAX_RECORDS, max(missing, ready)))

    def may_drop(self, records: int) -> bool:
        """Return whether dropping this many records costs less than a new assignment."""
        return records <= _MAX_DROPPED_RECORDS and records * self.bytes <= _MAX_DROPPED_BYTES
