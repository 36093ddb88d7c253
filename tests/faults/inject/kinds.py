"""The table of fault kinds: what can be done to a run, under which protocols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
