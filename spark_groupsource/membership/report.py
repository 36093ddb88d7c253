"""What a member says of itself: one log line per rebalance, and one per thing that went wrong."""

from __future__ import annotations

import logging

from spark_groupsource.membership.events import DrainOutcome, HandOver, Partitions
from spark_groupsource.membership.port import CommitResult

LOG = logging.getLogger("spark_groupsource.membership")

# More partitions than this are counted, not named.
_NAMED = 10


def shown(partitions: Partitions) -> str:
    """Return the first partitions' names."""
    more = f" and {len(partitions) - _NAMED} more" if len(partitions) > _NAMED else ""
    return ", ".join(map(str, partitions[:_NAMED])) + more


class MemberReport:
    """Logs for one group; remembers the last refusal, because a refused commit is sent again and again."""

    def __init__(self, group_id: str) -> None:
        self._group = group_id
        self._refusal = ""

    def assigned(self, partitions: Partitions, owned: int) -> None:
        """Partitions came."""
        LOG.info("rebalance: group=%s assigned=%d owned=%d", self._group, len(partitions), owned)

    def released(self, hand_over: HandOver, committed: int, kept: int, drain_s: float) -> None:
        """Partitions went, after a drain."""
        partitions, outcome = hand_over.revoke.partitions, hand_over.outcome
        text = "rebalance: group=%s revoked=%d kept=%d outcome=%s committed=%d drain_ms=%d"
        LOG.info(text, self._group, len(partitions), kept, outcome.name, committed, drain_s * 1000)
        if outcome is DrainOutcome.DEADLINE:
            text = "drain deadline passed, the next owner repeats the batch in flight: group=%s partitions=%s"
            LOG.warning(text, self._group, shown(partitions))

    def lost(self, partitions: Partitions) -> None:
        """Partitions were taken without a drain."""
        LOG.warning("rebalance: group=%s lost=%d partitions=%s", self._group, len(partitions), shown(partitions))

    def doubted(self, silent_s: float) -> None:
        """The member was silent for longer than its heartbeat interval."""
        LOG.warning("membership in doubt: group=%s silent_s=%.1f", self._group, silent_s)

    def answered(self, result: CommitResult, lost: bool) -> None:
        """A commit was answered; a refusal is logged when it is another one than the last."""
        if lost:
            LOG.warning("commit refused, membership lost: group=%s reason=%s", self._group, result.reason)
        elif result.refused and result.reason != self._refusal:
            LOG.info("commit refused, kept for a retry: group=%s reason=%s", self._group, result.reason)
        self._refusal = result.reason

    def uncommitted(self, result: CommitResult) -> None:
        """Partitions were handed over although their commit was refused."""
        text = "handed over uncommitted: group=%s partitions=%d reason=%s"
        LOG.warning(text, self._group, len(result.refused), result.reason)

    def waits_for_instance_id(self, instance_id: str | None, wait_s: float) -> None:
        """A static member waits for the old session of its instance id (KIP-848)."""
        text = "kafka.group.instance.id is held by an old session, waiting up to %.0f s: group=%s instance_id=%s"
        LOG.warning(text, wait_s, self._group, instance_id)

    def left(self) -> None:
        """The member is gone."""
        LOG.info("left: group=%s", self._group)

    def failed(self, what: str, error: BaseException) -> None:
        """Something broke that nobody expected."""
        LOG.error("%s: group=%s", what, self._group, exc_info=error)
