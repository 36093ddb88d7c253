"""Spark's offset log and commit log, as Spark 4.x writes them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from spark_groupsource.checkpoint import CheckpointLog, offsets_in_log_entry
from spark_groupsource.offsets import OffsetRange, SourceOffset

from .fakes import offset_of, tp

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1763720000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'


def offset(end: int) -> SourceOffset:
    return offset_of(OffsetRange(tp(0), end - 1, end))


def text(end: int) -> str:
    return json.dumps(offset(end).to_json(), separators=(",", ":"))


def v1(*lines: str) -> str:
    return "\n".join(["v1", METADATA, *lines])


def v2(**sources: object) -> str:
    return "\n".join(["v2", METADATA, json.dumps(sources)])


class Checkpoint:
    """A checkpoint directory that a test fills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "offsets").mkdir(parents=True)
        (root / "commits").mkdir()

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
        (v2(**{"0": {"a": 1}}), [{"a": 1}]),
        (v2(**{"0": '{"a":1}', "1": '{"b":2}'}), [{"a": 1}, {"b": 2}]),
        ("v3\n{}\n{}", []),
        ("", []),
        ("v1", []),
        ("{}", []),
    ],
)
def test_offsets_in_a_log_entry(entry: str, found: list[object]) -> None:
    assert offsets_in_log_entry(entry) == found


# --- the log


@pytest.mark.parametrize("entry", [v1(text(5)), v2(**{"0": text(5)}), v2(**{"0": offset(5).to_json()})])
@pytest.mark.parametrize("complete", [True, False])
def test_a_batch_is_complete_when_the_commit_log_has_it(checkpoint: Checkpoint, entry: str, complete: bool) -> None:
    checkpoint.log(7, entry, complete=complete)
    assert CheckpointLog(str(checkpoint.root)).is_complete(offset(5).to_json()) is complete


def test_a_batch_that_completes_later_is_seen(checkpoint: Checkpoint) -> None:
    log = CheckpointLog(str(checkpoint.root))
    assert not log.is_complete(offset(5).to_json())
    checkpoint.log(0, v1(text(5)), complete=False)
    assert not log.is_complete(offset(5).to_json())
    checkpoint.log(0, v1(text(5)), complete=True)
    assert log.is_complete(offset(5).to_json())


def test_the_first_batch_that_holds_an_offset_counts(checkpoint: Checkpoint) -> None:
    """The other source of the query has data, ours is idle: its offset is logged again with each batch."""
    checkpoint.log(3, v1(text(4), "0"), complete=True)
    checkpoint.log(4, v1(text(5), "1"), complete=True)
    checkpoint.log(5, v1(text(5), "2"), complete=True)
    checkpoint.log(6, v1(text(5), "3"), complete=False)
    assert CheckpointLog(str(checkpoint.root)).is_complete(offset(5).to_json())


def test_a_later_batch_does_not_complete_an_earlier_one(checkpoint: Checkpoint) -> None:
    checkpoint.log(0, v1(text(4)), complete=False)
    checkpoint.log(1, v1(text(4)), complete=True)
    assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(4).to_json())


def test_batches_are_numbers_not_texts(checkpoint: Checkpoint) -> None:
    checkpoint.log(9, v1(text(5)), complete=False)
    checkpoint.log(10, v1(text(5)), complete=True)
    assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(5).to_json())


def test_several_offsets_in_turn(checkpoint: Checkpoint) -> None:
    log = CheckpointLog(str(checkpoint.root))
    checkpoint.log(0, v1(text(4)), complete=True)
    checkpoint.log(1, v1(text(5)), complete=False)
    assert log.is_complete(offset(4).to_json())
    assert not log.is_complete(offset(5).to_json())
    assert log.is_complete(offset(4).to_json())


def test_an_offset_that_was_never_logged(checkpoint: Checkpoint) -> None:
    checkpoint.log(0, v1(text(4)), complete=True)
    assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(9).to_json())


def test_the_position_of_our_source_in_a_file_does_not_matter(checkpoint: Checkpoint) -> None:
    checkpoint.log(0, v1("-", '{"logOffset":3}', text(5)), complete=True)
    assert CheckpointLog(str(checkpoint.root)).is_complete(offset(5).to_json())


@pytest.mark.parametrize("prefix", ["", "file://", "file:"])
@pytest.mark.parametrize("suffix", ["", "/"])
def test_paths_and_uris(checkpoint: Checkpoint, prefix: str, suffix: str) -> None:
    checkpoint.log(0, v1(text(5)), complete=True)
    assert CheckpointLog(f"{prefix}{checkpoint.root}{suffix}").is_complete(offset(5).to_json())


def test_a_checkpoint_that_spark_has_not_made_yet(tmp_path: Path) -> None:
    assert not CheckpointLog(str(tmp_path / "later")).is_complete(offset(5).to_json())


@pytest.mark.parametrize("location", ["nosuchscheme://bucket/x", "file://relative"])
def test_an_unreadable_location_is_reported_and_says_nothing(location: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert not CheckpointLog(location).is_complete(offset(5).to_json())
    assert f"checkpointLocation={location}" in caplog.text


def test_a_damaged_entry_is_reported_and_says_nothing(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    (checkpoint.root / "offsets" / "0").write_bytes(b"\xff\xfe")
    with caplog.at_level(logging.WARNING):
        assert not CheckpointLog(str(checkpoint.root)).is_complete(offset(5).to_json())
    assert "checkpoint not readable" in caplog.text
