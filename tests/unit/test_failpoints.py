"""Failpoints: off by default, and a test that arms one holds exactly the query that it names."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from spark_groupsource import failpoints


def test_nothing_is_held_unless_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(failpoints.FAILPOINTS_VARIABLE, raising=False)
    failpoints.reach("here", "one")
    monkeypatch.setenv(failpoints.FAILPOINTS_VARIABLE, str(tmp_path))
    failpoints.reach("here", "one")
    (tmp_path / "two.here").touch()
    failpoints.reach("here", "one")
    assert (tmp_path / "two.here").exists()


def test_an_armed_place_holds_until_it_is_released(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(failpoints.FAILPOINTS_VARIABLE, str(tmp_path))
    (tmp_path / "one.here").touch()
    thread = threading.Thread(target=failpoints.reach, args=("here", "one"), daemon=True)
    thread.start()
    while not (tmp_path / "one.here.reached").exists():
        assert thread.is_alive()
    thread.join(0.05)
    assert thread.is_alive()
    (tmp_path / "one.here.reached").unlink()
    thread.join(60)
    assert not thread.is_alive()
