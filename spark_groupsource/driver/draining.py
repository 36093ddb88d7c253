"""Decide what Spark gets after a stop was requested: no new batch, and in the end an error. Main thread only."""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource import errors
from spark_groupsource.clock import Deadline
from spark_groupsource.driver.context import QueryContext
from spark_groupsource.errors import KafkaUnavailableError, MembershipError
from spark_groupsource.membership.stopping import member_left
from spark_groupsource.sidecars.stop_watch import StopWatch

# Seconds from the end of a member that was asked to stop to the end of its query, if nobody stops the query before.
END_AFTER_S = 30.0
# Seconds that the error of the query waits for the end of its member, to say whether something is repeated.
_LEAVE_S = 5.0


class Draining:
    """What is left of a query after a stop was requested. `watch` is None if the query's checkpoint is not known."""

    def __init__(self, query: QueryContext, watch: StopWatch | None) -> None:
        self._group, self._clock, self._member = query.options.group_id, query.clock, query.member
        self._watch = watch
        # Set when the member has left although Spark goes on.
        self._end: Deadline | None = None

    def _is_over(self) -> bool:
        """Return whether nobody has stopped the query. The 30 s begin when this first finds the member gone."""
        if self._end is None and self._member.join(0.0):
            self._end = Deadline(self._clock, END_AFTER_S)
        return self._end is not None and self._end.expired()

    def check(self, *, ends_itself: bool) -> None:
        """Raise `MembershipError` if Spark must not get "no new data" any more. It says whether anything is repeated.

        With AvailableNow and Once Spark takes that for the end of the query, as if all was read. That is right after a
        request to this query, and wrong after a signal that came to the reader process alone.

        Guards against (rule R79):
        1. SIGTERM comes to all processes of an application. The reader leaves when the batch in flight is complete.
        2. The next trigger comes before the driver has called `query.stop()`.
        3. The query fails, although nothing is wrong.
        """
        asked = self._watch is not None and self._watch.requested
        # R79: no error before the driver had time to stop the query
        if self._is_over() or (ends_itself and not asked):
            # With AvailableNow the batch in flight has just ended.
            clean = self._member.join(_LEAVE_S) and self._member.left_clean
            raise member_left(self._group, clean=clean, cause=self._member.stop_cause)

    def caught_up(self) -> None:
        """Remember that Spark runs no logged batch again that the member does not know of."""
        if self._watch is not None:
            self._watch.caught_up = True

    def unless_left(self, call: Callable[[], object]) -> None:
        """Call the member; do nothing if it has left, or the brokers do not answer, after a request to stop."""
        try:
            call()
        except (MembershipError, KafkaUnavailableError) as error:
            if not self.explains(error):
                raise

    def explains(self, error: MembershipError | KafkaUnavailableError) -> bool:
        """Return whether a call failed because a stop was requested meanwhile.

        Guards against:
        1. The brokers do not answer, and the query waits for them.
        2. It is asked to stop, which ends all waits for brokers with an error.
        3. The query fails with that error, although it plans nothing any more.
        """
        if not self._member.stopping:
            return False
        if isinstance(error, KafkaUnavailableError):
            # R79: the driver has to stop the query first
            return not self._member.failed
        return error.condition == errors.MEMBER_LEFT
