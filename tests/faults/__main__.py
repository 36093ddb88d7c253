"""The fault rig: queries of one consumer group on a real broker, faults, and a judgement of promises P1-P8.

    scripts/faults --gate                           # 39 kinds once, four of them of a Spark cluster
    scripts/faults --smoke                          # 70 faults over the five protocols, 200,000 records
    scripts/faults --hours 8                        # random mixes, protocol after protocol
    scripts/faults --cluster --runs 5               # 60 faults of a Spark cluster over three protocols, five times
    scripts/faults --cluster --smoke                # each of them once, with one protocol
    scripts/faults --kinds app-killed,query-stopped --faults 10 --protocol eager --seed 7
    scripts/faults --judge faults-out/...           # judge a run again from its files

Prints a line per fault, a table at the end, and PASSED or FAILED in the last line. Every run keeps its history in a
folder of its own (see history.py) with a picture, timeline.html. The exit code is 1 when a promise was broken, when the
group did not recover, and when the brokers or the Spark cluster did not start.
The seed decides the order of the faults, their targets and parameters, not the timing of the processes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from spark_groupsource.errors import CommandError
from tests import checkout
from tests.faults import history as files
from tests.faults.draw.page import page_of
from tests.faults.draw.picture import timeline_of
from tests.faults.draw.report import summary, table
from tests.faults.history import History
from tests.faults.inject.kinds import ALL_KINDS, CLUSTER_KINDS, GATE_KINDS, KINDS, Kind, deal, endless, kinds_of, spread
from tests.faults.judge.checker import check
from tests.faults.judge.verdict import Verdict
from tests.faults.rig.rig import BY_NAME, FLAVOURS, GATE_FLAVOURS, GATE_SESSION_S, PROTOCOLS, Place, Shape, flavour_of
from tests.faults.rig.run import run
from tests.realkafka.jars import RealKafkaError
from tests.sparkcluster.daemons import SparkClusterError
from tests.steps import begin

SMOKE_FAULTS, SMOKE_RECORDS = 70, 200_000
CLUSTER_FAULTS, CLUSTER_RECORDS = 60, 60_000
CLUSTER_PROTOCOLS = ("eager", "cooperative", "kip848")
CLUSTER_SMOKE_RECORDS = 40_000
GATE_RECORDS = 20_000
RATE, GATE_RATE = 200.0, 100.0
_SHOWN_LINES = 25  # of a trouble; trouble.txt has all
HOURLY_RUN_S = 900.0  # --hours makes a new group, with new checkpoints, that often


# (outcome, history, verdict) of every run of this process.
DONE: list[tuple[str, History, Verdict]] = []


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
    begin(text)


def shape_of(given: argparse.Namespace, seed: int, protocol: str, records: int) -> Shape:
    """Return how large a run is."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}-{protocol}"
    drawn = flavour_of(seed, list(PROTOCOLS).index(protocol), GATE_FLAVOURS if given.gate else FLAVOURS)
    queries = given.queries or (2 if given.gate or given.cluster else 3)
    return Shape(
        protocol, seed, (given.out / name).absolute(), records=records, queries=queries, max_queries=queries + 1,
        backlog=2_000 if given.gate else 5_000, rate=given.rate or (GATE_RATE if given.gate else RATE),
        place=Place.MIXED if given.gate else Place.CLUSTER if given.cluster else Place.LOCAL,
        flavour=BY_NAME[given.flavour] if given.flavour else drawn,
        short_session_s=GATE_SESSION_S if given.gate else None,
    )  # fmt: skip


def known_kinds(given: argparse.Namespace) -> Mapping[str, Kind]:
    """Return the kinds that a run of this sort may have."""
    return GATE_KINDS if given.gate else CLUSTER_KINDS if given.cluster else KINDS


def judged(folder: Path) -> tuple[History, Verdict]:
    """Judge a run from its files: print and keep the table, draw the picture; return the history and its verdict."""
    begin(f"judging {folder}")
    found = files.load(folder)
    verdict = check(found)
    text = table(found, verdict)
    print(text, flush=True)
    (folder / "table.txt").write_text(text)
    draw(found, verdict, folder / "timeline.html")
    return found, verdict


def draw(found: History, verdict: Verdict, path: Path) -> None:
    """Draw the picture of a run. Without plotly there is none, and the run counts all the same."""
    try:
        path.write_text(page_of(timeline_of(found, verdict), found.faults), encoding="utf-8")
    except CommandError as error:
        say(f"no picture: {error}")


def one_run(given: argparse.Namespace, shape: Shape, kinds: Iterable[str]) -> bool:
    """Run and judge; returns whether all was well."""
    trouble = run(shape, kinds, say)
    history, verdict = judged(shape.folder)
    good = verdict.good and not trouble
    outcome = "passed" if good else "BROKEN OFF" if trouble else "FAILED" if verdict.violated() else "IN DOUBT"
    DONE.append((outcome, history, verdict))
    if trouble:
        print("\n".join(trouble.splitlines()[:_SHOWN_LINES]))
    if good and not given.keep:
        shutil.rmtree(shape.folder / "work")
    say(f"{'PASSED' if good else 'FAILED'}: {shape.folder}")
    return good


def until(ends_at: float, kinds: Iterator[str]) -> Iterator[str]:
    """Yield kinds until the time is over."""
    while time.monotonic() < ends_at:
        yield next(kinds)


