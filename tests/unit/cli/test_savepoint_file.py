"""The savepoint file: canonical text, a strict parser, and the stored forms of every version."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource.cli.savepoint_file import Saved, Savepoint, parse_savepoint, read_savepoint, write_savepoint
from spark_groupsource.errors import CommandError, OffsetFormatError
from spark_groupsource.model.commit_metadata import KnownTopics, Pin
from spark_groupsource.model.offsets import OFFSET_MAX, TIME_MAX_MS, TopicPartition
from tests.checkout import ROOT
from tests.unit.fakes import tp

GOLDEN = ROOT / "tests" / "golden"
HEX = KnownTopics(6, "05b5a1c43e7e", is_hex=True)
FULL = Savepoint(
    cluster="Rk7Pa7DOQuW63lb8d0Kd3A",
    group="shop",
    taken_ms=1_700_000_000_000,
    topic_ids={"refunds": "x-id", "orders": "Qw3zT0ynQ2uB8v7h1d2eZA"},
    partitions={
        TopicPartition("refunds", 0): Saved(3),
        tp(10): Saved(7, Pin(0, 12)),
        tp(0): Saved(150, Pin(90, 4, HEX)),
    },
)
# The stored texts are never edited: a release must read what an older one wrote.
NEW = replace(
    FULL,
    partitions={tp(0): Saved(150, Pin(90, 4, KnownTopics.of({"orders": "x-id"}))), tp(1): Saved(7, Pin(0, 4, HEX))},
    topic_ids={"orders": "Qw3zT0ynQ2uB8v7h1d2eZA"},
)
STORED = {"savepoint-v1.json": FULL, "savepoint-v2.json": NEW}


def test_every_golden_file_has_a_value() -> None:
    assert {path.name for path in GOLDEN.glob("savepoint-v*.json")} == set(STORED)


@pytest.mark.parametrize("name", sorted(STORED))
def test_golden_file(name: str) -> None:
    text = (GOLDEN / name).read_text()
    assert parse_savepoint(text) == STORED[name]
    assert STORED[name].to_text() == text


def document(**changes: Any) -> str:
    return json.dumps(json.loads(FULL.to_text()) | changes)


def partition(value: object) -> str:
    return document(topics={"orders": {"id": "x", "partitions": {"0": value}}})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is not JSON"),
        ("\x00", "it is not JSON"),
        ("[" * 100_000, "it is nested too deeply"),
        ("[]", "expected an object, found list"),
        ("{}", "missing keys ['cluster', 'group', 'taken_ms', 'topics', 'v']"),
        ('{"v":1,"v":1}', "duplicate keys"),
        (document(v=0), "unknown version 0"),
        (document(more=1), "unknown keys ['more']"),
        (document(cluster=""), "expected a text"),
        (document(group=5), "expected a text"),
        (document(taken_ms=-1), "expected an integer"),
        (document(taken_ms=TIME_MAX_MS + 1), "expected an integer"),
        (document(topics=[]), "'topics' is not an object"),
        (document(topics={"orders": {"id": "x"}}), "missing keys ['partitions']"),
        (document(topics={"orders": {"id": "", "partitions": {}}}), "expected a text"),
        (document(topics={"orders": {"id": "x", "partitions": {"00": {}}}}), "'00' is not a partition number"),
        (partition(5), "expected an object, found int"),
        (partition({"offset": 5}), "missing keys ['pin']"),
        (partition({"offset": -5, "pin": None}), "expected an integer"),
        (partition({"offset": float("nan"), "pin": None}), "expected an integer"),
        (partition({"offset": OFFSET_MAX + 1, "pin": None}), "expected an integer"),
        (partition({"offset": 5, "pin": 0}), "expected an object, found int"),
        (partition({"offset": 5, "pin": {"offset": 0}}), "missing keys ['count']"),
        (partition({"offset": 5, "pin": {"offset": 0, "count": 1, "known": 5}}), "expected digests"),
        (partition({"offset": 5, "pin": {"offset": 0, "count": 1, "known": "12345"}}), "expected digests"),
        (partition({"offset": 5, "pin": {"offset": 0, "count": 1, "known": "a" * 2406}}), "expected digests"),
        (partition({"offset": 5, "pin": {"offset": 0, "count": 1, "known": [12, "a" * 12]}}), "expected digests"),
        (document(v=2).replace('"05b5a1c43e7e"', '[12, "x"]'), "expected digests"),
    ],
)
def test_refused(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(CommandError, match="SAVEPOINT_INVALID") as raised:
        read_savepoint(path)
    assert reason in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_newer_version_is_named() -> None:
    with pytest.raises(OffsetFormatError, match=r"OFFSET_TOO_NEW.*stored savepoint has format version 3"):
        parse_savepoint(document(v=3, more=1))


def test_mutated_savepoints_are_refused_or_read_back_the_same() -> None:
    source = random.Random(50)
    text = FULL.to_text()
    refused = 0
    for _ in range(2000):
        at = source.randrange(len(text))
        mutated = text[:at] + source.choice(["", "0", "9", '"', "{", "]", ",", "null", "1e9"]) + text[at + 1 :]
        try:
            parsed = parse_savepoint(mutated)
        except OffsetFormatError:
            refused += 1
        else:
            assert parse_savepoint(parsed.to_text()) == parsed
    assert 300 < refused < 2000


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "friday.json"
    path.write_text("an older one")
    write_savepoint(path, FULL)
    assert read_savepoint(path) == FULL
    assert [entry.name for entry in tmp_path.iterdir()] == ["friday.json"]


@pytest.mark.parametrize(("name", "reason"), [("missing/friday.json", "No such file"), ("", "directory")])
def test_a_place_that_cannot_be_written(name: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CommandError, match=f"FILE_FAILED.*cannot be written: .*{reason}"):
        write_savepoint(tmp_path / "folder" / name, FULL)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_link_stays_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    there = tmp_path / "shared" / "friday.json"
    link = tmp_path / "latest.json"
    link.symlink_to(Path("shared") / "friday.json")
    for _ in ("the file does not exist", "it does"):
        write_savepoint(link, FULL)
        assert link.is_symlink()
        assert read_savepoint(there) == FULL
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["latest.json", "shared"]
    assert [entry.name for entry in there.parent.iterdir()] == ["friday.json"]


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(CommandError, match=r"FILE_FAILED.*cannot be written: Too many levels of symbolic links"):
        write_savepoint(tmp_path / "a", FULL)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_left_alone(through_a_link: bool, tmp_path: Path) -> None:
    """Also a device: as root, the command would replace /dev/null by a file."""
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if through_a_link:
        path = tmp_path / "link"
        path.symlink_to(pipe)
    with pytest.raises(CommandError, match=r"FILE_FAILED.*cannot be written: it is a pipe, a device or a socket"):
        write_savepoint(path, FULL)
    assert pipe.is_fifo()
    assert path.is_symlink() == through_a_link


def test_an_interrupt_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_savepoint(tmp_path / "friday.json", FULL)
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"FILE_FAILED.*cannot be read: No such file"):
        read_savepoint(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError, match=r"SAVEPOINT_INVALID.*it is not UTF-8 text"):
        read_savepoint(tmp_path / "binary")
