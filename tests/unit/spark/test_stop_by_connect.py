"""Requests to stop through Spark Connect, with a session that runs the server's part here."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_groupsource.checkpoint.stop_requests import Answer, Run, StopFiles
from spark_groupsource.spark.stop_by_connect import RemoteRequest, StopRequestSource
from tests.checkout import ROOT

DEFAULTS = ROOT / "conf" / "spark-defaults.conf"


class OwnSession:
    """A clone of the query's session."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.options: dict[str, str] = {}
        self.dataSource = SimpleNamespace(register=lambda source: self.calls.append(f"register {source.name()}"))
        self.client = SimpleNamespace(
            release_session=lambda: self.calls.append("release"), close=lambda: self.calls.append("close")
        )

    @property
    def read(self) -> Any:
        """Answer as a reader of the small data source."""

        def collect(options: dict[str, str]) -> list[tuple[str]]:
            self.calls.append(options["action"])
            self.options = options
            reader = StopRequestSource(options).reader(StructType())
            return [row for partition in reader.partitions() for row in reader.read(partition)]  # type: ignore[misc]

        frame = lambda **options: SimpleNamespace(load=lambda: SimpleNamespace(collect=lambda: collect(options)))  # noqa: E731
        return SimpleNamespace(format=lambda _name: SimpleNamespace(options=frame))


class QuerySession:
    """The query's session. Any other use of it may hang the worker of foreachBatch, and fails here."""

    def __init__(self) -> None:
        self.clones: list[OwnSession] = []

    def cloneSession(self) -> OwnSession:
        self.clones.append(OwnSession())
        return self.clones[-1]


@pytest.fixture
def files(tmp_path: Path) -> StopFiles:
    """Return the files of a checkpoint with one run."""
    (tmp_path / "metadata").write_text("{}")
    found = StopFiles(str(tmp_path))
    found.register(Run.here("shop", 0))
    return found


def test_requests_go_through_a_session_of_their_own_which_is_released(files: StopFiles, tmp_path: Path) -> None:
    session = QuerySession()
    request = RemoteRequest(SimpleNamespace(_session=session, id="mine"), str(tmp_path))  # type: ignore[arg-type]
    assert session.clones == [], "a query that is never asked needs none"
    (run,) = request.ask()
    assert files.is_requested(run)
    assert request.ask() == {run: None}
    files.answer(run, Answer.COMPLETE)
    assert request.ask() == {run: Answer.COMPLETE}
    request.close()
    assert not files.is_requested(run)
    (own,) = session.clones
    assert own.calls == ["register groupkafka_stop", "ask", "ask", "ask", "forget", "release", "close"]


def test_spark_masks_the_location_as_it_masks_that_of_the_query(files: StopFiles, tmp_path: Path) -> None:
    """The setting is that of conf/spark-defaults.conf. A location may have credentials, and plans show options."""
    session = QuerySession()
    RemoteRequest(SimpleNamespace(_session=session, id="mine"), str(tmp_path)).ask()  # type: ignore[arg-type]
    line = next(line for line in DEFAULTS.read_text().splitlines() if line.startswith("spark.sql.redaction.options"))
    masked = re.compile(line.split()[1])
    shown = [value for name, value in session.clones[0].options.items() if not masked.search(name)]
    assert files.name == str(tmp_path)
    assert str(tmp_path) not in shown


def test_the_session_is_released_when_the_checkpoint_cannot_be_reached() -> None:
    session = QuerySession()
    request = RemoteRequest(SimpleNamespace(_session=session, id="mine"), "nostore://lake/orders")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nostore"):
        request.ask()
    request.close()
    assert session.clones[0].calls[-2:] == ["release", "close"]


def test_the_checkpoint_of_another_query_is_not_asked(files: StopFiles, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "other"}')
    request = RemoteRequest(SimpleNamespace(_session=QuerySession(), id="mine"), str(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="belongs to another query: its id is other"):
        request.ask()
    assert not any(files.is_requested(run.name) for run in files.runs())
