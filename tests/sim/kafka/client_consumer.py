"""Simulate librdkafka as a member of a consumer group (KIP-848).

Line numbers are of rdkafka_cgrp.c at the commit that `client_base.py` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.client_base import GroupClient, JoinState, Partitions
from tests.sim.kafka.protocol import ConsumerHeartbeat, ConsumerHeartbeatAnswer, Error, Part

# retry.backoff.max.ms
_MAX_BACKOFF_S = 1.0
_FATAL = frozenset((Error.INVALID_REQUEST, Error.UNRELEASED_INSTANCE_ID, Error.GROUP_ID_NOT_FOUND))


class ConsumerClient(GroupClient):
    """See `GroupClient`."""

    def _reset(self) -> None:
        super()._reset()
        # rd_kafka_cgrp_new (521): the client makes its id.
        self.member_id = f"{self.query_name}-{self.world.rng.getrandbits(32):08x}"
        self._was_subscribed = False
        # F_WAIT_REJOIN, F_WAIT_REJOIN_TO_COMPLETE, F_SEND_FULL_REQUEST, F_SEND_NEW_SUBSCRIPTION.
        self._waits_to_rejoin = self._rejoins = self._sends_all = self._sends_topics = False
        # Whether the heartbeat under way sends the new subscription.
        self._is_sending_topics = False
        # heartbeat.interval.ms is unknown before the first answer.
        self._interval_s = 0.0
        # When the next round is planned.
        self._planned_at = 0.0
        self._retries = 0
        # Names of topic ids, from metadata.
        self._names: dict[str, str] = {}
        self._forget_target()

    def _forget_target(self) -> None:
        """1009 rd_kafka_cgrp_consumer_reset."""
        self.generation_id = 0
        self._current: frozenset[Part] = frozenset()
        self._target: frozenset[Part] | None = None
        self._next_target: frozenset[Part] | None = None
        # F_WAIT_ACK, F_SENDING_ACK.
        self._waits_for_ack = self._is_sending_ack = False
        self._waits_to_rejoin = self._sends_all = self._sends_topics = self._is_sending_topics = False

    @property
    def _is_cooperative(self) -> bool:
        return self._was_subscribed

    @property
    def _has_joined(self) -> bool:
        return self.generation_id > 0

    @property
    def _will_leave(self) -> bool:
        """Return rd_kafka_cgrp_will_leave (919)."""
        return self._leaves_on_unassign or self._waits_for_leave

    # --- subscription

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort` (6982 rd_kafka_cgrp_consumer_subscribe)."""
        self._open()
        self._last_poll = self.clock()
        if self._fatal is not None:
            return
        self._next_topics = tuple(topics)
        if not self._will_leave:
            self._apply_next_subscription()

    def _apply_next_subscription(self) -> None:
        """940 rd_kafka_cgrp_consumer_apply_next_subscribe."""
        topics, self._next_topics = self._next_topics, None
        if topics is None or self._terminates:
            return
        self._topics = topics
        self._was_subscribed = self._sends_topics = True
        self._expedite()

    def stay_out(self) -> None:
        """See `GroupPort`."""
        self._open()
        if not self._is_closing:
            self._unsubscribe(leave=True)

    def _unsubscribe(self, *, leave: bool) -> None:
        """6146 rd_kafka_cgrp_consumer_unsubscribe."""
        self._polls_are_timed = False
        self._topics = None
        if leave and self._has_joined and not self._will_leave and not (self._waits_to_rejoin or self._rejoins):
            self._leaves_on_unassign = True
            self._revoke_all_rejoin("unsubscribe", lost=False)

    def _terminate(self) -> None:
        """6370: a member that rejoins closes without doing so."""
        self._waits_to_rejoin = self._rejoins = False
        super()._terminate()

    # --- the state machine

    def _serve(self) -> None:
        """6896 rd_kafka_cgrp_consumer_serve."""
        if self._fatal is not None:
            return
        full, ack = self._sends_all, False
        if self._waits_to_rejoin:
            # A fenced member is silent until its callbacks are served.
            if self._is_rebalancing:
                return
            self._waits_to_rejoin, self._rejoins = False, True
            self._revoke_all_rejoin("member fenced", lost=True)
        if self._state is JoinState.INIT:
            self._rejoins = False
            self._apply_next_subscription()
            full = True
        elif self._state is JoinState.STEADY:
            ack = self._waits_for_ack
        now = self.clock()
        if not self._may_send():
            return
        if now >= self._beat_at:
            self._beat_at = now + self._interval_s
            self._heartbeat(full=full, ack=ack)
        elif not now < self._planned_at <= self._beat_at:
            self._planned_at = self._beat_at
            self._soon(self._beat_at - now)

    def _may_send(self) -> bool:
        """6871 rd_kafka_cgrp_consumer_heartbeat_preconditions_met."""
        return (
            self._topics is not None
            and not self._heartbeat_in_transit
            and not self._rejoins
            and not self._poll_exceeded
            and not self._will_leave
        )

    def _expedite(self) -> None:
        """7167 rd_kafka_cgrp_consumer_expedite_next_heartbeat: soon, with a growing backoff in milliseconds."""
        backoff = 0.001 * 2 ** (self._retries - 1) if self._retries else 0.0
        backoff = min(backoff * self.world.rng.uniform(0.8, 1.2), _MAX_BACKOFF_S)
        self._beat_at = self.clock() + backoff
        self._soon(backoff)

    def _rejoin(self, reason: str) -> None:
        """1535 rd_kafka_cgrp_consumer_rejoin."""
        self.world.say(self.query_name, f"client: rejoins: {reason}")
        self._leave_maybe()
        self._forget_target()
        self._state = JoinState.INIT
        self._expedite()

    # --- heartbeats

    def _heartbeat(self, *, full: bool, ack: bool) -> None:
        """6772 rd_kafka_cgrp_consumer_group_heartbeat."""
        connection = self._connection
        if connection is None:
            return
        self._heartbeat_in_transit = True
        owned: frozenset[Part] | None = None
        if ack:
            owned, self._is_sending_ack = self._target, True
        elif full:
            owned = self._current
        if self._sends_topics and not self._is_sending_topics:
            self._sends_topics, self._is_sending_topics = False, True
        self._retries = min(self._retries + 1, 12)
        request = ConsumerHeartbeat(
            self.member_id,
            max(self.generation_id, 0),
            self._instance_id if full else None,
            self.settings.rebalance_s if full else None,
            self._topics if full or self._is_sending_topics else None,
            owned,
        )
        # rdkafka_request.c:2434: no longer than the interval, so the next heartbeat is not skipped.
        timeout_s = self._interval_s or self.settings.session_s
        connection.send(request, timeout_s, self._beaten, self._unanswered)

    def _beaten(self, answer: ConsumerHeartbeatAnswer) -> None:
        """3150 rd_kafka_cgrp_handle_ConsumerGroupHeartbeat."""
        if answer.error is not None:
            self._refused(answer.error)
            return
        self.generation_id = answer.epoch
        if self._will_leave:
            self._heartbeat_in_transit = False
            return
        self._interval_s = self.settings.heartbeat_s
        if answer.assignment is not None:
            handled = self._target if self._target is not None else self._current
            self._next_target = answer.assignment if answer.assignment != handled else None
        if self._state is JoinState.STEADY and self._waits_for_ack and self._target is not None:
            if self._is_sending_ack:
                self._current, self._target, self._waits_for_ack = self._target, None, False
            elif self._topics is not None:
                self._expedite()
        if self._next_target is not None:
            if self._topics is None:
                self._next_target = None
            else:
                self._resolve()
        if self._sends_topics:
            self._expedite()
        self._heartbeat_in_transit = self._is_sending_topics = self._sends_all = self._is_sending_ack = False
        self._retries = 0
        self._soon()

    def _refused(self, error: Error) -> None:
        """3331: the errors of an answer."""
        self._heartbeat_in_transit = False
        if error in (Error.UNKNOWN_MEMBER_ID, Error.FENCED_MEMBER_EPOCH):
            self.world.say(self.query_name, f"client: fenced {error.name}")
            self._waits_to_rejoin = True
            self._soon()
        elif error is Error.GROUP_ID_NOT_FOUND and self._waits_for_leave:
            pass
        elif error in _FATAL or error is Error.FENCED_INSTANCE_ID:
            # 3403: an error of a broker that is permanent is fatal, too.
            self._raise_fatal(error)
            self._revoke_all_rejoin_maybe(f"heartbeat {error.name}", lost=True)

    def _unanswered(self, error: Error) -> None:
        """3355: after a lost connection all fields are sent; after a timeout they are not (rule R84)."""
        self._heartbeat_in_transit = False
        if error is Error.TRANSPORT:
            self._sends_all = True
        else:
            self.world.saw("heartbeat timed out")
        if not self._interval_s:
            self._beat_at = self.clock() + 0.1
        self._soon()

    def _disconnected(self) -> None:
        """654: the next coordinator gets a heartbeat at once."""
        self._expedite()

    # --- assignments

    def _resolve(self) -> None:
        """3103 rd_kafka_cgrp_consumer_next_target_assignment_request_metadata: an assignment has topic ids only."""
        wanted = self._next_target or frozenset()
        missing = {topic_id for topic_id, _ in wanted} - set(self._names)
        if not missing:
            self._handle_next(wanted, complete=True)
            return

        def answered() -> None:
            """3057 rd_kafka_cgrp_consumer_handle_Metadata_op: goes on without topics that nobody knows."""
            if self._next_target is None:
                return
            known = frozenset(part for part in self._next_target if part[0] in self._names)
            self._handle_next(known, complete=known == self._next_target)

        self._request_names(missing, answered)

    def _request_names(self, topic_ids: Iterable[str], then: object) -> None:
        wanted = set(topic_ids)

        def answer() -> None:
            if max(self._cut_until, self._cluster.down_until) > self.world.now:
                self._after(1.0, answer)
                return
            for name in list(self._cluster.topics):
                topic = self._cluster.topic(name)
                if topic is not None and topic.id in wanted:
                    self._names[topic.id] = name
            assert callable(then)
            then()

        self._after(self._coordinator.latency() * 2, answer)

    def _handle_next(self, target: frozenset[Part], *, complete: bool) -> None:
        """2918 rd_kafka_cgrp_consumer_handle_next_assignment."""
        if self._waits_for_ack:
            return
        if target == (self._target if self._target is not None else self._current):
            if complete:
                self._next_target = None
        elif self._state in (JoinState.INIT, JoinState.STEADY):
            self._waits_for_ack, self._target = True, target
            if complete:
                self._next_target = None
            self._handle_assignment_cooperative(self._by_name(target))

    def _by_name(self, parts: frozenset[Part]) -> Partitions:
        return {TopicPartition(self._names[topic_id], number) for topic_id, number in parts}

    def _assignment_done(self) -> None:
        """7101 rd_kafka_cgrp_consumer_assignment_done."""
        if self._state is JoinState.WAIT_UNASSIGN_TO_COMPLETE:
            # 4962 rd_kafka_cgrp_unassign_done
            self._leave_maybe()
            self._rejoin("unassignment done")
        elif self._state is JoinState.WAIT_INCR_UNASSIGN_TO_COMPLETE:
            self._incr_unassign_done()
        elif self._state in (JoinState.INIT, JoinState.STEADY):
            if self._leave_maybe() or self._terminates:
                return
            if self._state is JoinState.INIT:
                self._expedite()
            elif self._rejoins_after:
                self._rejoins_after = False
                self._rejoin("assignment done")
            elif self._waits_for_ack:
                self._expedite()

    def _incr_unassign_done(self) -> None:
        """7027 rd_kafka_cgrp_consumer_incr_unassign_done."""
        added, self._to_assign = self._to_assign, None
        if self._terminates:
            self._unassign()
            self._leave_maybe()
        elif added is not None:
            self._rebalance_op_incr("assigned", added, rejoin=False)
        elif self._rejoins_after:
            self._rejoins_after = False
            self._rejoin("incremental unassignment done")
        else:
            self._state = JoinState.STEADY
            self._polls_are_timed = self._topics is not None

    # --- the end

    def _commit_failed(self, error: Error) -> None:
        """4473: the next heartbeat tells what has become of the member."""
        if error in (Error.UNKNOWN_MEMBER_ID, Error.STALE_MEMBER_EPOCH):
            self._expedite()

    def _max_poll_exceeded(self) -> None:
        """5724: it leaves when its partitions are revoked."""
        self._waits_to_rejoin = self._leaves_on_unassign = True
        self._expedite()

    def _leave(self) -> None:
        """1166 rd_kafka_cgrp_consumer_leave: -2 for a static member, which keeps its partitions for a session."""
        connection = self._connection
        if self._waits_for_leave or connection is None:
            return
        if not connection.is_up:
            self._forget_target()
            return
        self._waits_for_leave = True
        epoch = -1 if self._instance_id is None else -2
        request = ConsumerHeartbeat(self.member_id, epoch, self._instance_id)
        timeout_s = self._interval_s or self.settings.session_s
        connection.send(request, timeout_s, lambda _: self._left(), lambda _: self._left())

    def _left(self) -> None:
        """1037 rd_kafka_cgrp_handle_ConsumerGroupHeartbeat_leave."""
        self._forget_target()
        super()._left()
