"""Queries with state that share a group (option onSharedState): what ends a query, and what must not.

A query with state writes each value once (`dropDuplicates`). Values appear again and again, so that it writes one twice
if it has lost state, and never if others have read its first record: only the error shows that.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from spark_groupsource.cli.main import main

from .application import Application, AppQuery
from .harness import Independent, Query, wait_for
from .holding import Events
from .test_takeover import with_protocol

pytestmark = pytest.mark.kafka

NEW_ERROR = "GROUPKAFKA.SHARED_STATE"
ALLOW = {"onSharedState": "allow"}
PARTITIONS = 2


class Scene:
    """A topic whose values repeat, a group, and its queries."""

    def __init__(
        self, application: Application, client: Independent, options: dict[str, str], topic: str, folder: Path
    ) -> None:
        self.application, self.client, self.topic, self.folder = application, client, topic, folder
        self.options = options
        self.group = options["kafka.group.id"]
        self.values: set[str] = set()
        client.create_topic(topic, PARTITIONS)

    def produce(self, prefix: str, count: int = 20) -> set[str]:
        """Append new values, and once more all that were written before, each to the partition that it had."""
        new = {f"{prefix}{number}" for number in range(count)}
        self.values |= new
        each = [(value, zlib.crc32(value.encode()) % PARTITIONS) for value in sorted(self.values)]
        self.client.produce_to(self.topic, each)
        return new

    def start(self, name: str, *, distinct: bool = True, checkpoint: Path | None = None, **options: str) -> AppQuery:
        return self.application.start_query(name, self.options | options, distinct=distinct, checkpoint=checkpoint)

    def wait_read(self, query: AppQuery, wanted: set[str]) -> None:
        """Wait until the query has written these values, and the group has all records."""
        query.wait_for_values(wanted)
        wait_for("lag 0", lambda: query.check() and self.client.lag(self.group, self.topic) == 0, 60, query.__repr__)

    def texts(self) -> list[dict[str, object]]:
        """Return the metadata of the group's offsets."""
        admin = AdminClient({"bootstrap.servers": self.client.bootstrap_servers})
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self.group)])
        found = asked[self.group].result(30).topic_partitions
        return [json.loads((part.metadata or "{}").rstrip("\0")) for part in found]

    def command(self, *words: str) -> int:
        servers = ["--bootstrap-servers", self.client.bootstrap_servers, "--group", self.group]
        return main([words[0], *servers, *words[1:]])

    def wait_empty(self) -> None:
        wait_for("an empty group", lambda: self.client.member_count(self.group) == 0, 60)


@pytest.fixture
def scene(application: Application, client: Independent, options: dict[str, str], topic: str, tmp_path: Path) -> Scene:
    """Return a scene."""
    return Scene(application, client, options, topic, tmp_path)


def _each_once(query: AppQuery, wanted: set[str]) -> None:
    assert Counter(query.completed_values()) == Counter(wanted)


def test_a_query_with_state_that_lacks_records_fails_and_a_reset_cures_it(scene: Scene) -> None:
    """1. A with state has read. 2. B reads on. 3. A comes back: it fails before it reads, and B goes on.

    4. The group goes back to the end of A's checkpoint (`reset`): A has all values, each once.
    """
    first = scene.produce("a")
    a = scene.start("a")
    scene.wait_read(a, first)
    a.leave()
    held = scene.client.committed(scene.group)
    b = scene.start("b", distinct=False, **ALLOW)
    scene.wait_read(b, scene.produce("b"))
    written, batches = len(a.sink.batches), sorted((a.checkpoint / "offsets").iterdir())

    failure = scene.start("a").failure()
    assert NEW_ERROR in failure, failure
    for number in range(PARTITIONS):
        if f"{scene.topic}-{number} [" in failure:
            end = scene.client.ends(scene.topic)[scene.topic, number]
            assert f"{scene.topic}-{number} [{held[scene.topic, number]}, {end}) is complete in a query" in failure
    lineages = {str(text["l"]) for text in scene.texts()}
    assert any(f"lineage={lineage}" in failure for lineage in lineages), "the other query is not named"
    assert "run_when_owner" in failure
    assert (len(a.sink.batches), sorted((a.checkpoint / "offsets").iterdir())) == (written, batches), "A has read"
    scene.wait_read(b, scene.produce("c"))
    b.leave()
    scene.wait_empty()

    assert scene.command("reset", "--to", "checkpoint", str(a.checkpoint), "--execute") == 0
    again = scene.start("a")
    scene.wait_read(again, scene.values)
    scene.wait_read(again, scene.produce("d"))
    _each_once(again, scene.values)


