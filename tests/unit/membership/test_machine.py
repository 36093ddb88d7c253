"""The member's state machine: its table in full, and the sequences in which group and batch meet."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_groupsource.membership.events import DrainOutcome, FlightBatch, GroupEvent, HandOver
from spark_groupsource.membership.machine import (
    FINAL_STATES,
    GROUP_TRANSITIONS,
    IllegalTransition,
    MemberMachine,
    MemberState,
)
from spark_groupsource.model.commit_metadata import CommitItem, CommitMetadata, GroupOffset, Pin
from spark_groupsource.model.offsets import OffsetRange, Reset, TopicPartition
from tests.unit.fakes import flight, offset_of, tp

P0, P1, P2 = tp(0), tp(1), tp(2)
R0, R1 = OffsetRange(P0, 10, 20), OffsetRange(P1, 0, 5)
# Events that are about partitions.
OF_PARTITIONS = (
    GroupEvent.PARTITIONS_ASSIGNED,
    GroupEvent.REVOKE_STARTED,
    GroupEvent.PARTITIONS_RELEASED,
    GroupEvent.ASSIGNMENT_ENDED,
)


def joined(*partitions: tuple[int, int | None]) -> MemberMachine:
    """Return a member that owns partitions: (number, the group's offset, which is also the start)."""
    machine = MemberMachine()
    machine.handle(GroupEvent.STARTED)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, tuple(tp(number) for number, _ in partitions))
    machine.offsets_fetched({tp(number): GroupOffset(offset) for number, offset in partitions})
    machine.positions_established({tp(number): offset for number, offset in partitions if offset is not None})
    return machine


def item(number: int, offset: int, metadata: str = "m") -> CommitItem:
    return CommitItem(tp(number), offset, metadata)


# --- the tables


def complete(machine: MemberMachine, batch: FlightBatch) -> tuple[CommitItem, ...]:
    """Put a batch in flight and complete it; return what is to be committed."""
    machine.begin(batch)
    return machine.complete(batch.end)


@pytest.mark.parametrize(
    ("held", "passed"),
    [
        (GroupOffset(50, CommitMetadata("own", "id", 50, 50, Pin(0, 1)).to_text()), False),
        (GroupOffset(50, CommitMetadata("new", "id", 50, 50, Pin(0, 1), reset=Reset(1, "new")).to_text()), True),
        (GroupOffset(50, "of another program"), False),
        (GroupOffset(100, CommitMetadata("other", "id", 50, 100, Pin(0, 1)).to_text()), True),
        (GroupOffset(0, CommitMetadata("own", "new id", 0, 0, Pin(0, 1)).to_text()), True),
        (GroupOffset(None), True),
        (None, False),
    ],
    ids=["its start", "a decided conflict", "a foreign offset", "passed", "a recreated topic", "deleted", "no answer"],
)
@pytest.mark.rule("R86")
def test_what_the_group_needs_of_a_batch_that_could_not_be_committed(held: GroupOffset | None, passed: bool) -> None:
    machine = MemberMachine()
    machine.handle(GroupEvent.STARTED)
    item_100 = CommitItem(P0, 100, CommitMetadata("own", "id", 50, 100, Pin(0, 1)).to_text())
    batch = FlightBatch(offset_of(OffsetRange(P0, 50, 100)), (item_100,))
    complete(machine, batch)
    assert machine.unaccepted() == (P0,)
    assert machine.has_passed({} if held is None else {P0: held}) is passed


def test_every_event_is_in_the_table() -> None:
    assert {event for _, event in GROUP_TRANSITIONS} == set(GroupEvent)


@pytest.mark.parametrize("event", GroupEvent, ids=lambda e: e.name)
@pytest.mark.parametrize("state", MemberState, ids=lambda s: s.name)
def test_group_transition(state: MemberState, event: GroupEvent) -> None:
    machine, partitions = MemberMachine(state=state), (P0,) if event in OF_PARTITIONS else ()
    expected = GROUP_TRANSITIONS.get((state, event))
    if expected is None:
        before = machine.view()
        with pytest.raises(IllegalTransition, match=f"{event.name} in state {state.name}"):
            machine.handle(event, partitions)
        assert machine.view() == before
    else:
        machine.handle(event, partitions)
        assert machine.state is expected


