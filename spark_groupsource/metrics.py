"""What a query tells of its member while it runs: counters, and the JSON lines of the file `metricsPath`.

One line per event, each with the counters as they stand then:

    {"at":1700000000.1,"details":{"committed":2,"drain_ms":310,"outcome":"COMPLETE"},"event":"revoked","group":"shop",
     "lineage":"...","metrics":{...},"partitions":[["orders",0]],"pid":4711,"state":"JOINED"}

`at` is in seconds since the epoch; `partitions` are those that the event is about. A file that grows beyond
`MAX_BYTES` goes on under the same name, and what it held is kept in `<name>.1`. Files that something else has begun are
left alone, both under that name and under `<name>.1`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from spark_groupsource.clock import Clock
from spark_groupsource.model.offsets import TopicPartition

LOG = logging.getLogger("spark_groupsource.metrics")

# Some months of rebalances, or a day of batches that last a second each.
MAX_BYTES = 32 * 1024 * 1024
# How every file of metrics begins.
_FIRST_LINE = re.compile(rb'\{"at":[0-9.e+]+,"details":\{')
# How often, and with which pause, a file that is empty is looked at for its first line.
_LOOKS, _LOOK_S = 20, 0.02

# Every event of the file, in the order of a query's life. A test checks that the list is complete.
EVENTS: dict[str, str] = {
    "started": "The member's client was created and subscribed.",
    "coordinator": "The client found the group's coordinator, or lost it (`known`).",
    "assigned": "Partitions came to this member.",
    "standby": "With `assignors`: the partitions that this member stands by for.",
    "unassigned": "With `assignors`: the strategy cannot assign (`reason`).",
    "revoking": "The group wants partitions back; a revoke waits for `records_in_flight` records.",
    "revoked": "Partitions were handed over: `outcome` and `drain_ms` show how the wait ended and how long it took.",
    "lost": "Partitions went without a handover; at most `repeated` records are read again by others.",
    "doubted": "The member was silent for too long (`silent_ms`) to be sure of its partitions.",
    "proven": "A commit has shown that the member still is a member.",
    "completed": "A batch is complete.",
    "replayed": "Spark runs a batch again.",
    "refused": "The coordinator refused a commit (`reason`).",
    "commits": "Batches go on without commits (`behind` is true), or with commits again (false).",
    "conflict": "The group's offsets were moved by something that is no query of this source; `on_conflict` decides.",
    "reset": "The group was reset.",
    "data_lost": "Records that were not read are missing on the broker (`ranges`, `reason`).",
    "unread": "A batch is complete, but Spark has not read it: a file sink dropped it, or the query ignores its rows.",
    "lag": "How far the member's partitions are behind: a row for each in `details.lag`, sums in `details.total`.",
    "stopping": "SIGTERM came while a batch is in flight; the member waits for it.",
    "gave-up": "A batch took longer than `maxBatchMs` (`batch_ms`), so the member gave its partitions up.",
    "failed": "The member met an error that only a restart can heal (`error`).",
    "left": "The member has stopped: `outcome` (COMPLETE, STOPPED, DEADLINE) shows how the batch in flight ended.",
}

# What each counter means. A test checks that the list is complete.
COUNTERS: dict[str, str] = {
    "coordinator_known": "False while the client looks for the group's coordinator.",
    "assigned_partitions": "How many partitions the member owns now.",
    "consumed_topics": "The topics of these partitions.",
    "standby_partitions": "How many partitions the member stands by for (strategies `redundant`, `single-active`).",
    "assignments": "How often partitions came.",
    "rebalances": "How often partitions went, by how: clean, deadline, stopped, uncommitted, lost.",
    "drain_last_ms": "How long the last revoke waited for the batch in flight.",
    "drain_max_ms": "The longest such wait.",
    "batches_completed": "Completed batches.",
    "commits_done": "Commits that the coordinator accepted.",
    "commits_refused": "Commits that the coordinator refused.",
    "commits_retried": "Commits that were sent again.",
    "records_repeated": "Upper bound of records that the next owner reads again: their partitions went, and no commit"
    " of theirs was confirmed.",
    "records_lost": "Offsets that the broker had no more: skipped when a batch was planned, or missing before the batch"
    " that reads them was complete (then an upper bound).",
}


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
        # Files that this query has written to: they may be emptied (by logrotate's copytruncate), and stay its own.
        self._known: set[tuple[int, int]] = set()
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
        # The path may be one that a shell reads, and a group's name may hold what means a command to it.
        text = text.replace("$", "\\u0024").replace("`", "\\u0060")
        path = self._path
        try:
            self._append(path, text.encode())
        except NotOursError as error:
            self._path = None
            LOG.warning(
                "option metricsPath: nothing is written, name a file that does not exist yet: metricsPath=%s error=%s",
                path, error,
            )  # fmt: skip
        except OSError as error:
            if not self._trouble:
                self._trouble = True
                LOG.warning("option metricsPath: nothing is written: metricsPath=%s error=%s", path, error)

    def _append(self, path: str, line: bytes) -> None:
        if _append_line(path, line, self._known):
            return
        _check_replaceable(f"{path}.1")
        os.replace(path, f"{path}.1")
        _append_line(path, line, self._known)


class NotOursError(OSError):
    """The file was begun by something else."""


def _append_line(path: str, line: bytes, known: set[tuple[int, int]]) -> bool:
    """Append a line to a file of metrics, which is created where there is none; return False when it is full.

    `known` are device and inode of files that count as such; the file becomes one of them. Raises `NotOursError` for a
    file that does not begin with a line of metrics: an option names it, and whoever sets options may not be allowed to
    write to it.
    """
    with _appending(path, known) as descriptor:
        status = os.fstat(descriptor)
        size = status.st_size
        if size and size + len(line) > MAX_BYTES:
            return False
        written = 0
        try:
            # One write to a file opened for appending: lines of several queries never mix.
            written = os.write(descriptor, line)
        finally:
            if written < len(line) and size == 0:
                # Later it would not be known whose it is.
                os.unlink(path)
    known.add((status.st_dev, status.st_ino))
    return True


@contextmanager
def _appending(path: str, known: set[tuple[int, int]]) -> Iterator[int]:
    """Open a file, and close it once: a second time it may be another thread's by then."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor, is_new = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        descriptor, is_new = _open_existing(path, flags), False
    try:
        status = os.fstat(descriptor)
        if not is_new and (status.st_dev, status.st_ino) not in known:
            _check_own(descriptor, path)
        yield descriptor
    finally:
        os.close(descriptor)


def _open_existing(path: str, flags: int) -> int:
    try:
        return os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOursError(errno.ELOOP, "it is a link", path) from None
        raise


def _check_own(descriptor: int, path: str) -> None:
    """Raise `NotOursError` unless an opened file begins with a line of metrics."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise NotOursError(errno.EEXIST, "it is no regular file", path)
    for _ in range(_LOOKS):
        # Another thread or query may have created it and not written yet.
        if os.fstat(descriptor).st_size:
            break
        time.sleep(_LOOK_S)
    if not _FIRST_LINE.match(os.pread(descriptor, 100, 0)):
        raise NotOursError(errno.EEXIST, "it does not begin with a line of metrics, so something else began it", path)


def _check_replaceable(path: str) -> None:
    """Raise `NotOursError` when the older half would take the place of a file of something else."""
    try:
        descriptor = _open_existing(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        _check_own(descriptor, path)
    finally:
        os.close(descriptor)
