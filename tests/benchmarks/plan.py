"""Which cases the benchmark runs: the figures to reach, and the sizes of a full run and of a smoke run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.benchmarks.cases import (
    WARM_UP_BATCHES,
    Case,
    DeepBacklog,
    FirstBatch,
    Job,
    NewRecords,
    PeakMemory,
    SmallBacklog,
    Throughput,
)
from tests.benchmarks.processes import is_available
from tests.benchmarks.records import COMPRESSIONS, Content
from tests.benchmarks.report import ADD_BATCH, CPU, FIRST_BATCH, TRIGGER, WHOLE_QUERY

_SMALL, _MIDDLE = 100, 1000  # bytes of a value in the cases that are about something else than sizes
_LONG_QUERY = 10_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything. `sizes` maps bytes of a value to records of a topic; a batch is (records, partitions)."""

    runs: int
    sizes: Mapping[int, int]
    partitions: Sequence[int]
    growth: Sequence[int]
    query_records: int
    compressions: Sequence[str]
    small: Sequence[tuple[int, int]]
    deep: Sequence[tuple[int, int]]
    new: Sequence[tuple[int, int]]
    start: Sequence[int]
    batches: int
    in_c: bool = True  # how groupkafka reads here, which decides the goals


FULL = Plan(
    runs=5,
    sizes={100: 2_000_000, 1000: 500_000, 10_000: 100_000},
    partitions=(4, 64),
    growth=(4, 64, 256),
    query_records=_LONG_QUERY,
    compressions=COMPRESSIONS,
    # One record in one partition: Spark's own source takes at least one of each partition.
    small=((1, 1), (400, 1), (400, 4), (10_000, 4)),
    deep=((400, 16), (10_000, 16)),
    new=((400, 1),),
    start=(10_000, 500_000),
    batches=15,
)
SMOKE = Plan(
    runs=1,
    sizes={100: 20_000},
    partitions=(4,),
    growth=(4, 16),
    query_records=40_000,
    # That each can be read is shown in tests/embedded/test_clients.py.
    compressions=("none", "zstd"),
    small=((1, 1), (400, 4)),
    deep=((400, 4),),
    new=((400, 1),),
    start=(1_000,),
    batches=3,
)


def default_records(size: int) -> int:
    """Return how many values of a size make a topic that is read in seconds."""
    return FULL.sizes.get(size, max(1, 500_000_000 // size))


def throughput_goals(content: Content, *, in_c: bool) -> dict[str, float]:
    """Return the ratios that reading in C, or in pure Python, is to reach with uncompressed records."""
    if not in_c:
        return {ADD_BATCH: 1.0}
    goals = {ADD_BATCH: 3.0 if content.size <= 100 else 2.5, CPU: 2.0}
    return goals | ({WHOLE_QUERY: 2.0} if content.records >= _LONG_QUERY else {})


def _drain(group: str, plan: Plan, content: Content, *, short_wait: bool = False, bare: bool = False) -> Throughput:
    """Return the plain case; the goals are for the fewest partitions."""
    goals = throughput_goals(content, in_c=plan.in_c) if content.partitions == plan.partitions[0] else {}
    return Throughput(group, content, plan.runs, short_wait=short_wait, bare=bare, goals=goals)


def _throughput(plan: Plan) -> Iterator[Case]:
    """Both sources with their default settings.

    Many partitions with the smallest values only: the peer's waits make such a run long, whatever the values are.
    """
    for size, records in plan.sizes.items():
        content = Content(records, size, plan.partitions[0])
        yield _drain("throughput", plan, content)
        yield Throughput("throughput", content, plan.runs, aggregated=True)
    for partitions in plan.partitions[1:]:
        size = min(plan.sizes)
        yield _drain("throughput", plan, Content(plan.sizes[size], size, partitions))


def _short_wait(plan: Plan) -> Iterator[Case]:
    for size, records in plan.sizes.items():
        for partitions in plan.partitions:
            content, bare = Content(records, size, partitions), partitions == plan.partitions[0]
            yield _drain("shortwait", plan, content, short_wait=True, bare=bare)


def _compression(plan: Plan) -> Iterator[Case]:
    for compression in plan.compressions:
        content = Content(_records(plan, _MIDDLE), _MIDDLE, plan.partitions[0], compression, text=True)
        yield Throughput("compression", content, plan.runs, short_wait=True)


def _growth(plan: Plan) -> Iterator[Case]:
    for partitions in plan.growth:
        yield _drain("growth", plan, Content(_records(plan, _SMALL), _SMALL, partitions), short_wait=True)


def _query(plan: Plan) -> Iterator[Case]:
    yield _drain("query", plan, Content(plan.query_records, _SMALL, plan.partitions[0]), bare=True)


def _memory(plan: Plan) -> Iterator[Case]:
    if is_available():
        yield PeakMemory(Content(_records(plan, _MIDDLE), _MIDDLE, plan.partitions[0]), plan.runs)


def _backlog(plan: Plan) -> Iterator[Case]:
    for records, partitions in plan.small:
        content = Content(records * (WARM_UP_BATCHES + plan.batches), _SMALL, partitions)
        yield SmallBacklog(records, content, plan.runs, {TRIGGER: 1.0} if records <= 400 else {})


def _deep(plan: Plan) -> Iterator[Case]:
    for records, partitions in plan.deep:
        yield DeepBacklog(records, plan.batches, Content(_records(plan, _SMALL), _SMALL, partitions), plan.runs)


def _new(plan: Plan) -> Iterator[Case]:
    for records, partitions in plan.new:
        yield NewRecords(Content(records, _SMALL, partitions), plan.batches, plan.runs)


def _start(plan: Plan) -> Iterator[Case]:
    """Short queries, which mostly start: the shape of scheduled jobs."""
    for records in plan.start:
        content = Content(records, _MIDDLE, plan.partitions[0])
        goals = {WHOLE_QUERY: 0.95}
        yield Throughput("start", content, plan.runs, goals=goals)
        yield Throughput("start", content, plan.runs, short_wait=True, bare=True, goals=goals)
    yield FirstBatch(Content(min(plan.start), _MIDDLE, plan.partitions[0]), plan.runs, {FIRST_BATCH: 1.0})


def _job(plan: Plan) -> Iterator[Case]:
    if is_available():
        for records in plan.start:
            for packages in (False, True):
                yield Job(Content(records, _MIDDLE, plan.partitions[0]), plan.runs, packages=packages)


def _records(plan: Plan, size: int) -> int:
    return plan.sizes.get(size, min(plan.sizes.values()))


_CASES: Mapping[str, Callable[[Plan], Iterator[Case]]] = {
    "throughput": _throughput, "shortwait": _short_wait, "memory": _memory, "compression": _compression,
    "growth": _growth, "query": _query, "backlog": _backlog, "deep": _deep, "new": _new, "start": _start, "job": _job,
}  # fmt: skip
GROUPS = tuple(_CASES)


def cases_of(plan: Plan, groups: Sequence[str]) -> list[Case]:
    """Return the cases of these groups; those that need the same topic follow each other."""
    cases = dict.fromkeys(case for group in GROUPS if group in groups for case in _CASES[group](plan))
    first: dict[object, int] = {}
    for number, case in enumerate(cases):
        first.setdefault(case.content or case, number)
    return sorted(cases, key=lambda case: first[case.content or case])
