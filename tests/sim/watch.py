"""Check what a query asks of its client and when it plans: what the history does not show, or only by luck.

The judge sees what the group has accepted, and excuses much of it if the network was cut. This sees what was sent, with
what the query knew then. Each check names the rule (docs/explanation/rules.md) that it holds the product to. The commit
of a start position is known by its metadata: an empty range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset, metadata_of, parse_metadata
from spark_groupsource.model.offsets import TopicPartition, parse_offset, same_topic
from tests.sim.world import BEGIN_S

if TYPE_CHECKING:
    from spark_groupsource.membership.events import FlightBatch
    from tests.sim.spark.application import Application

# Seconds that a plan waits for the commit of the batch before (readiness.py, COMMIT_S), with a margin.
_COMMIT_S = 0.9
# Seconds that a handover may wait without a batch for which it waits: it repeats its commit for 5 s, and then reads for
# 2 s whether an older one was accepted later.
_HANDOVER_S = 9.0
# Seconds that a stop waits for the answer to a commit (member.py), with a margin.
_LAST_ANSWER_S = 1.9
_MISSING = "the topic was deleted"


@dataclass(slots=True)
class _Stay:
    """A partition from its assignment on. `reached` is the largest offset that was sent, fetched or accepted."""

    since: float
    topic_id: str = ""
    reached: int = -1
    # Sent, and nobody knows whether it was accepted; whether nobody waited for the answer.
    doubt: CommitItem | None = None
    doubted_later: bool = False
    # The coordinator has answered that the member does not exist.
    is_lost: bool = False


_Stays = dict[TopicPartition, _Stay]


@dataclass(slots=True)
class Watch:
    """The watch of one run of a query. `problems` are added to those that the judge finds."""

    app: Application
    problems: list[str] = field(default_factory=list)
    stays: _Stays = field(default_factory=dict)
    # The stays that have ended: the partition, and from when to when.
    past: list[tuple[TopicPartition, float, float]] = field(default_factory=list)
    # Asynchronous commits under way: when they were sent, and for which stays.
    _later: list[tuple[float, tuple[CommitItem, ...], _Stays]] = field(default_factory=list)
    _reports: Counter[TopicPartition] = field(default_factory=Counter)
    # Whether the query has reported that batches go on without commits.
    _is_behind: bool = False
    # The callback that runs: when it began, and the seconds that its calls of the client took.
    _began: float = 0.0
    _in_calls: float = 0.0

    def _wrong(self, rule: str, text: str) -> None:
        at = self.app.world.now - BEGIN_S
        self.problems.append(f"{rule} {self.app.name} at {at:.3f}: {text}")
        self.app.world.say(self.app.name, f"WRONG {rule} {text}")

    # --- the client: partitions

    def opened(self) -> None:
        """Begin with a new client: nothing is known."""
        self.released(())
        self._later.clear()

    def accepted(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that partitions are assigned."""
        self.stays |= {partition: _Stay(self.app.world.now) for partition in partitions}

    def released(self, left: Iterable[TopicPartition]) -> None:
        """Record that only these partitions are left."""
        kept, now = set(left), self.app.world.now
        self.past += [(partition, stay.since, now) for partition, stay in self.stays.items() if partition not in kept]
        self.stays = {partition: stay for partition, stay in self.stays.items() if partition in kept}

    def held(self, partition: TopicPartition, at: float) -> bool:
        """Return whether the client had the partition then."""
        stay = self.stays.get(partition)
        ended = any(one == partition and since <= at <= until for one, since, until in self.past)
        return ended or (stay is not None and stay.since <= at)

    def fetched(self, offsets: dict[TopicPartition, GroupOffset]) -> None:
        """Record the group's offsets, as the query gets them."""
        for partition, group in offsets.items():
            metadata, stay = parse_metadata(group.metadata), self.stays.get(partition)
            if stay is not None and metadata is not None and group.offset is not None:
                self._reaches(stay, metadata.topic_id, group.offset)

    @staticmethod
    def _reaches(stay: _Stay, topic_id: str, offset: int, *, starts: bool = False) -> None:
        if starts or not same_topic(stay.topic_id, topic_id):
            stay.reached, stay.doubt = -1, None
        stay.topic_id, stay.reached = topic_id, max(stay.reached, offset)

    # --- the client: commits

    def sends(self, items: Sequence[CommitItem], *, later: bool, running: str, closing: bool) -> None:
        """Check a commit that is sent. `later`: nobody waits for the answer. `running`: the callback that sends it."""
        if later and self._later:
            self._wrong("R14", "two asynchronous commits are under way")
        if running == "lost":
            self._wrong("R12", "a commit of lost partitions")
        for item in items:
            self._sends(item, later=later, freely=not running and not closing)
        if later:
            self._later.append((self.app.world.now, tuple(items), dict(self.stays)))

    def _sends(self, item: CommitItem, *, later: bool, freely: bool) -> None:
        """Check an item. `freely`: outside of a handover, which cannot wait for answers.

        A handover sends what is in doubt once more, and goes on whatever the answer is.
        """
        metadata, stay = parse_metadata(item.metadata), self.stays.get(item.partition)
        if metadata is None:
            return
        what = f"{item.partition} at {item.offset}"
        under_way = [one.offset for _, items, _ in self._later for one in items if one.partition == item.partition]
        if metadata.start == metadata.end:
            if freely and any(self.app.world.now - at < _LAST_ANSWER_S for at, _, _ in self._later):
                self._wrong("R14", f"{what} is sent while a commit is under way")
        elif stay is None:
            self._wrong("R12", f"{what} is sent, and the partition is not this member's")
        elif same_topic(stay.topic_id, metadata.topic_id):
            doubted = stay.doubt is not None and (later or stay.doubted_later) and not stay.is_lost
            if stay.doubt is not None and doubted and item.offset > stay.doubt.offset:
                self._wrong("R14", f"{what} is sent while nobody knows what became of {stay.doubt.offset}")
            if item.offset < (reached := max([stay.reached, *under_way])):
                self._wrong("R14", f"{what} is sent after {reached}")

    def answered(self, result: CommitResult, *, later: bool) -> None:
        """Record the answer to a commit, as the query gets it."""
        stays = self._later.pop(0)[2] if later and self._later else self.stays
        for item, why in [*((item, None) for item in result.acknowledged), *result.refused]:
            stay = stays.get(item.partition)
            if stay is None or stay is not self.stays.get(item.partition):
                continue
            metadata = parse_metadata(item.metadata)
            if metadata is not None and why in (None, Refusal.UNCERTAIN):
                self._reaches(stay, metadata.topic_id, item.offset, starts=metadata.start == metadata.end)
            # An answer about an older offset says nothing of a newer one, which was sent since.
            if item.offset >= stay.reached:
                stay.doubt, stay.doubted_later = (item if why is Refusal.UNCERTAIN else None), later
        if result.lost:
            for partition, stay in stays.items():
                stay.is_lost = stay.is_lost or stay is self.stays.get(partition)

    # --- the client: callbacks

    def begins(self) -> None:
        """Record that a callback begins."""
        self._began, self._in_calls = self.app.world.now, 0.0

    def spent(self, seconds: float) -> None:
        """Record that a call of the client has taken that long."""
        self._in_calls += seconds

    def ends(self, kind: str, lost: bool, *, closing: bool) -> None:
        """Check a callback. A handover waits for no batch of lost partitions, and for none when the member leaves.

        `lost`: all partitions were known to be lost when it began.
        """
        process = self.app.process
        waited = self.app.world.now - self._began - self._in_calls
        calm = process is not None and process.stopped_until < self._began and not process.hiccup
        if kind == "revoked" and calm and waited > _HANDOVER_S and (lost or closing):
            self._wrong("R26", f"a revoke waits {waited:.1f} s for nothing")

    def all_lost(self, partitions: Sequence[TopicPartition]) -> bool:
        """Return whether the query knows that these partitions are lost."""
        return bool(partitions) and all(p in self.stays and self.stays[p].is_lost for p in partitions)

    # --- plans and events

    def fixed(self, batch: FlightBatch, *, stopping: bool) -> None:
        """Check a plan that is put in flight."""
        if stopping:
            self._wrong("R79", "a batch is planned after a request to stop")
        for item in batch.end.ranges:
            stay = self.stays.get(item.partition)
            if stay is None:
                self._wrong("R2", f"{item} is planned, and the partition is not this member's")
            elif stay.is_lost:
                self._wrong("R27", f"{item} is planned after the coordinator has answered that the member is unknown")
            elif not self._is_behind and (end := self._not_committed(item.partition, stay)) is not None:
                self._wrong("R9", f"{item} is planned, and the group does not have the end {end} of the batch before")

    def _not_committed(self, partition: TopicPartition, stay: _Stay) -> int | None:
        """Return the end of the newest batch if the group does not have it, and the wait for that is not over."""
        app, topic = self.app, self.app.cluster.topics.get(partition.topic)
        group = app.coordinator.offsets.get(partition, GroupOffset(None))
        held, metadata = group.offset, metadata_of(group)
        if metadata is not None and topic is not None and not same_topic(metadata.topic_id, topic.id):
            # limits.md, "KIP-848 and a recreated topic": a late commit of the deleted topic has replaced the end.
            return None
        entry = app.checkpoint.entries.get(app.checkpoint.newest)
        at = None if entry is None else entry.completed_at
        if topic is None or held is None or entry is None or at is None or at < stay.since:
            return None
        end = parse_offset(entry.end)
        reached = next((item.end for item in end.ranges if item.partition == partition), 0)
        is_late = app.world.now - at >= _COMMIT_S or not same_topic(end.topic_id(topic.name), topic.id)
        return reached if held < reached and not is_late else None

    def event(self, event: str, partitions: Sequence[TopicPartition], details: dict[str, Any]) -> None:
        """Check what the query reports."""
        if event == "commits":
            self._is_behind = bool(details["behind"])
        reason = str(details.get("reason", ""))
        if event == "data_lost" and reason.startswith(_MISSING) and "or recreated" not in reason:
            for partition in partitions:
                self._reports[partition] += 1
                lives = [life for life in self.app.cluster.lives if life.name == partition.topic]
                if self._reports[partition] > sum(life.deleted_at is not None for life in lives):
                    self._wrong("P8", f"{partition} is reported as missing {self._reports[partition]} times")
