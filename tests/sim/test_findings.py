"""Sequences that the simulation found, each as a script: what was lost or reported wrongly must stay mended."""

from __future__ import annotations

import pytest

from spark_groupsource.model.offsets import TopicPartition
from tests.faults.history import Commit
from tests.sim.script import Script
from tests.sim.spark.checkpoint import Store

SHARED = ("cooperative", "kip848")


def _two(protocol: str, **settings: object) -> Script:
    """Return a world in which q1 and q2 share orders-0 and orders-1, read to offset 10 at 8 s."""
    heartbeat_s = 1.0 if protocol == "kip848" else 2.0
    script = Script(queries=2, protocol=protocol, heartbeat_s=heartbeat_s, length_s=60.0, **settings)
    script.on(1.0, script.writes(10))
    script.on(4.0, script.starts("q2"))
    return script


def _one(protocol: str, **settings: object) -> Script:
    """Return a world in which q1 has read orders-0 and orders-1 to offset 10 at 3 s; q2 is not started."""
    heartbeat_s = 1.0 if protocol == "kip848" else 2.0
    script = Script(queries=2, protocol=protocol, heartbeat_s=heartbeat_s, length_s=60.0, **settings)
    script.on(1.0, script.writes(10))
    return script


@pytest.mark.parametrize("protocol", SHARED)
@pytest.mark.parametrize("drain_s", [5.0])
def test_f0_a_stop_after_a_refused_proof_waits_for_nothing(protocol: str, drain_s: float) -> None:
    """1. A batch is in flight, and the machine is suspended beyond the session. 2. It wakes and is asked to stop."""
    script = Script(protocol=protocol, heartbeat_s=1.0 if protocol == "kip848" else 2.0, drain_s=drain_s, length_s=60.0)
    script.on(3.0, lambda: script.batches_take(30.0), script.writes(10))
    script.on(6.0, script.pauses("q1", 12.0, suspended=True))
    script.on(18.002, script.drains("q1", rest_s=1.0), lambda: script.batches_take(0.1))
    assert script.judged() == []
    assert "IllegalTransition" not in script.text()


@pytest.mark.parametrize("protocol", SHARED)
def test_f1_the_partition_of_a_recreated_topic_moves_before_the_next_trigger(protocol: str) -> None:
    """1. q1 has unread records. 2. The topic is recreated. 3. A rebalance gives a partition to q2 before q1 plans."""
    script = _one(protocol, trigger_s=0.1)
    script.on(4.0, lambda: script.triggers_take(20.0, "q1"))
    script.on(6.0, script.writes(10), script.starts("q2"))
    script.on(6.6, script.recreates())
    script.on(20.0, lambda: script.triggers_take(0.1))
    script.on(30.0, script.writes(5))
    assert script.judged() == []


@pytest.mark.parametrize("protocol", SHARED)
def test_f1_a_restart_beside_a_fresh_query_that_has_read_the_new_topic(protocol: str) -> None:
    """1. q1 stops with unread records. 2. The topic is recreated. 3. A fresh q2 pins the new id. 4. q1 comes back."""
    script = _one(protocol)
    script.on(4.0, script.drains("q1", rest_s=20.0))
    script.on(5.0, script.writes(10))
    script.on(6.0, script.recreates())
    script.on(7.0, script.writes(3))
    script.on(8.0, script.starts("q2"))
    script.on(35.0, script.writes(5))
    assert script.judged() == []


@pytest.mark.parametrize("protocol", SHARED)
def test_f1_two_queries_swap_their_partitions_at_a_recreation(protocol: str) -> None:
    """1. Both have unread records. 2. Both stop, the topic is recreated. 3. They come back in the other order."""
    script = _two(protocol)
    script.on(10.0, lambda: script.triggers_take(20.0))
    script.on(12.0, script.writes(10))
    script.on(12.5, script.recreates())
    script.on(13.0, script.kills("q1", rest_s=12.0))
    script.on(14.0, script.kills("q2", rest_s=10.0))
    script.on(26.0, lambda: script.triggers_take(0.1))
    script.on(35.0, script.writes(5))
    assert script.judged() == []


