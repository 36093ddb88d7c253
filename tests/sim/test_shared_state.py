"""Queries with state in a group (option onSharedState): what ends a query, and what must not.

The sequences are those of `planning/shared_state.py`. Spark makes the folder `state` for a query with state.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from spark_groupsource import errors
from spark_groupsource.model.commit_metadata import CommitMetadata, metadata_of
from spark_groupsource.model.offsets import TopicPartition, parse_offset
from tests.sim.explore import plan_of
from tests.sim.faults import inject
from tests.sim.script import Script
from tests.sim.simulation import Simulation
from tests.sim.spark.checkpoint import SimStateFolder, Store
from tests.sim.world import BEGIN_S

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def _script(**settings: object) -> Script:
    """Return a script of two queries: q1 has state, q2 has none."""
    script = Script(**{"queries": 2, "length_s": 60.0, **settings})
    script.app("q1").settings.has_state = True
    return script


def _failures(script: Script, name: str) -> list[str]:
    """Return the errors of a query: all are about shared state."""
    found = script.app(name).errors
    assert all(errors.SHARED_STATE.id in error for error in found), found
    return found


def _held(script: Script, partition: TopicPartition = P0) -> CommitMetadata:
    found = metadata_of(script.group.offsets[partition])
    assert found is not None
    return found


def _allow(script: Script, name: str) -> None:
    """Start a query with onSharedState=allow from now on."""
    script.allows_shared_state.add(name)


def _shared(script: Script, name: str) -> list[str]:
    """Return the groups and details of a query's errors about shared state, without the texts around."""
    found = [error for error in script.app(name).errors if errors.SHARED_STATE.id in error]
    return sorted({error[error.find("Group '") : error.find(" What to do")] for error in found})


def _to_checkpoint(script: Script, name: str) -> dict[TopicPartition, int]:
    """Return what `groupkafka reset --to checkpoint` moves for a query with state: its ends, else the pins."""
    entries = script.app(name).checkpoint.entries
    newest = max(number for number, entry in entries.items() if entry.completed_at is not None)
    pins = {p: metadata.pin.offset for p, g in script.group.offsets.items() if (metadata := metadata_of(g)) is not None}
    return pins | parse_offset(entries[newest].end).ends()


def _cure(script: Script, name: str) -> list[int]:
    """Reset the group to a query's checkpoint after its first failure. Return a list that gets its errors then."""
    before: list[int] = []

    def reset() -> None:
        before.append(len(script.app(name).errors))
        script.reset_group(_to_checkpoint(script, name))

    script.when(lambda: bool(_shared(script, name)), lambda: script.world.after(5.0, reset))
    return before


@pytest.mark.rule("R115")
def test_a_query_with_state_that_lacks_records_fails_before_it_reads() -> None:
    """1. q1 has read [0, 10). It is killed. 2. q2 completes [10, 15). 3. q1 starts again."""
    script = _script()
    _allow(script, "q2")
    script.on(1.0, script.writes(10))
    script.on(4.0, script.kills("q1", rest_s=20.0), script.starts("q2"))
    script.on(14.0, script.writes(5))
    script.on(23.9, lambda: script.rest_s.update(q1=1000.0))
    script.on(40.0, script.writes(5))
    script.run()
    failures = _failures(script, "q1")
    assert "lacks records" in failures[0]
    assert re.search(r"orders-[01] \[10, 15\) is complete in a query, lineage=q2-", failures[0]), failures[0]
    for number in (0, 1):
        assert script.rows("q1", number=number) == list(range(10))
        assert script.rows("q2", number=number) == list(range(10, 20)), "the other query goes on"


