"""`run_when_owner`: when it starts, stops, waits again and ends, without Spark and without a broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_groupsource import QueryEnd, run_when_owner
from spark_groupsource.errors import MEMBER_FAILED, MembershipError, OptionError
from spark_groupsource.membership.lock_states import GIVES_WAY, STOPS_AT_ONCE, LockEvent, LockState, next_state
from spark_groupsource.spark import owner as module
from tests.unit.fakes import wait_until
from tests.unit.spark.fake_query import FakeQuery

REFUSED = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 7."


class FakeLock:
    """A lock whose coordinator is the test. `verdict` is what the coordinator answers to a proof."""

    def __init__(self) -> None:
        self._state = LockState.WAITING
        self._guard = threading.RLock()
        self.verdict = LockEvent.PROVEN
        self.error: Exception | None = None
        self.left = False

    def __enter__(self) -> FakeLock:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._state in (LockState.WAITING, LockState.OWNED, LockState.UNPROVEN), "no query runs any more"
        self.left = True

    @property
    def state(self) -> LockState:
        if self.error is not None:
            raise self.error
        if self._state is LockState.UNPROVEN:
            self.happens(self.verdict)
        return self._state

    gives_way = property(lambda self: self._state in GIVES_WAY)
    stops_at_once = property(lambda self: self._state in STOPS_AT_ONCE)

    def happens(self, *events: LockEvent) -> None:
        with self._guard:
            for event in events:
                self._state = next_state(self._state, event)

    def take(self) -> bool:
        with self._guard:
            owned = self._state is LockState.OWNED
            if owned:
                self.happens(LockEvent.TAKEN)
            return owned

    def ended(self) -> None:
        self.happens(LockEvent.ENDED)

    def settled(self, timeout_s: float) -> LockState:
        return self.state


class Program:
    """`run_when_owner` with a fake lock, and what it has started."""

    def __init__(self, location: str) -> None:
        self.lock = FakeLock()
        self.queries: list[FakeQuery] = []
        self._location = location

    def start(self) -> Any:
        self.queries.append(FakeQuery())
        return self.queries[-1]

    def start_failing(self, text: str) -> Any:
        query = self.start()
        query.fail(text)
        return query

    def run(self, start: Callable[[], Any] | None = None) -> QueryEnd:
        return run_when_owner(
            start or self.start, group="pay", topic="orders", options={"kafka.bootstrap.servers": "h:9092"},
            checkpoint_location=self._location, timeout_s=0.3,
        )  # fmt: skip

    def run_beside(self, work: Callable[[], object]) -> QueryEnd:
        """Run while a thread does the test's part, once signals do not end the tests."""
        before = signal.getsignal(signal.SIGTERM)

        def do() -> None:
            wait_until(lambda: signal.getsignal(signal.SIGTERM) is not before)
            work()

        thread = threading.Thread(target=do)
        thread.start()
        end = self.run()
        thread.join()
        return end

    def owns(self, times: int = 1) -> None:
        """Give it the lock, and wait until it has started that many queries."""
        self.lock.happens(LockEvent.ASSIGNED)
        wait_until(lambda: len(self.queries) == times)


