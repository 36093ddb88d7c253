"""Requests to stop, as files beside a checkpoint: who asks, who answers, and what stays behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles, ask_to_stop
from spark_groupsource.sidecars.stop_watch import StopWatch
from tests.unit.fakes import wait_until


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Return a checkpoint location in which Spark has begun."""
    (tmp_path / "metadata").write_text('{"id": "mine"}')
    return tmp_path


def run() -> Run:
    return Run.here("shop", 1_000)


def registered(location: Path) -> tuple[StopFiles, Run]:
    """Return a run that can be asked."""
    files, one = StopFiles(str(location)), run()
    files.register(one)
    return files, one


def names(location: Path) -> list[str]:
    folder = location / "groupkafka"
    return sorted(path.suffix for path in folder.iterdir()) if folder.exists() else []


def test_a_run_is_asked_and_answers(location: Path) -> None:
    files, one = registered(location)
    assert files.runs() == (one,)
    assert not files.is_requested(one.name)
    assert not files.register_again(one)
    asked = ask_to_stop(StopFiles(str(location)), {})
    assert asked == {one.name: None}
    assert files.is_requested(one.name)
    files.answer(one.name, Answer.COMPLETE)
    assert not files.lacks_answer(one.name)
    files.unregister(one.name)
    assert names(location) == [".stop"], "the one who asked has not read it"
    asked = ask_to_stop(StopFiles(str(location)), asked)
    assert asked == {one.name: Answer.COMPLETE}
    files.forget(one.name)
    assert names(location) == []


def test_a_pipelines_flow_is_asked_at_its_newest_checkpoint(tmp_path: Path) -> None:
    """Whoever asks knows the checkpoint itself, as Spark does, or the flow's folder, as the source's option."""
    flow = tmp_path / "_checkpoints" / "spark_catalog" / "default" / "orders" / "orders"
    for generation in ("1", "2"):
        (flow / generation).mkdir(parents=True)
        (flow / generation / "metadata").write_text("{}")
    one = run()
    StopFiles(str(flow)).register(one)
    assert names(flow / "2") == [".json"]
    assert ask_to_stop(StopFiles(str(flow / "2")), {}) == {one.name: None}
    assert StopFiles(str(flow)).is_requested(one.name)


@pytest.mark.parametrize(
    ("other", "is_one"),
    [
        ({"pid": os.getppid()}, True),
        ({"pid": 2**22 + 1}, False),
        ({"pid": os.getppid(), "group": "another"}, False),
        ({"pid": os.getppid(), "application": "another"}, False),
    ],
    ids=["lives", "has ended", "another group", "another application"],
)
def test_another_source_of_the_query_is_known(location: Path, other: dict[str, Any], is_one: bool) -> None:
    files, one = registered(location)
    assert not files.may_have_sibling(one)
    files.register(replace(one, name="a" * 32, **other))
    assert files.may_have_sibling(one) == is_one
    shutil.rmtree(location)
    assert not files.may_have_sibling(one)
    assert StopFiles("nowhere:/a").may_have_sibling(one)


def test_nothing_stays_behind_when_nobody_waits(location: Path) -> None:
    files, one = registered(location)
    files.request(one.name, waits=False)
    files.answer(one.name, Answer.INCOMPLETE)
    assert files.answer_of(one.name) is Answer.INCOMPLETE
    files.unregister(one.name)
    assert names(location) == []


def test_one_who_waits_keeps_the_request_of_one_who_does_not(location: Path) -> None:
    files, one = registered(location)
    files.request(one.name, waits=True)
    files.request(one.name, waits=False)
    files.answer(one.name, Answer.COMPLETE)
    files.unregister(one.name)
    assert files.answer_of(one.name) is Answer.COMPLETE


def test_a_run_that_ends_without_an_answer_is_not_waited_for(location: Path) -> None:
    files, one = registered(location)
    asked = ask_to_stop(files, {})
    files.unregister(one.name)
    assert ask_to_stop(files, asked) == {one.name: Answer.UNKNOWN}


@pytest.mark.rule("R78")
def test_a_request_to_a_killed_run_does_not_stop_the_next_one(location: Path) -> None:
    files = StopFiles(str(location))
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        killed.wait()
    old = replace(run(), pid=killed.pid)
    files.register(old)
    files.request(old.name, waits=True)
    new = run()
    files.register(new)
    assert not files.is_requested(new.name)
    assert files.runs() == (new,)
    # Somebody may wait for the answer.
    request = location / "groupkafka" / f"{old.name}.stop"
    assert request.exists()
    os.utime(request, (0, 0))
    files.register(run())
    assert names(location) == [".json"]


def test_an_answer_outlives_the_start_of_the_next_run(location: Path) -> None:
    files, old = StopFiles(str(location)), run()
    files.register(old)
    asked = ask_to_stop(files, {})
    files.answer(old.name, Answer.COMPLETE)
    files.unregister(old.name)
    files.register(run())
    assert ask_to_stop(files, asked) == {old.name: Answer.COMPLETE}
    files.forget(old.name)
    assert names(location) == [".json"]


