"""A session and its member on a scripted group, and the situations that the tests of the session have in common."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from spark_groupsource.checkpoint.log import NoCheckpoint
from spark_groupsource.checkpoint.stop_requests import Run, StopFiles
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.session import Session
from spark_groupsource.membership.events import FlightBatch, Partitions
from spark_groupsource.membership.machine import GroupView
from spark_groupsource.membership.port import MemberListener, Refusal
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.model.commit_metadata import CommitItem, CommitMetadata, GroupOffset, Pin
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.options.model import UNBOUNDED, ReadBounds
from spark_groupsource.sidecars.stop_watch import StopWatch
from tests.unit.fakes import (
    LINEAGE,
    TOPIC_ID,
    FakeCluster,
    FakeGroup,
    make_options,
    quiet_metrics,
    tp,
)
from tests.unit.inline_runner import InlineRunner

P0, P1, P2 = tp(0), tp(1), tp(2)
PIN = Pin(0, 2)


def partition_of(name: str) -> TopicPartition:
    """Return a partition by its short name: p1 is orders-1, refunds is refunds-0."""
    return tp(int(name[1:])) if name[1:].isdigit() else tp(0, name)


def metadata(lineage: str, start: int, end: int, *, pin: Pin = PIN, topic_id: str = TOPIC_ID) -> str:
    return CommitMetadata(lineage, topic_id, start, end, pin).to_text()


class Group(FakeGroup):
    """A group that gives a member that joins again what it had."""

    def __init__(self) -> None:
        super().__init__()
        self._had: Partitions = ()

    def open(self, listener: MemberListener) -> None:
        super().open(listener)
        if self._had:
            self.assign(*self._had)
            self._had = ()

    def close(self) -> None:
        self._had = tuple(sorted(self.owned)) or self._had
        super().close()

    @property
    def joins(self) -> int:
        """How often the member has joined again."""
        return len(self.named("open")) - 1

    def commits(self) -> list[tuple[CommitItem, ...]]:
        """Return the commits that the member has sent."""
        return [given for name, given in self.calls if name.startswith("commit")]  # type: ignore[misc]


class SessionMember(MembershipThread):
    """A membership thread that lets a test do something while the session uses it."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.during_view: Callable[[], object] = lambda: None
        self.during_fix: Callable[[], object] = lambda: None
        # How many plans are refused, and which were made.
        self.refused_fixes = 0
        self.planned: list[FlightBatch] = []

    def view(self) -> GroupView:
        self.during_view()
        return super().view()

    def fix(self, batch: FlightBatch, assignment: int) -> bool:
        self.planned.append(batch)
        self.during_fix()
        if self.refused_fixes > 0:
            self.refused_fixes -= 1
            return False
        return super().fix(batch, assignment)

    def shows(self, **fields: Any) -> None:
        """Change what the member shows of itself."""
        self._member.status = replace(self.status, **fields)


class Bed:
    """A session whose member runs on the test's thread; pauses let time pass."""

    def __init__(self, *, watched: bool = False, checkpoint: bool = True, **options: str) -> None:
        self.runner = InlineRunner()
        self.clock = self.runner.clock
        self.cluster = FakeCluster(orders=2)
        self.group = Group()
        self.group.exists = self.cluster.has
        location = {"checkpointLocation": "/checkpoint"} if checkpoint else {}
        checked = make_options(**location, **options)
        self.member = SessionMember(
            checked, self.group, self.clock, NoCheckpoint(), quiet_metrics(), runner=self.runner
        )
        self.watch = StopWatch(StopFiles("/nowhere"), Run.here("shop", 0), self.member, 60.0)
        self.paused = 0.0
        # Whether another source of the query is a member.
        self.has_sibling = False
        self._ids = itertools.count(2)
        self.session = Session(
            checked,
            clock=self.clock,
            cluster=self.cluster,
            member=self.member,
            metrics=quiet_metrics(),
            pause=self._pause,
            watch=self.watch if watched else None,
            sibling=lambda: self.has_sibling,
        )
        BEDS.append(self)

    def _pause(self, seconds: float) -> None:
        self.paused += seconds
        self.clock.advance(seconds)

    def join(self, *partitions: TopicPartition) -> None:
        """Start the member, and let the group give it partitions."""
        self.member.start()
        self.assign(*partitions)

    def assign(self, *partitions: TopicPartition) -> None:
        """Let the group give the member partitions."""
        self.group.assign(*partitions)
        self.settle()

    def lose(self, *partitions: TopicPartition) -> None:
        """Let the group take partitions from the member without a handover."""
        self.group.lose(*partitions)
        self.settle()

    def settle(self) -> None:
        """Let the member handle all that the group has for it."""
        while self.group.waiting:
            self.runner.go_round()

    def refuse_commits(self) -> None:
        """Let the coordinator refuse commits until `accept_commits`, as in a rebalance that stalls."""
        self.group.refuses = Refusal.REBALANCE

    def accept_commits(self) -> None:
        """Let the coordinator accept what the member commits next, and wait for that."""
        self.group.refuses = None
        self.clock.advance(2.0)

    def next_batch(self, start: SourceOffset, bounds: ReadBounds = UNBOUNDED) -> SourceOffset:
        """Return the plan of the first of three triggers that has one; a trigger may find the member joining again."""
        for _ in range(3):
            end = self.session.latest_offset(start, bounds)
            if end is not start:
                break
        return end

    def ends(self, **offsets: int) -> None:
        """Set the ends of logs: p0=5, p1=7; refunds=3 is that of another topic, which has one partition."""
        for partition, end in ((partition_of(name), end) for name, end in offsets.items()):
            self.cluster.ends[partition] = end
            if partition.topic != "orders":
                self.cluster.topics.setdefault(partition.topic, TopicInfo(TOPIC_ID, 1))

    def recreate(self, count: int = 2, **ends: int) -> None:
        """Let the topic be deleted and created again, with so many partitions."""
        self.cluster.topics["orders"] = TopicInfo(f"id of topic {next(self._ids)}", count)
        self.ends(**ends)

    def committed(self) -> dict[int, int | None]:
        """Return the group's offsets."""
        return {partition.partition: group.offset for partition, group in self.group.committed.items()}


# The beds of the test that runs: their members are stopped at its end (`conftest.py`).
BEDS: list[Bed] = []

START = SourceOffset(LINEAGE)


def joined(*, watched: bool = False, **given: int | str) -> Bed:
    """Return a session to which the group has given partitions, whose logs end there: `joined(p0=5, refunds=7)`.

    Texts are options.
    """
    ends = {name: value for name, value in given.items() if isinstance(value, int)}
    bed = Bed(watched=watched, **{name: value for name, value in given.items() if isinstance(value, str)})
    bed.ends(**ends)
    bed.join(*map(partition_of, ends))
    return bed


def earliest(*, watched: bool = False, **given: int | str) -> Bed:
    """Return such a session that starts at the beginning."""
    return joined(watched=watched, startingOffsets="earliest", **given)


def ranges(offset: SourceOffset) -> list[str]:
    return [str(item) for item in offset.ranges]


def flat(tasks: Iterable[tuple[OffsetRange, ...]]) -> list[str]:
    return [str(item) for task in tasks for item in task]


def lossy(fail: str) -> Bed:
    bed = Bed(failOnDataLoss=fail)
    bed.group.committed[P0] = GroupOffset(10, metadata(LINEAGE, 0, 10))
    bed.join(P0)
    return bed


def replayed(bed: Bed, logged: SourceOffset) -> list[str]:
    return flat(bed.session.tasks(START, logged))
