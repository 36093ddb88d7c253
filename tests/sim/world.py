"""Run simulated processes in virtual time, one task at a time, as a pure function of a seed.

A task is a greenlet that stands for a thread. It runs until its next wait; then the hub takes the earliest event. Tasks
switch nowhere else, so races inside a step are not simulated: only the order of waits is. All chance comes from one
generator. So the same seed gives the same trace, byte for byte (with PYTHONHASHSEED=0: the product iterates over sets).
"""

from __future__ import annotations

import heapq
import queue
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

# The virtual time at which each world begins, in seconds.
BEGIN_S = 1000.0
# The longest that an idle loop of the product is let wait, in seconds. `Process.poke` ends the wait when a client has
# something for it, so a longer wait than the product asks for saves rounds that find nothing.
_IDLE_S = 0.25


class ProcessDied(BaseException):
    """Thrown into the tasks of a killed process."""


class Task:
    """A thread of a process."""

    __slots__ = ("done", "green", "in_jvm", "joiners", "name", "process", "token")

    def __init__(self, process: Process, name: str) -> None:
        self.process, self.name = process, name
        self.green: Any = None
        # What the task waits for. A wake-up with another token is late, and changes nothing.
        self.token = 0
        self.done = False
        # The JVM is another process: it is not held up while the reader is stopped.
        self.in_jvm = False
        self.joiners: list[Ticket] = []


Ticket = tuple[Task, int]


class Process:
    """An operating system process: it can be killed, stopped for a while (SIGSTOP), or suspended with its machine."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.alive = True
        self.stopped_until = 0.0
        # Seconds for which its machine was suspended: CLOCK_MONOTONIC has not counted them.
        self.suspended_s = 0.0
        # The chance that one of its waits ends late.
        self.hiccup = 0.0
        self.tasks: list[Task] = []
        self._inboxes: list[SimInbox] = []
        # Called when it goes on after a stop.
        self.on_continue: list[Callable[[], object]] = []

    @property
    def stopped(self) -> bool:
        """Whether it is stopped now."""
        return self.stopped_until > self.world.now

    def stop(self, seconds: float, *, suspended: bool = False) -> None:
        """Stop all its tasks. `suspended`: with the machine, so that its monotonic clock stands still."""
        before = max(self.stopped_until, self.world.now)
        self.stopped_until = max(self.stopped_until, self.world.now + seconds)
        if suspended:
            self.suspended_s += self.stopped_until - before
        self.world.at(self.stopped_until, self._continue)

    def _continue(self) -> None:
        if self.alive and not self.stopped:
            for call in self.on_continue:
                call()

    def after(self, seconds: float, run: Callable[[], object], *, over: Callable[[], bool]) -> None:
        """Run something on a thread of the client library, after that time; not while the process is stopped.

        Nothing runs if the process is dead by then, or `over()`.
        """
        world = self.world

        def fire() -> None:
            if over() or not self.alive:
                return
            if self.stopped:
                world.at(self.stopped_until + world.rng.uniform(0.0005, 0.02), fire)
            else:
                run()

        world.after(seconds, fire)

    def kill(self) -> None:
        """End all tasks at once."""
        self.alive = False
        for task in list(self.tasks):
            self.world.throw(task)

    def poke(self) -> None:
        """Wake its loops, because a client has something to serve."""
        for inbox in self._inboxes:
            inbox.poke()

    def add(self, inbox: SimInbox) -> None:
        """Register a queue on which a loop of this process waits."""
        self._inboxes.append(inbox)


class World:
    """Virtual time, one generator of chance, and the tasks."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = BEGIN_S
        self.current: Task | None = None
        # 1: idle loops wait exactly as long as the product says. Larger: up to that many times longer.
        self.stretch = 1.0
        self.switches = 0
        self.trace: list[str] | None = [] if tracing else None
        # How often something happened that a run is meant to bring about.
        self.coverage: Counter[str] = Counter()
        # Called in the running task at each place of `failpoints.reach`.
        self.at_place: Callable[[str], None] = lambda _: None
        # Called at each moment of a client that `reached` names, in its thread.
        self.listeners: list[Callable[[str], None]] = []
        self._hub = getcurrent()
        self._events: list[tuple[float, float, int, Callable[[], object]]] = []
        self._number = 0
        self._token = 0

    # --- the trace

    def say(self, who: str, text: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now - BEGIN_S:9.4f} {who:<8} {text}")

    def saw(self, what: str) -> None:
        """Count that something happened."""
        self.coverage[what] += 1

    def reached(self, moment: str) -> None:
        """Report a moment of a client: a handover begins ("revoked"), or commits ("handover-commit"), it closes."""
        for listener in list(self.listeners):
            listener(moment)

    # --- events

    def at(self, when: float, run: Callable[[], object]) -> None:
        """Run a function at that time. Events of the same time run in an order that chance decides."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self.rng.random(), self._number, run))

    def after(self, seconds: float, run: Callable[[], object]) -> None:
        """Run a function after that time."""
        self.at(self.now + seconds, run)

    def run(self, until: float) -> None:
        """Run events up to that time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, _, run = heapq.heappop(self._events)
            run()
        self.now = max(self.now, until)

    # --- tasks

    def spawn(self, process: Process, target: Callable[[], object], name: str) -> Task:
        """Start a task of a process."""
        task = Task(process, name)

        def body(_: object = None) -> None:
            try:
                target()
            except ProcessDied:
                pass
            finally:
                self._ended(task)

        task.green = greenlet(body, parent=self._hub)
        process.tasks.append(task)
        self._token += 1
        task.token = token = self._token
        self.after(self.rng.uniform(0.00005, 0.001), lambda: self._wake(task, token, None))
        return task

    def _ended(self, task: Task) -> None:
        task.done = True
        if task in task.process.tasks:
            task.process.tasks.remove(task)
        for ticket in task.joiners:
            self.wake_soon(ticket)

    def throw(self, task: Task) -> None:
        """End a task of a killed process."""
        if task.done or task is self.current:
            return
        task.token = 0
        if not task.green:  # It never ran.
            self._ended(task)
            return
        before, self.current = self.current, task
        parent, task.green.parent = task.green.parent, getcurrent()
        try:
            task.green.throw(ProcessDied())
        finally:
            self.current = before
            if not task.green.dead:
                task.green.parent = parent

    def ticket(self) -> Ticket:
        """Return what `wake_soon` needs to end the next `wait` of the running task."""
        task = self.current
        assert task is not None, "a wait outside of a task"
        self._token += 1
        task.token = self._token
        return task, self._token

    def wait(self, ticket: Ticket, timeout_s: float | None) -> bool:
        """Wait until woken (True), or for that time (False)."""
        task, token = ticket
        if not task.process.alive:
            raise ProcessDied
        self.switches += 1
        if timeout_s is not None:
            self.at(self.now + self._taken(task, timeout_s), lambda: self._wake(task, token, value=False))
        woken = self._hub.switch()
        if not task.process.alive:
            raise ProcessDied
        return bool(woken)

    def _taken(self, task: Task, seconds: float) -> float:
        """Return how long a wait takes: a little longer than it was asked for, on a busy machine much longer."""
        rng = self.rng
        taken = seconds * rng.uniform(1.0, 1.02) + rng.uniform(0.00002, 0.0004)
        if task.process.hiccup and not task.in_jvm and rng.random() < task.process.hiccup:
            taken += rng.choice((0.01, 0.05, 0.2, 1.0))
            self.saw("a thread is held up")
        return taken

    def wake_soon(self, ticket: Ticket, value: object = True, within_s: float = 0.0003) -> None:
        """End a wait, if it still waits."""
        task, token = ticket
        self.after(self.rng.uniform(0.00002, within_s), lambda: self._wake(task, token, value))

    def _wake(self, task: Task, token: int, value: object) -> None:
        process = task.process
        if task.token != token or task.done or not process.alive:
            return
        if process.stopped and not task.in_jvm:
            until = process.stopped_until + self.rng.uniform(0.0001, 0.01)
            self.at(until, lambda: self._wake(task, token, value))
            return
        task.token = 0
        self.current = task
        task.green.switch(value)
        self.current = None

    def sleep(self, seconds: float) -> None:
        """Let the running task wait."""
        self.wait(self.ticket(), max(0.0, seconds))

    def pause(self, seconds: float) -> None:
        """Let a polling loop of the product wait; longer than it asks for if `stretch` says so."""
        self.sleep(max(seconds, min(seconds * self.stretch, 0.1)))


