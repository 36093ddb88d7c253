"""Format a group: lines of text for people, one line of JSON for programs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_groupsource.assignors.notes import by_topic
from spark_groupsource.cli.group.member_data import MemberData, meaning, shown_data, shown_partitions
from spark_groupsource.lag.model import Lag, shown_note, total
from spark_groupsource.model.offsets import TopicPartition

# A member id is usually a name and a UUID. The first part of the UUID is enough to distinguish members.
_UUID = re.compile(r"-?([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_LONGEST_NAME = 20
_LONGEST_ID = 32
_UNASSIGNED = "(unassigned)"
_NOT_TOLD = "its log is unknown: the topic or the right DESCRIBE on it is missing"


@dataclass(frozen=True, slots=True)
class Member:
    """A member as the coordinator describes it."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    # The partitions that the coordinator intends for it (KIP-848); None under other protocols.
    target: frozenset[TopicPartition] | None = None
    # None: not reported.
    data: MemberData | None = None

    @property
    def standby(self) -> frozenset[TopicPartition]:
        """The standby partitions of the member."""
        return frozenset() if self.data is None else self.data.leader.standby


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group as its coordinator describes it. Unreported fields are None; `notes` have the reasons, for the user."""

    group: str
    state: str | None = None
    # "classic", or "consumer" for KIP-848.
    protocol: str | None = None
    # Kind of a classic group's members: "consumer", "connect", ...
    protocol_type: str | None = None
    # The assignment strategy, by the name that members compare.
    strategy: str | None = None
    # host:port and broker id
    coordinator: tuple[str, int] | None = None
    members: tuple[Member, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group, with the lag of each existing partition that it has offsets for or that is assigned."""

    description: GroupDescription
    lags: Mapping[TopicPartition, Lag]

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions with offsets or members, sorted."""
        found = set(self.lags)
        for member in self.description.members:
            found |= member.partitions | member.standby
        return sorted(found)

    def owners(self) -> dict[TopicPartition, list[Member]]:
        """Return the owners of each partition: one member, unless the group's strategy is wrong."""
        found: dict[TopicPartition, list[Member]] = {}
        for member in self.description.members:
            for partition in member.partitions:
                found.setdefault(partition, []).append(member)
        return found

    def standing_by(self) -> dict[TopicPartition, list[Member]]:
        """Return the standby members of each partition."""
        found: dict[TopicPartition, list[Member]] = {}
        for member in self.description.members:
            for partition in member.standby:
                found.setdefault(partition, []).append(member)
        return found

    def lag_of(self, member: Member) -> int:
        """Return the number of unread records in a member's partitions."""
        return sum(self.lags[partition].records for partition in member.partitions if partition in self.lags)


# --- for people


def lines(report: GroupReport) -> list[str]:
    """Return the group as text: head, members, partitions and notes."""
    names = short_ids([member.member_id for member in report.description.members])
    said = _head(report)
    if report.description.members:
        said += ["", *_members(report, names)]
    if report.partitions:
        said += ["", *_partitions(report, names)]
    said += [f"note: {_safe(note)}" for note in report.description.notes]
    return said


def _head(report: GroupReport) -> list[str]:
    told = report.description
    records = total(report.lags.values())[0]
    count = len(told.members)
    first = f"group {told.group}: {told.state or 'state not known'}, {count} member{'' if count == 1 else 's'}"
    protocol = f"protocol {told.protocol or 'not known'}"
    if told.protocol_type not in (None, "", "consumer"):
        protocol += f" of type {told.protocol_type}"
    where = "not known" if told.coordinator is None else f"{told.coordinator[0]} (id {told.coordinator[1]})"
    return [
        f"{first}, lag {records}",
        _safe(f"{protocol}, strategy {told.strategy or '-'}, coordinator {where}"),
    ]


def _members(report: GroupReport, names: Mapping[str, str]) -> list[str]:
    rows = [("member", "client id", "host", "instance id", "partitions", "standby", "lag", "metadata")]
    for member in report.description.members:
        rows.append((
            names[member.member_id], member.client_id, member.host, member.instance_id or "",
            str(len(member.partitions)), str(len(member.standby) or ""), str(report.lag_of(member)), _told(member),
        ))  # fmt: skip
    return _aligned(rows, {0, 1, 2, 3, 7})


def _told(member: Member) -> str:
    parts = [] if member.data is None else [shown_data(member.data)]
    if member.target is not None and member.target != member.partitions:
        parts.append(f"moves to {shown_partitions(member.target) or 'no partition'}")
    return ", ".join(part for part in parts if part)


