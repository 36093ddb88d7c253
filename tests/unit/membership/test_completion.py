"""When the member looks into Spark's commit log, on a clock that the tests advance."""

from __future__ import annotations

import itertools
import time

import pytest

from spark_groupsource.membership.completion import PROBE_INTERVAL_S, CheckSchedule, CompletionWatch
from spark_groupsource.model.offsets import OffsetRange
from tests.unit.fakes import ManualClock, flight, tp
from tests.unit.membership.test_thread import CommitLog

BATCH, NEXT = flight(OffsetRange(tp(0), 0, 10)), flight(OffsetRange(tp(0), 10, 20))
STEP_S = 0.02


def looks(lookout: CheckSchedule, clock: ManualClock, seconds: float, look_s: float = 0.0) -> list[float]:
    """Let the event thread go round for so long, `look_s` for each look; return how old the batch was at each."""
    found, started_s = [], clock.now_s
    while clock.now_s < started_s + seconds:
        clock.advance(max(1e-4, lookout.wait_s(STEP_S)))
        if lookout.due(BATCH):
            found.append(clock.now_s - started_s)
            clock.advance(look_s)
            lookout.checked()
    return found


@pytest.mark.parametrize("seconds", [0.1, 1.0, 10.0, 600.0])
def test_the_end_of_a_batch_is_seen_soon_for_what_it_took(seconds: float) -> None:
    clock = ManualClock()
    lookout = CheckSchedule(clock, is_local=True)
    assert not lookout.due(BATCH)
    found = looks(lookout, clock, seconds)
    latest_s = min(max(0.05 * seconds, 0.004), 1.0) + STEP_S
    assert all(later - earlier <= latest_s for earlier, later in itertools.pairwise([0.0, *found, seconds]))


def test_a_long_batch_is_looked_at_rarely() -> None:
    clock = ManualClock()
    lookout = CheckSchedule(clock, is_local=True)
    lookout.due(BATCH)
    assert len(looks(lookout, clock, 1.0)) < 80
    assert len(looks(lookout, clock, 3_600.0)) < 3_750


def test_slow_looks_take_a_small_part_of_the_time() -> None:
    clock = ManualClock()
    lookout = CheckSchedule(clock, is_local=True)
    lookout.due(BATCH)
    assert 1 <= len(looks(lookout, clock, 2.0, look_s=0.03)) <= 5


def test_every_batch_is_looked_at_from_its_own_beginning() -> None:
    clock = ManualClock()
    lookout = CheckSchedule(clock, is_local=True)
    lookout.due(BATCH)
    looks(lookout, clock, 60.0)
    assert not lookout.due(NEXT)
    assert lookout.wait_s(STEP_S) == pytest.approx(0.004)
    clock.advance(0.004)
    assert lookout.due(NEXT)
    lookout.checked()
    assert not lookout.due(NEXT), "the next look is later"


def test_the_event_thread_rests_while_somebody_waits_for_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    """Guards against: 1. nobody waits for the batch, and the next look into a local log is planned, 2. a stop begins to
    wait, with looks of its own, 3. the planned look is overdue for ever, and the event thread never rests again.
    """
    clock, log = ManualClock(), CommitLog(is_local=True)
    watch = CompletionWatch(
        log, clock,
        flight=lambda: BATCH, post=lambda job: job(), serve_commands=lambda _: None, on_complete=lambda end: None,
    )  # fmt: skip
    watch.check(waits=False)
    clock.advance(10.0)
    assert watch.wait_s(STEP_S) == 0.0
    for looks in range(1, 4):
        clock.advance(PROBE_INTERVAL_S)
        watch.check(waits=True)
        while watch.busy:
            time.sleep(0.001)
        assert (log.looks, watch.wait_s(STEP_S)) == (looks, STEP_S)
    watch.close()
    assert not caplog.records, "a store that always answers is no news"


def test_nothing_in_flight_or_a_store_that_costs_a_request_means_no_look() -> None:
    clock = ManualClock()
    for lookout, batch in ((CheckSchedule(clock, is_local=True), None), (CheckSchedule(clock, is_local=False), BATCH)):
        for _ in range(100):
            assert not lookout.due(batch)
            assert lookout.wait_s(STEP_S) == STEP_S
            clock.advance(STEP_S)
