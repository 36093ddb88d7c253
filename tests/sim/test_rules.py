"""The sequences that rules guard against (docs/explanation/rules.md), each as a script: nothing goes wrong.

Without the guard each fails: `plants.toml` names these tests for plants that seeds do not find.
"""

from __future__ import annotations

import pytest

from spark_groupsource.model.offsets import TopicPartition
from tests.sim.script import Script
from tests.sim.spark.checkpoint import Store


def _script(protocol: str = "cooperative", **settings: object) -> Script:
    heartbeat_s = 1.0 if protocol == "kip848" else 2.0
    return Script(**{"queries": 2, "protocol": protocol, "heartbeat_s": heartbeat_s, "length_s": 60.0, **settings})


def _partition(script: Script, name: str) -> int:
    """Return the number of the partition of orders that a query owns; it must be one."""
    (only,) = script.app(name).owned()
    return only.partition


@pytest.mark.rule("R2")
def test_r2_a_start_position_is_dropped_if_ownership_has_changed() -> None:
    """1. q1 looks up where orders-1 starts. 2. q2 reads it. 3. It comes back to q1."""
    script = _script()
    script.holds("before-start-positions", "q1", 14.0)
    script.on(1.0, script.writes(10))
    script.on(2.0, script.starts("q2"))
    script.on(9.0, script.drains("q2"))
    assert script.judged() == []
    assert script.rows("q2", number=1) or script.rows("q2", number=0)


@pytest.mark.rule("R7")
def test_r7_a_new_pin_names_only_topics_that_all_other_pins_name() -> None:
    """1. orders is pinned. 2. Two topics are created, one is pinned. 3. orders is deleted. 4. The other is pinned."""
    script = _script(starting="latest", pattern="orders|refunds|returns", topics=(("orders", 1),))
    script.on(1.0, script.writes(10))
    script.on(4.0, script.drains("q1", rest_s=3.0))
    script.on(5.0, lambda: script.create_topic("refunds", 1), lambda: script.create_topic("returns", 1))
    script.on(6.0, script.writes(5, "refunds"), script.writes(5, "returns"))
    script.on(6.0, lambda: script.holds("before-start-positions", "q2", 20.0))
    script.on(6.5, script.starts("q2"))
    script.on(15.0, lambda: script.delete_topic("orders"), lambda: script.fault("topic-deleted", "", 12.0))
    script.on(40.0, script.writes(5, "refunds"), script.writes(5, "returns"))
    script.run()
    for topic in ("refunds", "returns"):
        assert sorted(script.rows("q1", topic) + script.rows("q2", topic)) == list(range(10))


@pytest.mark.rule("R8")
def test_r8_a_group_that_has_forgotten_its_offsets_starts_at_the_beginning() -> None:
    """1. Two queries read. 2. Both stop, the group's offsets expire, records come. 3. One starts first."""
    script = _script(starting="latest")
    script.on(2.0, script.starts("q2"))
    script.on(6.0, script.writes(10))
    script.on(10.0, script.drains("q1", rest_s=5.0), script.drains("q2", rest_s=30.0))
    script.on(14.0, script.group.offsets.clear, script.writes(10))
    script.on(30.0, script.writes(5))
    script.run()
    for number in (0, 1):
        read = {*script.rows("q1", number=number), *script.rows("q2", number=number)}
        assert read >= set(range(25))


@pytest.mark.rule("R15")
def test_r15_newer_offsets_wait_after_a_late_answer() -> None:
    """1. The connection with the commit of a batch is given up; the client sends it again. 2. The next batch ends.
    3. The coordinator reads the old connection after that."""
    script = _script(queries=1, batch_s=(0.02, 0.02))
    script.on(3.0, script.reads_late("q1", 1.1, breaks_after_s=0.6), script.writes(10))
    script.on(3.2, script.writes(10))
    assert script.judged() == []


@pytest.mark.rule("R14")
def test_r14_one_commit_at_a_time() -> None:
    """1. The commit of a batch has no answer for two seconds. 2. The next batch ends. 3. The first commit is read."""
    script = _script(queries=1, batch_s=(0.02, 0.02))
    script.on(3.0, script.reads_late("q1", 2.6, breaks_after_s=2.0), script.writes(10))
    script.on(3.2, script.writes(10))
    assert script.judged() == []


@pytest.mark.rule("R23")
def test_r23_a_late_answer_of_the_commit_log_completes_no_later_batch() -> None:
    """1. The store hangs while it is asked about a batch. 2. Spark reports it complete; the next one is in flight."""
    script = _script(queries=1)
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(1.0), script.writes(10))
    script.on(3.5, lambda: setattr(q1.checkpoint, "hangs_until", script.world.now + 4.0))
    script.on(4.5, lambda: script.batches_take(30.0), script.writes(10))
    script.on(12.0, script.kills("q1", rest_s=1.0), lambda: script.batches_take(0.1))
    assert script.judged() == []