def for_hours(given: argparse.Namespace, protocols: Sequence[str]) -> bool:
    """Run after run with seeds that count up, until the time is over or something is wrong."""
    over_at = time.monotonic() + given.hours * 3600
    for seed, protocol in zip(itertools.count(given.seed), itertools.cycle(protocols)):
        if time.monotonic() >= over_at:
            return True
        ends_at = min(over_at, time.monotonic() + HOURLY_RUN_S)
        kinds = until(ends_at, endless(seed, protocol, given.kinds))
        if not one_run(given, shape_of(given, seed, protocol, 0), kinds):
            say(f"run it alone: scripts/faults --hours {HOURLY_RUN_S / 3600:.2f} --seed {seed} --protocol {protocol}")
            return False
    return True


def for_faults(given: argparse.Namespace, protocols: Sequence[str]) -> bool:
    """Run a number of faults, shared out over the protocols; a wrong run does not stop the others."""
    known = known_kinds(given)
    if given.gate or (given.cluster and given.smoke):
        faults = len(kinds_of(protocols[0], given.kinds, known))
        records = GATE_RECORDS if given.gate else CLUSTER_SMOKE_RECORDS
    elif given.cluster:
        faults, records = given.faults or CLUSTER_FAULTS, CLUSTER_RECORDS
    elif given.smoke:
        faults, records = SMOKE_FAULTS, SMOKE_RECORDS
    else:
        faults, records = given.faults or len(given.kinds) * len(protocols), 0
    dealt = deal(given.seed, protocols, faults, given.kinds, known)
    if given.gate:
        dealt = {protocol: spread(names) for protocol, names in dealt.items()}
    share = -(-records // len(protocols))
    good = True
    for protocol in protocols:
        good &= one_run(given, shape_of(given, given.seed, protocol, share), dealt[protocol])
    return good


def for_runs(given: argparse.Namespace, protocols: Sequence[str]) -> bool:
    """Run all protocols again and again with seeds that count up."""
    good, seed = True, given.seed
    for number in range(given.runs):
        given.seed = seed + number
        good &= for_faults(given, protocols)
    return good


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--smoke", action="store_true", help=f"{SMOKE_FAULTS} faults, {SMOKE_RECORDS:,} records")
    what.add_argument("--gate", action="store_true", help="the gate's kinds once, with one protocol")
    parser.add_argument("--cluster", action="store_true", help="faults of a Spark cluster that the rig starts")
    parser.add_argument("--runs", type=int, default=1, help="so many times, with seeds that count up (1)")
    what.add_argument("--hours", type=float, help="random mixes for so long")
    what.add_argument("--judge", type=Path, metavar="FOLDER", help="judge a run again from its files")
    what.add_argument("--list", action="store_true", help="list the kinds")
    parser.add_argument("--seed", type=int, help="a number; random without it")
    parser.add_argument("--protocol", choices=("all", *PROTOCOLS), help="all, for --gate cooperative")
    parser.add_argument("--flavour", choices=tuple(BY_NAME), help="the mix of options; by seed and protocol without it")
    parser.add_argument("--kinds", default="", help="only these kinds, comma separated")
    parser.add_argument("--faults", type=int, help="how many, each kind at least once; not for --smoke, --gate")
    parser.add_argument(
        "--queries", type=int, choices=(2, 3), help="at the start (3; --gate, --cluster: 2); one more may join"
    )
    parser.add_argument("--rate", type=float, help=f"records written a second ({RATE:.0f}; --gate: {GATE_RATE:.0f})")
    parser.add_argument(
        "--out", type=Path, default=checkout.ROOT / "faults-out", help="where the histories go (faults-out)"
    )
    parser.add_argument("--keep", action="store_true", help="keep checkpoints and logs of a good run too")
    given = parser.parse_args(arguments)
    given.kinds = tuple(name for name in given.kinds.split(",") if name)
    known = known_kinds(given)
    unknown = set(given.kinds) - known.keys()
    if unknown:
        parser.error(f"unknown kinds {sorted(unknown)}; known are {', '.join(known)}")
    if given.judge and not (given.judge / "run.json").exists():
        parser.error(f"{given.judge} holds no history: run.json is missing (the run did not come to its end)")
    if given.cluster and given.hours:
        parser.error("--cluster goes with --runs, not with --hours")
    if given.gate and (given.cluster or given.faults or given.runs != 1 or given.protocol == "all"):
        parser.error("--gate is one run with one protocol: it goes without --cluster, --faults, --runs, --protocol all")
    what_to_do = (given.smoke, given.gate, given.hours, given.judge, given.list, given.kinds, given.faults)
    if not (any(what_to_do) or given.cluster):
        parser.error("one of --gate, --smoke, --hours, --judge, --list, --kinds, --faults and --cluster is needed")
    if given.seed is None:
        given.seed = secrets.randbelow(1_000_000)
    if given.protocol is None:
        given.protocol = "cooperative" if given.gate or (given.cluster and given.smoke) else "all"
    return given


def main(arguments: Sequence[str]) -> int:
    """The command line of scripts/faults."""
    given = parse_arguments(arguments)
    if given.list:
        for kind in ALL_KINDS.values():
            print(f"{kind.name:26s} {kind.doc}")
        return 0
    if given.judge is not None:
        return 0 if judged(given.judge)[1].good else 1
    # A terminated rig must end its brokers and its queries too.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    everything = CLUSTER_PROTOCOLS if given.cluster else tuple(PROTOCOLS)
    protocols = list(everything) if given.protocol == "all" else [given.protocol]
    say(f"seed {given.seed}, protocols {', '.join(protocols)}")
    started = time.monotonic()
    try:
        good = for_hours(given, protocols) if given.hours else for_runs(given, protocols)
    except (RealKafkaError, SparkClusterError) as error:
        say(f"FAILED: {error}")
        return 1
    print(f"\n{summary(DONE)}\n", flush=True)
    say(f"{'PASSED' if good else 'FAILED'} after {time.monotonic() - started:.0f} s, seed {given.seed}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
