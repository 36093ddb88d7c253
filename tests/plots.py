"""Charts of the soak and the benchmark, drawn with matplotlib: the extra `plots`, imported when a chart is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.pictures import INK, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADVICE = "matplotlib is not installed; install the extra 'plots': pip install 'groupkafka[plots]'"


def is_installed() -> bool:
    """Return whether charts can be drawn."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=PAPER, edgecolor=INK)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the file's ending. The same figure always gives the same SVG."""
    import matplotlib as mpl

    # Text stays text, which can be searched and is small.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "groupkafka"}):
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=100, bbox_inches="tight", metadata=metadata)
