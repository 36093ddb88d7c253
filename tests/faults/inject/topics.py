"""Faults of topics: deleted with unread records and created again, and losses that must end a query."""

from __future__ import annotations

import time

from tests.faults.inject.done import Done
from tests.faults.inject.group import start_all, stop_all
from tests.faults.observe.collect import source_offsets
from tests.faults.observe.observer import Offsets, Partition, attempt
from tests.faults.rig.fleet import Query, log_entries
from tests.faults.rig.rig import PASSING, Rig
from tests.faults.waiting import RigError, wait_for

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
    """Delete the passing topic, and create its successor with more records than it had."""
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
    return Done(topic, True, {"successor": successor, "ends": [[*one, end] for one, end in sorted(ends.items())]})


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
    wanted = start + 40
    wait_for("unread records", 60, lambda: (attempt(rig.observer.ends) or {}).get(partition, 0) > wanted, rig.evidence)
    rig.keep_log(partition, start)
    rig.observer.delete_records(partition, wanted)
    victim = rig.rng.choice(rig.fleet.live)
    rig.fleet.start(victim, failOnDataLoss="true")
    app, until = victim.running_on, time.monotonic() + 120
    while app.state()[:2] != ("failed", victim.run) and app.alive and time.monotonic() < until:
        time.sleep(0.1)
    state, _, error = app.state()
    rig.fleet.stop(victim)
    start_all(rig)
    spans = [[*partition, start, wanted]]
    told = "\n".join(line for line in error.splitlines() if "[GROUPKAFKA." in line)[:2000] if state == "failed" else ""
    return Done(victim.name, False, {"deleted": spans, "must_fail": spans, "error": told})
