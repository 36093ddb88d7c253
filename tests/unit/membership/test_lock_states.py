"""The states of a driver's lock: the whole table, and the sequences that it is for."""

from __future__ import annotations

import pytest

from spark_groupsource.membership.lock_states import (
    GIVES_WAY,
    HOLDS,
    STOPS_AT_ONCE,
    TRANSITIONS,
    UNDECIDED,
    LockEvent,
    LockState,
    next_state,
)

E, S = LockEvent, LockState


@pytest.mark.parametrize("state", LockState)
@pytest.mark.parametrize("event", LockEvent)
def test_a_pair_is_in_the_table_or_an_error(state: LockState, event: LockEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert next_state(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(ValueError, match=f"{event.name} cannot happen in state {state.name}"):
            next_state(state, event)


SEQUENCES = {
    "a driver gets the lock, proves it, and runs": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN], [S.UNPROVEN, S.OWNED, S.RUNNING],
    ),
    "a pause before the start needs another proof": (
        [E.ASSIGNED, E.PROVEN, E.SILENT, E.PROVEN, E.TAKEN], [S.UNPROVEN, S.OWNED, S.UNPROVEN, S.OWNED, S.RUNNING],
    ),
    "a short pause costs nothing": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN, E.SILENT, E.PROVEN], [S.UNPROVEN, S.OWNED, S.RUNNING, S.DOUBTED, S.RUNNING],
    ),
    "a long pause: the queries are stopped, and the driver waits": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN, E.SILENT, E.LOST, E.ENDED],
        [S.UNPROVEN, S.OWNED, S.RUNNING, S.DOUBTED, S.LOST, S.WAITING],
    ),
    "the lock comes back before the queries have been stopped: they are stopped, and start with a new proof": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN, E.LOST, E.ASSIGNED, E.ENDED, E.PROVEN, E.TAKEN],
        [S.UNPROVEN, S.OWNED, S.RUNNING, S.LOST, S.REGAINED, S.UNPROVEN, S.OWNED, S.RUNNING],
    ),
    "a revoke waits until the queries have been drained": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN, E.REVOKED, E.ENDED], [S.UNPROVEN, S.OWNED, S.RUNNING, S.REVOKING, S.WAITING],
    ),
    "a drain that takes too long becomes a stop": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN, E.REVOKED, E.LOST, E.ENDED],
        [S.UNPROVEN, S.OWNED, S.RUNNING, S.REVOKING, S.LOST, S.WAITING],
    ),
    "queries that end by themselves prove nothing": (
        [E.ASSIGNED, E.PROVEN, E.TAKEN, E.ENDED, E.LOST], [S.UNPROVEN, S.OWNED, S.RUNNING, S.UNPROVEN, S.WAITING],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("events", "states"), SEQUENCES.values(), ids=SEQUENCES.keys())
def test_a_sequence(events: list[LockEvent], states: list[LockState]) -> None:
    state, found = LockState.WAITING, []
    for event in events:
        state = next_state(state, event)
        found.append(state)
    assert found == states


def test_only_a_proven_lock_is_taken() -> None:
    assert {state for state, event in TRANSITIONS if event is LockEvent.TAKEN} == {LockState.OWNED}
    assert {TRANSITIONS[S.UNPROVEN, E.PROVEN], TRANSITIONS[S.OWNED, E.TAKEN]} == {S.OWNED, S.RUNNING}


@pytest.mark.parametrize("state", LockState)
def test_any_state_loses_the_lock_at_once(state: LockState) -> None:
    after = next_state(state, LockEvent.LOST)
    assert after in {LockState.WAITING, LockState.LOST}
    runs = (state, LockEvent.ENDED) in TRANSITIONS
    assert (after is LockState.LOST) == runs, "queries that run are stopped, and nothing else"


def test_the_sets_are_those_of_the_states() -> None:
    assert STOPS_AT_ONCE < GIVES_WAY
    assert UNDECIDED < HOLDS
    assert LockState.REVOKING in GIVES_WAY - STOPS_AT_ONCE
    assert LockState.REVOKING not in HOLDS