def test_a_batch_ends_once() -> None:
    machine = joined((0, 10))
    assert machine.complete(flight(R0).end) == ()
    machine.begin(flight(R0))
    machine.discard()
    assert (machine.flight, machine.complete(flight(R0).end)) == (None, ())


def test_every_state_can_be_reached_and_left() -> None:
    reached = set(GROUP_TRANSITIONS.values()) | {MemberState.DOWN}
    left = {state for (state, _), target in GROUP_TRANSITIONS.items() if target is not state}
    assert reached == set(MemberState)
    assert left == set(MemberState) - FINAL_STATES


def test_a_batch_cannot_be_fixed_twice() -> None:
    machine = joined((0, 10))
    machine.begin(flight(R0))
    with pytest.raises(IllegalTransition):
        machine.begin(flight(OffsetRange(P0, 20, 30)))
    assert machine.flight == flight(R0)


def test_nothing_is_settled_before_the_groups_offsets_are_fetched() -> None:
    machine = MemberMachine()
    machine.handle(GroupEvent.STARTED)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    assert not machine.view().settled
    machine.offsets_fetched({P0: GroupOffset(10)})
    assert machine.view().settled


# --- revoke meets batch


def test_revoke_with_nothing_in_flight_hands_over_at_once() -> None:
    machine = joined((0, 10))
    revoke = (GroupEvent.REVOKE_STARTED, (P0,))
    machine.handle(*revoke)
    assert machine.hand_over() == HandOver((), DrainOutcome.COMPLETE)
    assert machine.state is MemberState.DRAINING


@pytest.mark.rule("R26")
def test_revoke_waits_for_the_batch_in_flight_and_carries_its_commit() -> None:
    machine, batch, revoke = joined((0, 10)), flight(R0), (GroupEvent.REVOKE_STARTED, (P0,))
    machine.begin(batch)
    machine.handle(*revoke)
    assert machine.hand_over() is None
    assert machine.complete(batch.end) == ()
    assert machine.hand_over() == HandOver((item(0, 20),), DrainOutcome.COMPLETE)
    machine.offsets_acknowledged([item(0, 20)])
    machine.handle(GroupEvent.PARTITIONS_RELEASED, (P0,))
    assert (machine.state, machine.owned_partitions()) == (MemberState.JOINED, ())


def test_revoke_of_a_partition_outside_the_batch_does_not_wait() -> None:
    machine = joined((0, 10), (1, 0))
    machine.begin(flight(R0))
    revoke = (GroupEvent.REVOKE_STARTED, (P1,))
    machine.handle(*revoke)
    assert machine.hand_over() == HandOver((), DrainOutcome.COMPLETE)


def test_revoke_does_not_wait_for_an_empty_range() -> None:
    machine = joined((0, 10), (1, 5))
    machine.begin(flight(R0, OffsetRange(P1, 5, 5)))
    machine.handle(GroupEvent.REVOKE_STARTED, (P1,))
    assert machine.hand_over() is not None


@pytest.mark.parametrize(
    ("event", "outcome"),
    [(GroupEvent.DRAIN_EXPIRED, DrainOutcome.DEADLINE), (GroupEvent.STOP_REQUESTED, DrainOutcome.STOPPED)],
)
def test_a_drain_that_ends_early_commits_only_what_is_complete(event: GroupEvent, outcome: DrainOutcome) -> None:
    machine, first, revoke = joined((0, 10)), flight(R0), (GroupEvent.REVOKE_STARTED, (P0,))
    machine.begin(first)
    machine.complete(first.end)
    machine.begin(flight(OffsetRange(P0, 20, 30)))
    machine.handle(*revoke)
    assert machine.hand_over() is None
    machine.handle(event)
    assert machine.hand_over() == HandOver((item(0, 20),), outcome)


def test_a_batch_that_completes_after_the_drain_deadline_commits_nothing() -> None:
    machine, batch = joined((0, 10)), flight(R0)
    machine.begin(batch)
    machine.handle(GroupEvent.REVOKE_STARTED, (P0,))
    machine.handle(GroupEvent.DRAIN_EXPIRED)
    machine.handle(GroupEvent.PARTITIONS_RELEASED, (P0,))
    assert machine.complete(batch.end) == ()
    assert machine.flight is None


