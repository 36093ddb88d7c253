"""One simulated run: brokers, a group, queries; what a rig does to them; and the judgement by the fault rig's judge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from spark_groupsource import errors
from spark_groupsource.cli.offset_moves import Move, commit_item
from spark_groupsource.model.commit_metadata import GroupOffset, Pin, metadata_of, next_reset
from spark_groupsource.model.offsets import TopicPartition, parse_offset
from spark_groupsource.options.model import SourceOptions
from spark_groupsource.options.parse import parse_options
from tests.faults.history import Commit, Fault, History, Run, Start
from tests.faults.judge.checker import check
from tests.sim.kafka.classic import ClassicCoordinator
from tests.sim.kafka.consumer import ConsumerCoordinator
from tests.sim.kafka.coordinator import Coordinator
from tests.sim.kafka.logs import Cluster
from tests.sim.kafka.settings import GroupSettings
from tests.sim.spark.application import Application, QuerySettings
from tests.sim.spark.checkpoint import Store
from tests.sim.world import BEGIN_S, World

# Where the product passes a named place.
_PLACES = (
    "spark_groupsource.driver.session",
    "spark_groupsource.driver.start_positions",
    "spark_groupsource.driver.batch_planner",
    "spark_groupsource.membership.liveness",
)
# Seconds of virtual time: how long the quiet end may take beyond the rebalance timeout, how long everything must be
# read and committed for the run to end, and the same if topics came or went: ids are confirmed for 3 s, and an idle
# query asks for them every 5 s.
_QUIET_END_S = 240.0
_CALM_S = 2.0
_CALM_WITH_TOPICS_S = 20.0
_STOP_S = 40.0


@dataclass(frozen=True)
class Configuration:
    """What a run begins with. Times in seconds."""

    group: GroupSettings = field(default_factory=lambda: GroupSettings("cooperative"))
    query: QuerySettings = field(default_factory=QuerySettings)
    queries: int = 1
    # The number of partitions of each topic.
    topics: tuple[tuple[str, int], ...] = (("orders", 2),)
    starting: str = "earliest"
    fail_on_data_loss: bool = False
    drain_s: float | None = None
    max_batch_s: float | None = None
    on_conflict: str | None = None
    on_shared_state: str | None = None
    # So many queries, the first ones, have a window, a join of streams or dropDuplicates.
    stateful: int = 0
    # Subscribe by this pattern, instead of by the topics' names.
    pattern: str | None = None
    # For how long brokers' metadata may lag behind, for how long the rig acts, and how often idle loops of the product
    # may sleep longer than they ask for (World.stretch).
    lag_s: float = 0.0
    length_s: float = 30.0
    stretch: float = 12.0
    # Whether the rig writes records all the time.
    produces: bool = True

    @property
    def drain_timeout_s(self) -> float:
        """How long a revoke waits for a batch."""
        drain = self.drain_s if self.drain_s is not None else 0.8 * self.group.rebalance_s
        return drain if self.max_batch_s is None else min(drain, self.max_batch_s)


_OPTIONS: dict[tuple[tuple[str, str], ...], SourceOptions] = {}


def options_of(
    configuration: Configuration, *, fail_on_data_loss: bool, on_conflict: str | None = None, name: str = ""
) -> SourceOptions:
    """Return the options of a query. `name` is its group.instance.id, if it is a static member."""
    group = configuration.group
    raw = {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.group.id": "sim",
        "startingOffsets": configuration.starting,
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "kafka.max.poll.interval.ms": _ms(group.rebalance_s),
        "maxTriggerDelay": f"{_ms(configuration.query.max_delay_s)}ms",
    }
    if configuration.pattern is None:
        raw["subscribe"] = ",".join(name for name, _ in configuration.topics)
    else:
        raw["subscribePattern"] = configuration.pattern
    if configuration.query.store is not Store.UNKNOWN:
        raw["checkpointLocation"] = "/sim"
    if group.protocol == "kip848":
        raw["kafka.group.protocol"] = "consumer"
    else:
        raw["kafka.session.timeout.ms"] = _ms(group.session_s)
        raw["kafka.heartbeat.interval.ms"] = _ms(group.heartbeat_s)
        strategy = "cooperative-sticky" if group.protocol == "cooperative" else "range"
        raw["kafka.partition.assignment.strategy"] = strategy
    if configuration.drain_s is not None:
        raw["drainTimeoutMs"] = _ms(configuration.drain_s)
    if configuration.max_batch_s is not None:
        raw["maxBatchMs"] = _ms(configuration.max_batch_s)
    if on_conflict is not None:
        raw["onConflict"] = on_conflict
    if configuration.on_shared_state is not None:
        raw["onSharedState"] = configuration.on_shared_state
    if name:
        raw["kafka.group.instance.id"] = name
    key = tuple(sorted(raw.items()))
    if key not in _OPTIONS:
        _OPTIONS[key] = parse_options(raw)
    return _OPTIONS[key]


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))


class Simulation:
    """One run. `run` returns its history; `judged` what is wrong with it."""

    def __init__(self, seed: int, configuration: Configuration, *, tracing: bool = False) -> None:
        self.configuration = configuration
        self.world = world = World(seed, tracing=tracing)
        world.stretch = configuration.stretch
        self.cluster = Cluster(world)
        self.cluster.lag_s = configuration.lag_s
        kind = ConsumerCoordinator if configuration.group.protocol == "kip848" else ClassicCoordinator
        self.group: Coordinator = kind(world, self.cluster, configuration.group)
        self.faults: list[Fault] = []
        # Queries whose next start has onConflict=group.
        self._follows_group: set[str] = set()
        # Queries that start with onSharedState=allow from now on.
        self.allows_shared_state: set[str] = set()
        # What is another option of a query from its next start on: fields of `Configuration`.
        self.changed: dict[str, dict[str, Any]] = {}
        self.apps = [self._application(f"q{number + 1}") for number in range(configuration.queries)]
        for app in self.apps[: configuration.stateful]:
            app.settings.has_state = True
        # The quiet end has begun: everything is healed, nothing new happens.
        self.ending = False
        # What was not read and committed although everything was well, or did not stop.
        self.stuck = ""
        # What follows when an application has ended, instead of its next start.
        self.next: dict[str, Callable[[], object]] = {}
        # Seconds from the end of an application to its next start.
        self.rest_s: dict[str, float] = {}
        # When topics got partitions.
        self.grown_at: list[float] = []
        # Topics are created or deleted in this run.
        self.topics_change = False
        self._over = False
        self._starts: dict[tuple[str, str, int], int] = {}

    @property
    def sources(self) -> tuple[Application, ...]:
        """All sources of all queries. The judge takes each for a query."""
        return tuple(source for app in self.apps for source in app.sources)

    def _application(self, name: str) -> Application:
        app = self._source(name, name, replace(self.configuration.query))
        app.on_end = lambda how: self._app_ended(app, how)
        if app.settings.two_sources:
            app.twin = self._source(f"{name}b", name, app.settings)
        return app

    def _source(self, source: str, name: str, settings: QuerySettings) -> Application:
        """Return a source of the query of this name."""
        configuration = self.configuration

        def options(*, fail_on_data_loss: bool) -> SourceOptions:
            instance = source if settings.instance_ids else ""
            on_conflict = "group" if name in self._follows_group else configuration.on_conflict
            self._follows_group.discard(name)
            now = replace(configuration, **self.changed.get(name, {}))
            if name in self.allows_shared_state:
                now = replace(now, on_shared_state="allow")
            return options_of(
                now, fail_on_data_loss=fail_on_data_loss, on_conflict=on_conflict, name=instance,
            )  # fmt: skip

        app = Application(self.world, source, self.cluster, self.group, settings, options)
        app.fails_on_data_loss = configuration.fail_on_data_loss
        return app

    def _app_ended(self, app: Application, how: str) -> None:
        """Start an application again, as a supervisor does.

        After a failure by data loss with failOnDataLoss=false, by shared state with onSharedState=allow, and by a
        restored checkpoint with one of its cures.
        """
        if self._over:
            return
        if how == "failed" and app.fails_on_data_loss:
            app.fails_on_data_loss = False
        if how == "failed" and errors.CHECKPOINT_BEHIND.id in app.errors[-1]:
            self._cure(app)
        if how == "failed" and errors.SHARED_STATE.id in app.errors[-1] and self.configuration.stateful:
            self.allows_shared_state.add(app.name)
        follow = self.next.pop(app.name, None)
        if follow is not None:
            follow()
            return
        rest_s = self.rest_s.pop(app.name, None)
        rest_s = self.world.rng.choice((0.2, 1.0, 4.0)) if rest_s is None else rest_s
        self.world.after(min(rest_s, 2.0) if self.ending else rest_s, lambda: self.start(app))

    def _cure(self, app: Application) -> None:
        """Decide whether a query with a restored checkpoint reads again what it has read since."""
        others_run = any(other.up for other in self.apps)
        if others_run or self.world.rng.random() < 0.5:
            self._follows_group.add(app.name)
            return
        self.world.saw("a restored checkpoint reads again")
        ends = parse_offset(app.checkpoint.entries[app.checkpoint.newest].end).ends()
        held = self.group.offsets
        self.reset_group({p: end for p, end in ends.items() if p in held and p.topic in self.cluster.topics})

    # --- what a rig does

    def start(self, app: Application) -> None:
        """Start an application, unless it runs or the run is over."""
        if not app.up and not self._over:
            app.start()

    def fault(self, kind: str, target: str = "", seconds: float = 0.0, *, clean: bool = False, **details: Any) -> None:
        """Record a fault for the judge. `clean`: it takes nothing from a member without a handover."""
        now = self.world.now
        ended = now + seconds
        recovered = ended if clean else ended + self.configuration.group.session_s + 3.0
        app = next((app for app in self.apps if app.name == target), None)
        for name in [target] if app is None else [source.name for source in app.sources]:
            self.faults.append(Fault(len(self.faults) + 1, kind, name, now, ended, recovered, clean, details))
        self.world.saw(f"fault {kind}")
        self.world.say("rig", f"fault {kind} {target} for {seconds:.1f} s {details or ''}")

    def write(self, count: int | None = None) -> None:
        """Append records: `count` to each partition, or a few to some."""
        rng = self.world.rng
        for name, topic in sorted(self.cluster.topics.items()):
            for number in range(len(topic.logs)):
                if count is not None:
                    self.cluster.produce(name, number, count)
                elif rng.random() < 0.6:
                    self.cluster.produce(name, number, rng.randint(1, 6), markers=True)

    def grow_topic(self, name: str, count: int) -> None:
        """Add partitions. Before the group has begun, they are among those with which it begins."""
        topic = self.cluster.topics[name]
        if not any(commit.topic == name for commit in self.group.commits):
            self._starts |= {(name, topic.id, number): 0 for number in range(len(topic.logs), count)}
        self.grown_at.append(self.world.now)
        self.cluster.grow(name, count)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self.topics_change = True
        self.cluster.delete(name)

    def create_topic(self, name: str, count: int) -> None:
        """Create a topic, also in the place of a deleted one. See `grow_topic`."""
        self.topics_change = True
        topic = self.cluster.create(name, count)
        if not self.group.commits:
            self._starts |= {(name, topic.id, number): 0 for number in range(count)}

    def subscribe_all(self) -> None:
        """Restart the queries that subscribe to fewer topics than the run has."""
        for app in self.apps:
            if self.changed.get(app.name, {}).pop("topics", None) is not None and app.session is not None:
                self.fault("query-stopped", app.name, clean=True)
                app.drain()

    def delete_records(self, name: str, number: int, to: int) -> None:
        """Remove the records of a partition below an offset."""
        deleted = self.cluster.delete_records(name, number, to)
        if deleted:
            self.fault("records-deleted", clean=True, deleted=deleted)

    def move_group(self, targets: dict[TopicPartition, int]) -> None:
        """Commit offsets as another program does, without this source's metadata."""
        held = {partition: self.group.offsets.get(partition, GroupOffset(None)).offset or 0 for partition in targets}
        moved = [[p.topic, p.partition, held[p], to] for p, to in sorted(targets.items())]
        self.fault("group-rewound", "sim", moved=moved)
        for partition, offset in sorted(targets.items()):
            self.group.set_offset(partition, offset)

    def reset_group(self, targets: dict[TopicPartition, int]) -> None:
        """Commit offsets as `groupkafka reset` does: with the reset as a marker."""
        held = {partition: self.group.offsets[partition] for partition in sorted(targets)}
        moved = [[p.topic, p.partition, at.offset, targets[p]] for p, at in held.items()]
        self.fault("group-reset", "sim", moved=moved)
        reset = next_reset(held.values(), int(self.world.now * 1000), f"reset-{len(self.faults)}")
        for partition, group in held.items():
            metadata, topic = metadata_of(group), self.cluster.topics[partition.topic]
            pin = Pin(targets[partition], len(topic.logs)) if metadata is None else metadata.pin
            move = Move(partition, group.offset, targets[partition], "")
            item = commit_item(move, pin, topic.id, reset)
            self.group.set_offset(partition, item.offset, item.metadata)

    # --- the run

    def run(self) -> History:
        """Run to the end, and return what happened."""
        with _places(self.world):
            return self._run()

    def _run(self) -> History:
        world, configuration = self.world, self.configuration
        if configuration.query.store is Store.UNKNOWN:
            # Documented: without checkpointLocation a clean handover repeats at most one batch.
            end = BEGIN_S + 1e6
            self.faults.append(Fault(1, "no-checkpoint-location", "", BEGIN_S, end, end, False))
        self._create_topics()
        if configuration.produces:
            world.after(world.rng.uniform(0.1, 1.0), self._produce)
        self._start_applications()
        world.run(BEGIN_S + configuration.length_s)
        self._settle()
        return self._history()

    def _create_topics(self) -> None:
        rng = self.world.rng
        for name, count in self.configuration.topics:
            topic = self.cluster.create(name, count)
            for number in range(count):
                if self.configuration.produces and rng.random() < 0.7:
                    self.cluster.produce(name, number, rng.randint(1, 15), markers=True)
                end = topic.logs[number].end
                self._starts[name, topic.id, number] = end if self.configuration.starting == "latest" else 0
        self.cluster.settle()

    def _start_applications(self) -> None:
        first, *others = self.apps
        self.world.after(0.0, lambda: self.start(first))
        for app in others:
            wait = self.world.rng.uniform(0.0, self.configuration.length_s / 2)
            self.world.after(wait, lambda app=app: self.start(app))  # type: ignore[misc]

    def _produce(self) -> None:
        if not self.ending:
            self.write()
            self.world.after(self.world.rng.uniform(0.1, 2.0), self._produce)

    def _settle(self) -> None:
        """Heal everything, and wait until all is read and committed."""
        world, limit_s = self.world, _QUIET_END_S + self.configuration.group.rebalance_s
        self.ending = True
        world.say("rig", "the quiet end begins")
        self.group.heal()
        self.cluster.down_until = self.cluster.slow_s = 0.0
        self.subscribe_all()
        if self.configuration.produces:
            self.write()
        until, calm_since = world.now + limit_s, None
        calm_s = _CALM_WITH_TOPICS_S if self.topics_change else _CALM_S
        while world.now < until:
            for app in self.apps:
                app.hurry = True
                if app.process is not None:
                    app.process.hiccup = 0.0
                elif app.name not in self.rest_s and app.name not in self.next and world.rng.random() < 0.1:
                    self.start(app)
            world.run(world.now + 0.5)
            # A rebalance that waits for a client may be what leaves a partition to nobody.
            is_settled = self.group.confirmed() and all(app.up and app.batch is None for app in self.apps)
            is_calm = is_settled and not self._lag()
            calm_since = (calm_since or world.now) if is_calm else None
            if calm_since is not None and world.now - calm_since >= calm_s:
                break
        else:
            down = [app.name for app in self.apps if not app.up]
            self.stuck = self._lag() or f"never calm; not up: {down}"
        self._over = True
        for app in self.apps:
            app.stop()
        world.run(world.now + _STOP_S)
        for app in self.apps:
            if app.process is not None:
                self.stuck = self.stuck or f"{app.name} did not stop"
                app.kill()

    def _lag(self) -> str:
        """Return what the group has not read; empty if it has read all."""
        found = []
        for name, topic in sorted(self.cluster.topics.items()):
            for number, log in enumerate(topic.logs):
                held = self.group.offsets.get(TopicPartition(name, number))
                at = None if held is None else held.offset
                if at != log.end and not (at is None and log.end == 0):
                    found.append(f"{name}-{number} group={at} end={log.end}")
        return ", ".join(found)

    # --- the history

    def _history(self) -> History:
        configuration, group = self.configuration, self.configuration.group
        run = Run(
            self.world.seed, group.protocol, "sim", tuple(name for name, _ in configuration.topics), group.session_s,
            BEGIN_S, self.world.now, "sim", configuration.drain_timeout_s, configuration.starting,
        )  # fmt: skip
        return History(
            run,
            faults=tuple(self.faults),
            topics=self.cluster.topic_lives(),
            starts=tuple(self._start_of(*log, low) for log, low in self._starts.items()),
            runs=tuple(run for app in self.sources for run in app.runs),
            group=tuple(self.group.records),
            produced=tuple(self.cluster.produced),
            log=self.cluster.logged(),
            commits=tuple(self.group.commits),
            members=tuple(event for app in self.sources for event in app.events),
            batches=tuple(sorted((batch for app in self.sources for batch in app.batches), key=lambda batch: batch.at)),
            completed=tuple(one for app in self.sources for one in app.completed()),
        )

    def _start_of(self, name: str, topic_id: str, number: int, low: int) -> Start:
        """Return the bounds of a start: with "latest", up to the log's end when the group first stored a start.

        That is one moment for all partitions of a topic, whoever owned them then (rule R26).
        """
        first: Commit | None = next((commit for commit in self.group.commits if commit.topic == name), None)
        if self.configuration.starting != "latest" or first is None:
            return Start(name, topic_id, number, low, low)
        ends = [
            one.offset + 2  # A marker may follow a record.
            for one in self.cluster.produced
            if (one.topic, one.topic_id, one.partition) == (name, topic_id, number) and one.at <= first.at
        ]
        return Start(name, topic_id, number, low, max([low, *ends]))

    def judged(self) -> list[str]:
        """Run, and return what is wrong, promise first."""
        history = self.run()
        verdict = check(history)
        found = [f"{promise} {one.text}" for promise, all_ in verdict.violations.items() for one in all_]
        found += [f"DOUBT {doubt}" for doubt in verdict.doubts]
        if self.stuck:
            found.append(f"STUCK {self.stuck}")
        for app in self.sources:
            found += [f"ERROR {app.name} {error}" for error in app.errors]
            found += [f"ANSWER {answer}" for answer in app.answers]
            found += [f"WATCH {problem}" for watch in app.watches for problem in watch.problems]
        return found


@contextmanager
def _places(world: World) -> Iterator[None]:
    """Let the product's named places call the world, and its log lines go to the trace."""
    logger, disabled = logging.getLogger("spark_groupsource"), logging.root.manager.disable
    level, propagates = logger.level, logger.propagate
    handler = _Lines(world)
    with ExitStack() as patches:
        for module in _PLACES:
            patches.enter_context(mock.patch(f"{module}.reach", lambda place, _: world.at_place(place)))
        if world.trace is None:
            logging.disable(logging.CRITICAL)
        else:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
            logger.propagate = False
        try:
            yield
        finally:
            logging.disable(disabled)
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagates


class _Lines(logging.Handler):
    """Add the product's log lines to the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line."""
        task = self._world.current
        self._world.say(task.process.name if task else "?", f"LOG {record.levelname} {record.getMessage()}")
