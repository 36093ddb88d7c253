"""Define the offset JSON: this source's entry in Spark's offset log (its write-ahead log).

    {"v":1,"lineage":"<uuid>","topics":{"orders":{"id":"<topic id>","ranges":{"0":[100,200],"1":[7,7]},
     "done":{"4":150},"epochs":{"0":3}}}}

- `v`: format version.
- `id`: the topic's id when the batch was planned.
- `ranges`: half-open [start, end) of each partition that the member owned when the batch was planned.
- `done`: offset up to which this lineage has completed a partition that it did not own then.
- `epochs`: a leader epoch in which the log reached the range's end, where the broker reported it.
- `lineage`: a UUID, created once per checkpoint.
- `reset`: `[<ms since the epoch>,"<uuid>"]`, the newest reset of the group that this lineage knows; absent if none.

Invariants: the text is canonical (sorted keys), because Spark compares offsets as text. Stored text is untrusted and
parsed strictly. An offset is always the next record to read.
"""

from __future__ import annotations

import json
import re
import uuid
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from spark_groupsource import errors
from spark_groupsource.errors import OffsetFormatError

OFFSET_VERSION = 1
OFFSET_MAX = 2**63 - 1
# The topic id that brokers without topic ids (before Kafka 2.8) report: 16 zero bytes.
NO_TOPIC_ID = "A" * 22
PARTITION_MAX = 2**31 - 1
# 31 December 9999: the largest time that `datetime` supports.
TIME_MAX_MS = 253_402_300_799_999

Json = dict[str, Any]


def same_topic(one: str | None, other: str | None) -> bool:
    """Return whether two ids of topics with one name may belong to the same topic. None: nothing of it was read.

    Guards against:
    1. A query reads from brokers that have no topic ids.
    2. The brokers are upgraded one by one, and give the topic an id.
    3. The topic looks recreated: a false data loss is reported, and the whole topic is read again.
    """
    return one == other or (one is not None and other is not None and NO_TOPIC_ID in {one, other})


