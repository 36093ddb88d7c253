"""Show queries as a table in a notebook: a row per query with its last batch, updated in place.

A notebook has imported IPython already, so IPython is no dependency.
"""

from __future__ import annotations

import html
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

# The oldest rows of ended queries go first. A query that restarts with its checkpoint keeps its row.
_MOST_ROWS = 20
_HEAD = ("query", "state", "batch", "rows", "rows/s", "batch ms", "lag", "partitions")
_NO_BATCH = ("",) * (len(_HEAD) - 2)
RUNNING, ENDED = "running", "ended"


def notebook_display() -> Callable[..., Any] | None:
    """Return IPython's `display` in a notebook; None elsewhere, also in a terminal, which cannot update its output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # Only the shells of notebooks have a kernel.
    if getattr(shell, "kernel", None) is None:
        return None
    display: Callable[..., Any] = importlib.import_module("IPython.display").display
    return display


class NotebookTable:
    """The table. It appears below the cell that creates it; the methods may be called by any thread."""

    def __init__(self, display: Callable[..., Any]) -> None:
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[str, ...]] = {}
        self._handle = display(self._bundle(), raw=True, display_id=True)

    def started(self, query: str, name: str) -> None:
        """Show that a query started. `query` is its id."""
        self._put(query, (name, RUNNING, *_NO_BATCH))

    def progressed(self, query: str, name: str, batch: Sequence[str]) -> None:
        """Show a batch, whose figures are those of the columns after the state."""
        self._put(query, (name, RUNNING, *batch))

    def ended(self, query: str, name: str, error: str) -> None:
        """Show that a query ended; its last batch stays."""
        with self._lock:
            last = self._rows.get(query, (name, ENDED, *_NO_BATCH))
        self._put(query, (name, f"failed: {error}" if error else ENDED, *last[2:]))

    def _put(self, query: str, row: tuple[str, ...]) -> None:
        with self._lock:
            self._rows[query] = row
            over = [one for one, (_, state, *_) in self._rows.items() if state != RUNNING and one != query]
            for one in over[: max(0, len(self._rows) - _MOST_ROWS)]:
                del self._rows[one]
            # Within the lock: an older table must not replace a newer one.
            self._handle.update(self._bundle(), raw=True)

    def _bundle(self) -> dict[str, str]:
        """Return the table as HTML, and as text for what cannot show HTML."""
        rows = list(self._rows.values()) or [("no query has started", *("",) * (len(_HEAD) - 1))]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in _HEAD)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        text = "\n".join("  ".join(filter(None, row)) for row in rows)
        return {"text/html": table, "text/plain": text}
