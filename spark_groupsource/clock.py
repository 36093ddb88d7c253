"""Time, behind one small port so that tests advance it instead of waiting for it."""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """What the package needs to know of time."""

    def monotonic_s(self) -> float:
        """Seconds since some fixed moment; never goes back, and goes on while the process is stopped."""

    def boottime_s(self) -> float:
        """The same, and goes on while the machine is suspended, too: for what others may have done meanwhile."""

    def epoch_s(self) -> float:
        """Seconds since 1970, UTC: for people, never for decisions."""


class SystemClock:
    """The machine's own clock."""

    def monotonic_s(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def boottime_s(self) -> float:
        """Return Linux's CLOCK_BOOTTIME; elsewhere `time.monotonic()`, which may or may not count a suspension."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def epoch_s(self) -> float:
        """Return `time.time()`."""
        return time.time()


class Deadline:
    """A moment by which something must have happened; spent step by step by whoever holds it."""

    __slots__ = ("_clock", "_ends_s")

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._ends_s = clock.monotonic_s() + timeout_s

    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self._ends_s - self._clock.monotonic_s())

    def expired(self) -> bool:
        """Whether no time is left."""
        return self.remaining_s() <= 0.0


class StepDeadline:
    """A deadline for a loop of which no step takes longer than `step_s`: more is not counted for one.

    The sequence this protects against: a process is stopped (SIGSTOP) in the middle of a request, for longer than
    answers are waited for; it goes on, its request has timed out, and nobody may ask again.
    """

    __slots__ = ("_clock", "_left_s", "_looked_s", "_step_s")

    def __init__(self, clock: Clock, timeout_s: float, step_s: float) -> None:
        self._clock = clock
        self._left_s = timeout_s
        self._step_s = step_s
        self._looked_s = clock.monotonic_s()

    def expired(self) -> bool:
        """Whether no time is left. To be asked once in every step."""
        now_s = self._clock.monotonic_s()
        self._left_s -= min(now_s - self._looked_s, self._step_s)
        self._looked_s = now_s
        return self._left_s <= 0.0


class Pace:
    """Lets something that is repeated until it succeeds happen at most once per interval."""

    __slots__ = ("_clock", "_due_s", "_interval_s")

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._due_s = clock.monotonic_s()

    def due(self) -> bool:
        """Whether it may happen now; if so, the next time is an interval later."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._interval_s
        return True

    def hurry(self) -> None:
        """Let it happen at once: something has changed."""
        self._due_s = self._clock.monotonic_s()

    def wait(self) -> None:
        """Let it happen an interval from now: it has just been done."""
        self._due_s = self._clock.monotonic_s() + self._interval_s
