"""`groupkafka stop`: what it asks, prints and returns."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles
from spark_groupsource.cli.arguments import StopCommand
from spark_groupsource.cli.main import main
from spark_groupsource.cli.stop_command import stop_query
from spark_groupsource.errors import CommandError
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.fakes import ManualClock

RUN = Run("a" * 32, "shop", "node-1", 4711, "app", 1_700_000_000_000)
SHOWN = "group=shop host=node-1 pid=4711 started=2023-11-14T22:13:20.000Z"


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Return a checkpoint location with a registered run."""
    (tmp_path / "metadata").write_text("{}")
    StopFiles(str(tmp_path)).register(RUN)
    return tmp_path


def test_a_query_is_asked_and_not_waited_for(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "--checkpoint-location", str(location)]) == 0
    assert capsys.readouterr().out == f"asked to stop: {SHOWN}\n"
    files = StopFiles(str(location))
    assert files.is_requested(RUN.name)
    files.answer(RUN.name, Answer.COMPLETE)
    files.unregister(RUN.name)
    assert list((location / "groupkafka").iterdir()) == []


@pytest.mark.parametrize("answer", [Answer.COMPLETE, Answer.INCOMPLETE, Answer.UNKNOWN, None])
def test_an_answer_is_waited_for(location: Path, answer: Answer | None) -> None:
    clock, files, output = ManualClock(), StopFiles(str(location)), FakeOutput()

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        if clock.now_s >= 1003 and answer is not None:
            if answer is not Answer.UNKNOWN:
                files.answer(RUN.name, answer)
            files.unregister(RUN.name)

    command = StopCommand(str(location), 10)
    if answer is Answer.COMPLETE:
        stop_query(command, clock, output, pause)
        assert output.lines == [f"asked to stop: {SHOWN}", f"has left: {SHOWN}"]
    else:
        text = "no answer within 10 s" if answer is None else answer.name
        with pytest.raises(CommandError, match=f"STOP_UNCLEAN.*pid=4711 .*{text}"):
            stop_query(command, clock, output, pause)
        unanswered = answer in (None, Answer.UNKNOWN)
        assert files.is_requested(RUN.name) == unanswered, "without an answer the query still has to stop"


def test_an_answered_request_stays_until_its_run_has_ended(location: Path) -> None:
    """The program that waits in `run_until_stopped` looks for it twice a second: it must not be gone before."""
    clock, files = ManualClock(), StopFiles(str(location))

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        files.answer(RUN.name, Answer.COMPLETE)

    stop_query(StopCommand(str(location), 10), clock, FakeOutput(), pause)
    assert files.is_requested(RUN.name)
    files.unregister(RUN.name)
    assert list((location / "groupkafka").iterdir()) == []


@pytest.mark.parametrize("answer", [Answer.COMPLETE, Answer.INCOMPLETE, None])
def test_a_second_source_that_registers_late_is_judged_too(tmp_path: Path, answer: Answer | None) -> None:
    (tmp_path / "metadata").write_text("{}")
    clock, files, output = ManualClock(), StopFiles(str(tmp_path)), FakeOutput()
    # Two processes that live: a run removes those of the dead when it registers.
    first, second = replace(RUN, pid=os.getppid()), replace(RUN, name="b" * 32, pid=os.getpid())
    files.register(first)

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        if clock.now_s == 1000.5:
            files.register(second)
        if clock.now_s == 1002:
            files.answer(first.name, Answer.COMPLETE)
            files.unregister(first.name)
        if clock.now_s == 1003 and answer is not None:
            files.answer(second.name, answer)
            files.unregister(second.name)

    command = StopCommand(str(tmp_path), 10)
    early, late = (SHOWN.replace("4711", str(run.pid)) for run in (first, second))
    asked = [f"asked to stop: {early}", f"asked to stop: {late}", f"has left: {early}"]
    if answer is Answer.COMPLETE:
        stop_query(command, clock, output, pause)
        assert output.lines == [*asked, f"has left: {late}"]
    else:
        text = "no answer within 10 s" if answer is None else answer.name
        with pytest.raises(CommandError, match=f"STOP_UNCLEAN.*{late}: {text}"):
            stop_query(command, clock, output, pause)
        assert output.lines == asked


