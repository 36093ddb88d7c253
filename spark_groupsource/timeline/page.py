"""Draw a timeline as one HTML page with plotly, whose JavaScript is part of the page: it makes no request.

plotly is the extra `timeline`. It is imported here, when a page is drawn, and nowhere else.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from spark_groupsource import errors
from spark_groupsource.errors import CommandError
from spark_groupsource.redaction import masked_foreign
from spark_groupsource.timeline.model import (
    Block,
    EventMark,
    LagPoint,
    Lane,
    MarkKind,
    Period,
    PeriodKind,
    Timeline,
    axis_time,
    clock_time,
    thinned,
)

# Colours that colour-blind people can distinguish (Okabe and Ito), without the red of losses, `SERIOUS`.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8c6d31", "#7f7f7f", "#b5bd00")
SERIOUS = "#c62828"
_INK, _PAPER, _GRID = "#1f2328", "#ffffff", "#e7ebef"
# Symbol, colour and size of each kind of mark.
_MARKS: dict[MarkKind, tuple[str, str, int]] = {
    MarkKind.HANDOVER: ("triangle-right", _INK, 9),
    MarkKind.TAKEOVER: ("triangle-right-open", SERIOUS, 10),
    MarkKind.LOST: ("x", SERIOUS, 8),
    MarkKind.CONFLICT: ("diamond", "#8250df", 10),
    MarkKind.DATA_LOSS: ("square-x", SERIOUS, 9),
    MarkKind.REFUSED: ("circle-open", "#9a6700", 8),
    MarkKind.DOUBT: ("circle-x-open", "#9a6700", 8),
    MarkKind.ERROR: ("star", SERIOUS, 11),
    MarkKind.REPLAY: ("triangle-left", "#8250df", 9),
    MarkKind.LIFE: ("line-ns-open", _INK, 11),
    MarkKind.COMMIT: ("line-ns-open", _INK, 5),
}
# Height of a lane in pixels, for up to this many lanes.
_LANE_PX = ((12, 34), (24, 26), (64, 18), (math.inf, 11))
_QUERY_PX = 30
_LAG_PX, _TOP_PX, _BOTTOM_PX = 170, 120, 50
# The page needs neither a network nor plugins. plotly shows images of its own as data: and blob: addresses.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; form-action 'none'"
)


def page_of(timeline: Timeline) -> str:
    """Return the page. Raises `CommandError` if plotly is not installed."""
    return html_of(figure_of(timeline)[0], timeline.title)


def figure_of(timeline: Timeline) -> tuple[Any, Rows]:
    """Return plotly's figure, and where its lanes are. Raises `CommandError` if plotly is not installed."""
    try:
        import plotly.graph_objects as go  # noqa: PLC0415 - an extra
        from plotly.subplots import make_subplots  # noqa: PLC0415
    except ImportError:
        raise CommandError(
            errors.COMMAND_EXTRA_MISSING, command="timeline", package="plotly", extra="timeline"
        ) from None
    timeline = thinned(timeline)
    rows = Rows(timeline.lanes())
    lanes_px = max(90.0, rows.height * rows.unit_px)
    lag_px = _LAG_PX if timeline.lag else 0
    figure = make_subplots(
        rows=2 if lag_px else 1, cols=1, shared_xaxes=True,
        row_heights=[lanes_px, lag_px] if lag_px else [lanes_px], vertical_spacing=40 / (lanes_px + lag_px + 40),
    )  # fmt: skip
    for trace in (*_bars(timeline, rows), *_marks(timeline, rows)):
        figure.add_trace(getattr(go, trace.pop("kind"))(**trace), row=1, col=1)
    for trace in _lag(timeline):
        figure.add_trace(go.Scatter(**trace), row=2, col=1)
    figure.update_layout(**_layout(timeline, lanes_px + lag_px + 40))
    figure.update_xaxes(
        type="date", range=[axis_time(timeline.start), axis_time(max(timeline.end, timeline.start + 1))],
        gridcolor=_GRID, showticklabels=True,
    )  # fmt: skip
    figure.update_yaxes(_lane_axis(rows), row=1, col=1)
    if lag_px:
        figure.update_yaxes(title_text="lag, records", rangemode="tozero", gridcolor=_GRID, row=2, col=1)
    return figure, rows


