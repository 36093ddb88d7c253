"""P4 and P5: what the group's offset was moved to, by whom. See checker.py for the rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.faults.judge.facts import TICK_S, Batch, Facts, GroupCommit, Log, Ownership, Partition, Range, named
from tests.faults.judge.verdict import Violation


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
    for commit in facts.commits:
        before = held.get(commit.log)
        held[commit.log] = commit
        if before is not None and not commit.external and _is_said_again(commit, before):
            continue
        if commit.external:
            rightful[commit.log] = commit
            continue
        found = [*_ahead(commit, before, planned), *_fenced(facts, commit, before, rightful.get(commit.log))]
        yield from found
        if not found:
            rightful[commit.log] = commit
    yield from _behind(facts, held)


def _is_said_again(commit: GroupCommit, before: GroupCommit) -> bool:
    """Whether the commit is the group's own text (a proof), which any owner may send."""
    return (commit.offset, commit.lineage, commit.planned) == (before.offset, before.lineage, before.planned)


def _ahead(commit: GroupCommit, before: GroupCommit | None, planned: _Planned) -> Iterator[Violation]:
    if before is not None and commit.offset == before.offset:
        return  # a proof, or said again: also of an offset that a plain client has set
    if commit.lineage is None:
        yield Violation("P4", f"{commit}: no fault moved the group's offset")
        return
    if before is not None and commit.offset < before.offset:
        return  # P5's
    if before is None and commit.is_start:
        return  # a pin
    batches = planned.of(commit)
    if not batches:
        yield Violation("P4", f"{commit}: no planned batch ends there")
    elif not any(batch.complete_by(commit.at) for batch in batches):
        when = ", ".join("never complete" if b.at is None else f"complete at {b.at:.3f}" for b in batches)
        yield Violation("P4", f"{commit}: before {batches[0]} was complete ({when})")


def _fenced(
    facts: Facts, commit: GroupCommit, before: GroupCommit | None, rightful: GroupCommit | None
) -> Iterator[Violation]:
    if before is not None and commit.offset < before.offset:
        # Who has read a deleted topic of this name reads the new one from its beginning.
        if not (before.external and commit.is_start and commit.offset == 0):
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
    elif _is_first_start(facts, commit, before, queries):
        return
    elif (wrong := _not_owner(facts, commit, partition, queries)) is not None:
        yield Violation("P5", f"{commit}: {', '.join(sorted(queries))} {wrong}")


def _queries(facts: Facts, commit: GroupCommit | None) -> set[str]:
    return facts.queries_of.get((commit.lineage if commit else None) or "", set())


def _is_zombie(commit: GroupCommit, rightful: GroupCommit | None, since: float) -> bool:
    """Whether another lineage has carried the partition on, and this commit does not start where that one ended."""
    return (
        rightful is not None
        and rightful.lineage not in (None, commit.lineage)
        # Whoever stores the first starts of a topic does so for the other owners, too, and reads nothing of theirs.
        and not (rightful.is_start and rightful.pin == rightful.offset)
        and not commit.is_start
        and commit.planned[0] != rightful.offset
        and since < rightful.at - TICK_S
    )


def _is_first_start(facts: Facts, commit: GroupCommit, before: GroupCommit | None, queries: set[str]) -> bool:
    """Return whether the owner of the topic's first partition stores the start of a partition that has none.

    Its first commit ever, of a start and not of a batch: `first_starts.py` has the reason.
    """
    is_pin = before is None and commit.is_start and commit.planned == (commit.offset, commit.offset)
    return is_pin and _not_owner(facts, commit, (commit.log[0], 0), queries) is None


def _not_owner(facts: Facts, commit: GroupCommit, partition: Partition, queries: set[str]) -> str | None:
    """Return why the committer was not the partition's newest owner by the coordinator's records; None if it was.

    The records lie in the same log as the commits: which came first needs no clock. Nothing is said without any, nor of
    a lineage that pinned a start and never planned a batch: no offset log names its query.
    """
    if not facts.owned or not queries:
        return None
    begun = [
        stay
        for (_, owned), stays in facts.owned.items()
        if owned == partition
        for stay in stays
        if _before(stay.position, stay.start, commit)
    ]
    newest = max(begun, key=lambda stay: (stay.start, stay.position), default=None)
    if newest is None:
        return "never had the partition"
    if newest.query not in queries:
        return f"commits after the coordinator gave the partition to {newest.query} at {newest.start:.3f}"
    if newest.gone and _ended_before(newest, commit):
        return f"had lost the partition at {newest.end:.3f}"
    return None


def _before(position: float, at: float, commit: GroupCommit) -> bool:
    if position >= 0 and commit.position >= 0:
        return position < commit.position
    return at <= commit.at + TICK_S


def _ended_before(stay: Ownership, commit: GroupCommit) -> bool:
    if stay.end_position != float("inf") and commit.position >= 0:
        return stay.end_position < commit.position
    return stay.end < commit.at - TICK_S


def _behind(facts: Facts, held: dict[Log, GroupCommit]) -> Iterator[Violation]:
    for log in facts.logs():
        if facts.ended(log) is not None:
            continue
        known = facts.known(log)
        end = max(known) + 1 if known else 0
        last = held.get(log)
        if last is None:
            yield Violation("P4", f"{named(log)}: nothing was ever committed, the log ends at {end}")
        elif last.offset < end:
            lag = sum(offset >= last.offset for offset in known)
            yield Violation(
                "P4", f"{named(log)}: at the end the group is at {last.offset}, the log at {end} (lag {lag})"
            )