@pytest.mark.parametrize(("own", "clean"), [(1, True), (2, False)])
def test_a_source_that_was_not_asked_makes_the_stop_unclean(location: Path, own: int, clean: bool) -> None:
    """Guards against: 1. a query has two sources of this kind and one of another, and only one of them has option
    checkpointLocation, 2. it leaves, and Spark ends the query, 3. the command exits with 0, but the second source's
    last batch is uncommitted."""
    (location / "offsets").mkdir()
    lines = ['{"v":1,"lineage":"3f","topics":{}}'] * own
    (location / "offsets" / "7").write_text("\n".join(["v1", "{}", *lines, "17"]))
    files = StopFiles(str(location))
    run = partial(
        stop_query, StopCommand(str(location), 10), ManualClock(), FakeOutput(),
        lambda _: files.answer(RUN.name, Answer.COMPLETE),
    )  # fmt: skip
    if clean:
        run()
    else:
        with pytest.raises(CommandError, match=r"STOP_UNCLEAN.*without option checkpointLocation: 1"):
            run()


@pytest.mark.parametrize("wait_s", [None, 10.0])
def test_no_line_before_its_request_is_written(
    tmp_path: Path, wait_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query has two sources. The store fails after the first request."""
    (tmp_path / "metadata").write_text("{}")
    files, output, request = StopFiles(str(tmp_path)), FakeOutput(), StopFiles.request
    runs = {run.name: run for run in (replace(RUN, pid=os.getppid()), replace(RUN, name="b" * 32, pid=os.getpid()))}
    for run in runs.values():
        files.register(run)
    requested: list[str] = []

    def fail_second(self: StopFiles, run: str, *, waits: bool) -> None:
        if requested:
            raise ValueError("the store is away")
        request(self, run, waits=waits)
        requested.append(run)

    monkeypatch.setattr(StopFiles, "request", fail_second)
    with pytest.raises(CommandError, match=r"STOP_UNREACHABLE.*the store is away"):
        stop_query(StopCommand(str(tmp_path), wait_s), ManualClock(), output, print)
    assert output.lines == [f"asked to stop: {SHOWN.replace('4711', str(runs[requested[0]].pid))}"]


@pytest.mark.rule("R78")
def test_a_query_that_starts_while_the_command_waits_is_not_asked(location: Path) -> None:
    """The application is killed, and its supervisor starts it again."""
    clock, files = ManualClock(), StopFiles(str(location))
    new = replace(RUN, name="b" * 32, pid=4712, application="another")

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        if files.runs() == (RUN,):
            files.register(new)

    with pytest.raises(CommandError, match=r"STOP_UNCLEAN.*pid=4711 .*UNKNOWN"):
        stop_query(StopCommand(str(location), 10), clock, FakeOutput(), pause)
    assert files.runs() == (new,)
    assert not files.is_requested(new.name)


def test_a_request_that_is_not_answered_in_time_is_left_to_the_run(location: Path) -> None:
    clock, files = ManualClock(), StopFiles(str(location))
    with pytest.raises(CommandError, match=r"no answer within 1 s"):
        stop_query(StopCommand(str(location), 1), clock, FakeOutput(), clock.advance)
    assert files.is_requested(RUN.name)
    files.answer(RUN.name, Answer.COMPLETE)
    files.unregister(RUN.name)
    assert list((location / "groupkafka").iterdir()) == []


@pytest.mark.parametrize("recovers", [True, False])
def test_a_store_that_fails_for_a_moment_ends_no_wait(
    location: Path, recovers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, files, output = ManualClock(), StopFiles(str(location)), FakeOutput()
    runs = StopFiles.runs

    def fail(_: StopFiles) -> tuple[Run, ...]:
        raise ValueError("503 Slow Down")

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        away = clock.now_s < 1003 or not recovers
        monkeypatch.setattr(StopFiles, "runs", fail if away else runs)
        if clock.now_s >= 1005:
            files.answer(RUN.name, Answer.COMPLETE)

    if recovers:
        stop_query(StopCommand(str(location), 10), clock, output, pause)
        assert output.lines == [f"asked to stop: {SHOWN}", f"has left: {SHOWN}"]
    else:
        with pytest.raises(CommandError, match=r"STOP_UNREACHABLE.*503 Slow Down"):
            stop_query(StopCommand(str(location), 10), clock, output, pause)


def test_no_query_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metadata").write_text('{"id":"0"}')
    assert main(["stop", "--checkpoint-location", str(tmp_path)]) == 1
    assert "STOP_NO_QUERY" in capsys.readouterr().err


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "--checkpoint-location", str(tmp_path / "misspelt")]) == 1
    assert "Spark has no checkpoint here" in capsys.readouterr().err


def test_a_location_that_cannot_be_read_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "--checkpoint-location", "ftp://host/c"]) == 1
    assert "STOP_UNREACHABLE" in capsys.readouterr().err
