"""A history, indexed: the batches with their rows, the group's commits read, who owned what, what was unclean.

Nothing is judged here, and nothing is excused here by the product's own word: owners come from the coordinator's
records (`ownerships`), starts and deletions from what the rig did, excuses from faults, coordinator and processes
(repeats.py). Times that are compared come from one machine; those of the broker are in whole milliseconds
and those of files in the kernel's ticks: `TICK_S` is more than both.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tests.faults.history import Commit, Completed, Fault, GroupRecord, History, MemberEvent, SinkBatch, TopicLife

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ownership:
    """The coordinator gave a member a partition at `start`, and took it back at `end` (infinite: never).

    `position` and `end_position` are those of the records; -1 and infinite without one. `gone`: the member itself
    ended, by leaving or because the coordinator removed it.
    """

    query: str
    partition: Partition
    start: float
    end: float
    position: float = -1
    end_position: float = math.inf
    gone: bool = False


class _Stays:
    """Follows the records of one group."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, Partition], list[Ownership]] = defaultdict(list)
        self._since: dict[tuple[str, str, Partition], GroupRecord] = {}

    def take(self, record: GroupRecord) -> None:
        """Note one record."""
        who = (record.query, record.member)
        kept = set(record.partitions) if record.event == "owns" else set()
        for key in [key for key in self._since if key[:2] == who and key[2] not in kept]:
            self._end(key, record.at, record.position, gone=record.event != "owns")
        for partition in sorted(kept):
            self._since.setdefault((*who, partition), record)

    def finish(self) -> dict[tuple[str, Partition], list[Ownership]]:
        """Return all, the oldest first."""
        for key in list(self._since):
            self._end(key, math.inf, math.inf, gone=False)
        for stays in self.found.values():
            stays.sort(key=lambda one: one.start)
        return dict(self.found)

    def _end(self, key: tuple[str, str, Partition], at: float, position: float, *, gone: bool) -> None:
        began = self._since.pop(key)
        stay = Ownership(key[0], key[2], began.at, at, began.position, position if position >= 0 else math.inf, gone)
        self.found[key[0], key[2]].append(stay)


def ownerships(records: Iterable[GroupRecord]) -> dict[tuple[str, Partition], list[Ownership]]:
    """Return who had which partition when, by (query, partition).

    A member that was removed by a log line of the coordinator ("expired") has lost all that it had then.
    """
    stays = _Stays()
    for record in sorted(records, key=lambda one: (one.at, one.position)):
        stays.take(record)
    return stays.finish()


def ranges_of(event: MemberEvent) -> Iterator[tuple[str, int, int, int]]:
    """Yield (topic, partition, start, end) of what was lost."""
    yield from event.details.get("ranges") or ()


TICK_S = 0.01
Partition = tuple[str, int]
# A partition of one topic id: a topic that was deleted and made again has other records at the same offsets.
Log = tuple[str, str, int]
Range = tuple[int, int]


def named(log: Log) -> str:
    """Return the partition's usual name."""
    return f"{log[0]}-{log[2]}"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A planned batch. `rows` are those of the run that counts: the last one written before the commit log's entry."""

    index: int
    query: str
    checkpoint: str
    lineage: str
    number: int
    planned_at: float
    at: float | None
    ranges: Mapping[Log, Range]
    ends: Mapping[Log, int]  # with those of earlier batches
    ids: Mapping[str, str]
    attempts: tuple[SinkBatch, ...]
    rows: tuple[tuple[int, str, int, int, str], ...]
    written_at: float | None = None  # when that run was in the sink

    def __str__(self) -> str:
        return f"batch {self.number} of {self.checkpoint} (lineage {self.lineage[:8]}, planned {self.planned_at:.3f})"

    def log_of(self, topic: str, partition: int) -> Log:
        """Return the log that a row of this batch is from."""
        return (topic, self.ids.get(topic, ""), partition)

    def reads(self, log: Log) -> bool:
        """Whether the plan has offsets of this partition."""
        start, end = self.ranges.get(log, (0, 0))
        return end > start

    def complete_by(self, at: float) -> bool:
        """Whether Spark's commit log had the batch then."""
        return self.at is not None and self.at <= at + TICK_S


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """A commit, with what its metadata says; `lineage` is None when this source did not write it."""

    at: float
    log: Log
    offset: int
    lineage: str | None
    planned: Range
    pin: int | None
    external: bool
    position: int = -1

    @property
    def is_start(self) -> bool:
        """Whether it pins a start position instead of a batch's end."""
        return self.planned[0] == self.planned[1] == self.offset

    def __str__(self) -> str:
        who = "nobody's lineage" if self.lineage is None else f"lineage {self.lineage[:8]}"
        start, end = self.planned
        return f"{named(self.log)}: commit {self.offset} at {self.at:.3f} by {who} for [{start}, {end})"


