"""The session: Spark's calls led through planning and membership, with the real state machine behind them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from spark_groupsource.cluster.port import Edge, LogEnd, TopicInfo
from spark_groupsource.driver.data_loss import SHORT_S
from spark_groupsource.driver.readiness import COMMIT_S, FIRST_ASSIGNMENT_S, SETTLE_S
from spark_groupsource.driver.session import Session
from spark_groupsource.driver.topics import REFRESH_S
from spark_groupsource.errors import DataLossError, GroupKafkaError, KafkaUnavailableError, MembershipError, OptionError
from spark_groupsource.membership.events import FlightBatch
from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset, KnownTopics, Pin, parse_metadata
from spark_groupsource.model.offsets import NO_TOPIC_ID, OffsetRange, Reset, SourceOffset, TopicPartition
from spark_groupsource.options.model import ReadBounds

from .fakes import (
    LINEAGE,
    OTHER_LINEAGE,
    TOPIC_ID,
    FakeCluster,
    FakeMember,
    ManualClock,
    make_options,
    offset_of,
    quiet_metrics,
    tp,
)

P0, P1, P2 = tp(0), tp(1), tp(2)
PIN = Pin(0, 2)


def metadata(lineage: str, start: int, end: int, *, pin: Pin = PIN, topic_id: str = TOPIC_ID) -> str:
    return CommitMetadata(lineage, topic_id, start, end, pin).to_text()


class Bed:
    """A session on fakes; pauses let time pass."""

    def __init__(self, **options: str) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(orders=2)
        self.member = FakeMember(self.clock)
        self.member.exists = self.cluster.has
        self.paused = 0.0
        self.fixed_after: list[float] = []
        self.session = Session(
            make_options(checkpointLocation="/checkpoint", **options),
            clock=self.clock,
            cluster=self.cluster,
            member=self.member,  # type: ignore[arg-type]
            metrics=quiet_metrics(),
            pause=self._pause,
        )

    def _pause(self, seconds: float) -> None:
        self.paused += seconds
        self.clock.advance(seconds)

    def join(self, *partitions: TopicPartition) -> None:
        """Start the member, and let the group give it partitions."""
        self.member.start()
        self.member.assign(*partitions)

    def ends(self, **offsets: int) -> None:
        """Set the ends of the log: p0=5, p1=7."""
        self.cluster.ends |= {tp(int(name[1:])): end for name, end in offsets.items()}

    def committed(self) -> dict[int, int | None]:
        """Return the group's offsets."""
        return {partition.partition: group.offset for partition, group in self.member.committed.items()}


START = SourceOffset(LINEAGE)


def ranges(offset: SourceOffset) -> list[str]:
    return [str(item) for item in offset.ranges]


def flat(tasks: Iterable[tuple[OffsetRange, ...]]) -> list[str]:
    return [str(item) for task in tasks for item in task]


# --- life


def test_nothing_happens_before_the_first_call() -> None:
    bed = Bed()
    assert bed.member.calls == []
    assert repr(bed.session) == f"Session(group='shop', lineage=None, {bed.member!r})"


def test_an_unknown_topic_fails_before_the_member_joins() -> None:
    bed = Bed(subscribe="orders,nowhere")
    with pytest.raises(OptionError, match=r"TOPIC_UNKNOWN.*'nowhere'"):
        bed.session.start()
    assert bed.member.calls == []


def test_start_is_done_once() -> None:
    bed = Bed()
    bed.session.start()
    bed.session.start()
    assert bed.member.calls == [("start", None), ("subscribe", ("orders",))]


def test_a_missing_checkpoint_location_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    clock, cluster = ManualClock(), FakeCluster(orders=1)
    member = FakeMember(clock)
    session = Session(
        make_options(),
        clock=clock,
        cluster=cluster,
        member=member,  # type: ignore[arg-type]
        metrics=quiet_metrics(),
        pause=clock.advance,
    )
    with caplog.at_level(logging.WARNING):
        session.start()
        session.start()
    assert caplog.text.count("checkpointLocation is not set") == 1


def test_stop_is_idempotent_and_frees_the_cluster() -> None:
    bed = Bed()
    bed.session.start()
    bed.session.stop()
    bed.session.stop()
    assert bed.member.stopping
    assert bed.cluster.closed


def test_a_stop_ends_the_wait_for_an_assignment() -> None:
    bed = Bed()
    bed.session.request_stop()
    assert bed.session.latest_offset(START) is START
    assert bed.paused == 0.0


def test_a_stop_by_signal_is_not_the_end_of_what_is_available_now() -> None:
    """Guards against: 1. SIGTERM comes to the reader alone, 2. the next trigger has "nothing new", 3. the query ends as
    if it had read everything."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    bed.session.prepare_available_now()
    bed.session.request_stop()
    with pytest.raises(MembershipError, match="MEMBER_LEFT"):
        bed.session.latest_offset(START)


# --- plan


def test_a_batch_is_planned_from_the_pinned_start() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0, P1)
    bed.ends(p0=5, p1=0)
    end = bed.session.latest_offset(START)
    assert ranges(end) == ["orders-0 [0, 5)", "orders-1 [0, 0)"]
    assert (end.lineage, end.topic_id("orders")) == (LINEAGE, TOPIC_ID)
    assert end.ranges[0].leader_epoch == 3
    assert flat(bed.session.tasks(START, end)) == ["orders-0 [0, 5)"]
    assert bed.session.newest_offsets() == {"orders": {"0": 5, "1": 0}}


def test_pins_are_committed_before_anything_is_planned() -> None:
    """Else a crash would move 'latest', and the records between would be lost."""
    bed = Bed()
    bed.join(P0)
    bed.ends(p0=5, p1=9)
    assert bed.session.latest_offset(START) is START
    names = [name for name, _ in bed.member.calls]
    assert "fix" not in names
    assert names.index("establish") < names.index("commit")
    (item,) = bed.member.named("commit")[0]  # type: ignore[misc]
    assert (item.partition, item.offset) == (P0, 5)
    pinned = CommitMetadata(LINEAGE, TOPIC_ID, 5, 5, Pin(5, 2, KnownTopics.of({"orders": TOPIC_ID})))
    assert parse_metadata(item.metadata) == pinned
    bed.ends(p0=8)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [5, 8)"]


@pytest.mark.rule("R1")
def test_nothing_is_planned_from_a_start_that_the_group_refused() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    bed.member.refused_establishes = 10**6
    assert bed.session.latest_offset(START) is START
    assert bed.member.named("fix") == []
    bed.member.refused_establishes = 2
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]


def test_nothing_new_returns_start_itself() -> None:
    """Spark runs an empty batch for anything else."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    assert bed.session.latest_offset(end) is end


@pytest.mark.parametrize("partitions", [(), (P0,)])
def test_the_first_call_waits_for_an_assignment(partitions: tuple[TopicPartition, ...]) -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(*partitions)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    if partitions:
        assert (ranges(end), bed.paused) == (["orders-0 [0, 5)"], 0.0)
    else:
        assert end is START
        assert bed.paused == pytest.approx(FIRST_ASSIGNMENT_S, abs=0.1)
        assert bed.session.latest_offset(START) is START
        assert bed.paused == pytest.approx(FIRST_ASSIGNMENT_S + SETTLE_S, abs=0.1)


def test_the_completed_batch_is_committed_at_the_next_trigger() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    assert bed.committed() == {0: 0}
    bed.ends(p0=9)
    following = bed.session.latest_offset(end)
    assert bed.committed() == {0: 5}
    assert ranges(following) == ["orders-0 [5, 9)"]
    bed.session.commit(end)
    assert bed.committed() == {0: 5}
    bed.session.commit(following)
    assert bed.committed() == {0: 9}


def second_batch_uncommitted(bed: Bed) -> SourceOffset:
    """The first batch is complete, and its commit has no answer; there is more to read."""
    bed.join(P0)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.ends(p0=9)
    bed.member.takes_commits = False
    bed.paused = 0.0
    return end


@pytest.mark.rule("R9")
def test_p6_a_batch_waits_for_the_commit_of_the_one_before() -> None:
    """Cut off now, the next owner repeats the first batch; with the second one read too, it would repeat both."""
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.member.during_view = lambda: bed.member.take_commits() if bed.paused > 0.5 else None
    bed.member.during_fix = lambda: bed.fixed_after.append(bed.paused)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [5, 9)"]
    assert bed.fixed_after == [pytest.approx(0.5, abs=0.1)]
    assert bed.committed() == {0: 5}


@pytest.mark.rule("R9")
def test_p6_a_member_that_is_lost_while_it_waits_plans_nothing() -> None:
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.member.during_view = lambda: bed.member.lose(P0) if bed.paused > 0.5 else None
    assert bed.session.latest_offset(end) is end


@pytest.mark.rule("R9")
def test_m09_batches_go_on_without_commits_after_one_wait(caplog: pytest.LogCaptureFixture) -> None:
    """The ends are asked for anew after the wait; the batches behind it do not wait, until a commit is taken."""
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.member.during_view = lambda: bed.ends(p0=11) if bed.paused > 0.5 else None
    with caplog.at_level(logging.WARNING):
        second = bed.session.latest_offset(end)
    assert ranges(second) == ["orders-0 [5, 11)"]
    assert bed.paused == pytest.approx(COMMIT_S, abs=0.1)
    assert [record.getMessage() for record in caplog.records] == [
        "batches go on, no commit was taken for 1 s: group=shop"
    ]
    bed.member.during_view = lambda: None
    bed.ends(p0=12)
    third = bed.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [11, 12)"]
    assert bed.paused == pytest.approx(COMMIT_S, abs=0.1)
    bed.member.take_commits()
    bed.ends(p0=13)
    fourth = bed.session.latest_offset(third)
    bed.member.takes_commits = False
    bed.ends(p0=14)
    assert ranges(bed.session.latest_offset(fourth)) == ["orders-0 [13, 14)"]
    assert bed.paused == pytest.approx(2 * COMMIT_S, abs=0.1)


@pytest.mark.parametrize(("session_s", "asked_s"), [(6.0, 5.0), (20.0, 19.0), (None, 5.0)])
def test_p6_the_session_of_a_kip848_group_is_the_brokers(session_s: float | None, asked_s: float) -> None:
    """Guards against: 1. the group's session is 6 s, and a member that is cut off takes it for 45 s; 2. it completes
    batches for 45 s without a commit; 3. the next owner, which has had the partitions for long, reads them, too.
    """
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer")
    bed.cluster.session_s = session_s
    end = second_batch_uncommitted(bed)
    assert bed.cluster.session_asked == ["shop"]
    second = bed.session.latest_offset(end)
    bed.clock.advance(asked_s)
    bed.ends(p0=11)
    third = bed.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [9, 11)"]
    bed.ends(p0=13)
    bed.clock.advance(2.0)
    assert bed.session.latest_offset(third) == third


@pytest.mark.parametrize(
    ("given", "stops"),
    [({"kafka__group__protocol": "consumer"}, True), ({}, True), ({"assignors": "weighted"}, False)],
)
@pytest.mark.rule("R71")
def test_p6_a_member_that_is_cut_off_plans_no_more_than_a_session_long(given: dict[str, str], stops: bool) -> None:
    """It cannot reach its coordinator, and reads from the other brokers; the group gives its partitions away.
    kafka-python takes no commits while it joins, which is as long as others drain."""
    bed = Bed(startingOffsets="earliest", **given)
    bed.cluster.session_s = 45.0
    end = second_batch_uncommitted(bed)
    second = bed.session.latest_offset(end)
    bed.clock.advance(44.0)
    bed.ends(p0=11)
    third = bed.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [9, 11)"]
    bed.clock.advance(1.0)
    bed.ends(p0=12)
    fourth = bed.session.latest_offset(third)
    assert fourth is third if stops else ranges(fourth) == ["orders-0 [11, 12)"]
    if stops:
        bed.member.take_commits()
        assert ranges(bed.session.latest_offset(third)) == ["orders-0 [11, 12)"]


def test_p6_available_now_does_not_end_for_a_member_of_kip_848_that_is_cut_off() -> None:
    bed = Bed(startingOffsets="earliest", kafka__group__protocol="consumer", maxOffsetsPerTrigger="5")
    bed.ends(p0=9)
    bed.session.prepare_available_now()
    bed.member.assign(P0)
    bounds = ReadBounds(max_rows=5)
    end = bed.session.latest_offset(START, bounds)
    bed.member.takes_commits = False
    second = bed.session.latest_offset(end, ReadBounds(max_rows=2))
    assert ranges(second) == ["orders-0 [5, 7)"]
    bed.clock.advance(45.0)
    with pytest.raises(MembershipError, match="NO_ASSIGNMENT"):
        bed.session.latest_offset(second, bounds)


def test_a_stop_ends_the_wait_for_a_commit() -> None:
    bed = Bed(startingOffsets="earliest")
    end = second_batch_uncommitted(bed)
    bed.member.stopping = True
    assert bed.session.latest_offset(end) is end
    assert bed.paused == 0.0


def test_a_plan_that_spark_never_logged_is_made_again() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]
    bed.ends(p0=6)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 6)"]
    assert len(bed.member.named("discard")) == 1
    assert bed.committed() == {0: 0}


def test_the_limit_is_shared_out() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0, P1)
    bed.ends(p0=300, p1=100)
    assert ranges(bed.session.latest_offset(START, ReadBounds(max_rows=40))) == ["orders-0 [0, 30)", "orders-1 [0, 10)"]


@pytest.mark.parametrize(("available", "later_s", "planned"), [(9, 59.0, False), (10, 0.0, True), (1, 60.0, True)])
def test_too_few_records_are_left_for_later(available: int, later_s: float, planned: bool) -> None:
    """The first batch does not wait; the next ones do until there are enough records, or for maxTriggerDelay."""
    bed = Bed(startingOffsets="earliest", maxTriggerDelay="1m")
    bed.join(P0)
    bed.ends(p0=1)
    first = bed.session.latest_offset(START, ReadBounds(min_rows=10))
    assert ranges(first) == ["orders-0 [0, 1)"]
    bed.ends(p0=1 + available)
    bed.clock.advance(later_s)
    assert (bed.session.latest_offset(first, ReadBounds(min_rows=10)) is not first) is planned


