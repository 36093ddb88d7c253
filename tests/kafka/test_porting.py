"""Moving a running query over, from Spark's own Kafka source or from another consumer group: no gap, no repeat."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_groupsource.cli.main import main
from tests.benchmarks.peerjars import peer_jars
from tests.realkafka.jars import find_java

from .application import Application, AppQuery
from .harness import Independent, Query, Record, skipped, wait_for
from .holding import Events

pytestmark = pytest.mark.kafka

Offsets = dict[tuple[str, int], int]
# Of the query that is to be stopped midway: more than it reads while the test stands still.
BACKLOG = 1_800


@pytest.fixture(scope="module")
def jars() -> str:
    """Return Spark's own Kafka source, as `spark.jars`."""
    with skipped("without Spark's own Kafka source there is nothing to move over from"):
        return ",".join(str(jar) for jar in peer_jars(find_java()))


class Move:
    """A topic, the group that takes it over, the command line, and the new query."""

    def __init__(
        self, application: Application, client: Independent, options: dict[str, str], topic: str, folder: Path
    ) -> None:
        self.application, self.client, self.topic, self.folder = application, client, topic, folder
        self.group = options["kafka.group.id"]
        # Whatever is not taken over would be a gap, and a disagreement an error.
        self.events = Events(folder, "new")
        self.options = options | self.events.options | {"startingOffsets": "latest", "onConflict": "fail"}

    def adopt(self, *words: str, group: str | None = None) -> int:
        """Run the command in this process, and return its exit code."""
        servers = self.options["kafka.bootstrap.servers"]
        return main(["adopt", "--bootstrap-servers", servers, "--group", group or self.group, *words])

    def go_on(self, wanted: set[Record]) -> AppQuery:
        """Start the new query; return it when it has completed these records."""
        query = self.application.start_query("new", self.options)
        query.wait_for_records(wanted)
        return query

    def stop(self, query: AppQuery) -> None:
        """Stop the new query, and wait until it has left the group with everything committed."""
        query.stop()
        self.events.wait_for("left")
        assert self.client.committed(self.group) == self.client.ends(self.topic)
        assert self.events.lines("conflict") == self.events.lines("reset") == []


@pytest.fixture
def move(application: Application, client: Independent, options: dict[str, str], topic: str, tmp_path: Path) -> Move:
    """Return a move whose query ends with the test."""
    return Move(application, client, options, topic, tmp_path)


def ends_of(records: Counter[Record]) -> Offsets:
    """Return the next offset of each partition."""
    return {(t, p): 1 + max(o for t2, p2, o in records if (t, p) == (t2, p2)) for t, p, _ in records}


def forget_the_unfinished_batch(checkpoint: Path) -> None:
    """Remove what was planned after the last completed batch, if anything was.

    Spark 4.2.0 cannot start on an unfinished batch of format 2: it ends with "None.get" (SPARK-59662).
    """
    completed = {entry.name for entry in (checkpoint / "commits").iterdir()}
    for planned in (checkpoint / "offsets").iterdir():
        if planned.name not in completed:
            planned.unlink()


