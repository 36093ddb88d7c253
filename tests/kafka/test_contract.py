"""The promises that need no second member, under each protocol: replay, order, commits, losses.

What the others promise (P1, P2, P5, P6) needs two: test_takeover.py, test_drain.py, test_fenced.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .application import AppQuery, Batch
from .harness import Record, wait_for
from .holding import Held, OffsetWatch, released
from .test_drain import Scene, make_scene
from .test_takeover import PROTOCOLS

__all__ = ["make_scene"]

pytestmark = pytest.mark.kafka

# Offsets of partition 0 in the tests that remove [10, 15).
LEFT = {*range(10), *range(15, 30)}


class FailsOnce:
    """A sink that fails in the first batch with records after it was armed, when the batch is written."""

    def __init__(self) -> None:
        self.armed = False

    def __call__(self, _number: int, records: tuple[Record, ...]) -> None:
        """Fail, once."""
        if self.armed and records:
            self.armed = False
            raise RuntimeError("the sink fails on purpose")


def in_order(batches: list[Batch]) -> bool:
    """Whether offsets rise in each partition over these batches."""
    seen: dict[tuple[str, int], int] = {}
    for batch in batches:
        for topic, number, offset in batch.records:
            if offset <= seen.get((topic, number), -1):
                return False
            seen[topic, number] = offset
    return True


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p3_p4_p7_a_batch_that_failed_runs_again_as_it_was(protocol: str, make_scene: Callable[[str], Scene]) -> None:
    """1. The sink has batch N and fails. 2. More records are written. 3. The query starts again on its checkpoint."""
    scene, sink = make_scene(protocol), FailsOnce()
    query = scene.start_and_read("first", sink)
    with OffsetWatch(scene.client, scene.group) as watch:
        before = scene.client.committed(scene.group)
        sink.armed = True
        scene.produce_one_batch("first")
        assert "on purpose" in query.failure()
        wait_for("the member to leave", lambda: scene.client.member_count(scene.group) == 0, 30, scene.evidence)
        assert scene.client.committed(scene.group) == before, "P4: a batch that failed moved the group's offset"
        failed = query.sink.batches[-1]
        scene.produce()
        scene.queries.clear()
        scene.start("first")
        scene.wait_idle()
    again = next(batch for batch in query.sink.completed() if batch.number == failed.number)
    assert sorted(again.records) == sorted(failed.records), "P3: the replay read other records"
    assert in_order([failed])
    assert in_order(query.sink.completed()), "P7"
    assert query.completed_records() == dict.fromkeys(scene.client.records(scene.topic), 1)
    assert watch.went_back == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p8_records_deleted_before_the_plan_are_reported_once(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """The group is at 10; the broker has removed [10, 15) when the next batch is planned."""
    scene = make_scene(protocol)
    query = scene.start_and_read("first", failOnDataLoss="false")
    # R92: a trigger compares the batch that has ended with its logs. A deletion before that is reported for it, too.
    held = Held("first", "before-complete")
    with released(held):
        held.wait_reached(scene.evidence)
        held.next()
        held.wait_reached(scene.evidence)
        scene.produce()
        scene.client.delete_records(scene.topic, 0, 15)
    scene.produce()
    assert read_behind(scene, query) == LEFT
    reports = [line["details"]["ranges"] for line in scene.events["first"].lines("data_lost")]
    assert reports == [[[scene.topic, 0, 10, 15]]]
    assert scene.events["first"].metrics()["records_lost"] == 5


@pytest.mark.parametrize("place", ["before-partitions", "while-reading"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p8_records_deleted_between_the_plan_and_the_read_are_skipped(
    protocol: str, place: str, make_scene: Callable[[str], Scene]
) -> None:
    """The task finds its offset out of the log's range, and reads on behind it."""
    scene = make_scene(protocol)
    query = scene.start_and_read("first", failOnDataLoss="false")
    held = Held("first", place)
    with released(held):
        scene.produce_one_batch("first")
        held.wait_reached(scene.evidence)
        scene.client.delete_records(scene.topic, 0, 15)
    scene.produce()
    # What a client has fetched ahead may be read, too.
    assert read_behind(scene, query) >= LEFT


def read_behind(scene: Scene, query: AppQuery) -> set[int]:
    """Wait until all that is left is read and committed, each record once; return the offsets read of partition 0."""
    query.wait_for_records(scene.client.records(scene.topic))
    wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
    assert set(query.completed_records().values()) == {1}
    return {offset for _, number, offset in query.completed_records() if number == 0}
