"""The command line: arguments, what a reset moves where, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from spark_groupsource.checkpoint.state_folder import StateFolder
from spark_groupsource.cli.arguments import (
    Connection,
    ResetCommand,
    SavepointCommand,
    client_options,
    parse_target,
)
from spark_groupsource.cli.offset_commands import OffsetCommands
from spark_groupsource.cli.offset_moves import (
    Move,
    PartitionLog,
    WantedOffset,
    move_warnings,
    moves_table,
    plan_move,
)
from spark_groupsource.cli.savepoint_file import Saved, Savepoint, read_savepoint, write_savepoint
from spark_groupsource.cluster.port import TopicInfo
from spark_groupsource.errors import (
    BROKER_UNREACHABLE,
    CommandError,
    GroupKafkaError,
    KafkaUnavailableError,
    OptionError,
)
from spark_groupsource.model.commit_metadata import (
    CommitItem,
    CommitMetadata,
    GroupOffset,
    KnownTopics,
    Pin,
    next_reset,
    parse_metadata,
)
from spark_groupsource.model.offsets import OffsetRange, Reset, SourceOffset, TopicPartition
from spark_groupsource.options.times import shown_time
from tests.unit.checkpoint.test_log import v1
from tests.unit.cli.fake_output import FakeOutput
from tests.unit.fakes import LINEAGE, TOPIC_ID, FakeCluster, ManualClock, offset_of, tp

P0, P1, P2 = tp(0), tp(1), tp(2)
REFUNDS = TopicPartition("refunds", 0)
CLUSTER = "the cluster's id"
CONNECTION = Connection("broker:9092", "shop")
GIVEN = ["--bootstrap-servers", "broker:9092", "--group", "shop"]


# --- the properties file


def config(tmp_path: Path, text: str) -> Connection:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return replace(CONNECTION, config=path)


def test_client_properties_with_and_without_prefix(tmp_path: Path) -> None:
    text = """# comment
! comment
kafka.security.protocol = SASL_SSL
sasl.password=a=b

kafka.bootstrap.servers=elsewhere:1
group.id=another
subscribe=orders
startingOffsets=earliest
job.trigger=1 second
"""
    options = client_options(config(tmp_path, text))
    assert options.client_settings["security.protocol"] == "SASL_SSL"
    assert options.client_settings["sasl.password"] == "a=b"
    assert (options.bootstrap_servers, options.group_id) == ("broker:9092", "shop")
    assert not {"subscribe", "group.id", "job.trigger"} & options.client_settings.keys()


def test_a_querys_file_with_secrets_of_its_own_and_of_its_executors(tmp_path: Path) -> None:
    text = """sasl.password.file=/run/secrets/password
