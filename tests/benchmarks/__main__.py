"""The benchmark: groupkafka beside Spark's own Kafka source, in one Spark session, on a real Kafka broker.

    scripts/bench                                   # everything, about 45 minutes on two cores
    scripts/bench --json bench-out.json --chart docs/bench.svg
    scripts/bench --case throughput --size 1000 --records 500000 --partitions 4
    scripts/bench --busy --case throughput query    # as on a full executor: all of Spark on one core
    scripts/bench --smoke                           # does it work? Below 3 minutes; the numbers say little
    scripts/bench --report bench-out.json           # measure nothing: tables (and --chart) of an earlier run

Cases: throughput (values of 100 B, 1 KB and 10 KB; noop sink and an aggregation; 4 and 64 partitions), shortwait (the
same, where Spark's own source does not wait 500 ms for each task at the end of a log, as it does by default),
compression (five kinds), growth (to 256 partitions), query (10,000,000 records), backlog, deep and new (small
batches), memory, start (queries of 10,000 and 500,000 records of 1 KB, which mostly start), job (the same by
spark-submit, from the command to its end; Spark's own source with --jars, and with --packages). compression and growth
are measured with the short wait; query, memory, and with the short wait 4 partitions also with a Python source that has
its rows in memory, which shows what PySpark's Data Source API takes by itself.

Prints progress to standard error, Markdown to standard output: tables, and what is ahead and what is behind. Times are
comparable inside one run only: both sources alternate on the same machine, at the same load. A ratio above 1 means
that groupkafka is better. CPU and memory are those of the JVM and the Python processes below it, and need Linux.
PySpark's archives are made what is measured, and stay so: as installed, or, with --fix-startup, with bytecode.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pyarrow
import pyspark
from confluent_kafka import KafkaException
from pyspark.errors import PySparkException

from spark_groupsource.cli.doctor.startup import archives, fix_startup, undo_startup
from spark_groupsource.errors import CommandError
from spark_groupsource.executor.clients.choose import native_library, reading_path
from tests import checkout, plots
from tests.benchmarks.cases import Case
from tests.benchmarks.chart import draw
from tests.benchmarks.peerjars import check_spark_version, peer_jars
from tests.benchmarks.plan import FULL, GROUPS, SMOKE, Plan, cases_of, default_records
from tests.benchmarks.processes import is_available
from tests.benchmarks.records import BenchError
from tests.benchmarks.report import OURS, PEER, Series, bare_table, compare, series_from_json, tables, to_json, verdict
from tests.benchmarks.spark import Bed, spark_session
from tests.realkafka.jars import KAFKA_VERSION, RealKafkaError, find_java
from tests.realkafka.realkafka import RealKafka
from tests.steps import begin, say


def environment() -> dict[str, Any]:
    """What the numbers depend on, for the JSON."""
    command = ["git", "-C", str(checkout.ROOT), "describe", "--always", "--dirty"]
    try:
        revision = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        revision = ""
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": revision or None,
        "reading": reading_path(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "machine": platform.platform(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "confluent_kafka": confluent_kafka.version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "pyarrow": pyarrow.__version__,
        "kafka": KAFKA_VERSION,
    }


def measure(
    cases: Sequence[Case], options: Mapping[str, Mapping[str, str]], *, busy: bool = False
) -> tuple[list[Series], list[str]]:
    """Run the cases on a broker and in a session of their own. Return what was measured, and what failed.

    busy: give Spark, its JVM and all of its Python processes, one core together. The broker keeps the others.
    """
    java = find_java()
    jars = peer_jars(java)
    series: list[Series] = []
    failures: list[str] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
        say(f"starting Kafka {KAFKA_VERSION}")
        with RealKafka() as kafka:
            say("starting Spark")
            if busy:
                # The broker runs already. Processes that Spark starts inherit the core.
                os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            with spark_session(jars, Path(folder), cores=1 if busy else 2) as spark:
                bed = Bed(spark, kafka.bootstrap_servers, jars, options)
                for number, case in enumerate(cases, start=1):
                    name = f"{case.subject.group}: {case.subject.name}"
                    say(f"[{time.monotonic() - started:4.0f} s] case {number} of {len(cases)}: {name}")
                    try:
                        series += case.run(bed)
                    except (BenchError, KafkaException, PySparkException) as error:
                        # What the other cases show is not lost.
                        failures.append(f"{name}: {str(error).splitlines()[0]}")
                        say(f"    FAILED: {error}")
    return series, failures


def show(results: Mapping[str, Any], series: Sequence[Series], chart: Path | None) -> None:
    """Print tables and verdict, and draw the chart if one is wanted."""
    about, compared = results["environment"], compare(series)
    title = (
        f"Spark {about['pyspark']} {about.get('master', 'local[2]')}, Kafka {about['kafka']}, "
        f"librdkafka {about['librdkafka']}, {about['cpus']} CPUs, load {about['load']:.1f} at the start; "
        f"{about['reading']}"
    )
    print(f"\n{title}. Median (min - max); p95 is the 95th percentile.\n")
    for part in (tables(compared), bare_table(series), verdict(compared)):
        if part:
            print(f"{part}\n", flush=True)
    if chart is not None:
        plots.save(draw(compared, title), chart)


def _count(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _setting(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is not KEY=VALUE")
    return key, value


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    several: dict[str, Any] = {"action": "extend", "nargs": "+"}
    parser.add_argument("--case", **several, choices=GROUPS, help="only these cases")
    parser.add_argument("--size", **several, type=_count, metavar="BYTES", help="sizes of values (100 1000 10000)")
    parser.add_argument("--records", type=_count, metavar="N", help="records of a topic (by size: 2,000,000 of 100 B)")
    parser.add_argument("--partitions", **several, type=_count, metavar="N", help="partitions of throughput (4 64)")
    parser.add_argument("--query-records", type=_count, metavar="N", help="records of the query case (10,000,000)")
    parser.add_argument("--batch-records", **several, type=_count, metavar="N", help="records of small batches")
    parser.add_argument("--batches", type=_count, metavar="N", help="small batches measured in each run (15)")
    parser.add_argument("--runs", type=_count, metavar="N", help="measured runs of each source (5)")
    setting: dict[str, Any] = {"action": "append", "type": _setting, "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument("--option", **setting, help="an option of groupkafka")
    parser.add_argument("--peer-option", **setting, help="an option of Spark's source")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="write the ratios as SVG")
    parser.add_argument("--fix-startup", action="store_true", help="PySpark as `doctor --fix-startup` leaves it")
    parser.add_argument("--busy", action="store_true", help="all of Spark, JVM and Python, on one core, with local[1]")
    parser.add_argument("--smoke", action="store_true", help="every kind of case once, tiny")
    parser.add_argument("--report", type=Path, metavar="FILE", help="show what --json wrote, measure nothing")
    given = parser.parse_args(arguments)
    if given.busy and not hasattr(os, "sched_setaffinity"):
        parser.error("--busy: this system cannot bind a process to a core")
    if given.chart is not None and not plots.is_installed():
        parser.error(f"--chart: {plots.ADVICE}")
    for path in (given.json, given.chart):
        if path is not None and not path.absolute().parent.is_dir():
            parser.error(f"{path}: no such folder")  # now, not after 25 minutes
    return given


def plan_of(given: argparse.Namespace) -> Plan:
    """Return the full or the smoke plan with what the command line changes."""
    plan = SMOKE if given.smoke else FULL
    changes = {name: getattr(given, name) for name in ("partitions", "query_records", "batches", "runs")}
    changes = {name: value for name, value in changes.items() if value is not None}
    changes["in_c"] = not isinstance(native_library(), str)
    if given.size or given.records:
        sizes = given.size or plan.sizes
        changes["sizes"] = {size: given.records or default_records(size) for size in sizes}
    if given.batch_records:
        counts = sorted({1, (given.partitions or plan.partitions)[0]})
        wanted = [(records, count) for records in given.batch_records for count in counts if records >= count]
        changes["small"] = changes["new"] = wanted
        changes["deep"] = [(records, plan.deep[0][1]) for records in given.batch_records]
    return replace(plan, **changes)


def run(given: argparse.Namespace) -> int:
    """Measure and show. Raises `BenchError`, `CommandError` and `RealKafkaError`."""
    if given.report is not None:
        results = json.loads(given.report.read_text())
        show(results, series_from_json(results), given.chart)
        return 0
    check_spark_version()
    # scripts/test leaves bytecode in the same archives.
    with archives() as paths:
        (fix_startup if given.fix_startup else undo_startup)(paths, SimpleNamespace(print_line=say, step=begin))
    started, about = time.monotonic(), environment()
    about["master"] = "local[1] on one core" if given.busy else "local[2]"
    groups = given.case or GROUPS
    if not is_available():
        say("this system has no /proc/<pid>/smaps_rollup: CPU and memory are left out")
    cases = cases_of(plan_of(given), groups)
    options = {OURS: dict(given.option), PEER: dict(given.peer_option)}
    series, failures = measure(cases, options, busy=given.busy)
    shown = {name: value for name, value in vars(given).items() if name not in ("json", "chart", "report")}
    results = to_json(about, shown, series) | {"failures": failures}
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n")
    show(results, series, given.chart)
    say(f"\ndone after {time.monotonic() - started:.0f} s")
    for failure in failures:
        say(f"FAILED {failure}")
    return 1 if failures else 0


def main(arguments: Sequence[str]) -> int:
    """The command line of scripts/bench."""
    given = parse_arguments(arguments)
    # A terminated benchmark must end its broker and its Spark too.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    try:
        return run(given)
    except (BenchError, CommandError, RealKafkaError, OSError, ValueError) as error:
        say(f"scripts/bench: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
