"""The command `group`: its arguments, what it asks, and what it does where one of the clients does not answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka import TopicPartition as ClientPartition

from spark_groupsource import errors
from spark_groupsource import redaction as masking
from spark_groupsource.assignors.notes import MemberNote
from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.arguments import Connection, GroupCommand
from spark_groupsource.cli.group.command import read_report, report_group
from spark_groupsource.cli.group.describe import EXTRA_MISSING, GroupDescriber, without_data
from spark_groupsource.cli.group.view import DescribedMember, GroupDescription
from spark_groupsource.errors import AccessError, CommandError, OptionError
from spark_groupsource.lag.model import LagInput
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.cli.test_lag_command import FakeLagRequests
from tests.unit.fakes import ManualClock, group_denied, make_options, tp

GIVEN = ["group", "--bootstrap-servers", "broker:9092", "--group", "shop"]
COMMAND = GroupCommand(Connection("broker:9092", "shop"))


# --- the command


class FakeCluster(FakeLagRequests):
    """The group and its lag on dicts. Each log is [10, 100)."""

    def __init__(self, description: GroupDescription | None = None, **counts: int) -> None:
        super().__init__(ManualClock(), **counts)
        self.description = description

    def describe_group(self) -> GroupDescription | None:
        return self.description

    def log_bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        assert all(partition.partition < self.counts[partition.topic] for partition in partitions)
        return dict.fromkeys((p for p in partitions if p not in self.leaderless), (10, 100))

    def lag_inputs(self, committed: Mapping[TopicPartition, int | None]) -> list[LagInput]:
        raise AssertionError("no record is read for it")


def run(command: GroupCommand, cluster: FakeCluster, pauses: int = 0) -> list[str]:
    """Return what was printed; `pauses` of --watch, then Ctrl-C."""
    clock, left = ManualClock(), [None] * pauses

    def pause(seconds: float) -> None:
        clock.advance(seconds)
        if not left:
            raise KeyboardInterrupt
        left.pop()

    output = FakeOutput(pause)
    try:
        report_group(command, cluster, cluster, clock, output)
    except KeyboardInterrupt:
        output.lines.append("ended")
    return output.lines


def test_the_partitions_of_members_and_of_offsets_and_no_others() -> None:
    member = DescribedMember("A", "a", "h", None, frozenset({tp(0), tp(9), TopicPartition("deleted", 0)}))
    cluster = FakeCluster(GroupDescription("shop", "Stable", members=(member,)), orders=4, other=3)
    cluster.groups = {tp(0): 90, tp(2): 100}
    report = read_report(COMMAND, cluster, cluster, FakeOutput())
    assert {partition: (lag.committed, lag.records) for partition, lag in report.lags.items()} == {
        tp(0): (90, 10), tp(2): (100, 0),
    }  # fmt: skip
    assert report.partitions == [TopicPartition("deleted", 0), tp(0), tp(2), tp(9)]


def test_a_partition_without_a_leader_stays_in_the_table() -> None:
    cluster = FakeCluster(GroupDescription("shop", "Empty"), orders=2)
    cluster.groups, cluster.leaderless = {tp(0): 90, tp(1): 40}, {tp(1)}
    assert run(COMMAND, cluster)[-3:] == [
        "orders          0         90  100   10  (unassigned)",
        "orders          1         40    -    -  (unassigned)  not known: the partition has no leader",
        "total                               10                1 partition is not known",
    ]
    (line,) = run(replace(COMMAND, as_json=True), cluster)
    last = json.loads(line)["partitions"][1]
    assert (last["committed"], last["end"], last["lag"], last["lost"]) == (40, None, None, None)


def test_a_group_that_does_not_exist() -> None:
    with pytest.raises(CommandError, match=r"GROUP_NOT_FOUND\] Group 'shop' does not exist on 'broker:9092'"):
        run(COMMAND, FakeCluster(orders=1))


def test_offsets_that_the_coordinator_has_without_a_group() -> None:
    cluster = FakeCluster(orders=1)
    cluster.groups = {tp(0): 99}
    assert run(COMMAND, cluster)[0] == "group shop: state not known, 0 members, lag 1"


def test_watch() -> None:
    said = run(replace(COMMAND, watch_s=30.0), FakeCluster(GroupDescription("shop", "Empty")), pauses=1)
    assert said == [
        "2023-11-14T22:30:00.000Z",
        "group shop: Empty, 0 members, lag 0", "protocol not known, strategy -, coordinator not known", "",
        "2023-11-14T22:30:30.000Z",
        "group shop: Empty, 0 members, lag 0", "protocol not known, strategy -, coordinator not known", "",
        "ended",
    ]  # fmt: skip


def test_watch_in_json_is_a_line_each() -> None:
    cluster = FakeCluster(GroupDescription("shop", "Empty"))
    said = run(replace(COMMAND, watch_s=30.0, as_json=True), cluster, pauses=1)
    assert [json.loads(line)["at_ms"] for line in said[:2]] == [1_700_001_000_000, 1_700_001_030_000]
    assert said[2:] == ["ended"]


# --- the clients


def description(**changes: Any) -> Any:
    """Return a group as confluent-kafka tells it."""
    member = SimpleNamespace(
        member_id="A", client_id="a", host="/10.0.0.4", group_instance_id=None, target_assignment=None,
        assignment=SimpleNamespace(topic_partitions=[ClientPartition("orders", 1)]),
    )  # fmt: skip
    values = {
        "group_id": "shop", "members": [member], "state": ConsumerGroupState.STABLE,
        "type": ConsumerGroupType.CLASSIC, "is_simple_consumer_group": False, "partition_assignor": "weighted",
        "coordinator": SimpleNamespace(host="broker", port=9092, id=1),
    }  # fmt: skip
    return SimpleNamespace(**(values | changes))


class FakeAdmin:
    """confluent-kafka's answer, or error."""

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def described(self, _group: str | None = None) -> Any:
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen


