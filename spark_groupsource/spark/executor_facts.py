"""Collect facts about a Spark cluster's executors for the command `doctor`: Python, versions, clock, descriptors.

The package may be missing on executors. So they receive a function that is pickled as a whole and imports nothing of
the package, and a script that runs in the Python that the source would use.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Executors that are busy with an earlier task get none; more rounds are run until each has answered.
_ROUNDS = 5
# Long enough that no slot gets a second task while another one is free.
_PAUSE_S = 0.5
_SETTING_OF_PYTHON = "spark.pyspark.python"


@dataclass(frozen=True, slots=True)
class ExecutorAnswer:
    """One executor's facts, and the minimum difference of its clock from the driver's, in seconds."""

    place: str
    facts: Mapping[str, Any]
    clock_off_s: float


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """The facts of a cluster; `executors` is the number of executors that Spark has."""

    python: str
    executors: int
    answers: tuple[ExecutorAnswer, ...]
    settings: Mapping[str, str]


def python_of_source() -> str:
    """Return the Python that the JVM starts for the source, on the driver and under the same path on executors."""
    return os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"


def probe_executors(master: str, script: str, settings: Iterable[str]) -> ExecutorFacts:
    """Start an application, run a script that prints JSON on each executor, and return the results.

    The result also has the values of the named Spark settings, without those that are not set. Raises Spark's errors.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only this command needs it, and only with a master

    builder = SparkSession.builder.master(master).appName("groupkafka doctor").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("OFF")
        python = python_of_source()
        count = _count(spark)
        answers: dict[str, ExecutorAnswer] = {}
        for _ in range(_ROUNDS):
            answers |= _asked(spark, make_probe(python, script, _PAUSE_S), count)
            count = _count(spark)
            if len(answers) >= count:
                break
        # Spark would check a text as the default against the setting's type.
        found = {name: spark.conf.get(name, None) or "" for name in (*settings, _SETTING_OF_PYTHON)}
        return ExecutorFacts(
            python, count, tuple(answers.values()), {name: value for name, value in found.items() if value}
        )
    finally:
        spark.stop()


def _count(spark: SparkSession) -> int:
    """Return the number of executors; in local mode the driver is the only one."""
    jvm: Any = spark.sparkContext._jsc.sc()
    return max(1, int(jvm.getExecutorMemoryStatus().size()) - 1)


def _asked(
    spark: SparkSession, probe: Callable[[Iterable[int]], Iterable[str]], executors: int
) -> dict[str, ExecutorAnswer]:
    slots = max(spark.sparkContext.defaultParallelism, 2 * executors)
    start_s = time.time()
    lines = spark.sparkContext.parallelize(range(slots), slots).mapPartitions(probe).collect()
    return answers_of(lines, start_s, time.time())


def answers_of(lines: Iterable[str], start_s: float, end_s: float) -> dict[str, ExecutorAnswer]:
    """Return the answers by executor. A clock is off if its time is not between the job's start and end."""
    found = {}
    for line in lines:
        facts = json.loads(line)
        place, at_s = str(facts.pop("place")), float(facts.pop("at_s"))
        found[place] = ExecutorAnswer(place, facts, min(at_s - start_s, 0.0) + max(at_s - end_s, 0.0))
    return found


def make_probe(python: str, script: str, pause_s: float) -> Callable[[Iterable[int]], Iterable[str]]:
    """Return the function of a task. It is pickled with everything it needs, so it uses nothing of this module."""

    def probe(_: Iterable[int]) -> Iterator[str]:
        import json  # noqa: PLC0415
        import os  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import subprocess  # noqa: PLC0415
        import time  # noqa: PLC0415

        at_s = time.time()
        try:
            command = [python, "-c", script]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)  # noqa: S603
            facts = json.loads(done.stdout.splitlines()[-1])
        except subprocess.CalledProcessError as error:
            facts = {"failed": error.stderr.strip().rpartition("\n")[2] or f"it ended with {error.returncode}"}
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            facts = {"failed": f"{type(error).__name__}: {error}"}
        time.sleep(pause_s)
        # Each executor has its own folder, except in local mode.
        yield json.dumps({"place": f"{socket.gethostname()}:{os.getcwd()}", "at_s": at_s, **facts})

    return probe
