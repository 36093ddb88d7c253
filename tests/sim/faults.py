"""What can be done to a simulated run: the fault rig's kinds (tests/faults/inject) by the same names, and more.

Each function draws what it needs from a generator of its own, so that a run without one fault is else the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from spark_groupsource.model.offsets import TopicPartition
from tests.sim.simulation import Simulation
from tests.sim.spark.application import Application
from tests.sim.spark.engine import Trigger

_SECONDS = (0.5, 2.0, 5.0, 9.0, 15.0)
_SOON = (0.2, 1.0, 8.0)


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of a run: when it comes (seconds from the beginning), what it is, and the seed of what it draws."""

    at_s: float
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.1f} s"


# Faults that may wait for a moment of some client, and the moments (World.reached).
_AT_MOMENTS = {
    "query-stopped", "app-ended", "app-killed", "reader-paused", "app-paused", "network-cut", "coordinator-killed",
    "broker-killed", "answers-lost", "requests-lost", "answers-slow", "checkpoint-hangs",
}  # fmt: skip
_MOMENTS = ("revoked", "revoked", "handover-commit", "assigned", "closing")


def inject(sim: Simulation, planned: Planned) -> None:
    """Make a fault, if the run is still young enough for it. One in three waits for a moment of a client."""
    rng = Random(planned.seed)
    moments = Random(planned.seed + 1)
    if planned.kind not in _AT_MOMENTS or moments.random() < 0.65:
        _make(sim, planned.kind, rng)
        return
    moment, late_s = moments.choice(_MOMENTS), moments.choice((0.0, 0.0005, 0.005, 0.05, 0.3, 1.0))

    def reached(now: str) -> None:
        if now == moment:
            sim.world.listeners.remove(reached)
            sim.world.saw(f"fault at {moment}")
            sim.world.after(late_s, lambda: _make(sim, planned.kind, rng))

    sim.world.listeners.append(reached)


def _make(sim: Simulation, kind: str, rng: Random) -> None:
    if not sim.ending:
        KINDS[kind](sim, rng)


def _victim(sim: Simulation, rng: Random) -> Application | None:
    """Return an application that runs, and that no other fault has asked to end."""
    running = [app for app in sim.apps if app.up and app.session is not None and app.name not in sim.next]
    return rng.choice(running) if running else None


# --- members come and go


def _stop_query(sim: Simulation, rng: Random) -> None:
    if app := _victim(sim, rng):
        sim.fault("query-stopped", app.name, clean=True)
        sim.rest_s[app.name] = rng.choice((0.5, 3.0, 12.0, 25.0))
        app.drain()


def _end_app(sim: Simulation, rng: Random) -> None:
    """`query.stop()`: judged by its runs, and excused by nothing else."""
    if app := _victim(sim, rng):
        sim.rest_s[app.name] = rng.choice(_SOON)
        app.stop()


def _kill(sim: Simulation, rng: Random) -> None:
    if app := _victim(sim, rng):
        sim.rest_s[app.name] = rng.choice((*_SOON, 20.0))
        sim.fault("app-killed", app.name)
        app.kill()


def _with_trigger(trigger: Trigger) -> Callable[[Simulation, Random], None]:
    def run(sim: Simulation, rng: Random) -> None:
        """Stop a query, run it once as a scheduled job, and go on as before."""
        app = _victim(sim, rng)
        if app is None:
            return

        def again() -> None:
            app.trigger = Trigger.PROCESSING_TIME
            sim.world.after(rng.choice(_SOON), lambda: sim.start(app))

        def as_job() -> None:
            app.trigger = trigger
            sim.next[app.name] = again
            sim.world.after(0.5, lambda: sim.start(app))

        sim.fault("query-stopped", app.name, clean=True)
        sim.next[app.name] = as_job
        app.drain()

    return run


def _change_options(sim: Simulation, rng: Random) -> None:
    """Stop a query, and start it with other options. A topic that it leaves out is subscribed to again later."""
    app, configuration = _victim(sim, rng), sim.configuration
    if app is None:
        return
    changed: dict[str, Any] = {"on_shared_state": rng.choice(("fail", "warn", "allow"))}
    app.settings.max_rows = rng.choice((None, 5, 20))
    partitions = [TopicPartition(t.name, n) for t in sim.cluster.topics.values() for n in range(len(t.logs))]
    if rng.random() < 0.5 and all(partition in sim.group.offsets for partition in partitions):
        # Else it counts for the partitions that have no start yet.
        changed["starting"] = "earliest" if configuration.starting == "latest" else "latest"
    if rng.random() < 0.7 and configuration.pattern is None and len(configuration.topics) > 1:
        changed["topics"] = (rng.choice(configuration.topics),)
        sim.world.after(rng.uniform(5.0, 15.0), sim.subscribe_all)
    sim.changed[app.name] = changed
    sim.allows_shared_state.discard(app.name)
    sim.fault("query-stopped", app.name, clean=True)
    sim.rest_s[app.name] = rng.choice(_SOON)
    app.drain()


