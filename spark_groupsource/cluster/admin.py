"""Request topics, topic ids and partition offsets from the cluster, outside of the group.

The main thread of the reader process uses it, with its own client (the consumer belongs to the membership thread).
Every request has a time limit. Errors are those of the catalogue.

Guards against (rule R40):
1. Partitions are added to a topic, and one of them moves to another member.
2. The broker that is asked has not heard of the new partitions.
3. A loss would be reported, but Kafka never removes partitions of a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConsumerGroupDescription,
    ListOffsetsResultInfo,
    MemberAssignment,
    OffsetSpec,
    ResourceType,
    TopicDescription,
    TopicMetadata,
)

from spark_groupsource import errors
from spark_groupsource.client.errors import CONTACT_TIMEOUT_S, Patience, TransportState, kafka_error, map_error
from spark_groupsource.client.settings import FETCH_SETTINGS, creating_client, outsider_settings
from spark_groupsource.client.tokens import new_admin
from spark_groupsource.clock import Clock, Deadline, Pace, StepDeadline
from spark_groupsource.cluster.port import Edge, LogEnd, LogSurvey, TopicInfo, leaderless_reason
from spark_groupsource.cluster.probe import Probe
from spark_groupsource.errors import AccessError, KafkaUnavailableError
from spark_groupsource.model.offsets import NO_TOPIC_ID, NextRecords, TopicPartition, same_topic
from spark_groupsource.options.model import SourceOptions, Subscription

LOG = logging.getLogger(__name__)
T = TypeVar("T")

# More settings without meaning for an admin client; librdkafka would warn about them.
_CONSUMER_SETTINGS = r"isolation\.level|coordinator\.query\.interval\.ms|auto\..*|check\.crcs|client\.rack"
# Metadata may be older than a change of partitions or leaders: retried until the deadline.
_STALE_METADATA = {
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
}
# The connection or the brokers are unavailable for now. _NOENT means "no leader is known": the client's own metadata
# request failed.
_AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError._NOENT,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
# Time in seconds until an unknown topic or partition is an error. New partitions and moving leaders take longer.
_UNKNOWN_TOPIC_PATIENCE_S = 3.0
# Errors of the client for offsets of a partition that may not exist. _NOENT ("no leaders found") is ambiguous: the
# client returns it if none of the partitions of a request has a leader, because they do not exist or the leaders are
# down.
_MAY_NOT_EXIST = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT}
# Time in seconds that brokers which have answered before may be unavailable before the query fails, like
# kafkaConsumer.pollTimeoutMs for executors. A broker's restart or a leader election must not end a query.
OUTAGE_TIMEOUT_S = 120.0
# Timeout in seconds of one request to brokers that have answered before; doubled at each retry. If the broker stops,
# the client does not resend the request, but waits until the timeout.
_REQUEST_TIMEOUT_S = 3.0
# Partitions of one request for offsets. The client's time for a request grows with the square of their number.
_PARTITIONS_AT_ONCE = 500
# Interval in seconds at which a client is renewed while a partition has no leader: another broker may know it.
_RENEWAL_S = 5.0
# Longer than any single request.
_LONGEST_REQUEST_S = 2 * CONTACT_TIMEOUT_S
# Time limit in seconds of one read from logs.
_PROBE_TIMEOUT_S = 3.0
# Timeout in seconds of a request for topics' configurations, which nobody waits for again.
_CONFIGS_S = 5.0
# A group's configuration. If it is not set, the answer has the brokers' group.consumer.session.timeout.ms.
_SESSION_CONFIG = "consumer.session.timeout.ms"
# What an admin client caches is renewed by requests only (`learn_leaders`), before it is too old.
_CACHE_SETTINGS = {"topic.metadata.refresh.interval.ms": -1, "metadata.max.age.ms": 900_000}
_LEADERS_FRESH_S = 300.0
# Interval in seconds at which the client is polled for errors during a request.
_LISTEN_S = 0.25


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of `size`; the last one may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def admin_client(options: SourceOptions, transport: TransportState) -> AdminClient:
    """Create a client for requests outside of the group. Raises `OptionError` for a setting that it refuses."""
    settings = outsider_settings(options, "admin", FETCH_SETTINGS, _CONSUMER_SETTINGS)
    with creating_client(options):
        return new_admin(settings | _CACHE_SETTINGS | transport.callbacks)


class AdminRequests:
    """Own the client for requests outside of the group. Keep track of the partitions whose leaders it knows."""

    def __init__(
        self,
        options: SourceOptions,
        clock: Clock,
        make_client: Callable[[SourceOptions, TransportState], AdminClient] = admin_client,
    ) -> None:
        self.transport = TransportState(options.token_login, clock)
        self.patience = Patience(options, clock, self.transport)
        self._clock = clock
        self._make = partial(make_client, options, self.transport)
        self._made: AdminClient | None = None
        self._led: set[TopicPartition] = set()
        self._led_until = Deadline(clock, _LEADERS_FRESH_S)
        # False if `learn_leaders` had a question for the controller, the last time, and got no answer.
        self.controller_answers = True
        self._warned_without_ids = False

    def client(self) -> AdminClient:
        """Return the client; a new one after `forget`. Raises `OptionError` for a setting that it refuses."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def forget(self) -> None:
        """Destroy the client, after a request without an answer: it continues to ask brokers that are away.

        Guards against:
        1. The coordinator is away. A request about the group times out, and the client frees it.
        2. The client lives on: the future's error has a traceback, in whose frames the future and the client are.
        3. The coordinator is back, or another broker is the coordinator.
        4. librdkafka sends the request that it has freed (`rd_kafka_admin_coord_request`, 2.16): `abort` ends the
           process.
        """
        self.hear()
        if self._made is not None:
            self._made.__exit__(None, None, None)
        self._made = None
        self._led.clear()

    def hear(self) -> None:
        """Let the client report its errors and its log: it does so only while it is polled."""
        if self._made is not None:
            self._made.poll(0)

    def answer(self, future: Future[T], waits: Callable[[], object] = lambda: None) -> T:
        """Return the result of a request; call `waits` repeatedly until it arrives.

        Raises `KafkaException`; at once if the brokers reject the credentials for good. A client whose request is not
        waited for any longer is destroyed, see `forget`.
        """
        # The request has its own deadline. This one guards against a client that never completes the request.
        for _ in range(round((CONTACT_TIMEOUT_S + 10.0) / _LISTEN_S)):
            try:
                return future.result(timeout=_LISTEN_S)
            except FutureTimeout:
                self.hear()
                if self.transport.refused_for_good:
                    self.forget()
                    raise KafkaException(KafkaError(KafkaError._AUTHENTICATION, self.transport.text)) from None
                waits()
        self.forget()
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the request was not answered"))

    def doubt_leaders(self) -> None:
        """Learn the leaders anew before offsets are requested again."""
        self._led.clear()

    def saw(self, answer: Mapping[str, T], leaders: Callable[[T], list[bool]]) -> None:
        """Forget the leaders of partitions that have none by an answer, which the client has put into its cache."""
        known = {topic for topic, _ in self._led} & answer.keys()
        found = {topic: leaders(answer[topic]) for topic in known}
        self._led -= {
            (topic, number)
            for topic, number in self._led
            if topic in known and not any(found[topic][number : number + 1])
        }

    def result(self, future: Future[Any], *topics: str) -> Any:
        """Return the result of a request, which may be about topics. Raises `_TopicError`."""
        try:
            return self.answer(future, self.patience)
        except KafkaException as error:
            raise _TopicError(kafka_error(error), *topics) from None

    def described(self, futures: Mapping[str, Future[TopicDescription]]) -> dict[str, TopicDescription]:
        """Return the results of a request for topics.

        Raises `_TopicError`; for topics that the client may not describe, one that names all of them.
        """
        found: dict[str, TopicDescription] = {}
        denied: list[_TopicError] = []
        for name, future in futures.items():
            try:
                found[name] = self.result(future, name)
            except _TopicError as error:
                if error.cause.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise
                denied.append(error)
        if denied:
            raise _TopicError(denied[0].cause, *(topic for error in denied for topic in error.topics))
        return found

    def require_leaders(self, wanted: Iterable[TopicPartition], timeout_s: float) -> None:
        """Learn the leaders, see `learn_leaders`. Raises `_TopicError` if a partition has none."""
        leaderless = sorted(self.learn_leaders(wanted, timeout_s))
        if leaderless:
            raise _Leaderless(KafkaError(KafkaError._NOENT, leaderless_reason(leaderless)), leaderless[0].topic)

    def learn_leaders(self, wanted: Iterable[TopicPartition], timeout_s: float) -> set[TopicPartition]:
        """Describe the topics of which the client does not know all leaders, so that it has them in its cache.

        Return the partitions that have no leader. Raises `_TopicError` for a topic or partition that does not exist.

        Guards against:
        1. A topic is deleted, or its leader is away. The client's cache says so, or has no entry of the topic.
        2. A request for its offsets registers for changes of the cache, and uses its registration a little longer.
        3. The cache changes at that moment: metadata for another request arrives, or the entry is too old. librdkafka's
           main thread ends the request and frees it, while the calling thread still uses it
           (`rd_kafka_topic_partition_list_query_leaders_async`, 2.16): the process dies of SIGSEGV, or the request is
           never answered. A request for partitions whose leaders are all known registers for nothing.
        """
        self.controller_answers = True
        if self._led_until.expired():
            self._led.clear()
        wanted = [partition for partition in wanted if partition not in self._led]
        names = sorted({partition.topic for partition in wanted})
        if not names:
            return set()
        if not self._led:
            self._led_until = Deadline(self._clock, _LEADERS_FRESH_S)
        futures = self.client().describe_topics(TopicCollection(names), request_timeout=timeout_s)
        try:
            found = {name: _leaders_described(topic) for name, topic in self.described(futures).items()}
        except _TopicError as error:
            if error.cause.code() not in _AWAY:
                raise
            self.controller_answers = False
            found = self._listed(names, timeout_s)
        for partition in wanted:
            if partition.partition >= len(found[partition.topic]):
                raise _TopicError(KafkaError(KafkaError._UNKNOWN_PARTITION), str(partition))
        led = {partition for partition in wanted if found[partition.topic][partition.partition]}
        self._led |= led
        return set(wanted) - led

    def list_offsets(
        self, wanted: Mapping[ClientPartition, OffsetSpec], isolation: IsolationLevel, timeout_s: float
    ) -> dict[ClientPartition, Future[ListOffsetsResultInfo]]:
        """Request offsets of partitions whose leaders the client knows, of some hundred partitions at a time.

        Guards against:
        1. A request has 10,000 partitions. The client looks up their leaders in the calling thread, and compares each
           partition with those before it: on a busy machine that takes longer than the request's timeout.
        2. librdkafka's main thread ends the request and frees it, as in `learn_leaders`: the process aborts.
        """
        futures: dict[ClientPartition, Future[ListOffsetsResultInfo]] = {}
        for part in in_parts(wanted.items(), _PARTITIONS_AT_ONCE):
            futures |= self.client().list_offsets(dict(part), isolation_level=isolation, request_timeout=timeout_s)
        return futures

    def partition_counts(self, names: Iterable[str], timeout_s: float) -> dict[str, int]:
        """Return the partition counts of topics: 0 for a topic that does not exist.

        A topic that the client may not describe is left out, since it is unknown whether it exists.
        """
        futures = self.client().describe_topics(TopicCollection(sorted(names)), request_timeout=timeout_s)
        counts: dict[str, int] = {}
        for name, future in futures.items():
            try:
                counts[name] = len(self.result(future, name).partitions)
            except _TopicError as error:
                if error.cause.code() in _AWAY:
                    raise
                if error.cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    counts[name] = 0
                    self.doubt_leaders()
        return counts

    def configs(
        self, kind: ResourceType, names: Iterable[str], timeout_s: float
    ) -> dict[str, dict[str, str] | KafkaError]:
        """Return the configurations of topics or groups by name, or the error in place of one."""
        found: dict[str, dict[str, str] | KafkaError] = {}
        resources = [ConfigResource(kind, name) for name in names]
        for resource, future in self.client().describe_configs(resources, request_timeout=timeout_s).items():
            try:
                entries = self.answer(future)
                found[resource.name] = {name: entry.value or "" for name, entry in entries.items()}
            except KafkaException as error:
                found[resource.name] = kafka_error(error)
        return found

    def warn_without_ids(self, topics: Mapping[str, TopicInfo]) -> None:
        """Warn once of topics without an id."""
        without = sorted(name for name, info in topics.items() if info.topic_id == NO_TOPIC_ID)
        if without and not self._warned_without_ids:
            self._warned_without_ids = True
            LOG.warning(
                "the brokers report no topic ids (Kafka before 2.8, or another server): a topic that is deleted and"
                " recreated is not noticed, and its first records may be skipped; before you recreate a topic, stop"
                " the queries that read it and reset the group (docs/brokers.md): topics=%s",
                without[:10],
            )  # fmt: skip

    def _listed(self, names: Sequence[str], timeout_s: float) -> dict[str, list[bool]]:
        """Return for each partition of the topics whether it has a leader, as any broker says. It knows the controller.

        All topics are requested: brokers may create a topic that a request names.
        """
        try:
            topics = self.client().list_topics(timeout=timeout_s).topics
        except KafkaException as error:
            raise _TopicError(kafka_error(error)) from None
        absent = next((name for name in names if name not in topics), None)
        if absent is not None:
            raise _TopicError(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), absent)
        return {name: _leaders(topics[name]) for name in names}


