"""Gathers a run's history from what its parts have left: checkpoints, sink files, metrics files, the topics."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.history import Completed, MemberEvent, Row, SinkBatch
from tests.faults.rig.fleet import Fleet, log_entries


def batches(sink: Path) -> list[SinkBatch]:
    """Return the sink's files as batches; the attempts of a batch are numbered in the order of their start."""
    found = [json.loads(path.read_text()) for path in sink.glob("*/*.json")]
    attempts: dict[tuple[str, int], int] = defaultdict(int)
    made = []
    for one in sorted(found, key=lambda one: (one["started_at"], one["at"])):
        key = (one["checkpoint"], one["batch"])
        rows, again = _rows(one.pop("rows")), one.pop("again", None)
        second = None if again is None else _rows(again)
        made.append(SinkBatch(**one, attempt=attempts[key], rows=rows, again=second))
        attempts[key] += 1
    return made


def _rows(rows: Iterable[Sequence[Any]]) -> tuple[Row, ...]:
    return tuple((row[0], row[1], row[2], row[3], row[4]) for row in rows)


def member_events(metrics: Path) -> list[MemberEvent]:
    """Return the lines of all metrics files, in order of time; a last line that was cut off is left out."""
    found = []
    for path in metrics.glob("*.jsonl"):
        query = path.stem.rpartition("-")[0]
        for line in path.read_text().splitlines():
            try:
                said = json.loads(line)
            except ValueError:
                continue
            partitions = tuple((topic, number) for topic, number in said.get("partitions") or ())
            details = said.get("details") or {}
            lineage = said.get("lineage") or ""
            found.append(MemberEvent(said["at"], query, lineage, said["event"], partitions, details, path.stem))
    return sorted(found, key=lambda event: event.at)


def completed(fleet: Fleet) -> list[Completed]:
    """Return the batches of every life of every checkpoint, once each."""
    found: list[Completed] = []
    for query in fleet.queries.values():
        for life in range(1, query.life + 1):
            name = f"{query.name}#{life}"
            skipped = fleet.inherited.get(name, set())
            folder = fleet.archive.of(name)
            found += [one for one in _batches_of(folder, query.name, name) if one.batch not in skipped]
    return sorted(found, key=lambda one: one.planned_at)


def _batches_of(folder: Path, query: str, life: str) -> Iterator[Completed]:
    commits = log_entries(folder / "commits")
    for number in sorted(log_entries(folder / "offsets")):
        entry = folder / "offsets" / str(number)
        end = next(iter(source_offsets(entry.read_text())), None)
        if end is None:  # a damaged file
            continue
        at = (folder / "commits" / str(number)).stat().st_mtime if number in commits else None
        yield Completed(query, life, number, entry.stat().st_mtime, at, end)


def source_offsets(text: str) -> Iterable[dict[str, Any]]:
    """Return the source's offsets in an entry of Spark's offset log: a line per source, or (v2) an object of them."""
    for line in text.splitlines()[1:]:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        for one in (value, *(value.values() if isinstance(value, dict) else ())):
            parsed = _parsed(one)
            if isinstance(parsed, dict) and "lineage" in parsed:
                yield parsed


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return None
