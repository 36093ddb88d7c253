"""What all tests share: Spark's workers use this interpreter, and everything stays on loopback."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from tests import spark_archive
from tests.levels import levels
from tests.worker_ends import pytest_sessionfinish, pytest_testnodedown

__all__ = ["pytest_sessionfinish", "pytest_testnodedown"]  # hooks of pytest and pytest-xdist

# Without it Spark's workers are whatever python3 is on the path, and "fail to connect back".
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# The queries in processes of their own inherit it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_archive.jvm_options())
# Before any JVM starts, because its processes inherit it: where tests hold queries (spark_groupsource.failpoints).
FAILPOINTS = tempfile.TemporaryDirectory(prefix="groupkafka-failpoints-")
os.environ["GROUPKAFKA_FAILPOINTS"] = FAILPOINTS.name
# What options may name, which is inherited, too: tests have their secrets in temporary files.
os.environ["GROUPKAFKA_SECRET_DIRS"] = tempfile.gettempdir()
os.environ["GROUPKAFKA_ALLOW_ASSIGNORS"] = "tests.kafka.strategies:*,spark_groupsource.assignors.*"
os.environ["GROUPKAFKA_ALLOW_TOKEN_PROVIDERS"] = "tests.kafka.token_functions:*"
os.environ["GROUPKAFKA_ALLOW_UNSAFE_SETTINGS"] = "sasl.oauthbearer.metadata.authentication.type"

# What a worker of pytest-xdist may need: its Spark session, two query processes, and their Python workers.
_WORKER_MEMORY_GIB = 3.5
# Most time first: the last group of tests to end decides when all have. Other folders come last.
_LONGEST_FIRST = ("kafka", "cluster", "spark", "embedded")
# Tests of one file run in one process, where they share a broker; those under different protocols may be apart.
_PROTOCOLS = {"cooperative", "eager", "kip848", "weighted", "classic", "consumer"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes share the tests: three for two cores, since many tests wait, as far as memory goes.

    The environment variable of pytest-xdist wins, for a machine that does other work, too.
    """
    given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    if given:
        return int(given)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(3 * (os.cpu_count() or 1) // 2, int(memory / 2**30 / _WORKER_MEMORY_GIB)))


class ByFile(LoadScopeScheduling):
    """Gives the tests of one file to one process; see `_PROTOCOLS`."""

    def _split_scope(self, nodeid: str) -> str:
        path, _, name = nodeid.partition("::")
        protocol = name.partition("[")[2].rstrip("]").split("-")[0]
        return f"{path} {protocol}" if protocol in _PROTOCOLS else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Return what shares the tests out, in the order in which they are collected."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files that have no test of the chosen level."""
    wanted = config.getoption("--level")
    if wanted is None or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return None if levels().may_have(wanted, path) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the chosen level. Where several processes share the tests, begin with what takes longest."""
    wanted = config.getoption("--level")
    if wanted is not None:
        table = levels()
        others = [item for item in items if not table.has(wanted, item.nodeid)]
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
    if hasattr(config, "workerinput"):
        ranks = {name: rank for rank, name in enumerate(_LONGEST_FIRST)}
        items.sort(key=lambda item: ranks.get(item.nodeid.split("/")[1], len(ranks)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project's tests."""
    parser.addoption(
        "--level", help="only tests of this level: quick, core, gate, or a part of the nightly run (levels.toml)"
    )
    parser.addoption("--spark", help="run tests/versions with this Spark: 4.0, 4.1, 4.2 or 4.3 (scripts/versions)")
    parser.addoption("--order-runs", type=int, default=1, help="runs of tests/cluster/test_task_order.py")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Return the session of all tests that need one in this process, where there can be only one.

    As a user's own tests would make it: nothing is registered by hand.
    """
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.pollingDelay": "20ms",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
