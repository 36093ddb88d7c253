"""Define the events of the member in its group, the batch in flight, and what a revoke hands over. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.model.offsets import SourceOffset, TopicPartition

Partitions = tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class FlightBatch:
    """A batch whose plan is fixed: the offset that Spark logs for it, and the items to commit when it is complete."""

    end: SourceOffset
    items: tuple[CommitItem, ...]


class DrainOutcome(Enum):
    """How the wait of a revoke, or of a stop, for the batch in flight ended."""

    COMPLETE = "nothing was in flight, or it completed"
    DEADLINE = "the drain deadline passed"
    STOPPED = "the query stops"
    LOST = "its partitions were lost before a stop"


class GroupEvent:
    """Something that happened to the member in its group."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Started(GroupEvent):
    """The client was created and subscribed."""


@dataclass(frozen=True, slots=True)
class PartitionsAssigned(GroupEvent):
    """The group assigned these partitions, in addition to those owned (possibly none)."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class RevokeStarted(GroupEvent):
    """The group revokes these partitions; the member owns them until they are released."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class DrainExpired(GroupEvent):
    """The revoke has waited as long as drainTimeoutMs and maxBatchMs allow."""


@dataclass(frozen=True, slots=True)
class PartitionsReleased(GroupEvent):
    """These partitions have left: they were handed over, or their topic was deleted. The others are kept."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class AssignmentEnded(GroupEvent):
    """All partitions have left: the membership was lost, or an eager member has handed them over. It joins again."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class StopRequested(GroupEvent):
    """The query stops."""


@dataclass(frozen=True, slots=True)
class Left(GroupEvent):
    """The client is closed."""


@dataclass(frozen=True, slots=True)
class FatalErrorRaised(GroupEvent):
    """An error has ended the member; Spark's next call raises it."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """What to do when a revoke's wait is over: commit `items` in one request, then release the revoked partitions.

    After a drain that failed, `items` has no offsets of the batch in flight, but still those of earlier batches.
    """

    items: tuple[CommitItem, ...]
    outcome: DrainOutcome
