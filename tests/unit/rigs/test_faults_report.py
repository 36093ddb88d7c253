"""The table and the picture of a fault run."""

from __future__ import annotations

import sys
from dataclasses import replace

from spark_groupsource.model.offsets import TopicPartition
from spark_groupsource.timeline.model import MAX_ELEMENTS, MarkKind, Period, Timeline, thinned
from tests.faults import history as files
from tests.faults.__main__ import main
from tests.faults.draw import page
from tests.faults.draw.picture import timeline_of
from tests.faults.draw.report import table
from tests.faults.judge.checker import check
from tests.unit.rigs.histories import Story, large_story, two_members


def drawn(story: Story) -> Timeline:
    history = story.history()
    return timeline_of(history, check(history))


def owners(timeline: Timeline, number: int) -> list[Period]:
    lane = TopicPartition("orders", number)
    return [period for period in timeline.periods if period.lane == lane]


def test_a_lane_per_partition_with_owners_batches_and_commits() -> None:
    timeline = drawn(two_members())
    assert timeline.lanes() == ("q1", "q2", TopicPartition("orders", 0), TopicPartition("orders", 1))
    for number in range(2):
        lane = TopicPartition("orders", number)
        assert {period.query for period in owners(timeline, number)} == {"q1", "q2"}
        assert {block.query for block in timeline.blocks if block.lane == lane} == {"q1", "q2"}
        assert [mark for mark in timeline.marks if mark.kind is MarkKind.COMMIT and mark.lane == lane]


def test_faults_have_a_lane_and_a_band_until_the_group_has_recovered() -> None:
    story = two_members()
    figure = page.drawn(drawn(story), story.history().faults)
    (fault,) = (trace for trace in figure.data if trace.name == "fault")
    assert fault.text == ("app-killed q1",)
    assert figure.layout.yaxis.ticktext == ("faults", "<b>q1</b>", "<b>q2</b>", "orders-0", "orders-1")
    bottom, top = figure.layout.yaxis.range
    assert bottom > 0 > fault.y[0] > top, "the lane is above the others"
    (band,) = figure.layout.shapes
    assert band.fillcolor == fault.marker.color
    assert band.x0 == fault.x[0] < band.x1


def test_a_violation_is_in_the_title() -> None:
    story = two_members()
    del story.commits[-1]
    assert drawn(story).subtitle == "VIOLATED: P4 (1)"


def test_a_long_run_makes_a_small_picture() -> None:
    story = large_story(16_000, 4_000, 8)
    for n in range(60):
        story.fault("reader-paused-short", f"q{n % 2 + 1}", n * 15.0, n * 15.0 + 9)
    timeline = drawn(story)
    found = thinned(timeline)
    assert found.elements() <= MAX_ELEMENTS < timeline.elements()
    written = page.page_of(timeline, story.history().faults)
    assert len(written) - len(page.page_of(drawn(Story()), ())) < 3_000_000


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


def test_the_command_line(tmp_path, capsys) -> None:
    history = two_members().history()
    files.save(tmp_path, history)
    assert main(["--judge", str(tmp_path)]) == 0
    assert "P8 no silent loss       holds" in capsys.readouterr().out
    assert "app-killed q1" in (tmp_path / "timeline.html").read_text()
    files.save(tmp_path, replace(history, log=history.log[:-1], produced=history.produced))
    assert main(["--judge", str(tmp_path)]) == 0  # read, and deleted since
    files.save(tmp_path, replace(history, batches=history.batches[:-1]))
    assert main(["--judge", str(tmp_path)]) == 1


def test_without_plotly_a_run_is_judged_and_has_no_picture(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    files.save(tmp_path, two_members().history())
    assert main(["--judge", str(tmp_path)]) == 0
    assert "no picture: " in (said := capsys.readouterr().out)
    assert "pip install '.[timeline]'" in said
    assert (tmp_path / "table.txt").exists()
    assert not (tmp_path / "timeline.html").exists()
