"""A revoke that arrives at each moment of a batch, under each protocol: nothing lost, nothing repeated, never ahead.

The sequence is the same each time: the first query owns all four partitions and stands at the moment; a second query
joins, so that the group wants two of them back; the first goes on. F1 every record is in a completed batch. F2 none is
in two. F3 the group's offset never goes back and ends at the log's end. F4 the handover ended as the moment says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.realkafka.proxy import Action, Api, Rule
from tests.realkafka.realkafka import RealKafka

from .application import Application, AppQuery, BatchHook
from .harness import Independent, wait_for
from .holding import Events, Gate, Held, OffsetWatch, held_before_plan, released, tails
from .test_takeover import PROTOCOLS, with_protocol

pytestmark = pytest.mark.kafka

# Moment -> whether the batch in flight holds the revoke up until it is released.
MOMENTS = {
    "before the first batch": False,
    "after the plan was made, before it is fixed": False,
    "after latestOffset, before partitions": True,
    "while tasks read": True,
    "after the sink, before Spark's commit log": True,
    "after Spark's commit log, before the group commit": False,
}
PLACES = {
    "after the plan was made, before it is fixed": "before-fix",
    "after latestOffset, before partitions": "before-partitions",
    "while tasks read": "while-reading",
    "after Spark's commit log, before the group commit": "before-complete",
}


class Scene:
    """One topic, one group, two queries."""

    def __init__(
        self, application: Application, client: Independent, options: dict[str, str], folder: Path, topic: str
    ) -> None:
        self.application, self.client, self.options, self.topic = application, client, options, topic
        self.group = options["kafka.group.id"]
        self.events = {name: Events(folder, name) for name in ("first", "second")}
        self.queries: list[AppQuery] = []
        self._folder = folder
        self._produced = 0

    def start(self, name: str, gate: BatchHook | None = None, **extra: str) -> AppQuery:
        """Start a query that tells its metrics."""
        self.events.setdefault(name, Events(self._folder, name))
        options = self.options | self.events[name].options | extra
        query = self.application.start_query(name, options, batch=gate)
        self.queries.append(query)
        return query

    def start_and_read(self, name: str, gate: BatchHook | None = None, **extra: str) -> AppQuery:
        """Start the query that is alone at first, and let it read and commit the first records."""
        query = self.start(name, gate, **extra)
        self.events[name].wait_for("assigned")
        self.produce()
        query.wait_for_records(self.client.records(self.topic))
        wait_for("lag 0", lambda: self.client.lag(self.group, self.topic) == 0, 30, self.evidence)
        return query

    def produce(self, count: int = 40) -> None:
        """Add records, spread over the partitions."""
        self.client.produce(self.topic, (f"r{self._produced + n}" for n in range(count)), 4)
        self._produced += count

    def produce_one_batch(self, name: str) -> None:
        """Add records while a query is held before it plans: they are all in its next batch, on any machine."""
        with held_before_plan(name, self.evidence):
            self.produce()

    def evidence(self) -> str:
        """Return what the members told."""
        return tails(self.events)

    def wait_shared(self) -> None:
        """Wait until both members own two partitions, in the coordinator's and in their own view."""
        wait_for(
            "two partitions each",
            lambda: (
                sorted(map(len, self.client.members(self.group))) == [2, 2]
                and all(seen.metrics()["assigned_partitions"] == 2 for seen in self.events.values() if seen.lines())
            ),
            60,
            self.evidence,
        )

    def wait_idle(self, commit_s: float = 30) -> None:
        """Wait until every record is complete somewhere and committed."""
        everything = self.client.records(self.topic)
        wait_for(
            "all records in completed batches",
            lambda: all(q.check() for q in self.queries) and everything <= set().union(*self.completed()),
            60,
            lambda: f"missing {sorted(everything - set().union(*self.completed()))[:10]}\n{self.evidence()}",
        )
        wait_for("lag 0", lambda: self.client.lag(self.group, self.topic) == 0, commit_s, self.evidence)

    def completed(self) -> list[set[tuple[str, int, int]]]:
        """Return the completed records of each query."""
        return [set(query.completed_records()) for query in self.queries]

    def repeats(self) -> list[tuple[str, int, int]]:
        """Return records that are in more than one completed batch, of whichever query."""
        total = sum((query.completed_records() for query in self.queries), start=type(self.queries[0].records())())
        return sorted(record for record, times in total.items() if times > 1)