def test_too_few_records_are_left_for_later_beside_a_log_that_is_short() -> None:
    """A log that ends before its position is looked into: its topic may be another one. It is no reason to read."""
    bed = Bed(startingOffsets="earliest")
    bed.member.committed[P1] = GroupOffset(10, metadata(LINEAGE, 5, 10))
    bed.join(P0, P1)
    bed.ends(p0=5, p1=10)
    start = offset_of(OffsetRange(P0, 0, 0), OffsetRange(P1, 5, 10))
    first = bed.session.latest_offset(start, ReadBounds(min_rows=1))
    bed.ends(p0=6, p1=9)
    assert bed.session.latest_offset(first, ReadBounds(min_rows=100)) is first


def test_no_records_are_no_batch_however_long_it_waited() -> None:
    bed = Bed(startingOffsets="earliest", maxTriggerDelay="1m")
    bed.join(P0)
    assert bed.session.latest_offset(START, ReadBounds(min_rows=10)) is START
    bed.clock.advance(120.0)
    assert bed.session.latest_offset(START, ReadBounds(min_rows=10)) is START


@pytest.mark.rule("R10")
def test_a_plan_is_made_anew_when_ownership_changed_under_it() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0, P1)
    assert bed.session.latest_offset(START) is START
    bed.ends(p0=5, p1=7)

    def lose_one() -> None:
        bed.member.during_fix = lambda: None
        bed.member.lose(P1)
        bed.member.assign(P0)

    bed.member.during_fix = lose_one
    end = bed.session.latest_offset(START)
    assert [item.partition for item in end.ranges] == [P0]
    assert len(bed.member.named("fix")) == 2


def test_a_group_that_keeps_rebalancing_gives_no_batch_but_ends() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    bed.member.refused_fixes = 10**6
    bed.member.during_fix = lambda: bed.clock.advance(1.0)
    assert bed.session.latest_offset(START) is START


# --- start positions


def test_a_takeover_starts_at_the_groups_offset() -> None:
    bed = Bed()
    bed.member.committed[P0] = GroupOffset(70, metadata(OTHER_LINEAGE, 60, 70, pin=Pin(60, 2)))
    bed.join(P0)
    bed.ends(p0=75)
    end = bed.session.latest_offset(START)
    assert ranges(end) == ["orders-0 [70, 75)"]
    bed.session.commit(end)
    written = parse_metadata(bed.member.committed[P0].metadata)
    assert written is not None
    assert (written.lineage, written.pin) == (LINEAGE, Pin(60, 2))


def test_an_own_end_ahead_of_the_group_is_committed_first() -> None:
    bed = Bed()
    bed.member.committed[P0] = GroupOffset(40, metadata(LINEAGE, 30, 40))
    bed.join(P0)
    bed.ends(p0=75)
    end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)))
    assert ranges(end) == ["orders-0 [70, 75)"]
    assert bed.committed() == {0: 70}


@pytest.mark.rule("R12")
def test_after_a_restart_nothing_is_committed_backwards() -> None:
    """Seen: 3,593 rows doubled, because the first call committed the old end over another member's."""
    bed = Bed()
    bed.member.committed[P0] = GroupOffset(90, metadata(OTHER_LINEAGE, 80, 90))
    bed.join(P0)
    bed.ends(p0=90)
    start = offset_of(OffsetRange(P0, 40, 70))
    assert bed.session.latest_offset(start) is start
    assert bed.member.named("commit") == []
    assert bed.committed() == {0: 90}


@pytest.mark.rule("R4")
def test_a_partition_that_appears_later_starts_at_its_beginning() -> None:
    bed = Bed()
    bed.join(P0, P1)
    bed.ends(p0=5, p1=5, p2=4)
    assert bed.session.latest_offset(START) is START
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    bed.member.assign(P2)
    assert "orders-2 [0, 4)" in ranges(bed.session.latest_offset(START))


@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.rule("R5")
def test_p8_what_an_added_partition_lost_before_anybody_looked_is_told(
    starting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The query is down; a partition is added and filled; retention removes its first records; the query starts."""
    bed = Bed(startingOffsets=starting, failOnDataLoss="false")
    bed.member.committed[P0] = GroupOffset(5, metadata(LINEAGE, 0, 5))
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    bed.ends(p0=5, p2=9)
    bed.cluster.beginnings[P2] = 4
    bed.join(P0, P2)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 5)))
    assert ranges(end) == ["orders-0 [5, 5)", "orders-2 [4, 9)"]
    assert "data lost and skipped, failOnDataLoss=false: group=shop orders-2 [0, 4)" in caplog.text


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_what_a_new_group_finds_removed_is_no_loss(starting: str) -> None:
    bed = Bed(startingOffsets=starting)
    bed.ends(p0=5, p1=9)
    bed.cluster.beginnings[P1] = 4
    bed.join(P0, P1)
    bed.session.latest_offset(START)
    assert bed.committed() == ({0: 0, 1: 4} if starting == "earliest" else {0: 5, 1: 9})


@pytest.mark.rule("R4")
def test_a_topic_that_appears_later_starts_at_its_beginning() -> None:
    bed = Bed(subscribePattern=".*")
    bed.join(P0)
    bed.ends(p0=5)
    assert bed.session.latest_offset(START) is START
    refund = TopicPartition("refunds", 0)
    bed.cluster.topics["refunds"] = TopicInfo("refunds-id", 1)
    bed.cluster.ends[refund] = 4
    bed.clock.advance(6.0)
    assert bed.session.latest_offset(START) is START
    assert bed.member.named("subscribe") == [("orders",), ("orders", "refunds")]
    bed.member.assign(refund)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [5, 5)", "refunds-0 [0, 4)"]


@pytest.mark.parametrize("pinned_before", [True, False])
@pytest.mark.rule("R7")
def test_p1_a_topic_is_new_also_when_the_first_pins_are_gone_with_theirs(pinned_before: bool) -> None:
    """1. orders is pinned, by a pattern; 2. refunds and returns are made, with records; 3. refunds is pinned and orders
    deleted, whose offsets the broker removes: in either order; 4. another member is given returns. By default a topic
    that was there when the group began starts at its end.
    """
    refunds, returns = tp(0, "refunds"), tp(0, "returns")
    bed = Bed(subscribePattern=".*", failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=5)
    bed.session.latest_offset(START)
    bed.ends(p0=8)
    end = bed.session.latest_offset(START)
    for partition in (refunds, returns):
        bed.cluster.topics[partition.topic] = TopicInfo(f"{partition.topic}-id", 1)
        bed.cluster.ends[partition] = 4
    bed.clock.advance(REFRESH_S + 1)
    bed.session.latest_offset(end)

    def delete_orders() -> None:
        bed.member.lose(P0)
        del bed.cluster.topics["orders"], bed.member.committed[P0]

    if not pinned_before:
        delete_orders()
    bed.member.assign(refunds)
    assert "refunds-0 [0, 4)" in ranges(bed.session.latest_offset(end))
    if pinned_before:
        delete_orders()

    other = Bed(subscribePattern=".*")
    other.cluster.topics = {name: info for name, info in bed.cluster.topics.items() if name != "orders"}
    other.cluster.ends[returns] = 4
    other.member.committed = bed.member.committed
    other.join(returns)
    assert ranges(other.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["returns-0 [0, 4)"]


@pytest.mark.rule("R7")
def test_p1_a_later_pin_names_no_topic_that_the_first_pins_do_not() -> None:
    """1. orders is pinned. 2. refunds and returns are created, with records. 3. Query B starts, finds all three topics
    and pins refunds. 4. orders is deleted, and its pin with it. 5. Query C gets returns. By default a topic that
    existed when the group began starts at its end.
    """
    refunds, returns = tp(0, "refunds"), tp(0, "returns")
    first = Bed(subscribePattern=".*")
    first.join(P0)
    first.session.latest_offset(START)
    second, third = Bed(subscribePattern=".*"), Bed(subscribePattern=".*")
    for bed in (second, third):
        bed.member.committed = first.member.committed
        bed.cluster.ends |= {refunds: 4, returns: 4}
        bed.cluster.topics |= {name: TopicInfo(f"{name}-id", 1) for name in ("refunds", "returns")}
    second.join(refunds)
    assert ranges(second.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["refunds-0 [0, 4)"]
    del third.cluster.topics["orders"], first.member.committed[P0]
    third.join(returns)
    assert ranges(third.session.latest_offset(SourceOffset("third"))) == ["returns-0 [0, 4)"]


@pytest.mark.rule("R4")
def test_other_topics_after_a_restart_start_at_their_beginning() -> None:
    """As in Spark's own source: the starting options are those of a new query."""
    refund = TopicPartition("refunds", 0)
    for start, position in ((offset_of(OffsetRange(P0, 0, 5)), 0), (START, 4)):
        bed = Bed(subscribe="refunds")
        bed.cluster.topics["refunds"] = TopicInfo("refunds-id", 1)
        bed.join(refund)
        bed.cluster.ends[refund] = 4
        bed.session.latest_offset(start)
        assert bed.member.committed[refund].offset == position


def test_p1_a_topic_that_appears_while_a_standby_waits_is_a_new_one_among_too_many_to_pin() -> None:
    """A pin tells up to 400 topics. The sequence: 401 topics are pinned by another member; the standby starts; one more
    topic is made, with records, and given to the standby. By default one that was there would start at its end.
    """
    names = [f"t{number}" for number in range(401)]
    topics = {name: TopicInfo(f"{name}-id", 1) for name in names}
    first, standby = Bed(subscribePattern="t.*"), Bed(subscribePattern="t.*")
    first.cluster.topics, standby.cluster.topics = dict(topics), dict(topics)
    first.join(tp(0, "t0"))
    assert first.session.latest_offset(START) is START
    standby.member.committed = first.member.committed
    standby.join()
    assert standby.session.latest_offset(START) is START
    new = tp(0, "tnew")
    standby.cluster.topics["tnew"] = TopicInfo("tnew-id", 1)
    standby.cluster.ends[new] = 4
    standby.clock.advance(REFRESH_S + 1)
    standby.session.latest_offset(START)
    standby.member.assign(new)
    assert ranges(standby.session.latest_offset(START)) == ["tnew-0 [0, 4)"]


def test_p1_the_first_pins_tell_no_topic_that_was_made_since_the_query_started() -> None:
    """1. the query starts, with nothing to read; 2. refunds is made, with records; 3. orders is pinned; 4. another
    member, which knows both, is given refunds.
    """
    refunds = tp(0, "refunds")
    bed, other = Bed(subscribePattern=".*"), Bed(subscribePattern=".*")
    bed.join()
    assert bed.session.latest_offset(START) is START
    for each in (bed, other):
        each.cluster.topics["refunds"] = TopicInfo("refunds-id", 1)
        each.cluster.ends[refunds] = 4
    bed.clock.advance(REFRESH_S + 1)
    bed.member.assign(P0)
    bed.session.latest_offset(START)
    other.member.committed = bed.member.committed
    other.join(refunds)
    assert ranges(other.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["refunds-0 [0, 4)"]


def test_starting_timestamp() -> None:
    bed = Bed(startingTimestamp="1700000000000")
    bed.join(P0)
    bed.ends(p0=9)
    bed.cluster.at_time[P0] = 6
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [6, 9)"]


@pytest.mark.parametrize("strategy", ["error", "latest"])
def test_starting_timestamp_after_all_records(strategy: str) -> None:
    bed = Bed(startingTimestamp="1700000000000", startingOffsetsByTimestampStrategy=strategy)
    bed.join(P0)
    bed.ends(p0=9)
    if strategy == "error":
        with pytest.raises(OptionError, match=r"'startingTimestamp' has the value '1700000000000'.*orders-0 has none"):
            bed.session.latest_offset(START)
    else:
        assert bed.session.latest_offset(START) is START
        assert bed.committed() == {0: 9}


def test_a_coordinator_that_does_not_tell_the_offsets_fails_in_bounded_time() -> None:
    bed = Bed()
    bed.join(P0)
    bed.session.start()
    bed.member.view()
    bed.member.fetches_answered = False
    with pytest.raises(KafkaUnavailableError, match="OffsetFetch failed"):
        bed.session.latest_offset(START)
    assert bed.paused < 125.0


@pytest.mark.parametrize("subscription", [{"subscribe": "orders"}, {"subscribePattern": "orders.*"}])
@pytest.mark.parametrize("at_once", [True, False], ids=["assigned at once", "one after the other"])
@pytest.mark.rule("R8")
def test_p1_what_was_added_while_the_group_forgot_its_offsets_is_read(
    at_once: bool, subscription: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """By default a new group starts at the end. The sequence: the query has read orders-0 to 100, and is down for
    longer than offsets.retention.minutes; meanwhile orders-1 is added, gets 40 records, and loses 10 of them. Whether
    another query had read these nobody knows: no loss is told.
    """
    bed = Bed(**subscription)
    bed.ends(p0=120, p1=40)
    bed.cluster.beginnings[P1] = 10
    start = offset_of(OffsetRange(P0, 90, 100))
    with caplog.at_level(logging.WARNING):
        if at_once:
            bed.join(P0, P1)
            end = bed.session.latest_offset(start)
            assert ranges(end) == ["orders-0 [100, 120)", "orders-1 [10, 40)"]
        else:
            bed.join(P0)
            first = bed.session.latest_offset(start)
            bed.member.assign(P1)
            assert ranges(bed.session.latest_offset(first)) == ["orders-0 [120, 120)", "orders-1 [10, 40)"]
    assert caplog.text.count("the group has no offsets of what was read before") == (1 if at_once else 2)


@pytest.mark.parametrize("remembers", [True, False], ids=["its checkpoint", "no checkpoint"])
@pytest.mark.rule("R8")
def test_p1_what_another_query_has_not_read_is_read_when_the_group_has_forgotten(remembers: bool) -> None:
    """The sequence: A has read orders-0 to 100, B orders-1 to 500; both are down until the group has forgotten it. A
    starts first, is given both and pins them; it has logged nothing when B starts and gets orders-1, which ends at 1000
    by then.
    """
    first = Bed()
    first.join(P0, P1)
    first.ends(p0=120, p1=1000)
    first.session.latest_offset(offset_of(OffsetRange(P0, 90, 100)))
    second = Bed()
    second.member.committed = first.member.committed
    second.join(P1)
    second.ends(p0=120, p1=1005)
    start = offset_of(OffsetRange(P1, 450, 500), lineage=OTHER_LINEAGE) if remembers else START
    assert ranges(second.session.latest_offset(start)) == [
        "orders-1 [500, 1005)" if remembers else "orders-1 [0, 1005)"
    ]


@pytest.mark.rule("R8")
def test_p1_a_pin_after_the_group_forgot_names_no_other_topic() -> None:
    """1. A has read orders, B refunds to 500. 2. The group forgets both. 3. A starts first and gets orders: what it
    pins must not say that refunds begins now. 4. C, which has read nothing, gets refunds.
    """
    refunds = tp(0, "refunds")
    first, second = Bed(subscribe="orders,refunds"), Bed(subscribe="orders,refunds")
    second.member.committed = first.member.committed
    for bed in (first, second):
        bed.cluster.topics["refunds"] = TopicInfo("refunds-id", 1)
        bed.cluster.ends |= {P0: 120, refunds: 1000}
    first.join(P0)
    first.session.latest_offset(offset_of(OffsetRange(P0, 90, 100)))
    second.join(refunds)
    assert ranges(second.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["refunds-0 [0, 1000)"]


@pytest.mark.rule("R8")
def test_p1_a_member_that_has_read_nothing_goes_by_what_is_pinned_after_the_group_forgot() -> None:
    """A is given orders-0 alone and pins it where its checkpoint was; then C, which is new, is given orders-1."""
    first = Bed()
    first.join(P0)
    first.ends(p0=120, p1=1000)
    first.session.latest_offset(offset_of(OffsetRange(P0, 90, 100)))
    second = Bed()
    second.member.committed = first.member.committed
    second.join(P1)
    second.ends(p0=120, p1=1005)
    assert ranges(second.session.latest_offset(SourceOffset(OTHER_LINEAGE))) == ["orders-1 [0, 1005)"]


# --- conflicts


@pytest.mark.parametrize(("choice", "planned"), [("checkpoint", "orders-0 [70, 95)"), ("group", "orders-0 [90, 95)")])
def test_a_conflict_is_decided_and_makes_a_new_lineage(
    choice: str, planned: str, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(onConflict=choice)
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)))
    assert ranges(end) == [planned]
    assert end.lineage != LINEAGE
    assert "orders-0 group=90 checkpoint=70" in caplog.text
    bed.session.commit(end)
    assert bed.committed() == {0: 95}


def test_a_conflict_may_fail_the_query() -> None:
    bed = Bed(onConflict="fail")
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=90 checkpoint=70"):
        bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)))


