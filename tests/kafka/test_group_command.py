"""The command `group`: groups of every kind on a real broker, of both clients, and of none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_groupsource.assignors.notes import LeaderNote, MemberNote
from spark_groupsource.cli.group.describe import EXTRA_MISSING
from spark_groupsource.model import offsets
from tests.realkafka.jars import KAFKA_VERSION, version_of

from . import test_lag as lag
from .harness import Independent, wait_for

pytestmark = pytest.mark.kafka

# The command line, also where the tests run in the background of a shell, whose children ignore SIGINT.
INTERRUPTIBLE = """
import signal, sys
from spark_groupsource.cli.main import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


class Tool(lag.Tool):
    """The command `group` in this process."""

    command = "group"


@pytest.fixture
def tool(client: Independent, group: str, capsys: pytest.CaptureFixture[str]) -> Tool:
    """Return the command line for the test's group."""
    return Tool(client.bootstrap_servers, group, capsys)


@contextmanager
def librdkafka_members(
    client: Independent, group: str, topic: str, partitions: int, *settings: dict[str, str]
) -> Iterator[list[Consumer]]:
    """Have a member per settings, each with partitions of the topic."""
    with ExitStack() as stack:
        consumers = []
        for own in settings:
            given = {
                "bootstrap.servers": client.bootstrap_servers, "group.id": group, "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            }  # fmt: skip
            consumer = Consumer(given | own)
            stack.callback(consumer.close)
            consumer.subscribe([topic])
            consumers.append(consumer)

        def shared() -> bool:
            for consumer in consumers:
                consumer.poll(0.1)
            counts = [len(consumer.assignment()) for consumer in consumers]
            return all(counts) and sum(counts) == partitions

        wait_for("a part for every member", shared)
        yield consumers


class Weighted(AbstractPartitionAssignor):  # type: ignore[misc]
    """Gives the member with the largest weight all partitions, the others stand by; says what our strategies say."""

    name = "weighted-for-a-test"

    def __init__(self, weight: int) -> None:
        self._note = MemberNote(held=True, data=json.dumps({"weight": weight}).encode())

    def metadata(self, topics: Sequence[str]) -> ConsumerProtocolSubscription:
        return ConsumerProtocolSubscription(
            version=3, topics=sorted(topics), user_data=self._note.encode(), owned_partitions=[], generation_id=-1,
            rack_id="rack-1",
        )  # fmt: skip

    def assign(self, cluster: Any, members: Sequence[Any]) -> dict[str, ConsumerProtocolAssignment]:
        def weight(member: Any) -> int:
            found = json.loads(MemberNote.decode(bytes(member.metadata.user_data)).data)["weight"]
            assert isinstance(found, int)
            return found

        first = max(members, key=weight).member_id
        topics = sorted({topic for member in members for topic in member.metadata.topics})
        numbers = {topic: sorted(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        every = frozenset(offsets.TopicPartition(topic, one) for topic, found in numbers.items() for one in found)
        return {
            member.member_id: ConsumerProtocolAssignment(
                version=3,
                assigned_partitions=sorted(numbers.items()) if member.member_id == first else [],
                user_data=LeaderNote(frozenset() if member.member_id == first else every).encode(),
            )
            for member in members
        }

    def on_assignment(self, assignment: Any, generation: int) -> None:
        pass


@contextmanager
def kafka_python_members(client: Independent, group: str, topic: str, *weights: int) -> Iterator[None]:
    """Have a member of kafka-python per weight, each polled by a thread of its own."""
    stop = threading.Event()

    def serve(weight: int) -> None:
        consumer = KafkaConsumer(
            topic, bootstrap_servers=client.bootstrap_servers, group_id=group, client_id=f"weight-{weight}",
            enable_auto_commit=False, session_timeout_ms=6_000, heartbeat_interval_ms=500,
            partition_assignment_strategy=[Weighted(weight)],
        )  # fmt: skip
        try:
            while not stop.is_set():
                consumer.poll(timeout_ms=100)
        finally:
            consumer.close()

    threads = [threading.Thread(target=serve, args=(weight,)) for weight in weights]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a member did not leave"


def stable(tool: Tool, members: int, topic: str, partitions: int) -> dict[str, Any]:
    """Wait until so many members share so many partitions; return what the command says then."""

    def shared() -> dict[str, Any] | None:
        code, out, err = tool.run("--json")
        if code:
            # The first member has not joined yet.
            assert "GROUP_NOT_FOUND" in err
            return None
        shown: dict[str, Any] = json.loads(out)
        counts = [len(one["partitions"].get(topic, ())) for one in shown["members"]]
        is_there = shown["state"] == "Stable" and len(counts) == members and sum(counts) == partitions
        return shown if is_there else None

    found: dict[str, Any] = wait_for(f"{members} members in a stable group", shared, 90, lambda: str(tool.run()))
    return found


def test_a_classic_group(client: Independent, topic: str, group: str, tool: Tool) -> None:
    """Two members with range, one of them static; a partition of another topic is nobody's."""
    other = f"{topic}-other"
    client.create_topic(topic, 3)
    client.create_topic(other, 2)
    client.produce(topic, map(str, range(30)), 3)
    client.produce(other, map(str, range(4)), 2)
    client.commit(group, {(other, 1): 1})
    classic = {"partition.assignment.strategy": "range", "client.id": "reader"}
    static = {"group.instance.id": "me", "session.timeout.ms": "6000"}
    with librdkafka_members(client, group, topic, 3, classic, classic | static) as consumers:
        owner = next(one for one in consumers if any(part.partition == 0 for part in one.assignment()))
        owner.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
        shown = stable(tool, 2, topic, 3)
        code, text, _ = tool.run()
    assert (shown["protocol"], shown["protocol_type"], shown["strategy"]) == ("classic", "consumer", "range")
    assert shown["coordinator"]["address"] in client.bootstrap_servers
    assert {one["client_id"] for one in shown["members"]} == {"reader"}
    assert {one["host"] for one in shown["members"]} == {"127.0.0.1"}
    assert sorted(one["instance_id"] or "" for one in shown["members"]) == ["", "me"]
    assert [one["metadata"]["topics"] for one in shown["members"]] == [[topic], [topic]]
    found = {(one["topic"], one["partition"]): one for one in shown["partitions"]}
    assert found.keys() == {(topic, 0), (topic, 1), (topic, 2), (other, 1)}
    assert (found[topic, 0]["committed"], found[topic, 0]["end"], found[topic, 0]["lag"]) == (4, 10, 6)
    assert (found[topic, 1]["committed"], found[topic, 1]["lag"]) == (None, 10)
    assert (found[other, 1]["members"], found[other, 1]["lag"]) == ([], 1)
    for member in shown["members"]:
        own = [one for (name, _), one in found.items() if one["members"] == [member["member_id"]]]
        assert member["lag"] == sum(one["lag"] for one in own)
        assert member["partitions"] == {topic: [one["partition"] for one in own]}
    assert (shown["total"]["lag"], shown["notes"]) == (27, [])
    assert code == 0
    assert text.startswith(f"group {group}: Stable, 2 members, lag 27\n")
    assert "(unassigned)" in text


@pytest.mark.skipif(version_of(KAFKA_VERSION) < (4,), reason=f"Kafka {KAFKA_VERSION} has KIP-848 as a preview only")
def test_a_kip_848_group(client: Independent, topic: str, group: str, tool: Tool) -> None:
    client.create_topic(topic, 4)
    client.produce(topic, map(str, range(8)), 4)
    new = {"group.protocol": "consumer", "group.remote.assignor": "uniform"}
    with librdkafka_members(client, group, topic, 4, new, new) as consumers:
        consumers[0].commit(
            offsets=[TopicPartition(part.topic, part.partition, 1) for part in consumers[0].assignment()],
            asynchronous=False,
        )
        shown = stable(tool, 2, topic, 4)
    assert (shown["protocol"], shown["protocol_type"], shown["strategy"]) == ("consumer", None, "uniform")
    assert sorted(len(one["partitions"][topic]) for one in shown["members"]) == [2, 2]
    assert all(one["metadata"] is None for one in shown["members"]), "the protocol has none"
    assert all(one["target"] in (None, one["partitions"]) for one in shown["members"])
    assert sorted(one["lag"] for one in shown["members"]) == [2, 4]
    assert (shown["total"]["lag"], shown["notes"]) == (6, [])


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_that_members_have_left(
    protocol: str, client: Independent, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    client.create_topic(topic, 1)
    left = Tool(client.bootstrap_servers, group, capsys)
    with librdkafka_members(client, group, topic, 1, {"group.protocol": protocol}) as (consumer,):
        consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)

    def is_empty() -> dict[str, Any] | None:
        shown = left.shown()
        return shown if shown["state"] == "Empty" else None

    shown = wait_for("the end of the members", is_empty, 60)
    assert (shown["protocol"], shown["members"], shown["total"]["lag"]) == (protocol, [], 0)


def test_the_metadata_of_a_strategy_of_ours(client: Independent, topic: str, group: str, tool: Tool) -> None:
    """The heavier member has all partitions, the other one stands by for them."""
    client.create_topic(topic, 3)
    client.produce(topic, map(str, range(6)), 3)

    def told_of_both() -> dict[str, Any] | None:
        shown = stable(tool, 2, topic, 3)
        # The group's first leader may not have known the topic, or the other member, yet.
        return shown if any(one["standby"] for one in shown["members"]) else None

    with kafka_python_members(client, group, topic, 3, 1):
        shown = wait_for("a standby", told_of_both)
        text = tool.run()[1]
    light, heavy = shown["members"]
    assert (shown["protocol"], shown["strategy"]) == ("classic", Weighted.name)
    assert (light["client_id"], heavy["client_id"]) == ("weight-1", "weight-3")
    assert (heavy["partitions"], heavy["standby"]) == ({topic: [0, 1, 2]}, {})
    assert (light["partitions"], light["standby"]) == ({}, {topic: [0, 1, 2]})
    assert (heavy["metadata"]["data"], light["metadata"]["data"]) == ({"weight": 3}, {"weight": 1})
    assert (heavy["metadata"]["rack"], heavy["metadata"]["held"], heavy["metadata"]["generation"]) == (
        "rack-1",
        True,
        -1,
    )
    assert (heavy["lag"], light["lag"]) == (6, 0)
    assert all(one["standby"] == [light["member_id"]] for one in shown["partitions"])
    assert "weight=3, rack rack-1" in text


def test_members_that_are_no_consumers(
    client: Independent, topic: str, group: str, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka Connect's workers: the broker tells a client that asks for raw answers who they are."""
    client.create_topic(topic, 1)
    monkeypatch.setattr("kafka.coordinator.consumer.ConsumerCoordinator.protocol_type", lambda _: "connect")

    def joined() -> dict[str, Any] | None:
        code, out, _ = tool.run("--json")
        shown = json.loads(out) if code == 0 else {"state": None}
        return shown if shown["state"] == "Stable" else None

    with kafka_python_members(client, group, topic, 1):
        shown = wait_for("a member", joined)
        text = tool.run()[1]
        monkeypatch.setitem(sys.modules, "kafka.admin", None)
        less = tool.shown()
    assert (shown["protocol"], shown["protocol_type"], shown["strategy"]) == ("classic", "connect", Weighted.name)
    (member,) = shown["members"]
    assert (member["client_id"], member["partitions"], set(member["metadata"])) == ("weight-1", {}, {"bytes"})
    assert "protocol classic of type connect" in text
    assert (less["members"], less["notes"][-1]) == ([], EXTRA_MISSING)


@pytest.mark.parametrize("as_json", [True, False])
def test_watch_prints_again_until_it_is_interrupted(
    client: Independent, topic: str, group: str, tool: Tool, as_json: bool
) -> None:
    client.create_topic(topic, 1)
    client.commit(group, {(topic, 0): 0})
    words = [*tool.given, "--watch", "0.2", *(["--json"] if as_json else [])]
    root = Path(__file__).resolve().parent.parent.parent
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTIBLE, *words], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            heads = list(_until(process.stdout.readline, group, 3))
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(30) == 0
        finally:
            watchdog.cancel()
    assert len(heads) == 3
    if as_json:
        assert len({json.loads(line)["at_ms"] for line in heads}) == 3


def _until(read: Callable[[], str], text: str, times: int) -> Iterator[str]:
    """Yield the first so many lines that hold a text, fewer when there are no more."""
    while times and (line := read()):
        if text in line:
            times -= 1
            yield line
