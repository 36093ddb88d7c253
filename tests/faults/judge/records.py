"""P1 and P8: every record was read, and what was deleted was reported. See checker.py for the rules."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from tests.faults.judge.facts import TICK_S, Batch, Facts, Log, Partition, Range, Report, inside, named
from tests.faults.judge.verdict import Violation, shown

# The product sees a log's end at every trigger; records of so long before its topic's deletion it must have seen.
SEEN_S = 20.0

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
    yield from _unknown_topics(facts)
    yield from _wrong_content(facts)
    for log in facts.logs():
        read = readers.get(log, {})
        yield from _rewritten(facts, log)
        yield from _pins(facts, log)
        yield from _too_early(facts, log, read)
        yield from _unread(facts, log, read)
        yield from _silent(facts, log, read)
        yield from _gaps(facts, log)
    yield from _false_reports(facts, readers)
    yield from _not_refused(facts)


# --- rows against the log


def _unknown_topics(facts: Facts) -> Iterator[Violation]:
    """Plans of topic ids that the rig never created."""
    for batch in facts.batches:
        for topic, topic_id in sorted(batch.ids.items()):
            if facts.life((topic, topic_id, 0)) is None:
                yield Violation("P1", f"{topic}: {batch} is of topic id {topic_id}, which was never created")


def _wrong_content(facts: Facts) -> Iterator[Violation]:
    """Rows whose id is not that of the log's record at their offset."""
    for batch in facts.completed:
        wrong: dict[Partition, list[str]] = defaultdict(list)
        for _, topic, number, offset, content in batch.rows:
            log = batch.log_of(topic, number)
            expected = facts.known(log)
            if expected.get(offset) == content:
                continue
            # A record that nobody acknowledged may have been in the log, and be deleted now; no other log has it.
            if offset in expected or content in facts.written or not facts.is_gone(log, offset):
                there = expected.get(offset, "no record")
                wrong[topic, number].append(f"offset {offset} is {content!r}, in the log {there!r}")
        for (topic, number), texts in sorted(wrong.items()):
            text = "; ".join(texts[:3])
            yield Violation("P1", f"{topic}-{number}: {batch} has other rows than the log: {text} ({len(texts)} rows)")


def _rewritten(facts: Facts, log: Log) -> Iterator[Violation]:
    """Acknowledged records in whose place the log has another one."""
    written, acknowledged = facts.log.get(log, {}), facts.produced.get(log, {})
    wrong = [offset for offset, content in acknowledged.items() if written.get(offset, content) != content]
    if wrong:
        yield Violation("P1", f"{named(log)}: the log has other records than were acknowledged at {shown(wrong)}")


# --- where the group began


def _pins(facts: Facts, log: Log) -> Iterator[Violation]:
    """Start positions that are not where the group began, by the start option and the rig's knowledge of the log."""
    low, high = facts.bounds_of(log)
    pins = facts.pins_of(log)
    for pin in sorted({commit.pin for commit in pins if commit.pin is not None}):
        where = f"{named(log)}: pinned at {pin}"
        if not low <= pin <= high:
            yield Violation("P1", f"{where}, but the group began between {low} and {high}")
        elif pin != pins[0].pin:
            yield Violation("P1", f"{where}, and at {pins[0].pin} before")


def _too_early(facts: Facts, log: Log, read: dict[int, tuple[int, ...]]) -> Iterator[Violation]:
    """Records from before the group's start: "latest" and a timestamp leave them out."""
    low, _ = facts.bounds_of(log)
    low = min([low, *(reset.after for reset in facts.resets if reset.log == log)])
    early = [offset for offset in read if offset < low]
    if early:
        who = facts.batches[read[min(early)][0]]
        yield Violation("P1", f"{named(log)}: read although before the group's start {low}: {shown(early)} by {who}")


# --- what was not read


def _skipped(facts: Facts, log: Log) -> list[Range]:
    return [(reset.before, reset.after) for reset in facts.resets if reset.log == log]


def unread(facts: Facts, log: Log, read: Collection[int]) -> list[int]:
    """Return the records that had to be read and are in no completed batch."""
    start, skipped = facts.start_of(log), _skipped(facts, log)
    held, whole = _held(facts, log), facts.ended(log) is not None
    missing = [
        offset
        for offset in facts.known(log)
        if offset >= start
        and offset not in read
        and not inside(offset, skipped)
        and not facts.is_removed(log, offset)
        and (offset < held or not whole)
    ]
    cut = cut_short(facts, log, missing)
    return [offset for offset in missing if offset not in cut]