@pytest.mark.parametrize("protocol", ["eager", *SHARED])
def test_f2_a_stop_after_a_batch_that_skipped_records(protocol: str) -> None:
    """1. A batch runs. 2. Its topic goes before the tasks read it. 3. The query is asked to stop; the batch ends."""
    script = Script(protocol=protocol, heartbeat_s=1.0 if protocol == "kip848" else 2.0, trigger_s=3.0, length_s=40.0)
    script.on(3.0, lambda: script.batches_take(5.0), script.writes(10))
    script.when(lambda: script.app("q1").batch is not None, lambda: script.delete_topic("orders"), after_s=4.0)
    script.on(8.0, script.drains("q1", rest_s=4.0))
    script.on(9.0, lambda: script.batches_take(0.1))
    script.on(14.0, lambda: script.create_topic("orders", 2), lambda: script.fault("topic-recreated", "", 12.0))
    script.on(30.0, script.writes(5))
    assert script.judged() == []


@pytest.mark.parametrize("protocol", ["eager", *SHARED])
def test_f2_a_crash_after_a_batch_that_skipped_records(protocol: str) -> None:
    """1. A batch skips removed records, and completes. 2. The application is killed before its next trigger."""
    script = Script(protocol=protocol, heartbeat_s=1.0 if protocol == "kip848" else 2.0, trigger_s=0.5, length_s=60.0)
    q1 = script.app("q1")
    script.on(1.0, script.writes(10))
    script.on(5.0, lambda: script.batches_take(4.0), script.writes(10))
    script.when(
        lambda: q1.batch is not None,
        lambda: script.delete_records("orders", 0, 15), lambda: script.triggers_take(30.0),
        after_s=5.0,
    )  # fmt: skip
    script.when(lambda: q1.batch is None, script.kills("q1", rest_s=2.0), after_s=9.0)
    script.on(15.0, lambda: script.triggers_take(0.5))
    assert script.judged() == []


@pytest.mark.parametrize("protocol", SHARED)
def test_f4_a_partition_that_others_have_read_is_no_loss(protocol: str) -> None:
    """1. q1 knows of unread records of a partition, and hands it over. 2. q2 reads them. 3. The topic is deleted."""
    script = _one(protocol, max_rows=2)
    script.on(4.0, script.writes(60, number=1))
    script.on(4.2, script.starts("q2"))
    script.on(10.0, lambda: [setattr(app.settings, "max_rows", None) for app in script.apps])
    script.on(30.0, lambda: script.delete_topic("orders"), lambda: script.fault("topic-recreated", "", 12.0))
    script.on(37.0, lambda: script.create_topic("orders", 2))
    assert script.judged() == []


@pytest.mark.parametrize("protocol", ["eager", *SHARED])
def test_f6_a_batch_that_ends_just_before_the_deadline_is_committed(protocol: str) -> None:
    """1. A revoke waits for a batch. 2. The store is slow. 3. The batch is recorded 0.4 s before the deadline."""
    script = _one(protocol, drain_s=5.0, store=Store.REMOTE)
    q1 = script.app("q1")
    script.on(5.0, lambda: script.batches_take(1000.0), script.writes(10))
    script.on(7.0, script.starts("q2"), lambda: script.triggers_take(20.0, "q1"))

    def slow() -> None:
        began = script.world.now
        script.world.at(began + 4.4, lambda: setattr(q1.checkpoint, "hangs_until", began + 5.3))
        script.world.at(began + 4.6, script.ends_batch("q1"))
        script.batches_take(0.1)

    script.when(lambda: script.world.coverage["event revoking"] > 0, slow, after_s=6.0)
    assert script.judged() == []
    assert script.world.coverage["revoked COMPLETE"] > 0
    assert script.world.coverage["revoked DEADLINE"] == 0


@pytest.mark.parametrize("protocol", SHARED)
def test_f7_latest_is_one_moment_for_the_group(protocol: str) -> None:
    """1. Two queries begin the group. 2. The owner of orders-1 dies before it has stored a start. 3. Records come."""
    script = Script(queries=2, protocol=protocol, heartbeat_s=1.0 if protocol == "kip848" else 2.0, starting="latest")
    script.on(0.1, script.starts("q2"))
    script.at_place("before-start-positions", "q1", lambda: script.world.sleep(4.0))
    script.at_place("before-start-positions", "q2", lambda: script.world.sleep(60.0))
    for moment in (8.0, 9.0, 10.0):
        script.on(moment, script.writes(10))
    script.on(11.0, script.kills("q2", rest_s=30.0))
    assert script.judged() == []


def _reported(script: Script, name: str) -> list[tuple[str, int, int]]:
    """Return the partitions of which a query has reported a loss, maybe at most, and from where on."""
    lost = (one.get(kind) or () for one in script.events(name, "data_lost") for kind in ("ranges", "possible"))
    return [(topic, number, at) for ranges in lost for topic, number, at, _ in ranges]


