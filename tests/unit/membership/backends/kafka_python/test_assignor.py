"""Strategies behind kafka-python's own interface: the bytes between members and leader, and what a member keeps."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from kafka.cluster import ClusterMetadata
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.abstract import RebalanceProtocol as ClientProtocol
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.protocol.metadata import MetadataResponse

from spark_groupsource.assignors.interface import (
    Assignor,
    AssignorError,
    ClusterInfo,
    GroupAssignment,
    GroupMember,
    MemberSettings,
    PartitionInfo,
    RebalanceProtocol,
)
from spark_groupsource.assignors.notes import LeaderNote, MemberNote
from spark_groupsource.membership.backends.kafka_python.assignor import (
    CLIENT_STRATEGIES,
    ClientAssignor,
    Holdings,
    OwnAssignor,
    client_assignors,
    cluster_info,
    joined_member,
)
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.fakes import tp

NOWHERE = 3
Events = list[tuple[frozenset[TopicPartition], LeaderNote]]


class Scripted(Assignor):
    """Tells its weight, gives what it is told to, and remembers what it was asked and given."""

    name = "scripted"
    version = 2

    def __init__(self, answer: GroupAssignment | AssignorError | None = None) -> None:
        self.answer = answer
        self.asked: list[tuple[ClusterInfo, tuple[GroupMember, ...]]] = []
        self.given: list[tuple[frozenset[TopicPartition], frozenset[TopicPartition], int]] = []

    def metadata(self, subscription: Sequence[str], member: MemberSettings) -> bytes:
        return f"{','.join(subscription)} weight {member.weight}".encode()

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        self.asked.append((cluster, tuple(members)))
        if isinstance(self.answer, AssignorError):
            raise self.answer
        assert self.answer is not None
        return self.answer

    def on_assignment(
        self, active: frozenset[TopicPartition], standby: frozenset[TopicPartition], generation: int
    ) -> None:
        self.given.append((active, standby, generation))


def holdings_of(seen: Events | None = None, protocol: RebalanceProtocol = RebalanceProtocol.COOPERATIVE) -> Holdings:
    seen = [] if seen is None else seen
    settings = MemberSettings(rack="rack-a", weight=3)
    return Holdings(protocol, settings, lambda active, note: seen.append((active, note)))


def over_the_wire(assignor: AbstractPartitionAssignor, *topics: str) -> ConsumerProtocolSubscription:
    """Return what the leader reads of what the member sends."""
    return ConsumerProtocolSubscription.decode(assignor.metadata(set(topics)).encode())


def answered(assignment: ConsumerProtocolAssignment) -> ConsumerProtocolAssignment:
    """Return what the member reads of what the leader sends."""
    return ConsumerProtocolAssignment.decode(assignment.encode())


def member(name: str, assignor: AbstractPartitionAssignor, *topics: str) -> SimpleNamespace:
    """Return a member as the client hands it to the leader's strategy."""
    return SimpleNamespace(member_id=name, group_instance_id=None, metadata=over_the_wire(assignor, *topics))


def partition_data(number: int, leader: int, *replicas: int) -> MetadataResponse.MetadataResponseTopic:
    kind = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
    return kind(
        error_code=0, partition_index=number, leader_id=leader, leader_epoch=1,
        replica_nodes=list(replicas), isr_nodes=list(replicas), offline_replicas=[],
    )  # fmt: skip