@pytest.mark.rule("R115")
def test_a_batch_that_runs_again_and_lacks_records_fails_before_it_reads() -> None:
    """1. q1 is killed in the batch [10, 20). 2. q2 takes over and completes it. 3. Spark runs it again in q1."""
    script = _script()
    _allow(script, "q2")
    script.on(1.0, script.writes(10))
    script.on(3.0, lambda: script.batches_take(3.0, "q1"), script.writes(10))
    script.on(4.0, script.kills("q1", rest_s=20.0), script.starts("q2"))
    script.run()
    assert "orders-0 [10, 20) is complete in a query, lineage=q2-" in _failures(script, "q1")[0]
    assert script.rows("q1") == list(range(10))
    assert script.rows("q2") == list(range(10, 20))


@pytest.mark.rule("R116")
@pytest.mark.parametrize("protocol", ["cooperative", "eager", "kip848"])
def test_an_accidental_start_does_not_kill_production(protocol: str) -> None:
    """1. q1 with state runs. 2. q2 is new, and joins: it fails and reads nothing. 3. q1 goes on with all partitions."""
    script = _script(protocol=protocol, heartbeat_s=1.0)
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(12.0, script.writes(10))
    script.run()
    failures = _failures(script, "q2")
    assert failures
    assert "lineage=q1-" in failures[0]
    assert "would lack" in failures[0]
    assert script.rows("q2") == []
    assert _failures(script, "q1") == []
    assert [script.rows("q1", number=number) for number in (0, 1)] == [list(range(20))] * 2


def _is_refused(script: Script, name: str = "q2") -> None:
    """Run, and check that a query fails because of a query with state, and completes nothing."""
    script.run()
    failures = _failures(script, name)
    assert failures
    assert "would lack" in failures[0]
    assert not any(batch.rows for batch in script.app(name).batches)
    assert _failures(script, "q1") == []


@pytest.mark.rule("R116")
@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_a_new_query_that_gets_an_idle_partition_only_fails(protocol: str) -> None:
    """1. q1 has read orders-0; orders-1 is empty. 2. q2 is new. 3. Producers write to both."""
    script = _script(protocol=protocol, heartbeat_s=1.0)
    script.on(1.0, script.writes(10, number=0))
    script.on(4.0, script.starts("q2"))
    script.on(12.0, script.writes(10))
    _is_refused(script)
    assert [script.rows("q1", number=number) for number in (0, 1)] == [list(range(20)), list(range(10))]


@pytest.mark.rule("R116")
def test_a_new_query_that_gets_an_added_partition_only_fails() -> None:
    """1. q1 has read both partitions. 2. q2 joins while the topic grows. 3. Producers write everywhere."""
    script = _script()
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(4.5, script.grows(4))
    script.on(20.0, script.writes(10))
    _is_refused(script)
    assert [script.rows("q1", number=number) for number in (2, 3)] == [list(range(10))] * 2


@pytest.mark.rule("R116")
@pytest.mark.parametrize("change", ["upgrade", "reset"])
def test_offsets_without_a_mark_get_it_when_the_query_starts(change: str) -> None:
    """1. q1 has read all; its offsets lose the mark. 2. It starts again, with nothing to read. 3. q2 is new."""
    script = _script()
    script.on(1.0, script.writes(10))
    script.on(4.0, script.drains("q1", rest_s=8.0))

    before: list[CommitMetadata] = []
    marked: list[CommitMetadata] = []

    def unmark() -> None:
        if change == "reset":
            script.reset_group(dict.fromkeys((P0, P1), 10))
        else:
            for partition in (P0, P1):
                script.group.set_offset(partition, 10, replace(_held(script, partition), has_state=False).to_text())

        before.extend(_held(script, partition) for partition in (P0, P1))

    script.on(11.0, unmark)
    script.on(19.9, lambda: marked.extend(_held(script, partition) for partition in (P0, P1)))
    script.on(20.0, script.starts("q2"))
    script.on(30.0, script.writes(5))
    _is_refused(script)
    assert not any(each.has_state for each in before)
    assert marked == [replace(each, has_state=True) for each in before], "range, pin and reset stay"
    assert [script.rows("q1", number=number) for number in (0, 1)] == [list(range(15))] * 2


