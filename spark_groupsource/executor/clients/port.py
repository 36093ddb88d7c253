"""What a range consumer needs of a Kafka client: assigned partitions in, rows and events out.

Two implementations give the same rows: pyclient.py on confluent_kafka, and native.py, which gathers records in C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from spark_groupsource.model.offsets import TopicPartition


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one partition, offsets rising, with the source's exact schema. Never empty."""

    partition: TopicPartition
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class ImpossibleTimestamp:
    """A record that no row can hold, in the place of its row."""

    partition: TopicPartition
    offset: int
    value_ms: int


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The log ended at this offset when it was read; stands behind all rows before it."""

    partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class PositionLost:
    """The log does not have the position, or the cluster not the partition, as `reason` then says.

    What comes of the partition from then on, until it is assigned anew, may be of another log.
    """

    partition: TopicPartition
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TopicForbidden:
    """The client may not read the partition's topic."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class Damaged:
    """The next record cannot be read: checksum, compression."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class IdentityRefused:
    """A broker does not take the client for who it says it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error that may heal by itself."""

    reason: str


Item: TypeAlias = (
    Chunk | ImpossibleTimestamp | EndOfPartition | PositionLost | TopicForbidden | Damaged | IdentityRefused | Trouble
)


class RequestFailed(Exception):
    """The brokers did not answer a request; the text says why."""


class TopicDenied(RequestFailed):
    """The client may not even know the topic: nothing ever comes of it, and nothing says so."""


class TopicUnknown(RequestFailed):
    """The broker that was asked does not know the topic, which may have been deleted."""


class TopicInquiry(Protocol):
    """A question for the ids that topics have now, on its way. Take the answer, or close it."""

    def answer(self, wait_s: float) -> Mapping[str, str | None] | None:
        """Return the topics' ids, None for a topic that does not exist; None for all while nothing was answered.

        Raises `RequestFailed` when the brokers did not answer in time, and `TopicDenied`. It is closed then, and
        after an answer.
        """

    def close(self) -> None:
        """Take no answer any more; a second call does nothing."""


class FetchClient(Protocol):
    """A client that reads assigned partitions and stays connected. One thread at a time."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions, too, from these offsets. None of them may be assigned."""

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions, which are assigned, no longer; what was fetched of them is dropped."""

    def receive(self, max_records: int, max_bytes: int, timeout_s: float) -> Sequence[Item]:
        """Return what has arrived, in each partition's order; waits for a first item up to the timeout.

        `max_bytes` bounds one chunk's keys, values and headers; a larger record is a chunk of its own.
        """

    def passed(self, partition: TopicPartition) -> int:
        """Return the offset behind the last record, or transaction marker, of a partition that `receive` has passed.

        Negative when it is not known. Before a first record came of an assignment it may be an earlier one's.
        """

    def learn(self, topic: str, timeout_s: float) -> None:
        """Ask where the topic's leaders are. Raises `RequestFailed`, `TopicDenied`, `TopicUnknown`."""

    def identify(self, topics: Sequence[str], timeout_s: float) -> TopicInquiry:
        """Send a question for the ids of topics; what was received before it was sent is older than its answer."""

    def log_bounds(self, partition: TopicPartition, timeout_s: float) -> tuple[int, int]:
        """Return the first offset of the log and its end. Raises `RequestFailed`."""

    def close(self) -> None:
        """Disconnect and free everything; a second call does nothing."""
