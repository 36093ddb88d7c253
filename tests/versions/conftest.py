"""Fixtures of the tests with a chosen Spark. Without `--spark` none of them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.conftest import client, group, kafka, topic
from tests.kafka.harness import Query
from tests.kafka.shared_broker import SharedBroker

from .applications import SharedQuery, VersionedApplication
from .environments import environment, known, python_with

__all__ = ["client", "group", "kafka", "topic"]  # fixtures of another folder

StartQuery = Callable[..., SharedQuery]
StartProcess = Callable[..., Query]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless a Spark is named."""
    return None if config.getoption("--spark") else True


@pytest.fixture(scope="session")
def version(pytestconfig: pytest.Config) -> str:
    """Return the version of Spark that the tests run with, such as 4.0; its environment is there."""
    found = str(pytestconfig.getoption("--spark"))
    if found not in known():
        pytest.exit(f"--spark {found} is not known; known are {', '.join(known())}", returncode=2)
    python_with(found)
    return found


@pytest.fixture(scope="session")
def is_old(version: str) -> bool:
    """Return whether Spark names neither the start nor the limit of a plan."""
    return version in ("4.0", "4.1")


@pytest.fixture(scope="session")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], VersionedApplication]]:
    """Return the application with a version of Spark, which is started at the first call."""
    started: dict[str, VersionedApplication] = {}

    def get(spark: str) -> VersionedApplication:
        if spark not in started:
            started[spark] = VersionedApplication(tmp_path_factory.mktemp("app") / spark, spark)
        return started[spark]

    yield get
    for app in started.values():
        app.close()


@pytest.fixture
def options(kafka: SharedBroker, topic: str, group: str) -> dict[str, str]:
    """Return the source options that the tests start from."""
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group,
        "kafka.session.timeout.ms": "6000",
        "kafka.heartbeat.interval.ms": "500",
        "subscribe": topic,
        "startingOffsets": "earliest",
    }


@pytest.fixture
def start_query(
    application: Callable[[str], VersionedApplication], tmp_path: Path, version: str
) -> Iterator[StartQuery]:
    """Start queries in the application of the chosen Spark, or in that of `spark`; they end with the test."""
    started: list[SharedQuery] = []

    def start(name: str, options: dict[str, str], *, spark: str | None = None, **settings: Any) -> SharedQuery:
        query = SharedQuery(application(spark or version), tmp_path, name, {"options": options, **settings})
        started.append(query)
        return query

    yield start
    for query in started:
        query.kill()


@pytest.fixture
def start_process(tmp_path: Path, version: str) -> Iterator[StartProcess]:
    """Start a query in processes of its own, which the test kills."""
    started: list[Query] = []

    def start(name: str, options: dict[str, str], *, spark: str | None = None, **settings: Any) -> Query:
        query = Query(tmp_path, name, {"options": options, "environment": environment(spark or version), **settings})
        started.append(query)
        return query

    yield start
    for query in started:
        query.kill()
