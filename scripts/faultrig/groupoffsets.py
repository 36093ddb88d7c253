"""P4 and P5: what the group's offset was moved to, by whom. See checker.py for the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from faultrig.facts import TICK_S, Batch, Facts, GroupCommit, Log, Ownership, Partition, Range, named
from faultrig.verdict import Violation

# A commit that was sent before the partition was lost may be stamped so much later.
LATE_S = 1.0


class _Planned:
    """Finds the batch that a commit is for."""

    def __init__(self, facts: Facts) -> None:
        self._by_range: dict[tuple[str, Log, Range], list[Batch]] = defaultdict(list)
        self._by_end: dict[tuple[Log, int], list[Batch]] = defaultdict(list)
        for batch in facts.batches:
            for log, span in batch.ranges.items():
                self._by_range[batch.lineage, log, span].append(batch)
                self._by_end[log, span[1]].append(batch)

    def of(self, commit: GroupCommit) -> list[Batch]:
        """Return the batches that end where the commit says.

        A start position may be what this checkpoint had completed in the name of another lineage.
        """
        if commit.is_start:
            return self._by_end.get((commit.log, commit.offset), [])
        found = self._by_range.get((commit.lineage or "", commit.log, commit.planned), [])
        return found if commit.planned[1] == commit.offset else []


def check_offsets(facts: Facts) -> Iterator[Violation]:
    """Find what P4 and P5 forbid."""
    planned = _Planned(facts)
    held: dict[Log, GroupCommit] = {}
    # The same without commits that are wrong already, so that a zombie's victim is not taken for a zombie.
    rightful: dict[Log, GroupCommit] = {}
    telling = {event.query for event in facts.history.members}
    for commit in facts.commits:
        before = held.get(commit.log)
        held[commit.log] = commit
        if commit.external:
            rightful[commit.log] = commit
            continue
        found = [*_ahead(commit, before, planned), *_fenced(facts, commit, before, rightful.get(commit.log), telling)]
        yield from found
        if not found:
            rightful[commit.log] = commit
    yield from _behind(facts, held)


def _ahead(commit: GroupCommit, before: GroupCommit | None, planned: _Planned) -> Iterator[Violation]:
    if before is not None and commit.offset == before.offset:
        return  # a proof, or said again: also of an offset that a plain client has set
    if commit.lineage is None:
        yield Violation("P4", f"{commit}: no fault moved the group's offset")
        return
    if before is not None and commit.offset < before.offset:
        return  # P5's, or a moved offset that is put back
    if before is None and commit.is_start:
        return  # a pin
    batches = planned.of(commit)
    if not batches:
        yield Violation("P4", f"{commit}: no planned batch ends there")
    elif not any(batch.complete_by(commit.at) for batch in batches):
        when = ", ".join("never complete" if b.at is None else f"complete at {b.at:.3f}" for b in batches)
        yield Violation("P4", f"{commit}: before {batches[0]} was complete ({when})")


def _fenced(
    facts: Facts, commit: GroupCommit, before: GroupCommit | None, rightful: GroupCommit | None, telling: set[str]
) -> Iterator[Violation]:
    """`telling` are the queries whose members have written events; about the others nothing is known."""
    if before is not None and commit.offset < before.offset:
        if not (before.external and commit.is_start):  # a conflict with who has moved it, decided for the checkpoint
            yield Violation("P5", f"{commit}: the group's offset goes back from {before.offset}")
        return
    if commit.lineage is None or (before is not None and commit.offset == before.offset):
        return
    queries = facts.queries_of.get(commit.lineage, set())
    partition = (commit.log[0], commit.log[2])
    stays = [stay for query in queries if (stay := facts.ownership(query, partition, commit.at)) is not None]
    since = max((stay.start for stay in stays), default=-1.0)
    if _is_zombie(commit, rightful, since) and not queries & _queries(facts, rightful):
        yield Violation(
            "P5", f"{commit}: another lineage has committed {rightful} since, and it was not assigned again"
        )
    elif queries & telling and not _owned(facts, commit, stays, rightful):
        ended = max((stay.end for stay in stays), default=None)
        when = "never had the partition" if ended is None else f"had lost the partition at {ended:.3f}"
        yield Violation("P5", f"{commit}: {', '.join(sorted(queries))} {when}")


def _queries(facts: Facts, commit: GroupCommit | None) -> set[str]:
    return facts.queries_of.get((commit.lineage if commit else None) or "", set())


def _is_zombie(commit: GroupCommit, rightful: GroupCommit | None, since: float) -> bool:
    """Whether another lineage has carried the partition on, and this commit does not start where that one ended."""
    return (
        rightful is not None
        and rightful.lineage not in (None, commit.lineage)
        and not commit.is_start
        and commit.planned[0] != rightful.offset
        and since < rightful.at - TICK_S
    )


def _owned(facts: Facts, commit: GroupCommit, stays: list[Ownership], rightful: GroupCommit | None) -> bool:
    """Whether the committer had the partition, or had lost it so shortly before that nobody else was concerned."""
    if not stays:
        return False
    lost_at = max(stay.end for stay in stays)
    if commit.at <= lost_at + TICK_S:
        return True
    partition: Partition = stays[0].partition
    mine = {stay.query for stay in stays}
    for (query, other), found in facts.owned.items():
        elsewhere = query not in mine and other == partition
        if elsewhere and any(lost_at - TICK_S <= stay.start < commit.at - TICK_S for stay in found):
            return False
    if rightful is not None and rightful.at > lost_at and not mine & _queries(facts, rightful):
        return False
    if any(
        batch.reads(commit.log) and batch.query not in mine and lost_at <= batch.planned_at < commit.at
        for batch in facts.batches
    ):
        return False
    # The broker itself may have been away: it stamps what had waited for it.
    disturbed = any(fault.started_at <= commit.at <= fault.recovered_at for fault in facts.history.faults)
    return commit.at <= lost_at + LATE_S or disturbed


def _behind(facts: Facts, held: dict[Log, GroupCommit]) -> Iterator[Violation]:
    for partition, log in facts.logs():
        known = facts.known(partition)
        end = max(known) + 1 if known else 0
        last = held.get(log)
        if last is None:
            yield Violation("P4", f"{named(log)}: nothing was ever committed, the log ends at {end}")
        elif last.offset < end:
            lag = sum(offset >= last.offset for offset in known)
            yield Violation(
                "P4", f"{named(log)}: at the end the group is at {last.offset}, the log at {end} (lag {lag})"
            )