class FakeKafkaPython:
    """kafka-python's answer, or error."""

    def __init__(self, **changes: Any) -> None:
        self.error: Exception | None = None
        self.closed = 0
        member = SimpleNamespace(
            member_id="A", client_id="a", client_host="/10.0.0.4", group_instance_id=None, member_assignment=b"",
            member_metadata=b"\0\0\0\0\0\0" + len(NOTE).to_bytes(4, "big") + NOTE,
        )  # fmt: skip
        values = {
            "error_code": 0, "group_id": "shop", "group_state": "Stable", "protocol_type": "consumer",
            "protocol_data": "weighted", "members": [member],
        }  # fmt: skip
        self.answer = SimpleNamespace(**(values | changes))

    def describe_groups(self, groups: list[str]) -> dict[str, Any]:
        assert groups == ["shop"]
        if self.error is not None:
            raise self.error
        return {"shop": self.answer}

    def close(self) -> None:
        self.closed += 1


NOTE = MemberNote(held=True, data=b'{"weight":3}').encode()
NOT_CONSUMERS = CommandError(errors.GROUP_NOT_OF_CONSUMERS, group="shop", reason="GroupId shop is one of connect")


def describe(seen: Any, *clients: FakeKafkaPython | Exception, times: int = 1) -> GroupDescription | None:
    """Return the last of so many looks; each client that is made is the next of `clients`."""
    left = list(clients)

    def make(_: object) -> Any:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    describer = GroupDescriber(FakeAdmin(seen), make_options(), make)
    found = None
    for _ in range(times):
        found = describer.describe_group()
    describer.close()
    assert not left
    return found


def test_both_clients_together() -> None:
    client = FakeKafkaPython()
    found = describe(description(), client)
    assert found is not None
    (member,) = found.members
    assert replace(found, members=()) == GroupDescription(
        "shop", "Stable", "classic", "consumer", "weighted", ("broker:9092", 1)
    )
    assert (member.host, member.partitions) == ("10.0.0.4", frozenset({tp(1)}))
    assert member.data is not None
    assert member.data.note == MemberNote(True, b'{"weight":3}')
    assert client.closed == 1


def test_without_kafka_python_one_line_says_what_is_missing() -> None:
    found = describe(description(), ImportError("No module named 'kafka'"), times=2)
    assert found is not None
    assert (found.notes, found.members[0].data) == ((EXTRA_MISSING,), None)
    assert found.members[0].partitions == frozenset({tp(1)})


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_without_kafka_python_a_usual_strategy_has_no_note(strategy: str) -> None:
    found = describe(description(partition_assignor=strategy), ImportError("No module named 'kafka'"))
    assert found is not None
    assert (found.strategy, found.notes, found.members[0].data) == (strategy, (), None)
    found = describe(description(partition_assignor=strategy), TimeoutError("Unable to bootstrap"))
    assert found is not None
    assert found.notes == ("the data that members report to each other is not known: Unable to bootstrap",)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("Unable to bootstrap\nfrom broker:9092 with hunter22"),
        OptionError(errors.OPTION_REFUSED, option="kafka.x", value="1", reason="hunter22", replacement="leave it"),
        AssertionError("hunter22"),
    ],
)
def test_a_second_client_that_does_not_come_to_be_is_tried_once(error: Exception) -> None:
    masking.remember(["hunter22"])
    found = describe(description(), error, times=3)
    assert found is not None
    (note,) = found.notes
    assert note.startswith("the data that members report to each other is not known: ")
    assert "hunter22" not in note
    assert "\n" not in note
    assert found.members[0].client_id == "a"


