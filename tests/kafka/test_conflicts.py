"""A checkpoint and its group disagree, on a real broker: lost and old checkpoints, a group that another program has
moved, a checkpoint that is used twice; and a takeover, which is none of these (M27, P2, P6, option onConflict).
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Query, Record, planned_records, wait_for
from .test_reset import Scene, scene, wait_died

__all__ = ["scene"]

pytestmark = pytest.mark.kafka


def first_ten(scene: Scene, name: str = "query") -> None:
    """Complete the first 10 records of each of two partitions, in one query that stops."""
    scene.create(2)
    scene.produce(10)
    scene.read_again(name, scene.everything())


def fails(scene: Scene, error: str, conflict: str) -> None:
    """Start the query: it must end with an error that names the conflict."""
    query = scene.start("query")
    wait_died(scene, query)
    text = str(query.query.exception())
    assert f"GROUPKAFKA.{error}" in text
    assert conflict in text


def runs_on(scene: Scene, conflict: str, expected: set[Record]) -> None:
    """Start the query: it must notice, and read what is expected."""
    said = scene.events["query"]
    lineage = said.lines()[-1]["lineage"]
    scene.read_again("query", expected)
    lines = said.lines("conflict")
    assert lines, scene.evidence()
    assert conflict in lines[0]["details"]["ranges"]
    assert said.lines()[-1]["lineage"] != lineage, "no new lineage"
    # The next start finds all in order, whatever the option was.
    scene.options.pop("onConflict", None)
    scene.produce(5)
    scene.read_again("query", scene.everything(max(offset for _, _, offset in expected) + 1))
    assert len(said.lines("conflict")) == len(lines)


def test_m27_a_taken_over_partition_goes_on_where_its_last_owner_completed(scene: Scene) -> None:
    """With a checkpoint of its own that knows the partition from before, and with none."""
    first_ten(scene, "first")
    scene.produce(10)
    scene.read_again("second", scene.everything(10, 20))
    scene.produce(10)
    # Its own checkpoint ends at 10; the group is at 20.
    scene.read_again("first", scene.everything(20, 30))
    scene.produce(10)
    scene.read_again("third", scene.everything(30, 40))
    assert [line for said in scene.events.values() for line in said.lines("conflict")] == []


@pytest.mark.parametrize("choice", ["", "group", "fail"], ids=["not given", "group", "fail"])
def test_an_old_checkpoint_is_noticed(choice: str, scene: Scene, tmp_path: Path) -> None:
    """Copied between two batches, and put back when the group is 20 records further."""
    first_ten(scene)
    checkpoint, copy = tmp_path / "query", tmp_path / "copy"
    shutil.copytree(checkpoint, copy)
    for end in (20, 30):
        scene.produce(10)
        scene.read_again("query", scene.everything(end - 10))
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    scene.produce(10)
    conflict = f"{scene.topic}-0 group=30 checkpoint=10"
    if choice == "group":
        scene.options["onConflict"] = choice
        runs_on(scene, conflict, scene.everything(30))
    else:
        scene.options |= {"onConflict": choice} if choice else {}
        fails(scene, "CHECKPOINT_BEHIND", conflict)


@pytest.mark.rule("R50")
def test_an_old_checkpoint_goes_on_where_it_ends_after_a_reset(scene: Scene, tmp_path: Path) -> None:
    """The savepoint is of the time of the copy, as the page of resets says."""
    first_ten(scene)
    checkpoint, copy, saved = tmp_path / "query", tmp_path / "copy", tmp_path / "savepoint.json"
    shutil.copytree(checkpoint, copy)
    scene.command("savepoint", str(saved))
    scene.produce(10)
    scene.read_again("query", scene.everything(10))
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    fails(scene, "CHECKPOINT_BEHIND", f"{scene.topic}-0 group=20 checkpoint=10")
    scene.reset("savepoint", str(saved))
    scene.read_again("query", scene.everything(10))
    assert scene.events["query"].lines("conflict") == []


@pytest.mark.parametrize("to", [4, 26], ids=["back", "ahead"])
@pytest.mark.parametrize("choice", ["", "fail"], ids=["not given", "fail"])
def test_a_group_that_another_program_moved_is_noticed(choice: str, to: int, scene: Scene) -> None:
    first_ten(scene)
    scene.produce(10)
    scene.read_again("query", scene.everything(10))
    scene.produce(10)
    move_by_hand(scene, to)
    conflict = f"{scene.topic}-0 group={to} checkpoint=20"
    if choice:
        scene.options["onConflict"] = choice
        fails(scene, "CONFLICT", conflict)
    else:
        runs_on(scene, conflict, scene.everything(to))


def move_by_hand(scene: Scene, offset: int) -> None:
    """Commit offsets as any other program does, without metadata."""
    scene.client.commit(scene.group, {(scene.topic, number): offset for number in range(scene.partitions)})
    scene.wait_committed(offset)


def test_p2_the_same_checkpoint_in_two_applications_harms_nothing(
    scene: Scene, start_query: Callable[..., Query]
) -> None:
    """One of the two ends with an error, whichever: Spark's own log is the arbiter, or it gets a partition that the
    other one, with the same lineage, has read further than its own end. Until then both are members.

    Nothing is lost, and no record is in two completed batches of the checkpoint.
    """
    scene.create(4)
    scene.produce(50)
    mine = scene.start("mine")
    mine.wait_for_records(scene.everything())
    other = start_query("other", scene.options, checkpoint=str(mine.checkpoint))
    other.wait_started()

    def one_has_ended() -> bool:
        # A batch at a time: the one that starts has to catch up with the other.
        if scene.client.lag(scene.group, scene.topic) == 0:
            scene.produce(5)
        return not mine.query.isActive or other.process.poll() is not None

    wait_for("one of the two to end", one_has_ended, 120, lambda: f"{mine!r}\n{other.log()}")
    scene.produce(5)
    wanted = scene.everything()
    wait_for(
        "the other one to complete everything",
        lambda: wanted <= mine.completed_records().keys() | other.completed_records().keys(),
        60,
        lambda: f"{mine!r}\n{other.log()}\n{scene.evidence()}",
    )
    scene.wait_committed()
    assert mine.query.isActive != (other.process.poll() is None), "one of the two, and not both, must live"
    failure = str(mine.query.exception()) if other.process.poll() is None else other.failure()
    assert "CONCURRENT_STREAM_LOG_UPDATE" in failure or "CHECKPOINT_BEHIND" in failure, failure
    other.stop()
    scene.stop(mine)
    assert Counter(completed_by_log(scene, mine.checkpoint)) == dict.fromkeys(wanted, 1)


def completed_by_log(scene: Scene, checkpoint: Path) -> list[Record]:
    """Return the records of the ranges that the checkpoint holds as complete, batch by batch."""
    found: list[Record] = []
    seen: set[str] = set()
    for path in sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)):
        text = (checkpoint / "offsets" / path.name).read_text().splitlines()[-1]
        if text in seen:
            # An idle batch repeats the offset of the one before it.
            continue
        seen.add(text)
        found += planned_records(checkpoint, int(path.name))
    return found
