"""What an assignment strategy is: pure functions over frozen values, and nothing of a client.

The group's leader asks a strategy who gets which partition; every member asks it what to tell the leader. Source:
client-side assignment (the consumer protocol, KIP-429, KIP-881), in the words of this package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_groupsource.model.offsets import TopicPartition


class RebalanceProtocol(Enum):
    """How members go through a rebalance."""

    # Everybody gives up all partitions, joins, and gets its part.
    EAGER = "eager"
    # Members keep their partitions, give up only those that move, and a second round hands these out (KIP-429).
    COOPERATIVE = "cooperative"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a member knows of itself before it joins."""

    client_id: str = ""
    rack: str | None = None
    # Option memberWeight, or the cores of the driver's machine that the reader process may use: PySpark does not tell
    # it the application's.
    weight: int = 1
    # Option memberRedundancy: how many members a partition is given to.
    redundancy: int = 2


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member as the leader sees it."""

    member_id: str
    topics: tuple[str, ...]
    # What the strategy's own `metadata` returned on the member.
    metadata: bytes = b""
    # What it had before this rebalance. Under the eager protocol it has given that up already.
    owned: frozenset[TopicPartition] = frozenset()
    # The generation that gave `owned`; -1 when there was none.
    generation: int = -1
    instance_id: str | None = None
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Where a partition's data is: racks are None where a broker names none."""

    leader_rack: str | None = None
    replica_racks: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The subscribed topics, with their partitions by number. Topics that the leader does not know are not here."""

    topics: Mapping[str, tuple[PartitionInfo, ...]] = field(default_factory=dict)

    def partitions(self, topic: str) -> tuple[TopicPartition, ...]:
        """Return a topic's partitions; none when the topic is unknown."""
        return tuple(TopicPartition(topic, number) for number in range(len(self.topics.get(topic, ()))))


@dataclass(frozen=True, slots=True)
class GroupAssignment:
    """Who gets what, by member id. A partition is active with one member at most; others may stand by."""

    active: Mapping[str, frozenset[TopicPartition]]
    standby: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)


def wire_name_of(name: str, version: int) -> str:
    """Return what the group's coordinator compares of a strategy with this name and version."""
    return name if version == 1 else f"{name}-v{version}"


class Assignor(ABC):
    """A strategy. Subclass it, name the class in option `assignors`, and every member runs it.

    The class is made without arguments, once per query. `name` and `version` are what the group agrees on: members
    share a strategy when both are equal. Raise `version` whenever `assign` would misread the metadata of the version
    before, and offer both versions while the group's members are replaced.
    """

    name: str
    version: int = 1
    # Those it can run under, the preferred one first. The leader's frame makes any `assign` fit for the cooperative
    # protocol: it holds partitions back that another member still has.
    protocols: tuple[RebalanceProtocol, ...] = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    @property
    def wire_name(self) -> str:
        """The name that the group's coordinator compares."""
        return wire_name_of(self.name, self.version)

    def metadata(self, subscription: Sequence[str], member: MemberSettings) -> bytes:
        """Return what the leader is to know of this member beyond what `GroupMember` tells; nothing by default."""
        return b""

    @abstractmethod
    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        """Decide, on the leader only, who gets what of the topics in `cluster`.

        Must depend on its arguments only, give a partition only to a member whose `topics` hold its topic, and may
        raise `AssignorError` when the group cannot be served: its text reaches every member's log.
        """

    def on_assignment(  # noqa: B027 - most strategies have nothing to do
        self, active: frozenset[TopicPartition], standby: frozenset[TopicPartition], generation: int
    ) -> None:
        """Called on each member when it has got its part."""


class AssignorError(Exception):
    """A strategy cannot serve this group; the text tells whom and why."""