@pytest.mark.parametrize("group", [90, 70], ids=["ahead", "where we are"])
def test_an_offset_of_another_program_is_pinned_in_our_name(group: int) -> None:
    """So that one without metadata is one that was moved since."""
    bed = Bed()
    bed.member.committed[P0] = GroupOffset(group, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    assert ranges(bed.session.latest_offset(START)) == [f"orders-0 [{group}, 95)"]
    written = parse_metadata(bed.member.committed[P0].metadata)
    assert written is not None
    assert (written.lineage, written.start, written.end) == (LINEAGE, group, group)


@pytest.mark.parametrize("choice", ["group", "checkpoint"])
def test_a_conflict_with_another_program_leaves_the_pinned_initial_offset(choice: str) -> None:
    """The sequence: a program joins the group, is given a partition, commits its own text, and leaves."""
    bed = Bed(onConflict=choice, startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=70)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.member.lose(P0)
    bed.member.committed[P0] = GroupOffset(90, "of another program")
    bed.member.assign(P0)
    bed.ends(p0=95)
    assert bed.session.latest_offset(end) is not end
    bed.session.commit(bed.session.latest_offset(end))
    written = parse_metadata(bed.member.committed[P0].metadata)
    assert written is not None
    assert written.pin.offset == 0


@pytest.mark.parametrize("fetched", [True, False], ids=["offsets are known", "offsets come later"])
@pytest.mark.parametrize(("choice", "position"), [("checkpoint", 100), ("group", 40), ("fail", None)])
@pytest.mark.rule("R49")
def test_a_rewind_while_the_session_was_lost_is_decided_and_not_undone(
    choice: str, position: int | None, fetched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """1. [0, 100) is complete; 2. the session expires, and another tool moves the empty group to 40; 3. the member gets
    its partition back, and the next trigger says that 100 is complete before it looks for a start position.
    """
    bed = Bed(onConflict=choice, startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=100)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    assert bed.session.latest_offset(end) is end
    bed.member.lose(P0)
    bed.member.committed[P0] = GroupOffset(40, "")
    bed.member.assign(P0)
    if fetched:
        bed.member.view()
    bed.ends(p0=110)
    if position is None:
        with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=40 checkpoint=100"):
            bed.session.latest_offset(end)
        assert bed.committed() == {0: 40}
    else:
        with caplog.at_level(logging.WARNING):
            assert ranges(bed.session.latest_offset(end)) == [f"orders-0 [{position}, 110)"]
        assert "orders-0 group=40 checkpoint=100" in caplog.text
        assert bed.committed() == {0: position}


def test_what_is_complete_is_committed_before_a_start_position_is_established_where_nobody_has_moved_it() -> None:
    """The partition is lost and comes back while its batch is in flight; it may be wanted back before the next plan."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=100)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.member.lose(P0)
    bed.member.assign(P0)
    bed.member.view()
    bed.session.commit(end)
    assert bed.committed() == {0: 100}


@pytest.mark.rule("R55")
def test_p1_what_another_program_has_skipped_is_not_skipped_by_the_next_owner() -> None:
    """1. another program moves the group to 90, the checkpoint at 70 wins, 2. [70, 80) completes, 3. the partition goes
    to a member with another checkpoint: it must not start at 90, because nobody has read [80, 90).
    """
    bed = Bed(onConflict="checkpoint")
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    first = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)), ReadBounds(max_rows=10))
    assert ranges(first) == ["orders-0 [70, 80)"]
    assert bed.committed() == {0: 70}, "a handover now would skip [70, 90)"
    assert ranges(bed.session.latest_offset(first, ReadBounds(max_rows=5))) == ["orders-0 [80, 85)"]
    assert bed.committed() == {0: 80}

    other = Bed()
    other.member.committed = bed.member.committed
    other.join(P0)
    other.ends(p0=95)
    assert ranges(other.session.latest_offset(START)) == ["orders-0 [80, 95)"]


@pytest.mark.rule("R55")
def test_p6_an_old_end_of_a_partition_that_was_handed_over_moves_no_group_back() -> None:
    """1. [0, 70) is read, and the partition handed over; 2. others read to 200; 3. another program moves the group back
    to 90, and the partition returns: with the group at 70, its next owner would repeat what others have read to 90.
    """
    bed = Bed(onConflict="checkpoint")
    bed.member.committed[P0] = GroupOffset(90, "moved by hand")
    bed.join(P0)
    bed.ends(p0=200)
    start = SourceOffset.of(LINEAGE, {"orders": TOPIC_ID}, (OffsetRange(P1, 0, 5),), {P0: 70})
    assert "orders-0 [70, 200)" in ranges(bed.session.latest_offset(start))
    assert bed.committed()[0] == 90


@pytest.mark.rule("R53")
def test_a_conflict_that_the_checkpoint_has_won_stays_won(caplog: pytest.LogCaptureFixture) -> None:
    """1. the group is at 90, the old checkpoint at 70 wins, 2. [70, 80) completes, [80, 85) is logged, the query dies,
    3. started again, the batch is read as logged, and the next one goes on behind it, not at 90.
    """
    bed = Bed(onConflict="checkpoint")
    bed.member.committed[P0] = GroupOffset(90, metadata(LINEAGE, 80, 90))
    bed.join(P0)
    bed.ends(p0=95)
    first = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 70)), ReadBounds(max_rows=10))
    second = bed.session.latest_offset(first, ReadBounds(max_rows=5))
    assert (ranges(first), ranges(second)) == (["orders-0 [70, 80)"], ["orders-0 [80, 85)"])
    assert bed.committed() == {0: 90}, "the group's offset went back"

    again = Bed(onConflict="checkpoint")
    again.member.committed = bed.member.committed
    again.join(P0)
    again.ends(p0=95)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert flat(again.session.tasks(first, second)) == ["orders-0 [80, 85)"]
        third = again.session.latest_offset(second)
    assert ranges(third) == ["orders-0 [85, 95)"]
    assert "conflict" not in caplog.text, "it is decided"
    assert third.lineage == first.lineage
    again.session.commit(third)
    assert again.committed() == {0: 95}


def attempt(committed: dict[TopicPartition, GroupOffset], lost: int, **options: str) -> list[str] | str:
    """Start the query on a checkpoint at 100 of two partitions, one of whose logs begins at `lost`; it logs nothing."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.member.committed = committed
    bed.ends(p0=200, p1=200)
    bed.cluster.beginnings[P1] = lost
    bed.join(P0, P1)
    try:
        return ranges(bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100))))
    except DataLossError as error:
        return str(error.parameters["ranges"])


@pytest.mark.rule("R52")
def test_a_conflict_is_decided_in_the_same_way_until_a_batch_of_that_is_logged() -> None:
    """1. an old checkpoint (100) is restored, the group is at 150, the checkpoint wins; 2. the query ends with a loss
    before it has logged anything, and is started again: the group's text in the new lineage's name is no progress.
    """
    held = GroupOffset(150, metadata(LINEAGE, 100, 150))
    committed = {P0: held, P1: held}
    assert attempt(committed, 120) == attempt(committed, 120) == "orders-1 [100, 120)"
    assert attempt(committed, 120, failOnDataLoss="false") == ["orders-0 [100, 200)", "orders-1 [120, 200)"]
    assert {partition: group.offset for partition, group in committed.items()} == {P0: 150, P1: 150}


@pytest.mark.rule("R25")
def test_a_late_commit_of_the_lineage_that_has_lost_a_conflict_commits_nothing() -> None:
    """1. The group is at 50, the checkpoint at 100, and the group wins. 2. [50, 55) is planned in a new lineage's name.
    3. Spark reports late that the batch that ended at 100 is complete.
    """
    bed = Bed(onConflict="group")
    bed.member.committed[P0] = GroupOffset(50, "")
    bed.join(P0)
    bed.ends(p0=55)
    start = offset_of(OffsetRange(P0, 90, 100))
    end = bed.session.latest_offset(start)
    assert (end.lineage != LINEAGE, ranges(end)) == (True, ["orders-0 [50, 55)"])
    bed.session.commit(start)
    assert bed.committed() == {0: 50}
    bed.session.commit(end)
    assert bed.committed() == {0: 55}


def won_by_an_old_checkpoint(*others: TopicPartition) -> tuple[Bed, SourceOffset]:
    """Return a query on a checkpoint at 100, which has won over its own lineage's 1000, and its first batch, to 120."""
    bed = Bed()
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    held = GroupOffset(1000, metadata(LINEAGE, 900, 1000))
    bed.member.committed = {P0: held, P1: held}
    bed.join(P0, P1)
    bed.ends(p0=1000, p1=1000, p2=1000)
    start = offset_of(OffsetRange(P0, 0, 100), OffsetRange(P1, 0, 100), done=dict.fromkeys(others, 100))
    first = bed.session.latest_offset(start, ReadBounds(max_rows=40))
    assert ranges(first) == ["orders-0 [100, 120)", "orders-1 [100, 120)"]
    bed.session.tasks(start, first)
    return bed, first


def restarted(bed: Bed, *partitions: TopicPartition, **options: str) -> Bed:
    """Return the query, killed and started again."""
    again = Bed(**options)
    again.member.committed = bed.member.committed
    again.cluster.topics |= bed.cluster.topics
    again.cluster.ends |= bed.cluster.ends
    again.join(*partitions)
    return again


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.rule("R54")
def test_a_conflict_that_the_checkpoint_has_won_is_not_decided_anew_when_a_partition_comes_back(replayed: bool) -> None:
    """1. an old checkpoint (100) wins over the group (1000), [100, 120) is logged in lineage N; 2. p1 leaves and comes
    back, [120, 140) is logged; 3. killed, started again: whose text p0 has, N's, is this query's own.
    """
    bed, first = won_by_an_old_checkpoint()
    bed.member.lose(P1)
    bed.member.assign(P1)
    second = bed.session.latest_offset(first, ReadBounds(max_rows=40))
    assert (second.lineage, ranges(second)) == (first.lineage, ["orders-0 [120, 140)", "orders-1 [120, 140)"])
    again = restarted(bed, P0, P1)
    if replayed:
        assert flat(again.session.tasks(first, second)) == ranges(second)
    else:
        assert ranges(again.session.latest_offset(second)) == ["orders-0 [140, 1000)", "orders-1 [140, 1000)"]
    assert {group.offset for group in again.member.committed.values()} == {1000}


def test_a_conflict_that_the_checkpoint_has_won_stays_won_when_partitions_come_one_by_one() -> None:
    """Started again behind [100, 120), the query is given p0, plans, and is given p1."""
    bed, first = won_by_an_old_checkpoint()
    again = restarted(bed, P0)
    second = again.session.latest_offset(first, ReadBounds(max_rows=40))
    again.member.assign(P1)
    assert ranges(again.session.latest_offset(second)) == ["orders-0 [160, 1000)", "orders-1 [120, 1000)"]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.rule("R54")
