"""The sequences that rules guard against (docs/explanation/rules.md), each as a script: nothing goes wrong.

Without the guard each fails: `plants.toml` names these tests for plants that seeds do not find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import pytest

from spark_groupsource import errors
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.driver.session import Session
from spark_groupsource.model.offsets import TopicPartition
from tests.sim.kafka.cluster_port import SimCluster
from tests.sim.kafka.protocol import ConsumerHeartbeat, Error, SyncAnswer, SyncGroup
from tests.sim.script import Script
from tests.sim.spark.checkpoint import Store
from tests.sim.spark.engine import Trigger
from tests.sim.world import BEGIN_S


def _script(protocol: str = "cooperative", **settings: object) -> Script:
    heartbeat_s = 1.0 if protocol == "kip848" else 2.0
    return Script(**{"queries": 2, "protocol": protocol, "heartbeat_s": heartbeat_s, "length_s": 60.0, **settings})


def _owns_at(script: Script, name: str) -> float:
    """Return when the coordinator first gave partitions to a query, in seconds from the beginning."""
    owns = (r.at - BEGIN_S for r in script.group.records if r.event == "owns" and r.query == name and r.partitions)
    return min(owns, default=inf)


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
@pytest.mark.parametrize("deleted_s", [15.0, 6.2], ids=["after the first pin", "before it"])
def test_r7_a_new_pin_names_only_topics_that_all_other_pins_name(deleted_s: float) -> None:
    """1. orders is pinned. 2. Two topics are created, one is pinned. 3. orders is deleted. 4. The other is pinned."""
    script = _script(starting="latest", pattern="orders|refunds|returns", topics=(("orders", 1),))
    script.on(1.0, script.writes(10))
    script.on(4.0, script.drains("q1", rest_s=3.0))
    script.on(5.0, lambda: script.create_topic("refunds", 1), lambda: script.create_topic("returns", 1))
    script.on(6.0, script.writes(5, "refunds"), script.writes(5, "returns"))
    script.on(6.0, lambda: script.holds("before-start-positions", "q2", 20.0))
    script.on(5.5, script.starts("q2"))
    script.on(deleted_s, lambda: script.delete_topic("orders"), lambda: script.fault("topic-deleted", "", 12.0))
    script.on(40.0, script.writes(5, "refunds"), script.writes(5, "returns"))
    script.run()
    for topic in ("refunds", "returns"):
        assert sorted(script.rows("q1", topic) + script.rows("q2", topic)) == list(range(10))


@pytest.mark.rule("R4")
def test_r4_a_group_that_has_forgotten_its_offsets_starts_at_the_beginning() -> None:
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


@pytest.mark.rule("R14")
def test_r14_newer_offsets_wait_after_a_late_answer() -> None:
    """1. The connection with the commit of a batch is given up; the client sends it again. 2. The next batch ends.
    3. The coordinator reads the old connection after that."""
    script = _script(queries=1, batch_s=(0.02, 0.02))
    script.on(3.0, script.reads_late("q1", 1.0, breaks_after_s=0.6), script.writes(10))
    script.on(3.2, script.writes(10))
    assert script.judged() == []


@pytest.mark.rule("R14")
def test_r14_one_commit_at_a_time() -> None:
    """1. The commit of a batch has no answer for two seconds. 2. The next batch ends. 3. The first commit is read."""
    script = _script(queries=1, batch_s=(0.02, 0.02))
    script.on(3.0, script.reads_late("q1", 2.4, breaks_after_s=2.0), script.writes(10))
    script.on(3.2, script.writes(10))
    assert script.judged() == []


@pytest.mark.rule("R25")
def test_r25_a_late_answer_of_the_commit_log_completes_no_later_batch() -> None:
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
    script.on(3.0, lambda: script.batches_take(30.0, "q1"), script.writes(10))
    script.on(4.0, lambda: setattr(q1.checkpoint, "hangs_until", script.world.now + 40.0), script.starts("q2"))
    script.run()
    assert _owns_at(script, "q2") < 20.0


@pytest.mark.rule("R35")
@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_r35_what_was_completed_of_a_deleted_topic_moves_no_offset(protocol: str) -> None:
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
    assert script.rows("q1") == list(range(25))


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
@pytest.mark.parametrize("suspended", [False, True])
def test_r67_a_silence_puts_the_membership_in_doubt(suspended: bool) -> None:
    """1. q1 is stopped, its session expires. 2. q2 reads on. 3. q1 goes on, and is cut off from its coordinator."""
    script = _script("kip848")
    q1 = script.app("q1")
    script.on(1.0, script.writes(10), script.starts("q2"))
    script.on(8.0, lambda: script.fault("reader-paused", "q1", 20.0))
    script.on(8.0, lambda: setattr(q1.client, "cut_until", script.world.now + 20.0))
    script.on(8.1, script.writes(10))
    script.on(8.5, script.pauses("q1", 9.0, suspended=suspended))
    for moment in (14.0, 16.0, 17.0, 18.0):
        script.on(moment, script.writes(10))
    script.run()
    assert [e.planned_at - 1000.0 for e in q1.checkpoint.entries.values() if 1010.0 < e.planned_at < 1028.0] == []


@pytest.mark.rule("R67")
def test_r67_a_slow_proof_proves_nothing() -> None:
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


def test_p6_a_stop_commits_the_batch_that_has_just_ended() -> None:
    """1. The store is remote, so nobody has read the commit log. 2. The query is stopped when Spark has logged the
    batch. 3. q2 takes over."""
    script = _script(store=Store.REMOTE)
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(2.0), lambda: script.triggers_take(30.0), script.writes(10))

    def ended() -> bool:
        return any(entry.completed_at for entry in q1.checkpoint.entries.values()) and q1.batch is None

    script.when(ended, script.stops("q1"), script.starts("q2"), after_s=4.0)
    script.run()
    assert script.rows("q1") == list(range(10))
    assert script.rows("q2") == []


@pytest.mark.rule("R79")
def test_r79_a_stop_waits_for_the_batch() -> None:
    """1. A query is asked to stop in the middle of a batch. 2. q2 takes over."""
    script = _script(drain_s=10.0)
    script.on(3.0, lambda: script.batches_take(5.0, "q1"), script.writes(10))
    script.on(5.0, script.drains("q1"), script.starts("q2"))
    script.run()
    assert script.rows("q1") == list(range(10))
    assert script.rows("q2") == []


@pytest.mark.rule("R1")
def test_r1_nothing_is_planned_before_the_group_holds_the_start_position() -> None:
    """1. q1 looks up where to start; the commit of that is refused in a rebalance. 2. It would plan."""
    script = _script(starting="latest", queries=1)
    q1 = script.app("q1")
    script.on(0.0, script.refuses("q1", Error.REBALANCE_IN_PROGRESS, 20))
    script.on(3.0, script.writes(10))
    script.run()
    first = min(commit.at for commit in script.group.commits)
    assert [entry.planned_at for entry in q1.checkpoint.entries.values() if entry.planned_at < first] == []


@pytest.mark.rule("R4")
def test_r4_an_added_partition_starts_at_offset_0() -> None:
    """1. The query is down; a partition is added and filled. 2. Its first records are removed. 3. It starts."""
    script = _script(queries=1)
    script.on(1.0, script.writes(10))
    script.on(5.0, script.drains("q1", rest_s=6.0))
    script.on(6.0, lambda: script.cluster.grow("orders", 3))
    script.on(8.0, script.writes(10))
    script.on(8.5, lambda: script.delete_records("orders", 2, 4))
    assert script.judged() == []
    assert [loss["ranges"] for loss in script.events("q1", "data_lost")] == [[["orders", 2, 0, 4]]]


@pytest.mark.rule("R4")
@pytest.mark.parametrize("protocol", ["eager", "cooperative"])
def test_r4_a_start_that_nobody_has_stored_is_that_of_the_group(protocol: str) -> None:
    """1. A group begins with earliest. q1 reads; q2 dies before its start is stored. 2. Both start with latest."""
    script = _script(protocol, starting="earliest", initial_delay_s=2.0)
    script.on(0.0, script.starts("q2"), script.writes(10))
    script.at_place("before-start-positions", "q2", script.kills("q2", rest_s=12.0))
    script.when(lambda: len(script.rows("q1") + script.rows("q1", number=1)) == 10, script.kills("q1", rest_s=14.0))
    script.on(4.0, lambda: script.changed.update({name: {"starting": "latest"} for name in ("q1", "q2")}))
    assert script.judged() == []


@pytest.mark.rule("R6")
def test_r6_a_recreated_topic_is_a_new_topic() -> None:
    """1. The topic of a query that reads from latest is recreated, and gets records. 2. A standby gets a partition."""
    script = _script(starting="latest", topics=(("orders", 1),))
    script.on(1.0, script.starts("q2"))
    script.on(5.0, script.kills("q1"), script.recreates(count=1))
    script.on(6.0, script.writes(10))
    script.run()
    assert script.rows("q2") == list(range(10))


@pytest.mark.rule("R6")
@pytest.mark.parametrize("restarts", [False, True])
def test_r6_a_deleted_topic_that_comes_back_starts_at_its_beginning(restarts: bool) -> None:
    """1. A topic is deleted; the query reads another one on. 2. It is created again, with records."""
    script = _script(queries=1, starting="latest", topics=(("orders", 1), ("refunds", 1)))
    script.on(1.0, script.writes(10), script.writes(6, "refunds"))
    script.on(6.0, lambda: script.delete_topic("refunds"), lambda: script.fault("topic-recreated", "", 60.0))
    for moment in (10.0, 14.0, 20.0):
        script.on(moment, script.writes(10))
    if restarts:
        script.on(16.0, script.drains("q1", rest_s=2.0))
    script.on(30.0, lambda: script.create_topic("refunds", 1))
    script.on(32.0, script.writes(7, "refunds"))
    script.run()
    assert script.rows("q1", "refunds") == [*range(6), *range(7)]
    assert script.rows("q1") == list(range(40))
    assert len(script.events("q1", "data_lost")) == 1 + restarts


@pytest.mark.rule("R9")
def test_r9_a_plan_waits_for_the_commit_of_the_batch_before() -> None:
    """1. Batches end while the first one's commit has no answer. 2. q1 dies. 3. q2 takes over: it repeats one batch."""
    script = _script(batch_s=(0.02, 0.02), topics=(("orders", 1),), max_rows=5)
    script.on(3.0, script.refuses("q1", Error.REBALANCE_IN_PROGRESS, 100), script.writes(40))
    script.on(3.9, script.kills("q1"), script.starts("q2"))
    script.run()
    repeated = set(script.rows("q1")) & set(script.rows("q2"))
    assert 0 < len(repeated) <= 5