def test_a_query_without_state_that_shares_the_group_reports_a_marked_partition_and_goes_on() -> None:
    """1. q1 with state and q2 without begin together. 2. q1 stops. 3. q2 gets its partition: nobody else reads it."""
    script = _script()
    script.on(0.0, script.starts("q2"))
    script.on(5.0, script.writes(10))
    script.on(12.0, script.drains("q1"))
    script.on(20.0, script.writes(10))
    script.run()
    taken = next(number for number in (0, 1) if script.rows("q1", number=number))
    assert _failures(script, "q2") == []
    assert script.rows("q2", number=taken) == list(range(10, 20))
    (event,) = script.events("q2", "shared_state")
    assert f"orders-{taken} [" in event["ranges"]
    assert "would lack" in event["problem"]


@pytest.mark.rule("R116")
def test_a_query_without_state_goes_on_where_one_with_state_is_the_newcomer() -> None:
    """1. q1 without state is killed in a batch. 2. q2 with state is new, and completes it. 3. q1 starts again."""
    script = _script()
    script.app("q1").settings.has_state, script.app("q2").settings.has_state = False, True
    script.on(1.0, script.writes(10))
    script.on(3.0, lambda: script.batches_take(3.0, "q1"), script.writes(10))
    script.on(4.0, script.kills("q1", rest_s=20.0), script.starts("q2"))
    script.on(30.0, script.writes(10))
    script.on(45.0, script.drains("q2"))
    script.on(50.0, script.writes(5))
    script.run()
    assert _failures(script, "q1") == []
    assert script.rows("q1")[-5:] == list(range(30, 35))


@pytest.mark.rule("R116")
@pytest.mark.parametrize("store", [Store.LOCAL, Store.REMOTE])
def test_the_first_batch_of_a_query_with_state_has_the_mark(store: Store) -> None:
    """1. q1 is planned, and Spark makes its state. 2. No more records come: the group has the first batch's commit."""
    script = _script(queries=1, store=store)
    script.on(0.0, script.writes(10))
    script.on(4.0, lambda: None)
    script.run()
    assert script.app("q1").checkpoint.newest == 0
    assert _held(script).has_state
    assert _held(script, P1).has_state


def test_queries_without_state_have_no_mark_and_share() -> None:
    """1. Two queries without state share the group. 2. One is killed and comes back."""
    script = Script(queries=2, length_s=60.0)
    script.on(1.0, script.writes(10))
    script.on(2.0, script.starts("q2"))
    script.on(9.0, script.kills("q2", rest_s=15.0), script.writes(10))
    assert script.judged() == []
    assert not any(_held(script, partition).has_state for partition in (P0, P1))
    assert not any(app.errors for app in script.apps)


def test_two_that_start_together_share_with_one_warning_until_one_ends() -> None:
    """1. Both have state, join a new group, and read a partition each. 2. q1 ends: q2 lacks its records."""
    script = _script()
    script.app("q2").settings.has_state = True
    script.on(0.0, script.starts("q2"))
    script.on(5.0, script.writes(10))
    script.on(12.0, script.writes(10))
    seen: list[tuple[int, int]] = []
    script.on(
        31.0,
        lambda: seen.extend((len(script.events(app.name, "shared_state")), len(app.errors)) for app in script.apps),
    )
    script.on(32.0, script.drains("q1"))
    script.run()
    assert seen == [(1, 0), (1, 0)], "one event each, and no error"
    assert "lacks records" in _failures(script, "q2")[0]
    event = script.events("q2", "shared_state")[0]
    assert (event["owned"], event["all"]) == (1, 2)


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_restarts_kills_growth_and_moved_checkpoints_trip_nothing(protocol: str) -> None:
    """A query with state alone in its group: 1. a stop, 2. SIGKILL in a batch, 3. growth, 4. a copied checkpoint."""
    script = _script(queries=1, protocol=protocol, heartbeat_s=1.0, length_s=90.0)
    script.on(1.0, script.writes(10))
    script.on(4.0, script.drains("q1", rest_s=1.0), script.writes(5))
    script.on(15.0, lambda: script.batches_take(2.0), script.writes(5))
    script.on(16.0, script.kills("q1", rest_s=1.0))
    script.on(35.0, script.grows(3), script.writes(5))
    script.on(50.0, script.drains("q1", rest_s=2.0))
    script.next["q1"] = script.starts("q1")
    script.on(
        49.0,
        lambda: script.next.update(
            q1=lambda: (script.app("q1").new_life(script.app("q1").checkpoint), script.start(script.app("q1")))
        ),
    )
    script.on(60.0, script.writes(5))
    assert script.judged() == []
    assert script.app("q1").errors == []
    assert script.events("q1", "shared_state") == []