class TopicPartition(NamedTuple):
    """A partition of a topic; sorts by topic, then number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def every_partition(counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return all partitions of topics, sorted, by the topics' partition counts."""
    return [TopicPartition(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """Half-open range [start, end) of one partition. `leader_epoch` is that of the log at the end; None if unknown."""

    partition: TopicPartition
    start: int
    end: int
    leader_epoch: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= OFFSET_MAX:
            raise ValueError(f"not a half-open range: [{self.start}, {self.end}) of {self.partition}")

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


@dataclass(frozen=True, slots=True)
class NextRecords:
    """Hold the offset of a partition's next record, and the average number of bytes per offset from there on.

    Without a record up to the log's end, that is the offset, and the number is not known.
    """

    first: int
    bytes_per_offset: float | None


@dataclass(frozen=True, slots=True, order=True)
class Reset:
    """One reset of the group by the `reset` command. Newer resets compare as larger.

    The command makes `at_ms` larger than that of every reset stored in the group, so the order does not depend on
    synchronized clocks.
    """

    at_ms: int
    id: str

    def __str__(self) -> str:
        return f"{self.id}@{self.at_ms}"

    def to_json(self) -> list[object]:
        """Return the JSON array."""
        return [self.at_ms, self.id]


def new_lineage() -> str:
    """Return the name of a new lineage."""
    return str(uuid.uuid4())


def newer(reset: Reset | None, known: Reset | None) -> bool:
    """Return whether `reset` is newer than the newest `known` one."""
    return reset is not None and (known is None or reset > known)


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """One entry of Spark's offset log: a batch's ranges, and the other offsets that this lineage has completed.

    `ranges` and `done` are sorted and share no partition. `reset` is the newest one that the lineage knows.
    """

    lineage: str
    topic_ids: tuple[tuple[str, str], ...] = ()
    ranges: tuple[OffsetRange, ...] = ()
    done: tuple[tuple[TopicPartition, int], ...] = ()
    reset: Reset | None = None

    @classmethod
    def of(
        cls,
        lineage: str,
        topic_ids: Mapping[str, str],
        ranges: Iterable[OffsetRange],
        done: Mapping[TopicPartition, int],
        reset: Reset | None = None,
    ) -> SourceOffset:
        """Build the canonical value from unsorted collections."""
        ids = tuple(sorted(topic_ids.items()))
        return cls(lineage, ids, tuple(sorted(ranges)), tuple(sorted(done.items())), reset)

    def ends(self) -> dict[TopicPartition, int]:
        """Return the completed offset of each partition once this batch is complete."""
        return dict(self.done) | {item.partition: item.end for item in self.ranges}

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that the ranges belong to; None if the topic is not in this offset."""
        # A binary search, because it runs per partition and there may be thousands of topics.
        index = bisect_left(self.topic_ids, (topic, ""))
        found, topic_id = self.topic_ids[index] if index < len(self.topic_ids) else ("", "")
        return topic_id if found == topic else None

    def to_json(self) -> Json:
        """Return the JSON object, with keys in canonical order."""
        ranges: defaultdict[str, dict[int, OffsetRange]] = defaultdict(dict)
        for item in self.ranges:
            ranges[item.partition.topic][item.partition.partition] = item
        done: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for partition, end in self.done:
            done[partition.topic][partition.partition] = end
        topics: Json = {}
        for topic, topic_id in self.topic_ids:
            epochs = {n: r.leader_epoch for n, r in ranges[topic].items() if r.leader_epoch is not None}
            entry: Json = {"done": _keyed(done[topic])} if done[topic] else {}
            if epochs:
                entry["epochs"] = _keyed(epochs)
            entry["id"] = topic_id
            entry["ranges"] = {str(n): [r.start, r.end] for n, r in sorted(ranges[topic].items())}
            topics[topic] = entry
        known = {} if self.reset is None else {"reset": self.reset.to_json()}
        return {"lineage": self.lineage, **known, "topics": topics, "v": OFFSET_VERSION}


def _keyed(values: Mapping[int, int]) -> Json:
    return {str(number): value for number, value in sorted(values.items())}


# --- strict reading


def malformed(what: str, reason: str) -> OffsetFormatError:
    """Build the error for stored data that does not have the format of this package."""
    return OffsetFormatError(errors.OFFSET_MALFORMED, what=what, reason=reason)


def parsed_json(what: str, text: str) -> object:
    """Parse stored JSON. Raises `OffsetFormatError` for other text, and for an object with duplicate keys."""
    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except RecursionError:
        raise malformed(what, "it is nested too deeply") from None
    except ValueError as error:
        raise malformed(what, f"it is not JSON ({error})") from None


def without_duplicates(pairs: list[tuple[str, object]]) -> Json:
    """Build a dict from a JSON object's pairs, for `json.loads`. Raises `ValueError` for a duplicate key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("duplicate keys")
    return value


def checked_object(what: str, value: object, required: set[str], optional: set[str] = frozenset()) -> Json:  # type: ignore[assignment]
    """Return `value` as an object with all `required` keys and no others but `optional`. Raises `OffsetFormatError`."""
    if not isinstance(value, dict):
        raise malformed(what, f"expected an object, found {type(value).__name__}")
    missing, unknown = required - value.keys(), value.keys() - required - optional
    if missing or unknown:
        names = ", ".join(sorted(map(excerpt, unknown))[:10])
        raise malformed(what, f"missing keys {sorted(missing)}, unknown keys [{names}]")
    return value


def checked_int(what: str, value: object, high: int = OFFSET_MAX) -> int:
    """Return `value` as an integer from 0 to `high`; bool and float are not accepted."""
    if type(value) is not int or not 0 <= value <= high:
        raise malformed(what, f"expected an integer from 0 to {high}, found {excerpt(value)}")
    return value


def checked_text(what: str, value: object) -> str:
    """Return `value` as a string of 1 to 255 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= 255 or not _is_text(value):
        raise malformed(what, f"expected a text of 1 to 255 characters, found {excerpt(value)}")
    return value


def _is_text(value: str) -> bool:
    """Return whether UTF-8 can encode it. JSON can hold halves of surrogate pairs, which Kafka and Spark reject."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def excerpt(value: object) -> str:
    """Return the beginning of a stored value of any type, for an error."""
    try:
        return ascii(str(value)[:40])
    except (ValueError, RecursionError):
        # Integers of thousands of digits, and deeply nested lists.
        return f"something too large of type {type(value).__name__}"


def checked_reset(what: str, value: object) -> Reset:
    """Return `value`, a two-element array, as a reset. Raises `OffsetFormatError`."""
    if not isinstance(value, list) or len(value) != 2:
        raise malformed(what, "the reset is not a pair")
    return Reset(checked_int(what, value[0], TIME_MAX_MS), checked_text(what, value[1]))


def check_version(what: str, value: object, newest: int) -> None:
    """Raise `OffsetFormatError` unless `value` is a format version that this release reads."""
    version = checked_int(what, value, 2**31)
    if version > newest:
        raise OffsetFormatError(errors.OFFSET_TOO_NEW, what=what, version=version, newest=newest)
    if version < 1:
        raise malformed(what, f"unknown version {version}")


def _number(what: str, key: str) -> int:
    if not re.fullmatch(r"0|[1-9][0-9]{0,9}", key):
        raise malformed(what, f"{excerpt(key)} is not a partition number")
    return checked_int(what, int(key), PARTITION_MAX)


def numbered(what: str, value: object) -> dict[int, object]:
    """Return `value` as an object whose keys are partition numbers."""
    if not isinstance(value, dict):
        raise malformed(what, f"expected an object, found {type(value).__name__}")
    return {_number(what, key): item for key, item in value.items()}


def parse_offset(value: object) -> SourceOffset:
    """Parse an offset from the JSON object in Spark's offset log.

    Raises `OffsetFormatError` if it is not exactly what `SourceOffset.to_json` writes, or if its version is newer.
    """
    what = "offset"
    if _is_of_sparks_source(value):
        raise OffsetFormatError(errors.OFFSET_OF_SPARKS_SOURCE)
    if isinstance(value, dict) and "v" in value:
        check_version(what, value["v"], OFFSET_VERSION)
    root = checked_object(what, value, {"v", "lineage", "topics"}, {"reset"})
    lineage = checked_text(what, root["lineage"])
    reset = checked_reset(what, root["reset"]) if "reset" in root else None
    if not isinstance(root["topics"], dict):
        raise malformed(what, "'topics' is not an object")
    ids: dict[str, str] = {}
    ranges: list[OffsetRange] = []
    done: dict[TopicPartition, int] = {}
    for topic, raw in root["topics"].items():
        checked_text(what, topic)
        entry = checked_object(what, raw, {"id", "ranges"}, {"done", "epochs"})
        ids[topic] = checked_text(what, entry["id"])
        found = _parse_ranges(topic, entry)
        ranges += found
        owned = {item.partition for item in found}
        for number, end in numbered(what, entry.get("done", {})).items():
            partition = TopicPartition(topic, number)
            if partition in owned:
                raise malformed(what, f"{partition} is both in 'ranges' and in 'done'")
            done[partition] = checked_int(what, end)
    return SourceOffset.of(lineage, ids, ranges, done, reset)


def _is_of_sparks_source(value: object) -> bool:
    """Return whether it looks like an offset of Spark's own Kafka source: {"topic":{"0":23}}."""
    topics = value.values() if isinstance(value, dict) else ()
    offsets = [offset for topic in topics for offset in (topic.values() if isinstance(topic, dict) else (None,))]
    return bool(offsets) and all(type(offset) is int for offset in offsets)


def _parse_ranges(topic: str, entry: Json) -> list[OffsetRange]:
    what = "offset"
    epochs = {
        number: checked_int(what, epoch, 2**31 - 1) for number, epoch in numbered(what, entry.get("epochs", {})).items()
    }
    ranges: list[OffsetRange] = []
    for number, pair in numbered(what, entry["ranges"]).items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise malformed(what, f"range of {topic}-{number} is not a pair")
        start, end = (checked_int(what, item) for item in pair)
        if start > end:
            raise malformed(what, f"range of {topic}-{number} ends before it starts")
        ranges.append(OffsetRange(TopicPartition(topic, number), start, end, epochs.pop(number, None)))
    if epochs:
        raise malformed(what, f"leader epochs without a range: {topic} {sorted(epochs)}")
    return ranges
