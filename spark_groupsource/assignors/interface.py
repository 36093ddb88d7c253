"""Define the interface of assignment strategies: pure functions over frozen values, independent of any client.

The group's leader calls `assign` to decide which member gets which partition. Every member calls `metadata` for the
data that the leader receives. Source: client-side assignment (the consumer protocol, KIP-429, KIP-881).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_groupsource.model.offsets import TopicPartition


class RebalanceProtocol(Enum):
    """Rebalance protocol of a group."""

    # All members give up all partitions, join, and get their new ones.
    EAGER = "eager"
    # Members keep their partitions and give up only those that move; a second round assigns these (KIP-429).
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Properties of a member that are known before it joins."""

    client_id: str = ""
    rack: str | None = None
    # Option memberWeight, or the number of the driver machine's cores that the reader process may use: PySpark does not
    # pass the application's cores to it.
    weight: int = 1
    # Option memberRedundancy: number of members per partition.
    redundancy: int = 2


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the leader sees it."""

    member_id: str
    topics: tuple[str, ...]
    # The result of the strategy's own `metadata` on the member.
    metadata: bytes = b""
    # Its partitions before this rebalance. Under the eager protocol it has already given them up.
    owned: frozenset[TopicPartition] = frozenset()
    # The generation that assigned `owned`; -1: none.
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Racks of a partition's replicas; a broker without a configured rack has None."""

    leader_rack: str | None = None
    replica_racks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The subscribed topics with their partitions by number. Topics that the leader does not know are missing."""

    topics: Mapping[str, tuple[PartitionInfo, ...]] = field(default_factory=dict)

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return a topic's partitions; empty if the topic is unknown."""
        return tuple(TopicPartition(topic, number) for number in range(len(self.topics.get(topic, ()))))


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """Partitions by member id. A partition is active at one member at most; others may have it as standby."""

    active: Mapping[str, frozenset[TopicPartition]]
    standby: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)


def wire_name_of(name: str, version: int) -> str:
    """Return the name that the group's coordinator compares for a strategy of this name and version."""
    return name if version == 1 else f"{name}-v{version}"


class Assignor(ABC):
    """An assignment strategy. Subclass it and name the class in option `assignors` of every member.

    The class is instantiated without arguments, once per query. Members share a strategy if `name` and `version` are
    equal. Raise `version` whenever `assign` would misread the metadata of the version before, and offer both versions
    while you replace the group's members.
    """

    name: str
    version: int = 1
    # Supported protocols, the preferred one first. `leader.lead` makes any `assign` work with the cooperative protocol:
    # it withholds partitions that another member still has.
    protocols: tuple[RebalanceProtocol, ...] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    @property
    def wire_name(self) -> str:
        """The name that the group's coordinator compares."""
        return wire_name_of(self.name, self.version)

    def metadata(self, subscription: Sequence[str], member: MemberSettings) -> bytes:
        """Return data for the leader beyond the fields of `GroupMember`; empty by default."""
        return b""

    @abstractmethod
    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Decide, on the leader only, which member gets which partitions of the topics in `cluster`.

        Must depend only on its arguments, and give a partition only to a member with its topic in `topics`. May raise
        `AssignorError` if it cannot assign; the text appears in every member's log.
        """

    def on_assignment(  # noqa: B027 - most strategies have nothing to do
        self, active: frozenset[TopicPartition], standby: frozenset[TopicPartition], generation: int
    ) -> None:
        """Handle the member's new assignment. Called on each member."""


class AssignorError(Exception):
    """A strategy cannot assign partitions in this group; the text names the member or topic and the reason."""
