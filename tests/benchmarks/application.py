"""A Spark application that reads a topic twice with one source, and prints the peak memory of each kind of process.

Started by the benchmark: its only argument is JSON (PeakMemory of cases.py), its last line of output is JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import PeakMemory
from tests.benchmarks.spark import Bed, jvm_pid, read_all, spark_session


def main(said: dict[str, Any]) -> None:
    """Run, and print the peaks in MB."""
    jars = [Path(jar) for jar in said["jars"]]
    with (
        tempfile.TemporaryDirectory(prefix="groupkafka-bench-") as folder,
        spark_session(jars, Path(folder)) as spark,
        PeakMemory(jvm_pid(spark)) as peak,
    ):
        bed = Bed(spark, said["bootstrap_servers"], jars, {said["source"]: said["options"]})
        for _ in range(2):
            read_all(bed, said["source"], said["topic"], said["records"])
        peaks = peak.peaks_mb()
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
