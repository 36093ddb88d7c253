"""What the driver asks the cluster: stale metadata and brokers that are away are waited for, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Uuid,
)
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource.client.errors import CONTACT_TIMEOUT_S
from spark_groupsource.cluster.admin import OUTAGE_TIMEOUT_S, AdminRequests, LibrdkafkaCluster
from spark_groupsource.cluster.port import Edge, LogEnd, TopicInfo
from spark_groupsource.errors import CommandError, GroupKafkaError, KafkaUnavailableError
from spark_groupsource.model.offsets import NO_TOPIC_ID, TopicPartition
from tests.unit.fakes import ManualClock, make_options, tp


@dataclass
class Answer:
    offset: int
    leader_epoch: int = 3


def parts(count: int, leaderless: Collection[int] = ()) -> list[SimpleNamespace]:
    """Descriptions of partitions with their leaders."""
    return [SimpleNamespace(leader=None if number in leaderless else "node") for number in range(count)]


@dataclass
class FakeAdmin:
    """Answers `list_offsets` with the next error of the script, then with the offset."""

    errors: list[int] = field(default_factory=list)
    offset: int = 7
    timeouts_s: list[float] = field(default_factory=list)
    # How many partitions topics have, or the error of those that cannot be described.
    counts: dict[str, int | KafkaError] = field(default_factory=lambda: {tp(0).topic: 4})
    leaderless: set[int] = field(default_factory=set)
    described: int = 0

    times_destroyed: int = 0

    def poll(self, timeout_s: float) -> None:
        """Tells nothing."""

    def __exit__(self, *_: object) -> None:
        self.times_destroyed += 1

    @property
    def asked(self) -> int:
        return len(self.timeouts_s)

    def list_offsets(
        self, request: dict[ClientPartition, Any], *, request_timeout: float, **_: object
    ) -> dict[ClientPartition, Future[Answer]]:
        self.timeouts_s.append(request_timeout)
        code = self.errors.pop(0) if self.errors else None
        answers = {}
        for partition in request:
            future: Future[Answer] = Future()
            if code is None:
                future.set_result(Answer(self.offset))
            else:
                future.set_exception(KafkaException(KafkaError(code, "scripted")))
            answers[partition] = future
        return answers

    def list_topics(self, *, timeout: float) -> Any:
        topics = {}
        for name, count in self.counts.items():
            leaders = {number: SimpleNamespace(leader=-1 if number in self.leaderless else 0) for number in range(4)}
            topics[name] = SimpleNamespace(partitions=leaders, count=count)
        return SimpleNamespace(topics=topics)

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        self.described += 1
        described = {}
        for topic in topics.topic_names:
            count = self.counts.get(topic, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            described[topic] = future = Future[Any]()
            if isinstance(count, int):
                future.set_result(SimpleNamespace(topic_id="id", partitions=parts(count, self.leaderless)))
            else:
                future.set_exception(KafkaException(count))
        return described


class OnDemand(Future[Answer]):
    """A future that is answered when somebody waits for it."""

    def __init__(self, answer: Callable[[], None]) -> None:
        super().__init__()
        self._answer = answer

    def result(self, timeout: float | None = None) -> Answer:
        self._answer()
        return super().result(timeout)


@dataclass
class SlowAdmin(FakeAdmin):
    """Answers a request for offsets when its answer is waited for; the last one only once the topics are asked for.

    Like librdkafka, it may crash when offsets are asked for while the leaders are unknown.
    """

    sent: list[Future[Any]] = field(default_factory=list)
    controller_error: int | None = None
    leaders_known: bool = False
    listed: int = 0

    def list_topics(self, *, timeout: float) -> Any:
        self.listed += 1
        self.leaders_known = True
        partitions = {number: SimpleNamespace(leader=0) for number in range(2)}
        return SimpleNamespace(topics={tp(0).topic: SimpleNamespace(partitions=partitions)})

    def list_offsets(
        self, request: dict[ClientPartition, Any], *, request_timeout: float, **_: object
    ) -> dict[ClientPartition, Future[Answer]]:
        assert self.leaders_known, "SIGSEGV"
        answers: dict[ClientPartition, Future[Answer]] = {partition: OnDemand(self.answer) for partition in request}
        self.sent += answers.values()
        return answers

    def answer(self) -> None:
        asked = [(offset, future) for offset, future in enumerate(self.sent) if not future.done()]
        assert len(self.sent) < 3 or self.described > 1, "waits before all requests are on their way"
        for offset, future in asked:
            future.set_result(Answer(offset))

    topic_id: object = "id"

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        self.described += 1
        self.leaders_known |= self.controller_error is None
        described: Future[Any] = Future()
        if self.controller_error is None:
            described.set_result(SimpleNamespace(topic_id=self.topic_id, partitions=parts(2)))
        else:
            described.set_exception(KafkaException(KafkaError(self.controller_error)))
        return dict.fromkeys(topics.topic_names, described)


def cluster_of(admin: FakeAdmin, clock: ManualClock, abandoned: Callable[[], bool] = lambda: False) -> Any:
    return LibrdkafkaCluster(make_options(), clock, clock.advance, abandoned, lambda *_: admin)  # type: ignore[arg-type,return-value]


def requests_of(admin: FakeAdmin) -> AdminRequests:
    return AdminRequests(make_options(), ManualClock(), lambda *_: admin)  # type: ignore[arg-type,return-value]


def heal_after(seconds: float, cluster: Any, clock: ManualClock, heal: Callable[[], object]) -> None:
    """Let something heal later, while the cluster pauses between two requests."""
    healed_s = clock.monotonic_s() + seconds

    def pause(pause_s: float) -> None:
        clock.advance(pause_s)
        if clock.monotonic_s() > healed_s:
            heal()

    cluster._pause = pause


WANTED = {tp(0): Edge.LATEST}
FOUND = {tp(0): LogEnd(7, 3)}


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._NOENT, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._UNKNOWN_PARTITION,
        KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE,
    ],
)  # fmt: skip
def test_a_cut_connection_is_asked_again(code: int) -> None:
    """All connections are cut once: the client's own metadata request fails, and 'no leaders' are found.

    A group's coordinator that moves is no different.
    """
    admin = FakeAdmin([code] * 3)
    assert cluster_of(admin, ManualClock()).log_offsets(WANTED) == FOUND
    assert admin.asked == 4


def test_a_dead_controller_is_not_asked_for_ever() -> None:
    """The controller dies; the client asks it again and again, and a fresh one finds the new controller."""
    clock, stuck, fresh = ManualClock(), FakeAdmin([KafkaError._TIMED_OUT] * 1_000), FakeAdmin()
    clients: list[Any] = [stuck, fresh]
    cluster = LibrdkafkaCluster(make_options(), clock, clock.advance, make_client=lambda *_: clients.pop(0))
    assert cluster.log_offsets(WANTED) == FOUND
    assert (stuck.asked, fresh.asked) == (1, 1)


def test_a_dead_leader_is_not_taken_for_an_empty_log() -> None:
    """librdkafka has no error for it: as long as the client lives, the answer is the offset "invalid"."""
    clock, stuck, fresh = ManualClock(), FakeAdmin(offset=OFFSET_INVALID), FakeAdmin()
    clients: list[Any] = [stuck, fresh]
    cluster = LibrdkafkaCluster(make_options(), clock, clock.advance, make_client=lambda *_: clients.pop(0))
    assert cluster.log_offsets(WANTED) == FOUND
    assert (stuck.asked, fresh.asked) == (1, 1)


@pytest.mark.parametrize(
    ("isolation", "uncommitted", "expected"),
    [
        ("read_committed", False, IsolationLevel.READ_COMMITTED),
        ("read_committed", True, IsolationLevel.READ_UNCOMMITTED),
        ("read_uncommitted", False, IsolationLevel.READ_UNCOMMITTED),
    ],
)
def test_each_kind_of_offset_is_asked_for_with_the_isolation_level(
    isolation: str, uncommitted: bool, expected: IsolationLevel
) -> None:
    admin, clock, sent = FakeAdmin(), ManualClock(), []
    answer = admin.list_offsets

    def list_offsets(request: dict[ClientPartition, Any], *, isolation_level: IsolationLevel, **more: Any) -> Any:
        sent.append((isolation_level, [spec._value for spec in request.values()]))
        return answer(request, **more)

    admin.list_offsets = list_offsets  # type: ignore[method-assign]
    options = make_options(kafka__isolation__level=isolation)
    cluster: Any = LibrdkafkaCluster(options, clock, clock.advance, make_client=lambda *_: admin)  # type: ignore[arg-type,return-value]
    cluster.log_offsets({tp(0): Edge.EARLIEST, tp(1): Edge.LATEST, tp(2): 1_700}, uncommitted=uncommitted)
    assert sent == [(expected, [-2, -1, 1_700])]


def test_no_request_for_offsets_has_so_many_partitions_that_it_ends_while_it_is_being_sent() -> None:
    admin, clock, sizes = FakeAdmin(counts={tp(0).topic: 1200}), ManualClock(), []
    answer = admin.list_offsets

    def list_offsets(request: dict[ClientPartition, Any], **more: Any) -> Any:
        sizes.append(len(request))
        return answer(request, **more)

    admin.list_offsets = list_offsets  # type: ignore[method-assign]
    found = cluster_of(admin, clock).log_offsets({tp(number): Edge.LATEST for number in range(1200)})
    assert (sizes, len(found)) == ([500, 500, 200], 1200)


def test_a_request_is_repeated_as_often_as_it_may() -> None:
    admin, clock = FakeAdmin([KafkaError._TRANSPORT] * 3), ManualClock()
    options = make_options(fetchOffset__numRetries="2", fetchOffset__retryIntervalMs="250")
    cluster = LibrdkafkaCluster(options, clock, clock.advance, make_client=lambda *_: admin)  # type: ignore[arg-type,return-value]
    with pytest.raises(GroupKafkaError):
        cluster.log_offsets(WANTED)
    assert (admin.asked, clock.monotonic_s()) == (3, 1000.5)


@pytest.mark.parametrize(("answered", "bound_s"), [(False, CONTACT_TIMEOUT_S), (True, OUTAGE_TIMEOUT_S)])
def test_brokers_that_stay_away_are_an_error_in_bounded_time(answered: bool, bound_s: float) -> None:
    clock, admin = ManualClock(), FakeAdmin()
    cluster = cluster_of(admin, clock)
    if answered:
        cluster.log_offsets(WANTED)
    admin.errors = [KafkaError._TRANSPORT] * 10_000
    before_s = clock.monotonic_s()
    with pytest.raises(GroupKafkaError, match=rf"kafka\.bootstrap\.servers.* answered within {bound_s:.0f} s"):
        cluster.log_offsets(WANTED)
    assert bound_s <= clock.monotonic_s() - before_s < bound_s + 1


@pytest.mark.parametrize("code", [KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_stale_metadata_after_an_outage_is_waited_for(code: int) -> None:
    """1. Brokers are away for longer than metadata may be stale. 2. They are back, with other leaders."""
    clock, admin = ManualClock(), FakeAdmin()
    cluster = cluster_of(admin, clock)
    cluster.log_offsets(WANTED)
    admin.errors = [KafkaError._TRANSPORT] * 10_000

    def come_back() -> None:
        if len(admin.errors) > 10:
            admin.errors = [code, code]

    heal_after(CONTACT_TIMEOUT_S + 5, cluster, clock, come_back)
    assert cluster.log_offsets(WANTED) == FOUND
    cluster._pause = clock.advance
    admin.errors, before_s = [code] * 10_000, clock.monotonic_s()
    with pytest.raises(GroupKafkaError, match="ListOffsets"):
        cluster.log_offsets(WANTED)
    assert CONTACT_TIMEOUT_S <= clock.monotonic_s() - before_s < CONTACT_TIMEOUT_S + 1


def test_a_broker_that_stops_with_a_request_is_not_waited_for_for_long() -> None:
    """The client would wait for its answer until the request's time is over, also when it is back long before."""
    admin = FakeAdmin()
    cluster = cluster_of(admin, ManualClock())
    cluster.log_offsets(WANTED)
    admin.errors = [KafkaError._TIMED_OUT] * 4
    assert cluster.log_offsets(WANTED) == FOUND
    assert admin.timeouts_s == [CONTACT_TIMEOUT_S, 3.0, 6.0, 12.0, CONTACT_TIMEOUT_S, CONTACT_TIMEOUT_S]


