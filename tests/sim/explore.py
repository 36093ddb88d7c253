"""Runs from a seed: a configuration, a plan of faults, an adversary; the smallest plan that still fails."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.sim.documented import Documented
from tests.sim.faults import KINDS, Planned, inject
from tests.sim.kafka.settings import PROTOCOLS, GroupSettings
from tests.sim.simulation import Configuration, Simulation
from tests.sim.spark.application import Application, QuerySettings
from tests.sim.spark.checkpoint import Store
from tests.sim.world import BEGIN_S, World

_MEMBERS = ("query-stopped", "query-stopped", "available-now", "once", "burst", "leader-moves", "slow-batch")
_UNCLEAN = (
    "app-killed", "app-killed", "app-ended", "reader-paused", "app-paused", "machine-suspended", "network-cut",
    "coordinator-killed", "broker-killed", "answers-lost", "requests-lost", "answers-slow", "heartbeat-answers-lost",
    "checkpoint-hangs", "hiccups",
)  # fmt: skip
_TOPICS = ("partitions-added", "records-deleted", "topic-recreated", "topic-deleted-for-long")
# Drawn by a generator of their own, each with its chance.
_RARER = {
    "partitions-added-in-drain": 0.08, "topic-recreated-in-drain": 0.04, "topic-deleted-in-drain": 0.04,
    "options-changed": 0.12, "topic-comes": 0.06,
}  # fmt: skip
_CHECKPOINTS = ("checkpoint-lost", "checkpoint-restored", "commit-entry-lost", "group-rewound")


@dataclass(frozen=True)
class Plan:
    """All of a run: what it begins with, what is done to it, and how often the adversary strikes."""

    seed: int
    configuration: Configuration
    faults: tuple[Planned, ...] = ()
    # The chance that a thread at a named place is held until its member's assignment has changed.
    adversary: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `problems` begin with the promise that does not hold; `documented` counts allowed exceptions."""

    plan: Plan
    problems: tuple[str, ...]
    trace: tuple[str, ...]
    coverage: dict[str, int]
    documented: dict[str, int]
    switches: int
    virtual_s: float


def plan_of(seed: int, protocol: str = "") -> Plan:
    """Draw a plan."""
    rng = Random(seed * 7919 + 13)
    drawn = rng.choice(PROTOCOLS)
    group = _group(rng, protocol or drawn)
    kinds = rng.sample(_MEMBERS, rng.randint(1, 3))
    if rng.random() < 0.85:
        kinds += rng.choices(_UNCLEAN, k=rng.randint(1, 4))
    if rng.random() < 0.35:
        kinds += rng.choices(_TOPICS, k=rng.randint(1, 2))
    if rng.random() < 0.15:
        kinds.append(rng.choice(_CHECKPOINTS))
    configuration = _configuration(rng, group)
    faults = _planned(rng, configuration, _apart(kinds))
    adversary = rng.choice((0.0, 0.0, 0.02, 0.1))
    # What users do more rarely is drawn by another generator: a seed without it means the same run as without these.
    rarer = Random(seed * 104729 + 7)
    more = [kind for kind, chance in _RARER.items() if rarer.random() < chance]
    configuration = _rarer(rarer, configuration, more)
    every = (*faults, *_planned(rarer, configuration, more))
    apart = _apart([planned.kind for planned in every])
    # What is done to a checkpoint is of queries with one source.
    apart = [kind for kind in apart if not (configuration.query.two_sources and kind in _CHECKPOINTS)]
    kept = (planned for planned in every if planned.kind in apart)
    return Plan(seed, configuration, tuple(sorted(kept, key=lambda one: one.at_s)), adversary)


def _planned(rng: Random, configuration: Configuration, kinds: Sequence[str]) -> tuple[Planned, ...]:
    length_s = configuration.length_s
    # What takes long begins early.
    latest_s = {kind: length_s / 3 if kind.endswith("-in-drain") else length_s for kind in kinds}
    return tuple(Planned(rng.uniform(3.0, latest_s[kind]), kind, rng.getrandbits(32)) for kind in kinds)


