"""End clients without waiting for them."""

from __future__ import annotations

import sys
import threading
from collections import deque

import pytest

from spark_groupsource.client.ending import on_own_thread
from tests.unit.fakes import wait_until


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.rule("R87")
def test_a_client_for_whose_end_there_is_no_thread_is_closed_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The container has a limit of threads. A close on the task's own thread might never return."""
    ended: list[str] = []
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", no_thread)
        on_own_thread(lambda: ended.append("first"))
    assert ended == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "can't start new thread" in caplog.text
    on_own_thread(lambda: ended.append("second"))
    wait_until(lambda: len(ended) == 2)
    assert ended == ["first", "second"]


def test_at_the_interpreters_end_no_client_is_closed_and_nothing_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []
    with monkeypatch.context() as end:
        end.setattr(threading.Thread, "start", no_thread)
        end.setattr(sys, "is_finalizing", lambda: True)
        end.setattr("spark_groupsource.client.ending._ends", deque())
        on_own_thread(lambda: ended.append("first"))
    assert (ended, caplog.text) == ([], "")
