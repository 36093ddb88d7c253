"""Whether a query has state, by its checkpoint."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest
from pyarrow import fs

from spark_groupsource.checkpoint import state_folder
from spark_groupsource.checkpoint.state_folder import StateFolder
from spark_groupsource.clock import Deadline, SystemClock


@pytest.mark.parametrize(
    ("names", "found"), [((), None), (("metadata",), False), (("metadata", "state"), True), (("state",), True)]
)
def test_a_local_checkpoint(
    tmp_path: Path, names: tuple[str, ...], found: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Without Spark's file `metadata` the checkpoint is elsewhere: that is logged once."""
    for name in names:
        (tmp_path / name).mkdir()
    folder = StateFolder(str(tmp_path))
    assert [folder.exists(), folder.exists()] == [found, found]
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == (1 if found is None else 0)


def test_a_flow_of_a_pipeline_has_its_newest_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "_checkpoints" / "flow"
    assert StateFolder(str(root)).exists() is not True


def test_a_location_of_another_scheme_is_not_known() -> None:
    assert StateFolder("oss://bucket/query").exists() is None


def test_a_store_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. The store does not answer: not known. 2. It answers later: the next look has that, and there is no other."""
    monkeypatch.setattr(state_folder, "STORE_WAIT_S", 0.05)
    (tmp_path / "metadata").touch()
    (tmp_path / "state").mkdir()
    answers, asked = threading.Event(), []

    def opened(location: str) -> tuple[fs.FileSystem, str]:
        asked.append(location)
        assert answers.wait(60)
        return fs.LocalFileSystem(), str(tmp_path)

    monkeypatch.setattr("spark_groupsource.checkpoint.folder.open_location", opened)
    folder = StateFolder("s3://bucket/query")
    assert folder.exists() is None
    assert folder.exists() is None
    answers.set()
    deadline = Deadline(SystemClock(), 60.0)
    while (found := folder.exists()) is None and not deadline.expired():
        time.sleep(0.01)
    assert found is True
    assert asked == ["s3://bucket/query"]
