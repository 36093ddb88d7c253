"""The group's coordinator fails in every phase of a rebalance, during a handover, and for real.

Two queries of one group, on a real broker behind a proxy that cuts their connections to it. Whatever is cut:

F1 the group converges: two members share the partitions
F2 every record is in a completed batch, and the group's offsets come to the log's end
F3 the group's offsets never go back
F4 no record is in two completed batches of one query
F5 a clean handover repeats nothing; a batch whose commit was cut is repeated at most once
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from spark_groupsource.membership.lock_states import LockState
from spark_groupsource.membership.owner_lock import OwnerLock, lock_options
from tests.faults.observe.describer import Describer
from tests.realkafka.groupwire import acknowledges, joins, parse_heartbeat
from tests.realkafka.proxy import Action, Api, KafkaProxy, On, Rule
from tests.realkafka.realkafka import RealKafka, RealKafkaError
from tests.realkafka.wire import Request

from .application import Application, AppQuery
from .harness import Independent, Record, wait_for
from .holding import Events, Gate, OffsetWatch, held_before_plan, released
from .test_takeover import PROTOCOLS, with_protocol

pytestmark = pytest.mark.kafka

PARTITIONS = 4
WAIT_S = 90.0
MEMBERS = ("first", "second")


@pytest.fixture(scope="module")
def kafka() -> Iterator[RealKafka]:
    """One real broker behind a proxy."""
    with RealKafka(proxied=True) as broker:
        yield broker


class Producing:
    """Produces to every partition all the time, so that there is always a batch to hand over."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        self._topic = topic
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            for number in range(PARTITIONS):
                self._producer.produce(self._topic, b"x", partition=number)
            self._producer.poll(0)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0


@dataclass
class Group:
    """Two queries of one group, and what an independent client sees of them."""

    application: Application
    client: Independent
    options: Mapping[str, str]
    topic: str
    name: str
    folder: Path

    def __post_init__(self) -> None:
        self.events = {name: Events(self.folder, name) for name in MEMBERS}
        self.queries: dict[str, AppQuery] = {}

    def start(self, name: str, batch: Callable[..., object] | None = None) -> AppQuery:
        """Start one of the queries."""
        options = {**self.options, **self.events[name].options}
        self.queries[name] = self.application.start_query(name, options, batch=batch)
        return self.queries[name]

    def start_first(self, batch: Callable[..., object] | None = None) -> AppQuery:
        """Start the first query and wait until it owns and has read everything."""
        self.client.produce(self.topic, (str(n) for n in range(40)), PARTITIONS)
        query = self.start("first", batch)
        query.wait_for_records(self.client.records(self.topic))
        self.wait_shared([PARTITIONS])
        return query

    def hold_batch(self, gate: Gate) -> None:
        """Produce what the first query's next batch has, and wait until the gate holds it."""
        wait_for("lag 0", lambda: self.client.lag(self.name, self.topic) == 0, WAIT_S, self.evidence)
        with held_before_plan("first", self.evidence):
            gate.armed = True
            self.client.produce(self.topic, (str(n) for n in range(40)), PARTITIONS)
        gate.wait_reached(self.evidence)

    def wait_shared(self, sizes: list[int]) -> None:
        """F1: wait until the members own so many partitions each, and all of them once."""

        def shared() -> bool:
            self.check()
            assigned = self.client.members(self.name)
            return sorted(map(len, assigned)) == sizes and len(set().union(*assigned)) == PARTITIONS

        wait_for(f"members with {sizes} partitions", shared, WAIT_S, self.evidence)

    def check(self) -> None:
        """Fail with a query's error when one has ended."""
        for query in self.queries.values():
            query.check()

    def evidence(self) -> str:
        """What the members tell, and who owns what."""
        return f"{self.client.members(self.name)}\n{self.client.committed(self.name)}\n{self.told_so_far()}"

    def told_so_far(self) -> str:
        """What the members tell."""
        return "\n".join(f"--- {name}\n{self.events[name].tail()}" for name in self.queries)

    def completed(self) -> set[Record]:
        """Return the records in completed batches of either query."""
        self.check()
        return {record for query in self.queries.values() for record in query.completed_records()}

    def wait_done(self) -> set[Record]:
        """F2, F4: wait until all is read and committed; return the records that both queries have completed."""
        wanted = self.client.records(self.topic)

        wait_for("every record in a completed batch", lambda: wanted <= self.completed(), WAIT_S, self.evidence)
        wait_for("lag 0", lambda: self.client.lag(self.name, self.topic) == 0, WAIT_S, self.evidence)
        assert self.client.committed(self.name) == self.client.ends(self.topic)
        for name, query in self.queries.items():
            twice = [record for record, times in query.completed_records().items() if times > 1]
            assert twice == [], f"{name} completed records twice"
        first, second = (set(self.queries[name].completed_records()) for name in MEMBERS)
        return first & second


