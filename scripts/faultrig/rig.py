"""One run's world: brokers, producer, watcher, queries; and what "recovered" means."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from realkafka import RealKafka, RealKafkaError

from faultrig.fleet import Fleet, Query
from faultrig.history import Logged
from faultrig.logreader import read_log
from faultrig.observer import Observer, Offsets, Partition, attempt
from faultrig.producer import SteadyProducer
from faultrig.waiting import RigError, wait_for
from faultrig.watcher import Watcher

SESSION_TIMEOUT_S = 6.0
DRAIN_TIMEOUT_S = 5.0
RECOVERY_S = 240.0
GROUP = "rig"
MEMBER = "-member"  # what the source adds to the client id of its group member
TOPICS = ("orders", "payments")

_CLASSIC = {
    "kafka.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "kafka.heartbeat.interval.ms": "500",
}
PROTOCOLS: dict[str, dict[str, str]] = {
    "eager": _CLASSIC | {"kafka.partition.assignment.strategy": "range"},
    "cooperative": _CLASSIC | {"kafka.partition.assignment.strategy": "cooperative-sticky"},
    "kip848": {"kafka.group.protocol": "consumer"},
    # Members on kafka-python. q1 has three times the weight of the others; each partition has one standby.
    "weighted": _CLASSIC | {"assignors": "weighted"},
    "redundant": _CLASSIC | {"assignors": "redundant"},
}


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
        self.kafka.start()
        try:
            direct = self.kafka.bootstrap_servers
            self.observer = Observer(direct, GROUP, TOPICS)
            for topic in TOPICS:
                self.observer.create_topic(topic, shape.partitions)
            if shape.protocol == "kip848":
                self.observer.set_group_session_timeout(int(SESSION_TIMEOUT_S * 1000))
            spread = [(topic, number) for number in range(shape.partitions) for topic in TOPICS]
            self.producer = SteadyProducer(direct, spread, shape.rate, transactional=True)
            self.watcher = Watcher(Observer(direct, GROUP, TOPICS), shape.folder / "watch.jsonl")
            self.fleet = Fleet(shape.folder / "work", self._options())
        except BaseException:
            self.kafka.close()
            raise

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that the run started."""
        self.watcher.stop()
        self.observer.close()
        self.fleet.pool.close()
        self.kafka.close()

    def _options(self) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.kafka.proxied_servers,
            "kafka.group.id": GROUP,
            "kafka.isolation.level": "read_committed",
            "kafka.topic.metadata.refresh.interval.ms": "1000",
            "kafka.reconnect.backoff.max.ms": "500",
            "subscribe": ",".join(TOPICS),
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "1000",
            "drainTimeoutMs": str(int(DRAIN_TIMEOUT_S * 1000)),
            "failOnDataLoss": "false",  # the kind "records-deleted" needs it; any other skip is the checker's to find
        } | PROTOCOLS[self.shape.protocol]

    def seed_fault(self, number: int) -> None:
        """Give a fault random numbers of its own, so that what one draws does not change the next."""
        self.rng = Random(f"{self.shape.seed}/{self.shape.protocol}/{number}")  # noqa: S311  (nothing secret)

    def begin(self) -> None:
        """Write the backlog, start the queries and the steady writing; returns when the group has caught up."""
        self.fleet.pool.prepare(self.shape.queries)
        self.producer.burst(self.shape.backlog)
        self.watcher.start()
        for number in range(self.shape.queries):
            self.fleet.add(f"q{number + 1}")
        self.producer.start()
        self.wait_recovered(self.ends(), "the start")

    def ends(self, open_too: bool = False) -> Offsets:
        """Return the log's ends as `Observer.ends` does, waiting for brokers that are away."""
        return wait_for("the log's ends", 60, lambda: attempt(lambda: self.observer.ends(open_too)), self.evidence)

    def last_ends(self) -> Offsets:
        """Return the log's ends after the last write.

        A commit of a transaction returns before its partitions have the marker, and a broker that leads again may not
        know its newest end yet: so open transactions count, and what is acknowledged.
        """
        ends = self.ends(open_too=True)
        for one in self.producer.produced():
            partition = (one.topic, one.partition)
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
        return members and owned == everything

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
        self.fleet.pool.prepare(1)
        return revived

    def wait_taken_over(self, victim: Query, since: float, lost: set[Partition]) -> Takeover:
        """Return how long after `since` others own the victim's partitions, and have read on in each."""
        goal = {partition: end for partition, end in self.ends().items() if partition in lost}

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
        self.kept_log += read_log(self.kafka.bootstrap_servers, {partition: end})

    def evidence(self) -> str:
        """Return the ends of all logs."""
        brokers = [f"--- broker {n} ---\n{self.kafka.log_tail(n, 15)}" for n in range(1, self.shape.brokers + 1)]
        return "\n".join([self.fleet.evidence(), *brokers])