@pytest.mark.rule("R30")
def test_r30_a_store_that_hangs_holds_up_no_handover() -> None:
    """1. A revoke waits for the batch in flight, and reads the commit log. 2. The store does not answer."""
    script = _script(drain_s=4.0, rebalance_s=15.0)
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(8.0, "q1"), script.writes(10))
    script.on(4.0, lambda: setattr(q1.checkpoint, "hangs_until", script.world.now + 40.0), script.starts("q2"))
    script.on(6.0, lambda: script.batches_take(0.1, "q1"))
    script.run()
    released = [r.at for r in script.group.records if r.event == "owns" and r.query == "q2" and r.partitions]
    assert released
    assert released[0] < 1000.0 + 12.0


@pytest.mark.rule("R37")
@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_r37_what_was_completed_of_a_deleted_topic_moves_no_offset(protocol: str) -> None:
    """1. A topic is recreated; its batch ends when q2 has the partition. 2. It comes back before the next trigger."""
    script = _script(protocol)
    script.on(3.0, lambda: script.batches_take(10.0, "q1"), lambda: script.triggers_take(25.0, "q1"), script.writes(40))
    script.on(5.0, script.recreates())
    script.on(5.2, script.starts("q2"))
    script.on(6.0, script.writes(5))
    script.on(16.0, script.drains("q2"))
    script.on(20.0, script.writes(60))
    assert script.judged() == []


@pytest.mark.rule("R45")
def test_r45_a_truncated_log_is_noticed_by_its_leader_epoch() -> None:
    """1. A partition is read to 20. 2. A replica that ends at 10 leads. 3. It takes new records as 10, 11, ..."""
    script = _script(queries=1, topics=(("orders", 1),))
    script.on(1.0, script.writes(20))
    script.on(6.0, lambda: script.cluster.truncate("orders", 0, 10))
    script.on(6.001, script.writes(15))
    script.run()
    (loss,) = script.events("q1", "data_lost")
    assert loss["ranges"] == [["orders", 0, 10, 20]]


@pytest.mark.rule("R46")
def test_r46_a_reset_wins_over_every_checkpoint_that_does_not_know_it() -> None:
    """1. q2 stops. 2. The group is reset to 0. 3. q1 reads a little and stops. 4. q2 starts."""
    script = _script(topics=(("orders", 1),), max_rows=3)
    script.on(1.0, script.writes(20))
    script.on(12.0, script.drains("q1", rest_s=30.0))
    script.on(13.0, lambda: [setattr(app.settings, "max_rows", None) for app in script.apps], script.starts("q2"))
    script.on(15.0, script.writes(5))
    script.on(20.0, script.drains("q2", rest_s=8.0))
    script.on(24.0, lambda: script.reset_group({TopicPartition("orders", 0): 0}))
    script.on(34.0, script.writes(5))
    script.run()
    assert script.rows("q2") == [*range(20, 25), *range(30)]


@pytest.mark.rule("R46")
def test_r46_a_takeover_carries_the_reset_on() -> None:
    """1. q2 stops at 25. 2. The group is reset to 0. 3. q1 reads [0, 6) and stops. 4. q2 starts: it reads from 6."""
    script = _script(topics=(("orders", 1),))
    script.on(1.0, script.writes(20))
    script.on(5.0, script.drains("q1", rest_s=15.0))
    script.on(6.0, script.starts("q2"))
    script.on(10.0, script.writes(5))
    script.on(14.0, script.drains("q2", rest_s=20.0))
    script.on(17.0, lambda: script.reset_group({TopicPartition("orders", 0): 0}))
    script.on(17.0, lambda: [setattr(app.settings, "max_rows", 6) for app in script.apps])
    script.on(17.0, lambda: script.batches_take(4.0, "q1"))
    script.when(lambda: script.rows("q1")[-1:] == [5], script.drains("q1"), after_s=18.0)
    script.run()
    assert script.rows("q1") == [*range(20), *range(6)]
    assert script.rows("q2") == [*range(20, 25), *range(6, 25)]


@pytest.mark.rule("R47")
def test_r47_a_batch_planned_before_a_reset_changes_nothing() -> None:
    """1. q1 dies in the middle of a batch [10, 20). 2. The group is reset to 0. 3. q1 is started again."""
    script = _script(queries=1, topics=(("orders", 1),))
    script.on(1.0, script.writes(10))
    script.on(4.0, lambda: script.batches_take(5.0), script.writes(10))
    script.on(6.0, script.kills("q1", rest_s=10.0))
    script.on(15.0, lambda: script.reset_group({TopicPartition("orders", 0): 0}), lambda: script.batches_take(0.1))
    script.run()
    assert script.rows("q1") == [*range(10), *range(20)]


