"""Judges the promises P1-P8 from the history of a run alone. Pure.

The judge takes no fact from the product that it judges. What was written, deleted and started is the rig's own record
(producer, topics, starts, runs, faults); who owned a partition is the coordinator's (its records of the group, and its
log for members that it removed); when a batch was planned and complete is Spark's (the times of its files). The
product's output (plans, rows, commits, reports of losses) is what is judged; its events excuse nothing.

What each rule detects, and what it takes for normal:

P1 no loss. A record of the log, or one that the broker acknowledged, at or after where the group had to begin, that is
   in no completed batch. Where it had to begin: 0; for partitions that were there when the group began, by the start
   option and the log's ends as the rig saw them (`starts.jsonl`). A pin in a commit's metadata outside of these bounds,
   or that changes, and a record read from below them, are violations. The rows of a completed batch are those of its
   last run before the entry of the commit log: an earlier run may have died in the sink, a later one is a replay. Also:
   a row whose id is not that of the log's record at its offset (a swap, or a record of another topic id), a row that is
   in no log, a log that has another record than was acknowledged, a plan of a topic id that was never created.
   Normal: a record that the rig deleted; what a reset jumped over. Of a topic that was deleted only what lies below the
   group's committed offset counts: that must have been read, but for what a batch in flight did not get to: each
   completed batch that planned the record came into the sink after the rig had deleted the topic, and no task of it
   gave records below and above that one.
P2 once per checkpoint. A record in two completed batches of one life of a checkpoint, or twice in one batch. Another
   lineage in the same life may repeat what a reset took back.
P3 same replay. A run of a batch that lacks or has a record that the run before it does not, that has another id at an
   offset, or that reads outside of the batch's plan. A task that gives the same rows in another order: in a second
   evaluation of the same plan by the sink (as when Spark reruns tasks), or in a later run with a task of the same rows;
   and a task that goes back to a partition that it had left: an order of arrival, which a rerun does not repeat.
   Normal: a later run begins later, and all that it leaves out is below what another lineage had committed by then, or
   was deleted by then.
P4 never ahead. A commit that moves the group forward to an offset that is not the planned end of a batch, or before
   that batch was in the commit log (10 ms for clocks); of a start position (a range [x, x)): of any lineage, because a
   checkpoint goes on under a new one after a conflict. A commit by nobody's lineage outside of a fault that makes one.
   At the end: a partition whose committed offset is not behind its last record (lag).
   Normal: the first commit of a partition when it is a pin; a commit of the offset that the group has (a proof).
P5 fenced. a) A commit below the group's offset, apart from resets, and from the beginning of a recreated topic that
   replaces what was moved from outside. b) A commit by lineage A after one of lineage B, when its range does not start
   where B's commit ended and A was not assigned the partition since B's commit: a zombie, by commits alone. c) A commit
   by a query that was not the partition's newest owner by the coordinator's records, or whose member was gone. They lie
   in one log with the commits: their order needs no clock.
   A commit that is wrong already is no "B" for those after it: else the zombie's victim would look like a zombie.
P6 bounded repeats. Records that were completed in two checkpoints. The two batches are told apart by who came to the
   partition first (a process that was stopped in the middle of planning logs its plan late), else by the plans' times.
   - A reset between the plans, and below the offset where the group was, or the earlier batch ended (its commit may
     not have arrived): normal from the offset that the group was moved to, and from 0 if the checkpoint ends in a
     deleted topic of that name.
   - The later batch is of a later life of the same checkpoint: normal for the last batch of the earlier life.
   - Else something unclean must have touched the earlier owner from the plan on (repeats.py): a fault of the rig that
     is not clean and whose target is this query or no query, a member that the coordinator removed, a batch that took
     longer than the drain deadline, or a run of the query that ended in the middle of a batch. And of one stay (from
     assigned to assigned, by the coordinator) of the earlier owner, others may repeat one batch per partition: so a
     zombie that plans once more is found out. Batches that were planned while a fault kept commits away do not count,
     unless the coordinator had given the partition to another query by then.
P7 order. Per life, lineage and partition, a completed batch that begins at or below what an earlier one has read; per
   run of a batch, Spark task and partition, an offset that does not rise.
P8 no silent loss. Records that the rig deleted unread and that no "data_lost" event names (of a deleted topic: those
   that were planned, or that the product must have seen; and there must be a report). A report of what nobody had
   deleted, or of what the group had read (but for the query's newest batch, after the deletion of a topic: the driver
   names just what it had planned); an empty report is right after the deletion of a topic of that name. A query with
   failOnDataLoss=true that does not fail with the range. Offsets between the plans of all completed batches (and below
   the first one) with known records that nobody deleted; and acknowledged records inside a plan that are gone from the
   log and were not read. Offsets without records (transaction markers) are nothing.

Not judged: a batch that never completed, beyond P3 and P7; whether a trimmed replay left out all that it might.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.history import History
from tests.faults.judge.facts import Facts, facts_of
from tests.faults.judge.groupoffsets import check_offsets
from tests.faults.judge.order import check_order, check_replays
from tests.faults.judge.records import check_records, readers_of, unread
from tests.faults.judge.repeats import judge_repeats
from tests.faults.judge.verdict import PROMISES, Figures, Verdict, Violation


def check(history: History) -> Verdict:
    """Judge a history."""
    facts = facts_of(history)
    readers = readers_of(facts)
    counts, of_repeats = judge_repeats(facts, readers)
    found: dict[str, list[Violation]] = defaultdict(list)
    for violations in (
        check_records(facts, readers),
        of_repeats,
        check_replays(facts),
        check_offsets(facts),
        check_order(facts),
    ):
        for violation in violations:
            found[violation.promise].append(violation)
    figures = Figures(
        records=len(history.log),
        acknowledged=len(history.produced),
        completed=len(facts.completed),
        attempts=sum(len(batch.attempts) for batch in facts.batches),
        commits=len(history.commits),
        lost=sum(len(unread(facts, log, readers.get(log, {}))) for log in facts.logs()),
        reported_lost=sum(
            r.span[1] - r.span[0] for reports in facts.reports.values() for r in reports if not r.at_most
        ),
        repeats=counts,
    )
    return Verdict({promise: tuple(found[promise]) for promise in PROMISES}, figures, tuple(_doubts(facts)))


def _doubts(facts: Facts) -> Iterator[str]:
    """Find what no run can leave behind: the history is not whole, or not of one run."""
    history = facts.history
    if not history.log:
        yield "the log is empty"
    if not history.topics:
        yield "the rig's own record of its topics is missing"
    committed = {(commit.log[0], commit.log[2], commit.offset) for commit in facts.commits}
    unknown = [one for one in history.watch if (one.topic, one.partition, one.offset) not in committed]
    for one in unknown[:3]:
        yield f"{one.topic}-{one.partition}: offset {one.offset} was seen at {one.at:.3f}, but no commit of it is known"
    planned = {(batch.checkpoint, batch.number) for batch in facts.batches}
    orphans = {(run.checkpoint, run.batch) for run in history.batches if run.rows} - planned
    for checkpoint, number in sorted(orphans)[:3]:
        yield f"batch {number} of {checkpoint} is in the sink, but not in the offset log"
