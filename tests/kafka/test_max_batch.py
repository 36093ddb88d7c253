"""Option maxBatchMs: a sink that hangs costs its member the partitions, and another member reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from .application import Application
from .harness import Independent, Record, wait_for
from .holding import Events, Gate, released, tails
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

MAX_BATCH_S = 6.0
# The members outlive a machine that stands still.
SESSION_MS = 45_000


def owned(seen: Mapping[str, Events]) -> list[int]:
    """Return how many partitions each member has, by its own word."""
    return [lines.metrics()["assigned_partitions"] for lines in seen.values()]


@pytest.mark.parametrize("protocol", ["eager", "cooperative", "kip848"])
@pytest.mark.rule("R31")
def test_a_second_member_takes_over_from_a_sink_that_hangs(
    protocol: str,
    application: Application,
    client: Independent,
    options: dict[str, str],
    topic: str,
    group: str,
    tmp_path: Path,
) -> None:
    """1. the first member's batch hangs in its sink, 2. after maxBatchMs it leaves, and the second one reads its
    partitions, 3. the batch ends after all: its records are repeated, and nothing else, 4. the first member joins again
    and gets its share.
    """
    if protocol == "kip848":
        client.set_group_session_timeout(group, SESSION_MS)
    chosen = with_protocol(options | {"kafka.session.timeout.ms": str(SESSION_MS)}, protocol)
    client.create_topic(topic, 4)
    client.produce(topic, (f"a{n}" for n in range(40)), 4)
    gate, seen = Gate(), {name: Events(tmp_path, name) for name in ("first", "second")}
    gate.armed = True

    evidence = partial(tails, seen)

    given = chosen | {"maxBatchMs": str(int(MAX_BATCH_S * 1000)), "drainTimeoutMs": "200000"}
    first = application.start_query("first", given | seen["first"].options, batch=gate)
    with released(gate):
        gate.wait_reached(evidence)
        hung = first.records()
        second = application.start_query("second", chosen | seen["second"].options)
        second.wait_for_records(client.records(topic), 60)
        gave_up = [line for line in seen["first"].lines() if line["event"] in ("gave-up", "revoked")]
        assert gave_up, evidence()
        assert client.member_count(group) == 1, evidence()
        client.produce(topic, (f"b{n}" for n in range(20)), 4)
        second.wait_for_records(client.records(topic))
        wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, evidence)

        gate.release()
        wait_for("the first batch's end", lambda: first.completed_records() == hung, 30, evidence)
        wait_for(
            "a share for the first member again",
            lambda: sorted(len(parts) for parts in client.members(group)) == [2, 2],
            60,
            evidence,
        )
        wait_for("both to have taken their shares", lambda: owned(seen) == [2, 2], 60, evidence)
        client.produce(topic, (f"c{n}" for n in range(40)), 4)
        everything = client.records(topic)
        wait_for(
            "all records",
            lambda: first.check() and everything <= (first.completed_records() + second.completed_records()).keys(),
            60,
            evidence,
        )
    total: Counter[Record] = first.completed_records() + second.completed_records()
    twice = {record for record, times in total.items() if times > 1}
    assert twice == set(hung), f"{len(twice)} records twice, {len(hung)} in the batch that hung\n{evidence()}"
    assert max(first.completed_records().values()) == 1, "P2: once per checkpoint"
    wait_for("lag 0", lambda: client.lag(group, topic) == 0, 30, evidence)
