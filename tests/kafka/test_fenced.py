"""Members that are out of the group without knowing it (P5), and those that are told so (M22).

F1 the group's offset never goes back. F2 no record is lost. F3 at most the batch in flight is read twice. F4 the member
is a member again afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_groupsource.checkpoint.stop_requests import Answer, StopFiles, ask_to_stop

from .application import Application
from .harness import Independent, wait_for
from .holding import Events, Gate, Held, OffsetWatch, released
from .test_drain import Scene, make_scene
from .test_takeover import PROTOCOLS

__all__ = ["make_scene"]

pytestmark = pytest.mark.kafka


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for a while (SIGSTOP), as a long pause of its machine does."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_taken_over(scene: Scene) -> None:
    """Wait until the second query owns all and has completed every record that is not complete yet."""
    wait_for(
        "the second query to own all partitions",
        lambda: scene.events["second"].metrics()["assigned_partitions"] == 4,
        60,
        scene.evidence,
    )


def start_both(scene: Scene, gate: Gate | None = None) -> None:
    """Two queries share the topic, and stand at its end."""
    scene.start("first", gate)
    scene.events["first"].wait_for("assigned")
    scene.start("second")
    scene.events["second"].wait_for("started")
    scene.wait_shared()
    scene.produce()
    scene.wait_idle()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p5_m22_a_zombie_with_a_batch_in_flight_moves_nothing(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """1. The first query's batch is in the sink; its reader process is stopped. 2. Its session expires, the second
    query reads the same records and commits. 3. The first goes on: its batch ends, its commit must not count.
    """
    scene, gate = make_scene(protocol), Gate()
    with released(gate), OffsetWatch(scene.client, scene.group) as watch:
        start_both(scene, gate)
        first, second = scene.queries
        gate.armed = True
        scene.produce()
        gate.wait_reached(scene.evidence)
        with stopped(scene.events["first"].reader_pid()):
            wait_taken_over(scene)
            second.wait_for_records(scene.client.records(scene.topic) - set(first.completed_records()))
            scene.produce()
            second.wait_for_records(scene.client.records(scene.topic) - set(first.completed_records()))
            wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
        gate.release()
        scene.events["first"].wait_for("lost")
        scene.wait_shared()
        scene.produce()
        scene.wait_idle()
    assert watch.went_back == []
    assert 0 < len(scene.repeats()) <= 40, "only the batch in flight is read twice"
    counters = scene.events["first"].metrics()
    assert counters["rebalances"]["lost"] >= 1
    assert counters["records_repeated"] >= len(scene.repeats())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R67")
def test_p5_p6_a_zombie_plans_nothing_before_it_has_proven_its_membership(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """1. The first query has made a plan and is stopped before it fixes it. 2. Its session expires, the second query
    reads those records. 3. The first goes on, with the plan in its hands, before its client knows anything.
    """
    scene = make_scene(protocol)
    with OffsetWatch(scene.client, scene.group) as watch:
        start_both(scene)
        first, second = scene.queries
        held = Held("first", "before-fix")
        with released(held):
            scene.produce()
            held.wait_reached(scene.evidence)
            with stopped(scene.events["first"].reader_pid()):
                wait_taken_over(scene)
                second.wait_for_records(scene.client.records(scene.topic) - set(first.completed_records()))
                held.release()
        scene.wait_shared()
        scene.produce()
        scene.wait_idle()
    assert scene.repeats() == [], "the plan of a zombie was read"
    assert watch.went_back == []
    assert scene.events["first"].lines("doubted")


@pytest.mark.rule("R67")
def test_p5_p6_a_proof_whose_answer_is_older_than_the_groups_session_proves_nothing(
    make_scene: Callable[[str], Scene],
) -> None:
    """Under KIP-848, with a session of 20 s in the group's configuration. Guards against: 1. the first query has a
    plan, and doubts its membership after a pause; the coordinator accepts its proof; 2. it is stopped before it has the
    answer; the session expires, and the second query reads those records; 3. the first goes on with answer and plan.
    """
    scene = make_scene("kip848")
    scene.client.set_group_session_timeout(scene.group, 20_000, 1_000)
    with OffsetWatch(scene.client, scene.group) as watch:
        start_both(scene)
        first, second = scene.queries
        pid, plan, proof = scene.events["first"].reader_pid(), Held("first", "before-fix"), None
        with released(plan):
            scene.produce()
            plan.wait_reached(scene.evidence)
            proof = Held("first", "before-proof-answer")
            with released(proof):
                with stopped(pid):
                    time.sleep(4)  # longer than the silence that is doubted, shorter than the session
                proof.wait_reached(scene.evidence)
                # The main thread waits for the member, which takes the plan in its next round.
                plan.release()
                time.sleep(1)
                with stopped(pid):
                    wait_taken_over(scene)
                    second.wait_for_records(scene.client.records(scene.topic) - set(first.completed_records()))
                    proof.release()
        scene.wait_shared()
        scene.produce()
        scene.wait_idle()
    assert scene.repeats() == [], "the plan of a zombie was read"
    assert watch.went_back == []


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.rule("R26")
def test_a_stop_of_a_member_that_was_removed_waits_for_no_batch(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """1. A batch is in flight. 2. The reader is stopped, and removed from the group. The second query gets all
    partitions, and hangs: nobody can join. 3. A stop is requested. The first goes on: the proof of its membership is
    refused, or its client notices by a heartbeat. 4. It leaves at once.
    """
    scene, gate = make_scene(protocol), Gate()
    if protocol == "kip848":
        scene.client.set_group_session_timeout(scene.group, 45_000, heartbeat_ms=1_000)
    else:
        scene.options["kafka.session.timeout.ms"] = "45000"
    first = scene.start("first", gate, drainTimeoutMs="25000")
    scene.events["first"].wait_for("assigned")
    (removed,) = scene.client.member_ids(scene.group)
    scene.start("second")
    scene.events["second"].wait_for("started")
    scene.wait_shared()
    scene.produce()
    scene.wait_idle()
    seen = scene.events["first"]
    with released(gate):
        gate.armed = True
        scene.produce_one_batch("first")
        gate.wait_reached(scene.evidence)
        with ExitStack() as hangs:
            with stopped(seen.reader_pid()):
                scene.client.remove_member(scene.group, removed, consumer=protocol == "kip848")
                wait_taken_over(scene)
                asked = ask_to_stop(StopFiles(str(first.checkpoint)), {})
                # Longer than the silence that is doubted.
                time.sleep(4)
                hangs.enter_context(stopped(scene.events["second"].reader_pid()))
            woken_s = time.time()
            left_s = float(seen.wait_for("left", timeout_s=40)["at"]) - woken_s
        print(f"{protocol}: left {left_s:.3f} s after it woke")
        assert seen.lines("lost"), scene.evidence()
        # A client that has sent a JoinGroup before it knew of the stop waits for its LeaveGroup for 5 s.
        assert left_s < 15.0, scene.evidence()
        assert seen.lines("left")[-1]["details"]["outcome"] == "LOST"
        wait_for("an answer", lambda: None not in ask_to_stop(StopFiles(str(first.checkpoint)), asked).values(), 20)
        assert set(ask_to_stop(StopFiles(str(first.checkpoint)), asked).values()) == {Answer.INCOMPLETE}
    assert seen.lines("failed") == []


def test_a_pause_shorter_than_the_session_costs_nothing(make_scene: Callable[[str], Scene]) -> None:
    """The membership is doubted, proven by a commit, and nothing moves."""
    scene = make_scene("cooperative")
    scene.options["kafka.session.timeout.ms"] = "30000"
    start_both(scene)
    rebalances = [seen.metrics()["rebalances"] for seen in scene.events.values()]
    with stopped(scene.events["first"].reader_pid()):
        time.sleep(2)  # the fault itself
    scene.events["first"].wait_for("proven")
    scene.produce()
    scene.wait_idle()
    assert scene.repeats() == []
    assert [seen.metrics()["rebalances"] for seen in scene.events.values()] == rebalances


def test_m22_on_partitions_lost_fail_ends_the_query(make_scene: Callable[[str], Scene]) -> None:
    """Option onPartitionsLost=fail: the error names the option and the partitions."""
    scene = make_scene("cooperative")
    first = scene.start("first", onPartitionsLost="fail")
    scene.events["first"].wait_for("assigned")
    scene.start("second")
    scene.events["second"].wait_for("started")
    scene.wait_shared()
    with stopped(scene.events["first"].reader_pid()):
        wait_taken_over(scene)
    wait_for("the end of the first query", lambda: not first.query.isActive, 60, scene.evidence)
    error = str(first.query.exception())
    assert "[GROUPKAFKA.PARTITIONS_LOST]" in error
    assert "'onPartitionsLost'" in error


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R111")
def test_p6_a_member_that_ends_by_a_loss_is_not_in_the_group_again(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """1. Two queries share the topic, the first one with onPartitionsLost=fail. The second one hangs. 2. The first is
    removed from the group; its client notices that. 3. Its query ends, and so does its process. 4. The second goes on:
    it has all partitions, long before a session could have ended.
    """
    session_s = 45
    scene = make_scene(protocol)
    if protocol == "kip848":
        scene.client.set_group_session_timeout(scene.group, session_s * 1000, heartbeat_ms=1_000)
    else:
        scene.options["kafka.session.timeout.ms"] = str(session_s * 1000)
    first = scene.start("first", onPartitionsLost="fail")
    scene.events["first"].wait_for("assigned")
    (removed,) = scene.client.member_ids(scene.group)
    scene.start("second")
    scene.events["second"].wait_for("started")
    scene.wait_shared()
    reader = scene.events["first"].reader_pid()
    with stopped(scene.events["second"].reader_pid()):
        scene.client.remove_member(scene.group, removed, consumer=protocol == "kip848")
        wait_for("the end of the first query", lambda: not first.query.isActive, 30, scene.evidence)
        wait_for("the end of its reader", lambda: not Path(f"/proc/{reader}").exists(), 30, scene.evidence)
    went_on_s = time.monotonic()
    wait_taken_over(scene)
    print(f"{protocol}: all partitions {time.monotonic() - went_on_s:.1f} s after the second went on")
    assert scene.client.member_count(scene.group) == 1
    assert time.monotonic() - went_on_s < session_s / 2, scene.evidence()


@pytest.mark.rule("R111")
def test_p6_a_member_that_stops_in_an_eager_revoke_is_not_in_the_group_again(
    make_scene: Callable[[str], Scene], tmp_path: Path
) -> None:
    """1. Two queries share the topic. A batch of the first is in the sink, the second hangs. 2. A third one joins, so
    that the first drains. A stop is requested. 3. The batch takes longer than drainTimeoutMs: the first releases its
    partitions, looks at the commit log once more, and leaves at once: no JoinGroup holds its LeaveGroup up for the 5 s
    after which the client gives up. 4. The second goes on: it and the third have all partitions.
    """
    scene, gate = make_scene("eager"), Gate()
    scene.options |= {"kafka.session.timeout.ms": "45000", "drainTimeoutMs": "8000"}
    start_both(scene, gate)
    first, seen = scene.queries[0], scene.events["first"]
    with released(gate), stopped(scene.events["second"].reader_pid()):
        gate.armed = True
        scene.produce()
        gate.wait_reached(scene.evidence)
        scene.events["third"] = Events(tmp_path, "third")
        scene.start("third")
        seen.wait_for("revoking")
        ask_to_stop(StopFiles(str(first.checkpoint)), {})
        left_s = float(seen.wait_for("left")["at"]) - float(seen.lines("revoked")[-1]["at"])
        gate.release()
    wait_for(
        "all partitions to be read",
        lambda: [scene.events[name].metrics()["assigned_partitions"] for name in ("second", "third")] == [2, 2],
        30,
        scene.evidence,
    )
    print(f"left {left_s:.3f} s after the release")
    assert left_s < 3.0, scene.evidence()
    assert scene.client.member_count(scene.group) == 2


def test_m23_kip848_refuses_a_second_query_with_one_instance_id(
    make_scene: Callable[[str], Scene], application: Application, client: Independent
) -> None:
    """The old member keeps its place; the new one waits for its end, bounded, and says why it gave up."""
    scene = make_scene("kip848")
    older = scene.start("first", **{"kafka.group.instance.id": "one"})
    scene.events["first"].wait_for("assigned")
    newer = scene.start("second", **{"kafka.group.instance.id": "one"})
    wait_for("the end of the newer query", lambda: not newer.query.isActive, 180, scene.evidence)
    assert "[GROUPKAFKA.INSTANCE_ID_IN_USE]" in str(newer.query.exception())
    scene.produce()
    older.wait_for_records(client.records(scene.topic))


def test_m23_a_restarted_static_member_waits_for_its_old_session_under_kip848(
    make_scene: Callable[[str], Scene], client: Independent
) -> None:
    """The reader process is killed, so that its session lives on for a while: the next run waits, then goes on."""
    scene = make_scene("kip848")
    older = scene.start("first", **{"kafka.group.instance.id": "one"})
    scene.events["first"].wait_for("assigned")
    scene.produce()
    older.wait_for_records(client.records(scene.topic))
    os.kill(scene.events["first"].reader_pid(), signal.SIGKILL)
    scene.produce()
    wait_for("the end of the older query", lambda: not older.query.isActive, 60, scene.evidence)
    scene.queries.clear()
    newer = scene.start("first", **{"kafka.group.instance.id": "one"})
    newer.wait_for_records(client.records(scene.topic))
    wait_for("lag 0", lambda: client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
    assert Events(scene.events["first"].path.parent, "first").lines("started")
