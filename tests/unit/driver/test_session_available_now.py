"""The session: Trigger.AvailableNow, and Trigger.Once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest

from spark_groupsource import errors
from spark_groupsource.cluster.port import Edge, LogEnd
from spark_groupsource.driver.readiness import AVAILABLE_NOW_MARGIN_S
from spark_groupsource.errors import GroupKafkaError, KafkaUnavailableError, MembershipError
from spark_groupsource.membership.client_renewal import UNRELEASED_MARGIN_S
from spark_groupsource.model.offsets import OffsetRange, TopicPartition
from spark_groupsource.options.model import NextTrigger, ReadBounds
from tests.unit.driver.session_bed import P0, P1, START, Bed, earliest, ranges
from tests.unit.fakes import offset_of, tp


def test_available_now_asks_only_for_the_partitions_of_option_assign() -> None:
    """The leaders of the others may be away, and they may be many."""
    bed = Bed(assign='{"orders":[0]}', startingOffsets="earliest")
    asked: list[TopicPartition] = []
    log_offsets = bed.cluster.log_offsets

    def asking(wanted: Mapping[TopicPartition, Edge | int]) -> dict[TopicPartition, LogEnd | None]:
        asked.extend(wanted)
        return log_offsets(wanted)

    bed.cluster.log_offsets = asking  # type: ignore[method-assign,assignment]
    bed.session.prepare_available_now()
    assert asked == [P0]


@pytest.mark.parametrize("protocol", ["classic", "consumer", "a coordinator that does not describe the group"])
def test_available_now_without_partitions_says_so(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    """A static member that was stopped keeps them until its session ends: the job succeeds, and nobody knows why."""
    kip848 = protocol == "consumer"
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer" if kip848 else "classic")
    bed.cluster.group_members = {"m": frozenset(), "other": frozenset({P0, P1})}
    if kip848:
        # Such a member does not learn that it has joined.
        bed.member.start()
    else:
        bed.join()
    if protocol.startswith("a coordinator"):
        bed.cluster.group_members = None
    bed.ends(p0=5)
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert "the query ends without a partition" in caplog.text
    assert "group=shop" in caplog.text
    assert bed.paused < 8.0


@pytest.mark.rule("R118")
@pytest.mark.parametrize("owned", [(), (P1,)], ids=["none", "one"])
@pytest.mark.parametrize(
    "answer", ["by nobody yet", "by this member, which does not know it yet", "the coordinator is away"]
)
def test_available_now_waits_for_partitions_that_it_may_get(
    owned: tuple[TopicPartition, ...], answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    bed = Bed(startingOffsets="earliest")
    bed.join(*owned)
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset(owned), "other": frozenset({P1} - set(owned))}
    if answer.startswith("by this"):
        bed.cluster.group_members["m"] = frozenset({P0, *owned})
    elif answer.startswith("the coordinator"):
        reason = "away"
        bed.cluster.unavailable_coordinator = KafkaUnavailableError(
            errors.CLUSTER_REQUEST_FAILED, request="ConsumerGroupDescribe", reason=reason
        )
    bed.session.prepare_available_now()
    began_s = bed.clock.monotonic_s()

    def later() -> None:
        if bed.clock.monotonic_s() > began_s + 200:
            bed.member.during_view = lambda: None
            bed.assign(P0)

    bed.member.during_view = later
    assert "orders-0 [0, 5)" in ranges(bed.session.latest_offset(START))
    assert bed.clock.monotonic_s() - began_s == pytest.approx(200, abs=2)
    assert ("orders-0" in caplog.text) == (not answer.startswith("the coordinator"))


@pytest.mark.rule("R118")
@pytest.mark.parametrize(
    ("owned", "missing"), [((), ()), ((P1,), ()), ((P1,), (P1,))], ids=["none", "one", "one that does not exist"]
)
def test_available_now_fails_if_nobody_gets_a_partition(
    owned: tuple[TopicPartition, ...], missing: tuple[TopicPartition, ...]
) -> None:
    """A member drains for 240 s at most."""
    bed = Bed(startingOffsets="earliest")
    bed.join(*owned)
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset({P1})}
    bed.session.prepare_available_now()
    bed.session._state.miss(dict.fromkeys(missing, ""))
    what = "orders-0 to no member" if owned else "no partition to this member"
    with pytest.raises(MembershipError, match=f"NO_ASSIGNMENT.*assigned {what} within 270 s"):
        bed.session.latest_offset(START)


@pytest.mark.parametrize("owned", [(), (P1,)], ids=["none", "one"])
def test_available_now_fails_if_the_coordinator_stays_away(owned: tuple[TopicPartition, ...]) -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(*owned)
    bed.ends(p0=5, p1=0)
    bed.cluster.unavailable_coordinator = KafkaUnavailableError(
        errors.CLUSTER_REQUEST_FAILED, request="ConsumerGroupDescribe", reason="away"
    )
    bed.session.prepare_available_now()
    with pytest.raises(KafkaUnavailableError, match="ConsumerGroupDescribe"):
        bed.session.latest_offset(START)


def test_rebalances_that_give_a_run_nothing_do_not_end_its_wait() -> None:
    """A third member drains. Others join meanwhile, one after the other."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P1)
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset({P1})}
    bed.session.prepare_available_now()
    moments = iter(range(6, 210, 6))

    def rebalances(next_s: float) -> None:
        if bed.paused > 200:
            bed.cluster.group_members = {"m": frozenset({P1}), "other": frozenset({P0})}
        elif bed.paused > next_s:
            bed.member.during_view = partial(rebalances, next(moments))
            bed.assign()

    bed.member.during_view = partial(rebalances, next(moments))
    assert bed.session.latest_offset(START) is START


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_run_ends_if_its_topic_is_deleted_while_it_waits_to_join(protocol: str) -> None:
    """1. Another member drains. 2. The topic is deleted, so that the group has nothing to assign."""
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false", kafka__group__protocol=protocol)
    bed.member.start()
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset(), "other": frozenset({P1})}
    bed.session.prepare_available_now()
    bed.member.during_view = lambda: bed.paused > 10 and bed.cluster.topics.clear()
    assert bed.session.latest_offset(START) is START
    assert bed.paused < 20.0


