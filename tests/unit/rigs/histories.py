"""Builds histories of fault runs by hand, for tests of what judges and draws them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.faults.history import (
    Commit,
    Completed,
    Fault,
    GroupRecord,
    History,
    Logged,
    MemberEvent,
    Produced,
    QueryRun,
    Row,
    Run,
    SinkBatch,
    Start,
    TopicLife,
)
from tests.faults.judge.checker import check
from tests.faults.judge.verdict import PROMISES, Verdict

TOPIC = "orders"
Spans = Mapping[int, tuple[int, int]]


def record_id(partition: int, offset: int) -> str:
    """The value of the record there."""
    return f"{partition}/{offset}"


class Story:
    """A history that grows line by line; its lists may be edited before `history()`. Partitions are of one topic."""

    def __init__(self) -> None:
        self.run = Run(7, "cooperative", "rig", (TOPIC,), 6.0, 0.0, 60.0, "4.1.1")
        self.faults: list[Fault] = []
        self.topics = [TopicLife(TOPIC, "T", 0.0)]
        self.starts: list[Start] = []
        self.runs: list[QueryRun] = []
        self.group: list[GroupRecord] = []
        self.produced: list[Produced] = []
        self.log: list[Logged] = []
        self.commits: list[Commit] = []
        self.members: list[MemberEvent] = []
        self.batches: list[SinkBatch] = []
        self.completed: list[Completed] = []
        self._runs: Counter[tuple[str, int]] = Counter()
        self._plans: dict[tuple[str, int], int] = {}
        self._written: set[tuple[int, int]] = set()

    def history(self) -> History:
        parts = {name: tuple(getattr(self, name)) for name in History.__slots__ if name not in ("run", "watch")}
        return History(self.run, **parts)

    # --- the topic

    def write(self, partition: int, start: int, end: int, *markers: int, topic_id: str = "T", at: float = 0.0) -> None:
        """Records that are acknowledged and stay; at the offsets `markers` there is no record."""
        for offset in range(start, end):
            if offset not in markers:
                self._written.add((partition, offset))
                value = record_id(partition, offset)
                self.produced.append(Produced(TOPIC, partition, offset, value, topic_id, at))
                self.log.append(Logged(TOPIC, partition, offset, value, topic_id))

    def remove(self, partition: int, start: int, end: int) -> None:
        """Records are gone from the log."""
        self.log = [one for one in self.log if one.partition != partition or not start <= one.offset < end]

    # --- members

    def tell(self, at: float, query: str, event: str, *partitions: int, **details: Any) -> None:
        """What the member itself says; it may be a lie."""
        named = tuple((TOPIC, number) for number in partitions)
        self.members.append(MemberEvent(at, query, f"lineage of {query}#1", event, named, details))

    def assign(self, at: float, query: str, *partitions: int) -> None:
        """The coordinator gives the query these partitions too, and the member says so."""
        self.tell(at, query, "assigned", *partitions)
        self._own(at, query, self._owned(query) | {(TOPIC, number) for number in partitions})

    def _owned(self, query: str) -> set[tuple[str, int]]:
        newest = next((one for one in reversed(self.group) if one.query == query), None)
        return set(newest.partitions) if newest is not None else set()

    def _own(self, at: float, query: str, partitions: set[tuple[str, int]]) -> None:
        self.group.append(GroupRecord(-1, at, query, f"{query}-member", "owns", tuple(sorted(partitions))))

    def leave(self, at: float, query: str) -> None:
        """The member leaves, and the coordinator takes it out of the group."""
        self.tell(at, query, "left")
        self.group.append(GroupRecord(-1, at, query, f"{query}-member", "gone"))

    def expire(self, at: float, query: str) -> None:
        """The coordinator removes a silent member."""
        self.group.append(GroupRecord(-1, at, query, f"{query}-member", "expired"))

    def revoke(self, at: float, query: str, *partitions: int, outcome: str = "COMPLETE") -> None:
        self.tell(at, query, "revoked", *partitions, outcome=outcome, drain_ms=250, committed=1, uncommitted=0)
        self._own(at, query, self._owned(query) - {(TOPIC, number) for number in partitions})

    def fault(self, kind: str, target: str, at: float, until: float, clean: bool = False, **details: Any) -> None:
        self.faults.append(Fault(len(self.faults) + 1, kind, target, at, at + 0.1, until, clean, details))

    # --- batches and commits

    def plan(self, at: float, life: str, number: int, spans: Spans, *, lineage: str = "", topic_id: str = "T") -> None:
        """Spark's offset log has the batch."""
        ranges = {str(partition): list(span) for partition, span in spans.items()}
        end = {
            "v": 1,
            "lineage": lineage or f"lineage of {life}",
            "topics": {TOPIC: {"id": topic_id, "ranges": ranges}},
        }
        self._plans[life, number] = len(self.completed)
        self.completed.append(Completed(life.partition("#")[0], life, number, at, None, end))

    def sink(self, at: float, life: str, number: int, spans: Spans) -> None:
        """A run of the batch has written what the log has there, each partition in a task of its own."""
        rows: tuple[Row, ...] = tuple(
            (partition, TOPIC, partition, offset, record_id(partition, offset))
            for partition, (start, end) in spans.items()
            for offset in range(start, end)
            if (partition, offset) in self._written
        )
        attempt = self._runs[life, number]
        self._runs[life, number] += 1
        self.batches.append(SinkBatch(life.partition("#")[0], life, number, attempt, at - 0.1, at, rows))

    def complete(self, at: float, life: str, number: int) -> None:
        """Spark's commit log has the batch."""
        n = self.plan_of(life, number)
        self.completed[n] = replace(self.completed[n], at=at)

    def commit(
        self,
        at: float,
        life: str,
        partition: int,
        span: tuple[int, int],
        *,
        lineage: str = "",
        topic_id: str = "T",
        before: int | None = None,
    ) -> None:
        """The group takes the end of the range; `before` it takes that offset of the partition, if given."""
        who = lineage or f"lineage of {life}"
        metadata = {"gk": 1, "l": who, "t": topic_id, "r": list(span), "p": 0, "n": 2}
        place = len(self.commits) if before is None else self.commit_of(partition, before)
        self.commits.insert(place, Commit(at, TOPIC, partition, span[1], json.dumps(metadata)))

    def batch(self, at: float, life: str, number: int, spans: Spans, *, lineage: str = "") -> None:
        """A batch as it should be: planned, 0.3 s later in the sink, then complete, then committed."""
        self.plan(at, life, number, spans, lineage=lineage)
        self.sink(at + 0.3, life, number, spans)
        self.complete(at + 0.4, life, number)
        for partition, span in spans.items():
            self.commit(at + 0.5, life, partition, span, lineage=lineage)

    # --- editing

    def plan_of(self, life: str, number: int) -> int:
        """Where the batch is in `completed`."""
        return self._plans[life, number]

    def run_of(self, life: str, number: int, attempt: int = 0) -> int:
        """Where the run is in `batches`."""
        key = (life, number, attempt)
        return next(n for n, one in enumerate(self.batches) if (one.checkpoint, one.batch, one.attempt) == key)

    def ranges(self, life: str, number: int) -> dict[str, list[int]]:
        """What a batch has planned."""
        return self.completed[self.plan_of(life, number)].end["topics"][TOPIC]["ranges"]

    def change_commit(self, partition: int, offset: int, old: str = "", new: str = "", **changes: Any) -> None:
        """Replace a text in the metadata of the first commit of this offset, and other fields."""
        n = self.commit_of(partition, offset)
        metadata = self.commits[n].metadata.replace(old, new)
        self.commits[n] = replace(self.commits[n], metadata=metadata, **changes)

    def edit_rows(self, life: str, number: int, rows: Any, attempt: int = 0) -> None:
        """Replace a run's rows by `rows(old rows)`."""
        n = self.run_of(life, number, attempt)
        self.batches[n] = replace(self.batches[n], rows=tuple(rows(self.batches[n].rows)))

    def commit_of(self, partition: int, offset: int) -> int:
        """Where the first commit of this offset is in `commits`."""
        return next(n for n, one in enumerate(self.commits) if (one.partition, one.offset) == (partition, offset))


