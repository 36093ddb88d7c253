"""The metrics file: a line per event, never a reason to fail."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_groupsource import metrics
from spark_groupsource.membership.events import DrainOutcome, GroupEvent, HandOver
from spark_groupsource.membership.machine import MemberMachine
from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.metrics import MetricsLog
from spark_groupsource.model.commit_metadata import GroupOffset
from spark_groupsource.model.offsets import OffsetRange
from tests.unit.fakes import ManualClock, flight, tp

P0, P1 = tp(0), tp(1)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def report_on(path: Path) -> tuple[MemberReport, MemberMachine]:
    machine = MemberMachine()
    log = MetricsLog(str(path), "shop", ManualClock(5.0))
    log.lineage = "abc"
    machine.handle(GroupEvent.STARTED)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0, P1))
    return MemberReport("shop", machine, log), machine


def test_a_line_shows_who_what_and_the_state(tmp_path: Path) -> None:
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
    ],
)
def test_rebalances_are_counted_by_how_they_ended(
    outcome: DrainOutcome, committed: int, counted: str, tmp_path: Path
) -> None:
    report, _ = report_on(tmp_path / "m.jsonl")
    items = flight(OffsetRange(P0, 0, 10)).items
    report.released((P0,), HandOver(items, outcome), committed, 10, 0.25)
    assert report.metrics.rebalances == {counted: 1}
    assert (report.metrics.drain_last_ms, report.metrics.drain_max_ms) == (250, 250)
    report.released((P0,), HandOver(items, outcome), committed, 10, 0.1)
    assert (report.metrics.drain_last_ms, report.metrics.drain_max_ms) == (100, 250)
    assert report.metrics.records_repeated == 20
    assert lines(tmp_path / "m.jsonl")[0]["details"] == {
        "outcome": outcome.name, "committed": committed, "uncommitted": 1 - committed, "drain_ms": 250, "repeated": 10,
    }  # fmt: skip


def test_lost_partitions_count_what_the_next_owner_repeats(tmp_path: Path) -> None:
    report, machine = report_on(tmp_path / "m.jsonl")
    machine.begin(flight(OffsetRange(P0, 5, 12), OffsetRange(P1, 0, 3)))
    report.lost((P0,), machine.in_flight((P0,)))
    assert report.metrics.records_repeated == 7
    assert report.metrics.rebalances == {"lost": 1}


def test_what_is_complete_and_has_no_commit_is_repeated_too(tmp_path: Path) -> None:
    """The sequence: a batch is complete, its commit finds no coordinator, the session ends."""
    report, machine = report_on(tmp_path / "m.jsonl")
    first, second = flight(OffsetRange(P0, 5, 12), OffsetRange(P1, 0, 3)), flight(OffsetRange(P0, 12, 20))
    machine.offsets_fetched({P0: GroupOffset(5), P1: GroupOffset(0)})
    machine.positions_established({P0: 5, P1: 0})
    machine.begin(first)
    machine.complete(first.end)
    machine.begin(second)
    assert report.to_repeat((P0, P1)) == 7 + 3 + 8
    machine.offsets_acknowledged(first.items)
    assert report.to_repeat((P0, P1)) == 8
    assert report.to_repeat((P1,)) == 0


def test_a_refusal_that_is_repeated_is_counted_each_time_and_reported_once(tmp_path: Path) -> None:
    report, _ = report_on(tmp_path / "m.jsonl")
    (item,) = flight(OffsetRange(P0, 0, 10)).items
    for _ in range(3):
        report.answered(CommitResult(refused=((item, Refusal.REBALANCE),), reason="rebalance"))
    report.answered(CommitResult(acknowledged=(item,)))
    assert (report.metrics.commits_refused, report.metrics.commits_done) == (3, 1)
    assert [line["event"] for line in lines(tmp_path / "m.jsonl")] == ["refused"]


def test_without_a_path_nothing_is_written() -> None:
    MetricsLog(None, "shop", ManualClock()).write("started")


def test_an_unwritable_file_is_reported_once_and_fails_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    monkeypatch.setattr(metrics, "MAX_FILE_BYTES", 10)
    MetricsLog(str(tmp_path / "m.jsonl"), "shop", ManualClock()).write("started")
    assert closed == opened


def test_a_large_file_goes_on_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MAX_FILE_BYTES", 1000)
    log = MetricsLog(str(tmp_path / "m.jsonl"), "shop", ManualClock())
    for _ in range(4):
        log.write("started")
    kept, now = lines(tmp_path / "m.jsonl.1"), lines(tmp_path / "m.jsonl")
    assert len(kept) + len(now) <= 4
    assert now
    assert (tmp_path / "m.jsonl").stat().st_size <= 1000


def test_two_writers_of_a_full_file_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. Both find it full. 2. The first one renames it and begins a new one. 3. The second one renames that one."""
    monkeypatch.setattr(metrics, "MAX_FILE_BYTES", 20_000)
    replaced: list[str] = []
    rename = metrics._rename_full

    def twice(path: str, descriptor: int) -> None:
        rename(path, descriptor)
        append(Path(path))
        rename(path, descriptor)
        replaced.append(path)

    monkeypatch.setattr(metrics, "_rename_full", twice)
    path, written = tmp_path / "m.jsonl", 0
    log = MetricsLog(str(path), "shop", ManualClock())
    while not replaced:
        log.write("started")
        written += 1
    assert len(lines(path)) == 2
    assert len(lines(Path(f"{path}.1"))) == written - 1


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics.time, "sleep", lambda _: pytest.fail("waited"))


