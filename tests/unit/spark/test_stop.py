"""`run_until_stopped` and `drain`: the order of events, without Spark; the reader's part is the real one."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException

from spark_groupsource import QueryEnd, QueryFailedError, drain, run_until_stopped
from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles
from spark_groupsource.membership.stopping import StopCause, member_left
from spark_groupsource.sidecars.stop_watch import StopWatch
from spark_groupsource.spark import stop as module
from spark_groupsource.spark import stop_signals as signals
from tests.unit.fakes import wait_until
from tests.unit.spark.fake_query import FakeQuery


class Leaving:
    """A member whose batch in flight ends when the test says so."""

    def __init__(self) -> None:
        self.left_clean, self.failed = True, False
        self.asked, self.ended = threading.Event(), threading.Event()

    def request_stop(self, _cause: StopCause) -> None:
        self.asked.set()

    def join(self, _timeout_s: float) -> bool:
        return self.ended.is_set()


def begun(folder: Path) -> str:
    """Return a checkpoint location in which Spark has begun."""
    folder.mkdir(exist_ok=True)
    (folder / "metadata").write_text("{}")
    return str(folder)


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Return a checkpoint location in which Spark has begun."""
    return begun(tmp_path)


@contextmanager
def reader(location: str, member: Leaving) -> Iterator[StopWatch]:
    """Run the reader's part."""
    watch = StopWatch(StopFiles(location), Run.here("shop", round(time.time() * 1000)), member, 0.01)
    watch.start()
    try:
        yield watch
    finally:
        watch.finish()


def soon(act: Callable[[], object], seconds: float = 0.3) -> None:
    threading.Timer(seconds, act).start()


