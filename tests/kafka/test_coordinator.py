"""The group's coordinator fails in every phase of a rebalance, during a handover, and for real.

Two queries of one group, on a real broker behind a proxy that cuts their connections to it. Whatever is cut:

F1 the group converges: two members share the partitions
F2 every record is in a completed batch, and the group's offsets come to the log's end
F3 the group's offsets never go back
F4 no record is in two completed batches of one query
F5 a clean handover repeats nothing; a batch whose commit was cut is repeated at most once
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafkagroupwire import parse_heartbeat
from kafkaproxy import Api, KafkaProxy, On, Rule
from kafkawire import Request
from realkafka import RealKafka

from .application import Application, AppQuery
from .harness import Independent, Record, wait_for
from .holding import OffsetWatch, Told
from .test_takeover import PROTOCOLS, with_protocol

pytestmark = pytest.mark.kafka

PARTITIONS = 4
WAIT_S = 45.0
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
        self.told = {name: Told(self.folder, name) for name in MEMBERS}
        self.queries: dict[str, AppQuery] = {}

    def start(self, name: str, batch: Callable[..., object] | None = None) -> AppQuery:
        """Start one of the queries."""
        options = {**self.options, **self.told[name].options}
        self.queries[name] = self.application.start_query(name, options, batch=batch)
        return self.queries[name]

    def start_first(self, batch: Callable[..., object] | None = None) -> AppQuery:
        """Start the first query and wait until it owns and has read everything."""
        self.client.produce(self.topic, (str(n) for n in range(40)), PARTITIONS)
        query = self.start("first", batch)
        query.wait_for_records(self.client.records(self.topic))
        self.wait_shared([PARTITIONS])
        return query

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
        tails = "\n".join(f"--- {name}\n{self.told[name].tail()}" for name in self.queries)
        return f"{self.client.members(self.name)}\n{self.client.committed(self.name)}\n{tails}"

    def wait_done(self) -> dict[Record, int]:
        """F2, F4: wait until all is read and committed; return the records that are in more than one batch."""
        wanted = self.client.records(self.topic)

        def read() -> bool:
            self.check()
            return wanted <= {record for query in self.queries.values() for record in query.completed_records()}

        wait_for("every record in a completed batch", read, WAIT_S, self.evidence)
        wait_for("lag 0", lambda: self.client.lag(self.name, self.topic) == 0, WAIT_S, self.evidence)
        assert self.client.committed(self.name) == self.client.ends(self.topic)
        for name, query in self.queries.items():
            twice = [record for record, times in query.completed_records().items() if times > 1]
            assert twice == [], f"{name} completed records twice"
        both = set(self.queries["first"].completed_records()) & set(self.queries["second"].completed_records())
        return dict.fromkeys(both, len(both))


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


def _joins(request: Request) -> bool:
    return parse_heartbeat(request).member_epoch == 0


def _acknowledges(request: Request) -> bool:
    heartbeat = parse_heartbeat(request)
    return heartbeat.member_epoch > 0 and heartbeat.owned is not None


def _just_beats(request: Request) -> bool:
    heartbeat = parse_heartbeat(request)
    return heartbeat.member_epoch > 0 and heartbeat.owned is None


def classic_rules(proxy: KafkaProxy, phase: str) -> list[Rule]:
    """Return what cuts both members once in a phase, as a coordinator does that dies."""
    on = On.RESPONSE if phase.startswith("after") else On.REQUEST
    if phase.endswith("join"):
        # A newcomer's first JoinGroup only fetches its member id.
        return [
            Rule(Api.JOIN_GROUP, client="first-member", on=on),
            Rule(Api.JOIN_GROUP, client="second-", on=on, skip=1),
        ]
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
    where = {"join": _joins, "sync": _acknowledges, "heartbeat": _just_beats}[phase.rpartition(" ")[2]]
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
    assert repeated == {}
