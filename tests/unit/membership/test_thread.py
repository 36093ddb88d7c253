"""The membership thread with a scripted group: real threads, a clock that tests advance, bounded waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager

import pytest

from spark_groupsource import errors
from spark_groupsource.clock import SystemClock
from spark_groupsource.errors import AccessError, MembershipError
from spark_groupsource.membership.client_renewal import UNRELEASED_MARGIN_S
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.membership.machine import GroupView, MemberState
from spark_groupsource.membership.port import Refusal
from spark_groupsource.membership.session_length import SessionLength
from spark_groupsource.membership.stopping import StopCause
from spark_groupsource.membership.thread import MembershipThread
from spark_groupsource.model.commit_metadata import CommitItem, GroupOffset
from spark_groupsource.model.offsets import OffsetRange, SourceOffset
from tests.unit.fakes import (
    WAIT_S,
    FakeGroup,
    ManualClock,
    flight,
    make_options,
    quiet_metrics,
    tp,
)

P0, P1, P2 = tp(0), tp(1), tp(2)
R0, R1 = OffsetRange(P0, 10, 20), OffsetRange(P1, 0, 5)
# Shorter than the heartbeat interval (no doubt), longer than the pause between two looks at the commit log.
BRIEFLY_S = 0.6
# How often a test looks for what comes after a few looks, and for how long it waits between two looks for an end.
_LOOKS = 4_000
_JOIN_S = 0.05
_JOINS = round(WAIT_S / _JOIN_S)


class CommitLog:
    """Stands in for Spark's commit log. It does not answer while it `hangs`."""

    name = "s3://bucket/checkpoint"

    def __init__(self, *, is_local: bool = False) -> None:
        self.complete: set[SourceOffset] = set()
        self.asked = threading.Event()
        self.looks = 0
        self.compared: list[SourceOffset] = []
        self.is_local = is_local
        self._answers = threading.Event()
        self._answers.set()

    def hang(self) -> None:
        """Let no look end."""
        self._answers.clear()

    def answer(self) -> None:
        """Let all looks end, those under way with what was known when they began."""
        self._answers.set()

    def is_complete(self, end: SourceOffset) -> bool:
        self.looks += 1
        known = end in self.complete
        self.asked.set()
        assert self._answers.wait(WAIT_S)
        return known

    glance = is_complete

    def wants_start(self, start: SourceOffset) -> bool:
        return start not in self.compared

    def compare_start(self, start: SourceOffset) -> None:
        self.compared.append(start)


class Bed:
    """A running member, its group, its clock and the commit log."""

    def __init__(self, group: FakeGroup, clock: ManualClock, log: CommitLog, member: MembershipThread) -> None:
        self.group, self.clock, self.log, self.member = group, clock, log, member

    def until(self, what: str, predicate: Callable[[GroupView], bool], step_s: float = 0.0) -> GroupView:
        """Look at the member until it is as expected; every look is answered by the event thread.

        `step_s` passes between two looks.
        """
        for number in range(_LOOKS):
            view = self.member.view()
            if predicate(view):
                return view
            self.group.fence()
            self.clock.advance(step_s)
            if number > 100:  # another thread's turn
                time.sleep(0.005)
        pytest.fail(f"waited in vain for {what}: {view}")

    def tick(self) -> None:
        """Let the event thread go round once: it polls, and says so."""
        assert self.group.fence(WAIT_S)

    def go_round(self, times: int) -> None:
        """Let the event thread go round so often, with its usual pauses."""
        for _ in range(times):
            self.tick()
            self.clock.advance(0.02)

    def end_before_it_owns(self, item: OffsetRange) -> None:
        """Let Spark run a logged batch again, and complete it, before the member gets its partition."""
        self.group.committed[item.partition] = GroupOffset(item.start, "pin")
        self.member.replay(flight(item))
        self.log.complete.add(flight(item).end)
        self.go_round(20)

    def own(self, *partitions: tuple[int, int]) -> GroupView:
        """Let the group give partitions at committed offsets, and establish them."""
        for number, offset in partitions:
            self.group.committed.setdefault(tp(number), GroupOffset(offset, "pin"))
        self.group.assign(*(tp(number) for number, _ in partitions))
        view = self.until("the assignment", lambda v: v.settled and len(v.partitions) == len(partitions))
        assert self.member.establish({tp(n): offset for n, offset in partitions}, [], view.assignment)
        return self.member.view()

    def fix(self, *ranges: OffsetRange) -> None:
        """Put a batch in flight."""
        assert self.member.fix(flight(*ranges), self.member.view().assignment)

    def gone(self) -> GroupView:
        """Wait until the member has left the group, and goes on."""
        for _ in range(_LOOKS):
            view = self.member.view()
            if ("close", None) in self.group.calls and not view.partitions:
                return view
            self.clock.advance(0.02)
            time.sleep(0.005)
        pytest.fail(f"it has not left: {view}")

    def joined_again(self) -> None:
        """Wait until the member that had left has a client once more."""
        for _ in range(_LOOKS):
            if self.group.calls[-1][0] == "open":
                return
            self.clock.advance(0.1)
            time.sleep(0.005)
        pytest.fail(f"it has not joined: {self.group.calls}")

    def refuse_the_first_client(self) -> None:
        """Let the group refuse its instance id, and wait until the member has closed it."""
        self.group.leave_instance_id_unreleased()
        self.group.wait_for("the end of the first client", lambda: len(self.group.named("close")) == 1)

    def stop(self) -> None:
        """Stop the member and wait for its end."""
        self.member.stop_now()
        for _ in range(_JOINS):
            if self.member.join(_JOIN_S):
                return
            self.clock.advance(0.1)
        pytest.fail(f"the member did not end: {self.member!r}")


@contextmanager
def running(group: FakeGroup | None = None, *, local: bool = False, **options: str) -> Iterator[Bed]:
    group, clock, log = group or FakeGroup(), ManualClock(), CommitLog(is_local=local)
    member = MembershipThread(make_options(**options), group, clock, log, quiet_metrics())
    member.start()
    bed = Bed(group, clock, log, member)
    try:
        yield bed
    finally:
        bed.stop()


@contextmanager
def in_flight(group: FakeGroup | None = None, *, local: bool = False, **options: str) -> Iterator[Bed]:
    """A member that owns orders-0, whose batch [10, 20) is in flight."""
    with running(group, local=local, **options) as bed:
        bed.own((0, 10))
        bed.fix(R0)
        yield bed