def _leaders(topic: TopicMetadata) -> list[bool]:
    """Return for each partition of a topic whether it has a leader."""
    return [part.leader >= 0 for _, part in sorted(topic.partitions.items())]


def _leaders_described(topic: TopicDescription) -> list[bool]:
    """Return the same, from a description."""
    return [part.leader is not None for part in topic.partitions]


class LibrdkafkaCluster:
    """A `ClusterPort` on confluent-kafka's AdminClient.

    The first contact fails after `CONTACT_TIMEOUT_S`. Brokers that have answered once may be unavailable for
    `OUTAGE_TIMEOUT_S`, unless `abandoned` returns True because the caller no longer needs the result.
    """

    def __init__(
        self,
        options: SourceOptions,
        clock: Clock,
        pause: Callable[[float], object],
        abandoned: Callable[[], bool] = lambda: False,
        make_client: Callable[[SourceOptions, TransportState], AdminClient] = admin_client,
    ) -> None:
        self._options = options
        self._clock = clock
        self._pause = pause
        self._abandoned = abandoned
        self._admin = AdminRequests(options, clock, make_client)
        self.transport, self._patience = self._admin.transport, self._admin.patience
        self._probe = Probe(options, self.transport)
        self._answered = False
        self._topics: dict[str, TopicInfo] = {}  # as last returned

    def matching_topics(self, subscription: Subscription) -> tuple[str, ...]:
        """See `ClusterPort`."""
        if subscription.pattern is None:
            return subscription.topics
        return tuple(sorted(filter(subscription.includes, self.topics())))

    def topics(self) -> dict[str, int]:
        """Return all topics that the client may describe, with their partition counts."""

        def ask(timeout_s: float) -> dict[str, int]:
            deadline, client = Deadline(self._clock, timeout_s), self._admin.client()
            while True:
                try:
                    # Short requests, because the client reports rejected credentials only between them.
                    metadata = client.list_topics(timeout=min(timeout_s, _REQUEST_TIMEOUT_S))
                except KafkaException as error:
                    client.poll(0)
                    slow = kafka_error(error).code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
                    if not slow or deadline.expired() or self.transport.refused_for_good or self._abandoned():
                        raise _TopicError(kafka_error(error)) from None
                    # The client continues to connect meanwhile, which takes some round trips.
                    self._patience()
                    self._pause(self._options.fetch_retry_interval_s)
                else:
                    self._admin.saw(metadata.topics, _leaders)
                    return {name: len(topic.partitions) for name, topic in metadata.topics.items()}

        return self._asked("ListTopics", ask, CONTACT_TIMEOUT_S)

    def describe(self, topics: Iterable[str], *, or_known: bool = False) -> dict[str, TopicInfo]:
        """See `ClusterPort`."""
        names = sorted(topics)
        if not names:
            return {}

        def ask(timeout_s: float) -> dict[str, TopicInfo]:
            return self._topics_sent(names, timeout_s, or_known=or_known)()

        return self._asked("DescribeTopics", ask, _UNKNOWN_TOPIC_PATIENCE_S)

    def log_offsets(
        self, wanted: Mapping[TopicPartition, Edge | int], *, uncommitted: bool = False
    ) -> dict[TopicPartition, LogEnd | None]:
        """See `ClusterPort`."""

        def ask(timeout_s: float) -> dict[TopicPartition, LogEnd | None]:
            with self._checking_existence(wanted, timeout_s):
                self._admin.require_leaders(wanted, timeout_s)
                return self._offsets_sent(wanted, timeout_s, uncommitted=uncommitted)()

        return self._asked("ListOffsets", ask, CONTACT_TIMEOUT_S) if wanted else {}

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        """See `ClusterPort`."""
        wanted = list(partitions)
        names = sorted({partition.topic for partition in wanted})

        def ask(timeout_s: float) -> LogSurvey:
            """Request the ends first, then the rest in parallel."""
            with self._checking_existence(wanted, timeout_s):
                self._admin.require_leaders(wanted, timeout_s)
                ends = self._offsets_sent(dict.fromkeys(wanted, Edge.LATEST), timeout_s)()
                beginnings = self._offsets_sent(dict.fromkeys(wanted, Edge.EARLIEST), timeout_s)
                topics = self._topics_sent(names, timeout_s, or_known=True)
                return LogSurvey(ends, beginnings(), topics())

        return self._asked("ListOffsets", ask, CONTACT_TIMEOUT_S) if wanted else LogSurvey({}, {}, {})

    def log_bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (beginning, end) of the logs. Partitions that have no leader are left out, and not waited for."""
        wanted = list(partitions)

        def ask(timeout_s: float) -> dict[TopicPartition, tuple[int, int]]:
            with self._checking_existence(wanted, timeout_s):
                led = sorted(set(wanted) - self._admin.learn_leaders(wanted, timeout_s))
                ends = self._offsets_sent(dict.fromkeys(led, Edge.LATEST), timeout_s)()
                return _bounds(self._offsets_sent(dict.fromkeys(led, Edge.EARLIEST), timeout_s)(), ends)

        return self._asked("ListOffsets", ask, CONTACT_TIMEOUT_S) if wanted else {}

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """See `ClusterPort`."""
        wanted = list(partitions)

        def ask(timeout_s: float) -> dict[TopicPartition, int]:
            try:
                answers = self._probe.committed(group, wanted, timeout_s)
            except KafkaException as error:
                if kafka_error(error).code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    raise AccessError(errors.OTHER_GROUP_ACCESS_DENIED, group=group) from None
                raise _TopicError(kafka_error(error)) from None
            for part in answers:
                if part.error is not None:
                    raise _TopicError(part.error, part.topic)
            return {TopicPartition(part.topic, part.partition): part.offset for part in answers if part.offset >= 0}

        return self._asked("OffsetFetch", ask, CONTACT_TIMEOUT_S)

    def members(
        self, group: str, *, once: bool = False, confirmed: bool = False
    ) -> dict[str, frozenset[TopicPartition]] | None:
        """See `ClusterPort`."""

        def ask(timeout_s: float) -> dict[str, frozenset[TopicPartition]] | None:
            future = self._admin.client().describe_consumer_groups([group], request_timeout=timeout_s)[group]
            try:
                found = self._admin.result(future)
            except _TopicError as error:
                if error.cause.code() in _AWAY:
                    raise
                LOG.info("the group cannot be described: group=%s error=%s", group, error.cause.str())
                return None
            if confirmed and not _is_confirmed(found):
                return {str(each.member_id): frozenset() for each in found.members}
            return {str(each.member_id): _given(each.assignment, each.target_assignment) for each in found.members}

        return self._asked("ConsumerGroupDescribe", ask, CONTACT_TIMEOUT_S, retries=0 if once else None)

    def group_session_s(self, group: str) -> float | None:
        """See `ClusterPort`."""
        found = self._admin.configs(ResourceType.GROUP, [group], _REQUEST_TIMEOUT_S)[group]
        if isinstance(found, KafkaError):
            # A broker without the request is nothing to act on.
            level = logging.DEBUG if found.code() == KafkaError._UNSUPPORTED_FEATURE else logging.INFO
            LOG.log(level, "the group's configuration cannot be read: group=%s error=%s", group, found.str())
            return None
        value = found.get(_SESSION_CONFIG, "")
        return int(value) / 1000 if value.isdecimal() else None

    def topic_configs(self, topics: Iterable[str]) -> tuple[dict[str, dict[str, str]], bool]:
        """Return the configurations of topics that can be read, and whether all were answered. Nothing is retried."""
        answers = self._admin.configs(ResourceType.TOPIC, sorted(topics), _CONFIGS_S)
        refusals = [answer.code() for answer in answers.values() if isinstance(answer, KafkaError)]
        is_answered = not _AWAY.intersection(refusals)
        if self._answered and not is_answered:
            # Only such requests need the controller: this client would continue to ask one that is gone for good. A new
            # client may still be connecting.
            self._admin.forget()
        self._answered |= is_answered and bool(answers)
        return {topic: found for topic, found in answers.items() if not isinstance(found, KafkaError)}, is_answered

    def missing_topics(self, topics: Iterable[str]) -> set[str]:
        """See `ClusterPort`. Asks the controller, which may be down, only about topics that no broker lists."""
        names = set(topics)

        def confirmed(timeout_s: float) -> set[str]:
            return {name for name, count in self._admin.partition_counts(suspects, timeout_s).items() if count == 0}

        suspects = names - self.topics().keys() if names else set()
        return self._asked("DescribeTopics", confirmed, CONTACT_TIMEOUT_S) if suspects else set()

    def missing_partitions(self, topic_ids: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        """See `ClusterPort`. As for topics: brokers may list too few partitions for a while."""
        counts = self.topics() if topic_ids else {}
        suspects = {p for p in topic_ids if p.partition >= counts.get(p.topic, p.partition + 1)}
        topics = self.describe({partition.topic for partition in suspects})
        absent = {p for p in suspects if p.partition >= topics[p.topic].partition_count}
        # R40: the same topic never has fewer: the broker lags behind
        return {p for p in absent if not same_topic(topics[p.topic].topic_id, topic_ids[p])}

    def diverged(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int | None]:
        """See `ClusterPort`. Waits for unavailable leaders: only they know. Raises an error for a deleted topic."""
        found: dict[TopicPartition, int | None] = {}
        outage = StepDeadline(self._clock, OUTAGE_TIMEOUT_S, _LONGEST_REQUEST_S)
        while left := {partition: asked for partition, asked in positions.items() if partition not in found}:
            found |= self._probe.diverged(left, _PROBE_TIMEOUT_S)
            if silent := positions.keys() - found:
                # A deleted topic has no leader that could answer.
                self._asked("DescribeTopics", partial(self._check_exist, silent), _UNKNOWN_TOPIC_PATIENCE_S)
            if len(found) < len(positions) and (outage.expired() or self._abandoned()):
                reason = self.transport.text or f"{min(left)} did not answer within {OUTAGE_TIMEOUT_S:.0f} s"
                raise KafkaUnavailableError(
                    errors.CLUSTER_REQUEST_FAILED, request="OffsetForLeaderEpoch", reason=reason
                )
        return found

    def next_records(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, NextRecords]:
        """See `ClusterPort`."""
        return self._probe.next_records(positions, _PROBE_TIMEOUT_S)

    def close(self) -> None:
        """See `ClusterPort`."""
        self._admin.forget()
        self._probe.close()

    # --- helpers: send a request, and return a function that waits for the response

    def _topics_sent(
        self, names: Sequence[str], timeout_s: float, *, or_known: bool
    ) -> Callable[[], dict[str, TopicInfo]]:
        """Request topics. `or_known`: as last known, if other brokers have answered but the controller does not answer.

        A topic that was recreated meanwhile is noticed when the controller is back. What was read of it until then is
        read again from its beginning.
        """
        known = {name: self._topics[name] for name in names} if or_known and self._topics.keys() >= set(names) else {}
        if known and not self._admin.controller_answers:
            return lambda: known
        futures = self._admin.client().describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)

        def answers() -> dict[str, TopicInfo]:
            try:
                described = self._admin.described(futures)
            except _TopicError as error:
                if error.cause.code() not in _AWAY or not known:
                    raise
                # This client would continue to ask the dead controller.
                self._admin.forget()
                return known
            self._admin.saw(described, _leaders_described)
            found = {name: TopicInfo(str(one.topic_id), len(one.partitions)) for name, one in described.items()}
            self._topics |= found
            self._admin.warn_without_ids(found)
            return found

        return answers

    @contextmanager
    def _checking_existence(self, wanted: Iterable[TopicPartition], timeout_s: float) -> Iterator[None]:
        """Raise `_Absent` if a request for offsets fails because a topic or partition does not exist.

        Guards against:
        1. All partitions of a request belong to one topic.
        2. The topic is deleted.
        3. The client returns "no leaders found", as it does when the leaders are down.
        4. The request is repeated until the brokers count as unreachable.
        """
        try:
            yield
        except _TopicError as error:
            if error.cause.code() not in _MAY_NOT_EXIST:
                raise
            self._check_exist(wanted, timeout_s)
            raise

    def _check_exist(self, partitions: Iterable[TopicPartition], timeout_s: float) -> None:
        """Raise `_Absent` for the first partition that does not exist. A topic without a count may exist."""
        every = sorted(partitions)
        counts = self._admin.partition_counts({partition.topic for partition in every}, timeout_s)
        for partition in every:
            count = counts.get(partition.topic, partition.partition + 1)
            if partition.partition >= count:
                missing = str(partition) if count else partition.topic
                reason = "the topic or partition does not exist"
                raise _Absent(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, reason), missing) from None

    def _offsets_sent(
        self, wanted: Mapping[TopicPartition, Edge | int], timeout_s: float, *, uncommitted: bool = False
    ) -> Callable[[], dict[TopicPartition, LogEnd | None]]:
        """Request offsets. The client has learned the leaders."""
        committed = self._options.read_committed and not uncommitted
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        request = {ClientPartition(tp.topic, tp.partition): _spec(edge) for tp, edge in wanted.items()}
        futures = self._admin.list_offsets(request, isolation, timeout_s)

        def answers() -> dict[TopicPartition, LogEnd | None]:
            return {
                TopicPartition(part.topic, part.partition): _log_end(part, self._admin.result(future, part.topic))
                for part, future in futures.items()
            }

        return answers

    def _asked(self, request: str, ask: Callable[[float], T], stale_s: float, *, retries: int | None = None) -> T:
        """Send a request; repeat it while metadata is stale (for `stale_s`), or while the brokers are unavailable.

        `retries`: how often at most; None for option fetchOffset.numRetries.

        Guards against:
        1. Brokers are away for 25 s. One comes back, and leaders have changed.
        2. Its first answer is that the client's metadata is stale.
        3. If the time for stale metadata had begun with the request, it would be over: the query would fail.
        """
        stale: Deadline | None = None
        outage = StepDeadline(
            self._clock, OUTAGE_TIMEOUT_S if self._answered else CONTACT_TIMEOUT_S, _LONGEST_REQUEST_S
        )
        absent: Deadline | None = None
        timeout_s = _REQUEST_TIMEOUT_S if self._answered else CONTACT_TIMEOUT_S
        left, begun_s = self._options.fetch_retries if retries is None else retries, self._clock.monotonic_s()
        # Brokers report at once that there is no leader: without a pace, each retry would connect anew.
        renewal = Pace(self._clock, _RENEWAL_S)
        self._patience.begin()
        while True:
            try:
                answer = ask(timeout_s)
            except _TopicError as error:
                self._admin.hear()
                self._admin.doubt_leaders()
                stale = (stale or Deadline(self._clock, stale_s)) if error.cause.code() in _STALE_METADATA else None
                # A broker that has just started may not know all topics yet.
                patient = Deadline(self._clock, _UNKNOWN_TOPIC_PATIENCE_S)
                absent = (absent or patient) if isinstance(error, _Absent) else None
                leaderless = isinstance(error, _Leaderless)
                if error.cause.code() in _AWAY and (renewal.due() or not leaderless):
                    # A client continues to ask the controller and the leaders that it knows, also dead ones.
                    self._admin.forget()
                if left == 0 or not self._may_heal(error.cause, absent or stale, outage):
                    waited_s = self._clock.monotonic_s() - begun_s
                    raise map_error(
                        self._options, error.cause, request, self.transport, error.topics, waited_s=waited_s
                    ) from None
                self._patience(error.cause.str() if leaderless else "")
                left = None if left is None else left - 1
                timeout_s = min(2 * timeout_s, CONTACT_TIMEOUT_S)
                self._pause(self._options.fetch_retry_interval_s)
            else:
                self._answered = True
                self.transport.worked()
                return answer

    def _may_heal(self, cause: KafkaError, stale: Deadline | None, outage: StepDeadline) -> bool:
        """Return whether to ask again. `stale`: the time for stale metadata, if the error says that it is."""
        if self.transport.refused_for_good or self._abandoned():
            return False
        if stale is not None:
            return not stale.expired()
        return cause.code() in _AWAY and not outage.expired()


class _TopicError(Exception):
    """A client's error, to be retried or mapped. `topics` are those that it is about, as far as is known."""

    def __init__(self, cause: KafkaError, *topics: str) -> None:
        super().__init__(cause.str())
        self.cause = cause
        self.topics = topics or ("?",)


