"""The page of `groupkafka timeline` in a real browser: drawn, offline, with lanes and hover, also if it is large."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource.cli.main import main
from spark_groupsource.timeline.model import Period, PeriodKind, Timeline
from tests.browser.chromium import Opened, opened
from tests.faults.draw.page import label_of
from tests.faults.draw.page import page_of as drawn
from tests.faults.history import Fault

pytestmark = pytest.mark.usefixtures("browser")

START = 1_764_000_000.0
SECRET = "hunter2-canary"


def line(at: float, event: str, query: str, partitions: Any = (), **details: Any) -> str:
    """Return a line as `spark_groupsource.metrics` writes it."""
    value = {
        "at": round(START + at, 3), "details": details, "event": event, "group": "shop <b>&", "lineage": f"L-{query}",
        "metrics": {}, "partitions": [["orders", number] for number in partitions], "pid": ord(query),
        "state": "JOINED",
    }  # fmt: skip
    return json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n"


def lag(at: float, query: str, records: int) -> str:
    """Return a line with the lag of a query."""
    return line(at, "lag", query, lag=[], total={"records": records, "lost": 0, "behind_s": 1.5, "safe_s": None})


def page_of(folder: Path, files: dict[str, str]) -> Path:
    """Run the command and return the page."""
    for name, text in files.items():
        (folder / name).write_text(text)
    page = folder / "timeline.html"
    assert main(["timeline", *(str(folder / name) for name in files), "-o", str(page)]) == 0
    return page


def lanes(found: Opened) -> list[str]:
    """Return the names of the lanes, from top to bottom."""
    return found.page.locator(".yaxislayer-above .ytick text").all_text_contents()


def hovered(found: Opened, text: str) -> str:
    """Point at places of the picture until its text shows up, and return it."""
    box = found.page.locator(".nsewdrag[data-subplot=xy]").bounding_box()
    assert box is not None
    seen = set()
    for down in range(10, int(box["height"]), 6):
        for right in range(20, int(box["width"]), 60):
            found.page.mouse.move(box["x"] + right, box["y"] + down)
            # plotly draws the label in a later frame.
            found.page.wait_for_timeout(40)
            seen |= set(found.page.locator(".hoverlayer .hovertext").all_text_contents())
            if any(text in one for one in seen):
                return next(one for one in seen if text in one)
    raise AssertionError(f"nothing says {text!r}: {sorted(seen)}")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return the page of two queries, one of which is killed, with a secret in each text that an event may have."""
    first = "".join([
        line(0, "started", "a"), line(1, "assigned", "a", range(4)),
        line(3, "completed", "a", records=90, batch_ms=900), lag(4, "a", 10),
        line(6, "revoking", "a", (2, 3), records_in_flight=5),
        line(8, "revoked", "a", (2, 3), outcome="COMPLETE", drain_ms=2000, committed=2, uncommitted=0, repeated=0),
        line(9, "conflict", "a", on_conflict="group", ranges=f"password={SECRET}"),
        line(12, "completed", "a", records=40, batch_ms=2500), lag(13, "a", 3),
    ])  # fmt: skip
    second = "".join([
        line(5, "started", "b"), line(8.4, "assigned", "b", (2, 3)), lag(9, "b", 200),
        line(11, "data_lost", "b", (2,), ranges=[["orders", 2, 5, 9]], reason="retention", token=SECRET),
        line(14, "completed", "b", records=500, batch_ms=4000), line(20, "assigned", "b", (0, 1)),
        line(21, "failed", "b", error=f"broker </script><img src=x onerror=alert(1)> sasl.password = '{SECRET}'"),
    ])  # fmt: skip
    return page_of(tmp_path, {"metrics-a.json": first, "metrics-b.json": second})


def test_the_page_is_drawn_offline_with_a_lane_per_query_and_partition(small: Path) -> None:
    with opened(small) as found:
        assert lanes(found) == ["metrics-a", "metrics-b", "orders-0", "orders-1", "orders-2", "orders-3"]
        assert found.page.locator(".scatterlayer .trace").count() >= 3
        assert [url for url in found.requests if url != small.absolute().as_uri()] == []
        assert found.problems == []
        assert found.page.title() == "group shop <b>&"


