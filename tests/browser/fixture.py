"""The fixture of tests that open a page."""

from __future__ import annotations

import pytest

from tests.browser.chromium import NoBrowserError, browser_path


@pytest.fixture(scope="session")
def browser() -> str:
    """Return the browser's program."""
    try:
        return browser_path()
    except NoBrowserError as error:
        # Nothing installs a browser, also not in CI: no test depends on what only root can install.
        pytest.skip(f"NO BROWSER, no page is shown to work: {error}")