sasl.oauthbearer.config=principal=me
executor.kafka.sasl.password.file=/run/secrets/another
allowedUnsafeSettings=plugin.library.paths
"""
    settings = client_options(config(tmp_path, text)).client_settings
    assert settings["sasl.password.file"] == "/run/secrets/password"
    assert settings["sasl.oauthbearer.config"] == "principal=me"
    assert not any("executor" in name or "unsafe" in name.lower() for name in settings)


@pytest.mark.parametrize(
    "line",
    [
        "hunter2",
        "=hunter2",
        # As Java and YAML have it, of a secret that ends in "=".
        "sasl.password: hunter2==",
        "sasl.password hunter2==",
        "sasl.password:hunter2=",
        # As Java goes on in the next line, which would be taken for a name.
        "sasl.password=\\\nhunter2==",
        "sasl.password=a\\  \nhunter2==",
    ],
)
def test_a_line_that_is_no_property_is_named_without_its_content(line: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"CONFIG_MALFORMED\] Line 2 of") as raised:
        client_options(config(tmp_path, f"a=b\n{line}\n"))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("before", ["\ufeff", "# C:\\\n"], ids=["a byte order mark", "a comment that ends with \\"])
def test_what_is_no_part_of_the_first_name(before: str, tmp_path: Path) -> None:
    settings = client_options(config(tmp_path, f"{before}sasl.username=me\n")).client_settings
    assert settings["sasl.username"] == "me"


def test_a_refused_property_shows_no_secret(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="OPTION_REFUSED") as raised:
        client_options(config(tmp_path, "sasl.jaas.config=user hunter2"))
    assert "hunter2" not in str(raised.value)


def test_a_properties_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"FILE_FAILED.*cannot be read: No such file"):
        client_options(replace(CONNECTION, config=tmp_path / "missing"))


# --- the plan

LOG = PartitionLog(TOPIC_ID, 2, 30, 100)


@pytest.mark.parametrize(
    ("current", "wish", "new", "why", "gone"),
    [
        (50, 40, 40, "because", None),
        (None, 40, 40, "because", None),
        (50, 30, 30, "because", None),
        (50, 100, 100, "because", None),
        # below the log: the query reports the loss, so the offset stays as it is
        (50, 10, 10, "because", (10, 30)),
        # above it: records that were written since would be skipped
        (50, 101, 100, "because, limited to the log's end", None),
    ],
)
def test_move(current: int | None, wish: int, new: int, why: str, gone: tuple[int, int] | None) -> None:
    group = None if current is None else GroupOffset(current)
    assert plan_move(P0, group, LOG, WantedOffset(wish, "because")) == Move(P0, current, new, why, gone)


def test_table_and_warnings() -> None:
    moves = [
        Move(P0, 900, 0, "first"),
        Move(tp(10), 7, 7, "second", (7, 30)),
        Move(REFUNDS, None, 1234567, "third"),
        Move(P1, 5, 8, "fourth"),
    ]
    assert moves_table(moves).splitlines() == [
        "partition  current      new  difference  why",
        "orders-0       900        0        -900  first",
        "orders-10        7        7           0  second",
        "refunds-0        -  1234567           -  third",
        "orders-1         5        8          +3  fourth",
    ]
    (line,) = move_warnings(moves)
    assert line.startswith("WARNING: the broker no longer has the records orders-10 [7, 30)")


def marked(offset: int, reset: Reset | None = None, pin: Pin | None = None, topic_id: str = TOPIC_ID) -> GroupOffset:
    metadata = CommitMetadata(LINEAGE, topic_id, offset, offset, pin or Pin(0, 2), reset=reset)
    return GroupOffset(offset, metadata.to_text())


@pytest.mark.parametrize(
    ("known", "at_ms"),
    [
        ([], 5000),
        ([marked(1), GroupOffset(1, "another program's")], 5000),
        ([marked(1, Reset(4999, "x"))], 5000),
        # the last reset came from a machine whose clock is ahead
        ([marked(1, Reset(7000, "x")), marked(1, Reset(6000, "y"))], 7001),
        ([marked(1, Reset(5000, "x"))], 5001),
    ],
)
def test_a_reset_is_newer_than_all_before_it(known: list[GroupOffset], at_ms: int) -> None:
    assert next_reset(known, 5000, "name") == Reset(at_ms, "name")


def test_shown_time() -> None:
    assert shown_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


# --- the commands


class FakeAdmin:
    """`GroupAdmin` on dicts."""

    def __init__(self, groups: dict[TopicPartition, GroupOffset]) -> None:
        self.groups = groups
        self.live: tuple[str, ...] = ()
        self.simple = False
        # What a commit raises, after so many of its offsets were taken.
        self.error: BaseException | None = None
        self.taken = 0
        self.committed: list[Sequence[CommitItem]] = []

    def member_names(self) -> tuple[str, ...]:
        return self.live

    def group_offsets(self) -> dict[TopicPartition, GroupOffset]:
        return dict(self.groups)

    def is_simple(self) -> bool:
        return self.simple

    def commit(self, items: Sequence[CommitItem]) -> None:
        if self.error is not None:
            self.groups |= {item.partition: GroupOffset(item.offset, item.metadata) for item in items[: self.taken]}
            raise self.error
        self.committed.append(items)

    def cluster_id(self) -> str:
        return CLUSTER


class Bed:
    """The commands on fakes: orders (2 partitions, offsets 30 to 100), refunds (1 partition, 0 to 10)."""

    def __init__(self) -> None:
        self.admin = FakeAdmin({P0: marked(50, pin=Pin(40, 2)), P1: marked(60, pin=Pin(35, 2))})
        self.cluster = FakeCluster(orders=2, refunds=1)
        self.cluster.beginnings = {P0: 30, P1: 30, REFUNDS: 0}
        self.cluster.ends = {P0: 100, P1: 100, P2: 100, REFUNDS: 10}
        output = FakeOutput()
        self.said, self.warned = output.lines, output.warnings
        self.commands = OffsetCommands(self.admin, self.cluster, ManualClock(), output)

    def reset(self, *words: str, topics: tuple[str, ...] = (), execute: bool = True) -> dict[str, int]:
        """Reset, and return what was committed."""
        self.commands.reset(ResetCommand(CONNECTION, parse_target(words), topics, execute))
        return {str(item.partition): item.offset for items in self.admin.committed for item in items}

    def metadata(self) -> list[CommitMetadata]:
        """Return what was committed with the offsets."""
        found = [parse_metadata(item.metadata) for items in self.admin.committed for item in items]
        assert None not in found
        return [metadata for metadata in found if metadata is not None]

    def savepoint(self, path: Path) -> None:
        self.commands.savepoint(SavepointCommand(CONNECTION, path))

    def refused(self, *words: str, topics: tuple[str, ...] = ()) -> str:
        with pytest.raises(GroupKafkaError) as raised:
            self.reset(*words, topics=topics)
        assert self.admin.committed == []
        return str(raised.value)


@pytest.mark.parametrize(
    ("words", "topics", "committed"),
    [
        (["initial"], (), {"orders-0": 40, "orders-1": 35}),
        (["earliest"], (), {"orders-0": 30, "orders-1": 30}),
        (["latest"], (), {"orders-0": 100, "orders-1": 100}),
        (["2023-11-14T22:13:20Z"], (), {"orders-0": 77, "orders-1": 100}),
        (["latest"], ("refunds",), {"refunds-0": 10}),
    ],
)
def test_reset(words: list[str], topics: tuple[str, ...], committed: dict[str, int]) -> None:
    bed = Bed()
    bed.cluster.at_time[P0] = 77
    assert bed.reset(*words, topics=topics) == committed
    assert len(bed.admin.committed) == 1, "not in one request"


def test_a_time_behind_the_first_record_of_an_open_transaction() -> None:
    """The log's end instead would skip the transaction's records that come at or after that time."""
    bed = Bed()
    bed.cluster.written[P0] = 120
    bed.cluster.at_time[P0] = 105
    assert bed.reset("2023-11-14T22:13:20Z") == {"orders-0": 105, "orders-1": 100}


def test_a_dry_run_changes_nothing_and_says_how_to_go_on() -> None:
    bed = Bed()
    assert bed.reset("latest", execute=False) == {}
    shown = bed.said[0].splitlines()
    assert shown[1].split() == ["orders-0", "50", "100", "+50", "end", "of", "the", "log"]
    assert "Add --execute" in bed.said[-1]


def test_the_marker_and_the_pins_of_a_reset() -> None:
    bed = Bed()
    bed.admin.groups[P1] = GroupOffset(60, "another program's")
    bed.reset("latest")
    first, second = bed.metadata()
    assert first.reset == second.reset
    assert first.reset is not None
    assert first.lineage == first.reset.id != LINEAGE
    assert first.pin == Pin(40, 2), "a reset does not change where the group began"
    assert second.pin == Pin(100, 2, KnownTopics.of({"orders": TOPIC_ID})), (
        "the group begins here, as far as anybody knows"
    )
    assert (first.topic_id, first.start, first.end) == (TOPIC_ID, 100, 100)


def test_a_partition_that_the_group_has_not_read_yet() -> None:
    """Added since: it starts at its beginning anyway, and latest is latest."""
    for words, committed in ((["initial"], None), (["latest"], 100), (["earliest"], 0)):
        bed = Bed()
        bed.cluster.topics["orders"] = TopicInfo(TOPIC_ID, 3)
        assert bed.reset(*words).get("orders-2") == committed


def test_live_members_are_named() -> None:
    bed = Bed()
    bed.admin.live = ("first on 10.0.0.1", "second on 10.0.0.2")
    text = bed.refused("latest")
    assert "GROUP_HAS_MEMBERS" in text
    assert "first on 10.0.0.1, second on 10.0.0.2" in text


@pytest.mark.parametrize("execute", [True, False])
def test_queries_with_option_assign_are_asked_for(execute: bool) -> None:
    """They are no members, and their next commit would undo the reset."""
    bed = Bed()
    bed.reset("latest", execute=execute)
    assert bed.warned == []
    bed.admin.simple = True
    bed.reset("latest", execute=execute)
    assert bed.warned == ["queries with option assign cannot be detected: make sure that they are stopped"]


def test_a_commit_without_an_answer_may_have_been_taken() -> None:
    bed = Bed()
    bed.admin.error = KafkaUnavailableError(BROKER_UNREACHABLE, servers="broker:9092", timeout_s=20.0, reason="away")
    text = bed.refused("latest")
    assert "COMMIT_UNANSWERED] The offsets were sent to the coordinator of group 'shop'" in text
    assert "may have been committed. No broker of option 'kafka.bootstrap.servers' ('broker:9092') answered" in text
    assert "check the group's offsets" in text
    assert bed.warned == []


def test_a_group_without_offsets() -> None:
    bed = Bed()
    bed.admin.groups.clear()
    assert "GROUP_UNKNOWN] Group 'shop' has no committed offsets on 'broker:9092'" in bed.refused("latest")


@pytest.mark.parametrize("words", [["latest"], ["initial"]])
def test_an_unknown_topic(words: list[str]) -> None:
    assert "these topics do not exist: nowhere" in Bed().refused(*words, topics=("orders", "nowhere"))


def test_a_topic_that_the_group_has_not_read_is_named() -> None:
    """It may be misspelt; or the user puts a start in the group for a topic that its queries will read."""
    bed = Bed()
    assert bed.reset("latest", topics=("orders", "refunds")) == {"orders-0": 100, "orders-1": 100, "refunds-0": 10}
    assert [line for line in bed.said if line.startswith("NOTE")] == [
        "NOTE: group shop has no offset of topic refunds: no query of it has read this topic. Check --topic, unless"
        " they are to read it from now on"
    ]


def test_a_deleted_topic_is_left_out() -> None:
    bed = Bed()
    bed.admin.groups[TopicPartition("gone", 0)] = marked(5)
    assert bed.reset("latest") == {"orders-0": 100, "orders-1": 100}
    assert bed.said[0] == "left out: topic gone, which no longer exists"
    bed.cluster.topics.clear()
    bed.admin.committed.clear()
    assert "these topics do not exist: gone, orders" in bed.refused("latest")


@pytest.mark.parametrize(
    "held",
    [GroupOffset(60, "another program's"), marked(60, topic_id="the deleted topic's id")],
    ids=["nobody's", "a deleted topic's"],
)
def test_initial_needs_pins(held: GroupOffset) -> None:
    bed = Bed()
    bed.admin.groups[P1] = held
    text = bed.refused("initial")
    assert "NO_INITIAL_OFFSET] The group's initial offset is not known for these partitions" in text
    assert "no query of this source has read them yet: orders-1." in text


def test_initial_of_a_topic_that_the_group_has_not_read() -> None:
    assert "read them yet: topic refunds" in Bed().refused("initial", topics=("refunds",))


# --- savepoints


def saved(path: Path, **changes: object) -> Savepoint:
    savepoint = Savepoint(CLUSTER, "shop", 1_700_000_000_000, {"orders": TOPIC_ID}, {P0: Saved(45, Pin(40, 2))})
    savepoint = replace(savepoint, **changes)  # type: ignore[arg-type]
    write_savepoint(path, savepoint)
    return savepoint


def test_savepoint(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups |= {
        REFUNDS: GroupOffset(7, "another program's"),
        P2: marked(9, topic_id="the deleted topic's id"),
        TopicPartition("gone", 0): marked(5),
    }
    bed.savepoint(tmp_path / "f")
    written = read_savepoint(tmp_path / "f")
    assert written.partitions == {P0: Saved(50, Pin(40, 2)), P1: Saved(60, Pin(35, 2)), REFUNDS: Saved(7)}
    assert (written.cluster, written.group, set(written.topic_ids)) == (CLUSTER, "shop", {"orders", "refunds"})
    assert bed.said[:2] == [
        "left out: topic gone, which no longer exists",
        "left out: orders-2, whose offset belongs to a deleted topic of that name",
    ]
    assert bed.said[2].startswith("3 partitions of 2 topics saved in ")


def test_a_savepoint_of_a_group_without_offsets(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups.clear()
    with pytest.raises(CommandError, match="GROUP_UNKNOWN"):
        bed.savepoint(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_savepoint_without_offsets_does_not_replace_a_file(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups.clear()
    bed.admin.groups[P0] = marked(9, topic_id="the deleted topic's id")
    (tmp_path / "f").write_text("an older one")
    with pytest.raises(CommandError, match="SAVEPOINT_EMPTY"):
        bed.savepoint(tmp_path / "f")
    assert (tmp_path / "f").read_text() == "an older one"


def test_reset_to_a_savepoint(tmp_path: Path) -> None:
    bed = Bed()
    saved(tmp_path / "f")
    assert bed.reset("savepoint", str(tmp_path / "f")) == {"orders-0": 45, "orders-1": 35}
    lines = bed.said[0].splitlines()
    assert lines[1].endswith("savepoint of 2023-11-14T22:13:20.000Z")
    assert lines[2].endswith("not in the savepoint: pinned initial offset")


def written(root: Path, *entries: str, completed: int, **initial: str) -> str:
    """Write a checkpoint with batches 0 to n, of which the first `completed` are complete."""
    (root / "offsets").mkdir(parents=True)
    (root / "commits").mkdir()
    (root / "metadata").write_text('{"id":"0"}')
    for number, entry in enumerate(entries):
        (root / "offsets" / str(number)).write_text(entry)
        (root / "offsets" / f".{number}.crc").write_text("")
        if number < completed:
            (root / "commits" / str(number)).write_text("v1\n{}")
    for source, text in initial.items():
        (root / "sources" / source.strip("_")).mkdir(parents=True)
        (root / "sources" / source.strip("_") / "0").write_text(text)
    return str(root)


def planned(end: SourceOffset) -> str:
    return v1(json.dumps(end.to_json()))


def test_reset_to_a_restored_checkpoint(tmp_path: Path) -> None:
    """The end of its newest complete batch: not of a batch that runs again, and nothing of others' partitions."""
    bed = Bed()
    first, second = (offset_of(OffsetRange(P0, at, at + 5), done={P1: 50}) for at in (40, 45))
    location = written(tmp_path, planned(first), planned(second), completed=1)
    assert bed.reset("checkpoint", location) == {"orders-0": 45}
    assert bed.said[0].splitlines()[1].endswith("end of the checkpoint's newest complete batch")
    (metadata,) = bed.metadata()
    assert (metadata.pin, metadata.reset is None) == (Pin(40, 2), False)