def _rarer(rng: Random, configuration: Configuration, kinds: Sequence[str]) -> Configuration:
    """Draw options that users set more rarely, and what the kinds of faults need."""
    if any(kind.endswith("-in-drain") for kind in kinds):
        # A drain that lasts until the clients have new metadata, and somebody for whom the member drains.
        group, queries = replace(configuration.group, joins_in_callback=True), max(2, configuration.queries)
        configuration = replace(configuration, group=group, queries=queries, drain_s=None, max_batch_s=None)
        topics = (("orders", 4), *configuration.topics[1:])
        configuration = replace(configuration, topics=topics, length_s=max(40.0, configuration.length_s))
    query = configuration.query
    if rng.random() < 0.08:
        # At most as many as maxOffsetsPerTrigger.
        query = replace(query, min_rows=rng.choice((2, 5)), max_delay_s=rng.choice((1.0, 5.0, 15.0)))
    if rng.random() < 0.08:
        # The simulated records have 100 bytes.
        query = replace(query, max_bytes=rng.choice((50, 500, 2000)))
    two_sources = rng.random() < 0.08
    stateful = rng.choice((1, 3)) if rng.random() < 0.12 and not two_sources else 0
    return replace(
        configuration,
        query=replace(query, two_sources=two_sources),
        pattern="orders|refunds|extra" if "topic-comes" in kinds or rng.random() < 0.06 else None,
        stateful=stateful,
        on_shared_state=rng.choice((None, "warn", "allow")) if stateful else None,
    )


def _apart(kinds: list[str]) -> list[str]:
    """Leave out kinds that the judge cannot tell apart from each other in one run.

    A topic is replaced at most once: a life that came and went between two looks of all queries is seen by none. With a
    replaced topic no records are deleted: those would have to be reported even if their whole topic goes before a plan.
    """
    replaced = [kind for kind in kinds if kind.startswith("topic-")]
    if not replaced:
        return kinds
    return [kind for kind in kinds if not kind.startswith("topic-") and kind != "records-deleted"] + replaced[:1]


def _group(rng: Random, protocol: str) -> GroupSettings:
    session_s = rng.choice((6.0, 6.0, 10.0))
    heartbeat_s = rng.choice((1.0, 3.0)) if protocol == "kip848" else session_s / 3
    rebalance_s = max(rng.choice((15.0, 30.0, 60.0)), session_s)
    return GroupSettings(
        protocol,
        session_s=session_s,
        heartbeat_s=heartbeat_s,
        rebalance_s=rebalance_s,
        joins_in_callback=rng.random() < 0.3,
        describes=rng.random() < 0.9,
        assignment_delay_s=rng.choice((0.0, 0.0, 1.0)),
        per_partition_epochs=rng.random() < 0.5,
    )


def _configuration(rng: Random, group: GroupSettings) -> Configuration:
    topics = [("orders", rng.randint(1, 4))]
    if rng.random() < 0.3:
        topics.append(("refunds", rng.randint(1, 2)))
    query = QuerySettings(
        trigger_s=rng.choice((0.1, 0.5, 2.0, 10.0)),
        batch_s=rng.choice(((0.02, 0.3), (0.02, 0.3), (0.1, 2.0), (1.0, 8.0))),
        max_rows=rng.choice((None, 5, 20)),
        store=rng.choice((Store.LOCAL, Store.LOCAL, Store.LOCAL, Store.REMOTE, Store.UNKNOWN)),
        spark=rng.choice(("4.2", "4.2", "4.2", "4.0")),
        hiccup=rng.choice((0.0, 0.0, 0.002, 0.02)),
        stops_whole=rng.random() < 0.5,
        instance_ids=rng.random() < 0.15,
    )
    # The option needs a checkpoint that the source sees.
    max_batch_s = None if query.store is Store.UNKNOWN else rng.choice((None, None, None, 3.0))
    return Configuration(
        group=group,
        query=query,
        queries=rng.randint(1, 3),
        topics=tuple(topics),
        starting=rng.choice(("earliest", "earliest", "latest")),
        fail_on_data_loss=rng.random() < 0.15,
        drain_s=rng.choice((None, 2.0, 5.0)),
        max_batch_s=max_batch_s,
        lag_s=rng.choice((0.0, 0.5, 2.0)),
        length_s=rng.choice((15.0, 25.0, 40.0)),
        stretch=rng.choice((1.0, 8.0, 12.0, 12.0, 12.0, 12.0, 12.0, 12.0)),
    )


