"""Run parts of the nightly tests (levels.toml), and record commit, day, time and result of each in one table.

    scripts/test --nightly                    all parts, one after the other: some six hours
    scripts/test --nightly topics commands    these
    scripts/test --nightly --list             the parts, and their rows

The table is tests/nightly.md: commit it with the parts that ran. The exit code is 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.checkout import ROOT
from tests.levels import Part, levels
from tests.steps import say

TABLE = ROOT / "tests" / "nightly.md"
_HEAD = """# Nightly runs

The last run of each part of `scripts/test --nightly` (levels.toml says what it has). The command writes this table.

| part | commit | day (UTC) | minutes | result |
|---|---|---|---|---|
"""
# The closing lines of pytest, of the fault rig and of the simulator.
_RESULT = re.compile(
    r"^(?:=+ )?(\d+ (?:passed|failed|skipped|errors?).*?)(?: in [\d.]+s.*)?$"
    r"|^\d\d:\d\d:\d\d ((?:PASSED|FAILED) after .*)|^(?:PASSED|FAILED): (.*)"
)


@dataclass(frozen=True, slots=True)
class Row:
    """How a part ended."""

    part: str
    commit: str
    day: str
    minutes: int
    result: str

    def __str__(self) -> str:
        return f"| {self.part} | {self.commit} | {self.day} | {self.minutes} | {self.result} |\n"


def rows_of(text: str) -> dict[str, Row]:
    """Return the rows of a table by part."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[3].isdigit():
            found[cells[0]] = Row(cells[0], cells[1], cells[2], int(cells[3]), cells[4])
    return found


def table_of(rows: dict[str, Row], names: Sequence[str]) -> str:
    """Return the table, in the order of the parts; a part that never ran has no row."""
    return _HEAD + "".join(str(rows[name]) for name in names if name in rows)


def result_of(part: Part, output: Sequence[str], code: int) -> str:
    """Return how a part ended, in the words of its own last line if there is one. Tests that did not run failed."""
    said = [found[1] or found[2] or found[3] for found in map(_RESULT.match, output) if found]
    has_passed = code == 0 and (not part.tests or bool(said and " passed" in f" {said[-1]}"))
    return f"{'passed' if has_passed else 'FAILED'}: {said[-1] if said else f'exit code {code}'}"


def command_of(part: Part) -> list[str]:
    """Return what runs a part."""
    if part.command:
        return ["bash", str(ROOT / part.command[0]), *part.command[1:]]
    options = ["-n", "auto", "--dist", "loadscope", "--max-worker-restart", "0", "--durations", "25"]
    return [sys.executable, "-m", "pytest", *options, "--level", part.name, *part.tests]


def run(part: Part) -> tuple[int, list[str]]:
    """Run a part, and show its output as it comes; return its exit code and the output's lines."""
    lines = []
    # A broker or a program that a part needs and that is missing is a failure.
    environment = os.environ | {"CI": "true"}
    with subprocess.Popen(
        command_of(part), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT,
        env=environment,
    ) as process:  # fmt: skip
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return process.returncode, lines


def commit_of(root: Path) -> str:
    """Return the commit that is checked out, with a mark if files other than the table differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=root, check=False).stdout.strip()

    table = TABLE.relative_to(ROOT).as_posix()
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{table}")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("-dirty" if changed else "")


def main(arguments: Sequence[str]) -> int:
    """The command line."""
    known = {part.name: part for part in levels().parts}
    parser = argparse.ArgumentParser(prog="scripts/test --nightly", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(known)}; all without a name")
    parser.add_argument("--list", action="store_true", help="list the parts and their rows")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.parts if name not in known]
    if unknown:
        parser.error(f"unknown parts {', '.join(unknown)}; known are {', '.join(known)}")
    if given.list:
        print("".join(f"{part.name:16} {part.about}\n" for part in known.values()))
        print(TABLE.read_text(encoding="utf-8") if TABLE.exists() else "no part has run")
        return 0
    failed = False
    for name in given.parts or known:
        commit, since = commit_of(ROOT), time.monotonic()
        say(f"nightly {name}: {known[name].about}")
        code, output = run(known[name])
        day, minutes = time.strftime("%Y-%m-%d", time.gmtime()), round((time.monotonic() - since) / 60)
        row = Row(name, commit, day, minutes, result_of(known[name], output, code))
        rows = rows_of(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}
        TABLE.write_text(table_of(rows | {name: row}, list(known)), encoding="utf-8")
        print(row, end="", flush=True)
        failed |= not row.result.startswith("passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