def two_members() -> Story:
    """q1 and q2 share two partitions of 100 offsets: a clean handover of partition 1, then q1 is killed.

    q1's batch 2 is in the sink, but not complete when q1 dies; q2 takes over and reads its records again, and so
    does q1 when it is back, before q2 has committed them: the one batch that may be repeated, 19 records (offset 50
    of partition 0 is a transaction marker).
    """
    story = Story()
    story.write(0, 0, 100, 50)
    story.write(1, 0, 100)
    story.tell(0.1, "q1", "started")
    story.assign(0.2, "q1", 0, 1)
    story.commit(0.3, "q1#1", 0, (0, 0))
    story.commit(0.3, "q1#1", 1, (0, 0))
    story.batch(1.0, "q1#1", 0, {0: (0, 20), 1: (0, 20)})
    story.tell(2.5, "q2", "started")
    story.revoke(3.0, "q1", 1)
    story.assign(3.1, "q2", 1)
    story.batch(4.0, "q1#1", 1, {0: (20, 40)})
    story.batch(4.1, "q2#1", 0, {1: (20, 40)})
    story.plan(6.0, "q1#1", 2, {0: (40, 60)})
    story.sink(6.2, "q1#1", 2, {0: (40, 60)})
    story.fault("app-killed", "q1", 6.3, 14.0)
    story.expire(11.9, "q1")
    story.assign(12.0, "q2", 0)
    story.tell(12.1, "q1", "started")
    story.sink(12.3, "q1#1", 2, {0: (40, 60)})
    story.complete(12.4, "q1#1", 2)
    story.batch(12.2, "q2#1", 1, {0: (40, 70), 1: (40, 60)})
    story.batch(15.0, "q2#1", 2, {0: (70, 100), 1: (60, 100)})
    return story


