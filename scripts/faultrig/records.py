"""P1 and P8: every record was read, and what the broker lost was reported. See checker.py for the rules."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from faultrig.facts import Facts, Log, Partition, Range, inside, named
from faultrig.verdict import Violation, shown

# Log -> offset -> the batches that completed it, as indexes, in the order of their plans.
Readers = dict[Log, dict[int, tuple[int, ...]]]


def readers_of(facts: Facts) -> Readers:
    """Return which completed batches read which record."""
    found: Readers = defaultdict(dict)
    for batch in facts.completed:
        alone = (batch.index,)
        logs: dict[Partition, dict[int, tuple[int, ...]]] = {}
        for _, topic, partition, offset, _ in batch.rows:
            seen = logs.get((topic, partition))
            if seen is None:
                seen = logs[topic, partition] = found[batch.log_of(topic, partition)]
            before = seen.get(offset)
            seen[offset] = alone if before is None else before + alone
    return found


def check_records(facts: Facts, readers: Readers) -> Iterator[Violation]:
    """Find what P1 and P8 forbid."""
    yield from _wrong_content(facts)
    yield from _rewritten(facts)
    for partition, log in facts.logs():
        yield from _unread(facts, partition, log, readers.get(log, {}))
        yield from _gaps(facts, partition, log)


def _wrong_content(facts: Facts) -> Iterator[Violation]:
    """Rows whose id is not that of the log's record at their offset."""
    for batch in facts.completed:
        wrong: dict[Partition, list[str]] = defaultdict(list)
        known: dict[Partition, dict[int, str] | None] = {}
        for _, topic, number, offset, content in batch.rows:
            partition = (topic, number)
            if partition not in known:
                newest = facts.newest(partition) == batch.log_of(topic, number)
                known[partition] = facts.known(partition) if newest else None
            expected = known[partition]
            if expected is None or expected.get(offset) == content:
                continue
            if offset in expected or not _may_be_deleted(facts, partition, offset):
                there = expected.get(offset, "no record")
                wrong[partition].append(f"offset {offset} is {content!r}, in the log {there!r}")
        for (topic, number), texts in sorted(wrong.items()):
            text = "; ".join(texts[:3])
            yield Violation("P1", f"{topic}-{number}: {batch} has other rows than the log: {text} ({len(texts)} rows)")


def _may_be_deleted(facts: Facts, partition: Partition, offset: int) -> bool:
    """Whether a record that nobody acknowledged may have been in the log, and is not any more."""
    log = facts.log.get(partition)
    return not log or offset < min(log) or inside(offset, facts.lost.get(partition, []))


def _rewritten(facts: Facts) -> Iterator[Violation]:
    """Acknowledged records in whose place the log has another one."""
    for partition, log in facts.logs():
        written = facts.log.get(partition, {})
        if len(facts.ids.get(log[0], ())) > 1:
            continue
        acknowledged = facts.produced.get(partition, {})
        wrong = [offset for offset, content in acknowledged.items() if written.get(offset, content) != content]
        if wrong:
            yield Violation("P1", f"{named(log)}: the log has other records than were acknowledged at {shown(wrong)}")


def _unread(facts: Facts, partition: Partition, log: Log, read: dict[int, tuple[int, ...]]) -> Iterator[Violation]:
    start, reported = facts.start_of(log), facts.lost.get(partition, [])
    written = facts.log.get(partition, {})
    skipped = [(reset.before, reset.after) for reset in facts.resets if reset.log == log]
    missing = [
        offset
        for offset in facts.known(partition)
        if offset >= start
        and offset not in read
        and not inside(offset, skipped)
        # What is still in the log was not lost by the broker, whatever the report says.
        and (offset in written or not inside(offset, reported))
    ]
    if not missing:
        return
    there = sum(offset in written for offset in missing)
    detail = f"{there} of them in the log, {len(missing) - there} acknowledged and not in the log"
    yield Violation(
        "P1", f"{named(log)}: in no completed batch: {shown(missing)}, {detail}{_planned(facts, log, missing)}"
    )
    gone = [offset for offset in missing if offset not in written]
    planned = [span for batch in facts.completed if (span := batch.ranges.get(log)) is not None]
    silent = [offset for offset in gone if inside(offset, planned)]
    if silent:
        yield Violation("P8", f"{named(log)}: planned, not read, gone from the log and not reported: {shown(silent)}")


def _planned(facts: Facts, log: Log, missing: list[int]) -> str:
    first = min(missing)
    holders = [b for b in facts.batches if b.reads(log) and b.ranges[log][0] <= first < b.ranges[log][1]]
    return f"; {first} was planned by {'; '.join(map(str, holders[:3]))}" if holders else f"; {first} was never planned"


def _gaps(facts: Facts, partition: Partition, log: Log) -> Iterator[Violation]:
    """Ranges between what was planned that no completed batch has."""
    spans = [(*batch.ranges[log], str(batch)) for batch in facts.completed if batch.reads(log)]
    spans += [(start, end, "") for start, end in facts.lost.get(partition, [])]
    spans += [(reset.before, reset.after, "") for reset in facts.resets if reset.log == log]
    known = sorted(facts.known(partition))
    position = facts.start_of(log)
    for start, end, who in sorted(spans):
        gap = _within(known, (position, start))
        if gap:
            yield Violation("P8", f"{named(log)}: skipped and not reported: {shown(gap)}, before {who or 'a report'}")
        position = max(position, end)


def _within(known: list[int], span: Range) -> list[int]:
    return known[bisect_left(known, span[0]) : bisect_left(known, span[1])] if span[0] < span[1] else []
