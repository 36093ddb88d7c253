"""Define the ports of the membership thread: a group client and Spark's commit log."""

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
    """Why the coordinator did not accept a commit."""

    # UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, FENCED_MEMBER_EPOCH: the partitions belong to other members.
    LOST = "the group does not know this member any more"
    # REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, STALE_MEMBER_EPOCH: commit partitions that are still owned afterwards.
    REBALANCE = "a rebalance is under way"
    # UNKNOWN_TOPIC_OR_PARTITION: the topic was deleted.
    NO_TOPIC = "the partition does not exist any more"
    # GROUP_ or TOPIC_AUTHORIZATION_FAILED, OFFSET_METADATA_TOO_LARGE, INVALID_COMMIT_OFFSET_SIZE: not accepted until a
    # person has changed something.
    DENIED = "the brokers do not allow it"
    # All else: no answer in time, a lost connection, a coordinator that moves. The client's first try may have arrived.
    UNCERTAIN = "no clear answer: the coordinator may have accepted it, or may accept it later"


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a commit, by item. `error` ends the member; set if an item was refused for good."""

    acknowledged: tuple[CommitItem, ...] = ()
    refused: tuple[tuple[CommitItem, Refusal], ...] = ()
    reason: str = ""
    error: GroupKafkaError | None = None

    @property
    def lost(self) -> bool:
        """Whether an item was refused because the membership is lost."""
        return any(why is Refusal.LOST for _, why in self.refused)

    def and_also(self, other: CommitResult) -> CommitResult:
        """Return both results in one."""
        reason = self.reason or other.reason
        refused = self.refused + other.refused
        return CommitResult(self.acknowledged + other.acknowledged, refused, reason, self.error or other.error)


class BatchLog(Protocol):
    """Report which batches Spark has recorded as complete. Raises nothing: an unreadable batch is not complete.

    One call at a time. All but `name`, `is_local` and `wants_start` may take as long as the store does.
    """

    @property
    def name(self) -> str:
        """The log's location, as it may appear in logs."""

    @property
    def is_local(self) -> bool:
        """Whether `glance` is cheap enough to be called while nobody waits for the batch."""

    def wants_start(self, start: SourceOffset) -> bool:
        """Return whether `compare_start` may find something. Does no I/O."""

    def compare_start(self, start: SourceOffset) -> None:
        """Compare the offset from which Spark plans the next batch with this log. Report a contradiction once."""

    def is_complete(self, end: SourceOffset) -> bool:
        """Return whether the batch that ends at `end` is recorded as complete."""

    def glance(self, end: SourceOffset) -> bool:
        """Return the same at low cost. May miss a batch that `is_complete` finds."""


class MemberListener(Protocol):
    """Handle what the client reports. Called inside `GroupPort.poll` and `close`, on their thread; must not raise."""

    def on_assigned(self, partitions: Partitions) -> None:
        """Handle newly assigned partitions; call `accept` before returning."""

    def on_revoked(self, partitions: Partitions) -> None:
        """Handle a revoke of partitions; may wait; call `release` before returning."""

    def on_lost(self, partitions: Partitions) -> None:
        """Handle lost partitions; call `release` before returning."""

    def on_note(self, standby: Partitions, refusal: str) -> None:
        """Handle the leader's note: this member's standby partitions, or why the strategy could not assign."""

    def on_commit_result(self, result: CommitResult) -> None:
        """Handle the answer to an asynchronous commit. It may be about an earlier membership (rule R17)."""

    def on_coordinator(self, known: bool) -> None:
        """Handle a change of the coordinator: whether the client knows it, or searches for it."""

    def on_answer_lost(self) -> None:
        """Handle an answer of the coordinator for which the client did not wait: it may have had an assignment."""

    def on_error(self, error: GroupKafkaError) -> None:
        """Handle an error that ends the member."""

    def on_instance_id_unreleased(self) -> None:
        """Handle a static member's old session that has not ended yet (KIP-848): close, wait and open again."""

    def on_unusable(self) -> None:
        """Replace a client that still has lost partitions, or that cannot join again."""


class GroupPort(Protocol):
    """Take part in a group without fetching records. One thread uses it."""

    @property
    def incremental(self) -> bool:
        """Whether a revoke names only the partitions to give up (cooperative, KIP-848)."""

    @property
    def member_id(self) -> str:
        """The id by which the coordinator knows the member; empty while it has none."""

    @property
    def generation(self) -> bytes:
        """The generation that the member is in, to be compared only. Empty where a revoke cannot outlive one."""

    def open(self, listener: MemberListener) -> None:
        """Create the client. Raises `OptionError` if it refuses a setting."""

    def subscribe(self, topics: Sequence[str]) -> None:
        """Join the group for these topics, or change the subscription."""

    def poll(self) -> None:
        """Serve callbacks without waiting."""

    def accept(self, partitions: Partitions) -> None:
        """Accept newly assigned partitions, without fetching from them."""

    def release(self, partitions: Partitions) -> None:
        """Give up partitions (all of them under an eager protocol)."""

    def stay_out(self) -> None:
        """Do not join again (rule R111).

        Called before `release` by a member that ends: in `on_lost`, and in `on_revoked` under an eager protocol.
        """

    def fetch_offsets(
        self, partitions: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, GroupOffset]:
        """Return the group's offsets from the coordinator. Partitions without an answer are left out."""

    def commit_later(self, items: Sequence[CommitItem]) -> None:
        """Send a commit; `MemberListener.on_commit_result` gets the answer."""

    def commit_now(self, items: Sequence[CommitItem]) -> CommitResult:
        """Send a commit and wait for the answer."""

    def close(self) -> None:
        """Leave the group (a static member does not) and close the client. Idempotent."""