class SimClock:
    """The clocks of a process, as `spark_groupsource.clock.Clock`. `epoch_s` is the world's time in all processes."""

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world

    def monotonic_s(self) -> float:
        """Return the seconds that the machine was awake."""
        return self._world.now - self._process.suspended_s

    def boottime_s(self) -> float:
        """Return all seconds."""
        return self._world.now

    def epoch_s(self) -> float:
        """Return all seconds."""
        return self._world.now


class SimInbox:
    """A queue, as `membership.runner.Inbox`."""

    def __init__(self, process: Process) -> None:
        self._items: deque[Any] = deque()
        self._reader: Ticket | None = None
        self._world = process.world
        process.add(self)

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)
        if self._reader is not None:
            self._world.wake_soon(self._reader)

    def poke(self) -> None:
        """End the reader's wait within one step of the product's own loop."""
        if self._reader is not None:
            self._world.wake_soon(self._reader, within_s=0.02)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the oldest item. Raises `queue.Empty`."""
        if not self._items and block and timeout is not None:
            longest = max(timeout, min(timeout * self._world.stretch, _IDLE_S))
            self._wait(max(longest, 0.0005))
        while not self._items and block and timeout is None:
            self._wait(None)
        return self.get_nowait()

    def get_nowait(self) -> Any:
        """Return the oldest item. Raises `queue.Empty`."""
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def _wait(self, timeout_s: float | None) -> None:
        self._reader = self._world.ticket()
        try:
            self._world.wait(self._reader, timeout_s)
        finally:
            self._reader = None


class SimThread:
    """A spawned task, as `membership.runner.Running`."""

    def __init__(self, world: World, task: Task) -> None:
        self._world, self._task = world, task

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return not self._task.done

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        if not self._task.done and timeout_s > 0:
            ticket = self._world.ticket()
            self._task.joiners.append(ticket)
            self._world.wait(ticket, timeout_s)


class SimRunner:
    """The product's `Runner`, for one process."""

    def __init__(self, process: Process) -> None:
        self._process, self._world = process, process.world

    def spawn(self, target: Callable[[], object], name: str) -> SimThread:
        """Start a task."""
        return SimThread(self._world, self._world.spawn(self._process, target, name))

    def inbox(self) -> SimInbox:
        """Return a queue."""
        return SimInbox(self._process)

    def wait(self, future: Future[Any], timeout_s: float) -> None:
        """Wait for a future."""
        if not future.done():
            ticket = self._world.ticket()
            future.add_done_callback(lambda _: self._world.wake_soon(ticket))
            self._world.wait(ticket, timeout_s)

    def at_exit(self, call: Callable[[], object]) -> None:
        """Do nothing: a simulated process ends without exit functions."""