def cleanly(story: Story) -> Story:
    """Take away what the rig and the coordinator know of anything unclean: the repeat is unexplained then."""
    story.faults = [replace(fault, clean=True) for fault in story.faults]
    story.group = [replace(one, event="gone") if one.event == "expired" else one for one in story.group]
    return story


def with_gap() -> Story:
    """q2's last batch begins ten offsets later than the one before it ended: those the rig has deleted."""
    story = two_members()
    story.remove(0, 70, 80)
    story.fault("records-deleted", TOPIC, 14.5, 15.5, deleted=[[TOPIC, 0, 70, 80]])
    story.completed[-1].end["topics"][TOPIC]["ranges"]["0"] = [80, 100]
    story.change_commit(0, 100, "[70", "[80")
    story.edit_rows("q2#1", 2, lambda rows: [row for row in rows if row[2] == 1 or row[3] >= 80])
    return story


def begun_at_10(story: Story) -> Story:
    """The story of `two_members`, but the group pins and reads partition 0 from offset 10."""
    swap(story, 0, '"p": 0', '"p": 10')
    story.commits[0] = replace(story.commits[0], offset=10)
    swap(story, 0, "[0, 0]", "[10, 10]")
    swap(story, 0, "[0, 20]", "[10, 20]")
    story.ranges("q1#1", 0)["0"] = [10, 20]
    story.edit_rows("q1#1", 0, lambda rows: [row for row in rows if row[2] == 1 or row[3] >= 10])
    return story


def swap(story: Story, partition: int, old: str, new: str) -> None:
    """Replace a text in the metadata of a partition's commits."""
    story.commits = [
        replace(one, metadata=one.metadata.replace(old, new)) if one.partition == partition else one
        for one in story.commits
    ]


def not_slow(story: Story) -> Story:
    """Batch 2 of q1 takes no longer than the drain deadline allows."""
    story.run = replace(story.run, drain_timeout_s=7.0)
    return story


def away_coordinator() -> Story:
    """q1 completes two batches while the coordinator is dead; nobody takes their commits, and q2 reads them again."""
    story = not_slow(cleanly(two_members()))
    story.fault("coordinator-killed", "broker-1", 5.5, 13.0)
    n = story.run_of("q1#1", 2, 1)
    del story.batches[n]
    story.complete(6.4, "q1#1", 2)
    story.plan(7.0, "q1#1", 3, {0: (60, 70)})
    story.sink(7.2, "q1#1", 3, {0: (60, 70)})
    story.complete(7.3, "q1#1", 3)
    return story


def recreated(*, unread: bool = False) -> Story:
    """The story of `two_members`; then the topic is deleted and recreated, and q2 reads the new one."""
    story = two_members()
    if unread:
        story.write(0, 100, 110, at=0.5)
    story.topics = [replace(story.topics[0], deleted_at=30.0), TopicLife(TOPIC, "U", 31.0)]
    story.log = []
    story.run = replace(story.run, ended_at=60.0)
    for partition in (0, 1):
        story.write(partition, 0, 10, topic_id="U")
        story.commit(32.0, "q2#1", partition, (0, 0), topic_id="U")
    spans = {0: (0, 10), 1: (0, 10)}
    story.plan(32.1, "q2#1", 3, spans, topic_id="U")
    story.sink(32.4, "q2#1", 3, spans)
    story.complete(32.5, "q2#1", 3)
    for partition, span in spans.items():
        story.commit(32.6, "q2#1", partition, span, topic_id="U")
    return story


