"""Partitions that option `assign` names: no member of the group, whose offsets are kept all the same.

The sequence this protects against: a query with `assign` commits to a group that also has members; the coordinator
takes no offsets of anybody else then, and the query would go on without commits for ever. It fails instead: before it
reads anything, or at a commit when the members come later.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource import errors
from spark_groupsource.commits import CommitItem
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.peers import members
from spark_groupsource.membership.port import CommitResult, Refusal


class AssignedPartitions(LibrdkafkaGroup):
    """A `GroupPort` that has its partitions from the start, and for good."""

    _due = False

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort`. The topics are those of the partitions."""
        self._due = True

    def poll(self) -> None:
        """See `GroupPort`."""
        if self._due and self._listener is not None:
            self._due = False
            found = members(self._options)
            if found:
                self._fail(self._in_use(f"members {', '.join(sorted(found))}"))
            else:
                self._listener.on_assigned(self._options.subscription.partitions)
        super().poll()

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """See `GroupPort`."""
        return self._checked(super().commit_now(items))

    def _report(self, result: CommitResult) -> None:
        super()._report(self._checked(result))

    def _checked(self, result: CommitResult) -> CommitResult:
        """Fail when the group has members; no partition is lost by that."""
        if not result.refused_as(Refusal.LOST):
            return result
        refused = tuple((item, Refusal.DENIED) for item, _ in result.refused)
        return CommitResult(result.acknowledged, refused, result.reason, self._in_use(result.reason))

    def _in_use(self, reason: str) -> MembershipError:
        return MembershipError(errors.ASSIGN_GROUP_IN_USE, group=self._options.group_id, reason=reason)