@pytest.mark.rule("R2", "R67")
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_r2_a_plan_is_not_fixed_in_doubt(seed: int) -> None:
    """1. q1 has planned. 2. It is stopped for longer than its session; q2 reads on. 3. It goes on, cut off."""
    script = _script("kip848", seed=seed)
    q1 = script.app("q1")

    def stop() -> None:
        script.fault("reader-paused", "q1", 20.0)
        assert q1.process is not None
        q1.process.stop(9.0)
        q1.client.cut_until = script.world.now + 14.0
        script.world.sleep(0.001)

    script.on(1.0, script.writes(10), script.starts("q2"))
    script.on(8.0, lambda: script.at_place("before-fix", "q1", stop), script.writes(10))
    script.on(14.0, script.writes(10))
    script.run()
    assert [e.planned_at - 1000.0 for e in q1.checkpoint.entries.values() if 1010.0 < e.planned_at < 1021.0] == []


@pytest.mark.rule("R11")
def test_r11_a_replay_leaves_out_what_another_lineage_has_completed() -> None:
    """1. q1 dies in the middle of a batch. 2. q2 takes over, reads and commits it. 3. q1 is started again."""
    script = _script()
    script.on(3.0, lambda: script.batches_take(10.0, "q1"), script.writes(10))
    script.on(6.0, script.kills("q1", rest_s=14.0), script.starts("q2"))
    script.on(15.0, lambda: script.batches_take(0.1))
    script.run()
    assert script.rows("q2") == list(range(10))
    assert script.rows("q1") == []


@pytest.mark.rule("R12")
def test_r12_only_forward() -> None:
    """1. q1 dies in a batch. 2. q2 reads on. 3. q1 gets a partition back while its old batch runs again."""
    script = _script(topics=(("orders", 1),))
    script.on(3.0, lambda: script.batches_take(10.0, "q1"), script.writes(10))
    script.on(6.0, script.kills("q1", rest_s=14.0), script.starts("q2"))
    script.on(15.0, script.writes(10), lambda: script.batches_take(6.0, "q1"))
    script.on(19.0, script.drains("q2"))
    assert script.judged() == []


def test_p2_a_partition_that_left_keeps_its_end_in_the_checkpoint() -> None:
    """1. A batch ends while its partitions are lost: nothing is committed. 2. q1 gets one back, and plans; q2 has the
    other one, and reads nothing. 3. q1 is started again, and has both."""
    script = _script()
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(10.0, "q1"), script.writes(10))
    script.on(5.0, lambda: script.fault("network-cut", "q1", 9.0))
    script.on(5.0, lambda: setattr(q1.client, "cut_until", script.world.now + 9.0))
    script.on(7.0, script.starts("q2"), lambda: script.holds("before-start-positions", "q2", 90.0))
    script.on(20.0, lambda: script.batches_take(0.1), script.writes(10))
    script.on(26.0, script.kills("q1", rest_s=1.0), script.kills("q2"))
    script.run()
    for number in (0, 1):
        assert script.rows("q1", number=number) == list(range(20))