def html_of(figure: Any, title: str) -> str:
    """Return a figure as a page."""
    page: str = figure.to_html(
        full_html=True, include_plotlyjs=True, include_mathjax=False, config={"displaylogo": False, "responsive": True},
        div_id="timeline",
    )  # fmt: skip
    head = f'<head><meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{escaped(title)}</title>'
    return page.replace("<head>", head, 1)


# --- rows


class Rows:
    """Where the lanes are: a lane's middle and height on the y axis, whose unit is the height of a partition."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self.unit_px = next(height for most, height in _LANE_PX if len(lanes) <= most)
        # The lanes of queries have batches: they need their pixels among many lanes too.
        tall = max(1.0, _QUERY_PX / self.unit_px)
        heights = [tall if isinstance(lane, str) else 1.0 for lane in lanes]
        self.height = sum(heights)
        ends = list(accumulate(heights))
        self._place = {lane: (end - height / 2, height) for lane, end, height in zip(lanes, ends, heights, strict=True)}

    def middle(self, lane: Lane) -> float:
        """Return the middle of a lane."""
        return round(self._place[lane][0], 3)

    def thickness(self, lane: Lane, share: float) -> float:
        """Return a share of a lane's height."""
        return round(self._place[lane][1] * share, 3)


# --- traces


def _bars(timeline: Timeline, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield a trace per query and kind of period, and one per query for its batches."""
    most = max((block.records for block in timeline.blocks), default=1) or 1
    for number, query in enumerate(timeline.queries):
        colour = COLOURS[number % len(COLOURS)]
        own = [period for period in timeline.periods if period.query == query]
        common = {"kind": "Bar", "orientation": "h", "hoverinfo": "text", "legendgroup": query, "name": escaped(query)}
        styles: tuple[tuple[PeriodKind, dict[str, Any], float], ...] = (
            (PeriodKind.OWNED, {"color": colour, "opacity": 0.32}, 0.86),
            (PeriodKind.SILENT, {"color": _PAPER, "pattern": {"shape": "/", "fgcolor": colour, "size": 5}}, 0.86),
            (PeriodKind.DRAIN, {"color": colour, "line": {"color": _INK, "width": 1}}, 0.4),
        )
        for kind, marker, share in styles:
            periods = [period for period in own if period.kind is kind]
            # The first of a query's traces is in the legend, also if it is empty.
            if periods or kind is PeriodKind.OWNED:
                thickness = [rows.thickness(period.lane, share) for period in periods]
                bars = _bar_values(periods, [period.text for period in periods], rows, thickness)
                yield {**common, **bars, "marker": marker, "showlegend": kind is PeriodKind.OWNED}
        blocks = [block for block in timeline.blocks if block.query == query]
        if blocks:
            shares = (0.2 + 0.55 * math.sqrt(min(1.0, block.records / most)) for block in blocks)
            thickness = [rows.thickness(block.lane, share) for block, share in zip(blocks, shares, strict=True)]
            bars = _bar_values(blocks, [_block_text(block) for block in blocks], rows, thickness)
            yield {**common, **bars, "marker": {"color": colour, "opacity": 0.8}, "showlegend": False}


def _bar_values(
    bars: Sequence[Period | Block], texts: Sequence[str], rows: Rows, thickness: Sequence[float]
) -> dict[str, Any]:
    return {
        "y": [rows.middle(one.lane) for one in bars],
        "base": [axis_time(one.start) for one in bars],
        "x": [_ms(one.end - one.start) for one in bars],
        "width": thickness,
        "hovertext": [hover_text(text, one.start, one.end) for one, text in zip(bars, texts, strict=True)],
    }


def _block_text(block: Block) -> str:
    batches = "a batch" if block.batches == 1 else f"{block.batches:,} batches"
    lane = "" if block.lane == block.query else f"{block.lane}: "
    return f"{lane}{block.query}: {batches}, {block.records:,} records"


def _marks(timeline: Timeline, rows: Rows) -> Iterator[dict[str, Any]]:
    """Yield a trace per kind of mark."""
    smaller = 2 if rows.unit_px < 20 else 0
    for kind in MarkKind:
        marks = [mark for mark in timeline.marks if mark.kind is kind]
        if not marks:
            continue
        symbol, colour, size = _MARKS[kind]
        # At the lane's lower edge: a group commits so often that the marks would hide the batches.
        shift = 0.36 if kind is MarkKind.COMMIT else 0.0
        yield {
            "kind": "Scatter", "mode": "markers", "name": kind.value, "x": [axis_time(mark.at) for mark in marks],
            "y": [rows.middle(mark.lane) + rows.thickness(mark.lane, shift) for mark in marks],
            "hoverinfo": "text", "hovertext": [_mark_text(mark) for mark in marks], "cliponaxis": True,
            "marker": {"symbol": symbol, "color": colour, "size": size - smaller,
                       "line": {"width": 1.4, "color": colour}},
        }  # fmt: skip


def _mark_text(mark: EventMark) -> str:
    more = "" if mark.count == 1 else f" (and {mark.count - 1:,} more)"
    return hover_text(f"{mark.kind.value}: {mark.text}{more}", mark.at)


def _lag(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Yield a line per query with lag."""
    for number, query in enumerate(timeline.queries):
        points = sorted((point for point in timeline.lag if point.query == query), key=lambda point: point.at)
        if points:
            yield {
                "mode": "lines+markers" if len(points) < 500 else "lines", "name": f"lag of {escaped(query)}",
                "x": [axis_time(point.at) for point in points], "y": [point.records for point in points],
                "hovertext": [_lag_text(point) for point in points], "hoverinfo": "text", "connectgaps": False,
                "line": {"color": COLOURS[number % len(COLOURS)], "shape": "hv", "width": 1.5},
                "marker": {"size": 4}, "legendgroup": query, "showlegend": False,
            }  # fmt: skip


def _lag_text(point: LagPoint) -> str:
    behind = "" if point.behind_s is None else f", the oldest is {point.behind_s:,.1f} s old"
    return hover_text(f"{point.query}: {point.records or 0:,} unread records{behind}", point.at)


# --- layout


def _layout(timeline: Timeline, height: float) -> dict[str, Any]:
    joined = ""
    if timeline.joined_s:
        joined = f"; batches and marks within {timeline.joined_s:.2g} s are joined"
    return {
        "title": {
            "text": f"<b>{escaped(timeline.title)}</b><br><span style='font-size:12px'>"
            f"{escaped(timeline.subtitle)}{joined}</span>",
            "x": 0.01, "xanchor": "left", "y": 1, "yanchor": "top", "yref": "container",
            "pad": {"t": 14},
        },
        "height": height + _TOP_PX + _BOTTOM_PX, "margin": {"t": _TOP_PX, "b": _BOTTOM_PX, "l": 10, "r": 20},
        "barmode": "overlay", "hovermode": "closest", "plot_bgcolor": _PAPER, "paper_bgcolor": _PAPER,
        "font": {"family": "Verdana, DejaVu Sans, Arial, sans-serif", "size": 12, "color": _INK},
        "hoverlabel": {"align": "left", "namelength": -1},
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "yref": "paper"},
    }  # fmt: skip


