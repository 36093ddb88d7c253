"""The simulated world: the same seed gives the same run, processes stop, continue and die as real ones do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.checkout import ROOT
from tests.sim.explore import plan_of, simulate
from tests.sim.kafka.settings import PROTOCOLS
from tests.sim.world import BEGIN_S, Process, SimClock, SimInbox, World


def _ticks(world: World, process: Process, found: list[float]) -> None:
    def run() -> None:
        while True:
            world.sleep(1.0)
            found.append(world.now - BEGIN_S)

    world.spawn(process, run, "ticks")


def test_a_stopped_process_does_nothing_and_goes_on() -> None:
    world = World(1)
    process, found, continued = Process(world, "p"), [], []
    process.on_continue.append(lambda: continued.append(world.now - BEGIN_S))
    _ticks(world, process, found)
    world.at(BEGIN_S + 2.5, lambda: process.stop(4.0))
    world.run(BEGIN_S + 8.0)
    assert [round(tick) for tick in found] == [1, 2, 7, 8] or [round(tick) for tick in found] == [1, 2, 7]
    assert continued == [6.5]


def test_only_a_suspended_machine_stops_the_monotonic_clock() -> None:
    world = World(1)
    process = Process(world, "p")
    clock = SimClock(process)
    process.stop(4.0)
    world.run(BEGIN_S + 5.0)
    assert clock.monotonic_s() == clock.boottime_s() == BEGIN_S + 5.0
    process.stop(3.0, suspended=True)
    world.run(BEGIN_S + 9.0)
    assert (clock.monotonic_s(), clock.boottime_s()) == (BEGIN_S + 6.0, BEGIN_S + 9.0)


def test_a_killed_process_runs_no_step_more() -> None:
    world = World(1)
    process, found = Process(world, "p"), []
    _ticks(world, process, found)
    world.at(BEGIN_S + 2.5, process.kill)
    world.run(BEGIN_S + 5.0)
    assert len(found) == 2
    assert process.tasks == []


def test_a_reader_gets_what_was_put_while_it_waits() -> None:
    world = World(1)
    process = Process(world, "p")
    inbox, found = SimInbox(process), []
    world.spawn(process, lambda: found.append((inbox.get(timeout=5.0), world.now)), "reader")
    world.at(BEGIN_S + 1.0, lambda: inbox.put("item"))
    world.run(BEGIN_S + 6.0)
    assert [item for item, _ in found] == ["item"]
    assert found[0][1] == pytest.approx(BEGIN_S + 1.0, abs=0.001)


_TRACE = """
from tests.sim.explore import plan_of, simulate
for seed in range(1, 7):
    print("\\n".join(simulate(plan_of(seed), tracing=True).trace))
"""


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    texts = [
        subprocess.run(
            [sys.executable, "-c", _TRACE], capture_output=True, check=True, cwd=ROOT, env={"PYTHONHASHSEED": "0"}
        ).stdout
        for _ in range(2)
    ]
    assert len(texts[0].splitlines()) > 500
    assert texts[0] == texts[1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_seeds(protocol: str) -> None:
    """A sample of `scripts/simulate`, which the gate runs with a thousand seeds."""
    for seed in range(1, 21):
        outcome = simulate(plan_of(seed, protocol))
        assert not outcome.problems, f"scripts/simulate --seed {seed} --protocol {protocol}: {outcome.problems}"
