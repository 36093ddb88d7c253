"""Faults of the group and its topics: members come and go, are slow, partitions are added, offsets and records go."""

from __future__ import annotations

import time
from dataclasses import asdict

from tests.faults.inject.done import Done
from tests.faults.inject.process import victim_of
from tests.faults.observe.observer import Offsets, attempt
from tests.faults.rig.fleet import Query
from tests.faults.rig.rig import DRAIN_TIMEOUT_S, GROUP, TOPICS, Rig
from tests.faults.waiting import wait_for


def _newcomer(rig: Rig) -> str:
    taken = {query.name for query in rig.fleet.live}
    return next(name for n in range(1, 100) if (name := f"q{n}") not in taken)


def join(rig: Rig) -> Done:
    """A query joins the group; when it is full already, one that leaves makes room."""
    left = leave(rig).target if len(rig.fleet.live) >= rig.shape.max_queries else None
    name = _newcomer(rig)
    rig.fleet.add(name)
    return Done(name, True, {"left": left} if left else {})


def leave(rig: Rig) -> Done:
    """A query stops for good; when only two are left, one that joins makes up for it."""
    joined = None
    if len(rig.fleet.live) <= 2:
        joined = _newcomer(rig)
        rig.fleet.add(joined)
        wait_for("the newcomer to own partitions", 180, lambda: rig.owners().get(joined or ""), rig.evidence)
    victim = rig.rng.choice([query for query in rig.fleet.live if query.name != joined])
    lost, since = rig.owners().get(victim.name, set()), time.time()
    rig.fleet.leave(victim)
    details = asdict(rig.wait_taken_over(victim, since, lost))
    return Done(victim.name, True, details | ({"joined": joined} if joined else {}))


def slow_batch(rig: Rig) -> Done:
    """A batch takes longer than the drain deadline while another query joins or starts again."""
    victim = victim_of(rig)
    sleep_s = DRAIN_TIMEOUT_S + 3.0
    other: Query | None = None
    if len(rig.fleet.live) >= rig.shape.max_queries:
        other = rig.rng.choice([query for query in rig.fleet.live if query is not victim])
        rig.fleet.stop(other)
    victim.running_on.command(do="slow", sleep_s=sleep_s)
    if other is not None:
        rig.fleet.start(other)
    else:
        other = rig.fleet.add(_newcomer(rig))
    return Done(victim.name, False, {"sleep_s": sleep_s, "started": other.name})


def grow(rig: Rig) -> Done:
    """A topic grows by a partition."""
    topic = rig.rng.choice(TOPICS)
    number = rig.observer.add_partition(topic)
    rig.producer.add_partition((topic, number))
    rig.observer.look_again()
    rig.watcher.look_again()
    return Done(topic, True, {"partition": number})


def stop_all(rig: Rig) -> Offsets:
    """Stop all queries and wait for an empty group; returns its offsets."""
    for query in rig.fleet.live:
        rig.fleet.stop(query)
    wait_for(
        "an empty group", 30, lambda: attempt(rig.observer.owners) == {}, lambda: f"{rig.owners()}\n{rig.evidence()}"
    )
    return wait_for("the group's offsets", 30, lambda: attempt(rig.observer.committed), rig.evidence)


def start_all(rig: Rig) -> None:
    """Start all queries from their checkpoints."""
    for query in rig.fleet.live:
        rig.fleet.start(query)


def rewind(rig: Rig) -> Done:
    """All queries stopped, a plain client commits older offsets without metadata, all started again."""
    offsets = stop_all(rig)
    chosen = rig.rng.sample(sorted(offsets), k=max(1, len(offsets) // 2))
    targets = {partition: max(0, offsets[partition] - rig.rng.randint(50, 300)) for partition in chosen}
    rig.observer.move(targets)
    start_all(rig)
    moved = [[topic, number, offsets[topic, number], offset] for (topic, number), offset in sorted(targets.items())]
    return Done(GROUP, False, {"moved": moved})


def delete_records(rig: Rig) -> Done:
    """All queries stopped, unread records of a partition deleted, all started again."""
    offsets = stop_all(rig)
    partition = rig.rng.choice(sorted(offsets))
    wanted = offsets[partition] + 40
    wait_for("unread records", 60, lambda: (attempt(rig.observer.ends) or {}).get(partition, 0) > wanted, rig.evidence)
    rig.keep_log(partition, offsets[partition])
    rig.observer.delete_records(partition, wanted)
    start_all(rig)
    return Done(partition[0], False, {"deleted": [[*partition, offsets[partition], wanted]]})