@contextmanager
def given_up() -> Iterator[Bed]:
    """A member whose batch takes longer than maxBatchMs, so that it has left the group."""
    with in_flight(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint") as bed:
        bed.clock.advance(31.0)
        bed.gone()
        yield bed


def ends(bed: Bed) -> None:
    """Wait until a member that was asked to stop has ended, without asking it more."""
    for _ in range(_JOINS):
        if bed.member.join(_JOIN_S):
            return
        bed.clock.advance(0.02)
    pytest.fail(f"the member did not end: {bed.member!r}")


def item(number: int, offset: int, metadata: str = "m") -> CommitItem:
    return CommitItem(tp(number), offset, metadata)


def committed(bed: Bed, number: int) -> int | None:
    return bed.group.committed[tp(number)].offset


# --- life


def test_it_subscribes_joins_and_leaves() -> None:
    with running() as bed:
        bed.member.subscribe(["b", "a"])
        bed.own((0, 10))
        assert bed.member.view().state is MemberState.JOINED
        machine = "MemberMachine(state=JOINED, batch_in_flight=False, assignment=1, partitions=1)"
        assert repr(bed.member) == f"MembershipThread(group='shop', {machine})"
    assert bed.group.named("subscribe") == [("a", "b")]
    assert [name for name, _ in bed.group.calls if name in ("release", "close")] == ["release", "close"]
    assert "state=STOPPED" in repr(bed.member)


def test_the_same_subscription_is_not_sent_twice() -> None:
    with running() as bed:
        bed.member.subscribe(["a"])
        bed.member.subscribe(["a"])
        bed.member.subscribe([])
        bed.member.subscribe(["a", "b"])
    assert bed.group.named("subscribe") == [("a",), ("a", "b")]


def test_a_second_start_changes_nothing() -> None:
    """The first one may have ended with an error before the caller knew that it had started the member."""
    with running() as bed:
        bed.member.start()
        bed.tick()
        assert len(bed.group.named("open")) == 1


def test_stop_of_a_member_that_was_never_started_returns_at_once() -> None:
    member = MembershipThread(make_options(), FakeGroup(), ManualClock(), CommitLog(), quiet_metrics())
    member.request_stop()
    assert member.join(0.1)
    assert member.stopping


def test_a_call_after_the_end_says_that_the_member_has_left() -> None:
    with running() as bed:
        pass
    with pytest.raises(MembershipError, match=r"MEMBER_LEFT.*'shop' has left the group: Spark has ended the query"):
        bed.member.view()


def test_a_process_that_was_stopped_has_not_waited_for_its_member() -> None:
    """SIGSTOP in the middle of a call, for longer than a call may take, then SIGCONT: the answer is on its way."""
    with running() as bed, futures.ThreadPoolExecutor(1) as pool:
        busy, go_on = threading.Event(), threading.Event()

        def work() -> None:
            busy.set()
            go_on.wait(WAIT_S)

        bed.group.post(work)
        assert busy.wait(WAIT_S)
        looked = pool.submit(bed.member.view)
        for _ in range(3):
            bed.clock.advance(600.0)
            assert not futures.wait((looked,), timeout=0.5).done
        go_on.set()
        assert looked.result(WAIT_S).state is MemberState.JOINING


def test_who_is_given_partitions_by_the_group_has_found_its_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), running() as bed:
        bed.own((0, 10))
    said = [record.getMessage() for record in caplog.records if record.name.endswith("membership.report")]
    assert said[0].endswith(": group=shop found")
    assert said[1].startswith("rebalance:")


def test_a_stop_commits_although_the_client_asks_for_nothing_back() -> None:
    group = FakeGroup()
    group.revokes_when_closed = False
    with in_flight(group) as bed:
        bed.group.refusals.append(Refusal.UNCERTAIN)
        bed.log.complete.add(flight(R0).end)
    assert committed(bed, 0) == 20


# --- offsets and positions


@pytest.mark.rule("R105")
def test_p5_starts_that_others_may_have_stored_meanwhile_are_not_committed() -> None:
    """The member's thread was busy since the group's offsets were requested."""
    with running() as bed:
        view = bed.own((0, 10))
        late_s = bed.clock.boottime_s()
        bed.clock.advance(0.1)
        assert not bed.member.establish({P0: 10}, [item(1, 5)], view.assignment, late_s)
        assert bed.member.establish({P0: 10}, [item(1, 5)], view.assignment, bed.clock.boottime_s() + 3.0)
        assert bed.group.named("commit_now") == [(item(1, 5),)]


@pytest.mark.rule("R2")
def test_a_plan_made_before_a_change_of_ownership_is_refused() -> None:
    with running() as bed:
        view = bed.own((0, 10), (1, 0))
        bed.group.revoke(P1)
        bed.until("the release", lambda v: len(v.partitions) == 1)
        assert not bed.member.fix(flight(R0, R1), view.assignment)
        assert bed.member.flight is None


# --- complete


LARGE = "m" * 200_000


def large(*numbers: int) -> tuple[CommitItem, ...]:
    return tuple(item(number, 20, LARGE) for number in numbers)


def test_a_start_position_that_is_refused_for_good_ends_the_member() -> None:
    """A driver that may describe its topic, and not read it: nothing is ever planned, and somebody must say why."""
    with running() as bed:
        bed.group.assign(P0)
        view = bed.until("the assignment", lambda v: v.settled and len(v.partitions) == 1)
        bed.group.refusals.append(Refusal.DENIED)
        assert not bed.member.establish({P0: 10}, [item(0, 10)], view.assignment)
        with pytest.raises(AccessError):
            bed.until("the error", lambda _: False)


