"""Define the events (past tense) and effects (imperative) of the member's state machine. Values only."""

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


# --- events: the group


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
    """Revoked partitions were handed over, or the topic of some was deleted; the others are kept."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class AssignmentReleased(GroupEvent):
    """All partitions were handed over, and the member joins again (eager)."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class PartitionsLost(GroupEvent):
    """The member lost these partitions without a revoke: its session expired, or it was fenced."""

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


# --- events: the batch


class BatchEvent:
    """Something that happened to the micro-batch."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class BatchFixed(BatchEvent):
    """A plan was fixed; Spark will log it."""

    batch: FlightBatch


@dataclass(frozen=True, slots=True)
class BatchCompleted(BatchEvent):
    """Spark has recorded the batch that ends here as complete.

    The items to commit were fixed with the plan (`FlightBatch.items`), whichever caller reports the end first.
    """

    end: SourceOffset


@dataclass(frozen=True, slots=True)
class BatchDiscarded(BatchEvent):
    """Spark never logged the plan that was fixed, and continues from an older offset."""


# --- effects


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit without waiting for the answer."""

    items: tuple[CommitItem, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """Commit `items` in one synchronous request, then release the partitions that are revoked.

    After a drain that failed, `items` has no offsets of the batch in flight, but still those of earlier batches.
    """

    items: tuple[CommitItem, ...]
    outcome: DrainOutcome


Effect = CommitOffsets | HandOver