def rewound_after_recreation(*, start: int = 0, life: str = "q1#1") -> Story:
    """The story of `recreated`, in which q1 has read the deleted topic only.

    q2 reads the new one in two batches, and leaves. The rig moves the group from 20 to 15. `life` goes on at `start`.
    """
    story, later = recreated(), "q2#1"
    story.write(0, 10, 20, topic_id="U")
    story.plan(33.0, later, 4, {0: (10, 20)}, topic_id="U")
    story.sink(33.3, later, 4, {0: (10, 20)})
    story.complete(33.4, later, 4)
    story.commit(33.5, later, 0, (10, 20), topic_id="U")
    story.leave(34.0, "q2")
    story.fault("group-rewound", "rig", 34.1, 38.0, moved=[[TOPIC, 0, 20, 15]])
    story.commits.append(Commit(34.15, TOPIC, 0, 15, ""))
    number = 3 if life == "q1#1" else 0
    story.assign(35.0, life[:2], 0)
    story.commit(36.0, life, 0, (start, start), topic_id="U")
    story.plan(36.1, life, number, {0: (start, 20)}, topic_id="U")
    story.sink(36.4, life, number, {0: (start, 20)})
    story.complete(36.5, life, number)
    story.commit(36.6, life, 0, (start, 20), topic_id="U")
    return story


def recreated_with_another_partition() -> Story:
    """The story of `recreated`, with a partition 2 that only the new topic has."""
    story = recreated()
    story.assign(31.9, "q2", 2)
    story.write(2, 0, 10, topic_id="U")
    story.commit(32.7, "q2#1", 2, (0, 0), topic_id="U")
    story.plan(32.8, "q2#1", 4, {2: (0, 10)}, topic_id="U")
    story.sink(32.9, "q2#1", 4, {2: (0, 10)})
    story.complete(33.0, "q2#1", 4)
    story.commit(33.1, "q2#1", 2, (0, 10), topic_id="U")
    return story


def cut_short(*, deleted: bool = True) -> Story:
    """A batch of [100, 110) is in flight when its topic is deleted: it reads [100, 104), and the rest is reported.

    With `deleted=False` the topic lives, and all else is the same.
    """
    story = two_members()
    story.write(0, 100, 110, at=0.5)
    story.plan(29.9, "q2#1", 3, {0: (100, 110)})
    story.sink(31.0, "q2#1", 3, {0: (100, 104)})
    story.complete(31.1, "q2#1", 3)
    story.tell(31.15, "q2", "data_lost", 0, ranges=[[TOPIC, 0, 104, 110]])
    story.commit(31.2, "q2#1", 0, (100, 110))
    if deleted:
        story.topics = [replace(story.topics[0], deleted_at=30.0), TopicLife(TOPIC, "U", 30.5)]
        story.log = []
        story.write(0, 0, 10, topic_id="U", at=30.6)
        story.commit(32.0, "q2#1", 0, (0, 0), topic_id="U")
        story.plan(32.1, "q2#1", 4, {0: (0, 10)}, topic_id="U")
        story.sink(32.4, "q2#1", 4, {0: (0, 10)})
        story.complete(32.5, "q2#1", 4)
        story.commit(32.6, "q2#1", 0, (0, 10), topic_id="U")
    story.run = replace(story.run, ended_at=60.0)
    return story


def large_story(records: int, batches: int, partitions: int) -> Story:
    """Two queries with half of the partitions each, nothing repeated."""
    story, share = Story(), records // partitions
    for partition in range(partitions):
        story.write(partition, 0, share)
        story.commit(0.1, f"q{partition % 2 + 1}#1", partition, (0, 0))
    for query in (0, 1):
        story.assign(0.0, f"q{query + 1}", *range(query, partitions, 2))
    per_query = batches // 2
    marks = [share * n // per_query for n in range(per_query + 1)]
    for n in range(per_query):
        for query in (0, 1):
            life, at = f"q{query + 1}#1", 1.0 + n * 0.5 + query * 0.01
            spans = dict.fromkeys(range(query, partitions, 2), (marks[n], marks[n + 1]))
            story.plan(at, life, n, spans)
            story.sink(at + 0.2, life, n, spans)
            story.complete(at + 0.3, life, n)
            for partition, span in spans.items():
                story.commit(at + 0.4, life, partition, span)
    return story


# --- judging


def judged(story: Story) -> Verdict:
    return check(story.history())


def texts(verdict: Verdict, promise: str) -> str:
    return "\n".join(violation.text for violation in verdict.violations[promise])


def assert_good(story: Story) -> Verdict:
    verdict = judged(story)
    assert verdict.good, [v.text for promise in PROMISES for v in verdict.violations[promise]] + list(verdict.doubts)
    return verdict


def assert_violated(story: Story, *promises: str) -> Verdict:
    verdict = judged(story)
    assert verdict.violated() == sorted(promises), {p: texts(verdict, p) for p in PROMISES}
    return verdict