def test_a_conflict_that_the_checkpoint_has_won_stays_won_after_another_one(
    at_once: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """1. an old checkpoint (100) wins over the group (1000), [100, 120) is logged in lineage N; 2. p2 comes, moved by
    another program: the checkpoint wins again, for a lineage N2, and a batch is logged in its name; 3. killed, started
    again: p0's text is to say N2, else 1000 would look like the progress of another lineage.
    """
    bed, first = won_by_an_old_checkpoint(P2)
    bed.member.committed[P2] = GroupOffset(50, "moved by hand")
    if at_once:
        bed = restarted(bed, P0, P1, P2)
    else:
        bed.member.assign(P2)
    second = bed.session.latest_offset(first, ReadBounds(max_rows=60))
    assert [item.start for item in second.ranges] == [120, 120, 100]
    assert second.lineage not in {LINEAGE, first.lineage}
    again = restarted(bed, P0, P1, P2)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        third = again.session.latest_offset(second, ReadBounds(max_rows=60))
    assert [item.start for item in third.ranges] == [item.end for item in second.ranges]
    assert "conflict" not in caplog.text


@pytest.mark.parametrize(("choice", "planned"), [("group", []), ("fail", None)])
def test_what_the_checkpoint_has_won_counts_for_no_other_choice(choice: str, planned: list[str] | None) -> None:
    """The user has changed option onConflict since."""
    bed, first = won_by_an_old_checkpoint()
    again = restarted(bed, P0, P1, onConflict=choice)
    if planned is None:
        with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 group=1000 checkpoint=120"):
            again.session.latest_offset(first)
    else:
        assert again.session.latest_offset(first) is first


@pytest.mark.rule("R51")
def test_the_same_old_checkpoint_restored_twice_is_read_again_twice(caplog: pytest.LogCaptureFixture) -> None:
    """The group's text is that of the first time: it decided the conflict, and is no progress of another lineage."""
    committed = {P0: GroupOffset(150, metadata(LINEAGE, 100, 150))}
    logged = offset_of(OffsetRange(P0, 100, 110))
    for _ in range(2):
        bed = Bed()
        bed.member.committed = committed
        bed.join(P0)
        bed.ends(p0=150)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert flat(bed.session.tasks(START, logged)) == ["orders-0 [100, 110)"]
        assert "orders-0 [100, 110) group=150 (the checkpoint is older" in caplog.text
        assert ranges(bed.session.latest_offset(logged, ReadBounds(max_rows=10))) == ["orders-0 [110, 120)"]


def test_a_conflict_that_the_group_has_won_is_won_again_after_a_kill() -> None:
    """The group was moved back by another program; the query is killed behind the pins, before its first batch."""
    committed = {P0: GroupOffset(50, ""), P1: GroupOffset(50, "")}
    wanted = ["orders-0 [50, 200)", "orders-1 [50, 200)"]
    assert attempt(committed, 0, onConflict="group") == wanted
    assert attempt(committed, 0, onConflict="group") == wanted


# --- resets

RESET = Reset(2000, "the reset's id")


def reset_text(offset: int, lineage: str = "the reset's id", reset: Reset = RESET) -> GroupOffset:
    return GroupOffset(offset, CommitMetadata(lineage, TOPIC_ID, offset, offset, PIN, reset=reset).to_text())


@pytest.mark.parametrize("on_conflict", ["checkpoint", "group", "fail"])
@pytest.mark.rule("R46")
def test_a_reset_beats_the_checkpoint(on_conflict: str, caplog: pytest.LogCaptureFixture) -> None:
    """B's checkpoint says 900; the group was reset to 0; A has taken p0 over and committed [0, 50) since.

    Without the reset that A carries on, B would go on at 900, and nobody would read [50, 900) again.
    """
    bed = Bed(onConflict=on_conflict)
    bed.member.committed |= {P0: reset_text(50, OTHER_LINEAGE), P1: reset_text(0)}
    bed.join(P0)
    bed.ends(p0=900, p1=900)
    start = offset_of(OffsetRange(P0, 800, 900), done={P1: 70})
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(start)
    assert (ranges(end), end.done, end.reset) == (["orders-0 [50, 900)"], (), RESET)
    assert end.lineage not in (LINEAGE, OTHER_LINEAGE)
    assert "orders-0 checkpoint=900 group=50; orders-1 checkpoint=70" in caplog.text
    bed.session.commit(end)
    written = parse_metadata(bed.member.committed[P0].metadata)
    assert written is not None
    assert (written.reset, written.lineage, written.end) == (RESET, end.lineage, 900)
    # The other partition comes later: the same reset is no news, and the lineage goes on.
    bed.member.assign(P1)
    following = bed.session.latest_offset(end)
    assert (ranges(following), following.lineage) == (["orders-0 [900, 900)", "orders-1 [0, 900)"], end.lineage)
    assert caplog.text.count("was reset") == 1


def test_a_reset_is_remembered_before_the_next_batch_is_logged() -> None:
    """Nothing to read since: Spark goes on from the old offset, whose ends stay void."""
    bed = Bed()
    bed.member.committed |= {P0: reset_text(900), P1: reset_text(0)}
    bed.join(P0)
    bed.ends(p0=900, p1=0)
    start = offset_of(OffsetRange(P0, 800, 900), done={P1: 70})
    assert bed.session.latest_offset(start) is start
    bed.member.assign(P1)
    bed.ends(p1=80)
    assert ranges(bed.session.latest_offset(start)) == ["orders-0 [900, 900)", "orders-1 [0, 80)"]
    assert bed.committed() == {0: 900, 1: 0}, "an end from before the reset was committed"


def test_a_standby_and_a_new_checkpoint_learn_the_reset_quietly(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    bed.member.committed[P0] = reset_text(0)
    bed.join(P0)
    bed.ends(p0=5)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(START)
    assert (end.lineage, end.reset, ranges(end)) == (LINEAGE, RESET, ["orders-0 [0, 5)"])
    assert "reset" not in caplog.text


def test_a_second_reset_is_news_again() -> None:
    bed = Bed()
    bed.member.committed[P0] = reset_text(0, reset=Reset(3000, "the second"))
    bed.join(P0)
    bed.ends(p0=900)
    end = bed.session.latest_offset(replace(offset_of(OffsetRange(P0, 800, 900)), reset=RESET))
    assert (ranges(end), end.reset) == (["orders-0 [0, 900)"], Reset(3000, "the second"))


def test_a_reset_that_the_checkpoint_knows_changes_nothing() -> None:
    bed = Bed()
    bed.member.committed[P0] = reset_text(50, OTHER_LINEAGE)
    bed.join(P0)
    bed.ends(p0=900)
    end = bed.session.latest_offset(replace(offset_of(OffsetRange(P0, 30, 70)), reset=RESET))
    assert (ranges(end), end.lineage, end.reset) == (["orders-0 [70, 900)"], LINEAGE, RESET)


def test_a_lineage_that_a_reset_leaves_alone_keeps_its_ends() -> None:
    """1. P0 is read up to 200, the commit does not arrive (the group is at 100); a topic that the lineage never had is
    reset; 2. the query starts with both, and P0 moves away before it is pinned; 3. P0 comes back at 150.
    """
    other = tp(0, "aaa")
    bed = Bed(subscribe="orders,aaa", startingOffsets="earliest")
    bed.cluster.topics["aaa"] = TopicInfo(TOPIC_ID, 1)
    bed.member.committed = {
        P0: GroupOffset(100, CommitMetadata(LINEAGE, TOPIC_ID, 50, 100, PIN).to_text()), other: reset_text(0)
    }  # fmt: skip
    start = offset_of(OffsetRange(P0, 100, 200))
    bed.cluster.ends |= {P0: 300, other: 5}
    bed.join(P0, other)
    bed.member.refused_establishes = 1

    def lose_it(_: float) -> None:
        bed.member.lose(P0)
        bed.member.assign()

    bed.session._starts._pause = lose_it
    end = bed.session.latest_offset(start)
    assert (end.lineage, ranges(end), end.ends()[P0]) == (start.lineage, ["aaa-0 [0, 5)"], 200)
    bed.member.committed[P0] = GroupOffset(150, metadata(OTHER_LINEAGE, 100, 150))
    bed.member.assign(P0)
    assert "orders-0 [200, 300)" in ranges(bed.session.latest_offset(end))


@pytest.mark.rule("R47")
def test_a_replay_after_a_reset_reads_and_commits_nothing() -> None:
    bed = Bed(onConflict="fail")
    bed.member.committed |= {P0: reset_text(0), P1: reset_text(0)}
    bed.join(P0, P1)
    bed.member.view()
    bed.ends(p0=900, p1=9)
    logged = offset_of(OffsetRange(P0, 800, 900), OffsetRange(P1, 5, 9))
    assert replayed(bed, logged) == []
    (batch,) = bed.member.named("replay")
    assert isinstance(batch, FlightBatch)
    assert batch.items == (), "found in Spark's commit log, the batch would be committed over the reset"
    end = bed.session.latest_offset(logged)
    assert ranges(end) == ["orders-0 [0, 900)", "orders-1 [0, 9)"]
    bed.session.commit(logged)
    assert bed.committed() == {0: 0, 1: 0}


@pytest.mark.parametrize("both", [False, True], ids=["owns both later", "owns both at once"])
@pytest.mark.rule("R48")
def test_a_reset_of_one_topic_loses_nothing_of_another(both: bool) -> None:
    """A query dies in the batch p0 [800, 900), p1 [5, 9); p0 alone is reset; started again, the query reads the batch
    once more, and is given p1 only. Nobody tells it of the reset, and its checkpoint says that p1 is read up to 9.
    """
    bed = Bed()
    bed.member.committed |= {P0: reset_text(0), P1: GroupOffset(5, metadata(LINEAGE, 0, 5))}
    bed.ends(p0=900, p1=12)
    logged = offset_of(OffsetRange(P0, 800, 900), OffsetRange(P1, 5, 9))
    assert replayed(bed, logged) == ["orders-1 [5, 9)"]
    bed.join(*((P0, P1) if both else (P1,)))
    end = bed.session.latest_offset(logged)
    assert "orders-1 [9, 12)" in ranges(end), "lost, or read twice"
    assert ("orders-0 [0, 900)" in ranges(end)) is both
    bed.session.commit(end)
    if not both:
        bed.member.assign(P0)
        assert ranges(bed.session.latest_offset(end)) == ["orders-0 [0, 900)", "orders-1 [12, 12)"]


@pytest.mark.parametrize("fetched_first", [True, False], ids=["fetched, completed", "completed, fetched"])
@pytest.mark.parametrize("told_by", ["the next trigger", "Spark's commit log"])
def test_a_late_batch_does_not_undo_a_reset(fetched_first: bool, told_by: str) -> None:
    """The process is stopped while a batch is in flight, the session expires, the empty group is reset to 0; the
    process goes on, gets the partition back, and only then the batch is complete.
    """
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=900)
    late = bed.session.latest_offset(START)
    flight = bed.member.view().flight
    assert flight is not None
    bed.member.lose(P0)
    bed.member.committed[P0] = reset_text(0)
    bed.member.assign(P0)
    if fetched_first:
        bed.member.view()
    if told_by == "Spark's commit log":
        bed.member.complete(flight.end)
    end = bed.session.latest_offset(late)
    assert bed.committed() == {0: 0}
    assert (ranges(end), end.reset) == (["orders-0 [0, 900)"], RESET)


@pytest.mark.parametrize(("told_by_log", "tasks"), [(True, 1), (False, 10)])
def test_tasks_are_sized_by_what_a_batch_took_and_not_by_the_triggers_interval(told_by_log: bool, tasks: int) -> None:
    """1. a batch of a million records takes 2 s, 2. the next trigger comes ten minutes later."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=1_000_000)
    first = bed.session.latest_offset(START)
    assert len(bed.session.tasks(START, first)) == 1
    bed.clock.advance(2.0)
    if told_by_log:
        flight = bed.member.view().flight
        assert flight is not None
        bed.member.complete(flight.end)
    bed.clock.advance(600.0)
    bed.ends(p0=2_000_000)
    second = bed.session.latest_offset(first)
    assert len(bed.session.tasks(first, second)) == tasks


# --- lost data


def lossy(fail: str) -> Bed:
    bed = Bed(failOnDataLoss=fail)
    bed.member.committed[P0] = GroupOffset(10, metadata(LINEAGE, 0, 10))
    bed.join(P0)
    return bed


def test_lost_records_fail_the_query() -> None:
    bed = lossy("true")
    bed.ends(p0=50)
    bed.cluster.beginnings[P0] = 30
    with pytest.raises(DataLossError, match=r"DATA_LOST.*orders-0 \[10, 30\)"):
        bed.session.latest_offset(START)


def test_lost_records_are_skipped_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    bed = lossy("false")
    bed.ends(p0=50)
    bed.cluster.beginnings[P0] = 30
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.session.latest_offset(START)) == ["orders-0 [30, 50)"]
    assert "orders-0 [10, 30)" in caplog.text


def test_a_loss_of_everything_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    bed = lossy("false")
    bed.ends(p0=50)
    bed.cluster.beginnings[P0] = 50
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(START)
        assert ranges(end) == ["orders-0 [50, 50)"]
        assert bed.session.tasks(START, end) == ()
        assert bed.session.latest_offset(end) is end
    assert caplog.text.count("data lost and skipped") == 1
    assert bed.committed() == {0: 50}


@pytest.mark.parametrize("noticed", [True, False], ids=["made again while owned", "made again meanwhile"])
def test_p8_a_loss_of_a_topic_made_again_is_told_although_the_old_one_had_lost_more(
    noticed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """1. [10, 150) is told as lost; 2. the topic is made again, while the partition is here or elsewhere; 3. another
    member pins the new one and reads it to 10; 4. the partition comes back, and retention has removed [10, 100).
    """
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=10)
    first = bed.session.latest_offset(START)
    bed.session.tasks(START, first)
    bed.ends(p0=200)
    bed.cluster.beginnings[P0] = 150
    second = bed.session.latest_offset(first)
    assert ranges(second) == ["orders-0 [150, 200)"]
    bed.session.tasks(first, second)
    assert bed.session.latest_offset(second) is second
    if not noticed:
        bed.member.lose(P0)
    bed.cluster.topics["orders"] = TopicInfo("new-id", 2)
    bed.ends(p0=0)
    bed.cluster.beginnings[P0] = 0
    bed.session.latest_offset(second)
    if noticed:
        bed.member.lose(P0)
    bed.member.committed[P0] = GroupOffset(10, metadata(OTHER_LINEAGE, 0, 10, topic_id="new-id"))
    bed.member.assign(P0)
    bed.ends(p0=130)
    bed.cluster.beginnings[P0] = 100
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.session.latest_offset(second)) == ["orders-0 [100, 130)"]
    assert "orders-0 [10, 100)" in caplog.text


# --- a topic that is deleted and made again


def recreated(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has read 50 records of a topic, which then is another one with 60 records."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.join(P0)
    bed.ends(p0=50)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.cluster.topics["orders"] = TopicInfo("the second topic's id", 2)
    bed.ends(p0=60)
    return bed, end


def test_a_topic_made_anew_fails_the_query() -> None:
    bed, end = recreated()
    with pytest.raises(DataLossError, match=r"orders-0 \[50, 50\): the topic was deleted and made again"):
        bed.session.latest_offset(end)


@pytest.mark.parametrize("forgotten", [True, False], ids=["the broker forgot the offsets", "the offsets remain"])
@pytest.mark.rule("R35")
def test_a_topic_made_anew_is_read_from_its_beginning(forgotten: bool) -> None:
    bed, end = recreated(failOnDataLoss="false")
    if forgotten:
        bed.member.committed.clear()
    following = bed.session.latest_offset(end)
    assert ranges(following) == ["orders-0 [0, 60)"]
    assert following.topic_id("orders") == "the second topic's id"
    assert bed.committed() == {0: 0}
    bed.ends(p0=61)
    assert ranges(bed.session.latest_offset(following)) == ["orders-0 [60, 61)"]
    assert bed.committed() == {0: 60}


def test_a_topic_made_anew_that_is_shorter_is_noticed_too() -> None:
    bed, end = recreated(failOnDataLoss="false")
    bed.ends(p0=5)
    following = bed.session.latest_offset(end)
    assert ranges(following) == ["orders-0 [0, 5)"]
    bed.session.latest_offset(following)
    assert bed.committed() == {0: 5}


@pytest.mark.parametrize("known", [True, False], ids=["read here before", "taken over"])
@pytest.mark.rule("R36")
def test_a_broker_that_lags_behind_does_not_bring_an_old_topic_back(known: bool) -> None:
    """The topic was made again, [0, 8) of the new one is read and committed. For two seconds a broker that still knows
    the one before tells what there is.
    """
    bed, end = recreated(failOnDataLoss="false")
    if known:
        bed.ends(p0=8)
        end = bed.session.latest_offset(end)
        bed.session.latest_offset(end)
    else:
        text = metadata(OTHER_LINEAGE, 0, 8, topic_id="the second topic's id")
        bed, end = Bed(startingOffsets="earliest", failOnDataLoss="false"), START
        bed.member.committed[P0] = GroupOffset(8, text)
        bed.join(P0)
    bed.ends(p0=9)
    lags_until_s, describe = bed.clock.now_s + 2.0, bed.cluster.describe

    def lagging(topics: Iterable[str]) -> dict[str, TopicInfo]:
        topic_id = TOPIC_ID if bed.clock.now_s < lags_until_s else "the second topic's id"
        bed.cluster.topics["orders"] = TopicInfo(topic_id, 2)
        return describe(topics)

    bed.cluster.describe = lagging  # type: ignore[method-assign]
    following = bed.session.latest_offset(end)
    assert ranges(following) == ["orders-0 [8, 9)"]
    assert following.topic_id("orders") == "the second topic's id"
    assert bed.committed() == {0: 8}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_p8_what_a_topic_lost_that_was_made_while_the_query_was_down_is_told(
    starting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody named it: it matches the pattern since, as an added partition is there since."""
    new = tp(0, "orders-new")
    bed = Bed(subscribePattern="orders.*", startingOffsets=starting, failOnDataLoss="false")
    pin = Pin(0, 2, None if starting == "earliest" else KnownTopics.of({"orders": TOPIC_ID}))
    bed.member.committed[P0] = GroupOffset(5, metadata(LINEAGE, 0, 5, pin=pin))
    bed.cluster.topics["orders-new"] = TopicInfo("new-id", 1)
    bed.ends(p0=5)
    bed.cluster.ends[new], bed.cluster.beginnings[new] = 9, 4
    bed.join(P0, new)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 5)))
    assert ranges(end) == ["orders-0 [5, 5)", "orders-new-0 [4, 9)"]
    assert "orders-new-0 [0, 4)" in caplog.text


