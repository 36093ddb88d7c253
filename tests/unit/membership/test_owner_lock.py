"""The lock's thread without a broker: when the lock is proven, moved, given up and lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_groupsource import errors
from spark_groupsource.errors import MembershipError, OptionError
from spark_groupsource.membership.lock_states import LockState
from spark_groupsource.membership.owner_lock import OwnerLock, lock_options
from spark_groupsource.membership.port import Refusal
from spark_groupsource.model.commit_metadata import GroupOffset
from tests.unit.fakes import FakeGroup, tp, wait_until

OPTIONS = {"kafka.bootstrap.servers": "h:9092"}


class Group(FakeGroup):
    """A group whose coordinator may hold its answers back. The member numbers the lock by a commit of `orders-0`."""

    def __init__(self) -> None:
        super().__init__()
        self.revokes_when_closed = False
        self.answers = threading.Event()
        self.answers.set()
        self.before_commit = lambda: self.answers.wait(30)

    @property
    def numbers(self) -> list[int]:
        """The numbers that were committed."""
        items = [given for (given,) in self.named("commit_now")]  # type: ignore[misc]
        assert {item.partition for item in items} <= {tp(0)}
        return [item.offset for item in items]

    def stores(self, number: int | None) -> None:
        """Let the coordinator have a number."""
        self.committed[tp(0)] = GroupOffset(number)


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture
def lock(group: Group) -> Iterator[OwnerLock]:
    with OwnerLock(lock_options("pay", "orders", OPTIONS), group) as opened:  # type: ignore[arg-type]
        yield opened


def await_state(lock: OwnerLock, state: LockState) -> None:
    """Wait until the lock is in a state."""
    wait_until(lambda: lock.state is state)


def test_the_lock_is_owned_once_a_commit_is_accepted(lock: OwnerLock, group: Group) -> None:
    group.refuses = Refusal.REBALANCE
    group.assign(tp(0))
    wait_until(lambda: bool(group.numbers))
    assert lock.state is LockState.UNPROVEN
    assert not lock.take()
    group.refuses = None
    await_state(lock, LockState.OWNED)
    assert lock.take()
    assert lock.state is LockState.RUNNING
    lock.ended()


def test_a_member_without_the_locks_partition_waits(lock: OwnerLock, group: Group) -> None:
    group.stores(3)
    group.assign(tp(0), tp(1))
    wait_until(lambda: len(group.owned) == 2)
    group.assign(tp(3))
    await_state(lock, LockState.OWNED)
    assert set(group.numbers) == {3}


def test_the_lock_moves_to_a_partition_that_stays(lock: OwnerLock, group: Group) -> None:
    """1. The owner has four partitions. 2. The group takes two of them, the lock's among them, for a newcomer."""
    group.assign(tp(0), tp(1), tp(2), tp(3))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.revoke(tp(0), tp(1))
    wait_until(lambda: group.owned == {tp(2), tp(3)})
    assert lock.state is LockState.RUNNING
    assert group.committed[tp(0)].offset == 2
    lock.ended()


def test_a_revoke_of_the_last_partition_waits_for_the_end_of_the_queries(lock: OwnerLock, group: Group) -> None:
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.revoke(tp(0))
    await_state(lock, LockState.REVOKING)
    assert lock.gives_way
    assert not lock.stops_at_once
    assert group.owned == {tp(0)}, "still held"
    lock.ended()
    wait_until(lambda: not group.owned)
    assert lock.state is LockState.WAITING


@pytest.mark.parametrize(("stored", "after"), [(2, LockState.OWNED), (None, LockState.WAITING)])
def test_an_uncertain_move_gives_way_and_asks_the_group(
    lock: OwnerLock, group: Group, stored: int | None, after: LockState
) -> None:
    """1. The number is committed, and the answer is lost. 2. The queries end. 3. The group says which one counts."""
    group.assign(tp(0), tp(1), tp(2), tp(3))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.refuses = Refusal.UNCERTAIN
    group.revoke(tp(0), tp(1))
    wait_until(lambda: lock.gives_way)
    group.stores(stored)
    group.refuses = None
    lock.ended()
    wait_until(lambda: group.owned == {tp(2), tp(3)})
    await_state(lock, after)


def test_a_lost_lock_stops_the_queries_at_once(lock: OwnerLock, group: Group) -> None:
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.lose(tp(0))
    wait_until(lambda: lock.stops_at_once)
    assert not group.owned
    lock.ended()
    assert lock.state is LockState.WAITING


def test_queries_that_end_by_themselves_leave_the_decision_to_the_coordinator(lock: OwnerLock, group: Group) -> None:
    """1. The session has expired, and the client has not noticed. 2. The query fails. 3. A commit is refused."""
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.refuses = Refusal.LOST
    lock.ended()
    assert lock.settled(20) is LockState.WAITING


