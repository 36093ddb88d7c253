"""P3 and P7: a batch that runs again reads the same, and offsets rise. See checker.py for the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from faultrig.facts import TICK_S, Batch, Facts, Log, Partition, inside, named
from faultrig.history import SinkBatch
from faultrig.verdict import Violation, shown

Content = dict[Partition, dict[int, str]]


def check_replays(facts: Facts) -> Iterator[Violation]:
    """Find what P3 forbids."""
    for batch in facts.batches:
        before: SinkBatch | None = None
        for attempt in batch.attempts:
            content = _content(attempt)
            for partition, records in content.items():
                start, end = batch.ranges.get(batch.log_of(*partition), (0, 0))
                outside = [offset for offset in records if not start <= offset < end]
                if outside:
                    text = f"{_name(partition)}: {batch}, run {attempt.attempt}: outside of its plan [{start}, {end})"
                    yield Violation("P3", f"{text}: {shown(outside)}")
            if before is not None:
                yield from _differences(facts, batch, before, attempt)
            before = attempt


def _content(attempt: SinkBatch) -> Content:
    found: Content = defaultdict(dict)
    for _, topic, partition, offset, content in attempt.rows:
        found[topic, partition][offset] = content
    return found


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


def _differences(facts: Facts, batch: Batch, earlier: SinkBatch, later: SinkBatch) -> Iterator[Violation]:
    first, second = _content(earlier), _content(later)
    for partition in sorted(first.keys() | second.keys()):
        old, new = first.get(partition, {}), second.get(partition, {})
        if old == new:
            continue
        where = f"{_name(partition)}: {batch}, runs {earlier.attempt} and {later.attempt}"
        changed = [offset for offset in old.keys() & new.keys() if old[offset] != new[offset]]
        if changed:
            yield Violation("P3", f"{where}: other records at {shown(changed)}")
        log = batch.log_of(*partition)
        more = new.keys() - old.keys()
        if more and not any(r.log == log and earlier.at <= r.at <= later.started_at + TICK_S for r in facts.resets):
            yield Violation("P3", f"{where}: the later one has more: {shown(more)}")
        gone = old.keys() - new.keys()
        taken = _taken(facts, batch, log, later.started_at)
        wrong = [
            offset
            for offset in gone
            # A trimmed replay begins later; it has no holes.
            if not inside(offset, facts.lost.get(partition, [])) and (offset >= taken or (new and offset > min(new)))
        ]
        if wrong:
            held = f"others had committed up to {taken}" if taken >= 0 else "others had committed nothing"
            yield Violation("P3", f"{where}: the later one lacks {shown(wrong)}; {held} by {later.started_at:.3f}")


def _taken(facts: Facts, batch: Batch, log: Log, at: float) -> int:
    """Return how far other lineages had committed a partition by then, -1 when they had not."""
    foreign = [
        commit.offset
        for commit in facts.commits
        if commit.log == log and commit.at <= at + TICK_S and commit.lineage not in (None, batch.lineage)
    ]
    return max(foreign, default=-1)


def check_order(facts: Facts) -> Iterator[Violation]:
    """Find what P7 forbids."""
    last: dict[tuple[str, str, Log], tuple[int, Batch]] = {}
    for batch in sorted(facts.completed, key=lambda batch: (batch.checkpoint, batch.number)):
        for attempt in batch.attempts:
            yield from _order_in_tasks(batch, attempt)
        offsets: dict[Partition, list[int]] = defaultdict(list)
        for _, topic, partition, offset, _ in batch.rows:
            offsets[topic, partition].append(offset)
        for (topic, number), read in offsets.items():
            log = batch.log_of(topic, number)
            key = (batch.checkpoint, batch.lineage, log)
            low, high = min(read), max(read)
            reached, former = last.get(key, (-1, batch))
            if low <= reached:
                yield Violation("P7", f"{named(log)}: {batch} begins at {low}, after {former} has read up to {reached}")
            if high > reached:
                last[key] = (high, batch)


def _order_in_tasks(batch: Batch, attempt: SinkBatch) -> Iterator[Violation]:
    reached: dict[tuple[int, str, int], int] = {}
    wrong: dict[tuple[int, str, int], str] = {}
    for task, topic, partition, offset, _ in attempt.rows:
        key = (task, topic, partition)
        before = reached.get(key, -1)
        if offset <= before and key not in wrong:
            wrong[key] = f"{topic}-{partition}: {batch}, run {attempt.attempt}, task {task}: {offset} after {before}"
        reached[key] = offset
    for text in wrong.values():
        yield Violation("P7", text)
