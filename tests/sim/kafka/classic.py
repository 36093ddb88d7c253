"""Simulate the coordinator of a classic group: join, sync, heartbeat, leave; dynamic and static members.

Methods named without a class are of `GroupMetadataManager`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.coordinator import Coordinator, Reply, Timer, short
from tests.sim.kafka.logs import Cluster
from tests.sim.kafka.protocol import (
    Answer,
    Error,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    JoinMember,
    LeaveGroup,
    OffsetCommit,
    Subscription,
    SyncAnswer,
    SyncGroup,
)
from tests.sim.kafka.settings import GroupSettings
from tests.sim.world import World

# group.coordinator.new.member.join.timeout: `classicGroupNewMemberJoinTimeoutMs`.
_NEW_MEMBER_JOIN_S = 300.0


class State(Enum):
    """`ClassicGroupState`."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class Member:
    """`ClassicGroupMember`."""

    id: str
    instance_id: str | None
    client_id: str
    subscription: Subscription
    session: Timer
    assignment: frozenset[TopicPartition] = frozenset()
    # The answers that it awaits.
    join: Reply | None = None
    sync: Reply | None = None
    # It has not got the answer to its first JoinGroup yet.
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class _Saved:
    """The newest record of the group in the coordinator's log."""

    generation: int = 0
    leader: str = ""
    members: tuple[tuple[str, str | None, str, Subscription, frozenset[TopicPartition]], ...] = ()


