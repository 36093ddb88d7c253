"""What a timeline has of the lines of metrics files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_groupsource.errors import CommandError
from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.timeline.events import EventLine, MetricsFile, line_of, timeline_of
from spark_groupsource.timeline.files import read_files
from spark_groupsource.timeline.model import Block, EventMark, LagPoint, MarkKind, PeriodKind, Timeline, thinned
from spark_groupsource.timeline.page import hover_text

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def line(at: float, event: str, query: str, *partitions: TopicPartition, **details: Any) -> EventLine:
    """Return an event of a query, which is one process."""
    return EventLine(at, event, "shop", ord(query), partitions, details)


def files(*lines: EventLine) -> list[MetricsFile]:
    """Return a file per query."""
    names = {chr(one.process): None for one in lines}
    return [MetricsFile(name, tuple(one for one in lines if chr(one.process) == name)) for name in names]


def periods(timeline: Timeline, kind: PeriodKind, lane: object) -> list[tuple[str, float, float]]:
    """Return (query, start, end) of a lane's periods of one kind."""
    return [(one.query, one.start, one.end) for one in timeline.periods if (one.kind, one.lane) == (kind, lane)]


def marks(timeline: Timeline, kind: MarkKind) -> list[tuple[object, float]]:
    """Return (lane, time) of the marks of one kind."""
    return [(mark.lane, mark.at) for mark in timeline.marks if mark.kind is kind]


def test_a_handover_with_its_drain() -> None:
    found = timeline_of(files(
        line(0, "started", "a"), line(1, "assigned", "a", P0, P1), line(5, "revoking", "a", P1),
        line(7, "revoked", "a", P1, outcome="COMPLETE", drain_ms=2000), line(9, "left", "a", outcome="COMPLETE"),
        line(4, "started", "b"), line(7.5, "assigned", "b", P1), line(9, "left", "b"),
    ))  # fmt: skip
    assert found.lanes() == ("a", "b", P0, P1)
    assert periods(found, PeriodKind.OWNED, P1) == [("a", 1, 7), ("b", 7.5, 9)]
    assert periods(found, PeriodKind.DRAIN, P1) == [("a", 5, 7)]
    assert periods(found, PeriodKind.SILENT, P1) == []
    assert marks(found, MarkKind.HANDOVER) == [(P1, 7.5)]
    (mark,) = [mark for mark in found.marks if mark.kind is MarkKind.HANDOVER]
    assert "a -> b, 0.5 s without an owner" in mark.text
    assert "drain_ms=2000" in mark.text


def test_a_killed_query_is_silent_until_its_partition_is_taken_over() -> None:
    found = timeline_of(files(
        line(0, "started", "a"), line(1, "assigned", "a", P0), line(3, "completed", "a", records=5, batch_ms=500),
        line(2, "started", "b"), line(9, "assigned", "b", P0), line(12, "left", "b"),
    ))  # fmt: skip
    assert periods(found, PeriodKind.OWNED, P0) == [("a", 1, 3), ("b", 9, 12)]
    assert periods(found, PeriodKind.SILENT, P0) == [("a", 3, 9)]
    assert marks(found, MarkKind.TAKEOVER) == [(P0, 9)]
    assert found.blocks == (Block("a", "a", 2.5, 3, 5),)


def test_a_minute_ends_with_its_59th_second() -> None:
    found = timeline_of(files(line(0, "started", "a"), line(59.9996, "assigned", "a", P0), line(70, "started", "b")))
    (silent,) = [one for one in found.periods if one.kind is PeriodKind.SILENT and one.lane == "a"]
    assert silent.text == "a: no event since 00:01:00.000"


def test_a_loss_of_a_partition_that_was_never_assigned_has_a_lane() -> None:
    """Of a topic that was deleted while the query was stopped."""
    lost = line(2, "data_lost", "a", P1, ranges=[["orders", 1, 10, 20]])
    found = timeline_of(files(line(0, "started", "a"), line(1, "assigned", "a", P0), lost, line(3, "left", "a")))
    assert found.lanes() == ("a", P0, P1)
    assert marks(found, MarkKind.DATA_LOSS) == [("a", 2), (P1, 2)]
    assert found.subtitle.startswith("1 query, 2 partitions")


def test_a_loss_is_shown_with_its_ranges_on_the_partition() -> None:
    lost = line(2, "data_lost", "a", P0, ranges=[["orders", 0, 10, 20]], reason="the topic was deleted")
    found = timeline_of(files(line(0, "started", "a"), line(1, "assigned", "a", P0), lost, line(3, "left", "a")))
    assert marks(found, MarkKind.DATA_LOSS) == [("a", 2), (P0, 2)]
    assert found.subtitle.endswith("1 x data loss")
    assert [mark.text for mark in found.marks if mark.lane == P0] == ["a: data_lost orders-0 [10, 20)"]


@pytest.mark.parametrize(
    "text",
    [
        "sasl.password=canary-1",
        'kafka.sasl.jaas.config = "canary-1 x"',
        "Authorization: Bearer canary-1",
        "https://user:canary-1@registry:8081/x",
        "token: eyJjYW5hcnktMQcanary-1.abc",
    ],
)
def test_texts_have_no_secret(text: str) -> None:
    assert "canary" not in hover_text(f"it failed: {text}, twice", 0.0)


@pytest.mark.parametrize("value", [None, [], {}, {"at": True, "event": "x"}, {"at": 1}, {"at": "1", "event": "x"}])
def test_what_is_no_line_is_left_out(value: object) -> None:
    assert line_of(value) is None


