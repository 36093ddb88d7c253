"""Topics of a pattern that come and go under load, while members join and leave.

The producer knows what it has produced to each topic id, and so what has to be read (P1), how often (P2), and which
offsets have to be reported as lost (P8): those behind the completed rows, up to what was written when the topic was
deleted. Nothing of that knowledge comes from the source. Only the lower bound of a report that may name too much is the
start of a batch in Spark's own log: see `planned_from`.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from .batchloop import BatchLoop, LoopSink, Row
from .harness import Independent, wait_for
from .holding import Gate, Told, released
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

PROTOCOLS = ["cooperative", "kip848"]
NAMES, GENERATIONS, RECORDS = 8, 4, 60
# How long readers have for what a topic holds. Topics of the same name follow each other, so this bounds the test.
READ_S = 60.0
# How long a member may take to notice that a topic is another one: it matches the pattern, and confirms what it finds.
NOTICE_S = 8.0
# Reports and deletions have the times of one machine, but a report has milliseconds.
TICK_S = 0.01


class Report(NamedTuple):
    """A loss that a member has reported: offsets of a partition, the second one exclusive."""

    at: float
    topic: str
    number: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic id: what was produced to it, by partition. `kept` ones are deleted when all was read, or never.

    `deleted_s` is when the deletion was asked for, None for a topic that stays. `seen` is how much of each partition
    was written so long before that, that a member which reads it knows of it.
    """

    name: str
    topic_id: str
    produced: tuple[frozenset[str], ...]
    kept: bool
    created_s: float = 0.0
    deleted_s: float | None = None
    seen: tuple[int, ...] = ()

    @property
    def values(self) -> frozenset[str]:
        """All that was produced to it."""
        return frozenset().union(*self.produced)


class Members:
    """The members of the group. The second one leaves and comes back all the time; both keep their checkpoints."""

    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder, self._options = folder, options
        self.told = {name: Told(folder, name) for name in ("first", "second")}
        self.sinks = {name: LoopSink() for name in self.told}
        self.loops: dict[str, BatchLoop] = {}
        self.restarts = 0

    def start(self, name: str, before_commit: Callable[[list[Row]], object] = lambda _: None) -> None:
        """Start a member, or start it again."""
        options = self._options | self.told[name].options
        folder, sink = self._folder / name, self.sinks[name]
        self.loops[name] = BatchLoop(name, options, folder, sink, before_commit=before_commit)

    def rows(self) -> list[Row]:
        """Return the rows of all completed batches."""
        return [row for sink in self.sinks.values() for row in sink.rows()]

    def values(self) -> set[str]:
        """Return which values are in completed batches."""
        return {row.value for row in self.rows()}

    def handed_over(self, topic: Topic, number: int) -> bool:
        """Whether the members that read of a partition have given it away before they could notice its deletion.

        The group forgets its offset with the topic, so the next owner cannot know of a loss.
        """
        key, until_s = [topic.name, number], (topic.deleted_s or 0.0) + NOTICE_S
        gone = {
            name
            for name, told in self.told.items()
            for event in ("revoked", "lost")
            for line in told.lines(event)
            if topic.created_s < line["at"] < until_s and key in line["partitions"]
        }
        return all(
            name in gone
            for name, sink in self.sinks.items()
            if any(row.value in topic.produced[number] for row in sink.rows())
        )

    def planned_from(self, topic: Topic, number: int) -> int | None:
        """Return where the newest batch of a member begins that has this partition in Spark's log, None without one.

        A topic may be deleted while tasks read. How far they came, the driver cannot know, and it reports the batch.
        """
        starts = []
        for loop in self.loops.values():
            for entry in sorted((loop.checkpoint / "offsets").glob("[0-9]*"), key=lambda entry: -int(entry.name)):
                planned = json.loads(entry.read_text().splitlines()[-1])["topics"].get(topic.name, {})
                start, end = planned.get("ranges", {}).get(str(number), (0, 0))
                if planned.get("id") == topic.topic_id and start < end:
                    starts.append(start)
                    break
        return min(starts, default=None)

    def reports(self) -> list[Report]:
        """Return the losses that members have reported, in the order of their time.

        A range without an offset names where a member was in a topic of which it has seen no more.
        """
        found = [
            Report(line["at"], topic, number, start, end)
            for told in self.told.values()
            for line in told.lines("data_lost")
            for topic, number, start, end in line["details"]["ranges"]
        ]
        return sorted(found)

    def check(self) -> bool:
        """Fail when a member has."""
        return all(loop.check() for loop in self.loops.values())

    def evidence(self) -> str:
        """Return what the members reported."""
        return "\n".join([*map(repr, self.loops.values()), *(told.tail() for told in self.told.values())])

    @contextmanager
    def coming_and_going(self) -> Iterator[None]:
        """Let the second member leave and come back while the block runs; both run at the end."""
        ended = threading.Event()

        def churn() -> None:
            while not ended.wait(9):
                self.loops["second"].stop()
                if ended.wait(4):
                    break
                self.start("second")
                self.restarts += 1

        thread = threading.Thread(target=churn)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(90)
        if not self.loops["second"].active:
            self.start("second")

    def stop(self) -> None:
        """Stop all members."""
        for loop in self.loops.values():
            loop.stop()