@pytest.mark.parametrize("protocol", ["eager", *SHARED])
@pytest.mark.rule("R91")
def test_p8_a_restart_without_a_partition_beside_a_query_that_reads_the_recreated_topic(protocol: str) -> None:
    """1. q1 stops with unread records. 2. The topic is recreated. 3. A fresh q2 owns all of it. 4. q1 comes back."""
    script = _one(protocol, topics=(("orders", 1),))
    script.on(4.0, script.drains("q1", rest_s=15.0))
    script.on(5.0, script.writes(10))
    script.on(6.0, script.recreates(count=1))
    script.on(8.0, script.starts("q2"))
    script.on(9.0, script.writes(3))
    script.on(45.0, script.writes(5))
    assert script.judged() == []
    assert ("orders", 0, 10) in _reported(script, "q1")


@pytest.mark.parametrize("protocol", ["eager", *SHARED])
@pytest.mark.parametrize("recreated", [False, True], ids=["deleted", "recreated"])
@pytest.mark.rule("R91")
def test_p8_a_partition_that_has_come_back_and_was_in_no_batch_since(protocol: str, recreated: bool) -> None:
    """1. q1 hands orders-1 over, and it comes back. 2. It gets records. 3. q1 is killed. 4. The topic is deleted."""
    script = _two(protocol, topics=(("orders", 2), ("refunds", 1)))
    script.on(12.0, script.writes(5))
    script.on(14.0, lambda: script.triggers_take(1000.0))
    script.on(16.0, script.drains("q2"))
    script.on(28.0, script.writes(10))
    script.on(30.0, script.kills("q1", rest_s=8.0), lambda: script.triggers_take(0.1))
    script.on(31.0, lambda: script.delete_topic("orders"), lambda: script.fault("topic-deleted", "", 12.0))
    if recreated:
        script.on(31.5, lambda: script.create_topic("orders", 2))
    assert script.judged() == []
    assert ("orders", 1, 10) in _reported(script, "q1")