class StoppedAdmin(FakeAdmin):
    """The process is stopped (SIGSTOP) with its first request on its way, which has timed out when it goes on."""

    clock: ManualClock

    def list_offsets(self, *args: Any, **named: Any) -> dict[ClientPartition, Future[Answer]]:
        if self.errors:
            self.clock.advance(3600.0)
        return super().list_offsets(*args, **named)


def test_a_process_that_was_stopped_has_not_waited_for_brokers() -> None:
    admin = StoppedAdmin()
    admin.clock = ManualClock()
    cluster = cluster_of(admin, admin.clock)
    cluster.log_offsets(WANTED)
    admin.errors = [KafkaError._TIMED_OUT]
    assert cluster.log_offsets(WANTED) == FOUND


def test_a_survey_asks_for_the_ends_alone_and_for_the_rest_at_once() -> None:
    survey = cluster_of(SlowAdmin(), ManualClock()).survey([tp(0), tp(1)])
    assert survey.ends == {tp(0): LogEnd(0, 3), tp(1): LogEnd(1, 3)}
    assert survey.beginnings == {tp(0): LogEnd(2, 3), tp(1): LogEnd(3, 3)}
    assert survey.topics == {tp(0).topic: TopicInfo("id", 2)}


@pytest.mark.parametrize(("known_id", "missing"), [("other", {tp(2)}), ("", {tp(2)}), ("id", set())])
@pytest.mark.rule("R40")
def test_no_topic_loses_partitions_a_broker_that_says_so_is_behind(known_id: str, missing: set[object]) -> None:
    """The topic has two partitions, for the broker that is asked."""
    cluster = cluster_of(SlowAdmin(), ManualClock())
    cluster.topics = lambda: {tp(0).topic: 2}
    assert cluster.missing_partitions({tp(1): "other", tp(2): known_id, tp(5, "gone"): "other"}) == missing
    assert cluster.missing_partitions({}) == set()


