"""What the membership thread needs: a group client and Spark's commit log, so that others can stand behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.events import Partitions
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import SourceOffset, TopicPartition


class Refusal(Enum):
    """Why the coordinator did not take a commit."""

    # UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH: the partitions are somebody else's.
    LOST = "the group does not know this member any more"
    # REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH: commit again afterwards what is still owned.
    REBALANCE = "a rebalance is under way"
    # UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
    NO_TOPIC = "the partition does not exist any more"
    # GROUP_ or TOPIC_AUTHORIZATION_FAILED, OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE: not taken, and never
    # will be until a person has changed something.
    DENIED = "the brokers do not allow it"
    # All else: no answer in time, a lost connection, a coordinator that moves; also after a first try of the client's.
    UNCERTAIN = "no clear answer: it may have been taken, or may be taken later"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of the items of a commit; `error` is what ends the member, where any was refused for good."""

    acknowledged: tuple[CommitItem, ...] = ()
    refused: tuple[tuple[CommitItem, Refusal], ...] = ()
    reason: str = ""
    error: GroupKafkaError | None = None

    def refused_as(self, refusal: Refusal) -> bool:
        """Whether any item was refused for this reason."""
        return any(kind is refusal for _, kind in self.refused)

    def and_also(self, other: CommitResult) -> CommitResult:
        """Return both results in one."""
        reason = self.reason or other.reason
        refused = self.refused + other.refused
        return CommitResult(self.acknowledged + other.acknowledged, refused, reason, self.error or other.error)


class BatchLog(Protocol):
    """What Spark has recorded as complete. Nothing is raised: what cannot be read is not complete.

    One call at a time. All but `name`, `is_local` and `wants_start` may take as long as the store does.
    """

    @property
    def name(self) -> str:
        """Where it is, as it may appear in logs."""

    @property
    def is_local(self) -> bool:
        """Whether `glance` costs so little that it is asked also while nobody waits for the batch."""

    def wants_start(self, start: SourceOffset) -> bool:
        """Whether `compare_start` may find something. No I/O."""

    def compare_start(self, start: SourceOffset) -> None:
        """Compare the offset from which Spark plans the next batch with this log; log a contradiction, once."""

    def is_complete(self, end: SourceOffset) -> bool:
        """Whether the batch that ends at `end` is recorded as complete."""

    def glance(self, end: SourceOffset) -> bool:
        """Say the same at little cost; may miss what `is_complete` finds."""


class MemberListener(Protocol):
    """Called from inside `GroupPort.poll` and `close`, on the thread that called them; must not raise."""

    def on_assigned(self, partitions: Partitions) -> None:
        """The group gave partitions; call `accept` before returning."""

    def on_revoked(self, partitions: Partitions) -> None:
        """The group wants partitions back; may wait; call `release` before returning."""

    def on_lost(self, partitions: Partitions) -> None:
        """The group took partitions; call `release` before returning."""

    def on_note(self, standby: Partitions, refusal: str) -> None:
        """The group's leader has said what this member stands by for, or why it could not assign."""

    def on_commit_result(self, result: CommitResult) -> None:
        """An asynchronous commit was answered."""

    def on_coordinator(self, known: bool) -> None:
        """The client has found the group's coordinator, or looks for it (again)."""

    def on_error(self, error: GroupKafkaError) -> None:
        """The member cannot go on."""

    def on_instance_id_unreleased(self) -> None:
        """A static member's old session still lives (KIP-848): close, wait and open again."""

    def on_renewed(self) -> None:
        """What the member had is lost, and its client goes on with it, or cannot join again: open a new one."""


class GroupPort(Protocol):
    """A consumer that takes part in a group and fetches no records. One thread uses it."""

    @property
    def incremental(self) -> bool:
        """Whether a revoke names only the partitions to give up (cooperative, KIP-848)."""

    def open(self, listener: MemberListener) -> None:
        """Make the client. Raises `OptionError` when it refuses a setting."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group for these topics, or change the subscription."""

    def poll(self) -> None:
        """Serve callbacks without waiting."""

    def accept(self, partitions: Partitions) -> None:
        """Take newly assigned partitions, without fetching from them."""

    def release(self, partitions: Partitions) -> None:
        """Give up partitions (all of them under an eager protocol)."""

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """Ask the coordinator for the group's offsets; partitions it did not answer for are left out."""

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """Send a commit; `on_commit_result` brings the answer."""

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """Send a commit and wait for the answer."""

    def close(self) -> None:
        """Leave the group (a static member does not) and free the client; idempotent."""
