"""The table of fault kinds: what can be done to a run, under which protocols."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.faults.inject import broker as inject_broker
from tests.faults.inject import checkpoint as inject_checkpoint
from tests.faults.inject import cluster as inject_cluster
from tests.faults.inject import group as inject_group
from tests.faults.inject import network as inject_network
from tests.faults.inject import process as inject_process
from tests.faults.inject import topics as inject_topics
from tests.faults.inject.done import Done
from tests.faults.rig.rig import PROTOCOLS, Rig


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
    Kind("app-killed", inject_process.kill_app),
    Kind("jvm-killed", inject_process.kill_jvm),
    Kind("reader-killed", inject_process.kill_reader),
    Kind("worker-killed", inject_process.kill_worker),
    Kind("reader-paused-long", inject_process.pause_reader_long),
    Kind("app-paused-long", inject_process.pause_app_long),
    Kind("reader-paused-short", inject_process.pause_reader_short),
    Kind("app-paused-short", inject_process.pause_app_short),
    Kind("query-stopped", inject_process.stop_query),
    Kind("app-ended", inject_process.end_app),
    Kind("member-joins", inject_group.join),
    Kind("member-leaves", inject_group.leave),
    Kind("slow-batch", inject_group.slow_batch),
    Kind("partitions-added", inject_group.grow),
    Kind("group-rewound", inject_group.rewind),
    Kind("records-deleted", inject_group.delete_records),
    Kind("loss-refused", inject_topics.refuse_loss),
    Kind("topic-recreated", inject_topics.recreate),
    Kind("topic-replaced", inject_topics.replace_by_another),
    Kind("broker-restarted", inject_broker.restart),
    Kind("broker-killed", inject_broker.kill),
    Kind("coordinator-killed", inject_broker.kill_coordinator),
    Kind("checkpoint-lost", inject_checkpoint.lose),
    Kind("commit-entry-lost", inject_checkpoint.lose_commit_entry),
    Kind("checkpoint-unreadable", inject_checkpoint.make_unreadable),
    Kind("checkpoint-restored", inject_checkpoint.restore),
    Kind("checkpoint-started-twice", inject_checkpoint.start_twice),
    *(Kind(name, inject) for name, inject in inject_network.KINDS.items()),
)
KINDS = {kind.name: kind for kind in _TABLE}

_ON_A_CLUSTER = (
    Kind("executor-killed", inject_cluster.kill_executor),
    Kind("spark-worker-killed", inject_cluster.kill_worker),
    Kind("daemon-killed", inject_cluster.kill_daemon),
    Kind("task-failed", inject_cluster.fail_task),
    Kind("task-speculated", inject_cluster.slow_task),
    Kind("allocation-scaled", inject_cluster.scale),
    Kind("worker-decommissioned", inject_cluster.decommission),
    Kind("driver-killed", inject_process.kill_app),
    Kind("app-starved", inject_cluster.starve),
)
CLUSTER_KINDS = {kind.name: kind for kind in _ON_A_CLUSTER}
ALL_KINDS = KINDS | CLUSTER_KINDS
