"""Parts of the fault rig that need no broker: the mix of options, and the archive of Spark's logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import __main__ as rig
from tests.faults.__main__ import CLUSTER_FAULTS, CLUSTER_PROTOCOLS, parse_arguments
from tests.faults.inject.kinds import CLUSTER_KINDS, GATE_KINDS, KINDS, NEAR_DUPLICATES, deal, kinds_of, spread
from tests.faults.rig.fleet import Archive, Fleet, Query
from tests.faults.rig.rig import FLAVOURS, GATE_SESSION_S, PROTOCOLS, Place, flavour_of
from tests.realkafka.jars import RealKafkaError
from tests.sparkcluster.daemons import SparkClusterError


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
        ["--gate", "--cluster"],
        ["--gate", "--smoke"],
        ["--gate", "--protocol", "all"],
        ["--gate", "--runs", "2"],
        ["--gate", "--faults", "5"],
        ["--gate", "--kinds", "app-starved"],
        [],
    ],
)
def test_what_the_command_line_refuses(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse_arguments(arguments)
    assert refused.value.code == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_gate_run_has_each_of_its_kinds_once(protocol: str) -> None:
    assert sorted(deal(1, [protocol], len(GATE_KINDS), (), GATE_KINDS)[protocol]) == sorted(GATE_KINDS)
    assert kinds_of(protocol, (), GATE_KINDS) == list(GATE_KINDS)


def test_what_the_gate_leaves_out_has_a_near_duplicate_in_it() -> None:
    assert KINDS.keys() - GATE_KINDS.keys() == NEAR_DUPLICATES.keys()
    assert set(NEAR_DUPLICATES.values()) <= GATE_KINDS.keys()
    assert len(GATE_KINDS.keys() & CLUSTER_KINDS.keys()) == 4


def test_faults_that_take_an_application_are_spread_and_keep_their_order() -> None:
    names = ["app-killed", "jvm-killed", *KINDS.keys() - {"app-killed", "jvm-killed", "app-ended"}, "app-ended"]
    order = spread(names)
    assert sorted(order) == sorted(names)
    assert order.index("app-killed") + 4 < order.index("jvm-killed")
    assert order.index("jvm-killed") + 4 < order.index("app-ended")
    others = [name for name in names if name.startswith(("cut-", "broker-"))]
    assert [name for name in order if name in others] == others
    assert spread(["broker-killed", "broker-restarted"]) == ["broker-killed", "broker-restarted"]


@pytest.mark.parametrize("seed", range(4))
def test_a_gate_run_is_one_mixed_fleet_with_a_pattern_and_a_short_session(seed: int, tmp_path: Path) -> None:
    given = parse_arguments(["--gate", "--seed", str(seed), "--out", str(tmp_path)])
    assert given.protocol == "cooperative"
    shape = rig.shape_of(given, seed, given.protocol, 1)
    assert (shape.place, shape.session_s, shape.flavour.pattern) == (Place.MIXED, GATE_SESSION_S, True)
    assert shape.rate == rig.GATE_RATE
    assert [shape.clustered(f"q{number + 1}") for number in range(shape.max_queries)] == [True, False, False]


def test_in_a_mixed_fleet_a_query_has_the_applications_and_the_tasks_of_its_place(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, {}, {}, lambda name: name == "q1", {"spark.master": "spark://127.0.0.1:7077"})
    try:
        queries = [Query(f"q{number}", tmp_path) for number in (1, 2, 3)]
        first, second, third = map(fleet.pool_of, queries)
        commands = [fleet._start_command(query, 1, {}) for query in queries]
    finally:
        fleet.close()
    assert first is not second
    assert second is third
    assert [command["shuffle"] for command in commands] == [True, False, False]
    assert ["minPartitions" in str(command["options"]) for command in commands] == [True, False, False]


@pytest.mark.parametrize("error", [RealKafkaError("no jars"), SparkClusterError("no PySpark")])
def test_a_run_without_its_brokers_or_its_cluster_fails(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_run(*_: object) -> str:
        raise error

    monkeypatch.setattr(rig, "run", no_run)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert rig.main(["--gate", "--seed", "1", "--out", str(tmp_path)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert "FAILED" in last
    assert str(error) in last


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
