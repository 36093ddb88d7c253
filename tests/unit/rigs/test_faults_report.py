"""The table and the picture of a fault run."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from tests.faults import history as files
from tests.faults.__main__ import main
from tests.faults.draw.picture import draw
from tests.faults.draw.report import summary, table
from tests.faults.judge.checker import check
from tests.unit.rigs.histories import Story, large_story, two_members

SVG = "{http://www.w3.org/2000/svg}"


def drawn(story: Story) -> ElementTree.Element:
    history = story.history()
    return ElementTree.fromstring(draw(history, check(history)))


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_a_lane_per_partition_with_owners_batches_and_commits() -> None:
    lanes = {lane.get("data-lane"): lane for lane in drawn(two_members()).iter(f"{SVG}g") if lane.get("data-lane")}
    assert list(lanes) == ["orders-0", "orders-1"]
    for lane in lanes.values():
        frame, *owners = lane.findall(f"{SVG}rect")
        assert frame.get("fill") == "none"
        assert len({owner.get("fill") for owner in owners}) == 2
        # Blocks of two queries, and the commits.
        assert len(lane.findall(f"{SVG}path")) == 3


def test_a_killed_owner_ends_when_the_coordinator_removes_it() -> None:
    lane = next(lane for lane in drawn(two_members()).iter(f"{SVG}g") if lane.get("data-lane") == "orders-0")
    _, first, second = lane.findall(f"{SVG}rect")
    ended = float(first.get("x", 0)) + float(first.get("width", 0))
    assert ended < float(second.get("x", 0))


def test_title_legend_labels_and_axis() -> None:
    found = words(drawn(two_members()))
    assert "seed 7, cooperative, Kafka 4.1.1: 199 records, 6 batches, 1 faults, 19 records repeated" in found
    assert {"P1-P8 hold", "q1", "q2", "app-killed q1", "0 s", "55 s"} <= set(found)


def test_a_violation_is_in_the_title() -> None:
    story = two_members()
    del story.commits[-1]
    assert "VIOLATED: P4 (1)" in words(drawn(story))


def test_names_are_escaped() -> None:
    story = two_members()
    story.fault("<&", '"q1"', 20.0, 21.0)
    assert '<& "q1"' in words(drawn(story))


def test_an_empty_history_can_be_drawn() -> None:
    assert "history in doubt" in words(drawn(Story()))


def test_a_long_run_makes_a_small_picture() -> None:
    story = large_story(16_000, 4_000, 8)
    for n in range(60):
        story.fault("reader-paused-short", f"q{n % 2 + 1}", n * 15.0, n * 15.0 + 9)
    history = story.history()
    text = draw(history, check(history))
    assert len(text) < 400_000
    assert len([lane for lane in ElementTree.fromstring(text).iter() if lane.get("data-lane")]) == 8


def test_the_table() -> None:
    story = two_members()
    story.fault("app-killed", "q2", 20.0, 24.0, takeover_s=3.0, reads_on_s=3.5)
    story.fault("query-stopped", "q2", 30.0, 31.0, clean=True, takeover_s=0.5)
    story.fault("reader-killed", "q1", 40.0, 41.0, takeover_s=7.7)
    history = story.history()
    text = table(history, check(history))
    for line in (
        "app-killed         2              5.8 s   7.7 s",
        "4 faults of 3 kinds",
        "  across members after an unclean handover         19",
        "P1 no loss              holds",
        "partitions went: COMPLETE 1",
        "drain: median 0.25 s, worst 0.25 s (1)",
        "takeover after SIGKILL: median 5.35 s, worst 7.70 s (2)",
        "reading on after SIGKILL: median 3.50 s, worst 3.50 s (1)",
        "takeover after a clean stop: median 0.50 s, worst 0.50 s (1)",
    ):
        assert line in text, text


def test_the_table_names_the_first_violations() -> None:
    story = two_members()
    story.edit_rows("q1#1", 0, lambda rows: rows[1::2])
    history = story.history()
    text = table(history, check(history))
    assert "P1 no loss              VIOLATED (2)\n     orders-0: in no completed batch: [0, 1)" in text


def test_a_line_per_run() -> None:
    story = two_members()
    story.fault("app-killed", "q2", 20.0, 24.0, takeover_s=3.0)
    good = story.history()
    del story.commits[-1]
    bad = story.history()
    text = summary([("passed", good, check(good)), ("FAILED", bad, check(bad))])
    head, first, second, _, *kinds = text.splitlines()
    assert head.split() == [
        "run",
        "seed",
        "faults",
        "records",
        "lost",
        "doubled",
        "repeats",
        "takeover",
        "drain",
        "outcome",
    ]
    assert first.split() == ["cooperative", "7", "2", "199", "0", "0", "19", "3.0/3.0", "s", "0.2/0.2", "s", "passed"]
    assert second.split()[-2:] == ["FAILED", "P4"]
    assert kinds == ["   4 app-killed"]


def test_the_command_line(tmp_path, capsys) -> None:
    history = two_members().history()
    files.save(tmp_path, history)
    assert main(["--judge", str(tmp_path)]) == 0
    assert "P8 no silent loss       holds" in capsys.readouterr().out
    ElementTree.fromstring((tmp_path / "picture.svg").read_text())
    files.save(tmp_path, replace(history, log=history.log[:-1], produced=history.produced))
    assert main(["--judge", str(tmp_path)]) == 0  # read, and deleted since
    files.save(tmp_path, replace(history, batches=history.batches[:-1]))
    assert main(["--judge", str(tmp_path)]) == 1
