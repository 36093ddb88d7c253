"""Simulate librdkafka as a member of a classic group: eager (range) and cooperative (cooperative-sticky).

Line numbers are of rdkafka_cgrp.c at the commit that `client_base.py` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.sim.kafka.assignors import assign
from tests.sim.kafka.client_base import CALLS, GroupClient, JoinState
from tests.sim.kafka.protocol import (
    Answer,
    Error,
    Heartbeat,
    JoinAnswer,
    JoinGroup,
    LeaveGroup,
    Subscription,
    SyncAnswer,
    SyncGroup,
)

# rdkafka_request.c:2172: LeaveGroup; rdkafka_request.c:2134: a grace on top of max.poll.interval.ms for JoinGroup.
_LEAVE_TIMEOUT_S, _GRACE_S = 5.0, 3.0
_JOIN_INTERVAL_S = 1.0
# LibrdkafkaGroup: how long a closing client waits for a join to end.
_CLOSE_S = 10.0


class ClassicClient(GroupClient):
    """See `GroupClient`."""

    def _reset(self) -> None:
        super()._reset()
        self.incremental = self.settings.protocol == "cooperative"
        self._has_assignor = False
        self._awaits_answer = False
        # Partition counts of topics, from the newest metadata; and those of the effective subscription.
        self._cache: dict[str, int] = {}
        self._subscribed: dict[str, int] = {}
        self._is_leader = False
        # The generation of the newest assignment (rkas_on_assignment_cb, 1933).
        self._assigned_generation = -1
        # 0: the session has expired by the client's own clock.
        self._session_ends = 0.0

    @property
    def generation(self) -> bytes:
        """See `GroupPort`: LibrdkafkaGroup.generation."""
        self._open()
        return b"" if self._is_closing else f"{self.member_id}/{self.generation_id}".encode()

    @property
    def _is_cooperative(self) -> bool:
        return self._has_assignor and self.incremental

    @property
    def _has_joined(self) -> bool:
        return bool(self.member_id)

    # --- subscription

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort` (6251 rd_kafka_cgrp_subscribe)."""
        self._open()
        self._last_poll = self.clock()
        self._set_subscription(tuple(topics))
        self._soon()

    def _set_subscription(self, topics: tuple[str, ...]) -> None:
        self._next_topics = None
        if self._fatal is not None:
            return
        if self._is_rebalancing:
            self._next_topics = topics
        elif self._is_cooperative and self._topics is not None:
            self._modify_subscription(topics)
        else:
            if self._topics is not None:
                self._unsubscribe(leave=False)
            self._topics = topics
            self._join()

    def _modify_subscription(self, topics: tuple[str, ...]) -> None:
        """6036 rd_kafka_cgrp_modify_subscription."""
        self._topics = topics
        if any(name not in self._cache for name in topics):
            self._refresh_metadata()
            return
        gone = {p for p in self._group_assignment or () if p.topic not in topics}
        if gone:
            self._update_subscribed()
            self._rebalance_op_incr("revoked", gone, rejoin=True)
        elif self._update_subscribed():
            self._rejoin("subscription modified")

    def stay_out(self) -> None:
        """See `GroupPort`: LibrdkafkaGroup unsubscribes."""
        self._open()
        if not self._is_closing and self._instance_id is None:
            self._set_unsubscribed()

    def _set_unsubscribed(self) -> None:
        """6251 rd_kafka_cgrp_subscribe without topics: put off until a rebalance is over."""
        if self._is_rebalancing:
            self._unsubscribes_next = True
        else:
            self._unsubscribe(leave=True)

    def _unsubscribe(self, *, leave: bool) -> None:
        """6206 rd_kafka_cgrp_unsubscribe."""
        self._polls_are_timed = False
        self._topics, self._subscribed = None, {}
        self._is_leader = False
        if leave and self._has_joined:
            self._leaves_on_unassign = True
        if not self._is_lost:
            self._revoke_all_rejoin("unsubscribe", lost=False)

    # --- metadata

    def _metadata_due(self) -> None:
        """rdkafka_metadata.c: the cached topics are asked for every 5 s."""
        if self._topics:
            topics = self._topics
            self._request_metadata(topics, lambda found: self._got_metadata(topics, found))

    def _refresh_metadata(self) -> None:
        """2594 rd_kafka_cgrp_metadata_refresh: the join waits for metadata."""
        self._state = JoinState.WAIT_METADATA
        self._metadata_due()

    def _got_metadata(self, topics: tuple[str, ...], found: dict[str, int]) -> None:
        """rdkafka_metadata.c:1119: the answer counts for the subscription that asked for it."""
        self._cache.update(found)
        if self._topics != topics or self._fatal is not None or self._terminates:
            return
        if self._state in CALLS and not self.settings.joins_in_callback:
            return
        changed = self._update_subscribed()
        if changed or self._state is JoinState.WAIT_METADATA:
            self._subscription_changed()

    def _update_subscribed(self) -> bool:
        """2829 rd_kafka_cgrp_update_subscribed_topics."""
        before = self._subscribed
        self._subscribed = {name: self._cache[name] for name in self._topics or () if self._cache.get(name)}
        return self._subscribed != before

    def _subscription_changed(self) -> None:
        """7627 rd_kafka_cgrp_metadata_update_check: joins again at once, whatever the client is doing (rule R85)."""
        if self.running == "revoked":
            self.world.saw("joined during a revoke (R85)")
        if not self._is_cooperative:
            self._is_leader = False
            self._revoke_all_rejoin("metadata has changed", lost=False)
            return
        missing = {p for p in self._group_assignment or () if p.topic not in self._subscribed}
        if missing:
            self._is_lost = True
            self._rebalance_op_incr("revoked", missing, rejoin=self._is_leader)
        else:
            self._rejoin("metadata has changed")

    # --- the state machine

    def _serve(self) -> None:
        """6725 rd_kafka_cgrp_join_state_serve."""
        if self._fatal is not None:
            return
        now = self.clock()
        if self._state is JoinState.INIT:
            self._serve_init(now)
        elif (self._state is JoinState.STEADY or self._state in CALLS) and self._topics and now >= self._beat_at:
            self._beat_at = now + self.settings.heartbeat_s
            self._heartbeat()

    def _serve_init(self, now: float) -> None:
        if self._awaits_answer:
            return
        topics, self._next_topics = self._next_topics, None
        if topics is not None:
            self._set_subscription(topics)
        elif self._unsubscribes_next:
            self._unsubscribes_next = False
            self._unsubscribe(leave=True)
        if self._topics is None or self._state is not JoinState.INIT:
            return
        if now >= self._join_at:
            self._join_at = now + _JOIN_INTERVAL_S
            self._join()

    def _rejoin(self, reason: str) -> None:
        """1585 rd_kafka_cgrp_rejoin."""
        self.world.say(self.query_name, f"client: rejoins: {reason}")
        if self._topics is None and self._next_topics is None:
            self._leave_maybe()
        self._state = JoinState.INIT
        self._soon()

    def _join(self) -> None:
        """2692 rd_kafka_cgrp_join."""
        connection = self._connection
        if connection is None or not connection.is_up or self._state is not JoinState.INIT or self._awaits_answer:
            return
        if self._poll_exceeded:
            return
        topics = self._topics or ()
        if any(name not in self._cache for name in topics):
            self._refresh_metadata()
            return
        if not self._subscribed:
            self._update_subscribed()
        if not self._subscribed:
            return
        self._state, self._awaits_answer = JoinState.WAIT_JOIN, True
        # rdkafka_sticky_assignor.c get_metadata: the owned partitions and their generation.
        owned = frozenset(self._group_assignment or ()) if self.incremental else frozenset()
        generation = self._assigned_generation if self.incremental else -1
        subscription = Subscription(tuple(sorted(self._subscribed)), owned, generation)
        request = JoinGroup(self.member_id, self._instance_id, subscription)
        timeout_s = self.settings.rebalance_s + _GRACE_S
        connection.send(request, timeout_s, self._joined_answer, lambda error: self._joined_answer(_no_join(error)))

    def _joined_answer(self, answer: JoinAnswer) -> None:
        """2268 rd_kafka_cgrp_handle_JoinGroup."""
        self._awaits_answer = False
        if self._terminates:
            return
        if self._state is not JoinState.WAIT_JOIN:
            self.world.saw("join answer out of date")
            self._soon()
            return
        if answer.error is not None:
            self._join_failed(answer.error, answer.member_id)
            return
        self.member_id, self.generation_id = answer.member_id, answer.generation
        self._has_assignor = True
        self._is_leader = answer.leader == answer.member_id
        if not self._is_leader:
            self._sync(None)
            return
        self._state = JoinState.WAIT_METADATA
        members, generation = answer.members, answer.generation
        topics = {name for member in members for name in member.subscription.topics}

        def run_assignor(found: dict[str, int]) -> None:
            """2141 rd_kafka_cgrp_assignor_handle_Metadata_op, 2075 rd_kafka_cgrp_assignor_run."""
            if self._state is JoinState.WAIT_METADATA and self._is_leader and self.generation_id == generation:
                self._sync(assign(members, found, cooperative=self.incremental))

        self._request_metadata(topics, run_assignor)

    def _join_failed(self, error: Error, member_id: str) -> None:
        self._join_at = self.clock() + _JOIN_INTERVAL_S
        if error is Error.FENCED_INSTANCE_ID:
            self._raise_fatal(error)
        elif error is Error.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif error is Error.ILLEGAL_GENERATION:
            self.generation_id = -1
        elif error is Error.MEMBER_ID_REQUIRED:
            self.member_id, self._join_at = member_id, 0.0
        if self._is_cooperative and error in (Error.ILLEGAL_GENERATION, Error.MEMBER_ID_REQUIRED):
            # 2545: a cooperative member learns here that it has lost what it kept.
            self._revoke_all_rejoin(f"JoinGroup {error.name}", lost=True)
        else:
            self._rejoin(f"JoinGroup {error.name}")

    def _sync(self, assignments: Any) -> None:
        connection = self._connection
        if connection is None:
            return
        self._state, self._awaits_answer = JoinState.WAIT_SYNC, True
        request = SyncGroup(self.member_id, self._instance_id, self.generation_id, assignments)
        # rdkafka_request.c:2030
        timeout_s = self.settings.session_s + _GRACE_S
        connection.send(request, timeout_s, self._synced, lambda error: self._synced(SyncAnswer(error)))

    def _synced(self, answer: SyncAnswer) -> None:
        """2001 rd_kafka_cgrp_handle_SyncGroup, 1885 rd_kafka_cgrp_handle_SyncGroup_memberstate."""
        self._awaits_answer = False
        if self._state is not JoinState.WAIT_SYNC:
            self._soon()
            return
        error = answer.error
        if error is None and not self._terminates:
            self._session_ends = self.clock() + self.settings.session_s
            self._assigned_generation = self.generation_id
            if self._is_cooperative:
                self._handle_assignment_cooperative(set(answer.assignment))
            else:
                self._rebalance_op("assigned", set(answer.assignment))
            self._soon()
            return
        if error is Error.FENCED_INSTANCE_ID:
            self._raise_fatal(error)
        elif error is Error.ILLEGAL_GENERATION:
            self.generation_id = -1
        elif error is Error.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if self._is_cooperative and error in (Error.ILLEGAL_GENERATION, Error.UNKNOWN_MEMBER_ID):
            self._revoke_all_rejoin(f"SyncGroup {error.name}", lost=True)
        else:
            self._rejoin(f"SyncGroup {error.name if error else 'while terminating'}")

    # --- after a callback

    def _assignment_done(self) -> None:
        """4995 rd_kafka_cgrp_assignment_done."""
        if self._state is JoinState.WAIT_UNASSIGN_TO_COMPLETE:
            # 4962 rd_kafka_cgrp_unassign_done
            self._leave_maybe()
            self._join_at = 0.0
            self._rejoin("unassignment done")
        elif self._state is JoinState.WAIT_INCR_UNASSIGN_TO_COMPLETE:
            self._incr_unassign_done()
        elif self._state is JoinState.STEADY:
            if self._next_topics is not None or self._unsubscribes_next:
                self._join_at = 0.0
                self._rejoin("next subscription")
            elif self._rejoins_after:
                self._rejoins_after = False
                self._join_at = 0.0
                self._rejoin("redistributes partitions that it owned")

    def _incr_unassign_done(self) -> None:
        """4898 rd_kafka_cgrp_incr_unassign_done."""
        added, self._to_assign = self._to_assign, None
        if self._terminates:
            self._unassign()
        elif added is not None:
            self._rebalance_op_incr("assigned", added, rejoin=True)
        elif self._rejoins_after:
            self._rejoins_after = False
            self._join_at = 0.0
            self._rejoin("incremental unassignment done")
        elif self._next_topics is not None or self._unsubscribes_next:
            self._join_at = 0.0
            self._rejoin("next subscription")
        else:
            self._state = JoinState.STEADY

    # --- heartbeats

    def _heartbeat(self) -> None:
        """3944 rd_kafka_cgrp_heartbeat."""
        connection = self._connection
        if connection is None or self._poll_exceeded or self._heartbeat_in_transit:
            return
        self._heartbeat_in_transit = True
        request = Heartbeat(self.member_id, self._instance_id, self.generation_id)
        connection.send(request, self.settings.session_s, self._beaten, lambda error: self._beaten(Answer(error)))

    def _beaten(self, answer: Answer) -> None:
        """3805 rd_kafka_cgrp_handle_Heartbeat."""
        self._heartbeat_in_transit = False
        error = answer.error
        if error in (None, Error.REBALANCE_IN_PROGRESS) and self._session_ends:
            self._session_ends = self.clock() + self.settings.session_s
        if error is None or self._state in _JOINING:
            return
        if error is Error.REBALANCE_IN_PROGRESS:
            if self._state not in CALLS:
                self._group_is_rebalancing()
        elif error is Error.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._revoke_all_rejoin_maybe("heartbeat UNKNOWN_MEMBER_ID", lost=True)
        elif error is Error.ILLEGAL_GENERATION:
            self.generation_id = -1
            self._revoke_all_rejoin_maybe("heartbeat ILLEGAL_GENERATION", lost=True)
        elif error is Error.FENCED_INSTANCE_ID:
            self._raise_fatal(error)
            self._revoke_all_rejoin_maybe("heartbeat FENCED_INSTANCE_ID", lost=True)

    def _group_is_rebalancing(self) -> None:
        """5485 rd_kafka_cgrp_group_is_rebalancing."""
        if not self._is_cooperative:
            self._revoke_all_rejoin_maybe("rebalance in progress", lost=False)
        elif not self._is_rebalancing:
            self._rejoin("group is rebalancing")

    def _check_session(self, now: float) -> None:
        """6653 rd_kafka_cgrp_session_timeout_check; 7241: only in the steady state."""
        if self._state is JoinState.STEADY and self._session_ends and now >= self._session_ends:
            self.world.saw("client session timeout")
            self._session_ends = 0.0
            self.member_id = ""
            self._revoke_all_rejoin_maybe("session timed out", lost=True)

    def _commit_failed(self, error: Error) -> None:
        """4473 in rd_kafka_cgrp_op_handle_OffsetCommit."""
        if error is Error.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            self._revoke_all_rejoin_maybe("commit UNKNOWN_MEMBER_ID", lost=True)
        elif error is Error.ILLEGAL_GENERATION and not self._is_rebalancing:
            self.generation_id = -1
            self._revoke_all_rejoin_maybe("commit ILLEGAL_GENERATION", lost=True)
        elif error is Error.FENCED_INSTANCE_ID:
            # rdkafka_request.c:1769
            self._raise_fatal(error)

    # --- leaving

    def _leave_without_partitions(self) -> None:
        """LibrdkafkaGroup._leave_without_partitions: `consumer.unsubscribe()` (rule R111)."""
        if self._is_cooperative and self._instance_id is None and not self.assigned and self._topics is not None:
            self._set_unsubscribed()
            ends = self.world.now + _CLOSE_S
            while self.member_id and self.world.now < ends:
                self._serve_callbacks()
                self._wait_for_an_event()

    def _max_poll_exceeded(self) -> None:
        """5747: a dynamic member leaves at once, before its callback."""
        if self._instance_id is None:
            self._leave()
        self.member_id = ""
        self._revoke_all_rejoin_maybe("max.poll.interval.ms exceeded", lost=True)

    def _leave_maybe(self) -> bool:
        """1272: a static member does not leave when it closes (KIP-345)."""
        if self._leaves_on_unassign and self._instance_id is not None and self._terminates:
            self._leaves_on_unassign = False
            return False
        return super()._leave_maybe()

    def _leave(self) -> None:
        """1213 rd_kafka_cgrp_leave."""
        member_id, self.member_id = self.member_id, ""
        connection = self._connection
        if self._waits_for_leave or connection is None:
            return
        if connection.is_up:
            self._waits_for_leave = True
            connection.send(LeaveGroup(member_id), _LEAVE_TIMEOUT_S, lambda _: self._left(), lambda _: self._left())


_JOINING = frozenset((JoinState.INIT, JoinState.WAIT_JOIN, JoinState.WAIT_METADATA, JoinState.WAIT_SYNC))


def _no_join(error: Error) -> JoinAnswer:
    return JoinAnswer(error, "")
