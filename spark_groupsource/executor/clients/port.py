"""Define the Kafka client that a range consumer needs: partitions are assigned, rows and events returned.

Two implementations return the same rows: pure_python.py on confluent_kafka, and native.py, which gathers records in C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from spark_groupsource.errors import Condition
from spark_groupsource.model.offsets import TopicPartition

# Bytes of a record in a client's memory besides its key and value.
MESSAGE_BYTES = 400


@dataclass(frozen=True, slots=True)
class Misfit:
    """Take the place of one record that no row can hold, for the reason `condition`.

    `value_ms` is a timestamp that does not fit a Spark timestamp.
    """

    partition: TopicPartition
    offset: int
    condition: Condition
    value_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Report that the log ended at this offset when it was read. Arrives after all rows before the offset."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class PositionLost:
    """Report that the log does not have the position, or that the partition is missing (`reason` is set then).

    Until the partition is assigned again, its later rows may be of another log.
    """

    partition: TopicPartition
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TopicForbidden:
    """Report that the client may not read the partition's topic."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Damaged:
    """Report that the next record cannot be read: wrong checksum or compression.

    `limited`: its batch may be intact, and only larger than the client's limit of an uncompressed batch.
    """

    partition: TopicPartition
    reason: str
    limited: bool = False


@dataclass(frozen=True, slots=True)
class Trouble:
    """Report an error that may be temporary. `refused`: a broker has refused the client's identity."""

    reason: str
    refused: bool = False


# A record batch has rows of one partition in the order of offsets, with the source's exact schema. It is never empty.
FetchedItem: TypeAlias = pa.RecordBatch | Misfit | EndOfPartition | PositionLost | TopicForbidden | Damaged | Trouble


class RequestFailed(Exception):
    """The brokers did not answer a request; the text has the reason."""


class TopicDenied(RequestFailed):
    """The client may not describe the topic. No record of it arrives, and the client reports no error."""


class TopicUnknown(RequestFailed):
    """The broker does not know the topic, which may have been deleted."""


class FetchClient(Protocol):
    """Read assigned partitions, each from a queue of its own, and stay connected. One thread at a time."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add these partitions, from these offsets, to the assignment. None of them may be assigned already."""

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Remove these assigned partitions from the assignment and drop their fetched records."""

    def hold_at_most(self, max_bytes: int) -> None:
        """Limit the records of all partitions that the client holds outside of its queues."""

    def receive(
        self, partition: TopicPartition, max_records: int, max_bytes: int, timeout_s: float
    ) -> Sequence[FetchedItem]:
        """Return the items of an assigned partition that have arrived. Waits up to the timeout for the first.

        `max_bytes` limits one record batch's keys, values and headers; a larger record is one of its own.
        `Trouble` may be about the client as a whole.
        """

    def waiting(self, partition: TopicPartition) -> int:
        """Return the number of records and events in the queue of an assigned partition."""

    def passed(self, partition: TopicPartition) -> int:
        """Return the offset after the last record or transaction marker of a partition that `receive` has passed.

        Negative if unknown. Before the first record of an assignment it may be that of an earlier assignment.
        """

    def request_leaders(self, topic: str, timeout_s: float) -> None:
        """Request the topic's leaders. Raises `RequestFailed`, `TopicDenied`, `TopicUnknown`."""

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Return the first offset and the end offset of the log. Raises `RequestFailed`."""

    def close(self) -> None:
        """Disconnect and free all resources; idempotent."""
