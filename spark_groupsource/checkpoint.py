"""Reads Spark's offset log and commit log, to see whether a batch is complete.

Spark tells a source that a batch is complete only while it plans the next one. Its commit log says it at once:
`commits/N` exists as soon as batch N is done. This module finds N for one of our offsets and looks; it writes
nothing and keeps no other state than the number it found.

Formats: offset log v1 (a line per source) and v2 (a JSON object keyed by source id), as in Spark's OffsetSeqLog.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyarrow import fs

LOG = logging.getLogger("spark_groupsource.checkpoint")

Json = dict[str, Any]


def offsets_in_log_entry(text: str) -> list[object]:
    """Return the sources' offsets in one file of the offset log, parsed; what is no JSON is left out."""
    version, _, body = text.partition("\n")
    lines = [line for line in body.split("\n") if line]
    if version.strip() not in ("v1", "v2") or not lines:
        return []
    found = []
    for line in lines[1:]:
        value = _json_or_none(line)
        if version.strip() == "v2" and isinstance(value, dict):
            found += [_json_or_none(item) if isinstance(item, str) else item for item in value.values()]
        else:
            found.append(value)
    return [value for value in found if value is not None]


def _json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


class CheckpointLog:
    """Spark's checkpoint of one query, at the location that was given to its writer.

    `location` is a path or a URI that pyarrow knows (local, HDFS, S3, GCS). Errors of the file system are
    logged, and mean that nothing is known.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._filesystem: fs.FileSystem | None = None
        self._root = ""
        self._batch: tuple[Json, int] | None = None
        self._trouble = ""

    def is_complete(self, offset: Json) -> bool:
        """Whether the batch that ends at `offset` is in the commit log."""
        try:
            number = self._batch_number(offset)
            return number is not None and self._exists(f"commits/{number}")
        except (OSError, ValueError) as error:
            # Asked ten times a second while a revoke waits: the same trouble is told once.
            if str(error) != self._trouble:
                self._trouble = str(error)
                LOG.warning("checkpoint not readable: checkpointLocation=%s error=%s", self._location, error)
            return False

    def _open(self) -> fs.FileSystem:
        if self._filesystem is None:
            if "://" in self._location or self._location.startswith("file:"):
                location = self._location
                if location.startswith("file:/") and not location.startswith("file://"):
                    location = "file://" + location[len("file:") :]
                self._filesystem, self._root = fs.FileSystem.from_uri(location)
            else:
                self._filesystem, self._root = fs.LocalFileSystem(), self._location
            self._root = self._root.rstrip("/")
        return self._filesystem

    def _exists(self, name: str) -> bool:
        filesystem = self._open()
        info = filesystem.get_file_info(f"{self._root}/{name}")
        return bool(info.type != fs.FileType.NotFound)

    def _batch_number(self, offset: Json) -> int | None:
        """Return the first batch that logged this offset; an idle source's offset is logged again later."""
        if self._batch is not None and self._batch[0] == offset:
            return self._batch[1]
        found = None
        for number in sorted(self._logged_batches(), reverse=True):
            if offset in offsets_in_log_entry(self._read(f"offsets/{number}")):
                found = number
            elif found is not None:
                break
        if found is not None:
            self._batch = (offset, found)
        return found

    def _logged_batches(self) -> list[int]:
        filesystem = self._open()
        selector = fs.FileSelector(f"{self._root}/offsets", allow_not_found=True)
        names = [info.base_name for info in filesystem.get_file_info(selector)]
        return [int(name) for name in names if name.isdigit()]

    def _read(self, name: str) -> str:
        with self._open().open_input_stream(f"{self._root}/{name}") as stream:
            return bytes(stream.read()).decode("utf-8")