def test_a_second_source_of_the_same_query_stays(location: Path) -> None:
    files = StopFiles(str(location))
    other = replace(run(), pid=os.getppid())
    files.register(other)
    one = run()
    files.register(one)
    assert {found.name for found in files.runs()} == {other.name, one.name}
    assert set(ask_to_stop(files, {})) == {other.name, one.name}


def test_a_run_of_another_application_is_a_leftover(location: Path) -> None:
    files = StopFiles(str(location))
    files.register(replace(run(), pid=os.getppid(), application="another"))
    files.register(one := run())
    assert files.runs() == (one,)


def test_what_another_one_is_writing_stays_and_what_a_killed_writer_left_is_removed(location: Path) -> None:
    files = StopFiles(str(location))
    folder = location / "groupkafka"
    folder.mkdir()
    being_written = folder / f"{run().name}.json.{'a' * 32}.tmp"
    being_written.write_text("{")
    for name in (f"{run().name}.stop.{'b' * 32}.tmp", f"{run().name}.json.tmp"):
        (folder / name).write_text("{")
        os.utime(folder / name, (0, 0))
    files.register(one := run())
    assert {path.name for path in folder.iterdir()} == {being_written.name, f"{one.name}.json"}


def test_many_who_ask_at_the_same_moment_all_write_a_whole_request(location: Path) -> None:
    one = run()
    StopFiles(str(location)).register(one)
    together = threading.Barrier(8)

    def ask(_number: int) -> None:
        files = StopFiles(str(location))
        for _ in range(20):
            together.wait(60)
            files.request(one.name, waits=True)
            assert files.is_requested(one.name)
            assert files.lacks_answer(one.name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(8)))
    assert names(location) == [".json", ".stop"]


def test_nothing_is_written_where_spark_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Spark has no checkpoint here"):
        StopFiles(str(tmp_path / "elsewhere")).register(run())
    assert list(tmp_path.iterdir()) == []


def test_half_a_file_counts_as_none(location: Path) -> None:
    files, one = registered(location)
    (location / "groupkafka" / f"{one.name}.stop").write_text('{"v": 1, "ans')
    assert files.is_requested(one.name)
    assert files.answer_of(one.name) is None
    (location / "groupkafka" / f"{'1' * 32}.json").write_text("{")
    (location / "groupkafka" / f"{'0' * 32}.json").write_text('{"v": 2}')
    (location / "groupkafka" / "anothers.json").write_text('{"v": 1}')
    assert files.runs() == (one,)


def test_secrets_of_the_location_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_location: str) -> tuple[fs.FileSystem, str]:
        raise OSError("no access with hunter2")

    monkeypatch.setattr("spark_groupsource.checkpoint.folder.open_location", fail)
    files = StopFiles("s3://key:hunter2@bucket/x")
    with pytest.raises(ValueError, match="no access") as raised:
        files.runs()
    assert "hunter2" not in f"{raised.value} {files.name}"


class Leaving:
    """A member that leaves when the test says so."""

    def __init__(self) -> None:
        self.left_clean, self.failed, self.ended, self.asked = True, False, False, 0

    def request_stop(self, _cause: object) -> None:
        self.asked += 1

    def join(self, _timeout_s: float) -> bool:
        return self.ended


def watched(location: Path, *, ended: bool, interval_s: float = 0.01) -> tuple[Leaving, Run, StopFiles, StopWatch]:
    """Return a run whose requests are watched, with its member, which may have left."""
    member, one, files = Leaving(), run(), StopFiles(str(location))
    member.ended = ended
    watch = StopWatch(StopFiles(str(location)), one, member, interval_s)
    watch.start()
    wait_until(lambda: files.runs() == (one,))
    return member, one, files, watch


@pytest.mark.parametrize("how", [Answer.COMPLETE, Answer.INCOMPLETE, Answer.FAILED])
def test_the_answer_comes_when_the_member_has_left(location: Path, how: Answer) -> None:
    member, one, files, watch = watched(location, ended=False)
    watch.start()
    asked = ask_to_stop(files, {})
    wait_until(lambda: watch.requested)
    assert files.answer_of(one.name) is None
    member.left_clean, member.failed = how is Answer.COMPLETE, how is Answer.FAILED
    member.ended = True
    wait_until(lambda: ask_to_stop(files, asked)[one.name] is how)
    watch.finish()
    assert (member.asked, names(location)) == (1, [".stop"])


def test_a_member_that_has_left_by_itself_answers_a_late_request(location: Path) -> None:
    """Guards against: 1. SIGTERM comes to all processes, 2. the reader leaves at once, 3. the driver asks it later, and
    waits in vain."""
    _, one, files, watch = watched(location, ended=True, interval_s=60.0)
    ask_to_stop(files, {})
    watch.finish()
    assert files.answer_of(one.name) is Answer.COMPLETE


