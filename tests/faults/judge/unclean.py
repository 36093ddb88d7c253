"""What may excuse a repeat: faults that the rig did, members that the coordinator removed, processes that ended.

The product's own events ("lost", "refused", the outcome of a drain) excuse nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.faults.history import Fault
from tests.faults.judge.facts import TICK_S, Batch, Facts, Partition


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