@pytest.fixture
def program(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    (tmp_path / "metadata").write_text('{"id": "the-query"}')
    made = Program(str(tmp_path))
    monkeypatch.setattr(module, "OwnerLock", lambda _settings, length: made.lock)
    monkeypatch.setattr(module, "_session_length", lambda _settings: None)
    monkeypatch.setattr(module, "members", lambda _settings: ["pay-host"])
    yield made
    assert made.lock.left


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_while_it_waits_starts_nothing(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run_beside(lambda: (time.sleep(2.5), terminate())) is QueryEnd.WAITED
    assert program.queries == []


def test_it_starts_once_it_owns_the_lock_and_ends_at_sigterm(program: Program) -> None:
    def others() -> None:
        program.owns()
        terminate()

    assert program.run_beside(others) is QueryEnd.CANCELLED, "its source was not reached in time"
    assert program.queries[0].stops == 1


def test_a_lost_lock_stops_the_query_at_once_and_it_waits_again(program: Program) -> None:
    def others() -> None:
        program.owns()
        program.lock.happens(LockEvent.LOST)
        wait_until(lambda: program.queries[0].stops == 1)
        wait_until(lambda: program.lock.state is LockState.WAITING)
        program.owns(2)
        terminate()

    program.run_beside(others)
    assert [query.stops for query in program.queries] == [1, 1]


def test_a_lock_that_comes_back_while_the_query_is_stopped_starts_it_again(program: Program) -> None:
    def others() -> None:
        program.owns()
        program.lock.happens(LockEvent.LOST, LockEvent.ASSIGNED)
        wait_until(lambda: len(program.queries) == 2)
        terminate()

    program.run_beside(others)
    assert program.queries[0].stops == 1


def test_a_failure_of_the_owner_is_raised(program: Program) -> None:
    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        program.run(lambda: program.start_failing("the disk is full"))


@pytest.mark.parametrize("text", [REFUSED, "the disk is full"])
def test_a_failure_of_a_driver_that_has_lost_the_lock_is_none(program: Program, text: str) -> None:
    """1. It was stopped, and another one runs its batch. 2. It wakes up: Spark refuses its entry of the log. 3. Its
    client has not noticed yet that the lock is lost.
    """

    def others() -> None:
        program.owns()
        program.lock.verdict = LockEvent.LOST
        program.queries[0].fail(text)
        wait_until(lambda: program.lock.state is LockState.WAITING)
        terminate()

    assert program.run_beside(others) is QueryEnd.WAITED


def test_an_owner_whose_batch_a_former_owner_has_recorded_starts_again(program: Program) -> None:
    def others() -> None:
        program.owns()
        program.queries[0].fail(REFUSED)
        wait_until(lambda: len(program.queries) == 2)
        terminate()

    program.run_beside(others)


def test_it_does_not_start_again_for_ever(program: Program) -> None:
    """A writer that has no lock uses the checkpoint: a supervisor has to see that."""

    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(StreamingQueryException, match="Multiple streaming jobs"):
        program.run(lambda: program.start_failing(REFUSED))
    assert len(program.queries) == 4


def test_an_error_of_start_gives_the_lock_up(program: Program) -> None:
    def start() -> Any:
        raise RuntimeError("no such table")

    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(RuntimeError, match="no such table"):
        program.run(start)


def test_what_start_has_started_before_its_error_is_stopped(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against: 1. start starts one query and fails, 2. the next driver owns the lock, 3. both have a query."""
    running: dict[str, FakeQuery] = {"another program's": FakeQuery()}
    monkeypatch.setattr(module, "_active", lambda: dict(running))

    def start() -> Any:
        running["first"] = FakeQuery()
        raise RuntimeError("no such table")

    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(RuntimeError, match="no such table"):
        program.run(start)
    assert {name: query.isActive for name, query in running.items()} == {"another program's": True, "first": False}


def test_queries_whose_locations_do_not_fit_are_stopped(program: Program) -> None:
    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(ValueError, match="zip"):
        program.run(lambda: [program.start(), program.start()])
    assert [query.isActive for query in program.queries] == [False, False]


def test_an_error_of_the_lock_ends_the_wait(program: Program) -> None:
    program.lock.error = MembershipError(MEMBER_FAILED, group="pay.lock", reason="it is full")
    with pytest.raises(MembershipError, match="it is full"):
        program.run()


def test_a_start_without_a_query_is_an_error(program: Program) -> None:
    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(ValueError, match="returned no query"):
        program.run(list)


def test_a_query_of_a_connect_server_is_stopped_and_refused(program: Program) -> None:
    class RemoteQuery(FakeQuery):
        pass

    RemoteQuery.__module__ = "pyspark.sql.connect.streaming.query"
    query = RemoteQuery()
    program.lock.happens(LockEvent.ASSIGNED)
    with pytest.raises(OptionError, match=r"OWNER_BY_CONNECT.*the server, which runs on"):
        program.run(lambda: query)
    assert query.stops == 1


def test_a_connect_session_is_refused_before_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_remote_session", lambda: True)
    with pytest.raises(OptionError, match="OWNER_BY_CONNECT"):
        run_when_owner(FakeQuery, group="pay", topic="orders", options={})  # type: ignore[arg-type]


def test_seconds_that_are_no_duration_are_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        run_when_owner(FakeQuery, group="pay", topic="orders", options={}, timeout_s=-1)  # type: ignore[arg-type]


def test_the_lines_say_what_happens(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="spark_groupsource.spark")

    def others() -> None:
        wait_until(lambda: "waits for the lock of group pay.lock; its members: pay-host" in caplog.text)
        program.owns()
        program.lock.happens(LockEvent.LOST)
        wait_until(lambda: "has given up the lock" in caplog.text)
        terminate()

    assert program.run_beside(others) is QueryEnd.WAITED
    assert "owns the lock of group pay.lock: the queries start" in caplog.text
