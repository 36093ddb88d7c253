"""Spark's offset log and commit log, as Spark 4.x writes them."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from spark_groupsource.checkpoint import folder
from spark_groupsource.checkpoint.log import CheckpointLog, offsets_in_log_entry
from spark_groupsource.model.offsets import OffsetRange, SourceOffset
from tests.unit.fakes import LINEAGE, OTHER_LINEAGE, offset_of, tp

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1763720000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def offset(end: int) -> SourceOffset:
    return offset_of(OffsetRange(tp(0), end - 1, end))


def text(end: int) -> str:
    return json.dumps(offset(end).to_json(), separators=(",", ":"))


def v1(*lines: str) -> str:
    return "\n".join(["v1", METADATA, *lines])


def v2(**sources: str) -> str:
    return "\n".join(["v2", METADATA, *(f"{source}:{text}" for source, text in sources.items())])


class Checkpoint:
    """A checkpoint directory that a test fills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "offsets").mkdir(parents=True)
        (root / "commits").mkdir()
        (root / "metadata").write_text('{"id":"0"}')

    def log(self, number: int, entry: str, *, complete: bool) -> None:
        (self.root / "offsets" / str(number)).write_text(entry)
        (self.root / "offsets" / f".{number}.crc").write_bytes(b"\0\1")
        if complete:
            (self.root / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path / "checkpoint")


# --- one entry


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (v1('{"a":1}'), [{"a": 1}]),
        (v1('{"a":1}', "-", '{"b":2}'), [{"a": 1}, {"b": 2}]),
        (v1("5"), [5]),
        (v1(), []),
        (v2(**{"0": '{"a":1}'}), [{"a": 1}]),
        (v2(**{"0": '{"a":1}', "orders_2": '{"b":2}', "2": "-"}), [{"a": 1}, {"b": 2}]),
        (v2(**{"0": "5"}) + "\n", [5]),
        ("v3\n{}\n{}", []),
        ("", []),
        ("v1", []),
        ("{}", []),
    ],
)
def test_offsets_in_a_log_entry(entry: str, found: list[object]) -> None:
    assert offsets_in_log_entry(entry) == found


# --- the log


@pytest.mark.parametrize("entry", [v1(text(5)), v2(**{"0": text(5)})])
@pytest.mark.parametrize("complete", [True, False])
def test_a_batch_is_complete_when_the_commit_log_has_it(checkpoint: Checkpoint, entry: str, complete: bool) -> None:
    checkpoint.log(7, entry, complete=complete)
    assert CheckpointLog(str(checkpoint.root)).is_complete(offset(5)) is complete


def test_the_first_batch_that_holds_an_offset_counts(checkpoint: Checkpoint) -> None:
    """The other source of the query has data, ours is idle: its offset is logged again with each batch."""
    checkpoint.log(3, v1(text(4), "0"), complete=True)
    checkpoint.log(4, v1(text(5), "1"), complete=True)
    checkpoint.log(5, v1(text(5), "2"), complete=True)
    checkpoint.log(6, v1(text(5), "3"), complete=False)
    assert CheckpointLog(str(checkpoint.root)).is_complete(offset(5))


def test_a_later_batch_does_not_complete_an_earlier_one(checkpoint: Checkpoint) -> None:
    checkpoint.log(0, v1(text(4)), complete=False)
    checkpoint.log(1, v1(text(4)), complete=True)
    assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(4))


def test_batches_are_numbers_not_texts(checkpoint: Checkpoint) -> None:
    checkpoint.log(9, v1(text(5)), complete=False)
    checkpoint.log(10, v1(text(5)), complete=True)
    assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(5))


def test_several_offsets_in_turn(checkpoint: Checkpoint) -> None:
    log = CheckpointLog(str(checkpoint.root))
    checkpoint.log(0, v1(text(4)), complete=True)
    checkpoint.log(1, v1(text(5)), complete=False)
    assert log.is_complete(offset(4))
    assert not log.is_complete(offset(5))
    assert log.is_complete(offset(4))


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
@pytest.mark.parametrize("suffix", ["", "/"])
def test_paths_and_uris(checkpoint: Checkpoint, prefix: str, suffix: str) -> None:
    checkpoint.log(0, v1(text(5)), complete=True)
    assert CheckpointLog(f"{prefix}{checkpoint.root}{suffix}").is_complete(offset(5))


# --- the cost: what an object store would be asked