def _slow_batches(sim: Simulation, rng: Random) -> None:
    """Batches take longer than the drain deadline for a while."""
    if app := _victim(sim, rng):
        usual, seconds = app.settings.batch_s, sim.configuration.drain_timeout_s + 3.0
        if seconds > 30.0:
            return
        app.settings.batch_s = (seconds, seconds + 1.0)
        sim.world.after(5.0, lambda: setattr(app.settings, "batch_s", usual))


# --- silence


def _pause(*, whole: bool, suspended: bool = False) -> Callable[[Simulation, Random], None]:
    def run(sim: Simulation, rng: Random) -> None:
        """Stop a process for a while (SIGSTOP), or suspend its machine."""
        app = _victim(sim, rng)
        if app is None or app.process is None:
            return
        seconds = rng.choice(_SECONDS)
        app.settings.stops_whole = whole
        sim.fault("app-paused" if whole else "reader-paused", app.name, seconds)
        app.process.stop(seconds, suspended=suspended)
        if rng.random() < 0.2:
            sim.world.after(seconds + rng.choice((-0.5, 0.002, 0.01)), app.drain)

    return run


def _cut(sim: Simulation, rng: Random) -> None:
    """Cut a client's network, or break its connection to the coordinator again and again."""
    if (app := _victim(sim, rng)) and app.client is not None:
        seconds = rng.choice(_SECONDS)
        sim.fault("network-cut", app.name, seconds)
        if rng.random() < 0.6:
            app.client.cut_until = sim.world.now + seconds
        else:
            _flap(sim, app, rng, sim.world.now + seconds)


def _flap(sim: Simulation, app: Application, rng: Random, until: float) -> None:
    if sim.world.now < until and not sim.ending and app.client is not None:
        app.client.break_connection()
        sim.world.after(rng.uniform(0.05, 0.8), lambda: _flap(sim, app, rng, until))


def _hiccups(sim: Simulation, rng: Random) -> None:
    for app in sim.apps:
        if app.process is not None:
            app.process.hiccup = 0.05


def _store_hangs(sim: Simulation, rng: Random) -> None:
    if app := _victim(sim, rng):
        seconds = rng.choice(_SECONDS)
        sim.fault("checkpoint-hangs", app.name, seconds)
        app.checkpoint.hangs_until = sim.world.now + seconds


# --- brokers


def _coordinator_down(sim: Simulation, rng: Random) -> None:
    seconds = rng.choice(_SECONDS)
    sim.fault("coordinator-killed", "", seconds)
    sim.group.down(seconds)


def _brokers_down(sim: Simulation, rng: Random) -> None:
    seconds = rng.choice(_SECONDS)
    sim.fault("broker-killed", "", seconds)
    sim.cluster.down_until = sim.world.now + seconds


def _answers(attribute: str, value: float) -> Callable[[Simulation, Random], None]:
    def run(sim: Simulation, rng: Random) -> None:
        """Lose or delay commits or their answers for a while."""
        seconds = rng.choice(_SECONDS)
        sim.fault("coordinator-answers", "", seconds)
        setattr(sim.group, attribute, value)
        sim.world.after(seconds, lambda: setattr(sim.group, attribute, 0.0))

    return run


def _answers_slow(sim: Simulation, rng: Random) -> None:
    """Let the coordinator, or all other brokers, answer late for a while."""
    if rng.random() < 0.6:
        _answers("answer_delay_s", 1.5)(sim, rng)
        return
    seconds = rng.choice(_SECONDS)
    sim.fault("coordinator-answers", "", seconds)
    sim.cluster.slow_s = 3.0
    sim.world.after(seconds, lambda: setattr(sim.cluster, "slow_s", 0.0))


def _move_leader(sim: Simulation, rng: Random) -> None:
    if names := sorted(sim.cluster.topics):
        name = rng.choice(names)
        sim.cluster.move_leader(name, rng.randrange(len(sim.cluster.topics[name].logs)))


# --- topics and records


def _burst(sim: Simulation, rng: Random) -> None:
    sim.write(rng.randint(5, 40))


