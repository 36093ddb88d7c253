"""Provide time through one small port, so that tests can advance it instead of waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

K = TypeVar("K")

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """The clocks that the package uses."""

    def monotonic_s(self) -> float:
        """Return seconds since a fixed moment. Never goes back; continues while the process is stopped (SIGSTOP)."""

    def boottime_s(self) -> float:
        """Return the same, but also count time while the machine is suspended, when other members may have acted."""

    def epoch_s(self) -> float:
        """Return seconds since 1970, UTC. For display and for the time of a reset, never for decisions."""


class SystemClock:
    """The clocks of the operating system."""

    def monotonic_s(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def boottime_s(self) -> float:
        """Return Linux's CLOCK_BOOTTIME; elsewhere `time.monotonic()`, which may not count a suspension."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def epoch_s(self) -> float:
        """Return `time.time()`."""
        return time.time()


class Deadline:
    """A moment by which a sequence of steps must be finished."""

    __slots__ = ("_clock", "ends_s")

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        # In seconds of the monotonic clock.
        self.ends_s = clock.monotonic_s() + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left, never below 0."""
        return max(0.0, self.ends_s - self._clock.monotonic_s())

    def passed_s(self) -> float:
        """Return the seconds since the moment, never below 0."""
        return max(0.0, self._clock.monotonic_s() - self.ends_s)

    def expired(self) -> bool:
        """Return whether no time is left."""
        return self.remaining_s() <= 0.0


class HeldFor(Generic[K]):
    """Answers that count once they have held for a time, because one broker's answer is no proof.

    A broker that lags behind reports a deleted topic, another id, or a shorter log for a moment. So an answer about a
    key counts when all answers about it have been the same for `hold_s`, and the last one was requested after that.

    Guards against:
    1. A broker lags behind for a second. It is asked twice in that time.
    2. The second answer is read 4 s later: the network is slow, or the process was stopped.
    """

    def __init__(self, clock: Clock, hold_s: float) -> None:
        self._clock = clock
        self._hold_s = hold_s
        # The last answer, until when it must hold, and when it was requested.
        self._answers: dict[K, tuple[object, Deadline, float]] = {}

    def __contains__(self, key: K) -> bool:
        """Return whether there was an answer about this key."""
        return key in self._answers

    def answered(self, answers: Mapping[K, object], asked_s: float = math.inf) -> None:
        """Take one answer per key, requested at `asked_s`. Another answer than before begins its time again."""
        begun = Deadline(self._clock, self._hold_s)
        for key, answer in answers.items():
            known = self._answers.get(key)
            until = known[1] if known is not None and known[0] == answer else begun
            self._answers[key] = (answer, until, asked_s)

    def counts(self, key: K) -> bool:
        """Return whether the last answer about this key has held for the time."""
        known = self._answers.get(key)
        return known is not None and known[1].expired() and known[2] >= known[1].ends_s

    def forget(self, keys: Iterable[K]) -> None:
        """Forget the answers about these keys."""
        for key in keys:
            self._answers.pop(key, None)

    def keep(self, keys: Container[K]) -> None:
        """Forget the answers about all other keys."""
        self._answers = {key: answer for key, answer in self._answers.items() if key in keys}


class StepDeadline:
    """A deadline for a loop: each step counts with at most `step_s`, even if it took longer.

    Guards against:
    1. The process is stopped (SIGSTOP) in the middle of a request, for longer than the request's timeout.
    2. The process continues. The request has timed out, and so has the whole deadline.
    3. The loop gives up without a second attempt.
    """

    __slots__ = ("_checked_s", "_clock", "_left_s", "_step_s")

    def __init__(self, clock: Clock, timeout_s: float, step_s: float) -> None:
        self._clock = clock
        self._left_s = timeout_s
        self._step_s = step_s
        self._checked_s = clock.monotonic_s()

    def expired(self) -> bool:
        """Return whether no time is left. Call it once per step."""
        now_s = self._clock.monotonic_s()
        self._left_s -= min(now_s - self._checked_s, self._step_s)
        self._checked_s = now_s
        return self._left_s <= 0.0


class WaitingClock:
    """A clock for deadlines of a loop that is not always its own master: it counts waiting, not standing still.

    `count` ends a stretch of time, of which no more than the given seconds count.
    """

    __slots__ = ("_clock", "_counted_at_s", "_left_out_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left_out_s = 0.0
        self._counted_at_s = clock.monotonic_s()

    def count(self, at_most_s: float = math.inf) -> None:
        """Count the time since the last call, but no more than `at_most_s` of it."""
        now_s = self._clock.monotonic_s()
        self._left_out_s += max(0.0, now_s - self._counted_at_s - at_most_s)
        self._counted_at_s = now_s

    def monotonic_s(self) -> float:
        """Return seconds since a fixed moment, without those that did not count."""
        return self._clock.monotonic_s() - self._left_out_s

    def boottime_s(self) -> float:
        """Return the boot time of the clock beneath: all of it."""
        return self._clock.boottime_s()

    def epoch_s(self) -> float:
        """Return the epoch of the clock beneath."""
        return self._clock.epoch_s()


class Pace:
    """Limit a repeated action to once per interval."""

    __slots__ = ("_clock", "_due_s", "_interval_s")

    def __init__(self, clock: Clock, interval_s: float) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._due_s = clock.monotonic_s()

    def due(self) -> bool:
        """Return whether the action may run now; if so, the next one is due an interval later."""
        now_s = self._clock.monotonic_s()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._interval_s
        return True

    def hurry(self) -> None:
        """Make the action due at once, because something has changed."""
        self._due_s = self._clock.monotonic_s()

    def wait(self) -> None:
        """Make the action due an interval from now, because it has just run."""
        self._due_s = self._clock.monotonic_s() + self._interval_s