def cluster_of(**topics: list[tuple[int, int, tuple[int, ...]]]) -> ClusterMetadata:
    """Return the client's own metadata of brokers 1 (rack a), 2 (rack b), 3 (no rack), and of these topics.

    A partition is (number, leader, replicas).
    """
    kind = MetadataResponse.MetadataResponseTopic
    cluster = ClusterMetadata(bootstrap_servers="broker:9092")
    response = MetadataResponse(
            version=9,
            throttle_time_ms=0,
            brokers=[
                MetadataResponse.MetadataResponseBroker(number, f"b{number}", 9092, rack)
                for number, rack in ((1, "rack-a"), (2, "rack-b"), (NOWHERE, None))
            ],
            cluster_id="c",
            controller_id=1,
            topics=[
                kind(
                    error_code=0, name=name, is_internal=False,
                    partitions=[partition_data(number, leader, *replicas) for number, leader, replicas in partitions],
                )
                for name, partitions in topics.items()
            ],
        )  # fmt: skip
    cluster.update_metadata(MetadataResponse.decode(response.encode(version=9), version=9))
    return cluster


ORDERS = [(number, 1, (1, 2)) for number in range(4)]


# --- what a member says


def test_what_the_leader_reads_of_a_member() -> None:
    holdings = holdings_of()
    assignor = client_assignors([Scripted(), "cooperative-sticky"], holdings)[0]
    holdings.took(frozenset({tp(2), tp(0), tp(1, "refunds")}), 7)
    sent = over_the_wire(assignor, "refunds", "orders")
    assert (assignor.name, sent.version, sent.topics) == ("scripted-v2", 3, ["orders", "refunds"])
    assert MemberNote.decode(sent.user_data).offers == ("scripted-v2", "cooperative-sticky")
    read = joined_member("m-1", "one", sent)
    assert read.held
    assert read.member == GroupMember(
        "m-1",
        ("orders", "refunds"),
        b"orders,refunds weight 3",
        frozenset({tp(0), tp(2), tp(1, "refunds")}),
        7,
        "one",
        "rack-a",
    )


def test_a_member_that_has_nothing_yet() -> None:
    holdings = Holdings(RebalanceProtocol.COOPERATIVE, MemberSettings(), lambda *_: None)
    read = joined_member("m-1", None, over_the_wire(OwnAssignor(Scripted(), holdings), "orders"))
    assert read.member == GroupMember("m-1", ("orders",), b"orders weight 1")


def test_an_eager_member_names_what_it_had_and_holds_nothing() -> None:
    holdings = holdings_of(protocol=RebalanceProtocol.EAGER)
    holdings.took(frozenset({tp(0)}), 7)
    assignor = OwnAssignor(Scripted(), holdings)
    read = joined_member("m-1", None, over_the_wire(assignor, "orders"))
    assert (read.held, read.member.owned, read.member.generation) == (False, {tp(0)}, 7)
    assert assignor.supported_protocols() == [ClientProtocol.EAGER]


