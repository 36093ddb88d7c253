"""Send commits one at a time, so that an earlier commit is never accepted after a later one.

While a commit is under way, newer offsets wait in the state machine (rule R14). A handover cannot wait for the answer,
because the client delivers answers only outside of its callbacks. It commits, and then checks whether the older commit
was accepted after that (rule R29).

A commit without a clear answer is in doubt: the same offsets are sent again until the outcome is known (rule R14).
Newer offsets wait half a second longer, in which the coordinator reads its old connections. They also wait after a late
answer: it may belong to the client's second try, and says nothing about the first.

Guards against (rule R14, no clear answer):
1. The coordinator stands still. The client gives up the connection with commit N.
2. The commit of N+1 is sent on a new connection.
3. The coordinator reads the new connection first, then the old one: the offset goes back.
"""

from __future__ import annotations

from collections.abc import Callable

from spark_groupsource.clock import Deadline, Pace
from spark_groupsource.membership.context import MemberContext
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.machine import MemberState
from spark_groupsource.membership.port import CommitResult, Refusal
from spark_groupsource.model.commit_metadata import CommitItem, requests_of
from spark_groupsource.model.offsets import TopicPartition

# Seconds after which a refused commit is sent again.
_RETRY_INTERVAL_S = 0.2
# Seconds after which an answer is late. The client sends a commit again when it gives up the connection, which takes at
# least a heartbeat interval.
_LATE_ANSWER_S = 0.5
# Seconds without commits after a late or second answer: a coordinator that answers soon reads its old connections.
_QUIET_S = 0.5
# Seconds after which an answer is no longer expected, so that a lost one does not block all commits. The client reports
# every commit, at the latest when its request times out (one minute).
_ANSWER_TIMEOUT_S = 180.0
# Seconds for which a handover repeats a refused commit, and seconds between two tries. The group waits meanwhile.
_RELEASE_COMMIT_S = 5.0
_RELEASE_RETRY_S = 0.2
# Seconds in which an older commit may still be accepted: the client retries a request for up to two seconds.
_LATE_COMMIT_S = 2.0
_OFFSET_FETCH_TIMEOUT_S = 5.0


