"""Define the driver's requests to the cluster outside of the group, as a port that tests can replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_groupsource.model.offsets import NextRecords, TopicPartition
from spark_groupsource.options.model import Subscription

# Time in seconds for which a topic must be unknown, or have another id, before that is believed: one broker's metadata
# may be older than that of the others, but not for longer.
CONFIRM_S = 3.0


# At most this many partitions are named in an error.
_NAMED = 10


def leaderless_reason(partitions: Sequence[TopicPartition]) -> str:
    """Return the reason of an error: these partitions have no leader. The first ones are named."""
    return f"partitions that have no leader: {', '.join(map(str, partitions[:_NAMED]))}"


class Edge(Enum):
    """The end of a partition's log to request."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the cluster describes it now."""

    topic_id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """An offset of a partition's log, with its leader epoch if the broker reported it."""

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """Log ends, log beginnings and topics, requested together for a plan; None for a partition without an end."""

    ends: Mapping[TopicPartition, LogEnd | None]
    beginnings: Mapping[TopicPartition, LogEnd | None]
    topics: Mapping[str, TopicInfo]


class ClusterPort(Protocol):
    """Requests of the session to the cluster."""

    def matching_topics(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the topics that the subscription includes now. A list is returned as it is."""

    def describe(self, topics: Iterable[str], *, or_known: bool = False) -> dict[str, TopicInfo]:
        """Return id and partition count per topic. Raises an error for an unknown or forbidden topic.

        `or_known`: as last known, if only the controller is away.
        """

    def log_offsets(
        self, wanted: Mapping[TopicPartition, Edge | int], *, uncommitted: bool = False
    ) -> dict[TopicPartition, LogEnd | None]:
        """Return an edge of the log, or the first offset at or after a time (ms); None if there is no such record.

        With kafka.isolation.level=read_committed a log ends at its oldest open transaction, unless `uncommitted` is
        set.
        """

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        """Return both edges of the partitions, and `describe` of their topics, in two round trips."""

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets of any group; partitions without one are left out."""

    def members(
        self, group: str, *, once: bool = False, confirmed: bool = False
    ) -> Mapping[str, frozenset[TopicPartition]] | None:
        """Return the members of a group of any protocol, by their ids, with the partitions that each is to keep.

        None if the coordinator does not describe the group. Partitions of deleted topics are left out: the coordinator
        names topics by the ids that they have now. `once`: raise `KafkaUnavailableError` if the first request has no
        answer, instead of waiting for the coordinator. `confirmed`: leave all partitions out while a member has not
        confirmed its newest assignment. It may be dead. A static member keeps its partitions while it is stopped.
        """

    def group_session_s(self, group: str) -> float | None:
        """Return the brokers' session timeout of a KIP-848 group in seconds; None if they do not report it."""

    def missing_topics(self, topics: Iterable[str]) -> set[str]:
        """Return the given topics that do not exist."""

    def missing_partitions(self, topic_ids: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        """Return the partitions that do not exist although their topic does.

        Partitions of a topic with an unchanged id are not returned: topics do not lose partitions, so such metadata is
        old.
        """

    def diverged(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int | None]:
        """Return where a log was truncated before a given (offset, leader epoch); see `Probe.diverged`."""

    def next_records(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, NextRecords]:
        """Return where the records after these offsets begin, and their size; see `Probe.next_records`."""

    def close(self) -> None:
        """Free the client; idempotent."""