def test_a_discarded_batch_ends_the_wait() -> None:
    machine, revoke = joined((0, 10)), (GroupEvent.REVOKE_STARTED, (P0,))
    machine.begin(flight(R0))
    machine.handle(*revoke)
    machine.discard()
    assert machine.hand_over() == HandOver((), DrainOutcome.COMPLETE)


def test_an_old_deadline_does_not_shorten_the_next_drain() -> None:
    machine = joined((0, 10), (1, 0))
    machine.begin(flight(R0, R1))
    machine.handle(GroupEvent.REVOKE_STARTED, (P0,))
    machine.handle(GroupEvent.DRAIN_EXPIRED)
    machine.handle(GroupEvent.PARTITIONS_RELEASED, (P0,))
    machine.handle(GroupEvent.REVOKE_STARTED, (P1,))
    assert machine.hand_over() is None


def test_an_eager_revoke_joins_anew() -> None:
    machine = joined((0, 10))
    machine.handle(GroupEvent.REVOKE_STARTED, (P0,))
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    assert machine.state is MemberState.REJOINING
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    assert machine.unfetched() == (P0,)


def test_kept_partitions_are_committed_when_a_batch_completes_during_a_drain() -> None:
    machine, batch, revoke = joined((0, 10), (1, 0)), flight(R0, R1), (GroupEvent.REVOKE_STARTED, (P0,))
    machine.begin(batch)
    machine.handle(*revoke)
    assert machine.complete(batch.end) == (item(1, 5),)
    assert machine.hand_over() == HandOver((item(0, 20),), DrainOutcome.COMPLETE)


# --- lost


def test_lost_drops_everything_and_never_commits() -> None:
    machine, batch = joined((0, 10), (1, 0)), flight(R0, R1)
    machine.begin(batch)
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0, P1))
    assert machine.complete(batch.end) == ()
    assert (machine.state, machine.owned_partitions(), machine.pending()) == (MemberState.REJOINING, (), ())


# --- a partition that comes back when its batch is complete


def ours(offset: int, *, lineage: str = "own", topic_id: str = "id", reset: Reset | None = None) -> CommitItem:
    """Return the end of a batch of P0, with the text that this package writes."""
    return CommitItem(P0, offset, CommitMetadata(lineage, topic_id, 0, offset, Pin(0, 1), reset=reset).to_text())


def comes_back(
    machine: MemberMachine, item: CommitItem, held: GroupOffset, *, later: tuple[FlightBatch, ...] = ()
) -> tuple[CommitItem, ...]:
    """Lose P0, complete its batch and `later` ones, and get it back; return what its handover commits."""
    batch = FlightBatch(offset_of(OffsetRange(P0, 0, item.offset)), (item,))
    machine.begin(batch)
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    machine.complete(batch.end)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P1,))
    for each in later:
        complete(machine, each)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    machine.offsets_fetched({P0: held, P1: GroupOffset(0)})
    machine.handle(GroupEvent.REVOKE_STARTED, (P0,))
    hand_over = machine.hand_over()
    assert hand_over is not None
    return hand_over.items


@pytest.mark.rule("R77")
def test_p6_the_end_of_a_partition_that_comes_back_is_committed_by_its_handover() -> None:
    """No trigger plans in between."""
    assert comes_back(joined((0, 10)), ours(20), GroupOffset(10, ours(10).metadata)) == (ours(20),)


@pytest.mark.rule("R77")
@pytest.mark.parametrize("batches", [1, 3])
def test_p6_it_is_committed_also_when_batches_without_it_are_complete(batches: int) -> None:
    done = [OffsetRange(P1, number, number + 1) for number in range(batches)]
    later = tuple(FlightBatch(offset_of(each, done={P0: 20}), (item(1, each.end),)) for each in done)
    assert comes_back(joined((0, 10)), ours(20), GroupOffset(10, ours(10).metadata), later=later) == (ours(20),)


@pytest.mark.rule("R77")
def test_p6_it_is_committed_also_while_a_batch_without_it_is_in_flight() -> None:
    """Spark reports the end of batch N late, when it has planned N+1 without the partition."""
    machine, first = joined((0, 10)), FlightBatch(offset_of(R0), (ours(20),))
    machine.begin(first)
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P1,))
    machine.complete(first.end)
    machine.begin(FlightBatch(offset_of(R1, done={P0: 20}), (item(1, 5),)))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    machine.offsets_fetched({P0: GroupOffset(10, ours(10).metadata), P1: GroupOffset(0)})
    assert machine.complete(first.end) == ()
    revoke = (GroupEvent.REVOKE_STARTED, (P0,))
    machine.handle(*revoke)
    assert machine.hand_over() == HandOver((ours(20),), DrainOutcome.COMPLETE)