def test_pointing_at_a_lane_shows_its_owner_and_zooming_narrows_the_axis(small: Path) -> None:
    with opened(small) as found:
        assert "orders-1: metrics-a" in hovered(found, "orders-1: metrics-a")
        axis = found.page.locator(".xaxislayer-above .xtick text")
        ticks = axis.all_text_contents()
        box = found.page.locator(".nsewdrag[data-subplot=xy]").bounding_box()
        assert box is not None
        found.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 60)
        found.page.mouse.down()
        found.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 62, steps=5)
        found.page.mouse.up()
        deadline = time.monotonic() + 60
        while axis.all_text_contents() in ([], ticks):
            assert time.monotonic() < deadline, f"the axis is not narrowed: {ticks}"
            found.page.wait_for_timeout(100)
        assert found.problems == []


def test_no_secret_is_in_the_page(small: Path) -> None:
    text = small.read_text(encoding="utf-8")
    assert SECRET not in text
    assert "</script><img" not in text


def hour(query: str, other: str) -> Iterator[str]:
    """Yield an hour of one of two queries that share 256 partitions: a batch per second, a rebalance in 5 minutes."""
    yield line(0, "started", query)
    mine = query < other
    first, second = range(128), range(128, 256)
    yield line(2, "assigned", query, first if mine else second)
    for second_of_hour in range(4, 3_600):
        yield line(second_of_hour, "completed", query, records=second_of_hour % 997, batch_ms=800)
        if second_of_hour % 10 == 0:
            yield lag(second_of_hour + 0.1, query, second_of_hour % 313)
        if second_of_hour % 300 == 0:
            # They swap 64 partitions each.
            leaving = range(0, 128, 2) if mine == bool(second_of_hour % 600) else range(128, 256, 2)
            coming = range(128, 256, 2) if mine == bool(second_of_hour % 600) else range(0, 128, 2)
            yield line(second_of_hour + 0.2, "revoking", query, leaving, records_in_flight=9)
            yield line(
                second_of_hour + 0.6, "revoked", query, leaving, outcome="COMPLETE", drain_ms=400, repeated=0,
            )  # fmt: skip
            yield line(second_of_hour + 0.9, "assigned", query, coming)


def test_an_hour_of_256_partitions_and_thousands_of_batches_is_usable(tmp_path: Path) -> None:
    began = time.monotonic()
    page = page_of(tmp_path, {"a.json": "".join(hour("a", "b")), "b.json": "".join(hour("b", "a"))})
    written = time.monotonic()
    with opened(page) as found:
        drawn = time.monotonic()
        found.page.evaluate(
            "Plotly.relayout('timeline', {'xaxis.range': ['2025-11-24 16:10:00', '2025-11-24 16:12:00']})"
        )
        zoomed = time.monotonic()
        assert len(lanes(found)) == 258
        assert "orders-" in hovered(found, "orders-")
        assert found.problems == []
    print(f"{page.stat().st_size / 1e6:.1f} MB, written in {written - began:.1f} s, ", end="")
    print(f"drawn in {drawn - written:.1f} s, zoomed in {zoomed - drawn:.1f} s")
    assert page.stat().st_size < 12_000_000


def test_labels_are_legible(tmp_path: Path) -> None:
    """Labels of faults that are near to each other are in rows, and one at the right end is inside of the picture."""

    def fault(number: int, kind: str, target: str, at: float, *, clean: bool = False) -> Fault:
        return Fault(number, kind, target, START + at, START + at, START + at + 1, clean)

    faults = [fault(n, "cut-at-heartbeat-request", f"q{n} <&", 20 + n) for n in range(7)]
    faults.append(fault(7, "topic-recreated", "audit", 299, clean=True))
    owned = Period(PeriodKind.OWNED, "q1", "q1", START, START + 300, "q1 runs")
    timeline = Timeline("a run", "", START, START + 300, ("q1",), (), periods=(owned,))
    page = tmp_path / "run.html"
    page.write_text(drawn(timeline, faults), encoding="utf-8")
    with opened(page) as found:
        assert lanes(found) == ["faults", "q1"]
        labels = found.page.locator(".textpoint text").all()
        assert sorted(label.text_content() or "" for label in labels) == sorted(map(label_of, faults))
        boxes = [box for label in labels if (box := label.bounding_box())]
        assert len(boxes) == len(labels)
        for one, other in combinations(boxes, 2):
            beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
            assert beside or abs(one["y"] - other["y"]) >= 10
        assert max(box["x"] + box["width"] for box in boxes) < 1280
        assert found.page.locator(".shapelayer path").count() == len(faults)
