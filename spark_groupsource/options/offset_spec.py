"""Parse where partitions start for which the group has no offset (startingOffsets and related options). Pure.

As in Spark's own source, the first option given applies: startingTimestamp, then startingOffsetsByTimestamp, then
startingOffsets. The JSON is Spark's: {"topic": {"partition": value}}, where the offset -1 means the log's end and -2
its beginning, and {"topic": "earliest"} for all partitions of a topic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spark_groupsource.model.names import group_name, topic_name
from spark_groupsource.model.offsets import OFFSET_MAX, PARTITION_MAX, TopicPartition, without_duplicates

EARLIEST, LATEST = "earliest", "latest"
GROUP_PREFIX = "group:"
_LATEST_OFFSET, _EARLIEST_OFFSET = -1, -2
# Characters of an option's value that an error shows.
_MAX_SHOWN = 300
_MAX_SHOWN_ENTRY = 60


@dataclass(frozen=True, slots=True)
class AtOffset:
    """Start at an offset of the log."""

    offset: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """Start at the first record at or after a time (ms since the epoch)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtEdge:
    """Start at the log's beginning, or at its end."""

    latest: bool = False

    def __str__(self) -> str:
        return LATEST if self.latest else EARLIEST


@dataclass(frozen=True, slots=True)
class AtGroup:
    """Start at another group's committed offset; at the log's beginning if that group has none."""

    group: str


Start: TypeAlias = AtOffset | AtTime | AtEdge | AtGroup


@dataclass(frozen=True, slots=True)
class Starting:
    """Start positions of all partitions.

    `everywhere` applies to all partitions. If it is None, `each` has a start per partition, or `topics` one per topic.
    `option` and `text` are the name and the value of the option that set them, for errors.
    """

    everywhere: Start | None = field(default_factory=lambda: AtEdge(latest=True))
    each: Mapping[TopicPartition, Start] = field(default_factory=dict)
    option: str = "startingOffsets"
    topics: Mapping[str, Start] = field(default_factory=dict)
    text: str = field(default=LATEST, compare=False)

    def of(self, partition: TopicPartition) -> Start | None:
        """Return the start of a partition; None if the option does not name it."""
        if self.everywhere is not None:
            return self.everywhere
        return self.each.get(partition, self.topics.get(partition.topic))

    @property
    def shown(self) -> str:
        """The option's value as the user has written it, shortened, for an error."""
        return self.text if len(self.text) <= _MAX_SHOWN else f"{self.text[:_MAX_SHOWN]}..."

    @property
    def is_earliest(self) -> bool:
        """Whether every partition starts at its log's beginning."""
        return self.everywhere == AtEdge()


class ReasonedValueError(ValueError):
    """A `ValueError` whose text the user reads: why the value is not allowed."""


def start_of(value: str) -> Starting:
    """Parse startingOffsets: one start for all partitions, or one per partition or topic. Raises `ValueError`."""
    text = value.lstrip()
    edge = text.rstrip().lower()
    if edge in (EARLIEST, LATEST):
        return Starting(AtEdge(latest=edge == LATEST))
    if text.lower().startswith(GROUP_PREFIX):
        return Starting(AtGroup(group_name(text[len(GROUP_PREFIX) :])))
    named = json_by_topic(text)
    topics = {topic: AtEdge(latest=edge == LATEST) for topic, edge in named.items() if edge in (EARLIEST, LATEST)}
    by_number = {topic: offsets for topic, offsets in named.items() if topic not in topics}
    each = {partition: _at(offset) for partition, offset in _values(by_number, _EARLIEST_OFFSET).items()}
    return Starting(None, each, topics=topics)


def times_of(value: str, moment: Callable[[str], int]) -> Starting:
    """Parse startingOffsetsByTimestamp, with any time that brokers accept. Raises `ValueError`.

    `moment` returns the milliseconds of a time that is given as text.
    """
    topics = {
        topic: {number: moment(at) if isinstance(at, str) else at for number, at in partitions.items()}
        if isinstance(partitions, dict)
        else partitions
        for topic, partitions in json_by_topic(value).items()
    }
    return Starting(None, {partition: AtTime(ms) for partition, ms in _values(topics, 0).items()})


def partition_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse Spark's JSON of one offset per partition. Raises `ValueError` for anything else, also for duplicates."""
    return _values(json_by_topic(text), 0)


def json_by_topic(text: str) -> dict[str, Any]:
    """Parse a JSON object whose names are topics, at least one. Raises `ValueError`."""
    try:
        topics = json.loads(text, object_pairs_hook=without_duplicates)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(topics, dict) or not topics:
        raise ValueError("no object of topics")
    return {topic_name(topic): value for topic, value in topics.items()}


def _reasoned(entry: object, where: str) -> ReasonedValueError:
    """Name the entry of the JSON that is not allowed: the option may have hundreds."""
    return ReasonedValueError(f"The value has {json.dumps(entry)[:_MAX_SHOWN_ENTRY]} {where}")


def _values(topics: Mapping[str, Any], low: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict):
            raise _reasoned(partitions, f"for topic '{topic}'")
        for number, value in partitions.items():
            if not re.fullmatch(r"0|[1-9][0-9]{0,9}", number) or int(number) > PARTITION_MAX:
                raise _reasoned(number, f"as a partition of topic '{topic}'")
            if type(value) is not int or not low <= value <= OFFSET_MAX:
                raise _reasoned(value, f"for partition {number} of topic '{topic}'")
            found[TopicPartition(topic, int(number))] = value
    return found


def _at(offset: int) -> Start:
    return AtEdge(latest=offset == _LATEST_OFFSET) if offset < 0 else AtOffset(offset)
