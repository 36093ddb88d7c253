"""Read metrics files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from spark_groupsource import errors
from spark_groupsource.errors import CommandError
from spark_groupsource.timeline.events import EventLine, MetricsFile, groups_of, line_of


def read_files(paths: Sequence[Path], step: Callable[[str], object] = lambda _: None) -> list[MetricsFile]:
    """Read the files of one group's queries, and for each the older part `<name>.1` if there is one.

    `step` gets the name of what is read next.

    A line that is not complete is left out: a killed process may leave one. Raises `CommandError` if a file cannot be
    read, if it has no line of a metrics file, or if the files are of several groups.
    """
    names = _names(paths)
    files = [MetricsFile(name, tuple(_lines(path, step))) for name, path in zip(names, paths, strict=True)]
    for path, file in zip(paths, files, strict=True):
        if not file.lines:
            raise CommandError(errors.FILE_FAILED, path=path, verb="read", reason="it has no line of a metrics file")
    groups = groups_of(files)
    if len(groups) > 1:
        raise CommandError(errors.SEVERAL_GROUPS, groups=", ".join(groups))
    return files


def _lines(path: Path, step: Callable[[str], object]) -> Iterator[EventLine]:
    older = path.with_name(path.name + ".1")
    for part in (older, path) if older.exists() else (path,):
        try:
            step(f"reading {part} ({part.stat().st_size / 1e6:,.1f} MB)")
            with part.open(encoding="utf-8", errors="replace") as file:
                for text in file:
                    try:
                        found = line_of(json.loads(text))
                    except (ValueError, RecursionError):
                        continue
                    if found is not None:
                        yield found
        except OSError as error:
            reason = error.strerror or str(error)
            raise CommandError(errors.FILE_FAILED, path=part, verb="read", reason=reason) from None


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file: its own without the ending, with folders where several have the same."""
    parts = [path.absolute().with_suffix("").parts for path in paths]
    names = []
    for own in parts:
        length = 1
        while length < len(own) and sum(other[-length:] == own[-length:] for other in parts) > 1:
            length += 1
        names.append("/".join(own[-length:]))
    return names
