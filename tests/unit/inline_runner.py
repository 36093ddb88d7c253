"""A runner that runs the member's threads on the test's own thread, in virtual time."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from greenlet import getcurrent, greenlet

from tests.unit.fakes import ManualClock

# The longest step in which time passes for the member, in seconds: shorter than a heartbeat interval, so that it is no
# silence of the process.
_STEP_S = 0.5


class InlineRunner:
    """The product's `Runner`: threads are greenlets, which run while the test's thread waits, or lets time pass."""

    def __init__(self) -> None:
        self.clock = InlineClock(self)
        self.main = getcurrent()
        self._threads: list[greenlet] = []

    def go_round(self) -> None:
        """Let each thread run until its next wait."""
        if getcurrent() is self.main:
            for thread in self._threads:
                if not thread.dead:
                    thread.switch()

    # --- Runner

    def spawn(self, target: Callable[[], object], _name: str) -> InlineThread:
        """Run `target` until its first wait."""
        green = greenlet(target, parent=self.main)
        self._threads.append(green)
        self.go_round()
        return InlineThread(self, green)

    def inbox(self) -> InlineInbox:
        """Return a queue."""
        return InlineInbox(self)

    def wait(self, future: Future[Any], timeout_s: float) -> None:
        """Let the threads run until the future is done. Time passes only if they wait for it, too."""
        ends_s = self.clock.now_s + timeout_s
        self.go_round()
        while not future.done() and self.clock.now_s < ends_s:
            self.clock.advance(min(0.02, ends_s - self.clock.now_s))

    def at_exit(self, call: Callable[[], object]) -> None:
        """Do nothing."""


class InlineClock(ManualClock):
    """A clock that a test advances; the threads of its runner run meanwhile."""

    def __init__(self, runner: InlineRunner) -> None:
        super().__init__()
        self._runner = runner

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        ends_s = self.now_s + seconds
        while self.now_s + _STEP_S < ends_s:
            self.now_s += _STEP_S
            self._runner.go_round()
        self.now_s = ends_s
        self._runner.go_round()


class InlineThread:
    """A spawned greenlet, as `membership.runner.Running`."""

    def __init__(self, runner: InlineRunner, green: greenlet) -> None:
        self._runner, self._green = runner, green

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._green.dead

    def join(self, timeout_s: float) -> None:
        """Let time pass until it has ended."""
        ends_s = self._runner.clock.now_s + timeout_s
        self._runner.go_round()
        while self.is_alive() and self._runner.clock.now_s < ends_s:
            self._runner.clock.advance(0.02)


class InlineInbox:
    """A queue, as `membership.runner.Inbox`: an empty one lets the other threads run."""

    def __init__(self, runner: InlineRunner) -> None:
        self._runner = runner
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the oldest item. Raises `queue.Empty`."""
        if not self._items and block:
            self._runner.main.switch()
        while not self._items and block and timeout is None:
            self._runner.main.switch()
        return self.get_nowait()

    def get_nowait(self) -> Any:
        """Return the oldest item. Raises `queue.Empty`."""
        if not self._items:
            raise queue.Empty
        return self._items.popleft()
