"""What a group client tells its member, recorded."""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource.errors import GroupKafkaError
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.port import CommitResult


class Listener:
    """Records what it is told. `never` names calls that are a matter of other clients."""

    def __init__(self, *never: str) -> None:
        self.calls: list[tuple[str, object]] = []
        self.errors: list[GroupKafkaError] = []
        self.known: bool | None = None
        self.on_revoke: Callable[[Partitions], object] = lambda _: None
        # What the next revoke raises.
        self.raises: BaseException | None = None
        self._counts: dict[str, int] = {}
        self._never = never

    @property
    def results(self) -> list[object]:
        """The answers to commits."""
        return [given for name, given in self.calls if name == "commit"]

    def count(self, name: str) -> int:
        """Return how often it was told so: answer_lost, unusable, instance_id_unreleased."""
        return self._counts.get(name, 0)

    def on_assigned(self, partitions: Partitions) -> None:
        self.calls.append(("assigned", partitions))

    def on_revoked(self, partitions: Partitions) -> None:
        self.calls.append(("revoked", partitions))
        self.on_revoke(partitions)
        error, self.raises = self.raises, None
        if error is not None:
            raise error

    def on_lost(self, partitions: Partitions) -> None:
        self.calls.append(("lost", partitions))

    def on_note(self, standby: Partitions, refusal: str) -> None:
        self._tell("note")
        self.calls.append(("note", (standby, refusal)))

    def on_commit_result(self, result: CommitResult) -> None:
        self.calls.append(("commit", result))

    def on_coordinator(self, known: bool) -> None:
        self.known = known

    def on_error(self, error: GroupKafkaError) -> None:
        self.errors.append(error)

    def on_unusable(self) -> None:
        self._tell("unusable")

    def on_answer_lost(self) -> None:
        self._tell("answer_lost")

    def on_instance_id_unreleased(self) -> None:
        self._tell("instance_id_unreleased")

    def _tell(self, name: str) -> None:
        assert name not in self._never
        self._counts[name] = self.count(name) + 1
