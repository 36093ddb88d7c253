"""Draw the benchmark's ratios: a bar per figure, from nothing to how much better it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scripts.pictures import INK
from tests.benchmarks.report import ADD_BATCH, CPU, OURS, PEAK, TRIGGER, WHOLE_QUERY, Comparison
from tests.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that colour-blind people can distinguish (Okabe and Ito).
AHEAD, BEHIND = "#0072b2", "#d55e00"
_GREY, _LINE = "#57606a", "#d8dee4"
# The groups of the chart: what a bar is, of which cases, and of which metric. New records are left out: there
# Spark's own source waits for a time limit, which would dwarf all else.
_PARTS = (
    ("Throughput (time of addBatch), default settings", ("throughput",), ADD_BATCH),
    ("Throughput, short fetch wait for Spark's own", ("shortwait", "growth", "compression"), ADD_BATCH),
    ("Whole query, with start and stop", ("query",), WHOLE_QUERY),
    ("Small batches (time of the whole trigger)", ("backlog", "deep"), TRIGGER),
    ("CPU time for each record", ("throughput", "query"), CPU),
    ("Peak memory of an application", ("memory",), PEAK.format("all together")),
)
_SHORTER = (", an application of its own", "batches of a backlog, ", "batches of ", ", noop sink", ", short fetch wait")
MOST = 6.0  # longer bars are cut off
_HEAD = 1.4  # height of a group's title, in bars
_BAR_INCHES, _MARGIN_INCHES = 0.2, 1.2


def draw(comparisons: Sequence[Comparison], title: str) -> Figure:
    """Return the chart. `title` says what was measured on what."""
    parts = [(name, rows) for name, rows in _grouped(comparisons) if rows]
    bars = [one for _, rows in parts for one in rows]
    height = _BAR_INCHES * max(1.0, len(bars) + _HEAD * len(parts))
    whole = height + _MARGIN_INCHES
    figure = new_figure(9.6, whole)
    axes = figure.add_axes((0.36, _MARGIN_INCHES / 2 / whole, 0.6, height / whole))
    y, ticks = 0.0, {}
    for name, rows in parts:
        axes.text(-0.58, y + _HEAD / 2, name, transform=axes.get_yaxis_transform(), va="center", weight="bold", size=9)
        y += _HEAD
        for one in rows:
            ticks[y + 0.5] = _name(one)
            _bar(axes, one, y + 0.5)
            y += 1
    axes.set(xlim=(0, _most(bars) * 1.08), ylim=(max(y, 1.0), 0))
    axes.set_yticks(list(ticks), list(ticks.values()), size=8)
    axes.axvline(1, color=_GREY, linewidth=1.2, zorder=1.5)
    axes.grid(axis="x", color=_LINE)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=INK, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.patch.set_visible(False)
    axes.set_xlabel("1: as Spark's own; longer is better; |: the ratio aimed at (not measured)", size=8, color=_GREY)
    head = f"{OURS}: how many times better than Spark's own Kafka source"
    for text, above, size, weight in ((head, 30, 12, "bold"), (title, 16, 7, "normal")):
        axes.annotate(
            text, (-0.58, 1), (0, above), xycoords="axes fraction", textcoords="offset points", size=size, weight=weight
        )
    return figure


def _most(bars: Sequence[Comparison]) -> float:
    return min(MOST, max([1.0, *(one.ratio or 0.0 for one in bars), *(one.ours.goal or 0.0 for one in bars)]))


def _grouped(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    for name, groups, metric in _PARTS:
        ordered = [
            one
            for group in groups
            for one in comparisons
            if one.ours.subject.group == group and one.ours.metric == metric and one.ratio is not None
        ]
        yield name, ordered


def _name(one: Comparison) -> str:
    name = one.ours.subject.name
    for words in _SHORTER:
        name = name.replace(words, "")
    return name


def _bar(axes: Any, one: Comparison, y: float) -> None:
    """Add a bar with its ratio, and a tick at the ratio aimed at."""
    ratio, goal = one.ratio or 0.0, one.ours.goal
    end = min(ratio, MOST)
    axes.barh(y, end, height=0.62, color=AHEAD if ratio >= 1 else BEHIND)
    # No line crosses the number.
    right = max([end, *(mark for mark in (1.0, goal) if mark is not None and end - 0.05 < mark < end + 0.35)])
    text = f"{ratio:.2f}{', cut off' if ratio > MOST else ''}"
    axes.annotate(text, (right, y), (4, 0), textcoords="offset points", va="center", size=8, weight="bold")
    if goal is not None:
        axes.plot([goal, goal], [y - 0.45, y + 0.45], color=INK, linewidth=1.8, gid="goal")
