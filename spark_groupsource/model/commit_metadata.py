"""Define what a batch commits: offsets, and their metadata text, which stores per partition which query committed what.

    {"e":3,"gk":1,"l":"<lineage>","n":4,"p":0,"r":[100,200],"t":"<topic id>"}

- `gk`: version of the format. `l`: lineage of the writer. `t`: topic id.
- `r`: half-open range of the batch. `e`: leader epoch of the offset, absent if it is not known.
- `p`: the partition's pinned initial offset. `n`: the topic's partition count when it was pinned.
- `k`: digests of the topics (name and id) that the subscription matched then (see `KnownTopics`); absent with
  startingOffsets=earliest.
- `z`: the partition's newest reset, `[<ms since the epoch>,"<uuid>"]`; absent if none. The `reset` command writes it,
  or the query that decides a conflict, and every later commit of the partition repeats it.
- `s`: 1 if the writer has state (a window, a join, dropDuplicates), which holds rows of this partition; else absent.
- `o`: only read. Up to version 0.2 it named the lineage of the checkpoint against which the commit decided a conflict.

The text has at most 4,096 bytes (the broker's default offset.metadata.max.bytes). Text of another program is not
an error: the offset then belongs to no lineage. docs/reference/stored-formats.md describes the same for users.

Version 1 has `k` as one text of digests of 6 hexadecimal characters, or no `k`. Version 2 has `k` as
`[<characters per digest>,"<digests>"]`. Version 3 has `s`, and `k` in either form or none. A text is written in the
lowest version that can hold it, so that members of an older release read all but new pins and commits of queries with
state.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_groupsource.errors import OffsetFormatError
from spark_groupsource.model import offsets
from spark_groupsource.model.offsets import NO_TOPIC_ID, Reset, SourceOffset, TopicPartition, newer, same_topic

METADATA_VERSION = 3
_WHAT = "commit metadata"
# Version 1: 6 hexadecimal characters, 24 bits, of at most 400 topics.
_HEX_CHARS = 6
_HEX_ROOM = 400 * _HEX_CHARS
# Possible lengths of a digest, in characters of 6 bits, the best first. 36 bits are the minimum: then two of 540 topics
# share a digest in one of 500,000 groups.
_DIGEST_CHARS = (12, 10, 8, 6)
# Part of the 4,096 bytes for digests: 270 topics at 12 characters, 540 at 6.
_DIGEST_ROOM = 3_240
MAX_KNOWN_TOPICS = _DIGEST_ROOM // _DIGEST_CHARS[-1]
# Half of the largest batch that the coordinator's log accepts by default (message.max.bytes); each item also carries
# the group's name.
_REQUEST_BYTES = 500_000
_ITEM_BYTES = 80


@dataclass(frozen=True, slots=True)
class KnownTopics:
    """Digests of the topics that existed when a position was pinned.

    `width` is the number of characters per digest; 0 if there were too many topics for the metadata, then no topic is
    known. `is_hex` is the form of version 1, which had 24 bits.

    Guards against (too short a width):
    1. A group begins at "latest" with 300 topics. Later 10,000 more are created.
    2. With 24 bits, the chance that one of them shares its digest with one of the 300 is 16 %.
    3. That topic looks old, so its first records are skipped.
    """

    width: int
    digests: str
    is_hex: bool = False

    @classmethod
    def of(cls, topic_ids: Mapping[str, str]) -> KnownTopics:
        """Return the digests of all topics (name, id), as wide as fits; with `width` 0 if there are too many topics."""
        known = [(topic, "" if each == NO_TOPIC_ID else each) for topic, each in sorted(topic_ids.items())]
        for width in _DIGEST_CHARS:
            if len(topic_ids) * width <= _DIGEST_ROOM:
                return cls(width, "".join(_digest(*each)[:width] for each in known))
        return cls(0, "")

    @property
    def too_many(self) -> bool:
        """Whether there were more topics than the metadata can hold."""
        return self.width == 0

    def has(self, topic: str, topic_id: str) -> bool:
        """Return whether the topic is one of these. A topic recorded without an id matches every topic of its name."""
        if self.too_many:
            return False
        digest = _hex_digest if self.is_hex else _digest
        # Older releases recorded NO_TOPIC_ID.
        wanted = tuple(digest(topic, each)[: self.width] for each in {topic_id, NO_TOPIC_ID, ""})
        return any(self.digests.startswith(wanted, at) for at in range(0, len(self.digests), self.width))

    def to_json(self) -> object:
        """Return the JSON value."""
        return self.digests if self.is_hex else [self.width, self.digests]


@dataclass(frozen=True, slots=True)
class Pin:
    """A partition's initial position in the group, fixed once.

    `partition_count` is the topic's number of partitions at that time: a partition with this number or a larger one
    was added later. `known_topics` are the topics that the subscription matched then; a topic that is not among them
    was created later. None: the difference does not matter for this start position.
    """

    offset: int
    partition_count: int
    known_topics: KnownTopics | None = None

    def knows_topic(self, topic: str, topic_id: str) -> bool:
        """Return whether the topic existed when this position was pinned, as far as the pin shows.

        Guards against (rule R6):
        1. A query runs with `startingOffsets=latest`. Its topic is deleted and recreated, and gets records.
        2. A partition of the recreated topic goes to a member that never had it, or to a standby.
        3. By name the topic is known, so the partition would start at `latest` and skip these records.
        """
        # R6: by name and id
        return self.known_topics is None or self.known_topics.has(topic, topic_id)

    def leaves_out(self, topic: str, topic_id: str) -> bool:
        """Return whether the pin names topics, and this one is not among them."""
        known = self.known_topics
        return known is not None and not known.too_many and not known.has(topic, topic_id)


@dataclass(frozen=True, slots=True)
class Anchor:
    """The context of a partition's offsets: the topic id, the pinned initial position, and its newest reset."""

    topic_id: str
    pin: Pin
    reset: Reset | None = None


