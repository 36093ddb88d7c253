"""Draw Grafana's dashboard without Grafana: docs/dashboard.svg, from its queries and a Prometheus with a real run.

python -m scripts.dashboard_picture http://127.0.0.1:9090 START END SCRAPE [TIME=EVENT ...]

Times are in seconds since the epoch; SCRAPE is the seconds between two scrapes. All panels have a line at each event.

The run of the picture in docs/how-to/watch.md, with the classes of tests/kafka and tests/monitoring: a `RealKafka` with
a topic of 4 partitions, `retention.ms` of an hour and 400 records per second; an `ExporterProcess` with `--interval 2`;
a Prometheus that scrapes every 5 s; two `Query` processes of one group with `batch_s` 1, a trigger of 1 s and the
options `metricsPort`, `maxOffsetsPerTrigger=2000`, `fastLaneMaxOffsets=1000`, `kafka.session.timeout.ms=6000`. It took
9 minutes; the times of the events are those of the lines.
"""

from __future__ import annotations

import json
import math
import re
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from scripts.dashboard import dashboard
from scripts.pictures import FAINT, PAPER, svg_text

TARGET = Path(__file__).resolve().parents[1] / "docs" / "dashboard.svg"

_COLOURS = ("#0b7285", "#e67700", "#2b8a3e", "#c2255c", "#5f3dc4", "#1971c2", "#846358", "#66a80f")
# Pixels: a cell of the dashboard's grid, what is above it, between panels, and the plot and the legend of a panel.
_CELL_X, _CELL_Y, _HEAD, _GAP = 42, 29, 44, 8
_LEFT, _TOP, _WIDTH, _HEIGHT, _LEGEND, _LEGEND_LINES = 50, 30, 264, 88, 149, 4
_POINTS = 120
# From the largest unit down: the least value for which it is used, its size, its name.
_UNITS = {"s": ((7200, 3600, " h"), (120, 60, " min"), (1, 1, " s"), (0, 0.001, " ms")),
          "short": ((1e6, 1e6, " M"), (1e3, 1e3, " K"), (0, 1, ""))}  # fmt: skip


class Span(NamedTuple):
    """The time that the picture shows, seconds between two scrapes, and events in that time."""

    start: float
    end: float
    scrape_s: float
    events: tuple[tuple[float, str], ...] = ()

    def x(self, at: float) -> int:
        """Return the place of a time in a plot."""
        return round((at - self.start) / (self.end - self.start) * _WIDTH)


class Series(NamedTuple):
    """A line: its legend, and a value for each point of time, or NaN."""

    legend: str
    values: tuple[float, ...]


def ask(url: str, panel: dict[str, Any], span: Span) -> Iterator[Series]:
    """Yield what Prometheus has for the queries of a panel, with all clusters and groups chosen."""
    step = (span.end - span.start) / _POINTS
    # Grafana's rule for the interval of a rate.
    rate_s = math.ceil(max(step + span.scrape_s, 4 * span.scrape_s))
    chosen = {"$cluster": ".*", "$group": ".*", "$__rate_interval": f"{rate_s}s"}
    chosen["$__range"] = f"{math.ceil(span.end - span.start)}s"
    for target in panel.get("targets", ()):
        query = re.sub(r"\$\w+", lambda name: chosen[name[0]], target["expr"])
        words = urllib.parse.urlencode({"query": query, "start": span.start, "end": span.end, "step": step})
        with urllib.request.urlopen(f"{url}/api/v1/query_range?{words}", timeout=60) as answer:  # noqa: S310
            found = json.load(answer)["data"]["result"]
        for one in found:
            values = [math.nan] * (_POINTS + 1)
            for at, value in one["values"]:
                if math.isfinite(float(value)):
                    values[round((at - span.start) / step)] = float(value)
            if not all(map(math.isnan, values)):
                yield Series(_legend(target["legendFormat"], one["metric"]), tuple(values))


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda name: labels.get(name[1], ""), template).strip()


def render(panels: Iterable[tuple[dict[str, Any], list[Series]]], span: Span) -> str:
    """Return the picture of panels with their series; one without queries is a heading."""
    parts, bottom = [], 0
    for panel, series in panels:
        at = panel["gridPos"]
        left, top = at["x"] * _CELL_X + _GAP, at["y"] * _CELL_Y + _HEAD
        bottom = max(bottom, top + at["h"] * _CELL_Y)
        parts.append(f'<g transform="translate({left} {top})">')
        if "targets" in panel:
            parts += _panel(panel, sorted(series), span, at["w"] * _CELL_X - _GAP, at["h"] * _CELL_Y - _GAP)
        else:
            parts.append(svg_text(0, 19, panel["title"], 'font-size="14" font-weight="bold"'))
        parts.append("</g>")
    width = 24 * _CELL_X + _GAP
    events = [f"{number} = {text}" for number, (_, text) in enumerate(span.events, 1)]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom}" width="{width}" height="{bottom}"'
        ' font-family="sans-serif" font-size="11" role="img" aria-label="The panels of the dashboard">',
        f'<rect width="{width}" height="{bottom}" fill="{PAPER}"/>',
        *(svg_text(x + _GAP, 18 + line * 16, text) for x, line, text in _flow(events, width - _GAP)),
        *parts, "</svg>", "",
    ])  # fmt: skip