def test_a_handover_does_not_repeat_a_commit_that_is_refused_for_good() -> None:
    """The others of the group would wait for nothing; the query ends, because its next commit would be refused, too."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.fix(R0)
        bed.group.refusals.append(Refusal.DENIED)
        bed.group.revoke(P0)
        bed.log.complete.add(flight(R0).end)
        with pytest.raises(AccessError):
            bed.until("the error", lambda _: False, 0.02)
        bed.group.wait_for("the handover", lambda: ("release", (P0,)) in bed.group.calls)
        assert [given for given in bed.group.named("commit_now") if given] == [(item(0, 20),)]


def test_a_handover_commits_in_as_many_requests_as_it_takes() -> None:
    """The second one is refused: the third is not sent before all that is left is sent again."""
    with running() as bed:
        bed.own(*((number, 10) for number in range(5)))
        batch = FlightBatch(flight(R0).end, large(*range(5)))
        assert bed.member.fix(batch, bed.member.view().assignment)
        bed.log.complete.add(batch.end)
        bed.group.refusals.extend([None, Refusal.REBALANCE])
        bed.group.revoke(*(tp(number) for number in range(5)))
        bed.until("the release", lambda v: not v.partitions, 0.05)
        assert bed.group.named("commit_now") == [large(0, 1), large(2, 3), large(2, 3), large(4)]
        assert [committed(bed, number) for number in range(5)] == [20] * 5


def leave_a_commit_unanswered(bed: Bed) -> GroupView:
    """A batch is complete, its commit is taken, and the answer stays away; returns the view before."""
    view = bed.own((0, 10))
    bed.fix(R0)
    bed.group.answer_commits = False
    bed.member.complete(flight(R0).end)
    return view


@pytest.mark.parametrize(
    ("go", "answer"),
    [(FakeGroup.lose, Refusal.UNCERTAIN), (FakeGroup.revoke, Refusal.UNCERTAIN), (FakeGroup.lose, Refusal.LOST)],
)
@pytest.mark.rule("R17")
def test_p5_an_answer_that_comes_when_the_partition_is_back_counts_no_more(
    go: Callable[..., None], answer: Refusal
) -> None:
    """The commit of 20 has no answer; the partition goes, another member commits 50, the partition comes back; then the
    answer comes: it is none, or is about the membership before.
    """
    with running() as bed:
        leave_a_commit_unanswered(bed)
        bed.tick()
        go(bed.group, P0)
        bed.until("the loss", lambda v: not v.partitions, 0.3)
        bed.group.committed[P0] = GroupOffset(50, "other")
        bed.group.assign(P0)
        bed.until("the offset", lambda v: v.partitions != () and v.partitions[0].group is not None, 0.3)
        bed.group.answer_commits = True
        bed.group.refuse_late((item(0, 20),), answer)
        bed.until("some time", lambda _: bed.clock.now_s > 1005.0, 0.5)
        assert bed.group.named("commit_later") == [(item(0, 20),)]
        assert committed(bed, 0) == 50
        view = bed.member.view()
        assert (view.state, len(view.partitions)) == (MemberState.JOINED, 1), "nothing is dropped"


def test_a_handover_does_not_wait_for_a_deleted_topic() -> None:
    with in_flight() as bed:
        bed.group.answer_commits = False
        bed.member.complete(flight(R0).end)
        bed.tick()
        bed.group.refusals.extend([Refusal.NO_TOPIC] * 100)
        bed.group.revoke(P0)
        bed.until("the release", lambda v: not v.partitions)
        assert bed.group.named("commit_now") == [(item(0, 20),)]


def come_back_unfetched(bed: Bed, *, complete: bool = True) -> None:
    """Let the group take P0, maybe the batch end, and P0 come back: the first request for its offset has no answer."""
    bed.group.lose(P0)
    bed.until("the loss", lambda view: not view.partitions)
    if complete:
        bed.member.complete(flight(R0).end)
    bed.group.unanswered_fetches = 1
    bed.group.assign(P0)
    bed.until("a request", lambda _: len(bed.group.named("fetch")) == 2)


@pytest.mark.rule("R77")
@pytest.mark.parametrize("way", ["handover", "drain", "stop"])
def test_p6_a_partition_that_leaves_before_its_offset_is_fetched_is_committed(way: str) -> None:
    """Guards against: 1. it comes back, and the coordinator does not answer the first request for its offset; 2. it is
    revoked, in its batch or after it, or the query stops, before the next one."""
    with in_flight() as bed:
        come_back_unfetched(bed, complete=way != "drain")
        if way == "stop":
            bed.stop()
        else:
            bed.group.revoke(P0)
            if way == "drain":
                bed.until("the drain", lambda view: view.state is MemberState.DRAINING)
                bed.member.complete(flight(R0).end)
            bed.until("the handover", lambda view: not view.partitions)
        assert committed(bed, 0) == 20
        assert bed.group.named("commit_now") == [(item(0, 20),)]


def test_p6_a_completed_end_whose_commit_is_refused_counts_as_repeated(caplog: pytest.LogCaptureFixture) -> None:
    with in_flight() as bed, caplog.at_level(logging.INFO):
        come_back_unfetched(bed)
        bed.group.refusals.extend([Refusal.LOST, Refusal.LOST])
        bed.group.revoke(P0)
        bed.until("the handover", lambda view: not view.partitions)
    assert "revoked=1 kept=0 outcome=COMPLETE committed=0 drain_ms=0 repeated_at_most=10" in caplog.text


@pytest.mark.rule("R14")
def test_p4_start_positions_wait_for_the_commit_on_its_way() -> None:
    with running() as bed:
        view = leave_a_commit_unanswered(bed)
        assert not bed.member.establish({P0: 50}, [item(0, 50)], view.assignment)
        bed.group.answer_late((item(0, 20),))
        bed.until("the answer", lambda v: v.partitions[0].group == GroupOffset(20, "m"))
        assert bed.member.establish({P0: 50}, [item(0, 50)], view.assignment)


@pytest.mark.rule("R29")
def test_p6_a_handover_outlasts_an_older_commit_that_lands_after_its_own() -> None:
    """The handover's commit is taken; then the coordinator takes the older one, which the client had tried again."""
    with running() as bed:
        leave_a_commit_unanswered(bed)
        later = OffsetRange(P0, 20, 30)
        bed.fix(later)
        bed.group.revoke(P0)
        bed.until("the drain", lambda view: view.state is MemberState.DRAINING)
        bed.member.complete(flight(later).end)
        bed.group.wait_for("the handover's commit", lambda: bed.group.named("commit_now") == [(item(0, 30),)])
        bed.group.committed[P0] = GroupOffset(20, "m")
        bed.until("the next commit", lambda _: len(bed.group.named("commit_now")) == 2, step_s=0.1)
        bed.until("the release", lambda v: v.state is MemberState.JOINED, step_s=0.5)
        assert committed(bed, 0) == 30


# --- drain


@contextmanager
def draining(*, hangs: bool = False, **options: str) -> Iterator[Bed]:
    """A member that owns orders-0 and orders-1, and drains the batch [10, 20) of orders-0. The store may hang."""
    with running(**options) as bed:
        if hangs:
            bed.log.hang()
        bed.own((0, 10), (1, 0))
        bed.fix(R0)
        bed.group.revoke(P0)
        bed.until("the drain", lambda view: view.state is MemberState.DRAINING)
        assert bed.group.named("release") == []
        yield bed


def test_p6_the_commit_does_not_wait_for_a_trigger_if_a_partition_without_records_has_left() -> None:
    """1. a batch reads one of two partitions, 2. the other one moves to another member at once, 3. the batch ends, long
    before the next trigger."""
    with running(local=True) as bed:
        bed.own((0, 10), (1, 5))
        bed.fix(R0, OffsetRange(P1, 5, 5))
        bed.group.revoke(P1)
        bed.until("the handover", lambda v: v.state is MemberState.JOINED and len(v.partitions) == 1)
        assert bed.member.flight is not None
        bed.log.complete.add(flight(R0, OffsetRange(P1, 5, 5)).end)
        bed.until("the commit", lambda v: bed.member.flight is None and v.committed, step_s=0.01)
        assert (committed(bed, 0), committed(bed, 1)) == (20, 5)


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.rule("R77")
def test_a_batch_that_ends_before_its_partitions_come_is_committed_by_a_stop(local: bool) -> None:
    """The same with the stop right behind the assignment: the log is looked at once more."""
    with running(local=local) as bed:
        bed.end_before_it_owns(R0)
        bed.group.assign(P0)
        bed.stop()
        assert committed(bed, 0) == 20


def test_a_commit_log_in_a_store_is_not_looked_at_while_nobody_waits() -> None:
    with in_flight() as bed:
        bed.log.complete.add(flight(R0).end)
        bed.go_round(50)
        assert not bed.log.asked.is_set()
        assert committed(bed, 0) == 10


