"""Draw a run as a page: that of `groupkafka timeline`, with a lane of faults above the others, and a band for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_groupsource.timeline.model import Timeline, axis_time
from spark_groupsource.timeline.page import SERIOUS, Rows, escaped, figure_of, hover_text, html_of
from tests.faults.history import Fault

_CLEAN = "#455a64"
# Labels: size of a row, most rows, mean width of a character, and the width of the lanes on a small screen.
_LABEL_PX, _LABEL_ROWS, _CHARACTER_PX, _LANES_PX = 13, 8, 5.2, 1100
_LEAST_PX = 30


def page_of(timeline: Timeline, faults: Sequence[Fault]) -> str:
    """Return the page. Raises `CommandError` if plotly is not installed."""
    return html_of(drawn(timeline, faults), timeline.title)


def drawn(timeline: Timeline, faults: Sequence[Fault]) -> Any:
    """Return plotly's figure."""
    figure, rows = figure_of(timeline)
    if faults:
        _add_lane(figure, rows, timeline, faults)
    for fault in faults:
        figure.add_shape(
            type="rect", xref="x", yref="y domain", y0=0, y1=1, layer="below", opacity=0.1,
            x0=axis_time(fault.started_at), x1=axis_time(fault.recovered_at),
            line_width=0, fillcolor=_CLEAN if fault.clean else SERIOUS,
        )  # fmt: skip
    return figure


def _add_lane(figure: Any, rows: Rows, timeline: Timeline, faults: Sequence[Fault]) -> None:
    import plotly.graph_objects as go

    places = _placed(timeline, faults)
    count = 1 + max(places)
    # In the unit of the axis, which is 0 at the top of the first lane.
    height = max(_LEAST_PX, count * _LABEL_PX) / rows.unit_px
    axis = figure.layout.yaxis
    figure.update_layout(height=figure.layout.height + height * rows.unit_px)
    axis.update(
        range=[rows.height, -height], tickvals=[-height / 2, *axis.tickvals], ticktext=["faults", *axis.ticktext]
    )
    for is_clean, colour, name in ((False, SERIOUS, "fault"), (True, _CLEAN, "clean fault")):
        marks = [(fault, row) for fault, row in zip(faults, places, strict=True) if fault.clean is is_clean]
        if marks:
            figure.add_trace(go.Scatter(
                mode="markers+text", name=name, x=[axis_time(fault.started_at) for fault, _ in marks],
                y=[-height * (1 - (row + 0.5) / count) for _, row in marks],
                hoverinfo="text", hovertext=[_hover(name, fault) for fault, _ in marks],
                text=[escaped(label_of(fault)) for fault, _ in marks], cliponaxis=True,
                textposition=[_side(timeline, fault) for fault, _ in marks], textfont={"size": 9, "color": colour},
                marker={"symbol": "triangle-down", "color": colour, "size": 9,
                        "line": {"width": 1.4, "color": colour}},
            ), row=1, col=1)  # fmt: skip


def label_of(fault: Fault) -> str:
    """Return what a fault did, and to whom."""
    return f"{fault.kind} {fault.target}"


def _hover(name: str, fault: Fault) -> str:
    took = f"recovered in {fault.recovered_at - fault.started_at:.1f} s"
    return hover_text(f"{name}: {fault.number} {label_of(fault)}, {took}", fault.started_at)


def _placed(timeline: Timeline, faults: Sequence[Fault]) -> list[int]:
    """Return the row of each fault's label: labels in one row would cover each other."""
    ends: list[float] = []  # of the last label in each row
    rows: dict[int, int] = {}
    for start, end, number in sorted((*_span(timeline, fault), number) for number, fault in enumerate(faults)):
        row = next((number for number, last in enumerate(ends) if last <= start), len(ends))
        if row == _LABEL_ROWS:
            row = ends.index(min(ends))
        ends[row:] = [end, *ends[row + 1 :]]
        rows[number] = row
    return [rows[number] for number in range(len(faults))]


def _span(timeline: Timeline, fault: Fault) -> tuple[float, float]:
    """Return from when to when a fault's label reaches, as a page on a small screen shows it."""
    at, seconds = fault.started_at, max(timeline.end - timeline.start, 1.0)
    width = seconds * (_CHARACTER_PX * len(label_of(fault)) + 16) / _LANES_PX
    # At the right end there is room on the left only.
    return (at - width, at) if at + width > timeline.end else (at, at + width)


def _side(timeline: Timeline, fault: Fault) -> str:
    return "middle left" if _span(timeline, fault)[0] < fault.started_at else "middle right"