def _panel(panel: dict[str, Any], series: list[Series], span: Span, width: int, height: int) -> Iterator[str]:
    yield f'<rect width="{width}" height="{height}" rx="3" fill="none" stroke="{FAINT}" stroke-width="0.5"/>'
    yield svg_text(10, 17, panel["title"], 'font-size="13" font-weight="bold"')
    yield f'<g transform="translate({_LEFT} {_TOP})">'
    highest = max((value for one in series for value in one.values if value > 0), default=1.0)
    ticks = _ticks(highest, panel["fieldConfig"]["defaults"]["unit"])
    scale = _HEIGHT / ticks[-1][0]
    for value, label in ticks if series else ():
        y = round(_HEIGHT - value * scale)
        yield f'<path d="M0 {y}H{_WIDTH}" stroke="{FAINT}" stroke-width="0.3"/>'
        yield svg_text(-5, y + 4, label, 'text-anchor="end"')
    for minute in range(0, int(span.end - span.start) // 60 + 1, 2):
        x = span.x(span.start + minute * 60)
        yield svg_text(x, _HEIGHT + 15, f"{minute}{'' if minute else ' min'}", 'text-anchor="middle"')
    for number, (at, _) in enumerate(span.events, 1):
        yield f'<path d="M{span.x(at)} 0V{_HEIGHT}" stroke="{FAINT}" stroke-dasharray="2 2"/>'
        yield svg_text(span.x(at), -2, str(number), 'text-anchor="middle" font-size="9"')
    colours = dict(zip(dict.fromkeys(one.legend for one in series), _COLOURS * len(series), strict=False))
    for one in series:
        style = f'fill="none" stroke="{colours[one.legend]}" stroke-width="1.5" stroke-linecap="round"'
        yield f'<path d="{_path(one.values, scale)}" {style}/>'
    yield "</g>"
    if not series:
        yield svg_text(_LEFT + _WIDTH // 2, _TOP + _HEIGHT // 2, "no data", 'text-anchor="middle"')
    for x, line, legend in _flow(colours, width - 20, 16):
        if line < _LEGEND_LINES:
            y = _LEGEND + line * 13
            yield f'<path d="M{x + 10} {y - 4}h11" stroke="{colours[legend]}" stroke-width="2.5"/>'
            yield svg_text(x + 25, y, legend)
        elif x == 0:
            yield svg_text(width - 40, _LEGEND, "more")


def _path(values: tuple[float, ...], scale: float) -> str:
    """Return a line: a point alone is a dot, a missing one a gap, and a level part has no inner points."""
    parts = []
    places = [(number * _WIDTH / _POINTS, round(_HEIGHT - value * scale, 1)) for number, value in enumerate(values)]
    for missing, run in groupby(places, lambda place: math.isnan(place[1])):
        for number, (y, level) in enumerate(() if missing else groupby(run, lambda place: place[1])):
            xs = [f"{x:.0f}" for x, _ in level]
            parts.append(f"{'L' if number else 'M'}{xs[0]} {y:g}" + (f"H{xs[-1]}" if xs[1:] or not number else ""))
    return "".join(parts)


def _ticks(highest: float, unit: str) -> list[tuple[float, str]]:
    """Return the ticks of an axis from 0 to its top, with their labels."""
    size, name = next((size, name) for least, size, name in _UNITS[unit] if highest >= least)
    # A little less, for what is a round number but for its last digits.
    least = highest * 0.999 / size
    power = 10.0 ** math.floor(math.log10(least / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least / 4)
    return [(n * step * size, f"{n * step:g}{name if n else ''}") for n in range(math.ceil(least / step) + 1)]


def _flow(texts: Iterable[str], width: int, mark: int = 0) -> Iterator[tuple[int, int, str]]:
    """Yield x and line of each text, as many in a line as have room."""
    x, line = 0, 0
    for text in texts:
        needs = mark + round(len(text) * 6.2) + 10
        if x and x + needs > width:
            x, line = 0, line + 1
        yield x, line, text
        x += needs


def main() -> int:
    """Ask for all panels, and write the picture."""
    url, start, end, scrape_s, *events = sys.argv[1:]
    named = tuple((float(at), text) for at, _, text in (event.partition("=") for event in events))
    span = Span(float(start), float(end), float(scrape_s), named)
    panels = [(panel, list(ask(url, panel, span))) for panel in json.loads(dashboard())["panels"]]
    TARGET.write_text(render(panels, span), encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
