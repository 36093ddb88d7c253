"""What the driver needs of the cluster outside of the group, so that fakes can stand behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.model import Subscription

# For so long a topic must be unknown, or have another id than it had, before that is believed: it may be a broker that
# lags behind the others, but not for so long.
CONFIRM_S = 3.0


class Edge(Enum):
    """Which end of a partition to ask for."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the cluster knows it now."""

    topic_id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """An offset of a partition's log, with the leader epoch where the broker told it."""

    offset: int
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """What a plan needs to know of partitions' logs and topics, asked all at once; None where there is no end."""

    ends: Mapping[TopicPartition, LogEnd | None]
    beginnings: Mapping[TopicPartition, LogEnd | None]
    topics: Mapping[str, TopicInfo]


class ClusterPort(Protocol):
    """What the session needs of the cluster."""

    def matching_topics(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the names that the subscription stands for now; a list stands for itself."""

    def describe(self, topics: Iterable[str]) -> dict[str, TopicInfo]:
        """Return id and partition count per topic. Raises for an unknown or forbidden topic."""

    def log_offsets(
        self, wanted: Mapping[TopicPartition, Edge | int], *, uncommitted: bool = False
    ) -> dict[TopicPartition, LogEnd | None]:
        """Return an edge, or the first offset at or after a time (ms; None when there is none).

        With kafka.isolation.level=read_committed a log ends where its oldest open transaction begins, unless
        `uncommitted` asks for what is behind it, too.
        """

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        """Return both edges of the partitions and what `describe` tells of their topics, in one round trip."""

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets of any group; partitions without one are left out."""

    def group_session_s(self, group: str) -> float | None:
        """Return the session timeout that the brokers have for a KIP-848 group, in seconds; None: they do not tell."""

    def missing_topics(self, topics: Iterable[str]) -> set[str]:
        """Return those of these topics that do not exist."""

    def missing_partitions(self, topic_ids: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        """Return the partitions that their topic, which exists, does not have.

        Those of a topic that still has the id given stay: none loses partitions, what says so is old.
        """

    def diverged(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int | None]:
        """Return where the log was truncated before an offset that it had in a leader epoch; see `Probe.diverged`."""

    def record_bytes(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Return the average size of what follows these offsets; see `Probe.record_bytes`."""

    def close(self) -> None:
        """Free the client; idempotent."""
