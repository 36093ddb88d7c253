"""Colours of the pictures of the documentation, and of charts, and the text of an SVG."""

from __future__ import annotations

from xml.sax.saxutils import escape

# Legible on a light and on a dark page.
PAPER, INK, FAINT = "#fcfcfd", "#1f2328", "#8b949e"


def svg_text(x: float | str, y: int, text: str, style: str = "", colour: str = INK) -> str:
    """Return an SVG's text. `style` has more of its attributes."""
    return f'<text x="{x}" y="{y}" fill="{colour}" {style}>{escape(text)}</text>'
