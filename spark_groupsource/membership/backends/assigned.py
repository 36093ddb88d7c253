"""Partitions that option `assign` names: no member of the group, whose offsets are kept all the same.

The sequence this protects against: a query with `assign` commits to a group that also has members; the coordinator
takes no offsets of anybody else then, and the query would go on without commits for ever. It fails instead: before it
reads anything, or at a commit when the members come later.

A member's commit carries a generation, and the coordinator refuses an old one; a commit of `assign` carries none. So
the group's offsets are fetched before every commit, and a commit that would take one back fails. Guards against:

1. A query has a batch that ends at 75; its machine stops, or its sink hangs.
2. The query is started elsewhere, reads on, and commits 100.
3. The first machine goes on, completes its batch and commits 75: whoever starts next reads 75 to 100 again.

What remains: fetch and commit are two requests, and what another driver commits between the two is overwritten.
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

# How long a commit waits for the group's offsets before it is put off.
_FETCH_TIMEOUT_S = 5.0


class AssignedPartitions(LibrdkafkaGroup):
    """A `GroupPort` that has its partitions from the start, and for good."""

    _due = False

    def open(self, listener: MemberListener) -> None:
        """See `GroupPort`."""
        # What the group held at first, and what was sent last: to go back from there is this query's own decision.
        self._begun: dict[TopicPartition, GroupOffset] = {}
        self._sent: dict[TopicPartition, GroupOffset] = {}
        super().open(listener)

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

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """See `GroupPort`."""
        found = super().fetch_offsets(partitions, timeout_s)
        for partition, group in found.items():
            self._begun.setdefault(partition, group)
        return found

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """See `GroupPort`. Waits for the group's offsets."""
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
        self._sent |= {item.partition: GroupOffset(item.offset, item.metadata) for item in items}

    def _refused(self, items: Sequence[CommitItem]) -> CommitResult | None:
        """Return the result of a commit that must not be sent: offsets unknown, or another driver is ahead."""
        found = super().fetch_offsets([item.partition for item in items], _FETCH_TIMEOUT_S)
        if len(found) < len(items):
            # Not sent: as clear as a refusal in a rebalance, and tried again in the same way.
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
        """Whether a commit takes the group back from an offset that another driver has committed.

        A start position may go back from what the group held at first, as option onConflict decides, and that of a
        topic that was created again starts anew.
        """
        if held.offset is None or held.offset <= item.offset:
            return False
        if held == self._sent.get(item.partition, self._begun.get(item.partition)):
            return False
        return not of_another_topic(CommitItem(item.partition, held.offset, held.metadata), item)

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