def once_signals_count(act: Callable[[], object]) -> None:
    """Call it in a thread as soon as `run_until_stopped` handles signals: before that, one would end the tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def wait() -> None:
        wait_until(lambda: all(signal.getsignal(number) is not was for number, was in before.items()))
        act()

    threading.Thread(target=wait).start()


def interrupt_twice(asked: threading.Event) -> None:
    """Send SIGINT, and once more when the reader has been asked to stop."""
    os.kill(os.getpid(), signal.SIGINT)
    assert asked.wait(30)
    os.kill(os.getpid(), signal.SIGINT)


def left_files(location: str) -> list[str]:
    return [path.name for path in (Path(location) / "groupkafka").iterdir() if path.suffix == ".stop"]


def test_the_query_is_stopped_when_the_member_has_left(location: str) -> None:
    query, member = FakeQuery(), Leaving()
    with reader(location, member):

        def end_batch() -> None:
            assert member.asked.wait(30)
            assert query.isActive, "the batch in flight is not cancelled"
            member.ended.set()

        soon(end_batch)
        assert drain(query, checkpoint_location=location) is QueryEnd.DRAINED  # type: ignore[arg-type]
    assert (query.stops, left_files(location)) == (1, [])


def test_a_reader_that_has_not_started_yet_is_asked_when_it_does(location: str) -> None:
    query, member = FakeQuery(), Leaving()
    member.ended.set()
    watch = StopWatch(StopFiles(location), Run.here("shop", 0), member, 0.01)
    soon(watch.start)
    assert drain(query, checkpoint_location=location) is QueryEnd.DRAINED  # type: ignore[arg-type]
    assert member.asked.is_set()
    watch.finish()


def test_a_batch_beyond_the_timeout_is_cancelled(location: str) -> None:
    query, member = FakeQuery(), Leaving()
    with reader(location, member):
        end = drain(query, timeout_s=0.5, checkpoint_location=location)  # type: ignore[arg-type]
    assert (end, query.stops) == (QueryEnd.CANCELLED, 1)


@pytest.mark.parametrize("ends_first", [False, True])
def test_a_member_that_left_without_its_batch_cancels_it(ends_first: bool, location: str) -> None:
    """drainTimeoutMs has passed in the reader."""
    query, member = FakeQuery(), Leaving()
    member.left_clean = False
    if ends_first:
        soon(lambda: query.fail(str(member_left("shop", clean=False, cause=StopCause.SIGTERM))))
    soon(member.ended.set, 0.6)
    with reader(location, member):
        assert drain(query, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]


def test_a_query_that_fails_while_it_drains_raises_its_error(location: str) -> None:
    query, member = FakeQuery(), Leaving()
    with reader(location, member):
        soon(lambda: query.fail("the disk is full"))
        with pytest.raises(StreamingQueryException, match="the disk is full"):
            drain(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert left_files(location) == []


def test_member_left_is_no_failure_after_a_request(location: str) -> None:
    """The next trigger, or AvailableNow after a signal to the reader, may come before `query.stop()`."""
    query, member = FakeQuery(), Leaving()
    with reader(location, member):

        def end() -> None:
            assert member.asked.wait(30)
            member.ended.set()
            query.fail("[GROUPKAFKA.MEMBER_LEFT] The member has left")

        soon(end)
        assert drain(query, checkpoint_location=location) is QueryEnd.DRAINED  # type: ignore[arg-type]


def test_a_source_that_is_not_reached_is_not_waited_for(
    location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_UNREACHABLE_S", 0.2)
    query = FakeQuery()
    query.lastProgress = {"batchId": 3}
    assert drain(query, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]
    assert "give each one option checkpointLocation" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_all_queries_and_a_second_sigterm_changes_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    queries, members, watches, locations = [], [], [], []
    for name in ("a", "b"):
        locations.append(begun(tmp_path / name))
        queries.append(FakeQuery())
        members.append(Leaving())
        watches.append(StopWatch(StopFiles(locations[-1]), Run.here("shop", 0), members[-1], 0.01))
        watches[-1].start()
    before = signal.getsignal(number)

    def act() -> None:
        os.kill(os.getpid(), number)
        for member in members:
            assert member.asked.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        for member in members:
            member.ended.set()

    once_signals_count(act)
    end = run_until_stopped(*queries, checkpoint_location=locations)  # type: ignore[arg-type]
    assert (end, [query.stops for query in queries]) == (QueryEnd.DRAINED, [1, 1])
    assert signal.getsignal(number) is before
    for watch in watches:
        watch.finish()


def test_a_second_sigint_stops_at_once(location: str) -> None:
    query, member = FakeQuery(), Leaving()

    with reader(location, member):
        once_signals_count(lambda: interrupt_twice(member.asked))
        end = run_until_stopped(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert (end, query.stops) == (QueryEnd.CANCELLED, 1)


def test_an_answer_that_comes_while_a_second_sigint_stops_the_query_counts(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against: 1. nothing is in flight, 2. two SIGINTs come before the member has left, 3. it leaves, with
    nothing to repeat, while Spark stops the query, 4. the program says that a batch is repeated."""
    query, member = FakeQuery(), Leaving()

    def stop_slowly() -> None:
        member.ended.set()
        time.sleep(1)
        FakeQuery.stop(query)

    monkeypatch.setattr(query, "stop", stop_slowly)
    with reader(location, member):
        once_signals_count(lambda: interrupt_twice(member.asked))
        end = run_until_stopped(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert (end, query.stops) == (QueryEnd.DRAINED, 1)


def test_a_query_that_ends_by_itself_is_finished(location: str) -> None:
    query = FakeQuery()
    soon(query.stop)
    assert run_until_stopped(query, checkpoint_location=location) is QueryEnd.FINISHED  # type: ignore[arg-type]


def test_a_failure_drains_the_others_and_is_raised(tmp_path: Path, location: str) -> None:
    failed, other, member = FakeQuery(), FakeQuery(), Leaving()
    member.ended.set()
    with reader(location, member):
        soon(lambda: failed.fail("no space"))
        with pytest.raises(StreamingQueryException, match="no space"):
            run_until_stopped(failed, other, checkpoint_location=[str(tmp_path / "x"), location])  # type: ignore[arg-type]
    assert other.stops == 1


@pytest.mark.parametrize("has_batch", [True, False], ids=["after a batch", "after a first trigger without one"])
def test_an_idle_query_is_stopped(has_batch: bool, location: str) -> None:
    query, member = FakeQuery(), Leaving()
    member.ended.set()
    if has_batch:
        query.lastProgress = {"batchId": 1}
    else:
        query.status["message"] = "Waiting for data to arrive"
    with reader(location, member):
        end = run_until_stopped(query, idle_s=0.2, checkpoint_location=location)  # type: ignore[arg-type]
    assert end is QueryEnd.DRAINED


def test_a_query_whose_first_trigger_has_not_ended_is_not_idle(location: str) -> None:
    """1. The brokers cannot be reached. 2. `idle_s` passes. 3. The query fails."""
    query = FakeQuery()
    query.status = {"isDataAvailable": False, "isTriggerActive": True, "message": "Getting offsets from groupkafka"}
    soon(lambda: query.fail("no broker"), seconds=0.6)
    with pytest.raises(StreamingQueryException, match="no broker"):
        run_until_stopped(query, idle_s=0.2, checkpoint_location=location)  # type: ignore[arg-type]


# --- what may come between


def test_a_store_that_hangs_delays_no_timeout(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.1)
    hangs = threading.Event()
    monkeypatch.setattr(module, "ask_to_stop", lambda *_: hangs.wait(30))
    query, since_s = FakeQuery(), time.monotonic()
    query.reads(1)
    assert drain(query, timeout_s=0.3, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]
    assert (query.stops, time.monotonic() - since_s < 25) == (1, True)
    hangs.set()


def test_a_request_that_is_expensive_sets_its_own_pace(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round of Spark Connect starts processes of Python beside the batch in flight."""

    class Expensive:
        pause_s = 0.3

        def __init__(self) -> None:
            self.rounds: list[float] = []

        def ask(self) -> dict[str, Answer | None]:
            self.rounds.append(time.monotonic())
            return {"the run": Answer.COMPLETE if len(self.rounds) == 4 else None}

        def close(self) -> None:
            pass

    request = Expensive()
    monkeypatch.setattr(module, "_request_to", lambda query, location: request)
    assert drain(FakeQuery(), timeout_s=60.0) is QueryEnd.DRAINED  # type: ignore[arg-type]
    gaps = [later - earlier for earlier, later in pairwise(request.rounds)]
    assert gaps, "it is asked again"
    assert min(gaps) >= 0.3


def test_a_store_that_hangs_delays_no_second_sigint(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_S", 0.1)
    asked, hangs = threading.Event(), threading.Event()
    monkeypatch.setattr(module, "ask_to_stop", lambda *_: (asked.set(), hangs.wait(30)))
    query = FakeQuery()

    once_signals_count(lambda: interrupt_twice(asked))
    assert run_until_stopped(query, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]
    assert query.stops == 1
    hangs.set()


def test_the_checkpoint_of_another_query_is_not_asked(
    tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_UNREACHABLE_S", 0.2)
    (tmp_path / "metadata").write_text('{"id":"another-query"}')
    query, member = FakeQuery(), Leaving()
    query.reads(1)
    with reader(location, member):
        assert drain(query, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]
    assert not member.asked.is_set()
    assert "the checkpoint belongs to another query: its id is another-query" in caplog.text


@pytest.mark.parametrize("found", [1, 2])
def test_a_query_is_drained_when_all_its_sources_have_left(
    found: int, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against: 1. a query unites two groups, 2. only one source has option checkpointLocation, 3. it leaves, and
    the batch in flight is of the other one."""
    monkeypatch.setattr(module, "_UNREACHABLE_S", 0.5)
    query, member = FakeQuery(), Leaving()
    member.ended.set()
    query.reads(2)
    with reader(location, member):
        if found == 2:
            files = StopFiles(location)
            wait_until(files.runs)  # whoever registers removes what another one has half written
            files.register_again(replace(Run.here("shop", 0), pid=os.getppid()))
            soon(lambda: [files.answer(run.name, Answer.COMPLETE) for run in files.runs() if run.pid == os.getppid()])
        end = drain(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert end is (QueryEnd.DRAINED if found == 2 else QueryEnd.CANCELLED)


def test_a_killed_reader_of_the_run_before_does_not_count(location: str) -> None:
    """Guards against: 1. a reader is killed, 2. the query is started again and drained, before its reader has removed
    the file of the killed one."""
    StopFiles(location).register(replace(Run.here("shop", 0), application="another"))
    query, member = FakeQuery(), Leaving()
    member.ended.set()
    watch = StopWatch(StopFiles(location), Run.here("shop", 0), member, 0.01)
    soon(watch.start)
    assert drain(query, checkpoint_location=location) is QueryEnd.DRAINED  # type: ignore[arg-type]
    watch.finish()


FAILED = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when latestOffset: Traceback (most recent
  File "/x/source.py", line 168, in _planned
spark_groupsource.errors.OptionError: [GROUPKAFKA.TOPIC_UNKNOWN] Topic 'ordres' does not exist. What to do: create it.
 SQLSTATE: 38000
=== Streaming Query ===
"""


@pytest.mark.parametrize("waits", [drain, run_until_stopped])
def test_an_error_of_this_package_is_raised_with_its_own_message_alone(
    waits: Callable[..., QueryEnd], location: str
) -> None:
    query = FakeQuery()
    query.fail(FAILED)
    with pytest.raises(QueryFailedError) as raised:
        waits(query, checkpoint_location=location)
    assert str(raised.value) == "[GROUPKAFKA.TOPIC_UNKNOWN] Topic 'ordres' does not exist. What to do: create it."
    assert raised.value.original is query.failure
    assert len("".join(traceback.format_exception(raised.value)).splitlines()) < 15
    assert "SQLSTATE" not in "".join(traceback.format_exception(raised.value))


def test_an_error_of_others_is_raised_as_it_is(location: str) -> None:
    query = FakeQuery()
    query.fail("the disk is full")
    with pytest.raises(StreamingQueryException) as raised:
        run_until_stopped(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert raised.value is query.failure


def test_a_request_of_others_stops_the_query_at_once(location: str, caplog: pytest.LogCaptureFixture) -> None:
    """`groupkafka stop`. Guards against: 1. the member leaves, 2. nobody stops the query, 3. it fails after 30 s."""
    caplog.set_level(logging.INFO)
    query, member = FakeQuery(), Leaving()
    member.ended.set()
    with reader(location, member):
        files = StopFiles(location)
        wait_until(files.runs)
        soon(lambda: files.request(files.runs()[0].name, waits=False))
        assert run_until_stopped(query, checkpoint_location=location) is QueryEnd.DRAINED  # type: ignore[arg-type]
    assert query.stops == 1
    assert "orders: DRAINED, nothing is repeated" in caplog.text


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"host": "another"}, {"started_ms": 5}])
def test_a_request_to_a_run_of_the_past_does_not_count(change: dict[str, Any], location: str) -> None:
    run = Run.here("shop", 10)
    files = StopFiles(location)
    files.register(run)
    files.request(run.name, waits=True)
    assert files.is_any_requested(10)
    files.unregister(run.name)
    old = replace(run, **change)
    files.register_again(old)
    assert not files.is_any_requested(10)


@pytest.mark.parametrize(
    "failure",
    [
        "java.io.IOException: Cannot run program: Failed to exec spawn helper: pid: 2145, signal: 2",
        "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)",
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception:  SQLSTATE: XXKST",  # an EOFException
    ],
)
@pytest.mark.parametrize("signalled", [True, False])
def test_a_process_of_spark_that_the_signal_has_ended_is_a_cancelled_batch(
    signalled: bool, failure: str, location: str
) -> None:
    """Ctrl-C in the terminal of spark-submit, with a local checkpoint."""
    query, member = FakeQuery(), Leaving()

    def interrupt() -> None:
        if signalled:
            os.kill(os.getpid(), signal.SIGINT)
            assert member.asked.wait(30)
        query.fail(failure)

    with reader(location, member):
        once_signals_count(interrupt)
        if signalled:
            assert run_until_stopped(query, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]
        else:
            with pytest.raises(StreamingQueryException, match=r"spawn helper|exited unexpectedly|SQLSTATE"):
                run_until_stopped(query, checkpoint_location=location)  # type: ignore[arg-type]


def test_the_end_is_written_to_stderr_without_logging(
    location: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module.LOG, "hasHandlers", lambda: False)
    query = FakeQuery()
    soon(query.stop)
    run_until_stopped(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert re.fullmatch(r"\d\d:\d\d:\d\d orders: FINISHED, it has ended by itself\n", capsys.readouterr().err)


@pytest.mark.parametrize("clean", [True, False])
def test_a_stop_that_others_have_asked_for_is_no_failure(clean: bool, location: str) -> None:
    """`groupkafka stop`, or SIGTERM to the reader process."""
    query = FakeQuery()
    text = str(member_left("shop", clean=clean, cause=StopCause.SIGTERM))
    soon(lambda: query.fail(f"[STREAM_FAILED] terminated with exception: {text}"))
    end = run_until_stopped(query, checkpoint_location=location)  # type: ignore[arg-type]
    assert end is (QueryEnd.DRAINED if clean else QueryEnd.CANCELLED)


def test_the_clean_end_of_one_source_says_nothing_of_another(location: str) -> None:
    """Guards against: 1. only one of two sources has option checkpointLocation, 2. `groupkafka stop` reaches that one,
    which ends the query, 3. the program reports that nothing is repeated, but the other's last batch is uncommitted."""
    query = FakeQuery()
    query.reads(2)
    soon(lambda: query.fail(str(member_left("shop", clean=True, cause=StopCause.SIGTERM))))
    assert run_until_stopped(query, checkpoint_location=location) is QueryEnd.CANCELLED  # type: ignore[arg-type]


def test_a_query_that_cannot_be_stopped_leaves_none_running(tmp_path: Path, location: str) -> None:
    class Stuck(FakeQuery):
        def stop(self) -> None:
            raise TimeoutError("the stream execution thread did not end")

    stuck, other, members = Stuck(), FakeQuery(), (Leaving(), Leaving())
    locations = [location, begun(tmp_path / "b")]
    members[0].ended.set()
    soon(members[1].ended.set, 1.0)
    with reader(locations[0], members[0]), reader(locations[1], members[1]):
        once_signals_count(lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(TimeoutError, match="did not end"):
            run_until_stopped(stuck, other, checkpoint_location=locations)  # type: ignore[arg-type]
    assert other.stops == 1


def test_signals_have_their_handlers_back_after_any_error(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_timeout_s: float) -> None:
        raise RuntimeError("the JVM is about to end")

    monkeypatch.setattr(signals.JvmSignals, "install", fail)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(RuntimeError):
        run_until_stopped(FakeQuery(), checkpoint_location=location)  # type: ignore[arg-type]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_call_without_a_query_is_an_error() -> None:
    with pytest.raises(ValueError, match="without a query"):
        run_until_stopped()


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_seconds_that_are_no_duration_are_refused_and_cancel_no_batch(seconds: float) -> None:
    query: Any = FakeQuery()
    with pytest.raises(ValueError, match=r"timeout_s is .*0 or more"):
        drain(query, timeout_s=seconds)
    with pytest.raises(ValueError, match="timeout_s"):
        run_until_stopped(query, timeout_s=seconds)
    with pytest.raises(ValueError, match="idle_s"):
        run_until_stopped(query, idle_s=seconds)
    assert query.stops == 0


class FakeJvm:
    """The part of a JVM that takes signals. It ends at one that has its own handler."""

    def __init__(self) -> None:
        self.sun = self.misc = self
        self.handlers: dict[str, Any] = dict.fromkeys(("TERM", "INT", "HUP"), "its own")
        self.ended_by: list[str] = []
        setattr(self.Signal, "raise", self.take)

    class Signal:
        """sun.misc.Signal."""

        jvm: FakeJvm

        def __init__(self, name: str) -> None:
            self._name = name

        def getName(self) -> str:
            return self._name

        @classmethod
        def handle(cls, one: FakeJvm.Signal, handler: Any) -> Any:
            before, cls.jvm.handlers[one.getName()] = cls.jvm.handlers[one.getName()], handler
            return before

    def take(self, one: FakeJvm.Signal) -> None:
        """Take a signal."""
        handler = self.handlers[one.getName()]
        if handler == "its own":
            self.ended_by.append(one.getName())
        else:
            handler.handle(one)


@pytest.fixture
def jvm(monkeypatch: pytest.MonkeyPatch) -> FakeJvm:
    """The JVM of this process."""
    one = FakeJvm()
    one.Signal.jvm = one
    monkeypatch.setattr(signals.SparkContext, "_jvm", one)
    monkeypatch.setattr(signals, "ensure_callback_server_started", lambda _gateway: None)
    monkeypatch.setattr(signals.JvmSignals, "_one", None)
    monkeypatch.setattr(signals.JvmSignals, "waiting", [])
    monkeypatch.setattr(signals.atexit, "register", lambda _function: None)
    return one


def test_a_signal_to_the_jvm_stops_the_queries_of_all_threads(tmp_path: Path, location: str, jvm: FakeJvm) -> None:
    """Each thread may wait for queries of its own, and for as long as it likes. The JVM ends last."""
    locations, members = (location, begun(tmp_path / "b")), (Leaving(), Leaving())
    ends: list[QueryEnd] = []

    def wait(place: str, timeout_s: float) -> None:
        ends.append(run_until_stopped(FakeQuery(), timeout_s=timeout_s, checkpoint_location=place))  # type: ignore[arg-type]

    with reader(locations[0], members[0]), reader(locations[1], members[1]):
        threads = [threading.Thread(target=wait, args=one) for one in zip(locations, (60.0, math.inf), strict=True)]
        for member, thread in zip(members, threads, strict=True):
            member.ended.set()
            thread.start()
        wait_until(lambda: len(signals.JvmSignals.waiting) == 2)
        jvm.take(jvm.Signal("TERM"))
        for thread in threads:
            thread.join(60)
        jvm.take(jvm.Signal("TERM"))
    assert ends == [QueryEnd.DRAINED] * 2
    one = signals.JvmSignals._one
    assert one is not None
    assert jvm.ended_by == []
    one.release()
    one.release()
    assert jvm.ended_by == ["TERM"]


def test_a_signal_that_comes_to_the_jvm_late_ends_it_after_the_program(
    location: str, jvm: FakeJvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. SIGTERM comes to all processes. 2. The queries are drained before the JVM has said so. 3. The program goes on
    to its end, with Spark's calls."""
    member = Leaving()
    member.ended.set()
    with reader(location, member):
        once_signals_count(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert run_until_stopped(FakeQuery(), checkpoint_location=location) is QueryEnd.DRAINED  # type: ignore[arg-type]
    jvm.take(jvm.Signal("TERM"))
    assert jvm.ended_by == []


def test_a_signal_to_the_jvm_also_stops_the_queries_that_follow(jvm: FakeJvm) -> None:
    """A program waits for one query after the other. It has no other sign that its JVM is about to end."""
    with signals.on_end_signals(60.0):
        jvm.take(jvm.Signal("TERM"))
    with signals.on_end_signals(60.0) as requested:
        assert requested.stop
    assert jvm.ended_by == []


def test_the_jvm_has_its_handlers_back_after_a_query_that_ended_by_itself(location: str, jvm: FakeJvm) -> None:
    query = FakeQuery()
    soon(query.stop)
    assert run_until_stopped(query, checkpoint_location=location) is QueryEnd.FINISHED  # type: ignore[arg-type]
    assert set(jvm.handlers.values()) == {"its own"}
    assert signals.JvmSignals._one is None


def test_a_signal_that_no_query_waits_for_ends_the_jvm(jvm: FakeJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    signals.JvmSignals.install(60.0)
    monkeypatch.setattr(signals, "_MARGIN_S", 0.05)
    jvm.take(jvm.Signal("INT"))
    wait_until(lambda: jvm.ended_by == ["INT"])
    assert set(jvm.handlers.values()) == {"its own"}


def test_a_program_that_hangs_holds_the_jvm_for_its_time_only(jvm: FakeJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_MARGIN_S", 0.05)
    signals.JvmSignals.install(0.0)
    monkeypatch.setattr(signals.JvmSignals, "waiting", [signals.EndRequest()])
    jvm.take(jvm.Signal("TERM"))
    assert jvm.ended_by == []
    wait_until(lambda: jvm.ended_by == ["TERM"])


def test_a_jvm_that_takes_no_handlers_keeps_its_own(jvm: FakeJvm, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started with -Xrs."""

    def refuse(_one: Any, _handler: Any) -> Any:
        raise Py4JError("java.lang.IllegalArgumentException: Signal already used by VM or OS: SIGTERM")

    monkeypatch.setattr(jvm.Signal, "handle", refuse)
    signals.JvmSignals.install(60.0)
