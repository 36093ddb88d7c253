"""The lock of `run_when_owner` on a real broker: a newcomer does not move it, and its owner's end hands it over."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from spark_groupsource.membership.lock_states import LockState
from spark_groupsource.membership.owner_lock import OwnerLock, lock_options

from .harness import Independent, wait_for

pytestmark = pytest.mark.kafka

_SESSION_S = 6.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Close locks in the end."""
    with ExitStack() as opened:
        yield opened


def make(client: Independent, protocol: str, group: str, topic: str) -> OwnerLock:
    """Return a lock that joins its group."""
    options = {"kafka.bootstrap.servers": client.bootstrap_servers, "kafka.group.protocol": protocol}
    if protocol == "classic":
        options["kafka.session.timeout.ms"] = str(int(_SESSION_S * 1000))
    return OwnerLock(lock_options(group, topic, options))


def wait_owned(lock: OwnerLock) -> float:
    """Wait until the lock is owned; return how long that took, in seconds."""
    began_s = time.monotonic()
    wait_for("the lock", lambda: lock.state is LockState.OWNED, 60, lambda: lock.state.name)
    return time.monotonic() - began_s


def owners(locks: list[OwnerLock]) -> list[int]:
    """Return which of the locks are held."""
    return [at for at, lock in enumerate(locks) if lock.state is not LockState.WAITING]


@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_newcomers_do_not_move_the_lock_and_its_end_hands_it_over(
    protocol: str, partitions: int, client: Independent, topic: str, group: str, stack: ExitStack
) -> None:
    """1. A driver owns the lock on a topic with some partitions, so it has all of them. 2. Two others join, one after
    the other, and get partitions. 3. The lock stays, without a revoke that waits. 4. The owner ends: one of the two
    owns it, and a newcomer does not move it again.
    """
    client.create_topic(topic, partitions)
    locks = [stack.enter_context(make(client, protocol, group, topic))]
    wait_owned(locks[0])
    assert locks[0].take()
    for count in (2, 3):
        locks.append(stack.enter_context(make(client, protocol, group, topic)))
        with_some = min(count, partitions)

        def shared(wanted: int = with_some) -> bool:
            assert locks[0].state in (LockState.RUNNING, LockState.DOUBTED)
            return sum(map(bool, client.members(f"{group}.lock"))) == wanted

        wait_for(f"{with_some} members with partitions", shared, 60, lambda: str(client.members(f"{group}.lock")))
        assert owners(locks) == [0]
    locks[0].ended()
    locks[0].__exit__()
    left_s = time.monotonic()
    wait_for("another owner", lambda: owners(locks[1:]), 60)
    owner = locks[1:][owners(locks[1:])[0]]
    wait_owned(owner)
    print(f"{protocol}, {partitions} partitions: handed over in {time.monotonic() - left_s:.2f} s")
    assert owner.take()
    newcomer = stack.enter_context(make(client, protocol, group, topic))
    wait_for("three members", lambda: client.member_count(f"{group}.lock") == 3, 30)
    wait_for(
        "partitions of the three",
        lambda: sum(map(bool, client.members(f"{group}.lock"))) == min(3, partitions),
        60,
        lambda: str(client.members(f"{group}.lock")),
    )
    assert owner.state in (LockState.RUNNING, LockState.DOUBTED)
    assert newcomer.state is LockState.WAITING
    owner.ended()
