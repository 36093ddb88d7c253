"""Resets of a group and savepoints (M28), as an operator makes them: on a real broker, with the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_groupsource.cli.admin import GroupAdmin
from spark_groupsource.cli.arguments import Connection, client_options
from spark_groupsource.cli.main import main
from spark_groupsource.clock import SystemClock
from spark_groupsource.errors import CommandError
from spark_groupsource.model.commit_metadata import CommitItem
from spark_groupsource.model.offsets import TopicPartition
from tests.checkout import ROOT

from .application import Application, AppQuery
from .days import NOON, fill_days, first_since
from .harness import Independent, Record, wait_for
from .holding import Events
from .test_takeover import PROTOCOLS, with_protocol

pytestmark = pytest.mark.kafka

_ENDED = 30.0


class Scene:
    """A topic with some partitions, a group, its queries, and the command line."""

    def __init__(
        self, application: Application, client: Independent, options: dict[str, str], topic: str, folder: Path
    ) -> None:
        self.application = application
        self.client = client
        self.options = options
        self.topic = topic
        self.group = options["kafka.group.id"]
        self.folder = folder
        self.partitions = 0
        self.events: dict[str, Events] = {}

    def create(self, partitions: int) -> None:
        self.partitions = partitions
        self.client.create_topic(self.topic, partitions)

    def produce(self, per_partition: int) -> None:
        self.client.produce(self.topic, (str(n) for n in range(per_partition * self.partitions)), self.partitions)

    def everything(self, start: int = 0, end: int = 10**9) -> set[Record]:
        """Return all records of the topic with offsets in [start, end)."""
        return {record for record in self.client.records(self.topic) if start <= record[2] < end}

    def start(self, name: str, **settings: object) -> AppQuery:
        seen = self.events.setdefault(name, Events(self.folder, name))
        return self.application.start_query(name, self.options | seen.options, **settings)  # type: ignore[arg-type]

    def wait_committed(self, offset: int | None = None) -> None:
        """Wait until the group's offset of every partition is this one, or the log's end."""
        ends = self.client.ends(self.topic)
        wanted = ends if offset is None else dict.fromkeys(ends, offset)
        wait_for(f"offsets {wanted}", lambda: self.client.committed(self.group) == wanted, 30, self.evidence)

    def evidence(self) -> str:
        """Return what there is to see."""
        seen = "\n".join(f"{name}\n{seen.tail()}" for name, seen in self.events.items())
        return f"{self.client.committed(self.group)} {self.client.members(self.group)}\n{seen}"

    def stop(self, *queries: AppQuery) -> None:
        """Stop queries, and wait until their readers have ended, after which checkpoints can be copied."""
        for query in queries:
            query.leave()
        wait_for("an empty group", lambda: self.client.member_count(self.group) == 0, _ENDED, self.evidence)

    def read_again(self, name: str, wanted: set[Record]) -> None:
        """Run a query until the group has all; it must have completed these records once more, and no others."""
        query = self.start(name)
        before = query.completed_records()
        wait_for(
            f"{name} to complete {len(wanted)} records",
            lambda: query.check() and wanted <= (query.completed_records() - before).keys(),
            60,
            lambda: f"{query!r}\n{self.evidence()}",
        )
        self.wait_committed()
        self.stop(query)
        assert query.completed_records() - before == dict.fromkeys(wanted, 1)

    def command(self, *words: str) -> int:
        """Run the command line in this process, and return its exit code."""
        name, *rest = words
        servers = self.options["kafka.bootstrap.servers"]
        return main([name, "--bootstrap-servers", servers, "--group", self.group, *rest])

    def reset(self, *target: str) -> None:
        assert self.command("reset", "--execute", "--to", *target) == 0


@pytest.fixture
def scene(application: Application, client: Independent, options: dict[str, str], topic: str, tmp_path: Path) -> Scene:
    """Return a scene whose queries end with the test."""
    return Scene(application, client, options, topic, tmp_path)


def wait_died(scene: Scene, query: AppQuery) -> None:
    wait_for(f"{query.name} to die", lambda: not query.query.isActive, 60, scene.evidence)
    scene.stop()


def test_m28_reset_to_initial_earliest_latest_and_a_time(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """The group began at "latest", which was offset 10 then; the same query follows each reset."""
    scene.options |= {"startingOffsets": "latest"}
    scene.create(2)
    scene.produce(10)
    query = scene.start("query")
    scene.events["query"].wait_for("assigned")
    scene.wait_committed(10)
    scene.produce(10)
    query.wait_for_records(scene.everything(10))
    time.sleep(0.005)  # the next record's timestamp, in ms, is later than the last one's
    between_ms = int(time.time() * 1000)
    scene.produce(10)
    query.wait_for_records(scene.everything(10))
    scene.wait_committed(30)
    scene.stop(query)

    for words, start in (("initial", 10), ("earliest", 0), (str(between_ms), 20)):
        before = scene.client.committed(scene.group)
        assert scene.command("reset", "--to", words) == 0
        assert scene.client.committed(scene.group) == before, "a dry run moved the group"
        dry = capsys.readouterr().out
        assert "Add --execute" in dry
        assert re.search(rf"{scene.topic}-1 +30 +{start} ", dry), dry
        scene.reset(words)
        scene.wait_committed(start)
        capsys.readouterr()
        scene.read_again("query", scene.everything(start))

    # Records that came while nothing ran are left out, also by a checkpoint that is just before them.
    scene.produce(10)
    scene.reset("latest")
    scene.wait_committed(40)
    scene.produce(10)
    scene.read_again("query", scene.everything(40))


def test_the_times_of_the_page(scene: Scene) -> None:
    """Each command of the page under "Times", with this group: the group is at the first record since then."""
    page = (ROOT / "docs" / "how-to" / "reset.md").read_text(encoding="utf-8").split("### Times")[1].split("\n## ")[0]
    commands = [line.split() for line in page.splitlines() if line.startswith("groupkafka reset ")]
    moments = [words[words.index("--to") + 1] for words in commands]
    assert moments == ["-24h", "yesterday", NOON.isoformat()]
    times = fill_days(scene.client, scene.topic)
    for words, moment in zip(commands, moments, strict=True):
        scene.client.commit(scene.group, {(scene.topic, 0): len(times)})
        given = {"localhost:9092": scene.options["kafka.bootstrap.servers"], "orders-to-lake": scene.group}
        before = first_since(times, moment)
        assert main([given.get(word, word) for word in words[1:]]) == 0
        # Both, because a midnight may lie between them.
        assert scene.client.committed(scene.group)[scene.topic, 0] in {before, first_since(times, moment)}


def test_m28_a_savepoint_of_two_running_members(scene: Scene) -> None:
    scene.create(4)
    scene.produce(20)
    queries = [scene.start("first"), scene.start("second")]
    members = scene.client.members
    wait_for("both to own two", lambda: sorted(map(len, members(scene.group))) == [2, 2], 60, scene.evidence)
    scene.produce(20)
    path = scene.folder / "savepoint.json"
    assert scene.command("savepoint", str(path)) == 0
    scene.produce(20)
    scene.wait_committed(60)
    scene.stop(*queries)

    saved = json.loads(path.read_text())["topics"][scene.topic]["partitions"]
    starts = {int(number): item["offset"] for number, item in saved.items()}
    assert set(starts) == {0, 1, 2, 3}
    before = [query.completed_records() for query in queries]
    scene.reset("savepoint", str(path))
    assert scene.client.committed(scene.group) == {(scene.topic, n): offset for n, offset in starts.items()}
    wanted = {record for record in scene.everything() if record[2] >= starts[record[1]]}
    again = [scene.start("first"), scene.start("second")]
    scene.wait_committed(60)
    scene.stop(*again)
    read = (again[0].completed_records() - before[0]) + (again[1].completed_records() - before[1])
    assert read == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_m28_refused_while_the_group_has_members(
    protocol: str, scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.options = with_protocol(scene.options, protocol)
    scene.create(1)
    scene.produce(5)
    query = scene.start("busy")
    query.wait_for_records(scene.everything())
    scene.wait_committed(5)
    assert scene.command("reset", "--execute", "--to", "earliest") == 1
    shown = capsys.readouterr()
    assert "[GROUPKAFKA.GROUP_HAS_MEMBERS]" in shown.err
    assert "busy-member on 127.0.0.1" in shown.err or "busy" in shown.err
    assert shown.out == ""

    # A member that joins after the command has looked: the coordinator itself refuses.
    connection = Connection(scene.options["kafka.bootstrap.servers"], scene.group)
    admin = GroupAdmin(client_options(connection), SystemClock(), time.sleep)
    with pytest.raises(CommandError, match="GROUP_HAS_MEMBERS"):
        admin.commit([CommitItem(TopicPartition(scene.topic, 0), 0, "")])
    assert scene.client.committed(scene.group) == {(scene.topic, 0): 5}
    query.check()


def test_a_reset_to_removed_records_is_reported_by_the_query(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """A savepoint that is older than what the broker keeps."""
    scene.create(1)
    scene.produce(30)
    scene.read_again("query", scene.everything())
    path = scene.folder / "savepoint.json"
    assert scene.command("savepoint", str(path)) == 0
    saved = path.read_text()
    assert '"offset": 30,' in saved
    path.write_text(saved.replace('"offset": 30,', '"offset": 5,'))
    scene.client.delete_records(scene.topic, 0, 12)
    scene.reset("savepoint", str(path))
    assert f"WARNING: the broker no longer has the records {scene.topic}-0 [5, 12)" in capsys.readouterr().out
    query = scene.start("query")
    wait_died(scene, query)
    assert f"{scene.topic}-0 [5, 12)" in str(query.query.exception())
    scene.options |= {"failOnDataLoss": "false"}
    scene.read_again("query", scene.everything(12))


def test_the_command_line_as_a_program(scene: Scene) -> None:
    """Unknown group, unknown topic, no broker, wrong arguments: one clear error each, in bounded time."""
    scene.create(1)
    there = ["--bootstrap-servers", scene.options["kafka.bootstrap.servers"], "--group", scene.group]
    nowhere = ["--bootstrap-servers", "127.0.0.1:1", "--group", "g"]

    def start(*words: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "spark_groupsource", *words]
        return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ends(program: subprocess.Popen[str], code: int, text: str) -> None:
        _, shown = program.communicate(timeout=90)
        assert "Traceback" not in shown
        assert (program.returncode, text in shown) == (code, True), shown

    # It takes as long as a client may look for a broker: the others run meanwhile.
    unreachable = start("reset", *nowhere, "--to", "earliest")
    ends(start("reset", *there, "--to", "earliest"), 1, "GROUPKAFKA.GROUP_UNKNOWN")
    ends(start("savepoint", *there, str(scene.folder / "f")), 1, "GROUPKAFKA.GROUP_UNKNOWN")
    assert not (scene.folder / "f").exists()
    ends(start("reset", *there), 2, "--to")
    scene.produce(1)
    scene.read_again("query", scene.everything())
    unknown = start("reset", *there, "--to", "earliest", "--topic", "nowhere")
    ends(unknown, 1, "these topics do not exist: nowhere")
    ends(unreachable, 1, "GROUPKAFKA.BROKER_UNREACHABLE")