@pytest.fixture
def make_scene(
    application: Application, client: Independent, options: dict[str, str], tmp_path: Path, topic: str, group: str
) -> Callable[[str], Scene]:
    """Return a maker of scenes for a protocol."""

    def make(protocol: str) -> Scene:
        chosen = with_protocol(options, protocol)
        if protocol == "kip848":
            client.set_group_session_timeout(group, 6_000)
        client.create_topic(topic, 4)
        return Scene(application, client, chosen, tmp_path, topic)

    return make


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R26")
def test_p1_p2_p6_a_revoke_at_any_moment_repeats_nothing(
    protocol: str, moment: str, make_scene: Callable[[str], Scene]
) -> None:
    """M07, M26: drain, commit, hand over."""
    scene, gate = make_scene(protocol), Gate()
    first = scene.start("first", gate)
    scene.events["first"].wait_for("assigned")
    if moment != "before the first batch":
        scene.produce()
        first.wait_for_records(scene.client.records(scene.topic))
        wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
    # Each trigger comes to the last one: it is armed when the batch is in the sink.
    is_last = PLACES.get(moment) == "before-complete"
    held = Held("first", PLACES[moment]) if moment in PLACES and not is_last else None
    with ExitStack() as stack, OffsetWatch(scene.client, scene.group) as watch:
        stack.enter_context(released(gate, *([held] if held else [])))
        gate.armed = is_last or moment.startswith("after the sink")
        if moment != "before the first batch":
            scene.produce_one_batch("first")
            (held or gate).wait_reached(scene.evidence)
        if is_last:
            held = Held("first", PLACES[moment])
            stack.enter_context(released(held))
            gate.release()
            held.wait_reached(scene.evidence)
        scene.start("second")
        if MOMENTS[moment]:
            scene.events["first"].wait_for("revoking")
            assert scene.events["first"].lines("revoked") == [], "the handover did not wait for the batch in flight"
        elif moment != "before the first batch":
            # Nothing is in flight: the partitions go although Spark's thread is held.
            scene.events["first"].wait_for("revoked")
        if held:
            held.release()
        gate.release()
        scene.wait_shared()
        scene.produce()
        scene.wait_idle()
    assert scene.repeats() == []
    assert watch.went_back == []
    ended = scene.events["first"].metrics()["rebalances"]
    assert set(ended) == {"clean"}, scene.evidence()
    assert scene.events["first"].metrics()["records_repeated"] == 0
    assert all(query.records() for query in scene.queries if query.name == "second"), "the second query read nothing"


