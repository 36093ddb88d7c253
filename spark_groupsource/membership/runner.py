"""Provide threads, queues and waits through one port, so that tests can run them one at a time, in virtual time."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Running(Protocol):
    """A thread that was spawned."""

    def is_alive(self) -> bool:
        """Return whether it has not ended yet."""

    def join(self, timeout_s: float) -> None:
        """Wait for its end, for `timeout_s` seconds at most."""


class Inbox(Protocol[T]):
    """A queue with one reader, as `queue.Queue` is. Any thread may put."""

    def put(self, item: T) -> None:
        """Add an item."""

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Return the oldest item; wait for one. Raises `queue.Empty` if none comes within `timeout` seconds."""

    def get_nowait(self) -> T:
        """Return the oldest item. Raises `queue.Empty` if there is none."""


class Runner(Protocol):
    """What the membership thread and its helper need of the operating system."""

    def spawn(self, target: Callable[[], object], name: str) -> Running:
        """Run `target` on a new thread. The process ends without waiting for it."""

    def inbox(self) -> Inbox[Any]:
        """Return a new, empty queue."""

    def wait(self, future: Future[Any], timeout_s: float) -> None:
        """Wait until the future is done, for `timeout_s` seconds at most."""

    def at_exit(self, call: Callable[[], object]) -> None:
        """Run `call` when the process ends, before all calls that were registered earlier."""


class SystemRunner:
    """The threads of the operating system."""

    def spawn(self, target: Callable[[], object], name: str) -> Running:
        """Start a daemon thread."""
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def inbox(self) -> Inbox[Any]:
        """Return a `queue.Queue`.

        Guards against (rule R104, a wait that never ends):
        1. The process is stopped for longer than its membership thread waits for a command. SIGTERM comes.
        2. It goes on, and the kernel gives SIGTERM to that thread.
        3. `queue.SimpleQueue.get` computes what is left of its time after the signal: less than nothing, which counts
           as no limit, until the next command.
        """
        # R104: `queue.SimpleQueue` may wait for ever after a signal
        return queue.Queue()

    def wait(self, future: Future[Any], timeout_s: float) -> None:
        """Wait as `concurrent.futures.wait` does."""
        wait_for((future,), timeout=timeout_s)

    def at_exit(self, call: Callable[[], object]) -> None:
        """Register with `atexit`, which calls the last registered function first."""
        atexit.register(call)


SYSTEM = SystemRunner()
