"""Faults of a Spark cluster: executors, workers, Python daemons and tasks; cores that come and go."""

from __future__ import annotations

import time
from pathlib import Path

from tests.faults.observe.observer import attempt
from tests.faults.rig.fleet import Query
from tests.faults.rig.rig import DRAIN_TIMEOUT_S, FIRST, Done, Rig
from tests.faults.waiting import wait_for
from tests.sparkcluster.sparkcluster import Executor

_AWAY_S = (0.0, 3.0)  # how long a worker is away
_HURT_S = 90.0
_SLOW_S = 4.0  # longer than a task waits for a speculative copy, or for another executor
_BURST = 300  # records per partition


def _victim(rig: Rig) -> Query:
    """Return a random live query of those on the cluster."""
    found = [query for query in rig.fleet.live if rig.shape.clustered(query.name)]
    # In a mixed run there is one, which may have left the group.
    return rig.rng.choice(found) if found else rig.fleet.add(FIRST)


def _executors(rig: Rig, query: Query) -> list[Executor]:
    return rig.spark.executors(query.running_on.folder.name)


def _an_executor(rig: Rig, query: Query) -> Executor:
    found = wait_for(f"an executor of {query.name}", 120, lambda: _executors(rig, query), rig.evidence)
    return rig.rng.choice(found)


def _load(rig: Rig, query: Query) -> None:
    """Write enough at once to what the query owns that its next batches have work for executors."""
    # A classic group keeps the partitions of a deleted topic until its next rebalance.
    known = attempt(rig.observer.all_partitions) or set()
    for partition in sorted(rig.owners().get(query.name, set()) & known):
        rig.producer.burst_beside(partition, _BURST)


def kill_executor(rig: Rig) -> Done:
    """SIGKILL of an executor in the middle of its work; what it had for a shuffle goes with it."""
    victim = _victim(rig)
    _load(rig, victim)
    time.sleep(rig.rng.uniform(0.2, 2.0))
    executor = _an_executor(rig, victim)
    rig.spark.kill_executor(executor)
    return Done(victim.name, True, {"executor": executor.executor_id})


def kill_worker(rig: Rig) -> Done:
    """SIGKILL of a worker with all of its executors, of every application; it comes back."""
    victim = _victim(rig)
    _load(rig, victim)
    name = _an_executor(rig, victim).worker
    rig.spark.kill_worker(name)
    time.sleep(rig.rng.uniform(*_AWAY_S))
    rig.spark.start_worker(name)
    return Done(name, True)


def kill_daemon(rig: Rig) -> Done:
    """SIGKILL of the Python daemon of an executor, with its workers; the tasks are tried again."""
    victim = _victim(rig)
    _load(rig, victim)
    wait_for(
        f"a Python daemon of {victim.name}", 120,
        lambda: any(rig.spark.kill_daemon(one) for one in _executors(rig, victim)), rig.evidence,
    )  # fmt: skip
    return Done(victim.name, True)


def _hurt(rig: Rig, victim: Query, how: str, sleep_s: float) -> Done:
    marker = Path(rig.fleet.folder) / f"hurt-{victim.run}-{time.time_ns()}"
    until = time.monotonic() + _HURT_S
    # A batch may have no task of executors, or the query may have been started again: until one was hurt.
    while not marker.exists() and time.monotonic() < until:
        victim.running_on.command(do="hurt", how=how, sleep_s=sleep_s, marker=str(marker))
        _load(rig, victim)
        rig.fleet.heal()
        time.sleep(1.0)
    wait_for(f"a task of {victim.name} to {how}", 1, marker.exists, rig.evidence)
    return Done(victim.name, True, {"sleep_s": sleep_s} if sleep_s else {})


def fail_task(rig: Rig) -> Done:
    """A task fails when a part of its rows is through, and Spark tries it again."""
    return _hurt(rig, _victim(rig), "fail", 0.0)


def slow_task(rig: Rig) -> Done:
    """A task hangs for a while, and Spark starts a speculative copy of it."""
    return _hurt(rig, _victim(rig), "slow", _SLOW_S)


def scale(rig: Rig) -> Done:
    """Dynamic allocation goes down when an application has nothing to do, and up when tasks wait for one that hangs."""
    victim = _victim(rig)
    # Without records there is no batch. One a second, and no executor would ever be idle for long enough.
    rig.producer.set_rate(0.0)
    try:
        wait_for(f"executors of {victim.name} to go", 90, lambda: len(_executors(rig, victim)) == 1, rig.evidence, 0.5)
        _hurt(rig, victim, "slow", _SLOW_S)
        wait_for(f"an executor of {victim.name} to come", 60, lambda: len(_executors(rig, victim)) > 1, rig.evidence)
    finally:
        rig.producer.set_rate(rig.shape.rate)
    return Done(victim.name, True, {"executors": [1, 2]})


def decommission(rig: Rig) -> Done:
    """A worker is decommissioned: its executors end after their tasks; then it ends, and comes back."""
    victim = _victim(rig)
    _load(rig, victim)
    name = _an_executor(rig, victim).worker
    rig.spark.decommission_worker(name)
    time.sleep(rig.rng.uniform(1.0, 4.0))
    rig.spark.kill_worker(name)
    rig.spark.start_worker(name)
    return Done(name, True)


def starve(rig: Rig) -> Done:
    """An application gets no core at all while it is a member and owns partitions; another one rebalances."""
    victim = _victim(rig)
    other = rig.rng.choice([query for query in rig.fleet.live if query is not victim])
    rig.fleet.stop(victim)
    victim.running_on.kill()
    hog = rig.fleet.pool_of(victim).cold(spark_dynamicAllocation_enabled="false", spark_cores_max="1000")
    try:
        wait_for("the hog's executors", 60, lambda: rig.spark.executors(hog.folder.name), rig.evidence)
        time.sleep(2.0)  # it takes all that is free
        victim.app = rig.fleet.pool_of(victim).cold()
        rig.fleet.start(victim)
        wait_for(f"{victim.name} to own partitions", 120, lambda: rig.owners().get(victim.name), rig.evidence)
        rig.fleet.stop(other)
        time.sleep(rig.rng.uniform(0.5, 2.0))
        rig.fleet.start(other)
        time.sleep(DRAIN_TIMEOUT_S + 1.0)  # the starved one's batch cannot end in time
        had = len(_executors(rig, victim))
    finally:
        hog.kill()
    return Done(victim.name, False, {"other": other.name, "executors": had})