def test_the_late_end_of_an_old_checkpoint_moves_nothing_on() -> None:
    """The group was moved to 50 by another program, the checkpoint says 100, and onConflict=group: Spark tells late
    that the batch before is complete, which ended at 100.
    """
    bed = Bed(startingOffsets="earliest", onConflict="group")
    bed.member.committed[P0] = GroupOffset(50, "")
    bed.join(P0)
    bed.ends(p0=120)
    before = offset_of(OffsetRange(P0, 90, 100))
    first = bed.session.latest_offset(before, ReadBounds(max_rows=5))
    assert ranges(first) == ["orders-0 [50, 55)"]
    bed.session.commit(before)
    assert bed.committed() == {0: 50}
    assert ranges(bed.session.latest_offset(first, ReadBounds(max_rows=5))) == ["orders-0 [55, 60)"]


def test_a_loss_whose_plan_came_to_nothing_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    bed = lossy("false")
    bed.member.refused_fixes = 3
    bed.ends(p0=50)
    bed.cluster.beginnings[P0] = 30
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.session.latest_offset(START)) == ["orders-0 [30, 50)"]
    assert caplog.text.count("data lost and skipped") == 1


# --- a topic that is deleted


def deleted(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has planned up to 50 of 60 records when the topic is deleted."""
    bed = Bed(startingOffsets="earliest", subscribe="orders,refunds", **options)
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0, tp(0, "refunds"))
    bed.ends(p0=60)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=50))
    del bed.cluster.topics["orders"]
    return bed, end


def take_deleted(bed: Bed) -> None:
    """Let the group take the deleted topic's partition."""
    bed.member.lose(P0, tp(0, "refunds"))
    bed.member.assign(tp(0, "refunds"))


@pytest.mark.rule("R38")
def test_a_member_that_loses_its_last_partition_with_the_topic_does_not_idle() -> None:
    """1. A topic with unread records is deleted. 2. The group takes all partitions of the member. 3. With nothing to
    plan, nothing else would ask for the topic.
    """
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=60)
    end = bed.session.latest_offset(START, ReadBounds(max_rows=50))
    del bed.cluster.topics["orders"]
    bed.member.lose(P0)
    bed.member.assign()
    with pytest.raises(DataLossError, match=r"orders-0 \[50, 60\): the topic was deleted"):
        bed.session.latest_offset(end)


@pytest.mark.rule("R38")
def test_a_deleted_topic_fails_the_query_with_what_is_lost() -> None:
    bed, end = deleted()
    take_deleted(bed)
    with pytest.raises(DataLossError, match=r"orders-0 \[50, 60\): the topic was deleted"):
        bed.session.latest_offset(end)


def test_a_deleted_topic_that_the_group_has_not_taken_yet_is_told_too() -> None:
    bed, end = deleted()
    with pytest.raises(DataLossError, match=r"orders-0 \[50, 60\): the topic was deleted"):
        bed.session.latest_offset(end)


def test_the_others_go_on_without_a_deleted_topic(caplog: pytest.LogCaptureFixture) -> None:
    bed, end = deleted(failOnDataLoss="false")
    take_deleted(bed)
    bed.cluster.ends[tp(0, "refunds")] = 4
    with caplog.at_level(logging.WARNING):
        following = bed.session.latest_offset(end)
        assert ranges(following) == ["refunds-0 [0, 4)"]
        assert bed.session.latest_offset(following) is following
    assert caplog.text.count("orders-0 [50, 60): the topic was deleted") == 1


@pytest.mark.parametrize("subscription", [{}, {"subscribePattern": "ord.*"}], ids=["list", "pattern"])
@pytest.mark.rule("R39")
def test_a_topic_that_was_deleted_while_the_query_was_down(subscription: dict[str, str]) -> None:
    bed = Bed(startingOffsets="earliest", **subscription)
    del bed.cluster.topics["orders"]
    with pytest.raises(DataLossError, match=r"orders-0 \[50, 50\): the topic was deleted"):
        bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 50)))
    if not subscription:
        with pytest.raises(OptionError, match="TOPIC_UNKNOWN"):
            bed.session.latest_offset(START)


@pytest.mark.parametrize("taken", [True, False], ids=["taken by the group", "still assigned"])
def test_a_topic_that_is_made_anew_with_fewer_partitions(taken: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The unread records of the partition that is gone are told, once; the others are read from their beginning."""
    failing, going_on = (Bed(startingOffsets="earliest", failOnDataLoss=choice) for choice in ("true", "false"))
    ends = []
    for bed in failing, going_on:
        bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
        bed.join(P0, P1)
        bed.ends(p0=60, p1=60)
        ends.append(bed.session.latest_offset(START, ReadBounds(max_rows=100)))
        bed.cluster.topics["orders"] = TopicInfo("other", 1)
        bed.ends(p0=20)
        if taken:
            bed.member.lose(P0, P1)
            bed.member.assign(P0)
    with pytest.raises(DataLossError, match=r"orders-1 \[50, 60\): .* made again with fewer partitions"):
        failing.session.latest_offset(ends[0])
    with caplog.at_level(logging.WARNING):
        end = going_on.session.latest_offset(ends[1])
        assert ranges(end) == ["orders-0 [0, 20)"]
        going_on.ends(p0=25)
        assert ranges(going_on.session.latest_offset(end)) == ["orders-0 [20, 25)"]
    assert caplog.text.count("orders-1 [50, 60)") == 1
    assert "orders-0 [50, 60): the topic was deleted and made again" in caplog.text


def made_anew_with_fewer(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has read two partitions to 60, all committed, when their topic comes back with one."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.join(P0, P1)
    bed.ends(p0=60, p1=60)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    assert bed.committed() == {0: 60, 1: 60}
    bed.cluster.topics["orders"] = TopicInfo("other", 1)
    bed.ends(p0=0)
    # Kafka removes a group's offsets with the topic.
    bed.member.committed.clear()
    return bed, end


@pytest.mark.rule("R43")
def test_the_refused_commit_of_a_missing_partition_is_dropped() -> None:
    """1. A batch of two partitions is complete. 2. Their topic is recreated, empty, with one partition. 3. The commit
    of the other one is refused, and each trigger reports again that the batch is complete.
    """
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.join(P0, P1)
    bed.ends(p0=60, p1=60)
    end = bed.session.latest_offset(START)
    bed.cluster.topics["orders"] = TopicInfo("other", 1)
    bed.ends(p0=0)
    bed.member.committed.clear()
    bed.member.takes_commits = False
    assert bed.session.latest_offset(end) is end
    bed.paused = 0.0
    assert bed.session.latest_offset(end) is end
    assert bed.member.view().committed
    assert bed.paused == 0.0


@pytest.mark.rule("R43")
def test_nobody_waits_for_the_commit_of_a_partition_that_is_gone() -> None:
    """The new topic is empty, so the old end stays the query's start, and is completed again at each trigger."""
    bed, end = made_anew_with_fewer(failOnDataLoss="false")
    assert bed.session.latest_offset(end) is end
    bed.member.calls.clear()
    assert bed.session.latest_offset(end) is end
    assert [name for name, _ in bed.member.calls] == ["complete"]
    bed.ends(p0=5)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [0, 5)"]


def test_what_is_gone_before_it_has_a_position_again_is_told_once_and_not_committed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The session is lost, the topic comes back with fewer partitions, and the old assignment comes back first."""
    bed, end = made_anew_with_fewer(failOnDataLoss="false")
    bed.member.lose(P0, P1)
    bed.member.assign(P0, P1)
    with caplog.at_level(logging.WARNING):
        assert bed.session.latest_offset(end) is end
        bed.member.calls.clear()
        assert bed.session.latest_offset(end) is end
    assert [name for name, _ in bed.member.calls] == ["complete"]
    assert caplog.text.count("orders-1 [60, 60)") == 1
    assert caplog.text.count("orders-0 [60, 60)") == 1


def test_a_broker_that_lists_fewer_partitions_of_the_same_topic_is_not_believed() -> None:
    """It has not heard yet that some were added; the group has moved one of those meanwhile."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0, P1)
    bed.ends(p0=60, p1=60)
    end = bed.session.latest_offset(START)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.member.lose(P0, P1)
    bed.member.assign(P0)
    bed.ends(p0=70)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [60, 70)"]


@pytest.mark.rule("R39")
def test_partitions_that_went_while_the_query_was_down_are_told_until_a_batch_leaves_them_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = offset_of(OffsetRange(P0, 40, 50), OffsetRange(P1, 40, 55))

    def restarted(start: SourceOffset, **options: str) -> SourceOffset:
        bed = Bed(startingOffsets="earliest", **options)
        bed.cluster.topics["orders"] = TopicInfo("other", 1)
        bed.join(P0)
        bed.ends(p0=5)
        return bed.session.latest_offset(start)

    with pytest.raises(DataLossError, match=r"orders-1 \[55, 55\): .* made again with fewer partitions"):
        restarted(before)
    with caplog.at_level(logging.WARNING):
        end = restarted(before, failOnDataLoss="false")
    assert "orders-1 [55, 55): the topic was deleted and made again with fewer partitions" in caplog.text
    assert end.ends() == {P0: 5}
    restarted(end)


@pytest.mark.parametrize("subscription", [{"subscribe": "new"}, {"subscribePattern": "new.*"}])
def test_a_topic_that_was_unsubscribed_and_deleted_is_missed_by_no_start(subscription: dict[str, str]) -> None:
    """The last batch has its end; the option was changed, and the topic deleted, because all of it was read."""
    bed = Bed(startingOffsets="earliest", **subscription)
    del bed.cluster.topics["orders"]
    bed.cluster.topics["new"] = TopicInfo("new-id", 1)
    bed.join(tp(0, "new"))
    bed.cluster.ends[tp(0, "new")] = 3
    end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 50)))
    assert ranges(end) == ["new-0 [0, 3)"]