def test_a_handover_and_back_without_a_batch_trips_nothing() -> None:
    """1. q2 joins and gets a partition, and has nothing to read. 2. It leaves. 3. q1 reads on."""
    script = _script()
    _allow(script, "q2")
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(15.0, script.drains("q2"))
    script.on(25.0, script.writes(10))
    script.run()
    assert _failures(script, "q1") == []
    assert script.rows("q1") + script.rows("q1", number=1) == list(range(20)) * 2


@pytest.mark.rule("R115")
@pytest.mark.parametrize("to", [3, 15])
def test_a_reset_trips_nothing(to: int) -> None:
    """1. q1 stops at 20. 2. The group is reset back, or forward. 3. q1 starts, with one partition after the other."""
    script = _script(length_s=90.0)
    _allow(script, "q2")
    script.on(1.0, script.writes(20))
    script.on(6.0, script.drains("q1", rest_s=6.0))
    script.on(8.0, lambda: script.reset_group(dict.fromkeys((P0, P1), to)))
    # Another member has a partition while q1 learns the reset, and reads nothing.
    script.on(11.0, script.starts("q2"), lambda: script.holds("before-start-positions", "q2", 20.0))
    script.on(30.0, script.kills("q2"))
    script.on(60.0, script.writes(5))
    script.run()
    assert _failures(script, "q1") == []
    assert set(script.rows("q1")) == set(range(25))


def test_a_lost_checkpoint_trips_and_a_reset_cures_it() -> None:
    """1. q1 stops, and its checkpoint is lost. 2. It starts with a new one: it fails. 3. The group is reset to 0."""
    script = _script(queries=1)
    script.on(1.0, script.writes(10))

    def lose() -> None:
        script.app("q1").new_life()
        script.start(script.app("q1"))

    script.next["q1"] = lose
    # For the end of the run that fails.
    script.on(4.0, script.drains("q1", rest_s=10.0))
    script.on(14.0, lambda: script.reset_group(dict.fromkeys((P0, P1), 0)))
    script.run()
    assert len(_failures(script, "q1")) == 1
    assert script.rows("q1") == list(range(10)) * 2


def test_warn_goes_on_with_one_warning_per_partition() -> None:
    """1. q1 is killed. 2. q2 completes [10, 15). 3. q1 starts again and goes on."""
    script = _script(on_shared_state="warn")
    script.on(1.0, script.writes(10))
    script.on(4.0, script.kills("q1", rest_s=20.0), script.starts("q2"))
    script.on(14.0, script.writes(5))
    script.on(20.0, script.drains("q2"))
    script.on(40.0, script.writes(5))
    assert script.judged() == []
    assert [app.errors for app in script.apps] == [[], []]
    assert "orders-0 [10, 15)" in script.events("q1", "shared_state")[0]["ranges"]
    assert "lineage=q1-" in script.events("q2", "shared_state")[0]["ranges"]


def test_allow_is_silent() -> None:
    """The same with allow: no event, no error."""
    script = _script(on_shared_state="allow")
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(20.0, script.writes(10))
    script.on(30.0, script.kills("q2"))
    assert script.judged() == []
    assert [app.errors for app in script.apps] == [[], []]
    assert script.events("q1", "shared_state") == []
    assert _held(script).has_state


