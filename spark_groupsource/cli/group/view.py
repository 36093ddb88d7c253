"""Format a group: lines of text for people, one line of JSON for programs. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from spark_groupsource.assignors.notes import by_topic
from spark_groupsource.cli.group.member_data import MemberData, meaning, shown_data, shown_partitions
from spark_groupsource.cli.text_table import aligned
from spark_groupsource.lag.model import Lag, shown_note, shown_number, total
from spark_groupsource.model.offsets import TopicPartition

# A member id is usually a name and a UUID. The first part of the UUID is enough to distinguish members.
_UUID = re.compile(r"-?([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
_LONGEST_NAME = 20
_LONGEST_ID = 32
_UNASSIGNED = "(unassigned)"
_LOG_UNKNOWN = "its log is unknown: the topic or the right DESCRIBE on it is missing"


@dataclass(frozen=True, slots=True)
class DescribedMember:
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
    members: tuple[DescribedMember, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that have members, or standby members."""
        return frozenset().union(*(member.partitions | member.standby for member in self.members))

    def owners(self) -> dict[TopicPartition, list[DescribedMember]]:
        """Return the owners of each partition: one member, unless the group's strategy is wrong."""
        return self._by_partition(lambda member: member.partitions)

    def standby_members(self) -> dict[TopicPartition, list[DescribedMember]]:
        """Return the standby members of each partition."""
        return self._by_partition(lambda member: member.standby)

    def _by_partition(
        self, held: Callable[[DescribedMember], frozenset[TopicPartition]]
    ) -> dict[TopicPartition, list[DescribedMember]]:
        found: dict[TopicPartition, list[DescribedMember]] = {}
        for member in self.members:
            for partition in held(member):
                found.setdefault(partition, []).append(member)
        return found


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group, with the lag of each existing partition that it has offsets for or that is assigned."""

    description: GroupDescription
    lags: Mapping[TopicPartition, Lag]

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions with offsets or members, sorted."""
        return sorted(self.lags.keys() | self.description.partitions)

    def unread_records(self, member: DescribedMember) -> int:
        """Return the number of unread records in a member's partitions."""
        return total(self.lags[partition] for partition in member.partitions if partition in self.lags)[0]


# --- for people


def group_lines(report: GroupReport) -> list[str]:
    """Return the group as text: head, members, partitions and notes."""
    names = short_ids([member.member_id for member in report.description.members])
    text = _head(report)
    if report.description.members:
        text += ["", *_members(report, names)]
    if report.partitions:
        text += ["", *_partitions(report, names)]
    text += [f"note: {_safe(note)}" for note in report.description.notes]
    return text


def _head(report: GroupReport) -> list[str]:
    description = report.description
    records = total(report.lags.values())[0]
    count = len(description.members)
    members = f"{count} member{'' if count == 1 else 's'}"
    first = f"group {description.group}: {description.state or 'state not known'}, {members}"
    protocol = f"protocol {description.protocol or 'not known'}"
    if description.protocol_type not in (None, "", "consumer"):
        protocol += f" of type {description.protocol_type}"
    address = description.coordinator
    where = "not known" if address is None else f"{address[0]} (id {address[1]})"
    return [
        f"{first}, lag {records}",
        _safe(f"{protocol}, strategy {description.strategy or '-'}, coordinator {where}"),
    ]


def _members(report: GroupReport, names: Mapping[str, str]) -> list[str]:
    rows = [("member", "client id", "host", "instance id", "partitions", "standby", "lag", "metadata")]
    for member in report.description.members:
        rows.append((
            names[member.member_id], member.client_id, member.host, member.instance_id or "",
            str(len(member.partitions)), str(len(member.standby) or ""), str(report.unread_records(member)),
            _described_data(member),
        ))  # fmt: skip
    return _without_empty_columns(rows, {0, 1, 2, 3, 7})


def _described_data(member: DescribedMember) -> str:
    parts = [] if member.data is None else [shown_data(member.data)]
    if member.target is not None and member.target != member.partitions:
        parts.append(f"moves to {shown_partitions(member.target) or 'no partition'}")
    return ", ".join(part for part in parts if part)


def _partitions(report: GroupReport, names: Mapping[str, str]) -> list[str]:
    owners, standby_members = report.description.owners(), report.description.standby_members()
    rows: list[tuple[str, ...]] = [("topic", "partition", "committed", "end", "lag", "member", "standby", "")]
    for partition in report.partitions:
        lag = report.lags.get(partition)
        numbers = (None, None, None) if lag is None else (lag.committed, lag.end, lag.records)
        rows.append((
            partition.topic, str(partition.partition), *map(shown_number, numbers),
            " ".join(names[member.member_id] for member in owners.get(partition, ())) or _UNASSIGNED,
            " ".join(names[member.member_id] for member in standby_members.get(partition, ())),
            _LOG_UNKNOWN if lag is None else shown_note(lag),
        ))  # fmt: skip
    records = total(report.lags.values())[0]
    rows.append(("total", "", "", "", str(records), "", "", total_note(report.lags.values())))
    return _without_empty_columns(rows, {0, 5, 6, 7})


def total_note(lags: Iterable[Lag]) -> str:
    """Return a note for the total of a lag table: what it counts as lost, and how many partitions it lacks."""
    every = list(lags)
    lost, leaderless = total(every)[1], sum(lag.end is None for lag in every)
    parts = [f"{lost} lost"] if lost else []
    if leaderless:
        parts.append(f"{leaderless} partition{' is' if leaderless == 1 else 's are'} not known")
    return ", ".join(parts)


def _without_empty_columns(rows: Sequence[tuple[str, ...]], left: set[int]) -> list[str]:
    """Return the rows as aligned text, without columns that have only a header."""
    safe = [tuple(map(_safe, row)) for row in rows]
    kept = [column for column in range(len(rows[0])) if any(row[column] for row in safe[1:])]
    return aligned(
        [[row[column] for column in kept] for row in safe],
        left={position for position, column in enumerate(kept) if column in left},
    )


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


def group_json(report: GroupReport, now_ms: int) -> str:
    """Return the group as one line of JSON; null for none or not reported."""
    description = report.description
    records, lost, _, _ = total(report.lags.values())
    address, broker = description.coordinator or (None, None)
    value = {
        "group": description.group,
        "at_ms": now_ms,
        "state": description.state,
        "protocol": description.protocol,
        "protocol_type": description.protocol_type,
        "strategy": description.strategy,
        "coordinator": {"address": address, "id": broker},
        "members": [
            {
                "member_id": member.member_id, "client_id": member.client_id, "host": member.host,
                "instance_id": member.instance_id, "partitions": by_topic(member.partitions),
                "target": None if member.target is None else by_topic(member.target),
                "standby": by_topic(member.standby), "lag": report.unread_records(member),
                "metadata": None if member.data is None else _data(member.data),
            }
            for member in description.members
        ],
        "partitions": _json_partitions(report),
        "total": {"lag": records, "lost": lost},
        "notes": list(description.notes),
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
    owners, standby_members = report.description.owners(), report.description.standby_members()
    found = []
    for partition in report.partitions:
        lag = report.lags.get(partition)
        found.append({
            "topic": partition.topic, "partition": partition.partition,
            "committed": None if lag is None else lag.committed, "end": None if lag is None else lag.end,
            "lag": None if lag is None else lag.records, "lost": None if lag is None else lag.lost,
            "members": [member.member_id for member in owners.get(partition, ())],
            "standby": [member.member_id for member in standby_members.get(partition, ())],
        })  # fmt: skip
    return found