def life_of(prefix: str, number: int, client: Independent, members: Members, seed: int) -> list[Topic]:
    """Let topics of one name come and go; return what was produced to each."""
    chance, made = random.Random(seed * 1_000 + number), []
    name = f"{prefix}-t{number}"
    for generation in range(GENERATIONS):
        partitions = chance.randint(1, 5)
        last = generation == GENERATIONS - 1
        created_s = time.time()
        client.create_topic(name, partitions)
        topic_id = client.topic_ids([name])[name]
        values = [f"{name}/{generation}/{n}" for n in range(RECORDS)]
        placed = [(value, n % partitions) for n, value in enumerate(values)]
        kept = last or chance.random() < 0.5
        produced = tuple(frozenset(values[n::partitions]) for n in range(partitions))
        client.produce_to(name, placed[: RECORDS // 2])
        if not kept:
            time.sleep(chance.uniform(0, 5))
        client.produce_to(name, placed[RECORDS // 2 :])
        if kept:
            wait_for(
                f"generation {generation} of {name} to be read",
                lambda values=values: members.check() and members.values().issuperset(values),
                READ_S,
                lambda values=values: f"{sorted(set(values) - members.values())}\n{members.evidence()}",
            )
        # What was written last, nobody need have seen.
        seen = (0,) * partitions
        made.append(Topic(name, topic_id, produced, kept, created_s, None if last else time.time(), seen))
        if not last:
            client.delete_topic(name)
    return made


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p1_p2_p8_topics_come_and_go_under_load(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """32 topics of 8 names, each time with another number of partitions.

    Some are deleted when all of them was read, the others right after records came: of these nobody may have read
    anything, or a part.
    """
    chosen = with_protocol(options, protocol) | {"subscribePattern": f"{topic}-t.*", "failOnDataLoss": "false"}
    del chosen["subscribe"]
    if protocol == "kip848":
        client.set_group_session_timeout(group, 6_000)
    members = Members(tmp_path, chosen)
    members.start("first")
    members.start("second")
    seed = random.randrange(1_000_000)
    print(f"seed={seed}")
    with caplog.at_level(logging.WARNING), members.coming_and_going(), ThreadPoolExecutor(NAMES) as pool:
        lives = [pool.submit(life_of, topic, number, client, members, seed) for number in range(NAMES)]
        made = [one for life in lives for one in life.result()]
    members.check()
    members.stop()
    losses, unknown = judge(made, members, caplog.text)
    rows = len(members.rows())
    print(f"topics={len(made)} losses={losses} unknown={unknown} restarts={members.restarts} rows={rows}")


@pytest.mark.parametrize("again", [0, 1, 5], ids=["deleted", "fewer partitions", "more partitions"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p8_each_loss_is_reported_with_its_offsets(
    protocol: str, again: int, client: Independent, options: dict[str, str], topic: str, tmp_path: Path
) -> None:
    """Topics are deleted when a member has seen all that was written, and has read a part of it.

    The member is alone, and its second batch is held in the sink meanwhile. So all of these losses have to be reported,
    up to the last record.
    """
    chosen = with_protocol(options, protocol) | {"subscribePattern": f"{topic}-t.*", "failOnDataLoss": "false"}
    del chosen["subscribe"]
    made = [written(client, f"{topic}-t{number}", number + 2) for number in range(3)]
    gate, members, batches = Gate(), Members(tmp_path, chosen | {"maxOffsetsPerTrigger": str(RECORDS)}), []

    def hold_the_second(rows: list[Row]) -> None:
        batches.append(rows)
        gate.armed = sum(map(bool, batches)) == 2
        gate(len(batches), tuple(rows))

    members.start("first", hold_the_second)
    with released(gate):
        gate.wait_reached(members.evidence)
        read = members.values() | {row.value for row in batches[-1]}
        parts = [len(values & read) for one in made for values in one.produced]
        assert all(parts), f"each partition is to be read in part: {parts}\n{members.evidence()}"
        deleted = [replace(one, deleted_s=time.time(), seen=tuple(map(len, one.produced))) for one in made]
        for one in made:
            client.delete_topic(one.name)
            if again:
                client.create_topic(one.name, again)
        gate.release()
        # Tasks that wait for records of a recreated topic give up after a silence.
        wait_for(
            "reports of all that was lost",
            lambda: members.check() and not _unreported(deleted, members),
            evidence=lambda: f"{_unreported(deleted, members)}\n{members.evidence()}",
        )
    members.stop()
    parts = sum(len(one.produced) for one in made)
    assert judge(deleted, members, "", handed_over=lambda *_: False) == (parts, 0)


def _unreported(deleted: list[Topic], members: Members) -> list[Loss]:
    """Return the losses of which no report names the last record."""
    reports = members.reports()
    return [
        loss
        for loss in losses_of(deleted, members)
        if not any(loss.is_exact(report) and report.end == loss.written for report in reports)
    ]


def written(client: Independent, name: str, partitions: int) -> Topic:
    """Create a topic, and produce all its records."""
    created_s = time.time()
    client.create_topic(name, partitions)
    values = [f"{name}/{n}" for n in range(RECORDS)]
    client.produce_to(name, [(value, n % partitions) for n, value in enumerate(values)])
    produced = tuple(frozenset(values[n::partitions]) for n in range(partitions))
    return Topic(name, client.topic_ids([name])[name], produced, False, created_s)


def judge(
    made: list[Topic], members: Members, log: str, handed_over: Callable[[Topic, int], bool] | None = None
) -> tuple[int, int]:
    """Compare what was produced with what was read and reported.

    Return how many losses had to be reported, and how many nobody could know of: those of partitions that were
    `handed_over`, which is asked of the members by default.
    """
    times = Counter(row.value for row in members.rows())
    repeated = {value: n for value, n in times.items() if n > 1}
    assert not repeated, f"P2: read more than once: {repeated}\n{members.evidence()}"
    for topic in made:
        unread = topic.values - times.keys()
        assert not (topic.kept and unread), f"P1: never read: {sorted(unread)}\n{members.evidence()}"
    required, excused = judge_losses(made, members, log, handed_over or members.handed_over)
    ids = {value: topic.topic_id for topic in made for value in topic.values}
    for sink in members.sinks.values():
        for number, rows in sink.batches.items():
            planned = sink.topic_ids[number]
            other = [row for row in rows if planned[row.topic] != ids[row.value]]
            assert not other, f"P2: records of another topic id in batch {number}: {other[:5]}"
    for sink in members.sinks.values():
        read: dict[tuple[str, int], int] = {}
        for row in sink.rows():
            key = ids[row.value], row.partition
            assert row.offset > read.get(key, -1), f"P7: {row} after offset {read[key]}"
            read[key] = row.offset
    return required, excused


@dataclass(frozen=True, slots=True)
class Loss:
    """What is known of a partition of a topic that was deleted: each of its offsets is a record.

    Completed batches have those below `read`. A report begins there, or at `planned`, where the newest batch begins.
    """

    topic: Topic
    number: int
    planned: int
    read: int

    @property
    def written(self) -> int:
        """The end of the log."""
        return len(self.topic.produced[self.number])

    def may_be_meant(self, report: Report) -> bool:
        """Whether the report came after the topic's deletion, and names nothing that was never written."""
        named = (report.topic, report.number) == (self.topic.name, self.number)
        return named and report.at >= (self.topic.deleted_s or 0.0) - TICK_S and report.end <= self.written

    def is_exact(self, report: Report) -> bool:
        """Whether the report is about this topic, and names nothing that completed batches have."""
        return self.may_be_meant(report) and report.start >= min(self.planned, self.read)

    def missing_in(self, reports: list[Report]) -> set[int]:
        """Return the lost offsets that no report names, of those that a member must have seen."""
        known = set(range(self.read, self.topic.seen[self.number]))
        return known - {n for report in reports for n in range(report.start, report.end)}


def losses_of(made: list[Topic], members: Members) -> list[Loss]:
    """Return the partitions of all topics that were deleted, with how far completed batches have read them."""
    found = []
    offsets = {row.value: row.offset for row in members.rows()}
    for topic in made:
        if topic.deleted_s is None:
            continue
        for number, values in enumerate(topic.produced):
            read = sorted(offsets[value] for value in values & offsets.keys())
            assert read == list(range(len(read))), f"P8: {topic.name}-{number}: gaps in {read}\n{members.evidence()}"
            planned = members.planned_from(topic, number)
            found.append(Loss(topic, number, len(read) if planned is None else planned, len(read)))
    return found


def judge_losses(
    made: list[Topic], members: Members, log: str, handed_over: Callable[[Topic, int], bool]
) -> tuple[int, int]:
    """Each loss is reported with its offsets, after the deletion, and nothing is that was never written.

    What no member has read anything of is nobody's to report. Return how many had to be reported, and how many nobody
    could know of. More than was lost may be reported, which is no silence: the group's offset is deleted with the
    topic, and a member that comes to the partition after that does not know how far others have read. Such reports are
    counted, and say nothing about a loss.
    """
    losses, reports, required, excused = losses_of(made, members), members.reports(), Counter[tuple[str, int]](), 0
    for report in reports:
        about_it = [loss for loss in losses if (report.topic, report.number) == (loss.topic.name, loss.number)]
        assert report.start == report.end or any(loss.may_be_meant(report) for loss in about_it), (
            f"P8: {report} was no loss: {about_it}\n{members.evidence()}"
        )
    overstated = [report for report in reports if not any(loss.is_exact(report) for loss in losses)]
    print(f"reports={len(reports)} overstated={overstated}")
    for loss in losses:
        if not 0 < loss.read < loss.written:
            continue
        if handed_over(loss.topic, loss.number):
            excused += 1
            continue
        about = [report for report in reports if loss.is_exact(report)]
        # Of what it has handed over, a member logs a warning only: the topic was another one's to read.
        warned = f"'{loss.topic.name}-{loss.number} at {loss.read}'" in log
        if not warned:
            assert about, f"P8: {loss} was not reported\n{members.evidence()}"
            begin = min(report.start for report in about)
            assert begin <= loss.read, f"P8: {loss} begins before what was reported: {about}\n{members.evidence()}"
            unnamed = loss.missing_in(about)
            assert not unnamed, f"P8: offsets {sorted(unnamed)} of {loss} are in none of {about}\n{members.evidence()}"
        required[loss.topic.name, loss.number] += 1
    for (name, number), count in required.items():
        reported = sum(report[1:3] == (name, number) for report in reports) + log.count(f"'{name}-{number} at ")
        assert reported >= count, f"P8: {name}-{number} lost {count} times, reported {reported}\n{members.evidence()}"
    return required.total(), excused


def _good(folder: Path) -> tuple[list[Topic], Members]:
    """Return what a run without a fault leaves.

    A topic with two and three records in its partitions, deleted when the first member had read all but the last two;
    and the report of that.
    """
    topic = Topic("t", "id", (frozenset({"a0", "a1"}), frozenset({"b0", "b1", "b2"})), False, 5.0, 10.0, (2, 3))
    members = Members(folder, {})
    rows = [Row("t", 0, 0, "a0"), Row("t", 0, 1, "a1"), Row("t", 1, 0, "b0")]
    members.sinks["first"] = LoopSink({0: rows}, {0: {"t": "id"}}, {0})
    _report(members, 12.0, ["t", 1, 1, 3])
    return [topic], members


def _report(members: Members, at: float, *ranges: list[str | int]) -> None:
    """Let the first member have reported these losses alone."""
    line = {"at": at, "event": "data_lost", "state": "", "partitions": [], "details": {"ranges": ranges}}
    members.told["first"].path.write_text(json.dumps(line) + "\n")


def test_the_judge_finds_nothing_in_a_good_run(tmp_path: Path) -> None:
    assert judge(*_good(tmp_path), "") == (1, 0)


@pytest.mark.parametrize(
    ("found", "plant"),
    [
        ("P1", lambda made, _rows, _ids: made.append(replace(made.pop(), kept=True))),
        ("P2: read more than once", lambda _made, rows, _ids: rows.append(rows[-1])),
        ("P2: records of another topic id", lambda _made, _rows, ids: ids.update(t="other")),
        ("P7", lambda _made, rows, _ids: rows.reverse()),
        ("P8: t-0: gaps", lambda _made, rows, _ids: rows.pop(0)),
    ],
)
def test_the_judge_finds_what_is_planted(
    found: str, plant: Callable[[list[Topic], list[Row], dict[str, str]], object], tmp_path: Path
) -> None:
    made, members = _good(tmp_path)
    sink = members.sinks["first"]
    plant(made, sink.batches[0], sink.topic_ids[0])
    with pytest.raises(AssertionError, match=found):
        judge(made, members, "")


@pytest.mark.parametrize(
    ("at", "ranges", "found"),
    [
        (12.0, [], "was not reported"),
        (12.0, [["t", 1, 1, 1]], r"offsets \[1, 2\] of"),
        (12.0, [["t", 1, 2, 3]], "begins before"),
        (12.0, [["t", 1, 1, 2]], r"offsets \[2\] of"),
        (12.0, [["t", 1, 0, 3]], "was not reported"),
        (12.0, [["t", 1, 1, 4]], "was no loss"),
        (12.0, [["t", 1, 1, 3], ["t", 2, 0, 2]], "was no loss"),
        (9.0, [["t", 1, 1, 3]], "was no loss"),
    ],
    ids=[
        "none",
        "nothing",
        "too late",
        "too little",
        "read",
        "never written",
        "no such partition",
        "before the deletion",
    ],
)
def test_the_judge_finds_reports_that_are_not_exact(
    at: float, ranges: list[list[str | int]], found: str, tmp_path: Path
) -> None:
    made, members = _good(tmp_path)
    _report(members, at, *ranges)
    with pytest.raises(AssertionError, match=found):
        judge(made, members, "")


def test_the_judge_takes_the_warning_of_a_member_that_has_handed_over(tmp_path: Path) -> None:
    made, members = _good(tmp_path)
    _report(members, 12.0)
    judge(made, members, "handed_over=['t-1 at 1']")
    with pytest.raises(AssertionError, match="was not reported"):
        judge(made, members, "handed_over=['t-1 at 2']")
