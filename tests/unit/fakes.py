"""Fakes that stand in for the clock, the group and the cluster. They keep state; nothing is patched."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from spark_groupsource import errors
from spark_groupsource.cluster.port import Edge, LogEnd, LogSurvey, TopicInfo
from spark_groupsource.errors import AccessError, GroupKafkaError, KafkaUnavailableError, MembershipError, OptionError
from spark_groupsource.executor.clients.error_events import reading_client_settings
from spark_groupsource.executor.clients.pure_python import PythonClient
from spark_groupsource.executor.range_consumer import RangeConsumer
from spark_groupsource.executor.topic_ids import AdminClients
from spark_groupsource.membership.events import (
    FlightBatch,
    Partitions,
)
from spark_groupsource.membership.port import CommitResult, MemberListener, Refusal
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import NextRecords, OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.options.model import SourceOptions, Subscription
from spark_groupsource.options.parse import parse_options

# How long a test waits for what comes at once: longer than a busy machine stands still.
WAIT_S = 60.0
TOPIC_ID = "topic-id-1"
LINEAGE = "11111111-1111-1111-1111-111111111111"
OTHER_LINEAGE = "22222222-2222-2222-2222-222222222222"


def tp(number: int, topic: str = "orders") -> TopicPartition:
    """Return a partition."""
    return TopicPartition(topic, number)


def make_options(**extra: str) -> SourceOptions:
    """Return checked options; a keyword's `__` stands for a dot, `kafka__client__id` is `kafka.client.id`."""
    raw = {"kafka.bootstrap.servers": "broker:9092", "kafka.group.id": "shop"}
    raw |= {name.replace("__", "."): value for name, value in extra.items()}
    if "subscribePattern" not in raw and "assign" not in raw:
        raw.setdefault("subscribe", "orders")
    return parse_options(raw)


def group_denied() -> AccessError:
    """Return the error of a client that may not use the group `shop`."""
    return AccessError(errors.GROUP_ACCESS_DENIED, login="no login", principal="User:ANONYMOUS", group="shop")


def offset_of(*ranges: OffsetRange, lineage: str = LINEAGE, done: Mapping[TopicPartition, int] = {}) -> SourceOffset:
    """Return a logged offset that holds these ranges."""
    topics = {item.partition.topic for item in ranges} | {partition.topic for partition in done}
    return SourceOffset.of(lineage, dict.fromkeys(topics, TOPIC_ID), ranges, done)


def flight(*ranges: OffsetRange, metadata: str = "m") -> FlightBatch:
    """Return a batch that reads these ranges and commits their ends."""
    items = tuple(CommitItem(item.partition, item.end, metadata) for item in ranges)
    return FlightBatch(offset_of(*ranges), items)


