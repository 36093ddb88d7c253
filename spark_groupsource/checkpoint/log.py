"""Read Spark's offset log and commit log, to detect that a batch is complete.

Spark reports a completed batch to a source only when it plans the next one. Its commit log shows it at once:
`commits/N` exists as soon as batch N is complete. This module finds the batch number N of an offset of this source,
and checks whether the file exists. It writes nothing.

A waiting revoke checks ten times per second, and on an object store each check is a request of tens of milliseconds.
So entries are read only once, because Spark never changes them: a check takes one request once N is known. A local
checkpoint is checked much more often, while any batch is in flight, with `glance`, which lists no folder.

Formats: offset log v1 (one line per source) and v2 (`<source id>:` before each line), as in Spark's OffsetSeqLog. For
users who move from another source, `read_spark_checkpoint` reads the progress of any query.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyarrow import fs

from spark_groupsource.checkpoint.folder import TROUBLES, CheckpointFolder
from spark_groupsource.checkpoint.location import LOCATIONS, location_to_open
from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model.names import first_names
from spark_groupsource.model.offsets import Json, SourceOffset, parse_offset

LOG = logging.getLogger(__name__)

# The batch in flight is in the newest entry, but a batch of another source may have logged our offset once more. A read
# entry without our offset (the plan is not logged yet) is not read again.
_NEWEST_ENTRIES = 5
# A line of an offset log v2. Source ids are numbers, or names that the query gives its sources.
_NAMED_OFFSET = re.compile(r"([A-Za-z0-9_]+):(.*)", re.DOTALL)
_NO_OFFSET = "-"
# With async progress tracking, Spark writes the log late: a log without the query's start is not reported before this.
_LONGEST_LAG_S = 60.0
# Number of ends that a log line shows; the others are counted.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class SparkCheckpoint:
    """Progress of a query, for any source.

    `completed` is the number of the newest completed batch, None before the first one. `logged` is that of the newest
    batch in the offset log. `offsets` has each source's offset text after the completed batch, or its initial offset.
    """

    completed: int | None
    logged: int | None
    offsets: Mapping[str, str]


def sources_in_log_entry(text: str) -> dict[str, str]:
    """Return the offset texts by source id in one file of the offset log; sources without an offset are left out."""
    version, _, body = text.partition("\n")
    _metadata, *lines = body.rstrip("\n").split("\n")
    match version.strip():
        case "v1":
            found = {str(number): line for number, line in enumerate(lines)}
        case "v2":
            named = (_NAMED_OFFSET.fullmatch(line) for line in lines)
            found = {match[1]: match[2] for match in named if match is not None}
        case _:
            return {}
    return {source: line for source, line in found.items() if line not in ("", _NO_OFFSET)}


def offsets_in_log_entry(text: str) -> list[object]:
    """Return the parsed offsets of the sources in one file of the offset log; text that is not JSON is left out."""
    values = (_json_or_none(line) for line in sources_in_log_entry(text).values())
    return [value for value in values if value is not None]


def _json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_spark_checkpoint(folder: CheckpointFolder) -> SparkCheckpoint:
    """Read the progress of a query from its checkpoint, whatever its sources are.

    Raises ValueError, with a text for users, if the location cannot be read or has no checkpoint.
    """
    try:
        logged, completed = folder.newest_batch("offsets"), folder.newest_batch("commits")
        if logged is None:
            if folder.infos("")[0].type is fs.FileType.NotFound:
                raise FileNotFoundError("there is no such folder")
            raise FileNotFoundError("there is no checkpoint here in which a query has planned a batch")
        if completed is None:
            sources = _initial_offsets(folder)
        else:
            sources = sources_in_log_entry(folder.text(f"offsets/{completed}"))
    except TROUBLES as error:
        raise ValueError(folder.scrubbed(error)) from None
    return SparkCheckpoint(completed, logged, sources)


def has_open_batch(folder: CheckpointFolder) -> bool:
    """Return whether the newest batch of Spark's offset log is not in its commit log: Spark runs it again."""
    logged, completed = folder.newest_batch("offsets"), folder.newest_batch("commits")
    return logged is not None and (completed is None or completed < logged)


def own_sources(folder: CheckpointFolder) -> int:
    """Return how many sources of this format the query has, by its newest planned batch; 0 before the first one."""
    newest = folder.newest_batch("offsets")
    return 0 if newest is None else len(_own(offsets_in_log_entry(folder.text(f"offsets/{newest}"))))


def _own(offsets: Iterable[object]) -> list[Json]:
    """Return those of the parsed offsets that have this source's format."""
    return [offset for offset in offsets if isinstance(offset, dict) and isinstance(offset.get("lineage"), str)]


