"""Random histories of a group on the members' state machines: nothing lost, nothing ahead, nothing back.

Partitions move between members by assignments, losses and revokes. Batches are completed early and late. Commits are
refused, or accepted without an answer. Each member's planner starts at the larger one of its checkpoint's end and the
group's offset, as the real one does without conflicts and resets.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from spark_groupsource.membership.events import (
    BatchCompleted,
    BatchFixed,
    CommitOffsets,
    DrainExpired,
    Effect,
    FlightBatch,
    HandOver,
    PartitionsAssigned,
    PartitionsLost,
    PartitionsReleased,
    RevokeStarted,
    Started,
)
from spark_groupsource.membership.machine import MemberMachine, MemberState
from spark_groupsource.model.commit_metadata import CommitItem, CommitMetadata, GroupOffset, Pin
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition, new_lineage
from tests.unit.fakes import LINEAGE, TOPIC_ID, offset_of, tp

PARTITIONS = (tp(0), tp(1), tp(2))
STEPS = 300


def text(start: int, end: int) -> str:
    return CommitMetadata(LINEAGE, TOPIC_ID, start, end, Pin(0, 3)).to_text()


class Query:
    """A member, and what Spark knows of its batches."""

    def __init__(self) -> None:
        self.machine = MemberMachine()
        self.machine.handle(Started())
        self.start = SourceOffset.initial(new_lineage())
        self.flight: SourceOffset | None = None
        self.is_written = False


class History:
    """A group of three queries, and what each step does. It fails as soon as a commit breaks a promise."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queries = [Query() for _ in range(3)]
        self.owner: dict[TopicPartition, Query] = {}
        self.group: dict[TopicPartition, int] = {}
        self.log_end = dict.fromkeys(PARTITIONS, 5)
        self.unread = {partition: set(range(5)) for partition in PARTITIONS}
        # Completed ends that a handover could have committed, and did not.
        self.forgotten = 0

    def run(self) -> None:
        """Take random steps, then let the first query read all that is left."""
        steps = (
            (3, self.produce), (4, self.assign), (4, self.fetch), (2, self.lose), (3, self.revoke), (3, self.write),
            (2, self.report), (2, self.commit_pending), (5, self.trigger),
        )  # fmt: skip
        weights, actions = zip(*steps, strict=True)
        for action in self.random.choices(actions, weights, k=STEPS):
            action(self.random.choice(self.queries))
        for query in self.queries:
            self.lose(query)
            self.write(query)
        for _ in range(60):
            self.assign(self.queries[0], everything=True)
            for action in (self.fetch, self.trigger, self.write):
                action(self.queries[0])
        assert self.unread == {partition: set() for partition in PARTITIONS}, "records were lost"

    # --- the group

    def accept(self, items: Iterable[CommitItem]) -> None:
        """Store what the coordinator has accepted."""
        for item in items:
            assert item.offset >= self.group.get(item.partition, 0), f"back: {item}"
            assert not [at for at in self.unread[item.partition] if at < item.offset], f"ahead: {item}"
            self.group[item.partition] = item.offset

    def commit(self, query: Query, items: Iterable[CommitItem]) -> bool:
        """Answer a commit. Return False if it was refused."""
        sent = tuple(item for item in items if self.owner.get(item.partition) is query)
        fate = self.random.random()
        if fate >= 0.2:
            self.accept(sent)
        if fate >= 0.3:
            query.machine.offsets_acknowledged(sent)
        return fate >= 0.2

    def assign(self, query: Query, *, everything: bool = False) -> None:
        free = [partition for partition in PARTITIONS if partition not in self.owner]
        given = tuple(partition for partition in free if everything or self.random.random() < 0.7)
        self.owner |= dict.fromkeys(given, query)
        query.machine.handle(PartitionsAssigned(given))

    def lose(self, query: Query) -> None:
        partitions = query.machine.owned_partitions()
        self._leave(partitions)
        self.effects(query, query.machine.handle(PartitionsLost(partitions)))

    def revoke(self, query: Query) -> None:
        machine = query.machine
        partitions = tuple(each for each in machine.owned_partitions() if self.random.random() < 0.6)
        if not partitions or machine.state is not MemberState.JOINED:
            return
        machine.offsets_fetched(self.offsets(machine.unfetched_of_batches(partitions)))
        hand_over = self.effects(query, machine.handle(RevokeStarted(partitions)))
        if hand_over is None and self.random.random() < 0.6 and query.flight is not None:
            self.write(query)
            hand_over = self.effects(query, machine.handle(BatchCompleted(query.flight)))
        elif hand_over is None:
            hand_over = self.effects(query, machine.handle(DrainExpired()))
        assert hand_over is not None
        if self.commit(query, hand_over.items):
            ends = query.start.ends()
            self.forgotten += sum(ends.get(each, 0) > self.group.get(each, 0) for each in partitions)
        self._leave(partitions)
        machine.handle(PartitionsReleased(partitions))

    def _leave(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            del self.owner[partition]

    # --- the member

    def offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, GroupOffset]:
        held = {each: self.group.get(each) for each in partitions}
        return {each: GroupOffset(at, "" if at is None else text(0, at)) for each, at in held.items()}

    def fetch(self, query: Query) -> None:
        query.machine.offsets_fetched(self.offsets(query.machine.unfetched()))

    def effects(self, query: Query, effects: tuple[Effect, ...]) -> HandOver | None:
        found = None
        for effect in effects:
            if isinstance(effect, CommitOffsets):
                self.commit(query, effect.items)
            else:
                found = effect
        return found

    def commit_pending(self, query: Query) -> None:
        self.commit(query, query.machine.pending())

    def report(self, query: Query) -> None:
        """The commit log has the batch, or Spark reports the batch before."""
        end = query.flight if query.flight is not None and query.is_written else query.start
        self.effects(query, query.machine.handle(BatchCompleted(end)))

    # --- Spark

    def produce(self, _: Query) -> None:
        partition, count = self.random.choice(PARTITIONS), self.random.randint(1, 6)
        end = self.log_end[partition]
        self.unread[partition] |= set(range(end, end + count))
        self.log_end[partition] += count

    def write(self, query: Query) -> None:
        """Let Spark write the batch in flight and record it as complete."""
        if query.flight is not None and not query.is_written:
            query.is_written = True
            for each in query.flight.ranges:
                self.unread[each.partition] -= set(range(each.start, each.end))

    def trigger(self, query: Query) -> None:
        """Spark asks for the next batch, if the one in flight is complete."""
        if query.flight is not None and not query.is_written:
            return
        if query.flight is not None:
            query.start, query.flight, query.is_written = query.flight, None, False
        machine = query.machine
        self.effects(query, machine.handle(BatchCompleted(query.start)))
        view = machine.view()
        if not view.settled or not view.partitions or self.random.random() < 0.25:
            return
        starts = {
            owned.partition: max(query.start.ends().get(owned.partition, 0), (owned.group and owned.group.offset) or 0)
            for owned in view.partitions
            if owned.position is None
        }
        pins = tuple(CommitItem(partition, at, text(at, at)) for partition, at in starts.items())
        self.accept(pins)
        machine.positions_established(starts, pins)
        ranges = [
            OffsetRange(partition, at, min(self.log_end[partition], at + self.random.randint(0, 8)))
            for partition, at in machine.view().positions.items()
        ]
        if any(len(each) for each in ranges):
            planned = {each.partition for each in ranges}
            done = {partition: at for partition, at in query.start.ends().items() if partition not in planned}
            query.flight = offset_of(*ranges, done=done)
            items = tuple(CommitItem(each.partition, each.end, text(each.start, each.end)) for each in ranges)
            machine.handle(BatchFixed(FlightBatch(query.flight, items)))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.rule("R12", "R77")
def test_p1_p5_p6_no_history_loses_a_record_moves_an_offset_back_or_forgets_what_is_complete(seed: int) -> None:
    history = History(seed)
    history.run()
    assert history.forgotten == 0
