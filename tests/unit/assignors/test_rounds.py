"""A group that does not settle is told once, with the members that it hangs on."""

from __future__ import annotations

from spark_groupsource.assignors.interface import ClusterInfo, GroupMember, PartitionInfo
from spark_groupsource.assignors.leader import JoinedMember, MemberPart
from spark_groupsource.assignors.notes import LeaderNote
from spark_groupsource.assignors.rounds import LIMIT, Again, Round, Rounds
from spark_groupsource.model.offsets import TopicPartition

P0 = TopicPartition("orders", 0)
KNOWN = ClusterInfo({"orders": (PartitionInfo(),)})
NOTHING = {name: MemberPart(frozenset(), LeaderNote()) for name in ("x-1", "y-1")}
ALL = {"x-1": MemberPart(frozenset({P0}), LeaderNote()), "y-1": MemberPart(frozenset(), LeaderNote())}


def joined(name: str, *owned: TopicPartition, topics: tuple[str, ...] = ("orders",)) -> JoinedMember:
    return JoinedMember(GroupMember(name, topics, owned=frozenset(owned)), held=True)


def test_a_member_that_never_gives_a_partition_up_is_named_in_the_second_round() -> None:
    rounds = Rounds()
    said = [rounds.take(KNOWN, [joined("x-1", P0), joined("y-1")], NOTHING) for _ in range(LIMIT + 2)]
    assert [each.warning for each in said] == ["", "orders-0 is still held by x-1", "", "", "", "", ""]
    assert [each.again for each in said] == [Again.LATE] * (LIMIT - 1) + [Again.NO] * 3, "it does not ask for ever"


def test_a_topic_that_the_leader_cannot_see_is_named_with_its_subscribers() -> None:
    rounds = Rounds()
    members = [joined("x-1", topics=("orders", "secret")), joined("y-1")]
    said = [rounds.take(KNOWN, members, ALL) for _ in range(LIMIT)]
    assert [each.warning for each in said if each.warning] == [
        "the leader does not know topic secret, which these members subscribe to: x-1"
    ]
    assert [each.again for each in said] == [Again.SOON] * (LIMIT - 1) + [Again.NO]


def test_who_joins_or_settles_begins_anew() -> None:
    rounds = Rounds()
    assert rounds.take(KNOWN, [joined("x-1", P0)], NOTHING).warning == ""
    assert rounds.take(KNOWN, [joined("x-1", P0), joined("y-1")], NOTHING).warning == ""
    assert rounds.take(KNOWN, [joined("x-1", P0), joined("y-1")], ALL) == Round()
    assert rounds.take(KNOWN, [joined("x-1", P0), joined("y-1")], NOTHING).warning == ""