@pytest.mark.parametrize(("code", "goes_on"), [(KafkaError._TIMED_OUT, True), (KafkaError._AUTHENTICATION, False)])
def test_m09_plans_go_on_while_the_controller_is_away(code: int, goes_on: bool) -> None:
    """Topics are asked of the controller, which may be away when all leaders are there."""
    admin = SlowAdmin()
    cluster = cluster_of(admin, ManualClock())
    known = cluster.survey([tp(0)]).topics
    admin.sent.clear()
    admin.controller_error = code
    if goes_on:
        for listed, is_new in ((0, False), (1, True), (1, False)):
            # A survey waits for the controller once. Any broker tells the leaders to a new client.
            before, admin.leaders_known = admin.described, not is_new
            assert cluster.survey([tp(0)]).topics == known
            assert (admin.described, admin.listed) == (before + 1, listed)
        admin.controller_error = None
        cluster.survey([tp(0)])
        admin.controller_error = code
        assert cluster.survey([tp(0), tp(1)]).topics == known
        assert cluster.describe([tp(0).topic], or_known=True) == known
        admin.controller_error, admin.topic_id = None, "new"
        assert cluster.survey([tp(0)]).topics == {tp(0).topic: TopicInfo("new", 2)}
    else:
        with pytest.raises(GroupKafkaError):
            cluster.survey([tp(0)])


