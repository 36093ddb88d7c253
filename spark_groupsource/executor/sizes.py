"""About how large a consumer's records are, and so how many of them make a good step."""

from __future__ import annotations

# Bounds of one `receive` call: enough records to pay for the call, few enough bytes to stay in the processor's cache.
# 5,000 to 20,000 records take the same time each; at 2,000 and at 30,000 they take a tenth more.
_MAX_RECORDS = 10_000
_MAX_BYTES = 2 * 1024 * 1024
# What a record is taken to be before one has been seen: where too few bytes are worse, and where a guess may be small.
_FIRST_AVERAGE_BYTES = 32 * 1024
UNKNOWN_RECORD_BYTES = 1_000
# How far a consumer may stand behind a start and still go there by dropping records. They are most often fetched
# already; a new assignment throws them away, and waits for the fetch under way (up to fetch.wait.max.ms).
_MAX_DROPPED_RECORDS = 50_000
_MAX_DROPPED_BYTES = 8 * 1024 * 1024


class RecordSize:
    """A moving average of what the rows of the last record batches took."""

    def __init__(self) -> None:
        self._average = 0

    @property
    def bytes(self) -> int:
        """Of one record, with all its columns."""
        return self._average or _FIRST_AVERAGE_BYTES

    @property
    def likely_bytes(self) -> int:
        """Of one record, where a guess that is too small does no harm."""
        return self._average or UNKNOWN_RECORD_BYTES

    def learn(self, rows: int, size: int) -> None:
        """Take the size of some rows into the average."""
        average = size // rows
        self._average = max(64, (self._average + average) // 2 if self._average else average)

    def at_once(self) -> int:
        """Return how many records one call may bring."""
        return max(1, min(_MAX_BYTES // self.bytes, _MAX_RECORDS))

    def may_drop(self, records: int) -> bool:
        """Whether so many records are dropped at less cost than a new assignment has."""
        return records <= _MAX_DROPPED_RECORDS and records * self.bytes <= _MAX_DROPPED_BYTES
