"""Show that the simulated coordinators and clients behave as Kafka and librdkafka do. No product code runs here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.classic import ClassicCoordinator
from tests.sim.kafka.client import make_client
from tests.sim.kafka.client_base import JoinState
from tests.sim.kafka.consumer import ConsumerCoordinator
from tests.sim.kafka.logs import Cluster
from tests.sim.kafka.settings import PROTOCOLS, GroupSettings
from tests.sim.world import BEGIN_S, Process, World


class Group:
    """A group of bare members on one topic."""

    def __init__(self, protocol: str, partitions: int = 4, seed: int = 1, **settings: Any) -> None:
        self.world = World(seed, tracing=True)
        self.cluster = Cluster(self.world)
        self.cluster.create("orders", partitions)
        self.settings = GroupSettings(protocol, **settings)
        kind = ConsumerCoordinator if protocol == "kip848" else ClassicCoordinator
        self.coordinator: Any = kind(self.world, self.cluster, self.settings)
        self.world.run(self.world.now + 0.5)

    def member(self, name: str, instance_id: str | None = None) -> Bare:
        return Bare(self, name, instance_id)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds)

    def owners(self) -> dict[str, list[int]]:
        """What the newest record of each member says."""
        found = {}
        for record in self.coordinator.records:
            found[record.member] = [number for _, number in record.partitions]
        return {member: numbers for member, numbers in found.items() if numbers}


class Bare:
    """A process that polls its client, and does nothing else. `slow_s`: how long its revokes take."""

    def __init__(self, group: Group, name: str, instance_id: str | None) -> None:
        self.world, self.name = group.world, name
        self.process = Process(group.world, name)
        self.client: Any = make_client(group.world, group.coordinator, self.process, name, instance_id)
        self.owned: set[TopicPartition] = set()
        self.events: list[tuple[str, tuple[int, ...]]] = []
        self.results: list[Any] = []
        self.answers_lost = 0
        self.unreleased = self.unusable = False
        self.slow_s = 0.0
        self.fails = False
        self.stops = False
        self.ends_when_lost = False
        self.calls: list[Callable[[], object]] = []
        self.world.spawn(self.process, self._main, name)

    def _main(self) -> None:
        self.client.open(self)
        self.client.subscribe(["orders"])
        while not self.stops:
            self.client.poll()
            for call in self.calls:
                call()
            self.calls.clear()
            self.world.sleep(0.02)
        self.client.close()

    def _saw(self, event: str, partitions: Sequence[TopicPartition]) -> None:
        self.events.append((event, tuple(p.partition for p in partitions)))

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._saw("assigned", partitions)
        self.owned |= set(partitions)
        self.client.accept(partitions)

    def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._saw("revoked", partitions)
        if self.fails:
            raise ValueError
        if self.slow_s:
            self.world.sleep(self.slow_s)
        self.owned -= set(partitions)
        self.client.release(partitions)

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self._saw("lost", partitions)
        self.owned -= set(partitions)
        if self.ends_when_lost:
            self.client.stay_out()
        self.client.release(partitions)

    def on_commit_result(self, result: Any) -> None:
        self.results.append(result)

    def on_coordinator(self, known: bool) -> None:
        pass

    def on_answer_lost(self) -> None:
        self.answers_lost += 1

    def on_instance_id_unreleased(self) -> None:
        self.unreleased = True

    def on_unusable(self) -> None:
        self.unusable = True

    def on_error(self, error: Exception) -> None:
        self._saw(f"error {error}", ())

    def commit(self, number: int = 0, offset: int = 10) -> None:
        self.calls.append(lambda: self.client.commit_later([item(number, offset)]))

    @property
    def numbers(self) -> list[int]:
        return sorted(p.partition for p in self.owned)


def item(number: int, offset: int) -> CommitItem:
    return CommitItem(TopicPartition("orders", number), offset, "text")


def disjoint(members: Iterable[Bare], count: int) -> None:
    numbers = [number for member in members for number in member.numbers]
    assert sorted(numbers) == list(range(count)), numbers


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_join_share_and_leave(protocol: str) -> None:
    group = Group(protocol)
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    disjoint([first, second], 4)
    assert len(first.numbers) == len(second.numbers) == 2
    second.stops = True
    group.run(10.0)
    assert first.numbers == [0, 1, 2, 3]
    assert group.coordinator.records[-1].member.startswith("q1")
    assert [r.event for r in group.coordinator.records if r.query == "q2"][-1] == "gone"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_killed_member_is_expired_by_the_coordinator(protocol: str) -> None:
    group = Group(protocol)
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    second.process.kill()
    killed = group.world.now
    group.run(20.0)
    assert first.numbers == [0, 1, 2, 3]
    expired = next(r for r in group.coordinator.records if r.event == "expired")
    assert 4.0 <= expired.at - killed <= 6.5


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_session_ends_while_the_coordinator_is_down(protocol: str) -> None:
    group = Group(protocol)
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    down = group.world.now
    group.coordinator.down(20.0)
    group.run(40.0)
    disjoint([first, second], 4)
    assert not [r for r in group.coordinator.records if r.event == "expired" and r.at < down + 20.0]


def test_an_eager_member_revokes_all_before_it_joins_again() -> None:
    group = Group("eager")
    first = group.member("q1")
    group.run(10.0)
    group.member("q2")
    group.run(10.0)
    assert [event for event, _ in first.events] == ["assigned", "revoked", "assigned"]
    assert first.events[1][1] == (0, 1, 2, 3)


def test_a_cooperative_rebalance_takes_two_rounds() -> None:
    group = Group("cooperative")
    first = group.member("q1")
    group.run(10.0)
    generation = group.coordinator.generation
    second = group.member("q2")
    group.run(15.0)
    assert group.coordinator.generation == generation + 2
    assert [event for event, _ in first.events][:3] == ["assigned", "revoked", "assigned"]
    assert len(first.events[1][1]) == 2
    assert [e for e in second.events if e[1]] == [("assigned", first.events[1][1])]


def test_kip848_assigns_what_the_other_member_has_revoked() -> None:
    group = Group("kip848")
    first = group.member("q1")
    group.run(10.0)
    first.slow_s = 5.0
    second = group.member("q2")
    group.run(4.0)
    assert second.numbers == []
    group.run(15.0)
    disjoint([first, second], 4)
    assert (group.coordinator.described() or {})[second.client.member_id] == frozenset(second.owned)


def test_a_fenced_kip848_member_loses_all_and_joins_again() -> None:
    group = Group("kip848")
    first = group.member("q1")
    group.run(10.0)
    group.coordinator._fence(first.client.member_id)
    first.commit()
    group.run(10.0)
    assert ("lost", (0, 1, 2, 3)) in first.events
    assert first.results[0].lost
    assert first.numbers == [0, 1, 2, 3]


def test_a_static_classic_member_comes_back_without_a_rebalance() -> None:
    group = Group("cooperative")
    first, second = group.member("q1", "i1"), group.member("q2", "i2")
    group.run(15.0)
    numbers, generation = second.numbers, group.coordinator.generation
    second.stops = True
    group.run(1.0)
    back = group.member("q2", "i2")
    group.run(5.0)
    assert back.numbers == numbers
    assert group.coordinator.generation == generation
    disjoint([first, back], 4)


def test_a_second_process_with_an_instance_id_fences_the_first_one() -> None:
    group = Group("eager")
    first = group.member("q1", "i1")
    group.run(10.0)
    second = group.member("q2", "i1")
    group.run(10.0)
    assert second.numbers == [0, 1, 2, 3]
    assert first.unusable or any("FENCED_INSTANCE_ID" in event for event, _ in first.events)


def test_a_static_kip848_member_waits_for_its_old_session() -> None:
    group = Group("kip848")
    first = group.member("q1", "i1")
    group.run(10.0)
    first.process.kill()
    again = group.member("q1", "i1")
    group.run(2.0)
    assert again.unreleased
    group.run(8.0)
    back = group.member("q1", "i1")
    group.run(5.0)
    assert back.numbers == [0, 1, 2, 3]
    back.stops = True
    group.run(1.0)
    next_one = group.member("q1", "i1")
    group.run(3.0)
    assert next_one.numbers == [0, 1, 2, 3]
    assert not next_one.unreleased


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_commits_without_an_answer_are_sent_again(protocol: str) -> None:
    group = Group(protocol)
    first = group.member("q1")
    group.run(10.0)
    group.coordinator.lose_answer = 0.7
    for offset in range(10, 20):
        first.commit(0, offset)
        group.run(3.0)
    group.coordinator.lose_answer = 0.0
    group.run(10.0)
    assert len(first.results) == 10
    assert len(group.coordinator.commits) > 10
    assert group.coordinator.offsets[TopicPartition("orders", 0)].offset == 19


def test_a_commit_may_arrive_after_a_later_one() -> None:
    """A cut connection's data arrive when the network is back: the group's offset goes back."""
    seen = False
    for seed in range(40):
        group = Group("eager", seed=seed)
        first = group.member("q1")
        group.run(10.0)
        first.commit(0, 10)
        group.run(0.0255)
        first.client.cut_until = group.world.now + 1.0
        group.run(8.0)
        first.commit(0, 11)
        group.run(5.0)
        seen = seen or len(group.coordinator.commits) > 2
    assert seen


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_heartbeat_is_sent_at_once_after_a_stop(protocol: str) -> None:
    group = Group(protocol)
    first = group.member("q1")
    group.run(10.0)
    first.process.stop(20.0)
    group.run(20.0)
    assert any(r.event == "expired" for r in group.coordinator.records)
    group.run(0.5)
    assert ("lost", (0, 1, 2, 3)) in first.events
    group.run(5.0)
    assert first.numbers == [0, 1, 2, 3]


def test_a_suspended_machine_learns_later_that_its_session_has_ended() -> None:
    group = Group("eager")
    first = group.member("q1")
    group.run(10.1)
    first.process.stop(20.0, suspended=True)
    group.run(20.0 + 10.0)
    assert ("lost", (0, 1, 2, 3)) in first.events
    assert first.numbers == [0, 1, 2, 3]


def test_a_lost_heartbeat_answer_is_reported_and_its_revoke_is_not_repeated() -> None:
    group = Group("kip848", heartbeat_s=1.0)
    first = group.member("q1")
    group.run(10.0)
    group.coordinator.lose_heartbeat_answer = 1.0
    group.member("q2")
    group.run(2.1)
    group.coordinator.lose_heartbeat_answer = 0.0
    group.run(10.0)
    assert first.answers_lost
    assert (group.coordinator.described() or {})[first.client.member_id] != frozenset(first.owned)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_callback_that_fails_in_close_is_caught(protocol: str) -> None:
    group = Group(protocol)
    first = group.member("q1")
    group.run(10.0)
    first.fails = first.stops = True
    group.run(5.0)
    assert group.world.coverage["a callback failed in close"] == 1
    assert group.coordinator.records[-1].event == "gone"


def test_the_offsets_of_a_deleted_topic_are_deleted() -> None:
    group = Group("eager")
    first = group.member("q1")
    group.run(10.0)
    first.commit()
    group.run(1.0)
    assert group.coordinator.offsets
    group.cluster.delete("orders")
    group.cluster.create("orders", 4)
    group.run(1.0)
    assert not group.coordinator.offsets


def test_kip848_assigns_a_recreated_topic_again() -> None:
    group = Group("kip848")
    first = group.member("q1")
    group.run(10.0)
    group.cluster.delete("orders")
    group.run(0.5)
    group.cluster.create("orders", 4)
    group.run(15.0)
    assert ("revoked", (0, 1, 2, 3)) in first.events
    assert first.numbers == [0, 1, 2, 3]


def test_a_classic_member_may_not_notice_a_recreated_topic() -> None:
    group = Group("cooperative")
    first = group.member("q1")
    group.run(10.0)
    group.cluster.delete("orders")
    group.cluster.create("orders", 4)
    group.run(15.0)
    assert [event for event, _ in first.events] == ["assigned"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_new_partitions_are_assigned(protocol: str) -> None:
    group = Group(protocol)
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    group.cluster.grow("orders", 6)
    group.run(20.0)
    disjoint([first, second], 6)


def test_the_same_seed_gives_the_same_trace() -> None:
    def trace() -> list[str]:
        group = Group("cooperative", seed=7)
        first = group.member("q1")
        group.member("q2")
        group.run(10.0)
        first.client.cut_until = group.world.now + 8.0
        group.run(30.0)
        assert group.world.trace is not None
        assert group.world.now > BEGIN_S
        return group.world.trace

    assert trace() == trace()


def test_a_classic_member_that_left_in_a_rebalance_is_back_after_a_failover() -> None:
    """A classic group's log has only whole rebalances."""
    group = Group("eager")
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    first.slow_s = 10.0
    second.stops = True
    group.run(6.0)
    assert [r.event for r in group.coordinator.records if r.query == "q2"][-1] == "gone"
    group.coordinator.down(1.0)
    group.run(1.5)
    assert [r.event for r in group.coordinator.records if r.query == "q2"][-1] == "owns"
    group.run(30.0)
    assert first.numbers == [0, 1, 2, 3]