def _grow(sim: Simulation, rng: Random) -> None:
    if names := sorted(sim.cluster.topics):
        name = rng.choice(names)
        if sim.configuration.group.joins_in_callback and sim.configuration.group.protocol != "kip848":
            # Rule R85: what the client then loses is bounded, and not nothing.
            sim.fault("partitions-added", "", 6.0)
        sim.grow_topic(name, len(sim.cluster.topics[name].logs) + rng.randint(1, 2))


def _delete_records(sim: Simulation, rng: Random) -> None:
    if names := sorted(sim.cluster.topics):
        name = rng.choice(names)
        number = rng.randrange(len(sim.cluster.topics[name].logs))
        log = sim.cluster.topics[name].logs[number]
        sim.delete_records(name, number, rng.randint(log.begin, log.end))


def _recreate(shortest_s: float, longest_s: float) -> Callable[[Simulation, Random], None]:
    def run(sim: Simulation, rng: Random) -> None:
        """Delete a topic, and create it again."""
        names = sorted(sim.cluster.topics)
        if not names:
            return
        name = rng.choice(names)
        count = len(sim.cluster.topics[name].logs)
        sim.fault("topic-recreated", "", 12.0)
        sim.delete_topic(name)
        successors = rng.choice((count, count, max(1, count - 1), count + 1))
        # At once: a client with old metadata does not notice that the topic was missing.
        pause_s = 0.002 if shortest_s < 1.0 and rng.random() < 0.3 else rng.uniform(shortest_s, longest_s)
        sim.world.after(pause_s, lambda: sim.create_topic(name, successors))
        app = _victim(sim, rng) if rng.random() < 0.3 else None
        if app is not None and sim.configuration.queries > 1:
            # It has unread records of the deleted topic, and comes back when others have read the new one.
            sim.rest_s[app.name] = rng.choice((3.0, 12.0))
            app.drain()

    return run


def _topic_comes(sim: Simulation, rng: Random) -> None:
    """A topic appears that the pattern matches. It may vanish, and come back."""
    if sim.configuration.pattern is None:
        return
    count = rng.randint(1, 3)
    sim.create_topic("extra", count)
    life_s, pause_s = rng.uniform(6.0, 20.0), rng.uniform(0.05, 10.0)

    def vanish(*, returns: bool) -> None:
        if not sim.ending:
            sim.fault("topic-recreated", "", 12.0)
            sim.delete_topic("extra")
            if returns:
                sim.world.after(pause_s, lambda: sim.create_topic("extra", count))

    if rng.random() < 0.7:
        returns = rng.random() < 0.5
        sim.world.after(life_s, lambda: vanish(returns=returns))


def _in_drain(kind: str) -> Callable[[Simulation, Random], None]:
    def run(sim: Simulation, rng: Random) -> None:
        """Let another query go, and come back in a long batch of this one; make a fault while the batch drains."""
        app = _victim(sim, rng)
        other = next((other for other in sim.apps if other is not app and other.session is not None), None)
        if app is None or other is None or other.name in sim.next:
            sim.world.after(1.0, lambda: None if sim.ending else run(sim, rng))
            return
        usual, seconds, late_s = app.settings.batch_s, rng.uniform(8.0, 15.0), rng.choice((0.0, 0.5, 2.0))
        app.settings.batch_s = (seconds, seconds)
        sim.world.after(25.0, lambda: setattr(app.settings, "batch_s", usual))
        before = app.batch

        def reached(moment: str) -> None:
            client = app.client
            if moment == "revoked" and app.batch is not None and client is not None and client.running == moment:
                sim.world.listeners.remove(reached)
                sim.world.saw(f"{kind} in a drain")
                sim.world.after(late_s, lambda: _make(sim, kind, rng))

        def returns() -> None:
            if not sim.ending and app.batch in (None, before):
                sim.world.after(0.1, returns)
            else:
                sim.start(other)

        sim.world.listeners.append(reached)
        sim.fault("query-stopped", other.name, clean=True)
        sim.next[other.name] = returns
        other.drain()

    return run


# --- checkpoints


def _lose_checkpoint(sim: Simulation, rng: Random) -> None:
    """Stop a query, delete its checkpoint, start it."""
    if app := _victim(sim, rng):

        def follow() -> None:
            old, new = app.new_life()
            sim.fault("checkpoint-lost", app.name, old=old, new=new)
            sim.world.after(0.5, lambda: sim.start(app))

        sim.next[app.name] = follow
        app.drain()