@pytest.fixture
def make_group(
    application: Application, kafka: RealKafka, client: Independent, options: dict[str, str], topic: str, group: str,
    tmp_path: Path,
) -> Callable[[str], Group]:  # fmt: skip
    """Return a maker of groups for a protocol; its members are behind the proxy."""

    def make(protocol: str) -> Group:
        client.create_topic(topic, PARTITIONS)
        chosen = with_protocol(options, protocol) | {"kafka.bootstrap.servers": kafka.proxied_servers}
        return Group(application, client, chosen, topic, group, tmp_path)

    return make


@pytest.fixture
def proxy(kafka: RealKafka) -> Iterator[KafkaProxy]:
    """Return the proxy; the test's rules end with it."""
    yield kafka.proxy
    kafka.proxy.clear()


# --- the five phases of a rebalance


def _just_beats(request: Request) -> bool:
    heartbeat = parse_heartbeat(request)
    return heartbeat.member_epoch > 0 and heartbeat.owned is None


def classic_rules(proxy: KafkaProxy, phase: str) -> list[Rule]:
    """Return what cuts both members once in a phase, as a coordinator does that dies."""
    on = On.RESPONSE if phase.startswith("after") else On.REQUEST
    if phase.endswith("join"):
        # A newcomer's first JoinGroup only fetches its member id.
        skips = {"first": 0, "second": 1}
        return [Rule(Api.JOIN_GROUP, client=f"{name}-member", on=on, skip=skips[name]) for name in MEMBERS]
    if phase.endswith("sync"):
        return [Rule(Api.SYNC_GROUP, client=f"{name}-member", on=on) for name in MEMBERS]
    synced = {name: proxy.seen(Api.SYNC_GROUP, f"{name}-member") for name in MEMBERS}

    def heartbeat(name: str) -> Rule:
        client = f"{name}-member"
        return Rule(Api.HEARTBEAT, client=client, where=lambda _: proxy.seen(Api.SYNC_GROUP, client) > synced[name])

    return [heartbeat(name) for name in MEMBERS]


def kip848_rules(_proxy: KafkaProxy, phase: str) -> list[Rule]:
    """Return the same for KIP-848: the newcomer joins, the other acknowledges a revoke, the newcomer an assignment."""
    on = On.RESPONSE if phase.startswith("after") else On.REQUEST
    where = {"join": joins, "sync": acknowledges, "heartbeat": _just_beats}[phase.rpartition(" ")[2]]
    names = {"join": ["second"], "sync": ["first", "second"], "heartbeat": ["second"]}[phase.rpartition(" ")[2]]
    return [Rule(Api.CONSUMER_GROUP_HEARTBEAT, client=f"{name}-member", on=on, where=where) for name in names]