def test_a_cooperative_member_without_partitions_leaves() -> None:
    """librdkafka sends LeaveGroup only when an unassignment is done (rdkafka_cgrp.c:5671 and 5040): rule R111."""
    group = Group("cooperative", partitions=1)
    group.member("q1")
    group.run(10.0)
    second = group.member("q2")
    group.run(10.0)
    assert second.numbers == []
    second.stops = True
    group.run(3.0)
    assert [r.event for r in group.coordinator.records if r.query == "q2"][-1] == "gone"


@pytest.mark.parametrize("stays_out", [True, False])
@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
@pytest.mark.rule("R111")
def test_a_member_that_ends_after_a_loss_must_stay_out(protocol: str, stays_out: bool) -> None:
    """1. Two members share; one hangs. 2. The other loses its session, and closes as soon as it knows. Without more its
    client has sent a JoinGroup by then: its LeaveGroup is never read, and it gets partitions.
    """
    group = Group(protocol, session_s=45.0)
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    second.ends_when_lost = stays_out
    first.process.stop(15.0)
    group.coordinator._expire(second.client.member_id)
    for _ in range(1000):
        group.run(0.01)
        # The time that a thread takes to notice it, and a member id.
        second.stops = second.stops or ("lost" in dict(second.events) and bool(second.client.member_id or stays_out))
    group.run(10.0)
    assert (first.numbers == [0, 1, 2, 3]) is stays_out


@pytest.mark.rule("R111")
def test_a_cooperative_member_that_stops_in_a_join_leaves_when_it_has_ended() -> None:
    """1. One member has the partition, one has none. 2. A third joins; the first is away for 8 s. 3. The second stops.

    Without the wait for the end of the join its client sends no LeaveGroup.
    """
    group = Group("cooperative", partitions=1, session_s=45.0)
    first, second = group.member("q1"), group.member("q2")
    group.run(15.0)
    idle, owner = (first, second) if second.numbers else (second, first)
    owner.process.stop(8.0)
    group.member("q3")
    group.run(4.0)
    assert idle.client._state is JoinState.WAIT_JOIN
    idle.stops = True
    group.run(8.0)
    assert [r.event for r in group.coordinator.records if r.query == idle.name][-1] == "gone"
