"""The documentation site in a real browser, as wide as a telephone: links, console, and no scrolling to the side."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import empty_page
from tests.checkout import ROOT

pytestmark = pytest.mark.usefixtures("browser")

_PHONE = (390, 844)
_BUILD_S = 600.0
# The theme draws diagrams with a script from there. Without a network the reader sees the diagram's text.
_DIAGRAMS = "https://unpkg.com/mermaid"
# Elements that are wider than the page, unless something around them scrolls, or they are not drawn.
_TOO_WIDE = """() => {
    const limit = document.documentElement.clientWidth;
    const scrolls = (e) => e && e !== document.body &&
        (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    return [...document.querySelectorAll('.md-content *')]
        .filter((e) => e.getBoundingClientRect().right > limit + 1 && !scrolls(e))
        .map((e) => e.outerHTML.slice(0, 120));
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Log no line per request."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Build the site and serve it: its address, and the names of its pages."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("NO MKDOCS, the site is not shown to work: install the extra 'docs'")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT, check=True, timeout=_BUILD_S, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.html") if path.name != "404.html")
    yield f"http://127.0.0.1:{server.server_port}", names
    server.shutdown()
    server.server_close()


def test_every_page_on_a_phone(site: tuple[str, list[str]]) -> None:
    """No link is broken, nothing is reported in the console, and no page scrolls to the side."""
    address, names = site
    assert len(names) > 40, "nothing is shown"
    links: dict[str, set[str]] = {}
    anchors: dict[str, set[str]] = {}
    refused: list[str] = []
    wide: dict[str, list[str]] = {}
    with empty_page(*_PHONE) as found:
        page = found.page
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page.on("response", lambda response: refused.append(response.url) if response.status >= 400 else None)
        for name in names:
            page.goto(f"{address}/{name}")
            # The theme asks for what draws diagrams when the page is there.
            page.wait_for_load_state("networkidle")
            hrefs = page.eval_on_selector_all("a[href]", "all => all.map((each) => each.href)")
            links[name] = {href for href in hrefs if href.startswith(address)}
            anchors[f"{address}/{name}"] = set(page.eval_on_selector_all("[id]", "all => all.map((each) => each.id)"))
            if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wide[name] = page.evaluate(_TOO_WIDE)
        outside = {url for url in found.requests if not url.startswith((address, "data:", "blob:"))}
        # Requests that lead out of the site are refused here.
        problems = [text for text in found.problems if "net::ERR_FAILED" not in text and _DIAGRAMS not in text]
    # The front page's name may be left out.
    anchors[f"{address}/"] = anchors[f"{address}/."] = anchors[f"{address}/index.html"]
    broken = {
        (name, link)
        for name, targets in links.items()
        for link in targets
        for target, _, anchor in [link.partition("#")]
        if not (anchor in anchors[target] or not anchor if target in anchors else _is_file(target, address))
    }
    assert {url for url in outside if not url.startswith(_DIAGRAMS)} == set()
    assert (broken, refused, problems, wide) == (set(), [], [], {})


def _is_file(target: str, address: str) -> bool:
    """Return whether a link leads to a file of docs/ that is no page, such as a picture."""
    return (ROOT / "docs" / target.removeprefix(f"{address}/")).is_file()


def test_the_search_finds_an_option(site: tuple[str, list[str]]) -> None:
    address, _ = site
    with empty_page(1280, 900) as found:
        page = found.page
        page.route(lambda url: not url.startswith(address), lambda route: route.abort())
        page.goto(f"{address}/index.html")
        page.fill("input.md-search__input", "drainTimeoutMs")
        page.wait_for_selector(".md-search-result__link")
        hrefs = page.eval_on_selector_all(".md-search-result__link", "all => all.map((each) => each.href)")
        assert found.problems == []
    assert any("/reference/options.html" in href for href in hrefs), hrefs


def test_the_tests_see_a_page_that_scrolls_to_the_side(tmp_path: Path) -> None:
    wide = tmp_path / "wide.html"
    wide.write_text('<body><div class="md-content"><p style="width: 900px">x</p></div>', encoding="ascii")
    with empty_page(*_PHONE) as found:
        found.page.goto(wide.as_uri())
        assert found.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert found.page.evaluate(_TOO_WIDE) == ['<p style="width: 900px">x</p>']
