"""The tests with a browser. Without one they are skipped loudly."""

from __future__ import annotations

from tests.browser.fixture import browser

__all__ = ["browser"]
