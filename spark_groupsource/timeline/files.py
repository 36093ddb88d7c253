"""Read metrics files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO

from spark_groupsource import errors
from spark_groupsource.errors import CommandError
from spark_groupsource.timeline.events import EventLine, MetricsFile, groups_of, line_of


def read_files(paths: Sequence[Path], step: Callable[[str], object] = lambda _: None) -> list[MetricsFile]:
    """Read the files of one group's queries, and for each the older part `<name>.1` if there is one.

    `step` gets the name of what is read next. No file is read twice.

    A line that is not complete is left out: a killed process may leave one. Raises `CommandError` if a file cannot be
    read, if it has no line of a metrics file, or if the files are of several groups.
    """
    paths = _without_repeats(paths)
    names = _names(paths)
    files = [MetricsFile(name, tuple(_lines(path, step))) for name, path in zip(names, paths, strict=True)]
    for path, file in zip(paths, files, strict=True):
        if not file.lines:
            raise CommandError(errors.FILE_FAILED, path=path, verb="read", reason="it has no line of a metrics file")
    groups = groups_of(files)
    if len(groups) > 1:
        raise CommandError(errors.SEVERAL_GROUPS, groups=", ".join(groups))
    return files


def _without_repeats(paths: Sequence[Path]) -> list[Path]:
    """Leave out files that are read with another path: a shell expands `a.json*` to a.json and a.json.1."""
    kept: list[Path] = []
    for path in paths:
        older = [_older_part(other) for other in paths if other is not path]
        if not any(_is_same(path, other) for other in (*kept, *older)):
            kept.append(path)
    return kept


def _older_part(path: Path) -> Path:
    # `with_name` raises ValueError for a path without a name: / and .
    return Path(f"{path}.1")


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path == other or path.samefile(other)
    except OSError:
        return False


def _lines(path: Path, step: Callable[[str], object]) -> Iterator[EventLine]:
    with ExitStack() as stack:
        try:
            parts = _open_parts(path, stack)
            for part, file in parts:
                step(f"reading {part} ({os.fstat(file.fileno()).st_size / 1e6:,.1f} MB)")
                for text in file:
                    try:
                        found = line_of(json.loads(text))
                    except (ValueError, RecursionError):
                        continue
                    if found is not None:
                        yield found
        except OSError as error:
            reason = error.strerror or str(error)
            raise CommandError(errors.FILE_FAILED, path=error.filename or path, verb="read", reason=reason) from None


def _open_parts(path: Path, stack: ExitStack) -> list[tuple[Path, TextIO]]:
    """Open a metrics file and its older part, if there is one; the older one is the first of the result.

    Both are open before one is read: a query that renames its full file meanwhile takes nothing from the reader.
    """
    parts: list[tuple[Path, TextIO]] = []
    missing: FileNotFoundError | None = None
    for part in (path, _older_part(path)):
        try:
            file = stack.enter_context(part.open(encoding="utf-8", errors="replace"))
        except FileNotFoundError as error:
            missing = missing or error
            continue
        # Renamed between the two: the same file.
        if not any(os.path.samestat(os.fstat(file.fileno()), os.fstat(other.fileno())) for _, other in parts):
            parts.insert(0, (part, file))
    if not parts and missing is not None:
        raise missing
    return parts


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file: its own without the ending, with folders where several have the same.

    Endings stay if the names of two files of a folder differ in nothing else: `m.host1` and `m.host2` are two queries.
    """
    whole = [path.absolute().parts for path in paths]
    parts = [(*own[:-1], Path(own[-1]).stem) for own in whole]
    if len(set(parts)) < len(set(whole)):
        parts = whole
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names