class ClassicCoordinator(Coordinator):
    """`GroupMetadataManager` and `ClassicGroup`, for one group."""

    def __init__(self, world: World, cluster: Cluster, settings: GroupSettings) -> None:
        super().__init__(world, cluster, settings)
        self.state = self._previous = State.EMPTY
        self.generation = 0
        self.leader = ""
        self.members: dict[str, Member] = {}
        # Ids that were given with MEMBER_ID_REQUIRED, and have not joined yet.
        self._pending: dict[str, Timer] = {}
        self._unsynced: set[str] = set()
        self._join_timer = Timer(self, self._complete_join)
        self._initial_timer = Timer(self, self._complete_initial)
        self._initial_left_s = 0.0
        self._member_added = False
        self._sync_timer = Timer(self, self._expire_unsynced)
        self._saved = _Saved()
        self._number = 0

    def handle(self, client_id: str, request: Any, reply: Reply) -> None:
        """See `Coordinator`."""
        match request:
            case JoinGroup():
                self._handle_join(client_id, request, reply)
            case SyncGroup():
                self._handle_sync(request, reply)
            case Heartbeat():
                reply(Answer(self._heartbeat(request)))
            case LeaveGroup(member_id):
                reply(Answer(self._leave(member_id)))
            case _:
                raise TypeError(request)

    def described(self) -> dict[str, frozenset[TopicPartition]] | None:
        """Return the members with their newest assignments, in every state (ClassicGroupMember.describe)."""
        return {name: member.assignment for name, member in self.members.items()}

    def confirmed(self) -> bool:
        """See `Coordinator`."""
        return self.state is State.STABLE

    def _validate(self, member_id: str, instance_id: str | None) -> Error | None:
        """ClassicGroup.validateMember."""
        if instance_id is not None:
            existing = self._static(instance_id)
            if existing is None:
                return Error.UNKNOWN_MEMBER_ID
            if existing.id != member_id:
                return Error.FENCED_INSTANCE_ID
        return None if member_id in self.members else Error.UNKNOWN_MEMBER_ID

    def _static(self, instance_id: str) -> Member | None:
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    # --- join

    def _handle_join(self, client_id: str, request: JoinGroup, reply: Reply) -> None:
        self.world.say("coord", f"join {client_id}/{request.member_id or '-'} {self.state.name}")
        if not request.member_id:
            self._join_new(client_id, request, reply)
            return
        if request.member_id in self._pending:
            self._pending.pop(request.member_id).cancel()
            self._add(client_id, request.member_id, request, reply)
            return
        error = self._validate(request.member_id, request.instance_id)
        if error is not None:
            reply(JoinAnswer(error, request.member_id))
            return
        self._join_known(self.members[request.member_id], request, reply)

    def _join_new(self, client_id: str, request: JoinGroup, reply: Reply) -> None:
        """classicGroupJoinNewMember."""
        self._number += 1
        member_id = f"{client_id}-{self._number}"
        if request.instance_id is None:
            # classicGroupJoinNewDynamicMember (KIP-394)
            timer = self._pending[member_id] = Timer(self, lambda: self._expire_pending(member_id))
            timer.set(self.session_s)
            reply(JoinAnswer(Error.MEMBER_ID_REQUIRED, member_id))
            return
        existing = self._static(request.instance_id)
        if existing is None:
            self._add(client_id, member_id, request, reply)
        else:
            self._replace_static(existing, client_id, member_id, request, reply)

    def _join_known(self, member: Member, request: JoinGroup, reply: Reply) -> None:
        """classicGroupJoinExistingMember."""
        same = member.subscription == request.subscription
        if self.state is State.EMPTY:
            reply(JoinAnswer(Error.UNKNOWN_MEMBER_ID, member.id))
        elif (self.state is State.COMPLETING and same) or (
            self.state is State.STABLE and same and member.id != self.leader
        ):
            # It may have missed the answer: the same generation again.
            reply(self._join_answer(member, with_members=self.state is State.COMPLETING))
        else:
            self._update(member, request, reply)
            self._rebalance()

    def _join_answer(self, member: Member, *, with_members: bool = True) -> JoinAnswer:
        members: tuple[JoinMember, ...] = ()
        if member.id == self.leader and with_members:
            members = tuple(JoinMember(m.id, m.instance_id, m.subscription) for m in self.members.values())
        return JoinAnswer(None, member.id, self.generation, self.leader, members)

    def _add(self, client_id: str, member_id: str, request: JoinGroup, reply: Reply) -> None:
        """addMemberThenRebalanceOrCompleteJoin."""
        if self.state is State.PREPARING and self._previous is State.EMPTY:
            self._member_added = True
        member = self._make(member_id, request.instance_id, client_id, request.subscription)
        member.join = reply
        # ClassicGroup.add: the first member leads.
        self.leader = self.leader or member_id
        member.session.set(_NEW_MEMBER_JOIN_S)
        self._rebalance()

    def _make(self, member_id: str, instance_id: str | None, client_id: str, subscription: Subscription) -> Member:
        session = Timer(self, lambda: self._expire(member_id))
        member = self.members[member_id] = Member(member_id, instance_id, client_id, subscription, session)
        return member

    def _update(self, member: Member, request: JoinGroup, reply: Reply) -> None:
        """ClassicGroup.updateMember."""
        member.subscription, member.join = request.subscription, reply

    def _replace_static(self, old: Member, client_id: str, member_id: str, request: JoinGroup, reply: Reply) -> None:
        """updateStaticMemberThenRebalanceOrCompleteJoin, ClassicGroup.replaceStaticMember."""
        self.world.saw("static member is back")
        leader_before = self.leader
        del self.members[old.id]
        old.session.cancel()
        self._answer_join(old, JoinAnswer(Error.FENCED_INSTANCE_ID, old.id))
        self._answer_sync(old, SyncAnswer(Error.FENCED_INSTANCE_ID))
        member = self._make(member_id, old.instance_id, client_id, request.subscription)
        member.assignment, member.is_new = old.assignment, False
        if self.leader == old.id:
            self.leader = member_id
        member.session.set(self.session_s)
        self._update(member, request, reply)
        if self.state is State.STABLE:
            # No rebalance. JoinGroup is version 5 (rdkafka_request.c:2064): a leader is answered as a follower.
            self._save()
            self.record(old.client_id, old.id, "gone")
            self.record(client_id, member_id, "owns", member.assignment)
            self._answer_join(member, JoinAnswer(None, member_id, self.generation, leader_before))
        elif self.state is State.COMPLETING:
            self._prepare()
        else:
            self._complete_if_all_joined()

    # --- a rebalance

    def _rebalance(self) -> None:
        """maybePrepareRebalanceOrCompleteJoin."""
        if self.state is State.PREPARING:
            self._complete_if_all_joined()
        else:
            self._prepare()

    def _prepare(self) -> None:
        """prepareRebalance."""
        if self.state is State.COMPLETING:
            for member in self.members.values():
                member.assignment = frozenset()
                if member.sync is not None:
                    member.session.set(self.session_s)
                self._answer_sync(member, SyncAnswer(Error.REBALANCE_IN_PROGRESS))
        self._unsynced.clear()
        self._sync_timer.cancel()
        self._previous, self.state = self.state, State.PREPARING
        self.world.say("coord", f"prepares a rebalance, generation {self.generation}")
        if self._previous is State.EMPTY:
            self._initial_left_s = max(self.settings.rebalance_s - self.settings.initial_delay_s, 0.0)
            self._initial_timer.set(self.settings.initial_delay_s)
        elif self._all_joined():
            self._complete_join()
        else:
            self._join_timer.set(self.settings.rebalance_s)

    def _complete_initial(self) -> None:
        """tryCompleteInitialRebalanceElseSchedule."""
        if self.state is not State.PREPARING:
            return
        if self._member_added and self._initial_left_s > 0:
            self._member_added = False
            delay = min(self.settings.initial_delay_s, self._initial_left_s)
            self._initial_left_s = max(self._initial_left_s - delay, 0.0)
            self._initial_timer.set(delay)
        else:
            self._complete_join()

    def _all_joined(self) -> bool:
        """ClassicGroup.hasAllMembersJoined."""
        return not self._pending and all(member.join is not None for member in self.members.values())

    def _complete_if_all_joined(self) -> None:
        """maybeCompleteJoinPhase."""
        if self.state is State.PREPARING and self._previous is not State.EMPTY and self._all_joined():
            self._complete_join()

    def _complete_join(self) -> None:
        """completeClassicGroupJoin."""
        if self.state is not State.PREPARING:
            return
        self._join_timer.cancel()
        for member in [m for m in self.members.values() if m.join is None and m.instance_id is None]:
            self.world.saw("too slow to rejoin")
            self._remove(member, "expired")
        if self.members and not self._elect():
            self._join_timer.set(self.settings.rebalance_s)
            return
        self.generation += 1
        self._previous = self.state
        if not self.members:
            self.state, self.leader = State.EMPTY, ""
            self._save()
            return
        self.state = State.COMPLETING
        self.world.say("coord", f"generation {self.generation}: {list(self.members)} leader {self.leader}")
        self._unsynced = set(self.members)
        self._sync_timer.set(self.settings.rebalance_s)
        for member in self.members.values():
            self._answer_join(member, self._join_answer(member))
            member.session.set(self.session_s)
            member.is_new = False

    def _elect(self) -> bool:
        """ClassicGroup.maybeElectNewJoinedLeader."""
        if self.leader in self.members and self.members[self.leader].join is not None:
            return True
        joined = next((member.id for member in self.members.values() if member.join is not None), None)
        self.leader = joined or self.leader
        return joined is not None

    def _answer_join(self, member: Member, answer: JoinAnswer) -> None:
        reply, member.join = member.join, None
        if reply is not None:
            reply(answer)

    def _answer_sync(self, member: Member, answer: SyncAnswer) -> None:
        reply, member.sync = member.sync, None
        if reply is not None:
            reply(answer)

    # --- sync

    def _handle_sync(self, request: SyncGroup, reply: Reply) -> None:
        """classicGroupSyncToClassicGroup."""
        error = self._validate(request.member_id, request.instance_id)
        if error is None and request.generation != self.generation:
            error = Error.ILLEGAL_GENERATION
        if error is None and self.state is State.PREPARING:
            error = Error.REBALANCE_IN_PROGRESS
        if error is not None or self.state is State.EMPTY:
            reply(SyncAnswer(error or Error.UNKNOWN_MEMBER_ID))
            return
        member = self.members[request.member_id]
        self._unsynced.discard(member.id)
        if not self._unsynced:
            self._sync_timer.cancel()
        if self.state is State.STABLE:
            reply(SyncAnswer(None, member.assignment))
            return
        member.sync = reply
        if member.id == self.leader:
            self._assign(request.assignments or {})

    def _assign(self, assignments: Any) -> None:
        """setAndPropagateAssignment."""
        self._previous, self.state = self.state, State.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.id, frozenset())
        self._save()
        for member in self.members.values():
            self.record(member.client_id, member.id, "owns", member.assignment)
            if member.sync is not None:
                self._answer_sync(member, SyncAnswer(None, member.assignment))
                member.session.set(self.session_s)

    def _expire_unsynced(self) -> None:
        """expirePendingSync."""
        if self.state in (State.COMPLETING, State.STABLE) and self._unsynced:
            self.world.saw("too slow to sync")
            for member_id in self._unsynced & set(self.members):
                self._remove(self.members[member_id], "expired")
            self._prepare()

    # --- heartbeats, leaving

    def _heartbeat(self, request: Heartbeat) -> Error | None:
        """classicGroupHeartbeatToClassicGroup."""
        error = self._validate(request.member_id, request.instance_id)
        if error is None and request.generation != self.generation:
            error = Error.ILLEGAL_GENERATION
        if error is not None:
            return error
        self.members[request.member_id].session.set(self.session_s)
        return Error.REBALANCE_IN_PROGRESS if self.state is State.PREPARING else None

    def _leave(self, member_id: str) -> Error | None:
        """classicGroupLeaveToClassicGroup."""
        if member_id in self._pending:
            self._expire_pending(member_id)
            return None
        member = self.members.get(member_id)
        if member is None:
            return Error.UNKNOWN_MEMBER_ID
        self._remove_and_rebalance(member, "gone")
        return None

    def _expire(self, member_id: str) -> None:
        """expireClassicGroupMemberHeartbeat; ClassicGroupMember.hasSatisfiedHeartbeat."""
        member = self.members.get(member_id)
        if member is not None and (member.is_new or (member.join is None and member.sync is None)):
            self._remove_and_rebalance(member, "expired")

    def _expire_pending(self, member_id: str) -> None:
        """removePendingMemberAndUpdateClassicGroup."""
        timer = self._pending.pop(member_id, None)
        if timer is not None:
            timer.cancel()
            self._complete_if_all_left()

    def _remove_and_rebalance(self, member: Member, event: str) -> None:
        """removeMemberAndUpdateClassicGroup."""
        self._remove(member, event)
        if self.state in (State.STABLE, State.COMPLETING):
            self._prepare()
        else:
            self._complete_if_all_left()

    def _complete_if_all_left(self) -> None:
        if self.state is State.PREPARING and self._all_joined():
            self._complete_join()

    def _remove(self, member: Member, event: str) -> None:
        """ClassicGroup.remove."""
        member.session.cancel()
        self._answer_join(member, JoinAnswer(Error.UNKNOWN_MEMBER_ID, ""))
        member.sync = None
        del self.members[member.id]
        self._unsynced.discard(member.id)
        if self.leader == member.id:
            self.leader = next(iter(self.members), "")
        self.record(member.client_id, member.id, event)

    # --- commits

    def commit_error(self, request: OffsetCommit) -> Error | None:
        """ClassicGroup.validateOffsetCommit; a commit keeps a session (OffsetMetadataManager.commitOffset)."""
        if request.generation < 0 and self.state is State.EMPTY:
            self.world.saw("commit without a generation, group empty")
            return None
        if request.generation < 0 and not request.member_id and request.instance_id is None:
            return Error.UNKNOWN_MEMBER_ID
        error = self._validate(request.member_id, request.instance_id)
        if error is None and request.generation != self.generation:
            error = Error.ILLEGAL_GENERATION
        if error is None and self.state is State.COMPLETING:
            error = Error.REBALANCE_IN_PROGRESS
        if error is None:
            self.members[request.member_id].session.set(self.session_s)
        return error

    # --- the log

    def _save(self) -> None:
        """GroupCoordinatorRecordHelpers.newGroupMetadataRecord: a rebalance under way is not in the log."""
        every = self.members.values()
        members = tuple((m.id, m.instance_id, m.client_id, m.subscription, m.assignment) for m in every)
        self._saved = _Saved(self.generation, self.leader, members)

    def load(self) -> None:
        """onLoaded: all members have their sessions again, also those that left during a rebalance."""
        for timer in (self._join_timer, self._initial_timer, self._sync_timer, *self._pending.values()):
            timer.cancel()
        for member in self.members.values():
            member.session.cancel()
        before, self.members, self._pending, self._unsynced = self.members, {}, {}, set()
        saved = self._saved
        self.generation, self.leader = saved.generation, saved.leader
        self.state = self._previous = State.STABLE if saved.members else State.EMPTY
        for member_id, instance_id, client_id, subscription, assignment in saved.members:
            member = self._make(member_id, instance_id, client_id, subscription)
            member.assignment, member.is_new = assignment, False
            member.session.set(self.session_s)
            if member_id not in before:
                self.world.saw("a removed member is back after a failover")
                self.record(client_id, member_id, "owns", assignment)
        self.world.say("coord", f"loads generation {self.generation} {short((m, 0) for m in self.members)}")
