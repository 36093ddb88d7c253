"""Adapt assignment strategies to kafka-python: this package's own ones, and those that the client contains.

All strategies that a member offers share one `Holdings`: the member's partitions do not depend on the strategy that ran
last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.structs import TopicPartition as ClientPartition

from spark_groupsource.assignors.interface import (
    Assignor,
    AssignorError,
    ClusterInfo,
    GroupMember,
    MemberSettings,
    PartitionInfo,
    RebalanceProtocol,
)
from spark_groupsource.assignors.leader import JoinedMember, lead
from spark_groupsource.assignors.notes import LeaderNote, MemberNote, WireError, by_topic
from spark_groupsource.assignors.rounds import Again, Rounds
from spark_groupsource.model.offsets import TopicPartition

LOG = logging.getLogger(__name__)

CLIENT_STRATEGIES: Mapping[str, type[AbstractPartitionAssignor]] = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
_CLIENT_PROTOCOLS = {
    RebalanceProtocol.EAGER: ClientProtocol.EAGER,
    RebalanceProtocol.COOPERATIVE: ClientProtocol.COOPERATIVE,
}
# The consumer protocol's versions: 3 has a subscription's rack, and an assignment never changed.
_SUBSCRIPTION_VERSION = 3
_ASSIGNMENT_VERSION = 1


@dataclass(slots=True)
class Holdings:
    """The partitions that the member was assigned last. The client's I/O thread only.

    `assigned(active, note)` is called after each assignment, with the member's partitions and the leader's note.
    """

    protocol: RebalanceProtocol
    settings: MemberSettings
    assigned: Callable[[frozenset[TopicPartition], LeaderNote], None]
    offers: tuple[str, ...] = ()
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    # On the leader: whether to request another round. The polling thread reads it.
    again: Again = Again.NO

    def took(self, owned: frozenset[TopicPartition], generation: int) -> None:
        """Store an assignment and its generation."""
        self.owned, self.generation = owned, generation

    def lost(self) -> None:
        """Drop all partitions, because the session has expired and other members may own them.

        Guards against (rule R34):
        1. A cooperative member loses its session. Another member gets a partition of it.
        2. The first member joins again and still claims it.
        3. The leader keeps it back until the first member gives it up, which it never does.
        """
        # R34: none of it is claimed in the next join
        self.owned, self.generation = frozenset(), -1

    def gave_up(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that were handed over. An eager member keeps them: it joins with those that it had.

        Guards against:
        1. A cooperative member's subscription shrinks, so that it gives up partitions before it joins.
        2. It still claims them when it joins.
        3. The leader keeps them back from all other members.
        """
        if self.protocol is RebalanceProtocol.COOPERATIVE:
            self.owned -= frozenset(partitions)


class OwnAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Adapt a strategy of this package's interface."""

    def __init__(self, assignor: Assignor, holdings: Holdings) -> None:
        self._assignor = assignor
        self._holdings = holdings
        self._rounds = Rounds()

    @property
    def name(self) -> str:
        """See the base class."""
        return self._assignor.wire_name

    def supported_protocols(self) -> list[ClientProtocol]:
        """See the base class. Returns the protocol that all offered strategies have in common."""
        return [_CLIENT_PROTOCOLS[self._holdings.protocol]]

    def metadata(self, topics: set[str]) -> ConsumerProtocolSubscription:
        """See the base class."""
        mine = self._holdings
        # The member joins again, and another member may be the leader.
        mine.again = Again.NO
        try:
            data = self._assignor.metadata(sorted(topics), mine.settings)
        except Exception as error:
            raise AssignorError(f"metadata of strategy {self.name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(data, bytes):
            raise AssignorError(f"metadata of strategy {self.name} must return bytes, not {type(data).__name__}")
        part = ConsumerProtocolSubscription.TopicPartition
        return ConsumerProtocolSubscription(
            version=_SUBSCRIPTION_VERSION,
            topics=sorted(topics),
            user_data=MemberNote(mine.protocol is RebalanceProtocol.COOPERATIVE, data, mine.offers).encode(),
            owned_partitions=[part(topic=topic, partitions=numbers) for topic, numbers in by_topic(mine.owned).items()],
            generation_id=mine.generation,
            rack_id=mine.settings.rack,
        )

    def assign(self, cluster: ClusterMetadata, members: Sequence[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """See the base class. Runs on the leader."""
        joined = [joined_member(each.member_id, each.group_instance_id, each.metadata) for each in members]
        topics = {topic for each in joined for topic in each.member.topics}
        known = cluster_info(cluster, topics)
        parts = lead(self._assignor, known, joined)
        verdict = self._rounds.take(known, joined, parts)
        self._holdings.again = verdict.again
        if verdict.warning:
            LOG.warning("the group does not agree on an assignment: strategy=%s %s", self.name, verdict.warning)
        return {
            member_id: ConsumerProtocolAssignment(
                _ASSIGNMENT_VERSION, sorted(by_topic(part.active).items()), part.note.encode()
            )
            for member_id, part in parts.items()
        }

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """See the base class."""
        active = _partitions(assignment)
        self._holdings.took(active, generation)
        try:
            note = LeaderNote.decode(assignment.user_data or b"")
        except WireError as error:
            LOG.warning("the leader's note cannot be read: strategy=%s reason=%s", self.name, error)
            note = LeaderNote()
        self._holdings.assigned(active, note)
        try:
            self._assignor.on_assignment(active, note.standby, generation)
        except Exception as error:  # noqa: BLE001 - foreign code, and nothing depends on it
            LOG.warning("strategy %s failed in on_assignment: %s: %s", self.name, type(error).__name__, error)


class ClientAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Adapt one of the client's own strategies, so that it claims the partitions that the member has, and no others.

    By itself such a strategy claims its last assignment, which may be that of a lost session (rule R34).

    Guards against (a change of the strategy):
    1. A group changes from `weighted` to `cooperative-sticky`, which has not assigned anything yet.
    2. So no member claims a partition.
    3. Partitions move to new owners while the old ones have a batch of them in flight.
    """

    def __init__(self, inner: AbstractPartitionAssignor, holdings: Holdings) -> None:
        self._inner = inner
        self._holdings = holdings

    @property
    def name(self) -> str:
        """See the base class."""
        return str(self._inner.name)

    def supported_protocols(self) -> list[ClientProtocol]:
        """See the base class."""
        return list(self._inner.supported_protocols())

    def metadata(self, topics: set[str]) -> ConsumerProtocolSubscription:
        """See the base class."""
        mine = self._holdings
        mine.again = Again.NO
        owned = ConsumerProtocolAssignment(0, sorted(by_topic(mine.owned).items()), b"")
        # R34: the client's own strategy claims what the member has, and nothing else
        self._inner.on_assignment(owned, mine.generation)
        return self._inner.metadata(topics)

    def assign(self, cluster: ClusterMetadata, members: Sequence[Any]) -> dict[str, ConsumerProtocolAssignment]:
        """See the base class."""
        found: dict[str, ConsumerProtocolAssignment] = self._inner.assign(cluster, members)
        return found

    def on_assignment(self, assignment: ConsumerProtocolAssignment, generation: int) -> None:
        """See the base class."""
        active = _partitions(assignment)
        self._holdings.took(active, generation)
        self._inner.on_assignment(assignment, generation)
        self._holdings.assigned(active, LeaderNote())


def client_assignors(offered: Sequence[Assignor | str], holdings: Holdings) -> list[AbstractPartitionAssignor]:
    """Return the strategies that the client must offer the group, in this order. A text names one of its own."""
    found = [
        OwnAssignor(each, holdings)
        if isinstance(each, Assignor)
        else ClientAssignor(CLIENT_STRATEGIES[each](), holdings)
        for each in offered
    ]
    holdings.offers = tuple(each.name for each in found)
    return found


def joined_member(member_id: str, instance_id: str | None, subscription: ConsumerProtocolSubscription) -> JoinedMember:
    """Return what the leader knows of a member. A note that cannot be read counts as none."""
    owned = {
        TopicPartition(part.topic, number)
        for part in getattr(subscription, "owned_partitions", None) or ()
        for number in part.partitions
    }
    generation, rack = subscription.generation_id, subscription.rack_id
    try:
        note = MemberNote.decode(subscription.user_data or b"")
    except WireError as error:
        LOG.warning("a member's note cannot be read: member=%s reason=%s", member_id, error)
        # The member may hold the partitions that it names, so no other member gets them before it has given them up.
        note = MemberNote(held=bool(owned))
    member = GroupMember(
        member_id, tuple(sorted(subscription.topics)), note.data, frozenset(owned),
        -1 if generation is None else generation, instance_id, rack or None,
    )  # fmt: skip
    return JoinedMember(member, note.held)


def cluster_info(cluster: ClusterMetadata, topics: set[str]) -> ClusterInfo:
    """Return what the leader's client knows of these topics. Topics that it does not know yet are left out."""
    racks = {broker.node_id: broker.rack for broker in cluster.brokers()}
    found = {}
    for topic in topics:
        numbers = cluster.partitions_for_topic(topic)
        # Numbers with a gap are from a topic that is being created: its metadata will arrive again.
        if numbers and numbers == set(range(len(numbers))):
            found[topic] = tuple(_placed(cluster, ClientPartition(topic, number), racks) for number in sorted(numbers))
    return ClusterInfo(found)


def _placed(cluster: ClusterMetadata, partition: ClientPartition, racks: Mapping[int, str | None]) -> PartitionInfo:
    replicas = {rack for node, rack in racks.items() if rack and cluster.is_replica_node(partition, node)}
    return PartitionInfo(racks.get(cluster.leader_for_partition(partition)), frozenset(replicas))


def _partitions(assignment: ConsumerProtocolAssignment) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(each.topic, each.partition) for each in assignment.partitions())