@pytest.mark.parametrize("subscription", [{"subscribe": "orders"}, {"subscribePattern": "orders.*"}])
def test_a_batch_runs_again_without_a_topic_that_was_unsubscribed_and_deleted(subscription: dict[str, str]) -> None:
    """The process dies in a batch that has nothing of refunds; the option is changed, and refunds deleted."""
    bed = Bed(startingOffsets="earliest", **subscription)
    bed.join(P0)
    bed.ends(p0=20)
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(tp(0, "refunds"), 5, 5))
    assert flat(bed.session.tasks(START, logged)) == ["orders-0 [10, 20)"]
    bed.session.commit(logged)
    assert bed.session.latest_offset(logged) is logged


def test_a_deleted_topic_is_told_until_a_batch_leaves_it_out() -> None:
    before = offset_of(OffsetRange(P0, 40, 50), OffsetRange(tp(0, "ordeal"), 0, 7))

    def restarted(start: SourceOffset, **options: str) -> SourceOffset:
        bed = Bed(startingOffsets="earliest", subscribePattern="ord.*", **options)
        bed.join(P0)
        bed.ends(p0=60)
        bed.session.prepare_available_now()
        return bed.session.latest_offset(start)

    with pytest.raises(DataLossError, match=r"ordeal-0 \[7, 7\): the topic was deleted"):
        restarted(before)
    end = restarted(before, failOnDataLoss="false")
    assert end.ends() == {P0: 60}
    assert restarted(end) is end


def test_a_pattern_over_short_lived_topics_lets_nothing_grow() -> None:
    """One topic after another is made, read, committed and deleted."""
    bed = Bed(subscribePattern=".*", startingOffsets="earliest", failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=1)
    end = bed.session.latest_offset(START)
    asked: list[int] = []
    looked_up = bed.cluster.missing_topics
    bed.cluster.missing_topics = lambda topics: (asked.append(len(set(topics))), looked_up(topics))[1]  # type: ignore[method-assign]
    for day in range(1, 21):
        partition = tp(0, f"day-{day}")
        bed.cluster.topics[partition.topic] = TopicInfo(f"id-{day}", 1)
        bed.clock.advance(REFRESH_S)
        bed.member.assign(partition)
        bed.cluster.ends |= {P0: 2 * day, partition: 5}
        end = bed.session.latest_offset(end)
        assert f"day-{day}-0 [0, 5)" in ranges(end)
        assert bed.session.latest_offset(end) is end
        del bed.cluster.topics[partition.topic]
        bed.member.lose(partition)
        bed.member.assign()
        bed.ends(p0=2 * day + 1)
        end = bed.session.latest_offset(end)
    assert end.ends() == {P0: 41}
    assert max(asked) == 1


def handing_over(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has read refunds to 4 and handed it over."""
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false", **options)
    refunds = tp(0, "refunds")
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0, refunds)
    bed.cluster.ends |= {P0: 1, refunds: 4}
    end = bed.session.latest_offset(START)
    bed.session.latest_offset(end)
    bed.member.lose(refunds)
    bed.member.assign()
    return bed, next_batch(bed, end)


def next_batch(bed: Bed, start: SourceOffset, later_s: float = 0.0) -> SourceOffset:
    """Return the next batch, of one record of orders-0."""
    bed.clock.advance(later_s)
    bed.cluster.ends[P0] += 1
    end = bed.session.latest_offset(start)
    assert end is not start
    return end


@pytest.mark.rule("R44")
def test_ends_of_short_lived_topics_that_were_handed_over_go_with_the_topics() -> None:
    """500 topics under a pattern: each is read, handed over, read on by another member, and deleted."""
    bed = Bed(subscribePattern=".*", startingOffsets="earliest", failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=1)
    end = bed.session.latest_offset(START)
    sizes = []
    for day in range(1, 501):
        partition = tp(0, f"day-{day}")
        bed.cluster.topics[partition.topic] = TopicInfo(f"id-{day}", 1)
        bed.cluster.ends[partition] = 5
        bed.member.assign(partition)
        end = next_batch(bed, end, REFRESH_S)
        bed.member.lose(partition)
        bed.member.assign()
        end = next_batch(bed, end)
        assert end.ends()[partition] == 5
        del bed.cluster.topics[partition.topic]
        sizes.append(len(str(end.to_json())))
    assert max(sizes[10:]) < 2 * max(sizes[:10])
    for _ in range(2):
        end = next_batch(bed, end, REFRESH_S)
    assert end.ends().keys() == {P0}


@pytest.mark.rule("R44")
def test_p2_the_end_of_a_topic_that_is_unknown_for_a_moment_stays() -> None:
    """A broker that has just started does not list it yet; the group has lost its offset, and it comes back."""
    bed, end = handing_over(subscribePattern=".*")
    refunds, there = tp(0, "refunds"), dict(bed.cluster.topics)
    del bed.cluster.topics["refunds"]
    end = next_batch(bed, end, REFRESH_S)
    bed.cluster.topics = there
    end = next_batch(bed, end, REFRESH_S)
    del bed.cluster.topics["refunds"]
    end = next_batch(bed, end, REFRESH_S)
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.member.committed.clear()
    bed.cluster.ends[refunds] = 6
    bed.clock.advance(REFRESH_S)
    bed.member.assign(refunds)
    assert "refunds-0 [4, 6)" in ranges(bed.session.latest_offset(end))


@pytest.mark.rule("R44")
def test_p2_the_end_of_a_topic_that_may_not_be_described_stays() -> None:
    """It is not listed, and nobody says that it does not exist. Nor is one that the pattern matches no more."""
    bed, end = handing_over(subscribePattern=".*")
    bed.cluster.matching = ("orders",)
    for _ in range(5):
        end = next_batch(bed, end, REFRESH_S)
    assert end.ends()[tp(0, "refunds")] == 4


@pytest.mark.parametrize("available_now", [True, False])
def test_a_named_topic_that_was_deleted_while_the_query_was_down_ends_no_available_now(available_now: bool) -> None:
    bed = Bed(subscribe="orders,refunds", startingOffsets="earliest", failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=60)
    if available_now:
        bed.session.prepare_available_now()
    end = bed.session.latest_offset(offset_of(OffsetRange(P0, 40, 50), OffsetRange(tp(0, "refunds"), 3, 4)))
    assert ranges(end) == ["orders-0 [50, 60)"]
    bed.ends(p0=70)
    following = bed.session.latest_offset(end)
    assert ranges(following) == (["orders-0 [60, 70)"] if not available_now else ranges(end))


def test_a_named_topic_that_never_was_ends_available_now() -> None:
    bed = Bed(subscribe="orders,nowhere")
    bed.session.prepare_available_now()
    with pytest.raises(OptionError, match=r"TOPIC_UNKNOWN.*'nowhere'"):
        bed.session.latest_offset(START)


def test_topics_that_are_deleted_one_after_the_other_in_one_trigger() -> None:
    bed = Bed(subscribe="orders,refunds,third", startingOffsets="earliest", failOnDataLoss="false")
    others = tp(0, "refunds"), tp(0, "third")
    bed.cluster.topics |= {other.topic: TopicInfo(TOPIC_ID, 1) for other in others}
    bed.join(P0, *others)
    bed.cluster.ends |= {P0: 5, others[0]: 5, others[1]: 5}
    end = bed.session.latest_offset(START)
    bed.ends(p0=6)
    del bed.cluster.topics["refunds"]
    looked_up = bed.cluster.missing_topics

    def then_the_third(topics: Iterable[str]) -> set[str]:
        found = looked_up(topics)
        bed.cluster.topics.pop("third", None)
        return found

    bed.cluster.missing_topics = then_the_third  # type: ignore[method-assign]
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [5, 6)"]


@pytest.mark.rule("R5", "R41")
def test_newly_assigned_partitions_that_do_not_exist_do_not_hold_up_the_others() -> None:
    """The group refuses their commits. 1. a topic comes back with fewer partitions, and a newcomer gets one that is
    gone; 2. the session is lost, the topic comes back with fewer, and the old assignment comes first.
    """
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.member.committed[P0] = GroupOffset(2, metadata(LINEAGE, 0, 2, pin=Pin(0, 1)))
    bed.join(P0, P1)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    assert ranges(end) == ["orders-0 [2, 5)"]
    assert bed.session.latest_offset(end) is end

    bed.cluster.topics["orders"] = TopicInfo("the second topic's id", 2)
    bed.ends(p0=60, p1=60)
    bed.clock.advance(REFRESH_S)
    end = bed.session.latest_offset(end)
    assert bed.session.latest_offset(end) is end
    bed.cluster.topics["orders"] = TopicInfo("the third topic's id", 1)
    bed.ends(p0=7)
    bed.member.committed.clear()
    bed.member.lose(P0, P1)
    bed.member.assign(P0, P1)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [0, 7)"]


def test_a_topic_that_is_listed_at_the_start_and_gone_a_moment_later() -> None:
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*")
    bed.cluster.matching = ("ordeal", "orders")
    bed.join(P0)
    bed.session.prepare_available_now()
    with pytest.raises(DataLossError, match=r"ordeal-0 \[7, 7\): the topic was deleted"):
        bed.session.latest_offset(offset_of(OffsetRange(tp(0, "ordeal"), 0, 7)))


def test_a_topic_that_is_deleted_once_more_is_told_once_more(caplog: pytest.LogCaptureFixture) -> None:
    """In between it had a position, and records that no batch has read."""
    bed, end = deleted(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert bed.session.latest_offset(end) is end
        bed.cluster.topics["orders"] = TopicInfo("other", 1)
        bed.member.committed.clear()
        bed.ends(p0=9)
        bed.clock.advance(REFRESH_S + 1)
        assert bed.session.latest_offset(end, ReadBounds(min_rows=1000)) is end
        del bed.cluster.topics["orders"]
        assert bed.session.latest_offset(end) is end
    assert caplog.text.count("the topic was deleted\n") == 2
    assert "made again" not in caplog.text


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "fewer partitions"])
def test_what_was_handed_over_is_its_next_owners_to_tell(deleted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else can say how far it was read."""
    mine = tp(0, "ordeal")
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*")
    bed.cluster.topics = {"ordeal": TopicInfo(TOPIC_ID, 1)} | ({} if deleted else {"orders": TopicInfo("other", 1)})
    bed.join(mine)
    bed.cluster.ends[mine] = 5
    before = offset_of(OffsetRange(mine, 0, 4), done={P1: 10})
    with caplog.at_level(logging.WARNING):
        assert ranges(bed.session.latest_offset(before)) == ["ordeal-0 [4, 5)"]
    assert ("topics=['orders'] handed_over=['orders-1 at 10']" in caplog.text) is deleted


def test_what_came_back_before_it_was_deleted_is_this_querys_to_tell() -> None:
    """It has no position yet, and the one who had it before is gone."""
    bed, _ = deleted()
    refunds = tp(0, "refunds")
    before = offset_of(OffsetRange(refunds, 0, 4), done={P0: 30})
    bed.member.lose(P0, refunds)
    bed.member.assign(P0, refunds)
    with pytest.raises(DataLossError, match=r"orders-0 \[30, 60\): the topic was deleted"):
        bed.session.latest_offset(before)


@pytest.mark.parametrize("fail", ["true", "false"])
@pytest.mark.rule("R42")
def test_a_deleted_topic_of_others_does_not_keep_a_member_from_taking_over(fail: str) -> None:
    """It is named in subscribe, was there when the query started, and never had anything of this query."""
    bed = Bed(startingOffsets="earliest", subscribe="orders,refunds", failOnDataLoss=fail)
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0)
    bed.ends(p0=60)
    end = bed.session.latest_offset(START)
    del bed.cluster.topics["refunds"]
    bed.member.assign(P1)
    bed.ends(p0=70, p1=5)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [60, 70)", "orders-1 [0, 5)"]


@pytest.mark.rule("R6")
def test_a_topic_made_again_is_a_new_one_for_a_member_that_never_had_it() -> None:
    """Another one had read it. By default a partition that the group has no offset for starts at its end."""
    refunds = tp(0, "refunds")
    bed = Bed(subscribe="orders,refunds")
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0)
    bed.ends(p0=50)
    end = bed.session.latest_offset(START)
    bed.cluster.topics["refunds"] = TopicInfo("other", 1)
    bed.ends(p0=60)
    bed.cluster.ends[refunds] = 7
    bed.member.assign(refunds)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [50, 60)", "refunds-0 [0, 7)"]