@pytest.mark.rule("R26")
def test_a_drain_ends_at_its_deadline_without_a_commit(caplog: pytest.LogCaptureFixture) -> None:
    with draining(drainTimeoutMs="500") as bed, caplog.at_level(logging.WARNING):
        bed.clock.advance(BRIEFLY_S)
        bed.until("the release", lambda v: v.state is MemberState.JOINED)
        assert committed(bed, 0) == 10
        bed.member.complete(flight(R0).end)
        assert bed.group.named("commit_later") == []
    assert "drain deadline passed" in caplog.text


@pytest.mark.rule("R103")
@pytest.mark.parametrize(("poll_s", "spare_s"), [(300, 5.0), (4, 1.5)])
def test_a_drain_deadline_waits_for_a_store_that_hangs_for_a_moment_only(poll_s: int, spare_s: float) -> None:
    """Half of the time that the group still waits, and 5 s at most."""
    options = {"kafka.max.poll.interval.ms": str(poll_s * 1000), "kafka.session.timeout.ms": "3000"}
    with draining(hangs=True, drainTimeoutMs="1000", **options) as bed:
        began_s = bed.clock.now_s
        bed.until("the release", lambda v: v.state is MemberState.JOINED, step_s=0.05)
        assert 1.0 + spare_s <= bed.clock.now_s - began_s < 1.0 + spare_s + 0.5
        assert committed(bed, 0) == 10
        bed.log.answer()


@pytest.mark.parametrize("complete", [True, False])
def test_a_stop_ends_a_drain_and_commits_what_the_log_has(complete: bool) -> None:
    with draining() as bed:
        if complete:
            bed.log.complete.add(flight(R0).end)
        bed.stop()
        assert committed(bed, 0) == (20 if complete else 10)
        assert bed.group.owned == set()


# --- partitions that the client does not know to be lost


@pytest.mark.rule("R26")
def test_a_stop_after_a_suspension_does_not_wait_for_lost_partitions(caplog: pytest.LogCaptureFixture) -> None:
    """1. The machine is suspended. 2. The coordinator does not know the member any more. 3. The client, which has not
    noticed that, revokes the partitions when it closes."""
    with in_flight(drainTimeoutMs="5000") as bed, caplog.at_level(logging.INFO):
        bed.group.refusals.append(Refusal.LOST)
        bed.clock.suspend(100.0)
        bed.until("the loss", lambda view: view.state is MemberState.REJOINING)
        bed.member.request_stop()
        assert bed.member.join(WAIT_S), "it waits for a batch of partitions that it does not own"
        assert not bed.member.failed
        assert not bed.member.left_clean
    assert "left: group=shop outcome=LOST" in caplog.text
    assert "drainTimeoutMs" not in caplog.text
    assert caplog.text.count("repeated_at_most=10") == 1, "what is repeated is counted once"


# --- SIGTERM with a batch in flight


def test_a_stop_by_signal_waits_as_long_as_a_drain(caplog: pytest.LogCaptureFixture) -> None:
    with in_flight(drainTimeoutMs="2000") as bed, caplog.at_level(logging.INFO):
        bed.member.request_stop(StopCause.SIGINT)
        bed.go_round(50)
        assert bed.member.view().state is MemberState.JOINED
        bed.clock.advance(1.5)
        ends(bed)
        assert committed(bed, 0) == 10
    assert "leaving when the batch in flight is complete: group=shop cause=SIGINT" in caplog.text
    assert "drainTimeoutMs passed while a stop waited" in caplog.text


def test_a_stop_by_signal_waits_for_a_batch_that_runs_again_before_its_member_has_joined() -> None:
    """Guards against: 1. Spark runs a logged batch again, 2. SIGTERM comes before its partitions do, 3. the member
    ends, and another one reads what the application finishes."""
    with running() as bed:
        bed.group.committed[P0] = GroupOffset(10, "pin")
        bed.member.replay(flight(R0))
        bed.member.request_stop()
        bed.go_round(10)
        bed.group.assign(P0)
        bed.until("the assignment", lambda v: v.state is MemberState.JOINED)
        bed.log.complete.add(flight(R0).end)
        ends(bed)
        assert committed(bed, 0) == 20


@pytest.mark.parametrize("held", [10, 20])
@pytest.mark.parametrize("how", ["Spark's word", "the log", "a stop at once"])
@pytest.mark.rule("R86")
def test_p6_a_stop_is_clean_only_if_the_group_has_the_ends_of_all_batches(how: str, held: int) -> None:
    """1. Spark runs a logged batch again, 2. it is complete before the member has joined, 3. the query is stopped: the
    next owner repeats the batch, unless others have passed it."""
    with running() as bed:
        bed.group.committed[P0] = GroupOffset(held, "of another owner")
        bed.member.replay(flight(R0))
        bed.log.complete.add(flight(R0).end)
        if how == "a stop at once":
            bed.stop()
        else:
            if how == "Spark's word":
                bed.member.complete(flight(R0).end)
            bed.member.request_stop()
            ends(bed)
        assert committed(bed, 0) == held
        assert bool(bed.member.left_clean) is (held == 20)


@pytest.mark.rule("R79")
@pytest.mark.rule("R86")
def test_a_stop_between_two_clients_is_not_clean_and_no_failure() -> None:
    """The same of a static member, whose old session has not ended: nobody can be asked for the group's offset.

    It opens no other client, which would not leave again: the group would wait for it for a session timeout.
    """
    with running(kafka__group__instance__id="one") as bed:
        bed.member.subscribe(["orders"])
        bed.group.committed[P0] = GroupOffset(10, "pin")
        bed.member.replay(flight(R0))
        bed.member.complete(flight(R0).end)
        bed.refuse_the_first_client()
        bed.member.request_stop()
        ends(bed)
        assert (bed.member.failed, bed.member.left_clean) == (False, False)
        assert len(bed.group.named("open")) == 1


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.rule("R86")
def test_a_stop_of_a_member_that_has_given_its_partitions_up_waits_for_nothing_and_is_no_failure(
    complete: bool,
) -> None:
    with given_up() as bed:
        if complete:
            bed.log.complete.add(flight(R0).end)
        bed.member.request_stop()
        ends(bed)
        assert not bed.member.failed


@pytest.mark.rule("R86")
def test_a_stop_is_not_clean_if_the_groups_offset_is_not_known() -> None:
    with running() as bed:
        bed.group.committed[P0] = GroupOffset(10, "pin")
        bed.group.unanswered_fetches = 1_000_000
        bed.member.replay(flight(R0))
        bed.group.assign(P0)
        bed.until("the assignment", lambda v: v.state is MemberState.JOINED)
        bed.member.complete(flight(R0).end)
        bed.stop()
        assert not bed.member.left_clean


