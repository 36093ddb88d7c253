"""Check that every relative link in the Markdown files leads to a file, and to a heading or an anchor if it names one.

python -m scripts.docs_links      # prints broken links; exit code 1 when there are any
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^\s*```")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def pages() -> list[Path]:
    """Return the Markdown files that people read."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def broken_links(files: Iterable[Path]) -> list[str]:
    """Return a line per link that leads nowhere."""
    found = []
    for page in files:
        for number, target in _links(page):
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            shown = f"{page.relative_to(ROOT)}:{number}: {target}"
            if not path.exists():
                found.append(f"{shown}: there is no such file")
            elif anchor and path.suffix == ".md" and anchor not in anchors(path):
                found.append(f"{shown}: the page has no such heading")
    return found


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as Git hosts make them, and of its anchors."""
    lines = [line for _, line in _text_lines(page)]
    headings = {slug(match[1]) for line in lines if (match := _HEADING.match(line))}
    return headings.union(*(_ANCHOR.findall(line) for line in lines))


def slug(heading: str) -> str:
    """Return the name of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _links(page: Path) -> Iterator[tuple[int, str]]:
    for number, line in _text_lines(page):
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z]+:", target):
                yield number, target


def _text_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines outside fences."""
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def main() -> int:
    """Print broken links."""
    found = broken_links(pages())
    print("\n".join(found) or f"{len(pages())} pages, no broken link")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
