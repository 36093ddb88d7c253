"""Judges a run from the files that it left: `python -m tests.faults.judge.folder FOLDER`

Prints the table, writes `picture.svg` into the folder, and exits with 1 when a promise was broken.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.faults import history
from tests.faults.draw.picture import draw
from tests.faults.draw.report import table
from tests.faults.history import History
from tests.faults.judge.checker import check
from tests.faults.judge.verdict import Verdict


def judge(folder: Path) -> bool:
    """Print the table of a run and draw its picture; returns whether every promise holds."""
    return judged(folder)[1].good


def judged(folder: Path) -> tuple[History, Verdict]:
    """Do as `judge` does, and return the history and its verdict."""
    found = history.load(folder)
    verdict = check(found)
    text = table(found, verdict)
    print(text, flush=True)
    (folder / "table.txt").write_text(text)
    (folder / "picture.svg").write_text(draw(found, verdict))
    return found, verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.faults.judge.folder", description=__doc__)
    parser.add_argument("folder", type=Path, help="with run.json and the .jsonl files of a run")
    folder: Path = parser.parse_args(arguments).folder
    if not (folder / "run.json").exists():
        parser.error(f"{folder} holds no history: run.json is missing (the run did not come to its end)")
    return 0 if judge(folder) else 1


if __name__ == "__main__":
    sys.exit(main())
