"""Implement the group client on confluent-kafka (librdkafka).

Translates between `GroupPort` and the client, and decides nothing. All calls come from the membership thread:
confluent-kafka serialises the calls on one client, and a thread that polls starves all others.

The partitions are assigned paused: executors read the records, the member only keeps its membership. An exception in
one of the client's callbacks becomes a SystemError from `poll`, or gets lost. So callbacks catch everything, and `poll`
raises it afterwards.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource.client.answers import decoded_offsets
from spark_groupsource.client.errors import TransportState, kafka_error, map_error, map_group_error, topics_denied
from spark_groupsource.client.settings import creating_client, librdkafka_settings
from spark_groupsource.client.tokens import new_consumer
from spark_groupsource.clock import Clock, Deadline, Pace, SystemClock
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.backends.commit_errors import DENIED, classify_refusal, denial
from spark_groupsource.membership.backends.peers import others
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.port import CommitResult, MemberListener
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.client_settings import GroupProtocol
from spark_groupsource.options.model import SourceOptions

LOG = logging.getLogger(__name__)

# Errors that the poll of a consumer without fetches may return, and that pass by themselves.
_PASSING = {
    KafkaError._PARTITION_EOF,
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
# Errors of a commit that may be about one of its partitions only.
_OF_A_PARTITION = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
}
_UNKNOWN = KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
# A fatal error may have the general code. Its text then names the cause.
_FATAL_TEXTS = {
    KafkaError.UNRELEASED_INSTANCE_ID: ("still used by another member",),
    KafkaError.UNSUPPORTED_ASSIGNOR: ("assignor or its version range is not supported",),
    KafkaError.FENCED_INSTANCE_ID: ("static consumer fenced", "fenced by"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("Group authorization failed",),
    KafkaError.GROUP_ID_NOT_FOUND: ("group id does not exist",),
    KafkaError.INVALID_REQUEST: ("Broker: Invalid request",),
}
# After one of these a new client can join again (KIP-848).
_FORGOTTEN = {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_REQUEST}
# The client's text for a topic that it may not read, or that does not exist.
_DENIED_TOPIC = re.compile(r"Subscribed topic not available: ([^\s:]+):")
# Maximum delay in noticing a new partition or a new topic of a pattern. librdkafka's own default is five minutes.
_METADATA_REFRESH_MS = "5000"
# Only the client's statistics report whether it knows its coordinator.
_STATISTICS_MS = "2000"


# Maximum seconds that a closing client waits for a join to end, so that it can leave: the other members join at their
# next heartbeats, every 3 s by default.
_LEAVE_S = 10.0
_LEAVE_STEP_S = 0.02

# States of librdkafka's `rd_kafka_cgrp_join_state_names` in which the client is done, or waits for the other members.
# In "init" it is no member: no topic exists, or with option assign; or it has no partition (KIP-848).
_SETTLED = frozenset(("init", "steady", "wait-join", "wait-sync"))
_UNSETTLED_AFTER_S = 30.0
# Interval in seconds at which an error that continues is logged.
_LOG_INTERVAL_S = 30.0


class _Joining:
    """Warn once when the client has been in the middle of a rebalance for 30 s and waits for no other member."""

    def __init__(self, group: str, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._since_s: float | None = None
        self._is_reported = False

    def saw(self, state: str) -> None:
        """Take notice of the client's state in its group."""
        now_s = self._clock.monotonic_s()
        if state in _SETTLED:
            self._since_s, self._is_reported = None, False
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= _UNSETTLED_AFTER_S and not self._is_reported:
            self._is_reported = True
            LOG.warning(
                "the client does not finish a rebalance, and the other members may wait for it: group=%s join_state=%s"
                " for=%.0f s; if `groupkafka group` shows PreparingRebalance all the time, restart this query",
                self._group, state, now_s - self._since_s,
            )  # fmt: skip


class _Life(Enum):
    """What has become of the client since it was opened. It goes down this list only."""

    OPENED = "not a member yet"
    JOINED = "the group has assigned it partitions"
    UNRELEASED = "another member still has its instance id: a fatal error, reported once"
    UNUSABLE = "it has become another member, or its group is deleted: reported once, it handles nothing any more"


