"""Simulate the driver side in virtual time: seeds in parallel, one seed with its trace, or the planted bugs.

    scripts/simulate --seeds 1000             seeds 1 to 1,000, on all cores
    scripts/simulate --seeds 200 --first 5001 --protocol kip848
    scripts/simulate --seed 4711              one seed, with its trace; a failing one is shrunk first
    scripts/simulate --plants [NAME ...]      the table of planted bugs: which are caught, by how many seeds

The exit code is 1 if a seed failed, or a planted bug that must be caught was not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.sim.explore import Outcome, plan_of, shrink, simulate, simulate_many
from tests.sim.kafka.settings import PROTOCOLS

_CHUNK = 25
_REPORT_S = 5.0


@dataclass
class Totals:
    """What many seeds came to."""

    seeds: int = 0
    virtual_s: float = 0.0
    failed: list[Outcome] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)
    documented: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count one seed."""
        self.seeds += 1
        self.virtual_s += outcome.virtual_s
        self.coverage.update(outcome.coverage)
        self.documented.update(outcome.documented)
        if outcome.problems:
            self.failed.append(outcome)


def _chunks(first: int, count: int) -> Iterator[range]:
    for start in range(first, first + count, _CHUNK):
        yield range(start, min(start + _CHUNK, first + count))


def run_seeds(first: int, count: int, protocol: str, jobs: int) -> Totals:
    """Run seeds in processes, and show how far they are."""
    totals, began, shown = Totals(), time.monotonic(), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        chunks = list(_chunks(first, count))
        for outcomes in pool.map(simulate_many, chunks, [protocol] * len(chunks)):
            for outcome in outcomes:
                totals.add(outcome)
                if outcome.problems:
                    print(f"seed {outcome.plan.seed} FAILED: {outcome.problems[0]}", flush=True)
            now = time.monotonic()
            if now - shown > _REPORT_S:
                shown = now
                print(
                    f"{totals.seeds:,} of {count:,} seeds in {now - began:.0f} s, {len(totals.failed)} failed",
                    flush=True,
                )
    seconds = time.monotonic() - began
    print(
        f"{'FAILED' if totals.failed else 'PASSED'}: {totals.seeds:,} seeds in {seconds:.0f} s"
        f" ({totals.seeds / seconds:.0f} per second, {totals.virtual_s / 3600:.1f} hours of virtual time),"
        f" {len(totals.failed)} failed"
    )
    return totals


def show(outcome: Outcome) -> None:
    """Print a run as a person reads it: what it began with, what happened, what is wrong."""
    plan, configuration = outcome.plan, outcome.plan.configuration
    print(
        f"--- seed {plan.seed}: {configuration.group.protocol}, {configuration.queries} queries, {configuration.topics}"
    )
    print(f"    {configuration.group}\n    {configuration.query}")
    print(f"    starting={configuration.starting} drain={configuration.drain_timeout_s} adversary={plan.adversary}")
    print(f"    pattern={configuration.pattern} stateful={configuration.stateful} ({configuration.on_shared_state})")
    for planned in plan.faults:
        print(f"    {planned}")
    print("\n".join(outcome.trace))
    for problem in outcome.problems:
        print(f"!!! {problem}")


def run_one(seed: int, protocol: str) -> int:
    """Run one seed, and show its trace, of its shrunk plan if it fails."""
    outcome = simulate(plan_of(seed, protocol))
    if outcome.problems:
        print(f"seed {seed} fails; looking for a smaller plan", flush=True)
        for problem in outcome.problems:
            print(f"    {problem}")
        outcome = shrink(outcome)
    show(simulate(outcome.plan, tracing=True))
    print(f"seed {seed}: {'FAILED' if outcome.problems else 'PASSED'}")
    return 1 if outcome.problems else 0


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/simulate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds (1000; with --plants 3000)")
    parser.add_argument("--first", type=int, default=1, metavar="S", help="the first seed (1)")
    parser.add_argument("--seed", type=int, metavar="S", help="run one seed, and show its trace")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="", help="one protocol instead of all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many processes (all cores)")
    parser.add_argument("--coverage", action="store_true", help="show how often each thing happened")
    parser.add_argument("--plants", nargs="*", metavar="NAME", help="plant bugs, all or some, and see which are caught")
    given = parser.parse_args(arguments)
    if given.plants is not None:
        from tests.sim.plants import SEEDS, run_plants

        return run_plants(given.plants, given.seeds or SEEDS, given.jobs)
    if given.seed is not None:
        return run_one(given.seed, given.protocol)
    totals = run_seeds(given.first, given.seeds or 1000, given.protocol, given.jobs)
    for name, count in sorted(totals.documented.items()):
        print(f"    documented: {name}: {count}")
    if given.coverage:
        for name, count in sorted(totals.coverage.items()):
            print(f"    {count:9,} {name}")
    if totals.failed:
        protocol = f" --protocol {given.protocol}" if given.protocol else ""
        print(f"to repeat the first: scripts/simulate --seed {totals.failed[0].plan.seed}{protocol}")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The product iterates over sets of texts.
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.sim", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"}
        )
    sys.exit(main(sys.argv[1:]))