def test_a_request_that_fails_is_tried_with_a_new_client() -> None:
    first, second = FakeKafkaPython(error_code=16), FakeKafkaPython()
    found = describe(description(), first, second, times=2)
    assert found is not None
    assert (found.notes, first.closed) == ((), 1)
    third = FakeKafkaPython()
    third.error = OSError("cut")
    found = describe(description(), third)
    assert found is not None
    assert found.notes == ("the data that members report to each other is not known: cut",)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (
            {"type": ConsumerGroupType.CONSUMER, "partition_assignor": "uniform"},
            ("Stable", "consumer", None, "uniform"),
        ),
        ({"members": [], "state": ConsumerGroupState.EMPTY}, ("Empty", "classic", "consumer", "weighted")),
        (
            {"members": [], "is_simple_consumer_group": True, "partition_assignor": ""},
            ("Stable", "classic", "", None),
        ),
        (
            {"members": [], "state": ConsumerGroupState.PREPARING_REBALANCING},
            ("PreparingRebalance", "classic", "consumer", "weighted"),
        ),
    ],
)
def test_what_needs_no_second_client(changes: dict[str, Any], shown: tuple[str | None, ...]) -> None:
    found = describe(description(**changes))
    assert found is not None
    assert (found.state, found.protocol, found.protocol_type, found.strategy) == shown
    assert found.notes == ()


def test_a_group_that_the_coordinator_does_not_know() -> None:
    assert describe(None) is None


def test_older_brokers_describe_a_group_that_does_not_exist_as_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = GroupAdmin(make_options(), ManualClock(), lambda _: None)
    monkeypatch.setattr(admin, "ask_description", lambda _: description(members=[], state=ConsumerGroupState.DEAD))
    assert admin.described() is None


@pytest.mark.parametrize(
    "seen",
    [
        None,
        CommandError(errors.COMMAND_UNSUPPORTED, servers="broker:9092", request="DescribeGroups"),
    ],
)
def test_nobody_is_in_a_group_that_is_not_there_or_cannot_be_described(seen: Any) -> None:
    assert without_data(FakeAdmin(seen), "shop") is None


def test_who_is_in_a_group() -> None:
    found = without_data(FakeAdmin(description()), "shop")
    assert found is not None
    assert [(one.client_id, one.partitions) for one in found.members] == [("a", frozenset({tp(1)}))]
    for refusal in (NOT_CONSUMERS, group_denied()):
        with pytest.raises((CommandError, AccessError)):
            without_data(FakeAdmin(refusal), "shop")


@pytest.mark.parametrize(
    ("seen", "simple"),
    [
        (None, False),
        (description(), False),
        (description(members=[], is_simple_consumer_group=True, state=ConsumerGroupState.EMPTY), True),
    ],
)
def test_a_group_of_commits_alone(seen: Any, simple: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = GroupAdmin(make_options(), ManualClock(), lambda _: None)
    monkeypatch.setattr(admin, "described", lambda: seen)
    assert admin.is_simple() is simple


def test_members_that_are_no_consumers() -> None:
    found = describe(NOT_CONSUMERS, FakeKafkaPython(protocol_type="connect", protocol_data="sessioned"))
    assert found is not None
    assert (found.state, found.protocol_type, found.strategy) == ("Stable", "connect", "sessioned")
    assert (found.members[0].host, found.members[0].partitions) == ("10.0.0.4", frozenset())
    assert found.members[0].data is not None
    assert not found.members[0].data.readable
    found = describe(NOT_CONSUMERS, ImportError())
    assert found == GroupDescription(
        "shop", protocol="classic", notes=("GroupId shop is one of connect", EXTRA_MISSING)
    )


def test_a_group_that_may_not_be_described() -> None:
    with pytest.raises(AccessError, match="OTHER_GROUP_ACCESS_DENIED"):
        describe(group_denied())
    with pytest.raises(CommandError, match="COMMAND_UNSUPPORTED"):
        describe(CommandError(errors.COMMAND_UNSUPPORTED, servers="broker:9092", request="DescribeGroups"))