class LibrdkafkaGroup:
    """Implement `GroupPort` on `confluent_kafka.Consumer`."""

    # Set by `open`, which creates the client: nothing is reported before.
    _listener: MemberListener

    def __init__(
        self,
        options: SourceOptions,
        make_client: Callable[[dict[str, Any]], Consumer] = new_consumer,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._make_client = make_client
        self._consumer: Consumer | None = None
        self._callback_error: BaseException | None = None
        self._transport = TransportState(options.token_login, clock)
        self._clock = clock or SystemClock()
        self._joining = _Joining(options.group_id, self._clock)
        self._life = _Life.OPENED
        # The member id under which a static member was assigned its partitions.
        self._held_as = ""
        # How many requests to the coordinator the client has given up.
        self._lost_answers = 0
        # Whether the client is closing: it calls callbacks meanwhile.
        self._closing = False
        # The logged errors. The client repeats one that continues, such as a full group, at each attempt to join. That
        # of another topic has the same code, and comes once.
        self._logged: dict[str, Pace] = {}
        strategy = options.client_settings.get("partition.assignment.strategy", "")
        self._incremental = options.group_protocol is GroupProtocol.CONSUMER or strategy == "cooperative-sticky"

    @property
    def incremental(self) -> bool:
        """See `GroupPort`."""
        return self._incremental

    @property
    def member_id(self) -> str:
        """See `GroupPort`."""
        return self._client().memberid() or ""

    @property
    def generation(self) -> bytes:
        """See `GroupPort`."""
        client = self._client()
        # Under KIP-848 the epoch may change during a revoke. A closing client joins nothing.
        if self._options.group_protocol is GroupProtocol.CONSUMER or self._closing:
            return b""
        return bytes(client.consumer_group_metadata())

    # --- life

    def open(self, listener: MemberListener) -> None:
        """See `GroupPort`."""
        self._listener = listener
        self._life, self._held_as, self._lost_answers = _Life.OPENED, "", 0
        settings = librdkafka_settings(self._options, "member") | {
            "group.id": self._options.group_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Never used: partitions are assigned at explicit offsets and stay paused.
            "auto.offset.reset": "error",
            "allow.auto.create.topics": False,
            "queued.min.messages": 1,
            "error_cb": self._guarded(self._on_client_error),
            "on_commit": self._guarded(self._on_commit),
            "stats_cb": self._guarded(self._on_statistics),
        }
        settings.setdefault("topic.metadata.refresh.interval.ms", _METADATA_REFRESH_MS)
        settings.setdefault("statistics.interval.ms", _STATISTICS_MS)
        with creating_client(self._options):
            self._consumer = self._make_client(settings)

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort`."""
        try:
            self._client().subscribe(
                list(topics),
                on_assign=self._guarded(lambda _, parts: self._pass_on(self._listener.on_assigned, parts)),
                on_revoke=self._guarded(lambda _, parts: self._pass_on(self._listener.on_revoked, parts)),
                on_lost=self._guarded(lambda _, parts: self._pass_on(self._listener.on_lost, parts)),
            )
        except KafkaException as error:
            raise self._mapped(error, "subscribe") from None

    def poll(self) -> None:
        """See `GroupPort`."""
        if self._unusable():
            return
        message = self._client().poll(0)
        self._raise_callback_error()
        error = message.error() if message is not None else None
        if error is not None:
            self._on_poll_error(error)

    def close(self) -> None:
        """See `GroupPort`."""
        consumer = self._consumer
        if consumer is None:
            return
        self._closing = True
        try:
            self._leave_without_partitions(consumer)
            consumer.close()
        finally:
            self._consumer, self._closing = None, False
            error, self._callback_error = self._callback_error, None
            if error is not None:
                # No later poll can raise it.
                group = self._options.group_id
                LOG.error("a callback failed while the client closed: group=%s", group, exc_info=error)

    def stay_out(self) -> None:
        """See `GroupPort`. The client applies it when the partitions are released, before it would join.

        Guards against (rule R111, a loss):
        1. A member loses its partitions. With `onPartitionsLost=fail`, or after a stop was requested, it ends.
        2. It releases them, so its client sends a JoinGroup, which waits for a slow member.
        3. Its client closes. A cooperative one sends no LeaveGroup then.
        4. The round waits for the member that is gone, or ends and gives it partitions. Nobody reads these until a
           session timeout has passed.
        """
        is_classic = self._options.group_protocol is not GroupProtocol.CONSUMER
        # A closing client joins nothing. A classic static member is still in the group here, and must not leave: its
        # topic was deleted. If its session had ended, the client would be unusable.
        if self._closing or (is_classic and self._options.instance_id):
            return
        # After a fatal error it raises, and the client does not join either.
        with suppress(KafkaException):
            self._client().unsubscribe()

    def _leave_without_partitions(self, consumer: Consumer) -> None:
        """Let a cooperative client without partitions leave the group: its own `close` does not.

        Guards against (rule R111):
        1. A cooperative member owns no partition. It is stopped.
        2. Its client closes and sends no LeaveGroup (librdkafka 2.16, `rd_kafka_cgrp_terminate0`).
        3. The next rebalance waits for its session to expire: 45 s.

        Guards against (rule R111, a join):
        1. A rebalance begins. A cooperative member without partitions has sent its JoinGroup, which waits for the other
           members' next heartbeats.
        2. It is stopped. Its client puts the leave off until the join has ended, and is closed before.
        """
        is_classic = self._options.group_protocol is not GroupProtocol.CONSUMER
        if not is_classic or not self._incremental or self._options.instance_id:
            return
        # R111: it leaves when it unsubscribes; a static member must not leave
        if not consumer.assignment():
            consumer.unsubscribe()
            ends = Deadline(self._clock, _LEAVE_S)
            # R111: a client that leaves has no member id any more
            while consumer.memberid() and not ends.expired():
                consumer.poll(_LEAVE_STEP_S)

    # --- partitions and offsets

    def accept(self, partitions: Partitions) -> None:
        """See `GroupPort`."""
        # An explicit offset saves the client an offset request. Nothing is fetched from it.
        client_partitions = [ClientPartition(tp.topic, tp.partition, 0) for tp in partitions]
        client = self._client()
        if self._incremental:
            client.incremental_assign(client_partitions)
        else:
            client.assign(client_partitions)
        if client_partitions:
            client.pause(client_partitions)
        if self._options.is_member:
            self._life = _Life.JOINED
            self._transport.worked()
        if self._options.instance_id:
            self._held_as = self._held_as or client.memberid()

    def release(self, partitions: Partitions) -> None:
        """See `GroupPort`."""
        client = self._client()
        if self._incremental:
            client.incremental_unassign([ClientPartition(tp.topic, tp.partition) for tp in partitions])
        else:
            client.unassign()
        # A closing client is not queried: it loses its partitions anyway.
        if self._held_as and not self._closing and not client.assignment():
            self._held_as = ""

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """See `GroupPort`."""
        if self._closing:
            # It would not ask the coordinator, and wait for all of the time.
            return {}
        wanted = [ClientPartition(tp.topic, tp.partition) for tp in partitions]

        def ask() -> list[ClientPartition]:
            return [each for each in self._client().committed(wanted, timeout=timeout_s) if each.error is None]

        try:
            return decoded_offsets(ask)
        except KafkaException as error:
            LOG.info("offset fetch failed and is repeated: group=%s error=%s", self._options.group_id, error)
            return {}

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """See `GroupPort`."""
        if self._unusable():
            self._report(self._refuse_all(items, _UNKNOWN))
            return
        try:
            self._client().commit(offsets=_client_items(items), asynchronous=True)
        except KafkaException as error:
            self._report(self._refuse_all(items, error))

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """See `GroupPort`.

        Guards against:
        1. A topic is deleted, or recreated with fewer partitions. The group leaves its partitions with the member.
        2. The member commits these and others. The coordinator accepts the others.
        3. The client raises one error for the whole commit. If nothing counted as accepted, no membership would be
           proven, no start position established, and a handover would be reported as a repeat.
        So a commit whose error may be about one of its partitions is sent again in halves, with the same offsets.
        """
        return self._commit(items)

    def _commit(self, items: Sequence[CommitItem]) -> CommitResult:
        if self._unusable():
            return self._refuse_all(items, _UNKNOWN)
        try:
            answers = self._client().commit(offsets=_client_items(items), asynchronous=False)
        except KafkaException as error:
            if len(items) == 1 or kafka_error(error).code() not in _OF_A_PARTITION:
                return self._refuse_all(items, error)
            half = len(items) // 2
            first, second = (self._commit(part) for part in (items[:half], items[half:]))
            return first.and_also(second)
        return self._result(items, answers or [])

    # --- callbacks

    def _guarded(self, callback: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            try:
                callback(*args)
            except BaseException as error:  # noqa: BLE001 - the client would turn it into a SystemError
                self._callback_error = self._callback_error or error

        return run

    def _raise_callback_error(self) -> None:
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error

    def _pass_on(self, callback: Callable[[Partitions], None], parts: list[ClientPartition]) -> None:
        # The next client handles assignments and revokes.
        if not self._unusable():
            callback(_partitions(parts))

    def _on_commit(self, error: KafkaError | None, parts: list[ClientPartition]) -> None:
        items = [CommitItem(TopicPartition(p.topic, p.partition), p.offset, p.metadata or "") for p in parts]
        if error is not None and not any(p.error for p in parts):
            self._report(self._refuse_all(items, KafkaException(error)))
        else:
            self._report(self._result(items, parts))

    def _on_client_error(self, error: KafkaError) -> None:
        self._transport(error)
        if error.code() == KafkaError._FATAL or error.fatal():
            self._on_fatal(error)
        elif self._transport.refused_for_good:
            self._listener.on_error(map_error(self._options, error, "connect", self._transport))

    def _on_statistics(self, text: str) -> None:
        statistics = json.loads(text)
        self._count_lost_answers(statistics.get("brokers", {}))
        group = statistics.get("cgrp")
        known = group is not None and group.get("state") == "up"
        if known:
            # The client is connected to its coordinator, so its identity was accepted.
            self._transport.worked()
            self._joining.saw(group.get("join_state", "steady"))
        if group is not None:
            self._listener.on_coordinator(known)

    def _count_lost_answers(self, brokers: Mapping[str, Any]) -> None:
        """Report requests to the coordinator that the client has given up, among them heartbeats (rule R84)."""
        # The coordinator is a broker of its own in the client's statistics.
        lost = sum(broker.get("req_timeouts", 0) for broker in brokers.values() if broker.get("source") == "logical")
        before, self._lost_answers = self._lost_answers, lost
        if lost > before:
            self._listener.on_answer_lost()

    def _on_poll_error(self, error: KafkaError) -> None:
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._on_fatal(error)
            return
        if error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            error = KafkaError(error.code(), f"{error.str()}; {others(self._options)}")
        group_error = map_group_error(self._options, error)
        if group_error is not None:
            self._listener.on_error(group_error)
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._listener.on_error(topics_denied(self._options, self._denied_topics(error)))
        elif self._logged.setdefault(str(error), Pace(self._clock, _LOG_INTERVAL_S)).due():
            if error.code() in _PASSING:
                LOG.info("member error, the client tries again: group=%s error=%s", self._options.group_id, error)
            else:
                LOG.warning("member error: group=%s error=%s", self._options.group_id, error)

    def _denied_topics(self, error: KafkaError | None) -> Collection[str]:
        """Return the topics that the client may not read; all if it names none. It reports each by its own error."""
        named = set[str]()
        while error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            named.update(_DENIED_TOPIC.findall(error.str() or ""))
            message = self._client().poll(0)
            error = message.error() if message is not None else None
        read = self._options.subscription
        return named or read.topics or [read.value]

    def _unusable(self) -> bool:
        """Return whether the client has become another member and keeps its old partitions. Report it once (rule R72).

        librdkafka reports lost partitions to dynamic members, but not to static ones.

        When a membership has ended, also by a session timeout, the client has no member id until it joins again:
        confluent-kafka returns None then. A closing client is not checked: it loses nothing that matters.

        Guards against (rule R72):
        1. A member sends a JoinGroup request, keeps its partitions and is cut off. Others read its partitions on.
        2. Its request is refused. The client joins as a new member without reporting it.
        3. It commits the old offsets under the new generation. Or it is fenced by itself.
        """
        asks = self._held_as and self._life is not _Life.UNUSABLE and not self._closing
        # R72: the client has become another member
        if asks and self._client().memberid() != self._held_as:
            self._report_unusable()
        return self._life is _Life.UNUSABLE

    def _report_unusable(self) -> None:
        self._life = _Life.UNUSABLE
        self._listener.on_unusable()

    def _on_fatal(self, error: KafkaError) -> None:
        """Handle an error after which the client is of no use.

        Guards against (rule R73):
        1. All members are cut off for longer than their sessions. Somebody deletes the empty group.
        2. librdkafka reports a fatal error: the query would end.

        Guards against:
        1. A member hands over for longer than `kafka.max.poll.interval.ms`, because its coordinator is away.
        2. The client leaves the group when that is over, and forgets that it is to join again
           (`rd_kafka_cgrp_consumer_reset`). Its next heartbeat has epoch 0, and not all that one needs to join.
        3. The coordinator refuses it as an invalid request, which is a fatal error: the query would end.
        """
        if self._unusable():
            return
        cause = _cause(error)
        if cause == KafkaError.UNRELEASED_INSTANCE_ID:
            if self._life is not _Life.UNRELEASED:
                self._life = _Life.UNRELEASED
                self._listener.on_instance_id_unreleased()
        # R73: a new client creates the group again, or joins it
        elif cause in _FORGOTTEN and self._life is _Life.JOINED:
            self._report_unusable()
        else:
            group, reason = self._options.group_id, error.str()
            mapped = map_group_error(self._options, KafkaError(cause, reason))
            self._listener.on_error(mapped or MembershipError(errors.MEMBER_FAILED, group=group, reason=reason))

    # --- helpers

    def _client(self) -> Consumer:
        if self._consumer is None:
            raise MembershipError(errors.MEMBER_FAILED, group=self._options.group_id, reason="its client is closed")
        return self._consumer

    def _report(self, result: CommitResult) -> None:
        self._listener.on_commit_result(result)

    def _mapped(self, error: KafkaException, request: str) -> errors.GroupKafkaError:
        return map_error(self._options, kafka_error(error), request, self._transport)

    def _refuse_all(self, items: Sequence[CommitItem], error: KafkaException) -> CommitResult:
        cause = kafka_error(error)
        refusal = classify_refusal(cause)
        refused = tuple((item, refusal) for item in items)
        return CommitResult(refused=refused, reason=cause.str(), error=denial(self._options, cause, items))

    def _result(self, items: Sequence[CommitItem], answers: Sequence[ClientPartition]) -> CommitResult:
        causes = {TopicPartition(answer.topic, answer.partition): answer.error for answer in answers if answer.error}
        refused = [(item, causes[item.partition]) for item in items if item.partition in causes]
        if len(refused) < len(items):
            self._transport.worked()
        denied = next((cause for _, cause in refused if cause.code() in DENIED), None)
        alike = [item for item, cause in refused if denied is not None and cause.code() == denied.code()]
        return CommitResult(
            acknowledged=tuple(item for item in items if item.partition not in causes),
            refused=tuple((item, classify_refusal(cause)) for item, cause in refused),
            reason=refused[0][1].str() if refused else "",
            error=None if denied is None else denial(self._options, denied, alike),
        )


def _cause(error: KafkaError) -> int:
    """Return the error code of the cause of a fatal error."""
    code: int = error.code()
    if code in _FATAL_TEXTS:
        return code
    return next((known for known, texts in _FATAL_TEXTS.items() if any(text in error.str() for text in texts)), code)


def _partitions(parts: Sequence[ClientPartition]) -> Partitions:
    return tuple(sorted(TopicPartition(part.topic, part.partition) for part in parts))


def _client_items(items: Sequence[CommitItem]) -> list[ClientPartition]:
    return [
        ClientPartition(
            item.partition.topic,
            item.partition.partition,
            item.offset,
            metadata=item.metadata,
            **({} if item.leader_epoch is None else {"leader_epoch": item.leader_epoch}),
        )
        for item in items
    ]