@dataclass(frozen=True, slots=True)
class Reset:
    """The group's offset of a partition was moved from outside."""

    at: float
    log: Log
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """The rig deleted these records of a log; `whole`: with their topic."""

    at: float
    span: Range
    whole: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The product reported these offsets as lost, or as lost at most. It is judged, and excuses nothing."""

    at: float
    query: str
    partition: Partition
    span: Range
    at_most: bool = False


@dataclass(slots=True)
class Facts:
    """See `facts_of`."""

    history: History
    batches: list[Batch]
    lives: dict[str, list[TopicLife]]  # of each topic's name, the newest last
    commits: list[GroupCommit] = field(default_factory=list)
    owned: dict[tuple[str, Partition], list[Ownership]] = field(default_factory=dict)
    deleted: dict[Log, list[Deleted]] = field(default_factory=lambda: defaultdict(list))
    reports: dict[Partition, list[Report]] = field(default_factory=lambda: defaultdict(list))
    log: dict[Log, dict[int, str]] = field(default_factory=dict)
    produced: dict[Log, dict[int, str]] = field(default_factory=dict)
    acknowledged_at: dict[Log, dict[int, float]] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    queries_of: dict[str, set[str]] = field(default_factory=dict)  # lineage -> queries, by Spark's offset logs
    written: set[str] = field(default_factory=set)  # the ids of all records that are known to have been written
    _known: dict[Log, dict[int, str]] = field(default_factory=dict)
    _starts: dict[Log, Range] = field(default_factory=dict)

    @property
    def completed(self) -> list[Batch]:
        """The batches that Spark recorded as complete, in the order of their plans."""
        return [batch for batch in self.batches if batch.at is not None]

    # --- topics

    def life(self, log: Log) -> TopicLife | None:
        """Return the life of the topic with the log's id; None when the rig created no such topic."""
        return next((life for life in self.lives.get(log[0], ()) if life.id == log[1]), None)

    def ended(self, log: Log) -> float | None:
        """Return when the log's topic was deleted; None while it lives."""
        life = self.life(log)
        return life.deleted_at if life is not None else None

    def newest(self, partition: Partition) -> Log:
        """Return the log that a partition's name stands for at the end."""
        lives = self.lives.get(partition[0])
        return (partition[0], lives[-1].id if lives else "", partition[1])

    def log_at(self, partition: Partition, at: float) -> Log:
        """Return the log that a partition's name stood for then, or had stood for last."""
        begun = [life for life in self.lives.get(partition[0], ()) if life.created_at <= at + TICK_S]
        return (partition[0], begun[-1].id, partition[1]) if begun else self.newest(partition)

    # --- records

    def logs(self) -> Iterator[Log]:
        """Yield the partitions that hold or held records, of every topic id."""
        yield from sorted(self.log.keys() | self.produced.keys())

    def known(self, log: Log) -> dict[int, str]:
        """Return all records that are known to have been written, by offset."""
        if log not in self._known:
            self._known[log] = self.produced.get(log, {}) | self.log.get(log, {})
        return self._known[log]

    def is_gone(self, log: Log, offset: int, at: float | None = None) -> bool:
        """Whether the rig deleted the record, by then if a time is given."""
        return any(
            one.span[0] <= offset < one.span[1] and (at is None or one.at <= at + TICK_S)
            for one in self.deleted.get(log, ())
        )

    def is_removed(self, log: Log, offset: int) -> bool:
        """Whether the rig deleted the record, and not only its topic."""
        return any(one.span[0] <= offset < one.span[1] for one in self.deleted.get(log, ()) if not one.whole)

    # --- where the group began

    def bounds_of(self, log: Log) -> Range:
        """Return between which offsets the group has to begin: 0 in what appeared later."""
        return self._starts.get(log, (0, 0))

    def pins_of(self, log: Log) -> list[GroupCommit]:
        """Return the commits with a pinned start, up to the first one from outside."""
        found = []
        for commit in self.commits:
            if commit.log == log:
                if commit.external:
                    break
                if commit.pin is not None:
                    found.append(commit)
        return found

    def start_of(self, log: Log) -> int:
        """Return where the group had to begin. The pin counts only between the bounds."""
        low, high = self.bounds_of(log)
        pins = self.pins_of(log)
        return min(max(pins[0].pin or 0, low), high) if pins else low

    # --- owners

    def ownership(self, query: str, partition: Partition, at: float) -> Ownership | None:
        """Return the newest ownership that had begun by then, over or not."""
        found = [one for one in self.owned.get((query, partition), ()) if one.start <= at + TICK_S]
        return max(found, key=lambda one: one.start, default=None)