def with_state(root: Path, end: SourceOffset) -> str:
    """Write the checkpoint of a query with state, whose only batch is complete."""
    location = written(root, planned(end), completed=1)
    (root / "state").mkdir()
    return location


def test_reset_to_the_checkpoint_of_a_query_with_state(tmp_path: Path) -> None:
    """Also partitions that it has handed over, and those that only others have read."""
    bed = Bed()
    bed.admin.groups[REFUNDS] = marked(7, pin=Pin(2, 1))
    location = with_state(tmp_path / "c", offset_of(OffsetRange(P0, 40, 45), done={P1: 50}))
    assert bed.reset("checkpoint", location) == {"orders-0": 45, "orders-1": 50, "refunds-0": 2}
    assert bed.said[0].splitlines()[3].endswith("not read: pinned initial offset")


def test_a_recreated_topic_that_a_query_with_state_has_not_read_begins_at_its_beginning(tmp_path: Path) -> None:
    """1. A checkpoint is saved. 2. A new topic is read from 8 on, deleted and recreated. 3. The checkpoint is restored.

    The deleted topic's initial offset would skip the new one's first records.
    """
    bed = Bed()
    bed.admin.groups[REFUNDS] = marked(9, pin=Pin(8, 1), topic_id="the deleted topic's id")
    location = with_state(tmp_path / "c", offset_of(OffsetRange(P0, 40, 45), done={P1: 50}))
    assert bed.reset("checkpoint", location) == {"orders-0": 45, "orders-1": 50, "refunds-0": 0}
    metadata = bed.metadata()[2]
    assert (metadata.topic_id, metadata.pin.offset) == (TOPIC_ID, 0)