class ManualClock:
    """A clock that a test advances."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s
        self.suspended_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def boottime_s(self) -> float:
        return self.now_s + self.suspended_s

    def epoch_s(self) -> float:
        return 1_700_000_000.0 + self.boottime_s()

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def suspend(self, seconds: float) -> None:
        """Let the machine be suspended: its monotonic clock stands still."""
        self.suspended_s += seconds


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until the condition is true; fail after `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s"
        time.sleep(0.005)


def quiet_metrics() -> MetricsLog:
    """Return metrics that are written nowhere."""
    return MetricsLog(None, "shop", ManualClock())


class FakeGroup:
    """A `GroupPort` whose coordinator is a dict.

    A test posts what the group does next (`assign`, `revoke`, `lose`, ...); `poll` carries one of them out on the
    caller's thread, as a client does. `calls` records what was asked of the client, in order.
    """

    def __init__(self, *, incremental: bool = True) -> None:
        self.incremental = incremental
        self.committed: dict[TopicPartition, GroupOffset] = {}
        self.owned: set[TopicPartition] = set()
        self.calls: list[tuple[str, object]] = []
        self.refusals: deque[Refusal | None] = deque()
        self.unanswered_fetches = 0
        # Which partitions are there: commits of others are refused.
        self.exists: Callable[[TopicPartition], bool] = lambda _: True
        # How every commit is refused, as long as that is set.
        self.refuses: Refusal | None = None
        self.before_commit: Callable[[], object] = lambda: None
        self.close_error: Exception | None = None
        self.answer_commits = True
        self.revokes_when_closed = True
        self.in_generation = b"1"
        # The generation that the client joins as soon as it has accepted an assignment; empty: the same one.
        self.accepts_and_joins = b""
        self.member_id = "m"
        self._todo: deque[Callable[[], object]] = deque()
        self._changed = threading.Condition()
        self._rounds = 0
        self._listener: MemberListener | None = None

    # --- for the test

    def post(self, action: Callable[[], object]) -> None:
        """Let one of the next calls of `poll` do something."""
        self._todo.append(action)

    def join(self, generation: bytes) -> None:
        """Let the client be in another generation from the next poll on."""
        self.post(lambda: setattr(self, "in_generation", generation))

    def assign(self, *partitions: TopicPartition) -> None:
        """Let the group give partitions at the next poll."""
        self.post(lambda: self._on().on_assigned(partitions))

    def revoke(self, *partitions: TopicPartition) -> None:
        """Let the group ask for partitions at the next poll."""
        self.post(lambda: self._on().on_revoked(partitions))

    def lose(self, *partitions: TopicPartition) -> None:
        """Let the group take partitions at the next poll."""
        self.post(lambda: self._on().on_lost(partitions))

    def fail(self, error: GroupKafkaError) -> None:
        """Let the client report an error at the next poll."""
        self.post(lambda: self._on().on_error(error))

    def leave_instance_id_unreleased(self) -> None:
        """Let the coordinator refuse a static member at the next poll."""
        self.post(lambda: self._on().on_instance_id_unreleased())

    def become_another(self) -> None:
        """Let the client become another member, which has nothing, now."""
        self.owned.clear()
        self._on().on_unusable()

    def renew(self) -> None:
        """Let the client become another member at the next poll."""
        self.post(self.become_another)

    def raise_in_poll(self, error: Exception) -> None:
        """Let the next poll raise."""

        def run() -> None:
            raise error

        self.post(run)

    @property
    def waiting(self) -> int:
        """How many actions the next calls of `poll` carry out."""
        return len(self._todo)

    def named(self, name: str) -> list[object]:
        """What was given to all calls of this name."""
        with self._changed:
            return [given for called, given in self.calls if called == name]

    def fence(self, timeout_s: float = 0.05) -> bool:
        """Wait until the client has been asked for anything, or has been polled, once more; return whether it has."""
        with self._changed:
            before = self._rounds
            return self._changed.wait_for(lambda: self._rounds > before, timeout_s)

    def wait_for(self, what: str, predicate: Callable[[], bool]) -> None:
        """Wait until the client has been asked for something."""
        with self._changed:
            assert self._changed.wait_for(predicate, WAIT_S), f"waited {WAIT_S} s for {what}: {self.calls}"

    def tell_lost_answer(self) -> None:
        """Let the client give up a request to the coordinator."""
        self.post(lambda: self._on().on_answer_lost())

    # --- GroupPort

    @property
    def generation(self) -> bytes:
        return self.in_generation

    def open(self, listener: MemberListener) -> None:
        self._listener = listener
        self._record("open", None)

    def subscribe(self, topics: Sequence[str]) -> None:
        self._on()
        self._record("subscribe", tuple(topics))

    def poll(self) -> None:
        if self._todo:
            self._todo.popleft()()
        with self._changed:
            self._rounds += 1
            self._changed.notify_all()

    def accept(self, partitions: Partitions) -> None:
        self.owned |= set(partitions)
        self.in_generation = self.accepts_and_joins or self.in_generation
        self._record("accept", partitions)

    def stay_out(self) -> None:
        self._record("stay_out", None)

    def release(self, partitions: Partitions) -> None:
        self.owned -= set(partitions)
        self._record("release", partitions)

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        self._on()
        self._record("fetch", tuple(partitions))
        if self.unanswered_fetches > 0:
            self.unanswered_fetches -= 1
            return {}
        return {partition: self.committed.get(partition, GroupOffset(None)) for partition in partitions}

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        result = self._commit(items)
        self._record("commit_later", tuple(items))
        if self.answer_commits:
            self.post(lambda: self._on().on_commit_result(result))

    def answer_late(self, items: tuple[CommitItem, ...]) -> None:
        """Answer a commit that `answer_commits = False` has left without an answer."""
        self.post(lambda: self._on().on_commit_result(CommitResult(acknowledged=items)))

    def refuse_late(self, items: tuple[CommitItem, ...], refusal: Refusal) -> None:
        """Refuse a commit that `answer_commits = False` has left without an answer."""
        refused = tuple((item, refusal) for item in items)
        self.post(lambda: self._on().on_commit_result(CommitResult(refused=refused, reason=refusal.value)))

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        self.before_commit()
        result = self._commit(items)
        self._record("commit_now", tuple(items))
        return result

    def close(self) -> None:
        if self._listener is not None:
            listener, owned = self._listener, tuple(sorted(self.owned))
            if owned and self.revokes_when_closed:
                listener.on_revoked(owned)
            self._listener = None
            self._record("close", None)
            if self.close_error is not None:
                raise self.close_error

    # --- helpers

    def _commit(self, items: Sequence[CommitItem]) -> CommitResult:
        refusal = self.refusals.popleft() if self.refusals else self.refuses
        if refusal is not None:
            error = group_denied() if refusal is Refusal.DENIED else None
            return CommitResult(refused=tuple((item, refusal) for item in items), reason=refusal.value, error=error)
        taken = tuple(item for item in items if self.exists(item.partition))
        for item in taken:
            self.committed[item.partition] = GroupOffset(item.offset, item.metadata)
        refused = tuple((item, Refusal.NO_TOPIC) for item in items if not self.exists(item.partition))
        return CommitResult(taken, refused, Refusal.NO_TOPIC.value if refused else "")

    def _on(self) -> MemberListener:
        """Return the listener of a client that is open; a closed one refuses everything."""
        if self._listener is None:
            raise MembershipError(errors.MEMBER_FAILED, group="shop", reason="its client is closed")
        return self._listener

    def _record(self, name: str, given: object) -> None:
        with self._changed:
            self.calls.append((name, given))
            self._changed.notify_all()


class FakeMessage:
    """A client's message: a record, or an event when it has an error."""

    def __init__(self, partition: TopicPartition, offset: int, *, error: int | None = None) -> None:
        self._partition, self._offset = partition, offset
        self._error = None if error is None else KafkaError(error)
        self.stamp = (1, 1_700_000_000_000 + offset)
        self.extra: list[tuple[str, bytes | None]] | None = None

    def __len__(self) -> int:
        return 10

    def topic(self) -> str:
        return self._partition.topic

    def partition(self) -> int:
        return self._partition.partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes:
        return b"k%d" % self._offset

    def value(self) -> bytes | None:
        return b"v%d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return self.stamp

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self.extra


