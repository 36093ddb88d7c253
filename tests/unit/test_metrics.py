"""The metrics file: a line per event, never a reason to fail."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource import metrics
from spark_groupsource.commits import GroupOffset
from spark_groupsource.membership.events import (
    BatchCompleted,
    BatchFixed,
    DrainOutcome,
    HandOver,
    PartitionsAssigned,
    RevokeStarted,
    Started,
)
from spark_groupsource.membership.machine import MemberMachine
from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.offsets import OffsetRange

from .fakes import ManualClock, flight, tp

P0, P1 = tp(0), tp(1)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def report_on(path: Path) -> tuple[MemberReport, MemberMachine]:
    machine = MemberMachine()
    log = MetricsLog(str(path), "shop", ManualClock(5.0))
    log.lineage = "abc"
    machine.handle(Started())
    machine.handle(PartitionsAssigned((P0, P1)))
    return MemberReport("shop", machine, log), machine


def test_a_line_tells_who_what_and_how_it_stands(tmp_path: Path) -> None:
    report, _ = report_on(tmp_path / "m.jsonl")
    report.assigned((P0, P1))
    (line,) = lines(tmp_path / "m.jsonl")
    assert line["at"] == 1_700_000_005.0
    assert (line["event"], line["group"], line["lineage"], line["state"]) == ("assigned", "shop", "abc", "JOINED")
    assert line["partitions"] == [["orders", 0], ["orders", 1]]
    assert line["metrics"]["assigned_partitions"] == 2
    assert line["metrics"]["consumed_topics"] == ["orders"]
    assert line["metrics"]["assignments"] == 1


@pytest.mark.parametrize(
    ("outcome", "committed", "counted"),
    [
        (DrainOutcome.COMPLETE, 1, "clean"),
        (DrainOutcome.COMPLETE, 0, "uncommitted"),
        (DrainOutcome.DEADLINE, 0, "deadline"),
        (DrainOutcome.STOPPED, 0, "stopped"),
        (DrainOutcome.LOST, 0, "lost"),
    ],
)
def test_rebalances_are_counted_by_how_they_ended(
    outcome: DrainOutcome, committed: int, counted: str, tmp_path: Path
) -> None:
    report, _ = report_on(tmp_path / "m.jsonl")
    items = flight(OffsetRange(P0, 0, 10)).items
    report.released(HandOver(RevokeStarted((P0,)), items, outcome), committed, 10, 0.25)
    assert report.metrics.rebalances == {counted: 1}
    assert (report.metrics.drain_last_ms, report.metrics.drain_max_ms) == (250, 250)
    report.released(HandOver(RevokeStarted((P0,)), items, outcome), committed, 10, 0.1)
    assert (report.metrics.drain_last_ms, report.metrics.drain_max_ms) == (100, 250)
    assert report.metrics.records_repeated == 20
    assert lines(tmp_path / "m.jsonl")[0]["details"] == {
        "outcome": outcome.name, "committed": committed, "uncommitted": 1 - committed, "drain_ms": 250, "repeated": 10,
    }  # fmt: skip


def test_lost_partitions_count_what_the_next_owner_repeats(tmp_path: Path) -> None:
    report, machine = report_on(tmp_path / "m.jsonl")
    machine.handle(BatchFixed(flight(OffsetRange(P0, 5, 12), OffsetRange(P1, 0, 3))))
    report.lost((P0,), machine.in_flight((P0,)))
    assert report.metrics.records_repeated == 7
    assert report.metrics.rebalances == {"lost": 1}


def test_what_is_complete_and_has_no_commit_is_repeated_too(tmp_path: Path) -> None:
    """The sequence: a batch is complete, its commit finds no coordinator, the session ends."""
    report, machine = report_on(tmp_path / "m.jsonl")
    first, second = flight(OffsetRange(P0, 5, 12), OffsetRange(P1, 0, 3)), flight(OffsetRange(P0, 12, 20))
    machine.offsets_fetched({P0: GroupOffset(5), P1: GroupOffset(0)})
    machine.positions_established({P0: 5, P1: 0})
    for event in (BatchFixed(first), BatchCompleted(first.end, first.items), BatchFixed(second)):
        machine.handle(event)
    assert report.to_repeat((P0, P1)) == 7 + 3 + 8
    machine.offsets_acknowledged(first.items)
    assert report.to_repeat((P0, P1)) == 8
    assert report.to_repeat((P1,)) == 0


def test_a_refusal_that_is_repeated_is_counted_each_time_and_told_once(tmp_path: Path) -> None:
    report, _ = report_on(tmp_path / "m.jsonl")
    (item,) = flight(OffsetRange(P0, 0, 10)).items
    for _ in range(3):
        report.answered(CommitResult(refused=((item, Refusal.REBALANCE),), reason="rebalance"), lost=False)
    report.answered(CommitResult(acknowledged=(item,)), lost=False)
    assert (report.metrics.commits_refused, report.metrics.commits_done) == (3, 1)
    assert [line["event"] for line in lines(tmp_path / "m.jsonl")] == ["refused"]


def test_without_a_path_nothing_is_written() -> None:
    MetricsLog(None, "shop", ManualClock()).write("started")


def test_an_unwritable_file_is_told_once_and_fails_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MetricsLog(str(tmp_path / "no" / "such"), "shop", ManualClock())
    with caplog.at_level(logging.WARNING):
        log.write("started")
        log.write("left")
    assert len(caplog.records) == 1
    assert "metricsPath" in caplog.text


def test_a_descriptor_is_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is full, and the new one cannot be opened (too many open files).

    The old one's descriptor, closed by then, may already be another thread's: a second close would close that.
    """
    opened: list[int] = []
    closed: list[int] = []

    def open_once(*args: Any) -> int:
        if opened:
            raise OSError(24, "Too many open files")
        opened.append(os.open(*args))
        return opened[0]

    def close(descriptor: int) -> None:
        closed.append(descriptor)
        if closed == opened:
            os.close(descriptor)

    wrapped = SimpleNamespace(**vars(os) | {"open": open_once, "close": close})
    monkeypatch.setattr(metrics, "os", wrapped)
    monkeypatch.setattr(metrics, "MAX_BYTES", 10)
    MetricsLog(str(tmp_path / "m.jsonl"), "shop", ManualClock()).write("started")
    assert closed == opened


def test_a_large_file_goes_on_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_BYTES", 1000)
    log = MetricsLog(str(tmp_path / "m.jsonl"), "shop", ManualClock())
    for _ in range(4):
        log.write("started")
    kept, now = lines(tmp_path / "m.jsonl.1"), lines(tmp_path / "m.jsonl")
    assert len(kept) + len(now) <= 4
    assert now
    assert (tmp_path / "m.jsonl").stat().st_size <= 1000
