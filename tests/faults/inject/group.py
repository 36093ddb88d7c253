"""Faults of the group and its topics: members, offsets, partitions, records; and losses that must end a query."""

from __future__ import annotations

import time
from dataclasses import asdict

from tests.faults.inject.process import victim_of
from tests.faults.observe.collect import source_offsets
from tests.faults.observe.observer import Offsets, Partition, attempt
from tests.faults.rig.fleet import Query, log_entries
from tests.faults.rig.rig import DRAIN_TIMEOUT_S, GROUP, PASSING, TOPICS, Done, Rig
from tests.faults.waiting import RigError, wait_for

_DELETED = 40  # records


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


def _delete_unread(rig: Rig, partition: Partition, start: int) -> int:
    """Delete records of a partition from the group's offset on; returns where the log begins then."""
    wanted = start + _DELETED
    rig.producer.burst_beside(partition, 2 * _DELETED)
    wait_for("unread records", 60, lambda: (attempt(rig.observer.ends) or {}).get(partition, 0) > wanted, rig.evidence)
    rig.keep_log(partition, start)
    rig.observer.delete_records(partition, wanted)
    return wanted


def delete_records(rig: Rig) -> Done:
    """All queries stopped, unread records of a partition deleted, all started again."""
    offsets = stop_all(rig)
    partition = rig.rng.choice(sorted(offsets))
    wanted = _delete_unread(rig, partition, offsets[partition])
    start_all(rig)
    return Done(partition[0], False, {"deleted": [[*partition, offsets[partition], wanted]]})


_MOST_UNREAD = 300
_TRIES = 20
_MORE_THAN_BEFORE = 40  # records: the group's offset of the old topic is no end of the new one


def _unread(rig: Rig, topic: str) -> Offsets:
    """Write records that the group may read in part, or not at all; returns the topic's ends."""
    rig.producer.leave_topic(topic)
    for number in rig.observer.partitions_of(topic):
        rig.producer.burst_to((topic, number), rig.rng.randint(0, _MOST_UNREAD))
    time.sleep(rig.rng.choice((0.0, 0.3, 1.5)))
    # Every record has its answer by now, so that the producer knows the whole log.
    return {one: end for one, end in rig.ends().items() if one[0] == topic}


def _replace(rig: Rig, successor: str) -> Done:
    """Delete the passing topic, and create its successor with more records than it had.

    Not clean: 1. The deletion makes all members join. 2. A member's JoinGroup waits for the others, and a commit waits
    behind it. 3. The creation makes librdkafka drop that join for a new one. 4. The commit is refused
    (ILLEGAL_GENERATION) before that: librdkafka counts as not rebalancing, and gives all of the member's partitions up.
    """
    topic = rig.passing
    ends = _unread(rig, topic)
    rig.delete_topic(topic)
    time.sleep(rig.rng.choice((0.0, 0.0, 1.0, 4.0)))  # how long there is none
    rig.passing = successor
    partitions = rig.rng.randint(1, 3)
    rig.create_topic(successor, partitions)
    for number in range(partitions):
        rig.producer.burst_to((successor, number), ends.get((topic, number), 0) + _MORE_THAN_BEFORE)
        rig.producer.add_partition((successor, number))
    for one in (rig.observer, rig.watcher):
        one.look_again(rig.topics)
    return Done(topic, False, {"successor": successor, "ends": [[*one, end] for one, end in sorted(ends.items())]})


def recreate(rig: Rig) -> Done:
    """A topic is deleted with unread records and created again, with other partitions, while batches go on."""
    return _replace(rig, rig.passing)


def replace_by_another(rig: Rig) -> Done:
    """A topic that a pattern matches is deleted with unread records, and another one is created; a list recreates."""
    if not rig.shape.flavour.pattern:
        return recreate(rig)
    return _replace(rig, f"{PASSING}-{len(rig.lives)}")


def _in_open_batch(query: Query) -> set[Partition]:
    """Return what the stopped query has planned in a batch that is not complete."""
    newest, complete = (max(log_entries(query.checkpoint / log), default=-1) for log in ("offsets", "commits"))
    if newest == complete:
        return set()
    end = next(iter(source_offsets((query.checkpoint / "offsets" / str(newest)).read_text())), {"topics": {}})
    return {(topic, int(n)) for topic, entry in end["topics"].items() for n in entry["ranges"]}


def _stop_between_batches(rig: Rig) -> tuple[Partition, int]:
    """Stop all queries; return a partition that no open batch has, with the group's offset.

    A replay would report a part of the loss, from its own beginning.
    """
    for _ in range(_TRIES):
        offsets = stop_all(rig)
        closed = offsets.keys() - set().union(*map(_in_open_batch, rig.fleet.live))
        if closed:
            partition = rig.rng.choice(sorted(closed))
            return partition, offsets[partition]
        start_all(rig)
        rig.wait_recovered(rig.ends(), "a batch that was left open")
    raise RigError(f"in {_TRIES} tries an open batch had every partition\n{rig.evidence()}")


def refuse_loss(rig: Rig) -> Done:
    """Unread records are deleted, and a query with failOnDataLoss=true starts alone: it must fail with the range."""
    partition, start = _stop_between_batches(rig)
    wanted = _delete_unread(rig, partition, start)
    victim = rig.rng.choice(rig.fleet.live)
    rig.fleet.start(victim, failOnDataLoss="true")
    app, until = victim.running_on, time.monotonic() + 120
    while app.state()[:2] != ("failed", victim.run) and app.alive and time.monotonic() < until:
        time.sleep(0.1)
    state, _, error = app.state()
    rig.fleet.stop(victim)
    start_all(rig)
    spans = [[*partition, start, wanted]]
    said = "\n".join(line for line in error.splitlines() if "[GROUPKAFKA." in line)[:2000] if state == "failed" else ""
    return Done(victim.name, False, {"deleted": spans, "must_fail": spans, "error": said})
