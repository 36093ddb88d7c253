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


class GroupEvent(Enum):
    """What happens to the member in its group. `MemberMachine.handle` gets the partitions that it is about."""

    STARTED = "The client was created and subscribed."
    PARTITIONS_ASSIGNED = "The group assigned these partitions, in addition to those owned (possibly none)."
    REVOKE_STARTED = "The group revokes these partitions; the member owns them until they are released."
    DRAIN_EXPIRED = "The revoke has waited as long as drainTimeoutMs and maxBatchMs allow."
    PARTITIONS_RELEASED = "These partitions have left, handed over or with a deleted topic. The others are kept."
    ASSIGNMENT_ENDED = "All partitions have left, lost or handed over by an eager member. It joins again."
    STOP_REQUESTED = "The query stops."
    LEFT = "The client is closed."
    FATAL_ERROR_RAISED = "An error has ended the member; Spark's next call raises it."


@dataclass(frozen=True, slots=True)
class HandOver:
    """What to do when a revoke's wait is over: commit `items` in one request, then release the revoked partitions.

    After a drain that failed, `items` has no offsets of the batch in flight, but still those of earlier batches.
    """

    items: tuple[CommitItem, ...]
    outcome: DrainOutcome