@dataclass(frozen=True, slots=True)
class CommitItem:
    """One offset to commit (the next record to read), with its metadata text."""

    partition: TopicPartition
    offset: int
    metadata: str
    leader_epoch: int | None = None


def requests_of(items: Iterable[CommitItem]) -> list[tuple[CommitItem, ...]]:
    """Split a commit into requests that the coordinator can store.

    The coordinator writes each request as one batch of records. If the batch is too large for its log, it returns an
    unknown error, also on every retry. Some thousand partitions suffice, or some hundred with digests of many topics.

    Guards against (rule R18):
    1. A group begins with some thousand partitions. All start positions are committed in one request.
    2. The coordinator writes it as one batch of records. Beyond the log's limit it is refused with an unknown error,
       always.
    3. No start position is ever pinned, and nothing is planned.
    """
    requests: list[list[CommitItem]] = []
    room = 0
    for item in items:
        size = _ITEM_BYTES + len(item.partition.topic) + len(item.metadata)
        # R18: the coordinator stores a request as one batch
        if size > room:
            requests.append([])
            room = _REQUEST_BYTES
        requests[-1].append(item)
        room -= size
    return [tuple(request) for request in requests]


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The group's committed offset of a partition; `offset` is None if nothing was ever committed."""

    offset: int | None
    metadata: str = ""


def _sha256(topic: str, topic_id: str) -> hashlib._Hash:
    return hashlib.sha256((f"{topic}/{topic_id}" if topic_id else topic).encode())


def _digest(topic: str, topic_id: str) -> str:
    return urlsafe_b64encode(_sha256(topic, topic_id).digest()).decode()


def _hex_digest(topic: str, topic_id: str) -> str:
    return _sha256(topic, topic_id).hexdigest()


def checked_hex_topics(what: str, value: object) -> KnownTopics | None:
    """Return `value` as the digests of format version 1. Raises `OffsetFormatError`."""
    if value is None:
        return None
    if not isinstance(value, str) or len(value) % _HEX_CHARS or len(value) > _HEX_ROOM:
        raise offsets.malformed(what, "expected digests of topic names")
    return KnownTopics(_HEX_CHARS, value, is_hex=True)


def checked_topics(what: str, value: object) -> KnownTopics:
    """Return `value` as the digests of format version 2 (`KnownTopics.to_json`). Raises `OffsetFormatError`."""
    match value:
        case [0, ""] if value[0] is not False:
            return KnownTopics(0, "")
        case [int(width), str(digests)] if width in _DIGEST_CHARS:
            if len(digests) % width == 0 and len(digests) <= _DIGEST_ROOM:
                return KnownTopics(width, digests)
    raise offsets.malformed(what, "expected digests of topic names and their length")


