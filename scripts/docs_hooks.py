"""Show links to files outside docs/ as text: the site has only the pages; a Git host has the files, too."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """Return the page without links that leave docs/."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[2].partition("#")[0]))
        if not target.startswith("../"):
            return match[0]
        name = target.removeprefix("../")
        return f"`{name}`" if match[1].strip("`").endswith(posixpath.basename(name)) else f"{match[1]} (`{name}`)"

    return _LINK.sub(shown, markdown)