class Counted:
    """The local file system as far as `CheckpointLog` uses it, counting what it is asked."""

    type_name = "local"

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._filesystem = fs.LocalFileSystem()

    def get_file_info(self, wanted: fs.FileSelector | list[str]) -> Any:
        self.asked["list" if isinstance(wanted, fs.FileSelector) else "info"] += 1
        return self._filesystem.get_file_info(wanted)

    def open_input_file(self, path: str) -> Any:
        self.asked["look"] += 1
        return self._filesystem.open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        self.asked["read"] += 1
        return self._filesystem.open_input_stream(path)

    def taken(self) -> dict[str, int]:
        """What was asked since the last call."""
        asked, self.asked = dict(self.asked), Counter()
        return asked


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
def counted_log(checkpoint: Checkpoint, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> CheckpointLog:
    monkeypatch.setattr(folder, "open_location", lambda _location: (counted, str(checkpoint.root)))
    return CheckpointLog("anywhere")


def test_a_wait_costs_one_request_a_look(checkpoint: Checkpoint, counted: Counted, counted_log: CheckpointLog) -> None:
    for number in range(100):
        checkpoint.log(number, v1(text(number + 1)), complete=number < 99)
    assert not counted_log.is_complete(offset(100))
    assert counted.taken() == {"list": 1, "read": 2, "look": 1}
    assert not counted_log.is_complete(offset(100))
    assert counted.taken() == {"look": 1}
    checkpoint.log(99, v1(text(100)), complete=True)
    assert counted_log.is_complete(offset(100))
    assert counted.taken() == {"look": 1, "info": 1}


def test_a_plan_that_is_not_logged_yet_reads_no_entry_twice(
    checkpoint: Checkpoint, counted: Counted, counted_log: CheckpointLog
) -> None:
    for number in range(100):
        checkpoint.log(number, v1(text(number + 1)), complete=True)
    assert not counted_log.is_complete(offset(101))
    assert counted.taken() == {"list": 1, "read": 5}
    assert not counted_log.is_complete(offset(101))
    assert counted.taken() == {"list": 1}
    checkpoint.log(100, v1(text(101)), complete=True)
    assert counted_log.is_complete(offset(101))
    assert counted.taken() == {"list": 1, "read": 1, "look": 1, "info": 1}


def test_a_half_written_entry_is_read_again(
    checkpoint: Checkpoint, counted: Counted, counted_log: CheckpointLog
) -> None:
    for half in ("", v1(text(5))[:-9]):
        checkpoint.log(0, half, complete=False)
        assert not counted_log.is_complete(offset(5))
    checkpoint.log(0, v1(text(5)), complete=True)
    assert counted_log.is_complete(offset(5))
    assert counted.taken()["read"] == 3


def test_an_offset_that_stays_the_same_for_long_is_complete_with_any_batch(
    checkpoint: Checkpoint, counted_log: CheckpointLog
) -> None:
    for number in range(20):
        checkpoint.log(number, v1(text(5), str(number)), complete=True)
    assert counted_log.is_complete(offset(5))


@pytest.mark.parametrize(
    ("location", "local"),
    [
        ("/data/checkpoint", True), ("checkpoint", True), ("file:/data/checkpoint", True),
        ("file:///data/checkpoint", True), ("dbfs:/data/checkpoint", False), ("/dbfs/data/checkpoint", False),
        ("/Volumes/data/checkpoint", False), ("s3a://bucket/checkpoint", False), ("hdfs://name/checkpoint", False),
        ("nosuchscheme://bucket/x", False), ("file:////dbfs/x", False), ("//dbfs/x", False), ("/dbfs", False),
        ("/dbfs2/x", True),
    ],
)  # fmt: skip
def test_a_look_at_a_store_is_a_request(location: str, local: bool) -> None:
    assert CheckpointLog(location).is_local is local


def test_a_glance_opens_files_and_lists_no_folder(
    checkpoint: Checkpoint, counted: Counted, counted_log: CheckpointLog
) -> None:
    for number in range(100):
        checkpoint.log(number, v1(text(number + 1)), complete=True)
    assert counted_log.glance(offset(100))
    counted.taken()
    for number in range(100, 120):
        assert not counted_log.glance(offset(number + 1)), "not logged"
        checkpoint.log(number, v1(text(number + 1)), complete=False)
        assert not counted_log.glance(offset(number + 1)), "not complete"
        checkpoint.log(number, v1(text(number + 1)), complete=True)
        assert counted_log.glance(offset(number + 1))
    assert "list" not in counted.taken()


def test_a_glance_finds_the_batch_behind_those_of_another_source(
    checkpoint: Checkpoint, counted_log: CheckpointLog
) -> None:
    checkpoint.log(0, v1(text(5), "0"), complete=True)
    assert counted_log.glance(offset(5))
    assert not counted_log.glance(offset(6))
    for number in range(1, 20):
        checkpoint.log(number, v1(text(5), str(number)), complete=True)
        assert not counted_log.glance(offset(6))
    checkpoint.log(20, v1(text(6), "20"), complete=True)
    assert counted_log.glance(offset(6))


def test_a_gap_hides_a_batch_from_glances_and_not_from_who_waits(
    checkpoint: Checkpoint, counted_log: CheckpointLog
) -> None:
    """Async progress tracking writes some batches only."""
    checkpoint.log(10, v1(text(5)), complete=True)
    assert not counted_log.glance(offset(9))
    checkpoint.log(14, v1(text(9)), complete=True)
    assert not counted_log.glance(offset(9))
    assert counted_log.is_complete(offset(9))
    assert counted_log.glance(offset(9)), "its number is known by now"


@pytest.mark.parametrize("way", ["glance", "is_complete"])
@pytest.mark.rule("R22")
def test_an_old_entry_of_the_commit_log_completes_no_new_batch(
    way: str, checkpoint: Checkpoint, counted_log: CheckpointLog
) -> None:
    """Guards against: 1. a checkpoint is taken back by hand, of the offset log only, 2. batch 7 is planned once more,
    3. a revoke or a stop looks at the log, which has `commits/7` of the old batch.
    """
    look = getattr(counted_log, way)
    checkpoint.log(7, v1(text(5)), complete=True)
    old = checkpoint.root / "commits" / "7"
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - 60))
    assert not look(offset(5))
    checkpoint.log(7, v1(text(5)), complete=True)
    os.utime(old)
    assert look(offset(5))


