"""Count what a query's member does, and append one JSON line per event to the file of option `metricsPath`.

Option `metricsPort` shows the same counters, with totals of the events. Each line has the counters at that moment:

    {"at":1700000000.1,"details":{"committed":2,"drain_ms":310,"outcome":"COMPLETE"},"event":"revoked","group":"shop",
     "lineage":"...","metrics":{...},"partitions":[["orders",0]],"pid":4711,"state":"JOINED"}

`at` is in seconds since the epoch. `partitions` are the partitions that the event is about. A file that grows beyond
`MAX_FILE_BYTES` is renamed to `<name>.1`, over an older one, and a new file is begun. Existing files that do not begin
with a metrics line are never written or replaced, neither at the path nor at `<name>.1`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spark_groupsource.clock import Clock
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.prometheus.families import Histogram

LOG = logging.getLogger(__name__)

# Enough for some months of rebalances, or for one day of batches of one second.
MAX_FILE_BYTES = 32 * 1024 * 1024
# The first bytes of every metrics file.
_FIRST_LINE = re.compile(rb'\{"at":[0-9.e+]+,"details":\{')
# Attempts to append a line, of which each may find the file full.
_FULL_ATTEMPTS = 5
# Attempts, and the pause in seconds between them, while another writer writes the first or last line of a file.
_READ_ATTEMPTS, _READ_PAUSE_S = 20, 0.02

# Every event, in the order of a query's life. A test checks that the list is complete.
EVENTS: dict[str, str] = {
    "started": "The member's client was created and subscribed.",
    "coordinator": "The client found the group's coordinator, or lost it (`known`).",
    "assigned": "The group assigned partitions to this member.",
    "standby": "With `assignors`: the partitions that this member reads when their active member leaves.",
    "unassigned": "With `assignors`: the strategy cannot assign partitions (`reason`).",
    "revoking": "The group revokes partitions; the handover waits for `records_in_flight` records.",
    "revoked": "Partitions were handed over: `outcome` ([COMPLETE, DEADLINE, STOPPED]"
    "(../states.md#how-a-revokes-wait-ends)) and `drain_ms` show how the wait ended and how long it took."
    " `uncommitted` counts offsets of the handover that the coordinator did not accept.",
    "lost": "The member lost partitions without a handover; other members read at most `repeated` records again.",
    "doubted": "The member had no contact for `silent_ms`, so the group may have given its partitions to others.",
    "proven": "A commit was accepted, which proves that the member is still in the group.",
    "completed": "A batch is complete: `records` offsets, `batch_ms` after its plan was fixed.",
    "replayed": "Spark runs a batch again, with the same offsets.",
    "refused": "The coordinator refused a commit (`reason`).",
    "commits": "Batches continue while commits fail (`behind` is true), or commits succeed again (false).",
    "conflict": "The group's offsets and the checkpoint disagreed: the query follows the group (`onConflict`).",
    "reset": "The command `reset` changed the group's offsets.",
    "shared_state": "Queries share a group, and state is incomplete or may become so (`problem`; `ranges`, or"
    " `owned` of `all` partitions): see `onSharedState`. An error that ends the query is no event.",
    "data_lost": "Unread records are missing on the broker (`ranges`, `reason`). `possible` has ranges of which the"
    " lost part is not known; they are not counted.",
    "unread": "A batch is complete, but Spark did not read it: a file sink dropped it, or the query ignores its rows.",
    "lag": "The lag of the member's partitions: a row for each in `details.lag`, sums in `details.total`. Partitions"
    " that have no leader are in `details.leaderless` only, because their lag is not known.",
    "stopping": "A stop was requested while a batch was in flight; the member waits for the batch.",
    "gave-up": "A batch took longer than `maxBatchMs` (`batch_ms`), so the member gave up its partitions.",
    "failed": "The member met an error that only a restart can resolve (`error`).",
    "left": "The member has stopped. `outcome` (COMPLETE, STOPPED, DEADLINE, LOST): how the batch in flight ended.",
}

# The meaning of each counter. A test checks that the list is complete.
COUNTERS: dict[str, str] = {
    "coordinator_known": "False while the client searches for the group's coordinator.",
    "assigned_partitions": "Number of partitions that the member owns now.",
    "consumed_topics": "The topics of these partitions.",
    "standby_partitions": "Number of partitions that the member reads when their active member leaves (strategies"
    " `redundant`, `single-active`).",
    "assignments": "Number of assignments with new partitions.",
    "rebalances": "Number of times partitions left the member, by how: clean (outcome COMPLETE of event `revoked`),"
    " uncommitted (the same, but the coordinator did not accept all offsets of the handover), deadline, stopped (these"
    " outcomes), lost (this outcome, or event `lost`).",
    "drain_last_ms": "Duration for which the last revoke waited for the batch in flight, in ms.",
    "drain_max_ms": "Longest such wait, in ms.",
    "batches_completed": "Completed batches.",
    "commits_done": "Commits that the coordinator accepted.",
    "commits_refused": "Commits that the coordinator refused.",
    "commits_retried": "Commits that were sent again.",
    "records_repeated": "Upper bound of records that the next owner reads again: the member lost their partitions"
    " before a commit of them was confirmed.",
    "records_lost": "Offsets missing on the broker: skipped when a batch was planned, or missing before the batch that"
    " reads them was complete (then an upper bound).",
}


# (device, inode) of the files that a query has written to, and whether the last line is cut off: the disk was full.
# They are accepted when logrotate's copytruncate has emptied them.
KnownFiles = dict[tuple[int, int], bool]

# How a member can lose partitions: the keys of counter `rebalances`.
REBALANCE_OUTCOMES = ("clean", "deadline", "stopped", "uncommitted", "lost")


class EventTotals:
    """Totals of all events of a query. Each value has one writer, because one thread writes all events of a name."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(EVENTS, 0)
        # In seconds since the epoch.
        self.last_s: dict[str, float | None] = dict.fromkeys(EVENTS)
        self.drain_seconds = Histogram.empty(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
        self.batch_seconds = Histogram.empty(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
        self.batch_records = Histogram.empty(*(10.0**power for power in range(8)))
        self.commits_behind = False
        # As in `details.lag` of the last event `lag`; empty while the lag cannot be measured.
        self.lag: tuple[Sequence[Any], ...] = ()

    def forget_lag(self) -> None:
        """Have no lag until the next event `lag`. For the thread that writes these events."""
        self.lag = ()

    def add(self, event: str, at_s: float, details: Mapping[str, Any]) -> None:
        """Count one event."""
        self.counts[event] += 1
        self.last_s[event] = at_s
        match event:
            case "revoked":
                self.drain_seconds = self.drain_seconds.plus(details["drain_ms"] / 1000)
            case "completed":
                self.batch_records = self.batch_records.plus(details["records"])
                self.batch_seconds = self.batch_seconds.plus(details["batch_ms"] / 1000)
            case "commits":
                self.commits_behind = details["behind"]
            case "lag":
                self.lag = tuple(details["lag"])


@dataclass(slots=True)
class MemberMetrics:
    """Counters of one member since it started. Only the membership thread writes them."""

    # False while the client searches for the group's coordinator, at first or after it lost it.
    coordinator_known: bool = False
    assigned_partitions: int = 0
    consumed_topics: tuple[str, ...] = ()
    # With the strategies redundant and single-active: partitions that this member reads when their active member
    # leaves.
    standby_partitions: int = 0
    # Assignments with new partitions; lost partitions by outcome (`REBALANCE_OUTCOMES`).
    assignments: int = 0
    rebalances: dict[str, int] = field(default_factory=dict)
    drain_last_ms: int = 0
    drain_max_ms: int = 0
    batches_completed: int = 0
    commits_done: int = 0
    commits_refused: int = 0
    commits_retried: int = 0
    # Upper bound: records of batches whose partitions were lost before the commit was confirmed.
    records_repeated: int = 0

    def count_rebalance(self, outcome: str) -> None:
        """Count one revoke or loss of partitions under its outcome."""
        self.rebalances[outcome] = self.rebalances.get(outcome, 0) + 1

    def owns(self, partitions: Iterable[TopicPartition]) -> None:
        """Store the partitions that the member owns now, as a count and as topics."""
        owned = tuple(partitions)
        self.assigned_partitions = len(owned)
        self.consumed_topics = tuple(sorted({partition.topic for partition in owned}))

    def count_drain(self, drain_ms: int) -> None:
        """Store how long a revoke waited for the batch in flight, in ms."""
        self.drain_last_ms = drain_ms
        self.drain_max_ms = max(self.drain_max_ms, drain_ms)


class MetricsLog:
    """Append JSON lines to the metrics file. Do nothing without a path; log an unwritable file once.

    `state`, `counters`, `owned` and `lineage` are replaced as a whole, so any thread may write a line, and any thread
    may read them. Only the main thread changes `records_lost` (offsets that were skipped because they are missing on
    the broker), `batches_read` (completed batches by the process that read them) and `driver_read_bytes`.
    """

    def __init__(self, path: str | None, group: str, clock: Clock) -> None:
        self._path = path
        self._group = group
        self._clock = clock
        self._trouble = False
        self._known = KnownFiles()
        self.lineage = ""
        self.state = "DOWN"
        self.counters: dict[str, Any] = asdict(MemberMetrics())
        self.owned: frozenset[TopicPartition] = frozenset()
        self.totals = EventTotals()
        self.records_lost = 0
        self.batches_read = {"driver": 0, "executors": 0}
        self.driver_read_bytes = 0

    def write(self, event: str, partitions: Iterable[TopicPartition] = (), **details: Any) -> None:
        """Count the event, and write one line for it."""
        at_s = round(self._clock.epoch_s(), 3)
        self.totals.add(event, at_s, details)
        if self._path is None:
            return
        line = {
            "at": at_s,
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
        # An option could set the path to a file that a shell executes, and a group's name may contain shell syntax.
        text = text.replace("$", "\\u0024").replace("`", "\\u0060")
        path = self._path
        try:
            self._append(path, text.encode())
        except NotOursError as error:
            self._path = None
            LOG.warning(
                "option metricsPath: no metrics written; name a file that does not exist yet: metricsPath=%s error=%s",
                path, error,
            )  # fmt: skip
        except OSError as error:
            if not self._trouble:
                self._trouble = True
                LOG.warning("option metricsPath: no metrics written: metricsPath=%s error=%s", path, error)

    def _append(self, path: str, line: bytes) -> None:
        for _ in range(_FULL_ATTEMPTS):
            if _append_line(path, line, self._known):
                return
        raise OSError(errno.EBUSY, "other queries fill the file as fast as it is emptied", path)


def is_metrics_file(path: Path) -> bool:
    """Return whether a regular file exists and begins with a metrics line."""
    try:
        # A pipe is not read: this may be its only writer, and would wait for itself.
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _FIRST_LINE.match(file.read(100)) is not None
    except OSError:
        return False


class NotOursError(OSError):
    """The file exists and does not begin with a metrics line, so it belongs to another program."""


def _append_line(path: str, line: bytes, known: KnownFiles) -> bool:
    """Append a line to a metrics file, and create the file if it is missing.

    Return False, and write nothing, if the file was full: it is then `<name>.1`.

    A file in `known` may be empty; the file is added. Raises `NotOursError` for a file that does not begin with a
    metrics line. This protects other files: an option names the path, and the person who sets options may have fewer
    rights than the driver.
    """
    with _appending(path, known) as descriptor:
        status = os.fstat(descriptor)
        size = status.st_size
        if size and size + len(line) > MAX_FILE_BYTES:
            _rename_full(path, descriptor)
            return False
        file = (status.st_dev, status.st_ino)
        if size and file not in known:
            # Another thread or query may be writing its line: a file system may let the file grow page by page (ext4).
            known[file] = not _soon(lambda: _ends_with_line(descriptor))
        if size and known.get(file):
            # Readers leave the incomplete line out; this one shall not be left out with it.
            line = b"\n" + line
        written = 0
        try:
            # One write to a file opened for appending: lines of several queries never mix.
            written = os.write(descriptor, line)
        finally:
            if written < len(line) and size == 0:
                # An incomplete first line would make the file look like one of another program.
                os.unlink(path)
    known[file] = not line[:written].endswith(b"\n")
    return True


def _ends_with_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def _lock(descriptor: int) -> bool:
    """Return whether the file is locked now, until it is closed; False if another writer has it locked.

    Raises `OSError` on a file system without `flock`.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _soon(condition: Callable[[], bool]) -> bool:
    """Return whether the condition holds, at once or when another thread or query has written its line."""
    for _ in range(_READ_ATTEMPTS):
        if condition():
            return True
        time.sleep(_READ_PAUSE_S)
    return False


def _rename_full(path: str, descriptor: int) -> None:
    """Rename a full file to `<name>.1`, unless another writer has done it.

    Guards against:
    1. Two queries, or two threads of one, find the file full.
    2. The first one renames it, and writes its line into a new file.
    3. The second one renames the new file, and the older half of the history is gone.
    """
    if not _soon(lambda: _lock(descriptor)):
        raise OSError(errno.EBUSY, "the file is full, and another process has locked it", path)
    try:
        current = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return
    if os.path.samestat(current, os.fstat(descriptor)):
        _check_replaceable(f"{path}.1")
        os.replace(path, f"{path}.1")


@contextmanager
def _appending(path: str, known: KnownFiles) -> Iterator[int]:
    """Open a file and close its descriptor once: a second close could hit another thread's new descriptor."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor, is_new = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        descriptor, is_new = _open_existing(path, flags), False
    try:
        status = os.fstat(descriptor)
        if not is_new and (status.st_size or (status.st_dev, status.st_ino) not in known):
            _check_own(descriptor, path, older=f"{path}.1")
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


def _check_own(descriptor: int, path: str, older: str | None = None) -> None:
    """Raise `NotOursError` unless an opened file begins with a metrics line.

    It may also be empty beside a file of metrics, `older`: logrotate renames a file, and creates another one.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise NotOursError(errno.EEXIST, "it is not a regular file", path)

    def is_begun() -> bool:
        status = os.fstat(descriptor)
        return status.st_size > 0 or not status.st_nlink

    # Another thread or query may have created the file and not written to it yet.
    has_line = _soon(is_begun)
    if not os.fstat(descriptor).st_nlink:
        raise FileNotFoundError(errno.ENOENT, "another query has removed it: its first line did not fit", path)
    if not has_line and older is not None and is_metrics_file(Path(older)):
        return
    if not _FIRST_LINE.match(os.pread(descriptor, 100, 0)):
        raise NotOursError(errno.EEXIST, "it does not begin with a metrics line, so another program wrote it", path)


def _check_replaceable(path: str) -> None:
    """Raise `NotOursError` if the rename to `<name>.1` would replace a file of another program."""
    try:
        descriptor = _open_existing(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    try:
        _check_own(descriptor, path)
    finally:
        os.close(descriptor)