def test_a_line_after_a_torn_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full in the middle of the line of an earlier process."""
    monkeypatch.setattr(metrics.time, "sleep", lambda _: None)
    path = tmp_path / "m.jsonl"
    append(path, events=2)
    os.truncate(path, path.stat().st_size - 40)
    append(path)
    first, torn, last = path.read_text().splitlines()
    assert json.loads(first)["event"] == json.loads(last)["event"] == "started"
    with pytest.raises(ValueError, match=r"Unterminated|delimiter|Expecting"):
        json.loads(torn)


@pytest.mark.usefixtures("no_pause")
def test_nobody_waits_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the query whose line did not fit, nor another one."""
    path = tmp_path / "m.jsonl"
    logs = [append(path), append(path)]
    room = 40
    write = os.write

    def write_what_fits(descriptor: int, line: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, line[:room])
        room -= written
        return written

    with monkeypatch.context() as full:
        full.setattr(os, "write", write_what_fits)
        for log in logs * 3:
            append(path, log=log)
    for log in logs:
        append(path, log=log)
    assert [line[:5] for line in path.read_text().splitlines()] == ['{"at"'] * 5


def test_a_line_that_another_writer_is_writing_is_not_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system lets a file grow page by page, so half of another query's line is seen for a moment."""
    path = tmp_path / "m.jsonl"
    append(path)
    write, rest = os.write, bytearray()

    def write_rest(_: float) -> None:
        with path.open("ab") as file:
            file.write(rest)
        rest.clear()

    def write_half(descriptor: int, line: bytes) -> int:
        """Write half a line; another writer writes before the other half."""
        monkeypatch.setattr(os, "write", write)
        rest.extend(line[100:])
        write(descriptor, line[:100])
        append(path)
        return len(line)

    monkeypatch.setattr(metrics.time, "sleep", write_rest)
    monkeypatch.setattr(os, "write", write_half)
    append(path)
    assert [line["event"] for line in lines(path)] == ["started"] * 3


def test_a_full_file_that_another_process_has_locked_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.jsonl"
    log = append(path)
    monkeypatch.setattr(metrics, "MAX_FILE_BYTES", 1)
    monkeypatch.setattr(metrics.time, "sleep", lambda _: None)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        append(path, log=log)
    assert "another process has locked it" in caplog.text
    assert len(lines(path)) == 1


# --- whose file it is


REFUSED = "name a file that does not exist yet"


def append(path: Path, events: int = 1, log: MetricsLog | None = None) -> MetricsLog:
    log = log or MetricsLog(str(path), "shop", ManualClock())
    for _ in range(events):
        log.write("started")
    return log


