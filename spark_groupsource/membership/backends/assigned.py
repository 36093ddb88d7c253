"""Fetch and commit the group's offsets for the partitions that option `assign` names, without a membership.

A query fails if its group has members: before it reads anything, or at a commit if the members join later.

Guards against (members in the group):
1. A query with `assign` commits to a group that also has members.
2. The coordinator then accepts offsets of members only.
3. The query would go on without commits forever.

A member's commit has a generation, and the coordinator refuses an old one. A commit with `assign` has none. So the
group's offsets are fetched before every commit, and a commit that would move one back fails.

Guards against (two drivers):
1. A query has a batch that ends at 75. Its machine stops, or its sink hangs.
2. The query is started elsewhere, reads on, and commits 100.
3. The first machine resumes, completes its batch and commits 75. The next start reads 75 to 100 again.

A gap remains, because fetch and commit are two requests: a commit of another driver between the two is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_groupsource import errors
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.backends.peers import members
from spark_groupsource.membership.port import CommitResult, MemberListener, Refusal
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset, of_another_topic
from spark_groupsource.model.offsets import TopicPartition

# Seconds that a commit waits for the group's offsets before it is postponed.
_FETCH_TIMEOUT_S = 5.0


class AssignedPartitions(LibrdkafkaGroup):
    """Implement `GroupPort` with partitions that never change."""

    _due = False

    def open(self, listener: MemberListener) -> None:
        """See `GroupPort`."""
        # The offsets sent last, else the group's first ones. To move the group back from one of these is this query's
        # own decision.
        self._own: dict[TopicPartition, GroupOffset] = {}
        super().open(listener)

    def subscribe(self, topics: Sequence[str]) -> None:
        """See `GroupPort`. The topics are those of the partitions."""
        self._due = True

    def poll(self) -> None:
        """See `GroupPort`."""
        if self._due:
            self._due = False
            found = members(self._options)
            if found:
                self._listener.on_error(self._in_use(f"members {', '.join(sorted(found))}"))
            else:
                self._listener.on_assigned(self._options.subscription.partitions)
        super().poll()

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """See `GroupPort`."""
        found = super().fetch_offsets(partitions, timeout_s)
        for partition, group in found.items():
            self._own.setdefault(partition, group)
        return found

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """See `GroupPort`. Waits until the group's offsets are fetched."""
        refused = self._refused(items)
        if refused is not None:
            super()._report(refused)
            return
        self._note_sent(items)
        super().commit_later(items)

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """See `GroupPort`."""
        refused = self._refused(items)
        if refused is not None:
            return refused
        self._note_sent(items)
        return self._checked(super().commit_now(items))

    def _note_sent(self, items: Sequence[CommitItem]) -> None:
        self._own |= {item.partition: GroupOffset(item.offset, item.metadata) for item in items}

    def _refused(self, items: Sequence[CommitItem]) -> CommitResult | None:
        """Return the result of a commit that must not be sent: offsets unknown, or another driver is ahead."""
        found = super().fetch_offsets([item.partition for item in items], _FETCH_TIMEOUT_S)
        if len(found) < len(items):
            # Not sent, so the outcome is as clear as after a refusal in a rebalance. It is tried again in the same way.
            refused = tuple((item, Refusal.REBALANCE) for item in items)
            return CommitResult(refused=refused, reason="the group's offsets are not known")
        overtaken = next((item for item in items if self._goes_back(item, found[item.partition])), None)
        if overtaken is None:
            return None
        held = found[overtaken.partition].offset
        error = MembershipError(
            errors.ASSIGN_OVERTAKEN,
            group=self._options.group_id, partition=overtaken.partition, offset=overtaken.offset, held=held,
        )  # fmt: skip
        refused = tuple((item, Refusal.DENIED) for item in items)
        return CommitResult(refused=refused, reason=f"{overtaken.partition} is at {held}", error=error)

    def _goes_back(self, item: CommitItem, held: GroupOffset) -> bool:
        """Return whether a commit moves the group back from an offset that another driver has committed.

        The start position of a recreated topic may be before the group's offset.
        """
        if held.offset is None or held.offset <= item.offset:
            return False
        if held == self._own.get(item.partition):
            return False
        return not of_another_topic(held, item)

    def _report(self, result: CommitResult) -> None:
        super()._report(self._checked(result))

    def _checked(self, result: CommitResult) -> CommitResult:
        """Return the result with an error if the group has members. No partition is lost by that."""
        if not result.lost:
            return result
        refused = tuple((item, Refusal.DENIED) for item, _ in result.refused)
        return CommitResult(result.acknowledged, refused, result.reason, self._in_use(result.reason))

    def _in_use(self, reason: str) -> MembershipError:
        return MembershipError(errors.ASSIGN_GROUP_IN_USE, group=self._options.group_id, reason=reason)
