"""Start modules of this checkout as processes of their own, from any working directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module with this interpreter. It needs `environment`, or ROOT as its directory."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with the checkout on PYTHONPATH, and `more` on top."""
    path = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)} | (more or {})