def test_a_member_that_loses_the_partitions_of_a_deleted_topic_reads_the_others() -> None:
    """A cooperative client reports them as lost. It may get no other assignment after that."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.group.lose(P1)
        bed.until("the loss", lambda v: [owned.partition for owned in v.partitions] == [P0])
        assert bed.member.view().settled
        bed.fix(R0)
        bed.member.complete(flight(R0).end)
        bed.until("the commit", lambda v: v.committed)
        assert committed(bed, 0) == 20


@pytest.mark.rule("R117")
@pytest.mark.parametrize(
    ("revoked_in", "assigned_in", "clients"),
    [(b"2", b"3", 2), (b"2", b"2", 1), (b"1", b"2", 1)],
    ids=["a dropped rebalance", "a rebalance", "a change of the subscription"],
)
def test_a_client_that_dropped_a_rebalance_is_replaced(revoked_in: bytes, assigned_in: bytes, clients: int) -> None:
    """The member was assigned two partitions in generation 1. One is revoked, and then the client assigns none."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.group.join(revoked_in)
        bed.group.revoke(P1)
        bed.group.join(assigned_in)
        bed.group.assign()
        bed.until("another client", lambda _: len(bed.group.named("open")) == clients, step_s=0.1)
        bed.go_round(5)
        assert bed.group.waiting == 0
        assert len(bed.group.named("open")) == clients


@pytest.mark.rule("R117")
def test_a_client_that_dropped_a_rebalance_is_kept_while_a_batch_is_in_flight() -> None:
    """A closing client sends no heartbeats: its session would expire while its revoke waits for the batch."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.fix(R0)
        bed.group.join(b"2")
        bed.group.revoke(P1)
        bed.group.join(b"3")
        bed.group.assign()
        bed.until("no callback is left", lambda _: bed.group.waiting == 0)
        bed.go_round(5)
        assert bed.group.named("close") == []
        assert not bed.member.fix(flight(R0), bed.member.view().assignment), "another batch would be awaited, too"
        bed.member.complete(flight(R0).end)
        bed.until("another client", lambda _: len(bed.group.named("open")) == 2, step_s=0.1)
        assert committed(bed, 0) == 20


@pytest.mark.rule("R117")
def test_a_client_that_joins_the_next_generation_at_once_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """The other members wait in a JoinGroup. The client has accepted an assignment, and its own one ends the round."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.group.join(b"2")
        bed.group.revoke(P1)
        bed.group.post(lambda: setattr(bed.group, "accepts_and_joins", b"3"))
        bed.group.assign()
        bed.until("no callback is left", lambda _: bed.group.waiting == 0)
        bed.go_round(5)
        assert len(bed.group.named("open")) == 1
    assert "ignore the next rebalances" not in caplog.text