def test_an_answer_that_comes_late_proves_nothing(lock: OwnerLock, group: Group) -> None:
    """1. A commit is accepted. 2. The process is stopped for longer than half a session before it has the answer."""
    lock._length.shortest_s = 0.4
    group.answers.clear()
    group.assign(tp(0))
    await_state(lock, LockState.UNPROVEN)
    released = threading.Timer(0.6, group.answers.set)
    released.start()
    wait_until(lambda: len(group.numbers) == 1)
    assert lock.state is LockState.UNPROVEN
    await_state(lock, LockState.OWNED)
    assert len(group.numbers) >= 2, "the second answer was in time"


def test_an_owner_that_gets_no_answer_for_a_session_stops_its_queries(lock: OwnerLock, group: Group) -> None:
    """1. Queries run, and the coordinator accepts a proof now and then. 2. It does not answer any more."""
    lock._length.shortest_s = 0.9
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    wait_until(lambda: len(group.numbers) >= 4)
    assert not lock.gives_way
    group.answers.clear()
    wait_until(lambda: lock.stops_at_once)
    assert lock.gives_way
    lock.ended()
    assert lock.state is LockState.UNPROVEN
    group.answers.set()
    await_state(lock, LockState.OWNED)
    assert not lock.gives_way


def test_an_owner_whose_session_ends_while_its_queries_are_drained_stops_them(lock: OwnerLock, group: Group) -> None:
    """1. Another driver joins, and the queries are drained. 2. The process is stopped, and the session expires."""
    lock._length.shortest_s = 0.9
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.revoke(tp(0))
    await_state(lock, LockState.REVOKING)
    proven = len(group.numbers)
    wait_until(lambda: len(group.numbers) >= proven + 2)
    assert not lock.stops_at_once
    group.refuses = Refusal.LOST
    wait_until(lambda: lock.stops_at_once)
    lock.ended()
    await_state(lock, LockState.WAITING)


def test_a_client_that_joins_while_the_queries_are_drained_has_lost_the_lock(lock: OwnerLock, group: Group) -> None:
    """1. Another driver joins, and the queries are drained. 2. The topic gets a partition: the client joins at once. So
    the group has not waited, and the client would take part in no later rebalance."""
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    assert lock.take()
    group.revoke(tp(0))
    await_state(lock, LockState.REVOKING)
    group.in_generation = b"2"
    wait_until(lambda: lock.stops_at_once)
    lock.ended()
    wait_until(lambda: len(group.named("open")) == 2)
    assert lock.state is LockState.WAITING
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)


def test_an_error_of_the_member_ends_the_wait(lock: OwnerLock, group: Group) -> None:
    error = MembershipError(errors.MEMBER_FAILED, group="pay.lock", reason="it is full")
    group.fail(error)
    with pytest.raises(MembershipError, match="it is full"):
        wait_until(lambda: lock.state is LockState.OWNED)
    wait_until(lambda: len(group.named("close")) == 1)


def test_a_lost_answer_of_a_waiting_member_may_have_had_the_lock(lock: OwnerLock, group: Group) -> None:
    group.tell_lost_answer()
    wait_until(lambda: len(group.named("open")) == 2)
    group.assign(tp(0))
    await_state(lock, LockState.OWNED)
    group.tell_lost_answer()
    wait_until(lambda: len(group.numbers) >= 2)
    assert len(group.named("open")) == 2, "an owner proves its lock instead"


def test_the_member_leaves_in_the_end(group: Group) -> None:
    with OwnerLock(lock_options("pay", "orders", OPTIONS), group):  # type: ignore[arg-type]
        assert len(group.named("close")) == 0
    assert len(group.named("close")) == 1
    assert group.named("subscribe") == [("orders",)]


def test_the_options_of_the_source_become_those_of_the_lock() -> None:
    source = {
        "kafka.bootstrap.servers": "h:9092", "Kafka.Group.Id": "pay", "subscribePattern": "o.*",
        "kafka.partition.assignment.strategy": "range", "kafka.group.instance.id": "one", "kafka.client.id": "pay",
        "kafka.session.timeout.ms": "9000", "maxOffsetsPerTrigger": "10", "startingOffsets": "earliest",
        "kafka.security.protocol": "sasl_plaintext",
    }  # fmt: skip
    found = lock_options("pay", "orders", source)
    assert (found.group_id, found.subscription.topics) == ("pay.lock", ("orders",))
    settings = found.client_settings
    assert settings["partition.assignment.strategy"] == "cooperative-sticky"
    assert (settings["session.timeout.ms"], settings["heartbeat.interval.ms"]) == ("9000", "1000")
    assert settings["security.protocol"] == "sasl_plaintext"
    assert found.instance_id is None
    assert found.max_offsets_per_trigger is None
    assert str(found.client_id).startswith("pay-")


@pytest.mark.parametrize(("group_name", "topic"), [("", "orders"), ("pay", "no topic"), ("pay", "")])
def test_names_that_cannot_be_are_refused(group_name: str, topic: str) -> None:
    with pytest.raises(OptionError):
        lock_options(group_name, topic, OPTIONS)


def test_kip848_has_no_session_of_the_member() -> None:
    found = lock_options("pay", "orders", OPTIONS | {"kafka.group.protocol": "consumer"})
    assert "heartbeat.interval.ms" not in found.client_settings