@pytest.mark.rule("R77")
def test_p6_what_was_completed_and_lost_before_its_commit_is_committed_when_it_comes_back() -> None:
    machine, batch = joined((0, 10)), flight(R0)
    complete(machine, batch)
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    assert machine.pending() == ()
    machine.offsets_fetched({P0: GroupOffset(10, ours(10).metadata)})
    assert machine.pending() == (item(0, 20),)


@pytest.mark.rule("R77")
@pytest.mark.parametrize(
    "held",
    [
        GroupOffset(20),
        GroupOffset(50, ours(50, lineage="other").metadata),
        GroupOffset(10, ours(10, topic_id="recreated").metadata),
        GroupOffset(0, ours(0, reset=Reset(1, "11111111-1111-1111-1111-111111111111")).metadata),
        GroupOffset(10, "of another program"),
        GroupOffset(None),
    ],
    ids=["the same", "further", "recreated", "reset", "another program", "forgotten"],
)
def test_p1_p5_a_partition_that_comes_back_moves_no_offset_that_may_be_decided_otherwise(held: GroupOffset) -> None:
    machine = joined((0, 10))
    assert comes_back(machine, ours(20), held) == ()
    machine.handle(GroupEvent.PARTITIONS_RELEASED, (P0,))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    machine.offsets_fetched({P0: GroupOffset(10, ours(10).metadata)})
    assert machine.pending() == (), "it is decided once"


@pytest.mark.rule("R77")
def test_p6_a_conflict_that_the_batchs_own_lineage_has_decided_is_decided() -> None:
    """1. a query decides a conflict, and starts at 10, 2. it is killed in its first batch, and runs it again, 3. the
    batch ends before the partition has come back."""
    decision = Reset(1, "own")
    held, end = GroupOffset(10, ours(10, reset=decision).metadata), ours(20, reset=decision)
    assert comes_back(joined((0, 10)), end, held) == (end,)


@pytest.mark.rule("R77")
def test_p1_an_end_that_the_checkpoint_has_dropped_is_not_committed() -> None:
    """The topic was deleted meanwhile: the next batch's entry of the offset log has no end of it."""
    later = (FlightBatch(offset_of(R1), (item(1, 5),)),)
    assert comes_back(joined((0, 10)), ours(20), GroupOffset(10), later=later) == ()


@pytest.mark.rule("R77")
@pytest.mark.parametrize("ends", ["established", "forgotten", "acknowledged"])
def test_a_completed_end_counts_until_the_planner_or_the_group_has_it(ends: str) -> None:
    machine = joined((0, 10))
    complete(machine, FlightBatch(offset_of(R0), (ours(20),)))
    if ends == "established":
        machine.positions_established({P0: 10})
    elif ends == "forgotten":
        machine.positions_forgotten((P0,))
    else:
        machine.offsets_acknowledged([ours(20)])
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    machine.offsets_fetched({P0: GroupOffset(10)})
    assert machine.pending() == ()


# --- complete


def test_complete_has_three_callers_and_the_first_wins() -> None:
    machine, batch = joined((0, 10)), flight(R0)
    machine.begin(batch)
    assert machine.complete(batch.end) == (item(0, 20),)
    machine.offsets_acknowledged([item(0, 20)])
    assert machine.complete(batch.end) == ()
    assert machine.complete(batch.end) == ()
    assert machine.view().partitions[0].position == 20


def test_a_late_commit_of_the_batch_before_leaves_the_one_in_flight_alone() -> None:
    machine, first, second = joined((0, 10)), flight(R0), flight(OffsetRange(P0, 20, 30))
    machine.begin(first)
    machine.complete(first.end)
    machine.offsets_acknowledged(first.items)
    machine.begin(second)
    assert machine.complete(first.end) == ()
    assert machine.flight == second


