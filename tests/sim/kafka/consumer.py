"""Simulate the coordinator of a consumer group (KIP-848): epochs, target assignment, reconciliation, static members.

Methods named without a class are of `GroupMetadataManager`. Every state is in the coordinator's log, so nothing but
timers is lost when another broker takes over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Any

from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.coordinator import Coordinator, Reply, Timer
from tests.sim.kafka.logs import Cluster
from tests.sim.kafka.protocol import ConsumerHeartbeat, ConsumerHeartbeatAnswer, Error, OffsetCommit, Part
from tests.sim.kafka.settings import GroupSettings
from tests.sim.world import World

_LEAVE, _LEAVE_STATIC = -1, -2


class State(Enum):
    """`MemberState`."""

    STABLE = "stable"
    UNREVOKED = "unrevoked partitions"
    UNRELEASED = "unreleased partitions"


@dataclass(slots=True)
class Member:
    """`ConsumerGroupMember`."""

    id: str
    instance_id: str | None
    client_id: str
    session: Timer
    rebalance: Timer
    epoch: int = 0
    previous_epoch: int = 0
    rebalance_s: float = 0.0
    topics: tuple[str, ...] = ()
    state: State = State.STABLE
    assigned: set[Part] = field(default_factory=set)
    revoking: set[Part] = field(default_factory=set)
    # KIP-1251: the epoch in which it was assigned each partition.
    since: dict[Part, int] = field(default_factory=dict)

    @property
    def held(self) -> set[Part]:
        """Partitions that no other member may have."""
        return self.assigned | self.revoking


class ConsumerCoordinator(Coordinator):
    """`GroupMetadataManager` and `ConsumerGroup`, for one group."""

    def __init__(self, world: World, cluster: Cluster, settings: GroupSettings) -> None:
        super().__init__(world, cluster, settings)
        self.members: dict[str, Member] = {}
        self.epoch = self.target_epoch = 0
        self.target: dict[str, set[Part]] = {}
        self._is_created = False
        self._metadata: dict[str, tuple[str, int]] = {}
        self._refresh = False
        self._assigned_at = -inf

    def handle(self, client_id: str, request: Any, reply: Reply) -> None:
        """See `Coordinator`."""
        if not isinstance(request, ConsumerHeartbeat):
            raise TypeError(request)
        if request.epoch in (_LEAVE, _LEAVE_STATIC):
            reply(self._leave(request))
        else:
            reply(self._heartbeat(client_id, request))

    # --- heartbeats

    def _heartbeat(self, client_id: str, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        """consumerGroupHeartbeat."""
        error = self._invalid(request)
        member: Member | None = None
        if error is None:
            member, error = self._member_of(client_id, request)
        if error is not None or member is None:
            self.world.say("coord", f"heartbeat of {client_id}/{request.member_id} epoch {request.epoch}: {error}")
            return ConsumerHeartbeatAnswer(error)
        before = set(member.assigned)
        if request.rebalance_s is not None:
            member.rebalance_s = request.rebalance_s
        bump = request.topics is not None and request.topics != member.topics
        if request.topics is not None:
            member.topics = request.topics
        if bump or self._refresh:
            self._refresh = False
            metadata = self._subscribed()
            bump = bump or metadata != self._metadata
            self._metadata = metadata
        if bump:
            self.epoch += 1
            self.world.say("coord", f"group epoch {self.epoch} by {client_id}/{member.id}")
        self._assign_if_due()
        self._reconcile(member, request.owned)
        member.session.set(self.session_s)
        full = request.epoch == 0 or (
            request.rebalance_s is not None and request.topics is not None and request.owned is not None
        )
        changed = full or member.assigned != before
        return ConsumerHeartbeatAnswer(None, member.epoch, frozenset(member.assigned) if changed else None)

    def _invalid(self, request: ConsumerHeartbeat) -> Error | None:
        """throwIfConsumerGroupHeartbeatRequestIsInvalid."""
        if request.epoch == 0 and (request.rebalance_s is None or request.owned or not request.topics):
            return Error.INVALID_REQUEST
        if request.epoch == 0 and request.owned is None:
            return Error.INVALID_REQUEST
        return Error.GROUP_ID_NOT_FOUND if request.epoch > 0 and not self._is_created else None

    def _member_of(self, client_id: str, request: ConsumerHeartbeat) -> tuple[Member | None, Error | None]:
        """getOrMaybeSubscribeDynamicConsumerGroupMember, getOrMaybeSubscribeStaticConsumerGroupMember."""
        joins, instance_id = request.epoch == 0, request.instance_id
        if instance_id is not None and (existing := self._static(instance_id)) is not None:
            if joins:
                if existing.epoch != _LEAVE_STATIC:
                    return None, Error.UNRELEASED_INSTANCE_ID
                return self._replace_static(existing, client_id, request.member_id), None
            if existing.id != request.member_id:
                return None, Error.FENCED_INSTANCE_ID
        member = self.members.get(request.member_id)
        if member is None:
            if not joins:
                return None, Error.UNKNOWN_MEMBER_ID
            self._is_created = True
            return self._make(request.member_id, instance_id, client_id), None
        return member, self._epoch_error(member, request)

    def _epoch_error(self, member: Member, request: ConsumerHeartbeat) -> Error | None:
        """throwIfConsumerGroupMemberEpochIsInvalid."""
        if request.epoch == member.epoch:
            return None
        owned = request.owned
        # The answer with the newer epoch may have been lost.
        is_previous = request.epoch < member.epoch and request.epoch == member.previous_epoch
        if is_previous and owned is not None and owned <= member.assigned:
            return None
        self.world.saw("fenced member epoch")
        return Error.FENCED_MEMBER_EPOCH

    def _make(self, member_id: str, instance_id: str | None, client_id: str) -> Member:
        session = Timer(self, lambda: self._fence(member_id))
        rebalance = Timer(self, lambda: self._too_slow(member_id))
        member = self.members[member_id] = Member(member_id, instance_id, client_id, session, rebalance)
        return member

    def _static(self, instance_id: str) -> Member | None:
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def _replace_static(self, old: Member, client_id: str, member_id: str) -> Member:
        """replaceMember: the new member has the target and the partitions of the old one."""
        self.world.saw("static member is back")
        self._drop(old, "gone")
        member = self._make(member_id, old.instance_id, client_id)
        member.topics, member.rebalance_s, member.state = old.topics, old.rebalance_s, old.state
        member.assigned, member.since = old.assigned, old.since
        self.target[member_id] = self.target.pop(old.id, set())
        return member

    # --- the target assignment

    def _subscribed(self) -> dict[str, tuple[str, int]]:
        """ModernGroup.computeSubscriptionMetadata."""
        names = {name for member in self.members.values() for name in member.topics}
        return {name: self.image[name] for name in sorted(names) if name in self.image}

    def image_changed(self, name: str) -> None:
        """onNewMetadataImage, ModernGroup.requestMetadataRefresh: the next heartbeat takes notice."""
        self._refresh = True

    def _assign_if_due(self) -> None:
        """updateTargetAssignment, by any member's heartbeat; not too soon after the last time (KIP-1263)."""
        if self.epoch > self.target_epoch and self.world.now - self._assigned_at >= self.settings.assignment_delay_s:
            self._assign()

    def _assign(self) -> None:
        """UniformHomogeneousAssignmentBuilder: balanced over all members, and sticky."""
        self._assigned_at = self.world.now
        self.target_epoch = self.epoch
        every = list(self.members.values())
        parts = [(topic_id, n) for topic_id, count in self._metadata.values() for n in range(count)]
        old, self.target = self.target, {member.id: set() for member in every}
        if not every:
            return
        least, extra = divmod(len(parts), len(every))
        assigned = {part for held in old.values() for part in held}
        rest = [part for part in parts if part not in assigned]
        # Members that are not in the group any more have given theirs up.
        rest += [part for name, held in old.items() if name not in self.target for part in sorted(held)]
        unfilled: list[tuple[Member, int]] = []
        for member in every:
            quota = least + (1 if extra > 0 else 0)
            extra -= 1
            for part in sorted(old.get(member.id, ())):
                if part not in parts:
                    continue
                if quota > 0:
                    quota -= 1
                    self.target[member.id].add(part)
                else:
                    rest.append(part)
            if quota > 0:
                unfilled.append((member, quota))
        known = set(parts)
        rest = [part for part in rest if part in known]
        for member, quota in unfilled:
            self.target[member.id].update(rest[:quota])
            rest = rest[quota:]

    # --- reconciliation

    def _reconcile(self, member: Member, owned: frozenset[Part] | None) -> None:
        """maybeReconcile, CurrentAssignmentBuilder.build."""
        before = (member.epoch, member.state, set(member.assigned), set(member.revoking))
        if member.state is State.STABLE:
            if member.epoch != self.target_epoch:
                self._next_assignment(member, owned, member.epoch)
        elif member.state is State.UNRELEASED:
            self._next_assignment(member, owned, member.epoch)
        elif owned is not None and not owned & member.revoking:
            self._next_assignment(member, owned, member.epoch + 1)
        if (member.epoch, member.state, member.assigned, member.revoking) == before:
            return
        member.since = {part: member.since.get(part, member.epoch) for part in member.held}
        if member.state is State.UNREVOKED:
            member.rebalance.set(member.rebalance_s)
        else:
            member.rebalance.cancel()
        # The history names partitions by their topics: one of a recreated topic is another one.
        _, _, assigned, revoking = before
        held = self.named(member.held)
        if again := self.named(member.held - assigned - revoking) & self.named(assigned | revoking):
            self.record(member.client_id, member.id, "owns", held - again)
        self.record(member.client_id, member.id, "owns", held)
        self.parts[self.records[-1].position] = frozenset(member.held)

    def _next_assignment(self, member: Member, owned: frozenset[Part] | None, epoch: int) -> None:
        """CurrentAssignmentBuilder.computeNextAssignment: first revoke, then assign what no other member has."""
        target = self.target.get(member.id, set())
        kept = member.assigned & target
        revoking = member.assigned - kept
        if revoking and (owned is None or owned & revoking):
            self._set_epoch(member, epoch)
            member.state, member.assigned, member.revoking = State.UNREVOKED, kept, revoking
            return
        # ConsumerGroup.currentPartitionEpoch: also what this member itself is giving up is not free.
        taken = set().union(*(other.held for other in self.members.values()))
        wanted = target - kept
        free = wanted - taken
        self._set_epoch(member, self.target_epoch)
        member.state = State.UNRELEASED if free != wanted else State.STABLE
        member.assigned, member.revoking = kept | free, set()

    @staticmethod
    def _set_epoch(member: Member, epoch: int) -> None:
        """ConsumerGroupMember.Builder.updateMemberEpoch."""
        member.previous_epoch, member.epoch = member.epoch, epoch

    # --- the end of a member

    def _leave(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatAnswer:
        """consumerGroupLeave."""
        if not self._is_created:
            return ConsumerHeartbeatAnswer(Error.GROUP_ID_NOT_FOUND)
        if request.instance_id is None:
            member = self.members.get(request.member_id)
        else:
            member = self._static(request.instance_id)
            if member is not None and member.id != request.member_id:
                return ConsumerHeartbeatAnswer(Error.FENCED_INSTANCE_ID)
        if member is None:
            return ConsumerHeartbeatAnswer(Error.UNKNOWN_MEMBER_ID)
        if request.epoch == _LEAVE_STATIC:
            # consumerGroupStaticMemberGroupLeave: it keeps its partitions until its session ends.
            member.epoch, member.revoking = _LEAVE_STATIC, set()
        else:
            self._fence(member.id, "gone")
        return ConsumerHeartbeatAnswer(None, request.epoch)

    def _fence(self, member_id: str, event: str = "expired") -> None:
        """consumerGroupFenceMember."""
        member = self.members.get(member_id)
        if member is not None:
            self._drop(member, event)
            self._metadata = self._subscribed()
            self.epoch += 1

    def _drop(self, member: Member, event: str) -> None:
        member.session.cancel()
        member.rebalance.cancel()
        del self.members[member.id]
        self.record(member.client_id, member.id, event)

    def _too_slow(self, member_id: str) -> None:
        """scheduleConsumerGroupRebalanceTimeout; the timer is cancelled when the member goes on."""
        self.world.saw("too slow to revoke")
        self._fence(member_id)

    # --- commits, describe, the log

    def commit_error(self, request: OffsetCommit) -> Error | None:
        """ConsumerGroup.validateOffsetCommit; KIP-1251: one partition with a newer epoch refuses the whole commit."""
        if request.generation < 0 and not self.members:
            return None
        member = self.members.get(request.member_id)
        if member is None:
            return Error.UNKNOWN_MEMBER_ID
        if request.generation == member.epoch:
            return None
        if self.settings.per_partition_epochs and request.generation < member.epoch:
            since = {TopicPartition(self.names[part[0]], part[1]): epoch for part, epoch in member.since.items()}
            if all(since.get(item.partition, member.epoch) <= request.generation for item in request.items):
                self.world.saw("commit with an older epoch accepted")
                return None
        return Error.STALE_MEMBER_EPOCH

    def described(self) -> dict[str, frozenset[TopicPartition]] | None:
        """ConsumerGroupMember.asConsumerGroupDescribeMember: topics that do not exist any more are left out."""
        if not self.settings.describes:
            return None
        ids = {topic_id for topic_id, _ in self.image.values()}
        return {
            name: self.named(part for part in member.assigned & self.target.get(name, set()) if part[0] in ids)
            for name, member in self.members.items()
        }

    def confirmed(self) -> bool:
        """ConsumerGroup.maybeUpdateGroupState: STABLE. Static members are not waited for."""
        every = self.members.values()
        if any(member.instance_id is not None for member in every):
            return True
        is_assigned = self.epoch == self.target_epoch
        return is_assigned and all(each.state is State.STABLE and each.epoch == self.epoch for each in every)

    def load(self) -> None:
        """onLoaded."""
        for member in self.members.values():
            member.session.set(self.session_s)
            if member.state is State.UNREVOKED:
                member.rebalance.set(member.rebalance_s)
        self._assigned_at = -inf