class _Adversary:
    """Hold a thread at a named place until its client has called back: the worst moment to go on."""

    def __init__(self, sim: Simulation, chance: float) -> None:
        self._sim, self._world, self._chance = sim, sim.world, chance
        self._rng = Random(sim.world.seed + 1)

    def __call__(self, place: str) -> None:
        task = self._world.current
        if task is None or self._sim.ending:
            return
        if self._rng.random() < self._chance:
            self._hold(place, next((app for app in self._sim.apps if app.process is task.process), None))
        elif self._rng.random() < task.process.hiccup * 2:
            self._world.sleep(self._rng.choice((0.05, 0.5, 2.0)))

    def _hold(self, place: str, app: Application | None) -> None:
        world: World = self._world
        if app is None or app.client is None:
            return
        before, until = app.client.callbacks, world.now + self._rng.choice((1.0, 4.0, 8.0))
        while app.client.callbacks == before and world.now < until:
            world.sleep(0.1)
        if app.client.callbacks != before:
            world.saw(f"held over a rebalance {place}")


def simulate(plan: Plan, *, tracing: bool = False) -> Outcome:
    """Run a plan, and judge it."""
    sim = Simulation(plan.seed, plan.configuration, tracing=tracing)
    sim.world.at_place = _Adversary(sim, plan.adversary)
    for planned in plan.faults:
        sim.world.at(BEGIN_S + planned.at_s, lambda planned=planned: inject(sim, planned))  # type: ignore[misc]
    documented = Documented(sim, plan.faults)
    problems = [problem for problem in sim.judged() if not documented.explains(problem)]
    problems += documented.zombies()
    world = sim.world
    return Outcome(
        plan, tuple(problems), tuple(world.trace or ()), dict(world.coverage), dict(documented.seen), world.switches,
        world.now - BEGIN_S,
    )  # fmt: skip


def shrink(outcome: Outcome) -> Outcome:
    """Return a smaller plan that fails in the same promise: fewer faults, queries, topics; no adversary if possible."""
    promise = outcome.problems[0].split(" ", 1)[0]
    smallest, changed = outcome, True
    while changed:
        changed = False
        for plan in _smaller(smallest.plan):
            tried = simulate(plan)
            if any(problem.startswith(promise) for problem in tried.problems):
                smallest, changed = tried, True
                break
    return smallest


def _smaller(plan: Plan) -> Iterator[Plan]:
    configuration = plan.configuration
    for index in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    if plan.adversary:
        yield replace(plan, adversary=0.0)
    if configuration.queries > 1:
        yield replace(plan, configuration=replace(configuration, queries=configuration.queries - 1))
    if len(configuration.topics) > 1:
        yield replace(plan, configuration=replace(configuration, topics=configuration.topics[:1]))
    if configuration.query.hiccup:
        calm = replace(configuration.query, hiccup=0.0)
        yield replace(plan, configuration=replace(configuration, query=calm))
    (name, count), *others = configuration.topics
    if count > 1:
        fewer = ((name, count - 1), *others)
        yield replace(plan, configuration=replace(configuration, topics=tuple(fewer)))


def simulate_many(seeds: range, protocol: str = "") -> list[Outcome]:
    """Run seeds. The collector of garbage would take a third of the time: it runs every 50 seeds."""
    found = []
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            found.append(simulate(plan_of(seed, protocol)))
            if number % 50 == 49:
                gc.collect()
    finally:
        gc.enable()
    return found


assert {*_MEMBERS, *_UNCLEAN, *_TOPICS, *_CHECKPOINTS, *_RARER} == KINDS.keys()
