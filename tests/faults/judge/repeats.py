"""P2 and P6: what was completed more than once, by class, and whether it may be. See checker.py for the rules.

Excuses are faults that the rig did, members that the coordinator removed, and processes that ended. The product's own
events ("lost", "refused", the outcome of a drain) excuse nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.history import Fault, SinkBatch
from tests.faults.judge.facts import TICK_S, Batch, Facts, Log, Partition, Range, Reset, inside, named
from tests.faults.judge.records import Readers
from tests.faults.judge.verdict import (
    BEHIND,
    CHECKPOINT,
    CLASSES,
    REPLAY,
    RESET,
    SAME_LINEAGE,
    UNCLEAN,
    UNEXPLAINED,
    Violation,
    shown,
)


@dataclass(frozen=True, slots=True)
class Unclean:
    """Something took partitions without a handover; None stands for every query."""

    start: float
    end: float
    query: str | None

    def touches(self, query: str, start: float, end: float) -> bool:
        """Whether it hit this query at some time of [start, end]."""
        return self.query in (None, query) and self.end >= start - TICK_S and self.start <= end + TICK_S


def unclean_of(facts: Facts) -> list[Unclean]:
    """Return what of the run may have taken partitions from a member without a handover."""
    return [*_faults(facts), *_expired(facts), *_slow(facts), *_interrupted(facts)]


def _faults(facts: Facts) -> Iterator[Unclean]:
    """Find the rig's own faults that are not clean, until the group had recovered."""
    history = facts.history
    queries = {run.query for run in history.runs} | {batch.query for batch in facts.batches}
    for fault in history.faults:
        if not fault.clean:
            yield Unclean(fault.started_at, fault.recovered_at, fault.target if fault.target in queries else None)


def _expired(facts: Facts) -> Iterator[Unclean]:
    """Find members that the coordinator removed, as it logged itself. A stopped process logs its plan later."""
    for record in facts.history.group:
        if record.event == "expired":
            yield Unclean(record.at, record.at + facts.history.run.session_timeout_s, record.query)


def _slow(facts: Facts) -> Iterator[Unclean]:
    """Find batches that took longer than the drain deadline, by the times of Spark's own files."""
    for batch in facts.completed:
        if batch.at is not None and batch.at - batch.planned_at > facts.history.run.drain_timeout_s:
            yield Unclean(batch.planned_at, batch.at, batch.query)


def _interrupted(facts: Facts) -> Iterator[Unclean]:
    """Find runs of a query that ended in the middle of a batch: Spark gives it up, and runs it again later."""
    for run in facts.history.runs:
        planned = [batch for batch in facts.batches if batch.query == run.query and batch.planned_at <= run.ended_at]
        if planned and not planned[-1].complete_by(run.ended_at):
            yield Unclean(run.ended_at, run.ended_at, run.query)


_KEEPS_COMMITS_AWAY = ("broker-", "coordinator-", "network-", "connections-cut", "commits-delayed", "cut-at-commit")


def commits_away(facts: Facts, batch: Batch, partition: Partition) -> bool:
    """Whether a fault of the rig kept commits away when the batch was planned, and its query had the partition yet.

    That nobody else had it is the coordinator's word: a zombie that plans during such a fault is found out.
    """
    stay = facts.ownership(batch.query, partition, batch.planned_at)
    since = stay.start if stay is not None else 0.0
    taken = any(
        since < other.start <= batch.planned_at - TICK_S
        for (query, owned), stays in facts.owned.items()
        if owned == partition and query != batch.query
        for other in stays
    )
    return not taken and any(_keeps_away(fault, batch) for fault in facts.history.faults)


def _keeps_away(fault: Fault, batch: Batch) -> bool:
    during = fault.started_at - TICK_S <= batch.planned_at <= fault.recovered_at + TICK_S
    whose = fault.target == batch.query or fault.kind.startswith(("broker-", "coordinator-", "network-"))
    return during and whose and fault.kind.startswith(_KEEPS_COMMITS_AWAY)


