"""Parts of the fault rig that need no broker: the mix of options, and the archive of Spark's logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.__main__ import CLUSTER_FAULTS, CLUSTER_PROTOCOLS, parse_arguments
from tests.faults.inject.kinds import CLUSTER_KINDS, KINDS, deal
from tests.faults.rig.fleet import Archive
from tests.faults.rig.rig import FLAVOURS, PROTOCOLS, flavour_of


def test_five_protocols_have_all_mixes() -> None:
    for seed in (0, 7, 123_456):
        assert {flavour_of(seed, place) for place in range(len(PROTOCOLS))} == set(FLAVOURS)


def test_a_smoke_run_has_every_kind() -> None:
    dealt = deal(3, list(PROTOCOLS), 70)
    assert {name for names in dealt.values() for name in names} == set(KINDS)


def test_a_cluster_run_has_every_kind_of_a_cluster_with_three_protocols() -> None:
    dealt = deal(3, CLUSTER_PROTOCOLS, CLUSTER_FAULTS, (), CLUSTER_KINDS)
    assert sum(map(len, dealt.values())) >= 60
    assert {name for names in dealt.values() for name in names} == set(CLUSTER_KINDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cluster", "--hours", "1"],
        ["--cluster", "--kinds", "broker-killed"],
        ["--kinds", "executor-killed"],
        [],
    ],
)
def test_what_the_command_line_refuses(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse_arguments(arguments)
    assert refused.value.code == 2


def test_a_cluster_run_takes_three_protocols_and_its_smoke_run_one() -> None:
    assert parse_arguments(["--cluster", "--runs", "5"]).protocol == "all"
    assert parse_arguments(["--cluster", "--smoke"]).protocol == "cooperative"


def _entry(log: Path, name: str, text: str, at: float) -> None:
    log.mkdir(parents=True, exist_ok=True)
    (log / name).write_text(text)
    os.utime(log / name, (at, at))


def test_the_archive_keeps_what_spark_purges_and_when_it_was_written(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    archive = Archive(tmp_path / "archive")
    try:
        archive.follow("q1#1", checkpoint)
        _entry(checkpoint / "offsets", "0", "plan", 5.0)
        _entry(checkpoint / "commits", "0", "done", 6.0)
        archive.look()
        (checkpoint / "offsets" / "0").unlink()
        _entry(checkpoint / "commits", "0", "done again", 9.0)
        archive.look()
    finally:
        archive.close()
    kept = archive.of("q1#1")
    assert (kept / "offsets" / "0").read_text() == "plan"
    assert (kept / "offsets" / "0").stat().st_mtime == 5.0
    assert (kept / "commits" / "0").stat().st_mtime == 6.0, "a second application completes a batch again"


def test_the_archive_keeps_an_entry_as_it_was_before_it_was_damaged(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    archive = Archive(tmp_path / "archive")
    try:
        archive.follow("q1#1", checkpoint)
        _entry(checkpoint / "offsets", "0", "plan", 5.0)
        archive.leave("q1#1")
        _entry(checkpoint / "offsets", "0", "pl", 6.0)
        _entry(checkpoint / "offsets", "1", "other", 7.0)
        archive.look()
        archive.follow("q1#1", checkpoint)
        archive.look()
    finally:
        archive.close()
    kept = archive.of("q1#1") / "offsets"
    assert (kept / "0").read_text() == "plan"
    assert (kept / "1").read_text() == "other"
