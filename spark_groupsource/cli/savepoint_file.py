"""Read and write savepoints: the committed offsets of a group at one moment, in a file.

The group's offsets are the merged checkpoint of all its members, so members can run while a savepoint is written. The
file is JSON, with sorted keys:

    {"cluster": "<cluster id>", "group": "orders-to-lake", "taken_ms": 1700000000000, "v": 1,
     "topics": {"orders": {"id": "<topic id>", "partitions": {
         "0": {"offset": 150, "pin": {"count": 4, "known": "<digests>", "offset": 90}}}}}}

- `v`: version of the format. `cluster`, `group`: where the savepoint is valid. `taken_ms`: ms since the epoch.
- `id`: the topic's id. `offset`: the group's committed offset of a partition.
- `pin`: the partition's initial position (see `commit_metadata.Pin`), null if none is known. `offset`, `count` and
  `known` are `p`, `n` and `k` of the commit metadata; `known` is absent if `k` is.

The file is untrusted and parsed strictly. Version 2 has `known` as `[<characters per digest>,"<digests>"]`,
or in the form of version 1; a file is written in the lowest version that holds it.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_groupsource import errors
from spark_groupsource.errors import CommandError, OffsetFormatError, file_errors
from spark_groupsource.model import offsets
from spark_groupsource.model.commit_metadata import KnownTopics, Pin, checked_hex_topics, checked_topics
from spark_groupsource.model.offsets import TopicPartition, malformed

SAVEPOINT_VERSION = 2
_WHAT = "savepoint"


@dataclass(frozen=True, slots=True)
class Saved:
    """One partition: the group's offset, and its initial position if it was pinned."""

    offset: int
    pin: Pin | None = None


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A group's offsets at one moment (ms since the epoch). They are valid for one cluster and these topic ids."""

    cluster: str
    group: str
    taken_ms: int
    topic_ids: Mapping[str, str]
    partitions: Mapping[TopicPartition, Saved]

    def to_text(self) -> str:
        """Return the file's content."""
        topics: dict[str, Any] = {
            topic: {"id": topic_id, "partitions": {}} for topic, topic_id in self.topic_ids.items()
        }
        for partition, saved in self.partitions.items():
            topics[partition.topic]["partitions"][str(partition.partition)] = {
                "offset": saved.offset,
                "pin": None if saved.pin is None else _pin_to_json(saved.pin),
            }
        known = [saved.pin.known_topics for saved in self.partitions.values() if saved.pin is not None]
        version = 1 if all(each is None or each.is_hex for each in known) else 2
        value = {
            "cluster": self.cluster, "group": self.group, "taken_ms": self.taken_ms, "topics": topics, "v": version,
        }  # fmt: skip
        return json.dumps(value, sort_keys=True, indent=1) + "\n"


def _pin_to_json(pin: Pin) -> dict[str, object]:
    value: dict[str, object] = {"count": pin.partition_count, "offset": pin.offset}
    return value if pin.known_topics is None else value | {"known": pin.known_topics.to_json()}


def write_savepoint(path: Path, savepoint: Savepoint) -> None:
    """Write the file completely or not at all; replace an existing one. Raises `CommandError`.

    A symbolic link stays: the file that it names is written. A pipe or a device is refused, also behind a link.
    """
    with file_errors(path, "written"):
        _check_replaceable(path)
        target = Path(os.path.realpath(path))
        descriptor, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(savepoint.to_text())
                stream.flush()
                os.fsync(stream.fileno())
            Path(scratch).replace(target)
        finally:
            Path(scratch).unlink(missing_ok=True)


def _check_replaceable(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        reason = "it is a directory" if stat.S_ISDIR(mode) else "it is a pipe, a device or a socket"
        raise CommandError(errors.FILE_FAILED, path=path, verb="written", reason=reason)


def read_savepoint(path: Path) -> Savepoint:
    """Read a savepoint file. Raises `CommandError`, or `OffsetFormatError` for a newer format version."""
    try:
        with file_errors(path, "read"):
            text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CommandError(errors.SAVEPOINT_INVALID, path=path, reason="it is not UTF-8 text") from None
    try:
        return parse_savepoint(text)
    except OffsetFormatError as error:
        if error.condition is errors.OFFSET_TOO_NEW:
            raise
        reason = error.parameters["reason"]
        raise CommandError(errors.SAVEPOINT_INVALID, path=path, reason=reason) from None


def parse_savepoint(text: str) -> Savepoint:
    """Parse a file's content. Raises `OffsetFormatError` unless it is exactly what `to_text` writes."""
    value = offsets.parsed_json(_WHAT, text)
    if isinstance(value, dict) and "v" in value:
        offsets.check_version(_WHAT, value["v"], SAVEPOINT_VERSION)
    root = offsets.checked_object(_WHAT, value, {"cluster", "group", "taken_ms", "topics", "v"})
    if not isinstance(root["topics"], dict):
        raise malformed(_WHAT, "'topics' is not an object")
    ids: dict[str, str] = {}
    partitions: dict[TopicPartition, Saved] = {}
    for topic, raw in root["topics"].items():
        offsets.checked_text(_WHAT, topic)
        entry = offsets.checked_object(_WHAT, raw, {"id", "partitions"})
        ids[topic] = offsets.checked_text(_WHAT, entry["id"])
        for number, item in offsets.numbered(_WHAT, entry["partitions"]).items():
            partitions[TopicPartition(topic, number)] = _parse_saved(item, root["v"])
    return Savepoint(
        cluster=offsets.checked_text(_WHAT, root["cluster"]),
        group=offsets.checked_text(_WHAT, root["group"]),
        taken_ms=offsets.checked_int(_WHAT, root["taken_ms"], offsets.TIME_MAX_MS),
        topic_ids=ids,
        partitions=partitions,
    )


def _parse_saved(value: object, version: int) -> Saved:
    item = offsets.checked_object(_WHAT, value, {"offset", "pin"})
    pin = None if item["pin"] is None else _parse_pin(item["pin"], version)
    return Saved(offsets.checked_int(_WHAT, item["offset"]), pin)


def _parse_pin(value: object, version: int) -> Pin:
    pin = offsets.checked_object(_WHAT, value, {"count", "offset"}, {"known"})
    return Pin(
        offset=offsets.checked_int(_WHAT, pin["offset"]),
        partition_count=offsets.checked_int(_WHAT, pin["count"], offsets.PARTITION_MAX),
        known_topics=_parse_known(pin.get("known"), version),
    )


def _parse_known(value: object, version: int) -> KnownTopics | None:
    if version == 1 or isinstance(value, str) or value is None:
        return checked_hex_topics(_WHAT, value)
    return checked_topics(_WHAT, value)
