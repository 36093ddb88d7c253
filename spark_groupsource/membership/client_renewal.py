"""Makes the group client anew, where the old one cannot become a member again.

Two cases are of static members (`group.instance.id`). Under KIP-848 the old session may not be over: the coordinator
refuses a second one under its instance id, and the client takes that for the end. In classic groups the session may end
while a cooperative member joins: the client then joins as a new member, and keeps what is no longer its own. The third
is of any member under KIP-848: its group was deleted while it was cut off, which its client takes for the end, too.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.clock import Clock, Deadline
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.port import GroupPort, MemberListener
from spark_groupsource.membership.report import MemberReport
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.options.model import SourceOptions

# The pause between two clients, in which the other threads' commands are served.
_PAUSE_S = 1.0
_STEP_S = 0.02
# What a static member may wait for its old session on top of the session timeout.
_UNRELEASED_MARGIN_S = 30.0


class Reopening:
    """Event thread only. `serve_commands(wait_s)` and `stop_requested()` are those of `Member`."""

    def __init__(
        self,
        options: SourceOptions,
        port: GroupPort,
        clock: Clock,
        *,
        report: MemberReport,
        length: SessionLength,
        serve_commands: Callable[[float], None],
        stop_requested: Callable[[], bool],
    ) -> None:
        self._options = options
        self._port = port
        self._clock = clock
        self._report = report
        self._length = length
        self._serve_commands = serve_commands
        self._stop_requested = stop_requested
        # By when the old session must have ended.
        self._unreleased: Deadline | None = None
        self.due = False

    def unreleased(self) -> None:
        """Wait for the end of the old session, from the first refusal on."""
        self.due = True
        if self._unreleased is None:
            wait_s = self._length.longest_s + _UNRELEASED_MARGIN_S
            self._report.waits_for_instance_id(self._options.instance_id, wait_s)
            self._unreleased = Deadline(self._clock, wait_s)

    def joined(self) -> None:
        """The group has given partitions: the old session is over."""
        self._unreleased = None

    def run(self, listener: MemberListener) -> None:
        """1. close, 2. pause, 3. open. Raises INSTANCE_ID_IN_USE when the old session did not end in time."""
        self._port.close()
        pause = Deadline(self._clock, _PAUSE_S)
        while not (pause.expired() or self._stop_requested()):
            self._serve_commands(_STEP_S)
        if self._unreleased is not None and self._unreleased.expired():
            group, value = self._options.group_id, self._options.instance_id
            reason = "its session did not end in time"
            raise MembershipError(errors.INSTANCE_ID_IN_USE, value=value, group=group, reason=reason)
        self.due = False
        self._port.open(listener)
