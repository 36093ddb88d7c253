"""Draw how long a stop waits: docs/stop.svg, from the defaults that the page docs/how-to/stop.md explains.

python -m scripts.stop_picture
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from scripts.pictures import FAINT, PAPER, svg_text
from spark_groupsource.spark.stop import TIMEOUT_S

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "stop.svg"
# As conf/spark-defaults.conf has it, and what a supervisor adds for the last commit and the leave.
STOP_TIMEOUT_S = 60
COMMIT_S = 30

_BATCH, _COMMIT, _SPARK = "#0b7285", "#2b8a3e", "#e67700"
_LEFT, _TOP, _LANE, _BAR, _PER_S = 205, 56, 62, 26, 1.8


class Span(NamedTuple):
    """A part of a stop: what happens, for how many seconds."""

    seconds: float
    colour: str
    text: str


def lanes() -> list[tuple[str, str, list[Span]]]:
    """Return a title, a remark and the parts of each lane, from the request on."""
    leave, longest = Span(2, _COMMIT, ""), Span(TIMEOUT_S, _BATCH, f"batch in flight: timeout_s, {TIMEOUT_S:.0f} s")
    return [
        ("no batch in flight", "leaves within 2 s", [leave]),
        ("a batch of 45 s more", "leaves when it is complete", [Span(45, _BATCH, "batch"), leave]),
        (
            "the longest stop",
            "what a supervisor allows",
            [longest, Span(STOP_TIMEOUT_S, _SPARK, "stopTimeout"), Span(COMMIT_S, _COMMIT, "commit")],
        ),
    ]


def render() -> str:
    """Return the picture."""
    every = lanes()
    grace_s = sum(span.seconds for span in every[-1][2])
    bottom = _TOP + _LANE * len(every)
    width, height = round(_LEFT + grace_s * _PER_S + 60), bottom + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="sans-serif" font-size="13" role="img" aria-label="How long a stop waits">',
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
    ]
    for second in range(0, round(grace_s) + 1, 30):
        parts += [
            f'<path d="M{_x(second)} {_TOP - 12}V{bottom}" stroke="{FAINT}" stroke-width="0.5"/>',
            svg_text(_x(second), bottom + 18, f"{second} s", 'text-anchor="middle"'),
        ]
    parts += [
        svg_text(_x(0), _TOP - 22, "request to stop, or SIGTERM", 'text-anchor="middle"'),
        svg_text(_x(grace_s), _TOP - 22, "SIGKILL", 'text-anchor="middle"'),
        svg_text(_LEFT, bottom + 40, "seconds since the request", 'text-anchor="start"', FAINT),
    ]
    for number, (title, remark, spans) in enumerate(every):
        parts += _lane(_TOP + _LANE * number, title, remark, spans)
    return "\n".join([*parts, "</svg>", ""])


def _lane(top: int, title: str, remark: str, spans: list[Span]) -> list[str]:
    parts = [
        svg_text(_LEFT - 14, top + 11, title, 'text-anchor="end"'),
        svg_text(_LEFT - 14, top + 27, remark, 'text-anchor="end"', FAINT),
    ]
    since = 0.0
    for seconds, colour, text in spans:
        parts.append(
            f'<rect x="{_x(since)}" y="{top}" width="{seconds * _PER_S:.1f}" height="{_BAR}" fill="{colour}"/>'
        )
        if text:
            parts.append(svg_text(_x(since + seconds / 2), top + 17, text, 'text-anchor="middle"', PAPER))
        since += seconds
    return parts


def _x(seconds: float) -> str:
    return f"{_LEFT + seconds * _PER_S:.1f}"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="ascii")