def _topics_of_either_form(value: object) -> KnownTopics | None:
    """Return `value` as the digests of version 1 or 2, since later commits repeat the pin as it was written."""
    return checked_hex_topics(_WHAT, value) if isinstance(value, str) else checked_topics(_WHAT, value)


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """The metadata of one committed offset: lineage, topic id, batch range, pin, and where known epoch and reset."""

    lineage: str
    topic_id: str
    start: int
    end: int
    pin: Pin
    leader_epoch: int | None = None
    reset: Reset | None = None
    # Version 0.2: the lineage of the checkpoint against which this commit has decided a conflict.
    instead_of: str | None = None
    # Whether the writer has state that holds rows of this partition.
    has_state: bool = False

    def to_text(self) -> str:
        """Return the metadata text to commit."""
        known = self.pin.known_topics
        value: dict[str, object] = {
            "gk": 3 if self.has_state else 1 if known is None or known.is_hex else 2,
            "l": self.lineage,
            "t": self.topic_id,
            "r": [self.start, self.end],
            "p": self.pin.offset,
            "n": self.pin.partition_count,
        }
        if self.leader_epoch is not None:
            value["e"] = self.leader_epoch
        if known is not None:
            value["k"] = known.to_json()
        if self.reset is not None:
            value["z"] = self.reset.to_json()
        if self.has_state:
            value["s"] = 1
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


def parse_metadata(text: str) -> CommitMetadata | None:
    """Parse the metadata text of a committed offset. Return None if this package did not write it.

    Raises `OffsetFormatError` for a newer format version.
    """
    try:
        value = json.loads(text, object_pairs_hook=offsets.without_duplicates)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or type(value.get("gk")) is not int or value["gk"] < 1:
        return None
    offsets.check_version(_WHAT, value["gk"], METADATA_VERSION)
    try:
        return _parse(value, value["gk"])
    except OffsetFormatError:
        return None


def without_tail(text: str) -> str:
    """Return a committed offset's text without trailing bytes, if this package may have written the text.

    confluent-kafka takes a zero byte as the end. It writes one when it commits, but other clients do not, and then
    bytes behind the text are read.
    """
    if not text.startswith("{"):
        return text
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return text[:end]


def commit_items(
    end: SourceOffset, anchors: Mapping[TopicPartition, Anchor], *, has_state: bool = False
) -> tuple[CommitItem, ...]:
    """Return the commits of a completed batch: the planned ends, not the last record + 1.

    Transaction markers and compaction leave offsets without records, so the last record + 1 would show lag for ever.
    A partition is left out:
    1. if it has no anchor, because its start position is not established;
    2. if its topic was recreated after the plan, because the old end would skip records of the new topic;
    3. if it was reset after the plan, because the commit would undo the reset.

    Guards against (rule R13):
    1. A batch covers [0, 101). Its last record is at 99. Offset 100 is a transaction marker, which is not a record.
    2. If 100 was committed, the group would have a lag of 1 forever.

    Each commit repeats its partition's newest reset, and only that.

    Guards against (one reset for all partitions):
    1. A query decides a conflict of p0, which it stores as a reset, and goes on with p1.
    2. p1 moves to a query that has completed a batch of it, whose commit was not accepted.
    3. A reset in p1's text would make that query's end void: it would read the batch again.
    """
    items = []
    for item in end.ranges:
        anchor = anchors.get(item.partition)
        # R47: planned before the reset
        if anchor is None or newer(anchor.reset, end.reset):
            continue
        # R35: the batch was planned for a deleted topic
        if not same_topic(anchor.topic_id, end.topic_id(item.partition.topic)):
            continue
        metadata = CommitMetadata(
            end.lineage, anchor.topic_id, item.start, item.end, anchor.pin, item.leader_epoch, anchor.reset,
            has_state=has_state,
        )  # fmt: skip
        # R13: the planned end
        items.append(CommitItem(item.partition, item.end, metadata.to_text(), item.leader_epoch))
    return tuple(items)