@pytest.mark.parametrize("code", [KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION])
@pytest.mark.parametrize("counts", [{}, {tp(0).topic: 1}], ids=["no topic", "fewer partitions"])
@pytest.mark.parametrize("request_", ["log_offsets", "survey"])
def test_p8_what_does_not_exist_is_not_waited_for_as_a_leader_is(
    request_: str, counts: dict[str, int | KafkaError], code: int
) -> None:
    """librdkafka returns "no leaders found" for leaders that are away, and for topics that do not exist."""
    clock, admin = ManualClock(), FakeAdmin(counts=counts)
    cluster = cluster_of(admin, clock)
    admin.errors = [code] * 10_000
    before_s = clock.monotonic_s()
    with pytest.raises(GroupKafkaError, match="TOPIC_UNKNOWN"):
        getattr(cluster, request_)({tp(1): Edge.LATEST})
    assert 3.0 <= clock.monotonic_s() - before_s < 4.0


def test_p8_a_broker_that_does_not_know_a_topic_yet_is_asked_again() -> None:
    """A broker has just started, and knows the topic two seconds later."""
    clock, admin = ManualClock(), FakeAdmin(counts={})
    cluster = cluster_of(admin, clock)
    admin.errors = [KafkaError.UNKNOWN_TOPIC_OR_PART] * 100

    def learn() -> None:
        admin.errors.clear()
        admin.counts[tp(0).topic] = 4

    heal_after(2.0, cluster, clock, learn)
    assert cluster.log_offsets(WANTED) == FOUND


