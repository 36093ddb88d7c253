"""Faults of processes: killed, stopped for a while, ended cleanly."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import asdict

from tests.faults.rig import apps
from tests.faults.rig.fleet import Query
from tests.faults.rig.rig import Done, Rig, Takeover
from tests.faults.waiting import wait_for


def victim_of(rig: Rig) -> Query:
    """Return a random live query."""
    return rig.rng.choice(rig.fleet.live)


def taken_after(rig: Rig, victim: Query, do: Callable[[], object]) -> Takeover:
    """Do it to the victim and measure how long the others take to go on with its partitions."""
    lost = rig.owners().get(victim.name, set())
    since = time.time()
    do()
    return rig.wait_taken_over(victim, since, lost)


def kill_app(rig: Rig) -> Done:
    """SIGKILL of a whole application: driver, JVM, reader and workers."""
    victim = victim_of(rig)
    taken = taken_after(rig, victim, victim.running_on.kill)
    return Done(victim.name, False, asdict(taken))


def kill_jvm(rig: Rig) -> Done:
    """SIGKILL of the Spark JVM only; the reader process sees its end and leaves the group."""
    victim = victim_of(rig)
    pid = wait_for("the JVM", 10, lambda: apps.jvm(victim.session))
    taken = taken_after(rig, victim, lambda: apps.send(signal.SIGKILL, [pid]))
    return Done(victim.name, False, asdict(taken))


def kill_reader(rig: Rig) -> Done:
    """SIGKILL of the reader process only; Spark's query fails and is started again."""
    victim = victim_of(rig)
    pid = victim.reader()
    taken = taken_after(rig, victim, lambda: apps.send(signal.SIGKILL, [pid]))
    return Done(victim.name, False, asdict(taken))


def kill_worker(rig: Rig) -> Done:
    """SIGKILL of the Python workers that read for a query; Spark tries their task again."""
    victim = victim_of(rig)
    rig.fleet.stop(victim)
    rig.fleet.start(victim, fastLaneMaxOffsets="0")  # a driver that reads by itself has no workers
    pids = wait_for(f"a worker of {victim.name}", 30, lambda: _workers(rig, victim))
    apps.send(signal.SIGKILL, pids)
    return Done(victim.name, True, {"pids": pids})


def _workers(rig: Rig, query: Query) -> list[int]:
    """Return the pids of the query's Python workers, which on a cluster belong to its executors."""
    if not rig.shape.clustered(query.name):
        return apps.workers(query.session)
    executors = rig.spark.executors(query.running_on.folder.name)
    return [pid for one in executors for pid in rig.spark.python_workers(one)]


def pause_reader_long(rig: Rig) -> Done:
    """SIGSTOP of the reader process until others have read on in its partitions, then SIGCONT: a zombie."""
    victim = victim_of(rig)
    return _pause_long(rig, victim, [victim.reader()])


def pause_app_long(rig: Rig) -> Done:
    """SIGSTOP of a whole application, on a cluster of its driver, until others have read on; then SIGCONT."""
    victim = victim_of(rig)
    return _pause_long(rig, victim, [p.pid for p in apps.in_session(victim.session)])


def _pause_long(rig: Rig, victim: Query, pids: list[int]) -> Done:
    try:
        taken = taken_after(rig, victim, lambda: apps.send(signal.SIGSTOP, pids))
        time.sleep(rig.rng.uniform(0.0, 1.5))  # how late the zombie is
    finally:
        apps.send(signal.SIGCONT, pids)
    return Done(victim.name, False, {"paused_s": taken.reads_on_s, "partitions": taken.partitions})


def pause_reader_short(rig: Rig) -> Done:
    """SIGSTOP of the reader process for less than the session timeout."""
    victim = victim_of(rig)
    return _pause_short(rig, victim, [victim.reader()])


def pause_app_short(rig: Rig) -> Done:
    """SIGSTOP of a whole application for less than the session timeout."""
    victim = victim_of(rig)
    return _pause_short(rig, victim, [p.pid for p in apps.in_session(victim.session)])


def _pause_short(rig: Rig, victim: Query, pids: list[int]) -> Done:
    paused_s = round(rig.shape.session_s * rig.rng.uniform(0.2, 0.6), 2)
    try:
        apps.send(signal.SIGSTOP, pids)
        time.sleep(paused_s)  # the fault itself
    finally:
        apps.send(signal.SIGCONT, pids)
    return Done(victim.name, True, {"paused_s": paused_s})


def stop_query(rig: Rig) -> Done:
    """query.stop(), a takeover by the others, and a start from the checkpoint."""
    victim = victim_of(rig)
    taken = taken_after(rig, victim, lambda: rig.fleet.stop(victim))
    rig.fleet.start(victim)
    return Done(victim.name, True, asdict(taken))


def end_app(rig: Rig) -> Done:
    """A clean end of the whole application, a takeover, and a start on another one."""
    victim = victim_of(rig)
    app = victim.running_on

    def end() -> None:
        app.command(do="exit")
        app.wait_ended(30)

    taken = taken_after(rig, victim, end)
    app.kill()
    rig.fleet.start(victim)
    return Done(victim.name, True, asdict(taken))
