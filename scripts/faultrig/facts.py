"""A history, indexed: the batches with their rows, the group's commits read, who owned what, what was unclean.

Nothing is judged here. Times that are compared come from one machine; those of the broker are in whole milliseconds
and those of files in the kernel's ticks: `TICK_S` is more than both.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from faultrig.eventranges import ranges_of
from faultrig.history import Commit, Completed, Fault, History, SinkBatch

TICK_S = 0.01
Partition = tuple[str, int]
# A partition of one topic id: a topic that was deleted and made again has other records at the same offsets.
Log = tuple[str, str, int]
Range = tuple[int, int]
_BAD_OUTCOMES = frozenset({"DEADLINE", "STOPPED", "LOST"})


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

    @property
    def is_start(self) -> bool:
        """Whether it pins a start position instead of a batch's end."""
        return self.planned[0] == self.planned[1] == self.offset

    def __str__(self) -> str:
        who = "nobody's lineage" if self.lineage is None else f"lineage {self.lineage[:8]}"
        start, end = self.planned
        return f"{named(self.log)}: commit {self.offset} at {self.at:.3f} by {who} for [{start}, {end})"


@dataclass(frozen=True, slots=True)
class Ownership:
    """A member had a partition from `start` to `end`, as its own events say; `end` is infinite when none says so."""

    query: str
    partition: Partition
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Unclean:
    """Something took partitions without a handover; None stands for every query, or every partition."""

    start: float
    end: float
    query: str | None
    partitions: frozenset[Partition] | None

    def touches(self, query: str, partition: Partition, start: float, end: float) -> bool:
        """Whether it hit this query's partition at some time of [start, end]."""
        return (
            self.query in (None, query)
            and (self.partitions is None or partition in self.partitions)
            and self.end >= start - TICK_S
            and self.start <= end + TICK_S
        )


@dataclass(frozen=True, slots=True)
class Reset:
    """The group's offset of a partition was moved from outside."""

    at: float
    log: Log
    before: int
    after: int


@dataclass(slots=True)
class Facts:
    """See `facts_of`."""

    history: History
    batches: list[Batch]
    commits: list[GroupCommit]
    owned: dict[tuple[str, Partition], list[Ownership]]
    unclean: list[Unclean]
    lost: dict[Partition, list[Range]]  # what "data_lost" events report
    conflicts: dict[tuple[str, Partition], list[tuple[float, Range]]]
    behind: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # query -> times without commits
    log: dict[Partition, dict[int, str]] = field(default_factory=dict)
    produced: dict[Partition, dict[int, str]] = field(default_factory=dict)
    ids: dict[str, list[str]] = field(default_factory=dict)  # topic ids, the newest last
    resets: list[Reset] = field(default_factory=list)
    queries_of: dict[str, set[str]] = field(default_factory=dict)  # lineage -> queries
    _known: dict[Partition, dict[int, str]] = field(default_factory=dict)

    @property
    def completed(self) -> list[Batch]:
        """The batches that Spark recorded as complete, in the order of their plans."""
        return [batch for batch in self.batches if batch.at is not None]

    def newest(self, partition: Partition) -> Log:
        """Return the log that a partition's name stands for at the end."""
        return (partition[0], (self.ids.get(partition[0]) or [""])[-1], partition[1])

    def logs(self) -> Iterator[tuple[Partition, Log]]:
        """Yield the partitions that hold or held records."""
        for partition in sorted(self.log.keys() | self.produced.keys()):
            yield partition, self.newest(partition)

    def known(self, partition: Partition) -> dict[int, str]:
        """Return all records that are known to have been written, by offset."""
        if partition not in self._known:
            # Of a topic that was made again, nobody can tell which topic id an acknowledgement was for.
            one_topic = len(self.ids.get(partition[0], ())) <= 1
            acknowledged = self.produced.get(partition, {}) if one_topic else {}
            self._known[partition] = acknowledged | self.log.get(partition, {})
        return self._known[partition]

    def start_of(self, log: Log) -> int:
        """Return where the group began to read: the pin of the first commit."""
        return next((c.pin for c in self.commits if c.log == log and c.pin is not None), 0)

    def ownership(self, query: str, partition: Partition, at: float) -> Ownership | None:
        """Return the newest ownership that had begun by then, over or not."""
        found = [one for one in self.owned.get((query, partition), ()) if one.start <= at + TICK_S]
        return max(found, key=lambda one: one.start, default=None)


def facts_of(history: History) -> Facts:
    """Index a history."""
    batches = _batches(history)
    lost: dict[Partition, list[Range]] = defaultdict(list)
    conflicts: dict[tuple[str, Partition], list[tuple[float, Range]]] = defaultdict(list)
    for event in history.members:
        for topic, partition, start, end in ranges_of(event):
            if event.event == "data_lost":
                lost[topic, partition].append((start, end))
            elif event.event == "conflict":
                conflicts[event.query, (topic, partition)].append((event.at, (start, end)))
    facts = Facts(history, batches, [], ownerships(history), _unclean(history, batches), lost, conflicts)
    for batch in batches:
        facts.queries_of.setdefault(batch.lineage, set()).add(batch.query)
        _learn(facts.ids, batch.ids)
    for event in history.members:
        if event.lineage:
            facts.queries_of.setdefault(event.lineage, set()).add(event.query)
    for record in history.produced:
        facts.produced.setdefault((record.topic, record.partition), {})[record.offset] = record.id
    for logged in history.log:
        facts.log.setdefault((logged.topic, logged.partition), {})[logged.offset] = logged.id
    facts.behind = _behind(history)
    _read_commits(facts)
    return facts