@pytest.mark.parametrize("version", ["1", "2"])
def test_a_query_of_sparks_own_source_goes_on_as_a_group(
    version: str,
    move: Move,
    jars: str,
    client: Independent,
    start_query: Callable[..., Query],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """1. it is stopped in the midst of a backlog, 2. the topic grows, 3. the group takes its offsets over and reads on.

    In both formats of Spark's offset log. In the end: the checkpoint of a query that has completed nothing.
    """
    topic, group = move.topic, move.group
    client.create_topic(topic, 3)
    client.produce(topic, (str(n) for n in range(BACKLOG)), 3)
    old = start_query(
        "old",
        {
            "kafka.bootstrap.servers": client.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "30",
        },
        format="kafka", batch_s=0.3,
        conf={"spark.jars": jars, "spark.sql.streaming.offsetLog.formatVersion": version},
    )  # fmt: skip
    wait_for("two batches", lambda: old.completed_records().total() >= 60, 120, old.log)
    old.stop()
    done = old.completed_records()
    assert 60 <= done.total() < BACKLOG, "it was to be stopped midway"
    assert (old.checkpoint / "offsets" / "0").read_text().startswith(f"v{version}\n")
    client.add_partitions(topic, 4)
    client.produce(topic, (str(n) for n in range(20)), 4)

    assert move.adopt("--from-checkpoint", str(old.checkpoint)) == 0
    assert "Add --execute" in capsys.readouterr().out
    assert client.committed(group) == {}, "a dry run moved the group"
    assert move.adopt("--from-checkpoint", f"file://{old.checkpoint}", "--execute") == 0
    assert client.committed(group) == ends_of(done) | {(topic, 3): 0}
    assert move.adopt("--from-checkpoint", str(old.checkpoint), "--execute") == 0, "as after an answer that was lost"
    assert client.committed(group) == ends_of(done) | {(topic, 3): 0}

    shutil.copytree(old.checkpoint, move.folder / "copied")
    forget_the_unfinished_batch(move.folder / "copied")
    wrong = move.application.start_query("wrong", move.options, checkpoint=move.folder / "copied")
    wait_for("an error", lambda: not wrong.query.isActive, 60, lambda: repr(wrong))
    assert "GROUPKAFKA.OFFSET_OF_SPARKS_SOURCE" in str(wrong.query.exception())
    wait_for("it to leave the group", lambda: client.member_count(group) == 0, 30)

    everything = client.records(topic)
    new = move.go_on(everything - set(done))
    assert move.adopt("--from-checkpoint", str(old.checkpoint), "--overwrite", "--execute") == 1
    assert "GROUPKAFKA.GROUP_HAS_MEMBERS" in capsys.readouterr().err
    move.stop(new)
    assert done + new.completed_records() == dict.fromkeys(everything, 1)

    assert move.adopt("--from-checkpoint", str(new.checkpoint), group=f"{group}-other") == 1
    assert "it belongs to a query of groupkafka" in capsys.readouterr().err
    begun = move.folder / "begun"
    shutil.copytree(old.checkpoint, begun, ignore=shutil.ignore_patterns("commits"))
    assert move.adopt("--from-checkpoint", str(begun), "--execute", group=f"{group}-other") == 0
    assert client.committed(f"{group}-other") == {(topic, number): 0 for number in range(4)}


@pytest.mark.parametrize("way", ["adopt", "startingOffsets"])
def test_another_groups_offsets_go_on(
    way: str, move: Move, client: Independent, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A service has read some of two partitions, and none of the third: by the command, and by the option alone."""
    topic, other = move.topic, f"{group}-service"
    client.create_topic(topic, 3)
    client.produce(topic, (str(n) for n in range(90)), 3)
    done: Offsets = {(topic, 0): 12, (topic, 1): 30}
    client.commit(other, done)
    if way == "adopt":
        assert move.adopt("--from-group", f"{other}-2") == 1
        assert "it has no committed offsets" in capsys.readouterr().err
        assert move.adopt("--from-group", other, "--execute") == 0
        assert client.committed(group) == done | {(topic, 2): 0}
    else:
        move.options["startingOffsets"] = f"group:{other}"
    wanted = {record for record in client.records(topic) if record[2] >= done.get(record[:2], 0)}
    assert len(wanted) == 48
    query = move.go_on(wanted)
    client.produce(topic, (str(n) for n in range(9)), 3)
    query.wait_for_records({record for record in client.records(topic) if record[2] >= 30})
    move.stop(query)
    assert query.completed_records() == dict.fromkeys(
        wanted | {(topic, p, 30 + n) for p in range(3) for n in range(3)}, 1
    )
    assert client.committed(other) == done, "which is only read"