@pytest.mark.rule("R37")
def test_p1_what_was_completed_of_a_deleted_topic_moves_no_position_that_another_member_has_pinned() -> None:
    """The sequence: [0, 40) is complete, and the partition goes; the topic is made again, and another member is given
    the partition, pins 0 and reads nothing; it comes back. Spark's newest batch is still one of the deleted topic."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=40)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.member.lose(P0)
    bed.cluster.topics["orders"] = TopicInfo("other", 2)
    bed.ends(p0=60)
    bed.member.committed[P0] = GroupOffset(0, metadata(OTHER_LINEAGE, 0, 0, topic_id="other"))
    bed.member.assign(P0)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [0, 60)"]


def test_a_topic_made_again_before_its_first_batch_is_no_new_one() -> None:
    bed = Bed(failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=60)
    assert ranges(bed.session.latest_offset(START)) == []
    bed.cluster.topics["orders"] = TopicInfo("other", 2)
    bed.member.committed.clear()
    bed.ends(p0=67)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 67)"]


@pytest.mark.rule("R6")
def test_a_standby_takes_a_topic_made_again_for_a_new_one() -> None:
    """It has no batch, and Kafka has removed the group's offsets with the topic."""
    bed = Bed()
    bed.join()
    assert bed.session.latest_offset(START) is START
    bed.cluster.topics["orders"] = TopicInfo("other", 2)
    bed.ends(p0=7)
    bed.member.assign(P0)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 7)"]
    pin = parse_metadata(bed.member.committed[P0].metadata)
    assert pin is not None
    assert not pin.pin.knows_topic("orders", "other"), "its other partitions start at their beginning wherever they are"


def test_a_group_offset_of_the_topic_that_is_there_counts_more_than_the_one_before_it() -> None:
    bed = Bed(failOnDataLoss="false")
    bed.join(P0)
    bed.ends(p0=60)
    bed.session.latest_offset(START)
    bed.cluster.topics["orders"] = TopicInfo("other", 2)
    bed.member.committed.clear()
    bed.ends(p0=0)
    assert bed.session.latest_offset(START) is START
    bed.member.lose(P0)
    bed.member.committed[P0] = GroupOffset(2, "")
    bed.ends(p0=3)
    bed.member.assign(P0)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [2, 3)"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_deleted_topic_that_comes_back_after_a_batch_of_another_is_no_new_one(
    restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """By default a partition that the group has no offset for starts at its end."""
    refunds = tp(0, "refunds")
    bed = Bed(subscribe="orders,refunds", failOnDataLoss="false")
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0, refunds)
    end = bed.session.latest_offset(START)
    bed.ends(p0=60)
    bed.cluster.ends[refunds] = 60
    end = bed.session.latest_offset(end)
    del bed.cluster.topics["refunds"]
    bed.member.lose(P0, refunds)
    bed.member.assign(P0)
    bed.ends(p0=70)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(end)
        assert ranges(end) == ["orders-0 [60, 70)"]
        bed.ends(p0=80)
        end = bed.session.latest_offset(end)
        del bed.member.committed[refunds]
        if restart:
            after = Bed(subscribe="orders,refunds", failOnDataLoss="false")
            after.member.committed = bed.member.committed
            bed = after
        bed.cluster.topics["refunds"] = TopicInfo("other", 1)
        bed.cluster.ends |= {P0: 80, refunds: 7}
        bed.clock.advance(REFRESH_S + 1)
        bed.join(P0, refunds)
        assert "refunds-0 [0, 7)" in ranges(bed.session.latest_offset(end))
    assert caplog.text.count("data lost") == (2 if restart else 1)


def test_a_restart_goes_on_without_a_topic_whose_loss_was_told() -> None:
    """It is named all the same: nobody has to change the option because a topic was deleted."""
    bed, end = deleted(failOnDataLoss="false")
    take_deleted(bed)
    bed.cluster.ends[tp(0, "refunds")] = 4
    end = bed.session.latest_offset(end)
    assert ranges(end) == ["refunds-0 [0, 4)"]
    for strict in "true", "false":
        after = Bed(startingOffsets="earliest", subscribe="orders,refunds", failOnDataLoss=strict)
        after.cluster.topics = bed.cluster.topics
        after.join(tp(0, "refunds"))
        after.cluster.ends[tp(0, "refunds")] = 6
        assert ranges(after.session.latest_offset(end)) == ["refunds-0 [4, 6)"]


def test_a_batch_runs_again_when_a_topic_of_another_member_is_gone() -> None:
    bed = Bed(startingOffsets="earliest", subscribe="orders,refunds")
    end = offset_of(OffsetRange(P0, 40, 50), done={tp(0, "refunds"): 7})
    bed.ends(p0=50)
    assert flat(bed.session.tasks(START, end)) == ["orders-0 [40, 50)"]


def test_a_batch_that_runs_again_says_which_partitions_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.cluster.topics["orders"] = TopicInfo("other", 1)
    bed.join(P0)
    end = offset_of(OffsetRange(P0, 40, 50), OffsetRange(P1, 40, 55))
    with caplog.at_level(logging.WARNING):
        assert flat(bed.session.tasks(START, end)) == []
    assert "orders-0 [40, 50): the topic was deleted and made again, and is read from its beginning" in caplog.text
    assert "orders-1 [40, 55): the topic was deleted and made again with fewer partitions" in caplog.text


@pytest.mark.rule("R41")
def test_what_a_broker_has_not_heard_of_keeps_its_position_and_its_commit() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0, P1)
    bed.ends(p0=60, p1=60)
    bed.member.takes_commits = False
    end = bed.session.latest_offset(START)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.session.latest_offset(end)
    assert {owned.partition: owned.position for owned in bed.member.view().partitions} == {P0: 60, P1: 60}
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.member.take_commits()
    bed.clock.advance(REFRESH_S + 1)
    bed.ends(p1=65)
    assert ranges(bed.session.latest_offset(end))[-1] == "orders-1 [60, 65)"
    assert bed.committed() == {0: 60, 1: 60}


@pytest.mark.rule("R41")
def test_a_partition_that_does_not_exist_is_left_out_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    """Its owner left before the group looked at the topic, which was made again with fewer: it came to this member."""
    bed = Bed(startingOffsets="earliest")
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0, P1)
    bed.ends(p0=5)
    with caplog.at_level(logging.WARNING):
        end = bed.session.latest_offset(START)
        assert ranges(end) == ["orders-0 [0, 5)"]
        assert bed.session.latest_offset(end) is end
    assert caplog.text.count("left out until they are: orders-1") == 1
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.ends(p1=3)
    bed.clock.advance(REFRESH_S + 1)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [5, 5)", "orders-1 [0, 3)"]


def test_partitions_that_come_back_are_read_again() -> None:
    bed = Bed(startingOffsets="earliest", failOnDataLoss="false")
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.join(P0, P1)
    bed.ends(p0=60, p1=60)
    end = bed.session.latest_offset(START)
    bed.cluster.topics["orders"] = TopicInfo("other", 1)
    bed.ends(p0=20)
    end = bed.session.latest_offset(end)
    bed.cluster.topics["orders"] = TopicInfo("other", 2)
    bed.ends(p0=20, p1=7)
    bed.clock.advance(REFRESH_S + 1)
    assert "orders-1 [0, 7)" in ranges(bed.session.latest_offset(end))


@pytest.mark.parametrize(
    ("interval_ms", "after_s", "found"),
    [("500", 0.6, True), ("500", 0.4, False), ("60000", REFRESH_S + 1, True), ("-1", REFRESH_S + 1, True)],
)
def test_how_soon_a_pattern_is_matched_again(interval_ms: str, after_s: float, found: bool) -> None:
    bed = Bed(subscribePattern="ord.*", kafka__topic__metadata__refresh__interval__ms=interval_ms)
    bed.join(P0)
    bed.session.latest_offset(START)
    bed.cluster.topics["ordeal"] = TopicInfo("another", 1)
    bed.clock.advance(after_s)
    bed.session.latest_offset(START)
    assert ("ordeal" in bed.member.named("subscribe")[-1]) is found


def test_a_patterns_topic_that_came_and_went_ends_no_query() -> None:
    bed = Bed(startingOffsets="earliest", subscribePattern="ord.*")
    bed.cluster.matching = ("orders", "ordeal")
    bed.join(P0)
    bed.ends(p0=5)
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]


def test_an_assigned_partition_of_a_deleted_topic_is_left_out() -> None:
    """Nobody takes it away: it stays assigned."""
    bed = Bed(startingOffsets="earliest", subscribe="orders,refunds", failOnDataLoss="false")
    bed.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    bed.join(P0, tp(0, "refunds"))
    bed.ends(p0=60)
    end = bed.session.latest_offset(START)
    del bed.cluster.topics["orders"]
    for number in range(1, 4):
        bed.cluster.ends[tp(0, "refunds")] = number
        end = bed.session.latest_offset(end)
        assert ranges(end) == [f"refunds-0 [{number - 1}, {number})"]


def test_a_logged_batch_of_a_deleted_topic_is_not_read_again(caplog: pytest.LogCaptureFixture) -> None:
    logged = offset_of(OffsetRange(P0, 40, 50))
    failing, going_on = Bed(), Bed(failOnDataLoss="false", subscribe="orders,refunds")
    for bed in failing, going_on:
        del bed.cluster.topics["orders"]
    going_on.cluster.topics["refunds"] = TopicInfo(TOPIC_ID, 1)
    with pytest.raises(DataLossError, match=r"orders-0 \[40, 50\): the topic was deleted"):
        failing.session.tasks(START, logged)
    with caplog.at_level(logging.WARNING):
        assert going_on.session.tasks(START, logged) == ()
    assert "orders-0 [40, 50): the topic was deleted" in caplog.text


# --- a truncated log


def truncated(**options: str) -> tuple[Bed, SourceOffset]:
    """Return a session that has read 20 records; a new leader has only ten of them, and twelve new ones."""
    bed = Bed(startingOffsets="earliest", **options)
    bed.join(P0)
    bed.ends(p0=20)
    end = bed.session.latest_offset(START)
    assert bed.session.latest_offset(end) is end
    bed.cluster.epoch, bed.cluster.cut = 4, {P0: 10}
    bed.ends(p0=22)
    return bed, end


def test_a_truncated_log_fails_the_query() -> None:
    bed, end = truncated()
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 20\): the log was truncated"):
        bed.session.latest_offset(end)


@pytest.mark.parametrize("end", [10, 15, 20, 22])
@pytest.mark.rule("R45")
def test_what_a_truncated_log_has_there_now_is_skipped_and_told_once(
    end: int, caplog: pytest.LogCaptureFixture
) -> None:
    bed, read = truncated(failOnDataLoss="false")
    bed.ends(p0=end)
    with caplog.at_level(logging.WARNING):
        following = bed.session.latest_offset(read)
        bed.ends(p0=30)
        limited = bed.session.latest_offset(following, ReadBounds(max_rows=3))
        bed.session.commit(read)
        last = bed.session.latest_offset(limited)
    done = [*([] if following is read else ranges(following)), *ranges(limited), *ranges(last)]
    assert done[0].startswith("orders-0 [20, ")
    assert done[-1].endswith(", 30)")
    assert caplog.text.count("orders-0 [10, 20): the log was truncated") == 1
    assert bed.committed() == {0: limited.ends()[P0]}


