"""Define the requests and answers between clients and coordinators.

A client and a coordinator share nothing else. All values are immutable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from confluent_kafka import KafkaError

from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import TopicPartition

# A partition by the id of its topic: (topic id, number).
Part = tuple[str, int]


class Error(Enum):
    """Error codes, as librdkafka numbers them. Those of the client itself are negative."""

    UNKNOWN_TOPIC_OR_PARTITION = KafkaError.UNKNOWN_TOPIC_OR_PART
    ILLEGAL_GENERATION = KafkaError.ILLEGAL_GENERATION
    UNKNOWN_MEMBER_ID = KafkaError.UNKNOWN_MEMBER_ID
    REBALANCE_IN_PROGRESS = KafkaError.REBALANCE_IN_PROGRESS
    MEMBER_ID_REQUIRED = KafkaError.MEMBER_ID_REQUIRED
    FENCED_INSTANCE_ID = KafkaError.FENCED_INSTANCE_ID
    FENCED_MEMBER_EPOCH = KafkaError.FENCED_MEMBER_EPOCH
    UNRELEASED_INSTANCE_ID = KafkaError.UNRELEASED_INSTANCE_ID
    STALE_MEMBER_EPOCH = KafkaError.STALE_MEMBER_EPOCH
    GROUP_ID_NOT_FOUND = KafkaError.GROUP_ID_NOT_FOUND
    INVALID_REQUEST = 42
    OFFSET_METADATA_TOO_LARGE = KafkaError.OFFSET_METADATA_TOO_LARGE
    GROUP_AUTHORIZATION_FAILED = KafkaError.GROUP_AUTHORIZATION_FAILED
    UNKNOWN_SERVER_ERROR = KafkaError.UNKNOWN
    TRANSPORT = KafkaError._TRANSPORT
    TIMED_OUT = KafkaError._TIMED_OUT
    WAIT_COORD = KafkaError._WAIT_COORD
    FATAL = KafkaError._FATAL


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that says no more than an error."""

    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a classic member tells the leader (`ConsumerProtocolSubscription`)."""

    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """JoinGroup."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class JoinMember:
    """A member, as the leader gets it."""

    member_id: str
    instance_id: str | None
    subscription: Subscription


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to JoinGroup. Only the leader gets the members."""

    error: Error | None
    member_id: str
    generation: int = -1
    leader: str = ""
    members: tuple[JoinMember, ...] = ()


Assignments = Mapping[str, frozenset[TopicPartition]]


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """SyncGroup. Only the leader sends assignments, by member id."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Assignments | None = None


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to SyncGroup."""

    error: Error | None
    assignment: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat of a classic member."""

    member_id: str
    instance_id: str | None
    generation: int


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """LeaveGroup of a classic member."""

    member_id: str


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat (KIP-848). Fields that did not change are None.

    `epoch` 0 joins, -1 leaves, -2 leaves for a while (a static member).
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rebalance_s: float | None = None
    topics: tuple[str, ...] | None = None
    owned: frozenset[Part] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerHeartbeatAnswer:
    """The answer to ConsumerGroupHeartbeat. `assignment` is None if it did not change."""

    error: Error | None
    epoch: int = 0
    assignment: frozenset[Part] | None = None


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """OffsetCommit. `generation` is the member epoch under KIP-848."""

    member_id: str
    instance_id: str | None
    generation: int
    items: tuple[CommitItem, ...]


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """The answer to OffsetCommit: the error of each item."""

    errors: tuple[Error | None, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetch:
    """OffsetFetch."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class FetchAnswer:
    """The answer to OffsetFetch."""

    offsets: Mapping[TopicPartition, GroupOffset]
