"""Two queries of one group share a topic and take over from each other, on a real broker and across processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from spark_groupsource.membership.backends.librdkafka import LibrdkafkaGroup
from spark_groupsource.membership.events import Partitions
from spark_groupsource.membership.port import MemberListener
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.options.parse import parse_options

from .harness import Independent, Query, wait_for

pytestmark = pytest.mark.kafka

# Of the test below that measures: longer than any noise of the machine.
_SESSION_S = 45.0

PROTOCOLS = {
    "cooperative": {},
    "eager": {"kafka.partition.assignment.strategy": "range"},
    "kip848": {"kafka.group.protocol": "consumer"},
    # On kafka-python, cooperative; equal weights.
    "weighted": {"assignors": "weighted", "memberWeight": "1"},
}


def with_protocol(options: dict[str, str], protocol: str) -> dict[str, str]:
    """Return the options for a protocol; KIP-848 has session settings on the broker only."""
    chosen = options | PROTOCOLS[protocol]
    if protocol == "kip848":
        del chosen["kafka.session.timeout.ms"], chosen["kafka.heartbeat.interval.ms"]
    return chosen


# "weighted" in one process: test_m13_queries_share_by_a_strategy_and_take_over.
@pytest.mark.parametrize("protocol", ["cooperative", "eager", "kip848"])
def test_p1_p2_p6_two_queries_share_and_take_over(
    protocol: str,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    start_query: Callable[..., Query],
) -> None:
    """First alone, second joins, first stops cleanly: nothing is lost and nothing is read twice."""
    chosen = with_protocol(options, protocol)
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(400)), 4)
    first = start_query("first", chosen)
    first.wait_for_records(client.records(topic))
    wait_for("lag 0 with one member", lambda: client.lag(group, topic) == 0, 30, first.log)

    second = start_query("second", chosen)
    wait_for(
        "both members to own two partitions",
        lambda: sorted(map(len, client.members(group))) == [2, 2],
        90,
        lambda: f"{client.members(group)}\n{first.log()}\n{second.log()}",
    )
    client.produce(topic, (f"b{n}" for n in range(400)), 4)
    wait_for(
        "all records in one of the two",
        lambda: client.records(topic) <= first.records().keys() | second.records().keys(),
        60,
        lambda: f"{first.log()}\n{second.log()}",
    )
    assert second.records(), "the second member read nothing"
    wait_for("lag 0 with two members", lambda: client.lag(group, topic) == 0, 30, first.log)

    first.stop()
    wait_for("the second member to own all", lambda: [len(m) for m in client.members(group)] == [4], 30, second.log)
    client.produce(topic, (f"c{n}" for n in range(400)), 4)
    everything = client.records(topic)
    wait_for(
        "all records in one of the two",
        lambda: everything <= first.records().keys() | second.records().keys(),
        60,
        second.log,
    )
    wait_for("lag 0 with the other member", lambda: client.lag(group, topic) == 0, 30, second.log)
    second.stop()

    total = first.completed_records() + second.completed_records()
    assert set(total) == everything
    assert {record: times for record, times in total.items() if times > 1} == {}
    assert client.committed(group) == client.ends(topic)
    wait_for("an empty group", lambda: client.members(group) == [], 30)


class _Accepting(MemberListener):
    """Accepts and releases what the group assigns."""

    def __init__(self, member: LibrdkafkaGroup) -> None:
        self._member = member
        self.owned: set[TopicPartition] = set()
        self.is_assigned = False

    def on_assigned(self, partitions: Partitions) -> None:
        self._member.accept(partitions)
        self.owned |= set(partitions)
        self.is_assigned = True

    def on_revoked(self, partitions: Partitions) -> None:
        self._member.release(partitions)
        self.owned -= set(partitions)

    def on_coordinator(self, known: bool) -> None:
        pass


@pytest.mark.rule("R111")
@pytest.mark.parametrize("protocol", ["cooperative", "eager", "kip848"])
def test_p6_a_member_without_partitions_leaves_when_it_stops(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """A member that stays behind would delay the group's next rebalance by a session timeout."""
    client.create_topic(topic, 1)
    chosen = with_protocol(options | {"kafka.session.timeout.ms": str(int(_SESSION_S * 1000))}, protocol)
    members = [LibrdkafkaGroup(parse_options(chosen)) for _ in range(2)]
    listeners = [_Accepting(member) for member in members]
    for member, listener in zip(members, listeners, strict=True):
        member.open(listener)
        member.subscribe([topic])

    def polled() -> None:
        for member in members:
            member.poll()

    def settled() -> bool:
        polled()
        if sorted(len(one.owned) for one in listeners) != [0, 1]:
            return False
        return sorted(map(len, client.members(group))) == [0, 1]

    try:
        wait_for("one member with the partition, and one without", settled, 60)
        idle = next(at for at, listener in enumerate(listeners) if not listener.owned)
        left = members.pop(idle)
        stopped = time.monotonic()
        left.close()
        wait_for("one member", lambda: (polled(), len(client.members(group)) == 1)[1], 30)
        assert time.monotonic() - stopped < _SESSION_S / 2
    finally:
        for member in members:
            member.close()


@pytest.mark.rule("R111")
@pytest.mark.parametrize("protocol", ["cooperative", "eager"])
def test_p6_a_member_without_partitions_that_stops_in_a_join_leaves(
    protocol: str, client: Independent, options: dict[str, str], topic: str, group: str
) -> None:
    """1. A member has the partition, another one has none. 2. A third one joins, and so does the second, again; the
    first will know with its next heartbeat. 3. The second stops.
    """
    client.create_topic(topic, 1)
    session = {"kafka.session.timeout.ms": str(int(_SESSION_S * 1000))}
    members: list[LibrdkafkaGroup] = []
    listeners: list[_Accepting] = []

    def join(heartbeat_ms: str) -> None:
        chosen = with_protocol(options | session | {"kafka.heartbeat.interval.ms": heartbeat_ms}, protocol)
        members.append(LibrdkafkaGroup(parse_options(chosen)))
        listeners.append(_Accepting(members[-1]))
        members[-1].open(listeners[-1])
        members[-1].subscribe([topic])

    def polled() -> None:
        for member in members:
            member.poll()

    try:
        join("10000")
        wait_for("the first to have the partition", lambda: (polled(), listeners[0].owned)[1], 60)
        join("200")
        # The first has just sent a heartbeat: this is how it learned of the second.
        wait_for("both members", lambda: (polled(), listeners[1].is_assigned)[1], 60)
        idle = next(at for at, listener in enumerate(listeners) if not listener.owned)
        join("200")
        joined_s = time.monotonic() + 3.0
        while time.monotonic() < joined_s:
            polled()
        stopped = time.monotonic()
        members.pop(idle).close()
        wait_for("two members", lambda: (polled(), len(client.members(group)) == 2)[1], _SESSION_S * 2)
        assert time.monotonic() - stopped < _SESSION_S / 2
    finally:
        for member in members:
            member.close()
