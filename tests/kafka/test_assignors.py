"""Assignment strategies on a real broker: queries whose members run on kafka-python (M13-M18, M20)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from pyspark.errors import StreamingQueryException

from tests.realkafka.realkafka import RealKafka

from .application import Application, AppQuery
from .harness import CLIENTS, Independent, wait_for
from .holding import Events, Gate, OffsetWatch, held_before_plan, released, tails
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

PARTITIONS = 8
LONG_SESSION = {"kafka.session.timeout.ms": "45000"}


class Group:
    """One topic, one group, and the queries that share it, each with its metrics."""

    def __init__(self, application: Application, client: Independent, options: Mapping[str, str], folder: Path) -> None:
        self.application, self.client, self.options, self.folder = application, client, dict(options), folder
        self.topic, self.name = options["subscribe"], options["kafka.group.id"]
        self.events: dict[str, Events] = {}
        self.queries: dict[str, AppQuery] = {}
        self._runs: list[AppQuery] = []
        self._produced = 0

    def start(
        self, name: str, batch: Gate | None = None, trigger: Mapping[str, str | bool] | None = None, **extra: str
    ) -> AppQuery:
        """Start a query, or start it again; `__` in an option's name stands for a dot."""
        self.events[name] = Events(self.folder, f"{name}-{len(self._runs)}")
        given = {key.replace("__", "."): value for key, value in extra.items()}
        chosen = self.options | self.events[name].options | given
        query = self.application.start_query(name, chosen, batch=batch, trigger=trigger)
        self.queries[name] = query
        self._runs.append(query)
        return query

    def produce(self, count: int = 160, partitions: int = PARTITIONS) -> None:
        """Add records, spread over the partitions."""
        self.client.produce(self.topic, (f"r{self._produced + n}" for n in range(count)), partitions)
        self._produced += count

    def owned(self) -> dict[str, int]:
        """Return how many partitions each query has, by its own word."""
        return {name: self.counters(name).get("assigned_partitions", -1) for name in self.queries}

    def counters(self, name: str) -> dict[str, int]:
        """Return a query's newest counters."""
        lines = self.events[name].lines()
        return dict(lines[-1]["metrics"]) if lines else {}

    def wait_shares(self, shares: Mapping[str, int], timeout_s: float = 90) -> None:
        """Wait until each query has so many partitions, by its own word and by the coordinator's."""
        wait_for(
            f"shares {shares}",
            lambda: (
                self.owned() == dict(shares)
                and sorted(map(len, self.client.members(self.name))) == sorted(shares.values())
            ),
            timeout_s,
            self.evidence,
        )

    def wait_standbys(self, standbys: Mapping[str, int]) -> None:
        """Wait until each query says so many standby partitions, which it learns by themselves."""
        wait_for(
            f"standby partitions {standbys}",
            lambda: {name: self.counters(name).get("standby_partitions") for name in self.queries} == dict(standbys),
            60,
            self.evidence,
        )

    def leave(self, name: str) -> float:
        """Stop a query between two batches; returns when."""
        query = self.queries.pop(name)
        wait_for("a moment between two batches", lambda: not query.query.status["isTriggerActive"], 30)
        at = time.time()
        query.stop()
        return at

    def wait_read(self) -> None:
        """Wait until every record is in a completed batch, and the group says so."""
        everything = self.client.records(self.topic)
        wait_for(
            f"{len(everything)} records in completed batches",
            lambda: everything <= set().union(*(query.completed_records() for query in self._sinks())),
            120,
            self.evidence,
        )
        wait_for("lag 0", lambda: self.client.lag(self.name, self.topic) == 0, 60, self.evidence)

    def _sinks(self) -> list[AppQuery]:
        return list({id(query.sink): query for query in self._runs}.values())

    def check_each_once(self) -> None:
        """Check that every record is in exactly one completed batch."""
        counted: dict[object, int] = {}
        for query in self._sinks():
            for record, times in query.completed_records().items():
                counted[record] = counted.get(record, 0) + times
        assert set(counted) == self.client.records(self.topic)
        assert {record: times for record, times in counted.items() if times > 1} == {}, self.evidence()

    def evidence(self) -> str:
        """Return what everybody tells."""
        seen = tails(self.events)
        return f"{self.owned()} {self.client.members(self.name)}\n{self.queries}\n{seen}"


@pytest.fixture
def team(application: Application, client: Independent, options: dict[str, str], tmp_path: Path) -> Group:
    """A group whose topic has eight partitions, and whose members outlive a machine that stands still."""
    client.create_topic(options["subscribe"], PARTITIONS)
    return Group(application, client, options | LONG_SESSION, tmp_path)


