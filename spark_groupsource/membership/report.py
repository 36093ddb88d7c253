"""Report what happens to a member: one log line per rebalance, one per problem, and the metrics."""

from __future__ import annotations

import logging
from dataclasses import asdict

from spark_groupsource import errors
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.events import DrainOutcome, HandOver, Partitions
from spark_groupsource.membership.machine import MemberMachine
from spark_groupsource.membership.port import CommitResult
from spark_groupsource.membership.stopping import StopCause
from spark_groupsource.metrics import MemberMetrics, MetricsLog
from spark_groupsource.model.names import first_names

LOG = logging.getLogger(__name__)

# The metric that counts a revoke, by the outcome of its drain.
_COUNTED_AS = {
    DrainOutcome.COMPLETE: "clean",
    DrainOutcome.DEADLINE: "deadline",
    DrainOutcome.STOPPED: "stopped",
}


class MemberReport:
    """Log and count what happens to one member. Event thread only.

    Remembers the last refusal, because a refused commit is sent repeatedly.
    """

    def __init__(self, group_id: str, machine: MemberMachine, log: MetricsLog) -> None:
        self._group = group_id
        self._machine = machine
        self._log = log
        self._refusal = ""
        self._assignment_refusal = ""
        self._standby: Partitions = ()
        self.metrics = MemberMetrics()

    def _write(self, event: str, partitions: Partitions = (), **details: object) -> None:
        self._show()
        self._log.write(event, partitions, **details)

    def _show(self) -> None:
        """Store the current state and counters for the next metrics line of any thread."""
        self.metrics.owns(self._machine.owned_partitions())
        self._log.state, self._log.counters = self._machine.state.name, asdict(self.metrics)
        self._log.owned = frozenset(self._machine.owned_partitions())

    # --- life

    def started(self) -> None:
        """Report that the client was created."""
        self._write("started")

    def waits_for_batch(self, cause: StopCause, timeout_s: float) -> None:
        """Report a request to stop while a batch is in flight."""
        records = self._machine.in_flight(self._machine.owned_partitions())
        self._write("stopping", self._machine.owned_partitions(), records_in_flight=records)
        text = "leaving when the batch in flight is complete: group=%s cause=%s records_in_flight=%d at_most_s=%.0f"
        LOG.info(text, self._group, cause.name, records, timeout_s)

    def left(self, outcome: DrainOutcome) -> None:
        """Report that the member has left; `outcome` is that of the batch in flight."""
        self._write("left", outcome=outcome.name)
        LOG.info("left: group=%s outcome=%s", self._group, outcome.name)
        if outcome is DrainOutcome.DEADLINE:
            text = "drainTimeoutMs passed while a stop waited for the batch in flight, which the next owner repeats"
            LOG.warning("%s: group=%s", text, self._group)

    def failed(self, what: str, error: BaseException) -> None:
        """Report an unexpected error."""
        self._write("failed", error=str(error))
        LOG.error("%s: group=%s", what, self._group, exc_info=error)

    def ended(self, error: BaseException) -> None:
        """Report that an error has ended the member. Spark's next call raises it, so it is not logged."""
        self._write("failed", error=str(error))

    # --- partitions

    def assigned(self, partitions: Partitions) -> None:
        """Report newly assigned partitions (possibly none)."""
        self.metrics.assignments += 1
        self._write("assigned", partitions)
        owned = self.metrics.assigned_partitions
        LOG.info("rebalance: group=%s assigned=%d owned=%d", self._group, len(partitions), owned)

    def noted(self, standby: Partitions, refusal: str) -> None:
        """Report the leader's note: this member's standby partitions, or why the strategy could not assign."""
        if standby != self._standby:
            self._standby, self.metrics.standby_partitions = standby, len(standby)
            LOG.info("rebalance: group=%s standby=%d", self._group, len(standby))
            self._write("standby", standby)
        if refusal and refusal != self._assignment_refusal:
            self._write("unassigned", reason=refusal)
            LOG.warning(
                "the group's strategy cannot assign, all members keep their partitions: group=%s reason=%s",
                self._group,
                refusal,
            )
        self._assignment_refusal = refusal

    def revoking(self, partitions: Partitions) -> None:
        """Report a revoke: the drain begins."""
        records = self._machine.in_flight(partitions)
        self._write("revoking", partitions, records_in_flight=records)
        text = "rebalance: group=%s revoking=%d records_in_flight=%d"
        LOG.info(text, self._group, len(partitions), records)

    def to_repeat(self, partitions: Partitions) -> int:
        """Return how many records the next owner may repeat: those in flight, or complete without a commit.

        This is an upper bound: a commit whose answer never arrives may have been accepted.
        """
        held = {owned.partition: owned.group for owned in self._machine.view().partitions}
        uncommitted = 0
        for item in self._machine.pending(partitions):
            group = held[item.partition]
            if group is not None and group.offset is not None:
                uncommitted += item.offset - group.offset
        return self._machine.in_flight(partitions) + uncommitted

    def released(
        self, partitions: Partitions, hand_over: HandOver, committed: int, repeated: int, drain_s: float
    ) -> None:
        """Report partitions that were released after a drain.

        `committed` is the number of accepted items. `repeated` is the result of `to_repeat` after the commit.
        """
        outcome, drain_ms = hand_over.outcome, round(drain_s * 1000)
        uncommitted = len(hand_over.items) - committed
        clean = outcome is DrainOutcome.COMPLETE
        self.metrics.count_rebalance("uncommitted" if clean and uncommitted else _COUNTED_AS[outcome])
        self.metrics.count_drain(drain_ms)
        self.metrics.records_repeated += repeated
        details = {"committed": committed, "uncommitted": uncommitted, "drain_ms": drain_ms, "repeated": repeated}
        self._write("revoked", partitions, outcome=outcome.name, **details)
        kept = self.metrics.assigned_partitions
        text = "rebalance: group=%s revoked=%d kept=%d outcome=%s committed=%d drain_ms=%d repeated_at_most=%d"
        LOG.info(text, self._group, len(partitions), kept, outcome.name, committed, drain_ms, repeated)
        if outcome is DrainOutcome.DEADLINE:
            text = (
                "drain deadline passed (drainTimeoutMs or maxBatchMs), the next owner repeats the batch in flight:"
                " group=%s partitions=%s"
            )
            LOG.warning(text, self._group, first_names(partitions))

    def lost(self, partitions: Partitions, repeated: int) -> None:
        """Report partitions that were lost without a drain."""
        self.metrics.count_rebalance("lost")
        self.metrics.records_repeated += repeated
        self._write("lost", partitions, repeated=repeated)
        text = "rebalance: group=%s lost=%d repeated_at_most=%d partitions=%s"
        LOG.warning(text, self._group, len(partitions), repeated, first_names(partitions))

    def gave_up(self, partitions: Partitions, batch_s: float) -> None:
        """Report that the batch in flight takes longer than option maxBatchMs, so that the partitions are given up."""
        self._write("gave-up", partitions, batch_ms=round(batch_s * 1000))
        text = (
            "the batch in flight takes longer than option maxBatchMs: the member leaves the group, and joins again when"
            " the batch has ended; the next owners read it once more: group=%s batch_s=%.1f partitions=%s"
        )
        LOG.warning(text, self._group, batch_s, first_names(partitions))

    def misses_rebalances(self) -> None:
        """Report that the client is replaced, because it would take part in no rebalance any more (rule R117)."""
        text = (
            "topics changed while partitions were handed over, and the client would ignore the next rebalances: the"
            " member leaves the group when its batch in flight has ended, and joins again: group=%s"
        )
        LOG.warning(text, self._group)

    def loss(self, partitions: Partitions) -> MembershipError:
        """Return the error of a query that must fail when partitions are lost."""
        count, names = len(partitions), first_names(partitions)
        return MembershipError(errors.PARTITIONS_LOST, group=self._group, count=count, partitions=names)

    def coordinator(self, known: bool) -> None:
        """Report that the coordinator was found, or that the client searches for it."""
        if known is not self.metrics.coordinator_known:
            self.metrics.coordinator_known = known
            self._write("coordinator", known=known)
            LOG.info(
                "coordinator: group=%s %s", self._group, "found" if known else "not known, the client searches for it"
            )

    def doubted(self, silent_s: float) -> None:
        """Report that the member was silent for longer than its heartbeat interval."""
        self._write("doubted", silent_ms=round(silent_s * 1000))
        LOG.warning("membership in doubt: group=%s silent_s=%.1f", self._group, silent_s)

    def proven(self) -> None:
        """Report that the coordinator has accepted a commit after a doubt."""
        self._write("proven")
        LOG.info("membership proven: group=%s", self._group)

    def waits_for_instance_id(self, instance_id: str | None, wait_s: float) -> None:
        """Report that a static member waits for the end of the old session of its instance id (KIP-848)."""
        text = "kafka.group.instance.id is held by an old session, waiting up to %.0f s: group=%s instance_id=%s"
        LOG.warning(text, wait_s, self._group, instance_id)

    # --- batches and commits

    def completed(self, records: int, batch_s: float) -> None:
        """Report that Spark has recorded the batch in flight as complete, `batch_s` after its plan was fixed."""
        self.metrics.batches_completed += 1
        self._write("completed", records=records, batch_ms=round(batch_s * 1000))

    def answered(self, result: CommitResult) -> None:
        """Report the answer to a commit. A refusal is logged if its reason differs from the last one's."""
        self.metrics.commits_done += bool(result.acknowledged)
        self.metrics.commits_refused += bool(result.refused)
        if result.refused and result.reason != self._refusal:
            refused = tuple(item.partition for item, _ in result.refused)
            self._write("refused", refused, reason=result.reason, lost=result.lost)
        if result.lost:
            LOG.warning("commit refused, membership lost: group=%s reason=%s", self._group, result.reason)
        elif result.refused and result.error is None and result.reason != self._refusal:
            LOG.info("commit refused, kept for a retry: group=%s reason=%s", self._group, result.reason)
        self._refusal = result.reason
        self._show()

    def retried(self) -> None:
        """Count a commit that was not accepted and is sent again."""
        self.metrics.commits_retried += 1
        self._show()

    def uncommitted(self, result: CommitResult) -> None:
        """Report partitions that were handed over although their commit was refused."""
        text = (
            "partitions handed over without a commit, the next owner may repeat their last batch:"
            " group=%s partitions=%d reason=%s"
        )
        LOG.warning(text, self._group, len(result.refused), result.reason)
