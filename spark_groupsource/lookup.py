"""Turns what the starting and ending options say of partitions into offsets: asks the log, and other groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from spark_groupsource import errors
from spark_groupsource.clusterport import ClusterPort, Edge
from spark_groupsource.errors import OptionError
from spark_groupsource.offsets import TopicPartition
from spark_groupsource.starting import AtEdge, AtGroup, AtOffset, AtTime, Start, Starting

# How many partitions of an option an error shows.
_MAX_SHOWN = 10


def look_up(
    cluster: ClusterPort, starts: Mapping[TopicPartition, Start | None], option: str, *, unmatched_is_latest: bool
) -> dict[TopicPartition, int]:
    """Return the offset of each partition; `option` is named in errors.

    `unmatched_is_latest`: the log's end stands for a time that no record is at or after; else it is an error.
    Raises `OptionError` also for a partition that the option does not name, and for an offset behind the log's end. One
    of another group may be behind the end of what is committed.
    """
    unnamed = sorted(partition for partition, start in starts.items() if start is None)
    if unnamed:
        names = ", ".join(map(str, unnamed))
        edge = {"startingOffsets": " (-2 is earliest)", "endingOffsets": " (-1 is latest)"}.get(option, "")
        raise _not_allowed(option, _shown(starts), f"a value for every partition of the topics; {names} has none{edge}")
    known = {partition: start for partition, start in starts.items() if start is not None}
    of_groups = _of_other_groups(cluster, known)
    known |= of_groups
    given = {partition: start.offset for partition, start in known.items() if isinstance(start, AtOffset)}
    _check_given(cluster, given, of_groups.keys(), option)
    wanted: dict[TopicPartition, Edge | int] = {}
    for partition, start in known.items():
        if isinstance(start, AtEdge):
            wanted[partition] = Edge.LATEST if start.latest else Edge.EARLIEST
        elif isinstance(start, AtTime):
            wanted[partition] = start.timestamp_ms
    answers = cluster.log_offsets(wanted)
    unmatched = [partition for partition, answer in answers.items() if answer is None]
    if unmatched and not unmatched_is_latest:
        raise _not_allowed(
            option,
            str(wanted[unmatched[0]]),
            f"a time at or before the newest record of every partition ({unmatched[0]} has none), or"
            " startingOffsetsByTimestampStrategy=latest",
        )
    latest = cluster.log_offsets(dict.fromkeys(unmatched, Edge.LATEST))
    return given | {partition: end.offset for partition, end in (answers | latest).items() if end is not None}


def check_named(starting: Starting, partitions: Iterable[TopicPartition]) -> None:
    """Raise `OptionError` when the option names a partition that is not among these: it would count for nothing."""
    unknown = sorted(starting.each.keys() - set(partitions))
    if unknown:
        names = ", ".join(map(str, unknown))
        raise _not_allowed(
            starting.option, _shown(starting.each), f"partitions of the topics that are read; {names} is none of them"
        )


def _of_other_groups(cluster: ClusterPort, starts: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
    """Return where other groups have got to; the log's beginning where they have no offset."""
    asked = {partition: start.group for partition, start in starts.items() if isinstance(start, AtGroup)}
    found: dict[TopicPartition, Start] = {}
    for group in sorted(set(asked.values())):
        partitions = [partition for partition, other in asked.items() if other == group]
        offsets = cluster.group_offsets(group, partitions)
        found |= {p: AtEdge() if (at := offsets.get(p)) is None else AtOffset(at) for p in partitions}
    return found


def _check_given(
    cluster: ClusterPort, given: Mapping[TopicPartition, int], of_groups: Collection[TopicPartition], option: str
) -> None:
    """Raise for an offset behind the log's end; one before its beginning is data loss, told when it is planned.

    A group that reads uncommitted records may be ahead of an open transaction, where the log ends for read_committed.
    """
    ends = cluster.log_offsets(dict.fromkeys(given, Edge.LATEST))
    ahead = [p for p, end in ends.items() if p in of_groups and end is not None and given[p] > end.offset]
    ends |= cluster.log_offsets(dict.fromkeys(ahead, Edge.LATEST), uncommitted=True)
    for partition, end in sorted(ends.items()):
        if end is not None and given[partition] > end.offset:
            allowed = f"for {partition} an offset up to {end.offset}, where its log ends"
            raise _not_allowed(option, str(given[partition]), allowed)


def _shown(starts: Mapping[TopicPartition, Start | None]) -> str:
    """Return what an option says of partitions, shortened."""
    named = [f"{partition}: {start}" for partition, start in sorted(starts.items()) if start is not None]
    return ", ".join([*named[:_MAX_SHOWN], *(["..."] if len(named) > _MAX_SHOWN else [])])


def _not_allowed(option: str, value: str, allowed: str) -> OptionError:
    return OptionError(errors.OPTION_INVALID, option=option, value=value, allowed=allowed)
