"""Write docs/states.md from the table of the member's state machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

from scripts.markdown import table
from spark_groupsource.checkpoint.stop_requests import Answer
from spark_groupsource.driver.draining import END_AFTER_S
from spark_groupsource.membership.events import DrainOutcome, GroupEvent
from spark_groupsource.membership.machine import GROUP_TRANSITIONS, MemberState

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "states.md"
HEAD = """# States of the member

<!-- Written by scripts/states.py from the table in spark_groupsource/membership/machine.py; do not edit. -->

The states of a member, as the log, `metricsPath` and the metric `groupkafka_state` show them.

A member is in one of these states, and beside that it has a batch in flight, or none. The two meet in one place: a
revoke hands over as soon as the batch in flight holds none of its partitions, so a partition changes its owner between
two batches. A pair of state and event that is not in the table raises `IllegalTransition` and changes nothing.
"""

BATCH = """At most one batch is in flight, from the moment at which its plan is fixed. It ends when Spark has recorded
it as complete, or when Spark continues from an older offset, because it never logged the plan. Several callers report
that it is complete. The first one counts.
"""

STOPS = f"""It plans nothing any more. Its member leaves the group when the batch in flight has ended. If nobody has
stopped the query {END_AFTER_S:.0f} s after that, Spark's next call fails with `MEMBER_LEFT`. The answer goes to what
asked: `run_until_stopped`, `drain` or `groupkafka stop` ([how](how-to/stop.md)).
"""
NEXT = """## Next

[A rebalance meets a batch](explanation/rebalance.md), [when is a batch complete?](explanation/batch.md),
[metrics and events](reference/metrics.md)
"""


def state_table(states: Iterable[Enum]) -> str:
    """Return what each state does and when it is left; that is what its value says."""
    rows = []
    for state in states:
        does, _, leaves = str(state.value).partition(" / ")
        rows.append((f"`{state.name}`", does, leaves.removeprefix("leaves ")))
    return table(("state", "does", "leaves"), rows)


def value_table(name: str, values: Iterable[Enum]) -> str:
    """Return what each of these values means."""
    return table((name, "meaning"), ((f"`{each.name}`", str(each.value)) for each in values))


def transition_table(transitions: Mapping[tuple[Enum, Enum], Enum]) -> str:
    """Return all transitions, by state, then by event."""
    states, events = (list(type(each)) for each in next(iter(transitions)))
    rows = sorted(transitions.items(), key=lambda row: (states.index(row[0][0]), events.index(row[0][1])))
    return table(
        ("in state", "event", "next state"),
        ((f"`{state.name}`", f"`{event.name}`", f"`{target.name}`") for (state, event), target in rows),
    )


def render() -> str:
    """Return the whole page."""
    tables = state_table(MemberState), value_table("event", GroupEvent), transition_table({**GROUP_TRANSITIONS})
    parts = [HEAD, "## The member in its group\n", *tables]
    parts += ["## The micro-batch\n", BATCH]
    parts += ["## How a revoke's wait ends\n", value_table("outcome", DrainOutcome)]
    parts += ["## A query that is asked to stop\n", STOPS, value_table("answer", Answer)]
    return "\n".join([*parts, NEXT])


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="ascii")