@pytest.mark.parametrize("protocol", ["cooperative", "kip848"])
@pytest.mark.parametrize("distinct", [False, True], ids=["stateless", "with state"])
def test_a_new_query_fails_beside_one_with_state_which_goes_on(
    scene: Scene, client: Independent, protocol: str, distinct: bool
) -> None:
    """An accidental start: B is new. It fails before it reads, and A has all partitions and its state as before."""
    scene.options = with_protocol(scene.options, protocol)
    seen = Events(scene.folder, "a")
    first = scene.produce("a")
    a = scene.start("a", **seen.options)
    scene.wait_read(a, first)
    assert [(text["gk"], text["s"]) for text in scene.texts()] == [(3, 1)] * PARTITIONS, "its first batch has the mark"
    before = scene.texts()
    b = scene.start("b", distinct=distinct)
    failure = b.failure()
    assert NEW_ERROR in failure, failure
    assert f"lineage={before[0]['l']}" in failure
    assert b.sink.batches == []
    assert scene.texts() == before, "B has committed something"
    wait_for("A's partitions", lambda: seen.metrics()["assigned_partitions"] == PARTITIONS, 60, seen.tail)
    scene.wait_read(a, scene.produce("b"))
    _each_once(a, scene.values)
    assert not seen.lines("shared_state")


def test_restart_moved_checkpoint_growth_and_a_static_member_trip_nothing(scene: Scene, client: Independent) -> None:
    """A query with state, alone in its group, goes on after all of it, with its state."""
    seen = Events(scene.folder, "a")
    more = seen.options | {"kafka.group.instance.id": "a"}
    a = scene.start("a", **more)
    scene.wait_read(a, scene.produce("a"))
    a.leave()
    again = scene.start("a", **more)
    scene.wait_read(again, scene.produce("b"))
    again.leave()
    moved = scene.folder / "moved"
    shutil.copytree(a.checkpoint, moved)
    b = scene.start("b", checkpoint=moved, **more)
    scene.wait_read(b, scene.produce("c"))
    client.add_partitions(scene.topic, PARTITIONS + 1)
    client.produce(scene.topic, [f"d{number}" for number in range(30)], PARTITIONS + 1)
    scene.wait_read(b, {f"d{number}" for number in range(30)})
    _each_once_in(scene.values | {f"d{number}" for number in range(30)}, a, b)
    assert not seen.lines("shared_state")


def _each_once_in(wanted: set[str], *queries: AppQuery) -> None:
    assert Counter(value for query in queries for value in query.completed_values()) == Counter(wanted)


def test_a_lost_checkpoint_trips_and_reset_and_adopt_do_not(scene: Scene) -> None:
    """1. A's checkpoint is lost: with a new one it fails. 2. `reset` to the beginning: it reads all again.

    3. The group adopts the offsets of another program's group: a new query has no error, and none after a restart.
    """
    a = scene.start("a")
    scene.wait_read(a, scene.produce("a"))
    a.leave()
    scene.wait_empty()
    new = scene.folder / "new"
    assert NEW_ERROR in scene.start("a2", checkpoint=new).failure()
    scene.wait_empty()
    assert scene.command("reset", "--to", "initial", "--execute") == 0
    assert all(text["gk"] in (1, 2) and "s" not in text for text in scene.texts()), "older releases read these"
    again = scene.start("a2", checkpoint=new)
    scene.wait_read(again, scene.values)
    _each_once(again, scene.values)
    again.leave()
    scene.wait_empty()

    assert all(text["s"] == 1 for text in scene.texts())
    origin = f"{scene.group}-2"
    scene.client.commit(origin, scene.client.ends(scene.topic))
    assert scene.command("adopt", "--from-group", origin, "--overwrite", "--execute") == 0
    b = scene.start("b")
    scene.wait_read(b, scene.produce("b"))
    b.leave()
    scene.wait_read(scene.start("b"), scene.produce("c"))


@pytest.mark.parametrize("taken_over", [False, True], ids=["nobody", "another query"])
def test_a_killed_query_with_state_goes_on_unless_another_has_read_its_batch(
    scene: Scene, client: Independent, start_query: Callable[..., Query], taken_over: bool
) -> None:
    """1. SIGKILL in a batch. 2. Perhaps another query completes it. 3. Spark runs the batch again, or A fails."""
    first = scene.produce("a")
    gate = scene.folder / "gate"
    gate.touch()
    before = start_query("a", scene.options, distinct=True, gate=str(gate))
    wait_for("the first values", lambda: _values(before) == first, 180, before.log)
    wait_for("lag 0", lambda: client.lag(scene.group, scene.topic) == 0, 60, before.log)
    gate.unlink()
    Path(f"{gate}.reached").unlink()
    scene.produce("b")
    wait_for("a batch that is held", Path(f"{gate}.reached").exists, 60, before.log)
    before.kill()
    if taken_over:
        b = scene.start("b", distinct=False, **ALLOW)
        scene.wait_read(b, scene.values)
        b.leave()
    again = scene.start("again", checkpoint=before.checkpoint)
    if taken_over:
        failure = again.failure()
        assert NEW_ERROR in failure, failure
        assert again.sink.batches == []
        return
    scene.wait_read(again, scene.values - first)
    scene.wait_read(again, scene.produce("c"))
    assert Counter(again.completed_values()) == Counter(scene.values - first)


def _values(query: Query) -> set[str]:
    done: Mapping[int, object] = query.completed_batches()
    return {row[3] for batch in query.batches() if batch["batch"] in done for row in batch["rows"]}