def cut_short(facts: Facts, log: Log, offsets: Iterable[int]) -> set[int]:
    """Return those of these unread records that went with their topic while the batch that planned them ran.

    That is so if the rig deleted the topic before any completed batch with the record was in the sink, and no task of
    such a batch gave records on both sides of it. P8 asks for the report.
    """
    ended = facts.ended(log)
    if ended is None:
        return set()
    holders = [(*batch.ranges[log], batch) for batch in facts.completed if batch.reads(log)]
    found = set()
    for offset in offsets:
        planned = [batch for start, end, batch in holders if start <= offset < end]
        running = all(batch.written_at is not None and batch.written_at >= ended for batch in planned)
        if planned and running and not any(_jumped(batch, log, offset) for batch in planned):
            found.add(offset)
    return found


def _jumped(batch: Batch, log: Log, offset: int) -> bool:
    """Whether a task of the batch gave records below and above an offset."""
    given: dict[int, list[int]] = defaultdict(list)
    for task, topic, number, one, _ in batch.rows:
        if batch.log_of(topic, number) == log:
            given[task].append(one)
    return any(min(offsets) < offset < max(offsets) for offsets in given.values())


def _unread(facts: Facts, log: Log, read: dict[int, tuple[int, ...]]) -> Iterator[Violation]:
    missing = unread(facts, log, read)
    if not missing:
        return
    written, whole = facts.log.get(log, {}), facts.ended(log) is not None
    there = sum(offset in written for offset in missing)
    detail = f"{there} of them in the log, {len(missing) - there} acknowledged and not in the log"
    if whole:
        detail = f"the group's offset was {_held(facts, log)} when the topic was deleted"
    yield Violation(
        "P1", f"{named(log)}: in no completed batch: {shown(missing)}, {detail}{_planned(facts, log, missing)}"
    )
    gone = [offset for offset in missing if offset not in written and not whole]
    planned = [span for batch in facts.completed if (span := batch.ranges.get(log)) is not None]
    silent = [offset for offset in gone if inside(offset, planned)]
    if silent:
        yield Violation("P8", f"{named(log)}: planned, not read, gone from the log and not reported: {shown(silent)}")


def _held(facts: Facts, log: Log) -> int:
    """Return the group's highest offset: what lies below it was read, whatever became of its topic."""
    return max((commit.offset for commit in facts.commits if commit.log == log), default=0)


def _planned(facts: Facts, log: Log, missing: list[int]) -> str:
    first = min(missing)
    holders = [b for b in facts.batches if b.reads(log) and b.ranges[log][0] <= first < b.ranges[log][1]]
    return f"; {first} was planned by {'; '.join(map(str, holders[:3]))}" if holders else f"; {first} was never planned"


def _silent(facts: Facts, log: Log, read: dict[int, tuple[int, ...]]) -> Iterator[Violation]:
    """Records that the rig deleted before they were read, and that no report names."""
    start, skipped = facts.start_of(log), _skipped(facts, log)
    lost = [
        offset
        for offset in facts.known(log)
        if offset >= start and offset not in read and facts.is_gone(log, offset) and not inside(offset, skipped)
    ]
    cut = cut_short(facts, log, lost)
    if facts.ended(log) is not None:
        held = _held(facts, log)  # what lies below is P1's, if the rig did not delete it before it was read
        lost = [offset for offset in lost if offset >= held or offset in cut or facts.is_removed(log, offset)]
    if not lost:
        return
    # An empty range names all from there on: the query has been restarted since, and knows no end of the log.
    reported = [
        (start, end if end > start else sys.maxsize)
        for report in _reports_of(facts, log)
        for start, end in [report.span]
    ]
    silent = [
        offset for offset in lost if not inside(offset, reported) and (offset in cut or _was_seen(facts, log, offset))
    ]
    if silent:
        yield Violation("P8", f"{named(log)}: deleted before it was read, and not reported: {shown(silent)}")
    elif not reported:
        yield Violation("P8", f"{named(log)}: its topic was deleted with {shown(lost)} unread, and no report names it")


def _reports_of(facts: Facts, log: Log) -> list[Report]:
    """Return the reports that may be about this log: not from before anything of it was deleted."""
    since = min((one.at for one in facts.deleted.get(log, ())), default=None)
    if since is None:
        return []
    return [report for report in facts.reports.get((log[0], log[2]), ()) if report.at >= since - TICK_S]


def _was_seen(facts: Facts, log: Log, offset: int) -> bool:
    """Whether the product must know of the record: of a topic that is gone, only what it has seen before.

    A query requests no log's end while its batch is in flight.
    """
    ended = facts.ended(log)
    if ended is None or facts.is_removed(log, offset):
        return True
    written = facts.acknowledged_at.get(log, {}).get(offset, ended)
    planned = [batch for batch in facts.batches if batch.planned_at <= ended and batch.reads(log)]
    newest = planned[-1] if planned else None
    if newest is not None and newest.at is not None and newest.planned_at <= written and newest.at > ended - SEEN_S:
        return False
    return written < ended - SEEN_S


