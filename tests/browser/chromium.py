"""Opens a page in headless Chromium, for tests and for the pictures of the documentation.

    python -m tests.browser.chromium PAGE.html PICTURE.png [WIDTH HEIGHT]

The browser is one that is installed on the machine: Debian's `chromium`, or a Chrome. playwright only drives it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
# Milliseconds within which the page of an hour of 256 partitions must be drawn on a busy machine.
_PATIENCE_MS = 180_000


class NoBrowserError(Exception):
    """The machine has no Chromium and no Chrome."""


@dataclass(slots=True)
class Opened:
    """An open page, what it requested, and what its console complained about."""

    page: Page
    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def browser_path() -> str:
    """Return the browser's program; the environment variable CHROMIUM wins. Raises `NoBrowserError`."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None and _MACOS.exists():
        found = str(_MACOS)
    if found is None:
        raise NoBrowserError(f"none of {', '.join(_NAMES)} is installed, and CHROMIUM names no browser")
    return found


@contextmanager
def empty_page(width: int, height: int, *, offline: bool = False) -> Iterator[Opened]:
    """Open an empty page in a browser that ends with the block."""
    with sync_playwright() as playwright:
        # As root, as in most containers, Chromium does not start with its sandbox. The page is our own.
        browser = playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox"], timeout=_PATIENCE_MS
        )
        try:
            context = browser.new_context(viewport={"width": width, "height": height}, offline=offline)
            page = context.new_page()
            page.set_default_timeout(_PATIENCE_MS)
            found = Opened(page)
            page.on("request", lambda request: found.requests.append(request.url))
            page.on("pageerror", lambda error: found.problems.append(str(error)))
            page.on(
                "console",
                lambda said: found.problems.append(said.text) if said.type in {"error", "warning"} else None,
            )
            yield found
        finally:
            browser.close()


@contextmanager
def opened(path: Path, width: int = 1280, height: int = 900) -> Iterator[Opened]:
    """Open a timeline's page from its file, without a network, and wait until it is drawn."""
    with empty_page(width, height, offline=True) as found:
        found.page.goto(path.absolute().as_uri(), timeout=_PATIENCE_MS)
        found.page.wait_for_selector("#timeline .bars .point", state="attached", timeout=_PATIENCE_MS)
        yield found


def main(arguments: Sequence[str]) -> int:
    """Write a picture of a page: all of it, or of the given size."""
    path, picture, *size = arguments
    width, height = map(int, size) if size else (1280, 900)
    with opened(Path(path), width, height) as found:
        # Without the buttons, which plotly shows only while the mouse is there.
        found.page.screenshot(path=picture, full_page=not size)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
