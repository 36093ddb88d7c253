"""The output of a command, kept by a test."""

from __future__ import annotations

from collections.abc import Callable


class FakeOutput:
    """`Output` on lists. `pause` is what happens between two rounds of --watch."""

    def __init__(self, pause: Callable[[float], object] = print) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.steps: list[str] = []
        self.print_line = self.lines.append
        self.warn = self.warnings.append
        self.step = self.steps.append
        self.pause = pause
