"""Topics of a pattern that come and go under load, while members join and leave.

The producer knows what it has produced to each topic id, and so what has to be read (P1), how often (P2), and of which
topics a loss has to be reported (P8). Nothing of that knowledge comes from the source.
"""

from __future__ import annotations

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

import pytest

from .batchloop import BatchLoop, LoopSink, Row
from .harness import Independent, wait_for
from .holding import Told
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

PROTOCOLS = ["cooperative", "eager", "kip848"]
NAMES, GENERATIONS, RECORDS = 8, 4, 60
# How long readers have for what a topic holds. Topics of the same name follow each other, so this bounds the test.
READ_S = 60.0
# How long a member may take to notice that a topic is another one: it matches the pattern, and confirms what it finds.
NOTICE_S = 8.0


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic id: what was produced to it, by partition. `kept` ones are deleted when all was read, or never."""

    name: str
    topic_id: str
    produced: tuple[frozenset[str], ...]
    kept: bool
    created_s: float = 0.0
    deleted_s: float = 0.0

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

    def start(self, name: str) -> None:
        """Start a member, or start it again."""
        options = self._options | self.told[name].options
        self.loops[name] = BatchLoop(name, options, self._folder / name, self.sinks[name])

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
        key, until_s = [topic.name, number], topic.deleted_s + NOTICE_S
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
        made.append(Topic(name, topic_id, produced, kept, created_s, time.time()))
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


def judge(made: list[Topic], members: Members, log: str) -> tuple[int, int]:
    """Compare what was produced with what was read and reported.

    Return how many losses had to be reported, and how many nobody could know of.
    """
    times = Counter(row.value for row in members.rows())
    repeated = {value: n for value, n in times.items() if n > 1}
    assert not repeated, f"P2: read more than once: {repeated}\n{members.evidence()}"
    partly: Counter[tuple[str, int]] = Counter()
    excused = 0
    for topic in made:
        unread = topic.values - times.keys()
        assert not (topic.kept and unread), f"P1: never read: {sorted(unread)}\n{members.evidence()}"
        # What no member has read anything of is nobody's to report.
        lost = [n for n, values in enumerate(topic.produced) if 0 < len(values & unread) < len(values)]
        noticed = [n for n in lost if not members.handed_over(topic, n)]
        partly.update((topic.name, n) for n in noticed)
        excused += len(lost) - len(noticed)
    reports = Counter((topic, number) for told in members.told.values() for line in told.lines("data_lost")
                      for topic, number, *_ in line["details"]["ranges"])  # fmt: skip
    for (name, number), count in partly.items():
        # Of what it has handed over, a member logs a warning only: the topic was another one's to read.
        reported = reports[name, number] + log.count(f"'{name}-{number} at ")
        assert reported >= count, f"P8: {name}-{number} lost {count} times, reported {reported}\n{members.evidence()}"
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
    return partly.total(), excused


def _good(folder: Path) -> tuple[list[Topic], Members]:
    """Return what a run without a fault leaves: one topic of two partitions, read by the first member."""
    topic = Topic("t", "id", (frozenset({"a0", "a1"}), frozenset({"b0", "b1"})), kept=True)
    members = Members(folder, {})
    rows = [Row("t", n, offset, f"{letter}{offset}") for n, letter in enumerate("ab") for offset in range(2)]
    members.sinks["first"] = LoopSink({0: rows}, {0: {"t": "id"}}, {0})
    return [topic], members


def test_the_judge_finds_nothing_in_a_good_run(tmp_path: Path) -> None:
    judge(*_good(tmp_path), "")


@pytest.mark.parametrize(
    ("found", "plant"),
    [
        ("P1", lambda _made, rows, _ids: rows.pop()),
        ("P2: read more than once", lambda _made, rows, _ids: rows.append(rows[-1])),
        ("P2: records of another topic id", lambda _made, _rows, ids: ids.update(t="other")),
        ("P7", lambda _made, rows, _ids: rows.reverse()),
        ("P8", lambda made, rows, _ids: (rows.pop(), made.append(replace(made.pop(), kept=False)))),
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
    if found == "P8":
        judge(made, members, "handed_over=['t-1 at 1']")
