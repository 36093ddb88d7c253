"""The benchmark: groupkafka beside Spark's own Kafka source, in one Spark session, on a real Kafka broker.

    scripts/bench                                   # all cases, 2,000,000 records of 100 B
    scripts/bench --case throughput --size 1000 --records 500000
    scripts/bench --smoke                           # does it work? Below 3 minutes; the numbers say little

Prints progress to standard error, a Markdown table to standard output, and writes all values with --json FILE. Times
are comparable inside one run only: both sources alternate on the same machine, at the same load. A ratio above 1 means
that groupkafka is faster. A new case is a class with a name and run(bed), listed in `cases_of`.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow
import pyspark
from bench_cases import Bed, BenchError, SmallBacklog, SmallBatches, Throughput
from bench_report import OURS, PEER, Series, compare, markdown_table, to_json
from kafkajars import KAFKA_VERSION, RealKafkaError, find_java, say
from peerjars import check_spark_version, peer_jars
from pyspark.sql import SparkSession
from realkafka import RealKafka

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = ROOT / "conf" / "spark-defaults.conf"
CASES = ("throughput", "new", "backlog")
Case = Throughput | SmallBatches | SmallBacklog
SMOKE = {"records": 50_000, "runs": 2, "batches": 5}


def spark_defaults(path: Path) -> dict[str, str]:
    """Return the settings of a Spark properties file: a key, white space, a value."""
    lines = (line.strip() for line in path.read_text().splitlines()) if path.exists() else ()
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


@contextmanager
def spark_session(jars: Sequence[Path], folder: Path) -> Iterator[SparkSession]:
    """A session with the project's own settings, and the peer's jars."""
    settings = spark_defaults(DEFAULTS) | {
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("groupkafka-bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def environment() -> dict[str, Any]:
    """What the numbers depend on, for the JSON."""
    revision = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "revision": revision.stdout.strip() or None,
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


def cases_of(given: argparse.Namespace) -> list[Case]:
    """Return the cases to run."""
    cases: list[Case] = []
    if "throughput" in given.case:
        cases.append(Throughput(given.records, given.size, given.partitions, given.runs))
    for kind, name in ((SmallBatches, "new"), (SmallBacklog, "backlog")):
        if name in given.case:
            for partitions in sorted({1, given.partitions}):
                cases.append(kind(given.batch_records, given.size, partitions, given.batches, given.runs))
    return cases


def measure(cases: Sequence[Case], options: Mapping[str, Mapping[str, str]]) -> list[Series]:
    """Run the cases on a broker and in a session of their own."""
    java = find_java()
    jars = peer_jars(java)
    with tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder:
        say(f"starting Kafka {KAFKA_VERSION}")
        with RealKafka() as kafka:
            say("starting Spark")
            with spark_session(jars, Path(folder)) as spark:
                bed = Bed(spark, kafka.bootstrap_servers, options)
                series: list[Series] = []
                for number, case in enumerate(cases, start=1):
                    say(f"case {number} of {len(cases)}: {case.name}")
                    series += case.run(bed)
                return series


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", action="append", choices=CASES, help="only this case; may be repeated")
    parser.add_argument("--records", type=int, default=2_000_000, help="records of the throughput case (2,000,000)")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value (100)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions; small batches also run with 1 (4)")
    parser.add_argument("--batch-records", type=int, default=400, help="records of a small batch (400)")
    parser.add_argument("--batches", type=int, default=15, help="small batches measured in each run (15)")
    parser.add_argument("--runs", type=int, default=5, help="measured runs of each source (5)")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of groupkafka")
    parser.add_argument("--peer-option", action="append", default=[], metavar="KEY=VALUE", help="... of Spark's source")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all values")
    parser.add_argument("--smoke", action="store_true", help=f"a tiny run: {SMOKE}")
    if "--smoke" in arguments:
        parser.set_defaults(**SMOKE)
    given = parser.parse_args(arguments)
    given.case = given.case or list(CASES)
    for name in ("records", "size", "partitions", "batch_records", "batches", "runs"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if any("=" not in option for option in given.option + given.peer_option):
        parser.error("--option and --peer-option must be KEY=VALUE")
    return given


def main(arguments: Sequence[str]) -> int:
    """The command line of scripts/bench."""
    given = parse_arguments(arguments)
    # A terminated benchmark must end its broker and its Spark too.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(143))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    about, started = environment(), time.monotonic()
    try:
        check_spark_version()
        given_options = {OURS: given.option, PEER: given.peer_option}
        options = {source: dict(one.split("=", 1) for one in lines) for source, lines in given_options.items()}
        series = measure(cases_of(given), options)
    except (BenchError, RealKafkaError) as error:
        say(f"scripts/bench: {error}")
        return 1
    print(f"\nSpark {about['pyspark']} local[2], Kafka {KAFKA_VERSION}, librdkafka {about['librdkafka']},", end=" ")
    print(f"{about['cpus']} CPUs, load {about['load']:.1f} at the start; median (min - max)\n")
    print(markdown_table(compare(series)), flush=True)
    say(f"\ndone after {time.monotonic() - started:.0f} s")
    if given.json is not None:
        shown = {name: value for name, value in vars(given).items() if name not in ("json", "smoke")}
        given.json.write_text(json.dumps(to_json(about, shown, series), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