def _initial_offsets(folder: CheckpointFolder) -> dict[str, str]:
    """Return the initial offsets of sources that store them: `sources/<id>/0` has "v1" and the offset.

    Spark's Kafka source writes a zero byte before it, for compatibility with very old releases.
    """
    found = {}
    for info in folder.listed("sources"):
        try:
            text = folder.text(f"sources/{info.base_name}/0")
        except (FileNotFoundError, UnicodeDecodeError):
            continue  # a source with another format, or without a file
        version, _, offset = text.removeprefix("\0").partition("\n")
        if version == "v1":
            found[info.base_name] = offset.strip()
    return found


class NoCheckpoint:
    """Replacement when the query's checkpoint is not known: no batch is ever reported as complete."""

    name = "(not set)"
    is_local = False

    def wants_start(self, _start: SourceOffset) -> bool:
        """Return False."""
        return False

    def compare_start(self, _start: SourceOffset) -> None:
        """Do nothing."""

    def is_complete(self, end: SourceOffset) -> bool:
        """Return False."""
        return False

    glance = is_complete


class CheckpointLog:
    """Spark's checkpoint of one query, at the location given to its writer.

    `location` is a path or a URI (see `checkpoint.location`). A checkpoint that cannot be read is logged once, and no
    batch is then reported as complete. The constructor does no I/O; it warns about a location of an unsupported form.
    """

    def __init__(self, location: str) -> None:
        self._folder = CheckpointFolder(location)
        self._entries: dict[int, list[object]] = {}
        # Number of the newest entry that was read; -1: there was none.
        self._newest: int | None = None
        # The last requested end, and its batch number once that is known.
        self._end: SourceOffset | None = None
        self._json: Json = {}
        self._batch: int | None = None
        # Whether it is decided that this log belongs, or does not belong, to this query.
        self._owner_known = False
        self._compared: SourceOffset | None = None
        # The newest entry without Spark's start, and the time since when it is the newest.
        self._behind: tuple[int, float] | None = None
        # Whether a problem was logged that is not over. A location of an unsupported form is never readable.
        self._in_trouble = not self._check(location)

    def __repr__(self) -> str:
        return f"CheckpointLog({self.name}, batch={self._batch})"

    @property
    def name(self) -> str:
        """The location, without secrets."""
        return self._folder.name

    @property
    def is_local(self) -> bool:
        """Whether a check needs no request to a store."""
        return self._folder.is_local

    def is_complete(self, end: SourceOffset) -> bool:
        """Return whether the batch that ends at `end` is in the commit log."""
        return self._is_recorded(end, self._find)

    def glance(self, end: SourceOffset) -> bool:
        """Return the same for a local checkpoint, at the cost of opening one file.

        It may miss a batch, because it reads entry by entry: with async progress tracking the offset log has gaps.
        """
        return self._is_recorded(end, self._follow)

    def wants_start(self, start: SourceOffset) -> bool:
        """Return whether the log's owner is undecided, and this start was not compared yet."""
        return not self._owner_known and start != self._compared

    def compare_start(self, start: SourceOffset) -> None:
        """Warn once if Spark's `start` shows that this is the checkpoint of another query.

        `start` is the end of the last batch in the commit log of the running query, or its initial offset.
        Guards against:
        1. A source is given the checkpointLocation of another query.
        2. None of its own batches is ever complete there.
        3. Every handover waits for the next trigger, and every stop repeats the last batch, without a warning.
        """
        self._compared = start
        try:
            found = self._find(start.to_json())
            completed = self._folder.newest_batch("commits")
        except TROUBLES as error:
            self._report(error)
            return
        self._in_trouble = False
        self._owner_known = found is not None or self._contradicts(start, completed)
        if self._owner_known and found is None:
            LOG.warning(
                "the checkpoint at checkpointLocation belongs to another query: Spark starts from lineage=%s ends=%s;"
                " checkpointLocation=%s has newest_batch=%s completed_batch=%s of %s. Handovers wait for the next"
                " trigger, and every stop repeats the last batch: set checkpointLocation to that of this query's"
                " writer",
                start.lineage, _shown_ends(start), self.name,
                None if self._newest == -1 else self._newest, completed, self._shown_owners(),
            )  # fmt: skip

    def _contradicts(self, start: SourceOffset, completed: int | None) -> bool:
        """Return whether a log without `start` in its newest entries cannot belong to the query."""
        newest = -1 if self._newest is None else self._newest
        lineages = {offset["lineage"] for offset in self._own_offsets()}
        if not start.ranges and not start.done:
            # A query without completed batches; batches that it planned before may be in the offset log.
            return completed is not None and start.lineage not in lineages
        if newest >= 0 and start.lineage not in lineages:
            return True
        # With async progress tracking the log is late; a copy of the query's own checkpoint never changes.
        if self._behind is None or self._behind[0] != newest:
            self._behind = (newest, time.monotonic())
        return time.monotonic() - self._behind[1] >= _LONGEST_LAG_S

    def _own_offsets(self) -> list[Json]:
        """Return the offsets of this source's format in the newest entries, the newest last."""
        return _own(value for number in sorted(self._entries) for value in self._entries[number])

    def _shown_owners(self) -> str:
        """Return the owner of the log's entries, for the warning."""
        found = self._own_offsets()
        if not found:
            return "no query of this source" if self._entries else "no query"
        try:
            newest = parse_offset(found[-1])
        except OffsetFormatError:
            return f"lineage={found[-1]['lineage']}"
        return f"lineage={newest.lineage} ends={_shown_ends(newest)}"

    def _is_recorded(self, end: SourceOffset, find: Callable[[Json], int | None]) -> bool:
        if end != self._end:
            self._end, self._json, self._batch = end, end.to_json(), None
        try:
            if self._batch is None:
                self._batch = find(self._json)
            complete = self._batch is not None and self._folder.exists(f"commits/{self._batch}") and self._is_new()
        except TROUBLES as error:
            self._report(error)
            return False
        self._in_trouble = False
        return complete

    def _check(self, location: str) -> bool:
        try:
            location_to_open(location)
        except ValueError as error:
            LOG.warning(
                "checkpoint not readable, option checkpointLocation has no effect: checkpointLocation=%s error=%s"
                " allowed=%s",
                self.name,
                self._folder.scrubbed(error),
                LOCATIONS,
            )
            return False
        return True

    def _report(self, error: BaseException) -> None:
        """Log the problem once until it is over, because checks run many times per second."""
        if not self._in_trouble:
            self._in_trouble = True
            text = self._folder.scrubbed(error)
            LOG.warning("checkpoint not readable: checkpointLocation=%s error=%s", self.name, text)

    def _is_new(self) -> bool:
        """Return whether the batch's entry in the commit log is not older than that in the offset log.

        Guards against (rule R22):
        1. Somebody deletes the newest files of a checkpoint, but only in the offset log. Entry 7 of the commit log
           stays.
        2. Batch 7 is planned again, with new ranges. A revoke or a stop reads the commit log and finds entry 7.
        3. The new batch would be committed, although Spark may never complete it: its records are lost.
        """
        infos = self._folder.infos(f"offsets/{self._batch}", f"commits/{self._batch}")
        logged, completed = (info.mtime_ns or 0 for info in infos)
        # R22: an older entry is of another batch of this number
        return completed >= logged

    def _find(self, offset: Json) -> int | None:
        """Return the first batch that logged this offset. An idle source's offset is logged again in later batches.

        If only older entries than the newest ones have it too, a later batch is returned. If that one is complete, so
        is the first.
        """
        newest = sorted(self._logged_batches(), reverse=True)[:_NEWEST_ENTRIES]
        self._entries = {number: self._entries[number] for number in newest if number in self._entries}
        self._newest = newest[0] if newest else -1
        found = None
        for number in newest:
            if offset in self._entry(number):
                found = number
            elif found is not None:
                break
        return found

    def _follow(self, offset: Json) -> int | None:
        """Return the first known or following entry with this offset."""
        if self._newest is None:
            return self._find(offset)
        number = min((known for known, entry in self._entries.items() if offset in entry), default=None)
        while number is None and (entry := self._entry(self._newest + 1)):
            self._newest += 1
            self._entries.pop(self._newest - _NEWEST_ENTRIES, None)
            number = self._newest if offset in entry else None
        return number

    def _entry(self, number: int) -> list[object]:
        """Return the offsets of an entry; an empty list if the file does not exist."""
        known = self._entries.get(number)
        if known is None:
            try:
                known = offsets_in_log_entry(self._folder.text(f"offsets/{number}"))
            except FileNotFoundError:
                return []
            if known:
                # An entry without offsets may be half written, on a file system that cannot rename.
                self._entries[number] = known
        return known

    def _logged_batches(self) -> list[int]:
        """Return the batches in the offset log. Raises FileNotFoundError if Spark has no checkpoint here.

        Spark writes `metadata` before it starts any source. Guards against:
        1. The writer's path has no scheme, and Spark's default file system is HDFS.
        2. The same path is another place here, without a checkpoint.
        3. Every handover waits for the next trigger, without a warning.
        """
        numbers = self._folder.batches("offsets")
        if not numbers:
            self._folder.require_checkpoint()
        return numbers


def _shown_ends(offset: SourceOffset) -> str:
    """Return the first ends of an offset, as text."""
    ends = [f"{partition}:{end}" for partition, end in sorted(offset.ends().items())]
    return f"[{first_names(ends, _NAMED)}]"