def test_another_source_of_the_query_is_not_slowed_down() -> None:
    """1. A source has read all of its own. 2. The other one has more batches, so it is asked again and again."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P1)
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset({P1}), "other": frozenset({P0})}
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    waited_s = bed.paused
    for _ in range(10):
        assert bed.session.latest_offset(START) is START
    assert bed.paused == waited_s


def test_a_run_with_option_assign_asks_for_no_members() -> None:
    """1. A run has read two partitions. 2. One topic is deleted."""
    bed = Bed(assign='{"orders":[0],"refunds":[0]}', startingOffsets="earliest", failOnDataLoss="false")
    bed.ends(p0=5, refunds=3)
    bed.session.prepare_available_now()
    bed.assign(P0, tp(0, "refunds"))
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    del bed.cluster.topics["refunds"]
    bed.cluster.group_members = {}
    assert bed.session.latest_offset(end) is end


@pytest.mark.parametrize("owned", [(), (P1,)], ids=["none", "one"])
def test_available_now_does_not_wait_for_another_source_of_its_query(owned: tuple[TopicPartition, ...]) -> None:
    """It has planned, and gives nothing up before this one has."""
    bed = Bed(startingOffsets="earliest")
    bed.has_sibling = True
    bed.join(*owned)
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset({P1})}
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert bed.paused < 8.0


def test_a_source_ends_when_another_one_of_its_query_has_confirmed_the_only_partition() -> None:
    """Under KIP-848 a member without partitions does not learn that it has joined."""
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer")
    bed.has_sibling = True
    bed.member.start()
    bed.ends(p0=5)
    bed.cluster.group_members = {"m": frozenset(), "other": frozenset()}

    def confirms() -> None:
        if bed.paused > 7:
            bed.cluster.group_members = {"m": frozenset(), "other": frozenset({P0, P1})}

    bed.member.during_view = confirms
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert bed.paused < 10.0


@pytest.mark.rule("R84")
def test_a_run_that_is_to_give_a_partition_up_and_does_not_know_it_joins_again() -> None:
    """1. The coordinator takes a partition from a run that has read it, and the answer is lost. 2. The run waits until
    all members have confirmed their assignments, and is the one that has not.
    """
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer")
    bed.join(P1)
    bed.ends(p0=5, p1=0)
    others: dict[str, frozenset[TopicPartition]] = {"m": frozenset(), "other": frozenset({P0, P1})}

    def members(_: str, *, once: bool = False, confirmed: bool = False) -> dict[str, frozenset[TopicPartition]]:
        if bed.group.joins:
            return {"m": frozenset({P1}), "other": frozenset({P0})}
        return dict.fromkeys(others, frozenset()) if confirmed else others

    bed.cluster.members = members  # type: ignore[method-assign]
    bed.session.prepare_available_now()
    bed.member.shows(lost_answers=1)
    assert bed.session.latest_offset(START) is START
    assert bed.group.joins == 1
    assert bed.paused < 30.0


def test_the_wait_of_a_source_whose_first_one_does_not_drain_is_not_over_before_it_begins() -> None:
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer", drainTimeoutMs="0")
    bed.has_sibling = True
    bed.member.start()
    bed.ends(p0=5)
    bed.cluster.group_members = {"m": frozenset(), "other": frozenset()}
    bed.session.prepare_available_now()
    with pytest.raises(MembershipError, match="within 1 s"):
        bed.session.latest_offset(START)


def test_a_stop_ends_the_wait_for_partitions() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P1)
    bed.ends(p0=5, p1=0)
    bed.cluster.group_members = {"m": frozenset({P1})}
    bed.session.prepare_available_now()
    bed.member.during_view = lambda: bed.paused > 3 and bed.session.request_stop()
    with pytest.raises(MembershipError, match="MEMBER_LEFT"):
        bed.session.latest_offset(START)
    assert bed.paused < 5.0


def test_available_now_waits_longer_than_a_static_member_for_its_instance_id() -> None:
    """Else NO_ASSIGNMENT hides INSTANCE_ID_IN_USE. The second wait begins later: with the first refusal."""
    assert AVAILABLE_NOW_MARGIN_S >= UNRELEASED_MARGIN_S + 10


@pytest.mark.parametrize("available_now", [False, True])
def test_the_checkpoint_of_another_query_is_noticed_with_each_trigger(
    available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """AvailableNow starts the session before Spark says where it goes on."""
    bed = earliest(p0=5)
    if available_now:
        bed.session.prepare_available_now()
    bed.session.latest_offset(offset_of(OffsetRange(tp(0, "refunds"), 0, 5)))
    assert caplog.text.count("has read none of these topics, but refunds") == 1


def test_available_now_without_any_partition_ends_at_once() -> None:
    bed = Bed(subscribePattern="nothing-.*")
    bed.cluster.matching = ()
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert bed.paused == 0.0


@pytest.mark.parametrize("later", [NextTrigger.NONE, NextTrigger.UNKNOWN])
def test_once_without_any_topic_ends_as_available_now_does(later: NextTrigger) -> None:
    """No member without a topic gets an assignment, so NO_ASSIGNMENT would come after 75 s."""
    bed = Bed(subscribePattern="nothing-.*")
    bed.cluster.matching = ()
    assert bed.session.latest_offset(START, later=later) is START
    assert bed.paused < 10.0


@pytest.mark.parametrize("later", [NextTrigger.NONE, NextTrigger.UNKNOWN])
def test_once_ends_also_when_its_topics_are_deleted(later: NextTrigger) -> None:
    bed = Bed(failOnDataLoss="false")
    bed.cluster.topics.clear()
    start = offset_of(OffsetRange(P0, 0, 5))
    assert bed.session.latest_offset(start, later=later) is start
    assert bed.paused < 20.0


@pytest.mark.parametrize(
    ("available_now", "away_s", "goes_on"), [(True, 100.0, True), (True, 130.0, False), (False, 100.0, True)]
)
def test_a_run_that_may_end_waits_for_a_coordinator_that_takes_no_start_position(
    available_now: bool, away_s: float, goes_on: bool
) -> None:
    """As long as for brokers."""
    bed = earliest(p0=5)
    if available_now:
        bed.session.prepare_available_now()
    later = NextTrigger.COMES if available_now else NextTrigger.UNKNOWN
    back_s, establish = bed.clock.now_s + away_s, bed.member.establish
    bed.member.establish = lambda *given: bed.clock.now_s >= back_s and establish(*given)  # type: ignore[method-assign]
    if goes_on:
        assert ranges(bed.session.latest_offset(START, later=later)) == ["orders-0 [0, 5)"]
    else:
        with pytest.raises(KafkaUnavailableError, match=r"CLUSTER_REQUEST_FAILED.*for 120 s"):
            bed.session.latest_offset(START, later=later)


@pytest.mark.parametrize(
    ("joined", "error"),
    [(True, "OffsetFetch failed"), (False, "NO_ASSIGNMENT")],
    ids=["offsets unknown", "no assignment"],
)
def test_available_now_does_not_end_because_the_group_is_slow(joined: bool, error: str) -> None:
    bed = Bed()
    bed.group.unanswered_fetches = 10**6
    bed.member.start()
    if joined:
        bed.assign(P0)
    bed.session.prepare_available_now()
    with pytest.raises(GroupKafkaError, match=error):
        bed.session.latest_offset(START)
    assert 45.0 < bed.paused < 300.0


# --- before Spark 4.2 the source does not learn the trigger, so the first plan of a run may be its only one


@pytest.mark.parametrize("trouble", ["a dead member's session", "the strategy refuses"])
@pytest.mark.parametrize("settles", [True, False])
def test_a_run_that_may_end_waits_for_partitions_and_does_not_fail(
    trouble: str, settles: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A query that goes on must not fail at its start, and one that ends must not leave everything unread."""
    bed = Bed(startingOffsets="earliest")
    if trouble == "the strategy refuses":
        bed.join()
        bed.member.shows(assignment_refused=True)
    bed.ends(p0=5)
    began_s = bed.clock.monotonic_s()

    def later() -> None:
        if settles and bed.clock.monotonic_s() > began_s + 40:
            bed.member.during_view = lambda: None
            bed.member.shows(assignment_refused=False)
            bed.assign(P0)

    bed.member.during_view = later
    found = bed.session.latest_offset(START, later=NextTrigger.UNKNOWN)
    waited_s = bed.clock.monotonic_s() - began_s
    if settles:
        assert ranges(found) == ["orders-0 [0, 5)"]
        assert waited_s == pytest.approx(40, abs=1)
    else:
        assert found is START
        assert waited_s == pytest.approx(45 + AVAILABLE_NOW_MARGIN_S, abs=1)
        assert "a query with Trigger.AvailableNow or Once ends without them" in caplog.text
        # Later plans wait no longer than any other.
        assert bed.session.latest_offset(START) is START
        assert bed.clock.monotonic_s() - began_s - waited_s < 6


def test_the_records_after_a_batch_are_counted() -> None:
    bed = earliest(p0=5)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=2))
    assert bed.session.unread_after(end) == 3
    bed.ends(p0=9)
    assert bed.session.unread_after(end) == 7