@pytest.mark.parametrize("protocol", ["cooperative", "eager"])
@pytest.mark.rule("R85")
def test_p5_a_drain_for_which_the_group_has_not_waited_commits_nothing(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """The client looks for new partitions every second here. It finds one while the batch in flight is drained."""
    scene, gate = make_scene(protocol), Gate()
    # The coordinator waits for so long for a member that does not join, and commits behind a join wait with it.
    scene.options |= {"kafka.max.poll.interval.ms": "60000"}
    first = scene.start_and_read("first", gate)
    before = set(first.records())
    with released(gate), OffsetWatch(scene.client, scene.group) as watch:
        gate.armed = True
        scene.produce_one_batch("first")
        gate.wait_reached(scene.evidence)
        held = set(first.records()) - before
        second = scene.start("second")
        scene.events["first"].wait_for("revoking")
        scene.client.add_partitions(scene.topic, 6)
        wait_for("the second to read what is held", lambda: held & set(second.records()), 60, scene.evidence)
        gate.release()
        scene.events["first"].wait_for("revoked")
        # A cooperative member then hands over once more, because its client is replaced (rule R117).
        ended = scene.events["first"].lines("revoked")[0]["details"]
        assert ended["committed"] == 0, "an offset of the next owner was replaced"
        wait_for(
            "three partitions each",
            lambda: sorted(map(len, scene.client.members(scene.group))) == [3, 3],
            60,
            scene.evidence,
        )
        scene.produce()
        # The other client may join early, too. Then its commits wait behind its join.
        scene.wait_idle(commit_s=150)
    assert watch.went_back == []
    assert set(scene.repeats()) <= held, "more than the batch in flight is repeated"


@pytest.mark.parametrize("protocol", ["cooperative", "eager"])
@pytest.mark.rule("R117")
def test_a_member_that_joined_during_its_drain_takes_part_in_the_next_rebalance(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """The topic gets partitions while a batch is drained, as above. Then a third member joins."""
    scene, gate = make_scene(protocol), Gate()
    # The coordinator would wait for so long for a member that does not join.
    scene.options |= {"kafka.max.poll.interval.ms": "120000"}
    scene.start_and_read("first", gate)
    with released(gate):
        gate.armed = True
        scene.produce_one_batch("first")
        gate.wait_reached(scene.evidence)
        scene.start("second")
        scene.events["first"].wait_for("revoking")
        scene.client.add_partitions(scene.topic, 6)
        wait_for(
            "an assignment of the new partitions",
            lambda: sum(map(len, scene.client.members(scene.group))) >= 5,
            60,
            scene.evidence,
        )
        gate.release()
        scene.events["first"].wait_for("revoked")
        scene.start("third")
        wait_for(
            "two partitions each",
            lambda: sorted(map(len, scene.client.members(scene.group))) == [2, 2, 2],
            60,
            scene.evidence,
        )
        scene.produce()
        scene.wait_idle(commit_s=60)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_p6_a_revoke_while_the_query_stops(protocol: str, make_scene: Callable[[str], Scene]) -> None:
    """A drain waits for a batch that a stop cuts off: the partitions go at once, and the batch is read again.

    The batch is in the first query's offset log and not in its commit log, so it is complete nowhere: the second
    query reads it, and the first one, started again, leaves out what the second has committed meanwhile.
    """
    scene = make_scene(protocol)
    first = scene.start_and_read("first")
    held = Held("first", "while-reading")
    with released(held), OffsetWatch(scene.client, scene.group) as watch:
        scene.produce_one_batch("first")
        held.wait_reached(scene.evidence)
        scene.start("second")
        scene.events["first"].wait_for("revoking")
        scene.queries.remove(first)
        first.stop()
        held.release()
        assert scene.events["first"].wait_for("left")["metrics"]["rebalances"].get("deadline") is None
        stopped = [line["details"]["outcome"] for line in scene.events["first"].lines("revoked")]
        assert stopped[0] == "STOPPED", scene.evidence()
        scene.queries.append(first)
        second = scene.queries[0]
        second.wait_for_records(scene.client.records(scene.topic) - set(first.completed_records()))
        wait_for("lag 0", lambda: scene.client.lag(scene.group, scene.topic) == 0, 30, scene.evidence)
        scene.queries.remove(first)
        scene.start("first")
        scene.wait_shared()
        scene.produce()
        scene.wait_idle()
    assert scene.repeats() == []
    assert watch.went_back == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_m11_a_batch_beyond_the_drain_deadline_gives_its_partitions_up(
    protocol: str, make_scene: Callable[[str], Scene]
) -> None:
    """The sink hangs: the second query goes on without the first, and one batch per moved partition is repeated."""
    scene, gate = make_scene(protocol), Gate()
    first = scene.start_and_read("first", gate, drainTimeoutMs="1000")
    with released(gate), OffsetWatch(scene.client, scene.group) as watch:
        gate.armed = True
        scene.produce_one_batch("first")
        gate.wait_reached(scene.evidence)
        second = scene.start("second")
        given_up = scene.events["first"].wait_for("revoked")
        assert given_up["details"]["outcome"] == "DEADLINE"
        moved = set[tuple[str, int]]()

        def two_moved() -> bool:
            """Look at the event: the metrics of the one before it have its partitions, too."""
            moved.update(tuple(p) for line in scene.events["second"].lines("assigned") for p in line["partitions"])
            return len(moved) == 2

        wait_for("two partitions of the second", two_moved, 60)
        wanted = {record for record in scene.client.records(scene.topic) if record[:2] in moved}
        behind = wanted - set(first.completed_records())
        second.wait_for_records(behind)
        gate.release()
        scene.wait_shared()
        scene.produce()
        scene.wait_idle()
    repeated = scene.repeats()
    assert repeated, "the batch was given up, so its records of the moved partitions are read twice"
    assert {record[:2] for record in repeated} <= moved
    assert len(repeated) <= 40, "more than the batch in flight"
    assert watch.went_back == []
    assert scene.events["first"].metrics()["rebalances"]["deadline"] >= 1
    assert scene.events["first"].metrics()["records_repeated"] >= len(repeated)


@pytest.fixture(scope="module")
def proxied() -> Iterator[RealKafka]:
    """A broker behind a proxy."""
    with RealKafka(brokers=1, proxied=True) as kafka:
        yield kafka


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.rule("R29")
def test_p4_p6_a_revoke_while_a_commit_is_in_flight(
    protocol: str,
    kafka: RealKafka,
    proxied: RealKafka,
    application: Application,
    tmp_path: Path,
    topic: str,
    group: str,
    options: dict[str, str],
) -> None:
    """The commit of a completed batch is under way, not answered, when the second member joins.

    The coordinator takes it in the middle of the rebalance (or refuses it: then it is sent once more).
    """
    client = Independent(proxied.bootstrap_servers)
    client.create_topic(topic, 4)
    if protocol == "kip848":
        # A heartbeat's answer that waits behind the held commit for longer than the interval is lost for the client,
        # and an assignment with it: librdkafka does not ask for it again.
        client.set_group_session_timeout(group, 60_000, heartbeat_ms=8_000)
    patient = {"kafka.bootstrap.servers": proxied.proxied_servers, "kafka.session.timeout.ms": "60000"}
    scene = Scene(application, client, with_protocol(options | patient, protocol), tmp_path, topic)
    scene.start_and_read("first")
    rule = proxied.proxy.add(Rule(Api.OFFSET_COMMIT, client="first-member", action=Action.HOLD))
    try:
        with OffsetWatch(client, group) as watch:
            scene.produce()
            rule.wait_fired(30)
            scene.start("second")
            wait_for("the coordinator to know the second member", lambda: client.member_count(group) == 2, 30)
            rule.release()
            scene.wait_shared()
            scene.produce()
            scene.wait_idle()
    finally:
        rule.release()
        proxied.proxy.clear()
    assert scene.repeats() == []
    assert watch.went_back == []