def test_a_file_that_another_program_has_written_over_is_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.jsonl"
    log = append(path)
    path.write_text("of another program\n")  # the same inode
    append(path, events=2, log=log)
    assert path.read_text() == "of another program\n"
    assert [REFUSED in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize("content", ["of another program\n", "", '{"at":"noon"}\n', '{"details":{}}\n'])
def test_nothing_is_appended_to_a_file_that_something_else_began(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    other.write_text(content)
    with caplog.at_level(logging.WARNING):
        append(other, events=3)
    assert other.read_text() == content
    assert [REFUSED in record.getMessage() for record in caplog.records] == [True]


def test_a_file_of_metrics_goes_on(tmp_path: Path) -> None:
    """After a restart, and by several queries at once."""
    path = tmp_path / "m.jsonl"
    append(path, log=append(path), events=2)
    append(path)
    assert len(lines(path)) == 4


def test_a_file_that_is_emptied_goes_on(tmp_path: Path) -> None:
    """As logrotate's copytruncate empties it."""
    path = tmp_path / "m.jsonl"
    log = append(path)
    os.truncate(path, 0)
    append(path, log=log)
    assert len(lines(path)) == 1


def test_an_empty_file_beside_the_one_that_logrotate_renamed_goes_on(tmp_path: Path) -> None:
    """As its `create` leaves it; also for a query that starts afterwards."""
    path = tmp_path / "m.jsonl"
    log = append(path)
    for each in (log, None):
        path.rename(f"{path}.1")
        path.touch()
        append(path, log=each)
        assert len(lines(path)) == 1


def test_no_link_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither to a file of metrics nor to one that is not there yet."""
    own = tmp_path / "m.jsonl"
    append(own)
    for target in (own, tmp_path / "none"):
        link = tmp_path / f"link-to-{target.name}"
        link.symlink_to(target)
        append(link)
    assert len(lines(own)) == 1
    assert not (tmp_path / "none").exists()
    assert caplog.text.count(REFUSED) == 2


def test_only_regular_files_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/null")):
        append(path)
    assert caplog.text.count("it is not a regular file") == 2


def test_the_older_half_takes_no_place_of_a_file_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A path is chosen so that the renamed file would be the other one."""
    monkeypatch.setattr(metrics, "MAX_FILE_BYTES", 1000)
    other = tmp_path / "m.jsonl.1"
    other.write_text("of another program\n")
    append(tmp_path / "m.jsonl", events=4)
    assert other.read_text() == "of another program\n"
    assert REFUSED in caplog.text
    assert lines(tmp_path / "m.jsonl")


def test_a_first_line_that_does_not_fit_on_the_disk_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file, or half a line, would count as somebody else's when there is room again."""
    path = tmp_path / "m.jsonl"
    write = os.write
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:10]))
        log = append(path)
    assert not path.exists()
    append(path, log=log)
    assert len(lines(path)) == 1


@pytest.mark.usefixtures("no_pause")
def test_a_file_whose_first_line_did_not_fit_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """1. A query creates the file. 2. This one opens it. 3. The disk is full, so the first one removes it."""
    path = tmp_path / "m.jsonl"
    path.touch()
    find = metrics._open_existing

    def open_and_remove(*args: Any) -> int:
        descriptor = find(*args)
        path.unlink()
        return descriptor

    with monkeypatch.context() as full:
        full.setattr(metrics, "_open_existing", open_and_remove)
        log = append(path)
    assert "its first line did not fit" in caplog.text
    append(path, log=log)
    assert len(lines(path)) == 1


def test_a_groups_name_is_no_command_to_a_shell(tmp_path: Path) -> None:
    """The path may be one that a shell reads when it starts."""
    path = tmp_path / ".bash_profile"
    MetricsLog(str(path), f"$(touch {tmp_path}/ran)`touch {tmp_path}/ran`", ManualClock()).write("started")
    subprocess.run(["/bin/sh", str(path)], check=False, capture_output=True, timeout=60)
    assert not (tmp_path / "ran").exists()
    assert lines(path)[0]["group"].startswith("$(touch")


def test_a_pipe_is_no_metrics_file_and_is_not_read() -> None:
    reader, writer = os.pipe()
    try:
        # Without data in it, a read would wait for ever.
        text = b'{"at":1.0,"details":{' + b" " * 200
        os.write(writer, text)
        assert not metrics.is_metrics_file(Path(f"/dev/fd/{writer}"))
        os.set_blocking(reader, False)
        assert os.read(reader, 1_000) == text
    finally:
        os.close(reader)
        os.close(writer)