def _partitions(report: GroupReport, names: Mapping[str, str]) -> list[str]:
    owners, standing_by = report.owners(), report.standing_by()
    rows = [("topic", "partition", "committed", "end", "lag", "member", "standby", "")]
    for partition in report.partitions:
        lag = report.lags.get(partition)
        committed = "-" if lag is None or lag.committed is None else str(lag.committed)
        end, unread = ("-", "-") if lag is None else (str(lag.end), str(lag.records))
        rows.append((
            partition.topic, str(partition.partition), committed, end, unread,
            " ".join(names[member.member_id] for member in owners.get(partition, ())) or _UNASSIGNED,
            " ".join(names[member.member_id] for member in standing_by.get(partition, ())),
            _NOT_TOLD if lag is None else shown_note(lag),
        ))  # fmt: skip
    records, lost, _, _ = total(report.lags.values())
    rows.append(("total", "", "", "", str(records), "", "", f"{lost} lost" if lost else ""))
    return _aligned(rows, {0, 5, 6, 7})


def _aligned(rows: Sequence[tuple[str, ...]], left: set[int]) -> list[str]:
    """Return a table without empty columns; columns that are not in `left` are numbers."""
    safe = [tuple(map(_safe, row)) for row in rows]
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in safe[1:])]
    widths = {column: max(len(row[column]) for row in safe) for column in kept}
    return [
        "  ".join(
            row[column].ljust(widths[column]) if column in left else row[column].rjust(widths[column])
            for column in kept
        ).rstrip()
        for row in safe
    ]


def short_ids(member_ids: Sequence[str]) -> dict[str, str]:
    """Return a short name for each member id; the whole id if two short names would be equal."""
    short = {member_id: _short(member_id) for member_id in member_ids}
    taken = list(short.values())
    return {member_id: name if taken.count(name) == 1 else member_id for member_id, name in short.items()}


def _short(member_id: str) -> str:
    match = _UUID.search(member_id)
    if match is None:
        return member_id if len(member_id) <= _LONGEST_ID else f"{member_id[: _LONGEST_ID - 10]}..{member_id[-8:]}"
    name = member_id[: match.start()]
    name = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 2]}.."
    return f"{name}-{match[1]}".lstrip("-")


def _safe(text: str) -> str:
    """Return another program's text without characters that control the terminal."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


# --- for programs


def json_line(report: GroupReport, now_ms: int) -> str:
    """Return the group as one line of JSON; null for none or not reported."""
    told = report.description
    records, lost, _, _ = total(report.lags.values())
    address, broker = told.coordinator or (None, None)
    value = {
        "group": told.group,
        "at_ms": now_ms,
        "state": told.state,
        "protocol": told.protocol,
        "protocol_type": told.protocol_type,
        "strategy": told.strategy,
        "coordinator": {"address": address, "id": broker},
        "members": [
            {
                "member_id": member.member_id, "client_id": member.client_id, "host": member.host,
                "instance_id": member.instance_id, "partitions": by_topic(member.partitions),
                "target": None if member.target is None else by_topic(member.target),
                "standby": by_topic(member.standby), "lag": report.lag_of(member),
                "metadata": None if member.data is None else _data(member.data),
            }
            for member in told.members
        ],
        "partitions": _json_partitions(report),
        "total": {"lag": records, "lost": lost},
        "notes": list(told.notes),
    }  # fmt: skip
    return json.dumps(value, separators=(",", ":"))


def _data(data: MemberData) -> dict[str, object]:
    if not data.readable:
        return {"bytes": data.size}
    own: dict[str, object] = {"user_data_bytes": data.foreign_size}
    if data.note is not None:
        own = {"held": data.note.held, "data": meaning(data.note.data), "data_bytes": len(data.note.data)}
    return {
        "bytes": data.size, "topics": list(data.topics), "owned": by_topic(data.owned), "generation": data.generation,
        "rack": data.rack, "leader_error": data.leader.error or None, **own,
    }  # fmt: skip


def _json_partitions(report: GroupReport) -> list[dict[str, object]]:
    owners, standing_by = report.owners(), report.standing_by()
    found = []
    for partition in report.partitions:
        lag = report.lags.get(partition)
        found.append({
            "topic": partition.topic, "partition": partition.partition,
            "committed": None if lag is None else lag.committed, "end": None if lag is None else lag.end,
            "lag": None if lag is None else lag.records, "lost": None if lag is None else lag.lost,
            "members": [member.member_id for member in owners.get(partition, ())],
            "standby": [member.member_id for member in standing_by.get(partition, ())],
        })  # fmt: skip
    return found