@pytest.mark.rule("R83")
def test_f10_a_late_commit_of_a_deleted_topic_repeats_nothing_of_a_checkpoint() -> None:
    """1. q1 drains, because q2 has joined; the topic is recreated. 2. q2 reads orders-1 of the new one, and stops.
    3. q1's batch of the deleted topic ends: its commit replaces q2's. 4. q2 starts."""
    script = Script(queries=2, protocol="kip848", heartbeat_s=1.0, drain_s=30.0, length_s=60.0)
    script.on(3.0, lambda: script.batches_take(14.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.when(lambda: script.world.coverage["event revoking"] > 0, script.recreates(after_s=0.002))
    script.on(6.0, script.writes(5))
    script.on(13.0, script.drains("q2", rest_s=12.0))
    script.on(14.0, script.drains("q1"))
    script.on(15.0, lambda: script.batches_take(0.1))
    script.on(30.0, script.writes(5))
    late, *others = script.judged()
    assert late.startswith("P5 orders-1: commit 10"), "limits.md, KIP-848 and a recreated topic"
    assert others == []
    assert script.rows("q2", number=1) == list(range(10))


@pytest.mark.rule("R83")
def test_f10_a_late_commit_of_a_deleted_topic_is_noticed_while_batches_run() -> None:
    """1. q1 has read orders-1 of the recreated topic. 2. Only orders-0 gets records. 3. An end of the deleted topic is
    committed. 4. q1 stops, and q2 is the next owner."""
    script = _one("kip848")
    script.on(6.0, script.recreates())
    script.on(12.0, script.writes(5))
    for half in range(30, 60):
        script.on(half / 2, script.writes(1, number=0))
    old: list[Commit] = []
    script.on(5.0, lambda: old.extend(one for one in script.group.commits if one.partition == 1))
    script.on(20.0, lambda: script.group.set_offset(TopicPartition("orders", 1), old[-1].offset, old[-1].metadata))
    script.on(28.0, script.drains("q1", rest_s=12.0), script.starts("q2"))
    assert script.judged() == []
    assert script.rows("q2", number=1) == []


def test_f11_a_topic_that_is_deleted_while_it_is_assigned_holds_up_the_group() -> None:
    """1. orders is deleted, and q1 leaves. 2. The coordinator, which does not know that yet, gives orders-0 to q2. 3.
    q2's client finds no name for it, so it never confirms its release. limits.md, KIP-848: until q2 is removed."""
    topics = (("orders", 1), ("refunds", 1))
    script = Script(queries=2, protocol="kip848", heartbeat_s=1.0, rebalance_s=20.0, topics=topics, length_s=45.0)
    script.on(1.0, script.writes(10), script.writes(10, "refunds"))
    script.on(3.0, script.starts("q2"))
    script.on(12.0, lambda: setattr(script.group, "_image_at", script.world.now + 3.0))
    script.on(12.0, lambda: script.delete_topic("orders"), lambda: script.fault("topic-recreated", "", 12.0))
    script.on(12.0, script.drains("q1", rest_s=8.0))
    script.on(18.0, lambda: script.create_topic("orders", 1))
    script.on(25.0, script.writes(5))
    assert script.judged() == []
    assert script.world.coverage["too slow to revoke"] == 1
    assert script.rows("q1") + script.rows("q2") == [*range(10), *range(5)]


def test_f9_a_deleted_topic_takes_its_partitions_only() -> None:
    """1. q1 leads, and subscribes to orders only. 2. refunds, which q2 reads, is deleted. 3. More records come. q1
    does not join again, so q2 gets no other assignment."""
    script = Script(queries=2, topics=(("orders", 6), ("refunds", 2)), length_s=60.0)
    script.subscribes("q1", "orders")
    script.app("q2").fails_on_data_loss = False
    script.on(3.0, script.starts("q2"))
    script.on(8.0, script.writes(10), script.writes(10, "refunds"))
    script.on(12.0, lambda: script.delete_topic("refunds"))
    script.on(25.0, script.writes(10))
    assert script.judged() == []
    assert len(script.rows("q2", number=5)) == 20


@pytest.mark.rule("R73")
def test_f12_a_handover_beyond_the_poll_interval_does_not_end_the_query() -> None:
    """1. q1 drains. 2. The coordinator is away when its batch ends: the commit waits for longer than the poll interval.
    3. q1's client leaves, and forgets that it is to join again: its next heartbeat has epoch 0."""
    script = Script(queries=2, protocol="kip848", heartbeat_s=1.0, rebalance_s=15.0, drain_s=12.0, length_s=60.0)
    script.on(3.0, lambda: script.batches_take(30.0, "q1"), script.writes(10))
    script.on(4.0, script.starts("q2"))
    script.on(14.7, lambda: script.group.down(9.0), lambda: script.fault("coordinator-killed", "", 9.0))
    script.on(15.0, script.ends_batch("q1"), lambda: script.batches_take(0.1), script.writes(5))
    assert script.judged() == []
    assert "fatal INVALID_REQUEST" in script.text()


def test_f13_a_check_of_the_groups_offsets_stops_no_batches_while_the_coordinator_is_away() -> None:
    """1. Only orders-0 gets records, so the offset of orders-1 is checked every 5 s. 2. The coordinator goes away
    before such a check. A wait beyond the heartbeat interval would put the membership in doubt until it is back."""
    topics = (("orders", 2),)
    script = Script(3, protocol="kip848", session_s=45.0, heartbeat_s=3.0, topics=topics, trigger_s=3.0, length_s=45.0)
    script.on(1.0, script.writes(10))
    for half in range(4, 80):
        script.on(half / 2, script.writes(1, number=0))
    script.on(14.0, lambda: script.group.down(8.0), lambda: script.fault("coordinator-killed", "", 8.0))
    assert script.judged() == []
    assert script.world.coverage["event doubted"] == 0
    planned = [float(line.split()[0]) for line in script.text().splitlines() if " runs batch " in line]
    assert [moment for moment in planned if 14.0 < moment < 22.0]


def test_f14_a_doubt_that_lasts_is_reported_once() -> None:
    """1. q1 is stopped, and the coordinator goes away. 2. q1 goes on, and cannot prove its membership: it requests the
    group's offsets again and again. That wait is no new silence."""
    script = Script(protocol="kip848", session_s=45.0, heartbeat_s=3.0, topics=(("orders", 1),), length_s=60.0)
    script.on(1.0, script.writes(10))
    script.on(12.0, script.pauses("q1", 6.0))
    script.on(13.0, lambda: script.group.down(30.0), lambda: script.fault("coordinator-killed", "", 30.0))
    script.on(45.0, script.writes(5))
    assert script.judged() == []
    assert script.world.coverage["event doubted"] == 1