def overruled(item: CommitItem, group: GroupOffset, *, established: bool = True) -> bool:
    """Return whether the commit of this item (the end of an earlier batch) must not replace the group's offset.

    Guards against (rule R47):
    1. A query dies in the middle of a batch [100, 200), or its session expires. The group is reset to 0.
    2. It is restarted, and Spark runs the batch again. Or it gets the partition back, and the batch ends.
    3. Its commit, 200, would undo the reset. A batch that ran again would be read once more after the reset.

    Guards against (rule R35, a completed batch):
    1. A member completes [0, 40) of a topic. The topic is deleted and recreated, and the partition is lost.
    2. Another member gets the partition and pins 0. Then it comes back to this member.
    3. Spark's next trigger reports again that 40 is complete: 40 would be committed, and [0, 40) of the recreated topic
       skipped.

    Guards against (rule R12, an offset of another program):
    1. A member completes 100. Its session expires. An operator moves the empty group back to 40.
    2. The member gets the partition back. Its start position is not `established` yet.
    3. The next trigger reports that 100 is complete: 100 would be committed over 40 without a word.
    """
    held, own = parse_metadata(group.metadata), parse_metadata(item.metadata)
    if own is None:
        return False
    if held is None:
        # R12: of another program, so option onConflict decides first
        return group.offset is not None and not established
    # R35, R47: of another topic id, or from before a reset
    return not same_topic(held.topic_id, own.topic_id) or newer(held.reset, own.reset)


def of_another_topic(one: CommitItem | GroupOffset, other: CommitItem | GroupOffset) -> bool:
    """Return whether two offsets of a partition are of topics with different ids, as far as both ids are known."""
    own, theirs = parse_metadata(one.metadata), parse_metadata(other.metadata)
    return own is not None and theirs is not None and not same_topic(own.topic_id, theirs.topic_id)


def _parse(value: object, version: int) -> CommitMetadata | None:
    required, optional = {"gk", "l", "t", "r", "p", "n"}, {"e", "o", "z"}
    if version == 1:
        root = offsets.checked_object(_WHAT, value, required, optional | {"k"})
        known = checked_hex_topics(_WHAT, root["k"]) if "k" in root else None
    elif version == 2:
        root = offsets.checked_object(_WHAT, value, required | {"k"}, optional)
        known = checked_topics(_WHAT, root["k"])
    else:
        root = offsets.checked_object(_WHAT, value, required | {"s"}, optional - {"o"} | {"k"})
        if type(root["s"]) is not int or root["s"] != 1:
            return None
        known = _topics_of_either_form(root["k"]) if "k" in root else None
    if not isinstance(root["r"], list) or len(root["r"]) != 2:
        return None
    start, end = (offsets.checked_int(_WHAT, item) for item in root["r"])
    if start > end:
        return None
    return CommitMetadata(
        lineage=offsets.checked_text(_WHAT, root["l"]),
        topic_id=offsets.checked_text(_WHAT, root["t"]),
        start=start,
        end=end,
        pin=Pin(
            offset=offsets.checked_int(_WHAT, root["p"]),
            partition_count=offsets.checked_int(_WHAT, root["n"], offsets.PARTITION_MAX),
            known_topics=known,
        ),
        leader_epoch=offsets.checked_int(_WHAT, root["e"], 2**31 - 1) if "e" in root else None,
        reset=offsets.checked_reset(_WHAT, root["z"]) if "z" in root else None,
        instead_of=offsets.checked_text(_WHAT, root["o"]) if "o" in root else None,
        has_state="s" in root,
    )


def metadata_of(group: GroupOffset | None) -> CommitMetadata | None:
    """Return the parsed metadata of the group's offset; None if this package did not write it."""
    return None if group is None else parse_metadata(group.metadata)


def next_reset(groups: Iterable[GroupOffset], now_ms: int, name: str, known: Reset | None = None) -> Reset:
    """Return a reset that is newer than `known` and all resets stored in the group, also if clocks differ."""
    found = [metadata.reset for metadata in map(metadata_of, groups) if metadata is not None]
    return Reset(max([now_ms, *(reset.at_ms + 1 for reset in (known, *found) if reset is not None)]), name)