def test_an_offset_of_another_program_is_shown_when_a_query_with_state_has_not_read_it(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups[P1] = GroupOffset(60, "another program's")
    location = with_state(tmp_path / "c", offset_of(OffsetRange(P0, 40, 45)))
    assert bed.reset("checkpoint", location) == {"orders-0": 45, "orders-1": 60}
    assert bed.said[0].splitlines()[2].endswith("not read: set by another program")


def test_a_reset_does_not_guess_whether_a_query_has_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store hangs. As without state, orders-1 would stay where it is, and the state would lack its records."""
    bed = Bed()
    location = with_state(tmp_path / "c", offset_of(OffsetRange(P0, 40, 45), done={P1: 50}))
    monkeypatch.setattr(StateFolder, "exists", lambda _: None)
    assert "it is not known whether its query has state" in bed.refused("checkpoint", location)


def test_a_checkpoint_that_a_reset_cannot_use(tmp_path: Path) -> None:
    bed, end = Bed(), offset_of(OffsetRange(P0, 40, 45))
    assert "ORIGIN_UNUSABLE" in bed.refused("checkpoint", written(tmp_path / "a", completed=0))
    assert "ORIGIN_UNUSABLE" in bed.refused("checkpoint", written(tmp_path / "e", planned(end), completed=0))
    spark = v1('{"orders":{"0":5}}')
    assert "format('groupkafka')" in bed.refused("checkpoint", written(tmp_path / "b", spark, completed=1))
    assert "ORIGIN_UNUSABLE" in bed.refused("checkpoint", str(tmp_path / "missing"))
    other = replace(end, topic_ids=(("orders", "the deleted topic's id"),))
    assert "recreated" in bed.refused("checkpoint", written(tmp_path / "d", planned(other), completed=1))


def test_the_checkpoint_of_another_groups_query_moves_nothing(tmp_path: Path) -> None:
    bed, end = Bed(), offset_of(OffsetRange(REFUNDS, 0, 2))
    text = bed.refused("checkpoint", with_state(tmp_path / "c", end))
    assert "has no offset of any partition that its query has read" in text
    bed.admin.groups.clear()
    assert bed.reset("checkpoint", str(tmp_path / "c")) == {"refunds-0": 2}, "a group that was deleted is restored"


def test_a_partition_of_the_savepoint_that_the_group_has_forgotten(tmp_path: Path) -> None:
    bed = Bed()
    saved(tmp_path / "f")
    del bed.admin.groups[P0]
    bed.admin.groups[P1] = GroupOffset(60, "another program's")
    assert bed.reset("savepoint", str(tmp_path / "f")) == {"orders-0": 45, "orders-1": 30}
    assert bed.metadata()[0].pin == Pin(40, 2)


def test_a_group_that_the_broker_has_forgotten_goes_back_to_its_savepoint(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups.clear()
    saved(tmp_path / "f")
    assert bed.reset("savepoint", str(tmp_path / "f")) == {"orders-0": 45}
    assert bed.metadata()[0].pin == Pin(40, 2)


def test_a_forgotten_group_and_a_savepoint_without_partitions(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups.clear()
    saved(tmp_path / "f", topic_ids={}, partitions={})
    assert "GROUP_UNKNOWN" in bed.refused("savepoint", str(tmp_path / "f"))


def test_a_savepoint_older_than_retention_is_a_warning(tmp_path: Path) -> None:
    bed = Bed()
    bed.cluster.beginnings[P0] = 48
    saved(tmp_path / "f")
    assert bed.reset("savepoint", str(tmp_path / "f"))["orders-0"] == 45
    assert "WARNING: the broker no longer has the records orders-0 [45, 48)" in bed.said[1]


@pytest.mark.parametrize(
    ("changes", "topics", "reason"),
    [
        ({"group": "another"}, (), "it belongs to group 'another', not to 'shop'"),
        ({"cluster": "another"}, (), "it belongs to cluster another, but this is the cluster's id"),
        ({"topic_ids": {"orders": "another"}}, (), "topic orders was deleted and recreated since"),
        ({"topic_ids": {"orders": "another"}}, ("orders",), "topic orders was deleted and recreated since"),
    ],
)
def test_a_savepoint_that_does_not_fit(
    changes: dict[str, object], topics: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    bed = Bed()
    saved(tmp_path / "f", **changes)
    text = bed.refused("savepoint", str(tmp_path / "f"), topics=topics)
    assert "SAVEPOINT_MISMATCH" in text
    assert reason in text


def test_a_recreated_topic_may_be_left_out_of_a_savepoint(tmp_path: Path) -> None:
    bed = Bed()
    bed.admin.groups[REFUNDS] = marked(7, pin=Pin(2, 1))
    saved(tmp_path / "f", topic_ids={"orders": "another"})
    assert bed.reset("savepoint", str(tmp_path / "f"), topics=("refunds",)) == {"refunds-0": 2}