def _restore_checkpoint(sim: Simulation, rng: Random) -> None:
    """Stop a query, copy its checkpoint, start it; later stop it again and go on with the copy."""
    app = _victim(sim, rng)
    if app is None:
        return

    def restore(copy_of: object) -> None:
        copy = copy_of
        old, new = app.new_life(copy)  # type: ignore[arg-type]
        sim.fault("checkpoint-restored", app.name, old=old, new=new, batch=app.checkpoint.newest)
        sim.world.after(0.5, lambda: sim.start(app))

    def stop_again(copy: object) -> None:
        if app.up and not sim.ending and app.name not in sim.next:
            sim.next[app.name] = lambda: restore(copy)
            app.drain()

    def keep() -> None:
        copy = app.checkpoint.copied("copy")
        # A copy of a moment between two batches: else both lives run the batch.
        copy.entries = {number: entry for number, entry in copy.entries.items() if entry.completed_at is not None}
        sim.world.after(0.5, lambda: sim.start(app))
        sim.world.after(rng.choice((4.0, 8.0)), lambda: stop_again(copy))

    sim.next[app.name] = keep
    app.drain()


def _lose_commit_entry(sim: Simulation, rng: Random) -> None:
    """The newest entry of the commit log is lost, as after a crash: the batch runs again."""
    if app := _victim(sim, rng):

        def follow() -> None:
            newest = app.checkpoint.newest
            details = {"checkpoint": app.checkpoint.life}
            if newest >= 0 and app.checkpoint.entries[newest].completed_at is not None:
                app.checkpoint.entries[newest].completed_at = None
                details["batch"] = newest  # type: ignore[assignment]
            sim.fault("commit-entry-lost", app.name, **details)
            sim.world.after(0.5, lambda: sim.start(app))

        sim.next[app.name] = follow
        app.drain()


def _rewind(sim: Simulation, rng: Random) -> None:
    """Stop all queries, let another program commit older offsets, start all."""
    running = [app for app in sim.apps if app.up and app.session is not None and app.name not in sim.next]
    if not running or len(running) < len([app for app in sim.apps if app.up]):
        return
    waiting = {app.name for app in running}

    def ended(name: str) -> None:
        waiting.discard(name)
        if waiting:
            return
        held = {p: group.offset for p, group in sorted(sim.group.offsets.items()) if group.offset}
        held = {p: at for p, at in held.items() if p.topic in sim.cluster.topics}
        chosen = rng.sample(sorted(held), k=max(1, len(held) // 2)) if held else []
        targets: dict[TopicPartition, int] = {p: max(0, held[p] - rng.randint(1, 30)) for p in chosen}
        if targets and not any(app.up for app in sim.apps):
            sim.move_group(targets)
        for app in running:
            sim.world.after(rng.choice((0.2, 1.0)), lambda app=app: sim.start(app))  # type: ignore[misc]

    for app in running:
        sim.next[app.name] = lambda name=app.name: ended(name)  # type: ignore[misc]
        app.drain()


KINDS: dict[str, Callable[[Simulation, Random], None]] = {
    "query-stopped": _stop_query,
    "app-ended": _end_app,
    "app-killed": _kill,
    "available-now": _with_trigger(Trigger.AVAILABLE_NOW),
    "once": _with_trigger(Trigger.ONCE),
    "slow-batch": _slow_batches,
    "reader-paused": _pause(whole=False),
    "app-paused": _pause(whole=True),
    "machine-suspended": _pause(whole=True, suspended=True),
    "network-cut": _cut,
    "hiccups": _hiccups,
    "checkpoint-hangs": _store_hangs,
    "coordinator-killed": _coordinator_down,
    "broker-killed": _brokers_down,
    "answers-lost": _answers("lose_answer", 0.5),
    "requests-lost": _answers("lose_request", 0.5),
    "answers-slow": _answers_slow,
    "heartbeat-answers-lost": _answers("lose_heartbeat_answer", 0.2),
    "leader-moves": _move_leader,
    "burst": _burst,
    "partitions-added": _grow,
    "records-deleted": _delete_records,
    "topic-recreated": _recreate(0.05, 1.0),
    "topic-deleted-for-long": _recreate(4.0, 12.0),
    "topic-comes": _topic_comes,
    "partitions-added-in-drain": _in_drain("partitions-added"),
    "topic-recreated-in-drain": _in_drain("topic-recreated"),
    "topic-deleted-in-drain": _in_drain("topic-deleted-for-long"),
    "options-changed": _change_options,
    "checkpoint-lost": _lose_checkpoint,
    "checkpoint-restored": _restore_checkpoint,
    "commit-entry-lost": _lose_commit_entry,
    "group-rewound": _rewind,
}
