"""A session on fakes, and the situations that the tests of the session have in common."""

from __future__ import annotations

from collections.abc import Iterable

from spark_groupsource.checkpoint.stop_requests import Run, StopFiles
from spark_groupsource.driver.session import Session
from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset, Pin
from spark_groupsource.model.offsets import OffsetRange, SourceOffset, TopicPartition
from spark_groupsource.sidecars.stop_watch import StopWatch
from tests.unit.fakes import (
    LINEAGE,
    TOPIC_ID,
    FakeCluster,
    FakeMember,
    ManualClock,
    make_options,
    quiet_metrics,
    tp,
)

P0, P1, P2 = tp(0), tp(1), tp(2)
PIN = Pin(0, 2)


def metadata(lineage: str, start: int, end: int, *, pin: Pin = PIN, topic_id: str = TOPIC_ID) -> str:
    return CommitMetadata(lineage, topic_id, start, end, pin).to_text()


class Bed:
    """A session on fakes; pauses let time pass."""

    def __init__(self, *, watched: bool = False, **options: str) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(orders=2)
        self.member = FakeMember(self.clock)
        self.member.exists = self.cluster.has
        self.watch = StopWatch(StopFiles("/nowhere"), Run.here("shop", 0), self.member, 60.0)
        self.paused = 0.0
        self.fixed_after: list[float] = []
        self.session = Session(
            make_options(checkpointLocation="/checkpoint", **options),
            clock=self.clock,
            cluster=self.cluster,
            member=self.member,  # type: ignore[arg-type]
            metrics=quiet_metrics(),
            pause=self._pause,
            watch=self.watch if watched else None,
        )

    def _pause(self, seconds: float) -> None:
        self.paused += seconds
        self.clock.advance(seconds)

    def join(self, *partitions: TopicPartition) -> None:
        """Start the member, and let the group give it partitions."""
        self.member.start()
        self.member.assign(*partitions)

    def ends(self, **offsets: int) -> None:
        """Set the ends of the log: p0=5, p1=7."""
        self.cluster.ends |= {tp(int(name[1:])): end for name, end in offsets.items()}

    def committed(self) -> dict[int, int | None]:
        """Return the group's offsets."""
        return {partition.partition: group.offset for partition, group in self.member.committed.items()}


START = SourceOffset(LINEAGE)


def ranges(offset: SourceOffset) -> list[str]:
    return [str(item) for item in offset.ranges]


def flat(tasks: Iterable[tuple[OffsetRange, ...]]) -> list[str]:
    return [str(item) for task in tasks for item in task]


def restarted(bed: Bed, *partitions: TopicPartition, **options: str) -> Bed:
    """Return the query, killed and started again."""
    again = Bed(**options)
    again.member.committed = bed.member.committed
    again.cluster.topics |= bed.cluster.topics
    again.cluster.ends |= bed.cluster.ends
    again.join(*partitions)
    return again


def lossy(fail: str) -> Bed:
    bed = Bed(failOnDataLoss=fail)
    bed.member.committed[P0] = GroupOffset(10, metadata(LINEAGE, 0, 10))
    bed.join(P0)
    return bed


def replayed(bed: Bed, logged: SourceOffset) -> list[str]:
    return flat(bed.session.tasks(START, logged))