def test_without_a_checkpoint_location_only_a_new_query_is_noticed() -> None:
    """1. q1 has no checkpointLocation, so its commits have no mark. 2. q2 joins and shares."""
    script = _script(store=Store.UNKNOWN)
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(20.0, script.writes(10))
    script.run()
    assert [app.errors for app in script.apps] == [[], []]
    assert not _held(script).has_state


@pytest.mark.rule("R115")
def test_a_reset_to_its_checkpoint_cures_what_was_handed_over() -> None:
    """1. q1 with state has read both partitions to 10. 2. q2 (allow) gets orders-1; both complete [10, 15). 3. q2 ends,
    and q1 fails: orders-1 lacks [10, 15). 4. reset --to checkpoint with q1's checkpoint. 5. q1 starts."""
    script = _script(length_s=100.0)
    _allow(script, "q2")
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(15.0, script.writes(5))
    script.on(30.0, script.drains("q2"), lambda: script.rest_s.update(q1=20.0))
    before = _cure(script, "q1")
    script.run()
    assert before == [1]
    assert len(script.app("q1").errors) == 1, _shared(script, "q1")


@pytest.mark.rule("R115")
def test_a_reset_to_its_checkpoint_cures_what_was_never_read() -> None:
    """1. Two with state begin together, and read a partition each. 2. q1 ends: q2 lacks its records. 3. The cure."""
    script = _script(length_s=100.0)
    script.app("q2").settings.has_state = True
    script.on(0.0, script.starts("q2"))
    script.on(5.0, script.writes(10))
    script.on(30.0, script.drains("q1"), lambda: script.rest_s.update(q2=20.0))
    before = _cure(script, "q2")
    script.run()
    assert before == [1]
    assert len(script.app("q2").errors) == 1, _shared(script, "q2")