@pytest.mark.rule("R25")
def test_a_batch_that_is_not_in_flight_commits_nothing() -> None:
    """Guards against: 1. SIGKILL and restart, 2. Spark goes on from the old end, 3. another member has got further."""
    machine = joined((0, 10))
    assert machine.complete(flight(R0).end) == ()
    assert machine.pending() == ()


@pytest.mark.rule("R12")
def test_commits_go_forward_only() -> None:
    """A batch runs again after a restart, before its partitions have come; others have got further meanwhile."""
    machine = joined((0, 50))
    assert complete(machine, flight(R0)) == ()
    assert machine.pending() == ()


@pytest.mark.rule("R12")
def test_partitions_of_others_are_not_committed() -> None:
    machine = joined((1, 0))
    assert complete(machine, flight(R0, R1)) == (item(1, 5),)


def test_nothing_is_committed_before_the_groups_offset_is_known() -> None:
    machine, batch = MemberMachine(), flight(R0)
    machine.handle(GroupEvent.STARTED)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    assert complete(machine, batch) == ()
    machine.offsets_fetched({P0: GroupOffset(10)})
    assert machine.pending() == (item(0, 20),)


def test_a_completed_offset_is_not_replaced_by_an_older_one() -> None:
    machine = joined((0, 0))
    newer, older = flight(OffsetRange(P0, 0, 30)), flight(R0)
    complete(machine, newer)
    complete(machine, older)
    assert machine.pending() == (item(0, 30),)


# --- acknowledgements


def test_acknowledgements_that_overtake_each_other_keep_the_newest() -> None:
    machine = joined((0, 10))
    machine.offsets_acknowledged([item(0, 30, "newer")])
    machine.offsets_acknowledged([item(0, 20, "older")])
    assert machine.view().partitions[0].group == GroupOffset(30, "newer")


def test_an_acknowledgement_of_an_earlier_ownership_is_not_the_groups_offset() -> None:
    """Lost and assigned again before the answer came: another member may be further, so it is fetched."""
    machine = joined((0, 10))
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    machine.offsets_acknowledged([item(0, 20)])
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    machine.offsets_acknowledged([item(0, 20)])
    assert machine.unfetched() == (P0,)


def test_fetched_offsets_do_not_undo_acknowledged_ones() -> None:
    machine = joined((0, 10))
    machine.offsets_acknowledged([item(0, 20)])
    machine.offsets_fetched({P0: GroupOffset(10), P2: GroupOffset(1)})
    assert machine.view().partitions[0].group == GroupOffset(20, "m")
    assert machine.owned_partitions() == (P0,)


def test_an_established_start_replaces_what_the_group_held_of_a_deleted_topic() -> None:
    machine, batch = joined((0, 500)), flight(R0)
    machine.positions_forgotten((P0, P2))
    machine.offsets_fetched({P0: GroupOffset(500, "of the deleted topic")})
    machine.positions_established({P0: 0}, [item(0, 0), item(2, 0)])
    assert machine.view().partitions[0].group == GroupOffset(0, "m")
    assert complete(machine, batch) == (item(0, 20),)


@pytest.mark.parametrize("fetched_before", [False, True])
@pytest.mark.rule("R35")
def test_an_established_start_replaces_what_is_completed_of_a_deleted_topic(fetched_before: bool) -> None:
    """Its batch is in flight when the deletion loses the partitions; they come back with the new topic."""
    machine = joined((0, 10))
    machine.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0,))
    old = CommitItem(P0, 20, CommitMetadata("lineage", "old", 10, 20, Pin(0, 1)).to_text())
    if fetched_before:
        machine.offsets_fetched({P0: GroupOffset(None)})
    complete(machine, FlightBatch(flight(R0).end, (old,)))
    machine.offsets_fetched({P0: GroupOffset(None)})
    new = CommitItem(P0, 0, CommitMetadata("lineage", "new", 0, 0, Pin(0, 1)).to_text())
    machine.positions_established({P0: 0}, [new])
    assert machine.view().partitions[0].position == 0
    assert machine.pending() == ()


def test_an_established_start_keeps_what_is_completed_of_the_same_topic() -> None:
    machine = joined((0, 10))
    text = CommitMetadata("lineage", "id", 10, 20, Pin(0, 1)).to_text()
    complete(machine, FlightBatch(flight(R0).end, (CommitItem(P0, 20, text),)))
    machine.positions_established({P0: 10}, [CommitItem(P0, 10, text)])
    assert machine.view().partitions[0].position == 20