def facts_of(history: History) -> Facts:
    """Index a history."""
    facts = Facts(history, _batches(history), _lives(history))
    facts.owned = ownerships(history.group)
    for batch in facts.batches:
        facts.queries_of.setdefault(batch.lineage, set()).add(batch.query)
    _read_records(facts)
    _read_deletions(facts)
    for start in history.starts:
        facts._starts[start.topic, start.id, start.partition] = (start.low, start.high)
    _read_commits(facts)
    return facts


def inside(offset: int, ranges: list[Range]) -> bool:
    """Whether one of the ranges has the offset."""
    return any(start <= offset < end for start, end in ranges)


def _lives(history: History) -> dict[str, list[TopicLife]]:
    found: dict[str, list[TopicLife]] = defaultdict(list)
    for life in sorted(history.topics, key=lambda life: life.created_at):
        found[life.topic].append(life)
    return found


def _read_records(facts: Facts) -> None:
    for record in facts.history.produced:
        log = _log_of(facts, record.topic, record.topic_id, record.partition)
        facts.produced.setdefault(log, {})[record.offset] = record.id
        facts.acknowledged_at.setdefault(log, {})[record.offset] = record.at
    for logged in facts.history.log:
        log = _log_of(facts, logged.topic, logged.topic_id, logged.partition)
        facts.log.setdefault(log, {})[logged.offset] = logged.id
    facts.written = {one.id for records in (facts.history.produced, facts.history.log) for one in records}


def _log_of(facts: Facts, topic: str, topic_id: str, partition: int) -> Log:
    return (topic, topic_id, partition) if topic_id else facts.newest((topic, partition))


def _read_deletions(facts: Facts) -> None:
    """Note what the rig deleted, and what the product reported as lost."""
    for fault in facts.history.faults:
        for topic, number, start, end in fault.details.get("deleted") or ():
            log = facts.log_at((topic, number), fault.started_at)
            facts.deleted[log].append(Deleted(fault.started_at, (start, end), False))
    for log in facts.logs():
        ended = facts.ended(log)
        if ended is not None:
            facts.deleted[log].append(Deleted(ended, (0, max(facts.known(log), default=-1) + 1), True))
    for event in facts.history.members:
        if event.event == "data_lost":
            upper = event.details.get("possible")
            # Beside what is lost at most, an empty range says only that nothing is counted.
            for topic, number, start, end in (one for one in ranges_of(event) if not upper or one[3] > one[2]):
                facts.reports[topic, number].append(Report(event.at, event.query, (topic, number), (start, end)))
            for topic, number, start, end in event.details.get("possible") or ():
                facts.reports[topic, number].append(Report(event.at, event.query, (topic, number), (start, end), True))


