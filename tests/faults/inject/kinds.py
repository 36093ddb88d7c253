"""The kinds of faults: what can be done to a run, under which protocols; and which of them a run makes, in which order.

The order is pure, from the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from tests.faults.inject import brokers, checkpoint, cluster, group, process
from tests.faults.rig.rig import PROTOCOLS, Done, Rig


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. `inject` does it, waits for what belongs to the fault itself, and returns what it did."""

    name: str
    inject: Callable[[Rig], Done]
    protocols: tuple[str, ...] = tuple(PROTOCOLS)

    @property
    def doc(self) -> str:
        """What it does, in one line."""
        called = self.inject.func if isinstance(self.inject, partial) else self.inject
        return (called.__doc__ or "").splitlines()[0]


_TABLE = (
    Kind("app-killed", process.kill_app),
    Kind("jvm-killed", process.kill_jvm),
    Kind("reader-killed", process.kill_reader),
    Kind("worker-killed", process.kill_worker),
    Kind("reader-paused-long", process.pause_reader_long),
    Kind("app-paused-long", process.pause_app_long),
    Kind("reader-paused-short", process.pause_reader_short),
    Kind("app-paused-short", process.pause_app_short),
    Kind("query-stopped", process.stop_query),
    Kind("app-ended", process.end_app),
    Kind("member-joins", group.join),
    Kind("member-leaves", group.leave),
    Kind("slow-batch", group.slow_batch),
    Kind("partitions-added", group.grow),
    Kind("group-rewound", group.rewind),
    Kind("records-deleted", group.delete_records),
    Kind("loss-refused", group.refuse_loss),
    Kind("topic-recreated", group.recreate),
    Kind("topic-replaced", group.replace_by_another),
    Kind("broker-restarted", brokers.restart),
    Kind("broker-killed", brokers.kill),
    Kind("coordinator-killed", brokers.kill_coordinator),
    Kind("checkpoint-lost", checkpoint.lose),
    Kind("commit-entry-lost", checkpoint.lose_commit_entry),
    Kind("checkpoint-unreadable", checkpoint.make_unreadable),
    Kind("checkpoint-restored", checkpoint.restore),
    Kind("checkpoint-started-twice", checkpoint.start_twice),
    *(Kind(name, inject) for name, inject in brokers.KINDS.items()),
)
KINDS = {kind.name: kind for kind in _TABLE}

_ON_A_CLUSTER = (
    Kind("executor-killed", cluster.kill_executor),
    Kind("spark-worker-killed", cluster.kill_worker),
    Kind("daemon-killed", cluster.kill_daemon),
    Kind("task-failed", cluster.fail_task),
    Kind("task-speculated", cluster.slow_task),
    Kind("allocation-scaled", cluster.scale),
    Kind("worker-decommissioned", cluster.decommission),
    Kind("driver-killed", process.kill_app),
    Kind("app-starved", cluster.starve),
)
CLUSTER_KINDS = {kind.name: kind for kind in _ON_A_CLUSTER}
ALL_KINDS = KINDS | CLUSTER_KINDS

# The kinds of the gate's run: those of one machine but for near duplicates, and the commonest of a cluster.
_GATE_ON_A_CLUSTER = ("executor-killed", "spark-worker-killed", "task-failed", "allocation-scaled")
# kind that the gate leaves out -> the kind that causes the same in the group
NEAR_DUPLICATES = {
    "app-paused-short": "reader-paused-short",  # the member lives in the reader process
    "query-stopped": "app-ended",  # which also starts on another application; half of all kinds stop a query
    "broker-killed": "coordinator-killed",  # a SIGKILL of a broker, which leads partitions as well
    "cut-at-heartbeat-request": "cut-at-heartbeat-response",  # a heartbeat changes nothing on the broker
}
GATE_KINDS = {name: kind for name, kind in KINDS.items() if name not in NEAR_DUPLICATES} | {
    name: CLUSTER_KINDS[name] for name in _GATE_ON_A_CLUSTER
}

# Quick ones fill up a run that has had every kind.
QUICK = (
    "query-stopped", "worker-killed", "reader-paused-short", "app-paused-short", "commit-entry-lost", "jvm-killed",
    "app-ended", "checkpoint-lost",
)  # fmt: skip
# Nothing is left to grow into after a few.
MOST = {"partitions-added": 2, "records-deleted": 2, "loss-refused": 1, "topic-recreated": 2, "topic-replaced": 2}


# These take an application that was started ahead: the next one is ready after 8 to 15 s.
_TAKES_AN_APPLICATION = (
    "app-killed", "jvm-killed", "app-ended", "member-joins", "member-leaves", "checkpoint-started-twice", "slow-batch",
)  # fmt: skip


def kinds_of(protocol: str, kinds: Sequence[str] = (), table: Mapping[str, Kind] = KINDS) -> list[str]:
    """Return the kinds that a protocol has in the table, of those that are named (all without names)."""
    return [name for name, kind in table.items() if protocol in kind.protocols and (not kinds or name in kinds)]


def deal(
    seed: int, protocols: Sequence[str], faults: int, kinds: Sequence[str] = (), table: Mapping[str, Kind] = KINDS
) -> dict[str, list[str]]:
    """Share `faults` faults out: each protocol gets its part, and together they have every kind.

    A fault that its protocol does not know goes to one that does. Shuffled; the same for the same arguments.
    """
    rng = Random(seed)
    share = {protocol: faults // len(protocols) + (n < faults % len(protocols)) for n, protocol in enumerate(protocols)}
    dealt: dict[str, list[str]] = {protocol: [] for protocol in protocols}
    everything = [name for name in table if not kinds or name in kinds]
    rng.shuffle(everything)
    for name in everything:
        able = [protocol for protocol in protocols if protocol in table[name].protocols]
        if able:
            dealt[min(able, key=lambda protocol: len(dealt[protocol]) - share[protocol])].append(name)
    for protocol, names in dealt.items():
        known = kinds_of(protocol, kinds, table)
        fill = [name for name in known if name in QUICK] or known
        while known and len(names) < share[protocol]:
            names.append(rng.choice(fill if rng.random() < 0.6 else known))
        rng.shuffle(names)
    return {protocol: _within_bounds(names) for protocol, names in dealt.items()}


def _within_bounds(names: list[str]) -> list[str]:
    kept: list[str] = []
    for name in names:
        kept.append(name if kept.count(name) < MOST.get(name, len(names)) else "query-stopped")
    return kept


def spread(names: Sequence[str]) -> list[str]:
    """Put the kinds that take an application at equal distances, so that none waits for its start.

    Otherwise their order is kept.
    """
    taking = [name for name in names if name in _TAKES_AN_APPLICATION]
    others = [name for name in names if name not in _TAKES_AN_APPLICATION]
    placed = [((place + 0.5) / len(group), name) for group in (taking, others) for place, name in enumerate(group)]
    return [name for _, name in sorted(placed, key=lambda one: one[0])]


def endless(seed: int, protocol: str, kinds: Sequence[str] = (), table: Mapping[str, Kind] = KINDS) -> Iterator[str]:
    """Return kinds for ever, each as often as the others."""
    rng = Random(seed)
    while True:
        round_of_all = kinds_of(protocol, kinds, table)
        rng.shuffle(round_of_all)
        yield from round_of_all
