"""What the benchmark reads in /proc: CPU time and memory of a tree of processes."""

from __future__ import annotations

import os
import sys

import pytest

from tests.benchmarks import processes
from tests.benchmarks.processes import (  # fmt: skip
    ALL,
    CLIENT,
    JVM,
    JVM_OWN,
    JVM_TASKS,
    PLANNERS,
    READER,
    REST,
    TASKS,
    WORKERS,
    CpuMeter,
    PeakMemory,
    Stat,
    below,
    kind_of,
    parse_pss_kb,
    parse_stat,
    part_of,
    ticks_between,
)

# As proc(5) numbers them: 14 utime, 15 stime, 16 cutime, 17 cstime.
LINE = "4242 ({name}) S 17 4242 4242 0 -1 4194560 5307 88 0 0 120 30 7 5 20 0 41 0 9000 4000000 3000 1844 1 1 0 0\n"


@pytest.mark.parametrize("name", ["java", "python3 -m x", "a) S 1 (b"])
def test_a_stat_line_whatever_the_name(name: str) -> None:
    assert parse_stat(LINE.format(name=name)) == Stat(4242, 17, 150, 12)


def test_the_proportional_set_size() -> None:
    text = "55d2-7fff ---p 00000000 00:00 0   [rollup]\nRss:    1688 kB\nPss:     192 kB\nPss_Dirty:  116 kB\n"
    assert parse_pss_kb(text) == 192
    assert parse_pss_kb("") == 0  # a process that is about to end


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (JVM, ["/usr/lib/jvm/java-17/bin/java", "-cp", "/x/pyspark/jars/*", "pyspark-shell"]),
        (READER, ["/x/bin/python", "-m", "pyspark.sql.streaming.python_streaming_source_runner"]),
        (WORKERS, ["/x/bin/python", "-m", "pyspark.daemon", "pyspark.worker"]),
        (PLANNERS, ["/x/bin/python", "-m", "pyspark.daemon", "pyspark.sql.worker.plan_data_source_read"]),
    ],
)
def test_kinds_of_processes(kind: str, words: list[str]) -> None:
    assert kind_of(b"\0".join(word.encode() for word in words) + b"\0") == kind


@pytest.mark.parametrize(
    ("part", "kind", "thread"),
    [
        (CLIENT, WORKERS, "rdk:broker1"),
        (TASKS, WORKERS, "python3.11"),
        (JVM_TASKS, JVM, "Executor task l"),
        (JVM_OWN, JVM, "C2 CompilerThre"),
        (JVM_OWN, JVM, "GC Thread#1"),
        (REST, JVM, "stream executio"),
        (REST, READER, "rdk:broker1"),
    ],
)
def test_what_a_thread_works_for(part: str, kind: str, thread: str) -> None:
    assert part_of(kind, thread) == part


def stats(*rows: tuple[int, int, int, int]) -> dict[int, Stat]:
    return {row[0]: Stat(*row) for row in rows}


def test_descendants_only() -> None:
    everybody = stats((1, 0, 9, 9), (10, 1, 0, 0), (11, 10, 0, 0), (12, 11, 0, 0), (20, 1, 0, 0), (21, 20, 0, 0))
    assert sorted(below(10, everybody)) == [10, 11, 12]
    assert below(99, everybody) == {}


def test_cpu_of_what_runs_and_of_what_is_new() -> None:
    before = stats((10, 1, 100, 5), (11, 10, 40, 0))
    after = stats((10, 1, 130, 5), (11, 10, 45, 0), (12, 11, 7, 0))
    assert ticks_between(10, before, after) == 30 + 5 + 7


def test_an_ended_child_counts_for_what_it_used_meanwhile() -> None:
    before = stats((10, 1, 100, 0), (11, 10, 40, 3))
    after = stats((10, 1, 100, 50))  # the root waited for it: 43 of before, 7 since
    assert ticks_between(10, before, after) == 7


def test_an_ended_worker_takes_nothing_from_the_others() -> None:
    before = stats((10, 1, 100, 0), (11, 10, 1, 0), (12, 11, 900, 0))
    after = stats((10, 1, 108, 0), (11, 10, 1, 0))  # PySpark's daemon, 11, does not wait for its workers
    assert ticks_between(10, before, after) == 8


@pytest.mark.skipif(not processes.is_available(), reason="Linux only")
def test_this_process_uses_cpu_and_memory() -> None:
    meter = CpuMeter(os.getpid())
    with PeakMemory(os.getpid()) as peak:
        held = bytearray(os.urandom(50_000_000))
        while meter.seconds() < 0.05:
            sum(range(10_000))
    assert meter.parts()[TASKS] >= 0.05, meter.parts()
    peaks = peak.peaks_mb()
    assert len(held) == 50_000_000
    assert peaks[WORKERS] > 50, sys.version
    assert peaks[ALL] >= peaks[WORKERS]
