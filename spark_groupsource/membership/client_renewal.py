"""Replace the group client where the old one cannot become a member again.

1. A static member (`group.instance.id`) under KIP-848: its old session has not ended yet. The coordinator refuses a
   second session under the same instance id, which the client reports as a fatal error.
2. A static member in a classic group: its session expires while it joins cooperatively. The client joins as a new
   member and keeps partitions that it has lost (rule R72).
3. Any member under KIP-848: its group was deleted while it was cut off, which the client reports as a fatal error
   (rule R73).
4. Any member that must not go on with the assignment it has: a topic was recreated (rule R35), or the answer with
   another assignment was lost (rule R84).
"""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.clock import Deadline
from spark_groupsource.errors import MembershipError
from spark_groupsource.membership.context import MemberContext
from spark_groupsource.membership.port import MemberListener

# Seconds between two clients. Commands of other threads are served meanwhile.
_PAUSE_S = 1.0
_STEP_S = 0.02
# Seconds that a static member waits for the end of its old session, in addition to the session timeout. Much less than
# AvailableNow waits for an assignment: its error would hide this one, which names the instance id.
UNRELEASED_MARGIN_S = 15.0


class ClientRenewal:
    """Replace the client when that is `due`. Event thread only. `may_leave()` is whether the member leaves now."""

    def __init__(self, member: MemberContext, may_leave: Callable[[], bool]) -> None:
        self._options, self._port, self._report = member.options, member.port, member.report
        self._clock, self._length, self._serve_commands = member.clock, member.length, member.serve_commands
        self._may_leave = may_leave
        # The deadline by which the old session must have ended, and the time of the last refusal.
        self._unreleased: Deadline | None = None
        self._refused_s = 0.0
        self.due = False

    def unreleased(self) -> None:
        """Start the wait for the end of the old session. The time counts from the first refusal on.

        Guards against:
        1. A static member is killed, and starts again. Its new client waits for the end of the old session.
        2. It joins then, but the answers are lost: it does not know that. The coordinator fences it.
        3. Its next client must wait for the end of that second session. The time for the first one is over.
        """
        self.due = True
        now_s = self._clock.monotonic_s()
        # A dead session does not outlive a refusal by more than its timeout: a later one is about another session.
        is_another, self._refused_s = now_s - self._refused_s > self._length.longest_s, now_s
        if self._unreleased is None or is_another:
            wait_s = self._length.longest_s + UNRELEASED_MARGIN_S
            self._report.waits_for_instance_id(self._options.instance_id, wait_s)
            self._unreleased = Deadline(self._clock, wait_s)

    def joined(self) -> None:
        """End that wait: the group has assigned partitions, so the old session is over."""
        self._unreleased = None

    def run(self, listener: MemberListener) -> None:
        """Replace the client: 1. close, 2. pause, 3. open. A member that may leave now opens none.

        Raises `MembershipError` (INSTANCE_ID_IN_USE) if the old session did not end in time.

        Guards against:
        1. A member is in the pause between two clients. It is stopped.
        2. The new client joins. A static member does not leave: the group waits for it for a session timeout.
        """
        self._port.close()
        pause = Deadline(self._clock, _PAUSE_S)
        while not (pause.expired() or self._may_leave()):
            self._serve_commands(_STEP_S)
        if self._may_leave():
            return
        if self._unreleased is not None and self._unreleased.expired():
            group, value = self._options.group_id, self._options.instance_id
            reason = "its session did not end in time"
            raise MembershipError(errors.INSTANCE_ID_IN_USE, value=value, group=group, reason=reason)
        self.due = False
        self._port.open(listener)