def _false_reports(facts: Facts, readers: Readers) -> Iterator[Violation]:
    """Reports of losses that were none: nobody deleted the records, or the group had read them."""
    for partition, reports in sorted(facts.reports.items()):
        logs = [log for log in facts.logs() if (log[0], log[2]) == partition]
        for report in reports:
            if report.at_most:
                continue
            lived = [log for log in logs if _lived(facts, log, report.at)]
            touched = [log for log in lived if any(one.at <= report.at + TICK_S for one in facts.deleted.get(log, ()))]
            wrong = [_wrong_in(facts, log, report, readers) for log in touched or lived]
            if not touched and not any(wrong) and not _names_no_record(facts, report):
                wrong = ["nobody had deleted anything"]
            if wrong and all(wrong):
                text = f"{partition[0]}-{partition[1]}: {report.query} reported [{report.span[0]}, {report.span[1]})"
                yield Violation("P8", f"{text} as lost at {report.at:.3f}, but {wrong[-1]}")


def _names_no_record(facts: Facts, report: Report) -> bool:
    """Return whether a report names no record of a topic that was deleted: it may come back with more partitions.

    A query of which others read the partitions knows the topic's former id, and not how many partitions it had. So it
    names those that only the new topic has, too, with nothing in them.
    """
    start, end = report.span
    lives = facts.lives.get(report.partition[0], ())
    gone = any(life.deleted_at is not None and life.deleted_at <= report.at + TICK_S for life in lives)
    return start == end and gone


def _lived(facts: Facts, log: Log, at: float) -> bool:
    life = facts.life(log)
    return life is not None and life.created_at <= at + TICK_S


def _wrong_in(facts: Facts, log: Log, report: Report, readers: Readers) -> str:
    """Return what is wrong with a report, if it is about this log; "" when it is right."""
    start, end = report.span
    inside_it = [offset for offset in facts.known(log) if start <= offset < end]
    there = [offset for offset in inside_it if not facts.is_gone(log, offset, report.at)]
    if there:
        return f"nobody had deleted {shown(there)}"
    held = [commit.offset for commit in facts.commits if commit.log == log and commit.at <= report.at - TICK_S]
    if report.span == _last_planned(facts, log, report):
        return ""
    read = [offset for offset in inside_it if held and offset < held[-1] and offset in readers.get(log, {})]
    return f"the group had read {shown(read)}, its offset was {held[-1]}" if read else ""


def _last_planned(facts: Facts, log: Log, report: Report) -> Range:
    """Return what the reporting query's newest batch had planned of a log whose topic the rig had deleted by then.

    How far its tasks came, and whether that was before the deletion, the driver cannot know: it names all of it.
    """
    ended = facts.ended(log)
    before = [one for one in facts.batches if one.query == report.query and one.planned_at <= report.at]
    if ended is None or ended > report.at + TICK_S or not before:
        return (0, 0)
    return before[-1].ranges.get(log, (0, 0))


def _not_refused(facts: Facts) -> Iterator[Violation]:
    """Queries with failOnDataLoss=true that read on, or failed without naming the range."""
    for fault in facts.history.faults:
        for topic, number, start, end in fault.details.get("must_fail") or ():
            error = str(fault.details.get("error") or "")
            if f"{topic}-{number} [{start}, {end})" not in error:
                said = f"failed with {error[:200]!r}" if error else "did not fail"
                yield Violation("P8", f"{topic}-{number}: [{start}, {end}) was deleted, and {fault.target} {said}")


def _gaps(facts: Facts, log: Log) -> Iterator[Violation]:
    """Ranges between what was planned that no completed batch has, and that nobody deleted."""
    spans = [(*batch.ranges[log], str(batch)) for batch in facts.completed if batch.reads(log)]
    spans += [(start, end, "") for start, end in _skipped(facts, log)]
    known = sorted(facts.known(log))
    position = facts.start_of(log)
    for start, end, who in sorted(spans):
        gap = [offset for offset in _within(known, (position, start)) if not facts.is_gone(log, offset)]
        if gap:
            yield Violation("P8", f"{named(log)}: skipped and not reported: {shown(gap)}, before {who or 'a reset'}")
        position = max(position, end)


def _within(known: list[int], span: Range) -> list[int]:
    return known[bisect_left(known, span[0]) : bisect_left(known, span[1])] if span[0] < span[1] else []
