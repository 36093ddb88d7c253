"""Hold the request to stop a member.

Two kinds of requests reach a reader process:

- **SIGTERM** ("leave after the batch"). Supervisors, systemd and YARN send it to all processes of an application at
  once, and the application may finish its batch. If the member left at once, the next owner would repeat that batch.
- **The end of the socket to the JVM** ("leave now"). Spark's `query.stop()` sends SIGTERM twice and then closes the
  socket; a JVM that ends closes it, too. Spark runs no batch any more at that moment, so waiting is of no use. Spark's
  runner reads the end of the socket on the main thread and calls `reader.stop()`.

The two cannot be distinguished by the sender of the signal: process ids differ between containers, and a shell's `kill`
looks like a supervisor's. Nor by the number of signals: two pending signals of the same kind are delivered once.

A stop after the batch ends with the batch, with the socket, or when option drainTimeoutMs has passed.
"""

from __future__ import annotations

from enum import Enum

from spark_groupsource import errors
from spark_groupsource.errors import MembershipError


class StopCause(Enum):
    """Why a member leaves. The value is a text for users."""

    SIGTERM = "its reader process received SIGTERM"
    SIGINT = "its reader process received SIGINT (Ctrl-C)"
    REQUEST = "the query was asked to stop through its checkpoint location (run_until_stopped, drain, groupkafka stop)"
    SPARK = "Spark has ended the query"


def member_left(group: str, *, clean: bool, cause: StopCause) -> MembershipError:
    """Return the error of a query whose member has left after a request to stop."""
    repeats = errors.NOTHING_REPEATED if clean else "The batch in flight may be repeated."
    return MembershipError(errors.MEMBER_LEFT, group=group, cause=cause.value, repeats=repeats)


class StopRequest:
    """Hold the stop that other threads and a signal handler request from the event thread.

    Plain attributes, never a lock: the second SIGTERM may interrupt the handler of the first.
    """

    __slots__ = ("at_once", "cause", "requested")

    def __init__(self) -> None:
        self.requested = False
        self.at_once = False
        # That of the first request: `query.stop()` follows most others, with two signals. No other one leaves at once.
        self.cause = StopCause.SPARK

    def leave_after_batch(self, cause: StopCause) -> None:
        """Request a stop as soon as the batch in flight is complete. Safe in a signal handler."""
        if not self.requested:
            self.cause = cause
        self.requested = True

    def leave_now(self) -> None:
        """Request a stop that does not wait for a batch."""
        self.at_once = self.requested = True
