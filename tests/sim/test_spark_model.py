"""Spark's first batch, queries with two sources, and what users do rarely: by scripts, and that seeds draw it."""

from __future__ import annotations

from collections import Counter

import pytest

from spark_groupsource.errors import NO_ASSIGNMENT
from tests.sim.explore import _RARER, plan_of
from tests.sim.kafka.settings import PROTOCOLS
from tests.sim.script import Script
from tests.sim.spark.engine import Trigger


def _script(protocol: str, **settings: object) -> Script:
    return Script(protocol=protocol, heartbeat_s=1.0, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("spark", ["4.2", "4.0"])
def test_a_new_query_without_a_record_runs_an_empty_batch(protocol: str, spark: str) -> None:
    script = _script(protocol, spark=spark, starting="latest", has_state=True)
    script.on(15.0, script.writes(5))
    assert script.judged() == []
    first, second, *_ = script.app("q1").batches
    assert (first.batch, first.rows, second.batch) == (0, (), 1)
    assert script.app("q1").checkpoint.has_state


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("spark", ["4.2", "4.0"])
def test_an_empty_batch_that_was_interrupted_runs_again(protocol: str, spark: str) -> None:
    """1. q1 runs its empty first batch, and is killed. 2. Records come. 3. It starts, with another lineage."""
    script = _script(protocol, spark=spark, batch_s=(5.0, 5.0))
    script.when(lambda: script.app("q1").batch is not None, script.kills("q1", rest_s=2.0), script.writes(5))
    script.on(20.0, lambda: script.batches_take(0.1))
    assert script.judged() == []
    assert [batch.attempt for batch in script.app("q1").batches if batch.batch == 0] == [2]
    assert script.rows("q1") == list(range(5))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_batches_of_two_sources_are_complete_together(protocol: str) -> None:
    """1. Both sources read. 2. Records of one partition come: only its source has a batch."""
    script = _script(protocol, two_sources=True)
    script.on(12.0, script.writes(10))
    script.on(20.0, script.writes(5, number=0))
    assert script.judged() == []
    first, second = script.app("q1").sources
    assert first.checkpoint.entries.keys() == second.checkpoint.entries.keys()
    assert {batch.batch for batch in first.batches} != {batch.batch for batch in second.batches}
    rows = {
        name: {row[2] for batch in one.batches for row in batch.rows} for name, one in (("a", first), ("b", second))
    }
    assert sorted(rows.values()) == [{0}, {1}]


@pytest.mark.parametrize("protocol", ["eager", "kip848"])
def test_two_sources_in_one_group_wait_for_each_other(protocol: str) -> None:
    """docs/explanation/limits.md: 1. The first source has planned. 2. The second one gets nothing before that ends."""
    script = _script(protocol, two_sources=True, rebalance_s=300.0, drain_s=240.0, length_s=200.0)
    script.app("q1").trigger = Trigger.AVAILABLE_NOW
    for moment in range(0, 190, 5):
        script.on(float(moment), script.writes(2))
    script.run()
    assert any(NO_ASSIGNMENT.id in error for error in script.app("q1").errors)


@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_a_static_member_gets_a_new_topic_with_the_next_rebalance(protocol: str) -> None:
    """docs/explanation/limits.md: 1. q1 stops. 2. refunds is created. 3. q1 starts. 4. q2 joins."""
    script = _script(protocol, queries=2, instance_ids=True, pattern="orders|refunds", rebalance_s=30.0, length_s=60.0)
    script.on(5.0, script.drains("q1", rest_s=2.0))
    script.on(6.0, lambda: script.create_topic("refunds", 2))
    script.on(8.0, lambda: script.cluster.produce("refunds", 0, 3))
    read_before: list[int] = []
    script.on(35.0, lambda: read_before.extend(script.rows("q1", "refunds")), script.starts("q2"))
    assert script.judged() == []
    assert read_before == []
    assert script.rows("q1", "refunds") + script.rows("q2", "refunds") == [0, 1, 2]


def test_seeds_draw_what_users_do_rarely_and_half_of_them_nothing_of_it() -> None:
    drawn: Counter[str] = Counter()
    for seed in range(1, 1001):
        plan = plan_of(seed)
        configuration, query = plan.configuration, plan.configuration.query
        found = {planned.kind for planned in plan.faults} & _RARER.keys()
        found |= {"pattern"} if configuration.pattern else set()
        found |= {"state"} if configuration.stateful else set()
        found |= {name for name in ("two_sources", "min_rows", "max_bytes") if getattr(query, name)}
        drawn.update(found or {"nothing"})
    assert drawn.keys() == {*_RARER, "pattern", "state", "two_sources", "min_rows", "max_bytes", "nothing"}
    assert min(drawn.values()) >= 20, drawn
    assert drawn["nothing"] >= 400, drawn