@pytest.mark.rule("R26")
def test_r26_a_revoke_waits_no_longer_than_its_deadline() -> None:
    """1. A batch takes long. 2. A second query joins."""
    script = _script(drain_s=5.0)
    script.on(3.0, lambda: script.batches_take(40.0, "q1"), script.writes(10))
    script.on(6.0, script.starts("q2"))
    script.run()
    assert _owns_at(script, "q2") < 20.0


@pytest.mark.rule("R26")
@pytest.mark.parametrize("protocol", ["eager", "cooperative", "kip848"])
def test_r26_a_handover_commits_before_it_releases(protocol: str) -> None:
    """1. A revoke waits for the batch, which ends. 2. Its commit takes a moment. 3. The next owner starts."""
    script = _script(protocol)
    script.on(3.0, lambda: script.batches_take(4.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(5.0, script.refuses("q1", Error.REBALANCE_IN_PROGRESS, 5))
    assert script.judged() == []


@pytest.mark.rule("R28")
def test_r28_the_commit_of_a_handover_is_repeated() -> None:
    """1. A handover commits while the coordinator moves: it refuses the commit twice."""
    script = _script("kip848", drain_s=8.0)
    script.on(3.0, lambda: script.batches_take(5.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(5.0, script.refuses("q1", Error.STALE_MEMBER_EPOCH, 2))
    assert script.judged() == []


@pytest.mark.rule("R28")
def test_r28_a_handover_ends_though_its_commit_is_refused() -> None:
    """1. The coordinator refuses each commit. 2. The group waits for the handover, and must not wait for ever."""
    script = _script("kip848", drain_s=8.0)
    script.on(3.0, lambda: script.batches_take(5.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(5.0, script.refuses("q1", Error.STALE_MEMBER_EPOCH, 100_000))
    script.run()
    assert _owns_at(script, "q2") < 20.0


@pytest.mark.rule("R31")
def test_r31_a_batch_that_takes_too_long_gives_its_partitions_up() -> None:
    """1. The sink of a batch hangs. 2. A second query joins and reads."""
    script = _script(max_batch_s=3.0)
    script.on(3.0, lambda: script.batches_take(30.0, "q1"), script.writes(10))
    script.on(20.0, script.starts("q2"))
    script.run()
    assert script.rows("q2")[:10] == list(range(10))
    first = script.app("q2").batches[0]
    assert first.at < 1000.0 + 30.0


@pytest.mark.rule("R31")
def test_r31_a_complete_batch_is_not_given_up() -> None:
    """1. A batch is complete in a remote store. 2. The next trigger is far away. 3. maxBatchMs passes."""
    script = _script(max_batch_s=3.0, store=Store.REMOTE, queries=1)
    script.on(3.0, lambda: script.batches_take(2.0, "q1"), lambda: script.triggers_take(30.0, "q1"), script.writes(10))
    script.run()
    assert script.world.coverage["event completed"] > 0
    assert script.world.coverage["event gave-up"] == 0


@pytest.mark.rule("R35")
def test_r35_an_offset_holds_for_one_topic_id() -> None:
    """1. q1 dies in a batch. 2. Its topic is recreated, and gets records. 3. q1 is started again: it reads all."""
    script = _script(queries=1, topics=(("orders", 1),), starting="latest")
    script.on(3.0, lambda: script.batches_take(5.0), script.writes(20))
    script.on(5.0, script.kills("q1", rest_s=6.0))
    script.on(6.0, script.recreates(count=1))
    script.on(7.0, script.writes(5), lambda: script.batches_take(0.1))
    assert script.judged() == []


@pytest.mark.rule("R36")
def test_r36_a_recreated_topic_is_believed_after_three_seconds() -> None:
    """1. A topic is recreated, read and committed. 2. q2 gets a partition; brokers still report the deleted topic."""
    script = _script()
    script.on(1.0, script.writes(10))
    script.on(6.0, script.recreates())
    script.on(7.0, script.writes(20))
    script.on(16.0, script.starts("q2"))

    def lag() -> None:
        old, until = script.cluster.lives[0], script.world.now + 1.0
        ask = script.cluster.topic
        script.cluster.topic = lambda name: old if script.world.now < until else ask(name)  # type: ignore[method-assign]

    script.on(16.0, lambda: script.at_place("before-start-positions", "q2", lag))
    assert script.judged() == []


@pytest.mark.rule("R36")
@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_r36_an_answer_that_is_read_late_proves_nothing_later(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """1. A broker reports the deleted topic for a second. 2. Its second answer is read 4 s later."""
    script, asked = _script(protocol), list[float]()
    script.on(1.0, script.writes(10))
    script.on(6.0, script.recreates())
    script.on(7.0, script.writes(20))
    script.on(16.0, script.starts("q2"))
    described = SimCluster._described

    def read_late(cluster: SimCluster, names: Iterable[str]) -> dict[str, TopicInfo]:
        found = described(cluster, names)
        if asked and found["orders"].topic_id == script.cluster.lives[0].id:
            asked.append(script.world.now)
            script.world.sleep(4.0 if len(asked) == 3 else 0.0)
        return found

    def lag() -> None:
        asked.append(script.world.now)
        old, until, ask = script.cluster.lives[0], script.world.now + 1.0, script.cluster.topic
        script.cluster.topic = lambda name: old if script.world.now < until else ask(name)  # type: ignore[method-assign]

    monkeypatch.setattr(SimCluster, "_described", read_late)
    script.on(16.0, lambda: script.at_place("before-start-positions", "q2", lag))
    assert script.judged() == []
    assert len(asked) >= 3


@pytest.mark.rule("R91")
def test_r91_partitions_that_leave_are_checked_for_deletion() -> None:
    """1. A topic with unread records is deleted. 2. The group takes its partitions before the next trigger."""
    script = _script("kip848", queries=1, topics=(("orders", 1), ("refunds", 1)))
    script.on(1.0, script.writes(4), script.writes(10, "refunds"))
    script.on(3.5, lambda: script.triggers_take(12.0, "q1"))
    script.on(5.0, script.writes(4), script.writes(30, "refunds"))
    script.on(6.0, lambda: script.delete_topic("refunds"), lambda: script.fault("topic-recreated", "", 30.0))
    script.on(40.0, lambda: script.create_topic("refunds", 1), lambda: script.triggers_take(0.1))
    assert script.judged() == []


@pytest.mark.rule("R91")
def test_r91_a_start_checks_what_the_newest_batch_had_read() -> None:
    """1. The query is down; its topic is recreated with fewer partitions. 2. It starts."""
    script = _script(queries=1, max_rows=4)
    script.on(1.0, script.writes(20))
    script.on(4.0, script.drains("q1", rest_s=6.0))
    script.on(6.0, script.recreates(count=1))
    assert script.judged() == []


@pytest.mark.rule("R67")
def test_r67_a_proof_has_an_offset_of_each_topic() -> None:
    """1. A topic is deleted. 2. The process is stopped for a while. 3. Its proof is refused for that topic."""
    script = _script("kip848", queries=1, topics=(("deliveries", 1), ("orders", 1)))
    script.on(1.0, script.writes(10), script.writes(10, "deliveries"))
    script.on(6.0, script.pauses("q1", 4.0))
    script.on(6.1, lambda: script.delete_topic("deliveries"), lambda: script.fault("topic-recreated", "", 60.0))
    for moment in (12.0, 14.0, 30.0):
        script.on(moment, script.writes(10))
    script.on(50.0, lambda: script.create_topic("deliveries", 1))
    script.run()
    assert len(script.rows("q1")) == 40
    assert script.app("q1").checkpoint.entries


@pytest.mark.rule("R35")
def test_r35_a_recreated_topic_with_as_many_records_is_noticed() -> None:
    """1. 20 records are read. 2. The topic is recreated, and gets 20 records."""
    script = _script("eager", queries=1, topics=(("orders", 1),))
    script.on(1.0, script.writes(20))
    script.on(5.0, script.recreates(count=1, after_s=0.01))
    script.on(5.02, script.writes(20))
    script.run()
    assert script.rows("q1") == [*range(20), *range(20)]


@pytest.mark.rule("R82")
def test_r82_an_unknown_loss_is_reported_as_unknown() -> None:
    """1. q1 reads 5 of 20 records and hands them over; q2 reads the others. 2. The topic is recreated, q2 stops."""
    script = _script(max_rows=5)
    script.on(1.0, script.writes(20))
    script.on(3.0, lambda: script.triggers_take(6.0, "q1"), script.starts("q2"))
    script.on(25.0, script.recreates())
    script.on(25.3, script.drains("q2"))
    assert script.judged() == []


def test_p8_a_loss_is_reported_once() -> None:
    """1. Records are removed before they are read. 2. The plan that skips them is dropped, because a query joins."""
    script = _script(queries=2)
    script.on(1.0, script.writes(10))
    script.on(4.9, lambda: script.holds("before-fix", "q1", 6.0))
    script.on(5.0, lambda: (script.writes(20)(), script.delete_records("orders", 0, 15)))
    script.on(5.5, script.starts("q2"))
    script.run()
    lost = [loss["ranges"] for name in ("q1", "q2") for loss in script.events(name, "data_lost")]
    assert lost == [[["orders", 0, 10, 15]]]


@pytest.mark.rule("R12")
def test_r12_a_completed_batch_moves_no_offset_that_another_program_has_set() -> None:
    """1. q1 is cut off in a batch, its session expires. 2. An operator moves the group. 3. q1 comes back."""
    script = _script(queries=1, topics=(("orders", 1),), on_conflict="group")
    q1 = script.app("q1")
    script.on(3.0, lambda: script.batches_take(20.0), lambda: script.triggers_take(10.0), script.writes(20))
    script.on(5.0, lambda: setattr(q1.client, "cut_until", script.world.now + 9.0))
    script.on(13.0, lambda: script.move_group({TopicPartition("orders", 0): 5}))
    script.on(24.0, lambda: script.batches_take(0.1))
    script.run()
    assert script.rows("q1") == [*range(20), *range(5, 20)]
    assert len(script.events("q1", "conflict")) == 1


@pytest.mark.rule("R46")
def test_r46_a_decision_is_stored_as_a_reset_of_its_partition() -> None:
    """1. q1 is at 20. A tool sets the group to 5. 2. q1 commits 5, and is killed before Spark has logged a batch."""
    script = _script(queries=1, topics=(("orders", 1),))
    q1 = script.app("q1")
    script.on(3.0, script.writes(20))
    script.on(8.0, script.drains("q1", rest_s=3.0))
    script.on(10.0, lambda: script.move_group({TopicPartition("orders", 0): 5}))
    script.on(10.0, lambda: script.at_place("before-fix", "q1", q1.kill))
    script.run()
    assert script.rows("q1") == [*range(20), *range(5, 20)]
    assert len(script.events("q1", "conflict")) == len(script.events("q1", "reset")) == 1


@pytest.mark.rule("R46")
def test_r46_a_decision_counts_for_others_too() -> None:
    """1. q1 and q2 have read orders to 20. A tool sets 5. 2. q1 follows, and dies at 11. 3. q2 goes on there."""
    script = _script(topics=(("orders", 1),))
    script.on(1.0, script.writes(10))
    script.on(5.0, script.drains("q1", rest_s=9.0))
    script.on(5.0, script.starts("q2"))
    script.on(7.0, script.writes(10))
    script.on(11.0, script.drains("q2", rest_s=30.0))
    script.on(13.0, lambda: script.move_group({TopicPartition("orders", 0): 5}))
    script.on(13.0, lambda: [setattr(app.settings, "max_rows", 6) for app in script.apps])
    script.on(13.0, lambda: script.batches_take(4.0, "q1"))
    script.when(lambda: script.rows("q1")[-1:] == [10], script.drains("q1", rest_s=60.0), after_s=14.0)
    script.run()
    assert script.rows("q1")[:16] == [*range(10), *range(5, 11)]
    assert script.rows("q2")[:15] == [*range(10, 20), *range(11, 16)]


def _restored(on_conflict: str | None, *, newest_is_complete: bool) -> Script:
    """Return a run in which q1 reads to 10, to 20, and to 30, and goes on with a copy of its checkpoint.

    The copy is from offset 10, or has the batch from there to 20, not completed.
    """
    script = _script(queries=1, topics=(("orders", 1),), on_conflict=on_conflict)
    q1, copies = script.app("q1"), []

    def keep() -> None:
        copies.append(q1.checkpoint.copied("copy"))
        if not newest_is_complete:
            copies[-1].entries[copies[-1].newest].completed_at = None
        script.start(q1)

    def restore() -> None:
        script.fault("checkpoint-restored", "q1", old=q1.checkpoint.life, new="q1#2")
        q1.new_life(copies[0 if newest_is_complete else 1])
        script.start(q1)

    script.on(1.0, script.writes(10))
    script.on(5.0, lambda: script.next.update(q1=keep), q1.drain)
    script.on(9.0, script.writes(10))
    script.on(13.0, lambda: script.next.update(q1=keep), q1.drain)
    script.on(16.0, script.writes(10))
    script.on(19.0, lambda: script.next.update(q1=restore), q1.drain)
    script.run()
    return script


@pytest.mark.rule("R50")
@pytest.mark.parametrize("newest_is_complete", [True, False])
def test_r50_a_checkpoint_behind_its_own_commits_fails_the_query(newest_is_complete: bool) -> None:
    """A checkpoint is restored whose end is 10, or whose newest batch is [10, 20); the group is at 30."""
    script = _restored(None, newest_is_complete=newest_is_complete)
    (error,) = script.app("q1").errors
    assert errors.CHECKPOINT_BEHIND.id in error
    assert ("orders-0 group=30 checkpoint=10" if newest_is_complete else "orders-0 [10, 20) group=30") in error
    again = range(10 if newest_is_complete else 20, 30) if script.world.coverage["fault group-reset"] else range(0)
    assert script.rows("q1") == [*range(30), *again]


@pytest.mark.parametrize("newest_is_complete", [True, False])
def test_a_conflict_is_decided_by_the_option(newest_is_complete: bool) -> None:
    script = _restored("group", newest_is_complete=newest_is_complete)
    assert script.rows("q1") == list(range(30))
    assert len(script.events("q1", "conflict")) == (1 if newest_is_complete else 2)
    assert script.app("q1").errors == []


@pytest.mark.rule("R84")
def test_r84_a_lost_assignment_is_asked_for_again() -> None:
    """1. The coordinator takes a partition from q1. 2. The answer that says so is lost."""
    script = _script("kip848")
    script.on(1.0, script.writes(10))
    script.on(5.0, script.starts("q2"))
    script.on(5.2, lambda: setattr(script.group, "lose_heartbeat_answer", 1.0))
    script.on(7.5, lambda: setattr(script.group, "lose_heartbeat_answer", 0.0))
    script.run()
    assert script.world.coverage["heartbeat answer lost"] > 0
    assert _owns_at(script, "q2") < 30.0


@pytest.mark.rule("R85")
def test_r85_a_handover_for_which_the_group_has_not_waited_commits_nothing() -> None:
    """1. q1 drains a long batch, because q2 has joined. 2. A partition is added: q1's client joins at once. 3. q2 reads
    the partition, and commits. 4. The batch ends."""
    script = _script(drain_s=30.0, joins_in_callback=True)
    script.on(3.0, lambda: script.batches_take(16.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(7.0, lambda: script.cluster.grow("orders", 3))
    for moment in (12.0, 14.0, 16.0):
        script.on(moment, script.writes(3))
    assert [problem for problem in script.judged() if problem.startswith("P5")] == []


@pytest.mark.rule("R117")
def test_r117_a_client_that_joined_during_a_revoke_is_replaced() -> None:
    """1. q1 drains, because q2 has joined. 2. A partition is added: q1's client joins at once. 3. q3 joins."""
    script = _script(queries=3, drain_s=30.0, joins_in_callback=True, length_s=90.0)
    script.on(3.0, lambda: script.batches_take(16.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(7.0, lambda: script.cluster.grow("orders", 3))
    script.on(40.0, script.starts("q3"))
    script.run()
    assert "joined during a revoke (R85)" in script.world.coverage
    assert _owns_at(script, "q3") < 50.0
    assert {record.query for record in script.group.records[-6:] if record.event == "owns"} >= {"q1"}


@pytest.mark.rule("R117")
def test_r117_a_client_is_replaced_when_its_batch_has_ended() -> None:
    """1. q1 drains, because q2 has joined. 2. A partition is added. 3. The drain deadline passes: the batch goes on
    with the partition that stays. 4. It takes longer than a session, and a closing client sends no heartbeats."""
    script = _script(queries=2, drain_s=10.0, joins_in_callback=True, length_s=90.0)
    script.on(3.0, lambda: script.batches_take(30.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(7.0, lambda: script.cluster.grow("orders", 3))
    script.on(20.0, lambda: script.batches_take(0.2, "q1"))
    assert script.judged() == []
    assert "joined during a revoke (R85)" in script.world.coverage
    assert not [row for row in script.rows("q2") if row < 10], "orders-0 stayed with q1"


@pytest.mark.rule("R117")
def test_r117_a_client_is_replaced_if_topics_change_twice_during_its_drain() -> None:
    """1. q1 drains, because q2 has joined. 2. A partition is added, and q3 and q4 join: q1 loses another partition.
    3. A partition is added again, before q1's drain ends. 4. q5 joins."""
    script = _script(queries=5, drain_s=50.0, joins_in_callback=True, length_s=100.0, topics=(("orders", 6),))
    script.on(3.0, lambda: script.batches_take(26.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(8.0, script.starts("q3"), script.starts("q4"))
    script.on(9.0, lambda: script.cluster.grow("orders", 7))
    script.on(18.0, lambda: script.cluster.grow("orders", 8))
    script.on(45.0, script.starts("q5"))
    script.run()
    assert script.world.coverage["joined during a revoke (R85)"] == 2
    assert _owns_at(script, "q5") < 60.0


@pytest.mark.rule("R85")
def test_r85_an_eager_client_that_joined_twice_during_a_revoke_has_its_last_assignment() -> None:
    """1. q1 drains, because q2 has joined. 2. Partitions are added: q1's client joins, and has orders-0 to orders-3.
    3. q3 joins. 4. A partition is added: q1's client joins again, and has orders-0 to orders-2."""
    settings = {"protocol": "eager", "queries": 3, "topics": (("orders", 4),), "joins_in_callback": True}
    script = _script(drain_s=50.0, length_s=60.0, **settings)
    script.on(3.0, lambda: script.batches_take(30.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(8.0, lambda: script.cluster.grow("orders", 8))
    script.on(16.0, script.starts("q3"))
    script.on(19.0, lambda: script.cluster.grow("orders", 9))
    script.on(20.0, lambda: script.batches_take(0.1, "q1"))
    for moment in (40.0, 42.0, 44.0):
        script.on(moment, script.writes(5))
    assert [problem for problem in script.judged() if problem.startswith(("P5", "WATCH"))] == []
    assert script.world.coverage["joined during a revoke (R85)"] == 2


@pytest.mark.rule("R14")
def test_r14_a_commit_in_doubt_is_repeated_one_at_a_time() -> None:
    """1. A commit's outcome is unknown, so it is sent again. 2. That has no answer for two seconds."""
    script = _script(queries=1)
    script.on(2.9, script.reads_late("q1", 2.4, breaks_after_s=2.0))
    script.on(3.0, script.refuses("q1", Error.UNKNOWN_SERVER_ERROR), script.writes(10))
    assert script.judged() == []


@pytest.mark.rule("R14")
def test_r14_a_handover_clears_up_what_is_in_doubt_first() -> None:
    """1. Nobody knows whether 10 was accepted. 2. [10, 20) ends while a handover waits for it, which then has 20."""
    script = _script(batch_s=(0.02, 0.02))
    script.on(3.0, script.refuses("q1", Error.UNKNOWN_SERVER_ERROR, 20), script.writes(10))
    script.on(3.2, lambda: script.batches_take(3.0, "q1"), script.writes(10))
    script.on(4.2, script.starts("q2"))
    assert script.judged() == []


@pytest.mark.rule("R18")
def test_r18_a_large_commit_is_cut_into_requests() -> None:
    """1. A member gets 2,600 partitions, whose start positions are one commit. 2. The coordinator stores 1 MB."""
    topic = "orders-" + "x" * 240
    script = _script(queries=1, topics=((topic, 2600),), length_s=4.0)
    script.run()
    assert len(script.group.offsets) == 2600


@pytest.mark.rule("R19")
def test_r19_a_commit_that_is_denied_ends_the_query() -> None:
    """1. An operator takes the right to commit away. 2. Records come."""
    script = _script(queries=1, batch_s=(0.02, 0.02), max_rows=5)
    script.on(3.0, script.refuses("q1", Error.GROUP_AUTHORIZATION_FAILED, 8), script.writes(40))
    script.on(3.0, lambda: script.rest_s.update(q1=30.0))
    script.run()
    assert script.app("q1").runs[0].how == "failed"
    assert len(script.app("q1").checkpoint.entries) > 1


@pytest.mark.rule("R27")
def test_r27_a_handover_of_a_lost_member_drops_the_kept_partitions() -> None:
    """1. A handover drains, and its commit is answered with UNKNOWN_MEMBER_ID. 2. A kept partition has records."""
    script = _script("kip848")
    script.on(3.0, lambda: script.batches_take(3.0, "q1"), script.writes(10, number=1))
    script.on(3.5, script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.when(lambda: "callback revoked" in script.text(), script.refuses("q1", Error.UNKNOWN_MEMBER_ID), after_s=4.0)
    assert [problem for problem in script.judged() if "WATCH" in problem] == []


@pytest.mark.rule("R28")
def test_r28_a_handover_repeats_no_old_offsets() -> None:
    """1. 10 is refused; [10, 20) is in flight at the drain's deadline. 2. It ends while the handover repeats 10.
    3. q2 starts at 20."""
    script = _script(drain_s=1.0, batch_s=(0.02, 0.02))
    script.on(3.0, script.refuses("q1", Error.REBALANCE_IN_PROGRESS, 30), script.writes(10))
    script.on(3.2, lambda: script.batches_take(9.0, "q1"), script.writes(10))
    script.on(3.5, script.starts("q2"))
    script.when(lambda: "commit_now orders-1=10" in script.text(), script.ends_batch("q1"))
    assert script.judged() == []
    assert set(script.rows("q1", number=1)) & set(script.rows("q2", number=1)) == set()


@pytest.mark.rule("R29")
def test_r29_a_handover_outlasts_an_older_commit() -> None:
    """1. The commit of 10 is in the network. 2. [10, 20) ends in a handover, which commits 20. 3. 10 is read."""
    script = _script("eager", batch_s=(0.02, 0.02))
    script.on(3.0, script.reads_late("q1", 2.9, breaks_after_s=1.6), script.writes(10), script.starts("q2"))
    script.on(3.2, lambda: script.batches_take(0.6, "q1"), script.writes(10))
    script.run()
    for number in (0, 1):
        assert set(script.rows("q1", number=number)) & set(script.rows("q2", number=number)) == set()


@pytest.mark.rule("R35")
def test_r35_the_end_of_a_deleted_topics_batch_is_not_committed_to_its_successor() -> None:
    """1. q1 dies in a batch. 2. Its topic is recreated; q2 reads the new one, and stops. 3. q1 runs its batch again."""
    script = _script(topics=(("orders", 1),))
    script.on(3.0, lambda: script.batches_take(5.0, "q1"), script.writes(20))
    script.on(5.0, script.kills("q1", rest_s=20.0))
    script.on(6.0, script.recreates(count=1))
    script.on(7.0, script.writes(5), script.starts("q2"))
    script.on(20.0, script.drains("q2"))
    script.on(24.9, lambda: script.batches_take(8.0, "q1"), script.lags("orders", 1.5))
    script.on(45.0, lambda: script.batches_take(0.1), script.writes(5))
    assert script.judged() == []


@pytest.mark.rule("R36")
def test_r36_one_broker_that_lags_behind_brings_no_topic_back() -> None:
    """1. A topic is recreated, read and committed. 2. q2 joins while a broker reports the deleted topic."""
    script = _script()
    script.on(1.0, script.writes(10))
    script.on(6.0, script.recreates())
    script.on(7.0, script.writes(20))
    script.on(16.0, script.starts("q2"))
    script.when(lambda: "q2       callback assigned [o" in script.text(), script.lags("orders", 1.5), after_s=16.0)
    assert script.judged() == []


@pytest.mark.rule("R91")
def test_r91_what_is_lost_with_partitions_that_leave_fails_the_query() -> None:
    """1. A topic with unread records is deleted. 2. Its partitions leave before the next trigger."""
    topics = (("orders", 1), ("refunds", 1))
    script = _script("kip848", queries=1, topics=topics, max_rows=4, fail_on_data_loss=True)
    script.on(1.0, lambda: script.triggers_take(1e6), script.writes(30, "refunds"))
    script.on(6.0, lambda: script.delete_topic("refunds"), lambda: script.fault("topic-recreated", "", 30.0))
    script.on(15.0, lambda: script.triggers_take(0.1), script.app("q1").hasten)
    script.on(50.0, lambda: script.create_topic("refunds", 1))
    script.run()
    assert "refunds-0 [4, 30): the topic was deleted" in "".join(script.app("q1").errors)
    assert script.app("q1").runs[0].ended_at < BEGIN_S + 30.0


@pytest.mark.rule("R91")
@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
def test_r91_what_is_lost_with_a_partition_that_moves_is_reported(protocol: str) -> None:
    """1. q1 has seen 30 records for long, and read a few. 2. The topic is recreated. 3. q2 gets a partition."""
    script = _script(protocol, max_rows=8)
    script.on(1.0, lambda: script.triggers_take(1e6, "q1"), script.writes(30))
    script.on(25.0, script.starts("q2"))
    script.on(25.5, script.recreates())
    script.on(45.0, lambda: script.triggers_take(0.1), script.app("q1").hasten, script.writes(5))
    assert script.judged() == []


@pytest.mark.rule("R67")
def test_r67_a_deleted_topic_keeps_no_member_from_its_proof() -> None:
    """1. The topic of a member's first partition is deleted. 2. It was stopped for a while, and proves itself."""
    script = _script(queries=1, topics=(("deliveries", 1), ("orders", 1)))
    script.on(1.0, script.writes(10), script.writes(10, "deliveries"))
    script.on(6.0, script.pauses("q1", 4.0))
    script.on(8.0, lambda: script.delete_topic("deliveries"), lambda: script.fault("topic-recreated", "", 60.0))
    script.on(50.0, lambda: script.create_topic("deliveries", 1))
    script.run()
    assert script.text().index("event proven") < script.text().index("callback lost")


@pytest.mark.rule("R67")
def test_r67_a_proof_moves_no_offset_back() -> None:
    """1. q1 joins; its heartbeat that reports no partition yet is read late. 2. q2 joins, and is given refunds-0. 3. q1
    was stopped meanwhile. It goes on, and the group's epoch is its own."""
    script = _script("kip848", topics=(("orders", 1), ("refunds", 1)))
    receive, stop = script.group.receive, script.pauses("q1", 5.0)

    def late(client_id: str, request: Any, reply: Callable[[Any], None]) -> None:
        is_late = client_id == "q1" and isinstance(request, ConsumerHeartbeat) and request.epoch > 0
        wait_s = 1.5 if is_late and request.owned == frozenset() else 0.0
        script.world.after(wait_s, lambda: receive(client_id, request, reply))

    script.on(1.0, script.writes(10), script.writes(10, "refunds"))
    script.on(3.0, script.drains("q1", rest_s=1.0), lambda: setattr(script.group, "receive", late))
    script.when(
        lambda: script.world.coverage["event assigned"] == 2,
        script.starts("q2"), lambda: script.world.after(0.1, stop),
    )  # fmt: skip
    for moment in (6.0, 7.0, 8.0, 9.0):
        script.on(moment, script.writes(3), script.writes(3, "refunds"))
    assert script.judged() == []
    assert script.world.coverage["event doubted"] > 0


@pytest.mark.rule("R67")
def test_r67_a_start_position_moves_no_offset_back() -> None:
    """1. q1 joins a new group; its heartbeat that reports no partition yet is read late. 2. q2 joins, is given
    refunds-0, and reads it. 3. q1 was stopped before it stored its start there. It has nothing else to prove."""
    script = Script(26, queries=2, protocol="kip848", session_s=12.0, topics=(("orders", 1), ("refunds", 1)))
    receive = script.group.receive

    def late(client_id: str, request: Any, reply: Callable[[Any], None]) -> None:
        is_late = client_id == "q1" and isinstance(request, ConsumerHeartbeat) and request.epoch > 0
        wait_s = 1.5 if is_late and request.owned == frozenset() else 0.0
        script.world.after(wait_s, lambda: receive(client_id, request, reply))

    script.group.receive = late  # type: ignore[method-assign]
    script.on(0.0, script.writes(10), script.writes(10, "refunds"))
    script.when(lambda: script.world.coverage["event assigned"] == 1, script.starts("q2"))
    script.at_place("before-start-positions", "q1", script.pauses("q1", 5.0))
    for moment in (3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        script.on(moment, script.writes(3), script.writes(3, "refunds"))
    assert script.judged() == []
    assert script.world.coverage["event doubted"] > 0


@pytest.mark.rule("R81")
def test_r81_a_recreated_topic_is_not_read_under_the_old_assignment() -> None:
    """1. q1 does not hear that the topic is recreated. 2. q2, which is fresh, is assigned a partition of it."""
    script = _script("kip848")
    script.on(1.0, script.writes(10))
    script.on(5.0, script.recreates())
    script.on(5.0, lambda: setattr(script.group, "lose_heartbeat_answer", 1.0))
    script.on(8.9, lambda: setattr(script.group, "lose_heartbeat_answer", 0.0))
    script.on(5.3, script.writes(10), script.starts("q2"))
    script.on(12.0, script.writes(10))
    assert script.judged() == []


@pytest.mark.rule("R45")
def test_r45_a_recreated_topic_is_no_truncated_one() -> None:
    """1. A topic is read to 20. 2. It is recreated, ends at 30, and its leader has a higher epoch."""
    script = _script(queries=1, topics=(("orders", 1),))
    script.on(1.0, script.writes(20))
    script.on(5.9, lambda: script.triggers_take(3.0))
    script.on(6.0, script.recreates(count=1, after_s=0.01))
    script.on(6.05, lambda: script.cluster.move_leader("orders", 0), script.writes(30))
    script.run()
    assert [loss["reason"] for loss in script.events("q1", "data_lost") if "truncated" in loss["reason"]] == []


@pytest.mark.rule("R26")
def test_r26_a_revoke_waits_for_no_batch_of_lost_partitions() -> None:
    """1. A batch is in flight; the process was stopped for a while. 2. Its proof is answered with UNKNOWN_MEMBER_ID. 3.
    A query joins, and the client revokes a partition."""
    script = _script("kip848", drain_s=40.0)
    script.on(3.0, lambda: script.batches_take(60.0, "q1"), script.writes(10))
    script.on(5.0, script.refuses("q1", Error.UNKNOWN_MEMBER_ID))
    script.on(6.0, script.pauses("q1", 4.0))
    script.on(12.0, script.starts("q2"))
    script.on(40.0, script.ends_batch("q1"), lambda: script.batches_take(0.1))
    assert [problem for problem in script.judged() if "WATCH" in problem] == []


@pytest.mark.rule("R26")
def test_r26_a_member_that_leaves_waits_for_no_batch() -> None:
    """1. A commit has no answer, a batch is in flight, the partitions are lost. 2. The query is asked to stop. 3. While
    it waits for the answer, the client joins again."""
    script = _script(queries=1, drain_s=40.0, batch_s=(0.02, 0.02))
    script.on(3.0, script.reads_late("q1", 30.0, breaks_after_s=8.0), script.writes(10))
    script.on(3.2, lambda: script.batches_take(70.0), script.writes(10))
    script.when(
        lambda: "callback lost" in script.text(), script.drains("q1", rest_s=1.0), script.breaks("q1"), after_s=4.0
    )
    assert script.judged() == []


def test_p8_a_deleted_topic_is_reported_once() -> None:
    """1. A topic comes back with fewer partitions, which is reported. 2. The partitions are lost, and come back."""
    script = _script(queries=1)
    q1 = script.app("q1")
    script.on(1.0, script.writes(20))
    script.on(6.0, script.recreates(count=1))
    script.on(8.0, lambda: script.fault("network-cut", "q1", 9.0))
    script.on(8.0, lambda: setattr(q1.client, "cut_until", script.world.now + 9.0))
    script.on(20.0, script.writes(5))
    assert script.judged() == []


@pytest.mark.rule("R14")
@pytest.mark.parametrize("seed", [1, 4, 6])
def test_r14_a_late_answer_about_an_older_offset_says_nothing_about_a_newer_one(seed: int) -> None:
    """1. The commit of 10 has no answer. 2. The query is asked to stop, and commits 20: no answer. 3. That of 10 fails.
    4. The client closes, and revokes.

    The seeds differ in when the client finds its connection cut: before it sends 10, or after.
    """
    script = _script("kip848", queries=1, batch_s=(0.02, 0.02), seed=seed)
    q1 = script.app("q1")
    script.on(3.0, script.writes(10), lambda: script.fault("network-cut", "q1", 10.0))
    script.when(
        lambda: q1.batch is not None, lambda: setattr(q1.client, "cut_until", script.world.now + 10.0), after_s=3.0
    )
    script.on(3.3, script.writes(10))
    script.on(5.0, script.stops("q1"))
    assert [problem for problem in script.judged() if "WATCH" in problem] == []


def test_available_now_ends_where_the_logs_ended_at_its_start() -> None:
    """1. A job with Trigger.AvailableNow starts. 2. Records come while it runs."""
    script = _script(queries=1, topics=(("orders", 1),), max_rows=4, batch_s=(1.0, 1.0))
    q1 = script.app("q1")
    q1.trigger, script.rest_s["q1"] = Trigger.AVAILABLE_NOW, 1000.0
    script.on(0.0001, script.writes(10))
    script.on(3.0, script.writes(10))
    script.run()
    (first, *_), ended_at = q1.runs, q1.runs[0].ended_at
    assert first.how == "ended"
    assert [row[3] for batch in q1.batches if batch.at <= ended_at for row in batch.rows] == list(range(10))


@pytest.mark.rule("R118")
@pytest.mark.parametrize("batch_s", [5.0, 8.2])
@pytest.mark.parametrize("protocol", ["cooperative", "eager", "kip848"])
def test_r118_runs_read_all_that_was_there(protocol: str, batch_s: float) -> None:
    """1. q2 joins while q1 reads its first batch. 2. q1 gives up two partitions after it, and reads its others."""
    script = _script(protocol, queries=2, topics=(("orders", 4),), max_rows=8, drain_s=30.0, batch_s=(batch_s, batch_s))
    q1, q2 = script.app("q1"), script.app("q2")
    for app in (q1, q2):
        app.trigger, script.rest_s[app.name] = Trigger.AVAILABLE_NOW, 1000.0
    script.on(0.0001, script.writes(3))
    script.when(lambda: q1.batch is not None, script.starts("q2"), lambda: script.batches_take(0.1), after_s=0.1)
    script.run()
    assert [app.runs[0].how for app in (q1, q2)] == ["ended", "ended"]
    ended_at = max(app.runs[0].ended_at for app in (q1, q2))
    rows = [row[1:] for app in (q1, q2) for batch in app.batches if batch.at <= ended_at for row in batch.rows]
    assert len(rows) == len(set(rows)) == 12


@pytest.mark.rule("R118")
def test_r118_an_assignment_on_its_way_is_not_another_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """1. q1 gives up two partitions, reads its others and ends. 2. The coordinator's answer to q2 takes 5 s."""
    script = _script(queries=2, topics=(("orders", 4),), max_rows=8, drain_s=30.0, batch_s=(8.2, 8.2))
    q1, q2 = script.app("q1"), script.app("q2")
    for app in (q1, q2):
        app.trigger, script.rest_s[app.name] = Trigger.AVAILABLE_NOW, 1000.0
    receive, stop = script.group.receive, Session.stop

    def received(client_id: str, request: object, reply: Callable[[Any], None]) -> None:
        def late(answer: SyncAnswer) -> None:
            script.world.after(5.0 if q1.batches and client_id == "q2" else 0.0, lambda: reply(answer))

        receive(client_id, request, late if isinstance(request, SyncGroup) else reply)

    def ends(session: Session) -> None:
        # Spark takes a second to end a query.
        script.world.sleep(1.5)
        stop(session)

    monkeypatch.setattr(script.group, "receive", received)
    monkeypatch.setattr(Session, "stop", ends)
    script.on(0.0001, script.writes(3))
    script.when(lambda: q1.batch is not None, script.starts("q2"), lambda: script.batches_take(0.1), after_s=0.1)
    script.run()
    ended_at = max(app.runs[0].ended_at for app in (q1, q2))
    rows = [row[1:] for app in (q1, q2) for batch in app.batches if batch.at <= ended_at for row in batch.rows]
    assert len(rows) == len(set(rows)) == 12


@pytest.mark.rule("R118")
@pytest.mark.parametrize("protocol", ["cooperative", "eager", "kip848"])
def test_r118_a_killed_member_has_its_partitions_until_its_session_expires(protocol: str) -> None:
    """1. q1 is killed in its batch. 2. q2 starts. Under KIP-848 the coordinator gives it nothing before that."""
    script = _script(protocol, queries=2, topics=(("orders", 1),), session_s=20.0)
    q1, q2 = script.app("q1"), script.app("q2")
    for app in (q1, q2):
        app.trigger, script.rest_s[app.name] = Trigger.AVAILABLE_NOW, 1000.0
    script.on(0.0001, script.writes(3))
    script.when(lambda: q1.batch is not None, script.kills("q1"), script.starts("q2"), after_s=0.1)
    script.run()
    run = q2.runs[0]
    assert run.how == "ended"
    assert sum(len(batch.rows) for batch in q2.batches if batch.at <= run.ended_at) == 3


@pytest.mark.parametrize(
    ("protocol", "spark", "trigger", "waits"),
    [
        ("eager", "4.0", Trigger.ONCE, {"drain_s": 30.0}),
        ("eager", "4.2", Trigger.ONCE, {"drain_s": 30.0}),
        ("kip848", "4.0", Trigger.ONCE, {"drain_s": 30.0}),
        ("kip848", "4.2", Trigger.ONCE, {"drain_s": 30.0}),
        # maxBatchMs passes before the drain ends, and both sooner than a first assignment is waited for.
        ("eager", "4.0", Trigger.ONCE, {"drain_s": 60.0, "max_batch_s": 20.0}),
        ("kip848", "4.2", Trigger.AVAILABLE_NOW, {"drain_s": 60.0, "max_batch_s": 20.0}),
        ("cooperative", "4.2", Trigger.PROCESSING_TIME, {"drain_s": 60.0, "max_batch_s": 4.0}),
        ("eager", "4.2", Trigger.PROCESSING_TIME, {"drain_s": 2.0}),
    ],
)
def test_the_sources_of_a_query_do_not_read_a_partition_in_the_same_batch(
    protocol: str, spark: str, trigger: Trigger, waits: dict[str, float]
) -> None:
    """1. The first source has planned. 2. The second one waits for its partitions. 3. The first one gives them up."""
    script = _script(
        protocol, queries=1, topics=(("orders", 4),), two_sources=True, session_s=45.0, spark=spark, **waits
    )
    q1 = script.app("q1")
    q1.trigger, script.rest_s["q1"] = trigger, 1000.0
    script.on(0.0001, script.writes(3))
    script.run()
    ended_at = q1.runs[0].ended_at
    rows = [row[1:] for source in q1.sources for batch in source.batches if batch.at <= ended_at for row in batch.rows]
    assert len(rows) == len(set(rows))