@pytest.mark.parametrize(
    "strategy",
    ["weighted", "co-partitioned", "rack-aware", "sticky", "cooperative-sticky,weighted", "weighted,sticky",
     "tests.kafka.strategies:InTurn"],
)  # fmt: skip
def test_m13_queries_share_by_a_strategy_and_take_over(strategy: str, team: Group) -> None:
    """One alone, a second joins, the first stops: nothing is lost, nothing is read twice."""
    team.produce()
    team.start("first", assignors=strategy, memberWeight="1")
    team.wait_read()
    team.start("second", assignors=strategy, memberWeight="1")
    team.wait_shares({"first": 4, "second": 4})
    team.produce()
    team.wait_read()
    team.leave("first")
    team.wait_shares({"second": 8}, 30)
    team.produce()
    team.wait_read()
    team.check_each_once()


def test_m17_weights_3_and_1_split_eight_partitions_6_to_2(team: Group) -> None:
    team.produce()
    team.start("heavy", assignors="weighted", memberWeight="3")
    team.start("light", assignors="weighted", memberWeight="1")
    team.wait_shares({"heavy": 6, "light": 2})
    team.produce()
    team.wait_read()
    team.check_each_once()


def test_m16_a_standby_takes_over_at_the_committed_offset(team: Group) -> None:
    """Every partition is with both, and active at one of them; who stays takes all, in one rebalance."""
    team.produce()
    team.start("first", assignors="redundant", memberRedundancy="2")
    team.start("second", assignors="redundant", memberRedundancy="2")
    team.wait_shares({"first": 4, "second": 4})
    team.wait_standbys({"first": 4, "second": 4})
    team.produce()
    team.wait_read()
    before = len(team.events["second"].lines("assigned"))
    stopped_at = team.leave("first")
    team.wait_shares({"second": 8}, 30)
    taken = team.events["second"].lines("assigned")
    assert len(taken) == before + 1, "one rebalance brings everything"
    print(f"a standby owned all {taken[-1]['at'] - stopped_at:.2f} s after query.stop() was called")
    team.wait_standbys({"second": 0})
    team.produce()
    team.wait_read()
    team.check_each_once()


def test_m20_a_single_active_writer_and_its_standby(team: Group) -> None:
    team.produce()
    team.start("first", assignors="single-active")
    team.wait_shares({"first": 8})
    team.start("second", assignors="single-active")
    team.wait_standbys({"first": 0, "second": 8})
    team.wait_shares({"first": 8, "second": 0})
    team.produce()
    team.wait_read()
    assert not team.queries["second"].records()
    team.leave("first")
    team.wait_shares({"second": 8}, 30)
    team.produce()
    team.wait_read()
    team.check_each_once()


def test_m14_topics_with_different_partition_counts_are_refused_with_the_counts(
    client: Independent, application: Application, options: dict[str, str], topic: str
) -> None:
    other = f"{topic}-other"
    client.create_topic(topic, 3)
    client.create_topic(other, 2)
    query = application.start_query("first", options | {"subscribe": f"{topic},{other}", "assignors": "co-partitioned"})
    seen = failure_of(query)
    assert "[GROUPKAFKA.ASSIGNMENT_REFUSED]" in seen
    assert f"{topic}" in seen
    assert "3" in seen
    assert "2" in seen


def test_m14_co_partitions_are_together(
    client: Independent, application: Application, options: dict[str, str], topic: str, group: str
) -> None:
    other = f"{topic}-other"
    client.create_topic(topic, 4)
    client.create_topic(other, 4)
    chosen = options | LONG_SESSION | {"subscribe": f"{topic},{other}", "assignors": "co-partitioned"}
    queries = [application.start_query(name, chosen) for name in ("first", "second")]

    def four_each() -> list[set[tuple[str, int]]] | None:
        members = client.members(group)
        return members if sorted(map(len, members)) == [4, 4] else None

    for owned in wait_for("four each", four_each, 90, lambda: str(queries)):
        numbers = {name: {number for t, number in owned if t == name} for name in (topic, other)}
        assert numbers[topic] == numbers[other]


def test_m12_no_common_strategy_names_both_lists(team: Group) -> None:
    team.produce()
    team.start("first", assignors="weighted,rack-aware")
    team.wait_read()
    late = team.start("late", assignors="redundant,single-active")
    seen = failure_of(late)
    assert "[GROUPKAFKA.NO_COMMON_STRATEGY]" in seen
    assert "redundant, single-active" in seen
    assert "offers weighted, rack-aware" in seen
    team.queries["first"].check()