def records(number: int, *offsets: int) -> list[FakeMessage]:
    """Return records of a partition."""
    return [FakeMessage(tp(number), offset) for offset in offsets]


def eof(number: int, offset: int) -> FakeMessage:
    """Return an end-of-partition event."""
    return FakeMessage(tp(number), offset, error=KafkaError._PARTITION_EOF)


def unknown(number: int) -> FakeMessage:
    """Return the event of a partition that the client does not find any more."""
    return FakeMessage(tp(number), -1001, error=KafkaError.UNKNOWN_TOPIC_OR_PART)


def out_of_range(number: int, offset: int = -1001) -> FakeMessage:
    """Return the event of a position that the log does not have."""
    return FakeMessage(tp(number), offset, error=KafkaError._AUTO_OFFSET_RESET)


class FakeClient:
    """A `confluent_kafka.Consumer` of executors: hands out scripted batches; time passes when there are none.

    A batch is what arrives at once: a `receive` takes all of it, and never reaches into the next one.
    """

    def __init__(self, clock: ManualClock, *batches: list[FakeMessage]) -> None:
        self.clock = clock
        self.batches = deque(batches)
        self.bounds: dict[TopicPartition, tuple[int, int] | KafkaException] = {}
        self.assigned: list[list[tuple[TopicPartition, int]]] = []
        self.unassigned: list[list[TopicPartition]] = []
        self.asked: list[int] = []
        self.passed: dict[tuple[str, int], int] = {}
        self._current: list[FakeMessage] = []
        self.closed = 0
        # What every call takes, even one that brings something.
        self.slow_s = 0.0
        # Topics that the client may not know, and those that the broker does not know.
        self.denied: set[str] = set()
        self.unknown: set[str] = set()
        # Whether brokers answer requests about topics.
        self.answers = True
        # The ids that topics have now (one that is not there does not exist), and how often they were asked for.
        self.topic_ids: dict[str, str] = {"orders": TOPIC_ID}
        self.identified = 0
        # What the client tells of its connections (`range_consumer` sets it), and what happens before it delivers.
        self.error_cb: Callable[[KafkaError], object] = lambda _: None
        self.throttle_cb: Callable[[Any], object] = lambda _: None
        self.before: deque[Callable[[], object]] = deque()

    def incremental_unassign(self, partitions: list[ClientPartition]) -> None:
        self._current = []
        self.unassigned.append([TopicPartition(p.topic, p.partition) for p in partitions])

    def incremental_assign(self, partitions: list[ClientPartition]) -> None:
        self._current = []
        self.assigned.append([(TopicPartition(p.topic, p.partition), p.offset) for p in partitions])

    def consume(self, count: int, timeout_s: float) -> list[FakeMessage]:
        if timeout_s < 0.01 and self.asked:
            # The second half of a `receive`: what came with its first message.
            self.asked[-1] += count
            taken, self._current = self._current, []
            return taken
        self.asked.append(count)
        if self.before:
            self.before.popleft()()
        self.clock.advance(self.slow_s)
        if not self._current and not self.batches:
            self.clock.advance(timeout_s)
        elif not self._current:
            self._current = list(self.batches.popleft())
        taken, self._current = self._current[:count], self._current[count:]
        return taken

    def list_topics(self, topic: str, timeout_s: float) -> SimpleNamespace:
        if not self.answers:
            self.clock.advance(timeout_s)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))
        code = KafkaError.TOPIC_AUTHORIZATION_FAILED if topic in self.denied else None
        code = KafkaError.UNKNOWN_TOPIC_OR_PART if topic in self.unknown else code
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None if code is None else KafkaError(code))})

    def poll(self, timeout_s: float) -> None:
        """As an admin client: nothing to report."""

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, Future[Any]]:
        self.identified += 1
        return {name: self._described(name, request_timeout) for name in topics.topic_names}

    def _described(self, topic: str, timeout_s: float) -> Future[Any]:
        future: Future[Any] = Future()
        code = None if topic in self.topic_ids else KafkaError.UNKNOWN_TOPIC_OR_PART
        if not self.answers:
            self.clock.advance(timeout_s)
            code = KafkaError._TRANSPORT
        try:
            found = None if code is not None else SimpleNamespace(topic_id=self.topic_ids[topic])
        except KafkaUnavailableError:
            code = KafkaError._TRANSPORT
        if code is None:
            future.set_result(found)
        else:
            future.set_exception(KafkaException(KafkaError(code)))
        return future

    def position(self, partitions: list[ClientPartition]) -> list[ClientPartition]:
        return [
            ClientPartition(p.topic, p.partition, self.passed.get((p.topic, p.partition), -1001)) for p in partitions
        ]

    def get_watermark_offsets(self, partition: ClientPartition, timeout: float) -> tuple[int, int]:
        bounds = self.bounds.get(TopicPartition(partition.topic, partition.partition), (0, 1_000_000))
        if isinstance(bounds, KafkaException):
            raise bounds
        return bounds

    def close(self) -> None:
        self.closed += 1