@pytest.mark.parametrize(
    "phase", ["before join", "after join", "before sync", "after sync", "before the first heartbeat"]
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_coordinator_fails_in_a_phase_of_a_rebalance(
    protocol: str, phase: str, make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    group = make_group(protocol)
    group.start_first()
    rules = (kip848_rules if protocol == "kip848" else classic_rules)(proxy, phase)
    with OffsetWatch(group.client, group.name) as watch:
        with Producing(group.client.bootstrap_servers, group.topic):
            for rule in rules:
                proxy.add(rule)
            second = group.start("second")
            for rule in rules:
                rule.wait_fired(WAIT_S)
            group.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
            wait_for("records in the second", second.completed_records, WAIT_S, group.evidence)
        repeated = group.wait_done()
    assert watch.went_back == []
    assert repeated == set()


@pytest.mark.rule("R84")
def test_an_answer_with_a_revoke_comes_too_late_for_the_client(
    make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    """1. The second member joins. 2. The first one's answers, which take partitions from it, take 2.5 s, and its
    heartbeat interval is 1 s. 3. The coordinator does not repeat what it has said.
    """
    group = make_group("kip848")
    group.start_first()
    late = late_answers("first-member", times=2)
    with OffsetWatch(group.client, group.name) as watch:
        with Producing(group.client.bootstrap_servers, group.topic):
            second = group.start("second")
            wait_for("the second to join", lambda: proxy.seen(Api.CONSUMER_GROUP_HEARTBEAT, "second-member"), WAIT_S)
            proxy.add(late)
            late.wait_fired(WAIT_S)
            group.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
            wait_for("records in the second", second.completed_records, WAIT_S, group.evidence)
        repeated = group.wait_done()
    assert watch.went_back == []
    assert repeated == set()


def test_an_answer_with_a_first_assignment_comes_too_late_for_the_client(
    make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    """1. The second member joins, and waits for the first one's batch. 2. The batch is complete, and the answers to the
    second one, of which one gives it its partitions, take 2.5 s.
    """
    group = make_group("kip848")
    gate = Gate()
    group.start_first(gate)
    with released(gate), OffsetWatch(group.client, group.name) as watch:
        group.hold_batch(gate)
        second = group.start("second")
        group.events["first"].wait_for("revoking")
        late = proxy.add(late_answers("second-member", times=6))
        gate.release()
        late.wait_fired(WAIT_S)
        group.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
        group.client.produce(group.topic, (str(n) for n in range(40)), PARTITIONS)
        wait_for("records in the second", second.completed_records, WAIT_S, group.evidence)
        repeated = group.wait_done()
    assert watch.went_back == []
    assert repeated == set()


def test_m21_the_broker_sets_the_interval_of_heartbeats(make_group: Callable[[str], Group], proxy: KafkaProxy) -> None:
    """The group's configuration says 1 s, and then 5 s: the member learns it from the answers."""
    group = make_group("kip848")
    group.client.set_group_session_timeout(group.name, 45_000, heartbeat_ms=1_000)
    group.start_first()

    def three_take_s() -> float:
        """Return how long three heartbeats take: two intervals at least."""
        before, since_s = proxy.seen(Api.CONSUMER_GROUP_HEARTBEAT, "first-member"), time.monotonic()
        wait_for("heartbeats", lambda: proxy.seen(Api.CONSUMER_GROUP_HEARTBEAT, "first-member") >= before + 3, 60)
        return time.monotonic() - since_s

    wait_for("an interval of 1 s", lambda: 1.5 < three_take_s() < 8.0, 60)
    group.client.set_group_session_timeout(group.name, 45_000, heartbeat_ms=5_000)
    # With the next answer after the coordinator has learned it.
    wait_for("an interval of 5 s", lambda: three_take_s() > 9.0, 60)


def late_answers(client: str, times: int) -> Rule:
    """Return a rule: so many answers to heartbeats take longer than the client waits for them."""
    return Rule(
        Api.CONSUMER_GROUP_HEARTBEAT, client=client, on=On.RESPONSE, action=Action.DELAY, delay_s=2.5, times=times
    )


# --- the commit of a handover


def commit_rule(fault: str) -> Rule:
    """Return what happens to the next commit of the first member."""
    client = "first-member"
    if fault == "response late":
        # Longer than the interval of heartbeats, shorter than the session and than a handover's patience.
        return Rule(Api.OFFSET_COMMIT, client=client, on=On.RESPONSE, action=Action.DELAY, delay_s=2.0)
    return Rule(Api.OFFSET_COMMIT, client=client, on=On.RESPONSE if fault == "response cut" else On.REQUEST)


@pytest.mark.parametrize("fault", ["request cut", "response cut", "response late"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R28")
def test_the_commit_of_a_handover_fails(
    protocol: str, fault: str, make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    group = make_group(protocol)
    gate = Gate()
    first = group.start_first(gate)
    with released(gate), OffsetWatch(group.client, group.name) as watch:
        group.hold_batch(gate)
        held = set(first.records()) - set(first.completed_records())
        second = group.start("second")
        group.events["first"].wait_for("revoking")
        assert held.isdisjoint(second.records())
        rule = proxy.add(commit_rule(fault))
        gate.release()
        rule.wait_fired(WAIT_S)
        group.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
        group.client.produce(group.topic, (str(n) for n in range(40)), PARTITIONS)
        repeated = group.wait_done()
    assert held
    assert watch.went_back == []
    # The commit is tried again, so that not even the one whose answer was lost is repeated.
    assert repeated == set()


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.rule("R14")
def test_a_commit_that_the_coordinator_reads_late_moves_nothing_back(
    protocol: str, make_group: Callable[[str], Group], proxy: KafkaProxy
) -> None:
    """1. The connection with the first batch's commit stands still, and the client gives it up. 2. The second batch
    completes. 3. A commit goes over a new connection. 4. The coordinator reads the old connection.
    """
    group, client = make_group(protocol), "first-member"
    group.options = {**group.options, "kafka.socket.timeout.ms": "3000"}
    if protocol != "kip848":  # heartbeats wait behind both commits: the session outlives two timeouts and two batches
        group.options = {**group.options, "kafka.session.timeout.ms": "45000"}
    first = group.start_first()
    wait_for("lag 0", lambda: group.client.lag(group.name, group.topic) == 0, WAIT_S, group.evidence)
    before = group.client.committed(group.name)
    with OffsetWatch(group.client, group.name) as watch:
        old = proxy.add(Rule(Api.OFFSET_COMMIT, client=client, action=Action.HOLD))
        # Also those that the client sends after it has given up the second one.
        new = proxy.add(Rule(Api.OFFSET_COMMIT, client=client, action=Action.HOLD, times=None))
        for _ in range(2):  # two batches: the second is planned without the first one's commit, a second later
            group.client.produce(group.topic, (str(n) for n in range(40)), PARTITIONS)
            first.wait_for_records(group.client.records(group.topic))
        for rule in (old, new):
            rule.wait_fired(WAIT_S)
        assert group.client.committed(group.name) == before
        proxy.remove(new)
        wait_for("its commit", lambda: group.client.committed(group.name) != before, WAIT_S, group.evidence)
        proxy.remove(old)
        wait_for("lag 0", lambda: group.client.lag(group.name, group.topic) == 0, WAIT_S, group.evidence)
    assert watch.went_back == []
    assert [line["details"]["behind"] for line in group.events["first"].lines("commits")][:1] == [True]
    assert group.events["first"].lines("lost") == []


# --- a coordinator that dies


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[RealKafka]:
    """Three brokers, none of which loses what it leads while it lives: not by a pause, and not by balancing."""
    kept = {"broker.session.timeout.ms": 15_000, "auto.leader.rebalance.enable": "false"}
    with RealKafka(brokers=3, properties=kept) as cluster:
        yield cluster


def offsets_leader(admin: AdminClient, group: str) -> int:
    """Return the broker that leads the group's partition of the offsets topic: its coordinator, -1 for none."""
    java_hash = 0
    for letter in group:
        java_hash = java_hash * 31 + ord(letter)
    # Kafka takes Java's hash without its sign.
    chosen = abs(ctypes.c_int32(java_hash).value)
    partitions = admin.list_topics("__consumer_offsets", timeout=10).topics["__consumer_offsets"].partitions
    return int(partitions[chosen % len(partitions)].leader) if partitions else -1


class Surviving(Independent):
    """An independent client for a coordinator that comes and goes, of one topic."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        super().__init__(servers)
        # It never subscribes, and so is no member. librdkafka's admin client cannot do this: its process dies
        # (SIGSEGV) when a broker answers a request for a group's offsets with NOT_COORDINATOR (librdkafka #5040).
        settings = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "log_level": 0}
        self._asker = Consumer(settings)
        self._describer = Describer(servers, group)
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def committed(self, _group: str) -> dict[tuple[str, int], int]:
        """Return the group's committed offsets; none while there is no coordinator."""
        try:
            answer = self._asker.committed(self._partitions, timeout=2.0)
        except KafkaException:
            return {}
        return {(p.topic, p.partition): p.offset for p in answer if p.error is None and p.offset >= 0}

    def members(self, _group: str) -> list[set[tuple[str, int]]]:
        """Return the assignment of each live member; none while there is no coordinator."""
        described = self._describer.describe()
        return list(described.owners.values()) if described is not None else []

    def coordinator(self) -> int | None:
        """Return the coordinator as the group's description tells it."""
        described = self._describer.describe()
        return described.coordinator if described is not None else None

    def close(self) -> None:
        """Free the clients."""
        self._asker.close()
        self._describer.close()


def find_coordinator(admin: AdminClient, client: Surviving, group: str) -> int:
    """Return the broker that will coordinate a new group."""

    def found() -> bool:
        client.committed(group)  # the first question for a coordinator makes the offsets topic
        return offsets_leader(admin, group) > 0

    wait_for("a coordinator", found, WAIT_S)
    return offsets_leader(admin, group)


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_m09_batches_go_on_without_the_coordinator_and_commits_follow(
    protocol: str, three_brokers: RealKafka, application: Application, options: dict[str, str], topic: str, group: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    """The coordinator is killed, and a second broker: the third, which has the topic, cannot elect another one alone.

    So the coordinator is away until the second broker is started again, however fast or slow the machine is.
    """
    servers = three_brokers.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    client = Surviving(servers, group, topic)
    victim = find_coordinator(admin, client, group)
    survivor, second = (number for number in (1, 2, 3) if number != victim)
    placed = NewTopic(
        topic, PARTITIONS, replica_assignment=[[survivor]] * PARTITIONS, config={"min.insync.replicas": "1"}
    )
    admin.create_topics([placed])[topic].result(30)
    chosen = with_protocol(options, protocol) | {"kafka.bootstrap.servers": servers}
    if protocol != "kip848":
        chosen["kafka.session.timeout.ms"] = "60000"  # the members outlive the coordinator's absence
    pair = Group(application, client, chosen, topic, group, tmp_path)
    pair.start_first()
    pair.start("second")
    pair.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
    assert client.coordinator() == victim
    try:
        with OffsetWatch(client, group) as watch:
            three_brokers.kill_broker(second)
            three_brokers.kill_broker(victim)
            client.produce(topic, (str(n) for n in range(40)), PARTITIONS)
            wanted = client.records(topic)
            wait_for("records in completed batches", lambda: wanted <= pair.completed(), WAIT_S, pair.told_so_far)
            assert offsets_leader(admin, group) == victim, "no broker alone elects a coordinator"
            three_brokers.start_broker(second)
            repeated = pair.wait_done()
            pair.wait_shared([PARTITIONS // 2, PARTITIONS // 2])
        assert client.coordinator() in (survivor, second)
    finally:
        for number in (second, victim):
            with contextlib.suppress(RealKafkaError):  # it runs
                three_brokers.start_broker(number)
        client.close()
    assert watch.went_back == []
    assert repeated == set()
    assert [line for name in MEMBERS for line in pair.events[name].lines("lost")] == []


# --- the lock of run_when_owner


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_owner_that_is_cut_off_gives_way_before_another_one_owns_the_lock(
    protocol: str, client: Independent, kafka: RealKafka, proxy: KafkaProxy, topic: str, group: str
) -> None:
    """1. The owner's client is cut off from the brokers. 2. It stops its queries. 3. Its session expires."""
    session_ms = 6_000
    client.create_topic(topic, 1)
    client.set_group_session_timeout(f"{group}.lock", session_ms)
    own = {"kafka.group.protocol": protocol}
    if protocol == "classic":
        own["kafka.session.timeout.ms"] = str(session_ms)
    cut = own | {"kafka.bootstrap.servers": kafka.proxied_servers, "kafka.client.id": "cut-off"}

    def made(options: dict[str, str]) -> OwnerLock:
        return OwnerLock(lock_options(group, topic, options))

    with ExitStack() as stack:
        owner = stack.enter_context(made(cut))
        wait_for("the lock", lambda: owner.state is LockState.OWNED, 60, lambda: f"{owner.state}")
        assert owner.take()
        other = stack.enter_context(made(own | {"kafka.bootstrap.servers": kafka.bootstrap_servers}))
        wait_for("two members", lambda: client.member_count(f"{group}.lock") == 2, 30)
        time.sleep(session_ms / 1000)
        assert not owner.gives_way, "proofs are accepted"
        proxy.add(Rule(None, client="cut-off", action=Action.BLACK_HOLE, times=None))
        began_s = time.monotonic()
        wait_for("the owner to give way", lambda: owner.stops_at_once, 60, lambda: f"{owner.state} {other.state}")
        gave_way_s = time.monotonic() - began_s
        assert other.state is LockState.WAITING
        owner.ended()
        wait_for("the other to own the lock", lambda: other.state is LockState.OWNED, 60, lambda: f"{other.state}")
        print(f"{protocol}: gave way after {gave_way_s:.1f} s, another owner after {time.monotonic() - began_s:.1f} s")
        proxy.clear()