def _batches(history: History) -> list[Batch]:
    attempts: dict[tuple[str, int], list[SinkBatch]] = defaultdict(list)
    for one in sorted(history.batches, key=lambda one: (one.at, one.attempt)):
        attempts[one.checkpoint, one.batch].append(one)
    planned = sorted(history.completed, key=lambda one: (one.planned_at, one.checkpoint, one.batch))
    return [_batch(n, one, attempts.get((one.checkpoint, one.batch), [])) for n, one in enumerate(planned)]


def _batch(index: int, one: Completed, attempts: list[SinkBatch]) -> Batch:
    ranges: dict[Log, Range] = {}
    ends: dict[Log, int] = {}
    ids: dict[str, str] = {}
    for topic, entry in one.end.get("topics", {}).items():
        ids[topic] = entry["id"]
        for number, end in entry.get("done", {}).items():
            ends[topic, entry["id"], int(number)] = end
        for number, (start, end) in entry.get("ranges", {}).items():
            ranges[topic, entry["id"], int(number)] = (start, end)
            ends[topic, entry["id"], int(number)] = end
    counted = [run for run in attempts if one.at is not None and run.at <= one.at + TICK_S]
    rows, lineage = counted[-1].rows if counted else (), one.end.get("lineage", "")
    written_at = counted[-1].at if counted else one.at
    return Batch(
        index, one.query, one.checkpoint, lineage, one.batch, one.planned_at, one.at, ranges, ends, ids,
        tuple(attempts), rows, written_at,
    )  # fmt: skip


# --- commits


def _read_commits(facts: Facts) -> None:
    """Read all commits in order, and note those that were made from outside."""
    held: dict[Log, GroupCommit] = {}
    planned = {(b.lineage, log, span) for b in facts.batches for log, span in b.ranges.items()}
    for raw in facts.history.commits:
        commit = _commit(facts, raw)
        before = held.get(commit.log)
        ours = (commit.lineage, commit.log, commit.planned) in planned and commit.offset == commit.planned[1]
        forward = before is None or commit.offset >= before.offset
        if not (ours and forward) and any(_is_reset(fault, commit) for fault in facts.history.faults):
            commit = replace(commit, external=True)
            facts.resets.append(Reset(commit.at, commit.log, before.offset if before else 0, commit.offset))
        held[commit.log] = commit
        facts.commits.append(commit)


def _commit(facts: Facts, raw: Commit) -> GroupCommit:
    try:
        said = json.loads(raw.metadata or "null")
        lineage, topic_id, pin = str(said["l"]), str(said["t"]), int(said["p"])
        start, end = (int(offset) for offset in said["r"])
    except (ValueError, TypeError, KeyError):
        log = facts.log_at((raw.topic, raw.partition), raw.at)
        return GroupCommit(raw.at, log, raw.offset, None, (raw.offset, raw.offset), None, False, raw.position)
    log = (raw.topic, topic_id, raw.partition)
    return GroupCommit(raw.at, log, raw.offset, lineage, (start, end), pin, False, raw.position)


def _is_reset(fault: Fault, commit: GroupCommit) -> bool:
    """Whether the fault is one that commits from outside, and this is its commit.

    Such a fault is called a reset or a rewind, or lists in its details what it `moved`: [topic, partition, from, to].
    """
    details = fault.details
    moved = details.get("moved")
    if moved is None and not any(word in fault.kind for word in ("rewound", "rewind", "reset")):
        return False
    if not fault.started_at - TICK_S <= commit.at <= fault.ended_at + TICK_S:
        return False
    topic, _, partition = commit.log
    if moved is not None:
        return any((topic, partition, commit.offset) == (one[0], one[1], one[3]) for one in moved)
    expected = {"topic": topic, "partition": partition, "offset": commit.offset}
    return all(details.get(key, value) == value for key, value in expected.items())
