"""One run's world: brokers, producer, watcher, queries; and what "recovered" means."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.history import Logged, Start, TopicLife
from tests.faults.observe.observer import Observer, Offsets, Partition, Watcher, attempt, read_log
from tests.faults.rig.fleet import Fleet, Query
from tests.faults.rig.producer import SteadyProducer
from tests.faults.waiting import RigError, wait_for
from tests.realkafka.realkafka import RealKafka, RealKafkaError
from tests.sparkcluster.sparkcluster import SparkCluster

CLASSIC_SESSION_S = 6.0
GATE_SESSION_S = 3.0
DRAIN_TIMEOUT_S = 5.0
RECOVERY_S = 240.0
GROUP = "rig"
FIRST = "q1"  # the first query; in a mixed run it is the one on the Spark cluster
MEMBER = "-member"  # what the source adds to the client id of its group member
TOPICS = ("orders", "payments")
PASSING = "audit"  # the topic that is deleted and recreated; with a pattern its successors have numbers
PATTERN = r"orders|payments|audit(-\d+)?"
_PASSING_PARTITIONS = 2
CLUSTER_WORKERS, CLUSTER_CORES = 2, 3  # cores that each worker offers, whatever the machine has

_CLASSIC = {"kafka.heartbeat.interval.ms": "500"}
PROTOCOLS: dict[str, dict[str, str]] = {
    "eager": _CLASSIC | {"kafka.partition.assignment.strategy": "range"},
    "cooperative": _CLASSIC | {"kafka.partition.assignment.strategy": "cooperative-sticky"},
    "kip848": {"kafka.group.protocol": "consumer"},
    # Members on kafka-python. q1 has three times the weight of the others; each partition has one standby.
    "weighted": _CLASSIC | {"assignors": "weighted"},
    "redundant": _CLASSIC | {"assignors": "redundant"},
}
EARLIEST, LATEST, TIMESTAMP = "earliest", "latest", "timestamp"


@dataclass(frozen=True, slots=True)
class Flavour:
    """One mix. `session_s` is that of a KIP-848 group, which is the broker's to set; classic members ask for 6 s."""

    name: str
    starting: str = EARLIEST
    pattern: bool = False
    retain: int = 100_000  # spark.sql.streaming.minBatchesToRetain
    session_s: float = 6.0


FLAVOURS = (
    Flavour("earliest-list"),
    Flavour("latest-pattern-retain2", LATEST, pattern=True, retain=2, session_s=9.0),
    Flavour("timestamp-list-retain2", TIMESTAMP, retain=2, session_s=7.5),
    Flavour("earliest-pattern", pattern=True, session_s=9.0),
    Flavour("latest-list", LATEST, session_s=7.5),
)
BY_NAME = {one.name: one for one in FLAVOURS}


# With a list of topics "topic-replaced" is "topic-recreated".
GATE_FLAVOURS = tuple(one for one in FLAVOURS if one.pattern)


def flavour_of(seed: int, place: int, flavours: Sequence[Flavour] = FLAVOURS) -> Flavour:
    """Return the mix of the run at this place among the protocols: five protocols have all mixes."""
    return flavours[(seed + place) % len(flavours)]


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that is over. `clean` says that it takes nothing from a member without a handover."""

    target: str
    clean: bool
    details: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)


class Place(Enum):
    """Where the applications of a run are: in one JVM each, on a Spark cluster, or the first query's on a cluster."""

    LOCAL = "local"
    CLUSTER = "cluster"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a run is. Rates are records a second."""

    protocol: str
    seed: int
    folder: Path
    brokers: int = 3
    queries: int = 3
    max_queries: int = 4
    partitions: int = 4  # of each topic, at the start
    backlog: int = 5_000
    rate: float = 200.0
    records: int = 60_000  # acknowledged at the end, at least
    flavour: Flavour = FLAVOURS[0]
    place: Place = Place.LOCAL
    short_session_s: float | None = None  # instead of the flavour's or the classic one

    @property
    def session_s(self) -> float:
        """The session timeout of the group's members."""
        if self.short_session_s is not None:
            return self.short_session_s
        return self.flavour.session_s if self.protocol == "kip848" else CLASSIC_SESSION_S

    def clustered(self, query: str) -> bool:
        """Whether the query of this name runs on the Spark cluster."""
        return self.place is Place.CLUSTER or (self.place is Place.MIXED and query == FIRST)


