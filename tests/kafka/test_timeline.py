"""`groupkafka timeline` on the metrics files of two real queries: a handover, a SIGKILL and a takeover."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.timeline.events import timeline_of
from spark_groupsource.timeline.files import read_files
from spark_groupsource.timeline.model import MarkKind, PeriodKind, Timeline
from tests import checkout
from tests.browser.chromium import opened
from tests.browser.fixture import browser

from .harness import Independent, Query, wait_for

__all__ = ["browser"]
pytestmark = pytest.mark.kafka

# Where the page goes that docs/timeline.png is taken from.
KEEP = os.environ.get("GROUPKAFKA_KEEP_TIMELINE")


def kinds(timeline: Timeline, kind: MarkKind, lane: object) -> list[str]:
    """Return the texts of a lane's marks of one kind."""
    return [mark.text for mark in timeline.marks if mark.kind is kind and mark.lane == lane]


def test_a_handover_and_a_kill_of_two_real_queries(
    browser: str,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
    start_query: Callable[..., Query],
) -> None:
    """Query a owns all, b joins, a is killed and b takes its partitions over; the page shows all of it."""
    topic = topic.replace("orders", "flights")
    client.create_topic(topic, 4)
    options |= {"subscribe": topic, "metricsLagIntervalMs": "1000", "maxOffsetsPerTrigger": "120"}
    first_file, second_file = tmp_path / "query-a.json", tmp_path / "query-b.json"
    client.produce(topic, (f"a{n}" for n in range(800)), 4)
    first = start_query("a", options | {"metricsPath": str(first_file)}, batch_s=0.7)
    wait_for("query a to complete a batch", first.completed_batches, 120, first.log)
    second = start_query("b", options | {"metricsPath": str(second_file)}, batch_s=0.7)
    wait_for(
        "both members to own two partitions",
        lambda: sorted(map(len, client.members(group))) == [2, 2],
        90,
        lambda: f"{client.members(group)}\n{first.log()}\n{second.log()}",
    )
    for number in range(6):
        client.produce(topic, (f"b{number}-{n}" for n in range(200)), 4)
        time.sleep(1.0)
    first.kill()
    client.produce(topic, (f"c{n}" for n in range(400)), 4)
    wait_for("query b to own all", lambda: [len(m) for m in client.members(group)] == [4], 60, second.log)
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 60, second.log)
    second.stop()

    page = Path(KEEP or tmp_path / "timeline.html")
    command = [sys.executable, "-m", "spark_groupsource", "timeline", str(first_file), str(second_file)]
    done = subprocess.run(
        [*command, "-o", str(page)], cwd=checkout.ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"group {group}: 2 queries, 4 partitions, ")
    check(timeline_of(read_files([first_file, second_file])), topic)
    with opened(page) as found:
        assert found.page.locator(".yaxislayer-above .ytick text").all_text_contents()[:2] == ["query-a", "query-b"]
        assert [url for url in found.requests if url != page.absolute().as_uri()] == []
        assert found.problems == []


def check(timeline: Timeline, topic: str) -> None:
    """Compare the timeline with what was done to the queries."""
    lanes = [TopicPartition(topic, number) for number in range(4)]
    assert timeline.lanes() == ("query-a", "query-b", *lanes)
    owners = {
        lane: [one.query for one in sorted(timeline.periods, key=lambda one: one.start) if one.lane == lane
               and one.kind is PeriodKind.OWNED]
        for lane in lanes
    }  # fmt: skip
    assert set(map(tuple, owners.values())) == {("query-a", "query-b")}
    handed_over = [lane for lane in lanes if kinds(timeline, MarkKind.HANDOVER, lane)]
    taken_over = [lane for lane in lanes if kinds(timeline, MarkKind.TAKEOVER, lane)]
    assert len(handed_over) == len(taken_over) == 2
    assert "query-a -> query-b" in kinds(timeline, MarkKind.TAKEOVER, taken_over[0])[0]
    silent = {one.lane for one in timeline.periods if one.kind is PeriodKind.SILENT and one.query == "query-a"}
    assert silent == {"query-a", *taken_over}
    drained = {one.lane for one in timeline.periods if one.kind is PeriodKind.DRAIN}
    assert set(handed_over) <= drained
    assert {block.query for block in timeline.blocks} == {"query-a", "query-b"}
    assert sum(block.records for block in timeline.blocks) >= 2_400
    # A batch takes as long as its sink sleeps.
    assert all(block.end - block.start > 0.5 for block in timeline.blocks if block.records)
    assert {point.query for point in timeline.lag} == {"query-a", "query-b"}