def _lane_axis(rows: Rows) -> dict[str, Any]:
    return {
        "tickmode": "array", "tickvals": [rows.middle(lane) for lane in rows.lanes],
        "ticktext": [_lane_name(lane) for lane in rows.lanes], "range": [rows.height, 0], "showgrid": False,
        "zeroline": False, "automargin": True, "tickfont": {"size": 8 if rows.unit_px < 16 else 11},
    }  # fmt: skip


def _lane_name(lane: Lane) -> str:
    return f"<b>{escaped(lane)}</b>" if isinstance(lane, str) else escaped(str(lane))


# --- values


def hover_text(text: str, *moments: float) -> str:
    """Return what is shown at a mark or bar: a text without what looks like a secret, and its moment or moments."""
    times = " to ".join(clock_time(at) for at in moments)
    took = f", {moments[1] - moments[0]:,.2f} s" if len(moments) > 1 else ""
    # The metrics never contain a secret on purpose: this is a second guard for texts of errors.
    return f"{escaped(masked_foreign(text))}<br>{times} UTC{took}"


def escaped(text: str) -> str:
    """Escape a name or text for plotly, which reads a part of HTML in its labels."""
    return html.escape(text, quote=False)


def _ms(seconds: float) -> float:
    # A bar without a width could not be hovered over.
    return max(1.0, round(seconds * 1000, 1))