@pytest.mark.rule("R117")
def test_a_rebalance_that_is_dropped_after_one_that_began_at_once_is_noticed() -> None:
    """1. The client accepts an assignment of generation 2, and has joined generation 3 before it returns. 2. That takes
    a partition. 3. A topic changes during the drain: the assignment comes in generation 4."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.group.join(b"2")
        bed.group.post(lambda: setattr(bed.group, "accepts_and_joins", b"3"))
        bed.group.assign()
        bed.group.post(lambda: setattr(bed.group, "accepts_and_joins", b""))
        bed.group.revoke(P1)
        bed.group.join(b"4")
        bed.group.assign()
        bed.until("another client", lambda _: len(bed.group.named("open")) == 2, step_s=0.1)


@pytest.mark.rule("R117")
def test_a_client_that_closes_misses_no_rebalance(caplog: pytest.LogCaptureFixture) -> None:
    """A stop comes during a drain: the client calls the callback of the assignment while it closes, without a
    generation."""
    with running() as bed:
        bed.own((0, 10), (1, 0))
        bed.group.join(b"2")
        bed.group.revoke(P1)
        bed.group.join(b"")
        bed.group.assign()
        bed.until("no callback is left", lambda _: bed.group.waiting == 0)
        bed.go_round(5)
        assert len(bed.group.named("open")) == 1
    assert "ignore the next rebalances" not in caplog.text


# --- a batch that takes longer than maxBatchMs


@pytest.mark.rule("R31")
def test_a_batch_that_takes_too_long_costs_the_member_its_partitions(caplog: pytest.LogCaptureFixture) -> None:
    """What earlier batches completed is committed first; the batch in flight is not, also when it ends later."""
    with (
        running(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint") as bed,
        caplog.at_level(logging.WARNING),
    ):
        bed.own((0, 10), (1, 0))
        bed.group.refusals.append(Refusal.REBALANCE)
        bed.fix(R1)
        bed.member.complete(flight(R1).end)
        bed.fix(R0)
        bed.clock.advance(29.0)
        bed.go_round(3)
        assert len(bed.member.view().partitions) == 2
        bed.clock.advance(2.0)
        view = bed.gone()
        assert (view.state, view.partitions) == (MemberState.REJOINING, ())
        assert (committed(bed, 0), committed(bed, 1)) == (10, 5)
        assert bed.group.owned == set()
        assert bed.group.calls[-1][0] == "close"
        assert "takes longer than option maxBatchMs" in caplog.text
        bed.member.complete(flight(R0).end)
        bed.joined_again()
        assert committed(bed, 0) == 10, "the batch that ended late moves the offset of the next owner"
        view = bed.own((0, 20))
        assert bed.member.fix(flight(OffsetRange(P0, 20, 30)), view.assignment)


@pytest.mark.rule("R31")
def test_an_assignment_that_comes_while_partitions_are_given_up_counts_no_more() -> None:
    """1. A batch takes too long, and the member closes its client. 2. An assignment was on its way: the client reports
    it while it closes, and revokes nothing. 3. The batch ends. The next client has not joined yet."""
    with running(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint") as bed:
        bed.own((0, 10))
        bed.fix(R0)
        close = bed.group.close

        def closes() -> None:
            bed.group.close = close  # type: ignore[method-assign]
            bed.group._on().on_assigned((P1,))
            close()

        bed.group.close = closes  # type: ignore[method-assign]
        bed.clock.advance(31.0)
        bed.until("the end of the client", lambda _: bed.group.named("close") != [], step_s=0.1)
        bed.member.complete(flight(R0).end)
        bed.joined_again()
        view = bed.member.view()
        assert (view.state, view.partitions) == (MemberState.REJOINING, ())


def test_a_batch_that_takes_too_long_while_the_store_hangs_costs_the_partitions_too() -> None:
    with running(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint") as bed:
        bed.log.hang()
        bed.own((0, 10))
        bed.fix(R0)
        bed.clock.advance(31.0)
        looks_of(bed, 1)
        bed.clock.advance(11.0)
        bed.gone()
        bed.log.answer()


@pytest.mark.rule("R29")
def test_p6_a_member_that_is_lost_while_it_gives_a_batch_up_plans_no_other() -> None:
    """1. Its commit before has no answer. 2. It leaves, and looks for that commit. 3. The batch ends. 4. It is lost."""
    with running(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint") as bed:
        leave_a_commit_unanswered(bed)
        bed.fix(OffsetRange(P0, 20, 30))
        bed.clock.advance(31.0)
        bed.group.wait_for("the commit", lambda: bed.group.named("commit_now") == [(item(0, 20),)])
        bed.member.complete(flight(OffsetRange(P0, 20, 30)).end)
        bed.group.refusals.append(Refusal.LOST)
        bed.group.committed[P0] = GroupOffset(10, "m")
        view = bed.until("the loss", lambda v: v.partitions == (), step_s=0.1)
        assert view.state is MemberState.REJOINING
        assert committed(bed, 0) == 10


def test_a_batch_that_takes_too_long_ends_by_the_commit_log_too() -> None:
    with given_up() as bed:
        bed.log.complete.add(flight(R0).end)
        bed.joined_again()
        assert committed(bed, 0) == 10


def test_a_batch_that_takes_too_long_ends_a_drain() -> None:
    with draining(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint", drainTimeoutMs="200000") as bed:
        bed.clock.advance(31.0)
        bed.until("the release", lambda v: v.state is not MemberState.DRAINING, step_s=0.02)
        assert committed(bed, 0) == 10


def test_partitions_that_were_given_up_are_lost_for_a_query_that_is_to_fail_then() -> None:
    with in_flight(maxBatchMs="30000", checkpointLocation="s3://bucket/checkpoint", onPartitionsLost="fail") as bed:
        bed.clock.advance(31.0)
        with pytest.raises(MembershipError, match="PARTITIONS_LOST"):
            bed.gone()
        assert bed.member.join(WAIT_S)
        assert len(bed.group.named("open")) == 1, "it does not join again to fail"


# --- a store that hangs


def looks_of(bed: Bed, count: int) -> None:
    """Let time pass until the log was looked at so often."""
    for _ in range(_LOOKS):
        if bed.log.looks >= count:
            return
        bed.clock.advance(0.05)
        time.sleep(0.005)
    pytest.fail(f"{bed.log.looks} looks instead of {count}")


@pytest.mark.rule("R30")
def test_a_store_that_hangs_holds_up_neither_commands_nor_the_drain_deadline(caplog: pytest.LogCaptureFixture) -> None:
    """Guards against: 1. a revoke waits for the batch in flight, 2. the store of the checkpoint does not answer, 3. the
    event thread hangs with it: no handover, and commands fail with a cause that names the coordinator."""
    with draining(hangs=True, drainTimeoutMs="20000") as bed, caplog.at_level(logging.WARNING):
        looks_of(bed, 1)
        for _ in range(40):
            assert bed.member.view().state is MemberState.DRAINING, "a command was not answered"
            bed.clock.advance(0.3)
        assert "checkpoint not answering for 1" in caplog.text
        assert "option checkpointLocation=s3://bucket/checkpoint" in caplog.text
        bed.clock.advance(10.0)
        bed.until("the release", lambda v: v.state is MemberState.JOINED)
        assert committed(bed, 0) == 10
        assert caplog.text.count("checkpoint not answering") == 1
        assert bed.log.looks == 1, "looks pile up"
        bed.log.answer()


def test_a_store_that_answers_again_ends_the_drain(caplog: pytest.LogCaptureFixture) -> None:
    with draining(hangs=True, drainTimeoutMs="200000") as bed, caplog.at_level(logging.WARNING):
        looks_of(bed, 1)
        bed.log.complete.add(flight(R0).end)
        bed.until("the report", lambda _: "not answering" in caplog.text, step_s=0.5)
        bed.log.answer()
        bed.until("the release", lambda v: v.state is MemberState.JOINED, step_s=0.05)
        assert committed(bed, 0) == 20
    assert "checkpoint answers again" in caplog.text


def test_a_stop_waits_for_a_store_that_hangs_for_a_moment_only(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        with in_flight() as bed:
            bed.log.hang()
            started_s = bed.clock.now_s
            bed.stop()
            assert bed.clock.now_s - started_s < 8.0
        assert committed(bed, 0) == 10
        assert "a stop does not wait for it longer than 5 s" in caplog.text
        assert "option checkpointLocation=s3://bucket/checkpoint" in caplog.text
        bed.log.answer()


def test_a_look_that_was_under_way_is_not_a_stops_last_one() -> None:
    """Guards against: 1. a look begins, 2. the batch is complete, and the query stops, 3. the look answers: no."""
    with running(local=True) as bed:
        bed.own((0, 10))
        bed.log.hang()
        bed.fix(R0)
        looks_of(bed, 1)
        bed.log.complete.add(flight(R0).end)
        bed.member.stop_now()
        bed.log.answer()
        ends(bed)
        assert committed(bed, 0) == 20


def test_a_look_that_breaks_is_reported_and_the_next_one_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with draining(drainTimeoutMs="200000") as bed, caplog.at_level(logging.ERROR):

        def broken(_: SourceOffset) -> bool:
            monkeypatch.undo()
            raise RuntimeError("unheard of")

        monkeypatch.setattr(bed.log, "is_complete", broken)
        bed.log.complete.add(flight(R0).end)
        bed.until("the release", lambda v: v.state is MemberState.JOINED, step_s=0.05)
        assert committed(bed, 0) == 20
    assert "unheard of" in caplog.text


def test_the_looks_thread_ends_with_the_member() -> None:
    with in_flight(local=True) as bed:
        looks_of(bed, 2)
        (thread,) = [t for t in threading.enumerate() if t.name == "groupkafka-commit-log"]
        assert thread.daemon
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_sparks_start_is_compared_with_the_log() -> None:
    with running() as bed:
        bed.member.complete(flight(R0).end)
        bed.until("the comparison", lambda _: bed.log.compared == [flight(R0).end])


def test_a_handover_repeats_its_commit_no_sooner_because_spark_looks() -> None:
    """The main thread looks at the member every few milliseconds while it waits to plan."""
    with draining() as bed:
        bed.group.refusals.extend([Refusal.REBALANCE] * 1000)
        bed.member.complete(flight(R0).end)
        bed.group.wait_for("the first try", lambda: len(bed.group.named("commit_now")) == 1)
        for _ in range(20):
            bed.member.view()
        assert len(bed.group.named("commit_now")) == 1
        bed.until("the second try", lambda _: len(bed.group.named("commit_now")) == 2, step_s=0.05)


def test_a_handover_of_a_lost_member_is_not_committed_again(caplog: pytest.LogCaptureFixture) -> None:
    with draining() as bed, caplog.at_level(logging.WARNING):
        bed.group.refusals.append(Refusal.LOST)
        bed.member.complete(flight(R0).end)
        bed.until("the release", lambda v: v.state is MemberState.REJOINING)
        assert committed(bed, 0) == 10
    assert "handed over without a commit" in caplog.text


@pytest.mark.parametrize("incremental", [False, True])
def test_an_eager_assignment_replaces_the_one_before_it(incremental: bool) -> None:
    """A client that has joined twice during a revoke reports two assignments after it."""
    with running(FakeGroup(incremental=incremental)) as bed:
        bed.group.assign(P0, P1)
        bed.group.assign(P0)
        owned = (P0, P1) if incremental else (P0,)
        bed.until("both", lambda view: not bed.group.waiting and tuple(p.partition for p in view.partitions) == owned)


def test_an_eager_assignment_replaces_also_what_a_revoke_has_not_named() -> None:
    """The client has dropped all partitions with the revoke, whichever it names."""
    with running(FakeGroup(incremental=False)) as bed:
        bed.group.assign(P0, P1)
        bed.group.revoke(P0)
        bed.group.assign(P2)
        bed.until("the last one", lambda view: [each.partition for each in view.partitions] == [P2])


@pytest.mark.parametrize(
    ("incremental", "static", "stays_out"), [(False, False, True), (False, True, False), (True, False, False)]
)
@pytest.mark.rule("R111")
def test_a_stop_in_an_eager_revoke_joins_no_more(incremental: bool, static: bool, stays_out: bool) -> None:
    """An eager client joins again as soon as its partitions are released. A static member does not leave."""
    given = {"kafka.group.instance.id": "i-1"} if static else {}
    with in_flight(FakeGroup(incremental=incremental), **given) as bed:
        bed.group.revoke(P0)
        bed.until("the revoke", lambda view: view.state is MemberState.DRAINING)
        bed.stop()
        called = [name for name, _ in bed.group.calls]
    assert called[-3:] == (["stay_out", "release", "close"] if stays_out else [*called[-3:-2], "release", "close"])
    assert ("stay_out" in called) is stays_out


@pytest.mark.rule("R111")
def test_a_stop_that_an_eager_revoke_has_served_joins_no_more() -> None:
    """The stop waits for the batch, and so does the revoke: both end with it."""
    with in_flight(FakeGroup(incremental=False)) as bed:
        bed.group.revoke(P0)
        bed.until("the revoke", lambda view: view.state is MemberState.DRAINING)
        bed.member.request_stop()
        bed.member.complete(flight(R0).end)
        ends(bed)
        assert [name for name, _ in bed.group.calls][-3:] == ["stay_out", "release", "close"]
        assert committed(bed, 0) == 20
        assert bed.member.left_clean


# --- doubt and proof


@pytest.mark.parametrize(("session_s", "proofs"), [(6.0, 2), (45.0, 1), (None, 2)])
@pytest.mark.rule("R67")
def test_p5_a_proof_is_held_against_the_session_that_the_group_has(session_s: float | None, proofs: int) -> None:
    """Under KIP-848. Guards against: 1. a proof is accepted; 2. the process is stopped for 8 s, and the session of 6 s
    expires; 3. it takes the answer for new. A session that is not known may be as short.
    """
    with running(**{"kafka.group.protocol": "consumer"}) as bed:
        bed.member.length.learn(session_s)
        bed.own((0, 10))
        bed.clock.advance(11.0)
        delays_s = iter([8.0])
        bed.group.before_commit = lambda: bed.clock.advance(next(delays_s, 0.0))
        bed.until("the last proof", lambda view: view.proven, step_s=0.1)
        assert len(bed.group.named("commit_now")) == proofs


def test_how_long_a_session_may_be() -> None:
    length = SessionLength(make_options(**{"kafka.group.protocol": "consumer"}))
    assert (length.is_the_brokers, length.shortest_s, length.longest_s) == (True, 6.0, 45.0)
    length.learn(60.0)
    assert (length.shortest_s, length.longest_s) == (60.0, 60.0)
    classic = SessionLength(make_options(**{"kafka.session.timeout.ms": "30000"}))
    assert (classic.is_the_brokers, classic.shortest_s, classic.longest_s) == (False, 30.0, 30.0)


def test_with_fixed_partitions_there_is_no_membership_to_lose() -> None:
    with running(assign='{"orders":[0]}') as bed:
        assignment = bed.own((0, 10)).assignment
        bed.clock.advance(11.0)
        assert bed.member.fix(flight(R0), assignment)
    assert bed.group.named("commit_now") == []


def test_a_member_without_partitions_needs_no_proof() -> None:
    with running() as bed:
        bed.group.assign()
        bed.until("an empty assignment", lambda view: view.state is MemberState.JOINED)
        bed.clock.advance(11.0)
        bed.until("trust", lambda view: view.proven)
        assert bed.group.named("commit_now") == []


def test_a_silence_before_the_offsets_are_known_is_not_forgotten() -> None:
    """There is nothing to commit yet: the doubt lasts until there is."""
    group = FakeGroup()
    group.unanswered_fetches = 2
    with running(group) as bed:
        bed.group.committed[P0] = GroupOffset(10, "pin")
        bed.group.assign(P0)
        bed.group.wait_for("a first fetch", lambda: len(bed.group.named("fetch")) == 1)
        bed.clock.advance(11.0)
        bed.group.wait_for("a second fetch", lambda: len(bed.group.named("fetch")) == 2)
        bed.tick()
        assert not bed.member.view().proven
        bed.clock.advance(BRIEFLY_S)
        bed.until("the proof", lambda view: view.settled)
        assert bed.group.named("commit_now") == [(CommitItem(P0, 10, "pin"),)]


def test_a_silence_during_a_drain_puts_the_kept_partitions_in_doubt() -> None:
    with draining() as bed:
        bed.clock.advance(11.0)
        bed.group.refusals.extend([None, Refusal.REBALANCE])
        bed.member.complete(flight(R0).end)
        bed.until("the proof", lambda v: v.state is MemberState.JOINED and v.proven, step_s=0.1)
        handover, *proofs = bed.group.named("commit_now")
        assert handover == (item(0, 20),)
        assert proofs == [(CommitItem(P1, 0, "pin"),)] * 2


def test_a_member_that_drains_is_not_asked_to_join_again() -> None:
    """Its client is in a callback, and must not be closed there."""
    with draining() as bed:
        bed.member.rejoin()
        assert bed.member.view().state is MemberState.DRAINING
        assert bed.group.named("close") == []


# --- lost


@pytest.mark.rule("R111")
def test_lost_partitions_fail_the_query_when_asked_to() -> None:
    """The member does not join again meanwhile: nobody would read what it is given."""
    with running(onPartitionsLost="fail") as bed:
        bed.own((0, 10), (1, 0))
        bed.group.lose(P0, P1)
        assert bed.member.join(WAIT_S)
        with pytest.raises(MembershipError, match=r"PARTITIONS_LOST.*2 partitions.*orders-0, orders-1"):
            bed.member.view()
        assert [name for name, _ in bed.group.calls][-3:] == ["stay_out", "release", "close"]


def test_a_member_that_goes_on_after_a_loss_joins_again() -> None:
    with running() as bed:
        bed.own((0, 10))
        bed.group.lose(P0)
        bed.group.wait_for("the loss", lambda: bed.group.named("release") == [(P0,)])
        assert bed.group.named("stay_out") == []


# --- errors


def test_an_error_of_the_client_is_raised_by_the_next_call_and_stays() -> None:
    failure = MembershipError(errors.MEMBER_FAILED, group="shop", reason="fenced")
    with running() as bed:
        bed.own((0, 10))
        bed.group.fail(failure)
        assert bed.member.join(WAIT_S)
        for call in (bed.member.check, bed.member.view, bed.member.discard):
            with pytest.raises(MembershipError, match="fenced"):
                call()
        assert "state=FAILED" in repr(bed.member)
        assert bed.group.owned == set()


def test_an_error_that_comes_between_a_call_and_its_turn_is_the_one_that_is_raised() -> None:
    """The call was posted to a member that was well; when its turn comes, the member has failed."""
    failure = MembershipError(errors.MEMBER_FAILED, group="shop", reason="fenced")
    with in_flight() as bed:
        posted = threading.Event()

        def fail_once_posted() -> None:
            assert posted.wait(WAIT_S)
            bed.member._member.on_error(failure)

        bed.member._commands.put(fail_once_posted)
        raised: list[BaseException] = []

        def complete() -> None:
            try:
                bed.member.complete(flight(R0).end)
            except BaseException as error:  # noqa: BLE001 - looked at below
                raised.append(error)

        caller = threading.Thread(target=complete)
        caller.start()
        for _ in range(1_000):
            if not bed.member._commands.empty():
                break
            caller.join(0.01)
        posted.set()
        caller.join(WAIT_S)
        assert raised == [failure]


def test_an_unexpected_error_ends_the_member_and_is_raised() -> None:
    with running() as bed:
        bed.group.raise_in_poll(ZeroDivisionError("in a callback"))
        assert bed.member.join(WAIT_S)
        with pytest.raises(ZeroDivisionError, match="in a callback"):
            bed.member.check()
    assert bed.group.calls[-1][0] == "close"


def test_an_error_of_a_command_belongs_to_its_caller_alone() -> None:
    with in_flight() as bed:
        with pytest.raises(Exception, match="while another one is in flight"):
            bed.member.replay(flight(R1))
        bed.member.check()


def test_a_client_that_does_not_close_is_no_reason_to_hang(caplog: pytest.LogCaptureFixture) -> None:
    group = FakeGroup()
    group.close_error = RuntimeError("cannot close")
    with running(group) as bed:
        bed.own((0, 10))
    assert bed.member.join(WAIT_S)


# --- a static member whose old session still lives (KIP-848)


def test_a_static_member_opens_anew_until_the_old_session_has_ended() -> None:
    """The old client is closed, a second passes, the next one is opened. A replay asks for offsets meanwhile, and a new
    topic matches the pattern."""
    with running(kafka__group__instance__id="one") as bed:
        bed.member.subscribe(["orders"])
        bed.refuse_the_first_client()
        assert bed.member.fetch_offsets([P0]) == {}
        bed.member.subscribe(["orders", "refunds"])
        for _ in range(20):
            bed.member.view()
        assert len(bed.group.named("open")) == 1
        bed.clock.advance(1.0)
        bed.group.wait_for("a second subscription", lambda: len(bed.group.named("subscribe")) == 2)
        assert bed.member.fetch_offsets([P0]) == {P0: GroupOffset(None)}
        bed.own((0, 10))
    assert bed.group.named("subscribe") == [("orders",), ("orders", "refunds")]
    assert [name for name, _ in bed.group.calls if name in ("open", "close")] == ["open", "close"] * 2


def test_a_static_member_does_not_wait_for_ever() -> None:
    """Each of its clients is refused: the time counts from the first refusal on."""
    with running(kafka__group__instance__id="one") as bed:
        bed.refuse_the_first_client()
        bed.clock.advance(1.0)
        bed.group.wait_for("the second client", lambda: len(bed.group.named("open")) == 2)
        bed.group.leave_instance_id_unreleased()
        bed.group.wait_for("its end", lambda: len(bed.group.named("close")) == 2)
        bed.clock.advance(45.0 + UNRELEASED_MARGIN_S - 1.0)
        assert bed.member.join(WAIT_S)
        with pytest.raises(MembershipError, match=r"INSTANCE_ID_IN_USE.*'one'"):
            bed.member.check()


def test_a_static_member_waits_for_each_of_its_sessions() -> None:
    """1. A client joins after the wait, and its answers are lost. 2. It is fenced: now its own session must end."""
    with running(kafka__group__instance__id="one") as bed:
        bed.refuse_the_first_client()
        bed.clock.advance(1.0)
        bed.group.wait_for("the second client", lambda: len(bed.group.named("open")) == 2)
        bed.clock.advance(45.0 + UNRELEASED_MARGIN_S)
        bed.group.leave_instance_id_unreleased()
        bed.group.wait_for("its end", lambda: len(bed.group.named("close")) == 2)
        bed.clock.advance(1.0)
        bed.group.wait_for("the third client", lambda: len(bed.group.named("open")) == 3)
        bed.own((0, 10))


@pytest.mark.rule("R72")
def test_p5_a_client_that_has_become_another_member_is_recreated_and_commits_nothing() -> None:
    """The sequence: the commit of 20 is refused, because the member joins; its session ends, another member commits 50;
    its client joins as a new member.
    """
    with running(kafka__group__instance__id="one") as bed:
        bed.member.subscribe(["orders"])
        bed.own((0, 10))
        bed.fix(R0)
        bed.group.refusals.append(Refusal.REBALANCE)
        bed.member.complete(flight(R0).end)
        bed.tick()
        bed.group.committed[P0] = GroupOffset(50, "other")
        bed.group.renew()
        bed.group.wait_for("the end of the first client", lambda: len(bed.group.named("close")) == 1)
        assert bed.member.view().partitions == ()
        bed.clock.advance(1.0)
        bed.group.wait_for("the next client", lambda: len(bed.group.named("subscribe")) == 2)
        bed.group.assign(P0)
        bed.until("the offset", lambda v: v.partitions != () and v.partitions[0].group is not None, 0.3)
        assert bed.member.view().partitions[0].group == GroupOffset(50, "other")
    assert committed(bed, 0) == 50


@pytest.mark.rule("R72")
def test_a_client_that_has_become_another_member_is_noticed_by_the_commit_of_a_handover() -> None:
    with draining(kafka__group__instance__id="one") as bed:
        bed.group.before_commit, bed.group.refuses = bed.group.become_another, Refusal.LOST
        bed.member.complete(flight(R0).end)
        bed.until("the loss", lambda view: view.partitions == () and view.state is MemberState.REJOINING)
        bed.clock.advance(1.0)
        bed.group.wait_for("the next client", lambda: len(bed.group.named("open")) == 2)


def test_the_systems_clock_that_counts_suspensions_goes_on_as_the_other_does() -> None:
    clock = SystemClock()
    before = clock.boottime_s(), clock.monotonic_s()
    while clock.monotonic_s() == before[1]:
        pass
    assert 0.0 < clock.boottime_s() - before[0] < WAIT_S
