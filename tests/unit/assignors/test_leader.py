"""The leader's frame: each rule by the events that it is there for, and whole groups until nothing changes any more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_groupsource.assignors.co_partitioned import CoPartitionedAssignor
from spark_groupsource.assignors.interface import (
    Assignor,
    AssignorError,
    ClusterInfo,
    GroupAssignment,
    GroupMember,
    MemberSettings,
)
from spark_groupsource.assignors.leader import JoinedMember, MemberPart, lead
from spark_groupsource.assignors.redundant import RedundantAssignor
from spark_groupsource.assignors.registry import BUILT_IN
from spark_groupsource.assignors.weighted import WeightedAssignor
from tests.unit.assigning import PROPERTIES, SEEDS, Owned, cluster, digits, member, owned

KINDS = sorted(BUILT_IN.values(), key=lambda kind: kind.name)


class Given(Assignor):
    """Answers what the test says, and keeps what it was asked."""

    name = "given"
    version = 2

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked: list[tuple[ClusterInfo, Sequence[GroupMember]]] = []

    def assign(self, cluster: ClusterInfo, members: Sequence[GroupMember]) -> GroupAssignment:
        self.asked.append((cluster, members))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]


def led(assignor: Assignor, topics: ClusterInfo, *members: GroupMember, held: bool = True) -> dict[str, MemberPart]:
    return lead(assignor, topics, [JoinedMember(item, held) for item in members])


def active(parts: dict[str, MemberPart]) -> dict[str, str]:
    return {name: digits(part.active) for name, part in parts.items()}


def standby(parts: dict[str, MemberPart]) -> dict[str, str]:
    return {name: digits(part.note.standby) for name, part in parts.items()}


def gives(**parts: str) -> Given:
    return Given(GroupAssignment({name: owned(orders=numbers) for name, numbers in parts.items()}))


# --- stale claims ---


@pytest.mark.rule("R32")
def test_the_newest_generation_owns_it() -> None:
    """a was taken for dead, b got its partitions in generation 6, a comes back with generation 5."""
    strategy = gives(a="", b="01")
    parts = led(
        strategy,
        cluster(orders=2),
        member("a", owned(orders="01"), generation=5),
        member("b", owned(orders="01"), generation=6),
    )
    assert [digits(item.owned) for item in strategy.asked[0][1]] == ["", "orders-01"]
    # b reads them already: it goes on while a, in the same round, is told to stop.
    assert active(parts) == {"a": "", "b": "orders-01"}


def test_a_stale_claim_is_held_all_the_same() -> None:
    """As before, but the strategy moves a partition on to c: nobody gets it while a may still read it."""
    topics = cluster(orders=2)
    a = member("a", owned(orders="01"), generation=5)
    assert active(led(gives(a="", c="01"), topics, a, member("c"))) == {"a": "", "c": ""}
    # A newest owner that has given it up (it is eager) does not get it back either.
    eager = JoinedMember(member("b", owned(orders="0"), generation=6), held=False)
    parts = lead(gives(b="0"), topics, [JoinedMember(a, held=True), eager])
    assert active(parts) == {"a": "", "b": ""}


def test_two_claims_of_the_same_generation_contradict_each_other() -> None:
    strategy = gives(a="0", b="1")
    both = [member(name, owned(orders="01"), generation=5) for name in "ab"]
    parts = led(strategy, cluster(orders=2), *both)
    assert [digits(item.owned) for item in strategy.asked[0][1]] == ["", ""]
    assert active(parts) == {"a": "", "b": ""}
    assert active(led(strategy, cluster(orders=2), member("a"), member("b"))) == {"a": "orders-0", "b": "orders-1"}


# --- claims without ground ---


@pytest.mark.rule("R32")
def test_what_a_member_may_no_longer_have_is_no_claim() -> None:
    """a no longer subscribes to payments, and orders was made anew with two partitions instead of four."""
    strategy = gives(a="0", b="1")
    a = member("a", owned(orders="03", payments="0"))
    led(strategy, cluster(orders=2, payments=1), a, member("b", topics="orders payments"))
    assert [digits(item.owned) for item in strategy.asked[0][1]] == ["orders-0", ""]


def test_a_newer_claim_without_ground_beats_an_older_one() -> None:
    """b had it last and has changed its subscription since: what a claims from before is not true any more."""
    strategy = gives(a="")
    led(
        strategy,
        cluster(orders=1, payments=1),
        member("a", owned(orders="0"), generation=5),
        member("b", owned(orders="0"), "payments", generation=6),
    )
    assert [digits(item.owned) for item in strategy.asked[0][1]] == ["", ""]


# --- late metadata ---


@pytest.mark.rule("R33")
def test_a_leader_without_metadata_takes_nothing_away() -> None:
    """c is new and leads; it knows no topic at first, then orders, then both."""
    both = "orders payments"
    group = [
        member("a", owned(orders="01", payments="0"), both),
        member("b", owned(orders="23", payments="1"), both),
        member("c", topics=both),
    ]
    strategy = WeightedAssignor()
    parts = led(strategy, cluster(), *group)
    assert active(parts) == {"a": "orders-01 payments-0", "b": "orders-23 payments-1", "c": ""}
    parts = led(strategy, cluster(orders=4), *group)
    assert active(parts) == {"a": "orders-01 payments-0", "b": "orders-3 payments-1", "c": ""}
    parts = led(strategy, cluster(orders=4, payments=2), *group)
    assert sorted(len(part.active) for part in parts.values()) == [0, 2, 2]


@pytest.mark.rule("R33")
def test_of_an_unknown_topic_only_true_claims_stay() -> None:
    topics = "orders payments"
    parts = led(
        gives(),
        cluster(),
        member("a", owned(orders="012"), topics, generation=5),
        member("b", owned(orders="23"), topics, generation=5),
        member("c", owned(orders="0"), topics, generation=4),
        member("d", owned(orders="4"), "payments", generation=5),
    )
    assert active(parts) == {"a": "orders-01", "b": "orders-3", "c": "", "d": ""}


def test_topics_that_nobody_subscribes_to_are_not_shown() -> None:
    strategy = gives(a="0")
    led(strategy, cluster(orders=1, payments=1), member("a", topics="orders unknown"))
    assert set(strategy.asked[0][0].topics) == {"orders"}


# --- a strategy's mistake ---


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            GroupAssignment({"x": owned(orders="0")}),
            "its assignment names member x, which is not in the group",
        ),
        (
            GroupAssignment({}, {"x": owned(orders="0")}),
            "its assignment names member x, which is not in the group",
        ),
        (
            GroupAssignment({"b": owned(orders="0"), "a": owned(orders="0")}),
            "it made orders-0 active at two members, a and b",
        ),
        (
            GroupAssignment({"a": owned(payments="0")}),
            "it gave payments-0 to member a, which does not subscribe to its topic",
        ),
        (
            GroupAssignment({}, {"a": owned(orders="5")}),
            "it gave orders-5 to member a, but that partition does not exist",
        ),
        (
            GroupAssignment({"a": owned(orders="0")}, {"a": owned(orders="0")}),
            "it made orders-0 both active and standby at member a",
        ),
        (KeyError("a"), "it failed with KeyError: 'a'"),
        (None, "assign must return a GroupAssignment, not NoneType"),
        (GroupAssignment({"a": frozenset({"orders"})}), "it failed with ValueError: too many values to unpack"),
    ],
)
def test_a_wrong_answer_is_not_used(answer: object, reason: str) -> None:
    parts = led(Given(answer), cluster(orders=2, payments=1), member("a"), member("b", owned(orders="0")))
    assert active(parts) == {"a": "", "b": "orders-0"}
    assert standby(parts) == {"a": "", "b": ""}
    for part in parts.values():
        assert part.note.error.startswith(f"strategy given-v2: {reason}")


# --- partitions that are held ---


@pytest.mark.rule("R32")
def test_what_another_holds_is_handed_out_one_round_later() -> None:
    topics = cluster(orders=4)
    first = led(WeightedAssignor(), topics, member("a", owned(orders="0123")), member("b"))
    assert active(first) == {"a": "orders-01", "b": ""}
    assert standby(first) == {"a": "", "b": "orders-23"}
    second = led(WeightedAssignor(), topics, member("a", owned(orders="01")), member("b"))
    assert active(second) == {"a": "orders-01", "b": "orders-23"}


def test_what_was_given_up_before_is_handed_out_at_once() -> None:
    parts = led(WeightedAssignor(), cluster(orders=4), member("a", owned(orders="0123")), member("b"), held=False)
    assert active(parts) == {"a": "orders-01", "b": "orders-23"}
    assert standby(parts) == {"a": "", "b": ""}


def test_a_member_may_stand_by_for_what_it_gives_up() -> None:
    answer = GroupAssignment({"b": owned(orders="0")}, {"a": owned(orders="0")})
    parts = led(Given(answer), cluster(orders=1), member("a", owned(orders="0")), member("b"))
    assert active(parts) == {"a": "", "b": ""}
    assert standby(parts) == {"a": "orders-0", "b": "orders-0"}


# --- a strategy's refusal ---


def test_everybody_keeps_what_it_owns_when_the_strategy_refuses() -> None:
    """orders has grown from two to four partitions, payments has not yet; then it has, too."""
    both = "orders payments"
    group = [
        member("a", owned(orders="0", payments="0"), both),
        member("b", owned(orders="1", payments="1"), both),
        member("c", topics=both),
    ]
    parts = led(CoPartitionedAssignor(), cluster(orders=4, payments=2), *group)
    assert active(parts) == {"a": "orders-0 payments-0", "b": "orders-1 payments-1", "c": ""}
    assert {part.note.error for part in parts.values()} == {
        "strategy co-partitioned: topics that belong together must have the same number of partitions: "
        "orders has 4, payments has 2"
    }
    parts = led(CoPartitionedAssignor(), cluster(orders=4, payments=4), *group)
    assert sum(len(part.active) for part in parts.values()) == 8
    assert {part.note.error for part in parts.values()} == {""}


def test_a_refusal_does_not_let_two_read_the_same() -> None:
    parts = led(
        Given(AssignorError("not today")),
        cluster(orders=3),
        member("a", owned(orders="01"), generation=5),
        member("b", owned(orders="12"), generation=6),
    )
    assert active(parts) == {"a": "orders-0", "b": "orders-12"}


# --- whole groups ---


@dataclass
class Query:
    """A member of a simulated group."""

    strategy: Assignor
    topics: tuple[str, ...]
    eager: bool
    about: MemberSettings
    reads: Owned = frozenset()
    generation: int = -1

    def joins(self, name: str) -> JoinedMember:
        """Return what it joins with. An eager one gives up everything before."""
        raw = self.strategy.metadata(self.topics, self.about)
        found = GroupMember(name, self.topics, raw, self.reads, self.generation, rack=self.about.rack)
        if self.eager:
            self.reads = frozenset()
        return JoinedMember(found, held=not self.eager)


@dataclass
class Group:
    """A group, one rebalance after the other. In each, nobody gets what another reads when the answers go out."""

    kind: type[Assignor]
    topics: ClusterInfo
    queries: dict[str, Query] = field(default_factory=dict)
    generation: int = 0

    def rebalance(self, known: ClusterInfo | None = None) -> bool:
        """Do one round; return whether a member gives something up, and so joins again."""
        joined = [query.joins(name) for name, query in self.queries.items()]
        parts = lead(self.kind(), self.topics if known is None else known, joined)
        self.generation += 1
        again = False
        for name, query in self.queries.items():
            for other, others in self.queries.items():
                if other != name:
                    assert not (parts[name].active - query.reads) & others.reads
        for name, query in self.queries.items():
            assert not parts[name].note.error
            again |= bool(query.reads - parts[name].active)
            query.reads, query.generation = parts[name].active, self.generation
            query.strategy.on_assignment(query.reads, parts[name].note.standby, self.generation)
        return again

    def settle(self) -> int:
        """Go on until nobody joins again; return how many rounds it took."""
        rounds = 1
        while self.rebalance():
            rounds += 1
            assert rounds < 10, "no end"
        return rounds

    def parts(self) -> dict[str, Owned]:
        return {name: query.reads for name, query in self.queries.items()}


@pytest.mark.parametrize("kind", KINDS)
@PROPERTIES
@given(steps=st.integers(1, 5), eager=st.sampled_from([0.0, 0.3, 1.0]), alike=st.booleans(), seed=SEEDS)
def test_groups_settle_in_two_rounds(kind: type[Assignor], steps: int, eager: float, alike: bool, seed: int) -> None:
    """Members join, leave and are lost, also between the rounds; leaders know nothing of a topic, for a round.

    After the last event: one round in which partitions are given up, one that hands them out, and then no other.
    """
    source = random.Random(seed)
    alike = alike or kind is CoPartitionedAssignor
    count = source.randint(1, 6)
    names = ["orders", "payments"]
    group = Group(kind, cluster(orders=count, payments=count if alike else source.randint(0, 6)))
    for step in range(steps):
        for name in source.sample(sorted(group.queries), source.randint(0, len(group.queries)) // 2):
            del group.queries[name]
        for number in range(source.randint(0, 2)):
            topics = tuple(names if alike else source.sample(names, source.randint(1, 2)))
            about = MemberSettings(
                rack=source.choice(["r1", None]), weight=source.randint(1, 4), redundancy=source.randint(1, 3)
            )
            group.queries[f"m{step}-{number}"] = Query(kind(), topics, source.random() < eager, about)
        if source.random() < 0.7:
            known = source.sample(names, source.randint(0, 2))
            group.rebalance(ClusterInfo({name: group.topics.topics[name] for name in sorted(known)}))
    assert group.settle() <= 2
    before = group.parts()
    subscribed = {topic for query in group.queries.values() for topic in query.topics}
    every = sorted(partition for topic in subscribed for partition in group.topics.partitions(topic))
    assert sorted(partition for reads in before.values() for partition in reads) == every
    if not any(query.eager for query in group.queries.values()):
        assert not group.rebalance()
        assert group.parts() == before


def test_who_a_partition_was_given_up_for_gets_it_though_others_stand_by() -> None:
    """redundant: c joins, and gets what a and b give up in the next round: it has stood by for it since this one."""
    group = Group(RedundantAssignor, cluster(orders=6))
    for name in "ab":
        group.queries[name] = Query(RedundantAssignor(), ("orders",), False, MemberSettings())
    group.settle()
    before = group.parts()
    group.queries["c"] = Query(RedundantAssignor(), ("orders",), False, MemberSettings())
    assert group.settle() == 2
    reads = group.parts()
    assert [len(reads[name]) for name in "abc"] == [2, 2, 2]
    assert all(reads[name] < before[name] for name in "ab")
