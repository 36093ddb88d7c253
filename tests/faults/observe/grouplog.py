"""What a group's coordinator wrote and logged about the members: who got which partitions, who left, who was removed.

The records are those of Kafka's files GroupMetadataKey/Value.json (classic protocol: the whole group, at every
assignment), ConsumerGroupMemberMetadataKey/Value.json (KIP-848: a member's client id) and
ConsumerGroupCurrentMemberAssignmentKey/Value.json (KIP-848: a member's partitions), as of Kafka 4.1. They lie in one
log with the group's commits, so that their order needs no clock. Why a member went is in the broker's log file alone.
"""

from __future__ import annotations

import re
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping

from tests.faults.history import GroupRecord
from tests.faults.observe.kafkabytes import Fields

Partitions = tuple[tuple[str, int], ...]

_CLASSIC_GROUP, _MEMBER_METADATA, _MEMBER_ASSIGNMENT = 2, 5, 8
_FLEXIBLE_GROUP = 4  # the first version of a classic group's value with compact strings and tagged fields
_SUFFIX = "-member"  # what the source adds to the client id of its group member


class GroupLog:
    """Takes the records of one group's log in order; `found` is what they say of members."""

    def __init__(self, group: str, topics: Mapping[str, str]) -> None:
        self.group = group
        self._topics = dict(topics)
        self._classic: set[str] = set()  # member ids of the newest generation
        self._names: dict[str, str] = {}  # member id -> query
        self.found: list[GroupRecord] = []

    def take(self, position: int, at: float, key: bytes | None, value: bytes | None) -> None:
        """Take one record; those of other groups and of other kinds are passed over."""
        if key is None:
            return
        fields = Fields(key)
        kind = fields.number("h")
        if kind not in (_CLASSIC_GROUP, _MEMBER_METADATA, _MEMBER_ASSIGNMENT) or fields.text() != self.group:
            return
        if kind == _CLASSIC_GROUP:
            self._take_group(position, at, value)
            return
        member = fields.text()
        if value is None:
            if kind == _MEMBER_ASSIGNMENT:
                self._add(position, at, member, "gone")
        elif kind == _MEMBER_METADATA:
            self._names[member] = _client_of(value).removesuffix(_SUFFIX)
        else:
            self._add(position, at, member, "owns", self._assigned(value))

    def query_of(self, member: str) -> str:
        """Return the query of a member id."""
        return self._names.get(member, member)

    def _add(self, position: int, at: float, member: str, event: str, partitions: Partitions = ()) -> None:
        self.found.append(GroupRecord(position, at, self.query_of(member), member, event, partitions))

    def _take_group(self, position: int, at: float, value: bytes | None) -> None:
        members = list(_classic_members(value)) if value is not None else []
        for gone in sorted(self._classic - {member for member, _, _ in members}):
            self._add(position, at, gone, "gone")
        self._classic = {member for member, _, _ in members}
        for member, client, partitions in members:
            self._names[member] = client.removesuffix(_SUFFIX)
            self._add(position, at, member, "owns", partitions)

    def _assigned(self, value: bytes) -> Partitions:
        """Return what a KIP-848 member has, with what it is still giving back."""
        fields = Fields(value)
        fields.number("h")
        fields.number("i")  # member epoch
        fields.number("i")  # previous member epoch
        fields.raw(1)  # state
        found: list[tuple[str, int]] = []
        for _which in ("assigned", "pending revocation"):
            for _ in range(fields.count(compact=True)):
                topic_id = b64encode(fields.raw(16)).rstrip(b"=").decode()  # as clients write an id
                topic = self._topics.get(topic_id, topic_id)
                found += [(topic, fields.number("i")) for _ in range(fields.count(compact=True))]
                fields.skip_tags()
        return tuple(sorted(found))


def _client_of(value: bytes) -> str:
    fields = Fields(value)
    fields.number("h")
    fields.optional(compact=True)  # instance id
    fields.optional(compact=True)  # rack
    return fields.text(compact=True)


def _classic_members(value: bytes) -> Iterator[tuple[str, str, Partitions]]:
    """Yield (member id, client id, partitions) of a classic group."""
    fields = Fields(value)
    version = fields.number("h")
    compact = version >= _FLEXIBLE_GROUP
    fields.text(compact)  # protocol type
    fields.number("i")  # generation
    fields.optional(compact)  # protocol
    fields.optional(compact)  # leader
    if version >= 2:
        fields.number("q")  # when the state began
    for _ in range(fields.count(compact)):
        member = fields.text(compact)
        if version >= 3:
            fields.optional(compact)  # instance id
        client = fields.text(compact)
        fields.text(compact)  # host
        if version >= 1:
            fields.number("i")  # rebalance timeout
        fields.number("i")  # session timeout
        fields.blob(compact)  # subscription
        yield member, client, _assignment(fields.blob(compact))
        if compact:
            fields.skip_tags()


def _assignment(data: bytes) -> Partitions:
    """Decode ConsumerProtocolAssignment; user data and what later versions add lies behind it."""
    if not data:
        return ()
    fields = Fields(data)
    fields.number("h")
    found: list[tuple[str, int]] = []
    for _ in range(fields.count()):
        topic = fields.text()
        found += [(topic, fields.number("i")) for _ in range(fields.count())]
    return tuple(sorted(found))


# --- the broker's log file

_LINE = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.(\d{3}) \S+ GroupMetadataManager: (.*)$")
_REMOVED = (
    re.compile(r"Member (\S+) in group {group} has failed, removing it"),
    re.compile(r"\[GroupId {group}\] Member (\S+) fenced from the group because"),
    re.compile(r"Group {group} removed (?:dynamic )?members who haven't (?:joined|sent their sync requests): (.*)$"),
)


def removals(lines: Iterable[str], group: str, members: GroupLog) -> Iterator[GroupRecord]:
    """Yield the members that the coordinator removed, from the lines of a broker's log file."""
    patterns = [re.compile(pattern.pattern.replace("{group}", re.escape(group))) for pattern in _REMOVED]
    for line in lines:
        matched = _LINE.match(line)
        if matched is None:
            continue
        day, milliseconds, text = matched.groups()
        at = time.mktime(time.strptime(day, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1000
        for pattern in patterns:
            found = pattern.search(text)
            for member in re.findall(r"[^\s\[\],]+", found.group(1)) if found is not None else ():
                yield GroupRecord(-1, at, members.query_of(member), member, "expired")
