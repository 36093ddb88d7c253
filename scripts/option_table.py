"""Write the table of docs/reference/options.md, between its two markers. `--check` only reports whether it is stale."""

from __future__ import annotations

import sys
from pathlib import Path

from spark_groupsource.options.table import option_reference

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "options.md"
BEGIN, END = "<!-- options -->", "<!-- /options -->"


class MarkersMissing(Exception):
    """The text has not exactly one pair of markers, in order."""


def with_table(text: str, reference: str) -> str:
    """Return `text` with `reference` between the markers. Raises `MarkersMissing`."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in head + tail:
        raise MarkersMissing(f"expected one line '{BEGIN}' and after it one line '{END}'")
    return f"{head}{BEGIN}\n{reference}\n{END}{tail}"


def main() -> int:
    """Write the table, or check it."""
    text = TARGET.read_text(encoding="utf-8")
    try:
        written = with_table(text, option_reference())
    except MarkersMissing as error:
        print(f"{TARGET.name}: {error}", file=sys.stderr)
        return 1
    if "--check" in sys.argv[1:]:
        print(f"{TARGET.name}: {'up to date' if text == written else 'stale, run python -m scripts.option_table'}")
        return 0 if text == written else 1
    TARGET.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
