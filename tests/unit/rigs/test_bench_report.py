"""The tables, the words, the JSON and the chart of the benchmark."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tests import plots
from tests.benchmarks.__main__ import parse_arguments
from tests.benchmarks.chart import AHEAD, BEHIND, draw
from tests.benchmarks.report import (
    ADD_BATCH,
    BARE,
    CPU,
    OURS,
    PEAK,
    PEER,
    TRIGGER,
    Comparison,
    Series,
    Subject,
    bare_table,
    compare,
    growths,
    percentile,
    series_of,
    tables,
    verdict,
)

SVG = "{http://www.w3.org/2000/svg}"
FEW = Subject("throughput", "1,000 x 100 B, noop sink", 4, 1_000)
MANY = Subject("growth", "1,000 x 100 B, noop sink", 256, 1_000)
BATCHES = Subject("backlog", "batches of a backlog, 400 x 100 B", 1)
MEMORY = Subject("memory", "1,000 x 1 KB, noop sink, an application of its own", 4)


def pair(
    subject: Subject, metric: str, ours: list[float], peer: list[float], goal: float | None = None
) -> list[Series]:
    goals = {} if goal is None else {metric: goal}
    return [
        *series_of(subject, OURS, [{metric: value} for value in ours], goals),
        *series_of(subject, PEER, [{metric: value} for value in peer], goals),
    ]


def compared(*several: list[Series]) -> list[Comparison]:
    return compare([one for series in several for one in series])


def listed(text: str, place: str) -> list[str]:
    lines = text[text.index(f"**{place}") :].splitlines()[1:]
    end = next((n for n, line in enumerate(lines) if line.startswith("**")), len(lines))
    return [line for line in lines[:end] if line]


@pytest.mark.parametrize(("share", "expected"), [(50, 10), (95, 19), (100, 20), (1, 1)])
def test_a_percentile_is_one_of_the_values(share: float, expected: float) -> None:
    assert percentile([float(n) for n in range(20, 0, -1)], share) == expected


def test_medians_with_their_spread_ratio_goal_and_counts() -> None:
    text = tables(compared(pair(FEW, ADD_BATCH, [100, 300, 200], [900, 500, 600], goal=2.5)))
    case = "| 1,000 x 100 B, noop sink, 4 partitions |"
    assert f"{case} addBatch, ms | 200 (100 - 300) | 600 (500 - 900) | 3.00 | 2.50 | 3 / 3 |" in text.splitlines()
    assert f"{case} 5,000 | 1,667 |" in text.splitlines()


def test_many_values_have_a_95th_percentile() -> None:
    text = tables(compared(pair(BATCHES, TRIGGER, [float(n) for n in range(1, 101)], [100.0] * 100)))
    assert "| 50 (1 - 100), p95 95 | 100 (100 - 100), p95 100 |" in text
    assert "p95" not in tables(compared(pair(BATCHES, TRIGGER, [1, 2, 3], [1, 2, 3])))


def test_no_ratio_by_nothing() -> None:
    found = compared(pair(BATCHES, TRIGGER, [0, 0], [1, 1]))
    assert found[0].ratio is None
    assert "| - |" in tables(found)
    assert "batches" not in verdict(found)


def test_ahead_level_and_behind() -> None:
    text = verdict(
        compared(
            pair(FEW, ADD_BATCH, [100, 101, 102], [300, 290, 310], goal=3.0),
            pair(FEW, CPU, [1.0, 1.1, 1.2], [1.08, 1.09, 1.1], goal=2.0),
            pair(BATCHES, TRIGGER, [142, 99, 206], [130, 93, 169]),
        )
    )
    assert listed(text, "Ahead") == [
        "- 1,000 x 100 B, noop sink, 4 partitions, addBatch: 2.97 x; goal 3.00 NOT reached"
    ]
    assert listed(text, "Level") == [
        "- 1,000 x 100 B, noop sink, 4 partitions, CPU: 0.99 x; the spreads overlap; goal 2.00 NOT reached"
    ]
    assert listed(text, "Behind") == [
        "- batches of a backlog, 400 x 100 B, 1 partition, whole trigger: 0.92 x, 12 ms more; the spreads overlap"
    ]


@pytest.mark.parametrize(
    ("ours", "place", "said"),
    [
        (500.0, "Ahead", "-100 MB; goal +200 MB reached"),
        (610.0, "Level", "+10 MB; goal +200 MB reached"),
        (800.0, "Behind", "+200 MB; goal +200 MB reached"),
        (801.0, "Behind", "+201 MB; goal +200 MB NOT reached"),
    ],
)
def test_memory_is_judged_by_its_difference(ours: float, place: str, said: str) -> None:
    found = compared(
        pair(MEMORY, PEAK.format("all together"), [ours], [600.0]), pair(MEMORY, PEAK.format("JVM"), [1.0], [600.0])
    )
    lines = listed(verdict(found), place)
    assert len(lines) == 1  # its parts are in the table only
    assert lines[0].endswith(said)
    assert f"| {ours - 600:+,.0f} MB | +200 MB |" in tables(found)


def test_growth_from_the_fewest_to_the_most_partitions() -> None:
    middle = Subject("throughput", FEW.what, 64, 1_000)
    found = compared(
        pair(MANY, ADD_BATCH, [200], [400]), pair(FEW, ADD_BATCH, [100], [100]), pair(middle, ADD_BATCH, [1], [1])
    )
    assert [(one.fewest, one.most, one.ours, one.peer) for one in growths(found)] == [(4, 256, 0.5, 0.25)]
    assert "| 1,000 x 100 B, noop sink | 4 to 256 | 50% | 25% |" in tables(found)
    assert any("4 to 256 partitions: 50% of the throughput" in line for line in listed(verdict(found), "Ahead"))


def test_the_source_without_kafka_stands_beside_both_and_is_not_compared() -> None:
    bare = series_of(FEW, BARE, [{ADD_BATCH: 50.0}, {ADD_BATCH: 70.0}])
    both = pair(FEW, ADD_BATCH, [100], [250])
    assert compare([*both, *bare]) == compare(both)
    assert bare_table([*both, *bare]).splitlines()[-1] == f"| {FEW.name} | {ADD_BATCH} | 60 (50 - 70) | 100 | 250 |"
    assert bare_table(bare).splitlines()[-1].endswith("| - | - |")
    assert bare_table(both) == ""


# --- the chart


def chart_text(figure: Figure, path: Path) -> list[str]:
    """Return the texts of a chart's SVG."""
    plots.save(figure, path)
    return ["".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text")]


def test_a_bar_per_ratio_and_a_tick_per_goal(tmp_path: Path) -> None:
    figure = draw(
        compared(
            pair(FEW, ADD_BATCH, [100], [250], goal=3.0),
            pair(BATCHES, TRIGGER, [100], [80]),
            pair(MEMORY, PEAK.format("all together"), [200], [100]),
            pair(MEMORY, PEAK.format("JVM"), [1], [1]),
        ),
        "a < b & c",
    )
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [2.5, 0.8, 0.5]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == [AHEAD, BEHIND, BEHIND]
    assert [list(line.get_xdata()) for line in axes.lines if line.get_gid() == "goal"] == [[3.0, 3.0]]
    assert {"a < b & c", "2.50", "0.80", "0.50"} <= set(chart_text(figure, tmp_path / "chart.svg"))


def test_a_chart_without_matplotlib_is_refused_before_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(plots, "is_installed", lambda: False)
    with pytest.raises(SystemExit):
        parse_arguments(["--chart", str(tmp_path / "chart.svg")])
    assert "pip install 'groupkafka[plots]'" in capsys.readouterr().err