def test_a_position_behind_the_end_of_available_now_is_no_truncation() -> None:
    """Another member has read on behind the end that this query saw at its start, and hands the partition over."""
    bed = Bed(startingOffsets="earliest")
    bed.ends(p0=20, p1=5)
    bed.session.prepare_available_now()
    bed.ends(p0=60)
    told = CommitMetadata(OTHER_LINEAGE, TOPIC_ID, 0, 50, PIN, leader_epoch=3).to_text()
    bed.member.committed[P0] = GroupOffset(50, told)
    bed.join(P0)
    for _ in range(3):
        assert bed.session.latest_offset(START) is START
        bed.clock.advance(SHORT_S)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_available_now_does_not_end_before_a_short_log_is_told(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another program has set the group's offset beyond the log's end: run after run would succeed and read nothing."""
    bed = Bed(startingOffsets="earliest", failOnDataLoss=fails)
    bed.member.committed[P0] = GroupOffset(1_000, "")
    bed.ends(p0=20, p1=5)
    bed.join(P0, P1)
    bed.session.prepare_available_now()
    read = bed.session.latest_offset(START)
    assert ranges(read)[1:] == ["orders-1 [0, 5)"], "the other partition does not wait"
    if fails == "true":
        with pytest.raises(DataLossError, match=r"orders-0 \[20, 1000\): .*reset the group"):
            bed.session.latest_offset(read)
    else:
        assert bed.session.latest_offset(read) is read
        assert "orders-0 [20, 1000): the log was truncated" in caplog.text
    assert SHORT_S <= bed.paused < SHORT_S + 2


def test_a_log_that_is_short_for_a_moment_does_not_end_available_now() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.member.committed[P0] = GroupOffset(20, "")
    bed.ends(p0=30)
    bed.join(P0)
    bed.session.prepare_available_now()
    bed.ends(p0=10)
    bed.member.during_view = lambda: bed.ends(p0=30) if bed.paused > 5 else None
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [20, 30)"]


def test_a_truncation_while_the_query_was_down_is_told_by_the_checkpoint() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=22)
    bed.cluster.epoch, bed.cluster.cut = 4, {P0: 10}
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 20\): the log was truncated"):
        bed.session.latest_offset(offset_of(OffsetRange(P0, 0, 20, 3)))


def test_a_truncation_is_told_to_the_next_owner_by_the_groups_offset() -> None:
    bed = Bed(startingOffsets="earliest")
    told = CommitMetadata(OTHER_LINEAGE, TOPIC_ID, 0, 20, PIN, leader_epoch=3).to_text()
    bed.member.committed[P0] = GroupOffset(20, told)
    bed.join(P0)
    bed.ends(p0=22)
    bed.cluster.epoch, bed.cluster.cut = 4, {P0: 10}
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 20\): the log was truncated"):
        bed.session.latest_offset(START)


def test_a_logged_batch_of_a_truncated_log_reads_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    logged = offset_of(OffsetRange(P0, 5, 20, 3))
    failing, going_on = Bed(), Bed(failOnDataLoss="false")
    for bed in failing, going_on:
        bed.ends(p0=22)
        bed.cluster.epoch, bed.cluster.cut = 4, {P0: 10}
    with pytest.raises(DataLossError, match=r"orders-0 \[10, 20\): the log was truncated"):
        failing.session.tasks(START, logged)
    assert flat(going_on.session.tasks(START, logged)) == ["orders-0 [5, 10)"]


# --- replay


def replayed(bed: Bed, logged: SourceOffset) -> list[str]:
    return flat(bed.session.tasks(START, logged))


def test_a_logged_batch_is_read_again_as_it_was_owned_or_not() -> None:
    bed = Bed()
    bed.join(P0)
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    assert replayed(bed, logged) == ["orders-0 [10, 20)", "orders-1 [5, 9)"]
    (batch,) = bed.member.named("replay")
    assert isinstance(batch, FlightBatch)
    assert batch.end == logged


def test_a_replay_keeps_the_leader_epochs() -> None:
    """Executors tell by them whether what they have fetched ahead is what was planned."""
    bed = Bed()
    bed.join(P0)
    bed.ends(p0=20)
    logged = offset_of(OffsetRange(P0, 10, 20, bed.cluster.epoch))
    assert [item.leader_epoch for task in bed.session.tasks(START, logged) for item in task] == [bed.cluster.epoch]


@pytest.mark.rule("R11")
def test_a_replay_leaves_out_what_another_lineage_has_committed_and_remembers_it() -> None:
    bed = Bed()
    bed.join(P0)
    bed.member.committed[P0] = GroupOffset(15, metadata(OTHER_LINEAGE, 10, 15))
    bed.member.committed[P1] = GroupOffset(9, metadata(LINEAGE, 5, 9))
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    assert replayed(bed, logged) == ["orders-0 [15, 20)", "orders-1 [5, 9)"]
    bed.member.committed[P0] = GroupOffset(18, metadata(OTHER_LINEAGE, 15, 18))
    assert replayed(bed, logged) == ["orders-0 [15, 20)", "orders-1 [5, 9)"]
    assert len(bed.member.named("replay")) == 1


@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_replay_whose_records_are_gone_meanwhile(fail: str, caplog: pytest.LogCaptureFixture) -> None:
    """P8: the query is down, retention removes what its logged batch reads, Spark runs the batch again."""
    bed = Bed(failOnDataLoss=fail)
    bed.join(P0)
    bed.cluster.beginnings |= {P0: 14, P1: 30}
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    if fail == "true":
        with pytest.raises(DataLossError, match=r"orders-0 \[10, 14\), orders-1 \[5, 9\)"):
            bed.session.tasks(START, logged)
    else:
        with caplog.at_level(logging.WARNING):
            assert replayed(bed, logged) == ["orders-0 [14, 20)"]
        assert "orders-0 [10, 14), orders-1 [5, 9)" in caplog.text


def test_a_replay_that_completes_commits_what_is_owned() -> None:
    bed = Bed()
    bed.join(P0)
    bed.member.view()
    bed.member.committed |= {
        P0: GroupOffset(10, metadata(LINEAGE, 0, 10)),
        P1: GroupOffset(5, metadata(LINEAGE, 0, 5)),
    }
    logged = offset_of(OffsetRange(P0, 10, 20), OffsetRange(P1, 5, 9))
    bed.session.tasks(START, logged)
    bed.ends(p0=25)
    end = bed.session.latest_offset(logged)
    assert ranges(end) == ["orders-0 [20, 25)"]
    assert dict(end.done) == {P1: 9}
    assert bed.committed() == {0: 20, 1: 5}


def test_a_replay_of_a_topic_made_anew() -> None:
    logged = SourceOffset.of(LINEAGE, {"orders": "the first topic's id"}, [OffsetRange(P0, 10, 20)], {})
    with pytest.raises(DataLossError):
        Bed().session.tasks(START, logged)
    assert Bed(failOnDataLoss="false").session.tasks(START, logged) == ()


@pytest.mark.parametrize(
    ("choice", "read", "after"),
    [("checkpoint", "orders-0 [60, 70)", "orders-0 [70, 95)"), ("group", "orders-0 [65, 70)", "orders-0 [70, 95)")],
)
@pytest.mark.rule("R50")
def test_a_replay_from_an_old_checkpoint_is_a_conflict(
    choice: str, read: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(onConflict=choice)
    bed.member.committed[P0] = GroupOffset(65, metadata(LINEAGE, 60, 65))
    bed.join(P0)
    bed.ends(p0=95)
    logged = offset_of(OffsetRange(P0, 60, 70))
    with caplog.at_level(logging.WARNING):
        assert replayed(bed, logged) == [read]
    assert "orders-0 [60, 70) group=65 (the checkpoint is older" in caplog.text
    end = bed.session.latest_offset(logged)
    assert ranges(end) == [after]
    assert end.lineage != LINEAGE


def test_a_replay_in_conflict_may_fail_the_query() -> None:
    bed = Bed(onConflict="fail")
    bed.member.committed[P0] = GroupOffset(30, "moved by hand")
    bed.join(P0)
    with pytest.raises(MembershipError, match=r"CONFLICT.*orders-0 \[60, 70\) group=30 .*another program"):
        replayed(bed, offset_of(OffsetRange(P0, 60, 70)))
    assert bed.member.named("replay") == []


def test_a_group_that_was_moved_back_stays_there_after_a_replay() -> None:
    """onConflict=group: the batch is read as logged and not committed, then everything from the group's offset on."""
    bed = Bed(onConflict="group")
    bed.member.committed[P0] = GroupOffset(30, "moved by hand")
    bed.join(P0)
    bed.ends(p0=95)
    logged = offset_of(OffsetRange(P0, 60, 70))
    assert replayed(bed, logged) == ["orders-0 [60, 70)"]
    assert ranges(bed.session.latest_offset(logged)) == ["orders-0 [30, 95)"]
    assert bed.committed() == {0: 30}


# --- AvailableNow


def test_available_now_reads_up_to_its_targets_and_ends() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5, p1=3)
    bed.session.prepare_available_now()
    bed.ends(p0=100)
    first = bed.session.latest_offset(START, ReadBounds(max_rows=4))
    assert ranges(first) == ["orders-0 [0, 4)"]
    second = bed.session.latest_offset(first)
    assert ranges(second) == ["orders-0 [4, 5)"]
    assert bed.session.latest_offset(second) is second


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


def test_available_now_reads_a_partition_that_it_gains_up_to_the_same_targets() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5, p1=3)
    bed.session.prepare_available_now()
    end = bed.session.latest_offset(START)
    bed.ends(p1=50)
    bed.member.assign(P1)
    assert ranges(bed.session.latest_offset(end)) == ["orders-0 [5, 5)", "orders-1 [0, 3)"]


def test_available_now_without_partitions_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """A static member that was stopped keeps them until its session ends: the job succeeds, and nobody knows why."""
    bed = Bed(startingOffsets="earliest")
    bed.join()
    bed.ends(p0=5)
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert "AvailableNow ends without a partition" in caplog.text
    assert "group=shop" in caplog.text


def test_available_now_leaves_later_partitions_alone() -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P2)
    bed.session.prepare_available_now()
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
    bed.ends(p2=7)
    assert bed.session.latest_offset(START) is START


def test_available_now_ends_when_others_own_everything() -> None:
    bed = Bed()
    bed.join()
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START


def test_available_now_without_any_partition_ends_at_once() -> None:
    bed = Bed(subscribePattern="nothing-.*")
    bed.cluster.matching = ()
    bed.session.prepare_available_now()
    assert bed.session.latest_offset(START) is START
    assert bed.paused == 0.0


@pytest.mark.parametrize(("away_s", "goes_on"), [(100.0, True), (130.0, False)])
def test_available_now_waits_for_a_coordinator_that_takes_no_start_position(away_s: float, goes_on: bool) -> None:
    """As long as for brokers."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    bed.session.prepare_available_now()
    back_s, establish = bed.clock.now_s + away_s, bed.member.establish
    bed.member.establish = lambda *given: bed.clock.now_s >= back_s and establish(*given)  # type: ignore[method-assign]
    if goes_on:
        assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]
    else:
        with pytest.raises(KafkaUnavailableError, match=r"CLUSTER_REQUEST_FAILED.*for 120 s"):
            bed.session.latest_offset(START)


def test_available_now_outlives_a_rebalance_that_begins_under_a_plan() -> None:
    """It takes longer than a trigger of another query would wait for a plan."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    bed.session.prepare_available_now()
    back_s: list[float] = []

    def begins() -> None:
        bed.member.during_fix = lambda: None
        bed.member.lose(P0)
        back_s.append(bed.clock.now_s + 70.0)

    def ends() -> None:
        if back_s and bed.clock.now_s > back_s[0]:
            back_s.clear()
            bed.member.assign(P0)

    bed.member.during_fix, bed.member.during_view = begins, ends
    assert ranges(bed.session.latest_offset(START)) == ["orders-0 [0, 5)"]
    assert bed.paused > 70.0


@pytest.mark.parametrize("joined", [True, False], ids=["offsets unknown", "no assignment"])
def test_available_now_does_not_end_because_the_group_is_slow(joined: bool) -> None:
    bed = Bed()
    bed.member.fetches_answered = False
    bed.member.start()
    if joined:
        bed.member.assign(P0)
    bed.session.prepare_available_now()
    with pytest.raises(GroupKafkaError, match="NO_ASSIGNMENT"):
        bed.session.latest_offset(START)
    assert 45.0 < bed.paused < 120.0


# --- batches that nobody reads


def test_a_batch_that_spark_completes_without_a_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The sequence: planned and logged; the sink drops it, so `partitions` is not called; the next trigger comes."""
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    first = bed.session.latest_offset(START)
    bed.ends(p0=8)
    second = bed.session.latest_offset(first)
    assert "Spark has not read it (told once): group=shop orders-0 [0, 5): a file sink" in caplog.text
    caplog.clear()
    assert bed.session.latest_offset(second) == second
    assert "has not read it" not in caplog.text


def test_a_batch_that_is_read_is_not_told_as_unread(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    bed.ends(p0=8)
    bed.session.latest_offset(end)
    assert "has not read it" not in caplog.text


def test_a_plan_that_spark_never_logged_is_not_told_as_unread(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(startingOffsets="earliest")
    bed.join(P0)
    bed.ends(p0=5)
    bed.session.latest_offset(START)
    bed.session.latest_offset(START)
    assert "has not read it" not in caplog.text


# --- what executors may have skipped


def batch_given_out(bed: Bed) -> tuple[SourceOffset, SourceOffset]:
    """Plan [0, 5) and [0, 7), and give them to executors."""
    bed.join(tp(0), tp(1))
    bed.ends(p0=5, p1=7)
    end = bed.session.latest_offset(START)
    bed.session.tasks(START, end)
    return START, end


def test_p8_what_was_removed_while_executors_read_is_reported_on_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    bed.cluster.beginnings[tp(0)] = 3
    bed.ends(p0=6)
    bed.session.latest_offset(end)
    (line,) = [line for line in caplog.messages if "data lost" in line]
    assert "orders-0 [0, 3): removed between the plan and the end of the batch (at most" in line
    assert bed.session._metrics.records_lost == 3


@pytest.mark.parametrize("again", [True, False], ids=["again", "deleted"])
def test_p8_a_topic_that_is_replaced_while_executors_read_is_reported_with_the_planned_ranges(
    again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bed = Bed(failOnDataLoss="false", startingOffsets="earliest")
    _, end = batch_given_out(bed)
    del bed.cluster.topics["orders"]
    if again:
        bed.cluster.topics["orders"] = TopicInfo("topic-id-2", 2)
    bed.session._look_back(end, bed.session._given_out)
    (line,) = [line for line in caplog.messages if "data lost" in line]
    assert "orders-0 [0, 5), orders-1 [0, 7): the topic was deleted or made again between the plan and" in line
    assert bed.session._metrics.records_lost == 12


@pytest.mark.parametrize("given", [{"failOnDataLoss": "true"}, {"failOnDataLoss": "false"}])
def test_nobody_looks_back_at_what_cannot_be_skipped(given: dict[str, str]) -> None:
    """With failOnDataLoss=true an executor has failed; what the driver has read it has read to its end."""
    bed = Bed(startingOffsets="earliest", **given)
    _, end = batch_given_out(bed)
    if given["failOnDataLoss"] == "false":
        bed.session.read_on_driver()
    del bed.cluster.topics["orders"]
    bed.session._look_back(end, bed.session._given_out)
    assert bed.session._metrics.records_lost == 0


# --- brokers without topic ids


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_topic_that_gets_an_id_is_the_one_that_was_read(
    again: bool, starting: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against: 1. brokers without topic ids are read from; 2. they are upgraded, and give the topic an id; 3. it
    is taken for another topic of that name: a loss is reported, and all of it is read again.
    """
    pin = Pin(0, 2, None if starting == "earliest" else KnownTopics.of({"orders": NO_TOPIC_ID}))
    committed = GroupOffset(5, metadata(LINEAGE, 0, 5, pin=pin, topic_id=NO_TOPIC_ID))
    start = SourceOffset.of(LINEAGE, {"orders": NO_TOPIC_ID}, [OffsetRange(P0, 0, 5)], {})
    bed = Bed(startingOffsets=starting)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID if again else NO_TOPIC_ID, 2)
    bed.member.committed[P0] = committed
    bed.ends(p0=7, p1=3)
    bed.join(P0)
    end = bed.session.latest_offset(start)
    assert ranges(end) == ["orders-0 [5, 7)"]
    bed.session.tasks(start, end)
    bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 2)
    bed.ends(p0=9)
    bed.clock.advance(60.0)
    later = bed.session.latest_offset(end)
    assert ranges(later) == ["orders-0 [7, 9)"]
    assert later.topic_id("orders") == TOPIC_ID
    bed.session.commit(later)
    assert bed.committed()[0] == 9
    assert "made again" not in caplog.text