@pytest.mark.parametrize("at", ["NaN", "Infinity", "-Infinity", "1e400", "1e15", "-1", "1" + "0" * 400])
def test_a_time_without_a_date_is_left_out(at: str) -> None:
    assert line_of(json.loads(f'{{"at": {at}, "event": "started"}}')) is None


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1", "true", "1" + "0" * 400])
def test_a_duration_that_is_none_is_left_out(number: str) -> None:
    completed = json.loads(f'{{"records": 5, "batch_ms": {number}}}')
    lag = json.loads(f'{{"total": {{"records": 7, "behind_s": {number}}}}}')
    found = timeline_of(files(
        line(0, "started", "a"), line(2, "completed", "a", **completed), line(3, "lag", "a", **lag),
    ))  # fmt: skip
    assert [(block.start, block.end) for block in found.blocks] == [(2, 2)]
    assert [(point.records, point.behind_s) for point in found.lag[:1]] == [(7, None)]


def test_many_batches_are_joined_and_none_is_dropped() -> None:
    blocks = tuple(Block("a", "a", at / 10, at / 10 + 0.05, 3) for at in range(100_000))
    points = tuple(LagPoint("a", at / 10, at) for at in range(100_000))
    errors = tuple(EventMark(MarkKind.ERROR, "a", at / 10, "x") for at in range(1_000))
    found = thinned(Timeline("t", "", 0, 10_000, ("a",), (), (), blocks, errors, points))
    assert found.elements() <= 20_000
    assert (sum(b.batches for b in found.blocks), sum(b.records for b in found.blocks)) == (100_000, 300_000)
    assert sum(mark.count for mark in found.marks) == 1_000
    assert max(point.records or 0 for point in found.lag) == 99_999


def written(path: Path, group: str) -> Path:
    """Write a metrics file of a group, whose last line is not complete."""
    value = {"at": 1.0, "event": "started", "group": group, "pid": 1, "lineage": "L", "partitions": [], "details": {}}
    path.write_text(json.dumps(value) + '\n{"at": 2.0, "ev')
    return path


def test_files_of_two_groups_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path / "a.json", "shop"), written(tmp_path / "b.json", "other")]
    assert [len(file.lines) for file in read_files(paths[:1])] == [1]
    with pytest.raises(CommandError, match=r"SEVERAL_GROUPS.*other, shop"):
        read_files(paths)


def test_a_file_without_a_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("hello\n")
    with pytest.raises(CommandError, match=r"FILE_FAILED.*no line of a metrics file"):
        read_files([tmp_path / "a.json"])


def test_a_file_that_is_missing_is_named_as_given(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"FILE_FAILED.*/a\.json' cannot be read: No such file"):
        read_files([tmp_path / "a.json"])


def test_a_file_that_is_renamed_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    path, older = tmp_path / "a.json", tmp_path / "a.json.1"
    text = json.dumps({"at": 1.0, "event": "started", "group": "shop", "lineage": "L", "pid": 1, "partitions": []})
    path.write_text(f"{text}\n" * 2)
    older.write_text(f"{text}\n" * 3)

    def rename(_step: str) -> None:
        if path.read_text().count("\n") == 2:
            path.replace(older)
            path.write_text(f"{text}\n")

    assert [len(file.lines) for file in read_files([path], rename)] == [5]
    path.unlink()
    assert [len(file.lines) for file in read_files([path])] == [2]


def whole(path: Path, lineage: str, *, at: float = 1.0) -> Path:
    """Write a metrics file of a query with one batch."""
    lines = ({"event": "started"}, {"event": "assigned", "partitions": [["orders", 0]]},
             {"event": "completed", "details": {"records": 5, "batch_ms": 100}})  # fmt: skip
    common = {"group": "shop", "pid": ord(lineage), "lineage": lineage}
    path.write_text("".join(json.dumps({"at": at + n, **common, **one}) + "\n" for n, one in enumerate(lines)))
    return path


def test_the_older_part_is_not_read_twice_if_it_is_named_too(tmp_path: Path) -> None:
    paths = [whole(tmp_path / "a.json", "a", at=9.0), whole(tmp_path / "a.json.1", "a")]
    link = tmp_path / "link.json.1"
    link.symlink_to(paths[1])
    for given in (paths, paths[::-1], [*paths, link]):
        found = read_files(given)
        assert [(file.name, len(file.lines)) for file in found] == [("a", 6)]
        assert timeline_of(found).subtitle == "1 query, 1 partition, 2 batches, 10 records, 0 handovers"
    assert [(file.name, len(file.lines)) for file in read_files(paths[1:])] == [("a.json", 3)]


def test_files_whose_names_differ_only_in_the_ending_are_two_queries(tmp_path: Path) -> None:
    paths = [whole(tmp_path / "m.host1", "a"), whole(tmp_path / "m.host2", "b"), whole(tmp_path / "m.host1.log", "c")]
    assert timeline_of(read_files(paths)).queries == ("m.host1", "m.host2", "m.host1.log")
    (tmp_path / "x").mkdir()
    folders = [paths[0], whole(tmp_path / "x" / "m.host1", "b")]
    assert timeline_of(read_files(folders)).queries == (f"{tmp_path.name}/m", "x/m")


@pytest.mark.parametrize("folder", ["/", ".", "..", "/tmp"])
def test_a_folder_is_refused(folder: str) -> None:
    with pytest.raises(CommandError, match=r"FILE_FAILED.*cannot be read: Is a directory"):
        read_files([Path(folder)])