@pytest.mark.rule("R86")
@pytest.mark.parametrize("how", [Answer.COMPLETE, Answer.INCOMPLETE])
def test_a_stop_before_a_logged_batch_ran_again_is_not_complete(location: Path, how: Answer) -> None:
    for folder, newest in {"offsets": 3, "commits": 2}.items():
        (location / folder).mkdir()
        for number in range(newest + 1):
            (location / folder / str(number)).write_text("v1")
    _, one, files, watch = watched(location, ended=True, interval_s=60.0)
    watch.caught_up = how is Answer.COMPLETE
    ask_to_stop(files, {})
    watch.finish()
    assert files.answer_of(one.name) is how


def test_a_checkpoint_that_is_not_there_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch = StopWatch(StopFiles(str(tmp_path)), run(), Leaving(), 0.01)
    watch.start()
    wait_until(lambda: "requests to stop do not reach this query" in caplog.text)
    watch.finish()
    assert caplog.text.count("requests to stop do not reach") == 1
    assert json.dumps([path.name for path in tmp_path.iterdir()]) == "[]"


# --- what may come between


def test_all_who_wait_get_the_answer(location: Path) -> None:
    """`groupkafka stop --wait`, and SIGTERM to the application meanwhile."""
    one, askers = run(), [StopFiles(str(location)) for _ in range(2)]
    files = StopFiles(str(location))
    files.register(one)
    asked = [ask_to_stop(asker, {}) for asker in askers]
    files.answer(one.name, Answer.COMPLETE)
    files.unregister(one.name)
    for asker, known in zip(askers, asked, strict=True):
        assert ask_to_stop(asker, known) == {one.name: Answer.COMPLETE}
        asker.forget(one.name)
    assert names(location) == []


@pytest.mark.parametrize("lost", ["removed", "overwritten"])
def test_an_answer_that_was_lost_is_given_again(location: Path, lost: str) -> None:
    """Guards against: 1. two wait, 2. the first one removes the answer, or the second one overwrites it, 3. the second
    one waits in vain."""
    _, one, files, watch = watched(location, ended=True)
    asked = ask_to_stop(files, {})
    wait_until(lambda: files.answer_of(one.name) is Answer.COMPLETE)
    path = location / "groupkafka" / f"{one.name}.stop"
    if lost == "removed":
        path.unlink()
    else:
        path.write_text('{"v": 1, "waits": 1}')
    wait_until(lambda: ask_to_stop(files, asked) == {one.name: Answer.COMPLETE})
    watch.finish()
    files.forget(one.name)
    assert names(location) == []


@pytest.mark.rule("R78")
def test_a_query_that_starts_while_another_one_is_waited_for_is_not_asked(location: Path) -> None:
    """Guards against: 1. `groupkafka stop --wait` asks a query, 2. its application is killed, 3. a supervisor starts it
    again, 4. the command asks it, too."""
    files, old = StopFiles(str(location)), run()
    files.register(old)
    asked = ask_to_stop(files, {})
    new = replace(run(), application="another")
    files.register(new)
    assert ask_to_stop(files, asked) == {old.name: Answer.UNKNOWN}
    assert not files.is_requested(new.name)


def test_a_second_source_that_registers_late_is_asked(location: Path) -> None:
    files, one = StopFiles(str(location)), run()
    files.register(replace(one, pid=os.getppid()))
    asked = ask_to_stop(files, {})
    files.register(second := run())
    assert ask_to_stop(files, asked) == {one.name: None, second.name: None}


def test_a_run_whose_file_another_application_has_removed_can_be_asked_again(
    location: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against: 1. a second application starts with the checkpoint by mistake, 2. Spark ends it, 3. nobody can
    ask the first one to stop."""
    _, one, files, watch = watched(location, ended=False)
    other = replace(run(), application="another")
    files.register(other)
    files.unregister(other.name)
    # The file comes first.
    wait_until(lambda: "another query may have been started with the checkpoint" in caplog.text)
    assert files.runs() == (one,)
    watch.finish()
    assert names(location) == []


def test_a_checkpoint_that_is_deleted_is_not_written_again(location: Path) -> None:
    files, one = registered(location)
    shutil.rmtree(location)
    assert not files.register_again(one)
    assert not location.exists()


def test_the_checkpoint_of_another_query_is_refused(location: Path) -> None:
    files = StopFiles(str(location))
    files.check_query("mine")
    files.register(one := run())
    with pytest.raises(ValueError, match="belongs to another query: its id is mine, and that of this one other"):
        ask_to_stop(files, {}, "other")
    assert not files.is_requested(one.name)
    for unknown in ("{}", "[1]"):
        (location / "metadata").write_text(unknown)
        files.check_query("other")
