"""Notice that the coordinator has changed this member's assignment, and the client does not know it (rule R84).

Main thread of the reader process only.
"""

from __future__ import annotations

import logging

from spark_groupsource.clock import Deadline, HeldFor, Pace
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.model.names import first_names
from spark_groupsource.model.offsets import TopicPartition

LOG = logging.getLogger(__name__)

# Seconds between two comparisons.
_LOOK_S = 2.0
# Seconds for which the two assignments must differ: two of the brokers' default heartbeat intervals. A change that the
# client has learned has arrived by then. Also how long the same assignments are compared after a lost answer.
_LASTS_S = 10.0


class AssignmentCheck:
    """Compare the assignment with the coordinator's after a lost answer, and let the member join again.

    Guards against (rule R84, KIP-848):
    1. The coordinator takes a partition from a member, by the answer to a heartbeat.
    2. The answer takes longer than the heartbeat interval. The client does not wait for it (librdkafka 2.16).
    3. Its next heartbeats do not ask for the assignment, so the coordinator does not repeat it.
    4. The member keeps the partition. Its next owner waits until `kafka.max.poll.interval.ms` has passed. Then the
       coordinator removes the member, and its batch is repeated.
    """

    def __init__(self, query: QueryContext) -> None:
        self._group = query.options.group_id
        self._assigned_by_id = query.options.assigned_by_id
        self._clock, self._cluster, self._member = query.clock, query.cluster, query.member
        self._pace = Pace(query.clock, _LOOK_S)
        self._seen = 0
        # Until when the same assignments are compared again; None while no answer has been lost.
        self._until: Deadline | None = None
        # The two assignments while they differ.
        self._different = HeldFor[str](query.clock, _LASTS_S)

    def run(self, view: GroupView) -> None:
        """Compare, if an answer has been lost. Call it while no batch is in flight."""
        lost = self._member.status.lost_answers
        if lost != self._seen and self._assigned_by_id:
            self._seen, self._until = lost, Deadline(self._clock, _LASTS_S)
            self._different.forget([self._group])
        if self._until is None or not self._pace.due():
            return
        member_id = self._member.member_id()
        try:
            members = self._cluster.members(self._group, once=True) if member_id else None
        except GroupKafkaError as error:
            # The coordinator is what does not answer. The next trigger looks again.
            LOG.info("the assignment is not compared: group=%s error=%s", self._group, error)
            return
        if members is None:
            # A client that is replaced, or a group that this one may not describe.
            self._until = None
            return
        owned = frozenset(owned.partition for owned in view.partitions)
        assigned = members.get(member_id, frozenset())
        if assigned == owned:
            self._different.forget([self._group])
            if self._until.expired():
                self._until = None
            return
        self._different.answered({self._group: (assigned, owned)})
        # R84: the client will not learn it
        if self._different.counts(self._group):
            self._until = None
            LOG.warning(
                "the coordinator's answer to a heartbeat was lost, and with it a change of the assignment: the member"
                " joins the group again: group=%s given=%s not_taken=%s not_given_up=%s",
                self._group, len(assigned), _named(assigned - owned), _named(owned - assigned),
            )  # fmt: skip
            self._member.rejoin()


def _named(partitions: frozenset[TopicPartition]) -> str:
    return first_names(sorted(partitions)) or "none"
