"""Keep state from going wrong silently where queries share a group (option onSharedState).

Does the I/O around the decisions of `planning/shared_state.py`, and reports them. Main thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from spark_groupsource import errors
from spark_groupsource.clock import Deadline
from spark_groupsource.cluster.offset_lookup import partitions_of
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.model.commit_metadata import GroupOffset, metadata_of
from spark_groupsource.model.offsets import SourceOffset, TopicPartition, same_topic
from spark_groupsource.options.model import OnSharedState
from spark_groupsource.planning.conflicts import SHOWN, details_of
from spark_groupsource.planning.shared_state import (
    BREAKS_STATE,
    LACKS_RECORDS,
    ReadByOthers,
    broken,
    lacking,
    read_by_others,
)
from spark_groupsource.planning.start_position import StartDecision

LOG = logging.getLogger(__name__)

# Batches of this run, before which the folder `state` was looked for and not there, after which it is not looked for
# before a batch any more. Spark makes it while it plans the first one.
_LOOKS = 3


class SharedState:
    """Know whether this query has state, and decide whether it may share partitions. Main thread only.

    `exists` returns whether the query has state; None if that is not known.
    """

    def __init__(self, query: QueryContext, exists: Callable[[], bool | None]) -> None:
        self._options, self._clock, self._metrics = query.options, query.clock, query.metrics
        self._length = query.member.length
        self._exists = exists
        self._looks = 0
        # Whether this run has had a batch with state.
        self._begun = False
        # Whether the query has state; None if that is not known.
        self.has_state: bool | None = None
        # What it lacks if it has state, found while that was not known.
        self._open: list[ReadByOthers] = []
        # Whether this run has found that it may join the group.
        self._admitted = False
        self._warned: set[ReadByOthers] = set()
        # The assignment for which the partitions were counted, and how many there are in all.
        self._counted: tuple[int, int] | None = None
        # When it counts that others own partitions; None while none do.
        self._share_counts: Deadline | None = None
        self._reported_share = False

    def begins(self) -> bool:
        """Return whether to mark all partitions now: in this run, no batch before had state. Called before one runs.

        Raises as `check_starts`.

        Guards against (rule R116, a first batch without a mark):
        1. A query with state completes its first batch. When that was planned, Spark had made no state.
        2. No more records come. A new query joins, sees no mark, and takes the partition.

        Guards against (a store that hangs for the first batches):
        1. The store does not answer while the first batches of a query with state are planned.
        2. It answers later, and nobody asks again: no commit of this run has the mark.

        Guards against (an empty first batch):
        1. A query with state finds no records. Spark runs an empty first batch, for which it makes the state.
        2. It starts again, and has state from the beginning. Records come, and its first batch runs for an hour.
        3. A new query joins, sees no mark, and reads orders-1.
        """
        if self._begun or self._looks >= _LOOKS:
            return False
        self._look()
        # R116: Spark has made the state by now. Only an answer counts
        self._looks += self.has_state is False
        self._begun = bool(self.has_state)
        return self._begun

    def _look(self) -> None:
        """Look for the state until it is there, and decide then what was left open.

        Guards against:
        1. A query with state gets a partition that others have read on. Its store does not answer.
        2. It gets another partition. The store answers by now.
        3. If only that partition was decided, the gap of the first one would be forgotten.
        """
        if not self.has_state:
            self.has_state = self._exists()
            if self.has_state:
                # R115: the answer of a store that did not answer at the start
                self._decide(LACKS_RECORDS, self._open)

    def check_starts(
        self,
        decisions: Iterable[StartDecision],
        start: SourceOffset,
        described: Mapping[str, TopicInfo],
        fetch: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, GroupOffset]],
    ) -> None:
        """Check partitions that are about to start. `fetch` returns the group's offsets of any partitions.

        Raises `MembershipError` with onSharedState=fail.
        """
        found = [decision.others for decision in decisions]
        is_new = not start.ends()
        if is_new and not self._admitted and self._options.on_shared_state is not OnSharedState.ALLOW:
            # R116: also those that others own
            every = partitions_of(self._options.subscription, described)
            group = fetch(every)
            found = [_read_by_others(p, group[p], described[p.topic].topic_id) for p in every if p in group]
        self._check(found, is_new=is_new)
        # Two that begin a group together share it: the first batch of the other one is no reason to fail.
        self._admitted = True

    def marks(self, start: SourceOffset) -> bool | None:
        """Return whether the group's offsets of owned partitions are to have the mark; None to leave them as they are.

        Before its first batch is logged a query is new: with a mark of its own it would end itself at its next start.
        """
        return None if self.has_state and not start.ends() else self.has_state

    def check_replay(self, others: Iterable[ReadByOthers]) -> None:
        """Check what others have completed of a batch that runs again. Raises as `check_starts`."""
        self._check(others, is_new=False)

    def _check(self, found: Iterable[ReadByOthers | None], *, is_new: bool) -> None:
        """Check what others have completed.

        Guards against (rule R115, a store that does not answer at first):
        1. A query with state starts after another one has read on. Its store does not answer.
        2. It starts where the others are. The store answers before the first batch.
        """
        # Also with onSharedState=allow: its commits carry the mark.
        self._look()
        if is_new:
            self._decide(BREAKS_STATE, broken(found))
        elif self.has_state is None:
            self._open += lacking(found)
        elif self.has_state:
            self._decide(LACKS_RECORDS, lacking(found))
        elif self._options.on_shared_state is not OnSharedState.ALLOW:
            # It shares the group already. If it failed, too, nobody would read.
            self._report_once(BREAKS_STATE, broken(found))

    def _decide(self, problem: str, items: Sequence[ReadByOthers]) -> None:
        match self._options.on_shared_state:
            case OnSharedState.FAIL if items:
                group, details = self._options.group_id, details_of(items, SHOWN)
                raise MembershipError(errors.SHARED_STATE, problem=problem, group=group, details=details)
            case OnSharedState.WARN:
                self._report_once(problem, items)

    def _report_once(self, problem: str, items: Sequence[ReadByOthers]) -> None:
        new = [item for item in items if item not in self._warned]
        if new:
            self._warned.update(new)
            self._report(problem, [item.partition for item in new], ranges=details_of(new))

    def notice_share(self, view: GroupView, count: Callable[[], int]) -> None:
        """Report once that a query with state owns fewer than all partitions, for as long as it does.

        `count` asks for the number of all partitions. A dead member keeps its partitions for a session timeout, so
        nothing is reported before that time has passed.
        """
        allowed = self._options.on_shared_state is OnSharedState.ALLOW or not self._options.is_member
        if not self.has_state or allowed:
            return
        if self._counted is None or self._counted[0] != view.assignment:
            self._counted = view.assignment, count()
        owned, every = len(view.partitions), self._counted[1]
        if owned >= every:
            self._share_counts, self._reported_share = None, False
        elif self._share_counts is None:
            self._share_counts = Deadline(self._clock, self._length.longest_s)
        elif self._share_counts.expired() and not self._reported_share:
            self._reported_share = True
            problem = f"This query has state, and owns {owned} of {every} partitions: its state has only their records."
            self._report(problem, (owned.partition for owned in view.partitions), owned=owned, all=every)

    def _report(self, problem: str, partitions: Iterable[TopicPartition], **details: object) -> None:
        shown = " ".join(f"{name}={value}" for name, value in details.items())
        LOG.warning(
            "%s See option onSharedState (docs/how-to/scale.md#queries-with-state): group=%s %s",
            problem, self._options.group_id, shown,
        )  # fmt: skip
        self._metrics.write("shared_state", partitions, problem=problem, **details)


def _read_by_others(partition: TopicPartition, group: GroupOffset, topic_id: str) -> ReadByOthers | None:
    """Return what others have completed of a partition that a new query has not read."""
    metadata = metadata_of(group)
    if group.offset is None or metadata is None or not same_topic(metadata.topic_id, topic_id):
        return None
    return read_by_others(partition, None, group.offset, metadata)