@pytest.mark.rule("R47")
def test_r47_a_batch_that_was_in_flight_at_a_reset_does_not_undo_it() -> None:
    """1. q1 is stopped in a batch, its session expires. 2. The group is reset. 3. q1 comes back, and the batch ends."""
    script = _script(queries=1, topics=(("orders", 1),))
    script.on(1.0, script.writes(10))
    script.on(4.0, lambda: script.batches_take(16.0), lambda: script.triggers_take(20.0), script.writes(10))
    script.on(6.0, script.pauses("q1", 9.0))
    script.on(14.0, lambda: script.reset_group({TopicPartition("orders", 0): 0}))
    script.on(21.0, lambda: script.batches_take(0.1))
    script.run()
    assert script.rows("q1") == [*range(20), *range(20)]


@pytest.mark.rule("R67")
def test_r67_a_silence_puts_the_membership_in_doubt() -> None:
    """1. q1 is stopped, its session expires. 2. q2 reads on. 3. q1 goes on, and is cut off from its coordinator."""
    script = _script("kip848")
    q1 = script.app("q1")
    script.on(1.0, script.writes(10), script.starts("q2"))
    script.on(8.0, lambda: script.fault("reader-paused", "q1", 20.0))
    script.on(8.0, lambda: setattr(q1.client, "cut_until", script.world.now + 20.0))
    script.on(8.1, script.writes(10))
    script.on(8.5, script.pauses("q1", 9.0))
    for moment in (14.0, 16.0, 17.0, 18.0):
        script.on(moment, script.writes(10))
    script.run()
    assert [e.planned_at - 1000.0 for e in q1.checkpoint.entries.values() if 1010.0 < e.planned_at < 1028.0] == []


@pytest.mark.rule("R68")
def test_r68_a_slow_proof_proves_nothing() -> None:
    """1. q1 sends its proof. 2. It is stopped before it has the answer; q2 reads on. 3. It goes on, still cut off."""
    script = _script("kip848")
    world, q1 = script.world, script.app("q1")

    def stop() -> None:
        script.fault("reader-paused", "q1", 11.0)
        assert q1.process is not None
        q1.process.stop(9.0)
        q1.client.cut_until = world.now + 13.0
        world.sleep(0.001)

    script.on(1.0, script.writes(10), script.starts("q2"))
    script.on(8.0, script.pauses("q1", 3.0))
    script.on(8.0, lambda: script.at_place("before-proof-answer", "q1", stop))
    script.on(14.0, script.writes(10))
    script.on(20.5, script.writes(10))
    script.run()
    stopped = [entry.planned_at for entry in q1.checkpoint.entries.values() if 1011.0 < entry.planned_at < 1024.0]
    assert world.coverage["event doubted"] > 0
    assert stopped == []


@pytest.mark.rule("R71")
def test_r71_nothing_is_planned_when_no_commit_was_accepted_for_a_session() -> None:
    """1. q1 reaches all brokers but its coordinator. 2. The group gives its partitions to q2."""
    script = _script("kip848")
    q1 = script.app("q1")
    script.on(1.0, script.writes(10), script.starts("q2"))
    script.on(8.0, lambda: script.fault("network-cut", "q1", 30.0))
    script.on(8.0, lambda: setattr(q1.client, "cut_until", script.world.now + 30.0))
    for moment in range(9, 38):
        script.on(moment, script.writes(2))
    script.run()
    assert [e.planned_at - 1000.0 for e in q1.checkpoint.entries.values() if 1020.0 < e.planned_at < 1038.0] == []


@pytest.mark.rule("R77")
def test_r77_a_completed_batch_is_committed_when_its_partition_comes_back() -> None:
    """1. A partition is lost while its batch is in flight, which ends. 2. It comes back. 3. The query is stopped."""
    script = _script()
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(10.0), lambda: script.triggers_take(60.0), script.writes(10))
    script.on(5.0, lambda: script.fault("network-cut", "q1", 9.0))
    script.on(5.0, lambda: setattr(q1.client, "cut_until", script.world.now + 9.0))
    script.on(25.0, script.drains("q1"), lambda: script.batches_take(0.1), lambda: script.triggers_take(0.1))
    script.on(30.0, script.starts("q2"))
    script.run()
    assert script.rows("q1") == list(range(10))
    assert script.rows("q2") == []


@pytest.mark.rule("R90")
def test_p6_a_stop_commits_the_batch_that_has_just_ended() -> None:
    """1. The store is remote, so nobody has read the commit log. 2. The query is stopped when Spark has logged the
    batch, while the coordinator is away for a moment."""
    script = _script(queries=1, store=Store.REMOTE, trigger_s=30.0)
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(2.0), lambda: script.triggers_take(30.0), script.writes(10))

    def ended() -> bool:
        return any(entry.completed_at for entry in q1.checkpoint.entries.values()) and q1.batch is None

    script.when(
        ended, lambda: script.fault("coordinator-killed", "", 3.0), lambda: script.group.down(3.0),
        script.stops("q1", rest_s=20.0), after_s=1.0,
    )  # fmt: skip
    assert script.judged() == []