@dataclass(frozen=True, slots=True)
class Takeover:
    """How long others took to own a member's partitions, and to read on in them."""

    partitions: int
    takeover_s: float
    reads_on_s: float


class Rig:
    """Everything that a fault works on. Use it in a with block; the folder stays, the processes do not."""

    def __init__(self, shape: Shape, say: Callable[[str], None]) -> None:
        self.shape = shape
        self.say = say
        self.seed_fault(0)
        self.kept_log: list[Logged] = []
        self.kafka = RealKafka(brokers=shape.brokers, proxied=True)
        self._spark: SparkCluster | None = None
        if shape.place is not Place.LOCAL:
            self._spark = SparkCluster(CLUSTER_WORKERS, cores=CLUSTER_CORES, memory="3g")
        try:
            self._start_beds()
            direct = self.kafka.bootstrap_servers
            self.lives: list[TopicLife] = []
            self.starts: list[Start] = []
            self.passing = PASSING
            self.observer = Observer(direct, GROUP, self.topics)
            self.watcher = Watcher(Observer(direct, GROUP, self.topics), shape.folder / "watch.jsonl")
            spread = [(topic, number) for number in range(shape.partitions) for topic in TOPICS]
            self.producer = SteadyProducer(direct, spread, shape.rate, transactional=True)
            for topic in TOPICS:
                self.create_topic(topic, shape.partitions)
            self.create_topic(PASSING, _PASSING_PARTITIONS)
            for number in range(_PASSING_PARTITIONS):
                self.producer.add_partition((PASSING, number))
            if shape.protocol == "kip848":
                self.observer.set_group_session_timeout(int(shape.session_s * 1000))
            conf = {"spark.sql.streaming.minBatchesToRetain": str(shape.flavour.retain)}
            self.fleet = Fleet(shape.folder / "work", self._options(), conf, shape.clustered, self._settings())
        except BaseException:
            self._close_beds()
            raise

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that the run started."""
        self.watcher.stop()
        self.observer.close()
        self.fleet.close()
        self._close_beds()

    def _start_beds(self) -> None:
        """Start the brokers, and the Spark cluster at the same time."""
        with ThreadPoolExecutor(1) as beside:
            started = None if self._spark is None else beside.submit(self._spark.start)
            self.kafka.start()
            if started is not None:
                started.result()

    def _close_beds(self) -> None:
        if self._spark is not None:
            self._spark.close()
        self.kafka.close()

    @property
    def spark(self) -> SparkCluster:
        """The Spark cluster of a run with `cluster`."""
        if self._spark is None:
            raise RigError("this run has no Spark cluster")
        return self._spark

    def _settings(self) -> dict[str, str]:
        """Return what an application has on a cluster: one or two executors, as its load asks for them."""
        if self._spark is None:
            return {}
        return self._spark.conf(cores=2) | {
            "spark.executor.cores": "1",
            "spark.dynamicAllocation.enabled": "true",
            "spark.dynamicAllocation.minExecutors": "1",
            "spark.dynamicAllocation.maxExecutors": "2",
            "spark.dynamicAllocation.executorIdleTimeout": "4s",
            # Without it an executor with a shuffle's files stays until the driver's JVM happens to collect its garbage.
            "spark.dynamicAllocation.shuffleTracking.timeout": "4s",
            "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
            "spark.dynamicAllocation.sustainedSchedulerBacklogTimeout": "1s",
            "spark.decommission.enabled": "true",
            "spark.storage.decommission.enabled": "true",
            # A task that takes longer than this gets a copy, also when it is alone.
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.task.duration.threshold": "2s",
            # What is dealt out is dealt out by position: Spark's own sort would hide another order of a rerun.
            "spark.sql.execution.sortBeforeRepartition": "false",
        }

    def _options(self) -> dict[str, str]:
        # A KIP-848 group's session timeout is the broker's to set.
        session = {"kafka.session.timeout.ms": str(int(self.shape.session_s * 1000))}
        return {
            "kafka.bootstrap.servers": self.kafka.proxied_servers,
            "kafka.group.id": GROUP,
            "kafka.isolation.level": "read_committed",
            "kafka.topic.metadata.refresh.interval.ms": "1000",
            "kafka.reconnect.backoff.max.ms": "500",
            **({"subscribePattern": PATTERN} if self.shape.flavour.pattern else {"subscribe": ",".join(self.topics)}),
            "maxOffsetsPerTrigger": "1000",
            "drainTimeoutMs": str(int(DRAIN_TIMEOUT_S * 1000)),
            "failOnDataLoss": "false",  # the kind "records-deleted" needs it; any other skip is the checker's to find
            **(session if self.shape.protocol != "kip848" else {}),
        } | PROTOCOLS[self.shape.protocol]

    def seed_fault(self, number: int) -> None:
        """Give a fault random numbers of its own, so that what one draws does not change the next."""
        self.rng = Random(f"{self.shape.seed}/{self.shape.protocol}/{number}")

    def begin(self) -> None:
        """Write the backlog, start the queries and the steady writing; returns when the group has caught up."""
        names = [f"q{number + 1}" for number in range(self.shape.queries)]
        self.fleet.prepare(names)
        starting = self.shape.flavour.starting
        self.producer.burst(self.shape.backlog // 2)
        before = self.ends()
        if starting == TIMESTAMP:
            time.sleep(0.05)  # what was written is older than the timestamp
            self.fleet.options["startingTimestamp"] = str(int(time.time() * 1000))
            time.sleep(0.05)
        else:
            self.fleet.options["startingOffsets"] = starting
        self.producer.burst(self.shape.backlog // 2)
        low = self.ends() if starting == LATEST else before if starting == TIMESTAMP else {}
        self.watcher.start()
        self.producer.start()
        self.fleet.add(FIRST)
        if starting == LATEST:
            wait_for(
                "the group's first offsets", RECOVERY_S,
                lambda: not self.fleet.heal() and low.keys() <= self.watcher.offsets.keys(), self.evidence,
            )  # fmt: skip
        # With "latest" records are written while the group begins: where exactly it did, its pins say, between these.
        high = self.ends() if starting == LATEST else low
        for name in names[1:]:
            self.fleet.add(name)
        ids = {life.topic: life.id for life in self.lives}
        self.starts += [Start(t, ids[t], n, offset, high[t, n]) for (t, n), offset in sorted(low.items())]
        self.wait_recovered(self.ends(), "the start")

    # --- topics

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that live now."""
        return (*TOPICS, self.passing)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, and note its life; a passing one is written to only when `producer.add_partition` says so."""
        created_at = time.time()
        topic_id = self.observer.create_topic(topic, partitions)
        self.lives.append(TopicLife(topic, topic_id, created_at))
        self.producer.name_topic(topic, topic_id, passing=topic not in TOPICS)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic, and note when; nobody watches it from before that."""
        for one in (self.observer, self.watcher):
            one.look_again(TOPICS)
        place = next(n for n, life in enumerate(self.lives) if life.topic == topic and life.deleted_at is None)
        self.lives[place] = replace(self.lives[place], deleted_at=time.time())
        self.observer.delete_topic(topic)

    def life_of(self, topic: str) -> TopicLife:
        """Return the newest life of a topic."""
        return next(life for life in reversed(self.lives) if life.topic == topic)

    def ends(self, open_too: bool = False) -> Offsets:
        """Return the log's ends as `Observer.ends` does, waiting for brokers that are away."""
        return wait_for("the log's ends", 60, lambda: attempt(lambda: self.observer.ends(open_too)), self.evidence)

    def last_ends(self) -> Offsets:
        """Return the log's ends after the last write.

        A commit of a transaction returns before its partitions have the marker, and a broker that leads again may not
        know its newest end yet: so open transactions count, and what is acknowledged.
        """
        ends = self.ends(open_too=True)
        alive = {life.id for life in self.lives if life.deleted_at is None}
        for one in self.producer.produced():
            partition = (one.topic, one.partition)
            if one.topic_id in alive:
                ends[partition] = max(ends[partition], one.offset + 1)
        return ends

    def behind(self, goal: Offsets) -> Offsets:
        """Return the partitions whose committed offset is below the goal, with the offset."""
        seen = self.watcher.offsets
        return {partition: seen.get(partition, 0) for partition, end in goal.items() if seen.get(partition, 0) < end}

    def owners(self) -> dict[str, set[Partition]]:
        """Return each member's partitions; nobody's while the coordinator is away."""
        found = attempt(self.observer.owners) or {}
        return {client.removesuffix(MEMBER): partitions for client, partitions in found.items()}

    def owners_of_all(self) -> bool:
        """Whether the live queries, and nobody else, own every partition, and each of them at least one."""
        owners, everything = self.owners(), attempt(self.observer.all_partitions)
        owned: set[Partition] = set().union(*owners.values()) if owners else set()
        members = set(owners) == {query.name for query in self.fleet.live} and all(owners.values())
        # A classic group keeps the partitions of a deleted topic until its next rebalance.
        return members and everything is not None and owned >= everything

    def wait_recovered(self, goal: Offsets, after: str) -> list[str]:
        """Revive queries, and wait until all partitions are owned and read beyond the goal; returns what it revived."""
        revived: list[str] = []

        def recovered() -> bool:
            found = self.fleet.heal()
            revived.extend(found)
            if len(revived) > 10:
                raise RigError(f"queries fail again and again after {after}: {revived}\n{self.evidence()}")
            return not found and not self.behind(goal) and self.owners_of_all()

        def evidence() -> str:
            return f"behind {self.behind(goal)}\nowners {self.owners()}\nrevived {revived}\n{self.evidence()}"

        wait_for(f"recovery after {after}", RECOVERY_S, recovered, evidence, pace_s=0.1)
        self.fleet.prepare_spares()
        return revived

    def wait_taken_over(self, victim: Query, since: float, lost: set[Partition]) -> Takeover:
        """Return how long after `since` others own the victim's partitions, and have read on in each."""
        goal = {partition: end for partition, end in self.ends().items() if partition in lost}
        # The victim may own, for a moment, a partition that its topic has no more: it was recreated with fewer.
        lost = lost & goal.keys()

        def owned() -> bool:
            others = [owned for name, owned in self.owners().items() if name != victim.name]
            return lost <= set().union(*others)

        wait_for(f"the others to own what {victim.name} owned", RECOVERY_S, owned, self.evidence)
        takeover_s = round(time.time() - since, 2)
        wait_for(f"the others to read on for {victim.name}", RECOVERY_S, lambda: not self.behind(goal), self.evidence)
        return Takeover(len(lost), takeover_s, round(time.time() - since, 2))

    def revive_broker(self, broker: int) -> None:
        """Start a broker that is not running."""
        with contextlib.suppress(RealKafkaError):
            self.kafka.start_broker(broker)

    def keep_log(self, partition: Partition, end: int) -> None:
        """Read a partition's records below an offset, before they are deleted."""
        read = read_log(self.kafka.bootstrap_servers, {partition: end})
        self.kept_log += [replace(one, topic_id=self.life_of(one.topic).id) for one in read]

    def evidence(self) -> str:
        """Return the ends of all logs."""
        brokers = [f"--- broker {n} ---\n{self.kafka.log_tail(n, 15)}" for n in range(1, self.shape.brokers + 1)]
        return "\n".join([self.fleet.evidence(), *brokers])