@pytest.mark.parametrize("user_data", [b"\xff\x00", b"{}", b'{"v":2,"held":false,"data":"","offers":[]}', b"", None])
def test_a_note_of_another_form_counts_as_none_and_what_is_named_as_held(
    user_data: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else gets the partition before this member has said that it gave it up."""
    part = ConsumerProtocolSubscription.TopicPartition
    raw = ConsumerProtocolSubscription(
        version=1, topics=["orders"], user_data=user_data, owned_partitions=[part(topic="orders", partitions=[0])]
    ).encode()
    with caplog.at_level(logging.WARNING, "spark_groupsource.membership"):
        read = joined_member("m-1", None, ConsumerProtocolSubscription.decode(raw))
    assert (read.held, read.member.metadata, read.member.owned) == (True, b"", {tp(0)})
    assert "member=m-1" in caplog.text


def test_a_member_of_the_oldest_protocol() -> None:
    """Version 0 has neither owned partitions nor generation nor rack."""
    raw = ConsumerProtocolSubscription(version=0, topics=["orders"], user_data=b"").encode()
    read = joined_member("m-1", None, ConsumerProtocolSubscription.decode(raw))
    assert (read.held, read.member) == (False, GroupMember("m-1", ("orders",)))


# --- what the leader answers


def test_a_leaders_answer_arrives_at_its_members() -> None:
    seen: Events = []
    first, second = holdings_of(), holdings_of(seen)
    strategy = Scripted(
        GroupAssignment(
            {"m-1": frozenset({tp(0), tp(3)}), "m-2": frozenset({tp(1), tp(2)})},
            {"m-2": frozenset({tp(0), tp(3)})},
        )
    )
    leader, follower = OwnAssignor(strategy, first), OwnAssignor(Scripted(), second)
    answer = leader.assign(
        cluster_of(orders=ORDERS), [member("m-2", follower, "orders"), member("m-1", leader, "orders")]
    )
    assert [each.member_id for each in strategy.asked[0][1]] == ["m-1", "m-2"]
    assert set(strategy.asked[0][0].topics) == {"orders"}
    received = answered(answer["m-2"])
    assert sorted(received.partitions()) == [("orders", 1), ("orders", 2)]
    follower.on_assignment(received, 5)
    assert (second.owned, second.generation) == ({tp(1), tp(2)}, 5)
    assert seen == [(frozenset({tp(1), tp(2)}), LeaderNote(frozenset({tp(0), tp(3)})))]
    assert follower._assignor.given == [(frozenset({tp(1), tp(2)}), frozenset({tp(0), tp(3)}), 5)]
    # What it got is what it claims next time.
    again = joined_member("m-2", None, over_the_wire(follower, "orders"))
    assert (again.member.owned, again.member.generation) == ({tp(1), tp(2)}, 5)


def test_a_strategys_refusal_reaches_every_member() -> None:
    seen: Events = []
    assignor = OwnAssignor(Scripted(AssignorError("the counts differ")), holdings_of(seen))
    answer = assignor.assign(cluster_of(orders=ORDERS), [member("m-1", assignor, "orders")])
    assignor.on_assignment(answered(answer["m-1"]), 1)
    assert seen == [(frozenset(), LeaderNote(error="strategy scripted-v2: the counts differ"))]


@pytest.mark.parametrize("user_data", [b"\xff", b'{"v":9}', b'{"v":1,"standby":{"orders":["x"]},"error":""}'])
def test_a_leaders_note_that_cannot_be_read_costs_the_note_only(
    user_data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    seen: Events = []
    holdings = holdings_of(seen)
    with caplog.at_level(logging.WARNING, "spark_groupsource.membership"):
        OwnAssignor(Scripted(), holdings).on_assignment(
            answered(ConsumerProtocolAssignment(1, [("orders", [0])], user_data)), 4
        )
    assert (holdings.owned, holdings.generation) == ({tp(0)}, 4)
    assert seen == [(frozenset({tp(0)}), LeaderNote())]
    assert "strategy=scripted-v2" in caplog.text


def test_another_clients_leader_sends_no_note(caplog: pytest.LogCaptureFixture) -> None:
    seen: Events = []
    OwnAssignor(Scripted(), holdings_of(seen)).on_assignment(ConsumerProtocolAssignment(0, [], None), 4)
    assert seen == [(frozenset(), LeaderNote())]
    assert not caplog.text


# --- what the client brings


@pytest.mark.parametrize("name", sorted(CLIENT_STRATEGIES))
def test_the_clients_own_strategies_keep_their_names_and_protocols(name: str) -> None:
    (assignor,) = client_assignors([name], holdings_of())
    protocol = ClientProtocol.COOPERATIVE if name == "cooperative-sticky" else ClientProtocol.EAGER
    assert (assignor.name, assignor.supported_protocols()) == (name, [protocol])


@pytest.mark.parametrize("name", sorted(CLIENT_STRATEGIES))
def test_the_clients_own_strategies_assign_as_they_are(name: str) -> None:
    seen: Events = []
    holdings = holdings_of(seen)
    (assignor,) = client_assignors([name], holdings)
    answer = assignor.assign(
        cluster_of(orders=ORDERS), [member("m-1", assignor, "orders"), member("m-2", assignor, "orders")]
    )
    assert sorted(part for each in answer.values() for part in each.partitions()) == [
        ("orders", number) for number in range(4)
    ]
    assignor.on_assignment(answered(answer["m-1"]), 3)
    assert len(holdings.owned) == 2
    assert holdings.generation == 3
    assert seen == [(holdings.owned, LeaderNote())]


@pytest.mark.rule("R34")
def test_cooperative_sticky_forgets_what_was_lost() -> None:
    """X has everything; its session expires, Y gets everything; X joins again.

    If X still claimed it, the leader would keep half of it back from Y's view for X, for ever.
    """
    x_holdings, y_holdings = holdings_of(), holdings_of()
    (x,), (y,) = (client_assignors(["cooperative-sticky"], each) for each in (x_holdings, y_holdings))
    cluster = cluster_of(orders=ORDERS)
    everything = {("orders", number) for number in range(4)}

    x.on_assignment(answered(x.assign(cluster, [member("x", x, "orders")])["x"]), 1)
    assert owned(x) == everything
    x_holdings.lost()
    y.on_assignment(answered(y.assign(cluster, [member("y", y, "orders")])["y"]), 2)

    assert owned(x) == set()
    first = y.assign(cluster, [member("x", x, "orders"), member("y", y, "orders")])
    # Y is told to give two up, and nobody gets them before it has.
    assert (len(first["x"].partitions()), len(first["y"].partitions())) == (0, 2)
    x.on_assignment(answered(first["x"]), 3)
    y.on_assignment(answered(first["y"]), 3)
    second = y.assign(cluster, [member("x", x, "orders"), member("y", y, "orders")])
    assert {name: len(part.partitions()) for name, part in second.items()} == {"x": 2, "y": 2}
    assert set(second["x"].partitions()) | set(second["y"].partitions()) == everything


def test_a_group_that_goes_from_an_own_strategy_to_the_clients_keeps_partitions_back() -> None:
    """Both read by `weighted`; a third one that offers only cooperative-sticky makes the group change.

    If the client's strategy claimed nothing, partitions would go to new owners while the old ones still read.
    """
    held = {"x": holdings_of(), "y": holdings_of(), "z": holdings_of()}
    sticky = {name: client_assignors([Scripted(), "cooperative-sticky"], each)[1] for name, each in held.items()}
    held["x"].took(frozenset(map(tp, (0, 1))), 4)
    held["y"].took(frozenset(map(tp, (2, 3))), 4)
    first = sticky["x"].assign(cluster_of(orders=ORDERS), [member(n, each, "orders") for n, each in sticky.items()])
    given = {name: {number for _, number in part.partitions()} for name, part in first.items()}
    assert given["x"] <= {0, 1}
    assert given["y"] <= {2, 3}
    assert given["z"] == set()


def test_what_a_cooperative_member_gave_up_before_it_joins_it_does_not_claim() -> None:
    """Its subscription shrinks: the partitions go before the join, and must not be kept back from the others."""
    cooperative, eager = holdings_of(), holdings_of(protocol=RebalanceProtocol.EAGER)
    for holdings in (cooperative, eager):
        holdings.took(frozenset({tp(0), tp(1)}), 7)
        holdings.gave_up([tp(1)])
    assert cooperative.owned == {tp(0)}
    assert eager.owned == {tp(0), tp(1)}, "an eager member gives everything up, and tells what it had"


@pytest.mark.parametrize("call", ["metadata", "on_assignment"])
def test_a_strategy_that_fails_is_named(call: str, caplog: pytest.LogCaptureFixture) -> None:
    broken = type("Broken", (Scripted,), {call: lambda *_: 1 / 0})()
    assignor = OwnAssignor(broken, holdings_of())
    if call == "metadata":
        with pytest.raises(AssignorError, match=r"metadata of strategy .* failed: ZeroDivisionError"):
            assignor.metadata({"orders"})
    else:
        assignor.on_assignment(ConsumerProtocolAssignment(1, [], b""), 1)
        assert "failed in on_assignment: ZeroDivisionError" in caplog.text


def test_by_itself_the_clients_strategy_claims_what_was_lost() -> None:
    """When this fails, the client has learned to forget, and `ClientAssignor` need not any more."""
    assignor = CooperativeStickyAssignor()
    assignor.on_assignment(ConsumerProtocolAssignment(1, [("orders", [0])], b""), 1)
    assert not hasattr(assignor, "on_lost")
    assert owned(assignor) == {("orders", 0)}


def owned(assignor: AbstractPartitionAssignor) -> set[tuple[str, int]]:
    sent = over_the_wire(assignor, "orders")
    return {(part.topic, number) for part in sent.owned_partitions for number in part.partitions}


def test_a_loss_is_forgotten_once() -> None:
    holdings = holdings_of()
    holdings.took(frozenset({tp(0)}), 7)
    holdings.lost()
    assert (holdings.owned, holdings.generation) == (frozenset(), -1)
    assignor = ClientAssignor(CooperativeStickyAssignor(), holdings)
    assignor.on_assignment(ConsumerProtocolAssignment(1, [("orders", [0])], b""), 8)
    assert owned(assignor) == {("orders", 0)}
    holdings.lost()
    assert owned(assignor) == set()
    assignor.on_assignment(ConsumerProtocolAssignment(1, [("orders", [1])], b""), 9)
    assert owned(assignor) == {("orders", 1)}


@pytest.mark.rule("R34")
def test_what_an_own_strategy_lost_it_does_not_claim() -> None:
    holdings = holdings_of()
    assignor = OwnAssignor(Scripted(), holdings)
    holdings.took(frozenset({tp(0)}), 7)
    holdings.lost()
    read = joined_member("m-1", None, over_the_wire(assignor, "orders"))
    assert (read.member.owned, read.member.generation) == (frozenset(), -1)


def test_the_strategies_of_a_member_share_what_it_has() -> None:
    """Whichever ran last, the next one claims what the member has."""
    holdings = holdings_of()
    own, brought = client_assignors([Scripted(), "cooperative-sticky"], holdings)
    brought.on_assignment(ConsumerProtocolAssignment(1, [("orders", [2])], b""), 6)
    read = joined_member("m-1", None, over_the_wire(own, "orders"))
    assert (read.member.owned, read.member.generation) == ({tp(2)}, 6)


# --- what the leader knows of the cluster


def test_racks_of_leaders_and_replicas() -> None:
    cluster = cluster_of(orders=[(0, 1, (1, 2)), (1, NOWHERE, (NOWHERE,)), (2, 2, (2, NOWHERE))])
    assert cluster_info(cluster, {"orders"}) == ClusterInfo(
        {
            "orders": (
                PartitionInfo("rack-a", frozenset({"rack-a", "rack-b"})),
                PartitionInfo(None, frozenset()),
                PartitionInfo("rack-b", frozenset({"rack-b"})),
            )
        }
    )


def test_a_partition_without_a_leader_is_a_partition() -> None:
    info = cluster_info(cluster_of(orders=[(0, -1, (2,))]), {"orders"})
    assert info.topics["orders"] == (PartitionInfo(None, frozenset({"rack-b"})),)


def test_topics_that_the_client_does_not_know_are_left_out() -> None:
    assert set(cluster_info(cluster_of(orders=ORDERS), {"orders", "refunds"}).topics) == {"orders"}
    assert cluster_info(cluster_of(orders=ORDERS), set()).topics == {}


def test_numbers_with_a_gap_are_a_topic_in_the_making() -> None:
    cluster = cluster_of(orders=[(0, 1, (1,)), (2, 1, (1,))], refunds=[(1, 1, (1,))], returns=[])
    assert cluster_info(cluster, {"orders", "refunds", "returns"}).topics == {}
