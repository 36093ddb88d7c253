"""Tables of the generated pages."""

from __future__ import annotations

from collections.abc import Iterable


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    columns = list(head)
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]) + "\n"
