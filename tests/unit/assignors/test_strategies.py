"""The built-in strategies: what each promises, on random groups, and what it does in readable ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.assignors import metadata
from spark_groupsource.assignors.co_partitioned import CoPartitionedAssignor
from spark_groupsource.assignors.interface import (
    Assignor,
    AssignorError,
    ClusterInfo,
    GroupAssignment,
    GroupMember,
    MemberSettings,
    PartitionInfo,
)
from spark_groupsource.assignors.rack_aware import RackAwareAssignor
from spark_groupsource.assignors.redundant import RedundantAssignor
from spark_groupsource.assignors.registry import BUILT_IN
from spark_groupsource.assignors.single_active import SingleActiveAssignor
from spark_groupsource.assignors.weighted import WeightedAssignor
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.assigning import (
    PROPERTIES,
    after,
    check_active,
    cluster,
    clusters,
    digits,
    groups,
    member,
    moved,
    owned,
    quota,
    said,
    short,
    subscribed,
)

KINDS = sorted(BUILT_IN.values(), key=lambda kind: kind.name)
BALANCED = (WeightedAssignor, RackAwareAssignor, RedundantAssignor)


def drawn(data: st.DataObject, kind: type[Assignor], fresh: bool = False) -> tuple[ClusterInfo, list[GroupMember]]:
    """Return a random group that the strategy can serve."""
    together = kind is CoPartitionedAssignor
    topics = data.draw(clusters(same_count=together))
    return topics, data.draw(groups(topics, kind, alike=together, fresh=fresh))


def weight_of(kind: type[Assignor], item: GroupMember) -> int:
    return metadata.count(item.metadata, "weight", 1) if kind is WeightedAssignor else 1


def settled(kind: type[Assignor], group: list[GroupMember], answer: GroupAssignment) -> list[GroupMember]:
    """Return the members with what they got, and with what they tell after it."""
    found = []
    for item in after(group, answer):
        raw = item.metadata
        if kind is RedundantAssignor:
            standby: dict[str, list[int]] = {}
            for partition in sorted(answer.standby[item.member_id]):
                standby.setdefault(partition.topic, []).append(partition.partition)
            raw = metadata.encode({**metadata.decode(raw), "standby": standby})
        found.append(replace(item, metadata=raw))
    return found


# --- every strategy ---


@pytest.mark.parametrize("kind", KINDS)
@PROPERTIES
@given(data=st.data())
def test_every_partition_is_active_once_and_order_does_not_matter(kind: type[Assignor], data: st.DataObject) -> None:
    topics, group = drawn(data, kind)
    answer = kind().assign(topics, group)
    check_active(topics, group, answer)
    assert not any(answer.active[name] & answer.standby.get(name, frozenset()) for name in answer.active)
    assert kind().assign(topics, data.draw(st.permutations(group))) == answer


@pytest.mark.parametrize("kind", KINDS)
@PROPERTIES
@given(data=st.data())
def test_nothing_moves_when_nothing_changes(kind: type[Assignor], data: st.DataObject) -> None:
    topics, group = drawn(data, kind)
    answer = kind().assign(topics, group)
    assert kind().assign(topics, settled(kind, group, answer)) == answer


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_and_nothing(kind: type[Assignor]) -> None:
    assert kind().assign(cluster(orders=3), []).active == {}
    alone = kind().assign(cluster(orders=3), [member("a", topics="payments")])
    assert (short(alone.active), short(alone.standby)) in [({"a": ""}, {}), ({"a": ""}, {"a": ""})]
    assert short(kind().assign(cluster(orders=0), [member("a")]).active) == {"a": ""}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raw", [b"", b"\xff", b"[1]", b'{"weight":true,"redundancy":-1,"standby":[1]}', b"[" * 99_999])
def test_damaged_metadata_is_as_none(kind: type[Assignor], raw: bytes) -> None:
    ok = [member("a", owned(orders="01")), member("b", owned(orders="23"))]
    bad = [replace(ok[0], metadata=raw), ok[1]]
    assert kind().assign(cluster(orders=4), bad) == kind().assign(cluster(orders=4), ok)


# --- balance ---


@pytest.mark.parametrize("kind", BALANCED)
@PROPERTIES
@given(data=st.data())
def test_everybody_gets_the_quota_rounded_down_or_up(kind: type[Assignor], data: st.DataObject) -> None:
    topics, group = drawn(data, kind)
    answer = kind().assign(topics, group)
    for item in group:
        due = quota(topics, group, item.member_id, lambda item: weight_of(kind, item))
        assert due // 1 <= len(answer.active[item.member_id]) <= -(-due // 1)


@pytest.mark.parametrize("kind", [WeightedAssignor, RedundantAssignor])
@PROPERTIES
@given(data=st.data())
def test_who_leaves_moves_only_his_own(kind: type[Assignor], data: st.DataObject) -> None:
    """With equal weights and subscriptions; with other quotas the fewest moves can be more than none."""
    topics, group = drawn(data, kind, fresh=True)
    group = [replace(item, topics=tuple(topics.topics), metadata=b"") for item in group]
    group = settled(kind, group, kind().assign(topics, group))
    left = [item for item in group if item is not group[0]]
    answer = kind().assign(topics, left)
    allowed = 0 if kind is WeightedAssignor else len(group[0].owned)
    assert len(moved(left, answer)) <= allowed


@PROPERTIES
@given(data=st.data())
def test_weighted_join_moves_only_to_the_new_member(data: st.DataObject) -> None:
    topics, group = drawn(data, WeightedAssignor, fresh=True)
    group = [replace(item, topics=tuple(topics.topics), metadata=b"") for item in group]
    group = after(group, WeightedAssignor().assign(topics, group))
    answer = WeightedAssignor().assign(topics, [*group, member("new", topics=" ".join(topics.topics))])
    assert moved(group, answer) == answer.active["new"]


# --- weighted ---


@pytest.mark.parametrize(
    ("weights", "has", "expected"),
    [
        ({"a": 3, "b": 1}, {}, {"a": 6, "b": 2}),
        ({"a": 1, "b": 1, "c": 1}, {}, {"a": 3, "b": 3, "c": 2}),
        ({"a": 1, "b": 1, "c": 1}, {"c": "012"}, {"a": 3, "b": 2, "c": 3}),
        # 7.92 and 0.08: b keeps one, because that is 0.08 rounded up, and moves less.
        ({"a": 100, "b": 1}, {"b": "01234567"}, {"a": 7, "b": 1}),
        ({"a": 100, "b": 1}, {}, {"a": 8, "b": 0}),
        ({"a": 5}, {}, {"a": 8}),
    ],
)
def test_weighted_shares(weights: dict[str, int], has: dict[str, str], expected: dict[str, int]) -> None:
    group = [
        member(name, owned(orders=has.get(name, "")), metadata=said(WeightedAssignor, weight=weight))
        for name, weight in weights.items()
    ]
    answer = WeightedAssignor().assign(cluster(orders=8), group)
    assert {name: len(partitions) for name, partitions in answer.active.items()} == expected


def test_weighted_moves_the_fewest() -> None:
    group = [member("a", owned(orders="0123")), member("b", owned(orders="45")), member("c")]
    assert short(WeightedAssignor().assign(cluster(orders=6), group).active) == {
        "a": "orders-01",
        "b": "orders-45",
        "c": "orders-23",
    }


def test_weighted_counts_only_the_topics_of_a_member() -> None:
    group = [member("a", topics="orders payments"), member("b", topics="orders"), member("c", topics="unknown")]
    answer = WeightedAssignor().assign(cluster(orders=4, payments=3, returns=2), group)
    assert {name: len(partitions) for name, partitions in answer.active.items()} == {"a": 5, "b": 2, "c": 0}


def test_weighted_reports_the_weight() -> None:
    assert said(WeightedAssignor, weight=3) == b'{"weight":3}'


# --- co-partitioned ---


@PROPERTIES
@given(data=st.data())
def test_equal_numbers_are_together_and_spread_evenly(data: st.DataObject) -> None:
    topics, group = drawn(data, CoPartitionedAssignor)
    answer = CoPartitionedAssignor().assign(topics, group)
    count = len(next(iter(topics.topics.values())))
    for partitions in answer.active.values():
        numbers = {partition.partition for partition in partitions}
        assert partitions == {TopicPartition(topic, number) for topic in topics.topics for number in numbers}
        assert count // len(group) <= len(numbers) <= -(-count // len(group))


@pytest.mark.parametrize(
    ("counts", "subscriptions", "reason"),
    [
        (
            {"orders": 6, "payments": 3},
            ["orders payments"] * 2,
            "topics that belong together must have the same number of partitions: orders has 6, payments has 3",
        ),
        (
            {"orders": 3, "payments": 3},
            ["orders payments", "payments"],
            "members that share topic payments must subscribe to the same topics: m1 subscribes to payments, "
            "m0 to orders, payments",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(counts: dict[str, int], subscriptions: list[str], reason: str) -> None:
    group = [member(f"m{number}", topics=topics) for number, topics in enumerate(subscriptions)]
    with pytest.raises(AssignorError) as caught:
        CoPartitionedAssignor().assign(cluster(**counts), group)
    assert str(caught.value) == reason


def test_co_partitioned_moves_whole_numbers() -> None:
    both = "orders payments"
    group = [member("a", owned(orders="0123", payments="0123"), both), member("b", topics=both)]
    answer = CoPartitionedAssignor().assign(cluster(orders=4, payments=4), group)
    assert short(answer.active) == {"a": "orders-01 payments-01", "b": "orders-23 payments-23"}


def test_members_without_a_common_topic_are_served_apart() -> None:
    group = [member("a", topics="orders payments"), member("b", topics="returns")]
    answer = CoPartitionedAssignor().assign(cluster(orders=2, payments=2, returns=5), group)
    assert short(answer.active) == {"a": "orders-01 payments-01", "b": "returns-01234"}


# --- rack-aware ---


def racks(*leaders: str | None, replicas: str = "") -> ClusterInfo:
    return ClusterInfo({"orders": tuple(PartitionInfo(leader, frozenset(replicas.split())) for leader in leaders)})


@pytest.mark.parametrize(
    ("topics", "group", "expected"),
    [
        # The leader's rack.
        (
            racks("r1", "r2", "r1", "r2"),
            [member("a", rack="r2"), member("b", rack="r1")],
            {"a": "orders-13", "b": "orders-02"},
        ),
        # It outweighs moves.
        (
            racks("r1", "r2"),
            [member("a", owned(orders="0"), rack="r2"), member("b", owned(orders="1"), rack="r1")],
            {"a": "orders-1", "b": "orders-0"},
        ),
        # Balance outweighs it.
        (racks("r1", "r1"), [member("a", rack="r1"), member("b")], {"a": "orders-0", "b": "orders-1"}),
        # A replica's rack where the leader's is nobody's.
        (
            racks("r3", "r3", replicas="r2"),
            [member("a", owned(orders="01")), member("b", rack="r2"), member("c", rack="r1")],
            {"a": "orders-1", "b": "orders-0", "c": ""},
        ),
        # The leader is a replica, whether its rack is named among theirs or not: nothing moves for that.
        (
            ClusterInfo({"orders": (PartitionInfo("r1"), PartitionInfo("r1", frozenset({"r1"})))}),
            [member("a", owned(orders="0"), rack="r1"), member("b", owned(orders="1"), rack="r2")],
            {"a": "orders-0", "b": "orders-1"},
        ),
        # Without racks it is as sticky as others.
        (racks(None, None), [member("b", owned(orders="0")), member("a")], {"a": "orders-1", "b": "orders-0"}),
    ],
)
def test_racks(topics: ClusterInfo, group: list[GroupMember], expected: dict[str, str]) -> None:
    assert short(RackAwareAssignor().assign(topics, group).active) == expected


@PROPERTIES
@given(data=st.data())
def test_swapping_two_partitions_makes_nothing_more_local(data: st.DataObject) -> None:
    topics, group = drawn(data, RackAwareAssignor)
    answer = RackAwareAssignor().assign(topics, group)
    by_id = {item.member_id: item for item in group}
    home = {partition: name for name, partitions in answer.active.items() for partition in partitions}

    def local(partition: TopicPartition, name: str) -> tuple[bool, bool]:
        info = topics.topics[partition.topic][partition.partition]
        rack = by_id[name].rack
        at_leader = rack is not None and rack == info.leader_rack
        return at_leader, at_leader or rack in info.replica_racks

    def counted(*places: tuple[TopicPartition, str]) -> list[int]:
        return [sum(column) for column in zip(*(local(*place) for place in places), strict=True)]

    for one, first in home.items():
        for two, second in home.items():
            if one.topic in by_id[second].topics and two.topic in by_id[first].topics:
                assert counted((one, second), (two, first)) <= counted((one, first), (two, second))


# --- redundant ---


@PROPERTIES
@given(data=st.data())
def test_each_partition_has_as_many_members_as_asked_for(data: st.DataObject) -> None:
    topics, group = drawn(data, RedundantAssignor)
    answer = RedundantAssignor().assign(topics, group)
    asked = max(metadata.count(item.metadata, "redundancy", 2) for item in group)
    copies = Counter(p for parts in (answer.active, answer.standby) for held in parts.values() for p in held)
    assert copies == {
        partition: min(asked, len(subscribed(group, topic)))
        for topic in topics.topics
        if subscribed(group, topic)
        for partition in topics.partitions(topic)
    }
    assert all(p.topic in item.topics for item in group for p in answer.standby[item.member_id])


@PROPERTIES
@given(data=st.data())
def test_standbys_are_balanced(data: st.DataObject) -> None:
    """With equal subscriptions: k - 1 times what others are active for, by the number of others, rounded."""
    topics, group = drawn(data, RedundantAssignor)
    group = [replace(item, topics=tuple(topics.topics)) for item in group]
    answer = RedundantAssignor().assign(topics, group)
    asked = min(len(group), max(metadata.count(item.metadata, "redundancy", 2) for item in group))
    total = sum(map(len, topics.topics.values()))
    for item in group:
        others = max(1, len(group) - 1)
        slots = (asked - 1) * (total - len(answer.active[item.member_id]))
        assert slots // others <= len(answer.standby[item.member_id]) <= -(-slots // others)


@PROPERTIES
@given(data=st.data())
def test_standbys_take_over_from_whoever_leaves(data: st.DataObject) -> None:
    """With three equal members or more, from a fresh start: every partition of the one that left goes to a standby."""
    count = data.draw(st.integers(3, 6))
    topics = data.draw(clusters())
    names = " ".join(topics.topics)
    raw = said(RedundantAssignor, redundancy=data.draw(st.integers(2, 4)))
    group = [member(f"m{number}", topics=names, metadata=raw) for number in range(count)]
    answer = RedundantAssignor().assign(topics, group)
    group = settled(RedundantAssignor, group, answer)
    gone = data.draw(st.sampled_from(group))
    taken = RedundantAssignor().assign(topics, [item for item in group if item is not gone])
    for name, partitions in taken.active.items():
        assert partitions & gone.owned <= answer.standby[name]


def test_redundant_in_a_readable_group() -> None:
    """Three members, one partition active with each; b leaves, and who stood by for its partition takes over."""
    strategy = RedundantAssignor()
    group = [member(name, metadata=said(RedundantAssignor, redundancy=2)) for name in "abc"]
    first = strategy.assign(cluster(orders=3), group)
    assert short(first.active) == {"a": "orders-0", "b": "orders-1", "c": "orders-2"}
    assert short(first.standby) == {"a": "orders-2", "b": "orders-0", "c": "orders-1"}
    left = [item for item in settled(RedundantAssignor, group, first) if item.member_id != "b"]
    second = strategy.assign(cluster(orders=3), left)
    assert short(second.active) == {"a": "orders-0", "c": "orders-12"}
    assert short(second.standby) == {"a": "orders-12", "c": "orders-0"}


def stands_by(numbers: str) -> bytes:
    strategy = RedundantAssignor()
    strategy.on_assignment(frozenset(), owned(orders=numbers), 1)
    return strategy.metadata(("orders",), MemberSettings())


def test_what_must_move_goes_to_a_standby() -> None:
    group = [
        member("a", owned(orders="0123"), metadata=stands_by("")),
        member("b", metadata=stands_by("0")),
        member("c", metadata=stands_by("1")),
    ]
    answer = RedundantAssignor().assign(cluster(orders=4), group)
    assert short(answer.active) == {"a": "orders-23", "b": "orders-0", "c": "orders-1"}


def test_who_had_it_active_stands_by_for_it() -> None:
    group = [member("a", owned(orders="01")), member("b"), member("c")]
    answer = RedundantAssignor().assign(cluster(orders=2), group)
    assert len(moved(group, answer)) == 1
    assert answer.standby["a"] == moved(group, answer)


def test_a_partition_without_owner_goes_to_a_standby_though_another_must_move_for_it() -> None:
    """c is gone; a stands by for its partitions, and b has room: what a was active for moves to b."""
    group = [
        member("a", owned(orders="01"), metadata=stands_by("45")),
        member("b", owned(orders="23"), metadata=stands_by("01")),
    ]
    answer = RedundantAssignor().assign(cluster(orders=6), group)
    assert owned(orders="45") & answer.active["b"] == frozenset()
    assert {name: len(partitions) for name, partitions in answer.active.items()} == {"a": 3, "b": 3}
    assert len(moved(group, answer)) == 1


@pytest.mark.parametrize("count", [3, 4])
def test_from_a_fresh_start_all_others_stand_by_alike(count: int) -> None:
    """So when one leaves, its partitions go to all others alike, and nothing else moves."""
    topics = cluster(orders=2 * count * (count - 1))
    group = [member(f"m{number}") for number in range(count)]
    first = RedundantAssignor().assign(topics, group)
    pairs = Counter(
        (name, other)
        for name, partitions in first.active.items()
        for partition in partitions
        for other, others in first.standby.items()
        if partition in others
    )
    assert len(pairs) == count * (count - 1)
    assert set(pairs.values()) == {2}
    left = settled(RedundantAssignor, group, first)[1:]
    assert not moved(left, RedundantAssignor().assign(topics, left))


def test_redundant_remembers_and_reports_what_it_stands_by_for() -> None:
    strategy = RedundantAssignor()
    strategy.on_assignment(owned(orders="0"), owned(orders="12"), 4)
    raw = strategy.metadata((), MemberSettings())
    assert raw == b'{"redundancy":2,"standby":{"orders":[1,2]}}'
    assert digits(metadata.partitions_in(raw, "standby")) == "orders-12"
    assert metadata.partitions_in(b'{"standby":{"orders":[1,-2],"payments":[3],"refunds":4}}', "standby") == owned(
        payments="3"
    )


# --- single-active ---


@PROPERTIES
@given(data=st.data())
def test_one_has_all_and_the_others_stand_by_for_all(data: st.DataObject) -> None:
    topics, group = drawn(data, SingleActiveAssignor)
    group = [replace(item, topics=tuple(topics.topics)) for item in group]
    answer = SingleActiveAssignor().assign(topics, group)
    every = frozenset(partition for topic in topics.topics for partition in topics.partitions(topic))
    most = max(len(item.owned) for item in group)
    active = min(item.member_id for item in group if len(item.owned) == most)
    assert {name: bool(parts) for name, parts in answer.active.items() if parts} == ({active: True} if every else {})
    assert answer.standby == {i.member_id: frozenset() if i.member_id == active else every for i in group}


@pytest.mark.parametrize(
    ("group", "active", "standby"),
    [
        ([member("b"), member("a")], {"a": "orders-01", "b": ""}, {"a": "", "b": "orders-01"}),
        # Who joins does not take over.
        (
            [member("b", owned(orders="01")), member("a")],
            {"a": "", "b": "orders-01"},
            {"a": "orders-01", "b": ""},
        ),
        # The one that may have most does, so that there is one for everything.
        (
            [member("a", owned(orders="01")), member("b", topics="orders payments returns")],
            {"a": "", "b": "orders-01 payments-0 returns-012"},
            {"a": "orders-01", "b": ""},
        ),
        # Nobody may have everything.
        (
            [member("a"), member("b", topics="payments returns"), member("c", topics="returns")],
            {"a": "orders-01", "b": "payments-0 returns-012", "c": ""},
            {"a": "", "b": "", "c": "returns-012"},
        ),
    ],
)
def test_single_active(group: list[GroupMember], active: dict[str, str], standby: dict[str, str]) -> None:
    answer = SingleActiveAssignor().assign(cluster(orders=2, payments=1, returns=3), group)
    assert (short(answer.active), short(answer.standby)) == (active, standby)