class Committer:
    """Send commits and repeat them. Event thread only."""

    def __init__(self, member: MemberContext) -> None:
        self._port, self._machine, self._report = member.port, member.machine, member.report
        self._clock, self._serve_commands = member.clock, member.serve_commands
        self._pace = Pace(member.clock, _RETRY_INTERVAL_S)
        self._on_its_way: tuple[CommitItem, ...] = ()
        self._answer_due: Deadline | None = None
        self._doubtful: dict[TopicPartition, CommitItem] = {}
        # What was sent last of each partition.
        self._last_sent: dict[TopicPartition, CommitItem] = {}
        self._quiet = Deadline(member.clock, 0.0)
        self._sent_s = 0.0
        self._refused = False
        # Whether the membership has ended since the commit under way was sent.
        self._outlived = False

    @property
    def _awaits_answer(self) -> bool:
        return self._answer_due is not None and not self._answer_due.expired()

    @property
    def free(self) -> bool:
        """Whether no commit is under way, and none is in doubt."""
        return not self._awaits_answer and not self._doubtful and self._quiet.expired()

    @property
    def expects_answer(self) -> bool:
        """Whether the answer to a commit may come at any moment."""
        return self._answer_due is not None and self._clock.monotonic_s() - self._sent_s < _LATE_ANSWER_S

    def later(self, items: tuple[CommitItem, ...]) -> None:
        """Send a commit without waiting for the answer. If another is under way, `send_pending` sends it later."""
        # R14: nothing is sent while a commit has no answer
        if self.free:
            self._send(items)

    def _send(self, items: tuple[CommitItem, ...]) -> None:
        """Send the items that fit in one request. The rest stays pending in the state machine, or in doubt."""
        self._on_its_way, self._sent_s = requests_of(items)[0], self._clock.monotonic_s()
        self._sends(self._on_its_way)
        self._answer_due = Deadline(self._clock, _ANSWER_TIMEOUT_S)
        self._outlived = False
        self._pace.wait()
        self._port.commit_later(self._on_its_way)

    def answered(self, result: CommitResult) -> CommitResult:
        """Handle the answer to the commit under way. Return the part for partitions that have not left since.

        See rule R17.

        Guards against (rule R17, a refusal):
        1. A commit is under way. The member's partitions are lost. It joins again and is assigned partitions.
        2. The answer to the commit arrives: UNKNOWN_MEMBER_ID, about the earlier membership.
        3. The new partitions would be dropped. The client still has them, so they would never be assigned again.
        """
        # R17: partitions that left meanwhile are not in it
        mine = {item.partition for item in self._on_its_way}
        self._on_its_way, self._answer_due = (), None
        # R17: the answer is about an earlier membership
        result = CommitResult(
            acknowledged=tuple(item for item in result.acknowledged if item.partition in mine),
            refused=tuple(
                (item, why)
                for item, why in result.refused
                if item.partition in mine or (why is Refusal.LOST and not self._outlived)
            ),
            reason=result.reason,
            error=result.error,
        )
        self._learn(result, self._clock.monotonic_s() - self._sent_s)
        self._refused = bool(result.refused)
        if not self._refused:
            self._pace.hurry()
        return result

    def now(self, items: tuple[CommitItem, ...]) -> CommitResult:
        """Commit and wait for the answer. Call it only while this is `free`, or in a handover."""
        whole = CommitResult()
        for request in requests_of(items):
            if any(why is not Refusal.NO_TOPIC for _, why in whole.refused):
                # A request was refused, so the rest is not sent: further waits are of no use. Its outcome is as clear
                # as that of a refusal in a rebalance.
                result = CommitResult(refused=tuple((item, Refusal.REBALANCE) for item in request))
            else:
                began_s = self._clock.monotonic_s()
                self._sends(request)
                result = self._port.commit_now(request)
                self._learn(result, self._clock.monotonic_s() - began_s)
            whole = whole.and_also(result)
        return whole

    def _sends(self, items: tuple[CommitItem, ...]) -> None:
        self._last_sent |= {item.partition: item for item in items}

    def _learn(self, result: CommitResult, took_s: float) -> None:
        """Update the items in doubt: drop those with a definite outcome, add those whose outcome is unknown.

        Guards against (rule R14, several without an answer):
        1. The commit of 10 has no answer. The query stops and commits 20: no answer either, so 20 is in doubt.
        2. The client gives up the commit of 10. Its outcome is unknown, too, and would replace the doubt about 20.
        3. The client closes and revokes the partition: 10 would be sent after 20, and the offset goes back.
        The same holds if 20 was accepted. So what was sent last is in doubt, and is sent again.
        """
        clear = [*result.acknowledged, *(item for item, why in result.refused if why is not Refusal.UNCERTAIN)]
        again = [item for item in clear if self._settles(item)]
        for item in again:
            del self._doubtful[item.partition]
        # R14: the coordinator may still have an older commit to read
        if again or took_s >= _LATE_ANSWER_S:
            self._quiet = Deadline(self._clock, _QUIET_S)
        # R14: an older offset that is accepted late moves the group back from the one that was sent last
        self._doubtful |= {
            item.partition: self._last_sent[item.partition]
            for item, why in result.refused
            if why is Refusal.UNCERTAIN and item.partition in self._last_sent
        }

    def _settles(self, item: CommitItem) -> bool:
        """Return whether an answer about this item says what became of the one in doubt: not if that is newer."""
        doubt = self._doubtful.get(item.partition)
        # R14: an older offset, answered late, says nothing about a newer one
        return doubt is not None and doubt.offset <= item.offset

    def released(self, partitions: Partitions) -> None:
        """Forget commits of partitions that left the member, whatever the answer to a commit under way will be.

        Guards against (rule R17):
        1. The commit of 20 has no answer yet. The partition leaves.
        2. Its next owner commits 50. The partition comes back.
        3. The answer arrives: the outcome of 20 is unknown. 20 would be sent again, over 50.
        """
        for partition in partitions:
            # R17: its offsets are the next owner's
            self._doubtful.pop(partition, None)
            self._last_sent.pop(partition, None)
        self._on_its_way = tuple(item for item in self._on_its_way if item.partition not in partitions)

    def membership_ended(self, partitions: Partitions) -> None:
        """Forget commits of lost partitions. What the coordinator answers of this membership is known already."""
        self.released(partitions)
        self._outlived = True

    def forget(self) -> None:
        """Forget all commits, because the client was replaced."""
        self._on_its_way, self._answer_due, self._doubtful, self._last_sent = (), None, {}, {}

    def send_pending(self) -> None:
        """Send completed offsets that the group may not have: in doubt, refused, or delayed by another commit.

        Guards against (rule R14):
        1. The commit of batch N is refused while the coordinator moves. The client repeats it by itself.
        2. Batch N+1 completes. Its commit is accepted first.
        3. The repeated commit of N is accepted: the offset goes back.
        """
        # R14: nothing is sent while a commit has no answer
        if self._machine.state is MemberState.JOINED and not self._awaits_answer:
            # R14: offsets with an unknown outcome go first
            items = tuple(self._doubtful.values()) or (self._machine.pending() if self.free else ())
            if items and self._pace.due():
                if self._refused:
                    self._report.retried()
                self._send(items)

    def before_release(
        self, items: tuple[CommitItem, ...], left_behind: Callable[[], bool] = lambda: False
    ) -> CommitResult:
        """Commit the items of a handover. Return the combined result of all tries.

        `left_behind()`: whether the group has gone on without waiting for the handover. Nothing is committed then
        (rule R85).

        Sends one request, and repeats refused items that may be accepted later (the coordinator moves, a connection was
        cut) for a limited time (rule R28). If that fails, the next owner starts at the last committed offset: records
        are repeated, never lost. A longer wait would stop the whole group.

        Guards against (rule R28):
        1. The connection to the coordinator is cut while a handover commits. Without a second try the batch is
           repeated.
        2. With tries without end, the whole group would wait for this member.
        3. A batch completes between two tries. With the old offsets, the next owner would repeat it.

        Guards against (rule R85):
        1. A member of a classic group drains a long batch, because another one has joined.
        2. A topic gets a partition. The client joins the group at once, although the member has not released its
           partitions (librdkafka 2.16, `rd_kafka_cgrp_metadata_update_check`).
        3. The other member gets the partitions, reads the batch in flight once more, and commits.
        4. The batch ends. Its commit is accepted in the new generation: the group's offset goes back.
        """
        if not left_behind():
            self._clear_up(items)
        overlap = {item.partition for item in self._on_its_way} & {item.partition for item in items}
        deadline = Deadline(self._clock, _RELEASE_COMMIT_S)
        wanted, whole = items, CommitResult()
        newest = {item.partition: item for item in items}
        while wanted:
            # R85: the next owner may read and commit them
            if left_behind():
                refused = tuple((item, Refusal.REBALANCE) for item in wanted)
                result = CommitResult(refused=refused, reason="the client has joined the next generation meanwhile")
                self._report.uncommitted(result)
                return whole.and_also(result)
            result = self.now(wanted)
            self._machine.offsets_acknowledged(result.acknowledged)
            self._report.answered(result)
            whole = whole.and_also(result)
            wanted = tuple(item for item, why in result.refused if why is not Refusal.NO_TOPIC)
            # R28: bounded
            if result.lost or result.error or (result.refused and (not wanted or deadline.expired())):
                self._report.uncommitted(result)
                break
            if wanted:
                self._pause()
                self._report.retried()
                # R28: a batch may have completed meanwhile
                wanted = self._newest(wanted)
                newest |= {item.partition: item for item in wanted}
        # R29: an older commit may be accepted after this one
        if overlap and whole.acknowledged:
            whole = whole.and_also(self._outlast(tuple(newest.values())))
        return whole

    def _newest(self, items: tuple[CommitItem, ...]) -> tuple[CommitItem, ...]:
        """Return the newest completed offsets of these partitions, because a batch may have completed meanwhile."""
        newer = {item.partition: item for item in self._machine.pending(item.partition for item in items)}
        return tuple(newer.get(item.partition, item) for item in items)

    def _pause(self) -> None:
        """Serve commands until the next try. Commands come every few milliseconds, so one does not end the pause."""
        pause = Deadline(self._clock, _RELEASE_RETRY_S)
        while not pause.expired():
            self._serve_commands(_RELEASE_RETRY_S / 10)

    def _clear_up(self, items: tuple[CommitItem, ...]) -> None:
        """Commit again what is in doubt and older than `items`. Then wait while newer commits must not be sent."""
        # R14: offsets with an unknown outcome go first
        older = tuple(
            self._doubtful[item.partition]
            for item in items
            if item.partition in self._doubtful and self._doubtful[item.partition].offset < item.offset
        )
        if older:
            self._report.retried()
            result = self.now(older)
            self._report.answered(result)
        while items and not self._quiet.expired():
            self._pause()

    def _outlast(self, items: tuple[CommitItem, ...]) -> CommitResult:
        """Commit again the offsets that an older commit, accepted later, has moved back (rule R29).

        Return what was refused because the membership has ended: nothing of it is committed any more.

        Guards against (rule R29):
        1. The commit of batch N is under way. A revoke arrives, and batch N+1 is complete.
        2. The client delivers answers only outside of its callbacks. So the handover commits the end of N+1 at once.
        3. The coordinator accepts the commit of N after that: the next owner would repeat batch N+1.
        """
        late = Deadline(self._clock, _LATE_COMMIT_S)
        while not late.expired():
            self._pause()
            items = self._newest(items)
            found = self._port.fetch_offsets([item.partition for item in items], _OFFSET_FETCH_TIMEOUT_S)
            held = {partition: group.offset for partition, group in found.items()}
            behind = tuple(i for i in items if (held.get(i.partition, i.offset) or 0) < i.offset)
            if behind:
                result = self.now(behind)
                self._report.answered(result)
                if result.lost:
                    return CommitResult(refused=result.refused, reason=result.reason, error=result.error)
        return CommitResult()