@pytest.mark.parametrize("code", [KafkaError._NOENT, KafkaError._TRANSPORT])
def test_m09_the_leaders_of_what_may_exist_are_waited_for(code: int) -> None:
    """A leader is elected after more than a minute."""
    clock, admin = ManualClock(), FakeAdmin()
    cluster = cluster_of(admin, clock)
    cluster.log_offsets(WANTED)
    admin.errors, admin.leaderless = [code], {0}
    heal_after(70.0, cluster, clock, admin.leaderless.clear)
    assert cluster.log_offsets(WANTED) == FOUND
    assert admin.asked == 3


@pytest.mark.parametrize("wanted", [tp(1), tp(4), tp(0, "gone")], ids=["no leader", "no partition", "no topic"])
def test_offsets_are_asked_only_of_leaders_that_the_client_knows(wanted: TopicPartition) -> None:
    """1. A leader is unknown. 2. The request registers for the client's cache, which changes. 3. librdkafka crashes."""
    admin = FakeAdmin(leaderless={1})
    cluster = cluster_of(admin, ManualClock())
    assert cluster.log_offsets(WANTED) == cluster.log_offsets(WANTED) == FOUND
    assert (admin.asked, admin.described) == (2, 1)
    with pytest.raises(GroupKafkaError):
        cluster.log_offsets({wanted: Edge.LATEST})
    assert admin.asked == 2


