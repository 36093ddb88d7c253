"""What a command shows on a terminal while it works."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_groupsource.checkpoint.stop_requests import Run, StopFiles
from spark_groupsource.cli import progress as module
from spark_groupsource.cli.progress import Progress


class Lines:
    """Keeps the lines, and lets a test wait for them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self._patch = patch
        self._new = threading.Condition()

    def progress(self, *, first_s: float, every_s: float = 60, is_terminal: bool = True) -> Progress:
        self._patch.setattr(module, "FIRST_S", first_s)
        self._patch.setattr(module, "EVERY_S", every_s)
        self._patch.setattr(module, "warn", self.add)
        with self._patch.context() as patched:
            patched.setattr(module, "sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: is_terminal)))
            return Progress()

    def add(self, line: str) -> None:
        with self._new:
            self.lines.append(line)
            self._new.notify()

    def wait_for(self, number: int) -> None:
        with self._new:
            assert self._new.wait_for(lambda: len(self.lines) >= number, 60), self.lines


def threads() -> list[str]:
    """Return the threads that show progress."""
    return [thread.name for thread in threading.enumerate() if thread.name == "progress"]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    """Return where lines go, and check that no thread is left."""
    before = threads()
    yield Lines(monkeypatch)
    assert threads() == before


def test_a_long_step_is_shown_again_and_again_and_a_later_one_with_its_own_text(lines: Lines) -> None:
    with lines.progress(first_s=0.05, every_s=0.01) as progress:
        progress.step("reading")
        lines.wait_for(2)
        progress.step("committing")
        lines.wait_for(len(lines.lines) + 2)
    said = [line.partition(" s] ")[2] for line in lines.lines]
    assert said[:2] == ["reading"] * 2
    assert said[-1] == "committing"


def test_many_short_steps_are_shown_when_they_are_long_together(lines: Lines) -> None:
    with lines.progress(first_s=0.2) as progress:
        number = 0
        while (number < 2 or not lines.lines) and number < 3000:
            progress.step(f"group {number}")
            threading.Event().wait(0.01)
            number += 1
    assert len(lines.lines) == 1


def test_a_step_after_an_empty_text_counts_from_its_own_beginning(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with lines.progress(first_s=2) as progress:
        for number in range(5):
            progress.step("")
            progress.step(f"run {number}")
            now_s[0] += 0.7
            threading.Event().wait(0.05)
            assert lines.lines == []
        now_s[0] += 1.3
        lines.wait_for(1)
    assert lines.lines == ["[2 s] run 4"]


def test_a_short_command_shows_nothing(lines: Lines) -> None:
    with lines.progress(first_s=30) as progress:
        progress.step("reading")
    assert lines.lines == []


def test_nothing_is_shown_between_rounds(lines: Lines) -> None:
    with lines.progress(first_s=0.01, every_s=0.01) as progress:
        progress.step("reading")
        lines.wait_for(1)
        progress.step("")
        shown = len(lines.lines)
        threading.Event().wait(0.1)
        # A line may have been on its way.
        assert len(lines.lines) <= shown + 1


def test_nothing_is_shown_without_a_terminal(lines: Lines) -> None:
    before = threads()
    with lines.progress(first_s=0, every_s=0.01, is_terminal=False) as progress:
        progress.step("reading")
        assert threads() == before
    assert lines.lines == []


def test_a_real_command_shows_its_step_on_a_terminal_only(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text("{}")
    StopFiles(str(tmp_path)).register(Run("a" * 32, "shop", "node-1", 4711, "app", 1_700_000_000_000))
    command = [sys.executable, "-m", "spark_groupsource", "stop", "--checkpoint-location", str(tmp_path), "--wait", "8"]
    terminal, its_end = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as piped:
        shown = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=its_end, timeout=120, check=False)
        _, errors = piped.communicate(timeout=120)
    os.close(its_end)
    seen = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert (shown.returncode, piped.returncode) == (1, 1)
    assert "s] 0 of 1 members have left; waiting " in seen
    assert "STOP_UNCLEAN" in seen
    assert "STOP_UNCLEAN" in errors
    assert "of 1 members" not in errors