def inside(offset: int, ranges: list[Range]) -> bool:
    """Whether one of the ranges has the offset."""
    return any(start <= offset < end for start, end in ranges)


def _learn(known: dict[str, list[str]], ids: Mapping[str, str]) -> None:
    for topic, topic_id in ids.items():
        found = known.setdefault(topic, [])
        if topic_id not in found:
            found.append(topic_id)


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
    return Batch(
        index, one.query, one.checkpoint, lineage, one.batch, one.planned_at, one.at, ranges, ends, ids,
        tuple(attempts), rows,
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
            commit = GroupCommit(commit.at, commit.log, commit.offset, commit.lineage, commit.planned, commit.pin, True)
            facts.resets.append(Reset(commit.at, commit.log, before.offset if before else 0, commit.offset))
        held[commit.log] = commit
        facts.commits.append(commit)


def _commit(facts: Facts, raw: Commit) -> GroupCommit:
    try:
        told = json.loads(raw.metadata or "null")
        lineage, topic_id, pin = str(told["l"]), str(told["t"]), int(told["p"])
        start, end = (int(offset) for offset in told["r"])
    except (ValueError, TypeError, KeyError):
        log = facts.newest((raw.topic, raw.partition))
        return GroupCommit(raw.at, log, raw.offset, None, (raw.offset, raw.offset), None, False)
    _learn(facts.ids, {raw.topic: topic_id})
    return GroupCommit(raw.at, (raw.topic, topic_id, raw.partition), raw.offset, lineage, (start, end), pin, False)


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


# --- members


def ownerships(history: History) -> dict[tuple[str, Partition], list[Ownership]]:
    """Return who had which partition when, by the members' own events: assigned until revoked, lost or left.

    A killed member says nothing: its ownership has no end (or that of its query's next start).
    """
    since: dict[tuple[str, str, Partition], float] = {}
    found: dict[tuple[str, Partition], list[Ownership]] = defaultdict(list)

    def end(key: tuple[str, str, Partition], at: float) -> None:
        start = since.pop(key, None)
        if start is not None:
            found[key[0], key[2]].append(Ownership(key[0], key[2], start, at))

    for event in sorted(history.members, key=lambda event: event.at):
        who = (event.query, event.member)
        if event.event == "assigned":
            for partition in event.partitions:
                key = (*who, partition)
                end(key, event.at)
                since[key] = event.at
        elif event.event in ("revoked", "lost"):
            for partition in event.partitions:
                end((*who, partition), event.at)
        elif event.event == "left" and event.member:
            # Without a name it may be another run of the query; what it gave up it has told as revoked.
            for key in [key for key in since if key[:2] == who]:
                end(key, event.at)
    for key in list(since):
        end(key, math.inf)
    for spans in found.values():
        spans.sort(key=lambda one: one.start)
    return found


def _behind(history: History) -> dict[str, list[tuple[float, float]]]:
    """Return when each query went on although no commit was taken, as it says itself, and a fault was under way."""
    since: dict[tuple[str, str], float] = {}
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in sorted(history.members, key=lambda event: event.at):
        who = (event.query, event.member)
        if event.event == "commits" and event.details.get("behind"):
            if any(fault.started_at <= event.at <= fault.recovered_at for fault in history.faults):
                since.setdefault(who, event.at)
        elif event.event == "commits" and who in since:
            found[event.query].append((since.pop(who), event.at))
    for (query, _), start in since.items():
        found[query].append((start, math.inf))
    return found


def _unclean(history: History, batches: list[Batch]) -> list[Unclean]:
    queries = {batch.query for batch in batches} | {event.query for event in history.members}
    found = [
        Unclean(fault.started_at, fault.recovered_at, fault.target if fault.target in queries else None, None)
        for fault in history.faults
        if not fault.clean
    ]
    per_query: dict[str, list[Batch]] = defaultdict(list)
    for batch in batches:
        per_query[batch.query].append(batch)
    for event in history.members:
        partitions = frozenset(event.partitions) or None
        if event.event == "revoked":
            unclean = event.details.get("outcome") in _BAD_OUTCOMES or event.details.get("uncommitted", 0) > 0
        elif event.event == "left":
            # Stopped in the middle of a batch: Spark gives it up, and runs it again after a restart.
            planned = per_query[event.query]
            last = bisect_right(planned, event.at, key=lambda batch: batch.planned_at) - 1
            unclean = last >= 0 and not planned[last].complete_by(event.at)
            partitions = None
        else:
            unclean = event.event in ("lost", "refused")
        if unclean:
            found.append(Unclean(event.at, event.at, event.query, partitions))
    return found
