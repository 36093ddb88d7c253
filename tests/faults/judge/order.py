"""P3 and P7: a batch that runs again reads the same in the same order, and offsets rise. See checker.py."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.history import Row, SinkBatch
from tests.faults.judge.facts import TICK_S, Batch, Facts, Log, Partition, named
from tests.faults.judge.verdict import Violation, shown

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
            yield from _interleaved(batch, attempt)
            yield from _second_evaluation(facts, batch, attempt)
            if before is not None:
                yield from _differences(facts, batch, before, attempt)
                yield from _reordered(batch, before, attempt)
            before = attempt


Sequences = dict[int, list[Row]]


def _sequences(rows: tuple[Row, ...]) -> Sequences:
    """Return each Spark task's rows in the order in which it gave them."""
    found: Sequences = defaultdict(list)
    for row in rows:
        found[row[0]].append(row)
    return found


def _interleaved(batch: Batch, attempt: SinkBatch) -> Iterator[Violation]:
    """Tasks that go back to a partition after another one: such an order is that of arrival, and changes in a rerun."""
    for task, rows in sorted(_sequences(attempt.rows).items()):
        left: set[Partition] = set()
        current: Partition | None = None
        for row in rows:
            partition = (row[1], row[2])
            if partition == current:
                continue
            if partition in left:
                where = f"{batch}, run {attempt.attempt}, task {task}"
                yield Violation("P3", f"{where}: goes back to {_at(row)} after {current and _name(current)}")
                break
            if current is not None:
                left.add(current)
            current = partition


def _second_evaluation(facts: Facts, batch: Batch, attempt: SinkBatch) -> Iterator[Violation]:
    """One plan, evaluated twice: each task must give the same rows in the same order."""
    if attempt.again is None or attempt.again == attempt.rows:
        return

    def there(rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Leave out what the rig had deleted by then: the second evaluation may come too late for it."""
        return tuple(row for row in rows if not facts.is_gone(batch.log_of(row[1], row[2]), row[3], attempt.at))

    first, second = _sequences(there(attempt.rows)), _sequences(there(attempt.again))
    for task in sorted(first.keys() | second.keys()):
        old, new = first.get(task, []), second.get(task, [])
        if old != new:
            where = f"{batch}, run {attempt.attempt}, task {task}, evaluated twice"
            yield Violation("P3", f"{where}: {_first_difference(old, new)}")


def _reordered(batch: Batch, earlier: SinkBatch, later: SinkBatch) -> Iterator[Violation]:
    """A batch that ran twice: tasks that have the same rows must have them in the same order.

    A replay may be cut into other tasks (sizes are measured, and the driver may read a small batch itself).
    """
    sequences = {frozenset(row[1:4] for row in rows): rows for rows in _sequences(earlier.rows).values()}
    for task, new in sorted(_sequences(later.rows).items()):
        old = sequences.get(frozenset(row[1:4] for row in new))
        if old is not None and [row[1:] for row in old] != [row[1:] for row in new]:
            where = f"{batch}, runs {earlier.attempt} and {later.attempt}, task {task}"
            yield Violation("P3", f"{where}: {_first_difference(old, new)}")


def _first_difference(old: list[Row], new: list[Row]) -> str:
    for place, (one, other) in enumerate(zip(old, new, strict=False)):
        if one[1:] != other[1:]:
            return f"row {place} is {_at(one)} first and {_at(other)} then ({len(old)} and {len(new)} rows)"
    return f"{len(old)} rows first and {len(new)} then"


def _at(row: Row) -> str:
    return f"{row[1]}-{row[2]} offset {row[3]} ({row[4]!r})"


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
            if not facts.is_gone(log, offset, later.at) and (offset >= taken or (new and offset > min(new)))
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