class _Leaderless(_TopicError):
    """Brokers report that a partition has no leader."""


class _Absent(_TopicError):
    """The cluster reports that a topic or one of its partitions does not exist."""


def _is_confirmed(group: ConsumerGroupDescription) -> bool:
    """Return whether all members have confirmed their newest assignments, except static members under KIP-848.

    The client knows no name for the state of a KIP-848 group in which one has not (librdkafka 2.16).
    """
    is_static = any(each.group_instance_id for each in group.members)
    return (is_static and group.type is ConsumerGroupType.CONSUMER) or group.state is ConsumerGroupState.STABLE


def _given(assignment: MemberAssignment, target: MemberAssignment | None) -> frozenset[TopicPartition]:
    """Return a member's partitions that it is to keep.

    Kafka 4.4 shows those that the member is to give up in its assignment, until it has done so. They are not in its
    target, which a group of a classic protocol does not have.
    """
    given = frozenset(TopicPartition(part.topic, part.partition) for part in assignment.topic_partitions)
    if target is None:
        return given
    return given & {TopicPartition(part.topic, part.partition) for part in target.topic_partitions}


def _spec(edge: Edge | int) -> Any:
    spec: Any = OffsetSpec
    if edge is Edge.EARLIEST:
        return spec.earliest()
    return spec.latest() if edge is Edge.LATEST else spec.for_timestamp(edge)


def _bounds(
    beginnings: Mapping[TopicPartition, LogEnd | None], ends: Mapping[TopicPartition, LogEnd | None]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return (beginning, end) of the logs of which both are known."""
    edges = ((partition, beginning, ends[partition]) for partition, beginning in beginnings.items())
    return {partition: (low.offset, high.offset) for partition, low, high in edges if low and high}


def _log_end(part: ClientPartition, answer: Any) -> LogEnd | None:
    if answer.offset == OFFSET_INVALID:
        # The client returns this, without an error, if the leader that it knows is dead, and continues to ask that one.
        reason = f"the leader of {part.topic}-{part.partition} did not answer"
        raise _TopicError(KafkaError(KafkaError._TIMED_OUT, reason), part.topic)
    if answer.offset < 0:
        return None
    epoch = getattr(answer, "leader_epoch", None)
    return LogEnd(answer.offset, epoch if epoch is not None and epoch >= 0 else None)