def range_consumer(
    client: FakeClient,
    options: SourceOptions | None = None,
    max_bytes: int = 16 * 1024 * 1024,
    partitions: int = 1,
    *,
    bulk: bool = False,
    apart: Callable[[Callable[[], object]], None] = lambda end: end(),
) -> RangeConsumer:
    """Return a range consumer on a scripted client, which ends at once when it is closed."""
    options = options or make_options()

    def consumer(settings: dict[str, Any]) -> Any:
        client.error_cb, client.throttle_cb = settings["error_cb"], settings["throttle_cb"]
        return client

    def make(options: SourceOptions) -> PythonClient:
        settings = reading_client_settings(options, 8 * 1024 * 1024)
        return PythonClient(options, settings, consumer)

    admins = AdminClients(lambda *_: cast("AdminClient", client))
    return RangeConsumer(options, make, partitions, max_bytes, client.clock, bulk=bulk, apart=apart, admins=admins)


class FakeCluster:
    """A `ClusterPort` on dicts: topics, and the two ends of each partition's log."""

    def __init__(self, **partition_counts: int) -> None:
        self.topics = {topic: TopicInfo(TOPIC_ID, count) for topic, count in partition_counts.items()}
        self.ends: dict[TopicPartition, int] = {}
        self.beginnings: dict[TopicPartition, int] = {}
        # Where logs end that have an open transaction at `ends`.
        self.written: dict[TopicPartition, int] = {}
        self.groups: dict[str, dict[TopicPartition, int]] = {}
        self.at_time: dict[TopicPartition, int | None] = {}
        self.closed = False
        self.matching: tuple[str, ...] | None = None
        self.epoch = 3
        # Where a log was cut, for whoever has read further in an older epoch.
        self.cut: dict[TopicPartition, int] = {}
        self.sizes: dict[TopicPartition, float] = {}
        # What brokers tell of the session of a KIP-848 group, and which groups it was asked of.
        self.session_s: float | None = None
        self.session_asked: list[str] = []
        self.unavailable_coordinator: GroupKafkaError | None = None
        # The members of any group, and what the coordinator has assigned to them, by their topics' ids now. None if it
        # does not describe groups.
        self.group_members: dict[str, frozenset[TopicPartition]] | None = None

    def matching_topics(self, subscription: Subscription) -> tuple[str, ...]:
        if subscription.pattern is None:
            return subscription.topics
        return tuple(sorted(self.topics)) if self.matching is None else self.matching

    def describe(self, topics: Iterable[str], *, or_known: bool = False) -> dict[str, TopicInfo]:
        names = sorted(topics)
        for name in names:
            if name not in self.topics:
                raise OptionError(errors.TOPIC_UNKNOWN, option="subscribe", value=name, topic=name)
        return {name: self.topics[name] for name in names}

    def log_offsets(
        self, wanted: Mapping[TopicPartition, Edge | int], *, uncommitted: bool = False
    ) -> dict[TopicPartition, LogEnd | None]:
        found = {partition: self._log_offset(partition, edge) for partition, edge in wanted.items()}
        for partition in self.written.keys() & wanted.keys():
            edge, first = wanted[partition], found[partition]
            if uncommitted and edge is Edge.LATEST:
                found[partition] = LogEnd(self.written[partition])
            elif not uncommitted and isinstance(edge, int) and first and first.offset >= self.ends[partition]:
                found[partition] = None
        return found

    def survey(self, partitions: Iterable[TopicPartition]) -> LogSurvey:
        wanted = list(partitions)
        ends, beginnings = (self.log_offsets(dict.fromkeys(wanted, edge)) for edge in (Edge.LATEST, Edge.EARLIEST))
        return LogSurvey(ends, beginnings, self.describe({partition.topic for partition in wanted}))

    def group_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        held = self.groups.get(group, {})
        return {partition: held[partition] for partition in partitions if partition in held}

    def members(
        self, group: str, *, once: bool = False, confirmed: bool = False
    ) -> dict[str, frozenset[TopicPartition]] | None:
        if once and self.unavailable_coordinator is not None:
            raise self.unavailable_coordinator
        return self.group_members

    def group_session_s(self, group: str) -> float | None:
        self.session_asked.append(group)
        return self.session_s

    def missing_topics(self, topics: Iterable[str]) -> set[str]:
        return set(topics) - self.topics.keys()

    def missing_partitions(self, topic_ids: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        topics = {p: self.topics[p.topic] for p in topic_ids if p.topic in self.topics}
        absent = {p for p, topic in topics.items() if p.partition >= topic.partition_count}
        return {p for p in absent if topics[p].topic_id != topic_ids[p]}

    def diverged(self, positions: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int | None]:
        return {p: self.cut[p] if self.cut.get(p, offset) < offset else None for p, (offset, _) in positions.items()}

    def next_records(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, NextRecords]:
        return {p: NextRecords(at, self.sizes[p]) for p, at in positions.items() if p in self.sizes}

    def close(self) -> None:
        self.closed = True

    def has(self, partition: TopicPartition) -> bool:
        return partition.topic in self.topics and partition.partition < self.topics[partition.topic].partition_count

    def _log_offset(self, partition: TopicPartition, edge: Edge | int) -> LogEnd | None:
        topic = partition.topic
        if not self.has(partition):
            raise OptionError(errors.TOPIC_UNKNOWN, option="subscribe", value=topic, topic=topic)
        if edge is Edge.LATEST:
            return LogEnd(self.ends.get(partition, 0), self.epoch)
        if edge is Edge.EARLIEST:
            return LogEnd(self.beginnings.get(partition, 0))
        offset = self.at_time.get(partition)
        return None if offset is None else LogEnd(offset)