@pytest.mark.rule("R115")
def test_a_store_that_answers_late_hides_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. q1 has read [0, 10), and is killed. 2. q2 (allow) completes [10, 15). 3. q1 starts while the store does not
    answer. 4. It answers before the first batch, so q1 knows by then that it has state."""
    script = _script(length_s=60.0)
    _allow(script, "q2")
    exists = SimStateFolder.exists

    def answers(self: SimStateFolder) -> bool | None:
        return None if BEGIN_S + 20.0 < script.world.now < BEGIN_S + 27.0 else exists(self)

    monkeypatch.setattr(SimStateFolder, "exists", answers)
    script.on(26.0, lambda: script.rest_s.update(q1=1000.0))
    script.on(0.0, script.writes(10))
    script.on(4.0, script.kills("q1", rest_s=20.0), script.starts("q2"))
    script.on(14.0, script.writes(5))
    script.on(20.0, script.drains("q2"))
    script.on(30.0, script.writes(5))
    read: list[int] = []
    script.on(45.0, lambda: read.extend(script.rows("q1")))
    script.run()
    assert read == list(range(10))
    assert "orders-0 [10, 15) is complete" in _failures(script, "q1")[0]


@pytest.mark.rule("R116")
@pytest.mark.parametrize("protocol", ["cooperative", "kip848", "eager"])
@pytest.mark.parametrize("empty", [False, True], ids=["", "after an empty one"])
def test_an_accidental_start_in_a_long_first_batch(protocol: str, empty: bool) -> None:
    """1. q1 with state reads its backlog: the first batch takes longer than the drain timeout. Or an empty batch before
    has made the state. 2. q2 is new, and joins meanwhile. 3. It is stopped. 4. q1 goes on with all partitions."""
    script = _script(length_s=90.0, protocol=protocol, heartbeat_s=1.0)
    script.app("q1").checkpoint.has_state = empty
    script.on(0.0, lambda: script.batches_take(40.0, "q1"), script.writes(100))
    script.on(20.0, script.starts("q2"))
    script.on(30.0, script.writes(50))
    script.on(60.0, script.drains("q2"))
    script.on(61.0, lambda: script.batches_take(0.2, "q1"))
    script.run()
    assert _shared(script, "q1") == []


@pytest.mark.rule("R116")
def test_an_accidental_start_on_an_idle_topic_of_production() -> None:
    """1. q1 with state subscribes to orders and refunds, which is idle. 2. q2 is new, and subscribes to refunds only.
    3. Producers write there. 4. q2 is stopped: q1 lacks nothing."""
    script = _script(length_s=70.0, topics=(("orders", 2), ("refunds", 1)))
    script.subscribes("q2", "refunds")
    script.on(1.0, script.writes(10))
    script.on(20.0, script.starts("q2"))
    script.on(30.0, script.writes(10, "refunds"))
    script.on(45.0, script.drains("q2"))
    script.run()
    assert _shared(script, "q1") == []


def test_an_accidental_query_with_state_is_no_reason_for_others_to_fail_after_its_end() -> None:
    """1. q1 and q2, without state, share. 2. q3 with state is new, gets orders-1, completes batches, ends at 28.0 s.
    3. orders-1 goes to q1, which has not read it (q2 had)."""
    script = Script(seed=4, queries=3, length_s=60.0, heartbeat_s=1.0, topics=(("orders", 3),))
    script.app("q3").settings.has_state = True
    script.on(0.0, script.starts("q2"))
    for at in range(3, 60, 2):
        script.on(float(at), script.writes(2))
    script.on(15.0, script.starts("q3"))
    script.on(28.0, script.stops("q3"))
    script.on(40.0, script.kills("q1", rest_s=8.0))
    script.run()
    assert script.app("q3").runs[0].ended_at < BEGIN_S + 28.1
    assert _shared(script, "q1") == []


def test_a_mark_goes_with_a_new_owner_without_state() -> None:
    """1. q1 is without state. 2. q2 with state is there for a moment, completes [10, 15) of orders-1. 3. q1 goes on;
    nothing is written. 4. q3, without state, is added."""
    script = Script(queries=3, length_s=70.0)
    script.app("q2").settings.has_state = True
    script.on(1.0, script.writes(10))
    script.on(10.0, script.starts("q2"))
    script.on(15.0, script.writes(5))
    script.on(22.0, script.kills("q2"))
    script.on(45.0, script.starts("q3"))
    script.run()
    assert _shared(script, "q3") == []


def test_marks_go_with_a_replacement_without_state() -> None:
    """1. q1 with state has read both, and ends for good. 2. q2 without state replaces it (allow until a batch is
    complete, as documented). Nothing is written to orders-1. 3. q2 starts again with fail. 4. q3 is added."""
    script = _script(queries=3, length_s=70.0)
    _allow(script, "q2")
    script.on(1.0, script.writes(10))
    script.on(5.0, script.drains("q1"))
    script.on(10.0, script.starts("q2"))
    script.on(15.0, script.writes(5, number=0))
    script.on(20.0, script.drains("q2", rest_s=2.0), lambda: script.allows_shared_state.discard("q2"))
    script.on(30.0, script.writes(5, number=0))
    script.on(40.0, script.starts("q3"))
    script.run()
    assert _shared(script, "q2") == []
    assert _shared(script, "q3") == []


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_query_with_state_alone_in_its_group_never_fails_for_it(seed: int) -> None:
    """Whatever happens to it, but for a lost checkpoint: faults, resets, restored checkpoints, topics that change."""
    drawn = plan_of(seed)
    query = replace(drawn.configuration.query, has_state=True, store=Store.LOCAL)
    sim = Simulation(seed, replace(drawn.configuration, queries=1, query=query))
    for fault in drawn.faults:
        if fault.kind != "checkpoint-lost":
            sim.world.at(BEGIN_S + fault.at_s, lambda fault=fault: inject(sim, fault))  # type: ignore[misc]
    sim.run()
    assert errors.SHARED_STATE.id not in "".join(sim.apps[0].errors)
    assert sim.apps[0].checkpoint.has_state, "nothing was tried"