@pytest.mark.parametrize("request_", ["log_offsets", "survey"])
def test_a_plan_waits_for_a_leader_and_its_error_names_the_partition(
    request_: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So do the lines of the wait. Brokers answer at once: not each of a thousand retries has a client of its own."""
    clock, admin = ManualClock(), FakeAdmin(leaderless={1})
    cluster = cluster_of(admin, clock)
    cluster.log_offsets(WANTED)
    before_s = clock.monotonic_s()
    with pytest.raises(GroupKafkaError, match=r"no leader: orders-1\b"):
        getattr(cluster, request_)({tp(0): Edge.LATEST, tp(1): Edge.LATEST})
    assert clock.monotonic_s() - before_s >= OUTAGE_TIMEOUT_S
    assert 10 < admin.times_destroyed < 30
    lines = [one.getMessage() for one in caplog.records]
    assert len(lines) > 10
    assert {line.partition("last_error=")[2] for line in lines} == {"partitions that have no leader: orders-1"}


def test_a_partition_that_does_not_exist_is_named() -> None:
    with pytest.raises(GroupKafkaError, match=r"TOPIC_UNKNOWN.*'orders-4'"):
        cluster_of(FakeAdmin(), ManualClock()).log_offsets({tp(4): Edge.LATEST})


@pytest.mark.parametrize("seen_in", ["descriptions", "the list of topics"])
def test_a_leader_that_another_answer_has_not_is_learned_again(seen_in: str) -> None:
    """1. A leader is known. 2. It goes away, and another answer tells the client so. 3. Offsets are asked for."""
    admin = FakeAdmin()
    cluster = cluster_of(admin, ManualClock())
    cluster.log_offsets(WANTED)
    admin.leaderless = {0}
    if seen_in == "descriptions":
        cluster.describe([tp(0).topic])
    else:
        cluster.topics()
    asked = admin.asked
    with pytest.raises(GroupKafkaError):
        cluster.log_offsets(WANTED)
    assert admin.asked == asked


def test_leaders_are_learned_again_after_an_error_and_after_minutes() -> None:
    clock, admin = ManualClock(), FakeAdmin()
    cluster = cluster_of(admin, clock)
    cluster.log_offsets(WANTED)
    admin.errors = [KafkaError.NOT_LEADER_FOR_PARTITION]
    cluster.log_offsets(WANTED)
    assert admin.described == 2
    clock.advance(301.0)
    cluster.log_offsets(WANTED)
    cluster.log_offsets(WANTED)
    assert admin.described == 3


def test_topics_that_may_not_be_described_are_an_error_at_once() -> None:
    clock, admin = ManualClock(), FakeAdmin()
    admin.counts |= dict.fromkeys(("orders", "refunds"), KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    admin.counts["other"] = 1
    before_s = clock.monotonic_s()
    with pytest.raises(GroupKafkaError, match=r"TOPIC_ACCESS_DENIED.* --topic 'orders' --topic 'refunds' --boot"):
        cluster_of(admin, clock).log_offsets(dict.fromkeys((tp(0), tp(0, "other"), tp(0, "refunds")), Edge.LATEST))
    assert (admin.asked, clock.monotonic_s()) == (0, before_s)


@pytest.mark.parametrize("count", [None, 1], ids=["no topic", "fewer partitions"])
def test_p8_a_deleted_topic_is_not_asked_where_its_log_was_truncated(count: int | None) -> None:
    """1. A leader moves. 2. The topic is deleted before the new leader is asked. 3. Nobody answers."""
    clock, admin = ManualClock(), FakeAdmin(counts={} if count is None else {tp(0).topic: count})
    cluster = cluster_of(admin, clock)
    cluster._probe = SimpleNamespace(diverged=lambda _left, timeout_s: (clock.advance(timeout_s), {})[1])
    before_s = clock.monotonic_s()
    with pytest.raises(GroupKafkaError, match="TOPIC_UNKNOWN"):
        cluster.diverged({tp(1): (10, 3)})
    assert clock.monotonic_s() - before_s < 10.0


def test_nobody_is_waited_for_once_the_query_stops() -> None:
    admin = FakeAdmin([KafkaError._TRANSPORT] * 10_000)
    with pytest.raises(GroupKafkaError):
        cluster_of(admin, ManualClock(), abandoned=lambda: True).log_offsets(WANTED)
    assert admin.asked == 1


def test_an_error_that_does_not_heal_is_reported_at_once() -> None:
    admin = FakeAdmin([KafkaError.TOPIC_AUTHORIZATION_FAILED] * 10)
    with pytest.raises(GroupKafkaError, match="TOPIC_ACCESS_DENIED"):
        cluster_of(admin, ManualClock()).log_offsets(WANTED)
    assert admin.asked == 1


def test_a_refused_identity_is_not_waited_for() -> None:
    """The client tells its errors only to who polls it, and the request itself is never answered."""

    class Refused(FakeAdmin):
        def poll(self, timeout_s: float) -> None:
            requests.transport(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))

    admin = Refused()
    requests = requests_of(admin)
    requests.client()
    with pytest.raises(KafkaException) as raised:
        requests.answer(Future())
    assert raised.value.args[0].code() == KafkaError._AUTHENTICATION
    assert "wrong password" in raised.value.args[0].str()
    assert admin.times_destroyed, "it would abort the process when a request about the group is answered too late"


def test_a_refused_identity_that_worked_before_may_heal() -> None:
    """A request takes longer than a moment, and meanwhile the provider of tokens is away: the answer still comes."""
    answer: Future[str] = Future()

    class Hiccup(FakeAdmin):
        def poll(self, timeout_s: float) -> None:
            requests.transport(KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: 404"))
            answer.set_result("there")

    requests = requests_of(Hiccup())
    requests.transport.worked()
    requests.client()
    assert requests.answer(answer) == "there"


def test_brokers_without_topic_ids_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    admin = SlowAdmin()
    cluster = cluster_of(admin, ManualClock())
    cluster.describe(["orders"])
    assert "no topic ids" not in caplog.text
    admin.topic_id = Uuid(0, 0)
    for _ in range(3):
        assert cluster.describe(["orders"])["orders"].topic_id == NO_TOPIC_ID
    assert caplog.text.count("no topic ids") == 1


@dataclass
class GroupAdmin(FakeAdmin):
    """Describes a group of two members, after the errors of the script. `target` is the target of both.

    The second member has the `instance_id`.
    """

    target: list[ClientPartition] | None = None
    state: ConsumerGroupState = ConsumerGroupState.STABLE
    type: ConsumerGroupType = ConsumerGroupType.CONSUMER
    instance_id: str | None = None

    def describe_consumer_groups(self, groups: list[str], *, request_timeout: float) -> dict[str, Future[Any]]:
        self.timeouts_s.append(request_timeout)
        future: Future[Any] = Future()
        if self.errors:
            future.set_exception(KafkaException(KafkaError(self.errors.pop(0))))
        else:
            parts = {
                "m": [ClientPartition("orders", 0), ClientPartition("orders", 2)],
                "n": [ClientPartition("orders", 1)],
            }
            members = [
                SimpleNamespace(
                    member_id=name,
                    group_instance_id=self.instance_id if name == "n" else None,
                    assignment=SimpleNamespace(topic_partitions=owned),
                    target_assignment=None if self.target is None else SimpleNamespace(topic_partitions=self.target),
                )
                for name, owned in parts.items()
            ]
            future.set_result(SimpleNamespace(members=members, state=self.state, type=self.type))
        return dict.fromkeys(groups, future)


@pytest.mark.parametrize(
    ("errors", "member_id", "found"),
    [
        ([], "m", {tp(0), tp(2)}),
        ([], "gone", None),
        ([KafkaError.NOT_COORDINATOR, KafkaError._TIMED_OUT], "n", {tp(1)}),
        ([KafkaError._UNSUPPORTED_FEATURE], "m", None),
        ([KafkaError.TOPIC_AUTHORIZATION_FAILED], "m", None),
    ],
)
def test_what_the_coordinator_has_assigned_to_a_member(errors: list[int], member_id: str, found: object) -> None:
    members = cluster_of(GroupAdmin(errors), ManualClock()).members("shop")
    assert (None if members is None else members.get(member_id)) == found


def test_partitions_that_a_member_is_to_give_up_are_not_its_own() -> None:
    admin = GroupAdmin(target=[ClientPartition("orders", 0), ClientPartition("orders", 3)])
    assert cluster_of(admin, ManualClock()).members("shop") == {"m": {tp(0)}, "n": set()}


@pytest.mark.rule("R118")
@pytest.mark.parametrize(
    ("state", "kind", "instance_id", "given"),
    [
        (ConsumerGroupState.STABLE, ConsumerGroupType.CONSUMER, None, {tp(1)}),
        (ConsumerGroupState.UNKNOWN, ConsumerGroupType.CONSUMER, None, set()),
        (ConsumerGroupState.UNKNOWN, ConsumerGroupType.CONSUMER, "static", {tp(1)}),
        (ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupType.CLASSIC, "static", set()),
    ],
)
def test_r118_partitions_count_when_all_members_have_confirmed_theirs(
    state: ConsumerGroupState, kind: ConsumerGroupType, instance_id: str | None, given: set[TopicPartition]
) -> None:
    """A member that was killed does not confirm. A static one that has stopped does not, either."""
    cluster = cluster_of(GroupAdmin(state=state, type=kind, instance_id=instance_id), ManualClock())
    assert (cluster.members("shop", confirmed=True) or {})["n"] == given
    assert (cluster.members("shop") or {})["n"] == {tp(1)}


@pytest.mark.parametrize("group", [" shop", "\tshop", "\nshop"])
def test_no_offsets_of_another_group_are_returned(group: str) -> None:
    """The exporter's pattern finds such a group, and librdkafka would ask for the group "shop"."""
    cluster = LibrdkafkaCluster(make_options(), ManualClock(), lambda _: None)
    with pytest.raises(CommandError, match=rf"GROUP_NOT_ADDRESSABLE.* of group '{group}'"):
        cluster.group_offsets(group, [tp(0)])
    cluster.close()


def test_a_client_whose_request_about_the_group_timed_out_is_destroyed() -> None:
    """It would abort the process when the coordinator is back, also if the request is not repeated."""
    clients = [GroupAdmin([KafkaError._TIMED_OUT]), GroupAdmin()]
    made = iter(clients)
    cluster = LibrdkafkaCluster(make_options(), ManualClock(), lambda _: None, make_client=lambda *_: next(made))  # type: ignore[arg-type]
    with pytest.raises(KafkaUnavailableError):
        cluster.members("shop", once=True)
    cluster.members("shop", once=True)
    assert [(client.asked, client.times_destroyed) for client in clients] == [(1, True), (1, False)]