def test_an_acknowledgement_of_the_same_offset_brings_the_newer_text() -> None:
    machine = joined((0, 10))
    machine.offsets_acknowledged([item(0, 10, "pin")])
    assert machine.view().partitions[0].group == GroupOffset(10, "pin")


# --- proof of membership


@pytest.mark.rule("R67")
def test_proof_prefers_the_pending_offset() -> None:
    """The commit of it may be on its way; the older one sent after it would move the group back."""
    machine, batch = joined((0, 10)), flight(R0)
    assert machine.proof() == (CommitItem(P0, 10, ""),)
    complete(machine, batch)
    assert machine.proof() == (item(0, 20),)


@pytest.mark.rule("R67")
def test_a_proof_is_of_each_topic() -> None:
    """The commit of a topic that was deleted is refused, and would never prove anything."""
    machine = MemberMachine()
    machine.handle(GroupEvent.STARTED)
    refund = TopicPartition("refunds", 0)
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0, P1, refund))
    machine.offsets_fetched({P0: GroupOffset(10, ""), P1: GroupOffset(7, ""), refund: GroupOffset(3, "")})
    assert machine.proof() == (CommitItem(P0, 10, ""), CommitItem(refund, 3, ""))


@pytest.mark.rule("R67")
def test_others_have_passed_what_is_known_here() -> None:
    """A smaller offset, or one of another topic, is not beyond it. Nor is the completed one, if the group has it."""
    machine, batch = joined((0, 10)), flight(R0)
    assert machine.is_passed({P0: GroupOffset(15, "")})
    assert not machine.is_passed({P0: GroupOffset(10, "")})
    assert not machine.is_passed({P0: GroupOffset(None)})
    assert joined((0, None)).is_passed({P0: GroupOffset(0, "")})
    assert not joined((0, None)).is_passed({P0: GroupOffset(None)})
    complete(machine, batch)
    assert not machine.is_passed({P0: GroupOffset(20, "")})
    assert machine.is_passed({P0: GroupOffset(21, "")})


def test_there_is_no_proof_without_an_offset_in_the_group() -> None:
    assert joined((0, None)).proof() == ()
    assert joined((0, None), (1, 7)).proof() == (CommitItem(P1, 7, ""),)


def test_doubt_keeps_the_view_from_being_settled() -> None:
    machine = joined((0, 10))
    assert machine.view().settled
    machine.proven = False
    assert not machine.view().settled
    machine.proven = True
    assert machine.view().settled


# --- views


@pytest.mark.rule("R1")
def test_a_partition_without_an_acknowledged_start_has_no_position() -> None:
    machine = joined((0, None))
    assert machine.view().partitions[0].position is None
    machine.positions_established({P0: 42, P1: 7})
    assert [(owned.partition, owned.position) for owned in machine.view().partitions] == [(P0, 42)]


def test_the_position_follows_the_completed_batch_not_the_commit() -> None:
    machine, batch = joined((0, 10)), flight(R0)
    complete(machine, batch)
    assert machine.view().partitions[0].position == 20


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.handle(GroupEvent.PARTITIONS_ASSIGNED, (P1,)),
        lambda m: m.handle(GroupEvent.ASSIGNMENT_ENDED, (P0,)),
        lambda m: (m.handle(GroupEvent.REVOKE_STARTED, (P0,)), m.handle(GroupEvent.PARTITIONS_RELEASED, (P0,))),
    ],
    ids=["assigned", "lost", "released"],
)
def test_every_change_of_ownership_is_counted(change: Callable[[MemberMachine], object]) -> None:
    machine = joined((0, 10))
    before = machine.view().assignment
    change(machine)
    assert machine.view().assignment > before


@pytest.mark.parametrize("state", [state for state in MemberState if state is not MemberState.JOINED])
def test_only_a_joined_member_plans(state: MemberState) -> None:
    assert not MemberMachine(state=state).view().settled


def test_a_partition_that_is_assigned_again_keeps_what_is_known() -> None:
    machine = joined((0, 10))
    machine.handle(GroupEvent.PARTITIONS_ASSIGNED, (P0, P1))
    assert machine.unfetched() == (P1,)
