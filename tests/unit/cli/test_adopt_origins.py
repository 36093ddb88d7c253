"""`adopt`: what a checkpoint of Spark's own Kafka source says, what is refused, and what is committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_groupsource.checkpoint.folder import CheckpointFolder
from spark_groupsource.checkpoint.log import SparkCheckpoint, read_spark_checkpoint
from spark_groupsource.cli.adopt_origins import Origin, checkpoint_origin, group_origin
from spark_groupsource.cli.arguments import AdoptCommand
from spark_groupsource.errors import COMMIT_REFUSED, CommandError, GroupKafkaError
from spark_groupsource.model.commit_metadata import CommitMetadata, GroupOffset, KnownTopics, Pin, parse_metadata
from spark_groupsource.model.offsets import OffsetRange, Reset, TopicPartition
from tests.unit.checkpoint.test_log import v1, v2
from tests.unit.cli.test_offset_commands import CONNECTION, P0, P1, REFUNDS, Bed, FakeAdmin, marked, written
from tests.unit.fakes import TOPIC_ID, offset_of, tp

ORDERS = '{"orders":{"0":50,"1":60}}'
REFUNDED = '{"refunds":{"0":7}}'
OURS = json.dumps(offset_of(OffsetRange(tp(0), 5, 9)).to_json())


# --- a checkpoint


def test_the_newest_completed_batch_counts(tmp_path: Path) -> None:
    entries = [v1(f'{{"orders":{{"0":{number}}}}}') for number in range(12)]
    location = written(tmp_path, *entries, completed=11, _0="\0v1\n" + ORDERS)
    assert read_spark_checkpoint(CheckpointFolder(location)) == SparkCheckpoint(10, 11, {"0": '{"orders":{"0":10}}'})
    origin = checkpoint_origin(location, None)
    assert (origin.why, origin.positions) == ("end of batch 10", {P0: 10})
    (note,) = origin.notes
    assert note.startswith(f"NOTE: batch 11 of the checkpoint '{location}' was begun and is not complete")


def test_a_clean_end_needs_no_note(tmp_path: Path) -> None:
    origin = checkpoint_origin(written(tmp_path, v2(**{"0": ORDERS}), completed=1), None)
    assert (origin.positions, origin.notes) == ({P0: 50, P1: 60}, ())


def test_before_the_first_completed_batch_the_initial_offsets_count(tmp_path: Path) -> None:
    """A zero byte, then "v1": as Spark 4.2 writes it. Another source writes what it likes."""
    location = written(tmp_path, v1(ORDERS, "5"), completed=0, _0="\0v1\n" + REFUNDED, _1="17")
    (tmp_path / "sources" / "2").mkdir()
    origin = checkpoint_origin(location, None)
    assert (origin.positions, origin.why) == ({REFUNDS: 7}, "initial offset, no batch was completed")
    assert "batch 0 of" in origin.notes[0]


@pytest.mark.parametrize("several", [v1(ORDERS, "-", '{"logOffset":3}', REFUNDED), v2(**{"0": ORDERS, "3": REFUNDED})])
def test_one_of_several_sources(tmp_path: Path, several: str) -> None:
    location = written(tmp_path, several, completed=1)
    assert checkpoint_origin(location, "3").positions == {REFUNDS: 7}
    with pytest.raises(CommandError, match=r"several sources.*: 0 \(orders\), 3 \(refunds\).*choose one with --source"):
        checkpoint_origin(location, None)
    with pytest.raises(CommandError, match=r"no source 2 with offsets.*only 0 \(orders\), 3 \(refunds\)"):
        checkpoint_origin(location, "2")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (v1(OURS), "it belongs to a query of groupkafka. What to do: keep it for that query"),
        (v1("5"), "it has no source with offsets of Spark's own Kafka source"),
        (v1("[" * 100_000), "it has no source with"),
        (v1('{"orders":{"0":-1}}'), "it has no source with"),
        (v1('{"orders":{"0":1,"0":2}}'), "it has no source with"),
        (v1(), "it has no source with"),
        ("v3\n{}\n" + ORDERS, "it has no source with"),
    ],
)
def test_checkpoints_that_cannot_be_taken_over(tmp_path: Path, entry: str, reason: str) -> None:
    with pytest.raises(CommandError) as raised:
        checkpoint_origin(written(tmp_path, entry, completed=1), None)
    assert "GROUPKAFKA.ORIGIN_UNUSABLE" in str(raised.value)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("{}", "there is no checkpoint here in which a query has planned a batch"),
        ("{}/nowhere", "there is no such folder"),
        ("ftp://user:hunter2@host/{}", "the scheme ftp is not supported"),
    ],
)
def test_locations_without_a_checkpoint(tmp_path: Path, location: str, reason: str) -> None:
    with pytest.raises(CommandError) as raised:
        checkpoint_origin(location.format(tmp_path), None)
    assert reason in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_the_newest_checkpoint_of_a_pipelines_flow_counts(tmp_path: Path) -> None:
    flow = tmp_path / "_checkpoints" / "spark_catalog" / "default" / "orders" / "orders"
    for number, entry in enumerate((v1(REFUNDED), v1(ORDERS))):
        written(flow / str(number), entry, completed=1)
    assert checkpoint_origin(str(flow), None).positions == {P0: 50, P1: 60}


def test_a_completed_batch_whose_offsets_are_removed(tmp_path: Path) -> None:
    location = written(tmp_path, v1(ORDERS), completed=1)
    (tmp_path / "commits" / "1").write_text("v1\n{}")
    with pytest.raises(CommandError, match=r"ORIGIN_UNUSABLE.*offsets/1"):
        checkpoint_origin(location, None)


# --- another group


def test_another_group_and_its_members() -> None:
    admin = FakeAdmin({P0: GroupOffset(5), REFUNDS: marked(7), P1: GroupOffset(None)})
    origin = group_origin("other", admin)
    assert (origin.positions, origin.why, origin.notes) == ({P0: 5, REFUNDS: 7}, "committed by group 'other'", ())
    admin.live = ("one on 10.0.0.1",)
    assert "group 'other' has live members (one on 10.0.0.1)" in group_origin("other", admin).notes[0]
    with pytest.raises(CommandError, match=r"group 'other'.*no committed offsets.*check --from-group"):
        group_origin("other", FakeAdmin({}))


# --- the command


class Adoption(Bed):
    """A group without offsets takes over orders, of which partition 1 has not been seen, and refunds."""

    def __init__(self) -> None:
        super().__init__()
        self.admin.groups.clear()
        self.positions = {P0: 50, REFUNDS: 7}

    def adopt(self, *topics: str, overwrite: bool = False, execute: bool = True) -> dict[str, int]:
        """Take over, and return what was committed."""
        command = AdoptCommand(CONNECTION, "c", topics=topics, overwrite=overwrite, execute=execute)
        self.commands.adopt(command, Origin("the checkpoint 'c'", "end of batch 4", self.positions, ("NOTE: ...",)))
        return {str(item.partition): item.offset for items in self.admin.committed for item in items}

    def fails(self, *topics: str) -> str:
        with pytest.raises(GroupKafkaError) as raised:
            self.adopt(*topics)
        assert self.admin.committed == []
        return str(raised.value)


def test_what_a_group_takes_over() -> None:
    bed = Adoption()
    assert bed.adopt() == {"orders-0": 50, "orders-1": 30, "refunds-0": 7}
    assert bed.said[0] == "NOTE: ..."
    rows = bed.said[1].splitlines()
    assert rows[1].split(maxsplit=4) == ["orders-0", "-", "50", "-", "end of batch 4"]
    assert rows[2].split(maxsplit=4)[2:] == ["30", "-", "not in the checkpoint 'c': beginning of the log"]
    assert "kafka.group.id=shop" in bed.said[-1]
    metadata = [parse_metadata(item.metadata) for item in bed.admin.committed[0]]
    assert all(item is not None and item.reset is not None for item in metadata), "an old checkpoint would win"
    first = metadata[0]
    assert first is not None
    assert (first.topic_id, first.pin) == (
        TOPIC_ID,
        Pin(50, 2, KnownTopics.of({"orders": TOPIC_ID, "refunds": TOPIC_ID})),
    )


def test_a_dry_run() -> None:
    bed = Adoption()
    assert bed.adopt(execute=False) == {}
    assert "Add --execute" in bed.said[-1]


def test_topics_are_chosen() -> None:
    assert Adoption().adopt("refunds") == {"refunds-0": 7}
    bed = Adoption()
    del bed.positions[REFUNDS]
    assert "it has no offsets of topic refunds, only of orders" in bed.fails("orders", "refunds")


def test_a_deleted_topic() -> None:
    bed = Adoption()
    bed.positions[TopicPartition("gone", 0)] = 5
    assert "orders-0" in bed.adopt()
    assert bed.said[0] == "left out: topic gone, which no longer exists"
    bed.admin.committed.clear()
    assert "these topics do not exist: gone" in bed.fails("gone")


def test_offsets_of_the_group_are_not_overwritten_unless_asked_to() -> None:
    bed = Adoption()
    bed.admin.groups[P1] = marked(60, pin=Pin(35, 2))
    assert "GROUP_HAS_OFFSETS] Group 'shop' already has other offsets of these partitions: orders-1" in bed.fails()
    assert bed.adopt("refunds") == {"refunds-0": 7}, "of another topic"
    bed.admin.committed.clear()
    assert bed.adopt(overwrite=True) == {"orders-0": 50, "orders-1": 30, "refunds-0": 7}


def test_a_commit_that_was_taken_in_part_is_repeated() -> None:
    """1. The coordinator takes one offset and refuses the others, 2. the command is repeated, as its error says."""
    bed = Adoption()
    bed.admin.taken = 1
    bed.admin.error = CommandError(COMMIT_REFUSED, partitions="orders-1, refunds-0", reason="no such topic")
    assert "repeat the command" in bed.fails()
    assert set(bed.admin.groups) == {P0}
    bed.admin.error = None
    assert bed.adopt() == {"orders-0": 50, "orders-1": 30, "refunds-0": 7}
    resets = {metadata.reset for item in bed.admin.committed[0] if (metadata := parse_metadata(item.metadata))}
    assert len(resets) == 1, "two resets"


@pytest.mark.parametrize(
    "held",
    [
        marked(50, pin=Pin(50, 2)),
        marked(50, Reset(5, "x"), Pin(50, 2)),
        GroupOffset(50, CommitMetadata("x", TOPIC_ID, 50, 50, Pin(40, 2), reset=Reset(5, "x")).to_text()),
        GroupOffset(51, CommitMetadata("x", TOPIC_ID, 51, 51, Pin(51, 2), reset=Reset(5, "x")).to_text()),
        GroupOffset(50, "another program's"),
    ],
    ids=["a query's", "a query's after a reset", "with a pin of its own", "elsewhere", "another program's"],
)
def test_what_repeating_the_command_would_change_is_no_leftover(held: GroupOffset) -> None:
    bed = Adoption()
    bed.admin.groups[P0] = held
    assert "GROUP_HAS_OFFSETS] Group 'shop' already has other offsets of these partitions: orders-0." in bed.fails()


def test_members_are_refused() -> None:
    bed = Adoption()
    bed.admin.live = ("first on 10.0.0.1",)
    assert "GROUP_HAS_MEMBERS" in bed.fails()


@pytest.mark.parametrize(
    ("partition", "offset", "text"),
    [
        (P0, 101, "orders-0 is at 101, its log ends at 100"),
        (tp(7), 5, "orders-7 is at 5, the topic has 2 partitions"),
    ],
)
def test_offsets_of_a_topic_that_was_recreated(partition: TopicPartition, offset: int, text: str) -> None:
    bed = Adoption()
    bed.positions[partition] = offset
    assert text in bed.fails()
    assert bed.adopt("refunds") == {"refunds-0": 7}


def test_removed_records() -> None:
    bed = Adoption()
    bed.positions[P0] = 10
    assert bed.adopt()["orders-0"] == 10, "the query reports the loss"
    assert bed.said[2].startswith("WARNING: the broker no longer has the records orders-0 [10, 30)")
