"""Decide who may run a query that two drivers share: the states of a driver's lock. Pure.

The lock is one partition of a topic, in a group of its own. `owner_lock` carries the states out.
"""

from __future__ import annotations

from enum import Enum


class LockState(Enum):
    """A driver's part of the lock. Each value says what is true in the state, and when it ends."""

    WAITING = "another member has the lock's partition, or nobody; ends when the group assigns it"
    UNPROVEN = "the partition is assigned, and nothing runs; ends when the coordinator has accepted a commit"
    OWNED = "the lock is held, and nothing runs; ends when the driver takes it to start its queries"
    RUNNING = "the lock is held, and queries run"
    DOUBTED = "queries run, and the process was silent; ends with the coordinator's answer to a commit"
    REVOKING = "the group wants the partition back, and waits until the queries have been drained"
    LOST = "the group has given the partition away, and queries still run; ends when they have been stopped"
    REGAINED = "the partition is assigned again, while the queries of before are still being stopped"


class LockEvent(Enum):
    """What happens to a driver's lock."""

    ASSIGNED = "the group has assigned the lock's partition"
    REVOKED = "the group wants the partition back, and waits"
    LOST = "the partition belongs to others already: the session has expired, or a commit was refused"
    PROVEN = "the coordinator has accepted a commit, in time"
    SILENT = "the process did not run for longer than a heartbeat interval"
    TAKEN = "the driver starts its queries"
    ENDED = "no query of this driver runs any more"


_S, _E = LockState, LockEvent

# A pair that is not here is a defect of the caller.
TRANSITIONS: dict[tuple[LockState, LockEvent], LockState] = {
    (_S.WAITING, _E.ASSIGNED): _S.UNPROVEN,
    (_S.WAITING, _E.LOST): _S.WAITING,
    (_S.WAITING, _E.SILENT): _S.WAITING,
    # The queries of a revoke have ended while the coordinator was asked.
    (_S.WAITING, _E.PROVEN): _S.WAITING,
    (_S.UNPROVEN, _E.REVOKED): _S.WAITING,
    (_S.UNPROVEN, _E.LOST): _S.WAITING,
    (_S.UNPROVEN, _E.SILENT): _S.UNPROVEN,
    (_S.UNPROVEN, _E.PROVEN): _S.OWNED,
    (_S.OWNED, _E.REVOKED): _S.WAITING,
    (_S.OWNED, _E.LOST): _S.WAITING,
    (_S.OWNED, _E.SILENT): _S.UNPROVEN,
    (_S.OWNED, _E.TAKEN): _S.RUNNING,
    (_S.RUNNING, _E.REVOKED): _S.REVOKING,
    (_S.RUNNING, _E.LOST): _S.LOST,
    (_S.RUNNING, _E.SILENT): _S.DOUBTED,
    (_S.RUNNING, _E.PROVEN): _S.RUNNING,
    # The next start needs a proof of its own: the queries may have ended because another driver runs them.
    (_S.RUNNING, _E.ENDED): _S.UNPROVEN,
    (_S.DOUBTED, _E.REVOKED): _S.REVOKING,
    (_S.DOUBTED, _E.LOST): _S.LOST,
    (_S.DOUBTED, _E.SILENT): _S.DOUBTED,
    (_S.DOUBTED, _E.PROVEN): _S.RUNNING,
    (_S.DOUBTED, _E.ENDED): _S.UNPROVEN,
    (_S.REVOKING, _E.LOST): _S.LOST,
    (_S.REVOKING, _E.PROVEN): _S.REVOKING,
    (_S.REVOKING, _E.ENDED): _S.WAITING,
    (_S.LOST, _E.ASSIGNED): _S.REGAINED,
    (_S.LOST, _E.LOST): _S.LOST,
    (_S.LOST, _E.SILENT): _S.LOST,
    (_S.LOST, _E.ENDED): _S.WAITING,
    (_S.REGAINED, _E.REVOKED): _S.LOST,
    (_S.REGAINED, _E.LOST): _S.LOST,
    (_S.REGAINED, _E.SILENT): _S.REGAINED,
    (_S.REGAINED, _E.ENDED): _S.UNPROVEN,
}

# The coordinator is asked for a proof.
UNDECIDED = frozenset({_S.UNPROVEN, _S.DOUBTED})
# The proof is renewed while queries run.
PROVES_AGAIN = frozenset({_S.RUNNING, _S.DOUBTED, _S.REVOKING})
# The partition is assigned to this driver.
HOLDS = frozenset({_S.UNPROVEN, _S.OWNED, _S.RUNNING, _S.DOUBTED, _S.REGAINED})
# The queries have to end: drained, or stopped at once.
GIVES_WAY = frozenset({_S.REVOKING, _S.LOST, _S.REGAINED})
STOPS_AT_ONCE = frozenset({_S.LOST, _S.REGAINED})


def next_state(state: LockState, event: LockEvent) -> LockState:
    """Return the state after an event. Raises ValueError for an event that cannot happen in the state."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"{event.name} cannot happen in state {state.name}") from None
