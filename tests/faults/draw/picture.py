"""Make a timeline of a run, for the page of `groupkafka timeline`, from what the rig observed.

What queries report of themselves is not part of it. A lane per query shows when the query ran. A lane per partition
shows its owners as the coordinator saw them, the completed batches and the commits of the group. `page` adds
the faults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.timeline.model import (
    Block,
    EventMark,
    MarkKind,
    Period,
    PeriodKind,
    Timeline,
)
from tests.faults.history import History
from tests.faults.judge.facts import Batch, Facts, Ownership, Partition, facts_of
from tests.faults.judge.verdict import PROMISES, REPLAY, Verdict


def timeline_of(history: History, verdict: Verdict) -> Timeline:
    """Return a run as values to draw."""
    facts = facts_of(history)
    start, end = _bounds(facts)
    queries = {batch.query for batch in facts.batches} | {query for query, _ in facts.owned}
    partitions = {(log[0], log[2]) for batch in facts.batches for log in batch.ranges}
    partitions |= {(log[0], log[2]) for log in facts.log} | {partition for _, partition in facts.owned}
    return Timeline(
        title=_title(facts, verdict), subtitle=_judged(verdict), start=start, end=end,
        queries=tuple(sorted(queries | {one.query for one in history.runs})),
        partitions=tuple(TopicPartition(*partition) for partition in sorted(partitions)),
        periods=(*_runs(history, end), *(period for one in sorted(partitions) for period in _owners(facts, one, end))),
        blocks=tuple(_blocks(facts)), marks=tuple(_commits(facts)),
    )  # fmt: skip


def _bounds(facts: Facts) -> tuple[float, float]:
    run = facts.history.run
    # Brokers and Spark take their time to start: the picture begins with the first member.
    begins = [stay.start for stays in facts.owned.values() for stay in stays]
    begins += [batch.planned_at for batch in facts.batches]
    start = min(begins, default=run.started_at)
    ends = [batch.at or batch.planned_at for batch in facts.batches]
    ends += [fault.recovered_at for fault in facts.history.faults] + [commit.at for commit in facts.commits]
    return start, max([run.ended_at, *ends, start + 1.0])


def _title(facts: Facts, verdict: Verdict) -> str:
    run, figures = facts.history.run, verdict.figures
    repeated = sum(count for name, count in figures.repeats.items() if name != REPLAY)
    return (
        f"seed {run.seed}, {run.protocol}{f', Kafka {run.kafka}' if run.kafka else ''}: {figures.records:,} records, "
        f"{figures.completed:,} batches, {len(facts.history.faults)} faults, {repeated:,} records repeated"
    )


def _judged(verdict: Verdict) -> str:
    violated = verdict.violated()
    if violated:
        return f"VIOLATED: {', '.join(f'{name} ({len(verdict.violations[name])})' for name in violated)}"
    return "history in doubt" if verdict.doubts else f"{next(iter(PROMISES))}-{list(PROMISES)[-1]} hold"


# --- queries and owners


def _runs(history: History, end: float) -> Iterator[Period]:
    for run in history.runs:
        text = f"{run.query} runs, {run.how}"
        yield Period(PeriodKind.OWNED, run.query, run.query, run.started_at, min(run.ended_at or end, end), text)


def _owners(facts: Facts, partition: Partition, end: float) -> Iterator[Period]:
    """Yield who had the partition, as the group saw it: until the next one came, or until it was killed."""
    lane = TopicPartition(*partition)
    stays = [one for (_, other), found in facts.owned.items() if other == partition for one in found]
    stays.sort(key=lambda one: one.start)
    for n, one in enumerate(stays):
        until = min([one.end, end, *(later.start for later in stays[n + 1 : n + 2])])
        if math.isinf(one.end):
            until = min([until, *_kills(facts, one)])
        if until > one.start:
            yield Period(PeriodKind.OWNED, lane, one.query, one.start, until, f"{lane}: {one.query}")


def _kills(facts: Facts, stay: Ownership) -> Iterator[float]:
    for fault in facts.history.faults:
        if fault.target == stay.query and "kill" in fault.kind and fault.started_at > stay.start:
            yield fault.started_at


# --- batches, commits


def _blocks(facts: Facts) -> Iterator[Block]:
    for batch in facts.completed:
        start = _started(batch)
        for log, (low, high) in batch.ranges.items():
            if high > low:
                lane = TopicPartition(log[0], log[2])
                yield Block(lane, batch.query, start, max(start, batch.at or start), high - low)


def _started(batch: Batch) -> float:
    """Return when the run that counts began: after a crash that is long after its plan."""
    counted = [run.started_at for run in batch.attempts if run.rows is batch.rows]
    return counted[0] if counted else batch.planned_at


def _commits(facts: Facts) -> Iterator[EventMark]:
    for commit in facts.commits:
        lane = TopicPartition(commit.log[0], commit.log[2])
        yield EventMark(MarkKind.COMMIT, lane, commit.at, f"{lane} at {commit.offset:,}")