@pytest.mark.parametrize("member", CLIENTS)
def test_p6_m08_a_drain_beyond_the_session_timeout_is_clean(member: str, team: Group) -> None:
    """The first holds a batch for 9 s with a session of 6 s, while the second joins: its heartbeats go on."""
    gate = Gate()
    team.options["kafka.session.timeout.ms"] = "6000"
    team.start("first", batch=gate, **CLIENTS[member])
    team.wait_shares({"first": 8})
    with released(gate), OffsetWatch(team.client, team.name) as watch:
        with held_before_plan("first", team.evidence):
            gate.armed = True
            team.produce()
        gate.wait_reached(team.evidence)
        team.start("second", **CLIENTS[member])
        team.events["first"].wait_for("revoking")
        time.sleep(9)
        assert not team.events["first"].lines("lost"), team.evidence()
        gate.release()
        team.wait_shares({"first": 4, "second": 4})
        team.produce()
        team.wait_read()
    revoked = [line for line in team.events["first"].lines("revoked") if line["details"]["drain_ms"] > 8_000]
    assert [line["details"]["outcome"] for line in revoked] == ["COMPLETE"], team.evidence()
    team.check_each_once()
    assert watch.went_back == []


def test_members_whose_subscriptions_differ(
    client: Independent, application: Application, options: dict[str, str], topic: str, group: str
) -> None:
    """One reads two topics, the other one of them: nobody gets what it does not subscribe to."""
    other = f"{topic}-other"
    client.create_topic(topic, 4)
    client.create_topic(other, 4)
    weighted = options | LONG_SESSION | {"assignors": "weighted"}
    both = application.start_query("both", weighted | {"subscribe": f"{topic},{other}"})
    one = application.start_query("one", weighted | {"subscribe": other})
    wait_for(
        "all partitions, the first topic's with who subscribes to it",
        # Half of the other topic's each, and the first topic's four.
        lambda: sorted(map(len, client.members(group))) == [2, 6],
        90,
        lambda: f"{client.members(group)} {both} {one}",
    )
    for name in (topic, other):
        client.produce(name, (f"r{n}" for n in range(80)), 4)
    wanted = client.records(topic) | client.records(other)
    wait_for(
        "all records",
        lambda: wanted <= both.completed_records().keys() | one.completed_records().keys(),
        90,
        lambda: f"{both} {one}",
    )
    total = both.completed_records() + one.completed_records()
    assert {record: times for record, times in total.items() if times > 1} == {}
    assert not {record for record in one.records() if record[0] == topic}


def test_m17_partitions_go_to_the_rack_of_their_leaders(
    application: Application, options: dict[str, str], topic: str, group: str
) -> None:
    """Three brokers in a rack each, two queries: what the brokers of their racks lead is theirs."""
    with RealKafka(brokers=3) as cluster:
        client = Independent(cluster.bootstrap_servers)
        client.create_topic(topic, 6)
        chosen = options | {"kafka.bootstrap.servers": cluster.bootstrap_servers, "assignors": "rack-aware"}
        for rack in ("rack-1", "rack-2"):
            application.start_query(rack, chosen | {"kafka.client.rack": rack})

        def shares() -> list[int]:
            """Nobody's while the group's coordinator is being made."""
            try:
                return sorted(map(len, client.members(group)))
            except KafkaException:
                return []

        wait_for("three each", lambda: shares() == [3, 3], 90)
        leads = client.led_by(topic)
        for broker in (1, 2):
            assert any(leads[broker] <= owned for owned in client.members(group)), (leads, client.members(group))
        application.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_under_kip848_the_broker_assigns_as_it_is_asked_to(
    assignor: str, client: Independent, application: Application, options: dict[str, str], topic: str, group: str
) -> None:
    client.create_topic(topic, 2)
    client.produce(topic, ["a", "b"], 2)
    query = application.start_query(
        "first", with_protocol(options, "kip848") | {"kafka.group.remote.assignor": assignor}
    )
    query.wait_for_records(client.records(topic))
    assert client.strategy(group) == assignor


def test_an_assignor_that_the_broker_does_not_have(
    client: Independent, application: Application, options: dict[str, str], topic: str
) -> None:
    client.create_topic(topic, 1)
    query = application.start_query(
        "first", with_protocol(options, "kip848") | {"kafka.group.remote.assignor": "nearest"}
    )
    seen = failure_of(query)
    assert "[GROUPKAFKA.REMOTE_ASSIGNOR_UNKNOWN]" in seen
    assert "'nearest'" in seen


def failure_of(query: AppQuery) -> str:
    """Wait for a query's failure and return what it says."""
    with pytest.raises(StreamingQueryException) as caught:
        query.query.awaitTermination(90)
    return str(caught.value)
