"""Find out, before a run ends by itself, whether the group has partitions that no member has (rule R118).

Main thread of the reader process only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from spark_groupsource.clock import HeldFor, Pace
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.model.names import first_names
from spark_groupsource.model.offsets import TopicPartition

LOG = logging.getLogger(__name__)

# Returns the partitions that a run is to read.
Wanted = Callable[[], Collection[TopicPartition]]

# Seconds between two requests.
_LOOK_S = 0.5
# Seconds for which the others must have the partitions. One that has just found that it may end is about to leave.
_HOLD_S = 1.0


class UnassignedPartitions:
    """Compare what the run is to read with what the group's members have.

    Guards against (rule R118):
    1. Two queries with Trigger.AvailableNow and a limit start. The second joins while the first reads.
    2. A cooperative group assigns it nothing: the first gives two partitions up after its batch.
    3. The second ends. The first gives the two up, reads its others, and ends.
    4. Both runs succeed, and nobody has read the two to their ends.

    Guards against (rule R118, a member that was killed):
    1. A KIP-848 member is killed, and has its partitions until its session expires. A run starts.
    2. It gets none, and ends as if that member read them.
    """

    def __init__(self, query: QueryContext, sibling: Callable[[], bool]) -> None:
        self._group = query.options.group_id
        self._cluster, self._member = query.cluster, query.member
        self._pace = Pace(query.clock, _LOOK_S)
        self._answers = HeldFor[str](query.clock, _HOLD_S)
        self._sibling = sibling
        # False if the group has no members (option assign), or the coordinator does not describe it.
        self._asks = query.options.is_member
        # Whether another source of this query may have the partitions. It gives none up before this one has planned.
        self.has_sibling = False
        # Those of the last answer, and why the last request had none.
        self._last: frozenset[TopicPartition] | None = None
        self.error: KafkaUnavailableError | None = None
        # In which assignment the run may end, by the last answer: another source of the query may have more batches.
        self._may_end_in: int | None = None

    def __str__(self) -> str:
        """Return the partitions that no member had in the last answer, the first ones by name."""
        return first_names(sorted(self._last or ()))

    @property
    def waits(self) -> bool:
        """Whether there may be something to wait for."""
        return self._asks and not self.has_sibling

    def finds_sibling(self) -> bool:
        """Find out whether another source of this query may have the partitions, and return that."""
        self.has_sibling = self._sibling()
        return self.has_sibling

    def run_may_end(self, view: GroupView, wanted: Wanted) -> bool:
        """Return whether other members have all that is wanted and not owned. False also while that is not sure.

        Call it until it returns True, or `view` has changed. Without `waits` it is True for a member that has joined.
        """
        if not self._asks:
            return view.settled
        if self._pace.due():
            elsewhere = frozenset(wanted()).difference(owned.partition for owned in view.partitions)
            # Nothing is left if the topics were deleted.
            may_end = not elsewhere or self._others_have(elsewhere, view)
            self._may_end_in = view.assignment if may_end else None
        return self._may_end_in == view.assignment

    def _others_have(self, partitions: frozenset[TopicPartition], view: GroupView) -> bool:
        own = self._member.member_id()
        try:
            # R118: a member that was killed confirms nothing, and has its partitions until its session expires
            members = self._cluster.members(self._group, once=True, confirmed=True)
        except KafkaUnavailableError as error:
            self.error = error
            return False
        self.error = None
        if members is None:
            self._asks = False
            return view.settled
        # R118: its own assignment may be on its way; if that counted as another member's, both runs would end
        unassigned = partitions.difference(*(held for name, held in members.items() if name != own))
        # Under KIP-848 a member without partitions does not learn that it has joined.
        joined = view.settled or own in members
        changed, self._last = unassigned != self._last, unassigned
        if changed and unassigned and not self.finds_sibling():
            LOG.info("the run waits for partitions that no member has: group=%s %s", self._group, self)
        self._answers.answered({self._group: (view.assignment, unassigned)})
        # R118: they may come
        others_have = joined and not unassigned and self._answers.counts(self._group)
        return others_have or (self.has_sibling and view.settled)