@dataclass(slots=True)
class Repeats:
    """Counts by class, and what is wrong."""

    facts: Facts
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    # (owner, partition, when it came to it) -> batches of this stay that were read again by others, with the records
    stays: dict[tuple[str, Log, float], dict[int, list[int]]] = field(default_factory=lambda: defaultdict(dict))
    unclean: list[Unclean] = field(default_factory=list)
    _by_life: dict[str, Fault] = field(default_factory=dict)
    _last_read: dict[tuple[str, Log], Batch] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unclean = unclean_of(self.facts)
        self._by_life = {f.details["new"]: f for f in self.facts.history.faults if {"old", "new"} <= f.details.keys()}
        for batch in sorted(self.facts.completed, key=lambda batch: batch.number):
            for log in batch.ranges:
                if batch.reads(log):
                    self._last_read[batch.checkpoint, log] = batch

    # --- judging

    def add(self, log: Log, readers: tuple[int, ...], offsets: list[int]) -> None:
        """Judge records that these batches have all completed, in the order of their plans."""
        batches = [self.facts.batches[index] for index in readers]
        for n, later in enumerate(batches):
            same = [earlier for earlier in batches[:n] if earlier.checkpoint == later.checkpoint]
            if same:
                self._same_checkpoint(log, same[-1], later, self._unexcused(log, same[-1], later, offsets))
            elif n:
                self._other_checkpoint(log, batches[n - 1], later, offsets)

    def _unexcused(self, log: Log, earlier: Batch, later: Batch, offsets: list[int]) -> list[int]:
        """Count what a reset between the plans explains; return the rest."""
        if earlier.lineage == later.lineage and earlier.checkpoint == later.checkpoint:
            return offsets  # a checkpoint that takes part in a reset or a conflict goes on as a new lineage
        resets = [
            (self._from_reset(reset, later), max(reset.before, earlier.ends.get(log, 0)))
            for reset in self.facts.resets
            if reset.log == log and earlier.planned_at - TICK_S <= reset.at <= later.planned_at + TICK_S
        ]
        return self._count(RESET, resets, offsets)

    def _from_reset(self, reset: Reset, later: Batch) -> int:
        """Return where the batch's checkpoint goes on after a reset: where the group is.

        A checkpoint that has read only a deleted topic of this name goes on at 0.
        """
        log = reset.log
        own = [b for b in self.facts.batches if b.checkpoint == later.checkpoint]
        after = [b for b in own if b.planned_at > reset.at and b.reads(log)]
        if not after or any(b.planned_at <= reset.at and log in b.ends for b in own):
            return reset.after
        first = min(after, key=lambda batch: batch.number)
        newest = max((b for b in own if b.number < first.number), key=lambda batch: batch.number, default=None)
        read_another = newest is not None and newest.ids.get(log[0]) not in (None, "", log[1])
        return 0 if read_another and first.ranges[log][0] == 0 else reset.after

    def _count(self, name: str, spans: list[Range], offsets: list[int]) -> list[int]:
        rest = [offset for offset in offsets if not inside(offset, spans)] if spans else offsets
        self.counts[name] += len(offsets) - len(rest)
        return rest

    def _same_checkpoint(self, log: Log, earlier: Batch, later: Batch, offsets: list[int]) -> None:
        if not offsets:
            return
        self.counts[SAME_LINEAGE] += len(offsets)
        both = f"twice in {later}" if earlier is later else f"in {earlier} and in {later}"
        self.violations.append(Violation("P2", f"{named(log)}: {shown(offsets)} {both}"))

    def _other_checkpoint(self, log: Log, earlier: Batch, later: Batch, offsets: list[int]) -> None:
        rest = self._unexcused(log, earlier, later, offsets)
        if not rest:
            return
        fault = self._life_between(earlier.checkpoint, later.checkpoint)
        if fault is not None:
            self.counts[CHECKPOINT] += len(rest)
            if self._last_read.get((earlier.checkpoint, log)) is not earlier:
                text = f"more than the last batch after {fault.kind} of {fault.target}: {shown(rest)}"
                self.violations.append(Violation("P6", f"{named(log)}: {text} in {earlier} and in {later}"))
            return
        self._across_members(log, earlier, later, rest)

    def _across_members(self, log: Log, planned_first: Batch, planned_last: Batch, offsets: list[int]) -> None:
        earlier, later = self._by_stay(log, planned_first, planned_last)
        times = (earlier.planned_at, later.planned_at, earlier.at or 0.0, later.at or 0.0)
        since, until = min(times[:2]), max(times)
        if not any(one.touches(earlier.query, since, until) for one in self.unclean):
            self.counts[UNEXPLAINED] += len(offsets)
            text = f"{shown(offsets)} in {earlier} and in {later}, with nothing unclean between"
            self.violations.append(Violation("P6", f"{named(log)}: {text}"))
            return
        self.counts[UNCLEAN] += len(offsets)
        self.stays[earlier.query, log, self._came(log, earlier)].setdefault(earlier.index, []).extend(offsets)

    # --- who was first

    def _came(self, log: Log, batch: Batch) -> float:
        stay = self.facts.ownership(batch.query, (log[0], log[2]), batch.planned_at)
        return stay.start if stay is not None else 0.0

    def _by_stay(self, log: Log, first: Batch, last: Batch) -> tuple[Batch, Batch]:
        """Return the earlier and the later owner's batch.

        A process that is stopped between fixing a plan and Spark's writing it down logs it when the next owner has
        planned already: who came to the partition first counts, and only then the plan.
        """
        known = self._came(log, first) and self._came(log, last)
        return (last, first) if known and self._came(log, last) < self._came(log, first) else (first, last)

    # --- lives of checkpoints

    def _life_between(self, old: str, new: str) -> Fault | None:
        """Return the fault that ended the checkpoint's life `old`, if `new` is a later life of the same."""
        seen: set[str] = set()
        while new in self._by_life and new not in seen:
            seen.add(new)
            fault = self._by_life[new]
            if fault.details["old"] == old:
                return fault
            new = fault.details["old"]
        return None

    def finish(self) -> None:
        """Judge what only all repeats together show: at most one batch of an owner's stay."""
        for (query, log, _), repeated in self.stays.items():
            batches: dict[int, list[int]] = {}
            for index, offsets in repeated.items():
                if commits_away(self.facts, self.facts.batches[index], (log[0], log[2])):
                    self.counts[UNCLEAN] -= len(offsets)
                    self.counts[BEHIND] += len(offsets)
                else:
                    batches[index] = offsets
            if len(batches) > 1:
                texts = [
                    f"{shown(offsets)} of {self.facts.batches[index]}" for index, offsets in sorted(batches.items())
                ]
                text = f"others repeated {len(batches)} batches of one stay of {query}: {'; '.join(texts)}"
                self.violations.append(Violation("P6", f"{named(log)}: {text}"))


def judge_repeats(facts: Facts, readers: Readers) -> tuple[dict[str, int], list[Violation]]:
    """Return the number of repeated records by class, and what P2 and P6 forbid."""
    repeats = Repeats(facts)
    for log, readers_of_log in sorted(readers.items()):
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for offset, indexes in readers_of_log.items():
            if len(indexes) > 1:
                groups[indexes].append(offset)
        for indexes, offsets in sorted(groups.items()):
            repeats.add(log, indexes, offsets)
    repeats.finish()
    repeats.counts[REPLAY] = sum(len(run.rows) for run in _runs_that_do_not_count(facts))
    return {name: repeats.counts[name] for name in CLASSES}, repeats.violations


def _runs_that_do_not_count(facts: Facts) -> Iterator[SinkBatch]:
    for batch in facts.completed:
        yield from (run for run in batch.attempts if run.rows is not batch.rows)
