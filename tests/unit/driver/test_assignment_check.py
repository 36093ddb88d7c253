"""A change of the assignment that the client has never learned (KIP-848)."""

from __future__ import annotations

import pytest

from spark_groupsource import errors
from spark_groupsource.errors import KafkaUnavailableError
from spark_groupsource.model.offsets import TopicPartition
from tests.unit.driver.session_bed import P0, P1, START, Bed, ranges

ME = "this member"


REFUNDS = TopicPartition("refunds", 0)


def bed_with(*assigned: TopicPartition, protocol: str = "consumer") -> Bed:
    """Return a session that owns both partitions, while the coordinator has given it these."""
    bed = Bed(startingOffsets="earliest", kafka__group__protocol=protocol)
    bed.group.member_id = ME
    bed.cluster.group_members = {ME: frozenset({P0, P1})}
    bed.join(P0, P1)
    bed.ends(p0=0, p1=0)
    bed.session.latest_offset(START)
    bed.cluster.group_members = {ME: frozenset(assigned)}
    return bed


def unavailable() -> KafkaUnavailableError:
    return KafkaUnavailableError(errors.CLUSTER_REQUEST_FAILED, request="ConsumerGroupDescribe", reason="away")


def trigger(bed: Bed, seconds: float) -> int:
    """Let a trigger come every second; return how often the member has joined again."""
    for _ in range(round(seconds)):
        bed.clock.advance(1.0)
        bed.session.latest_offset(START)
    return bed.group.joins


@pytest.mark.rule("R84")
def test_a_member_whose_assignment_was_lost_joins_again_once() -> None:
    bed = bed_with(P0)
    bed.member.shows(lost_answers=1)
    assert trigger(bed, 9) == 0, "the next heartbeat may bring it"
    assert trigger(bed, 6) == 1
    assert trigger(bed, 60) == 1
    bed.member.shows(lost_answers=2)
    assert trigger(bed, 15) == 2


def test_an_assignment_that_the_member_has_not_taken_counts_too() -> None:
    bed = bed_with(P0, P1, REFUNDS)
    bed.member.shows(lost_answers=1)
    assert trigger(bed, 15) == 1


@pytest.mark.parametrize("before", ["its first one", "after a loss"])
@pytest.mark.rule("R84")
def test_a_member_without_partitions_whose_assignment_was_lost_joins_again(before: str) -> None:
    """Nobody reads the partition meanwhile, and no revocation is pending that would end that."""
    if before == "after a loss":
        bed = bed_with(P0)
        bed.lose(P0, P1)
    else:
        bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer")
        bed.group.member_id = ME
        bed.member.start()
        bed.cluster.group_members = {ME: frozenset({P0})}
    bed.member.shows(lost_answers=1)
    assert trigger(bed, 40) == 1


@pytest.mark.rule("R84")
def test_available_now_joins_again_while_it_waits_for_its_assignment() -> None:
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer")
    bed.group.member_id = ME
    bed.member.start()
    bed.ends(p0=5)
    bed.cluster.group_members = {ME: frozenset({P0})}
    bed.member.shows(lost_answers=1)
    bed.member.during_view = lambda: (
        bed.group.assign(P0) if bed.group.joins and not bed.group.owned and not bed.group.waiting else None
    )
    bed.session.prepare_available_now()
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]


def test_the_coordinator_is_not_asked_while_no_answer_is_lost() -> None:
    bed = bed_with(P0)
    bed.cluster.unavailable_coordinator = unavailable()
    assert trigger(bed, 60) == 0


def test_a_coordinator_that_does_not_answer_ends_no_query() -> None:
    bed = bed_with(P0)
    bed.member.shows(lost_answers=1)
    bed.cluster.unavailable_coordinator = unavailable()
    assert trigger(bed, 30) == 0
    bed.cluster.unavailable_coordinator = None
    assert trigger(bed, 15) == 1


def test_a_change_that_arrives_is_waited_for() -> None:
    bed = bed_with(P0)
    bed.member.shows(lost_answers=1)
    trigger(bed, 8)
    bed.lose(P1)
    assert trigger(bed, 60) == 0


def test_a_change_after_the_lost_answer_is_noticed() -> None:
    """The coordinator handles the given-up heartbeat later than the first comparison."""
    bed = bed_with(P0, P1)
    bed.member.shows(lost_answers=1)
    trigger(bed, 5)
    bed.cluster.group_members = {ME: frozenset({P0})}
    assert trigger(bed, 16) == 1


@pytest.mark.parametrize("reported", [True, False], ids=["classic group", "no right to describe it"])
def test_a_group_that_does_not_assign_by_topic_id_is_not_compared(reported: bool) -> None:
    bed = bed_with(P0, protocol="classic" if reported else "consumer")
    if not reported:
        bed.cluster.group_members = None
    bed.member.shows(lost_answers=1)
    assert trigger(bed, 30) == 0
