"""Draws the benchmark's ratios as SVG text, with no library: a bar per figure, from nothing to how much better it is.

The paper is part of the picture, so that it is legible on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from tests.benchmarks.report import ADD_BATCH, CPU, OURS, PEAK, TRIGGER, WHOLE_QUERY, Comparison

WIDTH = 960
LEFT, RIGHT, TOP = 350, 60, 84
ROW, HEAD = 19, 26
_BAR = 12
# Told apart by colour-blind people too (Okabe and Ito).
_AHEAD, _BEHIND, _INK, _GREY, _PAPER, _LINE = "#0072b2", "#d55e00", "#1f2328", "#57606a", "#fcfcfd", "#d8dee4"
# The groups of the picture: what a bar is, of which cases, and of which metric. New records are left out: there
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
_MOST = 6.0  # longer bars are cut off


def draw(comparisons: Sequence[Comparison], title: str) -> str:
    """Return the chart. `title` says what was measured on what."""
    parts = [(name, rows) for name, rows in _grouped(comparisons) if rows]
    bars = [one for _, rows in parts for one in rows]
    most = min(_MOST, max([1.0, *(one.ratio or 0.0 for one in bars), *(one.ours.goal or 0.0 for one in bars)]))
    scale = (WIDTH - LEFT - RIGHT) / most
    bottom = TOP + HEAD * len(parts) + ROW * len(bars)
    height = bottom + 40
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
        f' viewBox="0 0 {WIDTH} {height}" font-family="Verdana, DejaVu Sans, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{_PAPER}"/>',
        *_head(title),
        *_axis(most, scale, bottom),
    ]
    y = TOP
    for name, rows in parts:
        drawn.append(_text(14, y + 17, name, 12, more=' font-weight="bold"'))
        y += HEAD
        for one in rows:
            drawn += _bar(one, y, scale)
            y += ROW
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _grouped(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, list[Comparison]]]:
    for name, groups, metric in _PARTS:
        ordered = [
            one
            for group in groups
            for one in comparisons
            if one.ours.subject.group == group and one.ours.metric == metric and one.ratio is not None
        ]
        yield name, ordered


def _text(x: float, y: float, text: str, size: float = 11, fill: str = _INK, *, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}"{more}>{escape(text)}</text>'


def _head(title: str) -> Iterator[str]:
    yield _text(14, 24, f"{OURS}: how many times better than Spark's own Kafka source", 15, more=' font-weight="bold"')
    yield _text(14, 42, title, 9.5, _GREY)
    x = 14.0
    for shape, name in (
        (f'<rect x="{{x}}" y="52" width="12" height="12" fill="{_AHEAD}"/>', "ahead"),
        (f'<rect x="{{x}}" y="52" width="12" height="12" fill="{_BEHIND}"/>', "behind"),
        (f'<path d="M{{x}} 52m6 0v12" stroke="{_INK}" stroke-width="2"/>', "the ratio aimed at (not measured)"),
    ):
        yield shape.format(x=f"{x:g}")
        yield _text(x + 16, 62, name, fill=_GREY)
        x += 34 + 7 * len(name)


def _axis(most: float, scale: float, bottom: int) -> Iterator[str]:
    """Yield a line for every step, a strong one where both sources are equal."""
    step = next((size for size in (0.5, 1.0, 2.0, 5.0, 10.0) if most / size <= 12), 50.0)
    for number in range(math.floor(most / step) + 1):
        x = round(LEFT + number * step * scale, 1)
        yield f'<path d="M{x:g} {TOP}V{bottom}" stroke="{_LINE}"/>'
        yield _text(x, bottom + 16, f"{number * step:g}", 10, _GREY, more=' text-anchor="middle"')
    x = round(LEFT + scale, 1)
    yield f'<path data-line="1" d="M{x:g} {TOP - 4}V{bottom}" stroke="{_GREY}" stroke-width="1.5"/>'
    yield _text(x, TOP - 8, "as Spark's own", 10, _GREY, more=' text-anchor="middle"')
    yield _text(WIDTH - 14, bottom + 32, "longer is better", 10, _GREY, more=' text-anchor="end"')


def _bar(one: Comparison, y: int, scale: float) -> Iterator[str]:
    ratio, name = one.ratio or 0.0, one.ours.subject.name
    for words in _SHORTER:
        name = name.replace(words, "")
    end = round(LEFT + min(ratio, _MOST) * scale, 1)
    colour = _AHEAD if ratio >= 1 else _BEHIND
    yield f'<g data-ratio="{ratio:.2f}"><title>{escape(f"{one.ours.subject.name}, {one.ours.metric}")}</title>'
    yield _text(LEFT - 8, y + 10, name, 10, more=' text-anchor="end"')
    yield f'<rect x="{LEFT}" y="{y}" width="{end - LEFT:g}" height="{_BAR}" fill="{colour}"/>'
    if ratio > _MOST:
        yield f'<path d="M{end - 14:g} {y + _BAR + 2}l6 -{_BAR + 4}" stroke="{_PAPER}" stroke-width="3"/>'
    marks = [LEFT + scale]
    if one.ours.goal is not None:
        goal = round(LEFT + one.ours.goal * scale, 1)
        yield f'<path data-goal="{one.ours.goal:g}" d="M{goal:g} {y - 2}v{_BAR + 4}" stroke="{_INK}" stroke-width="2"/>'
        marks.append(goal)
    label = max([end, *(mark for mark in marks if end - 4 < mark < end + 34)])  # no line crosses the number
    yield _text(label + 5, y + 10, f"{ratio:.2f}", more=' font-weight="bold"')
    yield "</g>"
