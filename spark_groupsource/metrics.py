"""What a query tells of its member while it runs: counters, and the JSON lines of the file `metricsPath`.

One line per event, each with the counters as they stand then:

    {"at":1700000000.1,"details":{"committed":2,"drain_ms":310,"outcome":"COMPLETE"},"event":"revoked","group":"shop",
     "lineage":"...","metrics":{...},"partitions":[["orders",0]],"pid":4711,"state":"JOINED"}

`at` is in seconds since the epoch; `partitions` are those that the event is about. A file that grows beyond
`MAX_BYTES` goes on under the same name, and what it held is kept in `<name>.1`.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_groupsource.clock import Clock
from spark_groupsource.offsets import TopicPartition

LOG = logging.getLogger("spark_groupsource.metrics")

# Some months of rebalances, or a day of batches that last a second each.
MAX_BYTES = 32 * 1024 * 1024


@dataclass(slots=True)
class MemberMetrics:
    """Counters of one member since it started; one thread writes them."""

    # Whether the client knows the group's coordinator: False while it looks for it, first or again.
    coordinator_known: bool = False
    assigned_partitions: int = 0
    consumed_topics: tuple[str, ...] = ()
    # With the strategies redundant and single-active: what this member takes over when the active one leaves.
    standby_partitions: int = 0
    # How often partitions came, and how often they went: "clean", "deadline", "stopped", "uncommitted" or "lost".
    assignments: int = 0
    rebalances: dict[str, int] = field(default_factory=dict)
    drain_last_ms: int = 0
    drain_max_ms: int = 0
    batches_completed: int = 0
    commits_done: int = 0
    commits_refused: int = 0
    commits_retried: int = 0
    # Records of batches whose partitions went and whose commit is not known: at most these are read again.
    records_repeated: int = 0

    def count_rebalance(self, outcome: str) -> None:
        """Count partitions that went, by how."""
        self.rebalances[outcome] = self.rebalances.get(outcome, 0) + 1

    def owns(self, partitions: Iterable[TopicPartition]) -> None:
        """Take what the member owns now."""
        owned = tuple(partitions)
        self.assigned_partitions = len(owned)
        self.consumed_topics = tuple(sorted({partition.topic for partition in owned}))

    def count_drain(self, drain_ms: int) -> None:
        """Take how long a revoke waited."""
        self.drain_last_ms = drain_ms
        self.drain_max_ms = max(self.drain_max_ms, drain_ms)


class MetricsLog:
    """Appends lines to the file; without a path it does nothing. An unwritable file is told once, and costs nothing.

    `state`, `counters` and `lineage` are replaced whole, so any thread may write a line. `records_lost` counts
    the offsets that were skipped because the broker had them no more, and is the main thread's.
    """

    def __init__(self, path: str | None, group: str, clock: Clock) -> None:
        self._path = path
        self._group = group
        self._clock = clock
        self._trouble = False
        self.lineage = ""
        self.state = "DOWN"
        self.counters: dict[str, Any] = asdict(MemberMetrics())
        self.records_lost = 0

    def write(self, event: str, partitions: Iterable[TopicPartition] = (), **details: Any) -> None:
        """Write one line."""
        if self._path is None:
            return
        line = {
            "at": round(self._clock.epoch_s(), 3),
            "event": event,
            "group": self._group,
            "lineage": self.lineage,
            "pid": os.getpid(),
            "state": self.state,
            "partitions": sorted(partitions),
            "details": details,
            "metrics": self.counters | {"records_lost": self.records_lost},
        }
        text = json.dumps(line, sort_keys=True, separators=(",", ":")) + "\n"
        try:
            self._append(self._path, text.encode())
        except OSError as error:
            if not self._trouble:
                self._trouble = True
                LOG.warning("option metricsPath: nothing is written: metricsPath=%s error=%s", self._path, error)

    @staticmethod
    def _append(path: str, line: bytes) -> None:
        # One write to a file opened for appending: lines of several queries never mix.
        with _appending(path) as descriptor:
            if os.fstat(descriptor).st_size + len(line) <= MAX_BYTES:
                os.write(descriptor, line)
                return
        os.replace(path, f"{path}.1")
        with _appending(path) as descriptor:
            os.write(descriptor, line)


@contextmanager
def _appending(path: str) -> Iterator[int]:
    """Open a file, and close it once: a second time it may be another thread's by then."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