# --- another query's checkpoint


def other(end: int) -> str:
    found = offset_of(OffsetRange(tp(0), end - 1, end), lineage=OTHER_LINEAGE)
    return json.dumps(found.to_json(), separators=(",", ":"))


def compared(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture, *starts: SourceOffset) -> list[str]:
    """Return what is reported when Spark starts from these offsets, one after the other."""
    log = CheckpointLog(str(checkpoint.root))
    with caplog.at_level(logging.WARNING):
        for start in starts:
            if log.wants_start(start):
                log.compare_start(start)
    return [record.getMessage() for record in caplog.records]


def test_the_checkpoint_of_another_query_is_reported_once_with_both_sides_facts(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against: 1. a source is given the checkpointLocation of another query, 2. none of its batches is ever
    complete there, 3. every stop repeats the last batch, without a word."""
    checkpoint.log(41, v1("7", other(500)), complete=True)
    checkpoint.log(42, v1(other(600)), complete=False)
    (text_,) = compared(checkpoint, caplog, offset(5), offset(6), offset(7))
    assert f"Spark starts from lineage={LINEAGE} ends=[orders-0:5];" in text_
    assert f"checkpointLocation={checkpoint.root} has newest_batch=42 completed_batch=41" in text_
    assert f"of lineage={OTHER_LINEAGE} ends=[orders-0:600]" in text_


def test_the_checkpoint_of_another_source_is_reported(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint.log(3, v1('{"orders":{"0":7}}'), complete=True)
    (text_,) = compared(checkpoint, caplog, offset(5))
    assert "of no query of this source" in text_


def test_a_new_query_with_the_checkpoint_of_another_one_is_reported_before_its_first_batch(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.log(0, v1(other(500)), complete=True)
    (text_,) = compared(checkpoint, caplog, SourceOffset(LINEAGE))
    assert f"lineage={LINEAGE} ends=[];" in text_


def test_many_ends_are_counted(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint.log(0, v1(other(500)), complete=True)
    (text_,) = compared(checkpoint, caplog, offset_of(*(OffsetRange(tp(n), 0, 1) for n in range(7))))
    assert "orders-4:1 and 2 more]" in text_


def test_a_query_and_its_own_checkpoint_agree(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    """Also while a planned batch is not complete, with another source's offsets, and when the lineage changes."""
    checkpoint.log(6, v1(other(500), "5"), complete=True)
    checkpoint.log(7, v1(text(5), "6"), complete=True)
    checkpoint.log(8, v1(other(8), "6"), complete=False)
    assert compared(checkpoint, caplog, offset(5), offset(6)) == []


def test_a_new_query_has_no_checkpoint_that_could_contradict_it(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    assert compared(checkpoint, caplog, SourceOffset(LINEAGE)) == []
    # A batch that was planned and not completed, whose source has another initial offset by now.
    checkpoint.log(0, v1(other(5)), complete=False)
    assert compared(checkpoint, caplog, SourceOffset(LINEAGE)) == []
    # Another source's batch.
    checkpoint.log(0, v1("5", json.dumps(SourceOffset(LINEAGE).to_json())), complete=True)
    assert compared(checkpoint, caplog, SourceOffset(LINEAGE)) == []


def test_a_log_that_lags_is_the_querys_own_and_one_that_never_moves_is_a_copy(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With async progress tracking Spark writes its logs later than it goes on."""
    now_s = [0.0]
    monkeypatch.setattr("spark_groupsource.checkpoint.log.time.monotonic", lambda: now_s[0])
    log = CheckpointLog(str(checkpoint.root))
    log.compare_start(offset(3))
    for number in range(20):
        checkpoint.log(number, v1(text(10 * number + 5)), complete=True)
        for start in (7, 9):
            now_s[0] += 25.0
            log.compare_start(offset(10 * number + start))
    assert caplog.messages == []
    for start in (1000, 1001):
        now_s[0] += 25.0
        log.compare_start(offset(start))
    assert "belongs to another query" in caplog.text
    assert not log.wants_start(offset(1002))


def test_a_store_that_fails_while_it_is_compared_is_no_contradiction(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint.log(0, v1(other(500)), complete=True)
    (checkpoint.root / "offsets" / "0").unlink()
    (checkpoint.root / "offsets" / "0").mkdir()
    (text_,) = compared(checkpoint, caplog, offset(5))
    assert text_.startswith("checkpoint not readable:")


# --- libhdfs


class Hadoop(Counted):
    """A file system as pyarrow's on libhdfs: opening a missing file prints Java's stack trace."""

    type_name = "hdfs"

    def __init__(self) -> None:
        super().__init__()
        self.printed: list[str] = []

    def open_input_stream(self, path: str) -> Any:
        if not os.path.exists(path):
            self.printed.append(path)
        return super().open_input_stream(path)

    open_input_file = open_input_stream


def test_no_missing_file_is_opened_on_hdfs(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten looks a second for as long as a drain waits printed as many stack traces."""
    hadoop = Hadoop()
    monkeypatch.setattr(folder, "open_location", lambda _location: (hadoop, str(checkpoint.root)))
    log = CheckpointLog("hdfs://name/checkpoint")
    assert not log.is_complete(offset(5))
    checkpoint.log(7, v1(text(5)), complete=False)
    assert not log.is_complete(offset(5))
    assert not log.glance(offset(6))
    checkpoint.log(7, v1(text(5)), complete=True)
    assert log.is_complete(offset(5))
    assert hadoop.printed == []


@pytest.mark.parametrize(
    ("given", "kept"), [(None, "-Xrs"), ("-Xmx64m", "-Xmx64m -Xrs"), ("-Xrs -Xmx64m", "-Xrs -Xmx64m")]
)
@pytest.mark.parametrize("scheme", ["hdfs", "viewfs"])
def test_the_jvm_of_libhdfs_leaves_the_signals_alone(
    given: str | None, kept: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options are there before pyarrow makes the file system, in the environment that C sees."""
    monkeypatch.delenv("LIBHDFS_OPTS", raising=False)
    if given is not None:
        monkeypatch.setenv("LIBHDFS_OPTS", given)
    seen: list[str] = []

    class NoLibrary:
        @staticmethod
        def from_uri(_uri: str) -> tuple[fs.FileSystem, str]:
            seen.append(os.environ["LIBHDFS_OPTS"])
            raise OSError("no libhdfs")

    monkeypatch.setattr("spark_groupsource.checkpoint.folder.fs.FileSystem", NoLibrary)
    assert not CheckpointLog(f"{scheme}://name/checkpoint").is_complete(offset(5))
    assert seen == [kept]


# --- what cannot be read


def test_no_checkpoint_at_the_location_is_reported_once_and_not_held_against_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = CheckpointLog(str(tmp_path / "checkpoint"))
    with caplog.at_level(logging.WARNING):
        assert not log.is_complete(offset(5))
        assert not log.is_complete(offset(5))
    assert [record.getMessage().count("Spark has no checkpoint here") for record in caplog.records] == [1]
    Checkpoint(tmp_path / "checkpoint").log(0, v1(text(5)), complete=True)
    assert log.is_complete(offset(5))


def test_a_new_checkpoint_is_no_trouble(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(5))
    assert caplog.records == []


@pytest.mark.parametrize("location", ["nosuchscheme://bucket/x", "file://relative", "wasb://c@account/x", "s3a:bucket"])
def test_a_location_that_no_library_reads_is_reported_at_once_and_once(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        log = CheckpointLog(location)
        assert not log.is_complete(offset(5))
        log.compare_start(offset(5))
    assert len(caplog.records) == 1
    assert f"checkpointLocation={location}" in caplog.text
    assert "allowed=a path; file:/...; dbfs:/...; s3://, s3a://" in caplog.text


SECRETS = "s3a://AKIA1:t0p%2Fsecret@bucket/x?region=r&session_token=t0ken"


@pytest.mark.parametrize(
    "error",
    [
        OSError("no access to s3://AKIA1:t0p%2Fsecret@bucket/x with t0p/secret and t0ken\nmore t0ken"),
        pa.ArrowNotImplementedError("built without S3: AKIA1"),
        ImportError("no t0ken"),
    ],
)
def test_credentials_in_a_location_are_never_logged(
    error: Exception, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_location: str) -> Any:
        raise error

    monkeypatch.setattr(folder, "open_location", refuse)
    log = CheckpointLog(SECRETS)
    with caplog.at_level(logging.WARNING):
        assert not log.is_complete(offset(5))
        assert not log.is_complete(offset(5))
    assert len(caplog.records) == 1
    for shown in (caplog.text, repr(log)):
        assert "@bucket/x?region=r" in shown
        assert not [secret for secret in ("AKIA1", "t0p", "t0ken") if secret in shown]


def test_the_parser_of_uris_gives_no_credentials_away(caplog: pytest.LogCaptureFixture) -> None:
    """pyarrow's own error repeats the URI that it could not parse."""
    with caplog.at_level(logging.WARNING):
        assert not CheckpointLog("s3a://AKIA1:top secret@bucket/x?region=r").is_complete(offset(5))
    assert "Cannot parse URI" in caplog.text
    assert "AKIA1" not in caplog.text
    assert "secret" not in caplog.text


def test_trouble_is_reported_again_after_it_was_over(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    log = CheckpointLog(str(checkpoint.root))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            (checkpoint.root / "offsets" / "1").unlink(missing_ok=True)
            checkpoint.log(0, v1(text(5)), complete=False)
            assert not log.is_complete(offset(5))
            (checkpoint.root / "offsets" / "1").write_bytes(b"\xff\xfe")
            assert not log.is_complete(offset(6))
            assert not log.is_complete(offset(6))
    assert ["checkpoint not readable" in text_ for text_ in caplog.messages] == [True, True]


# --- pipelines


def test_the_newest_generation_of_a_pipelines_flow_is_read(tmp_path: Path) -> None:
    """Spark Declarative Pipelines number a flow's checkpoints; a full refresh begins the next one."""
    flow = tmp_path / "_checkpoints" / "spark_catalog" / "default" / "orders" / "orders"
    flow.mkdir(parents=True)
    log = CheckpointLog(str(flow))
    assert not log.is_complete(offset(5)), "no checkpoint yet"
    for generation in (2, 9, 10):
        Checkpoint(flow / str(generation)).log(0, v1(text(5)), complete=generation == 10)
    assert log.is_complete(offset(5))
    assert log.is_local
    assert CheckpointLog(str(flow / "10")).is_complete(offset(5))
    assert not CheckpointLog(str(flow / "9")).is_complete(offset(5))


def test_a_query_outside_of_pipelines_may_have_a_path_like_theirs(tmp_path: Path) -> None:
    """Its checkpoint has no numbered folders."""
    root = tmp_path / "_checkpoints" / "sales" / "orders"
    log = CheckpointLog(str(root))
    assert not log.is_complete(offset(5)), "no checkpoint yet"
    Checkpoint(root).log(0, v1(text(5)), complete=True)
    assert log.is_complete(offset(5))
