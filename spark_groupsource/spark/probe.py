"""Asks a Spark cluster what its executors are: Python, versions, clock, descriptors. For the command `doctor`.

The probe runs where the package may be missing, so what executors get is a function that is pickled as a whole and
imports nothing of the package, and a script that is run in the Python that the source would be run in.
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

# Executors that are still busy with an earlier task get none: asked again, so that each has answered.
_ROUNDS = 5
# Long enough that no slot takes a second task while another one is free.
_PAUSE_S = 0.5
_SETTING_OF_PYTHON = "spark.pyspark.python"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one executor has answered, and by how many seconds its clock differs at least from the driver's."""

    place: str
    facts: Mapping[str, Any]
    clock_off_s: float


@dataclass(frozen=True, slots=True)
class Survey:
    """What a cluster has answered: `executors` is how many Spark has."""

    python: str
    executors: int
    answers: tuple[Answer, ...]
    settings: Mapping[str, str]


def python_of_source() -> str:
    """Return the Python that the JVM starts for the source, on the driver and with the same path on executors."""
    return os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON") or "python3"


def survey(master: str, script: str, settings: Iterable[str]) -> Survey:
    """Start an application, let each executor run a script that prints JSON, and return what they have printed.

    Also returns the named Spark settings, those that are set. Raises what Spark raises.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only this command needs it, and only with a master

    builder = SparkSession.builder.master(master).appName("groupkafka doctor").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("OFF")
        python = python_of_source()
        count = _count(spark)
        answers: dict[str, Answer] = {}
        for _ in range(_ROUNDS):
            answers |= _asked(spark, make_probe(python, script, _PAUSE_S), count)
            count = _count(spark)
            if len(answers) >= count:
                break
        # With a text as the default, Spark would check that it is a value of the setting.
        found = {name: spark.conf.get(name, None) or "" for name in (*settings, _SETTING_OF_PYTHON)}
        return Survey(python, count, tuple(answers.values()), {name: value for name, value in found.items() if value})
    finally:
        spark.stop()


def _count(spark: SparkSession) -> int:
    """Return how many executors there are; in local mode the driver is the one."""
    jvm: Any = spark.sparkContext._jsc.sc()
    return max(1, int(jvm.getExecutorMemoryStatus().size()) - 1)


def _asked(spark: SparkSession, probe: Callable[[Iterable[int]], Iterable[str]], executors: int) -> dict[str, Answer]:
    slots = max(spark.sparkContext.defaultParallelism, 2 * executors)
    start_s = time.time()
    lines = spark.sparkContext.parallelize(range(slots), slots).mapPartitions(probe).collect()
    return answers_of(lines, start_s, time.time())


def answers_of(lines: Iterable[str], start_s: float, end_s: float) -> dict[str, Answer]:
    """Return the answers by executor; a clock is off when its time is not between the job's start and its end."""
    found = {}
    for line in lines:
        facts = json.loads(line)
        place, at_s = str(facts.pop("place")), float(facts.pop("at_s"))
        found[place] = Answer(place, facts, min(at_s - start_s, 0.0) + max(at_s - end_s, 0.0))
    return found


def make_probe(python: str, script: str, pause_s: float) -> Callable[[Iterable[int]], Iterable[str]]:
    """Return what a task does. It is pickled with all that it needs, so it uses nothing of this module."""

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
        # Each executor has a folder of its own, but for those of local mode.
        yield json.dumps({"place": f"{socket.gethostname()}:{os.getcwd()}", "at_s": at_s, **facts})

    return probe
